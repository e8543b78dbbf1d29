"""Which rows of a keyed batch may come together, and which timers fire before and behind them.

Row by row a timer fires before the first row whose watermark has reached it, and sees the state of its key at that
moment: what rows have set so far, not what later ones will. A timer touches nothing of another key. So a call may have
all rows whose key has not come in it at an earlier watermark: a timer fires before the call if its key has no row in it,
or one that comes later, else behind it. What timers emit goes between the results of the rows, where event time was
that far.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from numpy.typing import NDArray


def calls(keys: pl.DataFrame, marks: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Begin and end of each run of rows in which no key comes again at a higher watermark.

    Args:
        keys: the key columns of the rows.
        marks: the watermark at each row.
    """
    if marks[0] == marks[-1]:
        yield 0, len(marks)
        return
    numbered = keys.with_row_index("__row")
    before = numbered.select(pl.col("__row").cast(pl.Int64).shift().over(keys.columns).fill_null(-1))[
        "__row"
    ].to_numpy()
    moved = (before >= 0) & (marks > marks[before])
    latest = np.maximum.accumulate(np.where(moved, before, -1))
    start = 0
    while start < len(marks):
        end = int(np.searchsorted(latest, start))
        yield start, end
        start = end


def by_watermark(marks: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Begin and end of each run of rows at one watermark."""
    bounds = [0, *(np.flatnonzero(np.diff(marks)) + 1).tolist(), len(marks)]
    yield from pairwise(bounds)


class CallTimers:
    """Where the timers of one call belong.

    Args:
        before: the watermark behind the last row before the call.
        marks: that at each row of the call.
        keys: gives the key of each row.
    """

    def __init__(self, before: int, marks: NDArray[np.int64], keys: Callable[[], list[Any]]) -> None:
        self.before = before
        self.until = int(marks[-1])
        self._array = marks
        self._keys = keys
        self._fired: dict[Any, int] = {}
        """Of each key the watermark behind its last timer."""

    @cached_property
    def _marks(self) -> list[int]:
        return self._array.tolist()

    @cached_property
    def _of_key(self) -> dict[Any, int]:
        """The watermark at the rows of each key."""
        return dict(zip(self._keys(), self._marks, strict=True))

    def comes_before(self, key: Any, at: int) -> int | None:
        """The watermark from which on a timer waited that fires before the rows of its key; None if it does not."""
        mark = self._of_key.get(key)
        if mark is None or (at <= mark and mark > self.before):
            return self.before
        return None

    def comes_behind(self, key: Any, at: int) -> int | None:
        """The same of one that fires behind them; None if it waits until event time moves again."""
        mark = self._of_key.get(key, self.before)
        return mark if mark < self.until else None

    def reached(self, key: Any, at: int, since: int) -> int:
        """The watermark behind which a timer fires: that at the row before, or of what set it for a time that is over."""
        place = max(bisect_left(self._marks, at), bisect_right(self._marks, since))
        mark = max(self._fired.get(key, self.before), self._marks[place - 1] if place else self.before)
        self._fired[key] = max(mark, at - 1)
        return mark

    def places(self, marks: NDArray[np.int64]) -> NDArray[np.int64]:
        """For what timers emitted at these watermarks: the number of rows that come before it."""
        return np.searchsorted(self._array, marks, side="right").astype(np.int64)
