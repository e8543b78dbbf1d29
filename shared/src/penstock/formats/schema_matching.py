"""Typed columns to a schema: what Parquet files, Arrow files and user-made batches hold becomes what a source declares.

Columns are matched by name; others are left out. Widths of integers and floats may differ, decimals may have fewer
digits behind the point than declared, units of timestamps too
(finer ones than microseconds are cut), lists and strings may have any Arrow layout. Everything else must be the
declared type: `SchemaMatcher` refuses it before a row is read. Values that do not fit (null, out of range) make rows bad.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import PipelineError, nearest
from penstock.formats.columns import MAX_MICROS, MIN_MICROS, MISSING, FrameBuilder
from penstock.formats.misspelt import misspelt_in_names
from penstock.formats.seconds import Beyond, in_millis
from penstock.types import (
    DATE,
    DURATION,
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
    parts_of,
    polars_type,
)
from penstock.types.map_columns import with_keys_once

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

_EPOCH: Final = date(1970, 1, 1)
_MIN_DAY: Final = (date.min - _EPOCH).days
_MAX_DAY: Final = (date.max - _EPOCH).days


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
        self._found: list[str] = found.names
        self._missing: set[str] = set()
        for field in schema:
            self._check(field, found, where)

    @property
    def misspelt(self) -> dict[str, str]:
        """See `Fetched.misspelt`."""
        return misspelt_in_names(self._schema.fields, self._found)

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

        table, beyond = in_millis(batch.select(self.names))
        raw = pl.from_arrow(table)
        assert isinstance(raw, pl.DataFrame)
        columns = [self._column(field, raw, batch.num_rows) for field in self._schema]
        bad: dict[int, list[Field]] = {}
        for field, column in zip(self._schema, columns, strict=True):
            for row in {*self._failures(field, column, raw), *beyond.get(field.name, ())}:
                bad.setdefault(row, []).append(field)
        frame = pl.DataFrame(
            [with_keys_once(column, field.type) for field, column in zip(self._schema, columns, strict=True)]
        )
        if not bad:
            return frame, []
        failed = [
            (row, _reason(fields[0], raw, row, beyond), _shown(raw[row], fields).encode())
            for row, fields in sorted(bad.items())
        ]
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
            clocks = _within_calendar(column)
            zoned = clocks.dt.replace_time_zone(self._timezone, ambiguous="earliest", non_existent="null")
            column = zoned.dt.convert_time_zone("UTC")
        return column if column.dtype == wanted else column.cast(wanted, strict=False)

    def _failures(self, field: Field, column: pl.Series, raw: pl.DataFrame) -> list[int]:
        found = raw[field.name] if field.name in raw.columns else column
        return _misfits(field, found, column).arg_true().to_list()


def _within_calendar(clocks: pl.Series) -> pl.Series:
    """Times on a clock, null outside of the years 1 to 9999: Polars panics where it looks for their zone."""
    import polars as pl

    per_milli = {"ms": 1, "us": 1_000, "ns": 1_000_000}[getattr(clocks.dtype, "time_unit", "us")]
    least, most = (bound * per_milli // 1_000 for bound in (MIN_MICROS, MAX_MICROS))
    within = clocks.to_physical().is_between(max(least, -(2**63)), min(most, 2**63 - 1))
    return pl.select(pl.when(within).then(clocks).alias(clocks.name)).to_series()


def _misfits(field: Field, found: pl.Series, column: pl.Series) -> pl.Series:
    """Which rows have a value that does not fit: null where it must not be, or lost in the cast from what was found."""
    wrong = column.is_null() if not field.nullable else column.is_null() & found.is_not_null()
    match field.type:
        case ListType(inner=inner):
            return wrong | _misfits_within(inner, found, column)
        case MapType(entries=entries):
            return wrong | _misfits_within(entries.inner, _entries(found), _entries(column))
        case StructType(fields=members):
            for member in members:
                parts = (each.struct.field(member.name) for each in (found, column))
                wrong |= _misfits(member, *parts) & found.is_not_null()
        case kind if kind == TIMESTAMP:
            # Before the cast, in which what is too far overflows. Nanoseconds reach from 1677 to 2262.
            unit = 1_000 if getattr(found.dtype, "time_unit", "us") == "ms" else 1
            moments = column.to_physical() if unit == 1 else found.to_physical()
            far = (moments < -(-MIN_MICROS // unit)) | (moments > MAX_MICROS // unit)
            wrong |= far.fill_null(value=False)
        case kind if kind == DATE:
            days = column.to_physical()
            wrong |= ((days < _MIN_DAY) | (days > _MAX_DAY)).fill_null(value=False)
        case _:
            pass
    return wrong


def _entries(maps: pl.Series) -> pl.Series:
    """Maps, or nothing but nulls, as lists of their entries."""
    import polars as pl

    key, value = (maps.dtype.key, maps.dtype.value) if isinstance(maps.dtype, pl.Map) else (pl.String(), pl.Null())
    return maps.cast(pl.List(pl.Struct({"key": key, "value": value})))


def _misfits_within(inner: DataType, found: pl.Series, column: pl.Series) -> pl.Series:
    """The same for rows of lists: which have such a value in them."""
    import numpy as np
    import polars as pl

    none = pl.repeat(value=False, n=column.len(), eager=True)
    if not _may_misfit(inner, found.dtype, column.dtype):
        return none
    lengths = column.list.len().fill_null(0)
    rows = pl.Series(np.repeat(np.arange(column.len()), lengths.to_numpy()))
    parts = (each.explode(empty_as_null=False, keep_nulls=False) for each in (found, column))
    wrong = _misfits(Field("", inner, nullable=True), *parts)
    return none.scatter(rows.filter(wrong).unique(), values=True)


def _may_misfit(inner: DataType, found: pl.DataType, column: pl.DataType) -> bool:
    """Whether anything in lists can be wrong at all: most are as they are declared, and need no look."""
    return found != column or any(
        part in (TIMESTAMP, DATE) or (isinstance(part, StructType) and not all(each.nullable for each in part.fields))
        for part in parts_of(inner)
    )


def _shown(row: pl.DataFrame, failed: Sequence[Field]) -> str:
    """The values of a row; times, days and durations as numbers where they may be ones that Python does not have."""
    values: dict[str, Any] = {}
    far = {field.name for field in failed if not {TIMESTAMP, DATE, DURATION}.isdisjoint(parts_of(field.type))}
    for column in row:
        values[column.name] = (column.to_physical() if column.name in far else column)[0]
    return str({name: value.to_list() if hasattr(value, "to_list") else value for name, value in values.items()})


def _reason(field: Field, raw: pl.DataFrame, row: int, beyond: Beyond) -> str:
    return f"{field.name}: {beyond.get(field.name, {}).get(row) or _problem(field, raw, row)}"


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
