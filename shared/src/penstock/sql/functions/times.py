"""Functions of dates, timestamps and intervals. A timestamp is a moment in UTC; the zone of the session is UTC."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final

from penstock.errors import PipelineError
from penstock.expressions import Expr, lit, max_horizontal, min_horizontal
from penstock.expressions.nodes import Case, Literal
from penstock.sql.functions import java_formats
from penstock.sql.functions.arguments import (
    argument,
    call,
    cast_to,
    constant_integer,
    constant_text,
    is_null_constant,
    need,
    need_day,
    need_integer,
    need_number,
    need_text,
    null_of,
)
from penstock.sql.functions.casts import date_of, timestamp_of
from penstock.sql.functions.conditions import aligned
from penstock.sql.functions.constants import moment_of
from penstock.sql.functions.function import Argument, Options, ScalarFunction
from penstock.sql.functions.intervals import months_of
from penstock.sql.functions.numbers import whole
from penstock.sql.functions.operators import add, zone_of
from penstock.types import DATE, DURATION, FLOATS, INT64, NULL, STRING, TIME, TIMESTAMP, DecimalType

_MICROS: Final = {
    "WEEK": 604_800_000_000, "DAY": 86_400_000_000, "HOUR": 3_600_000_000, "MINUTE": 60_000_000, "SECOND": 1_000_000,
    "MILLISECOND": 1_000, "MICROSECOND": 1,
}  # fmt: skip
_MONTHS: Final = {"YEAR": 12, "QUARTER": 3, "MONTH": 1}
_STANDARD: Final = "yyyy-MM-dd HH:mm:ss"
_EPOCH_LENGTHS: Final = {
    "WEEK": "1w", "DAY": "1d", "HOUR": "1h", "MINUTE": "1m", "SECOND": "1s", "MILLISECOND": "1ms", "MONTH": "1mo",
    "QUARTER": "1q", "YEAR": "1y",
}  # fmt: skip
_MONTH_DAYS: Final = frozenset({DATE, TIMESTAMP})


def _unit(name: str, unit: Argument, known: Sequence[str]) -> str:
    text = constant_text(name, unit, "a unit").upper().removeprefix("SQL_TSI_")
    text = text if text in known else text.removesuffix("S")
    if text not in known:
        raise PipelineError(f"{name} has no unit {unit.value!r}; there are {', '.join(known)}")
    return text


# -- parts --------------------------------------------------------------------------------------------------------------


def _week_from_sunday(moment: Expr) -> Expr:
    """1 on Sundays to 7 on Saturdays."""
    return moment.dt.weekday() % 7 + 1


_PARTS: Final[dict[str, Callable[[Expr], Expr]]] = {
    "MILLENNIUM": lambda x: call("sql.div", x.dt.year() + 999, 1000),
    "CENTURY": lambda x: call("sql.div", x.dt.year() + 99, 100),
    "DECADE": lambda x: call("sql.div", x.dt.year(), 10),
    "YEAR": lambda x: x.dt.year(),
    "QUARTER": lambda x: x.dt.quarter(),
    "MONTH": lambda x: x.dt.month(),
    "WEEK": lambda x: x.dt.week(),
    "DAY": lambda x: x.dt.day(),
    "DOY": lambda x: x.dt.ordinal_day(),
    "DOW": _week_from_sunday,
    "ISODOW": lambda x: x.dt.weekday(),
    "ISOYEAR": lambda x: call("sql.iso_year", x),
    "HOUR": lambda x: x.dt.hour(),
    "MINUTE": lambda x: x.dt.minute(),
    "SECOND": lambda x: x.dt.second(),
    "MILLISECOND": lambda x: x.dt.millisecond(),
    "MICROSECOND": lambda x: x.dt.microsecond(),
    "EPOCH": lambda x: x.dt.epoch("s"),
}
_CLOCK: Final = frozenset({"HOUR", "MINUTE", "SECOND", "MILLISECOND", "MICROSECOND"})


def _part(name: str, unit: str, value: Argument) -> Expr:
    if is_null_constant(value):
        return null_of(INT64)
    if value.type == DURATION:
        return _part_of_interval(name, unit, value)
    if unit in _CLOCK and value.type == TIME:
        return _PARTS[unit](value.expr)
    if value.type == STRING and value.is_constant:
        value = argument(lit(moment_of(str(value.value), TIMESTAMP, name)), TIMESTAMP, nullable=False)
    need_day(name, value)
    if value.type == DATE and (unit in _CLOCK or unit == "EPOCH"):
        return _PARTS[unit](cast_to(value, TIMESTAMP))
    return _PARTS[unit](value.expr)


def _part_of_interval(name: str, unit: str, value: Argument) -> Expr:
    number = months_of(value)
    if number is not None:
        sign, size = (-1 if number < 0 else 1), abs(number)
        if unit in ("YEAR", "MONTH"):
            return lit(sign * (size // 12 if unit == "YEAR" else size % 12))
        raise PipelineError(f"{name}: an interval of months has no {unit}")
    above = {"DAY": None, "HOUR": "DAY", "MINUTE": "HOUR", "SECOND": "MINUTE", "MILLISECOND": "SECOND"}
    if unit not in above:
        raise PipelineError(f"{name}: an interval of days and less has no {unit}")
    micros = value.expr.dt.total_microseconds()
    outer = above[unit]
    return call("sql.div", micros if outer is None else call("sql.mod", micros, _MICROS[outer]), _MICROS[unit])


def _extract(arguments: Sequence[Argument], _: Options) -> Expr:
    unit, value = arguments
    return _part("EXTRACT", _unit("EXTRACT", unit, tuple(_PARTS)), value)


def _part_row(name: str, unit: str, doc: str, *aliases: str) -> ScalarFunction:
    return ScalarFunction(name, f"{name}(x)", doc, lambda a, _: _part(name, unit, a[0]), 1, 1, aliases)


# -- units --------------------------------------------------------------------------------------------------------------


def floor_to(value: Argument, unit: str) -> Expr:
    """The beginning of the unit in which a date or timestamp lies."""
    moment = value.expr if value.type == TIMESTAMP else cast_to(value, TIMESTAMP)
    if unit == "WEEK":  # from Sunday
        day = timedelta(days=1)
        found = (moment + day).dt.truncate("1w") - day
    else:
        found = moment.dt.truncate(_EPOCH_LENGTHS[unit])
    return found if value.type == TIMESTAMP else cast_to(found, DATE)


def _ceil_to(value: Argument, unit: str) -> Expr:
    begin = argument(floor_to(value, unit), value.type, nullable=value.nullable)
    following = _plus(begin, unit, lit(1), "CEIL")
    return Expr(Case(((call("eq", begin, value).node, value.expr.node),), following.node))


def _rounding(name: str, *, up: bool) -> Callable[[Sequence[Argument], Options], Expr]:
    def build(arguments: Sequence[Argument], _: Options) -> Expr:
        value, *units = arguments
        if not units:
            return whole(need_number(name, value), up=up)
        unit = _unit(name, units[0], tuple(_EPOCH_LENGTHS))
        if is_null_constant(value):
            return null_of(TIMESTAMP)
        need_day(name, value)
        if value.type == DATE and unit in ("HOUR", "MINUTE", "SECOND", "MILLISECOND"):
            return value.expr
        return _ceil_to(value, unit) if up else floor_to(value, unit)

    return build


def _plus(value: Argument, unit: str, number: Expr, name: str) -> Expr:
    """Moved by so many units."""
    if unit in _MONTHS:
        return call("sql.add_months", value, _times(number, _MONTHS[unit]))
    duration = cast_to(_times(number, _MICROS[unit]), DURATION)
    if value.type == TIMESTAMP:
        return value.expr + duration
    moved = cast_to(value, TIMESTAMP) + duration
    del name
    return cast_to(moved, DATE) if unit in ("DAY", "WEEK") else moved


def _times(number: Expr, factor: int) -> Expr:
    node = number.node
    if isinstance(node, Literal) and isinstance(node.value, int):
        return lit(node.value * factor)
    return number if factor == 1 else cast_to(number, INT64) * factor


def _add_units(arguments: Sequence[Argument], _: Options) -> Expr:
    name = "TIMESTAMPADD"
    unit, number, value = arguments
    known = _unit(name, unit, (*_MONTHS, *_MICROS))
    need_integer(name, number)
    value = _moment(name, value)
    if is_null_constant(number) or is_null_constant(value):
        return null_of(value.type if value.type != NULL else TIMESTAMP)
    return _plus(value, known, number.expr, name)


def _moment(name: str, value: Argument) -> Argument:
    """A date or timestamp; a text constant spells one."""
    if value.type == STRING and value.is_constant and value.value is not None:
        return argument(lit(moment_of(str(value.value), TIMESTAMP, name)), TIMESTAMP, nullable=False)
    return need_day(name, value)


def _difference(arguments: Sequence[Argument], _: Options) -> Expr:
    name = "TIMESTAMPDIFF"
    unit, *moments = arguments
    known = _unit(name, unit, (*_MONTHS, *_MICROS))
    first, second = (_moment(name, value) for value in moments)
    if is_null_constant(first) or is_null_constant(second):
        return null_of(INT64)
    first, second = aligned([first, second], name)
    if known in _MONTHS:
        months = call("sql.whole_months", first, second)
        return months if known == "MONTH" else call("sql.div", months, _MONTHS[known])
    micros = (second.expr - first.expr).dt.total_microseconds()
    return micros if known == "MICROSECOND" else call("sql.div", micros, _MICROS[known])


def _add_days(sign: int, name: str) -> Callable[[Sequence[Argument], Options], Expr]:
    def build(arguments: Sequence[Argument], _: Options) -> Expr:
        value, number = _moment(name, arguments[0]), need_integer(name, arguments[1])
        if is_null_constant(value) or is_null_constant(number):
            return null_of(DATE)
        day = value if value.type == DATE else argument(value.expr.dt.date(), DATE, nullable=value.nullable)
        if number.is_constant and isinstance(number.value, int):
            return day.expr.dt.offset_by(f"{sign * number.value}d")
        return _plus(day, "DAY", number.expr if sign > 0 else -cast_to(number, INT64), name)

    return build


def _days_between(arguments: Sequence[Argument], _: Options) -> Expr:
    days: list[Expr] = []
    for value in arguments:
        moment = _moment("DATEDIFF", value)
        if is_null_constant(moment):
            return null_of(INT64)
        days.append(moment.expr if moment.type == DATE else moment.expr.dt.date())
    return call("sql.div", (days[0] - days[1]).dt.total_microseconds(), _MICROS["DAY"])


# -- text ---------------------------------------------------------------------------------------------------------------


def _pattern(name: str, arguments: Sequence[Argument], place: int = 1) -> str:
    return constant_text(name, arguments[place], "a pattern") if len(arguments) > place else _STANDARD


def format_of(value: Argument, pattern: str, name: str) -> Expr:
    """A date or timestamp as text by a pattern of Java."""
    if value.type == DATE and java_formats.has_clock(pattern):
        value = argument(cast_to(value, TIMESTAMP), TIMESTAMP, nullable=value.nullable)
    return value.expr.dt.strftime(java_formats.chrono_of(pattern, name))


def _date_format(arguments: Sequence[Argument], _: Options) -> Expr:
    name = "DATE_FORMAT"
    value = arguments[0]
    pattern = _pattern(name, arguments)
    if is_null_constant(value):
        return null_of(STRING)
    if value.type == STRING:
        value = argument(timestamp_of(value.expr.str.strip_chars(), strict=True), TIMESTAMP, nullable=value.nullable)
    return format_of(need_day(name, value), pattern, name)


def _parsed(name: str, text: Expr, pattern: str, *, strict: bool) -> Expr:
    """The timestamp that text spells by a pattern of Java."""
    if pattern == _STANDARD:
        return timestamp_of(text.str.strip_chars(), strict=strict)
    format = java_formats.chrono_of(pattern, name)
    if not java_formats.has_clock(pattern):
        day = call("str.to_date", text, format=format, strict=None if strict else False)
        return cast_to(day, TIMESTAMP)
    if not any(letter in pattern for letter in "yu"):
        raise PipelineError(f"{name}: the pattern {pattern!r} has no year; write one with yyyy")
    return call("str.to_datetime", text, format=format, strict=None if strict else False)


def _to_timestamp(arguments: Sequence[Argument], _: Options) -> Expr:
    value = need_text("TO_TIMESTAMP", arguments[0])
    if is_null_constant(value):
        return null_of(TIMESTAMP)
    return _parsed("TO_TIMESTAMP", value.expr, _pattern("TO_TIMESTAMP", arguments), strict=False)


def _to_date(arguments: Sequence[Argument], _: Options) -> Expr:
    value = need_text("TO_DATE", arguments[0])
    if is_null_constant(value):
        return null_of(DATE)
    if len(arguments) == 1:
        return date_of(value.expr.str.strip_chars(), strict=False)
    return cast_to(_parsed("TO_DATE", value.expr, _pattern("TO_DATE", arguments), strict=False), DATE)


def _unix_timestamp(arguments: Sequence[Argument], _: Options) -> Expr:
    if not arguments:
        return call("sql.now").dt.epoch("s")
    value = arguments[0]
    if is_null_constant(value):
        return null_of(INT64)
    if value.type in _MONTH_DAYS:
        moment = value.expr if value.type == TIMESTAMP else cast_to(value, TIMESTAMP)
        return moment.dt.epoch("s")
    need_text("UNIX_TIMESTAMP", value)
    found = _parsed("UNIX_TIMESTAMP", value.expr, _pattern("UNIX_TIMESTAMP", arguments), strict=False)
    return found.dt.epoch("s")


def _from_unixtime(arguments: Sequence[Argument], _: Options) -> Expr:
    name = "FROM_UNIXTIME"
    value = need_integer(name, arguments[0])
    if is_null_constant(value):
        return null_of(STRING)
    moment = cast_to(_times(value.expr, 1_000_000), TIMESTAMP)
    return moment.dt.strftime(java_formats.chrono_of(_pattern(name, arguments), name))


def _to_timestamp_ltz(arguments: Sequence[Argument], _: Options) -> Expr:
    name = "TO_TIMESTAMP_LTZ"
    value, *precisions = arguments
    if is_null_constant(value):
        return null_of(TIMESTAMP)
    if value.type == STRING:
        return _parsed(name, value.expr, _pattern(name, arguments), strict=False)
    need_number(name, value)
    precision = constant_integer(name, precisions[0], "a precision") if precisions else 3
    if precision not in (0, 3):
        raise PipelineError(f"{name} knows the precisions 0 (seconds) and 3 (milliseconds), got {precision}")
    factor = 1_000_000 if precision == 0 else 1_000
    if value.type in FLOATS or isinstance(value.type, DecimalType):
        return cast_to(cast_to((value.expr * factor).floor(), INT64), TIMESTAMP)
    return cast_to(_times(value.expr, factor), TIMESTAMP)


def _convert_tz(arguments: Sequence[Argument], _: Options) -> Expr:
    name = "CONVERT_TZ"
    value, origin, to = arguments
    zones = zone_of(name, origin), zone_of(name, to)
    if is_null_constant(value):
        return null_of(STRING)
    shown = timestamp_of(need_text(name, value).expr.str.strip_chars(), strict=False)
    moment = call("sql.moment", shown, zone=zones[0])
    return call("sql.local_time", moment, zone=zones[1]).dt.strftime("%Y-%m-%d %H:%M:%S")


def _overlaps(arguments: Sequence[Argument], _: Options) -> Expr:
    """Of (begin, end) and (begin, end); an end may be an interval from the beginning."""
    left, right = (_bounds(*arguments[place : place + 2]) for place in (0, 2))
    return (left[0] <= right[1]) & (right[0] <= left[1])


def _bounds(begin: Argument, end: Argument) -> tuple[Expr, Expr]:
    begin = need("OVERLAPS", _moment("OVERLAPS", begin), _MONTH_DAYS, "dates or timestamps")
    if end.type == DURATION:
        moved = add(begin, end)
        kind = begin.type
        if kind == DATE and not isinstance(end.value if end.is_constant else None, timedelta):
            kind = DATE if months_of(end) is not None else TIMESTAMP
        end = argument(moved, kind, nullable=begin.nullable or end.nullable)
    else:
        end = _moment("OVERLAPS", end)
    as_moments = [value.expr if value.type == TIMESTAMP else cast_to(value, TIMESTAMP) for value in (begin, end)]
    return min_horizontal(*as_moments), max_horizontal(*as_moments)


ROWS: Final = (
    ScalarFunction("EXTRACT", "EXTRACT(unit FROM x)", "A part of a date, timestamp, time of day or interval as BIGINT: "
                   f"{', '.join(_PARTS)}. DOW counts from Sunday 1, WEEK and ISODOW are those of ISO, MILLISECOND and "
                   "MICROSECOND are within the second.", _extract, 2, 2, ("DATE_PART",)),
    _part_row("YEAR", "YEAR", "Year."),
    _part_row("QUARTER", "QUARTER", "Quarter, 1 to 4."),
    _part_row("MONTH", "MONTH", "Month, 1 to 12."),
    _part_row("WEEK", "WEEK", "ISO week, 1 to 53."),
    _part_row("DAYOFYEAR", "DOY", "Day of the year, 1 to 366."),
    _part_row("DAYOFMONTH", "DAY", "Day of the month, 1 to 31.", "DAY"),
    _part_row("DAYOFWEEK", "DOW", "Day of the week, Sunday 1 to Saturday 7."),
    _part_row("HOUR", "HOUR", "Hour, 0 to 23."),
    _part_row("MINUTE", "MINUTE", "Minute, 0 to 59."),
    _part_row("SECOND", "SECOND", "Second, 0 to 59."),
    ScalarFunction("FLOOR", "FLOOR(x), FLOOR(time TO unit)", "The next whole number below, or the beginning of a unit "
                   "of time; weeks begin on Sunday.", _rounding("FLOOR", up=False), 1, 2),
    ScalarFunction("CEIL", "CEIL(x), CEIL(time TO unit)", "The next whole number above, or the beginning of the next "
                   "unit of time; weeks begin on Sunday.", _rounding("CEIL", up=True), 1, 2, ("CEILING",)),
    ScalarFunction("TIMESTAMPADD", "TIMESTAMPADD(unit, number, x)", "Moved by so many units; months end at their last "
                   "day.", _add_units, 3, 3),
    ScalarFunction("TIMESTAMPDIFF", "TIMESTAMPDIFF(unit, from, to)", "Whole units from one moment to the other, "
                   "negative if it is before.", _difference, 3, 3),
    ScalarFunction("DATE_ADD", "DATE_ADD(x, days)", "The date so many days later.", _add_days(1, "DATE_ADD"), 2, 2),
    ScalarFunction("DATE_SUB", "DATE_SUB(x, days)", "The date so many days before.", _add_days(-1, "DATE_SUB"), 2, 2),
    ScalarFunction("DATEDIFF", "DATEDIFF(end, begin)", "Days between two dates.", _days_between, 2, 2),
    ScalarFunction("DATE_FORMAT", "DATE_FORMAT(x [, pattern])", "Text by a constant pattern of Java; x is a date, a "
                   "timestamp, or text that spells one.", _date_format, 1, 2),
    ScalarFunction("TO_TIMESTAMP", "TO_TIMESTAMP(text [, pattern])", "The timestamp that text spells, by a constant "
                   "pattern of Java or as 2024-01-31 12:30:00; null if it spells none.", _to_timestamp, 1, 2),
    ScalarFunction("TO_DATE", "TO_DATE(text [, pattern])", "The date that text spells, by a constant pattern of Java or "
                   "as 2024-01-31; null if it spells none.", _to_date, 1, 2),
    ScalarFunction("UNIX_TIMESTAMP", "UNIX_TIMESTAMP([text [, pattern]])", "Seconds since 1970-01-01 UTC of the "
                   "timestamp that text spells (or of a timestamp); null if it spells none. Without arguments of NOW().",
                   _unix_timestamp, 0, 2),
    ScalarFunction("NOW", "NOW()", "When the row is processed, to the millisecond. In WHERE it is compared with a time "
                   "of the row, and is the time that event time has reached.",
                   lambda *_: call("sql.now"), 0, 0, ("CURRENT_TIMESTAMP", "LOCALTIMESTAMP", "CURRENT_ROW_TIMESTAMP")),
    ScalarFunction("PROCTIME", "PROCTIME()", "When the row is processed, to the millisecond, in WHERE, too.",
                   lambda *_: call("sql.now"), 0, 0),
    ScalarFunction("CURRENT_DATE", "CURRENT_DATE", "The date in UTC on which the row is processed.",
                   lambda *_: cast_to(call("sql.now"), DATE), 0, 0),
    ScalarFunction("CURRENT_TIME", "CURRENT_TIME", "The time of day in UTC at which the row is processed.",
                   lambda *_: call("sql.time_now"), 0, 0, ("LOCALTIME",)),
    ScalarFunction("FROM_UNIXTIME", "FROM_UNIXTIME(seconds [, pattern])", "Text of a moment in UTC by a constant pattern "
                   "of Java.", _from_unixtime, 1, 2),
    ScalarFunction("TO_TIMESTAMP_LTZ", "TO_TIMESTAMP_LTZ(number [, precision])", "The moment so many seconds (precision "
                   "0) or milliseconds (3, and without one) after 1970-01-01 UTC; of text as TO_TIMESTAMP.",
                   _to_timestamp_ltz, 1, 2),
    ScalarFunction("CONVERT_TZ", "CONVERT_TZ(text, zone, zone)", "What clocks of the second zone show when those of the "
                   "first show the text (2024-01-31 12:30:00).", _convert_tz, 3, 3),
    ScalarFunction("OVERLAPS", "(begin, end) OVERLAPS (begin, end)", "Whether two periods have a moment in common; an "
                   "end may be an interval.", _overlaps, 4, 4),
)  # fmt: skip
