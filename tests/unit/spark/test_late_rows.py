"""How many rows would have been late for an operator, of those that Spark puts in order of time before it sees them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import polars as pl
import pytest

from penstock import Pipeline, count, tumbling
from penstock.connectors import collecting, iterables
from penstock.core.batches import EVENT_TIME, WATERMARK
from penstock.plan.logical import Node
from penstock.plan.operations.window_aggregate import WindowAggregate
from penstock.spark.late_rows import LateRowsKept
from penstock.state.hashing import key_groups

SECOND_US = 1_000_000
GROUPS = 8


@dataclass
class Row:
    key: str
    at: datetime


@pytest.fixture
def windows() -> Node:
    """Ten seconds, without lateness that is allowed."""
    p = Pipeline("late")
    rows = p.read(iterables.Source([Row("a", datetime.now(UTC))], schema=Row, event_time="at"))
    rows.key_by("key").window(tumbling("10s")).agg(n=count()).write(collecting.Sink([]))
    return next(node for node in p.plan if isinstance(node.operation, WindowAggregate))


def frame(*rows: tuple[str, int, int]) -> pl.DataFrame:
    """Key, time and watermark in microseconds."""
    keys, times, watermarks = zip(*rows, strict=True)
    return pl.DataFrame({"key": keys, EVENT_TIME: times, WATERMARK: watermarks}, schema_overrides={"key": pl.String})


def counted(node: Node, restored: dict[int, int], *frames: pl.DataFrame) -> int:
    kept = LateRowsKept(node, GROUPS, restored)
    for each in frames:
        kept.look_at(each)
    return kept.rows


@pytest.mark.parametrize(
    ("time", "watermark", "late"),
    [
        (9 * SECOND_US, 9_999_998, 0),  # behind, and its window is open
        (9 * SECOND_US, 9_999_999, 1),  # the last microsecond of the window has come
        (9_999_999, 9_999_999, 1),
        (10 * SECOND_US, 9_999_999, 0),
        (10 * SECOND_US, 25 * SECOND_US, 1),
    ],
)
def test_a_row_is_late_whose_window_is_over(windows, time, watermark, late) -> None:
    assert counted(windows, {}, frame(("a", time, watermark))) == late


def test_rows_of_all_batches_are_counted(windows) -> None:
    late, in_time = ("a", 0, 20 * SECOND_US), ("a", 21 * SECOND_US, 20 * SECOND_US)
    assert counted(windows, {}, frame(late, in_time), frame(in_time), frame(late, late)) == 3
    assert counted(windows, {}, frame(late).drop(WATERMARK)) == 0


def test_what_is_late_for_the_state_is_counted_by_the_operator(windows) -> None:
    """Of key groups that were further in the savepoint than the row: here only what is late for this run alone."""
    given = frame(("a", 0, 20 * SECOND_US), ("a", 15 * SECOND_US, 40 * SECOND_US))
    (group,) = key_groups(given.head(1), ["key"], GROUPS)
    assert counted(windows, {group: 12 * SECOND_US}, given) == 1
    assert counted(windows, {group: 30 * SECOND_US}, given) == 0
    assert counted(windows, {(group + 1) % GROUPS: 30 * SECOND_US}, given) == 2
