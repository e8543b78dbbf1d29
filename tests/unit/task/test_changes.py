"""Changes: what holds once all of them are counted is what a loop over the rows that hold comes to."""

from __future__ import annotations

import json
import math
import random
import tempfile
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_cases import GROUPS, SCHEMA, Batch, Restore, frame_of, histories

from penstock import Accumulator, Pipeline, aggregate, col, count, lit, session, sliding, tumbling
from penstock.api.update_streams import UpsertStream
from penstock.connectors import iterables, kafka
from penstock.core.batches import EVENT_TIME
from penstock.errors import IncompatibleStateError, PipelineError
from penstock.expressions import AggregatePlan, concat_list
from penstock.functions.windows.definitions import RETRACTED
from penstock.plan.logical import Node
from penstock.plan.operations.aggregate_changes import AggregateChanges
from penstock.plan.operations.to_changes import ToChanges
from penstock.plan.signatures import describe_node, state_signature
from penstock.task import sources
from penstock.testing.harness import OperatorHarness, input_node
from penstock.types import (
    BOOLEAN,
    DURATION,
    FLOAT64,
    INT64,
    STRING,
    UINT64,
    DecimalType,
    Field,
    ListType,
    Schema,
    row_class,
)

CHANGE = Field(RETRACTED, BOOLEAN)
START = datetime(2026, 1, 1, tzinfo=UTC)


def standing(frames: list[pl.DataFrame], *keys: str) -> dict[Any, dict[str, Any]]:
    """What holds behind all changes; every row that is taken back is the one that held."""
    held: dict[Any, dict[str, Any]] = {}
    for frame in frames:
        for row in frame.drop(EVENT_TIME, strict=False).to_dicts():
            key = tuple(row[name] for name in keys)
            retracted = row.pop(RETRACTED)
            assert repr(held.pop(key, None)) == repr(row if retracted else None)
            if not retracted:
                held[key] = row
    return held


# -- updates as changes -------------------------------------------------------------------------------------------------


def changes_node(schema: Schema = SCHEMA, retracted: str | None = None, ttl: int | None = None) -> Node:
    source = input_node(schema, row_class(schema), ("key",), event_time=True)
    out = Schema((*(field for field in schema if field.name != retracted), CHANGE))
    return Node("n1", ToChanges(retracted, ttl), (source,), out, row_class(out), True, keys=("key",), mode="retract")


@settings(max_examples=60, deadline=None)
@given(steps=histories(st.integers(0, 100)), few=st.booleans())
def test_changes_come_to_the_last_row_of_every_key(steps, few):
    """Behind restores, too; what changes nothing is not sent."""
    harness = OperatorHarness(changes_node(), max_parallelism=GROUPS)
    last: dict[Any, int] = {}
    for step in steps:
        if isinstance(step, Batch):
            rows = [(key, time, value % 3 if few else value) for key, time, value in step.rows]
            newest = {key: value for key, _, value in rows}
            seen = len(harness.collected.frames)
            harness.frame(frame_of(rows))
            sent = {row["key"] for frame in harness.collected.frames[seen:] for row in frame.to_dicts()}
            assert sent == {key for key, value in newest.items() if (key, value) not in last.items()}
            last |= newest
        elif isinstance(step, Restore):
            write, seen = harness.freeze(), len(harness.collected.frames)
            if step.extra:
                harness.frame(frame_of(step.extra))
            snapshot = write()
            del harness.collected.frames[seen:]
            harness = harness.restored(snapshot, step.parallelism)
    held = standing(harness.collected.frames, "key")
    assert {key: row["value"] for (key,), row in held.items()} == last


def test_updates_that_say_that_there_is_no_row_any_more():
    """Twice, of a key that never had one, and before one comes in the same batch."""
    schema = Schema((*SCHEMA, CHANGE))
    harness = OperatorHarness(changes_node(schema, RETRACTED))

    def feed(*rows: tuple[str, int, bool]) -> list[tuple[Any, ...]]:
        harness.collected.frames.clear()
        frame = frame_of([(key, 1, value) for key, value, _ in rows])
        harness.frame(frame.with_columns(pl.Series(RETRACTED, [gone for *_, gone in rows])))
        return [row for frame in harness.collected.frames for row in frame.select("key", "value", RETRACTED).rows()]

    assert feed(("a", 1, False), ("b", 1, True)) == [("a", 1, False)]
    assert feed(("a", 1, True), ("a", 2, False)) == [("a", 1, True), ("a", 2, False)]
    assert feed(("a", 9, True)) == [("a", 2, True)]
    assert feed(("a", 9, True)) == []
    assert feed(("a", 2, False)) == [("a", 2, False)]


@pytest.mark.parametrize("restored", [False, True])
def test_of_a_key_that_was_forgotten_nothing_is_taken_back(restored):
    """Each update makes it live on, and is sent, also one that changes nothing; what ends a key that is gone is not."""
    schema = Schema((*SCHEMA, CHANGE))
    harness = OperatorHarness(changes_node(schema, RETRACTED, 80), max_parallelism=GROUPS)

    def feed(now: int, *rows: tuple[str, int, bool]) -> list[tuple[Any, ...]]:
        harness.now_us = now
        harness.collected.frames.clear()
        frame = frame_of([(key, 1, value) for key, value, _ in rows])
        harness.frame(frame.with_columns(pl.Series(RETRACTED, [gone for *_, gone in rows])))
        return [row for frame in harness.collected.frames for row in frame.select("key", "value", RETRACTED).rows()]

    assert len(feed(0, ("a", 1, False), ("b", 1, False), ("c", 1, False))) == 3
    assert feed(50, ("a", 1, False)) == [("a", 1, True), ("a", 1, False)]
    if restored:
        harness = harness.restored(harness.freeze()())
    assert feed(100, ("a", 2, False), ("b", 2, False), ("c", 1, True)) == [
        ("a", 1, True), ("a", 2, False), ("b", 2, False),
    ]  # fmt: skip
    assert (harness.metrics[0].forgotten_keys, harness.metrics[0].lost_changes) == (2, 1)


def test_rows_are_compared_with_null_nan_and_lists():
    schema = Schema(
        (Field("key", INT64), Field("x", FLOAT64, nullable=True), Field("all", ListType(INT64), nullable=True))
    )
    harness = OperatorHarness(changes_node(schema))
    rows = [(1, None, None), (2, math.nan, [1, None]), (3, 0.5, [])]
    frame = pl.DataFrame(rows, schema=schema.polars(), orient="row").with_columns(pl.lit(0, pl.Int64).alias(EVENT_TIME))
    harness.frame(frame)
    harness.frame(frame)
    assert pl.concat(harness.collected.frames).height == 3
    harness.frame(frame.with_columns(pl.Series("all", [[1], [1], [1]])))
    assert pl.concat(harness.collected.frames).height == 9


# -- aggregates of changes ----------------------------------------------------------------------------------------------

VALUES = Schema(
    (
        Field("key", STRING, nullable=True),
        Field("i", INT64, nullable=True),
        Field("u", UINT64),
        Field("f", FLOAT64, nullable=True),
        Field("d", DecimalType(12, 2)),
        Field("wide", DecimalType(38, 3)),
        Field("took", DURATION, nullable=True),
        Field("tags", ListType(STRING)),
        CHANGE,
    )
)  # fmt: skip


class Held(Accumulator[list[int], int]):
    """What rows hold, changed in place; a row that was not added before cannot be retracted."""

    accumulator_type = list[int]

    def create(self) -> list[int]:
        return []

    def add(self, accumulator: list[int], value: int, /) -> list[int]:
        accumulator.append(value)
        return accumulator

    def retract(self, accumulator: list[int], value: int, /) -> list[int]:
        accumulator.remove(value)
        return accumulator

    def merge(self, left: list[int], right: list[int]) -> list[int]:
        return left + right

    def result(self, accumulator: list[int]) -> int:
        return len(accumulator) * 10 + len({*accumulator})


class Endless(Held):
    """Nothing is taken away from it."""

    retract = Accumulator.retract


AGGREGATES = {
    "folded": aggregate(Held(), "u"),
    "folded_and_more": aggregate(Held(), "u", filter=col("u") > 0) * 1000 + count(),
    "folded_and_most": aggregate(Held(), col("u")) + col("i").max(),
    "n": count(),
    "ints": col("i").count(),
    "total": col("i").sum(),
    "mean": col("i").mean(),
    "unsigned": col("u").sum(),
    "floats": col("f").sum(),
    "spread": col("f").std(),
    "cents": col("d").sum(),
    "wides": col("wide").sum(),
    "took": col("took").sum(),
    "least": col("i").min(),
    "most": col("f").max(),
    "middle": col("f").quantile(0.5),
    "kinds": col("i").n_unique(),
    "usual": col("i").mode("least"),
    "usual_f": col("f").mode("least"),
    "all_kinds": col("key").collect_distinct(),
    "range": col("i").max() - col("i").min() + col("i").count(),
    "longest": col("tags").list.len().max(),
    "even": count(filter=col("i") % 2 == 0),
}


def aggregate_node(aggregates: dict[str, Any] | None = None, *, key: str = "key", ttl: int | None = None) -> Node:
    named = tuple((aggregates or AGGREGATES).items())
    source = input_node(VALUES, row_class(VALUES), (key,), event_time=True)
    plan = AggregatePlan.build(named, VALUES)
    out = Schema((*VALUES.select([key]), *plan.output_fields, CHANGE))
    return Node(
        "n1", AggregateChanges(named, ttl_us=ttl), (source,), out, row_class(out), True, keys=(key,), mode="retract"
    )


def a_row(chance: random.Random) -> tuple[Any, ...]:
    floats = [None, -0.0, 0.0, 0.1, 0.2, 1e10, -1e9, 1.0]
    return (
        chance.choice(["a", "b", None, ""]),
        chance.choice([None, 2**57, -(2**57), *range(-3, 4)]),
        chance.choice([0, 1, 2**57]),
        chance.choice(floats),
        Decimal(chance.randrange(-500, 500)) / 100,
        Decimal(chance.choice(["0", "999999999999999999999999999999.999", "-5.125"])),
        chance.choice([None, timedelta(microseconds=chance.randrange(10**9))]),
        chance.choice([[], ["x"], ["x", "y"]]),
    )


def a_change(key: str | None, number: int, *, gone: bool = False) -> tuple[Any, ...]:
    return (key, number, 1, 0.5, Decimal(1), Decimal(1), None, ["x"], gone)


def frame_of_changes(changes: list[tuple[Any, ...]]) -> pl.DataFrame:
    frame = pl.DataFrame(changes, schema=VALUES.polars(), orient="row")
    return frame.with_columns(pl.lit(7, pl.Int64).alias(EVENT_TIME))


def changes_of(chance: random.Random) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Changes, and the rows that hold behind them."""
    held: list[tuple[Any, ...]] = []
    changes: list[tuple[Any, ...]] = []
    for _ in range(chance.randrange(60)):
        if held and chance.random() < 0.45:
            changes.append((*held.pop(chance.randrange(len(held))), True))
        else:
            held.append(a_row(chance))
            changes.append((*held[-1], False))
    return changes, held


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_aggregates_come_to_those_of_the_rows_that_hold(seed):
    """Whatever was taken back, in whatever batches, behind restores at other parallelisms. Some aggregates at a time."""
    print(f"{seed=}")
    chance = random.Random(seed)
    aggregates = dict(chance.sample([*AGGREGATES.items()], 6))
    changes, held = changes_of(chance)
    harness = OperatorHarness(aggregate_node(aggregates), max_parallelism=GROUPS)
    while changes:
        size = chance.choice([1, 2, 5, 40])
        harness.frame(frame_of_changes(changes[:size]))
        del changes[:size]
        if chance.random() < 0.3:
            harness = harness.restored(harness.freeze()(), chance.randrange(1, 4))
    found = standing(harness.collected.frames, "key")
    rows = pl.DataFrame(held, schema={n: t for n, t in VALUES.polars().items() if n != RETRACTED}, orient="row")
    plan = AggregatePlan.build(tuple(aggregates.items()), VALUES, event_time=False)
    parts = rows.group_by("key").agg(plan.init_grouped)
    parts = parts.with_columns(plan.carry) if plan.carry else parts
    expected = {(row["key"],): row for row in parts.select("key", *plan.finish).to_dicts()}
    assert {key: repr(row) for key, row in found.items()} == {key: repr(row) for key, row in expected.items()}


def test_a_key_whose_rows_are_gone_begins_anew():
    """Its state is gone with them, whatever they did to sums: infinity, too."""
    harness = OperatorHarness(aggregate_node({"total": col("f").sum(), "most": col("f").max()}))
    row = ("a", 1, 1, math.inf, Decimal(1), Decimal(1), None, [])
    harness.frame(frame_of_changes([(*row, False)]))
    harness.frame(frame_of_changes([(*row, True)]))
    assert not harness.freeze()().keyed
    harness.frame(frame_of_changes([(*row[:3], 2.0, *row[4:], False)]))
    last = harness.collected.frames[-1]
    assert last.select("total", "most", RETRACTED).rows() == [(2.0, 2.0, False)]


def test_what_changes_no_result_is_not_sent():
    harness = OperatorHarness(aggregate_node({"most": col("i").max()}))
    row = ("a", 1, 1, 0.0, Decimal(1), Decimal(1), None, [])
    harness.frame(frame_of_changes([(*row, False)]))
    harness.frame(frame_of_changes([(*row[:1], -5, *row[2:], False), (*row, False), (*row, True)]))
    assert pl.concat(harness.collected.frames).height == 1


TTL = 80


def is_over(written: int, now: int) -> bool:
    """A key is forgotten as a whole eighth of the time to live, and no earlier than that time behind its last change."""
    return (written // (TTL // 8) + 1) * (TTL // 8) + TTL < now


class OneByOne:
    """Aggregates of changes, one change after the other, of keys that are forgotten: Flink's GroupAggFunction."""

    def __init__(self) -> None:
        self.rows: dict[Any, int] = {}
        self.total: dict[Any, int] = {}
        self.values: dict[Any, Counter[int]] = {}
        self.written: dict[Any, int] = {}
        self.lost = 0

    def forget(self, now: int) -> set[Any]:
        over = {key for key, written in self.written.items() if is_over(written, now)}
        for key in over:
            self._clear(key)
        return over

    def _clear(self, key: Any) -> None:
        for each in (self.rows, self.total, self.values, self.written):
            each.pop(key, None)

    def take(self, key: Any, value: int, gone: bool, now: int) -> None:
        if gone and key not in self.rows:
            self.lost += 1
            return
        step = -1 if gone else 1
        values = self.values.setdefault(key, Counter())
        self.rows[key] = self.rows.get(key, 0) + step
        self.total[key] = self.total.get(key, 0) + step * value
        values[value] = max(0, values[value] + step)
        self.written[key] = now
        if not self.rows[key]:
            self._clear(key)

    def results(self) -> dict[Any, tuple[Any, ...]]:
        return {key: (n, self.total[key], max(+self.values[key], default=None)) for key, n in self.rows.items()}


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "rocksdb"])
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_changes_of_keys_that_were_forgotten_come_to_what_a_row_at_a_time_does(on_disk, seed):
    """Nothing is below zero, and what is taken back is what was sent: whatever the batches, restores and rescales are."""
    chance = random.Random(seed)
    node = aggregate_node({"n": count(), "total": col("i").sum(), "most": col("i").max()}, ttl=TTL)
    with tempfile.TemporaryDirectory() as folder:
        harness = OperatorHarness(node, max_parallelism=GROUPS, local_state=Path(folder) if on_disk else None)
        model, held, sent = OneByOne(), [], {}
        for _ in range(chance.randrange(1, 25)):
            harness.now_us += chance.choice([0, 1, 9, 35, 110, 200])
            changes = []
            for _ in range(chance.choice([1, 3, 12])):
                if held and chance.random() < 0.5:
                    changes.append((*held.pop(chance.randrange(len(held))), True))
                else:
                    held.append((chance.choice("abc"), chance.randrange(3)))
                    changes.append((*held[-1], False))
            forgotten, seen = model.forget(harness.now_us), len(harness.collected.frames)
            for key, value, gone in changes:
                model.take(key, value, gone, harness.now_us)
            harness.frame(frame_of_changes([a_change(key, value, gone=gone) for key, value, gone in changes]))
            sent = {key: row for key, row in sent.items() if key not in forgotten}
            for frame in harness.collected.frames[seen:]:
                for key, *row, gone in frame.select("key", "n", "total", "most", RETRACTED).rows():
                    assert sent.pop(key, None) == (tuple(row) if gone else None)
                    if not gone:
                        sent[key] = tuple(row)
            assert sent == model.results()
            if chance.random() < 0.3:
                harness = harness.restored(harness.freeze()(), 1 if on_disk else chance.randrange(1, 4))


def test_changes_that_take_back_what_was_forgotten_are_counted():
    """Of a key that is not there, and of a row that its key, which began anew, does not have."""
    harness = OperatorHarness(aggregate_node({"n": count(), "most": col("i").max()}, ttl=TTL))
    harness.frame(frame_of_changes([a_change("a", 1), a_change("b", 2)]))
    harness.now_us = 2 * TTL
    harness.frame(frame_of_changes([a_change("a", 1, gone=True), a_change("b", 3), a_change("b", 4)]))
    harness.frame(frame_of_changes([a_change("b", 2, gone=True)]))
    assert (harness.metrics[0].forgotten_keys, harness.metrics[0].lost_changes) == (2, 2)
    assert harness.collected.frames[-1].select("key", "n", "most", RETRACTED).rows() == [
        ("b", 2, 4, True), ("b", 1, 4, False),
    ]  # fmt: skip


def test_with_a_time_to_live_changes_of_nan_are_those_of_one_key():
    """Also where it is the only key of a batch, which Polars takes for sorted: taking back the unknown is noticed."""
    harness = OperatorHarness(aggregate_node({"n": count()}, key="f", ttl=TTL))
    rows = [(None, 0, 0, math.nan, None, None, None, None, gone) for gone in (True, False, False)]
    for row in rows:
        harness.frame(frame_of_changes([row]))
    assert harness.collected.frames[-1].select("n", RETRACTED).rows()[-1] == (2, False)
    assert harness.metrics[0].lost_changes == 1


def test_with_a_time_to_live_a_result_that_stays_the_same_is_sent():
    """As in Flink: keys behind it would be forgotten though theirs is not."""
    harness = OperatorHarness(aggregate_node({"most": col("i").max()}, ttl=TTL))
    harness.frame(frame_of_changes([a_change("a", 2)]))
    harness.frame(frame_of_changes([a_change("a", 1)]))
    assert pl.concat(harness.collected.frames)[RETRACTED].to_list() == [False, True, False]


def test_state_of_other_aggregates_is_refused():
    snapshot_of = OperatorHarness(aggregate_node({"most": col("i").max()}))
    snapshot_of.frame(frame_of_changes([("a", 1, 1, 0.0, Decimal(1), Decimal(1), None, [], False)]))
    snapshot = snapshot_of.freeze()()
    with pytest.raises(IncompatibleStateError, match="other aggregates"):
        OperatorHarness(aggregate_node({"most": col("f").max()}), restored=snapshot)


# -- as users write it --------------------------------------------------------------------------------------------------

Click = row_class(Schema((Field("user", STRING, nullable=True), Field("at", INT64))))
Order = row_class(Schema((Field("id", INT64), Field("town", STRING), Field("price", FLOAT64))))
ORDERS = [
    Order(1, "bern", 10.0),
    Order(2, "bern", 20.0),
    Order(1, "graz", 11.0),
    Order(3, "graz", 1.0),
    Order(2, "bern", 5.0),
]


def orders(pipeline: Pipeline) -> Any:
    """The newest row of each order."""
    read = pipeline.read(iterables.Source(ORDERS, schema=Order))
    return read.key_by("id").deduplicate("last")


def test_aggregates_of_updates():
    towns = orders(Pipeline("towns")).key_by("town").agg(orders=count(), dear=col("price").max())
    found = standing([towns.collect()], "town")
    assert found == {
        ("bern",): {"town": "bern", "orders": 1, "dear": 5.0}, ("graz",): {"town": "graz", "orders": 2, "dear": 11.0},
    }  # fmt: skip


def test_aggregates_of_aggregates_of_aggregates():
    totals = orders(Pipeline("p")).key_by("town").agg(n=count(), total=col("price").sum())
    by_count = totals.key_by("n").agg(towns=count()).key_by(all=lit(1)).agg(kinds=count(), towns=col("towns").sum())
    assert by_count.final().collect().rows() == [(1, 2, 2)]


def test_a_filter_takes_back_what_no_longer_passes():
    dear = orders(Pipeline("p")).filter(col("price") > 8)
    assert standing([dear.collect()], "id") == {(1,): {"id": 1, "town": "graz", "price": 11.0}}
    assert dear.select("town", "id").final().collect().rows() == [("graz", 1)]


def test_a_union_of_updates_has_what_holds_in_each_of_them():
    """Rows that hold in two hold twice; an aggregate of it counts them, and a row that is taken back in one is left."""
    newest = orders(Pipeline("p"))
    cheap = newest.filter(col("price") < 15).select("price", "town", "id")  # another order of columns
    both = newest.filter(col("price") > 4).union(cheap)
    assert sorted(both.select("id", "town").final().collect().rows()) == [
        (1, "graz"), (1, "graz"), (2, "bern"), (2, "bern"), (3, "graz"),
    ]  # fmt: skip
    counted = both.key_by("town").agg(rows=count(), dearest=col("price").max())
    assert sorted(counted.final().collect().rows()) == [("bern", 2, 5.0), ("graz", 3, 11.0)]


def test_a_union_of_updates_is_written_by_a_key_of_its_rows():
    """None of them is the key of what it is made of, so its rows are kept by that of the sink."""
    pipeline = Pipeline("p")
    bern, others = (orders(pipeline).filter(where) for where in (col("town") == "bern", col("town") != "bern"))
    both = bern.union(others)
    assert "materialize" in [node.verb for node in written_by(both, "id").plan]
    assert standing([both.collect()], "id") == {
        (1,): {"id": 1, "town": "graz", "price": 11.0}, (2,): {"id": 2, "town": "bern", "price": 5.0},
        (3,): {"id": 3, "town": "graz", "price": 1.0},
    }  # fmt: skip


def written_by(stream: Any, key: str, **options: Any) -> Pipeline:
    """The pipeline of a stream that is written to a topic by a key."""
    stream.write(kafka.Sink("topic", key=key, delivery="upsert", brokers="none:9092"), **options)
    return stream._pipeline


def test_a_time_to_live_is_that_of_what_keeps_rows():
    """It stands in plans; where nothing is kept it is refused."""
    leaders = orders(Pipeline("p")).changes(ttl="1h").key_by("town").top(1, by="price", ttl="2h")
    written = written_by(leaders.drop("rank"), "id", ttl="3h")
    found = {node.verb: describe_node(node).get("ttl") for node in written.plan if node.verb != "key_by"}
    assert found == {
        "read": None, "deduplicate": None, "changes": "1h", "top": "2h", "drop": None, "materialize": "3h", "write": None,
    }  # fmt: skip
    moved = written_by(orders(Pipeline("p")), "town", ttl="4h")
    assert [describe_node(node)["ttl"] for node in moved.plan if node.verb in ("changes", "materialize")] == ["4h"] * 2
    with pytest.raises(PipelineError, match="write: no rows are kept for this sink"):
        written_by(orders(Pipeline("p")), "id", ttl="1h")
    with pytest.raises(PipelineError, match=r"changes: these are changes already.*give it to agg"):
        orders(Pipeline("p")).key_by("town").agg(n=count()).changes(ttl="1h")


def test_unions_of_updates_are_of_updates_with_the_same_columns():
    newest = orders(Pipeline("p"))
    with pytest.raises(PipelineError, match="union: the columns differ"):
        newest.union(newest.key_by("town").agg(n=count()))
    with pytest.raises(PipelineError, match="union: give at least one other"):
        newest.union()
    with pytest.raises(PipelineError, match="another pipeline"):
        newest.union(orders(Pipeline("other")))
    facts = newest._pipeline.read(iterables.Source(ORDERS, schema=Order))
    for one, other in ((newest, facts), (facts, newest)):
        with pytest.raises(PipelineError, match=r"union: .*(streams of updates and some of rows|UpsertStream)"):
            one.union(other)


def test_distinct_rows_of_updates_hold_as_long_as_one_of_them_does():
    """A row that comes again, or of which one is left, is not sent; when the last one goes, it is taken back."""
    harness = OperatorHarness(distinct_node())

    def feed(*changes: tuple[str | None, int, bool]) -> list[tuple[Any, ...]]:
        harness.collected.frames.clear()
        harness.frame(frame_of_changes([a_change(key, number, gone=gone) for key, number, gone in changes]))
        return [row for frame in harness.collected.frames for row in frame.select("key", RETRACTED).rows()]

    assert feed(("a", 1, False), ("a", 2, False), (None, 1, False)) == [("a", False), (None, False)]
    assert feed(("a", 3, False), ("a", 1, True)) == []
    assert feed((None, 1, True)) == [(None, True)]
    harness = harness.restored(harness.freeze()())
    assert feed(("a", 2, True)) == []
    assert feed(("a", 3, True), ("b", 1, False), ("b", 1, True)) == [("a", True)]
    assert not harness.freeze()().keyed


def distinct_node() -> Node:
    """The operator of a distinct by one column."""
    pipeline = Pipeline("p")
    source = input_node(VALUES, row_class(VALUES), event_time=True)
    source.mode = "retract"
    return UpsertStream(pipeline, source).distinct("key")._node


def test_distinct_is_of_the_columns_that_are_named_or_of_all():
    newest = orders(Pipeline("p"))
    towns = newest.distinct("town")
    assert (towns.schema.names, towns._node.verb, towns._node.mode) == (("town", RETRACTED), "distinct", "retract")
    assert sorted(towns.final().collect().rows()) == [("bern",), ("graz",)]
    assert sorted(newest.changes().distinct().final().collect().rows()) == [
        (1, "graz", 11.0), (2, "bern", 5.0), (3, "graz", 1.0),
    ]  # fmt: skip
    # Where updates come one by one, graz comes once, and stays when an order leaves it.
    assert [row["town"] for row in towns.collect().to_dicts() if row["town"] == "graz"] == ["graz"]


def test_a_row_is_in_both_or_in_one_stream():
    """Facts and updates; columns in any order; what was there before, and how often, makes no difference."""
    pipeline = Pipeline("p")
    facts = pipeline.read(iterables.Source(ORDERS, schema=Order)).select("town", "id")
    newest = orders(pipeline).select("id", "town")
    assert sorted(facts.intersect(newest).final().collect().rows()) == [("bern", 2), ("graz", 1), ("graz", 3)]
    assert facts.minus(newest).final().collect().rows() == [("bern", 1)]
    assert newest.minus(facts).final().collect().rows() == []
    assert newest.minus(facts.filter(col("id") < 3)).final().collect().rows() == [(3, "graz")]


@pytest.mark.parametrize(("verb", "left", "right"), [("intersect", True, True), ("minus", True, False)])
def test_rows_of_two_streams_are_sent_when_they_come_to_hold(verb, left, right):
    """Not when there are more of them on a side, or fewer, as long as there are any; also behind a restore."""
    pipeline = Pipeline("p")
    one, other = (pipeline.read(iterables.Source([], schema=Click)).select("user") for _ in range(2))
    node = getattr(one, verb)(other)._node
    harness, chance = OperatorHarness(node), random.Random(7)
    there = {(user, side): 0 for user in ("a", None) for side in (True, False)}

    def holds(user: str | None) -> bool:
        return (there[user, True] > 0) == left and (there[user, False] > 0) == right

    for _ in range(60):
        (user, side), before = chance.choice([*there]), {user: holds(user) for user in ("a", None)}
        gone = there[user, side] > 0 and chance.random() < 0.5
        there[user, side] += -1 if gone else 1
        harness.collected.frames.clear()
        harness.frame(pl.DataFrame([(user, side, gone)], node.inputs[0].schema.polars(), orient="row"))
        sent = [row for frame in harness.collected.frames for row in frame.select("user", RETRACTED).rows()]
        assert sent == ([] if before[user] == holds(user) else [(user, before[user])])
        if chance.random() < 0.1:
            harness = harness.restored(harness.freeze()())


@pytest.mark.parametrize("verb", ["intersect", "minus"])
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_of_equal_rows_of_two_streams_the_difference_is_sent(verb, seed):
    """So many of them as were added or taken back since; also behind a restore."""
    pipeline, chance = Pipeline("p"), random.Random(seed)
    one, other = (pipeline.read(iterables.Source([], schema=Click)).select("user") for _ in range(2))
    node = getattr(one, verb)(other, all=True)._node
    harness, there = OperatorHarness(node, max_parallelism=GROUPS), Counter[tuple[str | None, bool]]()

    def copies(user: str | None) -> int:
        left, right = there[user, True], there[user, False]
        return min(left, right) if verb == "intersect" else max(left - right, 0)

    for _ in range(12):
        before, batch = {user: copies(user) for user in ("a", "b", None)}, list[tuple[str | None, bool, bool]]()
        for _ in range(chance.choice([1, 1, 9])):
            key = chance.choice(["a", "b", None]), chance.random() < 0.6
            gone = there[key] > 0 and chance.random() < 0.4
            there[key] += -1 if gone else 1
            batch.append((*key, gone))
        harness.collected.frames.clear()
        harness.frame(pl.DataFrame(batch, node.inputs[0].schema.polars(), orient="row"))
        sent = Counter(row for frame in harness.collected.frames for row in frame.select("user", RETRACTED).rows())
        changed = {user: copies(user) - before[user] for user in before}
        assert sent == Counter({(user, by < 0): abs(by) for user, by in changed.items() if by})
        if chance.random() < 0.2:
            harness = harness.restored(harness.freeze()(), chance.randrange(1, 4))


def test_with_a_time_to_live_one_of_equal_rows_keeps_the_keys_behind_alive():
    """And with the row of which the time is over all its copies are forgotten, without a word."""
    pipeline = Pipeline("p")
    one, other = (pipeline.read(iterables.Source([], schema=Click)).select("user") for _ in range(2))
    node = one.minus(other, all=True, ttl=timedelta(microseconds=TTL))._node
    harness = OperatorHarness(node)

    def feed(*rows: tuple[str, bool, bool]) -> list[tuple[Any, ...]]:
        harness.collected.frames.clear()
        harness.frame(pl.DataFrame(rows, node.inputs[0].schema.polars(), orient="row"))
        return [row for frame in harness.collected.frames for row in frame.select("user", RETRACTED).rows()]

    assert feed(*[("a", True, False)] * 3) == [("a", False)] * 3
    assert feed(("a", True, False), ("a", False, False)) == [("a", True), ("a", False)]
    assert feed(*[("a", True, True)] * 4, ("a", False, True), ("a", True, False)) == [("a", True)] * 3 + [("a", False)]
    assert feed(("b", False, False)) == []
    harness.now_us = 2 * TTL
    assert feed(("a", True, False)) == [("a", False)]
    assert harness.metrics[0].forgotten_keys == 2


def test_equal_rows_replace_no_others_by_a_key():
    """So a sink with a key has the last of those that hold."""
    newest = orders(Pipeline("p"))
    copies = newest.intersect(newest, all=True)
    assert "materialize" in [node.verb for node in written_by(copies, "id").plan]
    with pytest.raises(PipelineError, match="agg: the rows of intersect with all=True replace no others by a key"):
        copies._node.upsert_key("agg")


def test_streams_of_which_rows_are_in_both_are_named_as_one_operator():
    """Its state is found again by that name, and where it goes all of it goes."""
    pipeline = Pipeline("p")
    both = orders(pipeline).intersect(orders(pipeline)).uid("both").parallelism(2)
    assert (both._node.operator_id, both._node.verb, both._node.parallelism) == ("both", "intersect", 2)


def test_state_of_rows_in_both_streams_is_not_that_of_rows_in_one():
    """Though the counts are the same; aggregates are signed as they were before there were these."""
    newest = orders(Pipeline("p"))
    streams = [getattr(newest, verb)(newest, all=each) for verb in ("intersect", "minus") for each in (False, True)]
    assert len({state_signature(stream._node) for stream in streams}) == 4
    assert json.loads(state_signature(newest.key_by("town").agg(n=count())._node)) == {
        "verb": "agg of changes", "keys": [{"name": "town", "type": "string", "nullable": False}],
        "aggregates": {"n": "count()"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (
            lambda newest, _: newest.intersect(newest.key_by("town").agg(n=count())),
            r"intersect: the columns differ: \(id: int64, .*\) and \(town: string, n: int64\)",
        ),
        (lambda newest, _: newest.minus(newest.with_columns(price=col("town"))), "minus: the columns differ"),
        (lambda newest, _: newest.minus(orders(Pipeline("other"))), r"minus: another stream is of another pipeline"),
        (
            lambda _, facts: facts.with_columns(retracted=lit(1)).intersect(facts.with_columns(retracted=lit(1))),
            "intersect: there is a column 'retracted' already",
        ),
        (
            lambda newest, _: newest.with_columns(tags=concat_list("id")).intersect(
                newest.with_columns(tags=concat_list("id"))
            ),
            r"intersect: tags is list.*a list cannot be a key",
        ),
        (
            lambda _, facts: facts.select("id").minus(facts.key_by("town").deduplicate("last").select("id")),
            "minus: town, which says which row a row replaces",
        ),
    ],
)  # fmt: skip
def test_streams_that_can_have_no_rows_in_common_are_refused(write, said):
    newest = orders(Pipeline("p"))
    with pytest.raises(PipelineError, match=said):
        write(newest, newest._pipeline.read(iterables.Source(ORDERS, schema=Order)))


def test_a_column_of_any_name_may_be_there():
    """The name by which the two streams are told apart is one that they have not."""
    pipeline = Pipeline("p")
    facts = pipeline.read(iterables.Source(ORDERS, schema=Order)).select(left="id", left_="town")
    assert facts.intersect(facts).distinct("left").final().collect().height == 3


def test_corrected_sessions_can_be_counted():
    """A late row joins two sessions, which are taken back."""
    times = [0, 10, 60, 5]
    read = Pipeline("p").read(
        iterables.Source([Click("a", time) for time in times], schema=Click, event_time="at", time_unit="s")
    )
    sessions = read.key_by("user").window(session("6s")).allowed_lateness("1h").agg(clicks=count())
    counted = sessions.key_by("user").agg(sessions=count(), clicks=col("clicks").sum())
    assert counted.final().collect().rows() == [("a", 2, 4)]
    assert sessions.distinct().schema.names == ("user", "window_start", "window_end", "clicks", RETRACTED)
    assert (
        sessions.select("user", "window_start", "window_end", "retracted").distinct("user").final().collect().height
        == 1
    )
    assert sessions.minus(sessions.filter(col("clicks") < 2)).final().collect()["clicks"].to_list() == [3]


def starts_of(at: int, step: int) -> list[int]:
    """Of the windows of ten seconds that a row is in."""
    return [at // step * step - back for back in range(0, 10, step)]


def corrections(clicks: list[tuple[str, int]], step: int) -> int:
    """How often a row comes to a window that was over, and had a result."""
    found, latest, there = 0, 0, set[tuple[str, int]]()
    for user, at in clicks:
        windows = {(user, start) for start in starts_of(at, step)}
        found += sum(start + 10 <= latest for _, start in windows & there)
        there, latest = there | windows, max(latest, at)
    return found


@pytest.mark.parametrize(("window", "step"), [(tumbling("10s"), 10), (sliding("10s", every="5s"), 5)], ids=str)
@settings(max_examples=15, deadline=None)
@given(clicks=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 40)), min_size=5, max_size=30))
def test_corrected_windows_can_be_counted(window, step, clicks):
    """A late row takes back what its windows came to before, wherever that was counted."""
    rows = [Click(*click) for click in clicks]
    read = Pipeline("p").read(iterables.Source(rows, schema=Click, event_time="at", time_unit="s"))
    windows = read.key_by("user").window(window).allowed_lateness("1h").agg(clicks=count())
    by_clicks = windows.key_by("clicks").agg(windows=count(), users=col("user").n_unique())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "BATCH_ROWS", 1)  # of the results that a window has in a batch the last one counts
        changes, counted = windows.changes().collect(), by_clicks.final().collect()
    expected = Counter((user, start) for user, at in clicks for start in starts_of(at, step))
    held = standing([changes.with_columns(pl.col("window_start").dt.epoch("s"))], "user", "window_start")
    assert {key: row["clicks"] for key, row in held.items()} == expected
    assert changes[RETRACTED].sum() == corrections(clicks, step)
    users = {n: [user for (user, _), clicks in expected.items() if clicks == n] for n in expected.values()}
    assert sorted(counted.rows()) == sorted((n, len(each), len({*each})) for n, each in users.items())


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (lambda totals: totals.key_by("n").agg(first=col("town").first()), "depends on"),
        (lambda totals: totals.key_by("n").agg(all=col("town").collect()), "depends on"),
        (lambda totals: totals.key_by("n").agg(x=aggregate(Endless(), "n")), "Endless .* a method `def retract"),
        (lambda totals: totals.key_by("n").agg(usual=col("town").mode()), "depends on which of several most frequent"),
        (lambda totals: totals.changes().filter(col(RETRACTED)), "reads retracted"),
        (lambda totals: totals.changes().select(gone=col(RETRACTED)), "reads retracted"),
        (lambda totals: totals.changes().select(retracted=lit(True)), "another name"),
        (lambda totals: totals.changes().key_by(RETRACTED), "reads retracted"),
        (lambda totals: totals.with_columns(retracted=lit(1)), "another name"),
        (lambda _: orders(Pipeline("p")).with_columns(retracted=lit(1)).filter(col("id") > 0), "already"),
        (lambda totals: totals.key_by("n").reduce(max), "updates have agg, top, over and window here"),
        (lambda totals: totals.key_by("n").window(tumbling("1h")), "window: .*with_event_time"),
        (lambda totals: totals.key_by("none"), "none"),
        (lambda totals: totals.select("n").key_by("n"), "town, which says which row a row replaces"),
        (lambda totals: totals.key_by(), "name at least one"),
        (lambda totals: totals.key_by(n=lit(1)), "already"),
        (lambda totals: totals.key_by("n").agg(), "at least one aggregate"),
        (lambda totals: totals.distinct("none"), "distinct: .*none"),
        (lambda totals: totals.changes().distinct(RETRACTED), "distinct: .*retracted"),
        (lambda totals: totals.select("n").distinct(), "town, which says which row a row replaces"),
        (lambda totals: totals.with_columns(all=concat_list("n")).distinct(), "distinct: .*a list cannot be a key"),
    ],
)
def test_what_cannot_be_is_refused(write, said):
    totals = orders(Pipeline("p")).key_by("town").agg(n=count())
    if said.startswith("town"):
        totals = Pipeline("p").read(iterables.Source(ORDERS, schema=Order)).key_by("town").agg(n=count())
    with pytest.raises(PipelineError, match=said):
        write(totals)
