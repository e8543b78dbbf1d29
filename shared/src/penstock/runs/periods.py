"""Times of schedules as people write them, and the placeholders that stand for the period of a run."""

from __future__ import annotations

import string
from datetime import UTC, datetime
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from penstock.core.times import from_micros, to_micros
from penstock.errors import UsageError

PLACEHOLDERS: Final[tuple[str, ...]] = ("day", "start", "end")


def zone_of(name: str) -> ZoneInfo:
    """The time zone of that name; raises `UsageError` if there is none."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise UsageError(f"there is no time zone {name!r}; write for example UTC or Europe/Berlin") from error


def moment_of(option: str, text: str, zone: ZoneInfo) -> int | None:
    """A day or a time in a zone as microseconds since the epoch; None for an empty text.

    Raises:
        UsageError: it is none; names the option.
    """
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
        aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=zone)
        if moment.year >= 1970:
            return to_micros(aware.astimezone(UTC))
    except (ValueError, OverflowError):
        pass
    raise UsageError(f"{option} {text}: write a day from 1970 on, 2026-11-01, or a time, 2026-11-01T06:00")


def period_values(begin_us: int, end_us: int, zone: ZoneInfo) -> dict[str, str]:
    """What the placeholders stand for: the date on which a period begins, and RFC 3339 of its begin and its end."""
    begin, end = (from_micros(moment).astimezone(zone) for moment in (begin_us, end_us))
    return {"day": begin.date().isoformat(), "start": begin.isoformat(), "end": end.isoformat()}


def filled(what: str, text: str, values: dict[str, str]) -> str:
    """A text with its placeholders replaced; `what` it is, in the error.

    Raises:
        UsageError: there is no such placeholder.
    """
    known = ", ".join("{" + name + "}" for name in PLACEHOLDERS)
    parts: list[str] = []
    try:
        for literal, name, form, conversion in string.Formatter().parse(text):
            parts.append(literal)
            if name is None:
                continue
            if name not in values or form or conversion:
                raise UsageError(f"{what}: {{{name}}} is no placeholder; there are {known}; a brace is {{{{ or }}}}")
            parts.append(values[name])
    except ValueError as error:
        raise UsageError(f"{what}: {error}; there are {known}; a brace is written {{{{ or }}}}") from error
    return "".join(parts)


def depends_on_period(text: str) -> bool:
    """Whether there is a placeholder in a text."""
    return any(name is not None for _, name, _, _ in string.Formatter().parse(text))
