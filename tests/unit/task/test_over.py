"""Rows beside the rows of their key: what is computed is that of a plain loop, however rows and watermarks came."""

from __future__ import annotations

import functools
import math
import statistics
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from brute_force import Groups
from hypothesis import given, settings
from hypothesis import strategies as st
from window_cases import GROUPS, LATE, SCHEMA, frame_of, group_of, histories, late_rows, run

from penstock import Pipeline
from penstock.connectors import iterables
from penstock.core.batches import EVENT_TIME
from penstock.core.times import MAX_WATERMARK, MIN_WATERMARK
from penstock.errors import IncompatibleStateError, PipelineError
from penstock.expressions import Accumulator, aggregate, col, count, lag, lead, row_number
from penstock.plan.building.schemas import over_schema
from penstock.plan.logical import Node
from penstock.plan.operations.over import Over
from penstock.task.operators import over
from penstock.task.operators.over_plan import OverPlan
from penstock.testing.harness import OperatorHarness, input_node
from penstock.types import row_class


class Product(Accumulator[int, int]):
    accumulator_type = int

    def create(self) -> int:
        return 1

    def add(self, accumulator: int, value: int) -> int:
        return accumulator * (value + 1) % 1_000_003

    def merge(self, left: int, right: int) -> int:
        return left * right % 1_000_003

    def result(self, accumulator: int) -> int:
        return accumulator


VALUE = col("value")
COLUMNS = {
    "rows": count(),
    "total": VALUE.sum(),
    "cents": (VALUE / 100).sum(),
    "mean": VALUE.mean(),
    "least": VALUE.min(),
    "most": VALUE.max(),
    "first": VALUE.first(),
    "last": VALUE.last(),
    "values": VALUE.collect(),
    "odd": VALUE.first(filter=VALUE % 2 == 1),
    "kinds": (VALUE % 7).n_unique(),
    "tops": VALUE.top_k_by(VALUE % 5, 2),
    "about": (VALUE % 7).approx_n_unique(),
    "middle": VALUE.approx_quantile(0.5),
    "usual": (VALUE % 3).mode(),
    "best": (VALUE % 5).max_by(VALUE % 11),
    "product": aggregate(Product(), "value"),
    "share": VALUE - VALUE.mean(),
    "n": row_number(),
    "before": lag("value"),
    "third": lag(VALUE * 2, 3, default=-1),
}
AHEAD = {"next": lead("value"), "later": lead(VALUE + 1, 2, default=-1)}


def over_node(columns=COLUMNS, *, within=None, rows=None, late=LATE, schema=SCHEMA):
    source = input_node(schema, row_class(schema), ("key",), event_time=True)
    operation = Over(tuple(columns.items()), within, rows, late)
    schema = over_schema(operation.columns, schema)
    return Node("n1", operation, (source,), schema, row_class(schema), True)


@functools.cache
def node_of(*, ahead=False, **frame):
    return over_node({**COLUMNS, **AHEAD} if ahead else COLUMNS, **frame)


@pytest.fixture(autouse=True, scope="module")
def one_plan_per_node():
    """Histories restart their operators all the time, and making the plan of so many columns takes longer than a history.

    Plans keep nothing.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(over, "OverPlan", functools.cache(OverPlan))
        yield


@dataclass
class OverModel:
    """Flink's OVER of one key after the other, row by row, with everything kept."""

    within: int | None
    rows: int | None
    groups: Groups
    pending: list[tuple[Any, int, int]] = field(default_factory=list)
    past: dict[Any, list[tuple[int, int]]] = field(default_factory=dict)
    emitted: list[dict[str, Any]] = field(default_factory=list)
    late: list[tuple[Any, int, int]] = field(default_factory=list)

    def row(self, key: Any, time: int, value: int) -> None:
        (self.late if time <= self.groups.of(key) else self.pending).append((key, time, value))

    def watermark(self, groups: Any, watermark: int) -> None:
        self.groups.advance(groups, watermark)
        due = [row for row in self.pending if row[1] <= self.groups.of(row[0])]
        self.pending = [row for row in self.pending if row[1] > self.groups.of(row[0])]
        due.sort(key=lambda row: row[1])
        for key, time, value in due:
            self.past.setdefault(key, []).append((time, value))
        places: dict[Any, int] = {}
        for key, time, value in due:
            mine = self.past[key]
            place = places.get(key, len(mine) - sum(row[0] == key for row in due))
            places[key] = place + 1
            self.emitted.append({"key": key, "value": value, EVENT_TIME: time, **self.results(mine, place)})

    def results(self, mine: list[tuple[int, int]], place: int) -> dict[str, Any]:
        time, value = mine[place]
        if self.rows is not None:
            frame = mine[max(0, place - self.rows + 1) : place + 1]
        else:
            oldest = -math.inf if self.within is None else time - self.within
            frame = [row for row in mine if oldest <= row[0] <= time]
        values = [each for _, each in frame]
        mean, product = sum(values) / len(values), 1
        for each in values:
            product = product * (each + 1) % 1_000_003
        return {
            "rows": len(values), "total": sum(values), "cents": math.fsum(each / 100 for each in values), "mean": mean,
            "least": min(values), "most": max(values), "first": values[0], "last": values[-1], "values": values,
            "odd": next((each for each in values if each % 2), None), "kinds": len({each % 7 for each in values}),
            "tops": sorted(values, key=lambda each: -(each % 5))[:2],
            "about": len({each % 7 for each in values}), "middle": float(statistics.median(values)),
            "usual": statistics.mode(each % 3 for each in values),
            "best": max(values, key=lambda each: each % 11) % 5, "product": product, "share": value - mean,
            "n": place + 1, "before": mine[place - 1][1] if place else None,
            "third": mine[place - 3][1] * 2 if place >= 3 else -1,
        }  # fmt: skip


FRAMES = [{}, {"within": 0}, {"within": 7}, {"within": 40}, {"rows": 1}, {"rows": 3}]


def sent(harness: OperatorHarness) -> list[dict[str, Any]]:
    """What was sent. A difference of zeros is -0.0 to Polars where all rows of a batch share the first one."""
    rows = [row for frame in harness.collected.frames for row in frame.to_dicts()]
    return [{name: value + 0.0 if isinstance(value, float) else value for name, value in row.items()} for row in rows]


def in_order(rows: list[dict[str, Any]], *, by: str = "n") -> list[str]:
    return sorted(repr((row["key"], row[by], sorted(row.items()))) for row in rows)


@pytest.mark.parametrize("frame", FRAMES, ids=str)
@settings(max_examples=40, deadline=None)
@given(steps=histories(st.integers(0, 60)), parallelism=st.integers(1, 3))
def test_every_row_has_what_a_loop_over_its_key_finds(frame, steps, parallelism):
    """Batches, watermarks between rows and between subtasks, restores, rescales: no row is late that the loop takes."""
    node = node_of(**frame)
    model = OverModel(frame.get("within"), frame.get("rows"), Groups(group_of))
    harness = run(node, steps, model, parallelism)
    assert in_order(sent(harness)) == in_order(model.emitted)
    assert sorted(map(repr, late_rows(harness))) == sorted(map(repr, model.late))


@pytest.mark.parametrize("frame", FRAMES, ids=str)
@settings(max_examples=40, deadline=None)
@given(steps=histories(st.integers(0, 60)), parallelism=st.integers(1, 3))
def test_a_row_waits_for_those_that_it_looks_ahead_to(frame, steps, parallelism):
    """It has what they have, or the default at the end; all else is as without."""
    model = OverModel(frame.get("within"), frame.get("rows"), Groups(group_of))
    harness = run(node_of(ahead=True, **frame), steps, model, parallelism)
    for key, rows in model.past.items():
        for row in (each for each in model.emitted if each["key"] == key):
            place = row["n"] - 1
            row["next"] = rows[place + 1][1] if place + 1 < len(rows) else None
            row["later"] = rows[place + 2][1] + 1 if place + 2 < len(rows) else -1
            row[EVENT_TIME] = rows[place + 2][0] if place + 2 < len(rows) else None
    found = sent(harness)
    for row in found:
        if row["later"] == -1:
            assert row[EVENT_TIME] >= model.past[row["key"]][-1][0]
            row[EVENT_TIME] = None
    assert in_order(found) == in_order(model.emitted)


@settings(max_examples=30, deadline=None)
@given(rows=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 30), st.integers(0, 99)), max_size=40))
def test_rows_leave_in_order_of_their_time_and_never_behind_the_watermark(rows):
    """Also those that waited, and those whose successor never came."""
    columns = {"n": row_number(), "next": lead("value", 2)}
    for size in (1, 2, 7, 100):
        harness = OperatorHarness(over_node(columns))
        least = MIN_WATERMARK
        for begin in range(0, len(rows), size):
            harness.frame(frame_of(rows[begin : begin + size]))
            least = max(least, max(time for _, time, _ in rows[begin : begin + size]) - 10)
            seen = len(harness.collected.frames)
            before = harness.collected.watermarks[-1:] or [MIN_WATERMARK]
            harness.watermark(least)
            new = [row[EVENT_TIME] for frame in harness.collected.frames[seen:] for row in frame.to_dicts()]
            assert all(time > before[0] for time in new)
        harness.watermark(MAX_WATERMARK)
        times = [row[EVENT_TIME] for row in sent(harness)]
        assert times == sorted(times)


def test_many_rows_that_are_due_at_once_leave_in_parts(monkeypatch):
    """The parts are those of all together, and rows of equal time are not torn apart."""
    monkeypatch.setattr("penstock.task.operators.over._ROWS_AT_ONCE", 5)
    rows = [("ab"[n % 2], n // 7, n) for n in range(60)]
    harness = OperatorHarness(over_node(within=3))
    harness.frame(frame_of(rows))
    parts = 0
    while harness.operators[0].fire_due(100, harness.collected):
        parts += 1
    model = OverModel(3, None, Groups(group_of))
    for row in rows:
        model.row(*row)
    model.watermark(range(GROUPS), 100)
    assert parts > 5
    assert in_order(sent(harness)) == in_order(model.emitted)


@pytest.mark.parametrize(
    ("columns", "left"), [({"total": VALUE.sum()}, 0), ({"total": VALUE.sum(), "n": row_number()}, 1)]
)
def test_what_no_frame_reaches_back_to_is_forgotten(columns, left):
    """A key that no row comes for does not keep its rows: all of it goes, or its number alone stays."""
    harness = OperatorHarness(over_node(columns, within=10))
    harness.frame(frame_of([("a", 5, 1), ("a", 6, 2)]))
    harness.watermark(8)
    table = harness.operators[0]._table
    assert len(table.all_keys()) == 1
    harness.watermark(40)
    assert len(table.all_keys()) == left
    assert all(value in ([], 2) for row in table.rows(table.all_keys()) for value in row)


def test_a_snapshot_of_other_columns_is_refused():
    """What is kept for a sum is no maximum."""
    harness = OperatorHarness(over_node({"total": VALUE.sum()}), max_parallelism=GROUPS)
    harness.frame(frame_of([("a", 1, 5)]))
    harness.watermark(3)
    snapshot = harness.snapshot()
    with pytest.raises(IncompatibleStateError, match="other columns over rows"):
        OperatorHarness(over_node({"n": row_number()}), max_parallelism=GROUPS, restored=snapshot)


class Folds(Product):
    """Counts how often partials were merged."""

    merges = 0

    def merge(self, left: int, right: int) -> int:
        Folds.merges += 1
        return super().merge(left, right)


def test_many_rows_of_one_key_that_are_due_at_once_do_not_all_look_at_all_others(monkeypatch):
    monkeypatch.setattr("penstock.task.operators.over._ROWS_OF_A_KEY", 10)
    monkeypatch.setattr(Folds, "merges", 0)
    rows = [("a", place // 3, place) for place in range(300)]
    harness = OperatorHarness(over_node({"product": aggregate(Folds(), "value")}), max_parallelism=GROUPS)
    harness.frame(frame_of(rows))
    harness.watermark(MAX_WATERMARK)
    assert Folds.merges < 300 * 2 * 12
    model = OverModel(None, None, Groups(group_of))
    for row in rows:
        model.row(*row)
    model.watermark(range(GROUPS), MAX_WATERMARK)
    assert [row["product"] for row in harness.output()] == [row["product"] for row in model.emitted]


@pytest.mark.parametrize("function", ["max_by", "min_by", "first", "last"])
def test_a_map_of_one_row_is_refused(function):
    """Polars cannot reorder maps that are all null, and would end the process."""
    schema = pa.schema(
        {"key": pa.string(), "labels": pa.map_(pa.string(), pa.int64()), "at": pa.timestamp("us", "UTC")}
    )
    keyed = Pipeline("maps").read(iterables.Source([], schema=schema, event_time="at")).key_by("key")
    labels = col("labels")
    chosen = getattr(labels, function)(*(["at"] if function.endswith("_by") else []))
    with pytest.raises(PipelineError, match=rf"over: {function} of map\[string, int64\] is not possible"):
        keyed.over().with_columns(one=chosen)
