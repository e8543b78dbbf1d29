"""Rows that are valid for a span of event time: what is there after every watermark is what the spans say."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_cases import GROUPS, PLACES, kept_in

from penstock import Pipeline, col, count
from penstock.api.update_streams import UpsertStream
from penstock.connectors import iterables
from penstock.core.batches import EVENT_TIME
from penstock.core.times import MAX_WATERMARK, MIN_WATERMARK, from_micros, to_micros
from penstock.errors import PipelineError
from penstock.functions.windows.definitions import RETRACTED
from penstock.plan.logical import Node
from penstock.plan.operations.temporal_filter import Bound, TemporalFilter
from penstock.testing.harness import OperatorHarness, input_node
from penstock.types import BOOLEAN, INT64, STRING, TIMESTAMP, Field, Schema, row_class

SPANS = Schema((Field("begins", TIMESTAMP, nullable=True), Field("ends", TIMESTAMP, nullable=True)))
ROWS = Schema((Field("key", STRING, nullable=True), Field("number", INT64), *SPANS))
CHANGE = Field(RETRACTED, BOOLEAN)
Row = tuple[str | None, int, int | None, int | None]


def node_of(bounds: str, *, facts: bool) -> Node:
    """A filter by these of the bounds: `from`, `until` or both."""
    schema = ROWS if facts else Schema((*ROWS, CHANGE))
    source = input_node(schema, row_class(schema), ("key",), event_time=True)
    source.mode = "append" if facts else "retract"
    valid_from = Bound("begins", col("begins")) if "from" in bounds else None
    valid_until = Bound("ends", col("ends")) if "until" in bounds else None
    out = Schema((*ROWS, CHANGE))
    return Node("n1", TemporalFilter(valid_from, valid_until), (source,), out, row_class(out), False, mode="retract")


def frame_of(rows: list[tuple[Row, bool]], *, facts: bool) -> pl.DataFrame:
    values = [(key, number, *map(moment, span), gone) for (key, number, *span), gone in rows]
    frame = pl.DataFrame(values, schema=Schema((*ROWS, CHANGE)).polars(), orient="row")
    return (frame.drop(RETRACTED) if facts else frame).with_columns(pl.lit(0, pl.Int64).alias(EVENT_TIME))


def moment(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)


def standing(frames: list[pl.DataFrame]) -> Counter[Row]:
    """What was added and not retracted; nothing is retracted that is not there."""
    found: Counter[Row] = Counter()
    for frame in frames:
        for key, number, begins, ends, gone in frame.iter_rows():
            row = (key, number, *(None if each is None else to_micros(each) for each in (begins, ends)))
            found[row] += -1 if gone else 1
            assert found[row] >= 0
    return +found


def valid(rows: Counter[Row], bounds: str, now: int) -> Counter[Row]:
    def holds(row: Row) -> bool:
        begins = row[2] if "from" in bounds and row[2] is not None else MIN_WATERMARK
        ends = row[3] if "until" in bounds else None
        return begins <= now and (ends is None or (now < ends and begins < ends))

    return Counter({row: number for row, number in rows.items() if holds(row)})


@settings(max_examples=90, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    bounds=st.sampled_from(["from", "until", "from until"]),
    facts=st.booleans(),
    place=PLACES,
)
def test_what_is_there_is_what_is_valid(seed: int, bounds: str, facts: bool, place: str) -> None:
    """Behind every batch and every watermark, whatever was retracted, restored and rescaled."""
    chance = random.Random(seed)
    rows: Counter[Row] = Counter()
    now = MIN_WATERMARK
    with kept_in(place) as folder:
        harness = OperatorHarness(node_of(bounds, facts=facts), max_parallelism=GROUPS, local_state=folder)
        for _ in range(chance.randrange(1, 15)):
            batch: list[tuple[Row, bool]] = []
            for _ in range(chance.choice([1, 3, 20])):
                if not facts and rows and chance.random() < 0.4:
                    row, gone = chance.choice(list(rows.elements())), True
                else:
                    times = [None, *range(8)]
                    row, gone = (
                        (chance.choice("ab"), chance.randrange(3), chance.choice(times), chance.choice(times)),
                        False,
                    )
                rows[row] += -1 if gone else 1
                rows = +rows
                batch.append((row, gone))
            harness.frame(frame_of(batch, facts=facts))
            seen = harness.collected.frames
            assert standing(seen) == valid(rows, bounds, now)
            if chance.random() < 0.5:
                now = max(now, chance.randrange(9))
                harness.watermark(now)
            if chance.random() < 0.3:
                harness = harness.restored(harness.freeze()(), chance.randrange(1, 4))
            assert standing(harness.collected.frames) == valid(rows, bounds, now)
        harness.watermark(MAX_WATERMARK)
        assert standing(harness.collected.frames) == valid(rows, bounds, MAX_WATERMARK)


def test_a_row_of_a_key_is_retracted_before_the_next_one_is_added() -> None:
    """Both at the moment at which the span of one ends and that of the other begins."""
    harness = OperatorHarness(node_of("from until", facts=False))
    harness.frame(frame_of([(("a", 2, 5, 9), False), (("a", 1, 0, 5), False)], facts=False))
    for reached in (0, 5, 9):
        harness.watermark(reached)
    assert [(row[1], row[-1]) for frame in harness.collected.frames for row in frame.iter_rows()] == [
        (1, False), (1, True), (2, False), (2, True),
    ]  # fmt: skip


def test_what_is_replaced_before_it_begins_is_never_seen() -> None:
    harness = OperatorHarness(node_of("from until", facts=False))
    harness.frame(frame_of([(("a", 1, 5, 9), False)], facts=False))
    harness.watermark(3)
    harness.frame(frame_of([(("a", 1, 5, 9), True), (("a", 2, 6, 9), False)], facts=False))
    harness.watermark(MAX_WATERMARK)
    assert [(row[1], row[-1]) for frame in harness.collected.frames for row in frame.iter_rows()] == [
        (2, False), (2, True),
    ]  # fmt: skip


START = datetime(2026, 1, 1, tzinfo=UTC)
EVENTS = [{"key": "ab"[n % 2], "value": n, "at": START + timedelta(minutes=n)} for n in range(8)]
EVENT = Schema((Field("key", STRING), Field("value", INT64), Field("at", TIMESTAMP)))


def events(**settings: Any) -> Any:
    return Pipeline("p").read(iterables.Source(EVENTS, schema=EVENT, **settings))


def test_what_follows_is_kept_up_to_date() -> None:
    """A running aggregate of what is valid: the count of a key rises with its rows, and falls with time."""
    valid_rows = events(event_time="at").temporal_filter(valid_until=col("at") + timedelta(minutes=3))
    counts = valid_rows.key_by("key").agg(n=count())
    assert isinstance(counts, UpsertStream)
    assert counts.schema.names == ("key", "n", RETRACTED)


def test_rows_without_an_end_are_left_at_the_end_of_the_input() -> None:
    """A bound that may be null: those rows stay."""
    ends = pl.Series([None if n % 3 else n for n in range(8)])
    rows = [{**row, "end": None if end is None else row["at"]} for row, end in zip(EVENTS, ends, strict=True)]
    stream = Pipeline("p").read(
        iterables.Source(rows, schema=Schema((*EVENT, Field("end", TIMESTAMP, nullable=True))), event_time="at")
    )
    left = stream.temporal_filter(valid_until="end").final().collect()
    assert sorted(left["value"]) == [1, 2, 4, 5, 7]


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ({}, "give valid_from=, valid_until= or both"),
        ({"valid_until": "value"}, r"valid_until = col\(\"value\"\) is int64; a time"),
        ({"valid_until": "end"}, "no column 'end'"),
        ({"valid_from": col("at").max()}, "aggregate"),
    ],
)
def test_bounds_that_are_none_are_refused(bounds: dict[str, Any], said: str) -> None:
    with pytest.raises(PipelineError, match=said):
        events(event_time="at").temporal_filter(**bounds)


def test_where_no_time_advances_it_is_refused() -> None:
    with pytest.raises(PipelineError, match="temporal_filter: rows come and go as event time advances"):
        events().temporal_filter(valid_until="at")
    updates = events(event_time="at").key_by("key").agg(n=count(), at=col("at").max())
    assert updates.temporal_filter(valid_until="at").schema.names == ("key", "n", "at", RETRACTED)


def test_final_says_that_nothing_would_be_left() -> None:
    valid_rows = events(event_time="at").temporal_filter(valid_until=col("at") + timedelta(minutes=3))
    with pytest.raises(PipelineError, match=r"final: .*temporal_filter.* retracts every row"):
        valid_rows.key_by("key").agg(n=count()).final()


def test_other_bounds_do_for_facts_alone() -> None:
    """A change of a row that was added looks for the row where the bounds of then have put it."""

    def signature(days: int, *, facts: bool) -> Any:
        rows = events(event_time="at") if facts else events(event_time="at").key_by("key").deduplicate("last")
        node = rows.temporal_filter(valid_until=col("at") + timedelta(days=days))._node
        return node.operation.state_signature(node)

    assert signature(7, facts=True) == signature(14, facts=True)
    assert signature(7, facts=False) == signature(7, facts=False) != signature(14, facts=False)
