"""Catalogue rows: `.dt` of timestamps (UTC, microseconds), dates and durations."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final

from penstock.expressions.functions import Function, Lowering, dry_run
from penstock.expressions.typing_rules import Arguments, Typing, check, keeps, takes
from penstock.times import duration_us
from penstock.types import DATE, DURATION, INT64, STRING, TIMESTAMP, DataType

if TYPE_CHECKING:
    import polars as pl

_DAYS: Final = frozenset({DATE, TIMESTAMP})
_MOMENTS: Final = frozenset({TIMESTAMP})
_DURATIONS: Final = frozenset({DURATION})
_CALENDAR: Final = re.compile(r"[1-9]\d*(w|mo|q|y)")
"""Lengths that Polars counts in the calendar (weeks from Monday); anything else is a fixed length from the epoch."""


def _part(name: str, kinds: Collection[DataType], doc: str, *sql: str) -> Function:
    """A part of a moment as an integer."""
    method = name.rpartition(".")[2]
    lower: Callable[[Lowering], pl.Expr] = lambda call: getattr(call[0].dt, method)()  # noqa: E731 (a table's cell)
    return Function(name, f"x.{name}()", takes(kinds, gives=INT64), lower, doc, sql, exact=False)


def _format_rule(arguments: Arguments) -> Typing:
    kind = check(arguments, 0, _DAYS)
    format: Any = arguments.options["format"]
    sample = date(2001, 1, 1) if kind == DATE else datetime(2001, 1, 1, tzinfo=UTC)
    dry_run(f"the format {format!r} for {kind}", lambda pl: pl.lit(sample).dt.strftime(format))
    return Typing(STRING, arguments.nullable, (kind,))


def _truncate_rule(arguments: Arguments) -> Typing:
    _truncation(arguments.options["every"])
    return keeps(_MOMENTS)(arguments)


def _truncation(every: Any) -> str:
    """The length as Polars writes it."""
    if _CALENDAR.fullmatch(every):
        return every
    return f"{duration_us(every, 'dt.truncate', positive=True)}us"


def _whole(unit: str, doc: str) -> Function:
    name = f"dt.total_{unit}"
    return _part(name, _DURATIONS, doc)


_CALENDAR_ROWS: Final = (
    _part("dt.year", _DAYS, "Year.", "year"),
    _part("dt.quarter", _DAYS, "Quarter, 1 to 4.", "quarter"),
    _part("dt.month", _DAYS, "Month, 1 to 12.", "month"),
    _part("dt.week", _DAYS, "ISO week, 1 to 53.", "week", "weekofyear"),
    _part("dt.day", _DAYS, "Day of the month, 1 to 31.", "day", "dayofmonth"),
    _part("dt.ordinal_day", _DAYS, "Day of the year, 1 to 366.", "dayofyear"),
    _part("dt.weekday", _DAYS, "Day of the week, Monday 1 to Sunday 7 (ISO).", "isodow"),
    _part("dt.hour", _MOMENTS, "Hour, 0 to 23.", "hour"),
    _part("dt.minute", _MOMENTS, "Minute, 0 to 59.", "minute"),
    _part("dt.second", _MOMENTS, "Second, 0 to 59.", "second"),
    _part("dt.millisecond", _MOMENTS, "Milliseconds within the second, 0 to 999 (some SQL engines add the seconds)."),
    _part(
        "dt.microsecond", _MOMENTS, "Microseconds within the second, 0 to 999999 (some SQL engines add the seconds)."
    ),
)

_MOMENT_ROWS: Final = (
    Function(
        "dt.date", "x.dt.date()", takes(_MOMENTS, gives=DATE), lambda c: c[0].dt.date(), "The day in UTC.", ("date",),
    ),
    Function(
        "dt.truncate", 'x.dt.truncate("10m")', _truncate_rule,
        lambda c: c[0].dt.truncate(_truncation(c.option("every"))),
        "The beginning of the interval: fixed lengths count from the epoch as tumbling windows do; whole weeks `1w` "
        "from Monday, `1mo`, `1q`, `1y` by the calendar.", ("date_trunc", "time_bucket"),
    ),
    Function(
        "dt.epoch", 'x.dt.epoch("us")', takes(_MOMENTS, gives=INT64), lambda c: c[0].dt.epoch(c.option("unit", "us")),
        'Whole "s", "ms" or "us" since 1970-01-01 UTC, rounded down.', ("epoch", "epoch_ms", "epoch_us"),
    ),
    Function(
        "dt.strftime", 'x.dt.strftime("%Y-%m-%d")', _format_rule, lambda c: c[0].dt.strftime(c.option("format")),
        "Text by a chrono format (close to C's).", ("strftime",),
    ),
)  # fmt: skip

_DURATION_ROWS: Final = (
    _whole("hours", "Whole hours of a duration, rounded towards zero."),
    _whole("minutes", "Whole minutes of a duration, rounded towards zero."),
    _whole("seconds", "Whole seconds of a duration, rounded towards zero."),
    _whole("milliseconds", "Whole milliseconds of a duration, rounded towards zero."),
    _whole("microseconds", "Microseconds of a duration."),
)

ROWS: Final = (*_CALENDAR_ROWS, *_MOMENT_ROWS, *_DURATION_ROWS)
