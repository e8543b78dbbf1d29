"""Functions without key, time by the clock, event time on the way, encoders: histories of batches, restores, rescales."""

from __future__ import annotations

import dataclasses
from typing import Any

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st
from window_cases import GROUPS, SCHEMA, Batch, Mark, Restore, frame_of, histories

from penstock.connectors.base import EventTime
from penstock.connectors.declaring import watermark_strategy
from penstock.connectors.event_times import event_time_form
from penstock.connectors.kafka.encoding import KafkaEncoder, RecordShape
from penstock.connectors.kafka.limits import TopicLimits
from penstock.core.batches import EVENT_TIME
from penstock.core.times import MIN_WATERMARK
from penstock.expressions import col
from penstock.functions.process_functions import OperatorListState, Process, UnionListState
from penstock.plan.logical import Node
from penstock.plan.operations.event_time import AssignEventTime, AssignProcessingTime
from penstock.task.operators.encode import EncodeOperator
from penstock.testing.harness import OperatorHarness, input_node, process_node
from penstock.types import row_class

HISTORIES = histories(st.integers(0, 100))


@dataclasses.dataclass
class Row:
    key: str | None
    value: int


class Remembering(Process[Row, Row]):
    """Keeps every value that it has seen, and the largest of each subtask."""

    seen = OperatorListState(int)
    largest = UnionListState(int)

    def on_row(self, row, ctx):
        self.seen.add(row.value)
        self.largest.update([max([row.value, *self.largest.get()])])
        ctx.emit(row)


@settings(max_examples=40, deadline=None)
@given(steps=HISTORIES)
def test_lists_of_functions_without_key_lose_and_double_nothing(steps: Any) -> None:
    """Every value is in the list of one subtask, and each subtask knows a largest value that was there."""
    harness = OperatorHarness(process_node(Remembering(), Row), max_parallelism=GROUPS)
    fed: list[int] = []
    for step in steps:
        if isinstance(step, Batch):
            harness.frame(frame_of(step.rows).drop(EVENT_TIME))
            fed += [value for _, _, value in step.rows]
        elif isinstance(step, Restore):
            harness = harness.restored(harness.snapshot(), step.parallelism)
    states = [operator._states.bound for operator in harness.operators]
    assert sorted(value for bound in states for value in bound["seen"].get()) == sorted(fed)
    assert max([value for bound in states for value in bound["largest"].get()], default=-1) == max(fed, default=-1)
    assert [row["value"] for row in harness.output()] == fed


@settings(max_examples=40, deadline=None)
@given(steps=HISTORIES, clocks=st.lists(st.integers(0, 10_000), min_size=14, max_size=14))
def test_time_by_the_clock_never_goes_back(steps: Any, clocks: list[int]) -> None:
    """Whatever the clock of another machine says after a restore; no row is behind the watermark before it."""
    source = input_node(SCHEMA, row_class(SCHEMA))
    node = Node("n1", AssignProcessingTime(200), (source,), SCHEMA, row_class(SCHEMA), event_time=True)
    harness = OperatorHarness(node, max_parallelism=GROUPS)
    reached, fed = MIN_WATERMARK, 0
    for step, clock in zip(steps, clocks, strict=False):
        harness.now_us = clock
        if isinstance(step, Batch):
            before = len(harness.collected.frames)
            harness.frame(frame_of(step.rows))
            times = [time for frame in harness.collected.frames[before:] for time in frame[EVENT_TIME]]
            assert all(time == max(clock, reached + 1) for time in times)
            assert len(times) == len(step.rows)
            fed += len(step.rows)
        elif isinstance(step, Restore):
            harness = harness.restored(harness.snapshot(), 1)
        reached = max([reached, *harness.collected.watermarks])
        assert harness.collected.watermarks == sorted(harness.collected.watermarks)
    assert sum(frame.height for frame in harness.collected.frames) == fed


@settings(max_examples=40, deadline=None)
@given(steps=HISTORIES)
def test_watermarks_of_event_time_on_the_way_are_those_of_the_rows(steps: Any) -> None:
    """One below the largest time so far, whatever the batches, also behind a restore; what came before says nothing."""
    form = event_time_form("with_event_time", col("value") * 1_000, SCHEMA, unit="us", format=None, timezone=None)
    operation = AssignEventTime(EventTime(form, watermark_strategy("with_event_time", "0s", None)))
    source = input_node(SCHEMA, row_class(SCHEMA), event_time=True)
    node = Node("n1", operation, (source,), SCHEMA, row_class(SCHEMA), event_time=True)
    harness = OperatorHarness(node, max_parallelism=GROUPS)
    largest = -1
    for step in steps:
        if isinstance(step, Batch):
            harness.frame(frame_of(step.rows))
            largest = max([largest, *(value for _, _, value in step.rows)])
        elif isinstance(step, Mark):
            harness.watermark(step.watermark)
        elif isinstance(step, Restore):
            harness = harness.restored(harness.snapshot(), 1)
        said = max(harness.collected.watermarks, default=MIN_WATERMARK)
        assert said == (largest * 1_000 - 1 if largest >= 0 else MIN_WATERMARK)
        assert harness.collected.watermarks == sorted(
            harness.collected.watermarks
        )  # no row is less late than without it


@settings(max_examples=40, deadline=None)
@given(steps=HISTORIES, parallelism=st.integers(1, 3))
def test_records_are_the_same_however_rows_were_batched(steps: Any, parallelism: int) -> None:
    """An encoder keeps nothing: what it makes of a row is a function of the row."""

    def encode() -> EncodeOperator:
        return EncodeOperator(
            KafkaEncoder("topic", SCHEMA, RecordShape("json", ("key",), None, None, {}), TopicLimits(1_000), "skip")
        )

    harness = OperatorHarness(encode, parallelism=parallelism, max_parallelism=GROUPS)
    whole = OperatorHarness(encode, max_parallelism=GROUPS)
    rows: list[Any] = []
    for step in steps:
        if isinstance(step, Batch):
            harness.frame(frame_of(step.rows))
            rows += step.rows
        elif isinstance(step, Restore):
            again = OperatorHarness(
                encode, parallelism=step.parallelism, max_parallelism=GROUPS, restored=harness.snapshot()
            )
            again.collected.frames += harness.collected.frames
            harness = again
    if rows:
        whole.frame(frame_of(rows))
    made, expected = (pl.concat(each.collected.frames).rows() if rows else [] for each in (harness, whole))
    assert made == expected
