"""Joins without a bound in time: what holds behind every batch is what two loops over the rows that hold find."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_cases import GROUPS

from penstock import Expr, Pipeline, col, count, lit, tumbling, when
from penstock.api.stream import Stream
from penstock.api.update_streams import UpsertStream
from penstock.connectors import iterables, kafka
from penstock.core.batches import EVENT_TIME
from penstock.errors import IncompatibleStateError, UserCodeError
from penstock.functions.windows.definitions import RETRACTED
from penstock.plan.building.changes import known_keys
from penstock.plan.logical import Node
from penstock.plan.operations.materialize import Materialize
from penstock.plan.operations.regular_join import RegularJoin
from penstock.plan.signatures import check_signature, state_signature
from penstock.plan.traits import Mode
from penstock.state import sorted_runs
from penstock.task.operators import pair_conditions
from penstock.testing.harness import OperatorHarness, input_node
from penstock.types import BOOLEAN, FLOAT64, INT64, STRING, TIMESTAMP, Field, ListType, MapType, Schema, row_class

CHANGE = Field(RETRACTED, BOOLEAN)
SIDES = (
    Schema((Field("key", STRING, nullable=True), Field("tags", ListType(INT64), nullable=True), Field("x", FLOAT64))),
    Schema((Field("many", MapType(INT64)), Field("key", STRING, nullable=True))),
)
HOWS = ["inner", "left", "right", "full", "semi", "anti"]
TTL = 1_000
TTLS = st.sampled_from([(TTL, TTL), (TTL, None), (None, TTL), (TTL // 3, TTL)])
"""Of both inputs, of one, and of each its own."""


def input_of(number: int, mode: Mode, *, event_time: bool) -> Node:
    schema = Schema((*SIDES[number], CHANGE)) if mode == "retract" else SIDES[number]
    source = input_node(schema, row_class(schema), ("key",), event_time=event_time)
    source.mode = mode
    return source


CONDITIONS: tuple[tuple[Expr, Callable[[Any, Any], bool]], ...] = (
    (lit(True), lambda left, right: True),
    (when(col("x") > 9).then(lit(True)), lambda left, right: False),
    (col("x") > 1, lambda left, right: left[2] > 1),
    (col("many").map.len() > 0, lambda left, right: right[0] != ()),
    (
        col("tags").list.len() / 2 == col("many").map.len(),
        lambda left, right: left[1] is not None and len(left[1]) / 2 == len(right[0]),
    ),
    (
        (col("x") > 1) | (col("tags").list.get(0) == col("many").map.get("k")),
        lambda left, right: left[2] > 1 or (bool(left[1]) and bool(right[0])),
    ),
    (
        (col("key") == "a") & (col("x") < col("many").map.len()),
        lambda left, right: left[0] == "a" and left[2] < len(right[0]),
    ),
)
"""Conditions, which null may come of, and whether they are true of a left and a right row."""
WHERES = st.sampled_from([None, *range(len(CONDITIONS))])


Ttl = int | tuple[int | None, int | None] | None


def join_node(
    how: Any, modes: tuple[Mode, Mode], *, ttl: Ttl = None, event_time: bool = True, where: int | None = None,
    nulls_equal: bool = False,
) -> Node:  # fmt: skip
    inputs = tuple(input_of(number, mode, event_time=event_time) for number, mode in enumerate(modes))
    fields = [*SIDES[0], *(field for field in SIDES[1] if field.name != "key")]
    fields = [Field(field.name, field.type, nullable=True) for field in fields]
    if how in ("semi", "anti"):
        fields = list(SIDES[0])
    append = how in ("inner", "semi") and modes == ("append", "append")
    schema = Schema((*fields, *([] if append else [CHANGE])))
    operation = RegularJoin(
        how, ttl if isinstance(ttl, tuple) else (ttl, ttl), None if where is None else CONDITIONS[where][0], nulls_equal
    )
    return Node("n2", operation, inputs, schema, row_class(schema), event_time, mode="append" if append else "retract")


def a_row(chance: random.Random, number: int) -> tuple[Any, ...]:
    key = chance.choice(["a", "b", "c", None])
    if number == 0:
        return (key, chance.choice([None, (), (1, None)]), chance.choice([0.0, 1.5]))
    return (chance.choice([(), (("k", 1),)]), key)


def frame_of(rows: list[tuple[Any, ...]], number: int, mode: Mode, times: list[int]) -> pl.DataFrame:
    """Rows with whether they are taken back."""
    names = SIDES[number].names
    columns = {
        name: pl.Series(
            name,
            [dict(row[place]) if name == "many" else list(row[place]) if isinstance(row[place], tuple) else row[place]
             for row in rows],
            dtype=SIDES[number].polars()[name],
        )
        for place, name in enumerate(names)
    }  # fmt: skip
    frame = pl.DataFrame(list(columns.values()))
    if mode == "retract":
        frame = frame.with_columns(pl.Series(RETRACTED, [row[-1] for row in rows], dtype=pl.Boolean))
    return frame.with_columns(pl.Series(EVENT_TIME, times, dtype=pl.Int64))


def plain(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(plain, value))
    if isinstance(value, dict):
        return tuple(value.items())
    return value


def joined(
    how: str, left: Counter[Any], right: Counter[Any], where: int | None = None, nulls_equal: bool = False
) -> Counter[Any]:
    """Two loops."""
    found: Counter[Any] = Counter()
    met: tuple[set[Any], set[Any]] = (set(), set())
    for one, times in left.items():
        for two, more in right.items():
            same = one[0] == two[1] and (nulls_equal or one[0] is not None)
            if same and (where is None or CONDITIONS[where][1](one, two)):
                met[0].add(one)
                met[1].add(two)
                if how not in ("semi", "anti"):
                    found[*one, two[0]] += times * more
    for one, times in left.items():
        if how in ("left", "full") and one not in met[0]:
            found[*one, None] += times
        if (how == "semi" and one in met[0]) or (how == "anti" and one not in met[0]):
            found[one] += times
    for two, times in right.items() if how in ("right", "full") else ():
        if two not in met[1]:
            found[two[1], None, None, two[0]] += times
    return found


class Standing:
    """What holds, by the changes that were sent; nothing is taken back that does not hold."""

    def __init__(self) -> None:
        self.rows: Counter[Any] = Counter()

    def take(self, frames: list[pl.DataFrame]) -> None:
        for frame in frames:
            for row in frame.drop(EVENT_TIME, strict=False).to_dicts():
                gone = row.pop(RETRACTED, False)
                content = tuple(map(plain, row.values()))
                self.rows[content] += -1 if gone else 1
                assert self.rows[content] >= 0
                if not self.rows[content]:
                    del self.rows[content]
        frames.clear()


def changes_of(chance: random.Random, number: int, mode: Mode, held: Counter[Any]) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for _ in range(chance.randrange(1, 12)):
        if mode == "retract" and held and chance.random() < 0.5:
            row = chance.choice(sorted(held.elements(), key=repr))
            held[row] -= 1
            if not held[row]:
                del held[row]
            rows.append((*row, True))
        else:
            row = a_row(chance, number)
            held[row] += 1
            rows.append((*row, False))
    return rows


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("modes", [(a, b) for a in ("append", "retract") for b in ("append", "retract")], ids=str)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**9), ttl=st.sampled_from([None, 10**12]), event_time=st.booleans())
def test_what_holds_is_what_two_loops_find(how, modes, seed, ttl, event_time):
    """Rows that are there several times, nulls in keys, batches, restores, rescales; a time to live that does not end."""
    check_what_holds(how, modes, seed, ttl, event_time)


@pytest.mark.parametrize("how", HOWS)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**9), ttl=st.sampled_from([None, 10**12]), where=WHERES, nulls_equal=st.booleans())
def test_what_holds_by_a_condition_is_what_two_loops_find(how, seed, ttl, where, nulls_equal):
    """Nulls in what it reads, and in keys that are null-safe, of facts and of changes; candidates in pieces."""
    modes: Any = tuple(random.Random(seed).choices(["append", "retract"], k=2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair_conditions, "PAIRS_AT_ONCE", 3)
        check_what_holds(how, modes, seed, ttl, event_time=seed % 3 > 0, where=where, nulls_equal=nulls_equal)


def check_what_holds(
    how: str, modes: tuple[Mode, Mode], seed: int, ttl: int | None, event_time: bool, where: int | None = None,
    nulls_equal: bool = False,
) -> None:  # fmt: skip
    """Play a history."""
    chance = random.Random(seed)
    node = join_node(how, modes, ttl=ttl, event_time=event_time, where=where, nulls_equal=nulls_equal)
    harness = OperatorHarness(node, max_parallelism=GROUPS)
    held: tuple[Counter[Any], Counter[Any]] = (Counter(), Counter())
    standing = Standing()
    for _ in range(chance.randrange(1, 12)):
        number = chance.randrange(2)
        rows = changes_of(chance, number, modes[number], held[number])
        frame = frame_of(rows, number, modes[number], [chance.randrange(100) for _ in rows])
        harness.frame(frame if event_time else frame.drop(EVENT_TIME), number)
        standing.take(harness.collected.frames)
        assert standing.rows == joined(how, *held, where, nulls_equal)
        if chance.random() < 0.3:
            harness = harness.restored(harness.freeze()(), chance.randrange(1, 4))


@pytest.mark.parametrize("how", HOWS)
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**9), changes=st.tuples(st.booleans(), st.booleans()), where=WHERES, ttl=TTLS)
def test_what_is_forgotten_takes_nothing_back_that_was_not_sent(how, seed, changes, where, ttl):
    """While rows are forgotten at any time, every prefix of the changes is one of a table; then nothing is left."""
    chance = random.Random(seed)
    modes: Any = tuple("retract" if each else "append" for each in changes)
    harness = OperatorHarness(join_node(how, modes, ttl=ttl, where=where), max_parallelism=GROUPS)
    held: tuple[Counter[Any], Counter[Any]] = (Counter(), Counter())
    standing = Standing()
    for _ in range(chance.randrange(1, 25)):
        number = chance.randrange(2)
        rows = changes_of(chance, number, modes[number], held[number])
        harness.frame(frame_of(rows, number, modes[number], [0 for _ in rows]), number)
        standing.take(harness.collected.frames)
        harness.now_us += chance.choice([0, 10, TTL // 3, 2 * TTL, -TTL // 2])
        if chance.random() < 0.2:
            harness = harness.restored(harness.freeze()(), chance.randrange(1, 4))
    harness.now_us = 100 * TTL  # later than it ever was
    for number, mode in enumerate(modes):
        no_key = (None, None, 0.0, False) if number == 0 else ((), None, False)
        harness.frame(frame_of([no_key], number, mode, [0]), number)
    for operator in harness.operators:
        if operator._now_us == harness.now_us and None not in ttl:  # it was given that row
            assert not operator.snapshot().keyed.segments()


@pytest.mark.parametrize("how", HOWS)
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**9), changes=st.tuples(st.booleans(), st.booleans()), where=WHERES, ttl=TTLS)
def test_what_is_sent_while_rows_are_forgotten_is_what_one_sends_that_never_restarts(how, seed, changes, where, ttl):
    """Whatever was forgotten at a restore, in whichever subtask, and however often."""
    chance = random.Random(seed)
    modes: Any = tuple("retract" if each else "append" for each in changes)
    node = join_node(how, modes, ttl=ttl, where=where)
    steady, harness = (OperatorHarness(node, max_parallelism=GROUPS) for _ in range(2))
    held: tuple[Counter[Any], Counter[Any]] = (Counter(), Counter())
    for _ in range(chance.randrange(1, 40)):
        number = chance.randrange(2)
        rows = changes_of(chance, number, modes[number], held[number])
        sent = list[list[str]]()
        for each in (steady, harness):
            each.frame(frame_of(rows, number, modes[number], [0 for _ in rows]), number)
            sent.append(sorted(repr(row) for frame in each.collected.frames for row in frame.rows()))
            each.collected.frames.clear()
        assert sent[0] == sent[1]
        steady.now_us = harness.now_us = harness.now_us + chance.choice([0, 10, TTL // 4, TTL // 2, 2 * TTL])
        if chance.random() < 0.15:
            write = harness.freeze()
            harness.frame(frame_of(rows, number, modes[number], [0 for _ in rows]), number)  # lost
            harness.collected.frames.clear()
            harness = harness.restored(write(), chance.randrange(1, 4))


@pytest.mark.parametrize(
    ("ttl", "met"),
    [((TTL, TTL), [False, False]), ((TTL, None), [False, True]), ((None, TTL), [True, False])],
)
def test_each_input_has_a_time_to_live_of_its_own(ttl, met):
    """A left row and a right row come, and long after that, one of each that would meet them."""
    harness = OperatorHarness(join_node("inner", ("append", "append"), ttl=ttl))
    harness.frame(frame_of([("a", None, 0.0)], 0, "append", [1]), 0)
    harness.frame(frame_of([((), "b")], 1, "append", [1]), 1)
    harness.now_us = 2 * TTL
    harness.frame(frame_of([((), "a")], 1, "append", [1]), 1)
    harness.frame(frame_of([("b", None, 0.0)], 0, "append", [1]), 0)
    found = {row["key"] for frame in harness.collected.frames for row in frame.rows(named=True)}
    assert ["a" in found, "b" in found] == met


def test_rows_that_are_taken_back_after_they_were_forgotten_are_counted():
    harness = OperatorHarness(join_node("left", ("retract", "append"), ttl=TTL))
    row = ("a", (1,), 0.0)
    harness.frame(frame_of([(*row, False)] * 2, 0, "retract", [1, 1]), 0)
    harness.now_us = TTL // 2
    harness.frame(frame_of([(*row, False)], 0, "retract", [1]), 0)
    harness.now_us = TTL + TTL // 4
    seen = len(harness.collected.frames)
    harness.frame(frame_of([(*row, True)] * 3, 0, "retract", [1, 1, 1]), 0)
    assert [frame[RETRACTED].to_list() for frame in harness.collected.frames[seen:]] == [[True]]
    counted = harness.metrics[0]
    assert (counted.forgotten_keys, counted.lost_changes, counted.late_rows) == (2, 2, 0)


def test_the_pairs_of_a_row_that_was_taken_back_are_not_those_of_an_equal_one_that_comes_later():
    """With a time to live, too: it is alone again when its last match is gone, and nothing is left when all are gone."""
    node = join_node("left", ("retract", "retract"), ttl=TTL, where=2)
    harness = OperatorHarness(node, max_parallelism=GROUPS)
    left, right = ("a", None, 1.5), ((("k", 1),), "a")
    standing = Standing()
    held: tuple[Counter[Any], Counter[Any]] = (Counter(), Counter())
    for number, gone in (
        (0, 0),
        (1, 0),
        (0, 1),
        (1, 1),
        (0, 0),
        (1, 0),
        (1, 0),
        (0, 0),
        (1, 1),
        (0, 1),
        (1, 1),
        (0, 1),
    ):
        row = right if number else left
        held[number][row] += -1 if gone else 1
        harness.frame(frame_of([(*row, bool(gone))], number, "retract", [0]), number)
        standing.take(harness.collected.frames)
        assert standing.rows == joined("left", +held[0], +held[1], 2)
    for operator in harness.operators:
        if not operator._context.incremental:  # a delta says of rows that they are gone
            assert not operator.snapshot().keyed.segments()


def test_what_a_join_says_of_pairs_is_part_of_what_its_state_is_of():
    """And is not where nothing is said: state of before it could be is continued."""
    nodes = [join_node("left", ("append", "append"), **said) for said in ({}, {"where": 2}, {"nulls_equal": True})]
    signatures = [json.loads(state_signature(node)) for node in nodes]
    assert signatures[0].keys() == {"verb", "keys", "how", "expires", "event_time", "rows"}
    assert [each.keys() - signatures[0].keys() for each in signatures] == [set(), {"where"}, {"nulls_equal"}]
    for node, part in zip(nodes[1:], ("where", "nulls_equal"), strict=True):
        with pytest.raises(IncompatibleStateError, match=f"its {part} changed from None"):
            check_signature("join", state_signature(nodes[0]), state_signature(node))


def test_a_pair_has_the_later_time_and_what_is_taken_back_that_of_the_change():
    harness = OperatorHarness(join_node("left", ("append", "append")))
    left, right = ("a", None, 0.0, False), ((), "a", False)
    harness.frame(frame_of([left], 0, "append", [50]), 0)
    harness.frame(frame_of([right], 1, "append", [20]), 1)
    harness.frame(frame_of([right], 1, "append", [70]), 1)
    rows = [row for frame in harness.collected.frames for row in frame.select(RETRACTED, EVENT_TIME).rows()]
    assert rows == [(False, 50), (True, 50), (False, 50), (False, 70)]


def test_what_is_taken_back_stands_before_what_is_added():
    harness = OperatorHarness(join_node("inner", ("retract", "append")))
    harness.frame(frame_of([((), "a", False), ((), "b", False)], 1, "append", [1, 1]), 1)
    harness.frame(frame_of([("a", None, 0.0, False), ("b", None, 0.0, False)], 0, "retract", [1, 1]), 0)
    moved = [("b", None, 1.5, False), ("b", None, 0.0, True), ("a", None, 0.0, True), ("a", None, 0.0, False)]
    harness.frame(frame_of(moved, 0, "retract", [2, 2, 2, 2]), 0)
    assert harness.collected.frames[-1].select("key", "x", RETRACTED).rows() == [("b", 0.0, True), ("b", 1.5, False)]


# -- sinks with a key of their own --------------------------------------------------------------------------------------

PLACED = Schema((Field("order", INT64), Field("town", STRING), Field("price", INT64), CHANGE))


def materialize_node(ttl: int | None = None) -> Node:
    source = input_node(PLACED, row_class(PLACED), ("order",), event_time=True)
    source.mode = "retract"
    return Node("n2", Materialize(ttl), (source,), PLACED, row_class(PLACED), True, keys=("order",), mode="retract")


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_changes_of_a_key_that_come_on_different_ways_end_at_the_row_that_holds(seed):
    """Each town's changes come in order, but a new row may overtake what takes the old one back."""
    chance = random.Random(seed)
    ways: dict[str, list[tuple[Any, ...]]] = {town: [] for town in "abc"}
    held: dict[int, tuple[str, int]] = {}
    for _ in range(chance.randrange(1, 40)):
        order = chance.randrange(4)
        if order in held:
            ways[held[order][0]].append((order, *held.pop(order), True))
        if chance.random() < 0.8:
            held[order] = (chance.choice("abc"), chance.randrange(3))
            ways[held[order][0]].append((order, *held[order], False))
    harness = OperatorHarness(materialize_node(), max_parallelism=GROUPS)
    while left := [way for way in ways.values() if way]:
        rows = [chance.choice(left).pop(0)]
        rows += [way.pop(0) for way in ways.values() if way and chance.random() < 0.5]
        frame = pl.DataFrame(rows, schema=PLACED.polars(), orient="row")
        harness.frame(frame.with_columns(pl.lit(7, pl.Int64).alias(EVENT_TIME)))
        if chance.random() < 0.2:
            harness = harness.restored(harness.freeze()(), chance.randrange(1, 4))
    found: dict[int, tuple[str, int]] = {}
    for frame in harness.collected.frames:
        for order, town, price, gone in frame.drop(EVENT_TIME).rows():
            assert found.pop(order, None) == ((town, price) if gone else None)
            if not gone:
                found[order] = (town, price)
    assert found == held


def test_the_row_of_a_sink_that_was_forgotten_is_not_taken_back():
    """The next one is new; what takes back the former one does nothing, and is counted."""
    harness = OperatorHarness(materialize_node(TTL), max_parallelism=GROUPS)

    def feed(now: int, *rows: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        harness.now_us, seen = now, len(harness.collected.frames)
        frame = pl.DataFrame(rows, schema=PLACED.polars(), orient="row")
        harness.frame(frame.with_columns(pl.lit(7, pl.Int64).alias(EVENT_TIME)))
        return [row for frame in harness.collected.frames[seen:] for row in frame.drop(EVENT_TIME).rows()]

    assert feed(0, (1, "a", 1, False), (2, "a", 1, False)) == [(1, "a", 1, False), (2, "a", 1, False)]
    assert feed(TTL, (1, "b", 2, False)) == [(1, "a", 1, True), (1, "b", 2, False)]
    harness = harness.restored(harness.freeze()(), 2)
    later = feed(3 * TTL // 2, (2, "b", 3, False), (2, "a", 1, True), (1, "a", 1, True))
    assert later == [(2, "b", 3, False)]
    assert sum(each.lost_changes for each in harness.metrics) == 1
    assert feed(3 * TTL // 2, (1, "b", 2, True)) == [(1, "b", 2, True)]


# -- as users write it --------------------------------------------------------------------------------------------------

Order = row_class(Schema((Field("id", INT64), Field("customer", INT64), Field("price", FLOAT64))))
Customer = row_class(Schema((Field("customer", INT64), Field("town", STRING))))
ORDERS = [Order(1, 7, 10.0), Order(2, 7, 5.0), Order(3, 8, 1.0), Order(1, 8, 12.0), Order(4, 9, 2.0)]
CUSTOMERS = [Customer(7, "bern"), Customer(8, "graz"), Customer(7, "wien"), Customer(6, "linz")]


def newest(p: Pipeline) -> tuple[UpsertStream, UpsertStream]:
    orders = p.read(iterables.Source(ORDERS, schema=Order)).key_by("id").deduplicate("last")
    customers = p.read(iterables.Source(CUSTOMERS, schema=Customer)).key_by("customer").deduplicate("last")
    return orders, customers


def test_the_newest_rows_of_two_streams_are_joined():
    orders, customers = newest(Pipeline("p"))
    placed = orders.join(customers, on="customer", how="full")
    assert placed.schema.names == ("id", "customer", "price", "town", "retracted")
    assert sorted(placed.final().collect().rows(), key=repr) == [
        (1, 8, 12.0, "graz"), (2, 7, 5.0, "wien"), (3, 8, 1.0, "graz"), (4, 9, 2.0, None), (None, 6, None, "linz"),
    ]  # fmt: skip


def test_a_join_is_filtered_aggregated_and_joined_like_other_updates():
    orders, customers = newest(Pipeline("p"))
    placed = orders.join(customers, on="customer").filter(col("price") < 11)
    towns = placed.key_by("town").agg(orders=count(), total=col("price").sum())
    again = towns.join(customers.select("customer", "town"), on="town", how="left")
    assert sorted(again.final().collect().rows()) == [("graz", 1, 1.0, 8), ("wien", 1, 5.0, 7)]


@pytest.mark.parametrize("time", [{}, {"within": "1h"}], ids=str)
def test_a_condition_that_cannot_be_evaluated_is_named(time):
    p, noon = Pipeline("p"), datetime(2026, 1, 1, 12, tzinfo=UTC)
    schema = Schema((Field("id", INT64), Field("size", STRING), Field("at", TIMESTAMP)))
    one, other = (
        p.read(iterables.Source([{"id": 1, "size": size, "at": noon}], schema=schema, event_time="at"))
        for size in ("7", "large")
    )
    found = one.join(other, on="id", where=col("size").cast(int) < col("size_right").cast(int), **time)
    with pytest.raises(UserCodeError, match=r'join \(.*\): where = .*col\("size_right"\)\.cast.*large'):
        found.collect()


def test_facts_that_are_joined_stay_facts_where_nothing_can_be_taken_back():
    p = Pipeline("p")
    orders, customers = (
        p.read(iterables.Source(rows, schema=schema)) for rows, schema in ((ORDERS, Order), (CUSTOMERS, Customer))
    )
    pairs = orders.join(customers, on="customer")
    assert isinstance(pairs, Stream)
    assert len(pairs.map(lambda row: row, returns=pairs._node.row_type).collect()) == 6
    assert sorted(orders.join(customers, on="customer", how="semi").collect()["id"]) == [1, 1, 2, 3]
    unmet = orders.join(customers, on="customer", how="anti")
    assert isinstance(unmet, UpsertStream)
    assert unmet.final().collect().rows() == [(4, 9, 2.0)]


def test_rows_without_a_key_hold_as_often_as_they_were_added():
    p = Pipeline("p")
    twice = p.read(iterables.Source([*ORDERS, *ORDERS], schema=Order))
    _, customers = newest(p)
    found = twice.join(customers, on="customer", how="left").drop("id").final()
    assert Counter(found.collect().rows())[8, 12.0, "graz"] == 2
    assert found.collect().height == 10


def test_a_sink_with_another_key_has_the_row_that_holds():
    """Records are of the order, changes of order and customer: an operator stands between, and `plan` shows it."""
    p = Pipeline("p")
    orders, customers = newest(p)
    placed = orders.join(customers, on="customer")
    placed.write(kafka.Sink("of-orders", key="id", delivery="upsert"))
    placed.write(kafka.Sink("of-both", key=("customer", "id"), delivery="upsert"))
    placed.write(kafka.Sink("all", key="id"))
    verbs = [node.verb for node in p.plan]
    assert verbs.count("materialize") == 1


@pytest.mark.parametrize("how", ["right", "full"])
@pytest.mark.parametrize("time", [None, {"within": "1h"}, {"window": tumbling("1h")}], ids=str)
def test_the_key_of_a_right_row_that_is_alone_may_be_null_where_left_ones_are_not(how, time):
    """So it is not counted where rows are."""
    p = Pipeline("p")
    left = Schema((Field("id", INT64), Field("at", TIMESTAMP)))
    right = Schema((Field("id", INT64, nullable=True), Field("seen", TIMESTAMP)))
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    ones = p.read(iterables.Source([{"id": 1, "at": noon}], schema=left, event_time="at"))
    others = [{"id": each, "seen": noon} for each in (1, None)]
    both = ones.join(
        p.read(iterables.Source(others, schema=right, event_time="seen")), on="id", how=how, **(time or {})
    )
    assert both.schema.field("id").nullable
    found = both.key_by(all=lit(1)).agg(rows=count(), ids=col("id").count()).final()
    assert found.collect().rows() == [(1, 2, 1)]


TOTALS = [(None, 1), (1, 1), (2, 1)], [(None, 2), (1, 2), (3, 2)]


def joined_totals(p: Pipeline, *, keep: str = "k") -> UpsertStream:
    """A full join of tables of one row per key, which may be null."""
    schema = Schema((Field("k", INT64, nullable=True), Field("n", INT64)))
    sides = [
        p.read(iterables.Source([dict(zip("kn", row, strict=True)) for row in rows], schema=schema)) for rows in TOTALS
    ]
    one, other = (rows.key_by(keep).deduplicate("last") for rows in sides)
    return one.join(other, on="k", how="full")


def test_a_left_and_a_right_row_without_key_are_two_rows():
    found = joined_totals(Pipeline("p"))
    assert known_keys(found._node) is None
    assert sorted(found.final().collect().rows(), key=repr) == [
        (1, 1, 2), (2, 1, None), (3, None, 2), (None, 1, None), (None, None, 2),
    ]  # fmt: skip


def test_another_column_of_the_key_that_is_never_null_tells_rows_without_key_apart():
    assert known_keys(joined_totals(Pipeline("p"), keep="n")._node) == ("k", "n", "n_right")


def test_an_upsert_sink_keeps_the_row_that_holds_of_two_without_key():
    """The one that is taken back is not the only one."""
    p = Pipeline("p")
    found = joined_totals(p)
    found.filter((col("n") < 9) | col("n").is_null()).write(kafka.Sink("totals", key="k", delivery="upsert"))
    assert [node.verb for node in p.plan].count("materialize") == 1


def counted(*, nullable: bool, updates: bool) -> Node:
    """Aggregates by the key of a right join, of which versions before said that it is never null."""
    p, x = Pipeline("p"), Field("x", INT64, nullable=True)
    left = Schema((Field("id", INT64), x, Field("at", TIMESTAMP)))
    right = Schema((Field("id", INT64, nullable=nullable), Field("at", TIMESTAMP)))
    one, other = (p.read(iterables.Source([], schema=rows, event_time="at")) for rows in (left, right))
    if updates:
        both = one.key_by("x").deduplicate("last").join(other.key_by("id").deduplicate("last"), on="id", how="right")
    else:
        both = one.join(other, on="id", how="right", within="1h")
    ids = both.select("x", *([RETRACTED] if updates else []), id=col("id") + 0).key_by("id")
    id = col("id")
    return ids.agg(ids=id.count(), most=id.max(), xs=col("x").sum(), mean=id.mean())._node


@pytest.mark.parametrize("updates", [False, True])
def test_a_snapshot_of_before_a_column_could_be_null_is_read(updates):
    """As those are that were written before the keys of right and full joins could be."""
    before, now = (counted(nullable=each, updates=updates) for each in (False, True))
    check_signature("agg", state_signature(before), state_signature(now))
    with pytest.raises(IncompatibleStateError, match="its keys changed"):
        check_signature("agg", state_signature(now), state_signature(before))
    former = OperatorHarness(before, max_parallelism=GROUPS)
    frame = pl.DataFrame({"id": [1, 1, 2], "x": [5, None, 7], EVENT_TIME: [0, 0, 0]})
    if updates:
        frame = frame.with_columns(pl.lit(False).alias(RETRACTED))
    former.frame(frame)
    harness = OperatorHarness(now, max_parallelism=GROUPS, restored=former.snapshot())
    harness.frame(frame.head(1))
    change = {RETRACTED: False} if updates else {}
    assert harness.output()[-1] == {"id": 1, "ids": 3, "most": 1, "xs": 10, "mean": 1.0, **change}


def test_rows_of_a_key_that_lie_in_several_runs_all_meet(monkeypatch):
    """Each right row is beside all left rows of its key, whichever batch these came in."""
    monkeypatch.setattr(sorted_runs, "_LEAST_ROWS", 1)
    harness = OperatorHarness(join_node("inner", ("append", "append"), event_time=False), max_parallelism=GROUPS)
    left, pairs = [], []
    for height in (24, 9, 3):  # so unlike that they are not merged
        rows = [("abc"[number % 3], (len(left) + number,), 0.0) for number in range(height)]
        left += rows
        harness.frame(frame_of(rows, 0, "append", [0] * height), 0)
    harness.frame(frame_of([((("k", number),), key) for number, key in enumerate("cab")], 1, "append", [0] * 3), 1)
    for number, key in enumerate("cab"):
        pairs += [(key, list(tags), {"k": number}) for own, tags, _ in left if own == key]
    found = [(row["key"], row["tags"], dict(row["many"])) for row in harness.output()]
    assert sorted(found, key=repr) == sorted(pairs, key=repr)
