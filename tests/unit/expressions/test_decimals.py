"""Decimals computed exactly, with the digits of Flink and Spark: against fractions in plain Python."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import DecimalType, PipelineError, coalesce, col, count, lit, max_horizontal, when
from penstock.core.decimals import of_units, units_of
from penstock.errors import UserCodeError
from penstock.expressions import AggregatePlan, Expr, from_json, output_field, to_json, to_polars
from penstock.testing import evaluate
from penstock.types import BOOLEAN, FLOAT64, INT64, STRING, DataType, Field, Schema, polars_type

D = Decimal


def decimals(kind: DecimalType) -> st.SearchStrategy[Decimal]:
    """All of a type; small ones, the largest, and those that lie in the middle of two rounded ones more often."""
    most = 10**kind.precision - 1
    halves = st.integers(0, kind.precision - 1).flatmap(
        lambda place: st.integers(-min(99, most // 10 ** (place + 1)), min(99, most // 10 ** (place + 1))).map(
            lambda above: above * 10 ** (place + 1) + 5 * 10**place
        )
    )
    units = st.integers(-most, most) | st.integers(-min(most, 999), min(most, 999)) | st.sampled_from([most, -most])
    return (units | halves.filter(lambda unit: abs(unit) <= most)).map(lambda unit: of_units(unit, kind.scale))


KINDS = st.integers(1, 38).flatmap(
    lambda precision: st.integers(0, precision).map(lambda scale: DecimalType(precision, scale))
)


def half_up(exact: Fraction, scale: int) -> Decimal:
    """Rounded, halves away from zero."""
    size = abs(exact) * 10**scale
    units = int(size) + (size - int(size) >= Fraction(1, 2))
    return of_units(units if exact >= 0 else -units, scale)


OPERATORS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Fraction, Fraction], Fraction]]] = {
    "+": (lambda a, b: a + b, lambda a, b: a + b),
    "-": (lambda a, b: a - b, lambda a, b: a - b),
    "*": (lambda a, b: a * b, lambda a, b: a * b),
    "/": (lambda a, b: a / b, lambda a, b: a / b),
    "//": (lambda a, b: a // b, lambda a, b: Fraction(a // b)),
    "%": (lambda a, b: a % b, lambda a, b: a % b),
}


@settings(max_examples=400, deadline=None)
@given(data=st.data(), sign=st.sampled_from(sorted(OPERATORS)), left=KINDS, right=KINDS)
def test_arithmetic_is_exact_and_rounded_once(data: st.DataObject, sign: str, left: DecimalType, right: DecimalType):
    """A result has the digits of its type, or there is an error that says which it does not have."""
    row = st.tuples(st.none() | decimals(left), st.none() | decimals(right))
    rows = data.draw(st.lists(row, min_size=1, max_size=4))
    if sign == "/":
        rows = [(a, b or None) for a, b in rows]
    schema = Schema((Field("a", left, nullable=True), Field("b", right, nullable=True)))
    expr = OPERATORS[sign][0](col("a"), col("b"))
    kind = output_field(expr, schema).type
    assert isinstance(kind, DecimalType)
    expected = [_computed(sign, a, b, kind.scale) for a, b in rows]
    if all(value is None or units_of(value, kind.precision, kind.scale) is not None for value in expected):
        assert _values(expr, schema, rows) == expected
    else:
        with pytest.raises(
            pl.exceptions.ComputeError, match=rf"a result of .* does not fit into decimal\({kind.precision}"
        ):
            _values(expr, schema, rows)


def _computed(sign: str, a: Decimal | None, b: Decimal | None, scale: int) -> Decimal | None:
    if a is None or b is None or (not b and sign in ("//", "%")):
        return None
    return half_up(OPERATORS[sign][1](Fraction(a), Fraction(b)), scale)


def _values(expr: Expr, schema: Schema, rows: list[tuple[Any, ...]]) -> list[Any]:
    columns = zip(*rows, strict=True)
    frame = pl.DataFrame(
        [
            pl.Series(field.name, values, polars_type(field.type), strict=True)
            for field, values in zip(schema, columns, strict=True)
        ]
    )
    field = output_field(expr, schema)
    made = frame.select(to_polars(expr, schema).alias("x"))["x"]
    assert made.dtype == polars_type(field.type)
    assert field.nullable or not made.null_count()
    return made.to_list()


@pytest.mark.parametrize(
    ("sign", "left", "right", "expected"),
    [
        ("+", (12, 2), (10, 3), (14, 3)),
        ("*", (12, 2), (10, 3), (23, 5)),
        ("/", (12, 2), (10, 3), (26, 13)),
        ("%", (12, 2), (10, 3), (10, 3)),
        ("+", (38, 2), (38, 2), (38, 2)),
        ("+", (38, 10), (38, 10), (38, 9)),
        ("*", (38, 18), (38, 18), (38, 6)),
        ("/", (38, 18), (38, 18), (38, 6)),
        ("//", (12, 2), (10, 3), (14, 0)),
    ],
)
def test_results_have_the_digits_of_flink_and_spark(sign: str, left: Any, right: Any, expected: Any):
    """Of LogicalTypeMerging in Flink and DecimalPrecision in Spark, which agree."""
    schema = Schema((Field("a", DecimalType(*left)), Field("b", DecimalType(*right))))
    assert output_field(OPERATORS[sign][0](col("a"), col("b")), schema).type == DecimalType(*expected)


TYPED = Schema(
    (Field("a", DecimalType(12, 2), nullable=True), Field("i", INT64), Field("f", FLOAT64), Field("s", STRING))
)


@pytest.mark.parametrize(
    ("expr", "kind"),
    [
        (col("a") + 1, DecimalType(13, 2)),
        (col("a") * 100, DecimalType(16, 2)),
        (100 * col("a"), DecimalType(16, 2)),
        (col("a") * D("1.190"), DecimalType(17, 5)),
        (col("a") + col("i"), DecimalType(22, 2)),
        (col("i") * D("0.5"), DecimalType(21, 1)),
        (col("a") + None, DecimalType(13, 2)),
        (col("a") * col("f"), FLOAT64),
        (col("a") * 0.5, FLOAT64),
        (col("a") ** 2, FLOAT64),
        (col("a").sqrt(), FLOAT64),
        (-col("a"), DecimalType(12, 2)),
        (col("a").abs(), DecimalType(12, 2)),
        (col("a").round(1), DecimalType(12, 1)),
        (col("a").round(5), DecimalType(12, 2)),
        (col("a").floor(), DecimalType(11, 0)),
        (col("a").fill_null(0), DecimalType(12, 2)),
        (col("a").fill_null(D("0.5000")), DecimalType(12, 2)),
        (col("a").fill_null(D("0.005")), DecimalType(13, 3)),
        (when(col("a") > 0).then(col("a")).otherwise(col("i")), DecimalType(21, 2)),
        (max_horizontal("a", 0), DecimalType(12, 2)),
        (col("a").sum(), DecimalType(38, 2)),
        (col("a").mean(), DecimalType(38, 6)),
        (col("a").sum() / count(), DecimalType(38, 6)),
        (col("a").max(), DecimalType(12, 2)),
        (col("a").std(), FLOAT64),
    ],
)
def test_types_of_expressions(expr: Expr, kind: DataType):
    """Constants take few digits, integers those that they may have, floats take over."""
    assert output_field(expr, TYPED).type == kind


@pytest.mark.parametrize(
    ("expr", "reason"),
    [
        (col("a") + col("s"), r"cannot add decimal\(12, 2\) and string; cast one of them"),
        (col("a") > "1", r"cannot compare decimal\(12, 2\) and string"),
        (col("a").sign(), "needs an integer or float32 or float64"),
        (col("a").cast(bool), r"cannot cast decimal\(12, 2\) to boolean"),
        (col("a").round(-1), r"needs decimals from 0, got -1"),
    ],
)
def test_what_decimals_cannot_be_is_refused(expr: Expr, reason: str):
    """When the pipeline is built."""
    with pytest.raises(PipelineError, match=reason):
        output_field(expr, TYPED)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: lit(D("NaN")), r"Decimal\('NaN'\) is no number; write float\('NaN'\)"),
        (lambda: lit(D(10) ** 27 * D("1E20")), "has more than 38 digits"),
        (lambda: col("a").cast(Decimal), r"write Annotated\[Decimal, DecimalType\(12, 2\)\]"),
        (lambda: DecimalType(39, 0), r"1 to 38 digits in all"),
        (lambda: DecimalType(2, 3), r"write for example DecimalType\(12, 2\)"),
        (lambda: col("s").json.get("$.a", DecimalType(12, 2)), "would be read by way of a float"),
        (lambda: col("s").json.decode(DecimalType(12, 2)), "would be read by way of a float"),
    ],
)
def test_what_is_no_decimal_is_refused(make: Callable[[], Any], reason: str):
    """Where it is written."""
    with pytest.raises(PipelineError, match=reason):
        make()


def test_division_by_zero_and_overflow_are_errors():
    """Never null; `nullif` makes null of it where that is wanted."""
    with pytest.raises(UserCodeError, match=r"division by zero; write \.nullif\(0\)"):
        evaluate(col("a") / col("b"), a=[D(1)], b=[D(0)])
    assert evaluate(col("a") / col("b").nullif(0), a=[D(1), None], b=[D(0), D(0)]) == [None, None]
    large = [D("9" * 38)]
    for expr in (col("a") + 1, col("a") * 10, col("a") - D("-1")):
        with pytest.raises(UserCodeError, match="more than 38 digits before the point"):
            evaluate(expr, a=large)


@settings(max_examples=200, deadline=None)
@given(data=st.data(), origin=KINDS, to=KINDS)
def test_casts_between_decimals_and_texts_round_halves_away_from_zero(
    data: st.DataObject, origin: DecimalType, to: DecimalType
):
    """From either; with `strict=False` what is too large is null, else it is an error."""
    values = data.draw(st.lists(decimals(origin), min_size=1, max_size=4))
    expected = [half_up(Fraction(value), to.scale) for value in values]
    fitting = [None if units_of(value, to.precision, to.scale) is None else value for value in expected]
    for kind, given_values in ((origin, values), (STRING, [f"{value:f}" for value in values])):
        schema = Schema((Field("a", kind),))
        rows = [(value,) for value in given_values]
        assert _values(col("a").cast(to, strict=False), schema, rows) == fitting
        if None in fitting:
            with pytest.raises(pl.exceptions.PolarsError, match=r"does not fit|conversion from"):
                _values(col("a").cast(to), schema, rows)
        else:
            assert _values(col("a").cast(to), schema, rows) == fitting


@settings(max_examples=100, deadline=None)
@given(data=st.data(), kind=KINDS)
def test_casts_to_other_types(data: st.DataObject, kind: DecimalType):
    """To the nearest float, to text with all digits, to int without the fraction."""
    values = data.draw(st.lists(decimals(kind), min_size=1, max_size=4))
    schema, rows = Schema((Field("a", kind),)), [(value,) for value in values]
    assert _values(col("a").cast(float), schema, rows) == [float(value) for value in values]
    texts = _values(col("a").cast(str), schema, rows)
    assert texts == [f"{value:f}" for value in values]
    whole = [int(value) if abs(int(value)) < 2**63 else None for value in values]
    assert _values(col("a").cast(int, strict=False), schema, rows) == whole


@settings(max_examples=200, deadline=None)
@given(values=st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-99, 99), min_size=1, max_size=3), kind=KINDS)
def test_casts_from_integers(values: list[int], kind: DecimalType):
    """Exactly, or null or an error."""
    schema, rows = Schema((Field("i", INT64),)), [(value,) for value in values]
    expected = [None if units_of(D(value), kind.precision, kind.scale) is None else D(value) for value in values]
    assert _values(col("i").cast(kind, strict=False), schema, rows) == expected
    if None in expected:
        with pytest.raises(pl.exceptions.PolarsError, match="conversion"):
            _values(col("i").cast(kind), schema, rows)


def test_casts_from_numbers():
    """The number that is printed, whatever it is in binary."""
    assert evaluate(col("f").cast(DecimalType(6, 2)), f=[0.1, 1.105, -2.675, 1e3]) == [
        D("0.10"), D("1.11"), D("-2.68"), D("1000.00"),
    ]  # fmt: skip
    assert evaluate(col("f").cast(DecimalType(6, 2), strict=False), f=[float("nan"), float("inf"), 1e300]) == [None] * 3
    assert evaluate(col("i").cast(DecimalType(6, 2)), i=[-7, 9999]) == [D("-7.00"), D("9999.00")]
    with pytest.raises(UserCodeError, match="conversion"):
        evaluate(col("i").cast(DecimalType(6, 2)), i=[10_000])
    for text in ("", "1,5", "0x1", "1_0", " 1", "NaN", "1e99999999999999999999"):
        assert evaluate(col("s").cast(DecimalType(6, 2), strict=False), s=[text]) == [None]
        with pytest.raises(UserCodeError, match=r"conversion from text to decimal\(6, 2\) failed"):
            evaluate(col("s").cast(DecimalType(6, 2)), s=[text])


def test_comparison_and_choice():
    """By value, whatever the digits."""
    amounts = [D("1.10"), D("-2.35"), None]
    assert evaluate(col("a") == D("1.1"), a=amounts) == [True, False, None]
    assert evaluate(col("a") > -2, a=amounts) == [True, False, None]
    assert evaluate(col("a").is_in([1, D("1.100")]), a=amounts) == [True, False, None]
    assert evaluate(col("a").is_between(D("-3"), 1), a=amounts) == [False, True, None]
    assert evaluate(col("a").clip(0, D("0.5")), a=amounts) == [D("0.50"), D("0.00"), None]
    assert evaluate(col("a").replace({D("1.1"): 5}), a=amounts) == [D("5.00"), D("-2.35"), None]
    assert evaluate(col("a").replace_strict({D("1.1"): "x"}, default="y"), a=amounts) == ["x", "y", None]
    assert evaluate(col("a").floor(), a=amounts) == [D(1), D(-3), None]
    assert evaluate(col("a").ceil(), a=amounts) == [D(2), D(-2), None]
    assert evaluate(col("a").round(1), a=[D("0.25"), D("-0.25"), D("9.99")]) == [D("0.3"), D("-0.3"), D("10.0")]


def test_numbers_of_38_digits_meet_with_all_digits_behind_the_point():
    """As sums and products of them do in TPC-H, and in DuckDB and Spark; what has more digits before it fails."""
    schema = Schema((Field("a", DecimalType(38, 2)), Field("b", DecimalType(38, 4))))
    assert output_field(col("a") > D("0.01") * col("a"), schema).type == BOOLEAN
    assert output_field(coalesce("a", "b"), schema).type == DecimalType(38, 4)
    frame = pl.DataFrame({"a": [D("1.10"), D("1.10")], "b": [D("1.1000"), D("1.1001")]}, schema=schema.polars())
    assert frame.select(to_polars(col("a") == col("b"), schema))["a"].to_list() == [True, False]
    large = pl.DataFrame({"a": [D(10) ** 35], "b": [D(0)]}, schema=schema.polars())
    with pytest.raises((UserCodeError, pl.exceptions.PolarsError), match=r"digits|conversion"):
        large.select(to_polars(col("a") == col("b"), schema))


def test_remainders_have_the_digits_of_the_divisor():
    """Whose sign they have; and no rows are none."""
    assert evaluate(col("a") % 1000, a=[D("-0.5")]) == [D("999.5")]
    schema = Schema((Field("a", DecimalType(9, 2)),))
    assert pl.DataFrame(schema=schema.polars()).select(to_polars(col("a") % 7 * 2 / 3, schema)).height == 0


def test_lists_of_decimals():
    """Their extremes and elements; sums of them are refused."""
    lists = [[D("1.10"), D("-2.35"), None], [], None]
    assert evaluate(col("l").list.max(), l=lists) == [D("1.10"), None, None]
    assert evaluate(col("l").list.get(1), l=lists) == [D("-2.35"), None, None]
    assert evaluate(col("l").list.contains(D("1.1")), l=lists) == [True, False, None]
    with pytest.raises(PipelineError, match=r"needs a list of an integer or duration or float32 or float64, got list"):
        evaluate(col("l").list.sum(), l=lists)


@pytest.mark.parametrize("value", [D("1.10"), D("-0.001"), D("1E+3"), D("9" * 38)])
def test_constants_travel(value: Decimal):
    """With their digits."""
    assert from_json(to_json(lit(value))).node == lit(value).node
    assert repr(from_json(to_json(col("a") + value))) == f'col("a") + {value!r}'


AGGREGATES: dict[str, Expr] = {
    "n": col("a").count(), "total": col("a").sum(), "mean": col("a").mean(), "least": col("a").min(),
    "most": col("a").max(), "kinds": col("a").n_unique(), "all": col("a").collect(), "first": col("a").first(),
    "last": col("a").last(), "distinct": col("a").collect_distinct(), "some": col("a").sum(filter=col("a") > 0),
}  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(data=st.data(), kind=KINDS)
def test_aggregates_do_not_depend_on_batches(data: st.DataObject, kind: DecimalType):
    """Of batches made into partials and merged; sums and means are exact, or fail."""
    rows = st.lists(st.none() | decimals(kind), min_size=1, max_size=4)
    batches = data.draw(st.lists(rows, min_size=1, max_size=4))
    schema = Schema((Field("k", INT64), Field("a", kind, nullable=True)))
    plan = AggregatePlan.build(list(AGGREGATES.items()), schema, event_time=False)
    frames = [
        pl.DataFrame({"k": pl.Series([0] * len(batch), dtype=pl.Int64), "a": pl.Series(batch, dtype=polars_type(kind))})
        for batch in batches
    ]
    partials = [frame.group_by("k").agg(plan.init_grouped) for frame in frames]
    partials += [frames[0].head(0).group_by("k").agg(plan.init_grouped)]
    merged = pl.concat(partials).group_by("k", maintain_order=True).agg(plan.merge)
    expected = _aggregated([value for batch in batches for value in batch], kind)
    if expected is None:
        with pytest.raises(pl.exceptions.ComputeError, match=r"the (sum|mean) of .* does not fit into decimal\(38"):
            merged.select(plan.finish)
    else:
        assert merged.select(plan.finish).row(0, named=True) == expected


def _aggregated(values: list[Decimal | None], kind: DecimalType) -> dict[str, Any] | None:
    there = [value for value in values if value is not None]
    total = sum(map(Fraction, there))
    some = sum(Fraction(value) for value in there if value > 0)
    scale = max(6, kind.scale)
    mean = half_up(total / len(there), scale) if there else None
    sums = [half_up(Fraction(part), kind.scale) for part in (total, some)]
    if any(units_of(part, 38, kind.scale) is None for part in sums) or (mean and units_of(mean, 38, scale) is None):
        return None
    return {
        "n": len(there), "total": sums[0] if there else None, "mean": mean,
        "least": min(there, default=None), "most": max(there, default=None), "kinds": len(set(there)), "all": values,
        "first": values[0], "last": values[-1], "distinct": sorted(set(there)),
        "some": sums[1] if any(value > 0 for value in there) else None,
    }  # fmt: skip
