"""Process functions: state, timers, side outputs, and that snapshots and rescales change nothing."""

from __future__ import annotations

import dataclasses
import threading
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st
from window_cases import GROUPS, KEYS, Batch, Mark, Restore, frame_of, group_of, histories

from penstock import Pipeline
from penstock.connectors import kafka
from penstock.core.batches import EVENT_TIME, WATERMARK
from penstock.core.times import MAX_WATERMARK, MIN_WATERMARK, from_micros, to_micros
from penstock.errors import PipelineError, UserCodeError
from penstock.functions.process_functions import (
    KeyedProcess,
    ListState,
    MapState,
    OperatorListState,
    OutputTag,
    Process,
    UnionListState,
    ValueState,
)
from penstock.protocol.keygroups import key_group_range, subtask_of
from penstock.task.operators.process import FIRINGS_AT_ONCE, RENEWALS_AT_THE_END
from penstock.testing import elapse, run_pipeline
from penstock.testing.harness import OperatorHarness, process_node

EXAMPLES_ON_DISK = 12
pytestmark = pytest.mark.usefixtures("state_backend")


@dataclasses.dataclass
class Row:
    key: str | None
    value: int


@dataclasses.dataclass
class Seen:
    key: str | None
    what: str
    number: int


@dataclasses.dataclass
class Timed:
    key: str
    at: datetime


class Counting(KeyedProcess[Row, Seen]):
    """Counts rows per key and tells the count when the watermark is 10 us past a row's time."""

    count = ValueState(int)
    times = MapState(datetime, int)

    def on_row(self, row, ctx):
        count = self.count.get(0) + 1
        self.count.set(count)
        self.times.set(ctx.timestamp, count)
        ctx.event_timer(ctx.timestamp + timedelta(microseconds=10))
        if row.value % 5 == 0:
            ctx.delete_event_timer(ctx.timestamp + timedelta(microseconds=10))
        ctx.emit(Seen(ctx.key, "row", count))

    def on_timer(self, at, ctx):
        assert ctx.timestamp == at
        assert ctx.watermark >= at
        ctx.emit(Seen(ctx.key, "timer", self.count.get(-1)))


def keyed_node(process, sides=()):
    source = process_node(process, Row, keys=["key"], sides=sides)
    source.inputs[0].event_time = True
    source.event_time = True
    return source


class TimerModel:
    """Row by row, with one watermark per key group."""

    def __init__(self):
        self.counts, self.timers, self.marks, self.emitted = {}, set(), {}, []

    def row(self, key, time, value):
        self.counts[key] = self.counts.get(key, 0) + 1
        self.timers.add((time + 10, key))
        if value % 5 == 0:
            self.timers.discard((time + 10, key))
        self.emitted.append((key, "row", self.counts[key], time))

    def watermark(self, groups, watermark):
        for group in groups:
            if watermark <= self.marks.get(group, MIN_WATERMARK):
                continue  # time has been there: what was set since is due when it comes on
            self.marks[group] = watermark
            due = [timer for timer in self.timers if group_of(timer[1]) == group and timer[0] <= self.marks[group]]
            for time, key in sorted(due, key=lambda timer: timer[0]):
                self.timers.discard((time, key))
                self.emitted.append((key, "timer", self.counts[key], time))


def test_any_batching_watermarks_and_restores_give_what_row_by_row_gives(state_backend):
    """Per key the same rows in the same order: state, timers, deletions, event times."""

    # Every history opens a dozen databases.
    @settings(max_examples=35 if state_backend == "objects" else EXAMPLES_ON_DISK, deadline=None)
    @given(steps=histories(st.integers(-50, 100)), parallelism=st.integers(1, 4))
    def played(steps, parallelism):
        play(steps, parallelism)

    played()


def play(steps, parallelism):
    node, model = keyed_node(Counting()), TimerModel()
    harness = OperatorHarness(node, parallelism=parallelism, max_parallelism=GROUPS)
    reached = [MIN_WATERMARK] * parallelism
    for step in [*steps, Mark(MAX_WATERMARK, None)]:
        match step:
            case Batch(rows, times):
                frame = frame_of(rows)
                carried: list[int | None] = []
                for index, row in enumerate(rows):
                    owner = subtask_of(group_of(row[0]), parallelism, GROUPS)
                    if index < len(times) and (times[index] or MIN_WATERMARK) > reached[owner]:
                        reached[owner] = times[index]
                        owned = key_group_range(owner, parallelism, GROUPS)
                        model.watermark(range(owned.start, owned.end), reached[owner])
                    model.row(*row)
                    carried.append(reached[owner])
                marks = pl.Series(WATERMARK, carried, pl.Int64)
                harness.frame(frame.with_columns(marks) if times else frame)
            case Mark(watermark, subtask):
                for each in range(parallelism) if subtask is None else [subtask % parallelism]:
                    if watermark <= reached[each]:
                        continue  # a watermark that does not rise is not passed on, so nothing fires
                    reached[each] = watermark
                    harness.watermark(watermark, each)
                    owned = key_group_range(each, parallelism, GROUPS)
                    model.watermark(range(owned.start, owned.end), watermark)
            case Restore(count, extra):
                for each, watermark in enumerate(reached):  # it is sent before every barrier
                    harness.watermark(watermark, each)
                reached = [MIN_WATERMARK] * count
                write, seen = harness.freeze(), len(harness.collected.frames)
                if extra:
                    harness.frame(frame_of(extra))
                parallelism, snapshot = count, write()
                del harness.collected.frames[seen:]
                harness.close()
                harness = harness.restored(snapshot, parallelism)
    harness.close()
    for key in KEYS:
        frames = [frame.drop(WATERMARK, strict=False) for frame in harness.collected.frames]
        found = [row for frame in frames for row in frame.rows() if row[0] == key]
        assert found == [row for row in model.emitted if row[0] == key]


def test_timers_fire_in_order_of_time_and_once():
    """Setting a timer twice is setting it once; on_timer may set more that are due at once."""

    class Chain(KeyedProcess[Row, Seen]):
        def on_row(self, row, ctx):
            for at in (30, 10, 20, 10):
                ctx.event_timer(from_micros(at))

        def on_timer(self, at, ctx):
            micros = to_micros(at)
            ctx.emit(Seen(ctx.key, "timer", micros))
            if micros == 10:
                ctx.event_timer(from_micros(15))
                ctx.event_timer(from_micros(5))
                ctx.event_timer(from_micros(99))

    harness = OperatorHarness(keyed_node(Chain()))
    harness.frame(frame_of([("a", 1, 1)]))
    harness.watermark(9)
    assert harness.output() == []
    harness.watermark(20)
    assert [row["number"] for row in harness.output()] == [10, 5, 15, 20]
    assert harness.collected.frames[0][EVENT_TIME].to_list() == [10, 5, 15, 20]
    harness.watermark(MAX_WATERMARK)
    assert [row["number"] for row in harness.output()][4:] == [30, 99]


def test_rows_that_make_many_timers_due_leave_something_to_go_on_with():
    """A subtask lets others run meanwhile; whatever comes next finishes it first."""
    node, rows = keyed_node(Counting()), [(str(number), number, 1) for number in range(2_500)]
    late = pl.Series(WATERMARK, [10_000], pl.Int64)
    found = []
    for finish in ("run_background_slice", "snapshot", "advance", "process"):
        harness = OperatorHarness(node)
        harness.frame(frame_of(rows))
        (operator,) = harness.operators
        operator.process(frame_of([("z", 10_001, 1)]).with_columns(late), harness.collected)
        assert len(harness.output()) == 2_500 + 1_000
        match finish:
            case "run_background_slice":
                assert [
                    operator.run_background_slice(),
                    operator.run_background_slice(),
                    operator.run_background_slice(),
                ] == [True, False, False]
            case "snapshot":
                operator.snapshot()
            case "advance":
                operator.advance(10_000, harness.collected)
            case _:
                operator.process(frame_of([]), harness.collected)
        found.append(harness.output())
        assert harness.output()[-1] == {"key": "z", "what": "row", "number": 1}
    assert all(output == found[0] for output in found)


class Heartbeat(KeyedProcess[Row, Seen]):
    """A timer that renews itself for ever, or so many times."""

    def __init__(self, times=None):
        self.times = times

    beats = ValueState(int)

    def on_row(self, row, ctx):
        ctx.event_timer(ctx.timestamp + timedelta(microseconds=10))

    def on_timer(self, at, ctx):
        beats = self.beats.get(0) + 1
        self.beats.set(beats)
        ctx.emit(Seen(ctx.key, "beat", beats))
        if self.times is None or beats < self.times:
            ctx.event_timer(at + timedelta(microseconds=10))


@pytest.mark.parametrize("times", [1, 50, 101, None])
def test_timers_that_renew_themselves_end_at_the_end_of_input(times):
    """Those that end by themselves within a hundred renewals fire as in Flink; the others stop there, with a warning."""
    harness = OperatorHarness(keyed_node(Heartbeat(times)))
    harness.frame(frame_of([("a", 0, 1), ("b", 5, 1)]))
    with structlog.testing.capture_logs() as logs:
        harness.watermark(MAX_WATERMARK)
    beats = times or 1 + RENEWALS_AT_THE_END
    assert [row["number"] for row in harness.output() if row["key"] == "a"] == list(range(1, beats + 1))
    assert len(harness.output()) == 2 * beats
    assert [log["timers"] for log in logs] == ([2] if times is None else [])
    restored = harness.restored(harness.snapshot())
    restored.watermark(MAX_WATERMARK)
    assert len(restored.output()) == len(harness.output()), "what does not fire is not kept either"


def test_many_due_timers_fire_in_parts_that_come_to_the_same():
    """Between the parts a subtask lets others run; the watermark is passed on behind all of them."""
    whole, parts = (OperatorHarness(keyed_node(Heartbeat(3))) for _ in range(2))
    rows = frame_of([(str(number), number, 1) for number in range(2_000)])
    for harness in (whole, parts):
        harness.frame(rows)
    whole.watermark(10_000)
    (operator,) = parts.operators
    rounds = 1
    while operator.fire_due(10_000, parts.collected):
        rounds += 1
    assert rounds == 7
    assert len(parts.collected.watermarks) < len(whole.collected.watermarks)
    parts.watermark(10_000)
    assert parts.output() == whole.output()


def test_a_timer_in_the_past_set_by_a_row_fires_at_the_next_advance():
    """As in Flink: timers fire when the watermark advances, not when they are set."""

    class Past(KeyedProcess[Row, Seen]):
        def on_row(self, row, ctx):
            ctx.emit(Seen(ctx.key, f"{ctx.watermark}", 0))
            ctx.event_timer(from_micros(1))

        def on_timer(self, at, ctx):
            ctx.emit(Seen(ctx.key, "timer", to_micros(at)))

    harness = OperatorHarness(keyed_node(Past()))
    harness.watermark(50)
    harness.frame(frame_of([("a", 60, 1)]))
    assert [row["what"] for row in harness.output()] == [str(from_micros(50))]
    harness.watermark(51)
    assert [row["what"] for row in harness.output()][1:] == ["timer"]


class Clocked(KeyedProcess[Row, Seen]):
    def on_row(self, row, ctx):
        ctx.processing_timer(ctx.processing_time + timedelta(microseconds=row.value))
        ctx.processing_timer(from_micros(7_777))
        ctx.delete_processing_timer(from_micros(7_777))

    def on_timer(self, at, ctx):
        ctx.emit(Seen(ctx.key, "clock", to_micros(at)))


def test_processing_timers_follow_the_clock_and_survive_a_restore():
    """next_timer_us says when to come; rows they emit are never behind the watermark."""
    harness = OperatorHarness(keyed_node(Clocked()), now_us=1_000)
    harness.frame(frame_of([("a", 1, 500), ("b", 2, 100)]))
    assert harness.operators[0].next_timer_us() == 1_100
    harness.processing_time(1_099)
    assert harness.output() == []
    harness.watermark(5_000)
    harness = harness.restored(harness.snapshot(), 2)
    harness.processing_time(2_000)
    assert sorted((row["key"], row["number"]) for row in harness.output()) == [("a", 1_500), ("b", 1_100)]
    assert {row for frame in harness.collected.frames for row in frame[EVENT_TIME]} == {5_001}
    assert [operator.next_timer_us() for operator in harness.operators] == [None, None]


LATE = OutputTag("late", Seen)
ODD = OutputTag("odd", Row)


class Sorting(Process[Row, Seen]):
    def on_row(self, row, ctx):
        if row.value % 2:
            ctx.emit_to(ODD, row)
        else:
            ctx.emit_to(LATE, Seen(row.key, "nobody reads this", 0))
            ctx.emit(Seen(row.key, str(ctx.timestamp), row.value))


def test_side_outputs_have_rows_of_their_own_and_the_event_time_of_their_row():
    """Rows for a side output that nobody reads are dropped."""
    harness = OperatorHarness(keyed_node(Sorting(), sides=[ODD]))
    harness.frame(frame_of([("a", 5, 1), ("b", 6, 2)]))
    assert harness.side(ODD) == [{"key": "a", "value": 1}]
    assert harness.collected.sides["odd"][0][EVENT_TIME].to_list() == [5]
    assert harness.output() == [{"key": "b", "what": str(from_micros(6)), "number": 2}]
    assert harness.side(LATE) == []


class Positions(Process[Row, Seen]):
    mine = OperatorListState(int)
    everyones = UnionListState(str)

    def open(self, context):
        self.place = (context.subtask, context.parallelism)

    def on_row(self, row, ctx):
        self.mine.add(row.value)
        self.everyones.update([f"subtask {self.place[0]}"])
        ctx.emit(Seen(row.key, ",".join(self.everyones.get()), sum(self.mine.get())))


def test_operator_lists_are_dealt_out_and_unions_given_to_all():
    """No element is lost or doubled when the parallelism changes."""
    harness = OperatorHarness(keyed_node(Positions()), parallelism=3)
    harness._keys = [()]  # rows take turns
    for value in range(7):
        harness.frame(frame_of([("a", 1, value)]))
    snapshot = harness.snapshot()
    harness = harness.restored(snapshot, 2)
    lists = [operator._states.bound for operator in harness.operators]
    assert sorted(lists[0]["mine"].get() + lists[1]["mine"].get()) == list(range(7))
    for bound in lists:
        assert sorted(bound["everyones"].get()) == ["subtask 0", "subtask 1", "subtask 2"]


class Alarm(KeyedProcess[Row, Seen]):
    def on_row(self, row, ctx):
        ctx.processing_timer(from_micros(row.value))
        ctx.emit(Seen(ctx.key, "row", row.value))

    def on_timer(self, at, ctx):
        ctx.emit(Seen(ctx.key, "timer", to_micros(at)))


def test_many_due_processing_timers_fire_in_parts_in_order_of_time():
    """As rows that make many event timers due: what is left is done before anything else is asked for."""
    harness = OperatorHarness(keyed_node(Alarm()))
    harness.frame(frame_of([(str(number), 1, 3_000 - number) for number in range(2_500)]))
    (operator,) = harness.operators

    def fired():
        return [row["number"] for row in harness.output() if row["what"] == "timer"]

    operator.on_processing_time(5_000, harness.collected)
    assert fired() == list(range(501, 501 + FIRINGS_AT_ONCE))
    assert operator.run_background_slice()
    assert fired() == list(range(501, 501 + 2 * FIRINGS_AT_ONCE))
    harness.frame(frame_of([("last", 1, 9_000)]))
    assert fired() == list(range(501, 3_001))
    assert harness.output()[-1]["what"] == "row"


def test_no_row_comes_between_processing_timers_that_are_due_together():
    """However many there are: a clock that has moved on has passed them all."""
    rows = [Row(str(number), number) for number in range(2_500)]
    p = Pipeline("alarms")
    read = p.read(kafka.Source("rows", schema=Row)).key_by("key")
    read.process(Alarm()).write(kafka.Sink("seen", key="key"))
    found = run_pipeline(p, [*rows, elapse("1h"), Row("last", 0)], batch=2_501, now=from_micros(0))
    assert [row["what"] for row in found].index("timer") == 2_500
    assert [row["key"] for row in found].index("last") == 5_000


class Forgetful(Process[Row, Seen]):
    mine = OperatorListState(int)

    def on_row(self, row, ctx): ...


def test_a_list_that_nobody_declares_any_more_is_named():
    """As state of a key is: what is left behind is not lost silently."""
    harness = OperatorHarness(keyed_node(Positions()))
    harness.frame(frame_of([("a", 1, 5)]))
    with structlog.testing.capture_logs() as logs:
        OperatorHarness(keyed_node(Forgetful()), restored=harness.snapshot())
    assert [(log["event"], log["state"]) for log in logs] == [("state_left_behind", "everyones")]


class Life(KeyedProcess[Row, Seen]):
    events: list[str] = []  # noqa: RUF012 (shared on purpose)

    def open(self, context):
        self.events.append("open")

    def on_row(self, row, ctx):
        if row.value == 13:
            raise ValueError("unlucky")
        ctx.event_timer(from_micros(row.value))

    def on_timer(self, at, ctx):
        raise KeyError("timer")

    def close(self):
        self.events.append("close")


def test_open_and_close_are_called_once_per_subtask():
    """Each subtask has its own copy."""
    Life.events.clear()
    harness = OperatorHarness(keyed_node(Life()), parallelism=2)
    harness.close()
    harness.close()
    assert Life.events == ["open", "open", "close", "close"]


def test_what_user_code_raises_comes_with_method_and_row_or_key():
    """And with its cause."""
    harness = OperatorHarness(keyed_node(Life()))
    with pytest.raises(
        UserCodeError, match=r"process \(n1-process\): Life\.on_row raised ValueError: unlucky"
    ) as caught:
        harness.frame(frame_of([("a", 1, 5), ("b", 2, 13)]))
    assert "Row(key='b', value=13)" in str(caught.value)
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(UserCodeError, match=r"Life\.on_timer\(.*\) raised KeyError: 'timer'; row: \"key 'a'\""):
        harness.watermark(100)


def test_what_close_raises_comes_with_the_process():
    """Where nothing else has failed."""

    class Wrong(Process[Row, Seen]):
        def on_row(self, row, ctx): ...

        def close(self):
            raise KeyError("gone")

    with pytest.raises(UserCodeError, match=r"process \(n1-process\): Wrong\.close raised KeyError: 'gone'"):
        OperatorHarness.of_process(Wrong(), Row).close()


def test_emitting_a_wrong_row_names_the_process():
    """The message says emit."""

    class Wrong(KeyedProcess[Row, Seen]):
        def on_row(self, row, ctx):
            ctx.emit(row)

    harness = OperatorHarness(keyed_node(Wrong()))
    with pytest.raises(UserCodeError, match=r"process \(n1-process\): Wrong, emit: takes one Seen, got Row"):
        harness.frame(frame_of([("a", 1, 5)]))


def test_attributes_that_cannot_be_copied_belong_into_open():
    """Every subtask works on a copy; a lock cannot be copied."""

    class Locked(KeyedProcess[Row, Seen]):
        def __init__(self):
            self.lock = threading.Lock()

    with pytest.raises(PipelineError, match=r"Locked cannot be copied for a subtask .* in open\(\), not in __init__"):
        OperatorHarness(keyed_node(Locked()))


def test_a_keyed_process_needs_key_by():
    """Said when the operator is built."""
    with pytest.raises(PipelineError, match=r"Life is a KeyedProcess on a stream without key; write \.key_by"):
        OperatorHarness(process_node(Life(), Row))


def test_the_harness_as_users_use_it():
    """Rows in, rows out, event time from the only timestamp column."""

    class Late(KeyedProcess[Timed, Timed]):
        last = ValueState(datetime)

        def on_row(self, row, ctx):
            assert ctx.timestamp == row.at
            assert ctx.watermark is None
            self.last.set(row.at)
            ctx.event_timer(row.at + timedelta(minutes=1))

        def on_timer(self, at, ctx):
            if self.last.get() == at - timedelta(minutes=1):
                ctx.emit(Timed(ctx.key, at))

    harness = OperatorHarness.of_process(Late(), Timed, keys=["key"])
    noon = datetime(2026, 6, 1, 12, tzinfo=UTC)
    harness.rows(Timed("a", noon), Timed("b", noon), Timed("a", noon + timedelta(seconds=30)))
    harness.watermark(noon + timedelta(minutes=1))
    assert harness.output() == [{"key": "b", "at": noon + timedelta(minutes=1)}]


def test_a_timer_says_which_clock_it_went_by():
    """One function may set timers of both kinds, for the same moment even."""

    class Both(KeyedProcess[Row, Seen]):
        def on_row(self, row, ctx):
            ctx.event_timer(from_micros(50))
            ctx.processing_timer(from_micros(50))
            ctx.emit(Seen(ctx.key, str(ctx.time_domain), 0))

        def on_timer(self, at, ctx):
            ctx.emit(Seen(ctx.key, str(ctx.time_domain), to_micros(at)))

    harness = OperatorHarness(keyed_node(Both()))
    harness.frame(frame_of([("a", 1, 1)]))
    harness.watermark(50)
    harness.frame(frame_of([("a", 51, 1)]))
    harness.processing_time(60)
    harness.frame(frame_of([("a", 52, 1)]))
    assert [row["what"] for row in harness.output()] == ["None", "event", "None", "processing", "None"]


FIRST = to_micros(datetime.min.replace(tzinfo=UTC))


def test_no_watermark_is_seen_before_the_first_moment_of_a_datetime():
    """That of a row of the year 1, the zero of some languages, is before what a datetime can hold."""

    class Marks(KeyedProcess[Row, Seen]):
        def on_row(self, row, ctx):
            ctx.emit(Seen(ctx.key, str(ctx.watermark), 0))

    class MarksOfBatches(KeyedProcess[Row, Seen]):
        def on_batch(self, frame, ctx):
            marks = [str(mark) for mark in ctx.watermarks]
            return pl.DataFrame({"key": frame["key"], "what": marks, "number": [0] * frame.height})

    marked = frame_of([("a", FIRST, 1), ("a", FIRST + 1, 1)]).with_columns(pl.Series(WATERMARK, [FIRST - 1, FIRST]))
    for process in (Marks(), MarksOfBatches()):
        harness = OperatorHarness(keyed_node(process))
        harness.frame(marked)
        assert [row["what"] for row in harness.output()] == ["None", "0001-01-01 00:00:00+00:00"]


@pytest.mark.parametrize("at", [None, 1_700_000_000, datetime(2026, 1, 1)], ids=str)  # noqa: DTZ001 (what is tested)
@pytest.mark.parametrize("set_or_delete", ["event_timer", "processing_timer", "delete_event_timer"])
def test_a_timer_for_no_moment_names_the_method_and_its_row(set_or_delete, at):
    """As whatever else the function does wrong."""

    class Wrong(KeyedProcess[Row, Seen]):
        def on_row(self, row, ctx):
            getattr(ctx, set_or_delete)(at)

        def on_timer(self, at, ctx): ...

    harness = OperatorHarness(keyed_node(Wrong()))
    with pytest.raises(
        UserCodeError, match=r"Wrong\.on_row raised .*a timer is set for a moment: .*; row: Row\(key='a'"
    ):
        harness.frame(frame_of([("a", 1, 1)]))


@dataclasses.dataclass
class Pad:
    numbers: list[int]


class FillingLater(KeyedProcess[Row, Seen]):
    """Changes what it got from its states when it has set a timer, the first one of its key group."""

    value = ValueState(Pad)
    items = ListState(Pad)
    entries = MapState(str, Pad)

    def on_row(self, row, ctx):
        pads = [Pad([]) for _ in range(3)]
        self.value.set(pads[0])
        self.items.add(pads[1])
        self.entries.set("one", pads[2])
        ctx.delete_processing_timer(ctx.processing_time)
        ctx.event_timer(ctx.timestamp)
        for pad in pads:
            pad.numbers.append(row.value)

    def on_timer(self, at, ctx):
        found = [self.value.get(), *self.items.get(), *self.entries.values()]
        ctx.emit(Seen(ctx.key, "timer", sum(sum(pad.numbers) for pad in found if pad is not None)))


def test_what_a_row_changes_in_place_when_it_has_set_a_timer_is_kept():
    """The first timer of a key group looks what the database has; what the row has in hand is written when it ends."""
    harness = OperatorHarness(keyed_node(FillingLater()), parallelism=1, max_parallelism=GROUPS)
    harness.frame(frame_of([(key, 1, 5) for key in "abcdefgh"]))
    restored = harness.restored(harness.snapshot())
    restored.watermark(10)
    assert [row["number"] for row in restored.output()] == [15] * 8
