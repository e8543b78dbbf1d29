"""A file system in memory that production's file sink writes to: every call is a step, and power may fail.

What was not synced may be lost with the power: of a file's content all that came after its last sync, of the names in
a folder any change that came after the folder's last sync, however later ones went.
"""

from __future__ import annotations

import contextlib
import fnmatch
import random
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any

from tests.simulation.shells.loop import step

from penstock.connectors.files import connector
from penstock.connectors.files import local as local_files
from penstock.connectors.files import writing as file_writing


@dataclass(eq=False)
class Inode:
    """A file, whatever its name."""

    data: bytes = b""
    synced: bytes = b""


@dataclass(eq=False)
class _Change:
    """Names that were given or taken, and are not durable yet: None is no file."""

    names: dict[str, Inode | None]


class FileSystem:
    """Names to files. Folders are there when they are named."""

    def __init__(self) -> None:
        self.files: dict[str, Inode] = {}
        self.durable: dict[str, Inode] = {}
        """Names that the loss of power does not take away."""
        self.taken: set[str] = set()
        """Files that were moved elsewhere."""
        self._changes: list[_Change] = []
        self.renamed: Callable[[str, bytes], None] = lambda name, data: None
        """Told of every file that got another name, as soon as it has it."""

    def path(self, name: object) -> SimulatedPath:
        """What `pathlib.Path` is for files on a disk."""
        return SimulatedPath(self, str(name).rstrip("/"))

    def change(self, names: dict[str, Inode | None]) -> None:
        """Give and take names at once."""
        self._changes.append(_Change(dict(names)))
        _apply(self.files, names)

    def sync(self, name: str) -> None:
        """A file, or the names in a folder."""
        if name in self.files:
            self.files[name].synced = self.files[name].data
            return
        synced = [change for change in self._changes if any(own.rpartition("/")[0] == name for own in change.names)]
        for change in synced:  # of a rename both names, also where one is in another folder: see `lose_power`
            _apply(self.durable, change.names)
        self._changes = [change for change in self._changes if change not in synced]

    def take(self, name: str) -> None:
        """Somebody moves a file elsewhere, for certain."""
        self.taken.add(name)
        self.change({name: None})
        self.sync(name.rpartition("/")[0])

    def lose_power(self, draw: random.Random) -> None:
        """Keep what is durable, and of the rest what chance keeps; of one name the changes in their order.

        A rename happens whole or not at all: file systems with a journal have both its names in one transaction.
        """
        lost: set[str] = set()
        for change in self._changes:
            fates = [name in lost or draw.random() < 0.5 for name in change.names]
            if any(fates):
                lost.update(change.names)
            else:
                _apply(self.durable, change.names)
        self._changes.clear()
        for inode in self.durable.values():
            inode.data = inode.synced
        self.files = dict(self.durable)

    @contextlib.contextmanager
    def installed(self) -> Generator[None]:
        """Under the file sink of production."""
        system = SimpleNamespace(
            rename=self._rename, open=self._open_for_sync, fsync=self._fsync, close=lambda name: None, O_RDONLY=0
        )
        former_os, former_path, former_threading = local_files.os, connector.Path, file_writing.threading
        local_files.os, connector.Path = system, self.path  # pyright: ignore
        file_writing.open = self._open  # pyright: ignore
        file_writing.threading = SimpleNamespace(Lock=_Lock)  # pyright: ignore
        try:
            yield
        finally:
            local_files.os, connector.Path, file_writing.threading = former_os, former_path, former_threading
            del file_writing.open  # pyright: ignore

    def _rename(self, old: SimulatedPath, new: SimulatedPath) -> None:
        step(f"rename {old.name}")
        inode = self.files.get(old.text)
        if inode is None:
            raise FileNotFoundError(2, "no such file", old.text)
        self.change({old.text: None, new.text: inode})
        self.renamed(new.text, inode.data)

    def _open_for_sync(self, path: SimulatedPath, flags: int) -> str:
        if path.text not in self.files and "." in path.name[1:]:
            raise FileNotFoundError(2, "no such file", path.text)
        return path.text

    def _fsync(self, name: str) -> None:
        step(f"fsync {name}")
        self.sync(name)

    def _open(self, path: SimulatedPath, mode: str) -> _File:
        if path.text in self.files:
            raise FileExistsError(17, "file exists", path.text)
        inode = Inode()
        self.change({path.text: inode})
        return _File(inode)


class _Lock:
    """A lock among threads of which one runs at a time: who waits for a real one would never give its turn away."""

    def __init__(self) -> None:
        self._held = False

    def __enter__(self) -> None:
        while self._held:
            step("wait for a lock")
        self._held = True

    def __exit__(self, *_: object) -> None:
        self._held = False


def _apply(files: dict[str, Inode], names: dict[str, Inode | None]) -> None:
    for name, inode in names.items():
        if inode is None:
            files.pop(name, None)
        else:
            files[name] = inode


class _File:
    def __init__(self, inode: Inode) -> None:
        self._inode = inode

    def write(self, data: bytes) -> None:
        self._inode.data += data

    def tell(self) -> int:
        return len(self._inode.data)

    def close(self) -> None:
        """Nothing is buffered."""


class SimulatedPath:
    """What the file sink asks of a `pathlib.Path`."""

    def __init__(self, system: FileSystem, text: str) -> None:
        self._system = system
        self.text = text

    def __truediv__(self, name: object) -> SimulatedPath:
        return SimulatedPath(self._system, f"{self.text}/{name}")

    def __str__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SimulatedPath) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def relative_to(self, folder: SimulatedPath) -> PurePosixPath:
        return PurePosixPath(self.text).relative_to(folder.text)

    @property
    def name(self) -> str:
        return self.text.rpartition("/")[2]

    @property
    def parent(self) -> SimulatedPath:
        return SimulatedPath(self._system, self.text.rpartition("/")[0])

    def mkdir(self, **options: Any) -> None:
        """It is there."""

    def exists(self) -> bool:
        step(f"look for {self.name}")
        return self.text in self._system.files

    def touch(self) -> None:
        step(f"touch {self.name}")
        if self.text not in self._system.files:
            self._system.change({self.text: Inode()})

    def unlink(self, missing_ok: bool = False) -> None:
        step(f"unlink {self.name}")
        if self.text in self._system.files:
            self._system.change({self.text: None})
        elif not missing_ok:
            raise FileNotFoundError(2, "no such file", self.text)

    def is_file(self) -> bool:
        return self.text in self._system.files

    def rglob(self, pattern: str) -> list[SimulatedPath]:
        assert pattern == "*"
        step(f"list everything below {self.text}")
        return [self._system.path(name) for name in sorted(self._system.files) if name.startswith(f"{self.text}/")]

    def glob(self, pattern: str) -> list[SimulatedPath]:
        step(f"list {self.text}")
        names = [name for name in self._system.files if name.rpartition("/")[0] == self.text]
        return [self._system.path(n) for n in sorted(names) if fnmatch.fnmatch(n.rpartition("/")[2], pattern)]
