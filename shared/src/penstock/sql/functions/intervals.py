"""Intervals: durations of days to seconds, and months, which have no length of their own.

An interval of months is a call that no function takes but `+`, `-`, the unary minus and `TIMESTAMPADD` (see `operators`):
wherever else it stands, its type rule refuses it.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

from penstock.errors import PipelineError
from penstock.expressions import lit
from penstock.expressions.nodes import Call, Literal
from penstock.sql.functions.arguments import call
from penstock.sql.functions.function import Argument
from penstock.types import DURATION

_MONTHS: Final = {"YEAR": 12, "QUARTER": 3, "MONTH": 1}
_MICROS: Final = {
    "WEEK": 604_800_000_000, "DAY": 86_400_000_000, "HOUR": 3_600_000_000, "MINUTE": 60_000_000, "SECOND": 1_000_000,
    "MILLISECOND": 1_000, "MICROSECOND": 1,
}  # fmt: skip
_CLOCK: Final = ("DAY", "HOUR", "MINUTE", "SECOND")
_SEPARATORS: Final = (" ", ":", ":")


def months(number: int) -> Argument:
    """So many months."""
    return Argument(call("sql.months", number), DURATION, False)


def months_of(value: Argument) -> int | None:
    """How many months an argument is; None if it is no interval of months."""
    node = value.expr.node
    if not isinstance(node, Call) or node.function != "sql.months":
        return None
    (number,) = node.args
    assert isinstance(number, Literal)
    assert isinstance(number.value, int)
    return number.value


def interval(text: str, unit_from: str, unit_to: str | None = None) -> Argument:
    """`INTERVAL 'text' FROM [TO TO]`: `interval("1 12:30", "DAY", "MINUTE")`.

    Raises:
        PipelineError: there is no such unit, or the text is no such interval.
    """
    first, last = _unit(unit_from), None if unit_to is None else _unit(unit_to)
    written = f"INTERVAL '{text}' {first}" + (f" TO {last}" if last else "")
    bare = text.strip()
    sign = -1 if bare.startswith("-") else 1
    bare = bare.removeprefix("-").removeprefix("+").strip()
    if last is None or last == first:
        return _of_one_unit(bare, sign, first, written)
    if (first, last) == ("YEAR", "MONTH"):
        found = re.fullmatch(r"(\d+)-(\d{1,2})", bare, re.ASCII)
        if not found or int(found[2]) > 11:
            raise PipelineError(f"{written} is no interval; write for example INTERVAL '1-6' YEAR TO MONTH")
        return months(sign * (int(found[1]) * 12 + int(found[2])))
    if first not in _CLOCK or last not in _CLOCK or _CLOCK.index(first) > _CLOCK.index(last):
        raise PipelineError(f"{written}: intervals go from YEAR TO MONTH, or from DAY, HOUR or MINUTE down to SECOND")
    return _of_clock(bare, sign, _CLOCK.index(first), _CLOCK.index(last), written)


def _unit(name: str) -> str:
    unit = name.upper()
    unit = unit.removesuffix("S") if unit.removesuffix("S") in (*_MONTHS, *_MICROS) else unit
    if unit not in _MONTHS and unit not in _MICROS:
        raise PipelineError(f"there is no unit {name!r} of an interval; there are {', '.join((*_MONTHS, *_MICROS))}")
    return unit


def _of_one_unit(bare: str, sign: int, unit: str, written: str) -> Argument:
    found = re.fullmatch(r"(\d+)(?:\.(\d{1,9}))?" if unit == "SECOND" else r"(\d+)", bare, re.ASCII)
    if not found:
        raise PipelineError(f"{written} is no interval; write for example INTERVAL '10' {unit}")
    if unit in _MONTHS:
        return months(sign * int(found[1]) * _MONTHS[unit])
    micros = int(found[1]) * _MICROS[unit]
    if unit == "SECOND" and found[2]:
        micros += int(found[2].ljust(6, "0")[:6])
    return _duration(sign * micros, written)


def _of_clock(bare: str, sign: int, first: int, last: int, written: str) -> Argument:
    pattern = r"(\d+)" + "".join(_SEPARATORS[place] + r"(\d{1,2})" for place in range(first, last))
    found = re.fullmatch(pattern + (r"(?:\.(\d{1,9}))?" if last == 3 else "()"), bare, re.ASCII)
    if not found:
        raise PipelineError(f"{written} is no interval; write for example INTERVAL '1 12:30:00' DAY TO SECOND")
    *parts, fraction = found.groups()
    limits = (None, 24, 60, 60)
    for place, part in enumerate(parts[1:], first + 1):
        if int(part) >= (limits[place] or 0):
            raise PipelineError(f"{written}: {part} is no {_CLOCK[place]}")
    micros = sum(int(part) * _MICROS[_CLOCK[place]] for place, part in enumerate(parts, first))
    micros += int(fraction.ljust(6, "0")[:6]) if fraction else 0
    return _duration(sign * micros, written)


def _duration(micros: int, written: str) -> Argument:
    try:
        return Argument(lit(timedelta(microseconds=micros)), DURATION, False)
    except (OverflowError, PipelineError):
        raise PipelineError(f"{written} is too long; an interval has up to 106751991 days") from None
