"""Where the bytes of a savepoint come from: files of a folder, or objects of a cluster's store; checked when read.

A checksum is that of a whole object, an index names the segments of key groups in it. From a folder only the segments
that are asked for are kept in memory; from a store whole objects, as many as fit, of large ones likewise the segments
alone.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Protocol, TypeVar

from penstock.coordination.job_store import JobReader
from penstock.core.blocking import run_in_thread
from penstock.errors import CorruptDataError, ExternalError, UsageError
from penstock.ports import BlobNotFoundError, Blobs
from penstock.protocol.manifests import Manifest, decode_manifest
from penstock.protocol.messages import Handle
from penstock.savepoint.folder import checked
from penstock.settings import ClusterSettings

_CHUNK_BYTES: Final = 1 << 20
_WHOLE_BYTES: Final = 64 << 20
"""A larger object of a store is read in parts: once to check it, then what is asked for. So much is kept of others."""
_PART_BYTES: Final = 16 << 20

T = TypeVar("T")


class Objects(Protocol):
    """The objects of one savepoint."""

    def segment(self, handle: Handle, key_group: int) -> bytes:
        """The segment of a key group that the handle lists; raises `CorruptDataError` if its object is damaged."""
        ...

    def whole(self, handle: Handle) -> bytes:
        """All of an object; raises `CorruptDataError` if it is damaged."""
        ...


class FolderObjects:
    """Of an exported savepoint."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._good: set[str] = set()

    def segment(self, handle: Handle, key_group: int) -> bytes:
        """See `Objects.segment`."""
        start, end = handle.key_groups[key_group]
        return self._part(handle, start, end)

    def whole(self, handle: Handle) -> bytes:
        """See `Objects.whole`."""
        return self._part(handle, 0, handle.size_bytes)

    def _part(self, handle: Handle, start: int, end: int) -> bytes:
        if handle.inline:
            data = handle.inline if handle.key in self._good else checked(handle.inline, handle, handle.key)
            self._good.add(handle.key)
            return data[start:end]
        path = self._folder / handle.key
        try:
            with path.open("rb") as file:
                if handle.key not in self._good:
                    digest = hashlib.sha256()
                    while chunk := file.read(_CHUNK_BYTES):
                        digest.update(chunk)
                    if digest.hexdigest() != handle.sha256:
                        raise CorruptDataError(f"{path}: not what was written (checksum)")
                    self._good.add(handle.key)
                file.seek(start)
                return file.read(end - start)
        except FileNotFoundError as error:
            raise CorruptDataError(f"{path}: a part of the savepoint is missing") from error
        except OSError as error:
            raise ExternalError(f"{path}: cannot be read: {error.strerror}") from error


class StoreObjects:
    """Of a savepoint in a store; keeps the objects that were read last: key groups of several operators come in turns."""

    def __init__(self, store: ClusterSettings | Blobs) -> None:
        self._store = store
        self._kept: dict[str, bytes] = {}
        """The one that was asked for last comes last."""
        self._good: set[str] = set()

    def segment(self, handle: Handle, key_group: int) -> bytes:
        """See `Objects.segment`."""
        start, end = handle.key_groups[key_group]
        if handle.inline or handle.size_bytes <= _WHOLE_BYTES:
            return self.whole(handle)[start:end]
        if handle.key not in self._good:
            with_store(self._store, lambda blobs: _check_object(blobs, handle))
            self._good.add(handle.key)
        return with_store(self._store, lambda blobs: _part(blobs, handle, start, end))

    def whole(self, handle: Handle) -> bytes:
        """See `Objects.whole`."""
        data = self._kept.pop(handle.key, None)
        if data is None:
            self._make_room(handle.size_bytes)
            data = with_store(self._store, lambda blobs: read_object(blobs, handle))
        self._kept[handle.key] = data
        return data

    def _make_room(self, size_bytes: int) -> None:
        while self._kept and sum(map(len, self._kept.values())) + size_bytes > _WHOLE_BYTES:
            del self._kept[next(iter(self._kept))]


async def read_object(blobs: Blobs, handle: Handle) -> bytes:
    """An object of a savepoint; raises `CorruptDataError` if it is missing or not what was written."""
    try:
        data = handle.inline or await blobs.get(handle.key)
    except BlobNotFoundError as error:
        raise CorruptDataError(f"{handle.key}: an object of the savepoint is missing: {error}") from error
    return await asyncio.to_thread(checked, data, handle, handle.key)


async def _check_object(blobs: Blobs, handle: Handle) -> None:
    """Read an object in parts; raises `CorruptDataError` if it is missing or not what was written."""
    digest = hashlib.sha256()
    for start in range(0, handle.size_bytes, _PART_BYTES):
        part = await _part(blobs, handle, start, min(start + _PART_BYTES, handle.size_bytes))
        await asyncio.to_thread(digest.update, part)
    if digest.hexdigest() != handle.sha256:
        raise CorruptDataError(f"{handle.key}: not what was written (checksum)")


async def _part(blobs: Blobs, handle: Handle, start: int, end: int) -> bytes:
    try:
        return await blobs.get(handle.key, start, end)
    except BlobNotFoundError as error:
        raise CorruptDataError(f"{handle.key}: an object of the savepoint is missing: {error}") from error


def with_store(store: ClusterSettings | Blobs, work: Callable[[Blobs], Awaitable[T]]) -> T:
    """The outcome of work on a store, whether or not an event loop runs here (as it does in a notebook)."""

    async def opened() -> T:
        if not isinstance(store, ClusterSettings):
            return await work(store)
        from penstock.adapters.cluster_ports import cluster_store  # needs the clients of a cluster, a folder does not

        async with cluster_store(store) as blobs:
            return await work(blobs)

    return run_in_thread(opened())


async def find_manifest(blobs: Blobs, key: str) -> Manifest:
    """The manifest of that key, checked against its job's log where that names it.

    Raises:
        UsageError: there is no such object.
        CorruptDataError: it is no manifest, or not what was written.
    """
    try:
        data = await blobs.get(key)
    except BlobNotFoundError as error:
        raise UsageError(
            f"{key}: neither a folder with a savepoint nor the manifest of one in the cluster's store; penstock "
            "checkpoints JOB lists those of a job"
        ) from error
    manifest = decode_manifest(data, key)
    store = JobReader(blobs)
    history = await store.history(manifest.job)
    named = {record.manifest: record for record in history.savepoints.values()}
    return await store.manifest(named[key].restore) if key in named else await store.whole(manifest)
