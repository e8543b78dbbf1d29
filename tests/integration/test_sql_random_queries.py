"""Random queries over random tables come to what DuckDB finds in them: of facts, and of tables that change.

By hand, many: `python tests/integration/test_sql_random_queries.py FIRST_SEED SEEDS`.
"""

from __future__ import annotations

import random
import sys
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any, Final

import duckdb
import polars as pl
import pytest
from random_queries import COLUMNS, NUMBERS, Select, Writer
from test_changes_against_duckdb import Changes

from penstock import Pipeline
from penstock.api.update_streams import UpsertStream
from penstock.connectors import collecting, iterables
from penstock.functions.windows.definitions import RETRACTED
from penstock.sql.text import SqlError
from penstock.types import INT64, STRING, Field, Schema

Row = dict[str, Any]
TOGETHER: Final = 20
IN_SUITE: Final = 8
SCHEMAS: Final = {
    table: Schema(tuple(Field(name, INT64 if kind == NUMBERS else STRING, name != "id") for name, kind in of.items()))
    for table, of in COLUMNS.items()
}


class Tables:
    """Four tables with nulls and duplicates, of which the last is empty, as facts or as histories of changes."""

    def __init__(self, seed: int | str, kind: str) -> None:
        self.chance = random.Random(f"tables {seed}")
        self.kind = kind
        self.changes: dict[str, list[Row]] = {}
        self.rows: dict[str, list[Row]] = {}
        for table, keys in (("t", 14), ("u", 9), ("v", 5), ("e", 4)):
            self.changes[table], self.rows[table] = self.history(table, keys)
        self.database = duckdb.connect()
        for table, rows in self.rows.items():
            frame = pl.DataFrame(rows, schema=SCHEMAS[table].polars())
            self.database.register(f"given_{table}", frame.to_arrow())
            self.database.execute(f"create table {table} as select * from given_{table}")

    def row(self, table: str, key: int) -> Row:
        def value(name: str) -> Any:
            if self.chance.random() < 0.15:
                return None
            return self.chance.choice(["p", "q", "pq"]) if COLUMNS[table][name] != NUMBERS else self.chance.randrange(4)

        return {name: key if name == "id" else value(name) for name in COLUMNS[table]}

    def history(self, table: str, keys: int) -> tuple[list[Row], list[Row]]:
        if self.kind == "facts":
            rows = [self.row(table, key) for key in range(keys)] if table != "e" else []
            return rows, rows
        held: dict[int, Row] = {}
        changes: list[Row] = []

        def write(key: int, row: Row | None) -> None:
            gone = held.pop(key, None)
            if self.kind == "changes" and gone is not None:
                changes.append({**gone, RETRACTED: True})
            elif self.kind == "upserts" and row is None:
                changes.append({"id": key, RETRACTED: True})
            if row is not None:
                held[key] = row
                changes.append({**row, RETRACTED: False})

        for _ in range(keys * 3):
            key = self.chance.randrange(keys)
            write(key, None if self.chance.random() < 0.25 else self.row(table, key))
        if table == "e":
            for key in list(held):
                write(key, None)
        return changes, list(held.values())

    def streams(self, p: Pipeline) -> dict[str, Any]:
        if self.kind == "facts":
            return {name: p.read(iterables.Source(rows, schema=SCHEMAS[name])) for name, rows in self.rows.items()}
        complete = self.kind == "changes"
        return {
            name: p.read(Changes(changes, SCHEMAS[name], "id", complete=complete))
            for name, changes in self.changes.items()
        }

    def ours(self, queries: Sequence[str]) -> list[Counter[tuple[Any, ...]]]:
        """The final rows of queries that run in one pipeline."""
        pipeline = Pipeline("queries")
        streams = self.streams(pipeline)
        sinks: list[tuple[list[str], collecting.Sink]] = []
        for query in queries:
            found = pipeline.sql(query, **streams)
            final = found.final() if isinstance(found, UpsertStream) else found
            sink = collecting.Sink()
            final.write(sink)
            sinks.append((list(final.schema.names), sink))
        pipeline.run(durable=False)
        return [counted([row[name] for name in names] for row in sink.rows) for names, sink in sinks]

    def theirs(self, query: str) -> Counter[tuple[Any, ...]]:
        return counted(self.database.execute(query).fetchall())

    def wrong(self, query: str) -> str:
        """What is wrong with the answer to one query, if DuckDB can answer it."""
        try:
            theirs = self.theirs(query)
        except duckdb.Error:
            return ""
        try:
            (ours,) = self.ours([query])
        except SqlError as error:
            return str(error)
        except Exception:
            return "".join(traceback.format_exc(limit=-4))
        return "" if ours == theirs else f"ours alone: {ours - theirs}, DuckDB's alone: {theirs - ours}"

    def shrunk(self, query: Select) -> Select:
        """The query without what it can do without while the same is wrong about it."""
        what = kind_of(self.wrong(str(query)))
        while smaller := next((each for each in query.smaller() if kind_of(self.wrong(str(each))) == what), None):
            query = smaller
        return query


def kind_of(wrong: str) -> str:
    """The beginning of a message behind its place."""
    return wrong.split("\n")[0].lstrip("<sql>:0123456789 ")[:20] if wrong.startswith("<sql>") else wrong[:8]


def counted(rows: Iterable[Sequence[Any]]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(map(plain, row)) for row in rows)


def plain(value: Any) -> Any:
    """A value in a form in which both engines agree about it."""
    return round(float(value), 6) if isinstance(value, float | Decimal) else value


def failures(seed: int | str, kind: str, queries: int) -> list[str]:
    """Queries whose answers differ, as small as they can be made, each with what is wrong about it."""
    tables = Tables(seed, kind)
    writer = Writer(f"{seed} {kind}")
    written: list[Select] = []
    theirs: list[Counter[tuple[Any, ...]]] = []
    while len(written) < queries:
        query = writer.query()
        try:
            theirs.append(tables.theirs(str(query)))
        except duckdb.Error:  # as where a column of a number has texts above it
            continue
        written.append(query)
    try:
        ours = tables.ours([str(query) for query in written])
    except Exception:
        suspects = [query for query in written if tables.wrong(str(query))]
        if not suspects:
            raise
    else:
        suspects = [query for query, one, other in zip(written, ours, theirs, strict=True) if one != other]
    found: list[str] = []
    for query in suspects[:3]:
        small = tables.shrunk(query)
        found.append(f"{kind}, seed {seed}: {small}\n{tables.wrong(str(small)) or 'only with others: ' + str(query)}")
    return found


@pytest.mark.parametrize("kind", ["facts", "upserts", "changes"])
def test_random_queries_come_to_what_duckdb_finds(kind: str) -> None:
    assert not (found := failures(1, kind, IN_SUITE)), "\n".join(found)


if __name__ == "__main__":
    first, seeds = map(int, sys.argv[1:])
    for number in range(first, first + seeds):
        for one in sys.argv[3:] or ("facts", "upserts", "changes"):
            for failure in failures(number, one, TOGETHER):
                print(failure, flush=True)
        print("seed", number, flush=True)
