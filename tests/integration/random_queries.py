"""Random queries in SQL over four small tables, in parts that can be left out one by one.

Both Flink's dialect and DuckDB's understand them, and agree on what they mean: every `ORDER BY` is total and says where
nulls are, integers are never divided, and functions that differ in nulls are not used.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

NUMBERS, TEXTS = "number", "text"
Columns = dict[str, str]
"""Columns by name, and whether each is of numbers or of texts."""

COLUMNS: Final[dict[str, Columns]] = {
    "t": {"id": NUMBERS, "a": NUMBERS, "b": NUMBERS, "s": TEXTS},
    "u": {"id": NUMBERS, "a": NUMBERS, "y": NUMBERS, "s": TEXTS},
    "v": {"id": NUMBERS, "a": NUMBERS, "name": TEXTS},
    "e": {"id": NUMBERS, "a": NUMBERS, "z": NUMBERS},
}


@dataclass(frozen=True)
class Select:
    """A query of which parts can be left out."""

    items: tuple[str, ...]
    source: str
    joins: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    group: str = ""
    having: str = ""
    distinct: bool = False
    views: tuple[str, ...] = ()
    tail: str = ""
    """`ORDER BY` with `LIMIT`, or a further query after `UNION` and the like."""
    columns: Columns = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [f"WITH {', '.join(self.views)}"] if self.views else []
        parts += [
            f"SELECT {'DISTINCT ' if self.distinct else ''}{', '.join(self.items)} FROM {self.source}",
            *self.joins,
        ]
        parts += [f"WHERE {' AND '.join(self.where)}"] if self.where else []
        parts += [f"GROUP BY {self.group}"] if self.group else []
        parts += [f"HAVING {self.having}"] if self.having else []
        return " ".join([*parts, self.tail] if self.tail else parts)

    def smaller(self) -> Iterator[Select]:
        """The same query without one of its parts each; some are no queries any more."""
        yield from (replace(self, **{name: ""}) for name in ("tail", "having", "group") if getattr(self, name))
        if self.distinct:
            yield replace(self, distinct=False)
        for name in ("views", "joins", "where", "items"):
            parts = getattr(self, name)
            least = 1 if name == "items" else 0
            yield from (
                replace(self, **{name: (*parts[:at], *parts[at + 1 :])})
                for at in range(len(parts))
                if len(parts) > least
            )


class Writer:
    """Writes random queries."""

    def __init__(self, seed: int | str, *, residuals: bool = True) -> None:
        self.chance = random.Random(seed)
        self.residuals = residuals
        self.names = 0

    def query(self) -> Select:
        views: dict[str, Columns] = {}
        texts: list[str] = []
        while len(views) < 3 and self.odds(0.2):
            name = f"w{len(views)}"
            view = self.select(views, depth=1)
            texts.append(f"{name} AS ({view})")
            views[name] = view.columns
        found = self.select(views, depth=2)
        return replace(found, views=tuple(texts))

    # -- choices

    def odds(self, chance: float) -> bool:
        return self.chance.random() < chance

    def one(self, *of: str) -> str:
        return self.chance.choice(of)

    def name(self) -> str:
        self.names += 1
        return f"q{self.names}"

    def column(self, scope: dict[str, Columns], kind: str = NUMBERS) -> str:
        found = [f"{table}.{name}" for table, of in scope.items() for name, is_ in of.items() if is_ == kind]
        return self.one(*found) if found else "1" if kind == NUMBERS else "'p'"

    # -- expressions

    def number(self, scope: dict[str, Columns], depth: int = 1) -> str:
        if depth == 0 or self.odds(0.5):
            return self.column(scope)
        one, other = self.number(scope, depth - 1), self.number(scope, depth - 1)
        return self.one(
            f"{one} + {other}", f"({one} - {other})", f"{one} * 2", f"COALESCE({one}, {other})", f"COALESCE({one}, -1)",
            f"NULLIF({one}, {other})", f"CASE WHEN {self.condition(scope, 0)} THEN {one} ELSE {other} END",
            f"CASE {one} WHEN 1 THEN {other} WHEN 2 THEN 7 END", f"ABS({one})",
            f"CHAR_LENGTH({self.column(scope, TEXTS)})",
            f"CASE WHEN {self.condition(scope, 1)} THEN {one} END", str(self.chance.randrange(5)),
        )  # fmt: skip

    def text(self, scope: dict[str, Columns]) -> str:
        one = self.column(scope, TEXTS)
        return self.one(one, one, f"UPPER({one})", f"COALESCE({one}, 'none')", f"{one} || 'x'", "'p'")

    def condition(self, scope: dict[str, Columns], depth: int = 1) -> str:
        number, other, text = self.number(scope, 0), self.number(scope, depth), self.text(scope)
        if depth and self.odds(0.3):
            one, two = self.condition(scope, depth - 1), self.condition(scope, depth - 1)
            return self.one(f"({one} OR {two})", f"({one} AND {two})", f"NOT ({one})", f"({one}) IS NOT TRUE")
        return self.one(
            f"{number} = {other}", f"{number} <> {other}", f"{number} < {other}", f"{other} >= 2", f"{number} IS NULL",
            f"{number} IS NOT NULL", f"{number} IN (1, 2, 3)", f"{number} NOT IN (1, 2)",
            f"{number} BETWEEN 1 AND {other}",
            f"{number} IS DISTINCT FROM {other}", f"{text} LIKE 'p%'", f"{text} = 'p'", f"{text} IS NOT NULL",
            f"{number} IN (1, NULL)", f"{number} = 1",
        )  # fmt: skip

    # -- tables

    def table(self, views: dict[str, Columns], depth: int) -> tuple[str, Columns]:
        """A table, a view or a subquery, without its alias."""
        if depth and self.odds(0.3):
            found = self.select(views, depth - 1)
            return f"({found})", found.columns
        if depth and self.odds(0.05):
            rows = ", ".join(
                f"({self.chance.randrange(4)}, {self.one('NULL', '1', '2')})"
                for _ in range(self.chance.randrange(1, 4))
            )
            return f"(SELECT * FROM (VALUES (1, 2), {rows}) AS d (a, b))", {"a": NUMBERS, "b": NUMBERS}
        known = {**COLUMNS, **views, **views}
        name = self.one(*known, *views, *views, "t", "u", "t", "u")
        return name, known[name]

    def sources(self, views: dict[str, Columns], depth: int) -> tuple[str, list[str], list[str], dict[str, Columns]]:
        """`FROM`, its joins, the conditions on them in `WHERE`, and what there is in them."""
        alias = self.name()
        table, columns = self.table(views, depth)
        source, joins, where, scope = f"{table} AS {alias}", [], [], {alias: columns}
        for _ in range(self.chance.choice([0, 0, 1, 1, 2])):
            table, columns = self.table(views, depth)
            alias = self.name()
            added = {alias: columns}
            if self.odds(0.5):
                equal = f"{self.column(scope)} = {self.column(added)}"
            else:
                equal = f"{self.number(scope)} = {self.number(added)}"
            if self.odds(0.2):
                equal += f" AND {self.column(scope, TEXTS)} = {self.column(added, TEXTS)}"
            if joins and joins[-1].startswith(","):  # JOIN binds tighter than a comma
                joins[-1] = joins[-1].replace(",", "CROSS JOIN", 1)
            how = self.one("JOIN", "JOIN", "LEFT JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", ",", "CROSS JOIN")
            if how in (",", "CROSS JOIN"):
                source_or_joins = f"{how} {table} AS {alias}"
                joins.append(source_or_joins)
                where.append(equal)
                if how == "," and any("JOIN" in join for join in joins):
                    joins[-1] = f"CROSS JOIN {table} AS {alias}"
            else:
                both = scope | added
                if self.odds(0.3) and (self.residuals or how == "JOIN"):
                    equal += f" AND {self.one(self.condition(both), self.condition(added), self.condition(scope))}"
                if self.residuals and how != "FULL JOIN" and self.odds(0.05):
                    equal = self.condition(both)
                shared = set(columns) & set.union(*(set(of) for of in scope.values()))
                once = [
                    name for name in sorted(shared) if sum(name in of for of in scope.values()) == 1
                    and all(of.get(name, columns[name]) == columns[name] for of in scope.values())
                ]  # fmt: skip
                if once and self.odds(0.2) and len(scope) == 1:
                    joins.append(f"{how} {table} AS {alias} USING ({self.one(*once)})")
                else:
                    joins.append(f"{how} {table} AS {alias} ON {equal}")
            scope |= added
        return source, joins, where, scope

    def subquery_condition(self, scope: dict[str, Columns], views: dict[str, Columns]) -> str:
        alias = self.name()
        table, columns = self.table(views, 0)
        inner = {alias: columns}
        conditions = [self.condition(inner)] if self.odds(0.4) else []
        if self.odds(0.6):
            conditions.append(f"{self.column(inner)} = {self.column(scope)}")
            if self.odds(0.3):
                conditions.append(f"{self.column(inner, TEXTS)} = {self.column(scope, TEXTS)}")
            if self.residuals and self.odds(0.2):
                conditions.append(f"{self.column(inner)} {self.one('<', '<>', '>=')} {self.column(scope)}")
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        of = f"FROM {table} AS {alias}{where}"
        many, one = self.number(inner), self.number(scope, 0)
        aggregate = f"{self.one('MAX', 'MIN', 'SUM', 'COUNT')}({self.column(inner)})"
        found = self.one(
            f"EXISTS (SELECT 1 {of})", f"NOT EXISTS (SELECT 1 {of})", f"{one} IN (SELECT {many} {of})",
            f"{one} NOT IN (SELECT {many} {of})", f"{one} {self.one('=', '<', '>=')} (SELECT {aggregate} {of})",
            f"COALESCE((SELECT {aggregate} {of}), 1) > {one}",
        )  # fmt: skip
        if self.odds(0.25):
            return f"({found} OR {self.condition(scope, 0)})"
        return f"NOT ({found})" if self.odds(0.1) else found

    def scalar(self, scope: dict[str, Columns], views: dict[str, Columns]) -> str:
        alias = self.name()
        table, columns = self.table(views, 0)
        inner = {alias: columns}
        aggregate = self.one(f"MAX({self.number(inner)})", "COUNT(*)", f"SUM({self.number(inner)})")
        where = f" WHERE {self.column(inner)} = {self.column(scope)}" if self.odds(0.6) else ""
        return f"(SELECT {aggregate} FROM {table} AS {alias}{where})"

    # -- queries

    def aggregate(self, scope: dict[str, Columns]) -> str:
        name = self.one("SUM", "MIN", "MAX", "COUNT", "AVG")
        distinct = "DISTINCT " if self.odds(0.2) else ""
        filtered = f" FILTER (WHERE {self.condition(scope)})" if self.odds(0.2) else ""
        if self.odds(0.2):
            return f"COUNT(*){filtered}"
        return f"{name}({distinct}{self.number(scope)}){filtered}"

    def select(self, views: dict[str, Columns], depth: int) -> Select:
        source, joins, where, scope = self.sources(views, depth)
        where += [self.condition(scope) for _ in range(self.chance.choice([0, 0, 1, 2]))]
        if self.odds(0.25):
            where.append(self.subquery_condition(scope, views))
        found = Select((), source, tuple(joins), tuple(where))
        shape = self.one("rows", "rows", "rows", "groups", "groups", "groups", "ranked", "over")
        if shape == "groups":
            found = self.grouped(found, scope, views)
        elif shape == "ranked":
            found = self.ranked(found, scope)
        elif shape == "over":
            found = self.over(found, scope)
        else:
            found = self.rows(found, scope, views)
        if self.odds(0.15) and not found.tail:
            other = self.plain(views, list(found.columns.values()))
            return replace(
                found,
                tail=f"{self.one('UNION', 'UNION ALL', 'INTERSECT', 'EXCEPT', 'INTERSECT ALL', 'EXCEPT ALL')} {other}",
            )
        if self.odds(0.1) and not found.tail:
            order = [
                f"{at} {self.one('ASC', 'DESC')} NULLS {self.one('FIRST', 'LAST')}"
                for at in range(1, len(found.items) + 1)
            ]
            self.chance.shuffle(order)
            offset = self.one("", "", f" OFFSET {self.chance.randrange(3)}")
            return replace(found, tail=f"ORDER BY {', '.join(order)} LIMIT {self.chance.randrange(1, 6)}{offset}")
        return found

    def plain(self, views: dict[str, Columns], kinds: Sequence[str]) -> str:
        table, columns = self.table(views, 0)
        alias = self.name()
        scope = {alias: columns}
        items = [self.column(scope, kind) for kind in kinds]
        where = f" WHERE {self.condition(scope)}" if self.odds(0.4) else ""
        return f"SELECT {', '.join(items)} FROM {table} AS {alias}{where}"

    def rows(self, found: Select, scope: dict[str, Columns], views: dict[str, Columns]) -> Select:
        items: list[str] = []
        columns: Columns = {}
        for at in range(self.chance.randrange(1, 4)):
            name = f"c{at}"
            if self.odds(0.25):
                items.append(f"{self.text(scope)} AS {name}")
                columns[name] = TEXTS
            else:
                item = self.scalar(scope, views) if self.odds(0.1) else self.number(scope)
                if self.odds(0.05):
                    item = f"CASE WHEN {self.subquery_condition(scope, views)} THEN 1 ELSE 0 END"
                items.append(f"{item} AS {name}")
                columns[name] = NUMBERS
        return replace(found, items=tuple(items), columns=columns, distinct=self.odds(0.25))

    def grouped(self, found: Select, scope: dict[str, Columns], views: dict[str, Columns]) -> Select:
        keys = list(
            dict.fromkeys(
                self.one(self.column(scope), self.column(scope), self.column(scope, TEXTS), self.number(scope))
                for _ in range(self.chance.choice([0, 1, 1, 2]))
            )
        )
        keys = [key for key in keys if not key.isdigit() and key != "'p'"]
        items = [f"{key} AS k{at}" for at, key in enumerate(keys)]
        texts = {f"{table}.{name}" for table, of in scope.items() for name, kind in of.items() if kind == TEXTS}
        columns = {f"k{at}": TEXTS if key in texts else NUMBERS for at, key in enumerate(keys)}
        for at in range(self.chance.randrange(1, 4)):
            item = self.aggregate(scope)
            if self.odds(0.15):
                item = f"{item} + {self.aggregate(scope)}"
            items.append(f"{item} AS g{at}")
            columns[f"g{at}"] = NUMBERS
        group = ", ".join(keys)
        if keys and self.odds(0.25):
            group = self.one(f"ROLLUP ({group})", f"CUBE ({group})", f"GROUPING SETS (({group}), ())")
        having = ""
        if self.odds(0.25):
            having = f"{self.aggregate(scope)} {self.one('>', '<=', '<>')} {self.chance.randrange(4)}"
        return replace(
            found, items=tuple(items), group=group, having=having, columns=columns, distinct=self.odds(0.1)
        )  # fmt: skip

    def ordered(self, scope: dict[str, Columns]) -> str:
        """An order of all that is in the scope, in which only equal rows are equal."""
        columns = [f"{table}.{name}" for table, of in scope.items() for name in of]
        self.chance.shuffle(columns)
        return ", ".join(f"{name} {self.one('ASC', 'DESC')} NULLS {self.one('FIRST', 'LAST')}" for name in columns)

    def ranked(self, found: Select, scope: dict[str, Columns]) -> Select:
        alias = self.name()
        columns = {f"c{at}": NUMBERS for at in range(2)}
        partition = f"PARTITION BY {self.column(scope)} " if self.odds(0.8) else ""
        number = f"ROW_NUMBER() OVER ({partition}ORDER BY {self.ordered(scope)}) AS rn"
        inner = replace(
            found, items=(f"{self.number(scope)} AS c0", f"{self.column(scope)} AS c1", number), columns=columns
        )
        limit = self.one("rn <= 2", "rn = 1", "rn < 4", "rn BETWEEN 2 AND 3", f"rn <= {self.chance.randrange(1, 4)}")
        items = ("c0", "c1", "rn") if self.odds(0.5) else ("c0", "c1")
        return Select(items, f"({inner}) AS {alias}", where=(limit,), columns=columns)

    def over(self, found: Select, scope: dict[str, Columns]) -> Select:
        order = self.ordered(scope)
        partition = f"PARTITION BY {self.column(scope)} " if self.odds(0.8) else ""
        frame = self.one("", "", " ROWS BETWEEN 1 PRECEDING AND CURRENT ROW",
                         " ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
                         " ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING")  # fmt: skip
        value = self.one(
            f"SUM({self.number(scope)}) OVER ({partition}ORDER BY {order}{frame})",
            f"COUNT(*) OVER ({partition}ORDER BY {order}{frame})",
            f"MAX({self.column(scope)}) OVER ({partition.strip()})",
            f"RANK() OVER ({partition}ORDER BY {order})",
            f"LAG({self.column(scope)}) OVER ({partition}ORDER BY {order})",
            f"ROW_NUMBER() OVER ({partition}ORDER BY {order})",
        )
        items = (f"{self.column(scope)} AS c0", f"{value} AS c1")
        return replace(found, items=items, columns={"c0": NUMBERS, "c1": NUMBERS})
