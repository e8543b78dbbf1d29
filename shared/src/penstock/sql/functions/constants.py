"""Text constants beside dates and timestamps, read while a statement is bound."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time

from penstock.errors import PipelineError
from penstock.types import DATE, TIME, DataType

_DAY = r"(\d{1,4})-(\d{1,2})-(\d{1,2})"
_CLOCK = r"(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,9}))?)?"


def moment_of(text: str, kind: DataType, where: str) -> date | time | datetime:
    """The date, time of day or moment that a constant spells.

    Raises:
        PipelineError: it spells none.
    """
    try:
        found = _moment(text.strip(), kind)
    except ValueError:
        found = None
    if found is None:
        example = "2024-01-31" if kind == DATE else "12:30:00" if kind == TIME else "2024-01-31 12:30:00"
        what = "date" if kind == DATE else "time of day" if kind == TIME else "timestamp"
        raise PipelineError(f"{where}: {text!r} is no {what}; write for example '{example}'")
    return found


def _moment(text: str, kind: DataType) -> date | time | datetime | None:
    if kind == DATE:
        found = re.fullmatch(_DAY + "(?:[ T].*)?", text, re.ASCII)
        return found and date(*map(int, found.groups()))
    if kind == TIME:
        found = re.fullmatch(_CLOCK, text, re.ASCII)
        return found and _clock(*found.groups())
    found = re.fullmatch(f"{_DAY}(?:[ T]{_CLOCK}Z?)?", text, re.ASCII)
    if found is None:
        return None
    year, month, day, *clock = found.groups()
    at = time() if clock[0] is None else _clock(*clock)
    return datetime.combine(date(int(year), int(month), int(day)), at, UTC)


def _clock(hour: str, minute: str, second: str | None, fraction: str | None) -> time:
    return time(int(hour), int(minute), int(second or 0), int((fraction or "").ljust(6, "0")[:6]))
