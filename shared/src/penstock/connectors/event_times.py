"""The event time of a row in whatever form it comes: a timestamp, a date, text, a number that counts from 1970.

What a source's `event_time=` names or computes becomes microseconds since the epoch here; a row for which that is not
possible is a bad row of the source. The column itself stays what it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal

from penstock.errors import PipelineError
from penstock.expressions import Expr, col, columns_of, row_field, to_polars
from penstock.expressions.nodes import Column
from penstock.formats.columns import MAX_MICROS, MIN_MICROS
from penstock.types import DATE, FLOATS, INTEGERS, STRING, TIMESTAMP, DataType, Schema

if TYPE_CHECKING:
    import polars as pl

TimeUnit = Literal["s", "ms", "us", "ns"]

_MICROS: Final[dict[TimeUnit, float]] = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 0.001}
_RFC_3339: Final = "%+"
_NAIVE: Final = ("%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%d %H:%M:%S%.f")
_OFFSETS: Final = ("%z", "%:z", "%::z", "%#z", "%+")


@dataclass(frozen=True)
class EventTimeForm:
    """How the event time of a row is read."""

    expression: Expr
    schema: Schema = field(repr=False)
    """The columns that it is computed from."""
    kind: DataType
    unit: TimeUnit | None = None
    format: str | None = None
    timezone: str | None = None
    hidden: bool = False
    """Whether `expression` is a column that is no column of the rows."""

    @property
    def name(self) -> str:
        """The column, or the expression as it is written."""
        plain = self.expression.node
        return plain.name.strip("_") if isinstance(plain, Column) else str(self.expression)

    def describe(self) -> str:
        """For plans: such as "ts in ms", "day as %d.%m.%Y in Europe/Berlin"."""
        words = [self.name]
        if self.unit is not None:
            words.append(f"in {self.unit}")
        if self.format is not None:
            words.append(f"as {self.format}")
        if self.timezone is not None and self.kind == STRING:
            words.append(f"in {self.timezone}")
        return " ".join(words)

    def micros(self, reach_us: int = 0) -> pl.Expr:
        """Int64 microseconds since the epoch; null where the value is null or cannot be read.

        So it is where it is less than `reach_us` from either end of the calendar, as windows of such a row may be no
        dates. Evaluating it raises a `PolarsError` where the user's own expression does.
        """
        import polars as pl

        value = self.value()
        if self.kind == STRING:
            value = self._parsed(value)
        elif self.unit is not None:
            value = _counted(value.cast(pl.Float64 if self.kind in FLOATS else pl.Int64, strict=False), self.unit)
        else:
            value = value.cast(pl.Datetime("us", "UTC"))
        micros = value.cast(pl.Int64, strict=False)
        return pl.when(micros.is_between(MIN_MICROS + reach_us, MAX_MICROS - reach_us)).then(micros)

    def value(self) -> pl.Expr:
        """What the row has for it."""
        import polars as pl

        return (
            pl.col(list(columns_of(self.expression)))
            if self.hidden
            else to_polars(self.expression, self.schema, "event_time")
        )

    def reasons(self, rows: pl.DataFrame) -> list[str]:
        """Why each of these rows has no event time."""
        found = rows.select(self.value().alias("value"), self.micros().alias("at"))
        return [self._reason(value) if at is None else self._reached(value) for value, at in found.iter_rows()]

    def _reached(self, value: object) -> str:
        return (
            f"event time {self.name}: {value!r} is so near to an end of the calendar (the years 1 to 9999) that windows "
            "of the pipeline reach beyond it"
        )

    def _reason(self, value: object) -> str:
        if value is None:
            return f"event time {self.name} is null"
        where = f"event time {self.name}: {value!r}"
        if self.kind == STRING:
            expected = f"text as {self.format}" if self.format else "RFC 3339 such as 2026-01-31T12:00:00Z"
            hint = "" if self.format or self.timezone else "; give time_format=, or timezone= if it has no offset"
            return f"{where} is not {expected}{hint}"
        hint = f"; is it time_unit={self.unit!r}?" if self.unit else ""
        return f"{where} is not within the years 1 to 9999{hint}"

    def _parsed(self, text: pl.Expr) -> pl.Expr:
        import polars as pl

        def moments(format: str) -> pl.Expr:
            return text.str.to_datetime(format, time_unit="us", time_zone="UTC", strict=False)

        def local(format: str) -> pl.Expr:
            parsed = text.str.to_datetime(format, time_unit="us", strict=False)
            zoned = parsed.dt.replace_time_zone(self.timezone, ambiguous="earliest", non_existent="null")
            return zoned.dt.convert_time_zone("UTC")

        if self.format is None:
            naive = [local(format) for format in _NAIVE] if self.timezone is not None else []
            return pl.coalesce(moments(_RFC_3339), *naive)
        return moments(self.format) if any(part in self.format for part in _OFFSETS) else local(self.format)


def _counted(number: pl.Expr, unit: TimeUnit) -> pl.Expr:
    """A number of units as microseconds; null beyond what a timestamp can be, so that nothing wraps."""
    import polars as pl

    factor = _MICROS[unit]
    within = number.is_between(int(MIN_MICROS / factor), int(MAX_MICROS / factor))
    kept = pl.when(within).then(number)
    if unit == "us":
        return kept
    return (kept * int(factor)).round() if factor > 1 else kept // 1_000


def event_time_form(
    what: str,
    event_time: str | Expr,
    columns: Schema,
    *,
    unit: TimeUnit | None = None,
    format: str | None = None,
    timezone: str | None = None,
) -> EventTimeForm:
    """Check how a source or stream says what the event time of its rows is.

    Args:
        what: whose it is; leads error messages.
        event_time: a column, or an expression over the columns.
        columns: the columns.
        unit: what a number counts, from 1970-01-01T00:00:00Z on.
        format: of text that is not RFC 3339, as `str.to_datetime` takes it.
        timezone: zone of text without an offset.

    Raises:
        PipelineError: it cannot be read from such a value.
    """
    if isinstance(event_time, str):
        columns.field(event_time, f"{what}: event_time")
        event_time = col(event_time)
    kind = row_field(event_time, columns, f"{what}: event_time").type
    form = EventTimeForm(event_time, columns, kind, unit, format, timezone)
    _check_kind(what, form)
    return form


def _check_format(what: str, format: str) -> None:
    """Raise `PipelineError` unless it names a whole moment."""
    import polars as pl

    sample = pl.Series([datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC)], dtype=pl.Datetime("us", "UTC"))
    try:
        text = sample.dt.strftime(format)
        read = text.str.to_datetime(format, time_unit="us", strict=False, ambiguous="earliest")
    except pl.exceptions.PolarsError:
        read = pl.Series([None])
    if read[0] is None or read[0].date() != sample[0].date():
        raise PipelineError(
            f"{what}: time_format={format!r} cannot read what it writes; it must name a day and a time, such as "
            "'%d.%m.%Y %H:%M'"
        )


def _check_kind(what: str, form: EventTimeForm) -> None:
    name, kind, unit, format = form.name, form.kind, form.unit, form.format
    number = kind in INTEGERS or kind in FLOATS
    if number and unit is None:
        raise PipelineError(
            f"{what}: event_time {name} is {kind}: say what it counts since 1970 with time_unit='s', 'ms', 'us' or 'ns'"
        )
    if not number and kind not in (TIMESTAMP, DATE, STRING):
        times = [
            other.name for other in form.schema if other.type in (TIMESTAMP, DATE, STRING) or other.type in INTEGERS
        ]
        raise PipelineError(
            f"{what}: event_time {name} is {kind}; it must be a timestamp, a date, text or a number; "
            + ("there are: " + ", ".join(times) if times else "there is no such column")
        )
    if unit is not None and not number:
        raise PipelineError(f"{what}: time_unit= is for numbers; event_time {name} is {kind}")
    if format is not None and kind != STRING:
        raise PipelineError(f"{what}: time_format= is for text; event_time {name} is {kind}")
    if format is not None:
        _check_format(what, format)
    if format is not None and form.timezone is None and not any(part in format for part in _OFFSETS):
        raise PipelineError(
            f"{what}: time_format={format!r} has no offset from UTC; name the zone of such times with timezone="
        )
