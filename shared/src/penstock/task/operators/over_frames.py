"""Frames of `over` whose aggregates Polars cannot move along in steps: one costs what few merges cost, not its length.

Rows of all keys stand one behind the other, and the frame of a row is the places from `first` to `last`; neither goes
back from a row to the next. Some places are anchors, so that every frame holds one: it is what lies up to the anchor, one
of the partials onward from each place to the next anchor, and what lies behind it, one of those from an anchor up to each
place. That is the queue of two stacks, for all rows at once.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.task.operators.partial_scan import PartialScan

_AT: Final = "__at_place"
_NEXT: Final = "__next_place"
_UNITS: Final = 2**1074
"""Every float is a whole number of so manieth parts of one."""


class Frames(NamedTuple):
    """The first and last places of the frames of all rows, and the places behind the last row of each one's key."""

    first: NDArray[np.int64]
    last: NDArray[np.int64]
    key_ends: NDArray[np.int64]


def frames_of(keys: NDArray[np.int64], times: NDArray[np.int64], within: int | None, rows: int | None) -> Frames:
    """The frames of rows that are ordered by key, then by time.

    Args:
        keys: the key of each row, as a number.
        times: the event time of each row.
        within: how much older than a row those of its frame are at most; all rows of its key's before if None.
        rows: of how many rows up to it a frame is, instead; otherwise those of its own time belong to it all.
    """
    places = np.arange(len(keys))
    starts = np.r_[True, keys[1:] != keys[:-1]] if len(keys) else np.zeros(0, np.bool_)
    begins = np.maximum.accumulate(np.where(starts, places, 0))
    ends = np.searchsorted(begins, begins, side="right")
    if rows is not None:
        return Frames(np.maximum(begins, places - rows + 1), places, ends)
    changes = np.flatnonzero(np.r_[starts[1:] | (times[1:] != times[:-1]), True]) if len(keys) else places
    last = changes[np.searchsorted(changes, places)]
    return Frames(begins if within is None else _oldest(times, begins, starts, within), last, ends)


def _oldest(
    times: NDArray[np.int64], begins: NDArray[np.int64], starts: NDArray[np.bool_], within: int
) -> NDArray[np.int64]:
    first = np.empty_like(begins)
    bounds = [*np.flatnonzero(starts).tolist(), len(times)]
    for begin, end in pairwise(bounds):
        mine = times[begin:end]
        first[begin:end] = begin + np.searchsorted(mine, mine - within)
    return first


def merged_frames(scan: PartialScan, partials: pl.DataFrame, frames: Frames, wanted: NDArray[np.int64]) -> pl.DataFrame:
    """The partials of the frames of the wanted rows, given one partial per row."""
    anchors = np.array(_anchors(frames), np.int64)
    ends = np.zeros(partials.height, np.bool_)
    ends[anchors] = True
    ends[frames.key_ends - 1] = True
    starts = np.r_[True, ends[:-1]]
    onward, up_to = scan.onward(partials, ends), scan.up_to(partials, starts)
    first, last = frames.first[wanted], frames.last[wanted]
    anchor = anchors[np.searchsorted(anchors, first)]
    crossing = np.flatnonzero(last > anchor)
    merged = scan.pairs(onward[first[crossing]], up_to[last[crossing]])
    ending = np.flatnonzero(last <= anchor)
    order = np.argsort(np.concatenate([crossing, ending]), kind="stable")
    return pl.concat([merged, onward[first[ending]]])[order]


def _anchors(frames: Frames) -> list[int]:
    """Places of which every frame holds one, rising: the last of the first frame that does not hold the one before."""
    first, last = frames.first.tolist(), frames.last.tolist()
    found: list[int] = []
    row = 0
    while row < len(first):
        found.append(last[row])
        row = bisect_right(first, last[row], row)
    return found


def distinct_in_frames(values: pl.Series, keys: pl.Series, frames: Frames) -> NDArray[np.int64]:
    """How many different values the frames of all rows hold.

    A value counts from its place on until it comes again or a frame begins behind it, so frames need not be looked at.

    Args:
        values: a list of values per row.
        keys: the key of each row.
        frames: the frames, in which rows of one time belong together.
    """
    each = pl.DataFrame({"value": values, "key": keys, _AT: np.arange(len(values))})
    each = each.filter(pl.col("value").list.len() > 0).explode("value")
    each = each.with_columns(pl.col(_AT).shift(-1).over("key", "value").alias(_NEXT))
    at = each[_AT].to_numpy()
    until = np.minimum(each[_NEXT].fill_null(len(values)).to_numpy(), np.searchsorted(frames.first, at, side="right"))
    until = np.minimum(until, frames.key_ends[at])
    changes = np.bincount(at, minlength=len(values) + 1) - np.bincount(until, minlength=len(values) + 1)
    return np.cumsum(changes)[frames.last]


def folded_in_frames(values: NDArray[np.float64], frames: Frames) -> NDArray[np.float64]:
    """The sums of frames that begin with the rows of a key, added one by one: such a sum goes on from an earlier one."""
    folded = np.zeros_like(values)
    with np.errstate(all="ignore"):
        for begin in np.unique(frames.first[values != 0]).tolist():
            end = frames.key_ends[begin]
            folded[begin:end] = np.add.accumulate(values[begin:end])
    return folded[frames.last]


def added_in_frames(values: NDArray[np.float64], frames: Frames) -> NDArray[np.float64]:
    """The exact sums of frames, each rounded once; NaN and infinities as one that adds them would find."""
    places = np.flatnonzero(values != 0)
    held = values[places]
    sums = np.zeros(len(values))
    begins, ends = np.searchsorted(places, frames.first), np.searchsorted(places, frames.last, side="right")
    units = [0, *accumulate(_units(value) for value in held.tolist())]
    odd = [np.r_[0, np.cumsum(each)] for each in (np.isnan(held), held == np.inf, held == -np.inf)]
    counts = [each[ends] - each[begins] for each in odd]
    for row in np.flatnonzero(begins < ends).tolist():
        sums[row] = _rounded(units[ends[row]] - units[begins[row]])
    nan, above, below = (count > 0 for count in counts)
    sums = np.where(above, np.inf, np.where(below, -np.inf, sums))
    return np.where(nan | (above & below), np.nan, sums)


def _units(value: float) -> int:
    """A float in units of the smallest one; what is not finite is counted apart."""
    if not math.isfinite(value):
        return 0
    numerator, denominator = value.as_integer_ratio()
    return numerator * (_UNITS // denominator)


def _rounded(units: int) -> float:
    try:
        return units / _UNITS
    except OverflowError:
        return math.inf if units > 0 else -math.inf
