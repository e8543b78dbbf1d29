"""Rows as Postgres reads them in `COPY`: a text per column, escaped, so that what publishes them only joins them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from penstock.connectors.keyed_rows import KeyedRows, TableRowEncoder, encoded_columns
from penstock.formats.encoding import as_text, json_values
from penstock.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DURATION,
    STRING,
    DataType,
    Field,
    ListType,
    MapType,
    Schema,
    StructType,
)

if TYPE_CHECKING:
    import polars as pl

_US_PER_HOUR: Final = 3_600_000_000
_NUL_IN_JSON: Final = r"(^|[^\\])(\\\\)*\\u0000"


def encoded_schema(columns: Schema, *, deletes: bool) -> Schema:
    """The columns of encoded rows."""
    return encoded_columns((Field(name, STRING) for name in columns.names), deletes=deletes)


def row_encoder(where: str, schema: Schema, rows: KeyedRows, *, skips: bool) -> TableRowEncoder:
    """The encoder of one subtask: `where` leads errors; `skips`: bad rows are counted instead of failing."""
    return TableRowEncoder(where, rows.columns(schema), rows, skips, copy_text, _unfit, _misfit)


def _unfit(frame: pl.DataFrame, columns: Schema) -> pl.Series:
    import polars as pl

    bad = pl.repeat(value=False, n=frame.height, eager=True)
    for field in columns:
        if field.type == STRING:
            bad = bad | frame[field.name].str.contains("\x00", literal=True).fill_null(value=False)
        elif _is_json(field.type):
            bad = bad | json_values(frame, field).str.contains(_NUL_IN_JSON).fill_null(value=False)
    return bad


def _misfit(_row: Mapping[str, Any], _columns: Schema) -> str:
    return "a text has a zero character, which Postgres cannot hold"


def _is_json(kind: DataType) -> bool:
    return isinstance(kind, ListType | MapType | StructType)


def copy_text(frame: pl.DataFrame, field: Field) -> pl.Series:
    """A column as `COPY` reads it in its text format; null is null."""
    import polars as pl

    column = frame[field.name]
    if _is_json(field.type):
        text = _escaped(json_values(frame, field))
    elif field.type == STRING:
        text = _escaped(column)
    elif field.type == BOOLEAN:
        text = column.cast(pl.String)
    elif field.type == BINARY:
        text = "\\\\x" + column.bin.encode("hex")
    elif field.type == DURATION:
        text = _intervals(column)
    elif field.type == DATE:
        text = column.dt.to_string("iso")
    else:
        text = as_text(frame, Schema((field,)))[field.name].cast(pl.String)
    return text.alias(field.name)


def _escaped(text: pl.Series) -> pl.Series:
    return text.str.replace_many(["\\", "\t", "\n", "\r"], ["\\\\", "\\t", "\\n", "\\r"])


def _intervals(column: pl.Series) -> pl.Series:
    """Hours, minutes and seconds: days of an interval are no 24 hours where clocks change."""
    import polars as pl

    micros = pl.lit(column.dt.total_microseconds())
    size = micros.abs()
    seconds = size % 60_000_000
    return pl.select(
        pl.concat_str(
            pl.when(micros < 0).then(pl.lit("-")).otherwise(pl.lit("")),
            size // _US_PER_HOUR, pl.lit(":"), size % _US_PER_HOUR // 60_000_000, pl.lit(":"),
            seconds // 1_000_000, pl.lit("."), (seconds % 1_000_000).cast(pl.String).str.zfill(6),
        )
    ).to_series()  # fmt: skip


def copy_lines(frame: pl.DataFrame) -> bytes:
    """The rows for `COPY`."""
    import polars as pl

    columns = [pl.col(name).fill_null("\\N") for name in frame.columns]
    return ("\n".join(frame.select(pl.concat_str(columns, separator="\t")).to_series().to_list()) + "\n").encode()
