"""Maps from elsewhere as maps have to be: every key once, with its last value.

Arrow takes a key any number of times, and Polars would then find the first value and show the last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.types import DataType, Field, ListType, MapType, StructType, parts_of, polars_type

if TYPE_CHECKING:
    import polars as pl


def with_keys_once(column: pl.Series, kind: DataType) -> pl.Series:
    """The column, its maps built anew; the same if there are none in it."""
    if not any(isinstance(part, MapType) for part in parts_of(kind)):
        return column
    return column.cast(polars_type(_as_entries(kind))).cast(polars_type(kind))


def _as_entries(kind: DataType) -> DataType:
    """The type with lists of entries for maps."""
    if isinstance(kind, MapType):
        return MapType(_as_entries(kind.value)).entries
    if isinstance(kind, ListType):
        return ListType(_as_entries(kind.inner))
    if isinstance(kind, StructType):
        return StructType(tuple(Field(part.name, _as_entries(part.type), part.nullable) for part in kind.fields))
    return kind
