"""Times of a cron expression in a time zone, by the library cronsim; in microseconds since the epoch, always rising.

Where clocks change it does as Debian's cron: what names minute and hour happens once a day (an hour that is left out: as
soon as there is one again; an hour that comes twice: the first time); what has `*` there goes by real time.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from penstock.core.times import from_micros, to_micros
from penstock.errors import UsageError
from penstock.runs.periods import zone_of

_FIELDS: Final = ("minute", "hour", "day-of-month", "month", "day-of-week")
_REMEMBERED: Final = 8_192
_OVERLAP: Final = timedelta(days=2)
"""More than clocks are ever turned back by."""


class Cron:
    """The times of one expression."""

    def __init__(self, expression: str, timezone: str) -> None:
        """
        Args:
            expression: five fields: minute, hour, day of the month, month, day of the week.
            timezone: `Europe/Berlin`, `UTC`, ...

        Raises:
            UsageError: one of them is none, or no time ever matches; names the field.
        """
        self._expression = " ".join(expression.split())
        self._timezone = timezone
        self.zone: Final = zone_of(timezone)
        fields = self._expression.split(" ")
        if len(fields) != len(_FIELDS):
            raise UsageError(
                f"cron {expression!r}: it has {len(fields) if expression.strip() else 0} fields, not {len(_FIELDS)}; "
                f"write {', '.join(_FIELDS)}: '0 2 * * *' is two o'clock every day"
            )
        try:
            found = next(CronSim(self._expression, datetime(2000, 1, 1, tzinfo=UTC)), None)
        except CronSimError as error:
            raise UsageError(_refusal(expression, fields, str(error))) from error
        if found is None:
            raise UsageError(f"cron {expression!r}: no day is ever like that")
        self.once_a_day: Final = fields[0].isdecimal() and fields[1].isdecimal()
        """Whether no day has two of its times."""

    def next_after(self, moment_us: int) -> int | None:
        """The first time after a moment; None if there is none within fifty years."""
        return _next_after(self._expression, self._timezone, moment_us)

    def at_or_after(self, moment_us: int) -> int | None:
        """The first time that is not before a moment."""
        return self.next_after(moment_us - 1)

    def at_or_before(self, moment_us: int) -> int | None:
        """The last time that is not after a moment; None if there is none within fifty years."""
        moment = from_micros(moment_us).astimezone(self.zone) + timedelta(minutes=1)
        # Backwards only to about where it is: what counts is how times follow each other forwards.
        about = next(CronSim(self._expression, moment, reverse=True), None)
        found = None
        following = self.at_or_after(to_micros(about - _OVERLAP)) if about is not None else None
        while following is not None and following <= moment_us:
            found, following = following, self.next_after(following)
        return found


@lru_cache(maxsize=_REMEMBERED)
def _next_after(expression: str, timezone: str, moment_us: int) -> int | None:
    """Where clocks are turned back, cronsim may name a time again that has passed; that one is passed over."""
    try:
        for found in CronSim(expression, from_micros(moment_us).astimezone(ZoneInfo(timezone))):
            found_us = to_micros(found.astimezone(UTC))
            if found_us > moment_us:
                return found_us
    except OverflowError:
        pass
    return None


def _refusal(expression: str, fields: list[str], problem: str) -> str:
    for name, text in zip(_FIELDS, fields, strict=True):
        if problem.endswith(name):
            return f"cron {expression!r}: {name} {text!r} is none; see the fields of crontab(5)"
    return f"cron {expression!r}: {problem}"
