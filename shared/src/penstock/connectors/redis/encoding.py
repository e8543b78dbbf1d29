"""Rows as Redis gets them: the name of the hash, and a text (or bytes) per column; null is a field that is not there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.connectors.base import Encoded
from penstock.connectors.keyed_rows import COLUMN, GONE, RETRACTED, KeyedRows, without_bad
from penstock.connectors.lookups import KeyTemplate
from penstock.formats.encoding import as_text, json_values
from penstock.types import BINARY, BOOLEAN, FLOATS, STRING, Field, ListType, MapType, Schema, StructType

if TYPE_CHECKING:
    import polars as pl

NAME: Final = "name"
"""Of the hash; rows of streams have none."""


def encoded_schema(columns: Schema, *, named: bool) -> Schema:
    """The columns of encoded rows; `named`: they are hashes."""
    fields = [
        Field(f"{COLUMN}{field.name}", BINARY if field.type == BINARY else STRING, nullable=True) for field in columns
    ]
    return Schema((*fields, *((Field(NAME, STRING), Field(GONE, BOOLEAN)) if named else ())))


class RedisEncoder:
    """The encoder of one subtask; see `SinkEncoder`."""

    def __init__(
        self, where: str, schema: Schema, rows: KeyedRows, template: KeyTemplate | None, *, skips: bool
    ) -> None:
        """`where` leads errors; `template` makes the names of hashes; `skips`: bad rows are counted."""
        self._where = where
        self._columns = rows.columns(schema)
        self._rows = rows
        self._deletes = rows.deletes
        self._template = template
        self._skips = skips

    def encode(self, frame: pl.DataFrame) -> Encoded:
        """See `SinkEncoder.encode`."""
        import polars as pl

        frame = self._rows.newest(frame)
        rows = frame.select(self._columns.names)
        fields = [field_values(frame, field).alias(f"{COLUMN}{field.name}") for field in self._columns]
        made, bad = pl.DataFrame(fields), self._rows.without_key(frame)
        if self._template is None:
            bad = bad | made.select(pl.all_horizontal(pl.all().is_null())).to_series()
        else:
            gone = (
                frame[RETRACTED].fill_null(value=False) if self._deletes else pl.repeat(False, frame.height, eager=True)
            )
            names = [
                None if lacks else self._template.text(key)
                for key, lacks in zip(frame.select(self._rows.key).iter_rows(), bad, strict=True)
            ]
            made = made.with_columns(pl.Series(NAME, names, pl.String), gone.alias(GONE))
            bad = made[NAME].is_null()
        return without_bad(self._where, rows, made, bad, self._reason, skips=self._skips)

    def _reason(self, row: dict[str, Any]) -> str:
        if missing := self._rows.missing(row):
            return missing
        if self._template is not None:
            return f"a row has no name: {self._template.problem(tuple(row[name] for name in self._rows.key))}"
        return "all columns of a row are null, and an entry of a stream has a field at least"


def field_values(frame: pl.DataFrame, field: Field) -> pl.Series:
    """A column as `redis.Lookup` reads it: String, or Binary of bytes."""
    import polars as pl

    column = frame[field.name]
    if field.type in (STRING, BINARY):
        return column
    if isinstance(field.type, ListType | MapType | StructType):
        return json_values(frame, field)
    if field.type in FLOATS:
        finite = pl.DataFrame({field.name: column.is_finite()}).select(pl.when(field.name).then(column)).to_series()
        return json_values(finite.alias(field.name).to_frame(), field)
    if field.type == BOOLEAN:
        return column.cast(pl.String)
    return as_text(frame, Schema((field,)))[field.name].cast(pl.String)
