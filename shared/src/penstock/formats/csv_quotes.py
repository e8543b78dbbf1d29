"""Where the records of CSV end, as its parser finds them: which quotes open and close a value, and which are text.

A quote opens a value only where a column begins; anywhere else in a value without quotes it is text, as in `5" pipe`.
Within quotes two of them stand for one, and line ends are text. What is opened and not closed costs its own line: no
other quote comes within `MOST_QUOTED` bytes, or the value that it would be goes over line ends, up to a quote behind
which neither column nor line ends.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MOST_QUOTED: Final = 8 << 20
"""Bytes in quotes without a quote: more than a row that crosses an exchange may have."""
_QUOTE: Final = ord('"')
_LINE_ENDS: Final = (ord("\n"), ord("\r"))


@dataclass(frozen=True)
class Quoted:
    """What of a text that begins at a record is in quotes."""

    begins: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    unclosed: list[int]
    """Quotes that open a value and are not closed: their lines are bad."""

    def without(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The places that are not in quotes."""
        import numpy as np

        if not self.begins.size:
            return places
        number = np.searchsorted(self.begins, places, side="right") - 1
        return places[(number < 0) | (places > self.ends[number])]


def quoted(text: bytes, delimiter: int, *, last: bool) -> Quoted:
    """What of a text is in quotes; `last`: nothing follows it. Else a value at its end may be open still."""
    import numpy as np

    data = np.frombuffer(text, np.uint8)
    quotes = np.flatnonzero(data == _QUOTE)
    begins = _edges(delimiter)[data[quotes - 1]]  # may be where a value with quotes begins
    begins[:1] |= quotes[:1] == 0
    ends = _edges(delimiter)[data[np.minimum(quotes + 1, data.size - 1)]]  # its last byte would be a quote itself
    if quotes.size % 2 == 0 and begins[::2].all() and ends[1::2].all() and _are_near(quotes):
        return Quoted(quotes[::2], quotes[1::2], [])
    return _Walk(text, quotes, begins, delimiter, last=last).quoted()


def _edges(delimiter: int) -> npt.NDArray[np.bool_]:
    """Of every byte whether it may stand before a quote that opens, and behind one that closes, as another quote may."""
    import numpy as np

    edges = np.zeros(256, np.bool_)
    edges[[delimiter, _QUOTE, *_LINE_ENDS]] = True
    return edges


def _are_near(quotes: npt.NDArray[np.int64]) -> bool:
    return not quotes.size or int((quotes[1::2] - quotes[::2]).max()) <= MOST_QUOTED


@dataclass
class Quotes:
    """What is seen of the quotes of a part of a text, from left to right, without knowing what is before it.

    Where they are regular their number tells what is in quotes; the part may begin within quotes, or not.
    """

    delimiter: int
    count: int = 0
    lines: int = 0
    first: int = -1
    last: int = -1
    regular: tuple[bool, bool] = (True, True)
    """Whether they are if the part begins outside of quotes, and if it begins within them."""

    def see(self, at: int, text: bytes) -> None:
        """The bytes of `text` but for its first and its last one, which are known to be before and behind them; `at` is
        the place of the first of them."""
        import numpy as np

        data = np.frombuffer(text, np.uint8)
        inner = data[1:-1]
        self.lines += int(np.count_nonzero(inner == _LINE_ENDS[0]))
        quotes = np.flatnonzero(inner == _QUOTE)
        if not quotes.size:
            return
        opening, closing = (_edges(self.delimiter)[data[quotes + beside]] for beside in (0, 2))
        gaps = np.diff(quotes + at, prepend=self.last if self.count else at) > MOST_QUOTED
        within = np.stack([~opening, ~closing | gaps])
        odd = self.count % 2
        self.regular = tuple(  # type: ignore[assignment]
            known and not within[(odd + begun) % 2, ::2].any() and not within[1 - (odd + begun) % 2, 1::2].any()
            for begun, known in enumerate(self.regular)
        )
        self.first = self.first if self.count else int(quotes[0]) + at
        self.count, self.last = self.count + int(quotes.size), int(quotes[-1]) + at


class _Walk:
    """Takes the quotes of a text one after the other."""

    def __init__(self, text: bytes, quotes: Any, begins: Any, delimiter: int, *, last: bool) -> None:
        """`begins`: which of them have that before them which opens a value, or another quote."""
        self._text = text
        self._quotes: list[int] = quotes.tolist()
        self._may_open: list[int] = begins.nonzero()[0].tolist()
        self._edges = {delimiter, *_LINE_ENDS}
        self._last = last
        self._begins: list[int] = []
        self._ends: list[int] = []
        self._unclosed: list[int] = []

    def quoted(self) -> Quoted:
        """All of it."""
        import numpy as np

        at = 0
        for number in self._may_open:
            if number >= at and self._opens(self._quotes[number]):
                at = self._value(number)
        return Quoted(np.array(self._begins, np.int64), np.array(self._ends, np.int64), self._unclosed)

    def _opens(self, quote: int) -> bool:
        return quote == 0 or self._text[quote - 1] in self._edges

    def _value(self, at: int) -> int:
        """Of the value that this quote opens; returns the number of the next quote behind it."""
        begin, closing = self._quotes[at], self._closing(at)
        if closing is None and not self._last:
            return self._found(begin, len(self._text), len(self._quotes))
        if closing is not None and self._is_closed(begin, closing):
            return self._found(begin, closing, bisect_left(self._quotes, closing + 1))
        self._unclosed.append(begin)
        behind = self._text.find(b"\n", begin)
        return len(self._quotes) if behind < 0 else bisect_left(self._quotes, behind)

    def _found(self, begin: int, end: int, following: int) -> int:
        self._begins.append(begin)
        self._ends.append(end)
        return following

    def _closing(self, at: int) -> int | None:
        """The quote that closes what this one opens; itself if none does, None if what follows the text may do so."""
        quotes, number = self._quotes, at + 1
        while number < len(quotes) and quotes[number] - quotes[number - 1] <= MOST_QUOTED:
            if number + 1 == len(quotes) or quotes[number + 1] != quotes[number] + 1:
                return quotes[number]
            number += 2  # two of them stand for one
        ended = number == len(quotes) and len(self._text) - quotes[-1] <= MOST_QUOTED
        return None if ended else quotes[at]

    def _is_closed(self, begin: int, end: int) -> bool:
        """Whether that is no quote of another value some lines below."""
        if begin == end:
            return False
        over_lines = self._text.find(b"\n", begin, end) >= 0
        return not over_lines or end + 1 == len(self._text) or self._text[end + 1] in self._edges
