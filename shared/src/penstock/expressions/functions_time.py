"""Catalogue rows: `.dt` of timestamps (UTC, microseconds), dates and durations.

A timestamp is a moment and has no zone. `.dt.in_zone(zone)` is the setting `zone` of the functions that follow it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final

from penstock.core.times import duration_us
from penstock.expressions.functions import Function, Lowering, dry_run
from penstock.expressions.typing_rules import Arguments, Rule, TypeMismatchError, Typing, check, keeps, takes
from penstock.types import DATE, DURATION, INT64, STRING, TIME, TIMESTAMP, DataType

if TYPE_CHECKING:
    import polars as pl

_DAYS: Final = frozenset({DATE, TIMESTAMP})
_MOMENTS: Final = frozenset({TIMESTAMP})
_CLOCKS: Final = frozenset({TIME, TIMESTAMP})
_DURATIONS: Final = frozenset({DURATION})
_CALENDAR: Final = re.compile(r"[1-9]\d*(w|mo|q|y)")
"""Lengths that Polars counts in the calendar (weeks from Monday); anything else is a fixed length from the epoch."""
_OFFSET: Final = re.compile(r"-?(\d+y)?(\d+q)?(\d+mo)?(\d+w)?(\d+d)?(\d+h)?(\d+m)?(\d+s)?(\d+ms)?(\d+us)?")
_OFFSET_OF_DAYS: Final = re.compile(r"-?(\d+y)?(\d+q)?(\d+mo)?(\d+w)?(\d+d)?")
_DAY_US: Final = 86_400_000_000


def _part(name: str, kinds: Collection[DataType], doc: str, *sql: str) -> Function:
    """A part of a moment as an integer."""
    method = name.rpartition(".")[2]
    lower: Callable[[Lowering], pl.Expr] = lambda call: getattr(_local(call).dt, method)()  # noqa: E731 (a table's cell)
    return Function(name, f"x.{name}()", _zoned(takes(kinds, gives=INT64)), lower, doc, sql, exact=False)


def _zoned(rule: Rule) -> Rule:
    """A rule of a function that may be asked of a moment as clocks show it somewhere."""

    def checked(arguments: Arguments) -> Typing:
        answer = rule(arguments)
        zone: Any = arguments.options.get("zone")
        if zone is not None and answer.operands[0] not in _MOMENTS:
            raise TypeMismatchError(f"{answer.operands[0]} is the same in every zone; leave .in_zone({zone!r}) out")
        return answer

    return checked


def _local(call: Lowering) -> pl.Expr:
    """The moment as clocks show it in the zone of the call, which is UTC without one."""
    zone = call.option("zone")
    return call[0] if zone is None else call[0].dt.convert_time_zone(zone)


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


def _truncate(call: Lowering) -> pl.Expr:
    zone, length = call.option("zone"), _truncation(call.option("every"))
    if zone is None:
        return call[0].dt.truncate(length)
    micros = int(length[:-2]) if length.endswith("us") else 0
    if micros % _DAY_US:
        return _local(call).dt.truncate(length).dt.convert_time_zone("UTC")
    # Days of the calendar have 23 to 25 hours. Where midnight comes twice, a day begins at the first of them.
    begins = _local(call).dt.truncate(f"{micros // _DAY_US}d" if micros else length).dt.replace_time_zone(None)
    return begins.dt.replace_time_zone(zone, ambiguous="earliest").dt.convert_time_zone("UTC")


def _offset_rule(arguments: Arguments) -> Typing:
    by: Any = arguments.options["by"]
    kind = check(arguments, 0, _DAYS)
    if not isinstance(by, str) or not by.strip("-") or not _OFFSET.fullmatch(by):
        raise TypeMismatchError(f"{by!r} is no offset; write for example '1mo', '-2d', '1y6mo' or '1d12h'")
    if kind == DATE and not _OFFSET_OF_DAYS.fullmatch(by):
        raise TypeMismatchError(f"a date cannot be moved by {by!r}; use whole days, or .cast(datetime) before")
    return Typing(kind, arguments.nullable, (kind,))


def _offset(call: Lowering) -> pl.Expr:
    moved = _local(call).dt.offset_by(call.option("by"))
    return moved.dt.convert_time_zone("UTC") if call.option("zone") else moved


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
    _part("dt.hour", _CLOCKS, "Hour, 0 to 23.", "hour"),
    _part("dt.minute", _CLOCKS, "Minute, 0 to 59.", "minute"),
    _part("dt.second", _CLOCKS, "Second, 0 to 59.", "second"),
    _part("dt.millisecond", _CLOCKS, "Milliseconds within the second, 0 to 999 (some SQL engines add the seconds)."),
    _part("dt.microsecond", _CLOCKS, "Microseconds within the second, 0 to 999999 (some SQL engines add the seconds)."),
)

_MOMENT_ROWS: Final = (
    Function(
        "dt.date", "x.dt.date()", _zoned(takes(_MOMENTS, gives=DATE)), lambda c: _local(c).dt.date(),
        "The day in UTC, or in the zone.", ("date",),
    ),
    Function(
        "dt.time", "x.dt.time()", _zoned(takes(_MOMENTS, gives=TIME)), lambda c: _local(c).dt.time(),
        "The time of day in UTC, or in the zone.", ("time",),
    ),
    Function(
        "dt.truncate", 'x.dt.truncate("10m")', _truncate_rule,
        _truncate,
        "The beginning of the interval: fixed lengths count from the epoch as tumbling windows do; whole weeks `1w` "
        "from Monday, `1mo`, `1q`, `1y` by the calendar; in a zone also days, which have 23 to 25 hours there.",
        ("date_trunc", "time_bucket"),
    ),
    Function(
        "dt.offset_by", 'x.dt.offset_by("1mo")', _zoned(_offset_rule), _offset,
        "Moved by y, q, mo, w, d, h, m, s, ms, us (`1y6mo`, `-2d`); months end at their last day (January 31st and a "
        "month: February 28th or 29th). Days are of 24 hours in UTC and of the calendar in a zone.",
        ("date_add", "timestampadd"),
    ),
    Function(
        "dt.epoch", 'x.dt.epoch("us")', takes(_MOMENTS, gives=INT64), lambda c: c[0].dt.epoch(c.option("unit", "us")),
        'Whole "s", "ms" or "us" since 1970-01-01 UTC, rounded down.', ("epoch", "epoch_ms", "epoch_us"),
    ),
    Function(
        "dt.strftime", 'x.dt.strftime("%Y-%m-%d")', _zoned(_format_rule),
        lambda c: _local(c).dt.strftime(c.option("format")),
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
