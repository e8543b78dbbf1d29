"""Conditions that look back: what Python makes of them is what Polars makes of them."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import UserCodeError
from penstock.expressions import Expr, aggregate_field, coalesce, col, lit, to_polars, when
from penstock.expressions.aggregates import AggregatePlan
from penstock.expressions.nodes import Column
from penstock.functions.patterns.looking_back import Evaluator, Remembered, remembering
from penstock.functions.patterns.references import Asked, References
from penstock.state.number_columns import of_numbers
from penstock.types import (
    DURATION,
    FLOAT32,
    FLOAT64,
    INT32,
    INT64,
    STRING,
    TIMESTAMP,
    DataType,
    DecimalType,
    Field,
    Schema,
)

KINDS = {"i": INT64, "f": FLOAT64, "s": STRING, "k": INT32, "m": TIMESTAMP, "d": DURATION, "c": DecimalType(10, 2)}
ROW = Schema(tuple(Field(name, kind, nullable=True) for name, kind in KINDS.items()))
BACK = Schema(tuple(Field(f"{name}{name}", kind, nullable=True) for name, kind in KINDS.items()))
BOTH = Schema((*ROW, *BACK))
VALUES: dict[str, list[Any]] = {
    "int64": [None, 0, 1, -3, 7, 2**53 + 1, 2**62, -(2**63)],
    "float64": [None, 0.0, -0.0, 1.5, -2.5, 1e300, math.inf, -math.inf, math.nan],
    "string": [None, "", "a", "ab", "ä"],
    "int32": [None, 0, 5, -7, 2**31 - 1, -(2**31)],
    "timestamp": [None, 0, 1_700_000_000_000_000, 1_700_000_000_000_001, -5],
    "duration": [None, 0, 60_000_000, -1, 86_400_000_000],
    str(DecimalType(10, 2)): [None, Decimal("0.00"), Decimal("3.00"), Decimal("-0.01"), Decimal("99999999.99")],
}
LITERALS: dict[str, list[Any]] = {
    "int64": [3], "float64": [0.5, 2, Decimal("1.1")], "string": ["a"], "int32": [3],
    "timestamp": [datetime(2024, 1, 1, tzinfo=UTC)], "duration": [timedelta(minutes=1)],
    str(DecimalType(10, 2)): [Decimal("0.5"), 3],
}  # fmt: skip
POOLS: dict[DataType, list[Any]] = {
    INT64: [None, 1, -7, 3, 40],
    FLOAT32: [None, 0.5, 0.10000000149011612, 16777216.0, 1.5],
    DecimalType(10, 2): [None, Decimal("0.01"), Decimal("-3.33"), Decimal("99999999.99"), Decimal("7.00")],
}
BOOLEANS = ["a < b", "a <= b", "a == b", "a != b", "a > b", "a >= b"]


def operand(chance: random.Random, kind: str) -> Expr:
    names = [each.name for each in BOTH if str(each.type) == kind]
    column = col(chance.choice(names))
    match chance.randrange(6):
        case 0 | 1:
            return column
        case 2 if kind in ("int64", "float64"):
            return chance.choice([-column, column.abs()])
        case 3:
            return (
                coalesce(column, chance.choice(names))
                if chance.random() < 0.5
                else column.fill_null(plain(chance, kind))
            )
        case 4:
            return when(condition(chance, 2)).then(column).otherwise(col(chance.choice(names)))
        case _ if kind in ("timestamp", "duration"):
            other = col(chance.choice(["d", "dd"])) if chance.random() < 0.6 else lit(timedelta(seconds=61))
            return chance.choice([column + other, column - other])
        case _ if kind == "string":
            return column
        case _:
            other = col(chance.choice(names)) if chance.random() < 0.6 else plain(chance, kind)
            return chance.choice([column + other, column - other, column * other])


def plain(chance: random.Random, kind: str) -> Expr:
    return lit(chance.choice(LITERALS[kind]))


def condition(chance: random.Random, depth: int = 0) -> Expr:
    if depth < 2 and chance.random() < 0.4:
        one, other = condition(chance, depth + 1), condition(chance, depth + 1)
        return chance.choice([one & other, one | other, ~one])
    kind = chance.choice(list(VALUES))
    a = operand(chance, kind) if depth < 2 else col(chance.choice([name for name in KINDS if str(KINDS[name]) == kind]))
    match chance.randrange(6):
        case 0:
            return chance.choice([a.is_null(), a.is_not_null()])
        case 1:
            return a.is_in([chance.choice(LITERALS[kind]) for _ in range(2)])
        case 2 if kind == "timestamp" and depth < 2:
            return (a - col("mm")) < lit(timedelta(hours=1))
        case _:
            of = chance.choice([kind, "float64"]) if kind in ("int64", "int32") else kind
            b = operand(chance, of) if depth < 2 else plain(chance, kind)
            return eval(chance.choice(BOOLEANS), {"a": a, "b": b})


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_conditions_are_what_polars_makes_of_them(seed: int) -> None:
    chance = random.Random(seed)
    fast = 0
    for _ in range(200):
        expr = condition(chance)
        remembered = {
            name: (place, Remembered(Asked("last", ("x",), Column(name)), place, BACK.field(name).type))
            for place, name in enumerate(BACK.names)
        }
        read = Evaluator(expr, BOTH, {name: place for place, name in enumerate(ROW.names)}, remembered)
        fast += read._fast is not None
        for _ in range(5):
            row = {name: chance.choice(VALUES[str(BOTH.field(name).type)]) for name in BOTH.names}
            values = tuple(row[name] for name in ROW.names)
            memory = tuple((row[name],) for name in BACK.names)
            try:
                columns = [of_numbers(name, [row[name]], kind) for name, kind in BOTH.polars().items()]
                expected = pl.DataFrame(columns).select(to_polars(expr, BOTH).alias("it")).item()
            except pl.exceptions.PolarsError as error:  # numbers that do not fit
                with pytest.raises(type(error)):
                    read(values, memory)
                continue
            assert read(values, memory) is expected, (seed, str(expr), row)
    assert fast > 100


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 10**9))
@pytest.mark.parametrize("kind", [INT64, FLOAT64, FLOAT32, DecimalType(10, 2)], ids=str)
@pytest.mark.parametrize("function", ["first", "last", "count", "sum", "mean", "min", "max"])
def test_what_is_remembered_is_what_aggregates_give(function: str, kind: Any, seed: int) -> None:
    """Row by row, of one variable and of all."""
    chance = random.Random(seed)
    schema = Schema((Field("v", kind, nullable=True), Field("of", STRING)))
    expr = getattr(col("v"), function)()
    plan = AggregatePlan.build([("it", expr)], schema, event_time=False)
    pool = POOLS.get(kind) or [None, 0.1, 0.2, 1e16, -1e16, 3.5, math.nan, 1.0, math.inf, 1e308]
    for variable in ("a", None):
        what = Remembered(
            Asked(function, None if variable is None else (variable,), Column("v")),
            0,
            aggregate_field(expr, schema).type,
        )
        remember = remembering([what], ["a", "b"])
        for _ in range(30):
            memory: tuple[Any, ...] = (None,)
            rows: list[tuple[Any, str]] = []
            for _ in range(chance.randrange(8)):
                position, value = chance.randrange(2), chance.choice(pool)
                memory = remember(memory, position, (value,))
                rows += [(value, "ab"[position])] if variable is None or position == 0 else []
            found = what.value(memory[0])
            if not rows:
                assert found == (0 if function == "count" else None)
                continue
            frame = pl.DataFrame(rows, schema.polars(), orient="row")
            expected = frame.group_by(lit_key()).agg(plan.init_grouped).select(plan.finish).item()
            same = found == expected or (found != found and expected != expected)
            assert same, (seed, function, rows, found, expected)


def lit_key() -> pl.Expr:
    return pl.lit(1).alias("key")


def test_a_condition_is_taken_apart() -> None:
    """What looks at the row alone is computed for many rows at once."""
    references = References(ROW, ["low", "high"])
    found = references.condition(
        (col("f") > 1) & (col("f") > col("low.f").max()) & (col("s") == "x") & (col("low").count() > 2)
    )
    assert str(found.alone) == '(col("f") > 1) & (col("s") == "x")'
    assert [asked for _, asked in found.asked] == [Asked("max", ("low",), Column("f")), Asked("count", ("low",), None)]
    assert references.condition(col("f") > 1).looking_back is None


def test_a_sum_that_does_not_fit_is_refused() -> None:
    what = Remembered(Asked("sum", ("a",), Column("v")), 0, INT64)
    remember = remembering([what], ["a"])
    memory = remember(remember((None,), 0, (2**62,)), 0, (2**62,))
    with pytest.raises(UserCodeError, match=r"a sum that does not fit into int64; add floats instead"):
        what.value(memory[0])


def test_whole_numbers_beside_floats_need_no_polars() -> None:
    for expr in (col("f") > col("ff") * 2, 2 * col("ff") - 1 < col("f"), col("ff") >= 100):
        remembered = {"ff": (0, Remembered(Asked("last", ("x",), Column("ff")), 0, FLOAT64))}
        assert Evaluator(expr, BOTH.select(["f", "ff"]), {"f": 0}, remembered)._fast is not None
