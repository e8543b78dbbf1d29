"""Windows over the raw rows: any batching, watermarks, restores and rescales give what a model gives row by row."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from fractions import Fraction
from statistics import multimode
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_cases import SCHEMA, Batch, frame_of, group_of, histories, late_rows, run

from penstock import Pipeline, TimeWindow, WindowFunction, at_watermark, col, count, every, every_rows, global_, purging
from penstock.api.keyed_streams import KeyedStream
from penstock.api.windows import cumulative, session, sliding, tumbling
from penstock.core.times import MAX_WATERMARK, MIN_WATERMARK, to_micros
from penstock.errors import PipelineError, UserCodeError
from penstock.functions.process_functions import OutputTag
from penstock.functions.windows.definitions import (
    CumulativeWindow,
    GlobalWindow,
    RowWindow,
    SessionWindow,
    SlidingWindow,
    TumblingWindow,
)
from penstock.functions.windows.results import AggregateProcess, Fired, typed
from penstock.functions.windows.triggers import (
    EveryEventTime,
    EveryRows,
    PurgingTrigger,
    Trigger,
    TriggerContext,
    TriggerResult,
)
from penstock.plan.logical import Node
from penstock.testing.harness import OperatorHarness, input_node
from penstock.types import row_class

LATE: OutputTag[Any] = OutputTag("late")
VALUE = col("value")
HOUR_US = 3_600_000_000


@dataclasses.dataclass
class Rows:
    key: str | None
    start: int
    end: int
    values: list[int]


def listed(key: Any, window: TimeWindow, rows: list[Any]) -> Iterator[Rows]:
    yield Rows(key, to_micros(window.start), to_micros(window.end), [row.value for row in rows])


def keyed(*, event_time: bool = True) -> KeyedStream[Any]:
    source = input_node(SCHEMA, row_class(SCHEMA), ["key"], event_time=event_time)
    return KeyedStream(Pipeline("test"), source)


def windowed(window: RowWindow, trigger: Trigger, lateness: int) -> Any:
    said: Any = keyed().window(window).late_to(LATE)
    said = said.allowed_lateness(f"{lateness}us") if lateness else said
    return said.trigger(trigger)


@dataclasses.dataclass(eq=False)
class Open:
    """A window of a key in the model."""

    key: Any
    start: int
    end: int
    rows: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    """Number by arrival, value."""
    count: int = 0
    sent: int = 0
    fire_at: int | None = None
    fired: bool = False
    timers: set[int] = dataclasses.field(default_factory=set)


class Model:
    """Flink's WindowOperator in plain Python, with one watermark per key group."""

    def __init__(self, window: RowWindow, trigger: Trigger, lateness: int, *, retracts: bool) -> None:
        self.window, self.lateness, self.retracts = window, lateness, retracts
        self.purges = isinstance(trigger, PurgingTrigger)
        self.trigger = trigger.within if isinstance(trigger, PurgingTrigger) else trigger
        self.open: list[Open] = []
        self.marks: dict[int, int] = {}
        self.emitted: list[Any] = []
        self.late: list[Any] = []
        self.number = 0

    def row(self, key: Any, time: int, value: int) -> None:
        mark = self.marks.get(group_of(key), MIN_WATERMARK)
        bounds = [each for each in self.assigned(key, time, value) if self.last(each[1]) + self.lateness > mark]
        if not bounds:
            self.late.append((key, time, value))
        self.number += 1
        for start, end in bounds:
            window = self.found(key, start, end, mark)
            window.rows.append((self.number, value))
            if self.fires(window, time, mark):
                self.fire(window)

    def last(self, end: int) -> int:
        """The last moment of a window."""
        return end if isinstance(self.window, SessionWindow) else end - 1

    def assigned(self, key: Any, time: int, value: int) -> list[tuple[int, int]]:
        match self.window:
            case SessionWindow():
                gap = self.window.gap_us or value % 13 + 1
                touched = [w for w in self.open if w.key == key and w.start <= time + gap and w.end >= time]
                ends = [(time, time + gap), *((w.start, w.end) for w in touched)]
                return [(min(start for start, _ in ends), max(end for _, end in ends))]
            case CumulativeWindow(size_us=size, step_us=step, offset_us=offset):
                start = time - (time - offset) % size
                return [(start, end) for end in range(start + step, start + size + 1, step) if end > time]
            case TumblingWindow(size_us=size, offset_us=offset):
                start = time - (time - offset) % size
                return [(start, start + size)]
            case SlidingWindow(size_us=size, slide_us=slide, offset_us=offset):
                starts = range(time - (time - offset) % slide - size // slide * slide, time + 1, slide)
                return [(start, start + size) for start in starts if start <= time < start + size]
            case _:
                raise AssertionError

    def found(self, key: Any, start: int, end: int, mark: int) -> Open:
        """The window; sessions in it become one."""
        inside = [w for w in self.open if w.key == key and start <= w.start and w.end <= end]
        if not isinstance(self.window, SessionWindow):
            inside = [w for w in inside if (w.start, w.end) == (start, end)]
        if len(inside) == 1 and (inside[0].start, inside[0].end) == (start, end):
            return inside[0]
        window = Open(key, start, end)
        for each in inside:
            self.open.remove(each)
            if self.retracts and each.sent:
                self.send(each, [kept for kept in each.rows if kept[0] <= each.sent], retracted=True)
            window.rows = sorted([*window.rows, *each.rows])
            window.count += each.count
            window.fired = window.fired or each.fired
            if each.fire_at is not None:
                window.fire_at = min(each.fire_at, window.fire_at or each.fire_at)
        if window.fire_at is not None:
            window.timers.add(window.fire_at)
        self.open.append(window)
        return window

    def fires(self, window: Open, time: int, mark: int) -> bool:
        if isinstance(self.trigger, EveryRows):
            window.count += 1
            if window.count < self.trigger.rows:  # sessions that became one may hold more
                return False
            window.count = 0
            return True
        if self.last(window.end) <= mark:
            return True
        window.timers.add(self.last(window.end))
        if isinstance(self.trigger, EveryEventTime) and window.fire_at is None:
            since = mark if window.fired else time
            window.fired = False
            window.fire_at = since - since % self.trigger.every_us + self.trigger.every_us
            window.timers.add(window.fire_at)
        return False

    def fire(self, window: Open) -> None:
        if window.rows:
            self.send(window, window.rows)
            window.sent = self.number
        if self.purges:
            window.rows, window.sent = [], 0

    def send(self, window: Open, rows: list[tuple[int, int]], *, retracted: bool = False) -> None:
        values = tuple(value for _, value in rows)
        self.emitted.append((window.key, window.start, window.end, values, retracted))

    def watermark(self, groups: Any, watermark: int) -> None:
        for group in groups:
            if watermark > self.marks.get(group, MIN_WATERMARK):
                self.marks[group] = watermark
                self.come_to(group, watermark)

    def come_to(self, group: int, watermark: int) -> None:
        while True:
            due = [
                (at, window)
                for window in self.open
                if group_of(window.key) == group
                for at in {*window.timers, self.last(window.end) + self.lateness}
                if at <= watermark
            ]
            if not due:
                return
            at, window = min(due, key=lambda timer: timer[0])
            window.timers.discard(at)
            if at == self.last(window.end) and not isinstance(self.trigger, EveryRows):
                self.fire(window)
            elif at == window.fire_at:
                assert isinstance(self.trigger, EveryEventTime)
                window.fire_at, window.fired = None, True
                self.fire(window)
            if at == self.last(window.end) + self.lateness:
                self.open.remove(window)


WINDOWS = [
    tumbling("20us"),
    tumbling("7us", offset="3us"),
    sliding("20us", "5us"),
    sliding("9us", "4us"),
    session("10us"),
    session(VALUE % 13 + 1),
    cumulative("20us", every="5us", offset="3us"),
]
TRIGGERS = [at_watermark(), every_rows(3), every("4us")]
TRIGGERS += [purging(trigger) for trigger in TRIGGERS]


def carried(steps: list[Any]) -> list[Any]:
    """As in a job: rows in front of functions say how far time has come."""
    return [dataclasses.replace(step, every_row=True) if isinstance(step, Batch) else step for step in steps]


def played(node: Node, steps: list[Any], model: Model, parallelism: int) -> OperatorHarness:
    harness = run(node, carried(steps), model, parallelism)
    assert sorted(late_rows(harness), key=repr) == sorted(model.late, key=repr)
    return harness


def in_order(rows: list[Any]) -> list[Any]:
    return sorted(rows, key=repr)


any_history = given(
    steps=histories(st.integers(-50, 100)),
    window=st.sampled_from(WINDOWS),
    trigger=st.sampled_from(TRIGGERS),
    lateness=st.sampled_from([0, 0, 1, 15]),
    parallelism=st.integers(1, 4),
)


@settings(max_examples=40, deadline=None)
@any_history
def test_functions_get_what_the_model_says(steps, window, trigger, lateness, parallelism):
    """With their rows in order of arrival."""
    node = windowed(window, trigger, lateness).apply(listed)._node
    model = Model(window, trigger, lateness, retracts=False)
    harness = played(node, steps, model, parallelism)
    found = [(row["key"], row["start"], row["end"], tuple(row["values"]), False) for row in harness.output()]
    assert in_order(found) == in_order(model.emitted)


@settings(max_examples=40, deadline=None)
@any_history
def test_aggregates_under_a_trigger_are_of_the_same_rows(steps, window, trigger, lateness, parallelism):
    """What was sent of a session that grew is taken back; what was purged is not."""
    stream = windowed(window, trigger, lateness).agg(values=col("value").collect(), total=col("value").sum())
    retracts = "retracted" in stream.schema
    assert retracts == (isinstance(window, SessionWindow) and stream._node.updates)
    model = Model(window, trigger, lateness, retracts=retracts)
    harness = played(stream._node, steps, model, parallelism)
    found: list[Any] = []
    for row in harness.output():
        bounds = (to_micros(row["window_start"]), to_micros(row["window_end"]))
        found.append((row["key"], *bounds, tuple(sorted(row["values"])), row.get("retracted", False)))
        assert row["total"] == sum(row["values"])
    assert in_order(found) == in_order([(*row[:3], tuple(sorted(row[3])), row[4]) for row in model.emitted])


PARTIALS = {
    "rows": count(), "total": VALUE.sum(), "least": VALUE.min(), "most": VALUE.max(), "first": VALUE.first(),
    "cents": (VALUE / 100).sum(), "kinds": (VALUE % 7).collect_distinct(), "best": VALUE.max_by(VALUE),
    "spread": VALUE.var(ddof=0), "usual": (VALUE % 3).mode("least"),
}  # fmt: skip


def totals_of(values: tuple[int, ...]) -> dict[str, Any]:
    """What `PARTIALS` are but for the first, which goes by event time."""
    mean = Fraction(sum(values), len(values))
    return {
        "rows": len(values), "total": sum(values), "least": min(values), "most": max(values),
        "cents": math.fsum(value / 100 for value in values), "kinds": sorted({value % 7 for value in values}),
        "usual": min(multimode(value % 3 for value in values)),
        "best": max(values), "spread": float(sum((value - mean) ** 2 for value in values) / len(values)),
    }  # fmt: skip


@settings(max_examples=40, deadline=None)
@any_history
def test_aggregates_are_held_as_partials_and_are_of_the_same_rows(steps, window, trigger, lateness, parallelism):
    """Also by a trigger of the user's, which looks at the rows; no row is kept."""
    stream = windowed(window, trigger, lateness).agg(**PARTIALS)
    model = Model(window, trigger, lateness, retracts="retracted" in stream.schema)
    harness = played(stream._node, steps, model, parallelism)
    found: list[Any] = []
    for row in harness.output():
        bounds = (to_micros(row.pop("window_start")), to_micros(row.pop("window_end")))
        taken_back, first = row.pop("retracted", False), row.pop("first")
        row.pop("__watermark", None)
        assert row["least"] <= first <= row["most"]
        found.append((row.pop("key"), *bounds, taken_back, sorted(row.items())))
    expected = [(*row[:3], row[4], sorted(totals_of(row[3]).items())) for row in model.emitted]
    assert in_order(found) == in_order(expected)


@settings(max_examples=40, deadline=None)
@given(
    steps=histories(st.integers(-50, 100)),
    size=st.integers(1, 7),
    every_n=st.one_of(st.none(), st.integers(1, 9)),
    parallelism=st.integers(1, 4),
    timed=st.booleans(),
)
def test_count_windows_take_the_newest_rows(steps, size, every_n, parallelism, timed):
    """Nothing of what is incomplete is sent; with event time a result has that of the row that completed it."""

    class Counted:
        def __init__(self):
            self.rows, self.results = {}, []

        def row(self, key, time, value):
            rows = self.rows.setdefault(key, [])
            rows.append(value)
            if len(rows) % (every_n or size) == 0:
                self.results.append((key, tuple(rows[-size:])))

        def watermark(self, groups, watermark):
            pass

    windows = keyed(event_time=timed).count_window(size, every_n)
    in_arrival, in_time = windows.apply(listed)._node, windows.agg(values=col("value").collect())._node
    for node, ordered in ((in_arrival, list), (in_time, sorted)):
        model = Counted()
        harness = run(node, carried(steps), model, parallelism)
        for key in model.rows:
            found = [ordered(row["values"]) for row in harness.output() if row["key"] == key]
            assert found == [ordered(values) for owner, values in model.results if owner == key]


def test_a_global_window_fires_at_the_end_and_needs_no_event_time():
    harness = OperatorHarness(keyed(event_time=False).window(global_()).apply(listed)._node)
    harness.frame(frame_of([("a", 0, 1), ("b", 0, 2), ("a", 0, 3)]).drop("__event_time"))
    restored = harness.restored(harness.snapshot())
    restored.frame(frame_of([("a", 0, 4)]).drop("__event_time"))
    assert restored.output() == []
    restored.watermark(MAX_WATERMARK)
    assert sorted((row["key"], row["values"]) for row in restored.output()) == [("a", [1, 3, 4]), ("b", [2])]


def test_by_the_wall_clock_windows_fire_at_whole_intervals_and_at_their_end():
    node = windowed(tumbling("1h"), every("10s", time="processing"), 0).apply(listed)._node
    harness = OperatorHarness(node, now_us=3_000_000)
    harness.frame(frame_of([("a", 5, 1)]))
    harness.processing_time(9_999_999)
    assert harness.output() == []
    harness.processing_time(10_000_000)
    harness = harness.restored(harness.snapshot())
    harness.frame(frame_of([("a", 6, 2)]))
    harness.processing_time(20_000_000)
    harness.watermark(HOUR_US)
    assert [row["values"] for row in harness.output()] == [[1], [1, 2], [1, 2]]
    harness.processing_time(40_000_000)
    assert len(harness.output()) == 3, "a window that is over fires no more"


class Fives(Trigger):
    """Looks at the rows, at what it remembers, and at the end."""

    def on_row(self, row: Any, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        ctx.event_timer(window.max_timestamp)
        ctx.set("rows", ctx.get("rows", 0) + 1)
        if row.value % 5 == 0:
            return TriggerResult.FIRE_AND_PURGE if ctx.get("rows") % 2 else TriggerResult.FIRE
        return TriggerResult.PURGE if row.value % 11 == 0 else TriggerResult.CONTINUE

    def on_event_time(self, at: Any, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE if at == window.max_timestamp else TriggerResult.CONTINUE

    def on_merge(self, window: TimeWindow, ctx: TriggerContext) -> None:
        ctx.merge("rows", lambda one, other: one + other)
        ctx.event_timer(window.max_timestamp)


@settings(max_examples=30, deadline=None)
@given(
    steps=histories(st.integers(-50, 100)),
    window=st.sampled_from(WINDOWS),
    lateness=st.sampled_from([0, 15]),
    parallelism=st.integers(1, 4),
)
def test_under_a_trigger_of_the_users_partials_are_of_the_rows_that_a_function_gets(
    steps, window, lateness, parallelism
):
    """Whatever it says when; `values` keeps rows, the others do not."""
    said = windowed(window, Fives(), lateness)
    kept = [said.apply(listed), said.agg(values=VALUE.collect(), rows=count()), said.agg(**PARTIALS)]
    functions, rows, partials = (run(each._node, carried(steps), Ignored(), parallelism).output() for each in kept)
    assert in_order([sorted(row["values"]) for row in functions]) == in_order(
        [sorted(row["values"]) for row in rows if not row.get("retracted")]
    )
    for row in rows:
        row |= totals_of(row.pop("values"))
        row.pop("__watermark", None)
    for row in partials:
        del row["first"]
        row.pop("__watermark", None)
    assert in_order([sorted(row.items()) for row in partials]) == in_order([sorted(row.items()) for row in rows])


class Ignored:
    """A model that nothing is compared with."""

    def row(self, key: Any, time: int, value: int) -> None:
        pass

    def watermark(self, groups: Any, watermark: int) -> None:
        pass


def kept_as_rows(node: Node) -> Node:
    """The node as versions before made it: its windows keep rows."""
    operation = node.operation
    process = typed(AggregateProcess, "agg", row_class(SCHEMA), Fired)(
        retracts="retracted" in node.schema, window=operation.window, trigger=operation.trigger
    )
    return dataclasses.replace(node, operation=dataclasses.replace(operation, process=process))


@pytest.mark.parametrize("window", [tumbling("40us"), session("10us"), global_()], ids=str)
@pytest.mark.parametrize("trigger", TRIGGERS, ids=Trigger.describe)
def test_the_rows_that_versions_before_kept_become_partials(window, trigger):
    """What fires behind the restore is what fires without it; of sessions also what is taken back."""
    node = keyed().window(window).trigger(trigger).agg(**PARTIALS)._node
    before, after = [("a", 5, 1), ("b", 6, 2), ("a", 12, 3), ("a", 30, 4)], [("a", 20, 5), ("b", 25, 6)]
    outputs = []
    for first in (kept_as_rows(node), node):
        harness = OperatorHarness(first)
        harness.frame(frame_of(before))
        harness.watermark(17)
        sent = harness.output()
        harness = OperatorHarness(node, restored=harness.snapshot())
        harness.frame(frame_of(after))
        assert all(name != "rows" for name in nonempty_states(harness))
        harness.watermark(MAX_WATERMARK)
        outputs.append(in_order([*sent, *harness.output()]))
        assert isinstance(window, GlobalWindow) or list(harness.snapshot().keyed) == []
    assert outputs[0] == outputs[1]
    assert outputs[0] or isinstance(trigger, PurgingTrigger | EveryRows)


def nonempty_states(harness: OperatorHarness) -> list[str]:
    bound = harness.operators[0]._backend._bound
    return [name for name, each in bound.items() if each.state.table.live]


def test_a_row_whose_session_would_have_no_length_is_refused():
    for stream in (
        keyed().window(session(VALUE)).apply(listed),
        windowed(session(VALUE), every_rows(1), 0).agg(n=count()),
    ):
        harness = OperatorHarness(stream._node)
        with pytest.raises(UserCodeError, match=r"the gap .* of a session is 0 us for the row"):
            harness.frame(frame_of([("a", 5, 1), ("a", 6, 0)]))


def test_a_window_that_begins_behind_the_watermark_fires_on_at_every_interval_with_rows():
    """Flink's ContinuousEventTimeTrigger fires at the others, too."""
    harness = OperatorHarness(windowed(tumbling("40us"), every("4us"), 0).agg(rows=count())._node)
    harness.frame(frame_of([("b", 0, 1)]))
    harness.watermark(10)
    harness.frame(frame_of([("a", 3, 1)]))
    harness.watermark(17)
    assert [row["rows"] for row in harness.output() if row["key"] == "a"] == [1], "at 4"
    harness.frame(frame_of([("a", 30, 1)]))
    harness.watermark(19)
    assert len([row for row in harness.output() if row["key"] == "a"]) == 1, "17 lies in the interval up to 20"
    harness.watermark(21)
    assert [row["rows"] for row in harness.output() if row["key"] == "a"] == [1, 2], "at 20"


@pytest.mark.parametrize("aggregated", [True, False])
def test_an_event_far_ahead_fires_every_window_once_more_and_no_interval_between(aggregated):
    """Jumps of 80 years over intervals of a second: each gives one early result, with what came since the last."""
    said = windowed(tumbling("36500d"), every("1s"), 0)
    harness = OperatorHarness((said.agg(rows=count()) if aggregated else said.apply(listed))._node)
    second = 1_000_000
    for years in (1, 81):
        harness.frame(frame_of([("a", 5, 1), ("a", 6, 1)]))
        harness.watermark(second * years * 365 * 86_400)
    assert len([row for row in harness.output() if row["key"] == "a"]) == 2


def test_nothing_of_a_window_stays_when_it_is_over():
    """States and timers of all kinds are empty, and the next snapshot is that of an operator that saw nothing."""
    for trigger in TRIGGERS:
        for window in WINDOWS:
            said = windowed(window, trigger, 3)
            for stream in (said.apply(listed), said.agg(rows=count())):
                harness = OperatorHarness(stream._node)
                harness.frame(frame_of([("a", time, time) for time in (0, 5, 12, 40, 3)]))
                harness.watermark(1_000_000)
                assert list(harness.snapshot().keyed) == []


def test_a_long_window_keeps_its_rows_in_chunks():
    node = windowed(tumbling("1h"), at_watermark(), 0).apply(listed)._node
    harness = OperatorHarness(node)
    for start in range(0, 1_000, 100):
        harness.frame(frame_of([("a", time, time) for time in range(start, start + 100)]))
        harness = harness.restored(harness.snapshot())
    harness.watermark(HOUR_US)
    assert [row["values"] for row in harness.output()] == [list(range(1_000))]


def test_lateness_ends_with_time():
    """Flink: testCleanupTimeOverflow."""
    end = pl.datetime(9999, 12, 31, 23, 59, 59, time_unit="us", time_zone="UTC")
    last = pl.select(end.to_physical()).item()
    harness = OperatorHarness(windowed(tumbling("1s"), at_watermark(), 10 * HOUR_US).apply(listed)._node)
    harness.frame(frame_of([("a", last - 1_500_000, 1)]))
    harness.watermark(last)
    assert len(harness.output()) == 1


def test_what_a_function_raises_names_the_window():
    class Broken(WindowFunction[row_class(SCHEMA), Rows]):
        def apply(self, key, window, rows, ctx):
            raise ValueError("no")

    harness = OperatorHarness(keyed().window(tumbling("10us")).apply(Broken())._node)
    harness.frame(frame_of([("a", 5, 1)]))
    with pytest.raises(UserCodeError, match=r"Broken raised ValueError: no; key 'a', window 1970.* 1 rows"):
        harness.watermark(100)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: keyed().window(tumbling("1s")).apply(lambda key, window, rows: []), "annotate it"),
        (lambda: keyed().window(tumbling("1s")).apply(WindowFunction), "give an object, not the class"),
        (lambda: keyed().window(tumbling("1s")).apply(WindowFunction()), "does not say what rows"),
        (lambda: keyed().window(global_()).late_to(LATE), "no row is late for a global window"),
        (lambda: keyed().window(global_()).allowed_lateness("1s"), "no row is late for a global window"),
        (lambda: keyed(event_time=False).window(tumbling("1s")), "the stream has no event time"),
        (
            lambda: keyed(event_time=False).window(global_()).trigger(every("1s")).apply(listed),
            "goes by event time, and the stream has none",
        ),
        (lambda: keyed().count_window(0), "must be 1 or more"),
        (lambda: keyed().count_window(3, every=0), "must be 1 or more"),
        (lambda: every_rows(0), "must be 1 or more"),
        (lambda: every("0s"), "must be positive"),
    ],
)
def test_a_wrong_program_is_refused(build, message):
    with pytest.raises(PipelineError, match=message):
        build()
