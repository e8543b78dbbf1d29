"""Files on disks: found by path, folder or pattern, read from any offset, and made visible by a rename.

A commit is one rename, and its proof is an empty file that stands beside the staged one, durably, before that is
renamed. Nobody removes a staged file that a complete checkpoint lists, so where there is a proof and no staged file the
rename has happened: a repeated commit has only to make it durable, even if somebody has consumed the visible file since,
which never appears twice. Where there is neither, rows are lost, and the commit fails.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from penstock.connectors.base import LostPartError
from penstock.connectors.files.writing import STAGING
from penstock.errors import ExternalError, PipelineError

if TYPE_CHECKING:
    import pyarrow as pa

WINDOW_BYTES: Final = 256
"""How many bytes tell one file from another one."""
WILDCARDS: Final = "*?["


# -- reading ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LocalFile:
    """See `InputFile`."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def may_grow(self) -> bool:
        """See `InputFile.may_grow`."""
        return True

    @property
    def size(self) -> int:
        """See `InputFile.size`."""
        with self.open() as file:
            return os.fstat(file.fileno()).st_size

    def open(self) -> IO[bytes]:
        """See `InputFile.open`."""
        try:
            return open(self.path, "rb")
        except OSError as error:
            raise PipelineError(f"cannot open {self.path}: {error.strerror}") from error

    def arrow(self) -> pa.NativeFile:
        """See `InputFile.arrow`."""
        import pyarrow as pa

        return pa.OSFile(str(self.path), "rb")

    def identity(self) -> list[int]:
        """See `InputFile.identity`: size and checksum of the last bytes."""
        with self.open() as file:
            size = os.fstat(file.fileno()).st_size
            return [size, zlib.crc32(os.pread(file.fileno(), WINDOW_BYTES, max(0, size - WINDOW_BYTES)))]

    def content(self, end: int | None) -> LocalContent:
        """See `InputFile.content`."""
        return LocalContent(self, end)


class LocalContent:
    """The bytes of a file that may grow; it is read to `end`."""

    def __init__(self, file: LocalFile, end: int | None) -> None:
        self._input = file
        self._file = file.open()
        self.end: int | None = os.fstat(self._file.fileno()).st_size if end is None else end

    def read(self, offset: int, size: int) -> bytes:
        """See `Content.read`."""
        from penstock.connectors.files.reading import changed

        assert self.end is not None
        found = self._bytes(offset, size)
        if len(found) < min(size, self.end - offset):  # as by those who rotate logs: what was not read yet is lost
            raise changed(self._input, f"byte {offset + len(found)}")
        return found

    def _bytes(self, offset: int, size: int) -> bytes:
        """What there is of them now."""
        assert self.end is not None
        try:
            return os.pread(self._file.fileno(), max(0, min(size, self.end - offset)), offset)
        except OSError as error:
            raise ExternalError(f"cannot read {self._input}: {error}") from error

    def identity(self, offset: int) -> Any:
        """See `Content.identity`: a checksum of the first bytes and of those before the offset."""
        head = self._bytes(0, min(offset, WINDOW_BYTES))
        start = max(0, offset - WINDOW_BYTES)
        return zlib.crc32(self._bytes(start, offset - start), zlib.crc32(head))

    def close(self) -> None:
        """See `Content.close`."""
        self._file.close()


@dataclass(frozen=True)
class LocalFiles:
    """See `InputFiles`: a file, a folder or a pattern."""

    path: str

    @property
    def is_folder(self) -> bool:
        """See `InputFiles.is_folder`."""
        return Path(self.path).is_dir()

    def find(self, keeps: Callable[[str], bool] | None) -> list[tuple[str, int]]:
        """See `InputFiles.find`."""
        root, found = self._found(keeps)
        return [(path.relative_to(root).as_posix(), path.stat().st_size) for path in found if path.is_file()]

    def _found(self, keeps: Callable[[str], bool] | None) -> tuple[Path, list[Path]]:
        path = Path(self.path)
        if path.is_file():
            return path.parent, [path]
        if path.is_dir():
            return path, list(path.rglob("*") if keeps is None else _below(path, keeps))
        if any(character in self.path for character in WILDCARDS):
            root, pattern = self._split_pattern()
            return root, list(root.glob(pattern))
        raise PipelineError(f"files.Source: there is neither a file nor a folder {self.path!r} in {Path.cwd()}")

    def _split_pattern(self) -> tuple[Path, str]:
        """The folder before the first part with a wildcard, and the pattern from there."""
        path = Path(self.path)
        for index, part in enumerate(path.parts):
            if any(character in part for character in WILDCARDS):
                return Path(*path.parts[:index]), str(Path(*path.parts[index:]))
        return path.parent, path.name

    def file(self, name: str) -> LocalFile:
        """See `InputFiles.file`."""
        path = Path(self.path)
        if path.is_dir():
            return LocalFile(path / name)
        return LocalFile((path.parent if path.is_file() else self._split_pattern()[0]) / name)


def _below(folder: Path, keeps: Callable[[str], bool]) -> Iterator[Path]:
    """The files in a folder and below."""
    for where, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if keeps(f"{where}/{name}/")]
        yield from (Path(where, name) for name in names)


# -- writing ------------------------------------------------------------------------------------------------------------


class LocalParts:
    """See `PartFolder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __str__(self) -> str:
        return str(self._folder)

    def open(self) -> None:
        """See `PartFolder.open`."""
        try:
            (self._folder / STAGING).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ExternalError(f"cannot create {self._folder / STAGING}: {error}") from error

    def close(self) -> None:
        """Nothing is held."""

    def writable(self, staged: str) -> Path:
        """See `PartFolder.writable`."""
        return self._folder / STAGING / staged

    def persist(self, staged: str) -> None:
        """See `PartFolder.persist`."""
        _persist(self._folder / STAGING / staged)

    def publish(self, staged: str, visible: str, proof: str | None) -> None:
        """See `PartFolder.publish`."""
        source, target = self._folder / STAGING / staged, self._folder / visible
        shown = None if proof is None else self._folder / STAGING / proof
        try:
            if shown is not None and source.exists():
                shown.touch()
                _persist(shown)
                _make_folders(self._folder, target.parent)
            os.rename(source, target)
        except FileNotFoundError:
            if shown is not None and not shown.exists():
                raise LostPartError(
                    f"{source} is gone, and nothing says that it became {visible}: the rows of a completed "
                    "checkpoint are lost; if they were taken away on purpose, create the empty file "
                    f"{proof} there"
                ) from None
        except OSError as error:
            raise ExternalError(f"cannot rename {source} to {target}: {error}") from error
        # Only now may the checkpoint's list of staged files forget it: a power loss must not bring it back to staging.
        # Also where it was renamed before: whoever did that may have been killed before it synced. Who consumed the file
        # may have taken the folder of its partition, too.
        if target.parent == self._folder or target.parent.exists():
            _fsync(target.parent)
        _fsync(self._folder / STAGING)

    def staged(self) -> list[str]:
        """See `PartFolder.staged`."""
        return [path.name for path in (self._folder / STAGING).glob("*")]

    def remove_staged(self, name: str) -> None:
        """See `PartFolder.remove_staged`."""
        _unlink(self._folder / STAGING / name)

    def staged_file(self, name: str) -> LocalFile:
        """See `PartFolder.staged_file`."""
        return LocalFile(self._folder / STAGING / name)

    def visible(self) -> list[str]:
        """See `PartFolder.visible`."""
        return [path.relative_to(self._folder).as_posix() for path in self._folder.rglob("*") if path.is_file()]

    def remove_visible(self, name: str) -> None:
        """See `PartFolder.remove_visible`."""
        _unlink(self._folder / name)


def _make_folders(root: Path, folder: Path) -> None:
    """Make the folders of a partition, durably: each is an entry of the one above."""
    missing: list[Path] = []
    while folder != root and not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for made in reversed(missing):
        made.mkdir(exist_ok=True)
        _fsync(made.parent)


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise ExternalError(f"cannot remove {path}: {error}") from error


def _persist(path: Path) -> None:
    _fsync(path)
    _fsync(path.parent)


def _fsync(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ExternalError(f"cannot sync {path}: {error}") from error
