"""Whatever inference accepts, Polars computes, in exactly the inferred type and without nulls where it says so."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from penstock.errors import PipelineError
from penstock.expressions import (
    Expr,
    arctan2,
    coalesce,
    col,
    columns_of,
    concat_list,
    concat_str,
    from_json,
    lit,
    max_horizontal,
    min_horizontal,
    output_field,
    struct,
    to_json,
    to_polars,
    when,
)
from penstock.expressions.catalogue import CATALOGUE
from penstock.expressions.nodes import Call, walk
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
    UINT8,
    UINT16,
    UINT64,
    DecimalType,
    Field,
    ListType,
    MapType,
    Schema,
    StructType,
    polars_type,
)

NOW = datetime(2001, 2, 3, 4, 5, 6, 789012, tzinfo=UTC)
VALUES: dict[str, tuple[Any, list[Any]]] = {
    "i8": (INT8, [1, -128, 0]),
    "u8": (UINT8, [255, 0, 3]),
    "u16": (UINT16, [1, 2, 65535]),
    "i32": (INT32, [-5, 0, 2**31 - 1]),
    "i64": (INT64, [2**63 - 1, -(2**63), 0]),
    "u64": (UINT64, [2**64 - 1, 0, 5]),
    "f32": (FLOAT32, [1.5, math.nan, -0.0]),
    "f64": (FLOAT64, [math.inf, 2.5, -1e300]),
    "b": (BOOLEAN, [True, False, True]),
    "s": (STRING, ["", "Añ1", "-17"]),
    "y": (BINARY, [b"", b"\xff", b"a"]),
    "d": (DATE, [date(2000, 2, 29), date(1, 1, 1), date(9999, 12, 31)]),
    "t": (TIMESTAMP, [NOW, datetime(1900, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)]),
    "o": (TIME, [time(0), time(23, 59, 59, 999_999), time(12)]),
    "u": (DURATION, [timedelta(microseconds=-1), timedelta(days=3), timedelta(0)]),
    "c": (DecimalType(9, 2), [Decimal("1.10"), Decimal("-2.35"), Decimal("9999999.99")]),
    "g": (MapType(INT32), [{"a": 1, "b": None}, {}, {"Añ1": 3}]),
    "l": (ListType(INT32), [[1, None], [], [3]]),
    "m": (ListType(STRING), [["a"], [None], []]),
    "r": (StructType((Field("x", INT64, True), Field("n", STRING))), [{"x": 1, "n": "a"}] * 3),
}
"""Per type a column without nulls and, with `_n` behind the name, one with."""
SCHEMA = Schema(tuple(Field(name + end, kind, end == "_n") for name, (kind, _) in VALUES.items() for end in ("", "_n")))
FRAME = pl.DataFrame(
    {name + end: [*values, None if end else values[0]] for name, (_, values) in VALUES.items() for end in ("", "_n")},
    schema=SCHEMA.polars(),
)

CONSTANTS = [0, 1, -3, 300, 2**40, 2.5, math.nan, "a", "", b"b", True, None, date(2020, 1, 1), NOW, timedelta(hours=1)]
CONSTANTS.append(time(12))
UNARY: list[Callable[[Expr], Expr]] = [
    lambda x: -x, lambda x: ~x, Expr.abs, Expr.round, lambda x: x.round(1), Expr.floor, Expr.ceil, Expr.sign,
    Expr.sqrt, Expr.exp, Expr.log, lambda x: x.log(2), lambda x: x**2, Expr.is_null, Expr.is_not_null, Expr.is_nan,
    Expr.is_finite, lambda x: x.is_in([1, 2]), lambda x: x.is_in(["a"]), lambda x: x.is_in([]),
    lambda x: x.is_in([NOW]), lambda x: x.clip(0, 3), lambda x: x.clip(None, 1.5),
    lambda x: x.str.to_lowercase(), lambda x: x.str.to_uppercase(), lambda x: x.str.strip_chars(),
    lambda x: x.str.strip_chars_start("a"), lambda x: x.str.strip_chars_end("a"), lambda x: x.str.zfill(3),
    lambda x: x.str.len_chars(), lambda x: x.str.len_bytes(), lambda x: x.str.contains("a"),
    lambda x: x.str.contains("a", literal=True), lambda x: x.str.replace("a", "b"),
    lambda x: x.str.replace_all("a", "b", literal=True), lambda x: x.str.slice(1), lambda x: x.str.slice(-2, 1),
    lambda x: x.str.head(1), lambda x: x.str.tail(1), lambda x: x.str.split("-"), lambda x: x.str.extract("(1)"),
    lambda x: x.str.to_integer(strict=False), lambda x: x.str.to_datetime("%Y-%m-%d", strict=False),
    lambda x: x.str.to_date(strict=False),
    lambda x: x.dt.year(), lambda x: x.dt.quarter(), lambda x: x.dt.month(), lambda x: x.dt.week(),
    lambda x: x.dt.day(), lambda x: x.dt.ordinal_day(), lambda x: x.dt.weekday(), lambda x: x.dt.hour(),
    lambda x: x.dt.minute(), lambda x: x.dt.second(), lambda x: x.dt.millisecond(), lambda x: x.dt.microsecond(),
    lambda x: x.dt.date(), lambda x: x.dt.time(),
    lambda x: x.dt.truncate("10m"), lambda x: x.dt.truncate("1w"), lambda x: x.dt.epoch("s"),
    lambda x: x.dt.strftime("%Y"), lambda x: x.dt.total_hours(), lambda x: x.dt.total_minutes(),
    lambda x: x.dt.total_seconds(), lambda x: x.dt.total_milliseconds(), lambda x: x.dt.total_microseconds(),
    lambda x: x.list.len(), lambda x: x.list.get(0), lambda x: x.list.first(), lambda x: x.list.last(),
    lambda x: x.list.contains(1), lambda x: x.list.sum(), lambda x: x.list.min(), lambda x: x.list.max(),
    lambda x: x.list.mean(), lambda x: x.list.join("-"), lambda x: x.list.join("-", ignore_nulls=False),
    Expr.sin, Expr.cos, Expr.tan, Expr.arcsin, Expr.arccos, Expr.arctan, Expr.sinh, Expr.cosh, Expr.tanh, Expr.degrees,
    Expr.radians, lambda x: x.str.sha1(), lambda x: x.str.sha256(), lambda x: x.bin.md5(), lambda x: x.bin.sha1(),
    lambda x: x.bin.to_hex(), lambda x: x << 1, lambda x: x >> 3, lambda x: x.fill_nan(0),
    lambda x: x.nullif(1), lambda x: x.nullif("a"), lambda x: x.replace({1: 2, None: 3}),
    lambda x: x.replace({"": "b"}), lambda x: x.replace({NOW: None}),
    lambda x: x.replace_strict({1: "a"}, default="b"),
    lambda x: x.replace_strict({"a": 1, "": None}, default=None), lambda x: x.replace_strict({True: b"x"}, default=b"y"),
    lambda x: x.str.pad_start(3), lambda x: x.str.pad_end(3, "é"), lambda x: x.str.find("1"),
    lambda x: x.str.extract_all("."), lambda x: x.str.md5(), lambda x: x.str.to_base64(), lambda x: x.str.to_hex(),
    lambda x: x.str.from_base64(strict=False), lambda x: x.str.from_hex(strict=False), lambda x: x.bin.sha256(),
    lambda x: x.bin.to_base64(), lambda x: x.bin.size(), lambda x: x.json.get("$.a"),
    lambda x: x.json.get("$.a", int, strict=False), lambda x: x.json.get("$", datetime, strict=False),
    lambda x: x.dt.in_zone("Europe/Berlin").hour(), lambda x: x.dt.in_zone("America/Havana").date(),
    lambda x: x.dt.in_zone("Asia/Kolkata").truncate("1d"), lambda x: x.dt.in_zone("Asia/Kolkata").truncate("1h"),
    lambda x: x.dt.in_zone("UTC").strftime("%Y"), lambda x: x.dt.offset_by("1mo"), lambda x: x.dt.offset_by("-1h"),
    lambda x: x.list.unique(), lambda x: struct(x.alias("p")), lambda x: concat_list(x, x),
    lambda x: x.map.get("a"), lambda x: x.map.contains("a"), lambda x: x.map.keys(), lambda x: x.map.values(),
    lambda x: x.map.len(),
    lambda x: x.struct.field("x"), lambda x: x.struct.field("n"), lambda x: x.alias("z"),
    *(lambda x, to=to: x.cast(to, strict=False) for to in (
        int, float, str, bool, bytes, date, datetime, timedelta, list[float], INT8, UINT8, FLOAT32
    )),
]  # fmt: skip
BINARY_FUNCTIONS: list[Callable[[Expr, Expr], Expr]] = [
    lambda x, y: x + y, lambda x, y: x - y, lambda x, y: x * y, lambda x, y: x / y, lambda x, y: x // y,
    lambda x, y: x % y, lambda x, y: x**y, lambda x, y: x == y, lambda x, y: x != y, lambda x, y: x < y,
    lambda x, y: x <= y, lambda x, y: x > y, lambda x, y: x >= y, lambda x, y: x & y, lambda x, y: x | y,
    lambda x, y: x ^ y, lambda x, y: x.fill_null(y), lambda x, y: coalesce(x, y), lambda x, y: min_horizontal(x, y),
    lambda x, y: max_horizontal(x, y), lambda x, y: concat_str(x, y), lambda x, y: x.is_between(y, x),
    lambda x, y: concat_str(x, y, separator="-", ignore_nulls=True), lambda x, y: x.str.starts_with(y),
    lambda x, y: x.str.ends_with(y), lambda x, y: arctan2(x, y), lambda x, y: x << y, lambda x, y: x >> y,
    lambda x, y: x.nullif(y), lambda x, y: x.fill_nan(y), lambda x, y: concat_list(x, y),
    lambda x, y: struct(x.alias("p"), q=y if not isinstance(y, str) else lit(y)),
    lambda x, y: x.list.set_union(y), lambda x, y: x.list.set_difference(y), lambda x, y: x.list.set_intersection(y),
    lambda x, y: x.list.set_symmetric_difference(y), lambda x, y: x.replace_strict({1: 2.5}, default=y),
    lambda x, y: x.list.get(y), lambda x, y: x.list.contains(y),
    lambda x, y: when(x).then(y), lambda x, y: when(col("b_n")).then(x).otherwise(y),
    lambda x, y: when(col("b")).then(x).when(col("b_n")).then(y).otherwise(None), lambda x, y: x.clip(y, x),
]  # fmt: skip

leaves = st.one_of(st.sampled_from(SCHEMA.names).map(col), st.sampled_from(CONSTANTS).map(lit))


def _valid(expr: Expr) -> bool:
    try:
        output_field(expr, SCHEMA)
    except PipelineError:
        return False
    return True


def _grown(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return st.one_of(
        st.builds(lambda function, x: function(x), st.sampled_from(UNARY), inner).filter(_valid),
        st.builds(lambda function, x, y: function(x, y), st.sampled_from(BINARY_FUNCTIONS), inner, inner).filter(
            _valid
        ),
    )


def _fails(expr: Expr, frame: pl.DataFrame) -> bool:
    """Whether decimals within it are divided by zero or grow too large, which fails at run time and says so."""
    if not columns_of(expr) & {"c", "c_n"}:
        return False
    try:
        frame.select(to_polars(expr, SCHEMA))
    except pl.exceptions.ComputeError as error:
        return any(
            reason in str(error) for reason in ("division by zero; write .nullif(0)", "does not fit into decimal")
        )
    return False


def check(expr: Expr, frame: pl.DataFrame) -> None:
    """The expression has the inferred type on this frame, and nulls only if it may."""
    if _fails(expr, frame):
        return
    field = output_field(expr, SCHEMA)
    got = frame.select(pl.col("b").alias("anchor"), to_polars(expr, SCHEMA).alias("x"))["x"]
    assert got.dtype == polars_type(field.type), str(expr)
    assert field.nullable or got.null_count() == 0, str(expr)
    assert len(got) == frame.height


@pytest.mark.parametrize("function", UNARY)
def test_functions_of_one_argument_give_the_inferred_type(function: Callable[[Expr], Expr]) -> None:
    """Each function, on every column it accepts, with and without nulls, and on no rows."""
    accepted = [expr for expr in (function(col(name)) for name in SCHEMA.names) if _valid(expr)]
    assert accepted
    for expr in accepted:
        check(expr, FRAME)
        check(expr, FRAME.head(0))


@pytest.mark.parametrize("function", BINARY_FUNCTIONS)
def test_functions_of_two_arguments_give_the_inferred_type(function: Callable[[Expr, Expr], Expr]) -> None:
    """Each function, on every pair of column and column or constant that it accepts."""
    seconds = [*(col(name) for name in SCHEMA.names), *map(lit, CONSTANTS)]
    pairs = ((col(name), second) for name in SCHEMA.names for second in seconds)
    accepted = [expr for expr in (function(left, right) for left, right in pairs) if _valid(expr)]
    accepted = [expr for expr in accepted if not _fails(expr, FRAME)]
    assert accepted
    columns = [to_polars(expr, SCHEMA).alias(str(index)) for index, expr in enumerate(accepted)]
    for frame in (FRAME, FRAME.head(0)):
        results = frame.select(columns)
        for expr, got in zip(accepted, results, strict=True):
            field = output_field(expr, SCHEMA)
            assert got.dtype == polars_type(field.type), str(expr)
            assert field.nullable or got.null_count() == 0, str(expr)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(st.recursive(leaves, _grown, max_leaves=5))
def test_nested_expressions_give_the_inferred_type(expr: Expr) -> None:
    """Functions of functions: every intermediate type is right too; and JSON gives the same expression back."""
    assume(_valid(expr))
    check(expr, FRAME)
    assert from_json(to_json(expr)).node == expr.node


def test_every_function_of_the_catalogue_is_covered_here() -> None:
    """No row escapes the tests of types, but for `hash`, `json.decode` and those of SQL, which have their own."""
    used = {
        part.function
        for expr in (*(f(col("s")) for f in UNARY), *(f(col("s"), col("s")) for f in BINARY_FUNCTIONS))
        for part in walk(expr.node)
        if isinstance(part, Call)
    }
    assert {name for name in CATALOGUE if not name.startswith("sql.")} - used == {"hash", "json.decode"}


def test_hash_is_the_projects_own_and_never_null() -> None:
    """`.hash()` reinterprets the 64-bit key hash as int64, for null as well."""
    hashing = pytest.importorskip("penstock.state.hashing")
    for name in ("i64_n", "s_n", "t_n", "f64_n"):
        check(col(name).hash(), FRAME)
        got = FRAME.select(to_polars(col(name).hash(), SCHEMA))[name]
        assert got.to_list() == hashing.hash64(FRAME[name]).view("int64").tolist()
    assert FRAME.select("b", to_polars(lit("a").hash(), SCHEMA).alias("x"))["x"].n_unique() == 1


_ANY_FLOAT = st.floats() | st.sampled_from(
    [0.0, -0.0, 0.1, 1.0, 5.0, -1.0, 1e308, 1e-10, math.inf, -math.inf, math.nan]
)
_PYTHON: dict[str, tuple[Callable[[Any, Any], Any], Callable[[float], float]]] = {
    "/": (lambda a, b: a / b, lambda a: math.copysign(math.inf, a)),
    "//": (lambda a, b: a // b, lambda a: math.copysign(math.inf, a)),
    "%": (lambda a, b: a % b, lambda a: math.nan),
}


@pytest.mark.parametrize("operator", list(_PYTHON))
@settings(deadline=None, max_examples=150)
@given(pairs=st.lists(st.tuples(_ANY_FLOAT, _ANY_FLOAT), min_size=1, max_size=4), constant=_ANY_FLOAT)
def test_division_of_floats_is_pythons_to_the_bit(operator: str, pairs: Any, constant: float) -> None:
    """Also by a constant, where Polars multiplies by the reciprocal; zero divides as IEEE 754 says."""
    calculate, by_zero = _PYTHON[operator]

    def expected(left: float, right: float) -> float:
        if right == 0:
            return math.nan if left != left or left == 0 else by_zero(left) * math.copysign(1, right)
        return calculate(left, right)

    schema = Schema((Field("a", FLOAT64), Field("b", FLOAT64)))
    frame = pl.DataFrame(pairs, {"a": pl.Float64, "b": pl.Float64}, orient="row")
    both = calculate(col("a"), col("b"))
    exprs = [both, calculate(col("a"), constant), calculate(lit(constant), col("b"))]
    got = frame.select(to_polars(expr, schema).alias(str(index)) for index, expr in enumerate(exprs))
    wanted = [(expected(a, b), expected(a, constant), expected(constant, b)) for a, b in pairs]
    assert [list(map(repr, row)) for row in got.rows()] == [list(map(repr, row)) for row in wanted]
    missing = frame.with_columns(b=pl.lit(None, pl.Float64))
    assert missing.select(to_polars(both, Schema((schema.field("a", ""), Field("b", FLOAT64, True)))))["a"].null_count()


@pytest.mark.parametrize("values", [[97, 95], [1, 2], [None, None], [1, 99, None], []])
def test_every_row_has_a_value(values: list[int | None]) -> None:
    """Also where constants are compared with cases of constants, and all rows of a batch take the same branch."""
    schema = Schema((Field("a", INT64, nullable=True),))
    case = when(col("a") > 50).then(3).otherwise(4)
    is_high = when(col("a") > 50).then(lit(True)).otherwise(lit(False))
    frame = pl.DataFrame({"a": pl.Series(values, dtype=pl.Int64)})
    for expr in (
        lit(3) == case, lit(3) != case, lit(3) < case, lit(3) <= case, lit(3) > case, lit(3) >= case,
        lit(1) + lit(2) == case,
        case == lit(3), lit(3).nullif(case), when(lit(3) == case).then(1).otherwise(2), lit(3).is_between(case, case),
        (lit(3) < case) & (lit(4) == case), lit(1) == when(lit(3) == case).then(1).otherwise(0), lit(True) == is_high,
        lit(1) + case, lit(3).is_in([1]) == (case == 3), lit(None).fill_null(case) == 3,
    ):  # fmt: skip
        expected = [to_polars(expr, schema, "test").alias("x")]
        found = frame.select(expected)["x"]
        assert len(found) == len(values), expr
        one_by_one = [frame[place : place + 1].with_columns(expected)["x"][0] for place in range(len(values))]
        assert found.to_list() == one_by_one, expr
