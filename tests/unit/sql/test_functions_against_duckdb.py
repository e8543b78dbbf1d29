"""Functions of SQL that DuckDB has with the same meaning give the same as DuckDB on random values, nulls among them."""

from __future__ import annotations

import math
import random
from datetime import UTC, date, datetime, timedelta
from typing import Any

import duckdb
import polars as pl

from penstock.expressions import col, output_field, to_polars
from penstock.sql.functions.arguments import constant_of
from penstock.sql.functions.catalogue import scalar
from penstock.sql.functions.function import Argument
from penstock.types import DATE, FLOAT64, INT64, STRING, TIMESTAMP, Field, ListType, Schema

FIELDS = {"i": INT64, "j": INT64, "n": INT64, "f": FLOAT64, "s": STRING, "u": STRING, "p": STRING, "t": TIMESTAMP,
          "v": TIMESTAMP, "d": DATE, "l": ListType(INT64), "m": ListType(INT64)}  # fmt: skip
SCHEMA = Schema(tuple(Field(name, kind, nullable=True) for name, kind in FIELDS.items()))
CASES: list[tuple[str, tuple[Any, ...], str]] = [
    ("/", ("i", "j"), "i // j"), ("%", ("i", "j"), "i % j"), ("MOD", ("i", 7), "i % 7"), ("MOD", ("f", 2.5), "f % 2.5"),
    ("ROUND", ("i", -2), "round(i, -2)::bigint"), ("SIGN", ("i",), "sign(i)"), ("BIN", ("i",), "bin(i)"),
    ("HEX", ("i",), "hex(i)"), ("HEX", ("s",), "hex(s)"),
    ("LOG10", ("f",), "case when f = 0 then '-inf' when f < 0 then 'nan' else log10(f) end"),
    ("LIKE", ("s", "p"), "s like p"), ("ILIKE", ("s", "p"), "s ilike p"), ("LIKE", ("s", "%a_"), "s like '%a_'"),
    ("||", ("s", "u"), "s || u"), ("CONCAT_WS", ("-", "s", "u"), "concat_ws('-', s, u)"),
    ("LEFT", ("s", 3), "left(s, 3)"), ("RIGHT", ("s", 3), "right(s, 3)"), ("REVERSE", ("s",), "reverse(s)"),
    ("LPAD", ("s", "n", "xy"), "case when n >= 0 then lpad(s, n::int, 'xy') end"),
    ("RPAD", ("s", "n", "xy"), "case when n >= 0 then rpad(s, n::int, 'xy') end"),
    ("REPEAT", ("s", "n"), "repeat(s, n)"), ("POSITION", ("u", "s"), "position(u in s)"),
    ("SUBSTRING", ("s", "n", 2),
     "case when n = 0 then left(s, 2) when -n > length(s) then '' else substring(s, n, 2) end"),
    ("REPLACE", ("s", "a", "u"), "replace(s, 'a', u)"), ("TRANSLATE", ("s", "abc", "xy"), "translate(s, 'abc', 'xy')"),
    ("TRIM", ("BOTH", "p", "s"), "trim(s, p)"), ("LTRIM", ("s", "ab"), "ltrim(s, 'ab')"),
    ("RTRIM", ("s", "ab"), "rtrim(s, 'ab')"), ("SPLIT", ("s", "a"), "string_split(s, 'a')"),
    ("STARTSWITH", ("s", "u"), "starts_with(s, u)"), ("ENDSWITH", ("s", "u"), "ends_with(s, u)"),
    ("MD5", ("s",), "md5(s)"), ("SHA256", ("s",), "sha256(s)"), ("TO_BASE64", ("s",), "base64(encode(s))"),
    ("REGEXP_REPLACE", ("s", "(a)(b?)", "$2$1"), r"regexp_replace(s, '(a)(b?)', '\2\1', 'g')"),
    ("REGEXP_EXTRACT", ("s", "a(.)", 1), "case when regexp_matches(s, 'a(.)') then regexp_extract(s, 'a(.)', 1) end"),
    ("TIMESTAMPDIFF", ("MONTH", "t", "v"), "datesub('month', t, v)"),
    ("TIMESTAMPDIFF", ("YEAR", "t", "v"), "datesub('year', t, v)"),
    ("TIMESTAMPDIFF", ("DAY", "t", "v"), "datesub('day', t, v)"),
    ("TIMESTAMPADD", ("MONTH", "n", "t"), "t + to_months(n::int)"),
    ("TIMESTAMPADD", ("HOUR", "n", "t"), "t + to_hours(n)"),
    ("TIMESTAMPADD", ("DAY", "n", "d"), "(d + to_days(n::int))::date"),
    ("FLOOR", ("t", "MONTH"), "date_trunc('month', t)"), ("FLOOR", ("t", "HOUR"), "date_trunc('hour', t)"),
    ("FLOOR", ("t", "WEEK"), "date_trunc('week', t + interval 1 day) - interval 1 day"),
    ("FLOOR", ("d", "QUARTER"), "date_trunc('quarter', d)::date"), ("EXTRACT", ("ISOYEAR", "d"), "isoyear(d)"),
    ("EXTRACT", ("DOW", "t"), "dayofweek(t) + 1"), ("EXTRACT", ("WEEK", "t"), "week(t)"),
    ("DATEDIFF", ("d", "t"), "d - t::date"),
    ("EXTRACT", ("CENTURY", "t"), "century(t)"), ("EXTRACT", ("DECADE", "t"), "decade(t)"),
    ("AT TIME ZONE", ("t", "Europe/Berlin"), "(t at time zone 'UTC') at time zone 'Europe/Berlin'"),
    ("ARRAY_POSITION", ("l", "n"),
     "case when n is not null then coalesce(list_position(l, n), case when l is not null then 0 end) end"),
    ("ARRAY_REVERSE", ("l",), "list_reverse(l)"), ("ARRAY_SORT", ("l",), "list_sort(l, 'asc', 'nulls first')"),
    ("ARRAY_CONCAT", ("l", "m"), "case when l is not null and m is not null then l || m end"),
    ("ARRAY_MAX", ("l",), "list_max(l)"), ("ARRAY_SLICE", ("l", 2, 3), "list_slice(l, 2, 3)"),
    ("ARRAY_SLICE", ("l", -2, -1), "list_slice(l, greatest(-2, -len(l)), -1)"),
    ("ARRAY_APPEND", ("l", "n"), "case when l is not null then list_append(l, n) end"),
    ("ARRAY_REMOVE", ("l", "n"), "case when l is null then null else list_filter(l, lambda x: x is distinct from n) end"),
    ("[]", ("l", 2), "l[2]"),
    ("BETWEEN", ("i", "j", "n"), "i between j and n"), ("IS DISTINCT FROM", ("i", "n"), "i is distinct from n"),
    ("IN", ("i", "n", "j"), "i in (n, j)"), ("IN", ("n", 1, None), "n in (1, null)"),
    ("NULLIF", ("n", 1), "nullif(n, 1)"),
]  # fmt: skip


def _values(seed: int) -> dict[str, list[Any]]:
    rng = random.Random(seed)
    letters = ["a", "b", "c", "A", "ä", "%", "_", ".", "\\", "\n", " "]

    def text(most: int) -> str:
        return "".join(rng.choice(letters) for _ in range(rng.randrange(most)))

    def moment() -> datetime:
        whole = datetime(2023, 1, 29, tzinfo=UTC) + timedelta(days=rng.randrange(800))
        return whole + timedelta(microseconds=rng.choice([0, rng.randrange(86_400_000_000)]))

    makers = {
        "i": lambda: rng.choice([rng.randrange(-20, 21), rng.randrange(-(10**12), 10**12)]),
        "j": lambda: rng.choice([-3, -2, -1, 1, 2, 3, 7]), "n": lambda: rng.randrange(-4, 8),
        "f": lambda: rng.choice([0.0, 1000.0, rng.uniform(-1e6, 1e6)]), "s": lambda: text(9), "u": lambda: text(3),
        "p": lambda: text(4), "t": moment, "v": moment,
        "d": lambda: date(2023, 1, 29) + timedelta(days=rng.randrange(800)),
        "l": lambda: [rng.choice([None, *range(-2, 4)]) for _ in range(rng.randrange(5))],
        "m": lambda: [rng.choice([None, *range(-2, 4)]) for _ in range(rng.randrange(3))],
    }  # fmt: skip
    return {name: [None if rng.random() < 0.1 else make() for _ in range(150)] for name, make in makers.items()}


def _same(found: Any, expected: Any) -> bool:
    if isinstance(found, float) and isinstance(expected, float):
        return math.isclose(found, expected, rel_tol=1e-12, abs_tol=1e-12) or (
            math.isnan(found) and math.isnan(expected)
        )
    if isinstance(found, datetime) and isinstance(expected, datetime):
        return found.replace(tzinfo=None) == expected.replace(tzinfo=None)
    return found == expected


def test_functions_give_what_duckdb_gives() -> None:
    """All of them in one query over the same rows."""
    frame = pl.DataFrame(_values(31), schema=SCHEMA.polars())
    made: list[pl.Expr] = []
    for place, (name, given, _) in enumerate(CASES):
        arguments = [
            Argument(col(part), FIELDS[part], nullable=True) if part in FIELDS else constant_of(part) for part in given
        ]
        expr = scalar(name).build(arguments, {})
        output_field(expr, SCHEMA, name, "r")
        made.append(to_polars(expr, SCHEMA, name).alias(f"r{place}"))
    found = frame.select(made)
    rows = frame.with_columns(pl.col("t", "v").dt.replace_time_zone(None)).with_row_index("row")
    asked = ", ".join(f"{sql} as r{place}" for place, (_, _, sql) in enumerate(CASES))
    with duckdb.connect() as connection:
        connection.register("rows", rows.to_arrow())
        connection.execute("set timezone = 'UTC'")
        expected = connection.execute(f"select {asked} from rows order by row").fetchall()
    different: list[str] = []
    for place, (name, given, sql) in enumerate(CASES):
        for row, value in enumerate(found[f"r{place}"].to_list()):
            if not _same(value, expected[row][place]):
                inputs = {part: frame[part][row] for part in given if part in FIELDS}
                different.append(f"{name}{given}: {value!r}, DuckDB ({sql}) {expected[row][place]!r} of {inputs}")
                break
    assert not different, "\n".join(different)
