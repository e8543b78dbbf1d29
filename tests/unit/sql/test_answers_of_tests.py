"""Answers in files of tests: what cells say, which tables of text are read, and which answers are the same."""

from __future__ import annotations

import contextlib
from collections import Counter
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table

from penstock.errors import PipelineError
from penstock.sql.testing.changes import Log
from penstock.sql.testing.comparing import Found, difference
from penstock.sql.testing.files import read_tests
from penstock.sql.testing.tables import (
    cell_of,
    drawn,
    is_line_of_table,
    name_cell,
    normal_cell,
    table_of,
    value_of,
)
from penstock.sql.text import Span, SqlError, SqlText
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
    DataType,
    DecimalType,
    Field,
    ListType,
    MapType,
    StructType,
)

TEXTS = st.text(st.sampled_from('ab |"\\\n\t[{NUL1.\u00e4\u2028-+=\u2500') | st.characters(codec="utf-8"), max_size=6)
MOMENTS = st.datetimes(timezones=st.just(UTC))
VALUES: dict[DataType, st.SearchStrategy[Any]] = {
    BOOLEAN: st.booleans(), INT8: st.integers(-128, 127), INT64: st.integers(-(2**63), 2**63 - 1), STRING: TEXTS,
    FLOAT64: st.floats(allow_nan=False).map(lambda x: float(f"{x:.15g}") + 0.0),
    FLOAT32: st.floats(width=32, allow_nan=False, allow_subnormal=False).map(lambda x: float(f"{x:.6g}") + 0.0),
    BINARY: st.binary(max_size=5), DATE: st.dates(), TIME: st.times(), TIMESTAMP: MOMENTS,
    DURATION: st.timedeltas(timedelta(-10_000), timedelta(10_000)),
    DecimalType(6, 2): st.integers(-(10**6) + 1, 10**6 - 1).map(lambda x: Decimal(x).scaleb(-2)),
}  # fmt: skip
NESTED: dict[DataType, st.SearchStrategy[Any]] = {
    ListType(STRING): st.lists(st.none() | TEXTS, max_size=3),
    MapType(INT32): st.dictionaries(TEXTS, st.none() | st.integers(-5, 5), max_size=3),
    StructType((Field("a", INT32), Field("b", DATE))): st.fixed_dictionaries({"a": VALUES[INT8], "b": st.dates()}),
}  # fmt: skip


@pytest.mark.parametrize("kind", [*VALUES], ids=str)
@given(data=st.data())
def test_a_cell_says_its_value(kind: DataType, data: st.DataObject) -> None:
    value = data.draw(st.none() | VALUES[kind])
    assert value_of(cell_of(value, kind), kind) == value


@given(st.data())
def test_a_table_is_read_as_it_is_drawn(data: st.DataObject) -> None:
    """With every value that a cell can have; equal values are equal cells, and others are not."""
    kinds = data.draw(st.lists(st.sampled_from([*VALUES, *NESTED]), min_size=1, max_size=3))
    columns = [st.none() | {**VALUES, **NESTED}[kind] for kind in kinds]
    rows = data.draw(st.lists(st.tuples(*columns), max_size=3))
    cells = [[cell_of(value, kind) for value, kind in zip(row, kinds, strict=True)] for row in rows]
    names = data.draw(st.lists(TEXTS, min_size=len(kinds), max_size=len(kinds)))
    lines = drawn([*map(name_cell, names)], cells, [False, True, False][: len(kinds)])
    text, spans = commented(lines)
    table = table_of(text, spans)
    assert table.names == names
    found = [[normal_cell(cell, kind, text) for cell, kind in zip(row, kinds, strict=True)] for row in table.rows]
    assert found == cells


def commented(lines: list[str]) -> tuple[SqlText, list[Span]]:
    text = "\n".join(f"-- {line}" for line in lines)
    spans, start = [], 0
    for line in lines:
        spans.append(Span(start, start + len(line) + 3))
        start += len(line) + 4
    return SqlText(text), spans


def rich_table() -> str:
    table = Table("id", "name")
    table.add_row("1", "Ann")
    table.add_row("NULL", "a b")
    console = Console(width=60)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


@pytest.mark.parametrize(
    "drawn_by",
    [
        "+----+------+\n| id | name |\n+----+------+\n|  1 |  Ann |\n| NULL | a b |\n+----+------+",
        "|id|name|\n|--:|:--|\n|1|Ann|\n|NULL|a b|",
        "| id | name\n| 1 | Ann\n| NULL | a b",
        "┌──────┬──────┐\n│ id   │ name │\n├──────┼──────┤\n│    1 │ Ann  │\n│ NULL │ a b  │\n└──────┴──────┘",
        rich_table(),
    ],
)
def test_tables_of_other_tools_are_read(drawn_by: str) -> None:
    """Of Flink's client, Markdown, DuckDB, and of the prompt of penstock."""
    lines = drawn_by.splitlines()
    assert all(is_line_of_table(f"-- {line}") for line in lines if not set(line) <= set("-:|") or "|" in line)
    table = table_of(*commented(lines))
    assert [[cell.text for cell in row] for row in (table.header, *table.rows)] == [
        ["id", "name"], ["1", "Ann"], ["NULL", "a b"],
    ]  # fmt: skip


def test_dashes_between_bars_are_values_but_below_the_names() -> None:
    """As in Markdown; a row that nobody reads would be one that nobody misses."""
    lines = ["| a | b |", "|---|:-:|", "| - | - |", "| --- | --- |", "|  | = |"]
    table = table_of(*commented(lines))
    assert [[cell.text for cell in row] for row in table.rows] == [["-", "-"], ["---", "---"], ["", "="]]
    assert [row[0].text for row in table_of(*commented(["| a |", "| - |"])).rows] == ["-"]


@pytest.mark.parametrize("comment", ["-- a comment", "-- a | b", "--------", "-- + more", "-- -----", "--", "-- ='|'"])
def test_other_comments_are_no_tables(comment: str) -> None:
    assert not is_line_of_table(comment)


@pytest.mark.parametrize(
    ("cell", "kind", "value"),
    [
        ("2026-01-31 12:00:00+00:00", TIMESTAMP, datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31", TIMESTAMP, datetime(2026, 1, 31, tzinfo=UTC)),
        ("true", BOOLEAN, True),
        ("17.5", DecimalType(10, 2), Decimal("17.50")),
        ("1e3", FLOAT64, 1000.0),
        ("null", STRING, None),
        ('"null"', STRING, "null"),
        ("'x'", STRING, "'x'"),
        ("-1 00:00:01.5", DURATION, -timedelta(days=1, seconds=1.5)),
        ("10:00", TIME, time(10)),
        ("2026-01-31", DATE, date(2026, 1, 31)),
    ],
)
def test_values_may_be_written_otherwise(cell: str, kind: DataType, value: Any) -> None:
    assert value_of(cell, kind) == value


@pytest.mark.parametrize(
    ("cell", "kind"),
    [
        ("300", INT8), ("1.0", INT64), ("x", FLOAT64), ("1.255", DecimalType(10, 2)), ("yes", BOOLEAN), ("", INT64),
        ("2026-02-30", DATE), ("[1", ListType(INT32)), ("{}", ListType(INT32)), ("[1.5]", ListType(INT32)),
        ('{"b": 1}', StructType((Field("a", INT32),))), ('"x', STRING), ("X'0'", BINARY), ("[true]", ListType(INT32)),
    ],
)  # fmt: skip
def test_what_is_no_value_of_the_type_is_refused(cell: str, kind: DataType) -> None:
    with pytest.raises(PipelineError, match="write for example"):
        value_of(cell, kind)


# -- which answers are the same ------------------------------------------------------------------------------------------

COLUMNS = (Field("k", STRING), Field("v", STRING))
ROWS = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("12")), max_size=5)


@given(ROWS, ROWS)
def test_rows_without_an_order_are_the_same_in_any(
    found: list[tuple[str, str]], expected: list[tuple[str, str]]
) -> None:
    answer = Found(COLUMNS, found)
    assert answer.same_as(expected) == (Counter(found) == Counter(expected))
    assert answer.same_as(answer.settled)
    shown = difference(SqlText("SELECT"), Span(0, 6), answer, expected).splitlines()[4:]
    marks = Counter(line[2] for line in shown if "..." not in line)
    assert marks["+"] - marks["-"] == len(found) - len(expected)


@given(ROWS, st.randoms(use_true_random=False))
def test_rows_of_one_place_in_an_order_may_change_places(rows: list[tuple[str, str]], chance: Any) -> None:
    found = sorted(rows, key=lambda row: row[0])
    expected = [*found]
    chance.shuffle(expected)
    answer = Found(COLUMNS, found, ties=[row[0] for row in found])
    assert answer.same_as(expected) == ([row[0] for row in expected] == [row[0] for row in found])


@given(ROWS, st.randoms(use_true_random=False))
def test_changes_of_one_key_are_in_order(rows: list[tuple[str, str]], chance: Any) -> None:
    expected = [*rows]
    chance.shuffle(expected)
    same = all([row for row in rows if row[0] == k] == [row for row in expected if row[0] == k] for k in "ab")
    assert Found(COLUMNS, rows, key=(0,)).same_as(expected) == same


# -- rows that replace others --------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from("ab"), st.none() | st.integers(0, 2)), max_size=12))
def test_of_updates_the_last_row_of_a_key_is_left(updates: list[tuple[str, int | None]]) -> None:
    """None takes the row of the key back. Every change is that of Flink's upsert streams."""
    held: dict[str, int] = {}
    kinds: list[str] = []
    for key, value in updates:
        kinds.append("-D" if value is None else "+U" if key in held else "+I")
        if value is None:
            held.pop(key, None)
        else:
            held[key] = value
    log = Log([{"k": key, "v": value, "gone": value is None} for key, value in updates], ("k",), "gone")
    assert {row["k"]: row["v"] for row in log.final()} == held
    assert len(log.final()) == len(held)
    assert [kind for kind, _ in log.changes()] == kinds


@given(st.lists(st.tuples(st.sampled_from("ab"), st.none() | st.integers(0, 2)), max_size=12), st.booleans())
def test_of_changes_every_row_is_left_that_is_not_taken_back(steps: list[tuple[str, int | None]], keyed: bool) -> None:
    held: dict[str, int] = {}
    rows: list[dict[str, Any]] = []
    kinds: list[str] = []
    for key, value in steps:
        before = held.pop(key, None)
        if before is not None:
            rows.append({"k": key, "v": before, "gone": True})
            kinds.append("-D" if value is None else "-U")
        if value is not None:
            held[key] = value
            rows.append({"k": key, "v": value, "gone": False})
            kinds.append("+I" if before is None else "+U")
    log = Log(rows, ("k",) if keyed else None, "gone", complete=True)
    assert {row["k"]: row["v"] for row in log.final()} == held
    assert len(log.final()) == len(held)
    if keyed:
        merged = "".join(kind for kind, _ in log.changes())
        assert merged.count("+") == "".join(kinds).count("+")
        assert [row for _, row in log.changes()] == rows


@given(st.text(st.sampled_from("-|:test param=a\n;'\"SELECT 1 program error") | st.characters(), max_size=60))
def test_any_file_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(SqlError):
        read_tests(SqlText(text), "any")
