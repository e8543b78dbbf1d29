"""Files on object stores (S3 and what speaks its protocol, Google's, Azure's), through obstore.

Objects are read by ranges, of the version that was found (their tag). A staged part is an object beside the visible ones
under `.staging/`: its rows are written to a file of this machine and sent when a checkpoint asks for them. To commit is
to copy it to its visible name, to put an empty object that proves it, and to delete it: a repeated commit copies the same
bytes under the same name again, or finds the proof. Copies are made by the store.

No store can rename and none can tell that an object was there before, so in one case a visible object may come back: if
a consumer deletes it and the process dies after the copy and before the proof. It comes under the same name.
"""

from __future__ import annotations

import functools
import io
import posixpath
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from penstock.connectors.base import LostPartError
from penstock.connectors.files.local import WILDCARDS
from penstock.connectors.files.overlaps import matches
from penstock.connectors.files.store_clients import Location, asking
from penstock.connectors.files.writing import STAGING
from penstock.core.scratch import Scratch
from penstock.errors import PipelineError
from penstock.formats.names import format_of

if TYPE_CHECKING:
    import pyarrow as pa

_READ_AHEAD_BYTES: Final = 1 << 20


# -- reading ------------------------------------------------------------------------------------------------------------


class StoredFile:
    """See `InputFile`: the version of an object that was there when it was first looked at."""

    def __init__(self, place: Location) -> None:
        self._place = place

    def __str__(self) -> str:
        return str(self._place)

    @functools.cached_property
    def _meta(self) -> Mapping[str, Any]:
        import obstore

        try:
            with asking("open", self._place):
                return dict(obstore.head(self._place.store, self._place.key))
        except FileNotFoundError as error:
            raise PipelineError(f"cannot open {self._place}: there is no such object (any more)") from error

    @property
    def may_grow(self) -> bool:
        """See `InputFile.may_grow`: an object is replaced as a whole."""
        return False

    @property
    def size(self) -> int:
        """See `InputFile.size`."""
        return self._meta["size"]

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes at `offset`, fewer only at the end; blocks."""
        import obstore

        end = min(offset + size, self.size)
        if offset >= end:
            return b""
        tag = self._meta["e_tag"]
        with asking("read", self._place):
            options: Any = {"range": (offset, end)} | ({"if_match": tag} if tag else {})
            return bytes(obstore.get(self._place.store, self._place.key, options=options).bytes())

    def open(self) -> io.BufferedReader:
        """See `InputFile.open`."""
        return io.BufferedReader(_Bytes(self), _READ_AHEAD_BYTES)

    def arrow(self) -> pa.NativeFile:
        """See `InputFile.arrow`."""
        import pyarrow as pa

        return pa.PythonFile(self.open(), mode="r")

    def identity(self) -> list[Any]:
        """See `InputFile.identity`: its size and the store's tag."""
        return [self.size, self._meta["e_tag"]]

    def content(self, end: int | None) -> StoredContent:
        """See `InputFile.content`; an object does not grow."""
        return StoredContent(self)


class _Bytes(io.RawIOBase):
    """A stored file as Python's, for those who seek and read."""

    def __init__(self, file: StoredFile) -> None:
        self._file = file
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence]
        self._at = max(0, begin + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(self._at, len(buffer))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


class StoredContent:
    """See `Content`."""

    end: int | None = None

    def __init__(self, file: StoredFile) -> None:
        self._file = file

    def read(self, offset: int, size: int) -> bytes:
        """See `Content.read`."""
        return self._file.read(offset, size)

    def identity(self, offset: int) -> Any:
        """See `Content.identity`."""
        return self._file.identity()

    def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True)
class StoredFiles:
    """See `InputFiles`: an object, all objects below a folder, or a pattern."""

    place: Location

    @property
    def is_folder(self) -> bool:
        """See `InputFiles.is_folder`."""
        return not self._is_pattern and not _exists(self.place)

    @property
    def _is_pattern(self) -> bool:
        return any(character in self.place.key for character in WILDCARDS)

    def find(self, keeps: Callable[[str], bool] | None) -> list[tuple[str, int]]:
        """See `InputFiles.find`. A store lists all below a folder at once, a thousand objects at a time."""
        if self._is_pattern:
            root, pattern = self._split_pattern()
            return [(name, size) for name, size in _without_markers(_listed(root)) if matches(pattern, name.split("/"))]
        size = _size(self.place)
        found = _without_markers(_listed(self.place)) if size is None else [(posixpath.basename(self.place.key), size)]
        if not found:
            raise PipelineError(f"files.Source: there is neither an object nor a folder {self.place}")
        return found

    def _split_pattern(self) -> tuple[Location, list[str]]:
        """The folder before the first part with a wildcard, and the parts from there."""
        parts = self.place.key.split("/")
        first = next(index for index, part in enumerate(parts) if any(character in part for character in WILDCARDS))
        return self.place.at("/".join(parts[:first])), parts[first:]

    def file(self, name: str) -> StoredFile:
        """See `InputFiles.file`."""
        if self._is_pattern:
            return StoredFile(self._split_pattern()[0].below(name))
        itself = posixpath.basename(self.place.key) == name and _exists(self.place)
        return StoredFile(self.place if itself else self.place.below(name))


def _listed(folder: Location) -> list[tuple[str, int]]:
    """All objects below a folder: names without it, and sizes."""
    import obstore

    prefix = f"{folder.key}/" if folder.key else ""
    with asking("list", folder):
        chunks = list(obstore.list(folder.store, folder.key or None, chunk_size=1_000))
    return [
        (item["path"].removeprefix(prefix), item["size"])
        for chunk in chunks
        for item in chunk
        if item["path"].startswith(prefix) and item["path"] != prefix
    ]


def _without_markers(found: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Without the empty objects that are folders to others: `a/`, listed without its slash, and `a_$folder$`."""
    folders = {str(above) for name, _ in found for above in PurePosixPath(name).parents}
    return [
        (name, size)
        for name, size in found
        if size or (name not in folders and format_of(PurePosixPath(name)) is not None)
    ]


def _size(place: Location) -> int | None:
    import obstore

    if not place.key:
        return None
    try:
        with asking("look at", place):
            return obstore.head(place.store, place.key)["size"]
    except FileNotFoundError:
        return None


def _exists(place: Location) -> bool:
    return _size(place) is not None


# -- writing ------------------------------------------------------------------------------------------------------------


class StoredParts:
    """See `PartFolder`."""

    def __init__(self, folder: Location) -> None:
        self._folder = folder
        self._scratch: Scratch | None = None

    def __str__(self) -> str:
        return str(self._folder)

    def open(self) -> None:
        """See `PartFolder.open`."""
        self._scratch = Scratch(Path(tempfile.gettempdir()))

    def close(self) -> None:
        """See `PartFolder.close`."""
        if self._scratch is not None:
            self._scratch.close()
            self._scratch = None

    def writable(self, staged: str) -> Path:
        """See `PartFolder.writable`."""
        assert self._scratch is not None
        return self._scratch.folder / staged

    def persist(self, staged: str) -> None:
        """See `PartFolder.persist`: sends the file."""
        import obstore

        path, place = self.writable(staged), self._staged(staged)
        with asking("write", place):
            obstore.put(place.store, place.key, path)
        path.unlink()

    def publish(self, staged: str, visible: str, proof: str | None) -> None:
        """See `PartFolder.publish`."""
        import obstore

        assert proof is not None
        source, target, shown = self._staged(staged), self._folder.below(visible), self._staged(proof)
        if not _exists(shown):
            try:
                with asking("copy", source):
                    obstore.copy(source.store, source.key, target.key)
            except FileNotFoundError:
                if not _exists(shown):
                    raise LostPartError(
                        f"{source} is gone, and nothing says that it became {target}: the rows of a completed "
                        "checkpoint are lost; if they were taken away on purpose, put the empty object "
                        f"{shown}"
                    ) from None
                return
            with asking("write", shown):
                obstore.put(shown.store, shown.key, b"")
        _delete(source)

    def staged(self) -> list[str]:
        """See `PartFolder.staged`."""
        return [name for name, _ in _listed(self._folder.below(STAGING))]

    def remove_staged(self, name: str) -> None:
        """See `PartFolder.remove_staged`."""
        if self._scratch is not None:
            self.writable(name).unlink(missing_ok=True)
        _delete(self._staged(name))

    def staged_file(self, name: str) -> StoredFile:
        """See `PartFolder.staged_file`."""
        return StoredFile(self._staged(name))

    def visible(self) -> list[str]:
        """See `PartFolder.visible`."""
        return [name for name, _ in _listed(self._folder)]

    def remove_visible(self, name: str) -> None:
        """See `PartFolder.remove_visible`."""
        _delete(self._folder.below(name))

    def _staged(self, name: str) -> Location:
        return self._folder.below(f"{STAGING}/{name}")


def _delete(place: Location) -> None:
    import obstore

    try:
        with asking("delete", place):
            obstore.delete(place.store, place.key)
    except FileNotFoundError:
        return
