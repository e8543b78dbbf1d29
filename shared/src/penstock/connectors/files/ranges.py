"""Parts of a large file that are read side by side: ranges of its bytes, of which each record is in just one.

Whoever plans them looks at the size alone, as Spark does for its own files; what of the file lies in a range is found
where the range is read. A line belongs to the range in which it begins, so the reader of a range skips to the first line
that begins there and reads its last one to its end. A row group (or batch) belongs to the range in which its middle
lies, where row groups have the place in the file that their share of its data is. A range may have nothing in it.

The position of a range that nobody has read of is `{"range": [begin, end, size]}`: bytes, and the size that the file had.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import PipelineError

if TYPE_CHECKING:
    from penstock.connectors.base import Position
    from penstock.connectors.files.reading import Content, InputFile, TextFile

_LOOK_BYTES: Final = 64 << 10
"""How much is read first to find the end of a line; then more at a time."""
_CHUNK_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class FileRange:
    """A range of a file that had `size` bytes when the ranges were planned."""

    begin: int
    end: int
    size: int

    @classmethod
    def of(cls, position: Position) -> FileRange | None:
        """The one that a position speaks of; None if it is of the file as a whole."""
        return cls(*position["range"]) if position and "range" in position else None

    def position(self) -> dict[str, list[int]]:
        """That of its beginning."""
        return {"range": [self.begin, self.end, self.size]}

    def check(self, file: InputFile, *, may_grow: bool) -> None:
        """Raise `PipelineError` if the file is not the one that was to be read in ranges."""
        now = file.size
        if now != self.size and not (may_grow and file.may_grow and now > self.size):
            raise PipelineError(
                f"{file} has {now} bytes, and had {self.size} when the run began to read it in parts: it was replaced, "
                "cut or rewritten; run again, and let nobody write to files that are read"
            )

    def lines(self, file: TextFile) -> TextFile:
        """What of a text file lies in the range."""
        begin = _line_start(file, self.begin, self.end)
        end = begin if begin >= self.end else _line_start(file, self.end, self.size)
        first_line = file.first_line if not self.begin else 0
        return replace(file, content=_Until(file.content, end), begin=begin, first_line=first_line, part=self)

    def groups(self, weights: Sequence[int]) -> tuple[int, int]:
        """The first of the row groups that lie in the range, and the one behind the last.

        Args:
            weights: how much there is in each row group of the file, in order.
        """
        total = sum(weights) or 1
        ends = accumulate(weights)
        middles = [(2 * end - own) * self.size // (2 * total) for end, own in zip(ends, weights, strict=True)]
        last = self.size - 1  # nothing lies behind the last byte
        places = [min(middle, last) for middle in middles]
        return bisect_left(places, self.begin), bisect_left(places, self.end)


def ranges(size: int, most_bytes: int) -> list[FileRange]:
    """The ranges of a file, all but the last one of `most_bytes`."""
    return [FileRange(begin, min(size, begin + most_bytes), size) for begin in range(0, size, most_bytes)]


def _line_start(file: TextFile, at: int, stop: int) -> int:
    """Where the first record begins that begins at `at` or behind it, but no further than `stop`; blocks."""
    if at <= file.begin:
        return file.begin
    offset, wanted = at - 1, _LOOK_BYTES
    while offset < stop - 1:
        chunk = file.content.read(offset, min(wanted, stop - 1 - offset))
        found = chunk.find(b"\n")
        if found >= 0:
            return offset + found + 1
        if not chunk:
            break
        offset, wanted = offset + len(chunk), _CHUNK_BYTES
    return stop


class _Until:
    """See `Content`: the bytes of a file up to where a range ends."""

    def __init__(self, content: Content, until: int) -> None:
        self._content = content
        self._until = until
        self.end = content.end

    def read(self, offset: int, size: int) -> bytes:
        """See `Content.read`."""
        return self._content.read(offset, max(0, min(size, self._until - offset)))

    def identity(self, offset: int) -> Any:
        """See `Content.identity`."""
        return self._content.identity(offset)

    def close(self) -> None:
        """See `Content.close`."""
        self._content.close()


def behind(positions: Sequence[Position]) -> Position:
    """The position behind a file whose ranges were read up to these positions, in order."""
    furthest = max(positions, key=lambda each: each["offset"] if "offset" in each else each["group"])
    last = {name: value for name, value in furthest.items() if name not in ("range", "until")}
    return last | ({"line": sum(each["line"] for each in positions)} if "line" in last else {})
