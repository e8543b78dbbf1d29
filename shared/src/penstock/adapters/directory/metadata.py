"""The Metadata port on a local directory: one JSON file, replaced under a file lock. Expiry goes by wall time.

For one machine (embedded mode). An unreadable file counts as empty: the port may forget everything at any time.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from penstock.adapters.directory.file_lock import file_lock
from penstock.errors import ExternalError
from penstock.ports import Clock

_Values = dict[str, tuple[str, int | None]]


class DirectoryMetadata:
    """A `Metadata` in `root/metadata.json`; `root` is created if need be."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self._file = Path(root) / "metadata.json"
        self._lock_file = Path(root) / "metadata.lock"
        self._clock = clock
        try:
            Path(root).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ExternalError(f"cannot use {root} for metadata: {error}") from error

    async def acquire(self, key: str, value: bytes, ttl_ms: int) -> bool:
        """See `Metadata.acquire`."""
        async with self._locked() as values:
            if self._alive(values, key) is not None:
                return False
            values[key] = self._entry(value, ttl_ms)
            return True

    async def renew(self, key: str, value: bytes, ttl_ms: int) -> bool:
        """See `Metadata.renew`."""
        async with self._locked() as values:
            if self._alive(values, key) != value:
                return False
            values[key] = self._entry(value, ttl_ms)
            return True

    async def release(self, key: str, value: bytes) -> bool:
        """See `Metadata.release`."""
        async with self._locked() as values:
            if self._alive(values, key) != value:
                return False
            del values[key]
            return True

    async def put(self, key: str, value: bytes) -> None:
        """See `Metadata.put`."""
        async with self._locked() as values:
            values[key] = self._entry(value, None)

    async def get(self, key: str) -> bytes | None:
        """See `Metadata.get`."""
        return self._alive(self._load(), key)

    @asynccontextmanager
    async def _locked(self) -> AsyncGenerator[_Values]:
        """The values, written back at the end if they were changed."""
        try:
            descriptor = os.open(self._lock_file, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                async with file_lock(descriptor):
                    values = self._load()
                    before = dict(values)
                    yield values
                    if values != before:
                        self._store(values)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise ExternalError(f"cannot write {self._file}: {error}") from error

    def _load(self) -> _Values:
        # A rename replaces the file at once, so a reader needs no lock.
        with suppress(OSError, ValueError, TypeError, AttributeError):
            loaded: dict[str, Any] = json.loads(self._file.read_bytes())
            return {key: (str(value), expires) for key, (value, expires) in loaded.items()}
        return {}

    def _store(self, values: _Values) -> None:
        temporary = self._file.with_suffix(".tmp")  # one writer at a time: the lock is held
        temporary.write_text(json.dumps(values))
        os.replace(temporary, self._file)

    def _entry(self, value: bytes, ttl_ms: int | None) -> tuple[str, int | None]:
        expires = None if ttl_ms is None else self._clock.now_us() + 1_000 * ttl_ms
        return base64.b64encode(value).decode(), expires

    def _alive(self, values: _Values, key: str) -> bytes | None:
        value, expires = values.get(key, (None, None))
        if value is None or (expires is not None and self._clock.now_us() >= expires):
            return None
        return base64.b64decode(value)
