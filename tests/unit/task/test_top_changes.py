"""The best rows that hold: what sorting all of them comes to, whatever was taken back."""

from __future__ import annotations

import dataclasses
import math
import random
import tempfile
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_cases import GROUPS

from penstock import Pipeline, col, count
from penstock.connectors import iterables
from penstock.core.batches import EVENT_TIME
from penstock.errors import PipelineError
from penstock.functions.windows.definitions import RETRACTED
from penstock.plan.building.schemas import top_schema
from penstock.plan.logical import Node
from penstock.plan.operations.top import Top
from penstock.plan.order import Order
from penstock.state import sorted_runs
from penstock.state.row_order import order_of
from penstock.state.segments import decode_segments, encode_segments
from penstock.task.operators.keyed_table import WRITTEN
from penstock.testing.harness import OperatorHarness, input_node
from penstock.types import BOOLEAN, FLOAT64, INT64, STRING, Field, Schema, row_class

CHANGE = Field(RETRACTED, BOOLEAN)
ROWS = Schema((Field("key", STRING, nullable=True), Field("x", FLOAT64, nullable=True), Field("id", INT64), CHANGE))


def top_node(n: int, *, descending: bool = True, ttl: int | None = None) -> Node:
    by = col("x")
    source = input_node(ROWS, row_class(ROWS), ("key",), event_time=True)
    source.mode = "retract"
    order = (Order(by, descending),)
    out = top_schema(n, order, source)
    return Node("n1", Top(n, order, ttl), (source,), out, row_class(out), True, ("key",), mode="retract")


def frame_of(rows: list[tuple[Any, ...]]) -> pl.DataFrame:
    frame = pl.DataFrame(rows, schema=ROWS.polars(), orient="row")
    return frame.with_columns(pl.lit(7, pl.Int64).alias(EVENT_TIME))


def standing(frames: list[pl.DataFrame]) -> dict[Any, Any]:
    """What stands at every rank; what is taken back stood there."""
    found: dict[Any, Any] = {}
    for frame in frames:
        for row in frame.drop(EVENT_TIME).to_dicts():
            place, content = (row["key"], row["rank"]), repr((row["x"], row["id"]))
            assert found.pop(place, None) == (content if row[RETRACTED] else None)
            if not row[RETRACTED]:
                found[place] = content
    return found


def test_ranks_that_nobody_has_cost_nothing():
    """A number as large as may be ranks all rows of a key."""
    harness = OperatorHarness(top_node(10**12))
    harness.frame(frame_of([("a", 1.0, 1, False), ("b", 3.0, 2, False), ("a", 2.0, 3, False)]))
    assert standing(harness.collected.frames) == {("a", 1): "(2.0, 3)", ("a", 2): "(1.0, 1)", ("b", 1): "(3.0, 2)"}


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**9), n=st.integers(1, 4), descending=st.booleans(), least=st.sampled_from([2, 1024]))
def test_the_ranks_come_to_those_of_the_rows_that_hold(seed, n, descending, least):
    """Whatever the batches and the runs are; of equal ones the one that was added first, and each as often as it is."""
    chance = random.Random(seed)
    held: list[tuple[Any, ...]] = []
    harness = OperatorHarness(top_node(n, descending=descending), max_parallelism=GROUPS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_runs, "_LEAST_ROWS", least)
        for _ in range(chance.randrange(1, 20)):
            rows: list[tuple[Any, ...]] = []
            for _ in range(chance.choice([1, 3, 20])):
                if held and chance.random() < 0.5:
                    row = chance.choice(held)
                    held.reverse()  # of rows that are the same in all columns any is the one
                    held.remove(row)
                    held.reverse()
                    rows.append((*row, True))
                else:
                    xs = [None, math.nan, -0.0, 0.0, 1.5, -1.5, math.inf, -math.inf, 2.0, 3.0]
                    held.append((chance.choice(["a", "b", None]), chance.choice(xs), len(rows) % 3))
                    rows.append((*held[-1], False))
            harness.frame(frame_of(rows))
            if chance.random() < 0.3:
                harness = harness.restored(harness.freeze()(), chance.randrange(1, 4))

    def worth(row: tuple[Any, ...]) -> tuple[Any, ...]:
        x = row[1]
        missing = x is None or math.isnan(x)
        return (missing, 0 if missing else -x if descending else x)

    found = standing(harness.collected.frames)
    for key in ("a", "b", None):
        mine = sorted(worth(row) for row in held if row[0] == key)[:n]
        assert sum(place[0] == key for place in found) == len(mine)
        for rank, expected in enumerate(mine, 1):
            x = eval(found[key, rank], {"nan": math.nan, "inf": math.inf})[0]
            assert worth((key, x)) == expected
    assert len(set(found)) == len(found)


TTL = 80


def is_over(touched: int, now: int) -> bool:
    """A key is forgotten as a whole eighth of the time to live, and no earlier than that time behind its last change."""
    return (touched // (TTL // 8) + 1) * (TTL // 8) + TTL < now


@pytest.mark.parametrize("left", [[], ["b"]])
def test_key_groups_of_which_a_snapshot_has_no_rows_are_restored(left):
    """What a checkpoint brings together of deltas may tell only when keys were touched, of some key groups or of all."""
    node = top_node(1, ttl=TTL)
    keys = node.inputs[0].schema.select(["key"])
    harness = OperatorHarness(node, max_parallelism=GROUPS)
    harness.frame(frame_of([("a", 1.0, 0, False), ("b", 2.0, 0, False)]))
    snapshot, keyed = harness.snapshot(), list[tuple[int, bytes]]()
    for _, header, rows in decode_segments(snapshot.keyed, node.operator_id, "top-of-changes", keys):
        whole = pl.col("key").is_in(left)
        touched = rows.filter(pl.col(WRITTEN).is_not_null() & ~whole).select("key", WRITTEN)
        for frame in (touched, rows.filter(whole)):
            keyed += encode_segments(header, [frame], keys, GROUPS) if frame.height else []
    successor = harness.restored(dataclasses.replace(snapshot, keyed=keyed), 1)
    del successor.collected.frames[:]
    successor.frame(frame_of([("b", 1.0, 1, False)]))
    found = [row for frame in successor.collected.frames for row in frame.select("x", RETRACTED).rows()]
    assert found == ([] if left else [(1.0, False)])


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "rocksdb"])
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**9), n=st.integers(1, 3))
def test_the_ranks_of_keys_that_were_forgotten_come_to_those_of_the_rows_since(on_disk, seed, n):
    """What takes back a row of before is counted, what is taken back was sent; restores and rescales included."""
    chance = random.Random(seed)
    held: list[tuple[Any, ...]] = []
    known: dict[Any, list[tuple[Any, ...]]] = {}
    touched: dict[Any, int] = {}
    ranks: dict[Any, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) if on_disk else None
        harness = OperatorHarness(top_node(n, ttl=TTL), max_parallelism=GROUPS, local_state=place)
        for _ in range(chance.randrange(1, 25)):
            harness.now_us += chance.choice([0, 1, 9, 35, 110, 200])
            for key in [key for key, at in touched.items() if is_over(at, harness.now_us)]:
                ranks = {where: row for where, row in ranks.items() if where[0] != key}
                del known[key], touched[key]
            rows, lost = list[tuple[Any, ...]](), 0
            for _ in range(chance.choice([1, 3, 12])):
                gone = bool(held) and chance.random() < 0.5
                row = (
                    held.pop(chance.randrange(len(held)))
                    if gone
                    else (chance.choice(["a", "b", None]), chance.choice([None, 0.0, 1.0, 2.0]), chance.randrange(2))
                )
                held += [] if gone else [row]
                rows.append((*row, gone))
                mine = known.setdefault(row[0], [])
                lost += gone and row not in mine
                if not gone:
                    mine.append(row)
                elif row in mine:
                    mine.remove(row)
            touched |= dict.fromkeys((row[0] for row in rows), harness.now_us)
            for key in [key for key, mine in known.items() if not mine]:
                del known[key], touched[key]
            seen, before = len(harness.collected.frames), sum(each.lost_changes for each in harness.metrics)
            harness.frame(frame_of(rows))
            assert sum(each.lost_changes for each in harness.metrics) - before == lost
            for frame in harness.collected.frames[seen:]:
                for row in frame.drop(EVENT_TIME).to_dicts():
                    where, content = (row["key"], row["rank"]), (row["x"], row["id"])
                    assert ranks.pop(where, None) == (content if row[RETRACTED] else None)
                    ranks |= {} if row[RETRACTED] else {where: content}
            best = {
                (key, rank): x
                for key, mine in known.items()
                for rank, (_, x, _) in enumerate(
                    sorted(mine, key=lambda row: -1.0 if row[1] is None else row[1])[::-1][:n], 1
                )
            }
            assert {where: x for where, (x, _) in ranks.items()} == best
            if chance.random() < 0.3:
                harness = harness.restored(harness.freeze()(), 1 if on_disk else chance.randrange(1, 4))


def test_a_time_to_live_may_come_to_the_rows_of_a_snapshot_and_go_from_them():
    """Keys that were written without one were touched when they are restored."""
    harness = OperatorHarness(top_node(1), now_us=1_000)
    harness.frame(frame_of([("a", 1.0, 1, False), ("a", 2.0, 2, False)]))
    dated = OperatorHarness(top_node(1, ttl=TTL), now_us=1_000, restored=harness.snapshot())
    dated.now_us += TTL
    dated.frame(frame_of([("a", 2.0, 2, True)]))
    assert dated.collected.frames[-1]["x"].to_list() == [2.0, 1.0]
    undated = OperatorHarness(top_node(1), now_us=9_000, restored=dated.snapshot())
    undated.frame(frame_of([("a", 3.0, 3, False)]))
    assert undated.collected.frames[-1]["x"].to_list() == [1.0, 3.0]
    dated.now_us += 2 * TTL
    dated.frame(frame_of([("a", 1.0, 1, True)]))
    assert (len(dated.collected.frames), dated.metrics[0].forgotten_keys, dated.metrics[0].lost_changes) == (1, 1, 1)
    (operator,) = dated.operators
    assert operator._rows.all().is_empty()
    assert not operator._touched.all_keys()
    for gone in (False, True):  # a key whose rows are all taken back leaves nothing, either
        dated.frame(frame_of([("a", 1.0, 1, gone)]))
    assert operator._rows.all().is_empty()
    assert not operator._touched.all_keys()


def test_of_equal_rows_the_first_stands_first_until_it_is_taken_back():
    harness = OperatorHarness(top_node(2))
    harness.frame(frame_of([("a", 1.0, 1, False), ("a", 1.0, 2, False)]))
    harness.frame(frame_of([("a", 1.0, 3, False)]))
    harness.frame(frame_of([("a", 1.0, 1, True)]))
    assert standing(harness.collected.frames) == {("a", 1): "(1.0, 2)", ("a", 2): "(1.0, 3)"}


def test_a_batch_looks_at_few_rows_of_a_key_with_many(monkeypatch):
    """Also where its best rows are taken back one after the other."""
    looked: list[int] = []
    greatest = __import__("penstock.state.counted_rows", fromlist=["x"]).CountedRows.greatest

    def watched(self: Any, keys: pl.DataFrame, number: int) -> pl.DataFrame:
        found = greatest(self, keys, number)
        looked.append(found.height)
        return found

    monkeypatch.setattr("penstock.state.counted_rows.CountedRows.greatest", watched)
    harness = OperatorHarness(top_node(3))
    for begin in range(0, 50_000, 1_000):
        harness.frame(frame_of([("a", float(x), x, False) for x in range(begin, begin + 1_000)]))
    for x in range(49_999, 49_900, -1):
        harness.frame(frame_of([("a", float(x), x, True)]))
    assert max(looked) < 2_000
    assert standing(harness.collected.frames)["a", 1] == "(49900.0, 49900)"


@pytest.mark.parametrize(
    "values",
    [
        pl.Series([None, -3, 0, 2**62, -(2**63), 2**63 - 1], dtype=pl.Int64),
        pl.Series([0, 1, 2**63, 2**64 - 1, None], dtype=pl.UInt64),
        pl.Series([0.0, -0.0, math.nan, None, math.inf, -math.inf, 5e-324, -1e300, 1.0]),
        pl.Series([0.5, -0.5, 3.0], dtype=pl.Float32),
        pl.Series(["", "a", "ab", "abcdefgh1", "abcdefgh2", "é", "\U0001f600", "\uffff", None]),
        pl.Series([b"", b"\x00", b"\xff", None]),
        pl.Series([True, False, None]),
        pl.Series([datetime(1900, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC), None]),
        pl.Series([date(1900, 1, 1), date(2026, 1, 1)]),
        pl.Series([timedelta(-1), timedelta(1)]),
        pl.Series([Decimal("-1.5"), Decimal("99999999999999999999.25"), Decimal("99999999999999999999.5"), None]),
        pl.Series([], dtype=pl.String),
    ],
    ids=lambda values: str(values.dtype),
)
@pytest.mark.parametrize("descending", [True, False])
@pytest.mark.parametrize("nulls_last", [None, True, False])
def test_the_order_of_values_is_that_of_their_integers(values, descending, nulls_last):
    """Where nothing is said of nulls NaN is as null, and otherwise the greatest value."""
    order = order_of(values, descending=descending, nulls_last=nulls_last)
    assert order.dtype == np.int64
    alike = values.dtype.is_float() and nulls_last is None
    frame = pl.DataFrame({"x": values.fill_nan(None) if alike else values, "o": order})
    worst_first = frame.sort("x", descending=not descending, nulls_last=nulls_last is False)["o"].to_list()
    assert worst_first == sorted(worst_first)


def test_the_best_totals():
    """As users write it; what falls behind is taken back, and a rank that nothing stands at any more."""
    Bid = row_class(Schema((Field("who", STRING), Field("price", INT64))))  # noqa: N806 -- a class
    bids = [("a", 5), ("b", 3), ("c", 1), ("b", 4), ("a", -9), ("c", 1)]

    def totals() -> Any:
        read = Pipeline("p").read(iterables.Source([Bid(*bid) for bid in bids], schema=Bid))
        return read.key_by("who").agg(total=col("price").sum())

    best = totals().key_by(all=1).top(2, by="total")
    assert best.schema.names == ("all", "rank", "who", "total", RETRACTED)
    assert sorted(best.final().drop("all").collect().rows()) == [(1, "b", 7), (2, "c", 2)]
    above = totals().filter(col("total") > 6).key_by(all=1).top(2, by="total").key_by("all").agg(n=count())
    assert above.final().collect().rows() == [(1, 1)]


@pytest.mark.parametrize(
    ("by", "said"),
    [(col("none"), "none"), (col(RETRACTED), "reads retracted"), (col("who").str.split(","), "no order")],
)
def test_what_cannot_be_ordered_is_refused(by, said):
    Bid = row_class(Schema((Field("who", STRING), Field("price", INT64))))  # noqa: N806 -- a class
    totals = Pipeline("p").read(iterables.Source([Bid("a", 1)], schema=Bid)).key_by("who").agg(n=count())
    with pytest.raises(PipelineError, match=said):
        totals.key_by("n").top(1, by=by)
