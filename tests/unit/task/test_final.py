"""The last row of every key at the end of the input: once, whatever came before, and behind a restore too."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_cases import GROUPS, SCHEMA, Batch, Mark, Restore, frame_of, histories

from penstock import (
    Pipeline,
    at_watermark,
    col,
    count,
    cumulative,
    every,
    every_rows,
    session,
    sliding,
    tumbling,
)
from penstock.connectors import iterables
from penstock.core.batches import EVENT_TIME
from penstock.core.times import MAX_WATERMARK
from penstock.errors import PipelineError
from penstock.functions.windows.definitions import RETRACTED
from penstock.plan.logical import Node
from penstock.plan.operations.last_rows import LastRows
from penstock.testing.harness import OperatorHarness, input_node
from penstock.types import BOOLEAN, Field, Schema, row_class

START = datetime(2026, 1, 1, tzinfo=UTC)


def final_node(schema=SCHEMA, retracted=None):
    source = input_node(schema, row_class(schema), ("key",), event_time=True)
    return Node("n1", LastRows(retracted), (source,), schema, row_class(schema), True)


@settings(max_examples=40, deadline=None)
@given(steps=histories(st.integers(0, 100)))
def test_the_last_row_of_every_key_is_sent_at_the_end(steps):
    """In order of event time, with no watermark before; a checkpoint behind the end holds none of them."""
    harness = OperatorHarness(final_node(), max_parallelism=GROUPS)
    last = {}
    for step in steps:
        match step:
            case Batch(rows):
                harness.frame(frame_of(rows))
                last |= {key: (time, value) for key, time, value in rows}
            case Mark(watermark):
                harness.watermark(watermark)
            case Restore(parallelism, extra):
                write = harness.freeze()
                if extra:
                    harness.frame(frame_of(extra))
                harness = harness.restored(write(), parallelism)
    assert not harness.collected.frames
    assert not harness.collected.watermarks
    harness.watermark(MAX_WATERMARK)
    sent = [row for frame in harness.collected.frames for row in frame.to_dicts()]
    assert {row["key"]: (row[EVENT_TIME], row["value"]) for row in sent} == last
    assert len(sent) == len(last)
    seen = len(harness.collected.frames)
    again = harness.restored(harness.snapshot())
    again.watermark(MAX_WATERMARK)
    assert len(again.collected.frames) == seen


def test_a_key_whose_last_row_was_retracted_is_left_out():
    """Unless another one came behind."""
    schema = Schema((*SCHEMA, Field("retracted", BOOLEAN)))
    harness = OperatorHarness(final_node(schema, "retracted"))
    for rows, retracted in (
        ([("a", 1, 1), ("b", 2, 2), ("c", 3, 3)], [False] * 3),
        ([("a", 1, 1), ("c", 3, 3)], [True] * 2),
        ([("c", 4, 4)], [False]),
    ):
        harness.frame(frame_of(rows).insert_column(2, pl.Series("retracted", retracted)))
    harness.watermark(MAX_WATERMARK)
    assert [(row["key"], row["value"]) for row in harness.output()] == [("b", 2), ("c", 4)]


@settings(max_examples=40, deadline=None)
@given(steps=histories(st.integers(0, 100)), seed=st.integers(0, 10**9))
def test_of_changes_without_a_key_every_row_that_holds_is_sent_as_often_as_it_does(steps, seed):
    """Whatever was added and taken back, in whatever batches, behind restores and rescales; a checkpoint behind the end
    holds none of them."""
    chance = random.Random(seed)
    changes = Schema((*SCHEMA, Field(RETRACTED, BOOLEAN)))
    source = input_node(changes, row_class(changes), ("key",), event_time=True)
    source.mode = "retract"
    node = Node("n1", LastRows(RETRACTED, all_that_hold=True), (source,), changes, row_class(changes), True)
    harness, held = OperatorHarness(node, max_parallelism=GROUPS), Counter()
    for step in steps:
        match step:
            case Batch(rows):
                made = []
                for key, time, value in rows:
                    standing = sorted(held.elements(), key=repr)
                    back = bool(standing) and chance.random() < 0.4
                    row = chance.choice(standing) if back else (key, value % 3)
                    held[row] += -1 if back else 1
                    made.append(((row[0], time, row[1]), back))
                frame = frame_of([row for row, _ in made])
                harness.frame(frame.insert_column(2, pl.Series(RETRACTED, [back for _, back in made])))
            case Restore(parallelism, _):
                harness = harness.restored(harness.snapshot(), parallelism)
            case Mark():
                assert not harness.collected.frames
    harness.watermark(MAX_WATERMARK)
    assert Counter((row["key"], row["value"]) for row in harness.output()) == +held
    seen = len(harness.collected.frames)
    again = harness.restored(harness.snapshot())
    again.watermark(MAX_WATERMARK)
    assert len(again.collected.frames) == seen


BIDS = [{"key": f"k{n % 3}", "value": n, "at": START + timedelta(minutes=n * n % 500)} for n in range(60)]


@pytest.mark.parametrize("trigger", [at_watermark(), every("7m"), every_rows(1)], ids=lambda each: each.describe())
@pytest.mark.parametrize(
    "window",
    [tumbling("1h"), sliding("1h", "20m"), cumulative("1h", every="15m"), session("4m")],
    ids=["tumbling", "sliding", "cumulative", "session"],
)
def test_the_last_results_of_a_trigger_are_those_of_the_windows(window, trigger):
    """One row per key and window, whatever was sent on the way; of sessions, only of those that there are at the end."""
    p = Pipeline("final")
    schema = pa.schema({"key": pa.string(), "value": pa.int64(), "at": pa.timestamp("us", "UTC")})
    read = iterables.Source(BIDS, schema=schema, event_time="at", max_out_of_orderness="1d")
    windows = p.read(read).key_by("key").window(window)
    plain = windows.agg(n=count(), total=col("value").sum()).collect()
    last = windows.trigger(trigger).agg(n=count(), total=col("value").sum()).final().collect()
    assert plain.height > 9
    assert sorted(last.select(plain.columns).rows()) == sorted(plain.rows())


def test_a_column_that_says_which_window_it_is_must_be_there():
    """Behind a trigger as behind lateness."""
    p = Pipeline("final")
    read = iterables.Source(
        BIDS, schema=pa.schema({"key": pa.string(), "at": pa.timestamp("us", "UTC")}), event_time="at"
    )
    early = p.read(read).key_by("key").window(tumbling("1h")).trigger(every("7m")).agg(n=count())
    with pytest.raises(PipelineError, match="final: window_start, which says which row a row replaces"):
        early.drop("window_start", "window_end").final()
