"""What a job comes to does not depend on how rows were cut into batches: time moves between them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import (
    KeyedProcess,
    OutputTag,
    Pipeline,
    Process,
    ValueState,
    col,
    count,
    session,
    sliding,
    tumbling,
)
from penstock.connectors import collecting, iterables
from penstock.connectors.watermarks import periodic
from penstock.errors import UserCodeError
from penstock.testing import elapse, run_pipeline, run_sinks

pytestmark = pytest.mark.acceptance

START = datetime(2026, 1, 1, tzinfo=UTC)
BATCHES = (1, 2, 7, 100, 10_000)


@dataclass
class Reading:
    sensor: str
    at: datetime
    value: int


@dataclass
class Gap:
    sensor: str
    since: datetime


@dataclass
class Counted:
    sensor: str
    window_start: datetime
    window_end: datetime
    rows: int


@dataclass
class Seen:
    sensor: str
    at: datetime
    watermark: datetime | None


LATE: OutputTag[Reading] = OutputTag("late")


class Silence(KeyedProcess[Reading, Gap]):
    """Tells when a sensor was silent for ten seconds: every row sets the timer anew."""

    due = ValueState(datetime)

    def on_row(self, row, ctx):
        if (before := self.due.get(None)) is not None:
            ctx.delete_event_timer(before)
        self.due.set(row.at + timedelta(seconds=10))
        ctx.event_timer(row.at + timedelta(seconds=10))

    def on_timer(self, at, ctx):
        ctx.emit(Gap(ctx.key, at - timedelta(seconds=10)))
        self.due.clear()


class Watch(Process[Reading, Seen]):
    """Writes down what it sees of event time."""

    def on_row(self, row, ctx):
        ctx.emit(Seen(row.sensor, row.at, ctx.watermark))


class WatchKeyed(KeyedProcess[Reading, Seen]):
    """The same with a timer a second later."""

    def on_row(self, row, ctx):
        ctx.emit(Seen(ctx.key, row.at, ctx.watermark))
        ctx.event_timer(row.at + timedelta(seconds=1))

    def on_timer(self, at, ctx):
        ctx.emit(Seen(ctx.key, at, ctx.watermark))


def ordered(rows: int, sensors: int, seed: int) -> list[Reading]:
    chance = random.Random(seed)
    at, found = START, []
    for number in range(rows):
        at += timedelta(seconds=chance.choice([0, 1, 1, 2, 5]))
        found.append(Reading(f"s{chance.randrange(sensors)}", at, number))
    return found


def shuffled(rows: int, sensors: int, seed: int, by_s: float) -> list[Reading]:
    """Out of order by up to `by_s` seconds."""
    chance = random.Random(seed)
    return sorted(ordered(rows, sensors, seed), key=lambda row: row.at + timedelta(seconds=chance.uniform(0, by_s)))


def source(p: Pipeline, bound: str = "0s") -> Any:
    return p.read(
        iterables.Source([], schema=Reading, event_time="at", max_out_of_orderness=bound, bounded=True)
    ).parallelism(1)


def in_any_batches(pipeline: Pipeline, rows: list[Reading], parallelism: int = 1) -> list[dict[str, Any]]:
    """What the pipeline comes to behind one split; with several subtasks keys come in any order."""
    found = [run_pipeline(pipeline, rows, batch=batch, parallelism=parallelism) for batch in BATCHES]
    in_order = [sorted(rows, key=repr) if parallelism > 1 else rows for rows in found]
    assert all(rows == in_order[0] for rows in in_order[1:])
    return in_order[0]


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_timer_that_rows_set_anew_fires_in_every_gap(parallelism: int) -> None:
    """On ordered input it is what a loop over the rows of each key finds, however they come together."""
    p = Pipeline("silence")
    source(p).key_by("sensor").process(Silence()).write(collecting.Sink([]))
    rows = ordered(600, 5, seed=3)
    expected: list[tuple[str, datetime]] = []
    for name in {row.sensor for row in rows}:
        times = [row.at for row in rows if row.sensor == name]
        after = [*times[1:], datetime.max.replace(tzinfo=UTC)]
        expected += [
            (name, at) for at, following in zip(times, after, strict=True) if following - at > timedelta(seconds=10)
        ]
    found = in_any_batches(p, rows, parallelism)
    assert len(expected) > 30
    assert sorted((row["sensor"], row["since"]) for row in found) == sorted(expected)


@pytest.mark.parametrize("process", [Watch(), WatchKeyed()])
def test_functions_see_the_same_watermark_in_any_batches(process: Any) -> None:
    """A timer sees its own time, a row what has come before it; behind an exchange and a filter as well."""
    p = Pipeline("watch")
    readings = source(p, "3s").filter(col("value") % 3 != 0)
    if isinstance(process, KeyedProcess):
        readings.key_by("sensor").process(process).write(collecting.Sink([]))
    else:
        readings.process(process).write(collecting.Sink([]))
    rows = shuffled(300, 3, seed=5, by_s=8)
    found = in_any_batches(p, rows)
    newest = START
    if isinstance(process, Watch):
        seen = iter(found)
        for row in rows:
            newest = max(newest, row.at)
            if row.value % 3 != 0:
                assert next(seen)["watermark"] == newest - timedelta(seconds=3, microseconds=1)


@pytest.mark.parametrize("window", [tumbling("10s"), sliding("20s", every="5s"), session("4s")])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_windows_count_the_same_rows_and_the_same_are_late(window: Any, parallelism: int) -> None:
    """Rows that come later than the bound are judged by what came before them, not by how they were read."""
    p = Pipeline("windows")
    readings = source(p, "2s").key_by("sensor").window(window).late_to(LATE)
    results = readings.agg(rows=count(), values=col("value").collect())
    results.write(collecting.Sink([])).uid("results")
    results.side(LATE).write(collecting.Sink([])).uid("late")
    rows = shuffled(400, 4, seed=11, by_s=60)
    found = []
    for batch in BATCHES:
        sinks = run_sinks(p, rows, batch=batch, parallelism=parallelism)
        found.append({name: sorted(map(repr, rows)) for name, rows in sinks.items()})
    assert all(each == found[0] for each in found[1:])
    assert len(found[0]["late"]) > 5


def test_a_function_behind_a_window_sees_time_come_on_with_its_results() -> None:
    """Windows that end within one batch are looked at one after the other, with the timers between them."""

    class Pause(KeyedProcess[Counted, Gap]):
        last = ValueState(datetime)

        def on_row(self, row, ctx):
            self.last.set(row.window_end)
            ctx.event_timer(row.window_end + timedelta(seconds=15))

        def on_timer(self, at: datetime, ctx: Any) -> None:
            if self.last.get(None) == at - timedelta(seconds=15):
                ctx.emit(Gap(ctx.key, at - timedelta(seconds=15)))

    p = Pipeline("pauses")
    windows = source(p).key_by("sensor").window(tumbling("10s")).agg(rows=count())
    windows.as_(Counted).key_by("sensor").process(Pause()).write(collecting.Sink([]))
    rows = [Reading("a", START + timedelta(seconds=s), 0) for s in (1, 11, 41, 42, 55, 90)]
    found = in_any_batches(p, rows)
    assert [(row["since"] - START).seconds for row in found] == [20, 60, 100]


@pytest.mark.parametrize("keyed", [True, False])
def test_a_time_that_rows_are_given_on_the_way_comes_on_between_them_too(keyed: bool) -> None:
    """By its own bound; what the source said about time before does not count, not even that it is further."""
    p = Pipeline("retimed")
    rows = shuffled(300, 3, seed=7, by_s=8)
    read = p.read(iterables.Source([], schema=Reading, event_time="at", max_out_of_orderness="1s", bounded=True))
    timed = read.parallelism(1).with_event_time(
        col("at").dt.epoch("ms") - 1_000, time_unit="ms", max_out_of_orderness="3s"
    )
    if keyed:
        timed.key_by("sensor").process(WatchKeyed()).write(collecting.Sink([]))
    else:
        timed.process(Watch()).write(collecting.Sink([]))
    found = in_any_batches(p, rows)
    newest = START
    if not keyed:
        for row, seen in zip(rows, found, strict=True):
            newest = max(newest, row.at - timedelta(seconds=1)) if newest != START else row.at - timedelta(seconds=1)
            assert seen["watermark"] == newest - timedelta(seconds=3, microseconds=1)


def test_a_periodic_strategy_on_the_way_is_asked_as_time_goes_by() -> None:
    """Its watermarks come by the wall clock, from the first row on; the last one is the end of the input."""
    p = Pipeline("periodic")
    read = p.read(iterables.Source([], schema=Reading, bounded=True)).parallelism(1)
    timed = read.with_event_time("at", watermarks=periodic(lambda newest: newest - timedelta(seconds=1), every="1s"))
    timed.key_by("sensor").process(WatchKeyed()).write(collecting.Sink([]))
    at = [START, START + timedelta(seconds=60)]
    rows = [Reading("a", at[0], 0), elapse("3s"), Reading("a", at[1], 1), elapse("3s"), Reading("a", at[1], 2)]
    seen = [(row["at"], row["watermark"]) for row in run_pipeline(p, rows)]
    second = timedelta(seconds=1)
    assert seen[:2] == [(at[0], None), (at[1], at[0] - second)]
    assert (at[0] + second, at[0] + second) in seen, "the first timer fired before the end"


def test_a_row_without_the_time_fails_the_job_and_says_what_to_do() -> None:
    """There is no policy for bad rows behind the source."""
    p = Pipeline("untimed")
    read = p.read(iterables.Source([], schema=Reading, bounded=True))
    read.with_event_time((col("value") - 1).cast(str)).process(Watch()).write(collecting.Sink([]))
    with pytest.raises(UserCodeError, match=r"with_event_time .*'41' is not RFC 3339 .*filter such rows out before"):
        run_pipeline(p, [Reading("a", START, 42)])


class Same(Process[Reading, Reading]):
    def on_row(self, row, ctx):
        ctx.emit(row)


class SameKeyed(KeyedProcess[Reading, Reading]):
    def on_row(self, row, ctx):
        ctx.emit(row)


@pytest.mark.parametrize("keyed", [True, False])
def test_rows_that_a_function_hands_on_are_late_in_a_window_as_they_came(keyed: bool) -> None:
    """Those behind the watermark carry it through functions, too."""
    p = Pipeline("handed-on")
    readings = source(p, "2s")
    handed = readings.key_by("sensor").process(SameKeyed()) if keyed else readings.process(Same())
    handed.key_by("sensor").window(tumbling("10s")).agg(rows=count()).write(collecting.Sink([]))
    rows = shuffled(400, 4, seed=11, by_s=60)
    found = [sorted(map(repr, run_pipeline(p, rows, batch=batch))) for batch in BATCHES]
    assert all(each == found[0] for each in found[1:])
    assert 0 < sum(row["rows"] for row in run_pipeline(p, rows)) < len(rows) - 5


def test_results_of_sessions_are_in_time_for_the_windows_behind_them() -> None:
    """Also where a row comes exactly when a session ends: that is its last moment, and of the window that begins then."""
    p = Pipeline("sessions")
    sessions = source(p).key_by("sensor").window(session("6s")).agg(rows=count())
    sessions.key_by("sensor").window(tumbling("60s")).agg(sessions=count()).write(collecting.Sink([]))
    rows = [Reading(sensor, START + timedelta(seconds=s), 0) for sensor, s in (("a", 54), ("b", 60), ("b", 70))]
    for batch in BATCHES:
        found = run_pipeline(p, rows, batch=batch)
        assert sorted((row["sensor"], (row["window_start"] - START).seconds, row["sessions"]) for row in found) == [
            ("a", 60, 1), ("b", 60, 2),
        ]  # fmt: skip


def test_late_rows_carry_to_windows_behind_them_how_late_they_are() -> None:
    """The side output of late rows is judged row by row as well."""
    p = Pipeline("late")
    results = source(p).key_by("sensor").window(tumbling("20s")).late_to(LATE).agg(rows=count())
    results.side(LATE).key_by("sensor").window(tumbling("20s")).agg(rows=count()).write(collecting.Sink([]))
    rows = [Reading("a", START + timedelta(seconds=s), 0) for s in (0, 100, 5, 6)]
    assert in_any_batches(p, rows) == []


@pytest.mark.parametrize("on_the_way", [False, True])
def test_a_periodic_strategy_is_asked_when_its_interval_has_passed_not_behind_the_first_batch(on_the_way: bool) -> None:
    """So rows are late, or not, whatever the batches, and a short run comes to what `run_pipeline` does."""

    def seen(p: Pipeline, data: list[Reading]) -> Any:
        marks = periodic(lambda newest: newest, every="1h")
        options: dict[str, Any] = {} if on_the_way else {"event_time": "at", "watermarks": marks}
        read = p.read(iterables.Source(data, schema=Reading, **options)).parallelism(1)
        if on_the_way:
            read = read.with_event_time("at", watermarks=marks)
        return read.key_by("sensor").window(tumbling("10s")).agg(rows=count())

    rows = [Reading("a", START + timedelta(seconds=s), 0) for s in (100, 1, 2, 101)]
    p = Pipeline("asked")
    seen(p, []).write(collecting.Sink([]))
    found = in_any_batches(p, rows)
    assert [row["rows"] for row in found] == [2, 2]
    assert seen(Pipeline("run"), rows).collect()["rows"].to_list() == [2, 2]
    later = in_any_batches(p, [rows[0], elapse("2h"), *rows[1:]])
    assert [row["rows"] for row in later] == [2], "two are late now"
