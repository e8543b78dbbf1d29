"""Joins in time: what they send is what two loops find among the rows that came in time, however they came."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
import pytest
from brute_force import Groups
from hypothesis import given, settings
from hypothesis import strategies as st
from window_cases import GROUPS, PLACES, Batch, Mark, Restore, Step, frame_of, group_of, histories, kept_in, run

from penstock import Expr, col, lit, when
from penstock.core.batches import EVENT_TIME, WATERMARK
from penstock.core.times import MAX_WATERMARK, MIN_WATERMARK
from penstock.errors import ProtocolError
from penstock.functions.windows.definitions import AsOf, CumulativeWindow, SlidingWindow, TumblingWindow, Within
from penstock.plan.logical import Node
from penstock.plan.operations.join import Join
from penstock.state import sorted_runs
from penstock.state.sorted_runs import SortedRuns
from penstock.task.operators import pair_conditions
from penstock.testing.harness import OperatorHarness, input_node
from penstock.types import INT64, STRING, TIMESTAMP, Field, Schema, row_class

LEFT, RIGHT = 0, 1
KEY = Field("key", STRING, nullable=True)
LEFT_SCHEMA = Schema((KEY, Field("value", INT64)))
RIGHT_SCHEMA = Schema((Field("other", INT64), KEY))
BOUNDS = (Field("window_start", TIMESTAMP), Field("window_end", TIMESTAMP))
HOWS = ["inner", "left", "right", "full", "semi", "anti"]
TIMES = [
    Within(0, 0), Within(-5, 5), Within(0, 9), Within(-9, -3), Within(4, 8), TumblingWindow(10), TumblingWindow(10, 3),
    SlidingWindow(10, 4), SlidingWindow(9, 3), CumulativeWindow(12, 4),
]  # fmt: skip

CONDITIONS: tuple[tuple[Expr, Any], ...] = (
    (lit(True), lambda value, other: True),
    (col("value") > col("other"), lambda value, other: value > other),
    (
        when(col("value") % 3 > 0).then(col("other") % 2 == 0),  # else null
        lambda value, other: value % 3 > 0 and other % 2 == 0,
    ),
)
"""And whether they are true of the values of a left and a right row."""


def join_node(how: Any, time: Any, where: Expr | None = None, nulls_equal: bool = False) -> Node:
    """A join of rows (key, value) with rows (other, key)."""
    inputs = tuple(
        input_node(schema, row_class(schema), ("key",), event_time=True) for schema in (LEFT_SCHEMA, RIGHT_SCHEMA)
    )
    fields = [KEY, Field("value", INT64, nullable=True), Field("other", INT64, nullable=True)]
    if not isinstance(time, Within | AsOf):
        fields += BOUNDS
    schema = LEFT_SCHEMA if how in ("semi", "anti") else Schema(tuple(fields))
    return Node("n2", Join(how, time, where, nulls_equal), inputs, schema, row_class(schema), True)


class TwoInputs(OperatorHarness):
    """Gives the rows of the right input their own columns."""

    def frame(self, frame: pl.DataFrame, number: int = 0) -> None:
        if number == RIGHT:
            frame = frame.rename({"value": "other"}).select("other", "key", *frame.columns[2:])
        super().frame(frame, number)


@pytest.fixture(autouse=True)
def two_inputs(monkeypatch):
    """Histories are played to harnesses of this kind."""
    monkeypatch.setattr("window_cases.OperatorHarness", TwoInputs)
    monkeypatch.setattr("penstock.testing.harness.OperatorHarness", TwoInputs)


@dataclass
class JoinModel:
    """All rows that came in time, and what two loops over them give."""

    how: str
    time: Any
    where: Any = None
    """Whether a pair of rows is one, by the value of each."""
    nulls_equal: bool = False
    groups: Groups = field(default_factory=lambda: Groups(group_of))
    rows: tuple[list[Any], list[Any]] = field(default_factory=lambda: ([], []))
    """Key, event time, value and window (start, end), None outside of windows."""
    late: int = 0

    def windows(self, time: int) -> list[tuple[int, int]]:
        match self.time:
            case TumblingWindow(size_us=size, offset_us=offset):
                start = time - (time - offset) % size
                return [(start, start + size)]
            case SlidingWindow(size_us=size, slide_us=slide):
                first = time - time % slide
                return [(start, start + size) for start in range(first, time - size, -slide)]
            case CumulativeWindow(size_us=size, step_us=step):
                start = time - time % size
                return [(start, end) for end in range(start + step, start + size + 1, step) if end > time]
            case _:
                return []

    def row(self, key: Any, time: int, value: int, number: int) -> None:
        mark = self.groups.of(key)
        if isinstance(self.time, Within | AsOf):
            open_ = [None] if time > mark else []
        else:
            open_ = [window for window in self.windows(time) if window[1] - 1 > mark]
        self.rows[number].extend((key, time, value, window) for window in open_)
        self.late += not open_

    def watermark(self, groups: Any, watermark: int) -> None:
        self.groups.advance(groups, watermark)

    def meet(self, left: Any, right: Any) -> bool:
        if left[0] != right[0] or (left[0] is None and not self.nulls_equal):
            return False
        if self.where is not None and not self.where(left[2], right[2]):
            return False
        if isinstance(self.time, Within):
            return self.time.lower_us <= right[1] - left[1] <= self.time.upper_us
        return left[3] == right[3]

    def until(self, row: Any, number: int) -> int:
        if not isinstance(self.time, Within):
            return row[3][1] - 1
        return row[1] + max(0, self.time.upper_us if number == LEFT else -self.time.lower_us)

    def result(self, key: Any, value: Any, other: Any, time: int, window: Any) -> tuple[Any, ...]:
        if self.how in ("semi", "anti"):
            return (key, value, time)
        return (key, value, other, *(window or ()), time)

    def results(self) -> list[tuple[Any, ...]]:
        left, right = self.rows
        found: list[tuple[Any, ...]] = []
        pairs = [(one, two) for one in left for two in right if self.meet(one, two)]
        met = ({id(one) for one, _ in pairs}, {id(two) for _, two in pairs})
        if self.how in ("inner", "left", "right", "full"):
            for one, two in pairs:
                time = max(one[1], two[1]) if one[3] is None else one[3][1] - 1
                found.append(self.result(one[0], one[2], two[2], time, one[3]))
        for row in left:
            alone = id(row) not in met[LEFT]
            if (self.how in ("left", "full", "anti") and alone) or (self.how == "semi" and not alone):
                found.append(self.result(row[0], row[2], None, self.until(row, LEFT), row[3]))
        alone = [row for row in right if id(row) not in met[RIGHT]] if self.how in ("right", "full") else []
        return found + [self.result(row[0], None, row[2], self.until(row, RIGHT), row[3]) for row in alone]


@dataclass
class AsOfModel(JoinModel):
    """The newest row that is not newer; of equal times the one that came last."""

    def results(self) -> list[tuple[Any, ...]]:
        left, right = self.rows
        found: list[tuple[Any, ...]] = []
        for key, time, value, _ in left:
            tolerance = self.time.tolerance_us
            least = MIN_WATERMARK if tolerance is None else time - tolerance
            held = [
                row
                for row in right
                if (key is not None or self.nulls_equal) and row[0] == key and least <= row[1] <= time
            ]
            other = max(enumerate(held), key=lambda each: (each[1][1], each[0]))[1][2] if held else None
            if held or self.how == "left":
                found.append((key, value, other, time))
        return found


def sent(harness: OperatorHarness) -> list[tuple[Any, ...]]:
    return [
        tuple(frame[name].to_physical()[row] for name in frame.columns if name != WATERMARK)
        for frame in harness.collected.frames
        for row in range(frame.height)
    ]


def by_key(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=lambda row: repr(row[0]))


def check(
    how: Any, time: Any, steps: Any, parallelism: int, place: str = "one run", where: int | None = None,
    nulls_equal: bool = False,
) -> None:  # fmt: skip
    condition, meets = CONDITIONS[where] if where is not None else (None, None)
    model = (AsOfModel if isinstance(time, AsOf) else JoinModel)(how, time, meets, nulls_equal)
    with kept_in(place) as folder:
        harness = run(join_node(how, time, condition, nulls_equal), steps, model, parallelism, local_state=folder)
    assert sorted(map(repr, sent(harness))) == sorted(map(repr, model.results()))
    if isinstance(time, AsOf):  # in order of event time; those of a key that have the same, as they came
        in_order = sorted(model.results(), key=lambda row: row[-1])
        assert by_key(sent(harness)) == by_key(in_order)
    for operator in harness.operators:  # the input has ended: nothing can meet anything any more
        for runs in getattr(operator, "_runs", ()):
            assert runs.height == 0


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("time", TIMES, ids=str)
@settings(max_examples=12, deadline=None)
@given(steps=histories(st.integers(0, 40), inputs=2), parallelism=st.integers(1, 3))
def test_what_is_sent_is_what_two_loops_find(how, time, steps, parallelism):
    """Batches, watermarks between rows and subtasks, restores, rescales, nulls in keys, late rows of either input."""
    check(how, time, steps, parallelism)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("time", [Within(-5, 5), Within(-12, -2), SlidingWindow(10, 4)], ids=str)
@settings(max_examples=24, deadline=None)
@given(seed=st.integers(0, 10**9), where=st.sampled_from([None, 0, 1, 2]), nulls_equal=st.booleans(), place=PLACES)
def test_what_is_sent_by_a_condition_is_what_two_loops_find(how, time, seed, where, nulls_equal, place):
    """Of rows of one key and one time some meet, and others do not; null is a key of its own, perhaps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair_conditions, "PAIRS_AT_ONCE", 3)
        check(how, time, few_keys(random.Random(seed)), 1 + seed % 3, place, where, nulls_equal)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**9), how=st.sampled_from(["inner", "left"]), time=st.sampled_from([AsOf(), AsOf(6)]))
def test_what_held_of_the_null_key_is_what_a_loop_finds(seed, how, time):
    check(how, time, few_keys(random.Random(seed)), 1 + seed % 3, nulls_equal=True)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("time", [Within(-5, 5), Within(-12, -2), SlidingWindow(10, 5)], ids=str)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**9), parallelism=st.integers(1, 3))
def test_what_is_sent_of_few_keys_is_what_two_loops_find(how, time, seed, parallelism):
    """Most rows meet some, and those that were sent or forgotten before a restore are not sent behind it."""
    check(how, time, few_keys(random.Random(seed)), parallelism)


def few_keys(chance: random.Random) -> list[Step]:
    """Time goes on, and some rows come behind it, or before it is due."""

    def rows(most: int) -> list[tuple[Any, int, int]]:
        return [
            (chance.choice(["a", "b", "c", "d", None]), now + chance.randrange(-2, 12), chance.randrange(100))
            for _ in range(chance.randrange(1, most))
        ]

    steps, now = list[Step](), 0
    for _ in range(chance.randrange(4, 30)):
        now += chance.randrange(4)
        match chance.randrange(10):
            case 0:
                steps.append(Restore(chance.randrange(1, 5), rows(12)))
            case 1 | 2:
                steps.append(Mark(now, chance.choice([None, 0, 1, 2])))
            case _:
                steps.append(Batch(rows(6), number=chance.randrange(2)))
    return steps


@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("time", [AsOf(), AsOf(0), AsOf(6)], ids=str)
@settings(max_examples=30, deadline=None)
@given(steps=histories(st.integers(0, 40), inputs=2), parallelism=st.integers(1, 3), place=PLACES)
def test_what_held_is_what_a_loop_finds(how, time, steps, parallelism, place):
    check(how, time, steps, parallelism, place)


@settings(max_examples=60, deadline=None)
@given(steps=histories(st.integers(0, 9), restores=False, inputs=2, rows=2), parallelism=st.integers(1, 3))
def test_rows_that_wait_leave_in_the_same_order_wherever_they_are(steps, parallelism):
    """Those of equal event time as they came, whatever their keys are."""
    found = []
    for place in ("one run", "disk"):
        with kept_in(place) as folder:
            model = AsOfModel("left", AsOf())
            found.append(sent(run(join_node("left", AsOf()), steps, model, parallelism, local_state=folder)))
    assert found[0] == found[1]


def test_rows_that_wait_and_versions_lie_on_the_disk():
    """All but few, when they are many."""
    with kept_in("disk") as folder:
        harness = TwoInputs(join_node("left", AsOf()), max_parallelism=GROUPS, local_state=folder)
        for number in (LEFT, RIGHT):
            harness.frame(frame_of([(f"k{place}", place, place) for place in range(100)]), number)
        (operator,) = harness.operators
        while operator.run_background_slice():
            pass
        for runs in (operator._waiting._stored, operator._versions):
            assert [run.rows.at_random is not None for run in runs.runs] == [True]
        assert operator._waiting._held_rows == 0
        harness.watermark(MAX_WATERMARK)
        assert [(row["value"], row["other"]) for row in harness.output()] == [(number, number) for number in range(100)]
        harness.close()
        del runs, operator, harness


@pytest.mark.parametrize("time", [Within(-5, 5), AsOf(), AsOf(8), SlidingWindow(10, 4)], ids=str)
@settings(max_examples=20, deadline=None)
@given(steps=histories(st.integers(0, 40), inputs=2), parallelism=st.integers(1, 3))
def test_keys_that_share_a_hash_do_not_meet(time, steps, parallelism):
    """Rows are found by hashes; here all keys have one of two."""
    with pytest.MonkeyPatch.context() as patch:
        hashes = SortedRuns.hashes
        patch.setattr(SortedRuns, "hashes", lambda self, frame: hashes(self, frame) % np.uint64(2))
        check("left", time, steps, parallelism)


@settings(max_examples=30, deadline=None)
@given(steps=histories(st.integers(0, 40), inputs=2, restores=False), how=st.sampled_from(HOWS))
def test_no_result_is_late_and_its_watermark_never_goes_back(steps, how):
    """Each result's event time is behind no watermark that was sent, nor behind the one that it carries."""

    class Judging(TwoInputs):
        def _open(self, subtask, operator, restored):
            super()._open(subtask, operator, restored)
            operator._context.__dict__["carries_watermarks"] = True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("window_cases.OperatorHarness", Judging)
        harness = run(join_node(how, Within(-5, 9)), steps, JoinModel(how, Within(-5, 9)))
    marks = [mark for frame in harness.collected.frames for mark in frame[WATERMARK].to_list()]
    assert marks == sorted(marks)
    assert all((frame[EVENT_TIME] > frame[WATERMARK]).all() for frame in harness.collected.frames)


@pytest.mark.parametrize("time", [Within(-5, 5), TumblingWindow(10), AsOf()], ids=str)
def test_rows_without_a_key_are_not_looked_for(time, monkeypatch):
    """Null is equal to nothing: no pairs are formed of them, and none is kept as a version."""
    pairs: list[int] = []
    looked_up = sorted_runs.places_in

    def noted(begin, counts):
        pairs.append(int(counts.sum()))
        return looked_up(begin, counts)

    monkeypatch.setattr(sorted_runs, "places_in", noted)
    harness = TwoInputs(join_node("left", time))
    frame = frame_of([(None, 4, number) for number in range(100)])
    harness.frame(frame, RIGHT)
    harness.frame(frame, LEFT)
    if isinstance(time, AsOf):
        assert harness.operators[0]._versions.height == 0
    harness.watermark(MAX_WATERMARK)
    assert sum(pairs) == 0
    assert [(row["value"], row["other"]) for row in harness.output()] == [(number, None) for number in range(100)]


def test_rows_that_can_meet_none_any_more_are_forgotten():
    """While event time goes on and no end is in sight, a join keeps what its bounds ask for."""
    harness = TwoInputs(join_node("left", Within(-10, 10)), max_parallelism=GROUPS)
    for step in range(400):
        rows = [(f"k{step % 7}", step * 5 + place % 5, place) for place in range(100)]
        harness.frame(frame_of(rows), step % 2)
        harness.watermark(step * 5)
    assert all(runs.height < 5_000 for runs in harness.operators[0]._runs)


def test_versions_that_hold_no_more_are_forgotten():
    """Of every key the newest is enough."""
    harness = TwoInputs(join_node("left", AsOf()), max_parallelism=GROUPS)
    for step in range(400):
        harness.frame(frame_of([(f"k{place % 7}", step * 5 + place % 5, place) for place in range(100)]), RIGHT)
        harness.watermark(step * 5)
    assert harness.operators[0]._versions.height < 5_000


def test_a_join_is_not_given_rows_of_no_input():
    harness = TwoInputs(join_node("inner", Within(0, 0)))
    with pytest.raises(ProtocolError, match="without the number of their input"):
        harness.operators[0].process(frame_of([("a", 1, 1)]), harness.collected)
    harness.watermark(MAX_WATERMARK)
