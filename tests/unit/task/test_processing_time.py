"""`with_processing_time`: the time of a row is when it passes, and time comes on with the clock."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import polars as pl
import pytest

from penstock import KeyedProcess, Pipeline, count, session, sliding, tumbling
from penstock.connectors import collecting, iterables
from penstock.core.batches import EVENT_TIME
from penstock.core.times import MAX_WATERMARK
from penstock.errors import PipelineError
from penstock.graph.jobgraph import build_job_graph
from penstock.plan.logical import Node
from penstock.plan.operations.event_time import AssignProcessingTime
from penstock.spark.refusing import refusals
from penstock.testing import elapse, run_pipeline
from penstock.testing.harness import OperatorHarness, input_node
from penstock.testing.pipelines import NOW
from penstock.types import schema_of


@dataclass
class Ping:
    name: str


@dataclass
class Seen:
    name: str
    at: datetime
    watermark: datetime | None


class Watch(KeyedProcess[Ping, Seen]):
    """What a row sees, and a timer three seconds behind it."""

    def on_row(self, row, ctx):
        ctx.emit(Seen(ctx.key, ctx.timestamp, ctx.watermark))
        ctx.event_timer(ctx.timestamp + timedelta(seconds=3))

    def on_timer(self, at, ctx):
        ctx.emit(Seen("timer", at, ctx.watermark))


def pings(p: Pipeline, **options: Any) -> Any:
    return p.read(iterables.Source([], schema=Ping, bounded=True)).parallelism(1).with_processing_time(**options)


def harness(**options: Any) -> OperatorHarness:
    schema = schema_of(Ping)
    read = input_node(schema, Ping)
    node = Node("n1", AssignProcessingTime(200), (read,), schema, Ping, event_time=True)
    return OperatorHarness(node, **options)


PING = pl.DataFrame({"name": ["a", "b"]})


def times(found: OperatorHarness) -> list[int]:
    return [time for frame in found.collected.frames for time in frame[EVENT_TIME]]


def test_a_row_has_the_time_of_the_clock_and_time_is_a_moment_behind_it():
    """A later row may come at the same moment, and is not late then."""
    found = harness(now_us=1_000)
    found.frame(PING)
    found.frame(PING)
    assert times(found) == [1_000] * 4
    assert found.collected.watermarks == [999]


def test_time_comes_on_without_rows_at_multiples_of_the_interval():
    """So a window of whole intervals is sent when it ends."""
    found = harness(now_us=1_050)
    asked = []
    for now in (1_050, 1_200, 1_430, 1_600):
        found.processing_time(now)
        asked.append(found.operators[0].next_timer_us())
    assert asked == [1_200, 1_400, 1_600, 1_800]
    assert found.collected.watermarks == [1_049, 1_199, 1_429, 1_599]


def test_a_clock_that_goes_back_is_waited_for():
    """Rows have the last moment meanwhile."""
    found = harness(now_us=1_000)
    for now in (1_000, 400, 1_000, 1_300):
        found.now_us = now
        found.frame(PING.head(1))
        found.processing_time(now)
    assert times(found) == [1_000, 1_000, 1_000, 1_300]
    assert found.collected.watermarks == [999, 1_299]


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_a_restore_goes_on_from_the_larger_of_the_clock_and_what_any_subtask_had_reached(parallelism: int):
    """Otherwise rows were late behind it on a machine whose clock is behind."""
    before = harness(now_us=5_000, parallelism=2)
    before.frame(PING)
    before.now_us = 7_000
    before.frame(PING)
    after = before.restored(before.snapshot(), parallelism)
    after.collected.frames.clear()
    for now in (6_000, 7_000, 8_000):
        after.now_us = now
        for _ in range(parallelism):
            after.frame(PING.head(1))
    assert times(after) == [7_000] * 2 * parallelism + [8_000] * parallelism


def test_what_the_stream_said_about_time_ends_here_but_for_the_end():
    """The input's own watermarks mean its own times."""
    found = harness(now_us=1_000)
    found.watermark(50_000_000)
    found.watermark(MAX_WATERMARK)
    assert found.collected.watermarks == [MAX_WATERMARK]
    assert found.operators[0].next_timer_us() is None


@pytest.mark.parametrize("batch", [1, 7, 100])
def test_windows_go_by_the_clock(batch: int):
    """Against a loop over the moments at which rows came, in virtual time."""
    chance = random.Random(13)
    rows: list[Any] = []
    clock, expected = NOW, Counter[tuple[str, datetime]]()
    for _ in range(120):
        name = chance.choice("abc")
        rows.append(Ping(name))
        expected[name, clock - (clock - NOW) % timedelta(seconds=10)] += 1
        if chance.random() < 0.5:
            pause = timedelta(milliseconds=chance.choice([1, 900, 5_000, 10_000]))
            rows.append(elapse(pause))
            clock += pause
    p = Pipeline("clock")
    pings(p, every="1s").key_by("name").window(tumbling("10s")).agg(rows=count()).write(collecting.Sink([]))
    found = run_pipeline(p, rows, batch=batch)
    assert {(row["name"], row["window_start"]): row["rows"] for row in found} == expected
    starts = [row["window_start"] for row in found]
    assert starts == sorted(starts)


FLINK: dict[str, tuple[Any, list[tuple[int, str]], list[tuple[str, int, int]]]] = {
    "testProcessingTimeTumblingWindows": (
        tumbling("3s"),
        [(3, "2"), (3, "2"), (3, "2"), (3, "1"), (3, "1"), (5_000, "1"), (5_000, "1"), (5_000, "1"), (7_000, "")],
        [("2", 3, 3_000), ("1", 2, 3_000), ("1", 3, 6_000)],
    ),
    "testProcessingTimeSlidingWindows": (
        sliding("3s", every="1s"),
        [(3, "1"), (1_000, "2"), (1_000, "2"), (2_000, "1"), (2_000, "2"), (7_000, "")],
        [
            ("1", 1, 1_000), ("1", 1, 2_000), ("2", 2, 2_000), ("1", 2, 3_000), ("2", 3, 3_000), ("1", 1, 4_000),
            ("2", 3, 4_000), ("1", 1, 5_000), ("2", 1, 5_000),
        ],
    ),
    "testProcessingTimeSessionWindows": (
        session("3s"),
        [(3, "2"), (1_000, "2"), (5_000, "2"), (5_000, "1"), (5_000, "1"), (5_000, "1"), (10_000, "")],
        [("2", 2, 4_000), ("2", 1, 8_000), ("1", 3, 8_000)],
    ),
}  # fmt: skip
"""After WindowOperatorTest: at which millisecond of the clock rows of a key come; results and the ends of windows."""


@pytest.mark.parametrize("case", FLINK)
def test_windows_of_the_clock_are_those_that_flink_expects(case: str):
    """Sent before the next row that comes later."""
    window, steps, expected = FLINK[case]
    rows: list[Any] = []
    for before, (at, name) in zip([0, *(at for at, _ in steps)], steps, strict=False):
        rows += [elapse(timedelta(milliseconds=at - before))] if at > before else []
        rows += [Ping(name)] if name else []
    p = Pipeline("flink")
    pings(p, every="1s").key_by("name").window(window).agg(rows=count()).write(collecting.Sink([]))
    found = [(row["name"], row["rows"], row["window_end"] - NOW) for row in run_pipeline(p, rows)]
    wanted = [(name, rows, timedelta(milliseconds=end)) for name, rows, end in expected]
    assert sorted(found) == sorted(wanted)
    assert [end for _, _, end in found] == [end for _, _, end in wanted]


def test_a_window_is_sent_when_the_clock_has_reached_its_end_though_no_row_comes():
    """And at the end of the input what is open is sent, unlike in Flink."""

    @dataclass
    class Window:
        name: str
        window_start: datetime
        window_end: datetime
        rows: int

    class When(KeyedProcess[Window, Seen]):
        def on_row(self, row, ctx):
            ctx.emit(Seen(row.name, ctx.processing_time, row.window_end))

    p = Pipeline("sent")
    windows = pings(p).key_by("name").window(tumbling("10s")).agg(rows=count())
    windows.as_(Window).key_by("name").process(When()).write(collecting.Sink([]))
    found = run_pipeline(p, [Ping("a"), elapse("25s"), Ping("b")])
    assert [row["name"] for row in found] == ["a", "b"]
    ten = NOW + timedelta(seconds=10)
    assert ten <= found[0]["at"] < ten + timedelta(milliseconds=200)
    assert found[1]["at"] < found[1]["watermark"] == NOW + timedelta(seconds=30)


def test_timers_and_sessions_go_by_the_clock_too():
    """The machinery is that of event time."""
    p = Pipeline("timers")
    pings(p).key_by("name").process(Watch()).write(collecting.Sink([]))
    found = run_pipeline(p, [Ping("a"), elapse("2s"), Ping("a"), elapse("10s"), Ping("a")])
    second, moment = timedelta(seconds=1), timedelta(microseconds=1)
    rows = [row for row in found if row["name"] == "a"]
    assert [row["at"] - row["watermark"] for row in rows] == [moment] * 3
    assert [row["name"] for row in found] == ["a", "a", "timer", "timer", "a", "timer"]
    assert [row["at"] - rows[0]["at"] for row in found if row["name"] == "timer"] == [
        3 * second,
        5 * second,
        15 * second,
    ]
    p = Pipeline("sessions")
    pings(p).key_by("name").window(session("5s")).agg(rows=count()).write(collecting.Sink([]))
    found = run_pipeline(p, [Ping("a"), elapse("4s"), Ping("a"), elapse("6s"), Ping("a")])
    assert [row["rows"] for row in found] == [2, 1]


def test_what_cannot_be_is_refused():
    """When the pipeline is built, and when it is planned for Spark."""
    p = Pipeline("refused")
    with pytest.raises(PipelineError, match="with_processing_time: every: must be positive"):
        pings(p, every="0s")
    pings(p).key_by("name").window(tumbling("10s")).agg(rows=count()).write(collecting.Sink([]))
    (reason,) = refusals(build_job_graph(p.plan, 1), p.plan)
    assert "with_processing_time" in reason
    assert "use the event time of the rows" in reason
