"""State of joins, rows beside rows and changes as tables, also where subtasks hold different things."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest
from stored import UID, export

from penstock import Pipeline, col, count, savepoint
from penstock.batches import EVENT_TIME
from penstock.connectors import collecting, iterables
from penstock.graph.logical import RETRACTED, AggregateChanges, Join, Node, Over, RegularJoin, Top
from penstock.savepoint.listing import rows_of
from penstock.testing.harness import OperatorHarness
from penstock.times import to_micros

START = datetime(2026, 1, 1, tzinfo=UTC)
AT_ONCE, LATER = 1, 50
OPERATIONS = {
    "as-of join": Join, "join in time": Join, "join by key": RegularJoin, "over": Over, "top": Top,
    "min of changes": AggregateChanges, "top of changes": Top,
}  # fmt: skip


@dataclass
class Event:
    key: str
    value: int
    at: datetime


def node_of(verb: str) -> Node:
    """The operator of a pipeline with that verb."""
    pipeline = Pipeline("p")
    left, right = (pipeline.read(iterables.Source([], schema=Event, event_time="at")) for _ in range(2))
    match verb:
        case "as-of join":
            stream = left.join(right, on="key", as_of=True)
        case "join in time":
            stream = left.join(right, on="key", within="1h", how="left")
        case "join by key":
            stream = left.join(right, on="key", how="left")
        case "over":
            stream = left.key_by("key").over().with_columns(total=col("value").sum())
        case "top":
            stream = left.key_by("key").top(2, by="value")
        case _:
            totals = left.key_by("key").agg(n=count(), value=col("value").sum())
            keyed = totals.key_by("key")
            stream = keyed.top(1, by="value") if verb == "top of changes" else keyed.agg(least=col("value").min())
    stream.write(collecting.Sink())
    return next(node for node in reversed(list(pipeline.plan)) if type(node.operation) is OPERATIONS[verb])


def frame_of(source: Node, key: str, value: int, second: int) -> pl.DataFrame:
    """A row of an input."""
    at = START + timedelta(seconds=second)
    values = {
        "key": key,
        "value": value,
        "value_right": value,
        "n": 1,
        "at": at,
        "at_right": at,
        RETRACTED: False,
        EVENT_TIME: to_micros(at),
    }
    types = source.schema.polars() | {EVENT_TIME: pl.Int64()}
    return pl.DataFrame({name: [values[name]] for name in types}, types)


@pytest.mark.parametrize("verb", OPERATIONS)
@pytest.mark.parametrize("keys", [6, 40])
def test_rows_of_every_operator_with_columns_are_read(verb, keys, tmp_path):
    """Of both inputs, of those that wait and of those that do not: each in other subtasks and key groups."""
    node = node_of(verb)
    harness = OperatorHarness(node, parallelism=3, max_parallelism=16)
    for place in range(keys):
        for number in range(len(node.inputs)):
            if (place + number) % 3:
                second = LATER if place % 2 else AT_ONCE
                harness.frame(frame_of(node.inputs[number], f"key {place}", place, second), number)
    harness.watermark(START + timedelta(seconds=LATER - 1))
    kept = savepoint.read(export(harness, node, tmp_path / "kept"))
    rows = rows_of(kept, UID)
    assert rows.height > keys // 3
    assert kept.table(UID).height == rows.height
    by_group = [table for _, table in kept.tables(UID)]
    assert sum(table.height for table in by_group) == rows.height
    assert {*rows["key"]} == {key for table in by_group for key in table["key"]}
