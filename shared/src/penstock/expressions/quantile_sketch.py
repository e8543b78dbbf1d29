"""Quantiles of how many rows have which value, in buckets that are as narrow as 2,600 of them can be.

A bucket is all floats that share their sign, exponent and leading bits of the fraction: the buckets of an HDR histogram.
At first all bits count, so a bucket is a value. When a group has more than 2,600 of them, the least number of trailing
bits is dropped that makes them fit (which is UDDSketch's uniform collapse; all buckets stay equally narrow). That number
depends on the set of values alone: more values never need fewer bits dropped, and dropping in steps is dropping at once.
So a sketch depends on no batch, no order, no seed and no path of merging, and counts are exact.

Infinities and NaN have buckets of their own; what is in one with zero (numbers below 1e-307) stands for zero. A sketch is
a list: the number of bits dropped, then the buckets' least magnitudes as ordered integers, then their rows. A group
without values has an empty list.

Sources: Masson et al., DDSketch (2019); Epicoco et al., UDDSketch (2020).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

BUCKETS: Final = 2600
"""Twenty powers of two (a factor of a million) in 128 buckets each, and a few: half a bucket is 0.4 % of its values."""
SKETCH: Final = pl.List(pl.Int64())
_MAGNITUDE: Final = np.int64(2**63 - 1)
_INFINITY: Final = np.int64(0x7FF0000000000000)
_APART: Final = 64
"""How many bits differ between what never shares a bucket."""


def sketch_of_each(value: pl.Expr) -> pl.Expr:
    """Elementwise: the sketch of every float by itself."""
    return value.map_batches(_of_each, return_dtype=SKETCH, is_elementwise=True)


def sketch_of_group(value: pl.Expr) -> pl.Expr:
    """In a group: the sketch of its floats."""
    # Polars sorts faster than NumPy, and calls Python per group far more slowly than once for lists of all groups.
    return value.drop_nulls().sort().implode().map_batches(_of_groups, return_dtype=SKETCH, is_elementwise=True)


def merged_sketch(sketch: pl.Expr) -> pl.Expr:
    """In a group: one sketch of several."""
    return sketch.implode().map_batches(_merged, return_dtype=SKETCH, is_elementwise=True)


def sketched_quantile(sketch: pl.Expr, quantile: float) -> pl.Expr:
    """float64: the quantile, linear between neighbours; null of no values."""
    return sketch.map_batches(_quantile_at(quantile), return_dtype=pl.Float64(), is_elementwise=True)


@dataclass(frozen=True)
class _Sketches:
    """Sketches of several groups: buckets in the order of groups, then of values."""

    group: NDArray[np.int64]
    key: NDArray[np.int64]
    rows: NDArray[np.int64]
    dropped: NDArray[np.int64]
    """Of every group: how many trailing bits."""

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Of every group: how many buckets."""
        return np.bincount(self.group, minlength=len(self.dropped))


# -- columns to sketches and back ---------------------------------------------------------------------------------------


def _of_each(values: pl.Series) -> pl.Series:
    lists = pl.DataFrame({"x": values}).select(pl.concat_list("x").list.drop_nulls())
    return _of_groups(lists.to_series().alias(values.name))


def _of_groups(lists: pl.Series) -> pl.Series:
    groups, flat = _opened(lists)
    keys = _keys(flat.to_numpy())
    dropped = np.zeros(len(lists), np.int64)
    return _stored(lists.name, _fitting(_Sketches(groups, keys, np.ones(len(keys), np.int64), dropped)))


def _merged(lists: pl.Series) -> pl.Series:
    owners, sketches = _opened(lists)
    parts = _read(sketches)
    dropped = np.zeros(len(lists), np.int64)
    np.maximum.at(dropped, owners, parts.dropped)
    return _stored(lists.name, _fitting(_Sketches(owners[parts.group], parts.key, parts.rows, dropped)))


def _opened(lists: pl.Series) -> tuple[NDArray[np.int64], pl.Series]:
    """All elements of lists, and the list that each is of."""
    sizes = lists.list.len().fill_null(0).to_numpy()
    arrow: Any = lists.rechunk().to_arrow()
    flat = pl.Series(pl.from_arrow(arrow.flatten()), dtype=lists.dtype.inner)  # type: ignore[attr-defined]
    return np.repeat(np.arange(len(lists)), sizes), flat


def _read(sketches: pl.Series) -> _Sketches:
    _, flat = _opened(sketches)
    lengths = sketches.list.len().fill_null(0).to_numpy().astype(np.int64)
    sizes = np.maximum(lengths - 1, 0) // 2
    group, places = _places(lengths, sizes)
    values = flat.to_numpy()
    dropped = np.zeros(len(sketches), np.int64)
    present = lengths > 0
    dropped[present] = values[(np.cumsum(lengths) - lengths)[present]]
    return _Sketches(group, values[places], values[places + sizes[group]], dropped)


def _stored(name: str, sketches: _Sketches) -> pl.Series:
    sizes = sketches.sizes
    lengths = np.where(sizes > 0, 1 + 2 * sizes, 0)
    ends = np.cumsum(lengths)
    flat = np.empty(int(lengths.sum()), np.int64)
    present = sizes > 0
    flat[(ends - lengths)[present]] = sketches.dropped[present]
    group, places = _places(lengths, sizes)
    flat[places] = sketches.key
    flat[places + sizes[group]] = sketches.rows
    offsets: Any = pl.Series(np.concatenate([np.zeros(1, np.int64), ends]))
    lists = pa.LargeListArray.from_arrays(offsets.to_arrow(), pl.Series(flat).to_arrow())
    return pl.Series(name, pl.from_arrow(lists), dtype=SKETCH)


def _places(lengths: NDArray[np.int64], sizes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of every bucket its group, and where its key stands in the lists of these lengths laid end to end."""
    group = np.repeat(np.arange(len(sizes)), sizes)
    within = np.arange(len(group)) - (np.cumsum(sizes) - sizes)[group]
    return group, (np.cumsum(lengths) - lengths)[group] + 1 + within


# -- buckets ------------------------------------------------------------------------------------------------------------


def _keys(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Integers in the order of floats: the bits of their magnitude, inverted where negative; NaN is the greatest."""
    plain = values + 0.0
    plain[np.isnan(plain)] = np.nan
    bits = plain.view(np.int64)
    return np.where(bits < 0, bits ^ _MAGNITUDE, bits)


def _values(keys: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.where(keys < 0, keys ^ _MAGNITUDE, keys).view(np.float64)


def _magnitudes(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.where(keys < 0, ~keys, keys)


def _signed(magnitudes: NDArray[np.int64], like: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.where(like < 0, ~magnitudes, magnitudes)


def _fitting(sketches: _Sketches) -> _Sketches:
    """Every group in as narrow buckets as it may have."""
    whole = _summed(sketches)
    large = np.flatnonzero(whole.sizes > BUCKETS)
    if not len(large):
        return whole
    dropped = whole.dropped.copy()
    for group in large.tolist():
        first, last = np.searchsorted(whole.group, [group, group + 1])
        apart = _differing_bits(whole.key[first:last])
        dropped[group] = np.partition(apart, len(apart) - BUCKETS)[len(apart) - BUCKETS]
    return _summed(_Sketches(whole.group, whole.key, whole.rows, dropped))


def _summed(sketches: _Sketches) -> _Sketches:
    """The buckets after dropping bits: each once, with all of its rows."""
    key = _bucket(sketches.key, sketches.dropped[sketches.group])
    group, rows = sketches.group, sketches.rows
    same = group[1:] == group[:-1]
    if np.any(same & (key[1:] < key[:-1])):
        order = np.lexsort((key, group))  # which leaves the groups, being in order, where they are
        key, rows = key[order], rows[order]
    is_first = np.ones(len(key), np.bool_)
    is_first[1:] = (key[1:] != key[:-1]) | ~same
    starts = np.flatnonzero(is_first)
    summed = np.add.reduceat(rows, starts) if len(starts) else rows
    return _Sketches(group[starts], key[starts], summed, sketches.dropped)


def _bucket(keys: NDArray[np.int64], dropped: NDArray[np.int64]) -> NDArray[np.int64]:
    magnitude = _magnitudes(keys)
    kept = np.where(magnitude >= _INFINITY, magnitude, (magnitude >> dropped) << dropped)
    return _signed(kept, keys)


def _differing_bits(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Between neighbours: how many trailing bits must be dropped for them to share a bucket."""
    magnitude = _magnitudes(keys)
    different = magnitude[1:] ^ magnitude[:-1]
    high, low = different >> 32, different & 0xFFFFFFFF  # halves, because floats hold them exactly
    bits = np.where(high > 0, 32 + np.frexp(high.astype(np.float64))[1], np.frexp(low.astype(np.float64))[1])
    never = (keys[1:] < 0) != (keys[:-1] < 0)
    never |= (magnitude[1:] >= _INFINITY) | (magnitude[:-1] >= _INFINITY)
    return np.where(never, _APART, bits)


# -- results ------------------------------------------------------------------------------------------------------------


def _quantile_at(quantile: float) -> Callable[[pl.Series], pl.Series]:
    def apply(lists: pl.Series) -> pl.Series:
        sketches = _read(lists)
        totals = np.zeros(len(lists), np.int64)
        np.add.at(totals, sketches.group, sketches.rows)
        present = np.flatnonzero(totals > 0)
        rank = quantile * (totals[present] - 1)
        below = np.floor(rank).astype(np.int64)
        reached = np.cumsum(sketches.rows)
        before = (np.cumsum(totals) - totals)[present]
        middles = _middles(sketches)
        low = middles[np.searchsorted(reached, before + below, side="right")]
        above = np.minimum(below + 1, totals[present] - 1)
        high = middles[np.searchsorted(reached, before + above, side="right")]
        found = np.full(len(lists), None, object)
        found[present] = _between(low, high, rank - below)
        return pl.Series(lists.name, found.tolist(), dtype=pl.Float64())

    return apply


def _middles(sketches: _Sketches) -> NDArray[np.float64]:
    """Of every bucket the value in its middle; zero and what is no number stand for themselves."""
    least = _magnitudes(sketches.key)
    width = np.left_shift(np.int64(1), sketches.dropped[sketches.group]) - 1
    alone = (least >= _INFINITY) | (least == 0)
    most = np.where(alone, least, np.minimum(least | width, _INFINITY - 1))
    middles = _values(_signed(least, sketches.key)) * 0.5 + _values(_signed(most, sketches.key)) * 0.5
    return np.where(most == least, _values(_signed(least, sketches.key)), middles) + 0.0


def _between(low: NDArray[np.float64], high: NDArray[np.float64], part: NDArray[Any]) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):
        return np.where((part == 0) | (low == high), low, low + (high - low) * part)
