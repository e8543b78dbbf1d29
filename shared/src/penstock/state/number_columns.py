"""Columns as Python values and back, with whole numbers for moments and durations, also within lists.

Polars takes these tens of times as fast to Python and back. What is kept row by row is kept so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, cast

import numpy as np
import polars as pl
import pyarrow as pa


def as_numbers(kind: pl.DataType) -> pl.DataType:
    """The type with numbers for moments and durations."""
    if isinstance(kind, pl.List):
        return pl.List(as_numbers(cast("pl.DataType", kind.inner)))
    if not kind.is_temporal():
        return kind
    return pl.Int32() if kind == pl.Date else pl.Int64()


def of_numbers(name: str, values: list[Any], kind: pl.DataType) -> pl.Series:
    """The column of this type whose values these are."""
    stored = as_numbers(kind)
    column = _column(name, values, stored)
    return column if stored == kind else column.cast(kind)


def _column(name: str, values: list[Any], kind: pl.DataType) -> pl.Series:
    if not isinstance(kind, pl.List):
        return pl.Series(name, values, kind)
    # Several times as fast as Polars makes a column of lists; `pa.array` of a Python list would import pandas, if it is
    # installed.
    lengths = np.fromiter((0 if value is None else len(value) for value in values), np.int64, len(values))
    offsets = pl.Series(np.concatenate([[0], np.cumsum(lengths)]), dtype=pl.Int64).to_arrow()
    flat = pl.Series(list(chain.from_iterable(value or () for value in values)), dtype=kind.inner)
    missing = pl.Series([value is None for value in values], dtype=pl.Boolean)
    mask = missing.to_arrow() if missing.any() else None
    return pl.Series(
        name, pa.LargeListArray.from_arrays(cast("pa.Int64Array", offsets), flat.to_arrow(), mask=mask), kind
    )


def tuples_of(columns: Sequence[pl.Series], height: int) -> Iterable[tuple[Any, ...]]:
    """The rows; several times as fast as `DataFrame.rows()`, which makes them one by one."""
    if not columns:
        return [()] * height
    return zip(*(_values(column) for column in columns), strict=True)


def _values(column: pl.Series) -> list[Any]:
    return (column if as_numbers(column.dtype) == column.dtype else column.to_physical()).to_list()
