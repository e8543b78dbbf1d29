"""Queries over tables with nulls, duplicates and no rows at all come to what DuckDB finds in the same tables.

`sql/queries.sql` has the queries, one per line. Many run in one pipeline, as the statements of a file do.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import duckdb
import polars as pl
import pytest

from penstock import Pipeline
from penstock.api.stream import Stream
from penstock.api.update_streams import UpsertStream
from penstock.connectors import collecting, iterables

QUERIES: Final = (Path(__file__).parent / "sql" / "queries.sql").read_text().splitlines()
TOGETHER: Final = 18
_DRAWN: Final = random.Random(5)


def maybe(value: Any) -> Any:
    return None if _DRAWN.random() < 0.15 else value


def drawn() -> dict[str, pl.DataFrame]:
    draw = _DRAWN
    t = [
        {
            "id": number, "a": maybe(draw.randrange(5)), "b": maybe(draw.randrange(4)),
            "x": maybe(round(draw.uniform(-5, 5), 1)), "s": maybe(draw.choice(["p", "q", "r", "pq"])),
            "f": maybe(draw.random() < 0.5), "d": maybe(date(2024, 1, 1) + timedelta(days=draw.randrange(400))),
        }
        for number in range(30)
    ]  # fmt: skip
    u = [
        {"k": number, "a": maybe(draw.randrange(6)), "y": maybe(draw.randrange(10)), "s": maybe(draw.choice("pqz"))}
        for number in range(20)
    ]
    v = [{"a": draw.randrange(6), "name": maybe(f"n{number}")} for number in range(8)]
    tables = {name: pl.DataFrame(rows, infer_schema_length=None) for name, rows in (("t", t), ("u", u), ("v", v))}
    return {**tables, "e": pl.DataFrame(schema={"a": pl.Int64, "z": pl.Int64})}


TABLES: Final = drawn()


def plain(value: Any) -> Any:
    """A value in a form in which both engines agree about it."""
    if isinstance(value, Decimal):
        value = float(value)
    if isinstance(value, float):
        return round(value, 6)
    return tuple(map(plain, value)) if isinstance(value, list) else value


def counted(rows: Iterable[Sequence[Any]]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(map(plain, row)) for row in rows)


@pytest.fixture(scope="module")
def database() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    for name, frame in TABLES.items():
        connection.register(f"given_{name}", frame.to_arrow())
        connection.execute(f"create table {name} as select * from given_{name}")
    return connection


def run(queries: Sequence[str]) -> list[list[tuple[Any, ...]]]:
    """The rows of queries that run in one pipeline."""
    pipeline = Pipeline("queries")
    streams = {
        name: pipeline.read(iterables.Source(frame.to_dicts(), schema=frame.to_arrow().schema))
        for name, frame in TABLES.items()
    }
    sinks: list[tuple[list[str], collecting.Sink]] = []
    for query in queries:
        found: Stream[Any] | UpsertStream = pipeline.sql(query, **streams)
        final = found.final() if isinstance(found, UpsertStream) else found
        sink = collecting.Sink()
        final.write(sink)
        sinks.append((list(final.schema.names), sink))
    pipeline.run(durable=False)
    return [[tuple(row[name] for name in names) for row in sink.rows] for names, sink in sinks]


@pytest.mark.parametrize("first", range(0, len(QUERIES), TOGETHER))
def test_queries_come_to_what_duckdb_finds(first: int, database: duckdb.DuckDBPyConnection) -> None:
    queries = [query.rstrip(";") for query in QUERIES[first : first + TOGETHER]]
    for query, rows in zip(queries, run(queries), strict=True):
        assert counted(rows) == counted(database.execute(query).fetchall()), query


def test_columns_of_using_are_there_once_and_first(database: duckdb.DuckDBPyConnection) -> None:
    """As in the standard and in Flink; DuckDB leaves them where they are in the left table."""
    queries = [
        "SELECT * FROM u JOIN v USING (a)",
        "SELECT * FROM u RIGHT JOIN v USING (a)",
        "SELECT * FROM t NATURAL JOIN u",
    ]
    written = [
        "SELECT a, k, y, s, name FROM u JOIN v USING (a)",
        "SELECT a, k, y, s, name FROM u RIGHT JOIN v USING (a)",
        "SELECT a, s, id, b, x, f, d, k, y FROM t NATURAL JOIN u",
    ]
    for query, same, rows in zip(queries, written, run(queries), strict=True):
        assert counted(rows) == counted(database.execute(same).fetchall()), query


def test_integers_are_divided_as_in_flink() -> None:
    (rows,) = run(["SELECT 7 / 2, -7 / 2, -7 % 2, SUM(a) / COUNT(a) FROM t"])
    a = [value for value in TABLES["t"]["a"].to_list() if value is not None]
    assert rows == [(3, -3, -1, sum(a) // len(a))]
