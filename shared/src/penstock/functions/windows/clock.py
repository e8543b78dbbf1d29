"""The clock that windows go by: UTC, or the clock on the wall of a time zone, where days have 23, 24 or 25 hours.

Windows on a local clock begin and end when it shows their bounds for the first time. An hour that it skips is in no
window; one that it shows twice belongs, the second time, to the last window of the first time. So local time never goes
back here, and windows are arithmetic of whole microseconds as in UTC.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

import numpy as np

from penstock.core.times import MAX_WATERMARK, MIN_WATERMARK, to_micros

if TYPE_CHECKING:
    from numpy.typing import NDArray

_EPOCH: Final = np.datetime64("1970-01-01T00:00:00", "us")
_FIRST_YEAR: Final = 3
_LAST_YEAR: Final = 9998
"""Moments of other years go by the clock of these: so far a local time is a datetime."""
_RULED: Final = range(1800, 2100)
"""Before these years clocks were not changed, behind them by rules of the calendar, which repeats itself."""
_CYCLE_YEARS: Final = 400
_CYCLE_US: Final = 146_097 * 86_400_000_000
_SECOND: Final = timedelta(seconds=1)


class WindowClock:
    """UTC: a moment is shown as what it is."""

    def shown(self, moments: NDArray[np.int64]) -> NDArray[np.int64]:
        """What the clock shows at these moments; never less for a later one."""
        return moments

    def first_shown(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """The first moments at which the clock shows these times, or a later one if they are skipped."""
        return times

    def marks(self, watermarks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Watermarks on this clock: what ends at one time or before is over, because the clock has shown that time."""
        return watermarks

    def mark(self, watermark: int) -> int:
        """`marks` of one watermark, which may be the beginning or the end of time."""
        return watermark

    def moment(self, time: int) -> int:
        """`first_shown` of one time."""
        return time

    def shown_at(self, moment: int) -> int:
        """`shown` of one moment."""
        return moment


class ZoneClock(WindowClock):
    """The clock on the wall of a time zone."""

    def __init__(self, zone: str) -> None:
        self._zone = zone

    def shown(self, moments: NDArray[np.int64]) -> NDArray[np.int64]:
        if len(moments) == 0:
            return moments
        begins, offsets, ends = self._offsets(moments)
        span = np.searchsorted(begins, moments, side="right") - 1
        reached = np.concatenate([[MIN_WATERMARK], ends[:-1] - 1])
        return np.maximum(moments + offsets[span], reached[span])

    def first_shown(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        if len(times) == 0:
            return times
        begins, offsets, ends = self._offsets(times)
        span = np.searchsorted(ends, times, side="right")
        return np.maximum(times - offsets[span], begins[span])

    def marks(self, watermarks: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.shown(watermarks + 1) - 1

    def mark(self, watermark: int) -> int:
        if watermark in (MIN_WATERMARK, MAX_WATERMARK):
            return watermark
        return int(self.marks(np.array([watermark], np.int64))[0])

    def moment(self, time: int) -> int:
        return int(self.first_shown(np.array([time], np.int64))[0])

    def shown_at(self, moment: int) -> int:
        return int(self.shown(np.array([moment], np.int64))[0])

    def _offsets(self, moments: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Around these moments: since when an offset holds, the offsets, and up to when the clock has shown by then."""
        first, last = (_year(int(moment)) for moment in (moments.min(), moments.max()))
        return _offsets_between(self._zone, first - 1, last + 1)


def clock_of(timezone: str | None) -> WindowClock:
    """The clock of a time zone; UTC if there is none."""
    return WindowClock() if timezone is None else ZoneClock(timezone)


def _year(moment: int) -> int:
    """The year of a moment, as far as the calendar goes."""
    year = int((_EPOCH + np.timedelta64(moment, "us")).astype("datetime64[Y]").astype(np.int64)) + 1970
    return min(max(year, _FIRST_YEAR), _LAST_YEAR)


@lru_cache(maxsize=256)
def _offsets_between(
    zone: str, first: int, last: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    changes = [change for year in range(first, last + 1) for change in _changes_in(zone, year)]
    start = _offset(zone, datetime(first, 1, 1, tzinfo=UTC))
    begins = np.array([MIN_WATERMARK, *(moment for moment, _ in changes)], np.int64)
    offsets = np.array([start, *(offset for _, offset in changes)], np.int64)
    ends = np.append(np.maximum.accumulate(begins[1:] + offsets[:-1]), MAX_WATERMARK).astype(np.int64)
    return begins, offsets, ends


def _changes_in(zone: str, year: int) -> list[tuple[int, int]]:
    """The moments of a year at which the offset of a zone changes, and to what; all in microseconds."""
    if year < _RULED.start:
        return []
    cycles = max(0, year - _RULED.stop) // _CYCLE_YEARS
    changes = _changes_by_day(zone, year - cycles * _CYCLE_YEARS)
    return [(moment + cycles * _CYCLE_US, offset) for moment, offset in changes]


@lru_cache(maxsize=4096)
def _changes_by_day(zone: str, year: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    day = datetime(year, 1, 1, tzinfo=UTC)
    while day.year == year:
        following = day + timedelta(days=1)
        if _offset(zone, day) != _offset(zone, following):
            found.append(_change_between(zone, day, following))
        day = following
    return found


def _change_between(zone: str, before: datetime, after: datetime) -> tuple[int, int]:
    while after - before > _SECOND:
        middle = before + (after - before) // _SECOND // 2 * _SECOND
        if _offset(zone, middle) == _offset(zone, before):
            before = middle
        else:
            after = middle
    return to_micros(after), _offset(zone, after)


def _offset(zone: str, moment: datetime) -> int:
    """What a zone's clock is ahead of UTC."""
    ahead = moment.astimezone(ZoneInfo(zone)).utcoffset()
    assert ahead is not None
    return ahead // timedelta(microseconds=1)
