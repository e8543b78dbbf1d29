"""Which rows of a key meet in time: those that are so close, or those of the same windows.

Each row has a moment, and looks for moments of the other input; it is of use up to a last moment of event time, which
follows from its own time alone. So what a join gives does not depend on the order in which rows come.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import polars as pl

from penstock.functions.windows.definitions import FixedWindow, Within
from penstock.task.operators.join_rows import LEFT
from penstock.task.operators.lateness import FixedLateness
from penstock.types import TIMESTAMP, polars_type

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Placed:
    """Rows in time. Arrays are as long as `rows`, which says which row of a frame each is of: one may have several."""

    rows: NDArray[np.int64]
    moments: NDArray[np.int64]
    first: NDArray[np.int64]
    """The first moment of the other input that meets it."""
    last: NDArray[np.int64]
    until: NDArray[np.int64]
    """The last moment of event time at which a row that meets it may come, not before its own."""
    late: NDArray[np.bool_]
    """Of the frame: which rows have no place because they came too late."""


class Meeting(Protocol):
    """How rows meet in time."""

    def placed(self, number: int, times: NDArray[np.int64], marks: NDArray[np.int64]) -> Placed:
        """Rows of an input by their event times and the watermark at each."""
        ...

    def pair_times(self, moments: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.int64]:
        """The event times of pairs of rows with these moments."""
        ...

    def bounds(self, moments: NDArray[np.int64]) -> list[pl.Series]:
        """What results say of the time in which rows met, beside the columns of both."""
        ...


class WithinMeeting:
    """Rows meet whose event times are close: a pair has the later one."""

    def __init__(self, within: Within) -> None:
        self._lower = within.lower_us
        self._upper = within.upper_us

    def placed(self, number: int, times: NDArray[np.int64], marks: NDArray[np.int64]) -> Placed:
        late = times <= marks
        rows = np.flatnonzero(~late)
        moments = times[rows]
        lower, upper = (self._lower, self._upper) if number == LEFT else (-self._upper, -self._lower)
        return Placed(rows, moments, moments + lower, moments + upper, moments + max(0, upper), late)

    def pair_times(self, moments: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.maximum(moments, others)

    def bounds(self, moments: NDArray[np.int64]) -> list[pl.Series]:
        return []


class WindowMeeting:
    """Rows meet that are in the same window, in each of them; the moment is the window's end on its clock."""

    def __init__(self, window: FixedWindow) -> None:
        judge = FixedLateness(window, 0)
        self._judge, self._shape, self._clock = judge, judge.shape, judge.clock

    def placed(self, number: int, times: NDArray[np.int64], marks: NDArray[np.int64]) -> Placed:
        late, shown, first_open = self._judge.find_late(times, marks)
        rows = np.flatnonzero(~late)
        shown = shown[rows]
        ends = np.where(times[rows] <= marks[rows], first_open[rows], self._shape.end_after(shown))
        found_rows: list[NDArray[np.int64]] = []
        found_ends: list[NDArray[np.int64]] = []
        while len(rows):
            inside = self._shape.start_of(ends) <= shown
            rows, shown, ends = rows[inside], shown[inside], ends[inside]
            there = self._clock.first_shown(ends - self._shape.slide) < self._clock.first_shown(ends)
            found_rows.append(rows[there])
            found_ends.append(ends[there])
            ends = ends + self._shape.slide
        moments = np.concatenate([*found_ends, np.empty(0, np.int64)])
        rows = np.concatenate([*found_rows, np.empty(0, np.int64)])
        order = np.argsort(rows, kind="stable")  # as they came
        rows, moments = rows[order], moments[order]
        return Placed(rows, moments, moments, moments, self._clock.first_shown(moments) - 1, late)

    def pair_times(self, moments: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._clock.first_shown(moments) - 1

    def bounds(self, moments: NDArray[np.int64]) -> list[pl.Series]:
        bounds = {"window_start": self._shape.start_of(moments), "window_end": moments}
        return [
            pl.Series(name, self._clock.first_shown(shown)).cast(polars_type(TIMESTAMP))
            for name, shown in bounds.items()
        ]
