"""The objects of keyed state: its segments in pieces of bounded size, each with its checksum and index of key groups.

Nobody holds more than one of them in memory, whatever the size of the state: they are written one after the other while
the segments are made, and read one after the other. A restore fetches those that have some of its key groups; where
state is kept on the local disk it lays them down there, until the operators have read them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, overload

from penstock.core.scratch import Scratch
from penstock.errors import ExternalError
from penstock.protocol.messages import Handle
from penstock.state.deltas import merged

OBJECT_BYTES: Final = 16 << 20
"""An object has no more, unless a single segment has."""
_FOLDER: Final = "penstock-restored-"


@dataclass(frozen=True)
class SnapshotObject:
    """Some segments, put together."""

    data: bytes
    key_groups: dict[int, tuple[int, int]]
    """Key group to (start, end) within the data."""
    last: bool
    """Whether no other one follows."""

    def handle(self, key: str, *, inline: bool = False) -> Handle:
        """How a manifest names it; `inline`: the bytes stand there, too. Computes the checksum."""
        digest = hashlib.sha256(self.data).hexdigest()
        return Handle(key, digest, len(self.data), self.key_groups, self.data if inline else b"")


Segments = Callable[[], Iterable[tuple[int, bytes]]]
"""Makes key groups and their segments."""


def objects_of(segments: Segments) -> Iterator[SnapshotObject]:
    """The segments in objects of at most `OBJECT_BYTES`. A key group is in an object once: see `Handle.key_groups`.

    Nothing is done before the first object is asked for.
    """
    pieces: dict[int, bytes] = {}
    size = 0
    for group, segment in segments():
        if pieces and (group in pieces or size + len(segment) > OBJECT_BYTES):
            yield _put_together(pieces, last=False)
            size = 0
        pieces[group] = segment
        size += len(segment)
    if pieces:
        yield _put_together(pieces, last=True)


def _put_together(pieces: dict[int, bytes], *, last: bool) -> SnapshotObject:
    """Empties `pieces`, so that they are not in memory beside the object."""
    index: dict[int, tuple[int, int]] = {}
    position = 0
    for group, piece in pieces.items():
        index[group] = (position, position + len(piece))
        position += len(piece)
    data = b"".join(pieces.values())
    pieces.clear()
    return SnapshotObject(data, index, last)


def object_key(key: str, number: int) -> str:
    """The key of the object of that number, from 0, of an operator whose first one has `key`."""
    return f"{key}.{number}" if number else key


class LaidDown(Sequence[tuple[int, bytes]]):
    """Key groups and segments that are read from the local disk when they are asked for."""

    def __init__(self, places: Sequence[tuple[int, Path, int, int]]) -> None:
        """Key group, file, start and end of each."""
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> tuple[int, bytes]: ...
    @overload
    def __getitem__(self, index: slice) -> LaidDown: ...
    def __getitem__(self, index: int | slice) -> tuple[int, bytes] | LaidDown:
        if isinstance(index, slice):
            return LaidDown(self._places[index])
        group, path, start, end = self._places[index]
        try:
            with path.open("rb") as file:
                file.seek(start)
                return group, file.read(end - start)
        except OSError as error:
            raise _unusable(path.parent, error) from error


class MergedSegments(Sequence[tuple[int, bytes]]):
    """Keyed state of full runs and deltas, merged key group by key group when they are asked for."""

    def __init__(self, operator: str, groups: Sequence[int], pieces: Sequence[tuple[int, bytes]]) -> None:
        """`pieces` have the key groups `groups`, which rise; those of one are in the order of their runs."""
        self._operator = operator
        self._pieces = pieces
        self._starts = [at for at, group in enumerate(groups) if at == 0 or groups[at - 1] != group]

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> tuple[int, bytes]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[tuple[int, bytes]]: ...
    def __getitem__(self, index: int | slice) -> tuple[int, bytes] | Sequence[tuple[int, bytes]]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        start = self._starts[index]
        end = self._starts[index + 1] if index + 1 < len(self) else len(self._pieces)
        of_group = [self._pieces[at] for at in range(start, end)]
        return of_group[0][0], merged(self._operator, [data for _, data in of_group])


class RestoreFolder:
    """Where objects lie on the local disk while operators open; removed when it is closed."""

    def __init__(self, root: Path) -> None:
        """Makes a folder in `root`; raises `ExternalError` if that cannot be done."""
        try:
            root.mkdir(parents=True, exist_ok=True)
            self._scratch = Scratch(root, _FOLDER)
        except OSError as error:
            raise _unusable(root, error) from error
        self._count = 0

    def lay_down(self, data: bytes) -> Path:
        """The object as a file; raises `ExternalError`."""
        path = self._scratch.folder / str(self._count)
        self._count += 1
        try:
            path.write_bytes(data)
        except OSError as error:
            raise _unusable(self._scratch.folder, error) from error
        return path

    def close(self) -> None:
        """Remove everything."""
        self._scratch.close()


def _unusable(folder: Path, error: OSError) -> ExternalError:
    return ExternalError(
        f"restored state cannot be kept in the local folder {folder}: {error}; look whether the disk is full or broken"
    )
