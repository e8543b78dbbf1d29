"""The approximate aggregates: exact for few values, within their bounds for many, the same whatever the batches."""

from __future__ import annotations

import math
import struct
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.expressions import AggregatePlan, col, distinct_sketch, quantile_sketch, to_polars
from penstock.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DURATION,
    FLOAT32,
    FLOAT64,
    INT64,
    STRING,
    TIMESTAMP,
    UINT64,
    DataType,
    Field,
    Schema,
    polars_type,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

x = col("x")
SKETCH = pl.List(pl.Int64)
DISTINCT, QUANTILES = ("users", x.approx_n_unique()), [(f"q{at}", x.approx_quantile(at)) for at in (0, 0.5, 0.99, 1)]


def plan_of(kind: DataType, *aggregates: Any) -> AggregatePlan:
    schema = Schema((Field("k", INT64), Field("x", kind, True)))
    return AggregatePlan.build(aggregates, schema)


def in_pieces(plan: AggregatePlan, frames: list[pl.DataFrame], way: Any) -> pl.DataFrame:
    """The merged partials of frames: `way` draws how each is grouped, and which neighbours are merged first."""
    grouped = [
        frame.group_by("k").agg(plan.init_grouped) if way() else frame.select("k", *plan.init) for frame in frames
    ]
    merged = [grouped[0].group_by("k").agg(plan.merge)]
    for partials in grouped[1:]:
        if way():
            merged.append(partials.group_by("k").agg(plan.merge))
        else:
            merged[-1] = pl.concat([merged[-1], partials]).group_by("k").agg(plan.merge)
    return pl.concat(merged).group_by("k").agg(plan.merge).sort("k")


def results(plan: AggregatePlan, partials: pl.DataFrame) -> list[tuple[Any, ...]]:
    return partials.select(plan.finish).rows()


# -- models -------------------------------------------------------------------------------------------------------------


def bucket_of(value: float, dropped: int) -> tuple[bool, float, float]:
    """Sign, and the least and the greatest float by magnitude that share all but the last bits with a value."""
    if value == 0 or not math.isfinite(value):
        return False, value + 0.0, value + 0.0
    (bits,) = struct.unpack("<Q", struct.pack("<d", abs(value)))
    least = bits >> dropped << dropped
    most = min(least | ((1 << dropped) - 1), 0x7FEFFFFFFFFFFFFF) if least else 0
    ends = [math.copysign(struct.unpack("<d", struct.pack("<Q", end))[0], value) for end in (least, most)]
    return value < 0, ends[0], ends[1]


def modelled_quantiles(values: list[float], quantiles: Sequence[float], buckets: int) -> list[float | None]:
    """The definition: drop the least number of bits with which the different values have no more than these buckets."""
    present = sorted(value for value in values if not math.isnan(value))
    present += [math.nan] * (len(values) - len(present))
    if not present:
        return [None for _ in quantiles]
    dropped = 0
    while len({repr(bucket_of(value, dropped)) for value in present}) > buckets:
        dropped += 1
    return [quantile_of([middle_of(value, dropped) for value in present], at) for at in quantiles]


def middle_of(value: float, dropped: int) -> float:
    _, least, most = bucket_of(value, dropped)
    return (least if least == most else 0.5 * least + 0.5 * most) + 0.0


def quantile_of(values: list[float], at: float) -> float:
    rank = at * (len(values) - 1)
    part = rank - math.floor(rank)
    low, high = values[math.floor(rank)], values[min(math.floor(rank) + 1, len(values) - 1)]
    return low if part == 0 or low == high else low + (high - low) * part


def same(left: float | None, right: float | None) -> bool:
    if left is None or right is None:
        return left is right
    return left == right or (math.isnan(left) and math.isnan(right))


# -- any batches --------------------------------------------------------------------------------------------------------

NUMBERS = st.one_of(
    st.none(),
    st.floats(-1e3, 1e3),
    st.integers(-20, 20).map(float),
    st.floats(),
    st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan, 5e-324, 1.7976931348623157e308]),
)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(NUMBERS, max_size=8), min_size=1, max_size=4), st.integers(4, 9), st.data())
def test_quantiles_are_those_of_the_definition_in_any_batches(batches: Any, buckets: int, data: Any) -> None:
    """Whatever the batches, the path and the merge tree: to the last bit, with as few buckets as may be."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantile_sketch, "BUCKETS", buckets)
        sketches = [sketch for batch in batches for sketch in sketches_of(batch, grouped=data.draw(st.booleans()))]
        while len(sketches) > 1:
            first = data.draw(st.integers(0, len(sketches) - 2))
            last = data.draw(st.integers(first + 2, len(sketches)))
            merged = quantile_sketch._merged(pl.Series([sketches[first:last]], dtype=pl.List(SKETCH)))
            sketches[first:last] = merged.to_list()
        found = [
            quantile_sketch._quantile_at(at)(pl.Series(sketches or [[]], dtype=SKETCH)).item()
            for at in (0, 0.5, 0.99, 1)
        ]
    present = [value for batch in batches for value in batch if value is not None]
    expected = modelled_quantiles(present, (0, 0.5, 0.99, 1), buckets)
    assert all(same(ours, wanted) for ours, wanted in zip(found, expected, strict=True)), (found, expected)
    assert all(len(sketch) <= 2 * buckets + 1 for sketch in sketches)


def sketches_of(batch: list[float | None], *, grouped: bool) -> list[list[int]]:
    """One sketch of all rows, or one of each."""
    values = pl.Series(batch, dtype=pl.Float64)
    if not grouped:
        return quantile_sketch._of_each(values).to_list()
    return quantile_sketch._of_groups(pl.Series([values.drop_nulls().sort()], dtype=pl.List(pl.Float64))).to_list()


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 4), NUMBERS), min_size=1, max_size=40))
def test_few_values_give_the_exact_aggregates(rows: list[tuple[int, float | None]]) -> None:
    """As `quantile` and `n_unique` say, of several groups, with nulls, NaN, zeros of both signs and infinities."""
    pairs = [(x.approx_quantile(at), x.quantile(at)) for at in (0, 0.25, 0.5, 0.9, 1)]
    pairs.append((x.approx_n_unique(), x.n_unique()))
    named = [
        (f"{side}{place}", expr) for place, pair in enumerate(pairs) for side, expr in zip("ae", pair, strict=True)
    ]
    plan = plan_of(FLOAT64, *named)
    frame = pl.DataFrame(rows, schema={"k": pl.Int64, "x": pl.Float64}, orient="row")
    partials = frame.group_by("k").agg(plan.init_grouped)
    for row in results(plan, partials):
        for ours, wanted in zip(row[::2], row[1::2], strict=True):
            assert same(ours, wanted), row


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(st.none() | st.integers(0, 40), max_size=30), min_size=1, max_size=5), st.data())
def test_estimates_of_different_values_are_those_of_the_least_hashes(batches: Any, data: Any) -> None:
    """Whatever the batches, the path and the merge tree, with a sketch of eight."""
    frames = [
        pl.DataFrame({"k": [1] * len(batch), "x": batch}, schema={"k": pl.Int64, "x": pl.Int64}) for batch in batches
    ]
    present = {value for batch in batches for value in batch if value is not None}
    hashes = sorted(distinct_sketch._hashed(pl.Series(list(present), dtype=pl.Int64)).to_list())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distinct_sketch, "DISTINCT_KEPT", 8)
        plan = plan_of(INT64, DISTINCT)
        found = results(plan, in_pieces(plan, frames, lambda: data.draw(st.booleans())))
    expected = len(hashes) if len(hashes) < 8 else round(7 * 2.0**64 / hashes[7])
    assert found == ([(expected,)] if any(batches) else [])


# -- bounds -------------------------------------------------------------------------------------------------------------


def values_of(kind: DataType, numbers: Any) -> pl.Series:
    """As many different values of a type as there are different numbers."""
    series = pl.Series("x", numbers, pl.Int64)
    if kind == STRING:
        return ("user-" + series.cast(pl.String)).alias("x")
    if kind == BINARY:
        return series.cast(pl.String).cast(pl.Binary)
    return series.cast(polars_type(kind))


@pytest.mark.parametrize("kind", [INT64, UINT64, FLOAT64, STRING, BINARY, TIMESTAMP, DURATION], ids=str)
@pytest.mark.parametrize("distinct", [4_095, 4_096, 5_000, 100_000])
def test_estimates_are_within_five_percent(kind: DataType, distinct: int) -> None:
    """Numbers that are near each other are as good as any; up to 4,095 the number is exact."""
    plan = plan_of(kind, DISTINCT)
    frame = values_of(kind, list(range(distinct)) * 2).to_frame().with_columns(k=pl.lit(1, pl.Int64))
    partials = frame.group_by("k").agg(plan.init_grouped)
    ((found,),) = results(plan, partials)
    assert found == distinct if distinct < 4_096 else abs(found / distinct - 1) < 0.05
    assert partials["__p0"].list.len().item() * 8 <= 32 * 1024


def test_the_standard_error_is_the_stated_one() -> None:
    """Of a hundred groups of 20,000 different values, and of one of a million."""
    plan = plan_of(INT64, DISTINCT)
    groups, each = 100, 20_000
    frame = pl.DataFrame({"x": np.arange(groups * each)}).with_columns(k=pl.col("x") // each)
    errors = np.array([found / each - 1 for (found,) in results(plan, frame.group_by("k").agg(plan.init_grouped))])
    assert 0.012 < np.sqrt((errors**2).mean()) < 0.02
    assert abs(errors.mean()) < 0.005
    million = pl.DataFrame({"x": np.arange(1_000_000)}).with_columns(k=pl.lit(1, pl.Int64))
    ((found,),) = results(plan, million.group_by("k").agg(plan.init_grouped))
    assert abs(found / 1_000_000 - 1) < 0.05


def test_a_sample_by_hash_is_estimated_as_well_as_any() -> None:
    """Hashes of keys choose rows in many programs: those of the sketch are others."""
    plan = plan_of(INT64, DISTINCT)
    chosen = pl.DataFrame({"x": np.arange(400_000)}).with_columns(k=pl.lit(1, pl.Int64))
    chosen = chosen.filter(to_polars(x.hash(), Schema((Field("x", INT64),))) > 2**62)
    ((found,),) = results(plan, chosen.group_by("k").agg(plan.init_grouped))
    assert abs(found / chosen.height - 1) < 0.05


DISTRIBUTIONS = {
    "latencies": lambda made: made.lognormal(3, 1, 1_000_000),
    "heavy tail": lambda made: np.minimum(1 + made.pareto(1, 1_000_000), 1e6),
    "uniform": lambda made: made.uniform(1, 1e6, 1_000_000),
    "negative": lambda made: -made.lognormal(3, 1, 1_000_000),
    "whole": lambda made: np.round(made.lognormal(10, 1, 1_000_000)),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_quantiles_are_within_their_bound_on_a_million_values(name: str) -> None:
    """0.4 % of the value, of values within a factor of a million, wherever in the distribution; in 42 KB."""
    values = DISTRIBUTIONS[name](np.random.default_rng(7))
    at = (0, 0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 0.9999, 1)
    plan = plan_of(FLOAT64, *((f"q{each}", x.approx_quantile(each)) for each in at))
    frame = pl.DataFrame({"x": values}).with_columns(k=pl.lit(1, pl.Int64))
    assert frame["x"].n_unique() > 90_000
    partials = frame.group_by("k").agg(plan.init_grouped)
    (found,) = results(plan, partials)
    low = np.quantile(values, at, method="lower")
    high = np.quantile(values, at, method="higher")
    size = np.maximum(np.abs(low), np.abs(high))
    assert np.all((np.array(found) >= low - 0.004 * size) & (np.array(found) <= high + 0.004 * size))
    assert partials["__p0"].list.len().item() * 8 <= 42_000


def test_the_bound_doubles_with_the_powers_of_ten() -> None:
    """Values within a factor of 10**12 are within 0.8 %, within 10**24 within 1.6 %."""
    for digits, bound in ((6, 0.004), (12, 0.008), (24, 0.016)):
        values = 10 ** np.random.default_rng(3).uniform(-digits / 2, digits / 2, 200_000)
        plan = plan_of(FLOAT64, ("q", x.approx_quantile(0.7)))
        frame = pl.DataFrame({"x": values}).with_columns(k=pl.lit(1, pl.Int64))
        ((found,),) = results(plan, frame.group_by("k").agg(plan.init_grouped))
        assert abs(found / np.quantile(values, 0.7) - 1) < bound * 1.01


def test_a_hundred_thousand_groups_of_few_values_keep_few_bytes() -> None:
    """What a group of three values keeps, and that its results are the exact ones."""
    made = np.random.default_rng(5)
    frame = pl.DataFrame({"k": made.integers(0, 100_000, 300_000), "x": made.lognormal(3, 1, 300_000)})
    pairs = [("a", x.approx_quantile(0.9)), ("e", x.quantile(0.9)), ("b", x.approx_n_unique()), ("f", x.n_unique())]
    plan = plan_of(FLOAT64, *pairs)
    partials = frame.group_by("k").agg(plan.init_grouped)
    found = partials.select(plan.finish)
    assert found["a"].equals(found["e"].alias("a"))
    assert found["b"].equals(found["f"].alias("b"))
    sketches = [name for field, name in zip(plan.partial_fields, plan.partials_of, strict=True) if "approx" in name]
    assert sketches == ["approx_quantile", "approx_n_unique"]
    kept = partials.select(field.name for field, name in zip(plan.partial_fields, plan.partials_of, strict=True)
                           if name in sketches)  # fmt: skip
    assert kept.estimated_size() / partials.height < 120


# -- types --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (BOOLEAN, [True, None, True]),
        (DATE, [date(2024, 1, 1), None, date(2024, 1, 1)]),
        (TIMESTAMP, [datetime(2024, 1, 1, tzinfo=UTC), None, datetime(2024, 1, 1, tzinfo=UTC)]),
        (DURATION, [timedelta(1), None, timedelta(1)]),
        (FLOAT32, [0.0, None, -0.0]),
        (BINARY, [b"", None, b""]),
    ],
    ids=str,
)
def test_equal_values_count_once_whatever_their_type(kind: DataType, values: list[Any]) -> None:
    """And nulls never."""
    plan = plan_of(kind, DISTINCT)
    frame = pl.DataFrame({"k": [1] * 3, "x": values}, schema={"k": pl.Int64, "x": polars_type(kind)})
    assert Counter(results(plan, frame.group_by("k").agg(plan.init_grouped))) == {(1,): 1}
    assert results(plan, frame.select("k", *plan.init)) == [(1,), (0,), (1,)]
