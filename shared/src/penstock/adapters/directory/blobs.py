"""The Blobs port on a local directory: an object is a file at `root/key`.

A write goes to a temporary file first (`.tmp-*`, never listed), is fsynced and then renamed (`put`) or hard-linked
(`create`, which the file system refuses if the name is taken), and the folders on its way are fsynced. Several
processes may use one directory. Blocking work runs in threads.
"""

from __future__ import annotations

import asyncio
import errno
import os
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from penstock.adapters.naming import checked_key
from penstock.errors import ExternalError, UsageError
from penstock.ports import BlobExistsError, BlobNotFoundError

_TEMPORARY: Final = ".tmp-"
_FOLDER_TRIES: Final = 10
_NOT_THERE: Final = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)
"""What the file system says of a key under which there is no object."""
_LEFTOVER_AGE_S: Final = 3_600
"""Temporary files of this age belong to a writer that was killed."""


class DirectoryBlobs:
    """A `Blobs` of files under `root`, which is created if need be."""

    def __init__(self, root: Path) -> None:
        self._root = Path(root)
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            _sweep(self._root)
        except OSError as error:
            raise ExternalError(f"cannot use {self._root} as a store of objects: {error}") from error

    async def put(self, key: str, data: bytes) -> None:
        """See `Blobs.put`."""
        await asyncio.to_thread(self._put, self._path(key), data)

    async def create(self, key: str, data: bytes) -> None:
        """See `Blobs.create`."""
        await asyncio.to_thread(self._create, self._path(key), data)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """See `Blobs.get`."""
        return await asyncio.to_thread(_get, self._path(key), key, start, end)

    async def list(self, prefix: str) -> list[str]:
        """See `Blobs.list`."""
        return await asyncio.to_thread(self._list, prefix)

    async def delete(self, key: str) -> None:
        """See `Blobs.delete`. Folders stay: removing an empty one would race with a writer that is about to use it."""
        await asyncio.to_thread(self._delete, self._path(key))

    def _path(self, key: str) -> Path:
        if any(part.startswith(_TEMPORARY) for part in checked_key(key).split("/")):
            raise UsageError(f"object key {key!r}: parts that begin with {_TEMPORARY!r} are reserved")
        return self._root / key

    def _put(self, path: Path, data: bytes) -> None:
        with _staged(path, data, self._root) as temporary:
            os.replace(temporary, path)
            _fsync_folder(path.parent)

    def _create(self, path: Path, data: bytes) -> None:
        if os.path.lexists(path):  # only a shortcut that spares writing the data; the link below decides
            raise BlobExistsError(f"object {path} exists")
        with _staged(path, data, self._root) as temporary:
            try:
                os.link(temporary, path)
            except FileExistsError as error:
                raise BlobExistsError(f"object {path} exists") from error
            _fsync_folder(path.parent)

    def _list(self, prefix: str) -> list[str]:
        folder = prefix.rpartition("/")[0]
        if folder:
            checked_key(folder)
        found: list[str] = []
        try:
            os.stat(self._root)
            for parent, _, names in os.walk(self._root / folder, onerror=_unless_gone):
                within = Path(parent).relative_to(self._root)
                found += [(within / name).as_posix() for name in names if not name.startswith(_TEMPORARY)]
        except OSError as error:
            raise ExternalError(f"cannot list {self._root / folder}: {error}") from error
        return sorted(key for key in found if key.startswith(prefix))

    def _delete(self, path: Path) -> None:
        try:
            path.unlink()
            _fsync_folder(path.parent)
            self._remove_empty(path.parent)
        except OSError as error:
            if error.errno in _NOT_THERE:
                return
            raise ExternalError(f"cannot delete {path}: {error}") from error

    def _remove_empty(self, folder: Path) -> None:
        """Folders come with their first object and go with their last."""
        while folder != self._root:
            try:
                folder.rmdir()
            except OSError:
                return
            folder = folder.parent


@contextmanager
def _staged(path: Path, data: bytes, root: Path) -> Generator[str]:
    """A durable temporary file with `data` beside `path`; gone at the end unless it was renamed away."""
    try:
        descriptor, temporary = _temporary_in(path.parent, root)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield temporary
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
    except OSError as error:
        raise ExternalError(f"cannot write {path}: {error}") from error


def _temporary_in(folder: Path, root: Path) -> tuple[int, str]:
    """A new file in `folder`, which is made if need be, and again if a delete has just removed it as empty."""
    for _ in range(_FOLDER_TRIES):
        try:
            _make_folders(folder, root)
            return tempfile.mkstemp(prefix=_TEMPORARY, dir=folder)
        except FileNotFoundError:
            continue
    raise FileNotFoundError(f"{folder} was removed again and again")


def _make_folders(folder: Path, root: Path) -> None:
    if folder.is_dir():
        return
    if folder != root:
        _make_folders(folder.parent, root)
    folder.mkdir(exist_ok=True)
    _fsync_folder(folder.parent)


def _get(path: Path, key: str, start: int, end: int | None) -> bytes:
    try:
        with open(path, "rb") as file:
            if start == 0 and end is None:
                return file.read()
            size = os.fstat(file.fileno()).st_size
            wanted = max(0, min(size, size if end is None else end) - start)
            parts: list[bytes] = []
            while wanted > 0 and (part := os.pread(file.fileno(), wanted, start)):
                parts.append(part)
                start += len(part)
                wanted -= len(part)
            return b"".join(parts)
    except OSError as error:
        if error.errno in _NOT_THERE:
            raise BlobNotFoundError(f"there is no object {key} ({path})") from error
        raise ExternalError(f"cannot read {path}: {error}") from error


def _unless_gone(error: OSError) -> None:
    """A folder goes with its last object while others are listed; one that refuses is not empty."""
    if error.errno not in _NOT_THERE:
        raise error


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sweep(root: Path) -> None:
    oldest = time.time() - _LEFTOVER_AGE_S
    for parent, _, names in os.walk(root):
        for name in names:
            path = Path(parent) / name
            with suppress(FileNotFoundError):
                if name.startswith(_TEMPORARY) and path.stat().st_mtime < oldest:
                    path.unlink()
