"""All rows in one order: at the end of the input, or as event time passes them."""

from __future__ import annotations

import math
import random
from dataclasses import astuple, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_cases import PLACES, kept_in

from penstock import OutputTag, Pipeline, col
from penstock.connectors import files, iterables, kafka
from penstock.core.batches import EVENT_TIME
from penstock.core.times import MAX_WATERMARK, MIN_WATERMARK
from penstock.errors import PipelineError, UserCodeError
from penstock.plan.logical import Node
from penstock.plan.operations.sort import Sort
from penstock.plan.order import Order
from penstock.testing.harness import OperatorHarness, input_node
from penstock.types import BOOLEAN, FLOAT64, INT64, STRING, Field, Schema, row_class

LATE: OutputTag[Any] = OutputTag("late")
ROWS = Schema((Field("text", STRING, nullable=True), Field("value", FLOAT64, nullable=True), Field("number", INT64)))
BY = (Order(col("text"), True, False), Order(col("value"), False, True))
TEXTS = [None, "", "a long beginning, 1", "a long beginning, 2", "b", "ä"]
VALUES = [None, -1.5, 0.0, 2.5, math.inf, math.nan]


def node_of(by: tuple[Order, ...], *, by_event_time: bool, timed: bool = True) -> Node:
    schema = Schema((*ROWS, Field("all", BOOLEAN)))
    source = input_node(schema, row_class(schema), ("all",), event_time=timed)
    node = Node("n1", Sort(by, by_event_time, LATE if by_event_time else None), (source,), ROWS, row_class(ROWS), timed)
    node.sides = {"late": ROWS} if by_event_time else {}
    return node


def frame_of(rows: list[tuple[Any, ...]]) -> pl.DataFrame:
    schema = {**ROWS.polars(), EVENT_TIME: pl.Int64(), "all": pl.Boolean()}
    return pl.DataFrame([(*row, True) for row in rows], schema=schema, orient="row")


def as_said(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """What `BY` says of a row: texts from the last to the first behind those that are null, then values, NaN as the
    greatest one and null behind it."""
    text, value, *_ = row
    least_text = [0] if text is None else [1, *(-byte for byte in text.encode()), 1]
    greatest = (2, 0) if value is None else (1, 0) if math.isnan(value) else (0, value)
    return (*least_text,), greatest


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**9), place=PLACES, by_event_time=st.booleans())
def test_rows_are_emitted_in_their_order(seed: int, place: str, by_event_time: bool) -> None:
    """Whatever was restored in between, and none before its time."""
    chance = random.Random(seed)
    rows: list[tuple[Any, ...]] = []
    late: list[int] = []
    now = MIN_WATERMARK
    with kept_in(place) as folder:
        harness = OperatorHarness(node_of(BY, by_event_time=by_event_time), max_parallelism=8, local_state=folder)
        for _ in range(chance.randrange(1, 12)):
            batch = [
                (chance.choice(TEXTS), chance.choice(VALUES), len(rows) + place, chance.randrange(8))
                for place in range(chance.choice([1, 4, 30]))
            ]
            harness.frame(frame_of(batch))
            rows += batch
            late += [row[2] for row in batch if row[3] <= now] if by_event_time else []
            if chance.random() < 0.5:
                now = max(now, chance.randrange(9))
                harness.watermark(now)
            if chance.random() < 0.3:
                harness = harness.restored(harness.freeze()(), chance.randrange(1, 4))
            seen = [row for frame in harness.collected.frames for row in frame.iter_rows()]
            reached = [row for row in rows if by_event_time and row[3] <= now and row[2] not in late]
            assert sorted(row[2] for row in seen) == sorted(row[2] for row in reached)
        harness.watermark(MAX_WATERMARK)
    seen = [row for frame in harness.collected.frames for row in frame.iter_rows()]
    wanted = sorted(
        (row for row in rows if row[2] not in late),
        key=lambda row: (row[3] if by_event_time else 0, *as_said(row)),
    )
    assert [row[2:] for row in seen] == [row[2:] for row in wanted]
    assert {row[2] for frame in harness.collected.sides.get("late", []) for row in frame.iter_rows()} == {*late}


def test_a_checkpoint_behind_the_end_emits_nothing_again() -> None:
    harness = OperatorHarness(node_of(BY, by_event_time=False, timed=False))
    harness.frame(frame_of([("b", 1.0, 1, 0), ("c", 1.0, 2, 0)]).drop(EVENT_TIME))
    harness.watermark(MAX_WATERMARK)
    assert [row[2] for frame in harness.collected.frames for row in frame.iter_rows()] == [2, 1]
    again = harness.restored(harness.freeze()(), 2)
    before = len(again.collected.frames)
    again.watermark(MAX_WATERMARK)
    assert again.collected.frames[before:] == []


@dataclass
class Event:
    key: str
    value: int
    at: datetime


EVENTS = [Event("ab"[n % 2], n * 7 % 5, datetime(2026, 1, 1, tzinfo=UTC) + timedelta(n)) for n in range(8)]
VALUES_IN_ORDER = sorted(event.value for event in EVENTS)


def events(**settings: Any) -> Any:
    return Pipeline("p").read(iterables.Source(EVENTS, schema=Event, **settings))


def topic() -> Any:
    return Pipeline("p").read(kafka.Source("events", schema=Event, event_time="at"))


def test_equal_rows_stay_as_they_came() -> None:
    rows = events().sort("key", descending=True).collect().rows()
    assert rows == [astuple(event) for event in sorted(EVENTS, key=lambda event: event.key != "b")]


def test_a_column_called_as_the_key_is_kept() -> None:
    renamed = events().rename({"key": "all"}).sort(["value", "all"])
    assert renamed.schema.names == ("all", "value", "at")
    assert renamed.collect()["value"].to_list() == VALUES_IN_ORDER


def test_files_have_the_order_at_any_parallelism(tmp_path) -> None:
    p = Pipeline("p")
    p.read(iterables.Source(EVENTS, schema=Event)).sort("value").select("value").write(files.Sink(tmp_path / "out"))
    p.run(parallelism=3)
    lines = [line for part in sorted((tmp_path / "out").glob("part-*")) for line in part.read_text().splitlines()]
    assert lines == [f'{{"value":{value}}}' for value in VALUES_IN_ORDER]


def test_an_input_without_an_end_is_sorted_by_its_event_time() -> None:
    in_time = topic().sort(["at", "value"], descending=[False, True], late_to=LATE)
    assert in_time._node.operation.by_event_time
    assert [str(order) for order in in_time._node.operation.by] == ['col("value") descending']
    assert in_time.side(LATE).schema.names == ("key", "value", "at")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: topic().sort("value"),
            "sort: the input has no end, so no row is the last one; sort by its event time",
        ),
        (lambda: topic().sort("at", descending=True), "sort: the input has no end"),
        (lambda: events().sort([]), "sort: by= names no column"),
        (lambda: events().sort("price"), "price"),
        (lambda: events().select(l=col("value").cast(list[int])).sort("l"), "l"),
        (lambda: events().sort(["key", "at"], descending=[True]), "sort: descending= has 1 values and by= 2"),
        (lambda: events().sort("key", late_to=LATE), "late_to= is for inputs without an end"),
    ],
)
def test_what_cannot_be_sorted_is_refused(make: Any, message: str) -> None:
    with pytest.raises(PipelineError, match=message.replace("(", r"\(")):
        make()


def test_values_that_an_order_cannot_be_computed_of() -> None:
    with pytest.raises(UserCodeError, match=r"sort \(\w+-sort\): the rows could not be ordered: conversion"):
        events().sort(col("key").cast(int)).collect()
