"""Parts of a large file that are read side by side: ranges of its bytes, of which each record is in just one.

Whoever plans them looks at the size alone, as Spark does for its own files; what of the file lies in a range is found
where the range is read. A line belongs to the range in which it begins, so the reader of a range skips to the first line
that begins there and reads its last one to its end. A row group (or batch) belongs to the range in which its middle
lies, where row groups have the place in the file that their share of its data is. A range may have nothing in it.

Values of CSV may have line ends in quotes. Whether a range begins in quotes is told by the number of quotes before it,
which are counted in all ranges side by side before one is read: a survey. It also tells the numbers of their lines. Where
a quote of the file is text, or is never closed, their number says nothing: then the first range is the whole file.

The position of a range that nobody has read of is `{"range": [begin, end, size]}`: bytes, and the size that the file had.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import PipelineError
from penstock.formats.csv_quotes import MOST_QUOTED, Quotes

if TYPE_CHECKING:
    from penstock.connectors.base import Position
    from penstock.connectors.files.reading import Content, InputFile, TextFile

_LOOK_BYTES: Final = 64 << 10
"""How much is read first to find the end of a line; then more at a time."""
_CHUNK_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Survey:
    """What lies before a range of a text file, its header aside."""

    before: int
    """Quotes before the range."""
    behind: int
    """Quotes before what comes behind it."""
    lines: int
    """Line ends before the range."""
    edges: tuple[Any, ...] = ()
    """As `edges` found them when this was counted."""


@dataclass(frozen=True, slots=True)
class FileRange:
    """A range of a file that had `size` bytes when the ranges were planned."""

    begin: int
    end: int
    size: int
    survey: Survey | None = None
    """Of a format whose records may have line ends in them."""

    @classmethod
    def of(cls, position: Position) -> FileRange | None:
        """The one that a position speaks of; None if it is of the file as a whole."""
        if not position or "range" not in position:
            return None
        begin, end, size = position["range"]
        return cls(begin, end, size, Survey(*position["survey"]) if "survey" in position else None)

    def position(self) -> dict[str, Any]:
        """That of its beginning."""
        survey = {"survey": list(astuple(self.survey))} if self.survey is not None else {}
        return {"range": [self.begin, self.end, self.size], **survey}

    def check(self, file: InputFile, *, may_grow: bool) -> None:
        """Raise `PipelineError` if the file is not the one that was to be read in ranges."""
        now = file.size
        if now != self.size and not (may_grow and file.may_grow and now > self.size):
            raise PipelineError(
                f"{file} has {now} bytes, and had {self.size} when the run began to read it in parts: it was replaced, "
                "cut or rewritten; run again, and let nobody write to files that are read"
            )

    def look(self, file: TextFile) -> list[Any]:
        """What `Quotes` has found in the range, without the header, and the range's edges; blocks."""
        seen = _seen(file, max(self.begin, file.begin), self.end)
        marks = [seen.count, seen.lines, seen.first, seen.last, list(seen.regular)]
        return [*marks, edges(self, file.content)]

    def lines(self, file: TextFile) -> TextFile:
        """What of a text file lies in the range; blocks."""
        survey = self.survey or Survey(0, 0, 0)
        begin = _record_start(file, self.begin, self.end, quoted=survey.before % 2 == 1)
        end = begin
        if begin < self.end:
            end = _record_start(file, self.end, self.size, quoted=survey.behind % 2 == 1)
        first_line = file.first_line
        if self.begin and self.survey is not None:
            first_line += survey.lines + _line_ends(file.content, max(self.begin, file.begin), begin)
        elif self.begin:
            first_line = 0
        return replace(file, content=_Until(file.content, end), begin=begin, first_line=first_line, part=self)

    @property
    def knows_lines(self) -> bool:
        """Whether somebody has counted the lines before it."""
        return not self.begin or self.survey is not None

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


def surveyed(planned: Sequence[FileRange], found: Sequence[Sequence[Any]]) -> list[FileRange]:
    """The ranges of a file with what `FileRange.look` has found in each of them."""
    if not _tells_quotes(found):
        return _of_one(planned, found)
    behind = list(accumulate(each[0] for each in found))
    lines = [0, *accumulate(each[1] for each in found)]
    marks = zip([0, *behind], behind, lines, (each[-1] for each in found), strict=False)
    return [replace(each, survey=Survey(*mark)) for each, mark in zip(planned, marks, strict=True)]


def _of_one(planned: Sequence[FileRange], found: Sequence[Sequence[Any]]) -> list[FileRange]:
    """The first one has the whole file, the others nothing."""
    begin, end = found[0][-1][0], found[-1][-1][1]
    size = planned[-1].end
    whole = replace(planned[0], end=size, survey=Survey(0, 0, 0, (begin, end)))
    none = replace(planned[0], begin=size, end=size, survey=Survey(0, 0, 0, (end, end)))
    return [whole, *(none for _ in planned[1:])]


def _tells_quotes(found: Sequence[Sequence[Any]]) -> bool:
    """Whether the number of quotes before a place of the file tells if it is in quotes."""
    before, last = 0, None
    for count, _, first, behind, regular, _ in found:
        far = before % 2 == 1 and count and last is not None and first - last > MOST_QUOTED
        if far or not regular[before % 2]:
            return False
        before, last = before + count, behind if count else last
    return before % 2 == 0


def _line_ends(content: Content, begin: int, end: int) -> int:
    """How many line ends there are between two offsets."""
    import numpy as np

    lines, at = 0, begin
    while at < end and (chunk := content.read(at, min(_CHUNK_BYTES, end - at))):
        lines += int(np.count_nonzero(np.frombuffer(chunk, np.uint8) == ord("\n")))
        at += len(chunk)
    return lines


def _seen(file: TextFile, begin: int, end: int) -> Quotes:
    """The quotes and the line ends between two offsets, and whether the quotes are regular."""
    seen = Quotes(file.decoder.delimiter)
    text = file.content.read(begin - 1, 1) if file.begin < begin < end else b"\n"
    at = begin
    while at <= end and begin < end:
        chunk = file.content.read(at, min(_CHUNK_BYTES, end + 1 - at))
        text += chunk or b"\n"  # behind the last byte of the file
        at += max(len(chunk), 1)
        seen.see(at - len(text) + 1, text)
        text = text[-2:]
        if not chunk:
            break
    return seen


def _record_start(file: TextFile, at: int, stop: int, *, quoted: bool) -> int:
    """Where the first record begins that begins at `at` or behind it, but no further than `stop`; blocks.

    `quoted`: whether `at` is within quotes, where line ends belong to a value.
    """
    if at <= file.begin:
        return file.begin
    if at >= stop or (not quoted and file.content.read(at - 1, 1) == b"\n"):
        return min(at, stop)
    wanted = _LOOK_BYTES
    while at < stop - 1 and (chunk := file.content.read(at, min(wanted, stop - 1 - at))):
        ends = file.decoder.ends(b'"' + chunk) - 1 if quoted else file.decoder.ends(chunk)
        if ends.size:
            return at + int(ends[0])
        quoted ^= file.decoder.quotes and chunk.count(b'"') % 2 == 1
        at, wanted = at + len(chunk), _CHUNK_BYTES
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


def edges(part: FileRange, content: Content) -> list[Any]:
    """What of the file's identity two ranges have in common that follow each other, for the position behind the first."""
    return [content.identity(part.begin), content.identity(part.end)]


def behind(name: str, positions: Sequence[Position]) -> Position:
    """The position behind a file whose ranges were read up to these positions, in order.

    Raises:
        PipelineError: the file was another one for one of them.
    """
    known = [each["edges"] if "edges" in each else [each["identity"]] * 2 for each in positions]
    counted = [(found, each["survey"][-1]) for found, each in zip(known, positions, strict=True) if "survey" in each]
    if any(before[1] != after[0] for before, after in pairwise(known)) or any(found != was for found, was in counted):
        raise PipelineError(
            f"{name} was replaced or rewritten while the run read it in parts: rows of both would be mixed, and nothing "
            "of the run is visible; run again, and let nobody write to files that are read"
        )
    furthest = max(positions, key=lambda each: each["offset"] if "offset" in each else each["group"])
    if "offset" in furthest and furthest.get("end") not in (None, furthest["offset"]):
        raise PipelineError(
            f"{name} ended at byte {furthest['offset']}, and had {furthest['end']} when the run began to read it in "
            "parts: it was cut, and nothing of the run is visible; run again, and let nobody write to files that are read"
        )
    last = {name: value for name, value in furthest.items() if name not in ("range", "survey", "edges", "until")}
    counted_apart = "line" in last and "survey" not in furthest
    return last | ({"line": sum(each["line"] for each in positions)} if counted_apart else {})
