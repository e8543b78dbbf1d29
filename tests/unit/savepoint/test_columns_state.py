"""State of joins, rows beside rows and changes as tables, also where subtasks hold different things."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest
from stored import UID, export

from penstock import Pattern, Pipeline, col, count, savepoint
from penstock.cli.state import ShowState, state_command
from penstock.connectors import collecting, iterables
from penstock.core.batches import EVENT_TIME
from penstock.core.times import to_micros
from penstock.functions.windows.definitions import RETRACTED
from penstock.plan.logical import Node
from penstock.plan.operations.aggregate_changes import AggregateChanges
from penstock.plan.operations.join import Join
from penstock.plan.operations.match_rows import MatchRows
from penstock.plan.operations.over import Over
from penstock.plan.operations.over_current import OverCurrent
from penstock.plan.operations.regular_join import RegularJoin
from penstock.plan.operations.sort import Sort
from penstock.plan.operations.temporal_filter import TemporalFilter
from penstock.plan.operations.top import Top
from penstock.savepoint.listing import rows_of
from penstock.testing.harness import OperatorHarness

START = datetime(2026, 1, 1, tzinfo=UTC)
AT_ONCE, LATER = 1, 50
OPERATIONS = {
    "as-of join": Join, "join in time": Join, "join by key": RegularJoin, "over": Over, "top": Top,
    "min of changes": AggregateChanges, "top of changes": Top, "over changes": OverCurrent,
    "temporal filter": TemporalFilter, "sort": Sort, "match": MatchRows, "copies of changes": AggregateChanges,
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
        case "temporal filter":
            stream = left.key_by("key").top(1, by="value").temporal_filter(valid_until=col("at") + timedelta(hours=1))
        case "match":
            never = Pattern.begin("low").followed_by("high", col("value") < 0)
            stream = left.key_by("key").match(never).select("key", "low.at")
        case "sort":
            stream = left.sort("value")
        case "top":
            stream = left.key_by("key").top(2, by="value")
        case _:
            totals = left.key_by("key").agg(n=count(), value=col("value").sum())
            keyed = totals.key_by("key")
            stream = {
                "top of changes": lambda: keyed.top(1, by="value"),
                "over changes": lambda: keyed.over("value").with_columns(total=col("value").sum()),
                "copies of changes": lambda: totals.minus(left.select("key", n="value", value="value"), all=True),
                "min of changes": lambda: keyed.agg(least=col("value").min()),
            }[verb]()
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
        "rank": 1,
        "left": True,
        "at": at,
        "at_right": at,
        "valid_until": at + timedelta(hours=1),
        "all": True,
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


def test_a_span_that_ends_behind_the_calendar_is_shown(tmp_path, capsys):
    """Python has no such moment."""
    pipeline = Pipeline("p")
    rows = pipeline.read(iterables.Source([], schema=Event, event_time="at"))
    rows.temporal_filter(valid_until=col("at") + timedelta(days=400)).write(collecting.Sink())
    node = next(node for node in reversed(list(pipeline.plan)) if isinstance(node.operation, TemporalFilter))
    harness = OperatorHarness(node)
    at = datetime(9999, 12, 31, tzinfo=UTC)
    frame = frame_of(node.inputs[0], "a", 1, 0).with_columns(at=pl.lit(at).dt.cast_time_unit("us"))
    harness.frame(frame.with_columns(valid_until=pl.col("at") + timedelta(days=400)))
    export(harness, node, tmp_path / "kept")
    for as_json in (False, True):
        asked = ShowState(cluster=None, json=as_json, savepoint=str(tmp_path / "kept"), uid=UID, key=None, to=None)
        assert state_command(asked) == 0
        assert "10001-02-03" in capsys.readouterr().out
