"""Windows on the clock of a time zone: local days, and the two nights of a year on which clocks change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
import pytest
from brute_force import Groups, WindowModel
from hypothesis import given, settings
from hypothesis import strategies as st
from window_cases import GROUPS, LATE, comparable, emitted, frame_of, group_of, histories, late_rows, run, window_node

from penstock.core.batches import PANE
from penstock.core.times import from_micros, to_micros
from penstock.errors import IncompatibleStateError
from penstock.functions.windows.clock import _changes_by_day, clock_of
from penstock.functions.windows.definitions import CumulativeWindow, SlidingWindow, TumblingWindow
from penstock.task.operators.window_panes import panes_of_table, table_of_panes
from penstock.testing.harness import OperatorHarness

HOUR = 3_600_000_000
DAY = 24 * HOUR
ZONES = [
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "America/Sao_Paulo",
    "Pacific/Apia",
    "Asia/Kolkata",
]
"""With daylight saving of an hour, of half an hour, at midnight; with a day that was left out; and with none."""
NIGHTS = [
    datetime(2025, 3, 30, tzinfo=UTC), datetime(2025, 10, 26, tzinfo=UTC), datetime(2025, 3, 9, 5, tzinfo=UTC),
    datetime(2025, 4, 5, 12, tzinfo=UTC), datetime(2018, 11, 4, tzinfo=UTC), datetime(2018, 2, 18, tzinfo=UTC),
    datetime(2011, 12, 30, 8, tzinfo=UTC),
]  # fmt: skip
MOMENTS = st.builds(
    lambda night, minutes, micros: to_micros(night + timedelta(minutes=minutes, microseconds=micros)),
    st.sampled_from(NIGHTS),
    st.integers(-60 * 60, 60 * 60),
    st.sampled_from([-1, 0, 1]),
)
WINDOWS = [
    TumblingWindow(DAY),
    TumblingWindow(8 * HOUR, 6 * HOUR),
    TumblingWindow(HOUR // 2),
    SlidingWindow(2 * DAY, DAY),
    SlidingWindow(3 * HOUR, HOUR),
    CumulativeWindow(DAY, 6 * HOUR),
    CumulativeWindow(6 * HOUR, HOUR // 2, HOUR),
]


def on(window, zone):
    sizes = [getattr(window, name) for name in type(window).__slots__[:-1]]
    return type(window)(*sizes, zone)


def shown(zone, moment):
    """What the clock shows, in microseconds of a day without zone."""
    local = from_micros(moment).astimezone(ZoneInfo(zone))
    return to_micros(local.replace(tzinfo=UTC))


class Dial:
    """A clock by looking at it, minute by minute, from days before the first night to days behind it."""

    def __init__(self, zone, around):
        begin = to_micros(around - timedelta(days=6))
        self.minutes = [begin + index * 60_000_000 for index in range(12 * 24 * 60)]
        self.times, reached = [], -(2**62)
        for minute in self.minutes:
            reached = max(reached, shown(zone, minute - 1), shown(zone, minute))
            self.times.append(reached)

    def first(self, time):
        """The first minute at which it shows that time or a later one."""
        return next(minute for minute, seen in zip(self.minutes, self.times, strict=True) if seen >= time)


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("night", NIGHTS, ids=str)
def test_the_clock_shows_what_a_look_at_it_every_minute_shows(zone, night):
    """It never goes back: an hour that is shown twice is not shown again."""
    dial, clock = Dial(zone, night), clock_of(zone)
    assert clock.shown(np.array(dial.minutes)).tolist() == dial.times
    times = [dial.times[100] // (HOUR // 2) * (HOUR // 2) + index * (HOUR // 2) for index in range(1, 400)]
    assert clock.first_shown(np.array(times)).tolist() == [dial.first(time) for time in times]


def bounds_of(window, zone, moment):
    """Every window that a moment is in: bounds on the dial, turned into moments."""
    clock, size, offset = clock_of(zone), window.size_us, window.offset_us
    step = getattr(window, "slide_us", getattr(window, "step_us", size))
    around = moment // DAY * DAY
    found = []
    for index in range((around - 6 * DAY - offset) // step, (around + 6 * DAY - offset) // step):
        start = index * step + offset
        ends = [start + size]
        if isinstance(window, CumulativeWindow):
            if (start - offset) % size:
                continue
            ends = list(range(start + step, start + size + 1, step))
        found += [(clock.moment(start), clock.moment(end)) for end in ends]
    return sorted({pair for pair in found if pair[0] <= moment < pair[1]}, key=lambda pair: pair[1])


@settings(max_examples=60, deadline=None)
@given(
    window=st.sampled_from(WINDOWS),
    zone=st.sampled_from(ZONES),
    steps=histories(MOMENTS),
    parallelism=st.integers(1, 3),
    lateness=st.sampled_from([0, HOUR, DAY]),
)
def test_any_history_gives_what_row_by_row_gives(window, zone, steps, parallelism, lateness):
    """Flink's operator over the windows of the dial."""
    model = WindowModel(partial(bounds_of, window, zone), lateness, Groups(group_of))
    harness = run(window_node(on(window, zone), lateness=lateness, late=LATE), steps, model, parallelism)
    assert comparable(list({row[:3]: row for row in emitted(harness)}.values())) == comparable(
        list({row[:3]: row for row in model.emitted}.values())
    )
    assert comparable(late_rows(harness)) == comparable(model.late)


@pytest.mark.parametrize(("day", "hours"), [("2025-03-30", 23), ("2025-10-26", 25), ("2025-07-01", 24)])
def test_a_local_day_is_from_midnight_to_midnight(day, hours):
    """Also where it has 23 or 25 hours."""
    midnight = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo("Europe/Berlin"))
    harness = OperatorHarness(window_node(TumblingWindow(DAY, 0, "Europe/Berlin")))
    start, end = to_micros(midnight), to_micros(midnight + timedelta(days=1))
    harness.frame(frame_of([("a", start - 1, 0), ("a", start, 1), ("a", end - 1, 2), ("a", end, 3)]))
    harness.watermark(end - 1)
    assert end - start == hours * HOUR
    assert emitted(harness)[-1] == ("a", start, end, (1, 2))


def test_another_zone_is_another_window():
    """State of days there is none of days here."""
    harness = OperatorHarness(window_node(TumblingWindow(DAY, 0, "Europe/Berlin")), max_parallelism=GROUPS)
    harness.frame(frame_of([("a", 0, 1)]))
    with pytest.raises(IncompatibleStateError, match=r"on the clock of Europe/Berlin, the pipeline has .* Asia/Tokyo"):
        OperatorHarness(
            window_node(TumblingWindow(DAY, 0, "Asia/Tokyo")), max_parallelism=GROUPS, restored=harness.snapshot()
        )


@pytest.mark.parametrize("zone", ZONES)
def test_panes_of_a_savepoint_are_a_table_of_moments(zone):
    """What the clock showed is stored; people read and edit moments."""
    header = {"keys": [{"name": "key"}], "window": {"size_us": DAY, "slide_us": DAY, "offset_us": 0, "timezone": zone}}
    days = [to_micros(night) // DAY * DAY for night in NIGHTS]
    rows = pl.DataFrame({"key": range(len(days)), PANE: days, "rows": range(len(days))}).sort(PANE, "key")
    skipped = to_micros(datetime(2011, 12, 30, tzinfo=UTC))
    rows = rows.filter(pl.col(PANE) != skipped) if zone == "Pacific/Apia" else rows
    table = table_of_panes(header, rows)
    first = table["window_start"].dt.convert_time_zone(zone)
    assert (first.dt.hour() <= 1).all()  # clocks that change at midnight begin the day at one
    assert panes_of_table(header, table).equals(rows)
    moved = table.with_columns(pl.col("window_start") + pl.duration(hours=2))
    with pytest.raises(ValueError, match="have no such pane"):
        panes_of_table(header, moved)


@pytest.mark.parametrize("zone", [*ZONES, "Africa/Casablanca"])
@pytest.mark.parametrize("year", [3, 1799, 1800, 1970, 2099, 2100, 2499, 2500, 2900, 4040, 9998, 9999])
def test_clocks_of_far_years(zone, year):
    days = [to_micros(datetime(year, 1, 1, tzinfo=UTC)) + day * DAY + HOUR * 12 for day in range(364)]
    assert clock_of(zone).shown(np.array(days)).tolist() == [shown(zone, day) for day in days]


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("moment", [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, tzinfo=UTC)])
def test_the_ends_of_the_calendar_stop_no_clock(zone, moment):
    clock, micros = clock_of(zone), to_micros(moment)
    for each in (micros, micros * 2):  # the second is no datetime any more
        assert abs(clock.shown_at(each) - each) < DAY
        assert clock.moment(clock.shown_at(each)) == each


def test_one_row_of_a_far_year_is_no_reason_to_look_at_each_day_until_then():
    _changes_by_day.cache_clear()
    moments = np.array([to_micros(datetime(year, 6, 1, tzinfo=UTC)) for year in (1, 2026, 9998)])
    clock_of("Europe/Berlin").shown(moments)
    assert _changes_by_day.cache_info().currsize <= 700
