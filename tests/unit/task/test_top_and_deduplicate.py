"""The best rows of a key, and its first or newest: what a loop over all rows comes to, however they came."""

from __future__ import annotations

import math

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_cases import GROUPS, SCHEMA, Batch, Restore, frame_of, histories

from penstock.core.batches import EVENT_TIME, WATERMARK
from penstock.expressions import col
from penstock.plan.building.schemas import top_schema
from penstock.plan.logical import Node
from penstock.plan.operations.deduplicate import Deduplicate
from penstock.plan.operations.top import Top
from penstock.plan.order import Order
from penstock.task.operators import top
from penstock.testing.harness import OperatorHarness, input_node
from penstock.types import FLOAT64, STRING, Field, Schema, row_class

HOUR = 3_600_000_000


def top_node(n, by, descending=True, schema=SCHEMA, ttl=None):
    source = input_node(schema, row_class(schema), ("key",), event_time=True)
    order = (Order(by, descending),)
    out = top_schema(n, order, source)
    return Node("n1", Top(n, order, ttl), (source,), out, row_class(out), True, keys=("key",), mode="upsert")


def deduplicate_node(keep, ttl=None, *, event_time=True):
    source = input_node(SCHEMA, row_class(SCHEMA), ("key",), event_time=event_time)
    operation = Deduplicate(keep, ttl)
    return Node("n1", operation, (source,), SCHEMA, row_class(SCHEMA), event_time, keys=("key",))


def play(node, steps):
    """The rows that were sent, and those that were fed."""
    harness = OperatorHarness(node, max_parallelism=GROUPS)
    fed = []
    for step in steps:
        if isinstance(step, Batch):
            harness.frame(frame_of(step.rows))
            fed += step.rows
        elif isinstance(step, Restore):
            write, seen = harness.freeze(), len(harness.collected.frames)
            if step.extra:
                harness.frame(frame_of(step.extra))
            snapshot = write()
            del harness.collected.frames[seen:]
            harness = harness.restored(snapshot, step.parallelism)
    return [row for frame in harness.collected.frames for row in frame.to_dicts()], fed


@settings(max_examples=40, deadline=None)
@pytest.mark.parametrize("least", [1, 1_024], ids=["sifted", "all ranked"])
@given(steps=histories(st.integers(0, 100)), n=st.integers(1, 4), descending=st.booleans())
def test_the_ranks_come_to_those_of_all_rows(least, steps, n, descending):
    """Many rows are equal in what orders them: the earlier one is the better one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(top, "_LEAST_SIFTED", least)
        sent, fed = play(top_node(n, col("value") % 7, descending), steps)
    standing = {(row["key"], row["rank"]): row["value"] for row in sent}
    expected = {}
    for key in {row[0] for row in fed}:
        mine = [value for other, _, value in fed if other == key]
        best = sorted(mine, key=lambda value: -(value % 7) if descending else value % 7)[:n]
        expected |= {(key, rank): value for rank, value in enumerate(best, 1)}
    assert standing == expected


def test_only_ranks_that_changed_are_sent():
    """Each row with its own event time, however rows were batched."""
    harness = OperatorHarness(top_node(3, col("value")))
    harness.frame(frame_of([("a", 1, 10), ("a", 2, 30), ("b", 3, 1)]))
    harness.collected.frames.clear()
    harness.frame(frame_of([("a", 5, 20), ("b", 6, 0), ("a", 4, 5)]))
    assert pl.concat(harness.collected.frames).select("key", "rank", "value", EVENT_TIME).rows() == [
        ("a", 2, 20, 5), ("a", 3, 10, 1), ("b", 2, 0, 6),
    ]  # fmt: skip


@pytest.mark.parametrize("least", [1, 1_024], ids=["sifted", "all ranked"])
def test_null_and_nan_are_behind_everything(least, monkeypatch):
    """Whichever end is the best."""
    monkeypatch.setattr(top, "_LEAST_SIFTED", least)
    schema = Schema((Field("key", STRING, nullable=True), Field("x", FLOAT64, nullable=True)))
    for descending, expected in ((True, [2.0, 1.0]), (False, [1.0, 2.0])):
        harness = OperatorHarness(top_node(3, col("x"), descending, schema))
        values = [None, math.nan, 1.0, 2.0]
        harness.frame(
            frame_of([("a", 1, 1)] * 4).drop("value").with_columns(x=pl.Series(values)).select("key", "x", EVENT_TIME)
        )
        assert [row["x"] for row in harness.output()][:2] == expected
        assert harness.output()[2]["x"] is None


@pytest.mark.parametrize("restored", [False, True])
def test_the_ranks_of_a_key_begin_anew_when_none_changed_for_its_time_to_live(restored):
    """A row that changes no rank does not keep them, whatever the size of the batch; nothing is sent when they go."""
    harness = OperatorHarness(top_node(1, col("value"), ttl=HOUR))
    harness.frame(frame_of([("a", 1, 5), ("b", 1, 5)]))
    harness.now_us = HOUR
    harness.frame(frame_of([("a", 2, 4), ("b", 2, 6)]))
    if restored:
        harness = harness.restored(harness.snapshot())
    harness.now_us = HOUR + HOUR // 2
    harness.frame(frame_of([("a", 3, 1), ("b", 3, 5)]))
    assert [(row["key"], row["rank"], row["value"]) for row in harness.output()][-2:] == [("b", 1, 6), ("a", 1, 1)]
    assert harness.metrics[0].forgotten_keys == 1


@settings(max_examples=40, deadline=None)
@given(steps=histories(st.integers(0, 100)))
def test_the_first_row_of_every_key_is_sent_once(steps):
    """By arrival."""
    sent, fed = play(deduplicate_node("first"), steps)
    first = {}
    for key, time, value in fed:
        first.setdefault(key, (time, value))
    assert len(sent) == len(first)
    assert {row["key"]: (row[EVENT_TIME], row["value"]) for row in sent} == first


@settings(max_examples=40, deadline=None)
@given(steps=histories(st.integers(0, 100)))
def test_the_last_row_that_is_sent_of_a_key_is_its_newest(steps):
    """By event time, then by arrival: a row that is older than one that was sent is not."""
    sent, fed = play(deduplicate_node("last"), steps)
    newest = {}
    for key, time, value in fed:
        if key not in newest or time >= newest[key][0]:
            newest[key] = (time, value)
    assert {row["key"]: (row[EVENT_TIME], row["value"]) for row in sent} == newest
    for key in newest:
        times = [row[EVENT_TIME] for row in sent if row["key"] == key]
        assert times == sorted(times)


def test_without_event_time_the_row_that_came_last_is_the_newest():
    """One per key and batch."""
    harness = OperatorHarness(deduplicate_node("last", event_time=False))
    harness.frame(frame_of([("a", 9, 1), ("b", 8, 2), ("a", 7, 3)]).drop(EVENT_TIME))
    harness.frame(frame_of([("a", 1, 4)]).drop(EVENT_TIME))
    assert [(row["key"], row["value"]) for row in harness.output()] == [("b", 2), ("a", 3), ("a", 4)]


@pytest.mark.parametrize("keep", ["first", "last"])
def test_a_row_keeps_how_far_time_had_come(keep):
    """Time moves inside a batch: what is behind must not depend on how rows were cut."""
    harness = OperatorHarness(deduplicate_node(keep))
    rows = frame_of([("a", 1, 1), ("b", 20, 2), ("a", 9, 3), ("c", 3, 4)])
    harness.frame(rows.with_columns(pl.Series(WATERMARK, [None, 0, 15, 15], dtype=pl.Int64)))
    sent = [(row["value"], row[WATERMARK]) for row in harness.output()]
    assert sent == ([(1, None), (2, 0), (4, 15)] if keep == "first" else [(2, 0), (3, 15), (4, 15)])


@pytest.mark.parametrize("restored", [False, True])
def test_a_key_is_new_when_its_time_to_live_is_over(restored):
    """It counts from the row that was sent, as in Flink; what is over is dropped, also behind a restore."""
    harness = OperatorHarness(deduplicate_node("first", HOUR))
    harness.frame(frame_of([("a", 1, 1), ("b", 1, 2)]))
    harness.processing_time(HOUR // 2)
    harness.frame(frame_of([("a", 2, 3), ("c", 2, 4)]))
    if restored:
        harness = harness.restored(harness.snapshot())
    harness.processing_time(HOUR - 1)
    harness.frame(frame_of([("a", 3, 5)]))
    harness.processing_time(HOUR)
    harness.frame(frame_of([("a", 4, 6)]))
    assert [row["value"] for row in harness.output()] == [1, 2, 4, 6]
    assert harness.metrics[0].forgotten_keys == 1
    harness.processing_time(3 * HOUR)
    harness.frame(frame_of([("d", 5, 7)]))
    assert harness.operators[0]._table.all_keys() == ["d"]
    assert harness.metrics[0].forgotten_keys == 4


def test_a_newer_row_makes_a_key_live_on():
    """And after its time an older one counts as new."""
    harness = OperatorHarness(deduplicate_node("last", HOUR))
    harness.frame(frame_of([("a", 10, 1)]))
    harness.processing_time(HOUR // 2)
    harness.frame(frame_of([("a", 11, 2)]))
    harness.processing_time(HOUR + 1)
    harness.frame(frame_of([("a", 5, 3)]))
    harness.processing_time(2 * HOUR)
    harness.frame(frame_of([("a", 5, 4)]))
    assert [row["value"] for row in harness.output()] == [1, 2, 4]
