"""Subqueries that are values: of one row, of none, and of several, which is an error."""

from __future__ import annotations

from typing import Any

import duckdb
import polars as pl
import pytest

from penstock import Pipeline
from penstock.api.update_streams import UpsertStream
from penstock.connectors import iterables
from penstock.errors import UserCodeError
from penstock.task import sources
from penstock.types import BOOLEAN, INT64, Field, Schema

T = [{"id": number} for number in range(4)]
U = [{"k": 1, "x": 5, "b": True}, {"k": 2, "x": 5, "b": False}, {"k": 1, "x": 1, "b": True}]
T_SCHEMA = Schema((Field("id", INT64),))
U_SCHEMA = Schema((Field("k", INT64), Field("x", INT64), Field("b", BOOLEAN)))
TOTALS = "(SELECT k, SUM(x) AS s FROM u GROUP BY k)"


def rows(text: str) -> list[tuple[Any, ...]]:
    pipeline = Pipeline("subqueries")
    tables = {
        name: pipeline.read(iterables.Source(data, schema=schema))
        for name, data, schema in (("t", T, T_SCHEMA), ("u", U, U_SCHEMA))
    }
    found = pipeline.sql(text, **tables)
    return sorted((found.final() if isinstance(found, UpsertStream) else found).collect().rows(), key=str)


def in_duckdb(text: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        connection.register("t", pl.DataFrame(T, T_SCHEMA.polars()).to_arrow())
        connection.register("u", pl.DataFrame(U, U_SCHEMA.polars()).to_arrow())
        return sorted(connection.execute(text).fetchall(), key=str)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT x FROM u WHERE x < 5",
        "SELECT x FROM u WHERE x > 5",
        "SELECT b FROM u WHERE k = 2",
        f"SELECT k FROM {TOTALS} AS totals WHERE s = 6",
        f"SELECT k FROM {TOTALS} AS totals WHERE s = 7",
        f"SELECT s FROM {TOTALS} AS totals ORDER BY s DESC LIMIT 1",
        "SELECT DISTINCT x FROM u WHERE x > 1",
        "VALUES (7)",
    ],
)
@pytest.mark.parametrize("batch", [1, 65_536])
def test_a_subquery_of_one_row_is_its_value_and_of_none_null(
    query: str, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "BATCH_ROWS", batch)
    for text in (f"SELECT id, ({query}) FROM t", f"SELECT id FROM t WHERE ({query}) IS NULL OR id > 1"):
        assert rows(text) == in_duckdb(text), text


@pytest.mark.parametrize(
    "query",
    [
        "SELECT x FROM u",
        "SELECT x FROM u WHERE x = 5",
        "SELECT x FROM u LIMIT 2",
        f"SELECT k FROM {TOTALS} AS totals",
        "SELECT SUM(x) FROM u GROUP BY k",
        "SELECT DISTINCT x FROM u",
        "SELECT x FROM u INTERSECT ALL SELECT x FROM u",
        "VALUES (7), (8)",
    ],
)
@pytest.mark.parametrize("batch", [1, 65_536])
def test_a_subquery_of_several_rows_fails_and_says_where_it_stands(
    query: str, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of updates at the end of the input."""
    monkeypatch.setattr(sources, "BATCH_ROWS", batch)
    text = f"SELECT id\nFROM t WHERE id > ({query})"
    with pytest.raises(duckdb.InvalidInputException, match="More than one row returned by a subquery"):
        in_duckdb(text)
    with pytest.raises(
        UserCodeError, match=r"^<sql>:2:19: the subquery gives more than one row, .*\n   2 | FROM t WHERE"
    ):
        rows(text)


def test_there_may_be_several_rows_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until one is retracted."""
    monkeypatch.setattr(sources, "BATCH_ROWS", 1)
    text = f"SELECT id, (SELECT k FROM {TOTALS} AS totals WHERE s = 5) FROM t"
    assert rows(text) == in_duckdb(text) == [(number, 2) for number in range(4)]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 5 IN (SELECT x FROM u)",
        "SELECT id, 5 IN (SELECT x FROM u) AND id > 1, 7 NOT IN (SELECT x FROM u) FROM t",
        "SELECT id, NULL IN (SELECT x FROM u), NULL NOT IN (SELECT x FROM u WHERE x > 9) FROM t",
        "SELECT CASE WHEN 9 IN (SELECT x FROM u) THEN 1 END, t.id FROM t FULL JOIN u ON t.id = u.k",
        "SELECT k, SUM(x) FROM u GROUP BY k HAVING NOT (6 NOT IN (SELECT x FROM u))",
        "SELECT k, SUM(x) FROM u GROUP BY k HAVING 6 = ANY (SELECT x + 1 FROM u) OR k = 2",
        "SELECT SUM(x - (SELECT MIN(x) FROM u)), MAX(CASE WHEN k IN (SELECT id FROM t) THEN x END) FROM u",
        "SELECT k, COUNT(*) FILTER (WHERE EXISTS (SELECT 1 FROM t WHERE t.id > u.k + 1)) FROM u GROUP BY k",
        "SELECT k, SUM((SELECT COUNT(*) FROM t WHERE t.id < u.x)) FROM u GROUP BY k HAVING MAX((SELECT 3)) > k",
        "SELECT id, ((SELECT MAX(x) FROM u WHERE u.k = t.id)) FROM t",
        "SELECT id FROM t WHERE id + 1 > COALESCE(((SELECT MIN(k) FROM u WHERE u.k = t.id)), 1)",
        "SELECT id, id > ALL (SELECT k FROM u), id < ANY (SELECT k FROM u) FROM t",
        "SELECT id, id >= ALL (SELECT k FROM u WHERE k > 9), id != ANY (SELECT k FROM u WHERE k > 9) FROM t",
        "SELECT id, id <= ANY (SELECT NULLIF(k, 2) FROM u), id > ALL (SELECT NULLIF(k, 2) FROM u) FROM t",
        "SELECT id FROM t WHERE id <> ALL (SELECT k FROM u) OR id = ANY (SELECT x FROM u WHERE u.k = t.id)",
        "SELECT id FROM t WHERE 3 > ALL (SELECT x FROM u WHERE u.k >= t.id)",
        "SELECT id FROM t WHERE id IN ((SELECT k FROM u)) AND EXISTS ((SELECT 1 FROM u WHERE u.k = t.id))",
    ],
)
def test_subqueries_stand_wherever_expressions_do(query: str) -> None:
    """Of constants, in aggregates, and in further parentheses."""
    assert rows(query) == in_duckdb(query)
