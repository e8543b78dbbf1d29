"""Avro for rows of a schema: which Avro schema they have, and one datum per row, behind a registry's prefix or none.

A datum is what `fastavro.schemaless_writer` writes: reader and writer know the schema. Timestamps are
`timestamp-micros`, dates `date`, decimals `decimal` of bytes, durations microseconds (long), lists arrays, structs
records.
"""

from __future__ import annotations

import io
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import UUID

from penstock.errors import PipelineError
from penstock.types import (
    BINARY,
    DURATION,
    INT64,
    STRING,
    DataType,
    DecimalType,
    Field,
    ListType,
    MapType,
    Scalar,
    Schema,
    StructType,
    parts_of,
    polars_type,
)

if TYPE_CHECKING:
    import polars as pl

_SCALARS: Final[dict[str, Any]] = {
    "boolean": "boolean", "int8": "int", "int16": "int", "int32": "int", "int64": "long",
    "uint8": "int", "uint16": "int", "uint32": "long", "float32": "float", "float64": "double",
    "string": "string", "binary": "bytes", "null": "null",
    "date": {"type": "int", "logicalType": "date"},
    "time": {"type": "long", "logicalType": "time-micros"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros"},
    "duration": "long",
}  # fmt: skip


def avro_schema(schema: Schema, name: str = "Row") -> dict[str, Any]:
    """The Avro record that rows of the schema are.

    Raises:
        PipelineError: a column has no counterpart in Avro.
    """
    return _record(schema.fields, name)


def encode_avro(frame: pl.DataFrame, schema: Schema, prefix: bytes = b"") -> pl.Series:
    """One datum per row, as Binary, each behind the prefix."""
    import fastavro
    import polars as pl

    parsed = fastavro.parse_schema(avro_schema(schema))
    rows = frame.with_columns(_as_long(pl.col(field.name), field.type).alias(field.name) for field in schema)
    data: list[bytes] = []
    out = io.BytesIO()
    for row in rows.iter_rows(named=True):
        out.write(prefix)
        fastavro.schemaless_writer(out, parsed, row)
        data.append(out.getvalue())
        out.seek(0)
        out.truncate()
    return pl.Series(data, dtype=pl.Binary)


def of_column(value: Any, kind: DataType) -> Any:
    """A value that fastavro has read for such a column, with durations for numbers of microseconds, and UUIDs as text or
    as their 16 bytes.

    What is anything else stays what it is.
    """
    if isinstance(kind, ListType) and isinstance(value, list):
        return [of_column(item, kind.inner) for item in cast("list[Any]", value)]
    if isinstance(kind, MapType) and isinstance(value, dict):
        return {key: of_column(part, kind.value) for key, part in cast("dict[str, Any]", value).items()}
    if isinstance(kind, StructType) and isinstance(value, dict):
        parts = cast("dict[str, Any]", value)
        there = [field for field in kind.fields if field.name in parts]
        return parts | {field.name: of_column(parts[field.name], field.type) for field in there}
    if isinstance(value, UUID):
        return value.bytes if kind == BINARY else str(value) if kind == STRING else value
    return timedelta(microseconds=value) if kind == DURATION and type(value) is int else value


def _record(fields: tuple[Field, ...], name: str) -> dict[str, Any]:
    described = [{"name": field.name, "type": _nullable(field, f"{name}_{field.name}")} for field in fields]
    return {"type": "record", "name": name, "fields": described}


def _nullable(field: Field, path: str) -> Any:
    kind = _type(field.type, path)
    return ["null", kind] if field.nullable and kind != "null" else kind


def _type(kind: DataType, path: str) -> Any:
    if isinstance(kind, Scalar):
        if kind.name not in _SCALARS:
            raise PipelineError(f"avro: column {path.partition('_')[2]!r} is {kind}, which Avro does not know; cast it")
        return _SCALARS[kind.name]
    if isinstance(kind, DecimalType):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if isinstance(kind, ListType):
        return {"type": "array", "items": ["null", _type(kind.inner, path)]}
    if isinstance(kind, MapType):
        return {"type": "map", "values": ["null", _type(kind.value, path)]}
    return _record(kind.fields, path)


def _as_long(column: pl.Expr, kind: DataType) -> pl.Expr:
    """Durations as the numbers that Avro has for them, also inside lists and structs."""
    import polars as pl

    if isinstance(kind, ListType):
        return column.list.eval(_as_long(pl.element(), kind.inner))
    if isinstance(kind, MapType):
        if DURATION not in parts_of(kind.value):
            return column
        entries = column.cast(polars_type(kind.entries)).list.eval(_as_long(pl.element(), kind.entries.inner))
        return entries.cast(polars_type(_with_longs(kind)))
    if isinstance(kind, StructType):
        members = [_as_long(column.struct.field(field.name), field.type).alias(field.name) for field in kind.fields]
        return pl.when(column.is_not_null()).then(pl.struct(members))
    return column.dt.total_microseconds() if kind == DURATION else column


def _with_longs(kind: DataType) -> DataType:
    """The type of what `_as_long` gives."""
    if isinstance(kind, ListType):
        return ListType(_with_longs(kind.inner))
    if isinstance(kind, MapType):
        return MapType(_with_longs(kind.value))
    if isinstance(kind, StructType):
        return StructType(tuple(Field(part.name, _with_longs(part.type), part.nullable) for part in kind.fields))
    return INT64 if kind == DURATION else kind
