"""The last row of every key at the end of the input: once, whatever came before, and behind a restore too."""

from __future__ import annotations

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st
from window_cases import GROUPS, SCHEMA, Batch, Mark, Restore, frame_of, histories

from penstock.batches import EVENT_TIME
from penstock.graph.logical import LastRows, Node
from penstock.testing.harness import OperatorHarness, input_node
from penstock.times import MAX_WATERMARK
from penstock.types import BOOLEAN, Field, Schema, row_class


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
