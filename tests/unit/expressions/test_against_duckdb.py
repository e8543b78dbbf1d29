"""Every function of the catalogue that DuckDB has too gives the same as DuckDB on random values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

import duckdb
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.expressions import (
    Expr,
    coalesce,
    col,
    concat_str,
    lit,
    max_horizontal,
    min_horizontal,
    output_field,
    to_polars,
    when,
)
from penstock.types import (
    BOOLEAN,
    DATE,
    FLOAT64,
    INT64,
    STRING,
    TIMESTAMP,
    Field,
    ListType,
    Schema,
    polars_type,
)

SCHEMA = Schema(
    (
        Field("i", INT64, True),
        Field("j", INT64, True),
        Field("f", FLOAT64, True),
        Field("g", FLOAT64, True),
        Field("s", STRING, True),
        Field("u", STRING, True),
        Field("p", BOOLEAN, True),
        Field("q", BOOLEAN, True),
        Field("t", TIMESTAMP, True),
        Field("v", TIMESTAMP, True),
        Field("d", DATE, True),
        Field("l", ListType(INT64), True),
        Field("m", ListType(STRING), True),
    )
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
INTEGERS = st.one_of(st.integers(-9, 9), st.integers(-(10**9), 10**9))
FLOATS = st.one_of(
    st.sampled_from([0.0, -0.0, 0.5, 1.5, 2.5, -2.5, math.nan, math.inf, -math.inf]),
    st.floats(-1e6, 1e6),
    st.floats(allow_nan=True),
)
LETTERS = st.sampled_from([*"aAbBzZxX019 -+._%'\"äÄéñλΛжЖ日本🎉\t\n", "e\u0301"])
TEXTS = st.one_of(st.just(""), st.lists(LETTERS, max_size=8).map("".join), st.integers(-5000, 5000).map(str))
MOMENTS = st.one_of(
    st.integers(-(10**13), 10**16).map(lambda us: EPOCH + timedelta(microseconds=us)),
    st.datetimes(datetime(2, 1, 1), datetime(9998, 12, 31), timezones=st.just(UTC)),  # noqa: DTZ001 (st adds the zone)
)
DATES = st.dates(date(2, 1, 1), date(9998, 12, 31))


def nullable(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """The values, sometimes null."""
    return st.one_of(values, values, values, st.none())


_VALUES = {
    "i": INTEGERS, "j": INTEGERS, "f": FLOATS, "g": FLOATS, "s": TEXTS, "u": TEXTS, "p": st.booleans(),
    "q": st.booleans(), "t": MOMENTS, "v": MOMENTS, "d": DATES,
    "l": st.lists(nullable(st.integers(-5, 5)), max_size=4), "m": st.lists(nullable(TEXTS), max_size=3),
}  # fmt: skip


def frames(columns: str) -> st.SearchStrategy[pl.DataFrame]:
    """Frames of these columns of `SCHEMA`."""
    schema = SCHEMA.select(columns)
    row = st.fixed_dictionaries({name: nullable(_VALUES[name]) for name in columns})
    return st.lists(row, min_size=1, max_size=12).map(lambda rows: pl.DataFrame(rows, schema=schema.polars()))


def duckdb_rows(frame: pl.DataFrame, query: str) -> list[tuple[Any, ...]]:
    """The rows of a query over the table `rows`; timestamps are there as UTC without a zone."""
    plain = frame.with_columns(pl.col(pl.Datetime("us", "UTC")).dt.replace_time_zone(None))
    with duckdb.connect(":memory:") as connection:
        connection.register("rows", plain.to_arrow())
        return connection.execute(query).fetchall()


def check_against_duckdb(frame: pl.DataFrame, cases: Mapping[str, tuple[Expr, str]]) -> None:
    """Every expression gives what its SQL gives, in exactly the type that was inferred."""
    query = "SELECT " + ", ".join(f"{sql} AS c{index}" for index, (_, sql) in enumerate(cases.values())) + " FROM rows"
    expected = list(zip(*duckdb_rows(frame, query), strict=True))
    for values, (name, (expr, sql)) in zip(expected, cases.items(), strict=True):
        got = frame.select(to_polars(expr, SCHEMA).alias("x"))["x"]
        field = output_field(expr, SCHEMA, name=name)
        assert got.dtype == polars_type(field.type), name
        if not field.nullable:
            assert got.null_count() == 0, name
        for row, ours, theirs in zip(frame.rows(named=True), plain(got), values, strict=True):
            assert same(ours, theirs), f"{name}: {expr} gave {ours!r}, {sql} gave {theirs!r} for {row}"


def plain(series: pl.Series) -> list[Any]:
    """Values as DuckDB gives them: moments without a zone."""
    if series.dtype == pl.Datetime("us", "UTC"):
        series = series.dt.replace_time_zone(None)
    return series.to_list()


def same(left: Any, right: Any) -> bool:
    """Equal, with NaN equal to NaN and rounding errors allowed."""
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if left is None or right is None:
        return left is right
    if isinstance(left, float) or isinstance(right, float):
        if math.isnan(left) or math.isnan(right):
            return math.isnan(left) and math.isnan(right)
        return left == right or math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-12)
    return bool(left == right) and isinstance(left, bool) == isinstance(right, bool)


i, j, f, g, s, u = col("i"), col("j"), col("f"), col("g"), col("s"), col("u")
p, q, t, v, d, l, m = col("p"), col("q"), col("t"), col("v"), col("d"), col("l"), col("m")  # noqa: E741 (a list)
NOON = datetime(2001, 2, 3, 12, tzinfo=UTC)

NUMBERS: dict[str, tuple[Expr, str]] = {
    "add": (i + j, "i + j"),
    "add constant": (1 + i, "1 + i"),
    "add mixed": (i + f, "i + f"),
    "sub": (i - j, "i - j"),
    "mul": (i * j, "i * j"),
    "mul float": (f * g, "f * g"),
    "truediv": (i / j, "i::DOUBLE / j::DOUBLE"),
    "truediv float": (f / g, "f / g"),
    "floordiv": (i // j, "CAST(floor(i::DOUBLE / nullif(j, 0)) AS BIGINT)"),
    "mod": (i % j, "((i % nullif(j, 0)) + j) % nullif(j, 0)"),
    "pow": (i**2, "i * i"),
    "pow float": (f.abs().pow(0.5), "pow(abs(f), 0.5)"),
    "neg": (-i, "-i"),
    "neg float": (-f, "-f"),
    "abs": (f.abs(), "abs(f)"),
    "abs integer": (i.abs(), "abs(i)"),
    "round": (f.round(), "round_even(f, 0)"),
    "floor": (f.floor(), "floor(f)"),
    "ceil": (f.ceil(), "ceil(f)"),
    "ceil integer": (i.ceil(), "i"),
    "sign": (i.sign(), "sign(i)::BIGINT"),
    "sqrt": (f.abs().sqrt(), "sqrt(abs(f))"),
    "exp": (i.clip(-100, 100).exp(), "CASE WHEN i IS NOT NULL THEN exp(least(greatest(i, -100), 100)) END"),
    "log": ((i.abs() + 1).log(), "ln(abs(i) + 1)"),
    "log10": ((i.abs() + 1).log(10), "log10(abs(i) + 1)"),
    "min_horizontal": (min_horizontal("i", "j"), "least(i, j)"),
    "max_horizontal": (max_horizontal("i", j, 3), "greatest(i, j, 3)"),
    "max_horizontal float": (
        max_horizontal(f, g),
        "CASE WHEN isnan(f) THEN coalesce(g, f) WHEN isnan(g) THEN coalesce(f, g) ELSE greatest(f, g) END",
    ),
    "cast float": (i.cast(float), "i::DOUBLE"),
    "cast boolean": (i.cast(bool), "i::BOOLEAN"),
    "cast string": (i.cast(str), "i::VARCHAR"),
    "cast integer": (f.cast(int, strict=False), "TRY_CAST(trunc(f) AS BIGINT)"),
}
LOGIC: dict[str, tuple[Expr, str]] = {
    "eq": (i == j, "i = j"),
    "eq float": (f == g, "f = g"),
    "ne": (f != g, "f <> g"),
    "lt": (f < g, "f < g"),
    "le": (f <= g, "f <= g"),
    "gt": (i > f, "i > f"),
    "ge": (i >= 3, "i >= 3"),
    "lt text": (s < u, "s < u"),
    "eq text": (s == "a", "s = 'a'"),
    "lt moment": (t < v, "t < v"),
    "ge moment": (t >= NOON, "t >= TIMESTAMP '2001-02-03 12:00:00'"),
    "lt boolean": (p < q, "p < q"),
    "is_between": (i.is_between(-3, j), "i BETWEEN -3 AND j"),
    "is_between open": (f.is_between(0.0, g, closed="none"), "f > 0 AND f < g"),
    "is_in": (i.is_in([1, 2, -3]), "i IN (1, 2, -3)"),
    "is_in text": (s.is_in(["a", "", "b"]), "s IN ('a', '', 'b')"),
    "is_in float": (f.is_in([math.nan, 0.0]), "f IN ('nan'::DOUBLE, 0.0)"),
    "and": (p & q, "p AND q"),
    "or": (p | q, "p OR q"),
    "xor": (p ^ q, "CASE WHEN p IS NOT NULL AND q IS NOT NULL THEN p <> q END"),
    "not": (~p, "NOT p"),
    "is_null": (f.is_null(), "f IS NULL"),
    "is_not_null": (s.is_not_null(), "s IS NOT NULL"),
    "is_nan": (f.is_nan(), "isnan(f)"),
    "is_finite": (f.is_finite(), "isfinite(f)"),
    "fill_null": (i.fill_null(7), "ifnull(i, 7)"),
    "coalesce": (coalesce("i", "j", 0), "coalesce(i, j, 0)"),
    "case": (
        when(i > j).then(i).when(p).then(f).otherwise(None),
        "CASE WHEN i > j THEN i WHEN p THEN f END",
    ),
}
TEXT: dict[str, tuple[Expr, str]] = {
    "add": (s + u, "s || u"),
    "to_lowercase": (s.str.to_lowercase(), "lower(s)"),
    "to_uppercase": (s.str.to_uppercase(), "upper(s)"),
    "strip_chars": (s.str.strip_chars(" aX"), "trim(s, ' aX')"),
    "strip_chars_start": (s.str.strip_chars_start(" a"), "ltrim(s, ' a')"),
    "strip_chars_end": (s.str.strip_chars_end(" a"), "rtrim(s, ' a')"),
    "len_chars": (s.str.len_chars(), "length(s)"),
    "len_bytes": (s.str.len_bytes(), "strlen(s)"),
    "contains": (s.str.contains("[aX]+9"), "regexp_matches(s, '[aX]+9')"),
    "contains literal": (s.str.contains(".", literal=True), "contains(s, '.')"),
    "starts_with": (s.str.starts_with(u), "starts_with(s, u)"),
    "starts_with constant": (s.str.starts_with("a"), "starts_with(s, 'a')"),
    "ends_with": (s.str.ends_with("X"), "ends_with(s, 'X')"),
    "replace": (s.str.replace("[aX]", "-"), "regexp_replace(s, '[aX]', '-')"),
    "replace_all": (s.str.replace_all("([aX])", "<$1>"), "regexp_replace(s, '([aX])', '<\\1>', 'g')"),
    "replace_all literal": (s.str.replace_all(".", "$1", literal=True), "replace(s, '.', '$1')"),
    "slice": (s.str.slice(1, 3), "substring(s, 2, 3)"),
    "slice to the end": (s.str.slice(2), "substring(s, 3)"),
    "head": (s.str.head(2), "left(s, 2)"),
    "tail": (s.str.tail(2), "right(s, 2)"),
    "split": (s.str.split("a"), "string_split(s, 'a')"),
    "extract": (s.str.extract("a(.)"), "nullif(regexp_extract(s, 'a(.)', 1), '')"),
    "concat_str": (
        concat_str("s", u, separator="-"),
        "CASE WHEN s IS NOT NULL AND u IS NOT NULL THEN concat_ws('-', s, u) END",
    ),
    "concat_str without nulls": (
        concat_str("s", lit("x"), "u", separator="-", ignore_nulls=True),
        "concat_ws('-', s, 'x', u)",
    ),
    "to_integer": (
        s.str.to_integer(strict=False),
        "CASE WHEN regexp_full_match(s, '[+-]?[0-9]+') THEN TRY_CAST(s AS BIGINT) END",
    ),
    "zfill": (
        s.str.zfill(6),
        "CASE WHEN length(s) >= 6 THEN s WHEN s[1] IN ('+', '-') "
        "THEN s[1] || repeat('0', 6 - length(s)) || s[2:] ELSE repeat('0', 6 - length(s)) || s END",
    ),
    "list.join": (m.list.join("-"), "CASE WHEN m IS NOT NULL THEN coalesce(array_to_string(m, '-'), '') END"),
}
TIME: dict[str, tuple[Expr, str]] = {
    "year": (t.dt.year(), "year(t)"),
    "quarter": (t.dt.quarter(), "quarter(t)"),
    "month": (t.dt.month(), "month(t)"),
    "week": (t.dt.week(), "week(t)"),
    "day": (t.dt.day(), "day(t)"),
    "ordinal_day": (t.dt.ordinal_day(), "dayofyear(t)"),
    "weekday": (t.dt.weekday(), "isodow(t)"),
    "hour": (t.dt.hour(), "hour(t)"),
    "minute": (t.dt.minute(), "minute(t)"),
    "second": (t.dt.second(), "second(t)"),
    "millisecond": (t.dt.millisecond(), "millisecond(t) % 1000"),
    "microsecond": (t.dt.microsecond(), "microsecond(t) % 1000000"),
    "date": (t.dt.date(), "t::DATE"),
    "date year": (d.dt.year(), "year(d)"),
    "date week": (d.dt.week(), "week(d)"),
    "truncate": (t.dt.truncate("10m"), "time_bucket(INTERVAL 10 MINUTE, t, TIMESTAMP '1970-01-01')"),
    "truncate odd": (t.dt.truncate("7h"), "time_bucket(INTERVAL 7 HOUR, t, TIMESTAMP '1970-01-01')"),
    "truncate week": (t.dt.truncate("1w"), "date_trunc('week', t)"),
    "truncate month": (t.dt.truncate("1mo"), "date_trunc('month', t)"),
    "truncate quarter": (t.dt.truncate("1q"), "date_trunc('quarter', t)"),
    "truncate year": (t.dt.truncate("1y"), "date_trunc('year', t)"),
    "epoch": (t.dt.epoch(), "epoch_us(t)"),
    "epoch ms": (t.dt.epoch("ms"), "(epoch_us(t) - ((epoch_us(t) % 1000) + 1000) % 1000) // 1000"),
    "epoch s": (t.dt.epoch("s"), "(epoch_us(t) - ((epoch_us(t) % 1000000) + 1000000) % 1000000) // 1000000"),
    "strftime": (t.dt.strftime("%Y-%m-%d %H:%M:%S %j"), "strftime(t, '%Y-%m-%d %H:%M:%S %j')"),
    "strftime date": (d.dt.strftime("%d.%m.%Y"), "strftime(d, '%d.%m.%Y')"),
    "difference": ((v - t).dt.total_microseconds(), "epoch_us(v) - epoch_us(t)"),
    "total_milliseconds": ((v - t).dt.total_milliseconds(), "(epoch_us(v) - epoch_us(t)) // 1000"),
    "total_seconds": ((v - t).dt.total_seconds(), "(epoch_us(v) - epoch_us(t)) // 1000000"),
    "total_minutes": ((v - t).dt.total_minutes(), "(epoch_us(v) - epoch_us(t)) // 60000000"),
    "total_hours": ((v - t).dt.total_hours(), "(epoch_us(v) - epoch_us(t)) // 3600000000"),
    "moved": (t + timedelta(hours=1, microseconds=1), "t + INTERVAL 3600000001 MICROSECOND"),
    "moved back": (t - timedelta(days=1), "t - INTERVAL 1 DAY"),
    "days between": (d - lit(date(2000, 1, 1)), "(d - DATE '2000-01-01') * INTERVAL 1 DAY"),
    "cast date": (d.cast(datetime), "d::TIMESTAMP"),
    "cast microseconds": (t.cast(int), "epoch_us(t)"),
    "to_datetime": (
        t.dt.strftime("%Y-%m-%d %H:%M:%S").str.to_datetime("%Y-%m-%d %H:%M:%S"),
        "date_trunc('second', t)",
    ),
    "to_date": (d.dt.strftime("%Y-%m-%d").str.to_date(), "d"),
}
LISTS: dict[str, tuple[Expr, str]] = {
    "len": (l.list.len(), "len(l)"),
    "get": (l.list.get(1), "l[2]"),
    "get from the end": (l.list.get(-1), "l[-1]"),
    "get by column": (l.list.get(i.abs() % 3), "l[(abs(i) % 3) + 1]"),
    "first": (l.list.first(), "l[1]"),
    "last": (l.list.last(), "l[-1]"),
    "contains": (l.list.contains(2), "list_contains(l, 2)"),
    "sum": (l.list.sum(), "CASE WHEN l IS NOT NULL THEN coalesce(list_sum(l), 0) END"),
    "min": (l.list.min(), "list_min(l)"),
    "max": (l.list.max(), "list_max(l)"),
    "mean": (l.list.mean(), "list_avg(l)"),
}


SETTINGS = settings(deadline=None, max_examples=40)


@SETTINGS
@given(frames("ijfg"))
def test_numbers(frame: pl.DataFrame) -> None:
    """Arithmetic and functions of numbers."""
    check_against_duckdb(frame, NUMBERS)


@SETTINGS
@given(frames("ijfgsupqtv"))
def test_comparison_logic_and_nulls(frame: pl.DataFrame) -> None:
    """Comparisons with NaN and -0.0, Kleene logic, null handling and conditionals."""
    check_against_duckdb(frame, LOGIC)


@SETTINGS
@given(frames("sum"))
def test_text(frame: pl.DataFrame) -> None:
    """Functions of text, with empty and Unicode text."""
    check_against_duckdb(frame, TEXT)


@SETTINGS
@given(frames("tvd"))
def test_time(frame: pl.DataFrame) -> None:
    """Functions of timestamps, dates and durations, also far ones and those before 1970."""
    check_against_duckdb(frame, TIME)


@SETTINGS
@given(frames("il"))
def test_lists(frame: pl.DataFrame) -> None:
    """Functions of lists with nulls among the elements."""
    check_against_duckdb(frame, LISTS)
