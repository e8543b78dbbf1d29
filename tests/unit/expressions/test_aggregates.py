"""Two-phase aggregation: any split of rows into batches and any order of merging gives what one pass gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from statistics import multimode
from typing import Any

import duckdb
import msgspec
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.batches import EVENT_TIME
from penstock.errors import PipelineError, UserCodeError
from penstock.expressions import Accumulator, AggregatePlan, Expr, aggregate, col, count, count_if, when
from penstock.expressions.partial_columns import PartialColumns
from penstock.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DURATION,
    FLOAT32,
    FLOAT64,
    INT8,
    INT32,
    INT64,
    STRING,
    TIME,
    TIMESTAMP,
    UINT64,
    DataType,
    DecimalType,
    Field,
    ListType,
    Schema,
    StructType,
    polars_type,
)

SCHEMA = Schema(
    (
        Field("k", INT64), Field("i", INT64, True), Field("n", INT64), Field("f", FLOAT64, True),
        Field("s", STRING, True), Field("p", BOOLEAN, True), Field("t", TIMESTAMP, True), Field("u", DURATION, True),
        Field("small", INT8), Field("l", ListType(STRING), True), Field("r", StructType((Field("x", INT64, True),))),
    )
)  # fmt: skip
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass
class Spread:
    """An accumulator with two parts."""

    low: float
    high: float


class Range(Accumulator[Spread | None, float | None]):
    """Largest minus smallest, written by a user."""

    accumulator_type = Spread | None

    def create(self) -> Spread | None:
        return None

    def add(self, accumulator: Spread | None, *values: Any) -> Spread | None:
        if values[0] is None:
            return accumulator
        return self.merge(accumulator, Spread(values[0], values[0]))

    def merge(self, left: Spread | None, right: Spread | None) -> Spread | None:
        if left is None or right is None:
            return left or right
        return Spread(min(left.low, right.low), max(left.high, right.high))

    def result(self, accumulator: Spread | None) -> float | None:
        return None if accumulator is None else float(accumulator.high - accumulator.low)


i, n, f, s, p, t, u = col("i"), col("n"), col("f"), col("s"), col("p"), col("t"), col("u")
AGAINST_DUCKDB: dict[str, tuple[Expr, str]] = {
    "rows": (count(), "count(*)"),
    "count": (i.count(), "count(i)"),
    "count_all": (n.count(), "count(n)"),
    "sum": (i.sum(), "sum(i)::BIGINT"),
    "sum_n": (n.sum(), "sum(n)::BIGINT"),
    "sum_f": (f.sum(), "sum(f)"),
    "sum_p": (p.sum(), "sum(p::INT)::BIGINT"),
    "sum_expression": ((i * 2 + n).sum(), "sum(i * 2 + n)::BIGINT"),
    "sum_where": (when(i > 0).then(n).sum(), "sum(n) FILTER (i > 0)::BIGINT"),
    "mean": (i.mean(), "avg(i)"),
    "mean_f": (f.mean(), "avg(f)"),
    "min": (i.min(), "min(i)"),
    "max": (i.max(), "max(i)"),
    "min_f": (f.min(), "coalesce(min(f) FILTER (NOT isnan(f)), min(f))"),
    "max_f": (f.max(), "coalesce(max(f) FILTER (NOT isnan(f)), max(f))"),
    "max_s": (s.max(), "max(s)"),
    "min_p": (p.min(), "min(p)"),
    "max_t": (t.max(), "max(t)"),
    "first": (s.first(), "first(s ORDER BY __event_time)"),
    "last": (s.last(), "last(s ORDER BY __event_time)"),
    "last_i": (i.last(), "last(i ORDER BY __event_time)"),
    "first_l": (col("l").first(), "first(l ORDER BY __event_time)"),
    "n_unique": (i.n_unique(), "count(DISTINCT i)"),
    "n_unique_f": (f.n_unique(), "count(DISTINCT f)"),
    "n_unique_s": (s.n_unique(), "count(DISTINCT s)"),
    "mode": (s.mode(), "mode(s ORDER BY __event_time)"),
    "mode_f": (f.mode(), "mode(f + 0.0 ORDER BY __event_time)"),
    "collect": (s.collect(), "list(s ORDER BY __event_time)"),
    "collect_r": (col("r").collect(), "list(r ORDER BY __event_time)"),
    "quantile": (i.quantile(0.3), "quantile_cont(i, 0.3)"),
    "median": (n.median(), "quantile_cont(n, 0.5)"),
    "approx_n_unique": (s.approx_n_unique(), "count(DISTINCT s)"),
    "approx_n_unique_f": (f.approx_n_unique(), "count(DISTINCT f)"),
    "approx_quantile": (i.approx_quantile(0.3), "quantile_cont(i, 0.3)"),
    "arithmetic": ((n.sum() / count()).round(3), "round_even(sum(n) / count(*), 3)"),
    "spread": (n.max() - n.min(), "max(n) - min(n)"),
    "range": (aggregate(Range(), i), "(max(i) - min(i))::DOUBLE"),
}
ROW = st.fixed_dictionaries(
    {
        "k": st.integers(1, 2),
        "i": st.one_of(st.none(), st.integers(-20, 20)),
        "n": st.integers(-(10**6), 10**6),
        "f": st.one_of(st.none(), st.floats(-1e3, 1e3, width=32), st.sampled_from([math.nan, 0.0, -0.0, math.inf])),
        "s": st.one_of(st.none(), st.sampled_from(["", "a", "b", "é"])),
        "p": st.one_of(st.none(), st.booleans()),
        "t": st.one_of(st.none(), st.integers(0, 10**12).map(lambda us: EPOCH + timedelta(microseconds=us))),
        "u": st.one_of(st.none(), st.integers(-9, 9).map(lambda us: timedelta(microseconds=us))),
        "small": st.integers(-128, 127),
        "l": st.one_of(st.none(), st.lists(st.one_of(st.none(), st.just("x")), max_size=2)),
        "r": st.fixed_dictionaries({"x": st.one_of(st.none(), st.integers(0, 3))}),
    }
)


@st.composite
def rows(draw: st.DrawFn) -> pl.DataFrame:
    """Rows with event times that differ, out of order."""
    values = draw(st.lists(ROW, min_size=1, max_size=14))
    times = draw(st.lists(st.integers(-100, 100), min_size=len(values), max_size=len(values), unique=True))
    return pl.DataFrame(values, schema=SCHEMA.polars()).with_columns(pl.Series(EVENT_TIME, times, dtype=pl.Int64))


def partials_of(plan: AggregatePlan, frame: pl.DataFrame, grouped: bool) -> pl.DataFrame:
    """A batch's partials by either path."""
    if grouped:
        return frame.group_by("k", maintain_order=True).agg(plan.init_grouped).with_columns(plan.carry)
    return frame.select("k", *plan.init)


def merged(plan: AggregatePlan, *partials: pl.DataFrame) -> pl.DataFrame:
    """One partial per key."""
    return pl.concat(partials).group_by("k", maintain_order=True).agg(plan.merge).with_columns(plan.carry)


def finished(plan: AggregatePlan, partials: pl.DataFrame) -> pl.DataFrame:
    """Results in the order of keys."""
    return partials.select("k", *plan.finish).sort("k")


def in_pieces(plan: AggregatePlan, frame: pl.DataFrame, data: st.DataObject) -> pl.DataFrame:
    """The results of batches cut anywhere, merged in any tree that keeps their order."""
    cuts = sorted(data.draw(st.lists(st.integers(0, frame.height), max_size=4), label="cuts"))
    pieces: list[pl.DataFrame] = []
    for start, end in zip([0, *cuts], [*cuts, frame.height], strict=True):
        pieces.append(partials_of(plan, frame[start:end], data.draw(st.booleans(), label="grouped")))
    while len(pieces) > 1:
        at = data.draw(st.integers(0, len(pieces) - 2), label="merge at")
        pair = pieces[at : at + 2]
        joined = merged(plan, *pair) if data.draw(st.booleans(), label="merge now") else pl.concat(pair)
        pieces[at : at + 2] = [joined]
    return finished(plan, merged(plan, pieces[0]))


def same(left: Any, right: Any) -> bool:
    """Equal up to rounding, NaN equal to NaN."""
    if isinstance(left, float) and isinstance(right, float):
        return (
            (math.isnan(left) and math.isnan(right))
            or left == right
            or math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-9)
        )
    return type(left) is type(right) and left == right


def check_same(left: pl.DataFrame, right: pl.DataFrame) -> None:
    """Two frames of results agree in names, types and values."""
    assert left.schema == right.schema
    for name in left.columns:
        for ours, theirs in zip(left[name].to_list(), right[name].to_list(), strict=True):
            assert same(ours, theirs), (name, ours, theirs)


PLAN = AggregatePlan.build([(name, expr) for name, (expr, _) in AGAINST_DUCKDB.items()], SCHEMA)


@settings(deadline=None, max_examples=40)
@given(rows())
def test_one_pass_equals_duckdb(frame: pl.DataFrame) -> None:
    """Every aggregate on random groups with nulls, NaN, -0.0 and times out of order."""
    results = finished(PLAN, partials_of(PLAN, frame, grouped=True))
    plain = frame.with_columns(pl.col("t").dt.replace_time_zone(None))
    query = ", ".join(f"{sql} AS {name}" for name, (_, sql) in AGAINST_DUCKDB.items())
    with duckdb.connect(":memory:") as connection:
        connection.register("rows", plain.to_arrow())
        expected = connection.execute(f"SELECT k, {query} FROM rows GROUP BY k ORDER BY k").fetchall()
    ours = results.with_columns(pl.col("max_t").dt.replace_time_zone(None)).rows()
    for got, wanted in zip(ours, expected, strict=True):
        for name, left, right in zip(results.columns, got, wanted, strict=True):
            assert same(left, right), (name, left, right)


@settings(deadline=None, max_examples=60)
@given(rows(), st.data())
def test_any_batches_and_any_merging_equal_one_pass(frame: pl.DataFrame, data: st.DataObject) -> None:
    """Results do not depend on how rows are cut, on the path, or on the merge tree."""
    check_same(in_pieces(PLAN, frame, data), finished(PLAN, partials_of(PLAN, frame, grouped=True)))


@settings(deadline=None, max_examples=40)
@given(rows(), st.data())
def test_without_event_time_first_last_and_collect_go_by_arrival(frame: pl.DataFrame, data: st.DataObject) -> None:
    """The order of arrival decides, whatever the batches."""
    plan = AggregatePlan.build([("a", s.first()), ("b", s.last()), ("c", i.collect())], SCHEMA, event_time=False)
    assert not plan.needs_event_time
    got = in_pieces(plan, frame.drop(EVENT_TIME), data)
    expected = frame.group_by("k").agg(a=pl.col("s").first(), b=pl.col("s").last(), c=pl.col("i")).sort("k")
    check_same(got, expected)


@settings(deadline=None, max_examples=30)
@given(rows(), st.data())
def test_with_equal_event_times_collect_keeps_arrival(frame: pl.DataFrame, data: st.DataObject) -> None:
    """Rows of one instant stay in order of arrival; `first` and `last` are the first and last of them."""
    frame = frame.with_columns(pl.lit(5, dtype=pl.Int64).alias(EVENT_TIME))
    plan = AggregatePlan.build([("a", n.first()), ("b", n.last()), ("c", n.collect())], SCHEMA)
    got = in_pieces(plan, frame, data)
    check_same(got.select("k", "c"), frame.group_by("k").agg(c=pl.col("n")).sort("k"))
    assert all((a, b) == (c[0], c[-1]) for a, b, c in got.select("a", "b", "c").rows())


_REPEATED: dict[DataType, list[Any]] = {
    INT64: [-(2**63), 0, 7],
    UINT64: [0, 1, 2**64 - 1],
    FLOAT64: [math.nan, -0.0, 0.0, math.inf, 1.5],
    FLOAT32: [math.nan, -0.0, 0.0, -math.inf],
    STRING: ["", "a", "é"],
    BINARY: [b"", b"\x00", b"a"],
    BOOLEAN: [True, False],
    TIMESTAMP: [EPOCH, EPOCH + timedelta(microseconds=1)],
    DURATION: [timedelta(0), timedelta(microseconds=-1)],
    DATE: [date(1, 1, 1), date(2024, 2, 29)],
    TIME: [time(0), time(12, 30)],
    DecimalType(30, 2): [Decimal("-1.10"), Decimal("0.00"), Decimal("1.10")],
}


@settings(deadline=None, max_examples=120)
@given(st.sampled_from(list(_REPEATED)), st.sampled_from([None, "few", "one"]), st.data())
def test_the_mode_is_the_first_of_the_most_frequent_values_or_the_least(kind: DataType, times: Any, data: Any) -> None:
    """Row by row in Python: of every type, by event time, then arrival, or arrival alone, in any batches and merges."""
    values = data.draw(st.lists(st.none() | st.sampled_from(_REPEATED[kind]), min_size=1, max_size=16))
    each = st.just(0) if times == "one" else st.integers(0, 4)
    at = data.draw(st.lists(each, min_size=len(values), max_size=len(values)))
    keys = data.draw(st.lists(st.integers(1, 2), min_size=len(values), max_size=len(values)))
    frame = pl.DataFrame(
        {"k": keys, "x": pl.Series(values, dtype=polars_type(kind)), EVENT_TIME: pl.Series(at, dtype=pl.Int64)}
    )
    schema = Schema((Field("k", INT64), Field("x", kind, nullable=True)))
    aggregates = [("first", col("x").mode()), ("least", col("x").mode("least"))]
    plan = AggregatePlan.build(aggregates, schema, event_time=times is not None)
    expected: list[tuple[Any, ...]] = []
    for key in sorted(set(keys)):
        rows = [(time, x) for k, time, x in zip(keys, at, values, strict=True) if k == key and x is not None]
        ordered = sorted(rows, key=lambda row: row[0]) if times else rows
        found = multimode("nan" if x != x else x for _, x in ordered)  # in the order in which they came
        least = min(found, key=lambda x: (x == "nan", x) if isinstance(x, float) or x == "nan" else x, default=None)
        expected.append((key, found[0] if found else None, least))
    got = in_pieces(plan, frame if times else frame.drop(EVENT_TIME), data)
    assert [tuple("nan" if x != x else x for x in row) for row in got.rows()] == expected
    zeros = [x for row in got.rows() for x in row[1:] if isinstance(x, float) and x == 0]
    assert all(math.copysign(1, zero) == 1 for zero in zeros)


@pytest.mark.parametrize("expr", [expr for expr, _ in AGAINST_DUCKDB.values()], ids=list(AGAINST_DUCKDB))
def test_types_are_exact_on_no_rows_too(expr: Expr) -> None:
    """Partial and result columns have the declared types, on every path, also for empty frames."""
    plan = AggregatePlan.build([("x", expr)], SCHEMA)
    schema = {"k": pl.Int64(), **{field.name: polars_type(field.type) for field in plan.partial_fields}}
    empty = pl.DataFrame(schema={**SCHEMA.polars(), EVENT_TIME: pl.Int64()})
    row = empty.clear(1).with_columns(k=1, n=0, small=0, r=pl.struct(x=pl.lit(None, pl.Int64)))
    row = row.with_columns(pl.lit(0, pl.Int64).alias(EVENT_TIME)).cast({"k": pl.Int64, "n": pl.Int64})
    for frame in (empty, row):
        for grouped in (True, False):
            partials = partials_of(plan, frame, grouped)
            assert partials.schema == schema
            assert merged(plan, partials).schema == schema
            results = finished(plan, partials)
            assert results.schema == {"k": pl.Int64(), "x": polars_type(plan.output_fields[0].type)}
            assert plan.output_fields[0].nullable or results["x"].null_count() == 0


def test_sums_are_wide() -> None:
    """Small integers are added as int64, durations stay durations and their mean is whole microseconds."""
    plan = AggregatePlan.build([("a", col("small").sum()), ("b", u.sum()), ("c", u.mean())], SCHEMA)
    frame = pl.DataFrame({"k": [1] * 3, "small": [127] * 3, "u": [timedelta(microseconds=us) for us in (-1, 0, 3)]})
    frame = frame.cast({"small": pl.Int8})
    got = finished(plan, partials_of(plan, frame, grouped=True))
    assert got.rows() == [(1, 381, timedelta(microseconds=2), timedelta(0))]


def test_aggregates_share_partials() -> None:
    """Sum and count are columns of the mean too; a column without nulls is counted by rows."""
    plan = AggregatePlan.build([("a", i.mean()), ("b", i.sum()), ("c", i.count()), ("d", i.sum() * 2)], SCHEMA)
    assert plan.partial_fields == (Field("__p0", INT64, True), Field("__p1", INT64), Field("__p2", INT64, True))
    plan = AggregatePlan.build([("a", n.mean()), ("b", count()), ("c", n.sum() / count())], SCHEMA)
    assert [field.name for field in plan.partial_fields] == ["__p0", "__p1", "__p2"]
    small = col("small")
    plan = AggregatePlan.build([("a", small.mean()), ("b", count()), ("c", small.sum() / count())], SCHEMA)
    assert [field.name for field in plan.partial_fields] == ["__p0", "__p1"]
    assert [(field.name, field.type) for field in plan.output_fields] == [("a", FLOAT64), ("b", INT64), ("c", FLOAT64)]
    assert not plan.needs_event_time
    plan = AggregatePlan.build([("a", n.first()), ("b", s.first()), ("c", aggregate(Range(), i))], SCHEMA)
    assert [str(field.type) for field in plan.partial_fields] == ["int64", "int64", "string", "binary"]
    assert plan.needs_event_time


_WIDE = {
    INT64: (-(2**63), 2**63 - 1),
    UINT64: (0, 2**64 - 1),
    INT32: (-(2**31), 2**31 - 1),
    BOOLEAN: (0, 1),
    DURATION: (-(2**63), 2**63 - 1),
}


@settings(deadline=None, max_examples=80)
@given(st.sampled_from(list(_WIDE)), st.booleans(), st.data())
def test_the_mean_of_integers_is_the_true_quotient_rounded_once(kind: DataType, nullable: bool, data: Any) -> None:
    """To the last bit, for the largest sums, and for small ones however they are cut and merged."""
    low, high = _WIDE[kind]
    sizes = st.sampled_from([1, 100, 2**33, 2**62, 2**64]).flatmap(lambda size: st.integers(-size, size))
    value = sizes.map(lambda size: min(max(size, low), high)) | st.sampled_from([low, high])
    drawn = st.lists(value | st.none() if nullable else value, min_size=1, max_size=40)
    groups = data.draw(st.lists(drawn, min_size=1, max_size=3))
    schema = Schema((Field("k", INT64), Field("x", kind, nullable)))
    plan = AggregatePlan.build([("mean", col("x").mean()), ("count", col("x").count())], schema)
    values = [value for group in groups for value in group]
    numbers = pl.Series("x", values, pl.UInt64 if kind == UINT64 else pl.Int64).cast(polars_type(kind))
    frame = pl.DataFrame({"k": [k for k, group in enumerate(groups) for _ in group], "x": numbers})
    got = in_pieces(plan, frame.sample(fraction=1, shuffle=True, seed=1), data)["mean"]
    present = [[value for value in group if value is not None] for group in groups]
    if kind == DURATION:
        assert got.to_physical().to_list() == [sum(some) // len(some) if some else None for some in present]
    else:
        assert got.to_list() == [sum(some) / len(some) if some else None for some in present]


@settings(deadline=None, max_examples=80)
@given(st.sampled_from([INT64, UINT64, DURATION]), st.booleans(), st.data())
def test_a_sum_of_integers_is_the_true_one_or_an_error(kind: DataType, nullable: bool, data: Any) -> None:
    """It never wraps around in silence, however rows are cut and partials merged; what is too large only in between is
    no error."""
    low, high = _WIDE[kind]
    sizes = st.sampled_from([1, 100, 2**33, 2**62, 2**64]).flatmap(lambda size: st.integers(-size, size))
    value = sizes.map(lambda size: min(max(size, low), high)) | st.sampled_from([low, high])
    values = data.draw(st.lists(value | st.none() if nullable else value, min_size=1, max_size=6))
    plan = AggregatePlan.build([("sum", col("x").sum())], Schema((Field("k", INT64), Field("x", kind, nullable))))
    numbers = pl.Series("x", values, pl.UInt64 if kind == UINT64 else pl.Int64).cast(polars_type(kind))
    frame = pl.DataFrame({"k": [1] * len(values), "x": numbers})
    present = [value for value in values if value is not None]
    if low <= sum(present) <= high:
        assert in_pieces(plan, frame, data)["sum"].to_physical().to_list() == [sum(present) if present else None]
        return
    with pytest.raises(pl.exceptions.ComputeError, match=r"the sum of col\(\"x\"\) does not fit into"):
        in_pieces(plan, frame, data)


EXACT_FLOATS = (
    st.floats(-1e16, 1e16).filter(lambda x: x == 0 or abs(x) > 2**-43)
    | st.sampled_from([0.1, 0.2, 0.3, 1e16, -1e16, 1.0, -0.0])
    | st.integers(-(10**6), 10**6).map(lambda cents: cents / 100)
)  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(st.lists(EXACT_FLOATS | st.none(), min_size=1, max_size=30), st.booleans(), st.data())
def test_sums_of_floats_do_not_depend_on_batches(values: list[float | None], nullable: bool, data: Any) -> None:
    """Nor on order: the sum is the true one, rounded once, and so are mean, variance and deviation made of it."""
    present = [value for value in values if value is not None]
    if not nullable:
        values = present = present or [0.5]
    schema = Schema((Field("k", INT64), Field("x", FLOAT64, nullable)))
    x = col("x")
    plan = AggregatePlan.build(
        [("sum", x.sum()), ("mean", x.mean()), ("var", x.var()), ("all", x.var(ddof=0)), ("std", x.std())], schema
    )
    frame = pl.DataFrame({"k": [1] * len(values), "x": pl.Series(values, dtype=pl.Float64)})
    got = in_pieces(plan, frame.sample(fraction=1, shuffle=True, seed=1), data).row(0, named=True)
    exact = [Fraction(value) for value in present]
    spread = sum((value - sum(exact) / len(exact)) ** 2 for value in exact)
    assert got["sum"] == (math.fsum(present) if present else None)
    assert got["mean"] == (math.fsum(present) / len(present) if present else None)
    assert got["all"] == (float(spread / len(exact)) if exact else None)
    assert got["var"] == (float(spread / (len(exact) - 1)) if len(exact) > 1 else None)
    assert got["std"] == (math.sqrt(float(spread / (len(exact) - 1))) if len(exact) > 1 else None)


@pytest.mark.parametrize(
    ("values", "total", "variance"),
    [
        ([math.inf, 1.0], math.inf, math.nan),
        ([math.inf, -math.inf], math.nan, math.nan),
        ([1.0, math.nan], math.nan, math.nan),
        ([1e300, 1e300, -1e300], 1e300, None),
        ([5e-324, 5e-324], 1e-323, 0.0),
        ([1e18, 1e18], 2e18, 0.0),
    ],
)
def test_floats_that_are_not_exact_are_added_as_floats(values: list[float], total: float, variance: Any) -> None:
    """Infinities, NaN, the very large and the very small."""
    schema = Schema((Field("k", INT64), Field("x", FLOAT64)))
    plan = AggregatePlan.build([("sum", col("x").sum()), ("var", col("x").var())], schema)
    frame = pl.DataFrame({"k": [1] * len(values), "x": values})
    got = finished(plan, merged(plan, partials_of(plan, frame, grouped=False))).row(0, named=True)
    assert same(got["sum"], total)
    assert variance is None or same(got["var"], variance)


def test_limbs_of_many_rows_are_carried() -> None:
    """More rows of one group than 64 bits could hold limbs of, in as many batches as it takes."""
    schema = Schema((Field("k", INT64), Field("x", FLOAT64)))
    plan = AggregatePlan.build([("sum", col("x").sum())], schema)
    value = 2.0**55 - 2.0**2  # ones in every place of two limbs
    million = pl.DataFrame({"k": [1] * 2**20, "x": [value] * 2**20})
    partial = partials_of(plan, million, grouped=True)
    for _ in range(8):
        partial = merged(plan, *[partial] * 8)
    assert finished(plan, partial)["sum"].to_list() == [value * 2**44]
    assert all(abs(limb) <= 2**51 for limb in partial.row(0)[1:-1])


def test_partials_of_before_sums_were_exact_are_converted() -> None:
    """The former sum, wrapped around or rounded, is all that is known of what it holds."""
    schema = Schema((Field("k", INT64), Field("n", INT64), Field("x", FLOAT64)))
    plan = AggregatePlan.build([("n", col("n").sum()), ("x", col("x").sum()), ("mean", col("x").mean())], schema)
    former = next(plan.formers())
    assert [str(field.type) for field in former.fields] == ["int64", "float64", "int64"]
    frame = pl.DataFrame({"__p0": [-(2**62)], "__p1": [0.30000000000000004], "__p2": [2]})
    partials = frame.select(former.to_current)
    assert partials.columns == [field.name for field in plan.partial_fields]
    assert partials.select(plan.finish).row(0) == (-(2**62), 0.30000000000000004, 0.15000000000000002)


FILTERED: dict[str, tuple[Expr, str]] = {
    "rows": (count(filter=p), "count(*) FILTER (p)"),
    "count_if": (count_if(i > 0), "count(*) FILTER (i > 0)"),
    "count": (i.count(filter=p), "count(i) FILTER (p)"),
    "sum": (i.sum(filter=p), "sum(i) FILTER (p)::BIGINT"),
    "sum_f": (f.sum(filter=n > 0), "sum(f) FILTER (n > 0)"),
    "mean": (i.mean(filter=p), "avg(i) FILTER (p)"),
    "std": (i.std(filter=p), "stddev_samp(i) FILTER (p)"),
    "var": (n.var(ddof=0), "var_pop(n)"),
    "min": (s.min(filter=p), "min(s) FILTER (p)"),
    "max": (t.max(filter=p), "max(t) FILTER (p)"),
    "any": (p.any(), "coalesce(bool_or(p), false)"),
    "any_where": (p.any(filter=i > 0), "coalesce(bool_or(p) FILTER (i > 0), false)"),
    "all": (p.all(), "coalesce(bool_and(p), true)"),
    "first": (s.first(filter=p), "first(s ORDER BY __event_time) FILTER (p)"),
    "last": (i.last(filter=i > 0), "last(i ORDER BY __event_time) FILTER (i > 0)"),
    "last_l": (col("l").last(filter=p), "last(l ORDER BY __event_time) FILTER (p)"),
    "mode": (i.mode(filter=p), "mode(i ORDER BY __event_time) FILTER (p)"),
    "mode_least": (s.mode("least", filter=p), "mode(s ORDER BY s) FILTER (p)"),
    "collect": (s.collect(filter=p), "coalesce(list(s ORDER BY __event_time) FILTER (p), [])"),
    "distinct": (i.collect_distinct(), "coalesce(list_sort(list(DISTINCT i) FILTER (i IS NOT NULL)), [])"),
    "distinct_s": (
        s.collect_distinct(filter=p),
        "coalesce(list_sort(list(DISTINCT s) FILTER (p AND s IS NOT NULL)), [])",
    ),
    "n_unique": (s.n_unique(filter=p), "count(DISTINCT s) FILTER (p)"),
    "quantile": (n.quantile(0.3, filter=p), "quantile_cont(n, 0.3) FILTER (p)"),
    "approx_n_unique": (s.approx_n_unique(filter=p), "count(DISTINCT s) FILTER (p)"),
    "approx_quantile": (n.approx_quantile(0.3, filter=p), "quantile_cont(n, 0.3) FILTER (p)"),
    "min_by": (col("r").min_by(col("m")), "arg_min(r, m)"),
    "max_by_where": (i.max_by("m", filter=p), "nullif(arg_max(coalesce(i, -999), m) FILTER (p), -999)"),
    "range": (aggregate(Range(), i, filter=p), "(max(i) FILTER (p) - min(i) FILTER (p))::DOUBLE"),
}


FILTERED_PLAN = AggregatePlan.build(
    [(name, expr) for name, (expr, _) in FILTERED.items()], Schema((*SCHEMA.fields, Field("m", INT64)))
)


@settings(deadline=None, max_examples=40)
@given(st.permutations([-0.0, 0.0, -0.0, 0.0]), st.sampled_from([FLOAT64, FLOAT32]), st.data())
def test_of_zeros_the_least_and_the_greatest_are_zero_without_a_sign(zeros: Any, kind: DataType, data: Any) -> None:
    """Whichever came first, however rows are cut and merged, and of one negative zero too."""
    plan = AggregatePlan.build(
        [
            ("least", f.min()),
            ("most", f.max()),
            ("middle", f.quantile(0)),
            ("about", f.approx_quantile(0)),
            ("kinds", f.collect_distinct()),
        ],
        Schema((Field("k", INT64), Field("f", kind))),
    )
    frame = pl.DataFrame(
        {"k": [1] * 4 + [2, 3], "f": [*zeros, -0.0, -0.0]}, schema={"k": pl.Int64, "f": polars_type(kind)}
    )
    for row in in_pieces(plan, frame, data).drop("k").rows():
        assert [math.copysign(1, value) for value in (*row[:-1], *row[-1])] == [1] * 5, row


@settings(deadline=None, max_examples=15)
@given(rows(), st.data())
def test_filtered_aggregates_equal_duckdb_in_any_batches(frame: pl.DataFrame, data: st.DataObject) -> None:
    """`filter=`, and the aggregates by another column, in any cutting and merging."""
    frame = frame.with_columns(pl.col(EVENT_TIME).alias("m"))
    results = in_pieces(FILTERED_PLAN, frame, data)
    query = ", ".join(f"{sql} AS {name}" for name, (_, sql) in FILTERED.items())
    plain = frame.with_columns(pl.col("t").dt.replace_time_zone(None))
    with duckdb.connect(":memory:") as connection:
        connection.register("rows", plain.to_arrow())
        expected = connection.execute(f"SELECT {query} FROM rows GROUP BY k ORDER BY k").fetchall()
    for place, name in enumerate(FILTERED):
        ours = results[name]
        if ours.dtype == pl.Datetime("us", "UTC"):
            ours = ours.dt.replace_time_zone(None)
        for left, right in zip(ours.to_list(), (row[place] for row in expected), strict=True):
            assert same(left, right), (name, left, right)


@settings(deadline=None, max_examples=60)
@given(rows(), st.integers(1, 4), st.booleans(), st.data())
def test_the_best_rows_are_those_of_a_sort(frame: pl.DataFrame, k: int, timed: bool, data: st.DataObject) -> None:
    """With ties, nulls, NaN and a filter, however rows are cut and merged."""
    ordered = {"tops": s.top_k_by(f, k), "bottoms": s.bottom_k_by(i, k, filter=p)}
    plan = AggregatePlan.build(list(ordered.items()), SCHEMA, event_time=timed)
    found = in_pieces(plan, frame, data)
    for key, tops, bottoms in found.rows():
        mine = [row for row in frame.rows(named=True) if row["k"] == key]
        if timed:
            mine.sort(key=lambda row: row[EVENT_TIME])
        assert tops == [row["s"] for row in sorted(mine, key=lambda row: _place(row["f"], greatest=True))][:k]
        kept = [row for row in mine if row["p"]]
        assert bottoms == [row["s"] for row in sorted(kept, key=lambda row: _place(row["i"]))][:k]


def _place(value: Any, *, greatest: bool = False) -> tuple[bool, float]:
    """Null and NaN are behind everything."""
    return (True, 0) if value is None or value != value else (False, -value if greatest else value)


def test_the_row_with_the_greatest_value_is_the_first_of_equals_and_never_that_of_nan() -> None:
    """In one batch and in three."""
    schema = Schema((Field("k", INT64), Field("x", STRING, True), Field("y", FLOAT64, True)))
    named = [("most", col("x").max_by("y")), ("least", col("x").min_by("y"))]
    plan = AggregatePlan.build(named, schema, event_time=False)
    frame = pl.DataFrame({"k": [1, 1, 1, 1, 2], "x": ["a", None, "c", "d", "e"], "y": [math.nan, 2.0, 2.0, None, None]})
    for pieces in ([frame], [frame[:1], frame[1:2], frame[2:]]):
        partials = [partials_of(plan, piece, grouped=True) for piece in pieces]
        assert finished(plan, merged(plan, *partials)).rows() == [(1, None, None), (2, None, None)]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([None, 1.0, 2.0])), min_size=1, max_size=9), st.data())
def test_of_several_best_rows_the_first_by_event_time_counts(drawn: list[tuple[int, float | None]], data: Any) -> None:
    """Then the one that arrived first, however rows of other times are cut and in whatever order they are merged."""
    schema = Schema((Field("k", INT64), Field("x", INT64), Field("y", FLOAT64, True)))
    named = {
        "most": col("x").max_by("y"), "least": col("x").min_by("y"),
        "first": col("x").first(filter=col("y") == 1), "last": col("x").last(filter=col("y") == 1),
    }  # fmt: skip
    plan = AggregatePlan.build(list(named.items()), schema)
    rows = [(1, number, y, time) for number, (time, y) in enumerate(drawn)]
    frame = pl.DataFrame(rows, {**schema.polars(), EVENT_TIME: pl.Int64()}, orient="row")
    # Panes and sessions are merged by their times, whenever their rows came.
    parts = [part for _, part in sorted(frame.group_by(EVENT_TIME, maintain_order=True))]
    parts = data.draw(st.permutations(parts))
    found = finished(plan, merged(plan, *(in_partials(plan, part, data) for part in parts))).row(0, named=True)
    timed = sorted((row for row in rows if row[2] is not None), key=lambda row: row[3])
    best = {
        name: sorted(timed, key=lambda row, sign=sign: sign * row[2]) for name, sign in (("most", -1), ("least", 1))
    }
    ones = [row[1] for row in timed if row[2] == 1]
    assert {name: found[name] for name in best} == {name: each[0][1] if each else None for name, each in best.items()}
    assert (found["first"], found["last"]) == ((ones[0], ones[-1]) if ones else (None, None))


def in_partials(plan: AggregatePlan, frame: pl.DataFrame, data: st.DataObject) -> pl.DataFrame:
    """A partial of batches that are cut anywhere."""
    cut = data.draw(st.integers(0, frame.height), label="cut")
    pieces = [partials_of(plan, piece, data.draw(st.booleans())) for piece in (frame[:cut], frame[cut:])]
    return merged(plan, *pieces)


def test_partials_of_before_ties_were_broken_by_time_are_converted() -> None:
    """What they hold counts as the first."""
    schema = Schema((Field("k", INT64), Field("x", INT64), Field("y", INT64)))
    plan = AggregatePlan.build([("most", col("x").max_by("y"))], schema)
    (former, *_) = plan.formers()
    assert former.partials_of == ("max_by", "max_by")
    old = pl.DataFrame({"k": [1], "__p0": [7], "__p1": [42]}).select("k", *former.to_current)
    new = partials_of(plan, pl.DataFrame({"k": [1], "x": [43], "y": [7], EVENT_TIME: [-5]}), grouped=True)
    assert finished(plan, merged(plan, new, old)).row(0) == (1, 42)


@pytest.mark.parametrize(
    ("expr", "message"),
    [
        (n.any(), "needs boolean, got int64; compare it with something"),
        (s.std(), "needs a number, got string"),
        (s.top_k_by("n", 0), "needs how many rows, 1 or more, got 0"),
        (s.bottom_k_by("l", 1), r"needs a column to order by"),
        (s.top_k_by("n", 1, filter=n), "filter= needs a condition, got int64"),
        (u.var(), r"needs a number, got duration; use \.dt\.total_microseconds"),
        (n.std(ddof=-1), r"needs ddof=1 \(of a sample\) or ddof=0"),
        (n.max_by("l"), "needs a column to order by"),
        (n.first(filter=i), r"filter= needs a condition, got int64"),
        (n.sum(filter=i), r"when\(\) needs boolean, got int64"),
        (col("r").collect_distinct(), "needs"),
        (col("l").mode(), r"needs a column without parts, got list\[string\]"),
    ],
)
def test_wrong_arguments_of_aggregates_are_refused(expr: Expr, message: str) -> None:
    """When the pipeline is built."""
    with pytest.raises(PipelineError, match=message):
        AggregatePlan.build([("x", expr)], SCHEMA)


def test_partials_of_before_the_mean_was_exact_are_converted() -> None:
    """The sum of a former partial is all that is known of what it holds."""
    plan = AggregatePlan.build([("a", i.mean()), ("b", n.mean()), ("c", col("u").mean()), ("d", i.max())], SCHEMA)
    wrapped_means = list(plan.formers())[-1]
    assert [str(field.type) for field in wrapped_means.fields] == [
        "int64", "int64", "int64", "int64", "duration", "int64", "int64",
    ]  # fmt: skip
    sums = [172, 28, -(2**62), 28, timedelta(seconds=7), 2, 9]
    former = pl.DataFrame(
        [pl.Series(f.name, [value], polars_type(f.type)) for f, value in zip(wrapped_means.fields, sums, strict=True)]
    )
    assert former.select(wrapped_means.to_current).columns == [field.name for field in plan.partial_fields]
    got = former.select(wrapped_means.to_current).select(plan.finish).row(0)
    assert got == (172 / 28, -(2**62) / 28, timedelta(seconds=3.5), 9)


def test_a_partial_of_an_accumulator_is_messagepack() -> None:
    """What snapshots hold of a user's aggregate is its accumulator, encoded by msgspec."""
    plan = AggregatePlan.build([("x", aggregate(Range(), i))], SCHEMA)
    frame = pl.DataFrame({"k": [1, 1], "i": [3, 5]})
    partial = partials_of(plan, frame, grouped=True)["__p0"]
    assert plan.partial_fields == (Field("__p0", BINARY),)
    assert msgspec.msgpack.decode(partial[0], type=Spread) == Spread(3.0, 5.0)


def test_what_stands_outside_an_aggregate_is_refused() -> None:
    """The plan checks its expressions."""
    with pytest.raises(PipelineError, match="agg: column 'n' stands outside an aggregate"):
        AggregatePlan.build([("x", n.sum() + n)], SCHEMA)
    with pytest.raises(PipelineError, match=r'window: col\("n"\) is not an aggregate'):
        AggregatePlan.build([("x", n)], SCHEMA, "window")


# -- accumulators -------------------------------------------------------------------------------------------------------


@dataclass
class Decayed(Accumulator[list[float], list[float]]):
    """A plain dataclass, so not hashable, whose results are lists."""

    factor: float
    accumulator_type = list[float]

    def create(self) -> list[float]:
        return []

    def add(self, accumulator: list[float], *values: Any) -> list[float]:
        return [*accumulator, values[0] * self.factor + values[1]]

    def merge(self, left: list[float], right: list[float]) -> list[float]:
        return left + right

    def result(self, accumulator: list[float]) -> list[float]:
        return sorted(accumulator)


def test_accumulators_take_several_columns_and_give_lists() -> None:
    """`aggregate(Decayed(0.5), "n", "small")` calls `add` with both values; equal accumulators share a partial."""
    plan = AggregatePlan.build(
        [("x", aggregate(Decayed(0.5), "n", "small")), ("y", aggregate(Decayed(0.5), n, col("small")))], SCHEMA
    )
    assert len(plan.partial_fields) == 1
    frame = pl.DataFrame({"k": [1, 1], "n": [8, 2], "small": [1, 2]}, schema_overrides={"small": pl.Int8})
    got = finished(plan, merged(plan, partials_of(plan, frame, grouped=False)))
    assert got.rows() == [(1, [3.0, 5.0], [3.0, 5.0])]


def _broken(**methods: Callable[..., Any]) -> Accumulator[Any, Any]:
    return type("Broken", (Range,), methods)()


def _raises(*_: Any) -> Any:
    raise KeyError("zz")


def _keeps(self: Any, accumulator: Any, *_: Any) -> Any:
    return accumulator


def _returns_text(*_: Any) -> Any:
    return "text"


def _text_result(self: Any, accumulator: Any) -> float:
    return "text"  # pyright: ignore


@pytest.mark.parametrize(
    ("accumulator", "message"),
    [
        (_broken(add=_raises), r'agg: aggregate\(Broken\(\), col\("i"\)\): Broken.add: KeyError: \'zz\''),
        (_broken(add=_keeps, merge=_raises), r"Broken.merge: KeyError: 'zz'"),
        (_broken(add=_returns_text), r"Broken.add returned what does not fit accumulator_type: ValidationError"),
        (_broken(result=_text_result), r"Broken.result returned what is not float64: TypeError: unexpected value"),
    ],
)
def test_what_a_users_aggregate_raises_is_a_user_code_error(accumulator: Any, message: str) -> None:
    """It names expression, class and method, keeps the cause, and nothing of Polars is in the text."""
    plan = AggregatePlan.build([("x", aggregate(accumulator, i))], SCHEMA)
    frame = pl.DataFrame({"k": [1, 1], "i": [3, 5]})
    with pytest.raises(UserCodeError, match=message) as caught:
        finished(plan, merged(plan, partials_of(plan, frame, grouped=False)))
    assert caught.value.__cause__ is not None
    assert "This error occurred" not in str(caught.value)


def test_an_accumulator_declares_its_types() -> None:
    """Without them the pipeline is refused when it is built, and the message says what to write."""

    class Untyped(Range):
        accumulator_type = None

    class NoResult(Range):
        def result(self, accumulator):  # type: ignore[no-untyped-def]
            return 1.0

    class Unencodable(Range):
        accumulator_type = Callable[[int, str], int]

    with pytest.raises(PipelineError, match="aggregate: Untyped does not say what its accumulator is; add for example"):
        aggregate(Untyped(), i)
    with pytest.raises(PipelineError, match=r"aggregate: NoResult.result does not say what it returns; write for"):
        aggregate(NoResult(), i)
    with pytest.raises(PipelineError, match="aggregate: the accumulator_type of Unencodable cannot be encoded"):
        aggregate(Unencodable(), i)
    with pytest.raises(
        PipelineError,
        match="accumulator= takes an instance of a subclass of Accumulator, got the class Range; give an instance",
    ):
        aggregate(Range, i)  # pyright: ignore
    with pytest.raises(PipelineError, match="aggregate: Range needs at least one column"):
        aggregate(Range())


SHARED = Schema(
    (
        Field("x", INT64, True), Field("b", BOOLEAN, True), Field("d", DecimalType(30, 2), True),
        Field("f", FLOAT64, True), Field("u", DURATION, True), Field("small", INT8),
    )
)  # fmt: skip


def aggregates_of(name: str) -> Iterator[Expr]:
    """All built-in aggregates that a column of this type has, with the others where they take two."""
    this, other, flag = col(name), col("x"), col("b")
    made: list[Callable[[], Expr]] = [
        this.count, this.sum, this.mean, this.min, this.max, this.std, this.var, this.any, this.all, this.first,
        this.last, this.collect, this.collect_distinct, this.n_unique, this.approx_n_unique,
        lambda: count(filter=this), lambda: other.first(filter=this), lambda: other.last(filter=this),
        lambda: this.first(filter=flag), lambda: this.last(filter=flag), lambda: this.collect(filter=flag),
        lambda: this.quantile(0.5), this.mode, lambda: this.mode("least"), lambda: this.approx_quantile(0.5),
        lambda: other.max_by(this), lambda: other.min_by(this),
        lambda: other.top_k_by(this, 2), lambda: other.bottom_k_by(this, 2),
    ]  # fmt: skip
    for make in made:
        with suppress(PipelineError):
            AggregatePlan.build([("r", make())], SHARED, event_time=True)
            yield make()


@pytest.mark.parametrize("event_time", [False, True])
def test_aggregates_that_share_a_column_mean_the_same_by_it(monkeypatch: pytest.MonkeyPatch, event_time: bool) -> None:
    """So none has another result because of those beside it."""
    aggregates = [one for name in SHARED.names for one in aggregates_of(name)]
    assert len(aggregates) > 100
    meant: dict[Any, set[str]] = {}
    add = PartialColumns.add

    def noted(columns: PartialColumns, of: str, key: Any, kind: DataType, *how: Any, **more: Any) -> pl.Expr:
        meant.setdefault(key, set()).add(f"{kind} {how[1]}")
        return add(columns, of, key, kind, *how, **more)

    monkeypatch.setattr(PartialColumns, "add", noted)
    for one in aggregates:
        AggregatePlan.build([("r", one)], SHARED, event_time=event_time)
    assert {key: found for key, found in meant.items() if len(found) > 1} == {}


def test_decimals_and_filtered_rows_are_what_they_are_alone() -> None:
    """Beside a deviation of the same decimals, and beside the first of what they are filtered by."""
    rows = pl.DataFrame({"d": ["1.00", "42.00"], "b": [False, True], "x": [10, 20], EVENT_TIME: [1, 2]}).with_columns(
        pl.col("d").cast(pl.Decimal(30, 2))
    )
    named = {
        "spread": col("d").std(), "total": col("d").sum(), "mean": col("d").mean(), "flag": col("b").first(),
        "value": col("x").first(filter=col("b")), "newest": col("b").last(), "last": col("x").last(filter=~col("b")),
    }  # fmt: skip
    schema = Schema(tuple(SHARED.field(name) for name in ("d", "b", "x")))
    for event_time in (False, True):
        plan = AggregatePlan.build(list(named.items()), schema, event_time=event_time)
        parts = pl.concat([row.select(plan.init_grouped) for row in rows.iter_slices(1)])
        found = parts.select(plan.merge).select(plan.finish).row(0, named=True)
        assert (found["total"], found["mean"]) == (Decimal("43.00"), Decimal("21.50"))
        assert (found["flag"], found["value"], found["newest"], found["last"]) == (False, 20, True, 10)
        assert found["spread"] == pytest.approx(28.991378)
