"""Event time as everything below the API sees it: whole microseconds since 1970-01-01T00:00:00Z, durations likewise."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from penstock.errors import PipelineError

Duration = str | timedelta
"""What users write for a duration: `"250ms"`, `"10s"`, `"1h30m"`, or a timedelta."""

MIN_WATERMARK: Final = -(2**63)
"""Nothing is known about the progress of event time."""
MAX_WATERMARK: Final = 2**63 - 1
"""No row will follow: the watermark of an input at its end."""

_UNITS: Final = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "w": 7 * 86_400_000_000,
}
FLINK_UNITS: Final = {
    "us": "us", "µs": "us", "micro": "us", "micros": "us", "microsecond": "us", "microseconds": "us",
    "ms": "ms", "milli": "ms", "millis": "ms", "millisecond": "ms", "milliseconds": "ms",
    "s": "s", "sec": "s", "secs": "s", "second": "s", "seconds": "s", "m": "m", "min": "m", "mins": "m", "minute": "m",
    "minutes": "m", "h": "h", "hour": "h", "hours": "h", "d": "d", "day": "d", "days": "d",
}  # fmt: skip
"""How Flink's settings may write a unit of time, and how `duration_us` reads it. A number alone is milliseconds there."""
_PART: Final = re.compile("([0-9]+(?:[.][0-9]+)?)(us|ms|s|m|h|d|w)")
DURATION_PATTERN: Final = f"(?:{_PART.pattern})+"
"""The regular expression of a duration, for those who check it elsewhere."""
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def duration_us(duration: Duration, what: str = "duration", *, positive: bool = False) -> int:
    """Microseconds of `duration`; `what` names it in the error.

    Raises:
        PipelineError: it is not a duration, is negative, or is zero where `positive` is asked for.
    """
    micros = signed_duration_us(duration, what)
    if micros < 0 or (positive and micros == 0):
        raise PipelineError(f"{what}: must be {'positive' if positive else 'zero or more'}, got {duration!r}")
    return micros


LONGEST_TTL_US: Final = 365_250 * 86_400_000_000
"""A thousand years: what is written now and kept so long ends within the range of timestamps."""


def checked_ttl_us(ttl_us: int, what: str) -> int:
    """A time to live in microseconds.

    Raises:
        PipelineError: it is longer than `LONGEST_TTL_US`.
    """
    if ttl_us > LONGEST_TTL_US:
        raise PipelineError(f"{what}: a time to live is at most 365250d; leave it out to keep state for ever")
    return ttl_us


def signed_duration_us(duration: Duration, what: str = "duration") -> int:
    """Microseconds of a duration that may be negative: `"-5m"`, or a negative timedelta.

    Raises:
        PipelineError: it is not a duration.
    """
    if isinstance(duration, timedelta):
        return duration // _MICROSECOND
    text = duration.strip() if isinstance(duration, str) else ""
    back, text = text.startswith("-"), text.removeprefix("-")
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise PipelineError(f"{what}: {duration!r} is not a duration; write for example '250ms', '10s', '1h30m'")
    micros = sum(round(float(number) * _UNITS[unit]) for number, unit in parts)
    return -micros if back else micros


def format_duration(micros: int) -> str:
    """The shortest text that `duration_us` reads back to `micros`."""
    if micros == 0:
        return "0s"
    parts: list[str] = []
    for unit in ("d", "h", "m", "s", "ms", "us"):
        count, micros = divmod(micros, _UNITS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def to_micros(moment: datetime) -> int:
    """Microseconds since the epoch of an aware datetime.

    Raises:
        PipelineError: `moment` has no time zone.
    """
    if not isinstance(moment, datetime):
        raise PipelineError(f"{moment!r} is no moment; event time is a datetime in UTC: datetime(..., tzinfo=UTC)")
    if moment.tzinfo is None:
        raise PipelineError(f"{moment!r} has no time zone; event time is UTC: use datetime(..., tzinfo=UTC)")
    return (moment - EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """The aware UTC datetime of `micros` since the epoch."""
    return EPOCH + timedelta(microseconds=micros)


def format_time(micros: int) -> str:
    """RFC 3339 in UTC; words for the two ends of event time."""
    if micros == MIN_WATERMARK:
        return "none"
    if micros == MAX_WATERMARK:
        return "end of input"
    try:
        return from_micros(micros).isoformat().replace("+00:00", "Z")
    except OverflowError:
        return f"{micros} us"
