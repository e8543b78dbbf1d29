"""Files that a backfill reads in place of a source's own past: rows of the same schema, decoded by their suffix.

They lie in a folder, or as objects in the store of the cluster's settings (`s3://bucket/...`); an object is fetched whole
by the task that reads it, into a file of its own. Event time and bad rows are judged as those of the source.
"""

from __future__ import annotations

import fnmatch
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, Final, Protocol

from penstock.connectors import files
from penstock.connectors.base import Fetched, Position, ReadContext, Source, Split, SplitReader
from penstock.connectors.formats.names import format_of
from penstock.errors import ExternalError, PipelineError
from penstock.settings import StoreSettings, load_settings

_SCHEME: Final = "s3://"
_WILD: Final = "*?["


class Archive(Protocol):
    """The files given for one source."""

    def splits(self) -> Sequence[str]:
        """All of them, sorted; raises `PipelineError` if there are none."""
        ...

    def open(self, split: str, context: ReadContext) -> SplitReader:
        """A reader of one."""
        ...


def archive_of(source: Source[Any], path: str) -> Archive:
    """The files at `path`, with rows like those of `source`.

    Raises:
        PipelineError: there are none, or their format cannot hold such rows.
    """
    if path.startswith(_SCHEME):
        return _StoredArchive(source, path)
    return _FolderArchive(_files(source, path))


def _files(source: Source[Any], path: str) -> files.Source[Any]:
    return files.Source(path, schema=source.schema, timezone=getattr(source, "timezone", None))


class _FolderArchive:
    def __init__(self, found: files.Source[Any]) -> None:
        self._files = found

    def splits(self) -> Sequence[str]:
        return [split.id for split in self._files.discover()]

    def open(self, split: str, context: ReadContext) -> SplitReader:
        return self._files.open(Split(split), None, context)


class _StoredArchive:
    """`s3://bucket/key`, `s3://bucket/prefix/` (all below), or a pattern."""

    def __init__(self, source: Source[Any], path: str) -> None:
        self._source = source
        self._path = path
        bucket, _, self._key = path.removeprefix(_SCHEME).partition("/")
        self._settings = _store_settings(bucket)

    def splits(self) -> Sequence[str]:
        import obstore

        from penstock.adapters.s3_blobs import s3_store

        wild = next((i for i, character in enumerate(self._key) if character in _WILD), len(self._key))
        folder = self._key if wild == len(self._key) else self._key[:wild].rpartition("/")[0]
        try:
            listed = [
                item["path"] for chunk in obstore.list(s3_store(self._settings), folder or None) for item in chunk
            ]
        except Exception as error:  # the client has a class of errors per cause
            raise self._failure(error) from error
        found = sorted(key for key in listed if self._wanted(key))
        if not found:
            raise PipelineError(f"--source: no object with a known extension in {self._path!r} ({self._where})")
        return found

    def _wanted(self, key: str) -> bool:
        name = PurePosixPath(key)
        if format_of(Path(name.name)) is None or any(part.startswith((".", "_")) for part in name.parts):
            return False
        return not any(c in _WILD for c in self._key) or fnmatch.fnmatchcase(key, self._key)

    def open(self, split: str, context: ReadContext) -> SplitReader:
        import obstore

        from penstock.adapters.s3_blobs import s3_store

        folder = Path(tempfile.mkdtemp(prefix="penstock-archive-"))
        try:
            file = folder / PurePosixPath(split).name
            with file.open("wb") as copy:
                for chunk in obstore.get(s3_store(self._settings), split):
                    copy.write(chunk)
            return _Fetched(_files(self._source, str(file)).open(Split(file.name), None, context), folder)
        except PipelineError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        except Exception as error:  # the client has a class of errors per cause
            shutil.rmtree(folder, ignore_errors=True)
            raise self._failure(error) from error

    @property
    def _where(self) -> str:
        return f"{self._settings.endpoint}, bucket {self._settings.bucket}"

    def _failure(self, error: Exception) -> ExternalError:
        lines = str(error).splitlines()
        return ExternalError(
            f"--source {self._path} ({self._where}): {lines[0] if lines else type(error).__name__}; the store is that of "
            "the cluster's settings: check store.endpoint and the keys"
        )


def _store_settings(bucket: str) -> StoreSettings:
    return replace(load_settings().store, bucket=bucket)


class _Fetched:
    """A reader of a file that is removed behind it."""

    def __init__(self, reader: SplitReader, folder: Path) -> None:
        self._reader = reader
        self._folder = folder

    async def read(self, max_rows: int) -> Fetched | None:
        return await self._reader.read(max_rows)

    def position(self) -> Position:
        return self._reader.position()

    async def close(self) -> None:
        try:
            await self._reader.close()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
