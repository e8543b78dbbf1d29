"""Moments that a text names by another one and how far they are from it: `ts + INTERVAL '1' HOUR`, `NOW() - ...`."""

from __future__ import annotations

from datetime import timedelta

from penstock.sql.binding.context import Context
from penstock.sql.functions.intervals import interval, months_of
from penstock.sql.syntax import Call, Interval, Part


def moment(context: Context, part: Part) -> tuple[Part, int] | None:
    """What a part is made of by adding constant intervals, and how many microseconds are added; None if a month is.

    Raises:
        SqlError: an interval is none.
    """
    if not isinstance(part, Call) or part.function not in ("+", "-") or len(part.arguments) != 2:
        return part, 0
    inner, distance = part.arguments
    if isinstance(inner, Interval) and part.function == "+":
        inner, distance = distance, inner
    if not isinstance(distance, Interval):
        return part, 0
    found, micros = moment(context, inner), micros_of(context, distance)
    if found is None or micros is None:
        return None
    return found[0], found[1] + (micros if part.function == "+" else -micros)


def micros_of(context: Context, part: Part) -> int | None:
    """The length of a constant interval; None for others, and for months.

    Raises:
        SqlError: the interval is none.
    """
    if not isinstance(part, Interval):
        return None
    with context.at(part.span):
        found = interval(part.text, part.unit, part.to)
    if months_of(found) is not None:
        return None
    value = found.value
    return value // timedelta(microseconds=1) if isinstance(value, timedelta) else None
