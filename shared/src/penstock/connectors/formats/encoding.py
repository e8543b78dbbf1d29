"""Frames to bytes: JSON lines and CSV, vectorised.

Timestamps are RFC 3339 in UTC with `Z` and a fraction only where there is one; floats are the shortest text that reads
back the same; JSON knows neither NaN nor infinity, so they become null. Bytes are base64, durations ISO 8601, dates
`YYYY-MM-DD`, times of day `HH:MM:SS`: what `decoding` reads.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Final

from penstock.types import BINARY, DURATION, TIME, TIMESTAMP, DataType, ListType, Schema, StructType

if TYPE_CHECKING:
    import polars as pl

_RFC_3339: Final = "%Y-%m-%dT%H:%M:%S%.fZ"
_TIME_OF_DAY: Final = "%H:%M:%S%.f"


def encode_jsonl(frame: pl.DataFrame, schema: Schema) -> bytes:
    """One JSON object and a newline per row."""
    out = io.BytesIO()
    as_text(frame, schema).write_ndjson(out)
    return out.getvalue()


def encode_csv(frame: pl.DataFrame, schema: Schema, *, header: bool, delimiter: str = ",", null: str = "") -> bytes:
    """One record per row, after a header if asked for. Null is the unquoted text `null`, an empty text is quoted."""
    out = io.BytesIO()
    as_text(frame, schema).write_csv(out, include_header=header, separator=delimiter, null_value=null)
    return out.getvalue()


def as_text(frame: pl.DataFrame, schema: Schema) -> pl.DataFrame:
    """The columns in order, with texts in place of all that the writers do not know or write differently."""
    import polars as pl

    return frame.select(_text(pl.col(field.name), field.type).alias(field.name) for field in schema)


def _text(column: pl.Expr, kind: DataType) -> pl.Expr:
    import polars as pl

    if not _needs_text(kind):
        return column
    if isinstance(kind, ListType):
        return column.list.eval(_text(pl.element(), kind.inner))
    if isinstance(kind, StructType):
        members = [_text(column.struct.field(field.name), field.type).alias(field.name) for field in kind.fields]
        return pl.when(column.is_not_null()).then(pl.struct(members))
    if kind in (TIMESTAMP, TIME):
        return column.dt.to_string(_RFC_3339 if kind == TIMESTAMP else _TIME_OF_DAY)
    return column.bin.encode("base64") if kind == BINARY else column.dt.to_string("iso")


def _needs_text(kind: DataType) -> bool:
    if isinstance(kind, ListType):
        return _needs_text(kind.inner)
    if isinstance(kind, StructType):
        return any(_needs_text(field.type) for field in kind.fields)
    return kind in (TIME, TIMESTAMP, DURATION, BINARY)
