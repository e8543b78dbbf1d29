"""Functions give what plain Python gives on random values, the same for every row alone and on no rows at all."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.expressions.test_against_duckdb import FLOATS, INTEGERS, MOMENTS, TEXTS, nullable

from penstock.errors import PipelineError, UserCodeError
from penstock.expressions import Expr, arctan2, col, concat_list, lit, output_field, struct, to_polars
from penstock.testing import evaluate
from penstock.types import (
    BINARY,
    DATE,
    DURATION,
    FLOAT64,
    INT64,
    STRING,
    TIMESTAMP,
    UINT8,
    Field,
    ListType,
    Schema,
    polars_type,
)

LARGE = st.one_of(INTEGERS, st.sampled_from([2**63 - 1, -(2**63), 0, 1, -1]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["x", "7", "é"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "b c", "d-e"]), inner, max_size=2)
    ),
    max_leaves=6,
)
ZONES = ("Europe/Berlin", "America/Havana", "Australia/Lord_Howe", "Asia/Kolkata")
COLUMNS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "i": (INT64, LARGE),
    "j": (INT64, LARGE),
    "n": (INT64, st.integers(-70, 70)),
    "y": (UINT8, st.integers(0, 255)),
    "f": (FLOAT64, FLOATS),
    "g": (FLOAT64, FLOATS),
    "s": (STRING, TEXTS),
    "w": (STRING, st.sampled_from(["true", "T", "yes", "0", "NO", "maybe", "", "2", " true"])),
    "z": (BINARY, st.binary(max_size=9)),
    "o": (STRING, JSON.map(json.dumps) | st.sampled_from(["", "{", "nope"])),
    "u": (DURATION, st.integers(-(10**9), 10**9).map(lambda us: timedelta(microseconds=us))),
    "v": (DURATION, st.integers(-5, 5).map(lambda us: timedelta(microseconds=us))),
    "t": (TIMESTAMP, MOMENTS.filter(lambda moment: 1950 < moment.year < 2037)),
    "d": (DATE, st.dates(date(2, 1, 1), date(9998, 1, 1))),
    "l": (ListType(INT64), st.lists(nullable(st.integers(0, 5)), max_size=6)),
    "m": (ListType(INT64), st.lists(nullable(st.integers(0, 5)), max_size=6)),
}
SCHEMA = Schema(tuple(Field(name, kind, nullable=True) for name, (kind, _) in COLUMNS.items()))
Case = tuple[Expr, Callable[..., Any]]


def _over(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of values none of which is null."""
    return lambda *values: None if None in values else function(*values)


def _unique(values: Sequence[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


def _division(function: Callable[[Any, Any], Any], at_zero: Callable[[Any], Any]) -> Callable[..., Any]:
    return _over(lambda x, y: at_zero(x) if not y else function(x, y))


def _wrapped(value: int, bits: int = 64) -> int:
    return (value + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)


def _shifted(value: int, by: int) -> int | None:
    return _wrapped(value << by) if 0 <= by < 64 else None


def _at(text: str, *keys: Any) -> Any:
    try:
        value = json.loads(text)
        for key in keys:
            value = value[key]
    except (ValueError, KeyError, TypeError, IndexError):
        return None
    return (
        value
        if value is None or isinstance(value, str)
        else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    )


def _local_day(zone: str) -> Callable[[datetime], datetime]:
    def begins(moment: datetime) -> datetime:
        local = moment.astimezone(ZoneInfo(zone))
        return local.replace(hour=0, minute=0, second=0, microsecond=0, fold=0).astimezone(UTC)

    return begins


def _months_later(day: date, months: int) -> date:
    year, month = divmod(day.year * 12 + day.month - 1 + months, 12)
    last = (date(year + month // 11, (month + 1) % 12 + 1, 1) - timedelta(days=1)).day
    return date(year, month + 1, min(day.day, last))


def _float(function: Callable[..., float]) -> Callable[..., Any]:
    def apply(*values: float) -> float:
        try:
            return function(*values)
        except (ValueError, OverflowError):
            return math.nan

    return _over(apply)


i, j, n, y, f, g, s, w, z = (col(name) for name in "ijnyfgswz")
o, u, v, t, d, l, m = (col(name) for name in "ouvtdlm")  # noqa: E741 (a list)
CASES: dict[str, Case] = {
    "floordiv": (i // j, _division(lambda i, j: _wrapped(i // j), lambda _: None)),
    "mod": (i % j, _division(lambda i, j: i % j, lambda _: None)),
    "floordiv float": (f // g, _float(lambda f, g: f // g if g else f * math.copysign(math.inf, g))),
    "mod float": (f % g, _float(lambda f, g: f % g if g else math.nan)),
    "floordiv duration": (u // v, _division(lambda u, v: u // v, lambda _: None)),
    "floordiv duration by integer": (u // n, _division(lambda u, n: u // n, lambda _: None)),
    "mod duration": (u % v, _division(lambda u, v: u % v, lambda _: None)),
    "and": (i & j, _over(lambda i, j: i & j)),
    "or": (i | 5, _over(lambda i: i | 5)),
    "xor": (i ^ j, _over(lambda i, j: i ^ j)),
    "not": (~i, _over(lambda i: ~i)),
    "and small": (y & 6, _over(lambda y: y & 6)),
    "not small": (~y, _over(lambda y: 255 - y)),
    "shift left": (i << n, _over(_shifted)),
    "shift right": (i >> n, _over(lambda i, n: i >> n if 0 <= n < 64 else None)),
    "shift by constant": (y << 3, _over(lambda y: y << 3 & 255)),
    "sin": (n.sin(), _float(math.sin)),
    "cos": (n.cos(), _float(math.cos)),
    "tan": (n.tan(), _float(math.tan)),
    "arcsin": (f.arcsin(), _float(math.asin)),
    "arccos": (f.arccos(), _float(math.acos)),
    "arctan": (f.arctan(), _float(math.atan)),
    "arctan2": (arctan2(f, g), _float(math.atan2)),
    "sinh": (n.sinh(), _float(math.sinh)),
    "cosh": (n.cosh(), _float(math.cosh)),
    "tanh": (f.tanh(), _float(math.tanh)),
    "degrees": (n.degrees(), _float(math.degrees)),
    "radians": (n.radians(), _float(math.radians)),
    "nullif": (i.nullif(1), _over(lambda i: None if i == 1 else i)),
    "nullif column": (i.nullif(j), lambda i, j: None if i == j else i),
    "fill_nan": (f.fill_nan(0.5), _over(lambda f: 0.5 if f != f else f)),
    "fill_nan null": (f.fill_nan(None), _over(lambda f: None if f != f else f)),
    "replace": (s.replace({"a": "b", "": "-"}), _over(lambda s: {"a": "b", "": "-"}.get(s, s))),
    "replace null": (n.replace({None: 0, 3: None}), lambda n: {None: 0, 3: None}.get(n, n)),
    "replace_strict": (
        n.replace_strict({1: "one", 2: None}, default="many"),
        _over(lambda n: {1: "one", 2: None}.get(n, "many")),
    ),
    "replace_strict column": (
        n.replace_strict({1: 7}, default=i),
        lambda n, i: {None: None, 1: 7}.get(n, i),
    ),
    "pad_start": (s.str.pad_start(5, "é"), _over(lambda s: s.rjust(5, "é"))),
    "pad_end": (s.str.pad_end(5), _over(lambda s: s.ljust(5))),
    "find": (s.str.find("[aX]+|é"), _over(lambda s: next((x.start() for x in re.finditer("[aX]+|é", s)), None))),
    "find literal": (s.str.find(".", literal=True), _over(lambda s: s.find(".") if "." in s else None)),
    "extract_all": (s.str.extract_all("[a-zA-Z]{2}"), _over(lambda s: re.findall("[a-zA-Z]{2}", s))),
    "md5": (s.str.md5(), _over(lambda s: hashlib.md5(s.encode(), usedforsecurity=False).hexdigest())),
    "sha1": (z.bin.sha1(), _over(lambda z: hashlib.sha1(z, usedforsecurity=False).hexdigest())),
    "sha256": (s.str.sha256(), _over(lambda s: hashlib.sha256(s.encode()).hexdigest())),
    "to_base64": (s.str.to_base64(), _over(lambda s: base64.b64encode(s.encode()).decode())),
    "from_base64": (z.bin.to_base64().str.from_base64(), lambda z: z),
    "from_base64 lenient": (w.str.from_base64(strict=False), _over({"true": b"\xb6\xbb\x9e", "": b""}.get)),
    "to_hex": (z.bin.to_hex(), _over(lambda z: z.hex())),
    "from_hex": (z.bin.to_hex().str.from_hex(), lambda z: z),
    "size": (z.bin.size(), _over(len)),
    "boolean": (
        w.cast(bool, strict=False),
        _over(lambda w: {"true": True, "T": True, "yes": True, "0": False, "NO": False}.get(w)),
    ),
    "json": (o.json.get("$.a"), _over(lambda o: _at(o, "a"))),
    "json whole": (o.json.get("$['b c'][1].d-e"), _over(lambda o: _at(o, "b c", 1, "d-e"))),
    "in_zone hour": (t.dt.in_zone(ZONES[0]).hour(), _over(lambda t: t.astimezone(ZoneInfo(ZONES[0])).hour)),
    "in_zone weekday": (t.dt.in_zone(ZONES[3]).weekday(), _over(lambda t: t.astimezone(ZoneInfo(ZONES[3])).isoweekday())),
    "in_zone date": (t.dt.in_zone(ZONES[1]).date(), _over(lambda t: t.astimezone(ZoneInfo(ZONES[1])).date())),
    "in_zone strftime": (
        t.dt.in_zone(ZONES[2]).strftime("%Y-%m-%d %H:%M"),
        _over(lambda t: t.astimezone(ZoneInfo(ZONES[2])).strftime("%Y-%m-%d %H:%M")),
    ),
    **{f"in_zone truncate {zone}": (t.dt.in_zone(zone).truncate("1d"), _over(_local_day(zone))) for zone in ZONES},
    "offset_by": (t.dt.offset_by("-2d3h"), _over(lambda t: t - timedelta(days=2, hours=3))),
    "offset_by months": (d.dt.offset_by("5mo"), _over(lambda d: _months_later(d, 5))),
    "struct": (struct("i", twice=s + s), lambda i, s: {"i": i, "twice": None if s is None else s + s}),
    "concat_list": (concat_list("i", j, 0), lambda i, j: [i, j, 0]),
    "concat lists": (concat_list("l", "m"), _over(lambda p, q: p + q)),
    "set_union": (l.list.set_union(m), _over(lambda p, q: _unique(p + q))),
    "set_intersection": (l.list.set_intersection(m), _over(lambda p, q: [x for x in _unique(p) if x in q])),
    "set_difference": (l.list.set_difference(m), _over(lambda p, q: [x for x in _unique(p) if x not in q])),
    "set_symmetric_difference": (
        l.list.set_symmetric_difference(m),
        _over(lambda p, q: [x for x in _unique(p + q) if (x in p) != (x in q)]),
    ),
    "unique": (l.list.unique(), _over(_unique)),
}  # fmt: skip
ARGUMENTS = {name: _unique(re.findall(r'col\("(\w)"\)', str(expr))) for name, (expr, _) in CASES.items()}
ROWS = st.lists(st.fixed_dictionaries({name: nullable(values) for name, (_, values) in COLUMNS.items()}), max_size=8)


def same(left: Any, right: Any) -> bool:
    """Equal, with NaN equal to NaN, and floats of different libraries in the last digits."""
    if isinstance(left, float) and isinstance(right, float):
        return (math.isnan(left) and math.isnan(right)) or math.isclose(left, right, rel_tol=1e-12)
    return bool(left == right) and type(left) is type(right)


@settings(deadline=None, max_examples=60)
@given(ROWS)
def test_functions_give_what_python_gives(rows: list[dict[str, Any]]) -> None:
    """For every row, in the inferred type; alone as among others; and an empty column for no rows."""
    frame = pl.DataFrame(rows, schema=SCHEMA.polars())
    for name, (expr, plain) in CASES.items():
        lowered = to_polars(expr, SCHEMA).alias("x")
        got = frame.with_columns(lowered)["x"]
        assert got.dtype == polars_type(output_field(expr, SCHEMA, name="x").type), name
        for index, (row, ours) in enumerate(zip(rows, got.to_list(), strict=True)):
            values = [row[column] for column in ARGUMENTS[name]]
            assert same(ours, plain(*values)), f"{name}: {expr} of {values} is {ours!r}, not {plain(*values)!r}"
            alone = frame[index : index + 1].with_columns(lowered)["x"]
            assert alone.equals(got[index : index + 1], null_equal=True), f"{name} of {values} alone"


WRONG: list[tuple[Callable[[], Expr], str]] = [
    (lambda: i.json.get("$.a"), "needs string, got int64"),
    (lambda: o.json.get("a.b"), "is not a path to one value; write for example"),
    (lambda: o.json.get("$.a[*]"), "is not a path to one value"),
    (lambda: o.json.get("$.a", list[int], strict=False), "strict=False is not possible"),
    (lambda: t.dt.in_zone("Mars/Olympus"), "there is no time zone 'Mars/Olympus'; write for example"),
    (lambda: t.dt.offset_by("a month"), "is no offset; write for example '1mo'"),
    (lambda: d.dt.offset_by("1h"), "a date cannot be moved by '1h'; use whole days"),
    (lambda: i.dt.offset_by("1d"), "needs date or timestamp, got int64"),
    (lambda: s.str.pad_start(5, "ab"), "fills with one character, got 'ab'"),
    (lambda: s.str.pad_start(-1), "needs a length of zero or more"),
    (lambda: s.str.find("("), "regular expression '\\(' is not valid"),
    (lambda: i.str.find("a"), "needs string, got int64"),
    (lambda: z.str.md5(), "needs string, got binary"),
    (lambda: s.bin.sha256(), "needs binary, got string"),
    (lambda: s.replace({}), "need a mapping such as"),
    (lambda: i.replace({1: "one"}), r"have the types|use \.replace_strict"),
    (lambda: y.replace({1: 300}), r"cannot keep uint8 with a mapping of int64; use \.replace_strict"),
    (
        lambda: i.replace_strict({"a": 1}, default=0),
        "column and the keys of the mapping have the types int64 and string",
    ),
    (lambda: i.nullif("a"), "cannot compare int64 and string"),
    (lambda: i.fill_nan(0), "needs float32 or float64, got int64"),
    (lambda: f & 1, "needs boolean or integers, got float64; put comparisons in parentheses"),
    (lambda: i << 64, "int64 has 64 bits: shift by 0 to 63, not by 64"),
    (lambda: f >> 1, "needs an integer, got float64"),
    (lambda: s.sin(), r"cannot take \.sin\(\) of string"),
    (lambda: struct(i + 1, "i"), "field 'i' is there twice; name one of them"),
    (lambda: struct(lit(1)), r"has no name; write struct\(name="),
    (lambda: concat_list("i", "s"), "cannot put into one list int64 and string"),
    (lambda: concat_list("l", "i"), "cannot join .*put what is no list into one"),
    (lambda: l.list.set_union(i), "needs a list, got int64"),
    (lambda: d.dt.in_zone("UTC").year(), r"date is the same in every zone; leave \.in_zone\('UTC'\) out"),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_wrong_operands_are_refused_when_the_pipeline_is_built(number: int) -> None:
    """The message says what is wrong and what to do."""
    build, message = WRONG[number]
    with pytest.raises(PipelineError, match=message):
        output_field(build(), SCHEMA)


@pytest.mark.parametrize(
    ("expr", "values", "message"),
    [
        (col("x").cast(bool), ["true", "maybe"], "conversion from text to boolean failed for 'maybe'"),
        (col("x").str.from_base64(), ["?"], r"conversion from base64 failed for '\?'"),
        (col("x").json.get("$.a", int), ['{"a": "x"}'], "conversion from"),
    ],
)
def test_what_cannot_be_read_fails_the_row(expr: Expr, values: list[str], message: str) -> None:
    """Unless it is told to give null instead, which the message says."""
    with pytest.raises(UserCodeError, match=message):
        evaluate(expr, x=values)


def test_values_come_out_of_json_in_their_type() -> None:
    """Numbers, booleans, moments, lists and rows."""
    text = ['{"n": 7, "f": 1.5, "b": true, "t": "2024-01-02T03:04:05Z", "l": [1, null]}']
    j = col("j").json
    both = [j.get("$.n", int), j.get("$.f", float), j.get("$.b", bool), j.get("$.t", datetime), j.get("$.l", list[int])]
    assert [evaluate(expr, j=text)[0] for expr in both] == [
        7, 1.5, True, datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC), [1, None],
    ]  # fmt: skip
    assert evaluate(j.get("$.n", bool, strict=False), j=['{"n": "x"}']) == [None]


def test_an_unknown_function_is_named_by_what_others_call_it() -> None:
    """SQL's and Polars' spellings lead to ours; an unknown name to the nearest."""
    for wrong, message in [
        (lambda: s.lower(), r"col\(\"s\"\)\.lower: there is no such function; did you mean x\.str\.to_lowercase"),
        (lambda: t.dt.convert_time_zone("UTC"), r"did you mean x\.dt\.in_zone"),
        (lambda: s.str.lpad(3), r"did you mean x\.str\.pad_start"),
        (lambda: i.avg(), r"did you mean x\.mean"),
        (lambda: s.str.len(), r"did you mean x\.str\.len_chars"),
        (lambda: s.list.length(), r"did you mean x\.list\.len"),
        (lambda: t.dt.years(), r"did you mean 'dt\.year'"),
    ]:
        with pytest.raises(PipelineError, match=message):
            wrong()
    assert not hasattr(i, "lower")


def test_day_of_a_zone_whose_midnight_comes_twice_begins_at_the_first() -> None:
    """Havana, 2015-11-01: clocks go back from 1:00 to 0:00."""
    expr = col("t").dt.in_zone("America/Havana").truncate("1d")
    noon = datetime(2015, 11, 1, 17, tzinfo=UTC)
    assert evaluate(expr, t=[noon]) == [datetime(2015, 11, 1, 4, tzinfo=UTC)]
