"""Frames to bytes: JSON lines and CSV, vectorised.

Timestamps are RFC 3339 in UTC with `Z` and a fraction only where there is one; floats are the shortest text that reads
back the same; JSON knows neither NaN nor infinity, so they become null. Decimals are numbers with all their digits, as
Flink and Spark write them. Bytes are base64, durations ISO 8601, dates `YYYY-MM-DD`, times of day `HH:MM:SS`: what
`decoding` reads.
"""

from __future__ import annotations

import io
import itertools
from typing import TYPE_CHECKING, Final

from penstock.types import (
    BINARY,
    DURATION,
    TIME,
    TIMESTAMP,
    DataType,
    DecimalType,
    Field,
    ListType,
    MapType,
    Schema,
    StructType,
    parts_of,
    polars_type,
)

if TYPE_CHECKING:
    import polars as pl

_RFC_3339: Final = "%Y-%m-%dT%H:%M:%S%.fZ"
_TIME_OF_DAY: Final = "%H:%M:%S%.f"


def encode_jsonl(frame: pl.DataFrame, schema: Schema) -> bytes:
    """One JSON object and a newline per row."""
    if has_decimals(schema):
        return "".join(f"{text}\n" for text in json_texts(frame, schema)).encode()
    out = io.BytesIO()
    as_text(frame, schema).write_ndjson(out)
    return out.getvalue()


def json_texts(frame: pl.DataFrame, schema: Schema) -> pl.Series:
    """One JSON object per row, as String."""
    if not has_decimals(schema):
        return as_text(frame, schema).to_struct("row").struct.json_encode()
    expected = sum(_decimals_in(frame[field.name], field.type) for field in schema)
    # Polars writes decimals as text. A mark says which texts they are, and no other text of the frame may have it.
    for number in itertools.count():
        mark = f"decimal:{number}:"
        texts = as_text(frame, schema, mark).to_struct("row").struct.json_encode()
        if texts.str.count_matches(mark, literal=True).sum() == expected:
            return texts.str.replace_all(f'"{mark}([-0-9.]+)"', "${1}")
    raise AssertionError("a frame has texts without end")


def json_values(frame: pl.DataFrame, field: Field) -> pl.Series:
    """A column as JSON values, as String; null is null."""
    import polars as pl

    one = frame.select(pl.col(field.name).alias("v"))
    texts = json_texts(one, Schema((Field("v", field.type, nullable=True),))).str.slice(5).str.head(-1)
    return pl.select(pl.when(frame[field.name].is_not_null()).then(texts)).to_series()


def has_decimals(schema: Schema) -> bool:
    """Whether a decimal is anywhere in its columns."""
    return any(isinstance(part, DecimalType) for field in schema for part in parts_of(field.type))


def _decimals_in(column: pl.Series, kind: DataType) -> int:
    """How many decimals there are that are not null."""
    if isinstance(kind, ListType):
        return _decimals_in(column.explode(), kind.inner)
    if isinstance(kind, MapType):
        return _decimals_in(column.cast(polars_type(kind.entries)), kind.entries)
    if isinstance(kind, StructType):
        present = column.drop_nulls()
        return sum(_decimals_in(present.struct.field(field.name), field.type) for field in kind.fields)
    return column.count() if isinstance(kind, DecimalType) else 0


def encode_csv(frame: pl.DataFrame, schema: Schema, *, header: bool, delimiter: str = ",", null: str = "") -> bytes:
    """One record per row, after a header if asked for. Null is the unquoted text `null`, an empty text is quoted.

    A value that is written like null is quoted; then all texts of the frame are.
    """
    import polars as pl

    out = io.BytesIO()
    texts = as_text(frame, schema)
    alike = [column.name for column in texts if null and (column.cast(pl.String) == null).any()]
    texts.with_columns(pl.col(alike).cast(pl.String)).write_csv(
        out, include_header=header, separator=delimiter, null_value=null,
        quote_style="non_numeric" if alike else "necessary",
    )  # fmt: skip
    return out.getvalue()


def as_text(frame: pl.DataFrame, schema: Schema, mark: str = "") -> pl.DataFrame:
    """The columns in order, with texts in place of all that the writers do not know or write differently.

    `mark` stands before every decimal.
    """
    import polars as pl

    if not any(_needs_text(field.type) for field in schema):
        return frame if tuple(frame.columns) == schema.names else frame.select(schema.names)
    return frame.select(_text(pl.col(field.name), field.type, mark).alias(field.name) for field in schema)


def _text(column: pl.Expr, kind: DataType, mark: str) -> pl.Expr:
    import polars as pl

    if not _needs_text(kind):
        return column
    if isinstance(kind, DecimalType):
        return pl.lit(mark) + column.cast(pl.String)
    if isinstance(kind, ListType):
        return column.list.eval(_text(pl.element(), kind.inner, mark))
    if isinstance(kind, MapType):
        texts = column.cast(polars_type(kind.entries)).list.eval(_text(pl.element(), kind.entries.inner, mark))
        return texts.cast(pl.Map(pl.String(), _text_type(kind.value)))
    if isinstance(kind, StructType):
        members = [_text(column.struct.field(field.name), field.type, mark).alias(field.name) for field in kind.fields]
        return pl.when(column.is_not_null()).then(pl.struct(members))
    if kind in (TIMESTAMP, TIME):
        return column.dt.to_string(_RFC_3339 if kind == TIMESTAMP else _TIME_OF_DAY)
    return column.bin.encode("base64") if kind == BINARY else column.dt.to_string("iso")


def _text_type(kind: DataType) -> pl.DataType:
    """The type of what `_text` gives."""
    import polars as pl

    if isinstance(kind, ListType):
        return pl.List(_text_type(kind.inner))
    if isinstance(kind, MapType):
        return pl.Map(pl.String(), _text_type(kind.value))
    if isinstance(kind, StructType):
        return pl.Struct([pl.Field(field.name, _text_type(field.type)) for field in kind.fields])
    return pl.String() if _needs_text(kind) else polars_type(kind)


def _needs_text(kind: DataType) -> bool:
    if isinstance(kind, MapType):
        return _needs_text(kind.value)
    if isinstance(kind, ListType):
        return _needs_text(kind.inner)
    if isinstance(kind, StructType):
        return any(_needs_text(field.type) for field in kind.fields)
    return isinstance(kind, DecimalType) or kind in (TIME, TIMESTAMP, DURATION, BINARY)
