"""Where the rows of partitions stand in an order, and the frames around them, as places: all partitions together.

Rows are sorted by partition, then by the order. A frame is the places from a first one up to, and without, another one,
and neither goes back from a row to the next.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import polars as pl

from penstock.plan.operations.over_current import Frame, Offset

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FAR: Final = 1 << 40
"""More rows than there are."""
_VALUE: Final = "__value"


class Positions:
    """The places of rows in their partitions.

    Args:
        partitions: the partition of each row, rising.
        by: the columns by which the rows of a partition are in order.
        descending: the direction of the first of them.
    """

    def __init__(self, partitions: NDArray[np.int64], by: pl.DataFrame, *, descending: bool = False) -> None:
        self._by = by
        self._descending = descending
        self.places = np.arange(len(partitions))
        starts = np.ones(len(partitions), np.bool_)
        starts[1:] = partitions[1:] != partitions[:-1]
        others = starts.copy()
        for column in by.get_columns():
            others[1:] |= column.ne_missing(column.shift(1)).to_numpy()[1:]
        self.begins, self.ends = self._runs(starts)
        """The bounds of the partition of each row."""
        self.peers, self.behind_peers = self._runs(others)
        """The bounds of the rows that are equal to it in the order."""
        self._groups = np.cumsum(others) - 1
        """The number of each row's group of peers among all."""
        self._bounds = np.r_[np.flatnonzero(others), len(partitions)]

    def _runs(self, starts: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        firsts = np.flatnonzero(starts)
        number = np.cumsum(starts) - 1
        return firsts[number], np.r_[firsts[1:], len(starts)][number]

    # -- ranks ----------------------------------------------------------------------------------------------------------

    @property
    def row_numbers(self) -> NDArray[np.int64]:
        """From 1 on."""
        return self.places - self.begins + 1

    @property
    def ranks(self) -> NDArray[np.int64]:
        """Of peers that of the first one."""
        return self.peers - self.begins + 1

    @property
    def dense_ranks(self) -> NDArray[np.int64]:
        """The number of the group of peers."""
        return self._groups - self._groups[self.begins] + 1

    @property
    def percent_ranks(self) -> NDArray[np.float64]:
        """What part of the other rows is in front of the peers."""
        return (self.ranks - 1) / np.maximum(self.ends - self.begins - 1, 1)

    @property
    def distributions(self) -> NDArray[np.float64]:
        """What part of the rows is not behind the peers."""
        return (self.behind_peers - self.begins) / (self.ends - self.begins)

    def tiles(self, number: int) -> NDArray[np.int64]:
        """In which of so many parts of like size a row is; the first ones have the rows that are left over."""
        number = min(number, _FAR)
        sizes, place = self.ends - self.begins, self.places - self.begins
        small, larger = sizes // number, sizes % number
        bound = larger * (small + 1)
        behind = larger + (place - bound) // np.maximum(small, 1)
        return np.where(place < bound, place // (small + 1), behind) + 1

    def beside(self, distance: int) -> NDArray[np.int64]:
        """The place of the row so many rows behind each, within its partition; -1 where there is none."""
        places = self.places + max(-_FAR, min(distance, _FAR))
        return np.where((places >= self.begins) & (places < self.ends), places, -1)

    # -- frames ---------------------------------------------------------------------------------------------------------

    def frames(self, frame: Frame) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The first places of the frames of all rows, and those behind their last ones: equal ones of empty frames."""
        find = {"rows": self._by_rows, "groups": self._by_groups, "range": self._by_values}[frame.unit]
        first = self.begins if frame.start is None else find(frame.start, False)
        behind = self.ends if frame.end is None else find(frame.end, True)
        return first, np.maximum(behind, first)

    def _by_rows(self, offset: Any, is_end: bool) -> NDArray[np.int64]:
        return np.clip(self.places + max(-_FAR, min(offset, _FAR)) + is_end, self.begins, self.ends)

    def _by_groups(self, offset: Any, is_end: bool) -> NDArray[np.int64]:
        first, last = self._groups[self.begins], self._groups[self.ends - 1]
        wanted = self._groups + max(-_FAR, min(offset, _FAR)) + is_end
        return self._bounds[np.clip(wanted, first, last + 1)]

    def _by_values(self, offset: Offset, is_end: bool) -> NDArray[np.int64]:
        if not offset:
            return self.behind_peers if is_end else self.peers
        values = _comparable(self._by.to_series())
        shifted = _shifted(values, offset, backward=self._descending)
        null = values.is_null().to_numpy()
        low, high = self._values_of_partitions(null)
        before = _BEFORE[self._descending, is_end]
        found = _first_not(lambda places: before(values.gather(places), shifted), low, high)
        return np.where(null, self.behind_peers if is_end else self.peers, found)

    def _values_of_partitions(self, null: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where the values of the partition of each row begin and end: in front of them or behind them are nulls."""
        nulls = np.r_[0, np.cumsum(null)]
        number = nulls[self.ends] - nulls[self.begins]
        in_front = null[self.begins]
        low = np.where(in_front, self.begins + number, self.begins)
        return low, np.where(in_front, self.ends, self.ends - number)


_BEFORE: Final[dict[tuple[bool, bool], Callable[[pl.Series, pl.Series], pl.Series]]] = {
    (False, False): lambda one, other: one < other,
    (False, True): lambda one, other: one <= other,
    (True, False): lambda one, other: one > other,
    (True, True): lambda one, other: one >= other,
}
"""Which values are in front of a bound, by the direction and by whether it is the end, which its own value is before."""


def _comparable(values: pl.Series) -> pl.Series:
    """The values in a type in which distances do not overflow: moments and durations in microseconds."""
    kind = values.dtype
    if kind == pl.Date:
        values = values.cast(pl.Datetime("us"))
    if kind.is_float():
        return values.cast(pl.Float64).rename(_VALUE)
    if kind.is_decimal():
        return values.cast(pl.Decimal(38, cast("pl.Decimal", kind).scale)).rename(_VALUE)
    return values.to_physical().cast(pl.Int128).rename(_VALUE)


def _shifted(values: pl.Series, offset: Offset, *, backward: bool) -> pl.Series:
    if isinstance(offset, timedelta):
        offset = offset // timedelta(microseconds=1)
    distance = -offset if backward else offset
    kind = pl.Decimal(38, _scale(distance)) if values.dtype.is_decimal() else values.dtype
    return values.to_frame().select(pl.col(_VALUE) + pl.lit(distance).cast(kind)).to_series()


def _scale(distance: Offset) -> int:
    exponent = Decimal(cast("int | Decimal", distance)).as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0


def _first_not(
    is_before: Callable[[NDArray[np.int64]], pl.Series], low: NDArray[np.int64], high: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The first place from `low` up to `high`, for each row, of which `is_before` is not true: binary search of all."""
    low, high = low.copy(), high.copy()
    while (left := low < high).any():
        middle = np.where(left, (low + high) // 2, 0)
        before = is_before(middle).fill_null(False).to_numpy() & left
        low = np.where(before, middle + 1, low)
        high = np.where(left & ~before, middle, high)
    return low
