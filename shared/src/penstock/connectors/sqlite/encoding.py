"""Rows as SQLite is given them: whole numbers, numbers with a floating point, texts and bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from penstock.connectors.keyed_rows import KeyedRows, TableRowEncoder, encoded_columns
from penstock.connectors.sqlite.column_types import stored
from penstock.formats.encoding import json_values
from penstock.types import (
    DATE,
    DURATION,
    FLOATS,
    STRING,
    TIME,
    TIMESTAMP,
    UINT64,
    Field,
    ListType,
    MapType,
    Schema,
    StructType,
    polars_type,
)

if TYPE_CHECKING:
    import polars as pl

MOST: Final = 2**63 - 1
_FORMATS: Final = {TIMESTAMP: "%Y-%m-%dT%H:%M:%S%.6fZ", TIME: "%H:%M:%S%.6f", DATE: "iso", DURATION: "iso"}
"""All with the same number of digits, so that texts sort as times do; of durations as ISO 8601 has them."""


def encoded_schema(columns: Schema, *, deletes: bool) -> Schema:
    """The columns of encoded rows."""
    values = (Field(each.name, stored(each.type, each.name).value) for each in columns)
    return encoded_columns(values, deletes=deletes)


def row_encoder(where: str, schema: Schema, rows: KeyedRows, *, skips: bool) -> TableRowEncoder:
    """The encoder of one subtask: `where` leads errors; `skips`: bad rows are counted instead of failing."""
    return TableRowEncoder(where, rows.columns(schema), rows, skips, _encoded, _unfit, _misfit)


def _unfit(frame: pl.DataFrame, columns: Schema) -> pl.Series:
    """Which rows have a value that SQLite has no way to hold; see `_misfit`."""
    import polars as pl

    bad = pl.repeat(value=False, n=frame.height, eager=True)
    for field in columns:
        if field.type == UINT64:
            bad = bad | (frame[field.name] > MOST).fill_null(value=False)
        elif field.type in FLOATS:
            bad = bad | frame[field.name].is_nan().fill_null(value=False)
    return bad


def _misfit(row: Mapping[str, Any], columns: Schema) -> str:
    """Which value of an unfit row that is, and why."""
    for field in columns:
        value = row[field.name]
        if field.type == UINT64 and value is not None and value > MOST:
            return f"{field.name} is {value}, and whole numbers of SQLite go to {MOST}; cast it to text before"
        if field.type in FLOATS and value is not None and value != value:
            return f"{field.name} is NaN, of which SQLite would make null"
    raise AssertionError("every unfit row has a reason")


def _encoded(frame: pl.DataFrame, field: Field) -> pl.Series:
    column, kind = frame[field.name], field.type
    if isinstance(kind, ListType | MapType | StructType):
        return json_values(frame, field)
    if kind in _FORMATS:
        return column.dt.to_string(_FORMATS[kind])
    if kind == STRING:
        return column
    return column.cast(polars_type(stored(kind, field.name).value))
