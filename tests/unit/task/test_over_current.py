"""`over` on current rows: what DuckDB computes over the rows that hold, whatever came and went before."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import duckdb
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_cases import GROUPS

from penstock import Pipeline, col, count, lit
from penstock.connectors import iterables
from penstock.core.batches import EVENT_TIME
from penstock.errors import PipelineError
from penstock.functions.windows.definitions import RETRACTED
from penstock.plan.building.changes import known_keys
from penstock.plan.building.over_current import over_current
from penstock.plan.building.rows import Rows
from penstock.plan.logical import LogicalPlan, Node
from penstock.plan.operations.over_current import Frame, OverColumn
from penstock.plan.order import Order
from penstock.state import sorted_runs
from penstock.testing.harness import OperatorHarness, input_node
from penstock.types import (
    BOOLEAN,
    FLOAT64,
    INT64,
    STRING,
    TIMESTAMP,
    DecimalType,
    Field,
    Schema,
    row_class,
)

FACTS = Schema(
    (
        Field("key", STRING, nullable=True), Field("i", INT64, nullable=True), Field("x", FLOAT64, nullable=True),
        Field("t", STRING, nullable=True), Field("w", TIMESTAMP, nullable=True),
        Field("m", DecimalType(8, 2), nullable=True),
    )
)  # fmt: skip
CHANGES = Schema((*FACTS, Field(RETRACTED, BOOLEAN)))
START = datetime(2026, 1, 1, tzinfo=UTC)
VALUES: dict[str, list[Any]] = {
    "key": ["a", "b", None],
    "i": [None, -3, 0, 1, 2, 7],
    "x": [None, -1.5, 0.0, 0.25, 2.0],
    "t": [None, "", "a", "ab"],
    "w": [None, *(START + timedelta(seconds=second) for second in (0, 1, 3, 60))],
    "m": [None, Decimal("0.10"), Decimal("1.00"), Decimal("2.25")],
}
OVER = "OVER ()"
AGGREGATES = [
    (count(), "count(*)"),
    (col("x").count(), "count(x)"),
    (col("x").sum(), "sum(x)"),
    (col("i").sum(filter=col("x") > 0), "sum(i) FILTER (WHERE x > 0)"),
    (col("x").mean(), "avg(x)"),
    (col("x").var(ddof=1), "var_samp(x)"),
    (count() + col("x").count(filter=col("i") > 0), f"count(*) {OVER} + count(x) FILTER (WHERE i > 0) {OVER}"),
    (col("x").quantile(0.5), "quantile_cont(x, 0.5)"),
    (col("t").min(), "min(t)"),
    (col("w").max(), "max(w)"),
    (col("m").sum(), "sum(m)"),
    (col("i").n_unique(), "count(DISTINCT i)"),
    (col("x") - col("x").max(), "x - max(x)"),
]
RANKS = ("row_number", "rank", "dense_rank", "percent_rank", "cume_dist")


def node_of(columns: Sequence[OverColumn], *, changes: bool = True, ttl: str | None = None) -> Node:
    schema = CHANGES if changes else FACTS
    source = input_node(schema, row_class(schema), ("key",), event_time=True)
    source.mode = "retract" if changes else "append"
    return over_current(Rows(LogicalPlan("p"), source), columns, ttl).node


def frame_of(rows: Sequence[tuple[Any, ...]], *, changes: bool = True) -> pl.DataFrame:
    frame = pl.DataFrame(rows, schema=(CHANGES if changes else FACTS).polars(), orient="row")
    return frame.with_columns(pl.lit(7, pl.Int64).alias(EVENT_TIME))


# -- in SQL -------------------------------------------------------------------------------------------------------------


def order_in_sql(order: Sequence[Order]) -> str:
    parts = [
        f"{str(each.expr)[5:-2]} {'DESC' if each.descending else 'ASC'} "
        f"NULLS {'FIRST' if each.nulls_last is False else 'LAST'}"
        for each in order
    ]
    return f"ORDER BY {', '.join(parts)}" if parts else ""


def bound_in_sql(offset: Any, side: str) -> str:
    if offset is None:
        return f"UNBOUNDED {side}"
    if not offset:
        return "CURRENT ROW"
    preceding = offset < type(offset)()
    shown = f"INTERVAL {abs(offset).seconds} SECOND" if isinstance(offset, timedelta) else str(abs(offset))
    return f"{shown} {'PRECEDING' if preceding else 'FOLLOWING'}"


def over_in_sql(column: OverColumn) -> str:
    frame = column.frame
    bounds = "" if frame is None else (
        f"{frame.unit} BETWEEN {bound_in_sql(frame.start, 'PRECEDING')} AND {bound_in_sql(frame.end, 'FOLLOWING')}"
    )  # fmt: skip
    return f"OVER (PARTITION BY key {order_in_sql(column.order)} {bounds})"


def columns_of(chance: random.Random, numbers: int) -> tuple[list[OverColumn], list[str]]:
    """So many random columns, and the same in SQL."""
    columns, texts = [], []
    for number in range(numbers):
        name = f"c{number}"
        one = chance.choice(["i", "x", "w", "m"])
        every = chance.sample(list(VALUES)[1:], 5)
        way = chance.choice(["rank", "row", "aggregate", "aggregate", "range", "groups", "whole"])
        names = {"range": [one], "rank": every[:2], "groups": every[:2], "whole": [], "row": every}.get(way, every)
        order = tuple(Order(col(each), chance.random() < 0.5, chance.choice([None, True, False])) for each in names)
        frame = frame_for(way, one, chance)
        if way == "row":
            function = chance.choice(["lag", "lead", "first_value", "last_value", "nth_value", "ntile"])
            of = chance.choice(["i", "t", "w"])
            away = chance.choice([0, 1, 2, 5]) if function in ("lag", "lead") else chance.choice([1, 2, 3])
            args = () if function == "ntile" else (col(of),)
            sql = {
                "ntile": f"ntile({away})", "lag": f"lag({of}, {away})", "lead": f"lead({of}, {away})",
                "nth_value": f"nth_value({of}, {away})",
            }.get(function, f"{function}({of})")  # fmt: skip
            if function in ("lag", "lead") and of == "i" and chance.random() < 0.5:
                args, sql = (*args, lit(-1)), sql.replace(")", ", -1)")
            column = OverColumn(name, function, args, away, order, frame)  # type: ignore[arg-type]
        elif way == "rank":
            function = chance.choice(RANKS[1:])
            column, sql = OverColumn(name, function, order=order), f"{function}()"  # type: ignore[arg-type]
        else:
            expr, sql = chance.choice(AGGREGATES)
            column = OverColumn(name, expr, order=order, frame=frame)
        columns.append(column)
        over = over_in_sql(column)
        texts.append(f"{sql.replace(OVER, over) if OVER in sql else f'{sql} {over}'} AS {name}")
    return columns, texts


def frame_for(way: str, by: str, chance: random.Random) -> Frame | None:
    if way == "rank" or chance.random() < 0.2:
        return None
    steps: list[Any] = [-3, -1, 0, 1, 2]
    if way == "range":
        steps = {
            "i": [-3, -1, 0, 2],
            "x": [-1.5, -0.25, 0, 2],
            "w": [timedelta(seconds=-2), timedelta(seconds=-1), 0, timedelta(seconds=57)],
            "m": [-1, Decimal("-0.90"), 0, Decimal("1.250")],
        }[by]
    start, end = sorted(chance.choices(range(len(steps)), k=2))
    unit = {"range": "range", "groups": "groups"}.get(way, "rows")
    if way == "whole":
        return Frame("rows", None, None)
    bounds = [chance.choice([None, steps[start]]), chance.choice([None, steps[end]])]
    return Frame(unit, *bounds)  # type: ignore[arg-type]


def in_duckdb(held: Sequence[tuple[Any, ...]], texts: Sequence[str]) -> list[tuple[Any, ...]]:
    frame = pl.DataFrame(held, schema=FACTS.polars(), orient="row").with_columns(pl.col("w").dt.replace_time_zone(None))
    with duckdb.connect(":memory:") as connection:
        connection.register("held", frame.to_arrow())
        return connection.execute(f"SELECT *, {', '.join(texts)} FROM held").fetchall()


def assert_same(found: Sequence[tuple[Any, ...]], expected: Sequence[tuple[Any, ...]], texts: Sequence[str]) -> None:
    """Column by column: of rows that are the same nobody says which comes first, here and there."""
    assert len(found) == len(expected)
    width = len(FACTS.names)
    for place, text in enumerate(texts, width):
        mine, others = (Counter(shown((*row[:width], row[place])) for row in rows) for rows in (found, expected))
        assert mine == others, text


def shown(row: Sequence[Any]) -> str:
    def plain(value: Any) -> Any:
        if isinstance(value, datetime):
            return value.replace(tzinfo=None).isoformat()
        if isinstance(value, float | int | Decimal) and not isinstance(value, bool):
            return f"{round(float(value), 9) + 0.0}"
        return value

    return str([plain(value) for value in row])


def test_many_columns_over_one_batch_come_to_those_of_sql() -> None:
    """The same ones in every run: of every function, unit and type a few."""
    chance = random.Random(7)
    columns, texts = columns_of(chance, 80)
    rows = [tuple(map(chance.choice, VALUES.values())) for _ in range(60)]
    harness = OperatorHarness(node_of(columns, changes=False))
    harness.frame(frame_of(rows, changes=False))
    found = [row for frame in harness.collected.frames for row in frame.drop(EVENT_TIME).rows()]
    assert_same(found, in_duckdb(rows, texts), texts)


class Log:
    """What is sent: a row that is taken back is there, the same to the last bit."""

    def __init__(self) -> None:
        self._held: dict[str, list[tuple[Any, ...]]] = {}

    def add(self, frame: pl.DataFrame) -> None:
        for *content, gone in frame.drop(EVENT_TIME).rows():
            held = self._held.setdefault(repr(content), [])
            assert held or not gone, f"{content} is taken back, but does not hold"
            held.pop() if gone else held.append(tuple(content))

    def rows(self) -> list[tuple[Any, ...]]:
        return [row for rows in self._held.values() for row in rows]


@settings(max_examples=18, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_columns_over_current_rows_come_to_those_of_sql(seed: int) -> None:
    """Of facts and changes, whatever the batches, the runs and the restores are; what is taken back is there."""
    chance = random.Random(seed)
    columns, texts = columns_of(chance, chance.randrange(1, 5))
    changes = chance.random() < 0.7
    print(f"seed {seed} changes={changes}", *texts, sep="\n")
    harness = OperatorHarness(node_of(columns, changes=changes), max_parallelism=GROUPS)
    held: list[tuple[Any, ...]] = []
    log = Log()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_runs, "_LEAST_ROWS", chance.choice([2, 1024]))
        for _ in range(chance.randrange(1, 8)):
            rows: list[tuple[Any, ...]] = []
            for _ in range(chance.choice([1, 3, 15])):
                gone = changes and bool(held) and chance.random() < 0.5
                row = held.pop(chance.randrange(len(held))) if gone else tuple(map(chance.choice, VALUES.values()))
                held += [] if gone else [row]
                rows.append((*row, gone) if changes else row)
            harness.frame(frame_of(rows, changes=changes))
            for frame in harness.collected.frames:
                log.add(frame)
            harness.collected.frames.clear()
            if chance.random() < 0.3:
                harness = harness.restored(harness.freeze()(), chance.randrange(1, 4))
            if chance.random() < 0.3:
                assert_same(log.rows(), in_duckdb(held, texts), texts)
    assert_same(log.rows(), in_duckdb(held, texts), texts)


@settings(max_examples=9, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_floats_are_taken_back_as_they_were_sent(seed: int) -> None:
    """To the last bit, though they are computed anew, beside those of other keys, behind restores, from other runs."""
    chance = random.Random(seed)
    values = [0.1, 3.3, 1e16, -1e16, 1e300, -1e300, 1e-300, 2 / 3, float("nan"), float("inf"), None]
    order = (Order(col("i"), nulls_last=False),)
    frames = (None, Frame("rows", -2, 1), Frame("rows", None, None), Frame("range", -1, 2), Frame("groups", 1, 2))
    made = {"s": col("x").sum(), "m": col("x").mean(), "v": col("x").var(), "l": col("x").last()}
    columns = [
        OverColumn(f"{name}{place}", expr, order=order, frame=frame)
        for place, frame in enumerate(chance.sample(frames, 2))
        for name, expr in made.items()
    ]
    harness = OperatorHarness(node_of(columns), max_parallelism=GROUPS)
    held: list[tuple[Any, ...]] = []
    log = Log()
    for _ in range(chance.randrange(1, 8)):
        rows = []
        for _ in range(chance.choice([1, 3, 12])):
            gone = bool(held) and chance.random() < 0.4
            held += (
                [] if gone else [(chance.choice("abc"), chance.randrange(4), chance.choice(values), None, None, None)]
            )
            rows.append((*(held.pop(chance.randrange(len(held))) if gone else held[-1]), gone))
        harness.frame(frame_of(rows))
        for frame in harness.collected.frames:
            log.add(frame)
        harness.collected.frames.clear()
        if chance.random() < 0.4:
            harness = harness.restored(harness.freeze()(), chance.randrange(1, 4))
    assert len(log.rows()) == len(held)


def sent(harness: OperatorHarness, rows: Sequence[tuple[Any, ...]], *names: str) -> list[tuple[Any, ...]]:
    harness.collected.frames.clear()
    harness.frame(frame_of(rows))
    return [row for frame in harness.collected.frames for row in frame.select(*names, RETRACTED).rows()]


def row(key: str, i: int | None, *, gone: bool = False) -> tuple[Any, ...]:
    return (key, i, None, None, None, None, gone)


def test_only_rows_whose_columns_change_are_sent() -> None:
    """And of keys that a batch touches alone."""
    by = (Order(col("i")),)
    harness = OperatorHarness(
        node_of([OverColumn("n", "row_number", order=by), OverColumn("to", col("i").sum(), order=by)])
    )
    assert sent(harness, [row("a", 1), row("a", 3), row("b", 5)], "i", "n", "to") == [
        (1, 1, 1, False), (3, 2, 4, False), (5, 1, 5, False),
    ]  # fmt: skip
    assert sent(harness, [row("a", 2)], "i", "n", "to") == [(3, 2, 4, True), (3, 3, 6, False), (2, 2, 3, False)]
    assert sent(harness, [row("a", 4), row("a", 4, gone=True)], "i", "n", "to") == []
    assert sent(harness, [row("a", 3, gone=True)], "i", "n", "to") == [(3, 3, 6, True)]
    assert sent(harness, [row("b", 5, gone=True)], "i", "n", "to") == [(5, 1, 5, True)]


def test_rows_that_the_order_leaves_equal_stay_where_they_came() -> None:
    """So what was numbered once is not numbered anew."""
    harness = OperatorHarness(node_of([OverColumn("n", "row_number")]))
    assert sent(harness, [row("a", 3), row("a", 1)], "i", "n") == [(3, 1, False), (1, 2, False)]
    harness = harness.restored(harness.snapshot())
    assert sent(harness, [row("a", 2)], "i", "n") == [(2, 3, False)]
    assert sent(harness, [row("a", 3, gone=True)], "i", "n") == [
        (3, 1, True),
        (1, 2, True),
        (2, 3, True),
        (1, 1, False),
        (2, 2, False),
    ]


def test_ranges_at_the_ends_of_what_numbers_hold() -> None:
    order, frame = (Order(col("i")),), Frame("range", -1, 1)
    harness = OperatorHarness(node_of([OverColumn("n", count(), order=order, frame=frame)]))
    least, most = -(2**63), 2**63 - 1
    found = sent(harness, [row("a", i) for i in (least, least + 1, most, most - 1, None)], "i", "n")
    assert sorted(found, key=str) == sorted(
        [(least, 2, False), (least + 1, 2, False), (most, 2, False), (most - 1, 2, False), (None, 1, False)], key=str
    )


def test_a_key_that_was_forgotten_begins_anew() -> None:
    """What takes back a row of before is lost, and counted."""
    harness = OperatorHarness(node_of([OverColumn("n", "row_number")], ttl="80us"))
    assert sent(harness, [row("a", 1)], "n") == [(1, False)]
    harness.now_us = 200
    assert sent(harness, [row("a", 2)], "n") == [(1, False)]
    assert sent(harness, [row("a", 1, gone=True)], "n") == []
    assert (harness.metrics[0].forgotten_keys, harness.metrics[0].lost_changes) == (1, 1)


@dataclass
class Sale:
    shop: str
    day: int
    price: float
    at: datetime


def sales() -> Any:
    """Sums per shop and day."""
    rows = [("a", 1, 1.0), ("a", 2, 2.0), ("a", 5, 4.0), ("b", 2, 8.0), ("a", 2, 16.0)]
    given = [Sale(*row, START + timedelta(days=row[1])) for row in rows]
    read = Pipeline("p").read(iterables.Source(given, schema=Sale))
    return read.key_by("shop", "day").agg(total=col("price").sum(), at=col("at").max())


@pytest.mark.parametrize(
    ("over", "expected"),
    [
        ({}, {("a", 1): 23.0, ("a", 2): 23.0, ("a", 5): 23.0, ("b", 2): 8.0}),
        ({"order_by": "day"}, {("a", 1): 1.0, ("a", 2): 19.0, ("a", 5): 23.0, ("b", 2): 8.0}),
        ({"order_by": "day", "descending": True}, {("a", 1): 23.0, ("a", 2): 22.0, ("a", 5): 4.0, ("b", 2): 8.0}),
        ({"order_by": "day", "rows": 1}, {("a", 1): 1.0, ("a", 2): 18.0, ("a", 5): 4.0, ("b", 2): 8.0}),
        ({"order_by": "day", "within": 3}, {("a", 1): 1.0, ("a", 2): 19.0, ("a", 5): 22.0, ("b", 2): 8.0}),
        ({"order_by": "at", "within": "2d"}, {("a", 1): 1.0, ("a", 2): 19.0, ("a", 5): 4.0, ("b", 2): 8.0}),
    ],
    ids=str,
)
def test_rows_of_updates_beside_the_others(over: dict[str, Any], expected: dict[tuple[str, int], float]) -> None:
    """As users write it; rows replace others by the key of the updates, which has the key of the partitions."""
    beside = sales().key_by("shop").over(**over).with_columns(sum=col("total").sum())
    assert known_keys(beside._node) == ("shop", "day")
    assert known_keys(sales().key_by("day").over().with_columns(n=count())._node) == ("shop", "day")
    assert known_keys(sales().key_by("total").over().with_columns(n=count())._node) is None
    found = beside.final().select("shop", "day", "sum").collect().rows()
    assert {(shop, day): total for shop, day, total in found} == expected


@pytest.mark.parametrize(
    ("over", "said"),
    [
        ({"within": 1, "rows": 1}, "within= or rows="),
        ({"rows": 0}, "rows must be 1 or more"),
        ({"order_by": "day", "within": -1}, "0 or more; got -1"),
        ({"order_by": "day", "within": "1h"}, "which is int64 and needs int"),
        ({"within": 1}, "exactly one column"),
    ],
)
def test_frames_that_cannot_be_are_refused(over: dict[str, Any], said: str) -> None:
    with pytest.raises(PipelineError, match=f"over: .*{said}"):
        sales().key_by("shop").over(**over).with_columns(sum=col("total").sum())


BY_I = (Order(col("i")),)


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (OverColumn("c", col("x") + 1), "looks at no other row"),
        (OverColumn("i", count()), "a column 'i' already"),
        (OverColumn("retracted", count()), "a column 'retracted' already"),
        (OverColumn("c", "lag"), "lag takes a value"),
        (OverColumn("c", "rank", (col("i"),)), "rank takes no arguments; got 1"),
        (OverColumn("c", "ntile", number=0), r"ntile\(0\) needs a number of 1 or more"),
        (OverColumn("c", count(), order=(Order(col("t").str.split(",")),)), "no order"),
        (
            OverColumn("c", count(), frame=Frame("groups", -1, 0)),
            "groups between 1 preceding and current row needs an order",
        ),
        (OverColumn("c", count(), frame=Frame("rows", -1.5, 0)), "needs whole numbers"),
        (OverColumn("c", count(), order=BY_I, frame=Frame("range", timedelta(-1), 0)), "which is int64 and needs int"),
        (OverColumn("c", count(), order=(Order(col("w")),), frame=Frame("range", -1, 0)), "needs timedelta"),
        (OverColumn("c", count(), order=(Order(col("t")),), frame=Frame("range", -1, 0)), "it has no distances"),
        (OverColumn("c", count(), order=(*BY_I, *BY_I), frame=Frame("range", -1, 0)), "exactly one column"),
        (OverColumn("c", count(), order=BY_I, frame=Frame("rows", 1, 0)), "begins behind its end"),
        (OverColumn("c", count(), order=BY_I, frame=Frame("range", -1, -2)), "begins behind its end"),
        (OverColumn("c", col(RETRACTED).any()), "reads retracted"),
        (OverColumn("c", "first_value", (col("none"),)), "none"),
    ],
)
def test_what_cannot_be_computed_is_refused(column: OverColumn, said: str) -> None:
    with pytest.raises(PipelineError, match=f"over: .*{said}"):
        node_of([column])
