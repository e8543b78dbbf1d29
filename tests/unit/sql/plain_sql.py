"""Random plain SQL, in the manner of sqllogictest, beside DuckDB: expressions with null and signs everywhere, subqueries
in every place, aggregates of expressions, groups, joins and set operations.

`python -m tests.unit.sql.plain_sql FROM TO` compares the queries of these seeds and prints those that differ.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import duckdb

from penstock import Pipeline
from penstock.api.update_streams import UpsertStream
from penstock.connectors import iterables

TABLES = ("tab0", "tab1", "tab2")
COLUMNS = ("col0", "col1", "col2")
_DEEPEST = 3


@dataclass
class Tab:
    col0: int | None
    col1: int | None
    col2: int | None


@dataclass
class Writer:
    """Writes one query."""

    chance: random.Random

    def one_of(self, *texts: str) -> str:
        return self.chance.choice(texts)

    def several(self, least: int, most: int, write: Any) -> list[str]:
        return [write() for _ in range(self.chance.randint(least, most))]

    def table(self) -> str:
        return self.one_of(*TABLES)

    # -- expressions ----------------------------------------------------------------------------------------------------

    def number(self, columns: Sequence[str], depth: int = 0) -> str:
        """A value that is a whole number or null."""
        deeper = lambda: self.number(columns, depth + 1)  # noqa: E731
        place = self.chance.random()
        if depth > _DEEPEST or place < 0.25:
            return self.one_of("", "+ ", "- ", "- - ") + str(self.chance.randrange(99))
        if place < 0.5:
            return self.one_of("", "+ ", "- ") + self.one_of(*columns) if columns else deeper()
        if place < 0.62:
            return f"( {deeper()} )"
        if place < 0.8:
            return f"{deeper()} {self.one_of('+', '-', '*')} {deeper()}"
        if place < 0.84:
            return f"COALESCE( {', '.join(self.several(2, 3, deeper))} )"
        if place < 0.87:
            return f"NULLIF( {deeper()}, {deeper()} )"
        if place < 0.91:
            return f"CASE {deeper()} WHEN {deeper()} THEN {deeper()} WHEN {deeper()} THEN NULL ELSE {deeper()} END"
        if place < 0.94:
            return f"CASE WHEN {self.condition(columns, depth + 1)} THEN {deeper()} END"
        if place < 0.96:
            return f"CAST( {self.one_of('NULL', deeper())} AS INTEGER )"
        around = self.one_of(*columns) if columns and self.chance.random() < 0.5 else self.number((), _DEEPEST)
        where = self.one_of("", f" WHERE x.col1 {self.one_of('<', '>', '=', '<>')} {around}")
        value = f"{self.one_of('MAX', 'MIN', 'COUNT', 'SUM')}( x.{self.one_of(*COLUMNS)} )"
        return f"( SELECT {value} FROM {self.table()} AS x{where} )"

    def condition(self, columns: Sequence[str], depth: int = 0) -> str:
        """One that is true, false or unknown."""
        number = lambda: self.number(columns, depth + 1)  # noqa: E731
        deeper = lambda: self.condition(columns, depth + 1)  # noqa: E731
        place, no = self.chance.random(), self.one_of("", "NOT ")
        if depth > _DEEPEST or place < 0.35:
            return f"{number()} {self.one_of('<', '>', '=', '<>', '<=', '>=')} {number()}"
        if place < 0.45:
            return f"{number()} IS {no}NULL"
        if place < 0.55:
            return f"{number()} {no}BETWEEN {self.one_of('NULL', number())} AND {number()}"
        if place < 0.65:
            return f"{number()} {no}IN ( {', '.join(self.several(1, 3, number))} )"
        if place < 0.75:
            return f"NOT ( {deeper()} )"
        if place < 0.87:
            return f"( {deeper()} ) {self.one_of('AND', 'OR')} ( {deeper()} )"
        if place < 0.93:
            around = self.one_of(*columns) if columns else self.number((), _DEEPEST)
            return (
                f"{no}EXISTS ( SELECT * FROM {self.table()} AS x WHERE x.col0 {self.one_of('<', '>', '=')} {around} )"
            )
        return f"{number()} {no}IN ( SELECT {self.one_of(*COLUMNS)} FROM {self.table()} )"

    def aggregate(self, columns: Sequence[str], depth: int = 0) -> str:
        """A value of a group."""
        place = self.chance.random()
        if depth > 1 or place < 0.6:
            of = f"{self.one_of('', 'DISTINCT ', 'ALL ')}{self.number(columns, 2)}"
            return self.one_of("COUNT( * )", *(f"{name}( {of} )" for name in ("COUNT", "SUM", "MIN", "MAX")))
        if place < 0.75:
            return self.one_of("- ", "+ ") + self.aggregate(columns, depth + 1)
        if place < 0.9:
            other = self.one_of(self.aggregate(columns, depth + 1), self.number((), 2))
            return f"{self.aggregate(columns, depth + 1)} {self.one_of('+', '-', '*')} {other}"
        return f"COALESCE( {self.aggregate(columns, depth + 1)}, {self.number((), 2)} )"

    # -- queries --------------------------------------------------------------------------------------------------------

    def query(self) -> str:
        """A query of one of the kinds."""
        write = self.chance.choice(
            (self.plain, self.plain, self.grouped, self.grouped, self.joined, self.combined, self.nested)
        )
        return write()

    def where(self, columns: Sequence[str], keyword: str = "WHERE") -> str:
        return f" {keyword} {self.condition(columns)}" if self.chance.random() < 0.5 else ""

    def listed(self, *values: str) -> str:
        return ", ".join(f"{value} AS c{number}" for number, value in enumerate(values))

    def plain(self) -> str:
        kind = self.one_of("", "ALL ", "DISTINCT ")
        shown = self.listed(*self.several(1, 3, lambda: self.number(COLUMNS)))
        return f"SELECT {kind}{self.one_of(shown, '*')} FROM {self.table()} AS cor0{self.where(COLUMNS)}"

    def grouped(self) -> str:
        keys = self.chance.sample(COLUMNS, self.chance.randint(0, 2))
        value = lambda: self.one_of(self.aggregate(COLUMNS), *([self.number(keys)] if keys else []))  # noqa: E731
        query = f"SELECT {self.listed(*self.several(1, 3, value))} FROM {self.table()}{self.where(COLUMNS)}"
        if not keys:
            return query.replace(" AS c0", f" + {self.aggregate(COLUMNS)} AS c0", 1)  # one of all rows, in any case
        having = self.one_of(self.where(keys, "HAVING"), f" HAVING {self.aggregate(COLUMNS)} > {self.number(keys, 2)}")
        return f"{query} GROUP BY {', '.join(keys)}{having}"

    def joined(self) -> str:
        columns = ("a.col0", "a.col1", "b.col0", "b.col2")
        equal = f"a.{self.one_of(*COLUMNS)} = b.{self.one_of(*COLUMNS)}"
        kind = self.one_of("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN")
        tables = f"{self.table()} AS a {kind} {self.table()} AS b ON {equal}"
        if self.chance.random() < 0.3:
            tables = f"{self.table()} AS a, {self.table()} AS b"
        shown = self.one_of(self.aggregate(columns), self.number(columns, 1))
        return f"SELECT {self.listed(shown)} FROM {tables}{self.where(columns)}"

    def combined(self) -> str:
        width = self.chance.randint(1, 2)

        def part() -> str:
            shown = self.listed(*(self.number(COLUMNS, 2) for _ in range(width)))
            return f"SELECT {shown} FROM {self.table()}{self.where(COLUMNS)}"

        return f" {self.one_of('UNION', 'UNION ALL', 'INTERSECT', 'EXCEPT')} ".join(self.several(2, 3, part))

    def nested(self) -> str:
        inner = self.one_of(
            f"SELECT col0 AS a, {self.aggregate(COLUMNS[1:])} AS b FROM {self.table()} GROUP BY col0",
            f"SELECT {self.number(COLUMNS, 1)} AS a, {self.number(COLUMNS, 2)} AS b FROM {self.table()}",
        )
        columns = ("s.a", "s.b")
        shown = self.one_of(self.number(columns, 1), self.aggregate(columns))
        return f"SELECT {self.listed(shown)} FROM ( {inner} ) AS s{self.where(columns)}"


def tables_of(chance: random.Random) -> dict[str, list[Tab]]:
    """Small tables with nulls, of which some are empty."""
    value = lambda: None if chance.random() < 0.15 else chance.randrange(-9, 99)  # noqa: E731
    return {name: [Tab(value(), value(), value()) for _ in range(chance.randrange(7))] for name in TABLES}


def in_duckdb(query: str, tables: dict[str, list[Tab]]) -> Counter[tuple[Any, ...]]:
    """The rows that DuckDB gives."""
    with duckdb.connect() as connection:
        for name, rows in tables.items():
            connection.execute(f"CREATE TABLE {name} (col0 BIGINT, col1 BIGINT, col2 BIGINT)")
            for row in rows:
                connection.execute(f"INSERT INTO {name} VALUES (?, ?, ?)", [row.col0, row.col1, row.col2])
        return Counter(map(_plain, connection.execute(query).fetchall()))


def in_penstock(query: str, tables: dict[str, list[Tab]]) -> Counter[tuple[Any, ...]]:
    """The final rows of a pipeline."""
    pipeline = Pipeline("plain")
    streams = {name: pipeline.read(iterables.Source(rows, schema=Tab)) for name, rows in tables.items()}
    found = pipeline.sql(query, **streams)
    return Counter(map(_plain, (found.final() if isinstance(found, UpsertStream) else found).collect().rows()))


def _plain(row: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(None if value is None else int(value) for value in row)


def compared(seed: int) -> tuple[str, dict[str, list[Tab]], Counter[tuple[Any, ...]], Counter[tuple[Any, ...]]]:
    """The query of a seed, its tables, and the rows of DuckDB and of Penstock."""
    chance = random.Random(seed)
    tables, query = tables_of(chance), Writer(chance).query()
    return query, tables, in_duckdb(query, tables), in_penstock(query, tables)


if __name__ == "__main__":
    for seed in range(int(sys.argv[1]), int(sys.argv[2])):
        try:
            query, tables, expected, found = compared(seed)
        except Exception as error:  # of either; shown with the seed
            print(f"{seed}: {error}")
            continue
        if expected != found:
            print(f"{seed}: {query}\n  {tables}\n  DuckDB {expected}\n  Penstock {found}")
