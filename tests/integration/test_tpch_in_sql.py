"""The queries of TPC-H come to what DuckDB finds, over tables of facts and over such whose rows are replaced and deleted.

`sql/tpch.sql` has the queries, `tpch.py` makes the tables.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import duckdb
import polars as pl
import pytest
from embedded_runs import assert_same
from test_changes_against_duckdb import Changes
from tpch import KEYS, SCHEMAS, Tpch, histories

from penstock import Pipeline
from penstock.api.update_streams import UpsertStream
from penstock.connectors import collecting, iterables
from penstock.task import sources

_TEXT: Final = (Path(__file__).parent / "sql" / "tpch.sql").read_text()
QUERIES: Final = {
    int(number): text.strip().rstrip(";")
    for number, text in re.findall(r"^-- Q(\d+): .*\n((?:(?!-- Q).*\n?)*)", _TEXT, re.MULTILINE)
}
TOGETHER: Final = [range(1, 8), range(8, 15), range(15, 23)]


class Tables:
    """The tables as streams, of facts or of changes, and in DuckDB as they are in the end."""

    def __init__(self, kind: str) -> None:
        self.changes = histories(Tpch(3), Tpch(4)) if kind == "changes" else {}
        ends = {table: history.held for table, history in self.changes.items()} or Tpch(4).rows
        self.rows = {table: list(held.values()) for table, held in ends.items()}
        self.database = duckdb.connect()
        for table, rows in self.rows.items():
            self.database.register(f"given_{table}", pl.DataFrame(rows, schema=SCHEMAS[table].polars()).to_arrow())
            self.database.execute(f"create table {table} as select * from given_{table}")

    def streams(self, p: Pipeline) -> dict[str, Any]:
        if not self.changes:
            return {table: p.read(iterables.Source(rows, schema=SCHEMAS[table])) for table, rows in self.rows.items()}
        return {
            table: p.read(Changes(history.changes, SCHEMAS[table], *KEYS[table], complete=history.complete))
            for table, history in self.changes.items()
        }

    def ours(self, numbers: Sequence[int]) -> list[Counter[str]]:
        """The final rows of queries that run in one pipeline."""
        p = Pipeline("tpch", max_parallelism=8)
        streams = self.streams(p)
        sinks: list[tuple[Sequence[str], collecting.Sink]] = []
        for number in numbers:
            found = p.sql(QUERIES[number], **streams)
            final = found.final() if isinstance(found, UpsertStream) else found
            sink = collecting.Sink()
            final.write(sink)
            sinks.append((final.schema.names, sink))
        p.run(durable=False)
        return [counted([row[name] for name in names] for row in sink.rows) for names, sink in sinks]

    def theirs(self, number: int) -> Counter[str]:
        return counted(self.database.execute(QUERIES[number]).fetchall())


def plain(value: Any) -> Any:
    """A value in a form in which both engines agree about it: a mean of decimals has six digits, as in Flink."""
    return round(float(value), 6) if isinstance(value, float | Decimal) else value


def counted(rows: Iterable[Sequence[Any]]) -> Counter[str]:
    return Counter(str(tuple(map(plain, row))) for row in rows)


@pytest.fixture(scope="module", params=["facts", "changes"])
def tables(request: pytest.FixtureRequest) -> Tables:
    return Tables(request.param)


def test_all_queries_are_there_and_find_rows(tables: Tables) -> None:
    assert [number for numbers in TOGETHER for number in numbers] == list(QUERIES) == list(range(1, 23))
    empty = {str((None,)), str((0.0,))}
    assert not [number for number in QUERIES if set(tables.theirs(number)) <= empty]


@pytest.mark.parametrize("numbers", TOGETHER, ids=str)
def test_queries_come_to_what_duckdb_finds(
    numbers: Sequence[int], tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables are read side by side, in parts."""
    monkeypatch.setattr(sources, "BATCH_ROWS", 200)
    for number, rows in zip(numbers, tables.ours(numbers), strict=True):
        assert_same(rows, tables.theirs(number), f"Q{number}")
