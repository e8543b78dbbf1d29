"""Local copies of snapshots: a `Blobs` that keeps on this machine's disk what its processes have written to the store.

A subtask that is restored on the machine that wrote its state reads it from the disk and not through the network. A
copy is never needed: it is written once its object is in the store, the oldest ones go when there are too many, and
what is not there is read from the store. Copies are not synced: behind each stands a checksum, and one that a power loss
has left in halves is removed.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import structlog

from penstock.ports import Blobs
from penstock.protocol.manifests import checkpoint_of

_TEMPORARY = ".tmp-"
_CHECKSUM_BYTES = 4
_log = structlog.get_logger("penstock.local_copies")


def is_of_checkpoint(key: str) -> bool:
    """Whether an object belongs to a snapshot."""
    return checkpoint_of(key) is not None


class LocalCopies:
    """The objects of `store`, some also in `folder`, which several processes may use."""

    def __init__(
        self, store: Blobs, folder: Path, limit_bytes: int, copied: Callable[[str], bool] = is_of_checkpoint
    ) -> None:
        """`limit_bytes`: of all copies together; `copied`: which keys, none of which is ever written with other data."""
        self._store = store
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._copied = copied

    async def put(self, key: str, data: bytes) -> None:
        """See `Blobs.put`."""
        await self._store.put(key, data)
        if self._copied(key) and len(data) <= self._limit_bytes:
            try:
                await asyncio.to_thread(self._copy, self._path(key), data)
            except OSError as error:  # a full disk makes restarts slower, and nothing else
                _log.warning("no local copy", key=key, error=str(error))

    async def create(self, key: str, data: bytes) -> None:
        """See `Blobs.create`."""
        await self._store.create(key, data)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """See `Blobs.get`."""
        data = await asyncio.to_thread(self._read, self._path(key))
        if data is None:
            return await self._store.get(key, start, end)
        return data[start:end]

    async def list(self, prefix: str) -> list[str]:
        """See `Blobs.list`."""
        return await self._store.list(prefix)

    async def delete(self, key: str) -> None:
        """See `Blobs.delete`."""
        self._path(key).unlink(missing_ok=True)
        await self._store.delete(key)

    def _path(self, key: str) -> Path:
        return self._folder / hashlib.sha256(key.encode()).hexdigest()

    def _read(self, path: Path) -> bytes | None:
        """The copy; None if there is none that is whole."""
        try:
            with open(path, "rb") as file:
                data = file.read(max(0, os.fstat(file.fileno()).st_size - _CHECKSUM_BYTES))
                if file.read() == _checksum(data):
                    return data
            _log.warning("a local copy is damaged; the store is read", path=str(path))
            path.unlink(missing_ok=True)
        except OSError:
            pass
        return None

    def _copy(self, path: Path, data: bytes) -> None:
        descriptor, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=self._folder)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                file.write(_checksum(data))
            os.replace(temporary, path)
        except OSError:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        self._evict()

    def _evict(self) -> None:
        """Remove the oldest copies until the rest fits."""
        found: list[tuple[float, int, str]] = []
        for entry in os.scandir(self._folder):
            with suppress(FileNotFoundError):
                status = entry.stat()
                found.append((status.st_mtime, status.st_size, entry.path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self._limit_bytes:
                return
            with suppress(FileNotFoundError):
                os.unlink(path)
            total -= size


def _checksum(data: bytes) -> bytes:
    return zlib.crc32(data).to_bytes(_CHECKSUM_BYTES)
