"""`top` in any order, behind an offset, with ranks and without: what DuckDB numbers and cuts of the rows that hold."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import duckdb
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
from penstock.plan.building.aggregates import top as top_rows
from penstock.plan.building.changes import known_keys
from penstock.plan.building.rows import Rows
from penstock.plan.logical import LogicalPlan, Node
from penstock.plan.operations.top import Top
from penstock.plan.order import Order
from penstock.plan.signatures import state_signature
from penstock.state import sorted_runs
from penstock.task.operators import top
from penstock.task.operators.ordering import RowOrder
from penstock.testing.harness import OperatorHarness, input_node
from penstock.types import BOOLEAN, FLOAT64, INT64, STRING, Field, Schema, row_class

FACTS = Schema(
    (
        Field("key", STRING, nullable=True), Field("x", FLOAT64, nullable=True), Field("t", STRING, nullable=True),
        Field("i", INT64),
    )
)  # fmt: skip
CHANGES = Schema((*FACTS, Field(RETRACTED, BOOLEAN)))
XS = [None, math.nan, -0.0, 0.0, 1.5, -1.5, math.inf, -math.inf]
TEXTS = [None, "", "a", "b", "abcdefgh1", "abcdefgh2"]


def node_of(by: tuple[Order, ...], n: int | None, *, changes: bool, offset: int, rank: str | None) -> Node:
    schema = CHANGES if changes else FACTS
    source = input_node(schema, row_class(schema), ("key",), event_time=True)
    source.mode = "retract" if changes else "append"
    return top_rows(Rows(LogicalPlan("p"), source), n, by, None, offset=offset, rank=rank).node


def plain(value: Any) -> str:
    """-0.0 and 0.0 are the same."""
    return repr(value + 0.0 if isinstance(value, float) else value)


@dataclass
class Log:
    """What is sent holds: a row that is taken back is there, and at a rank of a key there is one."""

    rank: str | None
    rows: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    ranks: dict[tuple[Any, Any], tuple[Any, ...]] = field(default_factory=dict)
    sent: int = 0

    def add(self, frame: pl.DataFrame) -> None:
        self.sent += frame.height
        for row in frame.drop(EVENT_TIME).to_dicts():
            gone, content = row.pop(RETRACTED, None), tuple(map(plain, row.values()))
            place = (row["key"], row[self.rank]) if self.rank else None
            if place in self.ranks:
                assert gone is None or (gone and self.ranks[place] == content)
                self.rows[self.ranks.pop(place)] -= 1
            elif gone:
                assert place is None
                assert self.rows[content] > 0, f"{row} is taken back, but does not hold"
                self.rows[content] -= 1
            if not gone:
                self.rows[content] += 1
                self.ranks |= {} if place is None else {place: content}


def in_sql(order: Order) -> str:
    """NaN is as null where nothing is said of nulls."""
    by = {'col("x")': "x", 'col("t")': "t", 'col("i")': "i"}[str(order.expr)]
    if by == "x" and order.nulls_last is None:
        by = "CASE WHEN NOT isnan(x) THEN x END"
    nulls = "FIRST" if order.nulls_last is False else "LAST"
    return f"{by} {'DESC' if order.descending else 'ASC'} NULLS {nulls}"


def comes_to(held: list[tuple[Any, ...]], by: tuple[Order, ...], first: int, last: int | None) -> list[tuple[Any, ...]]:
    """Key, rank and what orders the rows: which of equal rows stands where, nobody says."""
    frame = pl.DataFrame(held, schema=FACTS.polars(), orient="row")
    names = ", ".join(dict.fromkeys(str(order.expr)[5:-2] for order in by))
    numbered = f"SELECT *, row_number() OVER (PARTITION BY key ORDER BY {', '.join(map(in_sql, by))}) AS r FROM held"
    with duckdb.connect(":memory:") as connection:
        connection.register("held", frame.to_arrow())
        until = "" if last is None else f" AND r <= {last}"
        return connection.execute(f"SELECT key, r, {names} FROM ({numbered}) WHERE r > {first}{until}").fetchall()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_the_rows_of_any_order_come_to_those_of_sql(seed: int) -> None:
    """Of facts and changes, whatever the batches, the runs and the restores are."""
    chance = random.Random(seed)
    changes = chance.random() < 0.5
    names = chance.sample(["x", "t", "i"], chance.randrange(1, 4))
    by = tuple(Order(col(name), chance.random() < 0.5, chance.choice([None, None, True, False])) for name in names)
    offset, rank = chance.choice([0, 0, 1, 3]), chance.choice([None, "rank", "place"])
    n = chance.choice([1, 2, 5, None] if rank or offset else [1, 2, 5])
    node = node_of(by, n, changes=changes, offset=offset, rank=rank)
    print(f"changes={changes} by={[*map(str, by)]} n={n} offset={offset} rank={rank} {node.mode}")
    harness, log = OperatorHarness(node, max_parallelism=GROUPS), Log(rank)
    held: list[tuple[Any, ...]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_runs, "_LEAST_ROWS", chance.choice([2, 1024]))
        patch.setattr(top, "_LEAST_SIFTED", chance.choice([1, 1024]))
        for _ in range(chance.randrange(1, 12)):
            rows: list[tuple[Any, ...]] = []
            for _ in range(chance.choice([1, 3, 20])):
                if changes and held and chance.random() < 0.5:
                    rows.append((*held.pop(chance.randrange(len(held))), True))
                else:
                    values = (
                        chance.choice(["a", "b", None]),
                        chance.choice(XS),
                        chance.choice(TEXTS),
                        chance.randrange(3),
                    )
                    held.append(values)
                    rows.append((*values, False))
            schema = CHANGES.polars() if changes else FACTS.polars()
            frame = pl.DataFrame([row if changes else row[:-1] for row in rows], schema=schema, orient="row")
            harness.frame(frame.with_columns(pl.lit(7, pl.Int64).alias(EVENT_TIME)))
            for sent in harness.collected.frames:
                log.add(sent)
            harness.collected.frames.clear()
            if chance.random() < 0.3:
                harness = harness.restored(harness.freeze()(), chance.randrange(1, 4))
    expected = comes_to(held, by, offset, None if n is None else offset + n)
    places = [node.row_schema.names.index(name) for name in ("key", *([rank] if rank else []), *names)]
    alike = any(order.nulls_last is None for name, order in zip(names, by, strict=True) if name == "x")

    def shown(row: list[str]) -> str:
        return str(["None" if value == "nan" and alike else value for value in row])

    found = Counter(shown([row[place] for place in places]) for row in log.rows.elements())
    assert found == Counter(
        shown([plain(value) for place, value in enumerate(row) if rank or place != 1]) for row in expected
    )
    numbers = [node.row_schema.names.index(name) for name in FACTS.names]
    left = Counter(tuple(row[place] for place in numbers) for row in log.rows.elements())
    assert not left - Counter(tuple(map(plain, row)) for row in held)


@pytest.mark.parametrize("nulls_last", [None, True, False])
@pytest.mark.parametrize("descending", [True, False])
def test_rows_are_compared_as_they_are_sorted(nulls_last: bool | None, descending: bool) -> None:
    """All pairs of rows with two columns, of which the second one is in the other order."""
    order = RowOrder((Order(col("x"), descending, nulls_last), Order(col("t"), not descending)), FACTS, "test")
    rows = pl.DataFrame([("a", x, text, 0) for x in XS for text in TEXTS], schema=FACTS.polars(), orient="row")
    rows = rows.with_columns(order.columns).sample(fraction=1.0, shuffle=True, seed=1)
    ordered = order.sorted(rows.with_columns(one=pl.lit(1)), "one")
    equal = ordered.select(pl.struct(pl.col(name) + 0.0 if name == "__by" else name for name in order.names).rle_id())
    places = equal.to_series().to_list()
    pairs = [(one, other) for one in range(rows.height) for other in range(rows.height)]
    behind = order.not_before(ordered[[one for one, _ in pairs]], ordered[[other for _, other in pairs]])
    assert behind.to_list() == [places[one] >= places[other] for one, other in pairs]


@pytest.mark.parametrize("changes", [False, True])
def test_without_ranks_rows_that_only_move_send_nothing(changes: bool) -> None:
    """Behind an offset as in front of it; a row that comes first pushes one row over each bound."""
    order = (Order(col("i")),)
    harness = OperatorHarness(node_of(order, 2, changes=changes, offset=1, rank=None))

    def sent(*numbers: int, gone: bool = False) -> list[tuple[int, bool]]:
        harness.collected.frames.clear()
        rows = [("a", None, None, number, gone)[: 5 if changes else 4] for number in numbers]
        frame = pl.DataFrame(rows, schema=(CHANGES if changes else FACTS).polars(), orient="row")
        harness.frame(frame.with_columns(pl.lit(7, pl.Int64).alias(EVENT_TIME)))
        return [row for frame in harness.collected.frames for row in frame.select("i", RETRACTED).rows()]

    assert sent(10) == []
    assert sent(20, 30, 40) == [(20, False), (30, False)]
    assert sent(5) == [(30, True), (10, False)]
    assert sent(50, 60) == []
    assert sent(15) == [(20, True), (15, False)]
    if changes:
        assert sent(5, gone=True) == [(10, True), (20, False)]
        assert sent(50, 60, gone=True) == []


@pytest.mark.parametrize("changes", [False, True])
def test_nulls_and_nan_stand_where_they_are_said_to(changes: bool) -> None:
    """Also where a batch looks at the best rows of a key alone."""
    rows = [("a", x, None, 1, False)[: 5 if changes else 4] for x in (1.0, None, 2.0, math.nan, 3.0)]
    frame = pl.DataFrame(rows, schema=(CHANGES if changes else FACTS).polars(), orient="row")
    for descending, nulls_last, best in (
        (True, None, 3.0), (True, True, math.nan), (True, False, None), (False, True, 1.0), (False, False, None),
    ):  # fmt: skip
        order = (Order(col("x"), descending, nulls_last),)
        harness = OperatorHarness(node_of(order, 1, changes=changes, offset=0, rank="rank"))
        harness.frame(frame.with_columns(pl.lit(7, pl.Int64).alias(EVENT_TIME)))
        assert repr([row["x"] for row in harness.output()]) == repr([best])


@pytest.mark.parametrize(("rank", "changes"), [("rank", True), (None, True), ("rank", False), (None, False)])
def test_keys_with_rows_in_front_of_the_offset_alone_are_known(rank: str | None, changes: bool) -> None:
    """Nothing of them is sent, and they live on, and are forgotten, as others."""
    node = node_of((Order(col("i")),), 1, changes=changes, offset=1, rank=rank)
    object.__setattr__(node.operation, "ttl_us", 80)
    harness = OperatorHarness(node)

    def sent(number: int) -> list[int]:
        rows = [("a", None, None, number, False)[: 5 if changes else 4]]
        frame = pl.DataFrame(rows, schema=(CHANGES if changes else FACTS).polars(), orient="row")
        harness.collected.frames.clear()
        harness.frame(frame.with_columns(pl.lit(7, pl.Int64).alias(EVENT_TIME)))
        return [row for frame in harness.collected.frames for row in frame["i"]]

    assert sent(1) == []
    harness.now_us = 200
    assert sent(2) == []
    assert harness.metrics[0].forgotten_keys == 1
    assert sent(3) == [3]


Bid = row_class(Schema((Field("who", STRING), Field("price", INT64), Field("id", INT64))))


def bids() -> Any:
    rows = [("a", 5, 1), ("b", 3, 2), ("a", 5, 3), ("b", 4, 4), ("a", 1, 5)]
    return Pipeline("p").read(iterables.Source([Bid(*row) for row in rows], schema=Bid))


def test_all_rows_of_facts_have_their_number() -> None:
    numbered = bids().key_by("who").top(None, by=["price", "id"], descending=[True, False], rank="place")
    assert numbered.schema.names == ("who", "place", "price", "id", RETRACTED)
    assert sorted(numbered.final().select("who", "place", "id").collect().rows()) == [
        ("a", 1, 1), ("a", 2, 3), ("a", 3, 5), ("b", 1, 4), ("b", 2, 2),
    ]  # fmt: skip


def test_rows_without_ranks_replace_others_by_the_key_of_the_updates_if_it_has_the_key() -> None:
    """So that a sink with a key needs not keep all rows of it again."""
    totals = bids().key_by("who", "id").agg(total=col("price").sum())
    assert known_keys(totals.key_by("who").top(1, by="total", rank=None)._node) == ("who", "id")
    assert known_keys(totals.key_by("total").top(1, by="who", rank=None)._node) is None
    best = bids().key_by("who").top(1, by=["price", "id"], rank=None)
    assert known_keys(best._node) is None
    with pytest.raises(PipelineError, match=r"final: the rows of top replace no others by a key, because .* facts"):
        best._node.upsert_key("final")
    with pytest.raises(PipelineError, match=r"final: the rows of top .* updates whose key is not by total"):
        totals.key_by("total").top(1, by="who", rank=None)._node.upsert_key("final")
    above = best.key_by("price").agg(n=count())
    assert sorted(above.final().collect().rows()) == [(4, 1), (5, 1)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"n": 0}, "n must be 1 or more"),
        ({"offset": -1}, "0 or more; got -1"),
        ({"n": None, "rank": None}, "would send every row as it is"),
        ({"rank": "id"}, "a column 'id' already.*rank=..."),
        ({"descending": [True, False]}, "descending= has 2 values and by= 1"),
        ({"by": ["price", "id"], "nulls_last": [True]}, "nulls_last= has 1 values and by= 2"),
        ({"by": []}, "by= names no column"),
        ({"by": ["price", col("who").str.split(",")]}, "no order"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], said: str) -> None:
    given = {"n": 1, "by": "price"} | options
    with pytest.raises(PipelineError, match=f"top: .*{said}"):
        bids().key_by("who").top(given.pop("n"), **given)


def test_the_state_of_what_could_be_written_before_is_read() -> None:
    """Signatures as they were, letter for letter; of others they say all that decides what is kept."""
    read = bids()

    def signature(stream: Any, *args: Any, **options: Any) -> str:
        node = stream.key_by("who").top(*args, **options)._node
        assert isinstance(node.operation, Top)
        return state_signature(node)

    text, number = '{"name": "who", "nullable": false, "type": "string"}', '"nullable": false, "type": "int64"}'
    assert signature(read, 2, by="price") == (
        f'{{"by": "col(\\"price\\")", "descending": true, "keys": [{text}], "n": 2, "row": [{text}, '
        f'{{"name": "price", {number}, {{"name": "id", {number}], "verb": "top"}}'
    )
    different = [
        signature(read, 2, by="price", **options)
        for options in ({}, {"rank": None}, {"offset": 1}, {"nulls_last": True}, {"nulls_last": False})
    ]
    different += [signature(read, 2, by=["price", "id"]), signature(read, None, by="price")]
    assert len(set(different)) == len(different)
    assert signature(read, 2, by="price", rank="place") == different[0]
