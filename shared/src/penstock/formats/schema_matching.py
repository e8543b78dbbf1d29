"""Typed columns to a schema: what Parquet files, Arrow files and user-made batches hold becomes what a source declares.

Columns are matched by name; others are left out. Widths of integers and floats may differ, decimals may have fewer
digits behind the point than declared, units of timestamps too
(finer ones than microseconds are cut), lists and strings may have any Arrow layout. Everything else must be the
declared type: `SchemaMatcher` refuses it before a row is read. Values that do not fit (null, out of range) make rows bad.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import PipelineError, nearest
from penstock.formats.columns import MAX_MICROS, MIN_MICROS, MISSING, FrameBuilder
from penstock.map_columns import with_keys_once
from penstock.types import (
    FLOATS,
    INTEGERS,
    NULL,
    NUMERIC,
    TIMESTAMP,
    DataType,
    DecimalType,
    Field,
    ListType,
    MapType,
    Schema,
    StructType,
    of_arrow,
    polars_type,
)

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa


class SchemaMatcher:
    """Makes frames of `schema` from Arrow batches of one Arrow schema.

    Args:
        schema: what is wanted.
        found: what the batches have.
        where: names the file or function in errors.
        timezone: zone of timestamps without one; None: they are refused.

    Raises:
        PipelineError: a column is missing or of another type.
    """

    def __init__(self, schema: Schema, found: pa.Schema, where: str, timezone: str | None = None) -> None:
        self._schema = schema
        self._timezone = timezone
        self._missing: set[str] = set()
        for field in schema:
            self._check(field, found, where)

    @property
    def names(self) -> list[str]:
        """The columns that must be read."""
        return [name for name in self._schema.names if name not in self._missing]

    def _check(self, field: Field, found: pa.Schema, where: str) -> None:
        import pyarrow as pa

        index = found.get_field_index(field.name)
        if index < 0:
            if not field.nullable and field.default is None:
                raise PipelineError(f"{where} has no column {field.name!r}; {nearest(field.name, found.names)}")
            self._missing.add(field.name)
            return
        kind: Any = found.field(index).type
        if pa.types.is_timestamp(kind) and kind.tz is None and self._timezone is not None:
            kind = pa.timestamp("us", "UTC")
        have = of_arrow(kind, f"{where}: {field.name}")
        if not _fits(have, field.type):
            raise PipelineError(
                f"{where}: column {field.name!r} holds {have}, but the schema declares {field.type}; "
                "declare the type that is there and cast it in the pipeline"
            )

    def frame(self, batch: pa.RecordBatch | pa.Table) -> tuple[pl.DataFrame, list[tuple[int, str, bytes]]]:
        """The rows that fit; of each other row the index, the reason and a readable form of its values."""
        import polars as pl

        raw = pl.from_arrow(batch.select(self.names))
        assert isinstance(raw, pl.DataFrame)
        columns = [self._column(field, raw, batch.num_rows) for field in self._schema]
        bad: dict[int, str] = {}
        for field, column in zip(self._schema, columns, strict=True):
            for row in self._failures(field, column, raw):
                bad.setdefault(row, f"{field.name}: {_problem(field, raw, row)}")
        frame = pl.DataFrame(columns)
        if not bad:
            return frame, []
        failed = [(row, reason, str(raw.row(row, named=True)).encode()) for row, reason in sorted(bad.items())]
        return frame.filter(pl.Series([row not in bad for row in range(frame.height)])), failed

    def _column(self, field: Field, raw: pl.DataFrame, height: int) -> pl.Series:
        import polars as pl

        wanted = polars_type(field.type)
        if field.name in self._missing and field.default is not None:
            return FrameBuilder(Schema((field,))).series(field, [field.default]).new_from_index(0, height)
        if field.name in self._missing:
            return pl.Series(field.name, [None], dtype=wanted).new_from_index(0, height)
        column = raw[field.name]
        if isinstance(column.dtype, pl.Datetime) and column.dtype.time_zone is None and self._timezone is not None:
            zoned = column.dt.replace_time_zone(self._timezone, ambiguous="earliest", non_existent="null")
            column = zoned.dt.convert_time_zone("UTC")
        return with_keys_once(column if column.dtype == wanted else column.cast(wanted, strict=False), field.type)

    def _failures(self, field: Field, column: pl.Series, raw: pl.DataFrame) -> list[int]:
        failed: set[int] = set()
        if not field.nullable:
            failed.update(column.is_null().arg_true())
        if column.null_count() and field.name not in self._missing:
            failed.update((column.is_null() & raw[field.name].is_not_null()).arg_true())
        if field.type == TIMESTAMP:
            micros = column.to_physical()
            failed.update(((micros < MIN_MICROS) | (micros > MAX_MICROS)).arg_true())
        return sorted(failed)


def _problem(field: Field, raw: pl.DataFrame, row: int) -> str:
    import polars as pl

    if field.name not in raw.columns or raw[field.name][row : row + 1].null_count():
        return MISSING
    value = raw[field.name][row : row + 1]
    if isinstance(value.dtype, pl.Decimal):
        return f"{value[0]} does not fit into {field.type}"
    text = value.to_physical().cast(pl.String)[0] if not value.dtype.is_nested() else "a value in it"
    return f"{text} does not fit into {field.type}"


def _fits(have: DataType, wanted: DataType) -> bool:
    """Whether values of one type become the other by changing widths only."""
    if have in (wanted, NULL):
        return True
    if isinstance(have, ListType) and isinstance(wanted, ListType):
        return _fits(have.inner, wanted.inner)
    if isinstance(have, MapType) and isinstance(wanted, MapType):
        return _fits(have.value, wanted.value)
    if isinstance(have, StructType) and isinstance(wanted, StructType):
        return [field.name for field in have.fields] == [field.name for field in wanted.fields] and all(
            _fits(one.type, other.type) for one, other in zip(have.fields, wanted.fields, strict=True)
        )
    if isinstance(have, DecimalType) and isinstance(wanted, DecimalType):
        return have.scale <= wanted.scale
    return (have in INTEGERS and wanted in INTEGERS) or (have in NUMERIC and wanted in FLOATS)
