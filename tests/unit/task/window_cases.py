"""What the tests of windows share: nodes, histories of batches, watermarks and restores, and how they are run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
import pytest
from hypothesis import strategies as st

from penstock.core.batches import EVENT_TIME, WATERMARK
from penstock.core.times import MAX_WATERMARK, MIN_WATERMARK
from penstock.expressions import AggregatePlan, Expr, col, count
from penstock.functions.process_functions import OutputTag
from penstock.functions.windows.definitions import Window
from penstock.plan.logical import Node
from penstock.plan.operations.window_aggregate import WindowAggregate
from penstock.protocol.keygroups import key_group_range, subtask_of
from penstock.state import sorted_runs
from penstock.state.hashing import key_group_of
from penstock.task.combining import Combiner
from penstock.task.operators import session_store, session_window, waiting_rows
from penstock.testing.harness import OperatorHarness, input_node
from penstock.types import INT64, STRING, Field, Schema, row_class

SCHEMA = Schema((Field("key", STRING, nullable=True), Field("value", INT64)))
LATE: OutputTag[Any] = OutputTag("late")
AGGREGATES: tuple[tuple[str, Expr], ...] = (
    ("rows", count()),
    ("total", col("value").sum()),
    ("values", col("value").collect()),
    ("cents", (col("value") / 100).sum()),
    ("spread", (col("value") / 100).var(ddof=0)),
    ("even", count(filter=col("value") % 2 == 0)),
    ("great", (col("value") > 5_000).any()),
    ("distinct", (col("value") % 7).collect_distinct()),
    ("most", (col("value") % 3).mode()),
    ("usual", (col("value") % 5).mode("least")),
    ("least", col("value").max_by(-col("value"))),
    ("tied", col("value").max_by(col("value") * 0)),
    ("about", (col("value") % 7).approx_n_unique()),
    ("middle", col("value").approx_quantile(0.5)),
)
GROUPS = 8
PLACES = st.sampled_from(["one run", "small runs", "disk"])
KEYS = ["a", "b", "c", "d", "e", None]


@contextmanager
def kept_in(place: str) -> Iterator[Path | None]:
    """Rows lie together, as few do, or in runs of few, merged in pieces, or those on the local disk."""
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        if place != "one run":
            for name in ("_LEAST_ROWS", "_PIECE_ROWS", "_LOOKED_THROUGH_ROWS"):
                patch.setattr(sorted_runs, name, 2)
            patch.setattr(session_store, "ROWS_AT_ONCE", 2)
            patch.setattr(session_window, "ROWS_AT_ONCE", 2)
            patch.setattr(waiting_rows, "_ROWS_AT_ONCE", 2)
        if place == "disk":
            patch.setattr(sorted_runs, "_ON_DISK_ROWS", 3)
            patch.setattr(waiting_rows, "_HELD_ROWS", 3)
        yield Path(folder) if place == "disk" else None
        assert not list(Path(folder).iterdir())


def window_node(
    window: Window,
    *,
    aggregates: Sequence[tuple[str, Expr]] = AGGREGATES,
    schema: Schema = SCHEMA,
    keys: Sequence[str] = ("key",),
    lateness: int = 0,
    late: OutputTag[Any] | None = None,
) -> Node:
    """A window aggregate over rows of `schema`."""
    source = input_node(schema, row_class(schema), keys, event_time=True)
    plan = AggregatePlan.build(aggregates, schema)
    operation = WindowAggregate(window, tuple(aggregates), lateness, late)
    out = Schema((*schema.select(keys), *operation.window_fields, *plan.output_fields))
    return Node("n1", operation, (source,), out, row_class(out), True, keys=tuple(keys))


def frame_of(rows: Sequence[tuple[Any, int, int]]) -> pl.DataFrame:
    """A batch of (key, event time, value)."""
    return pl.DataFrame(
        {
            "key": pl.Series([key for key, _, _ in rows], dtype=pl.String),
            "value": pl.Series([value for _, _, value in rows], dtype=pl.Int64),
            EVENT_TIME: pl.Series([time for _, time, _ in rows], dtype=pl.Int64),
        }
    )


def group_of(key: Any) -> int:
    """The key group of a key of `SCHEMA`."""
    return key_group_of((key,), (STRING,), GROUPS)


@dataclass(frozen=True)
class Batch:
    """Rows that arrive together. Before some of them event time comes on, as `times` say, in the subtask of the row."""

    rows: list[tuple[Any, int, int]]
    times: list[int | None] = field(default_factory=list)
    every_row: bool = False
    """Whether rows carry the watermark that are not behind it, too."""
    number: int = 0
    """Which input they are of."""


@dataclass(frozen=True)
class Mark:
    """Event time advances in one subtask (modulo their number), or in all."""

    watermark: int
    subtask: int | None


@dataclass(frozen=True)
class Restore:
    """The job is stopped with a snapshot and goes on at another parallelism; `extra` rows of the old attempt are lost."""

    parallelism: int
    extra: list[tuple[Any, int, int]]


Step = Batch | Mark | Restore


def histories(
    times: st.SearchStrategy[int], *, restores: bool = True, inputs: int = 1, rows: int = 12
) -> st.SearchStrategy[list[Step]]:
    """Sequences of steps; values number the rows, so that no two are alike. A batch has up to so many `rows`."""
    row = st.tuples(st.sampled_from(KEYS), times, st.integers(0, 10_000))
    moves = st.one_of(st.just([]), st.lists(st.one_of(st.none(), times), max_size=12))
    numbers = st.integers(0, inputs - 1)
    batch = st.builds(Batch, st.lists(row, min_size=1, max_size=rows), moves, st.booleans(), numbers)
    mark = st.builds(Mark, times, st.one_of(st.none(), st.integers(0, 3)))
    restore = st.builds(Restore, st.integers(1, 4), st.lists(row, max_size=3))
    steps = [batch, batch, mark, restore] if restores else [batch, batch, mark]
    return st.lists(st.one_of(steps), max_size=14)


def run(
    node: Node,
    steps: Sequence[Step],
    model: Any,
    parallelism: int = 1,
    *,
    combined: bool = False,
    local_state: Path | None = None,
) -> OperatorHarness:
    """Play a history to the operator and to the model of it, and bring both to the end of input.

    With `combined`, rows are combined before the operator, as they are before an exchange.
    """
    combiner = Combiner(node) if combined else None
    harness = OperatorHarness(node, parallelism=parallelism, max_parallelism=GROUPS, local_state=local_state)
    reached = [MIN_WATERMARK] * parallelism
    for step in steps:
        match step:
            case Batch(rows, times, every_row, number):
                carried: list[int | None] = []
                for index, row in enumerate(rows):
                    owner = subtask_of(group_of(row[0]), parallelism, GROUPS)
                    reached[owner] = max(
                        reached[owner], (times[index] if index < len(times) else None) or MIN_WATERMARK
                    )
                    owned = key_group_range(owner, parallelism, GROUPS)
                    model.watermark(range(owned.start, owned.end), reached[owner])
                    model.row(*row, *([number] if len(node.inputs) > 1 else []))
                    said = reached[owner] if every_row or row[1] <= reached[owner] else MIN_WATERMARK
                    carried.append(None if said == MIN_WATERMARK else said)
                marks = pl.Series(WATERMARK, carried, pl.Int64)
                frame = frame_of(rows) if marks.null_count() == len(marks) else frame_of(rows).with_columns(marks)
                if combiner is not None:  # as from several subtasks, joined before they come to the operator
                    parts = [combiner.combined(part) for part in frame.iter_slices(2)]
                    frame = pl.concat(parts, how="diagonal")
                harness.frame(frame, number)
            case Mark(watermark, subtask):
                subtasks = range(parallelism) if subtask is None else [subtask % parallelism]
                for each in subtasks:
                    reached[each] = max(reached[each], watermark)
                    harness.watermark(reached[each], each)
                    owned = key_group_range(each, parallelism, GROUPS)
                    model.watermark(range(owned.start, owned.end), reached[each])
            case Restore(count, extra):
                for each, watermark in enumerate(reached):  # it is sent before every barrier
                    harness.watermark(watermark, each)
                reached = [MIN_WATERMARK] * count
                # Rows after the barrier change nothing in the snapshot, though it is written after they came.
                seen = (len(harness.collected.frames), {t: len(f) for t, f in harness.collected.sides.items()})
                write = harness.freeze()
                for number in range(len(node.inputs)) if extra else ():
                    harness.frame(frame_of(extra), number)
                parallelism = count
                snapshot = write()
                del harness.collected.frames[seen[0] :]
                for tag, frames in harness.collected.sides.items():
                    del frames[seen[1].get(tag, 0) :]
                harness = harness.restored(snapshot, parallelism)
    harness.watermark(MAX_WATERMARK)
    model.watermark(range(GROUPS), MAX_WATERMARK)
    return harness


def emitted(harness: OperatorHarness, *, before_end: int = 1) -> list[tuple[Any, int, int, tuple[int, ...]]]:
    """What the operator sent, as the models write it; checks event times and counts on the way.

    `before_end`: how long before its end the last moment of a window is.
    """
    found: list[tuple[Any, int, int, tuple[int, ...]]] = []
    for frame in harness.collected.frames:
        bounds = [frame[name].to_physical().to_list() for name in ("window_start", "window_end")]
        assert frame[EVENT_TIME].to_list() == [end - before_end for end in bounds[1]]
        assert frame["rows"].to_list() == frame["values"].list.len().to_list()
        assert frame["total"].to_list() == frame["values"].list.sum().to_list()
        for row in frame.to_dicts():
            check_result(row)
        values = [tuple(value) for value in frame["values"].to_list()]
        found += list(zip(frame["key"].to_list(), *bounds, values, strict=True))
    return found


def check_result(row: dict[str, Any]) -> None:
    """The other aggregates are those of the values, to the last bit, whatever was merged, restored or cut."""
    values = row["values"]
    cents = [value / 100 for value in values]
    exact = [Fraction(value) for value in cents]
    mean = sum(exact) / len(exact)
    assert row["cents"] == math.fsum(cents)
    assert row["spread"] == float(sum((value - mean) ** 2 for value in exact) / len(exact))
    assert row["even"] == sum(value % 2 == 0 for value in values)
    assert row["great"] == any(value > 5_000 for value in values)
    assert row["distinct"] == sorted({value % 7 for value in values})
    assert row["about"] == len(row["distinct"])
    assert row["middle"] == statistics.median(values)
    assert row["least"] == min(values)
    assert row["tied"] == values[0]  # the first by event time, then arrival: they are collected in that order


def late_rows(harness: OperatorHarness) -> list[tuple[Any, int, int]]:
    """The late rows that the operator gave to the side output."""
    frames = harness.collected.sides.get("late", [])
    return [row for frame in frames for row in frame.select("key", EVENT_TIME, "value").rows()]


def comparable(rows: Sequence[Any]) -> list[Any]:
    """Rows in an order of their own; the values of a result as a multiset, as their order is by event time."""
    return sorted(
        (repr((row[0], row[1], row[2], sorted(row[3]) if isinstance(row[3], tuple) else row[3])) for row in rows)
        if rows and len(rows[0]) == 4
        else map(repr, rows)
    )
