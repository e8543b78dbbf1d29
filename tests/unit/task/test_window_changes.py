"""Windows of changes: what is sent when a window ends is what a loop over the rows that hold then comes to."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_windows import SHAPES, windows_of
from window_cases import GROUPS

from penstock import Pipeline, col, count, cumulative, global_, lit, session, sliding, tumbling
from penstock.connectors import iterables
from penstock.core.batches import EVENT_TIME, WATERMARK
from penstock.core.times import MAX_WATERMARK, MIN_WATERMARK, from_micros
from penstock.errors import IncompatibleStateError, PipelineError
from penstock.expressions import AggregatePlan, Expr
from penstock.functions.windows.definitions import RETRACTED, TumblingWindow, window_bounds
from penstock.plan.building.changes import known_keys
from penstock.plan.logical import Node
from penstock.plan.operations.assign_windows import AssignWindows
from penstock.plan.operations.window_changes import WindowChanges
from penstock.plan.signatures import describe_node, state_signature
from penstock.protocol.keygroups import key_group_range, subtask_of
from penstock.state.hashing import key_group_of
from penstock.task import sources
from penstock.task.operators import window_changes
from penstock.testing.harness import OperatorHarness, input_node
from penstock.types import BOOLEAN, INT64, STRING, TIMESTAMP, Field, Schema, row_class

BOUNDS = window_bounds(retracts=False)
CHANGE = Field(RETRACTED, BOOLEAN)
COUNTED: dict[str, Expr] = {"rows": count(), "total": col("value").sum()}
KEPT: dict[str, Expr] = {**COUNTED, "most": col("value").max(), "values": col("value").collect_distinct()}
KEYS = ("key", "window_start", "window_end")


def changes_node(aggregates: dict[str, Expr], size: int = 10) -> Node:
    schema = Schema((Field("key", STRING, nullable=True), Field("value", INT64), *BOUNDS, CHANGE))
    source = input_node(schema, row_class(schema), KEYS, event_time=True)
    named = tuple(aggregates.items())
    out = Schema((*schema.select(KEYS), *AggregatePlan.build(named, schema).output_fields))
    return Node("n1", WindowChanges(TumblingWindow(size), named), (source,), out, row_class(out), True, keys=KEYS)


Change = tuple[Any, int, int, int, bool]
"""Key, value, bounds of the window, and whether the row is taken back."""


def frame_of(changes: Iterable[Change], marks: Iterable[int | None] = ()) -> pl.DataFrame:
    names = ["key", "value", "window_start", "window_end", RETRACTED]
    frame = pl.DataFrame(list(changes), schema=dict.fromkeys(names), orient="row", infer_schema_length=None)
    frame = frame.cast({"key": pl.String, **{name: pl.Datetime("us", "UTC") for name in names[2:4]}})
    carried = [pl.Series(WATERMARK, list(marks), pl.Int64)] if marks else []
    return frame.with_columns(pl.col("window_start").cast(pl.Int64).alias(EVENT_TIME), *carried)


def group_of(key: Any, start: int, end: int) -> int:
    values = (key, from_micros(start), from_micros(end))
    return key_group_of(values, (STRING, TIMESTAMP, TIMESTAMP), GROUPS)


@dataclass
class Model:
    """One row after the other."""

    marks: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(GROUPS), MIN_WATERMARK))
    held: dict[tuple[Any, int, int], Counter[int]] = field(default_factory=dict)
    sent: list[tuple[Any, int, int, list[int]]] = field(default_factory=list)
    late: int = 0

    def change(self, change: Change) -> None:
        key, value, start, end, gone = change
        if end - 1 <= self.marks[group_of(key, start, end)]:
            self.late += 1
        else:
            self.held.setdefault((key, start, end), Counter())[value] += -1 if gone else 1

    def advance(self, groups: Iterable[int], watermark: int) -> None:
        for group in groups:
            self.marks[group] = max(watermark, self.marks[group])
        for key in [key for key in self.held if key[2] - 1 <= self.marks[group_of(*key)]]:
            if values := sorted(self.held.pop(key).elements()):
                self.sent.append((*key, values))


class Play:
    """Random changes to the operator and to the model: rows that hold are taken back, also behind the end of a window."""

    def __init__(self, seed: int, aggregates: dict[str, Expr], local_state: Path | None) -> None:
        self.chance = random.Random(seed)
        self.model = Model()
        self.parallelism = self.chance.randrange(1, 4)
        self.harness = OperatorHarness(
            changes_node(aggregates), parallelism=self.parallelism, max_parallelism=GROUPS, local_state=local_state
        )
        self.reached = [MIN_WATERMARK] * self.parallelism
        self.rows: list[Change] = []
        self.late = 0

    def mark(self) -> int:
        """Often the last moment of a window, or the one before or behind it."""
        return self.chance.randrange(1, 7) * 10 + self.chance.choice([-2, -1, 0, 4])

    def owner(self, change: Change) -> int:
        return subtask_of(group_of(change[0], *change[2:4]), self.parallelism, GROUPS)

    def advance(self, subtask: int, watermark: int) -> None:
        self.reached[subtask] = max(self.reached[subtask], watermark)
        owned = key_group_range(subtask, self.parallelism, GROUPS)
        self.model.advance(range(owned.start, owned.end), self.reached[subtask])

    def batch(self) -> None:
        changes: list[Change] = []
        marks: list[int | None] = []
        for _ in range(self.chance.randrange(1, 8)):
            if self.rows and self.chance.random() < 0.4:
                change = (*self.rows.pop(self.chance.randrange(len(self.rows)))[:4], True)
            else:
                start = self.chance.randrange(6) * 10
                change = (self.chance.choice(["a", "b", None]), self.chance.randrange(5), start, start + 10, False)
                self.rows.append(change)
            if self.chance.random() < 0.2:
                self.advance(self.owner(change), self.mark())
            self.model.change(change)
            changes.append(change)
            mark = self.reached[self.owner(change)]
            marks.append(None if mark == MIN_WATERMARK else mark)
        self.harness.frame(frame_of(changes, marks))

    def restore(self) -> None:
        for subtask, watermark in enumerate(self.reached):  # it is sent before every barrier
            self.harness.watermark(watermark, subtask)
        self.late += sum(metrics.late_rows for metrics in self.harness.metrics)
        self.parallelism = self.chance.randrange(1, 5)
        self.harness = self.harness.restored(self.harness.snapshot(), self.parallelism)
        self.reached = [MIN_WATERMARK] * self.parallelism

    def end(self) -> None:
        self.harness.watermark(MAX_WATERMARK)
        self.model.advance(range(GROUPS), MAX_WATERMARK)
        self.late += sum(metrics.late_rows for metrics in self.harness.metrics)


def sent_by(harness: OperatorHarness) -> list[dict[str, Any]]:
    for frame in harness.collected.frames:
        assert frame[EVENT_TIME].to_list() == (frame["window_end"].to_physical() - 1).to_list()
    frames = [frame.with_columns(pl.col(KEYS[1:]).cast(pl.Int64)) for frame in harness.collected.frames]
    return [row for frame in frames for row in frame.drop(EVENT_TIME).to_dicts()]


def expected_of(model: Model) -> list[dict[str, Any]]:
    return [
        {
            **dict(zip(KEYS, (key, start, end), strict=True)),
            "rows": len(values),
            "total": sum(values),
            "most": max(values),
            "values": sorted(set(values)),
        }
        for key, start, end, values in model.sent
    ]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**9), aggregates=st.sampled_from([COUNTED, KEPT]), on_disk=st.booleans(), few=st.booleans()
)
def test_a_window_is_sent_once_with_what_holds_when_it_ends(seed, aggregates, on_disk, few):
    """Whatever is taken back, in whatever batches, whatever comes late, behind restores at other parallelisms."""
    print(f"{seed=}")
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        if few:
            patch.setattr(window_changes, "_KEYS_PER_FRAME", 2)
        play = Play(seed, aggregates, Path(folder) if on_disk else None)
        for _ in range(play.chance.randrange(12)):
            match play.chance.randrange(5):
                case 0:
                    subtask, mark = play.chance.randrange(play.parallelism), play.mark()
                    play.advance(subtask, mark)
                    play.harness.watermark(play.reached[subtask], subtask)
                case 1:
                    play.restore()
                case _:
                    play.batch()
        play.end()
        found = sent_by(play.harness)
        play.harness.close()
    expected = [{name: row[name] for name in (*KEYS, *aggregates)} for row in expected_of(play.model)]
    for row in found:
        row.get("values", []).sort()
    assert sorted(map(repr, found)) == sorted(map(repr, expected))
    assert play.late == play.model.late


def check_nothing_is_left(harness: OperatorHarness) -> None:
    (operator,) = harness.operators
    assert operator._table.all_keys() == []
    assert operator._others.kept_rows.all().is_empty()
    assert operator._due._keys == {}


def test_nothing_is_left_of_a_window_that_was_sent():
    harness = OperatorHarness(changes_node(KEPT))
    harness.frame(frame_of([("a", 1, 0, 10, False), ("a", 2, 20, 30, False), ("b", 3, 0, 10, False)]))
    before = harness.snapshot()
    harness.watermark(8)
    assert sent_by(harness) == []
    harness.watermark(9)
    assert [(row["key"], row["most"]) for row in sent_by(harness)] == [("a", 1), ("b", 3)]
    harness.watermark(29)
    check_nothing_is_left(harness)
    assert sum(len(data) for _, data in before.keyed) > 0
    restored = harness.restored(harness.snapshot(), 1)
    restored.watermark(29)
    check_nothing_is_left(restored)


def test_nothing_is_left_of_as_many_rows_that_were_never_there_as_rows_that_are():
    """Behind a restore, too, though the key had no result when the snapshot was taken."""
    harness = OperatorHarness(changes_node(KEPT))
    harness.frame(frame_of([("a", 1, 0, 10, False), ("a", 2, 0, 10, True)]))
    restored = harness.restored(harness.snapshot(), 1)
    for each in (harness, restored):
        each.watermark(9)
        assert sent_by(each) == []
        check_nothing_is_left(each)


def test_a_window_of_a_snapshot_is_sent_when_it_ends_and_not_before():
    harness = OperatorHarness(changes_node(KEPT))
    harness.frame(frame_of([("a", 1, 0, 10, False)]))
    restored = harness.restored(harness.snapshot(), 1)
    restored.watermark(8)
    assert sent_by(restored) == []
    restored.watermark(9)
    assert [row["most"] for row in sent_by(restored)] == [1]


def test_of_rows_that_were_never_there_nothing_is_sent():
    harness = OperatorHarness(changes_node(KEPT))
    harness.frame(frame_of([("a", 1, 0, 10, True), ("b", 1, 0, 10, False)]))
    harness.watermark(9)
    assert [row["key"] for row in sent_by(harness)] == ["b"]


def test_windows_are_sent_in_order_of_their_ends():
    harness = OperatorHarness(changes_node(COUNTED))
    harness.frame(frame_of([("a", 1, start, start + 10, False) for start in (20, 0, 30, 10)]))
    harness.watermark(MAX_WATERMARK)
    ends = [row["window_end"] for row in sent_by(harness)]
    assert ends == sorted(ends)
    assert len(ends) == 4


def test_state_of_other_windows_is_refused():
    harness = OperatorHarness(changes_node(COUNTED))
    harness.frame(frame_of([("a", 1, 0, 10, False)]))
    snapshot = harness.snapshot()
    other = changes_node(COUNTED, 20)
    with pytest.raises(IncompatibleStateError, match="other aggregates or windows"):
        OperatorHarness(other, restored=snapshot)
    assert state_signature(other) != state_signature(changes_node(COUNTED))
    assert state_signature(changes_node(KEPT)) != state_signature(changes_node(COUNTED))


@settings(max_examples=60, deadline=None)
@given(window=SHAPES, times=st.lists(st.integers(-100, 200), max_size=6))
def test_a_row_is_given_every_window_that_it_is_in(window, times):
    schema = Schema((Field("at", INT64), CHANGE))
    source = input_node(schema, row_class(schema), (), event_time=True)
    out = Schema((Field("at", INT64), *BOUNDS, CHANGE))
    node = Node("n1", AssignWindows(window), (source,), out, row_class(out), True, mode="retract")
    harness = OperatorHarness(node)
    frame = pl.DataFrame({"at": times, EVENT_TIME: times}, schema={"at": pl.Int64, EVENT_TIME: pl.Int64})
    harness.frame(frame.with_columns((pl.col("at") % 2 == 0).alias(RETRACTED)))
    found = [
        (row["at"], row["window_start"], row["window_end"], row[RETRACTED], row[EVENT_TIME])
        for frame in harness.collected.frames
        for row in frame.with_columns(pl.col("window_start", "window_end").cast(pl.Int64)).to_dicts()
    ]
    assert found == [(at, *bounds, at % 2 == 0, at) for at in times for bounds in windows_of(window, at)]


# -- in a pipeline ------------------------------------------------------------------------------------------------------

START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Order:
    id: int
    shop: str
    at: datetime
    euros: int


def orders_of(pipeline: Pipeline, rows: list[Order]) -> Any:
    """The newest version of each order; its time says nothing of when the version came."""
    return pipeline.read(iterables.Source(rows, schema=Order)).key_by("id").deduplicate("last")


def order(chance: random.Random) -> Order:
    return Order(
        chance.randrange(8), chance.choice("xy"), START + timedelta(seconds=chance.randrange(100)), chance.randrange(50)
    )


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    window=st.sampled_from([tumbling("20s"), sliding("20s", every="5s"), cumulative("40s", every="10s")]),
)
def test_windows_of_rows_that_are_corrected_are_those_of_the_last_rows(seed, window):
    chance = random.Random(seed)
    rows = [order(chance) for _ in range(chance.randrange(1, 40))]
    p = Pipeline("orders")
    timed = orders_of(p, rows).with_event_time("at", max_out_of_orderness="1h")
    results = {"n": count(), "most": col("euros").max(), "total": col("euros").sum()}
    found = timed.key_by("shop").window(window).agg(**results).collect()
    q = Pipeline("last")
    last = list({row.id: row for row in rows}.values())
    read = q.read(iterables.Source(last, schema=Order, event_time="at", max_out_of_orderness="1h"))
    expected = read.key_by("shop").window(window).agg(**results).collect()
    assert sorted(found.rows()) == sorted(expected.rows())


def test_corrected_windows_are_counted_in_larger_ones():
    """Windows of windows whose results late rows correct: they have bounds of their own, which go unread."""
    rows = [Order(1, "x", START + timedelta(seconds=at), 5) for at in (0, 70, 30, 65, 3)]
    p = Pipeline("orders")
    read = p.read(iterables.Source(rows, schema=Order, event_time="at"))
    per_minute = read.key_by("shop").window(tumbling("1m")).allowed_lateness("1h").agg(n=count())
    timed = per_minute.with_event_time(col("window_start"), max_out_of_orderness="2h")
    per_hour = timed.key_by("shop").window(tumbling("1h")).agg(minutes=count(), n=col("n").sum(), most=col("n").max())
    assert per_hour.drop("window_start", "window_end").collect().rows() == [("x", 2, 5, 3)]
    per_day = per_hour.key_by("shop").window(tumbling("1d")).agg(hours=count())
    assert per_day.select("shop", "hours").collect().rows() == [("x", 1)]


def test_what_is_late_is_counted_and_changes_nothing():
    rows = [Order(1, "x", START, 5), Order(2, "x", START + timedelta(minutes=5), 1), Order(1, "x", START, 7)]
    p = Pipeline("orders")
    timed = orders_of(p, rows).with_event_time("at")
    windows = timed.key_by("shop").window(tumbling("1m")).agg(total=col("euros").sum())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "BATCH_ROWS", 1)  # of the versions of an order in a batch the last one counts
        assert sorted(windows.select("total").collect().rows()) == [(1,), (5,)]


def timed(pipeline: Pipeline) -> Any:
    return orders_of(pipeline, []).with_event_time("at")


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (lambda p: orders_of(p, []).key_by("shop").window(tumbling("1h")), 'which column is its time: .with_event_time'),
        (lambda p: timed(p).key_by("shop").agg(n=count()).key_by("n").window(tumbling("1h")), "which column is its time"),
        (lambda p: timed(p).key_by("shop").window(session("1h")), "tumbling, sliding and cumulative"),
        (lambda p: timed(p).key_by("shop").window(global_()), "tumbling, sliding and cumulative"),
        (lambda p: timed(p).key_by("shop").window(tumbling("1h")).agg(v=col("id").first()), "depends on"),
        (lambda p: timed(p).key_by("shop").window(tumbling("1h")).agg(v=col(RETRACTED).any()), "reads retracted"),
        (lambda p: timed(p).key_by("shop").window(tumbling("1h")).allowed_lateness("1h"), "max_out_of_orderness"),
        (lambda p: timed(p).key_by("shop").window(tumbling("1h")).top(1, by="id"), "updates have agg here"),
        (lambda p: timed(p).rename({"shop": "window_end"}).key_by("window_end").window(tumbling("1h")).agg(n=count()),
         "window_end says which window"),
        (lambda p: timed(p).with_event_time("nowhere"), "nowhere"),
        (lambda p: timed(p).with_event_time(RETRACTED), "retracted"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(write, said):
    with pytest.raises(PipelineError, match=said):
        write(Pipeline("orders"))


def test_the_last_rows_of_changes_with_a_time_of_their_own_are_those_that_hold():
    """By no key: where rows are sorted by that time the newest row of a key is not the last one."""
    rows = [Order(1, "x", START, 5), Order(1, "x", START, 7), Order(2, "y", START, 1)]
    p = Pipeline("orders")
    changes = orders_of(p, rows).with_event_time("at").filter(col("euros") > lit(2))
    assert known_keys(changes._node) is None
    final = changes.final()
    assert final.select("id", "euros").collect().rows() == [(1, 7)]


def test_the_plan_says_what_is_done():
    p = Pipeline("orders")
    windows = timed(p).key_by("shop").window(tumbling("1h")).agg(n=count())
    said = describe_node(windows._node)
    assert said == {"keys": ["shop", *KEYS[1:]], "window": "tumbling('1h')", "aggregates": {"n": "count()"}}
