"""Means of integers: the true quotient rounded once, whatever the sum, the batches and the order of merging.

A sum of 64-bit integers wraps around. So beside it a partial keeps the sum of the values' high halves, rounded to the
nearest multiple of 2**32: both together are the true sum, because what remains of the low halves (each within 2**31 of
zero) fits into 64 bits for 2**32 rows whatever their values, and for any number of small ones.

Not in Polars' arithmetic: it has no wider integers that are divided correctly, and where a divisor is the same for all
rows it multiplies by the reciprocal, which may differ in the last bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_HALF: Final = 2**31
_EXACT_FLOAT: Final = 2**53
"""Below this every integer is a float64, so that a quotient of two is rounded once."""
_INT64: Final = pl.Int64()


def high_half(values: pl.Expr) -> pl.Expr:
    """Of integers of 64 bits or durations: the number of times 2**32 that is nearest, as int64."""
    return ((values // _HALF + 1) // 2).cast(_INT64)


def mean_of_integers(total: pl.Expr, high: pl.Expr, rows: pl.Expr) -> pl.Expr:
    """float64: the sum (modulo 2**64) with the sum of its high halves, divided by the number of rows."""
    return pl.map_batches([total, high, rows], _quotients, pl.Float64(), is_elementwise=True)


def floored_mean(total: pl.Expr, high: pl.Expr, rows: pl.Expr) -> pl.Expr:
    """int64: the same, rounded down."""
    return pl.map_batches([total, high, rows], _floored, _INT64, is_elementwise=True)


def _quotients(columns: Sequence[pl.Series]) -> pl.Series:
    high, low, rows = _parts(columns)
    found = (high * 2**32 + low) / rows
    # The true sum of these is no int64, or no float64: Python divides integers of any size correctly.
    for row in np.flatnonzero(~_within(high, low, _EXACT_FLOAT)).tolist():
        found[row] = _true_sum(high, low, row) / int(rows[row])
    return pl.Series(columns[0].name, found)


def _floored(columns: Sequence[pl.Series]) -> pl.Series:
    high, low, rows = _parts(columns)
    found = (high * 2**32 + low) // rows
    for row in np.flatnonzero(~_within(high, low, 2**63)).tolist():
        found[row] = _true_sum(high, low, row) // int(rows[row])
    return pl.Series(columns[0].name, found)


def _parts(columns: Sequence[pl.Series]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """High part and low part of the true sums, and the numbers of rows (at least one)."""
    total, high, rows = (_int64s(column) for column in np.broadcast_arrays(*map(_filled, columns)))
    return high, total - high * 2**32, np.maximum(rows, 1)


def _filled(column: pl.Series) -> NDArray[Any]:
    return column.fill_null(0).to_numpy()


def _int64s(values: NDArray[Any]) -> NDArray[np.int64]:
    return np.ascontiguousarray(values).view(np.int64)


def _within(high: NDArray[np.int64], low: NDArray[np.int64], bound: int) -> NDArray[np.bool_]:
    """Where the true sum is certainly nearer to zero than `bound`."""
    return (np.abs(high) < bound // 2**33) & (np.abs(low) < bound // 2) & (low != np.iinfo(np.int64).min)


def _true_sum(high: NDArray[np.int64], low: NDArray[np.int64], row: int) -> int:
    return int(high[row]) * 2**32 + int(low[row])
