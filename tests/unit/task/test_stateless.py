"""Operators without state: rows come out the same however they are cut into batches, behind restores and rescales too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_cases import GROUPS, SCHEMA, Batch, Restore, frame_of, histories

from penstock.connectors.base import EventTime
from penstock.connectors.declaring import watermark_strategy
from penstock.connectors.event_times import event_time_form
from penstock.core.batches import EVENT_TIME, WATERMARK
from penstock.core.times import MAX_WATERMARK, MIN_WATERMARK
from penstock.expressions import col, when
from penstock.plan.logical import Node
from penstock.plan.operation import Operation
from penstock.plan.operations.event_time import AssignEventTime
from penstock.plan.operations.explode import Explode
from penstock.plan.operations.filter import Filter
from penstock.plan.operations.map_batches import MapBatches
from penstock.plan.operations.map_rows import MapRows
from penstock.plan.operations.project import Project
from penstock.protocol.keygroups import key_group_range
from penstock.task.operator import OperatorContext
from penstock.task.operators import build_operator
from penstock.testing.harness import Collector, OperatorHarness, input_node
from penstock.types import INT32, INT64, STRING, Field, ListType, Schema, row_class, schema_of


@dataclass
class Made:
    name: str | None
    half: float


def one(row: Any) -> Made:
    return Made(row.key, row.value / 2)


def several(row: Any) -> Iterator[Made]:
    for part in range(row.value % 4):
        yield Made(row.key, float(part))


def halves(row: tuple[Any, int, int]) -> list[tuple[Any, ...]]:
    return [(row[0], row[2] / 2)]


SPLIT = Schema((*SCHEMA, Field("all", ListType(INT64))))
NUMBERED = (Field("all", INT64, nullable=True), Field("n", INT32, nullable=True))
FORM = event_time_form("with_event_time", col("value") * 1_000, SCHEMA, unit="us", format=None, timezone=None)


def node(operation: Operation, schema: Schema, source: Schema = SCHEMA) -> Node:
    row_type = Made if schema.names == ("name", "half") else row_class(schema)
    return Node(
        "n1", operation, (input_node(source, row_class(source), ("key",), event_time=True),), schema, row_type, True
    )


PROJECT = node(
    Project("select", (("key", col("key")), ("twice", col("value") * 2), ("odd", when(col("value") % 2 == 1).then(1)))),
    Schema((Field("key", STRING, nullable=True), Field("twice", INT64), Field("odd", INT64, nullable=True))),
)
CASES: dict[str, tuple[Node, Any]] = {
    "project": (PROJECT, lambda row: [(row[0], row[2] * 2, 1 if row[2] % 2 else None)]),
    "filter": (node(Filter(col("value") % 3 == 0), SCHEMA), lambda row: [(row[0], row[2])] if row[2] % 3 == 0 else []),
    "explode": (
        node(Explode(("all",)), Schema((*SCHEMA, Field("all", INT64, nullable=True))), SPLIT),
        lambda row: [(row[0], row[2], each) for each in list(range(row[2] % 3)) or [None]],
    ),
    "numbered": (
        node(Explode(("all",), "n"), Schema((*SCHEMA, *NUMBERED)), SPLIT),
        lambda row: [(row[0], row[2], each, each + 1) for each in range(row[2] % 3)] or [(row[0], row[2], None, None)],
    ),
    "numbered without empty ones": (
        node(Explode(("all",), "n", keep_empty=False), Schema((*SCHEMA, *NUMBERED)), SPLIT),
        lambda row: [(row[0], row[2], each, each + 1) for each in range(row[2] % 3)],
    ),
    "map": (node(MapRows(one, flat=False), schema_of(Made)), halves),
    "flat_map": (
        node(MapRows(several, flat=True), schema_of(Made)),
        lambda row: [(row[0], float(part)) for part in range(row[2] % 4)],
    ),
    "map_batches": (node(MapBatches(lambda batch: batch), SCHEMA), lambda row: [(row[0], row[2])]),
}


EXPLODED = ("explode", "numbered", "numbered without empty ones")


def batch_of(case: str, rows: list[tuple[Any, int, int]]) -> pl.DataFrame:
    frame = frame_of(rows)
    if case not in EXPLODED:
        return frame
    lists = pl.Series("all", [list(range(value % 3)) for _, _, value in rows], dtype=pl.List(pl.Int64))
    return frame.insert_column(2, lists)


@pytest.mark.parametrize("case", CASES)
def test_any_batches_and_restores_give_what_a_loop_gives(case: str) -> None:
    """Every row with its event time, those of a key in order."""
    of, model = CASES[case]

    @settings(max_examples=25, deadline=None)
    @given(steps=histories(st.integers(0, 100)))
    def played(steps: Any) -> None:
        harness = OperatorHarness(of, max_parallelism=GROUPS)
        expected: list[tuple[Any, ...]] = []
        for step in steps:
            if isinstance(step, Batch):
                harness.frame(batch_of(case, step.rows))
                expected += [(*made, row[1]) for row in step.rows for made in model(row)]
            elif isinstance(step, Restore):
                harness = harness.restored(harness.snapshot(), step.parallelism)
        sent = [tuple(row.values()) for frame in harness.collected.frames for row in frame.to_dicts()]
        for key in {row[0] for row in expected}:
            assert [row for row in sent if row[0] == key] == [row for row in expected if row[0] == key]
        assert len(sent) == len(expected)

    played()


@settings(max_examples=40, deadline=None)
@given(steps=histories(st.integers(0, 100)))
def test_rows_get_the_event_time_that_is_said_whatever_the_batches(steps: Any) -> None:
    """Also behind a restore."""
    operation = AssignEventTime(EventTime(FORM, watermark_strategy("with_event_time", "0s", None)))
    harness = OperatorHarness(node(operation, SCHEMA), max_parallelism=GROUPS)
    fed: list[int] = []
    for step in steps:
        if isinstance(step, Batch):
            harness.frame(frame_of(step.rows))
            fed += [value for _, _, value in step.rows]
        elif isinstance(step, Restore):
            harness = harness.restored(harness.snapshot(), step.parallelism)
    sent = [row for frame in harness.collected.frames for row in frame.to_dicts()]
    assert sorted(row["value"] for row in sent) == sorted(fed)
    assert all(row[EVENT_TIME] == row["value"] * 1_000 for row in sent)


@pytest.mark.parametrize("carries", [True, False])
def test_watermarks_of_the_input_are_held_back(carries: bool) -> None:
    """Also those that rows carry; the beginning and the end of time stay what they are."""
    strategy = watermark_strategy("with_event_time", "5s", None)
    operator = build_operator(node(AssignEventTime(EventTime(FORM, strategy), delays_input=True), SCHEMA))
    context = OperatorContext("timed", 0, 1, GROUPS, key_group_range(GROUPS, 1, 0), int, carries_watermarks=carries)
    operator.open(context, None)
    output = Collector()
    operator.process(frame_of([("a", 0, 20_000)]), output)
    operator.advance(20_000_000, output)
    marks = pl.Series(WATERMARK, [None, 21_000_000, MAX_WATERMARK])
    operator.process(frame_of([("a", 0, 15_001), ("a", 0, 16_000), ("a", 0, 30_000)]).with_columns(marks), output)
    operator.advance(MAX_WATERMARK, output)
    first, second = output.frames
    assert second[EVENT_TIME].to_list() == [15_001_000, 16_000_000, 30_000_000]
    assert second[WATERMARK].to_list() == [15_000_000 if carries else None, 16_000_000, MAX_WATERMARK]
    assert (first[WATERMARK].to_list() == [MIN_WATERMARK]) if carries else WATERMARK not in first.columns
    assert output.watermarks == [15_000_000, MAX_WATERMARK]
