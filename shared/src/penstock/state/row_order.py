"""Values of any type that has an order as 64-bit integers in that order, so that rows can be kept sorted by them.

Unlike values may become the same integer (long texts, decimals), but none comes before a lesser one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SIGN = np.uint64(1 << 63)
_LAST = np.iinfo(np.int64).min
_FIRST = np.iinfo(np.int64).max


def order_of(values: pl.Series, *, descending: bool, nulls_last: bool | None = None) -> NDArray[np.int64]:
    """The integers of values; with `descending` false a greater value has a lesser one.

    Null has the least, or with `nulls_last` false the greatest. NaN is the greatest value, or if `nulls_last` is None as
    null.
    """
    missing = values.is_null()
    if values.dtype.is_float() and nulls_last is None:
        missing = values.is_nan().fill_null(True)
    order = _rising(values)
    if not descending:
        order = ~order
    return np.where(missing.to_numpy(), _FIRST if nulls_last is False else _LAST, order)


def _rising(values: pl.Series) -> NDArray[np.int64]:
    kind = values.dtype
    if kind == pl.String or kind == pl.Binary:
        return _of_bytes(values.cast(pl.Binary))
    if kind.is_float() or kind.is_decimal():
        return _of_floats(values.cast(pl.Float64).fill_null(0.0).to_numpy())
    if kind == pl.UInt64:
        return (values.fill_null(0).to_numpy() ^ _SIGN).view(np.int64)
    return values.to_physical().cast(pl.Int64).fill_null(0).to_numpy()


def _of_floats(values: NDArray[np.float64]) -> NDArray[np.int64]:
    values = np.where(np.isnan(values), np.nan, values + 0.0)  # there is one NaN, and -0.0 and 0.0 are the same
    bits = values.view(np.int64)
    return bits ^ ((bits >> 63) & np.int64(2**63 - 1))


def _of_bytes(values: pl.Series) -> NDArray[np.int64]:
    """The first eight bytes; those of UTF-8 are in the order of characters."""
    heads = np.array(values.bin.slice(0, 8).fill_null(b"").to_list() or [b""], "S8")[: len(values)]
    return (heads.view(">u8").astype(np.uint64) ^ _SIGN).view(np.int64)
