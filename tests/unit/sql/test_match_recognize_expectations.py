"""MATCH_RECOGNIZE gives what tests and pages of Trino, Flink and Esper say, and so does the judge of patterns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import pytest
from match_recognize_cases import CASES, REFUSED, TABLES, Case, Refused, Table
from match_recognize_judge import Alt, Labels, Rep, Seq, Tree, Var, matches, permute

from penstock import Pipeline
from penstock.api.stream import Stream
from penstock.connectors import files, iterables
from penstock.errors import PenstockError
from penstock.sql.text import SqlError
from penstock.testing import run_sinks
from penstock.types import FLOAT64, INT32, INT64, STRING, TIMESTAMP, Field, Schema

TYPES = {"INT": INT32, "BIGINT": INT64, "DOUBLE": FLOAT64, "STRING": STRING, "TIMESTAMP": TIMESTAMP}
Rows = list[tuple[Any, ...]]
BY_NAME = {case.name: case for case in CASES}
SHUFFLED = [case for case in CASES if case.table in ("parts", "two_parts", "amounts", "shuffled")]


def read(pipeline: Pipeline, table: Table, **options: Any) -> Stream[Any]:
    """The stream of a table, whose rows the run gives."""
    fields = tuple(Field(name, TYPES[kind], nullable=name != table.event_time) for name, kind in table.columns)
    source = iterables.Source([], schema=Schema(fields), event_time=table.event_time, **options)
    return pipeline.read(source)


def run(cases: Sequence[Case], table: Table, *, batch: int = 100, **options: Any) -> dict[str, Rows]:
    """What queries of one table give, by their names: all in one run, because one for each would take too long."""
    pipeline = Pipeline("expected")
    stream = read(pipeline, table, **options)
    for number, case in enumerate(cases):
        found = pipeline.sql(case.query, **{table.name: stream})
        assert isinstance(found, Stream)
        found.write(files.Sink(f"case{number}")).uid(f"case{number}")
    rows = [dict(zip([name for name, _ in table.columns], row, strict=True)) for row in table.rows]
    written = run_sinks(pipeline, rows, batch=batch)
    return {case.name: [tuple(row.values()) for row in written[f"case{n}"]] for n, case in enumerate(cases)}


@cache
def answers(table: str) -> dict[str, Rows | PenstockError]:
    """What all queries of a table give; each in a run of its own if one of them is an error, which is its answer."""
    cases = [case for case in CASES if case.table == table]
    try:
        return {**run(cases, TABLES[table])}
    except PenstockError:
        return {case.name: alone(case) for case in cases}


def alone(case: Case) -> Rows | PenstockError:
    try:
        return run([case], TABLES[case.table])[case.name]
    except PenstockError as error:
        return error


def plain(rows: Sequence[tuple[Any, ...]]) -> list[str]:
    """Rows in an order that does not depend on which kinds numbers and zones are."""

    def cell(value: Any) -> Any:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        return value.astimezone(UTC) if isinstance(value, datetime) else value

    return sorted(str([cell(value) for value in row]) for row in rows)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_rows_are_those_of_other_engines(case: Case) -> None:
    found = answers(case.table)[case.name]
    if isinstance(found, PenstockError):
        raise found
    assert plain(found) == plain(case.expected), case.source


@pytest.mark.parametrize("case", SHUFFLED, ids=lambda case: case.name)
def test_rows_may_arrive_in_any_order(case: Case) -> None:
    """As they do in these tests: the event time says the order, whatever the batches are."""
    table = TABLES[case.table]
    backwards = Table(table.name, table.columns, table.rows[::-1], table.event_time)
    found = run([case], backwards, batch=2, max_out_of_orderness="1h")[case.name]
    assert plain(found) == plain(case.expected), case.source


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_what_cannot_be_matched_in_a_stream_is_refused(case: Refused) -> None:
    pipeline = Pipeline("refused")
    stream = read(pipeline, TABLES["acme"])
    with pytest.raises(PenstockError) as caught:
        pipeline.sql(case.query, acme=stream)
    message = caught.value.message if isinstance(caught.value, SqlError) else str(caught.value)
    assert re.search(case.fragment, message, re.IGNORECASE), (message, case.source)


def test_times_of_a_partition_rise() -> None:
    """Else the order of rows would be for the engine to choose, and there were several right answers."""
    for case in CASES:
        table = TABLES[case.table]
        keys = re.search(r"PARTITION BY (.*?) ORDER", case.query)
        places = [name for name, _ in table.columns]
        wanted = [places.index(key) for key in keys[1].split(", ")] if keys else []
        seen = [(*(row[place] for place in wanted), row[places.index(table.event_time)]) for row in table.rows]
        assert len({*seen}) == len(seen), case.name
    assert len(BY_NAME) == len(CASES)


# -- the judge ---------------------------------------------------------------------------------------------------------

A, B, C, D, E = (Var(name) for name in "ABCDE")


def labelled(case: Case, tree: Tree, skip: Sequence[str] = ("past last row",)) -> Rows:
    """The judge's rows for tables of prices, with the measures of most tests of Trino: B falls, C rises, D is never."""
    prices = [row[1] for row in TABLES[case.table].rows]
    falls_or_stays = "B AS B.value <= PREV" in case.query

    def fulfils(name: str, row: int, _labels: Labels) -> bool:
        change = prices[row] - prices[row - 1] if row else 0
        return (
            name == "A"
            or (name == "B" and (change < 0 or (falls_or_stays and row > 0 and change == 0)))
            or (name == "C" and change > 0)
        )

    found = matches(tree, range(len(prices)), fulfils, skip)
    return [(row + 1, number, prices[row], name) for number, match in enumerate(found, 1) for row, name in match]


@pytest.mark.parametrize("name", [name for name in BY_NAME if name.startswith("quantifier")])
def test_the_judge_counts_as_quantifiers_say(name: str) -> None:
    bounds = re.fullmatch(r"quantifier B(?:\{(\d*)(,?)(\d*)\}|\+)(\??)", name)
    assert bounds
    least = int(bounds[1] or 1)
    tree = Rep(
        B, least, int(bounds[3]) if bounds[3] else least if bounds[2] == "" and bounds[1] else None, not bounds[4]
    )
    assert labelled(BY_NAME[name], tree) == [*BY_NAME[name].expected]


@pytest.mark.parametrize(
    ("name", "skip"),
    [
        ("PAST LAST ROW", ("past last row",)), ("TO NEXT ROW", ("next row",)), ("TO FIRST C", ("first", "C")),
        ("TO LAST B", ("last", "B")), ("TO B", ("last", "B")), ("TO U", ("last", "C", "D")),
    ],
)  # fmt: skip
def test_the_judge_skips_as_it_is_told(name: str, skip: Sequence[str]) -> None:
    tree = Seq((A, Rep(B, 1, None), Rep(C, 1, None), Rep(D, 0, 1)))
    assert labelled(BY_NAME[f"skip {name}"], tree, skip) == [*BY_NAME[f"skip {name}"].expected]


@pytest.mark.parametrize("skip", [("first", "A"), ("last", "A"), ("first", "D"), ("middle", "B")])
def test_the_judge_does_not_skip_to_where_it_was(skip: Sequence[str]) -> None:
    with pytest.raises(ValueError, match="cannot skip"):
        labelled(BY_NAME["simple"], Seq((A, Rep(B, 1, None))), skip)


@pytest.mark.parametrize(
    ("name", "tree"),
    [
        ("abcd A B", Seq((A, B))),
        ("aabcd A* B", Seq((Rep(A, 0, None), B))),
        ("bcd A* B", Seq((Rep(A, 0, None), B))),
        ("abcd A B | B C", Alt((Seq((A, B)), Seq((B, C))))),
        ("abcd PERMUTE(A, B, C)", permute(A, B, C)),
        ("abcd A B?", Seq((A, Rep(B, 0, 1)))),
        ("abcd A B??", Seq((A, Rep(B, 0, 1, greedy=False)))),
        ("ten_a A+", Rep(A, 1, None)),
        ("ten_a A+", Rep(Rep(A, 1, None), 1, None)),
        ("ten_a A+", Rep(Rep(A, 0, None), 0, None)),
    ],
)
def test_the_judge_reads_letters(name: str, tree: Tree) -> None:
    letters = [row[1] for row in TABLES[BY_NAME[name].table].rows]
    found = matches(tree, range(len(letters)), lambda name, row, _: letters[row] == name)
    assert [pair for match in found for pair in match] == [*BY_NAME[name].expected]


def test_the_judge_gives_conditions_the_labels_so_far() -> None:
    """The sum of what A has must be 5 for A."""
    case = BY_NAME["average of A"]
    values = [row[1] for row in TABLES[case.table].rows]

    def fulfils(name: str, _row: int, labels: Labels) -> bool:
        mine = [values[row] for row, each in labels if each == "A"]
        return name == "B" or sum(mine) == 5 * len(mine)

    (match,) = matches(Rep(Alt((A, B)), 1, None), range(4), fulfils)
    assert [(row + 1, name) for row, name in match] == [row[:2] for row in case.expected]


def test_the_judge_lets_a_match_take_less_than_its_time() -> None:
    """By the example of Flink's page, where the 1 of 13:00 is an hour behind 15 and 40 minutes behind 14."""
    prices, times = ([row[place] for row in TABLES["hour"].rows] for place in (1, 3))

    def fulfils(name: str, row: int, labels: Labels) -> bool:
        first = prices[labels[0][0]]
        return name == "A" or (prices[row] > first - 10 if name == "B" else prices[row] < first - 10)

    tree = Seq((A, Rep(B, 0, None), C))
    (match,) = matches(tree, times, fulfils, within=timedelta(minutes=61))
    assert match == ((6, "A"), (7, "B"), (8, "B"), (9, "C"))
    assert matches(tree, times, fulfils, within=timedelta(hours=1)) == [((7, "A"), (8, "B"), (9, "C"))]


def test_the_judge_does_not_repeat_what_matched_no_row() -> None:
    """An empty alternative that stands first is taken, and the row behind is looked at anew."""
    empty = Seq(())
    fits = [True, True, False]
    assert matches(Rep(Alt((empty, A)), 0, None), range(3), lambda _name, row, _: fits[row]) == [(), (), ()]
    assert matches(Rep(Alt((A, empty)), 3, None), range(3), lambda _name, row, _: fits[row]) == [
        ((0, "A"), (1, "A")),
        (),
    ]
