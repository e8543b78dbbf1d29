"""Queries: SELECT with its clauses, FROM with its joins, set operations, WITH."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from penstock.sql.parsing.row_patterns import RowPatternParser
from penstock.sql.syntax import (
    Call,
    CommonTable,
    Constant,
    DerivedTable,
    GroupingSets,
    Hint,
    Joined,
    JoinKind,
    Part,
    Query,
    Select,
    SelectItem,
    SetOperation,
    Star,
    TableFunction,
    TableName,
    Values,
    Window,
)
from penstock.sql.tokens import Token

_HINT: Final = re.compile(r"\s*,?\s*(\w+)\s*(?:\(([^()]*)\))?\s*")
_SETTING: Final = re.compile(r"\s*'([^']*)'\s*=\s*'([^']*)'\s*")
_COMBINING: Final = ("UNION", "INTERSECT", "EXCEPT", "MINUS")
_JOINS: Final[dict[str, JoinKind]] = {
    "INNER": "inner",
    "LEFT": "left",
    "RIGHT": "right",
    "FULL": "full",
    "CROSS": "cross",
}


class QueryParser(RowPatternParser):
    """Parses queries."""

    def at_query(self) -> bool:
        """Whether a query begins here, perhaps behind parentheses."""
        further = 0
        while self.peek(further).value == "(" and self.peek(further).kind == "symbol":
            further += 1
        word = self.peek(further).keyword
        return word in ("SELECT", "WITH", "VALUES") and (further == 0 or self._parentheses_hold_query(further))

    def _parentheses_hold_query(self, opened: int) -> bool:
        """Whether what begins with so many parentheses and SELECT is a query, and no expression that begins with one.

        It is one if behind the inner query there is nothing but parentheses and what may follow a query.
        """
        depth, further = opened, opened
        while True:
            further += 1
            token = self.peek(further)
            closes = token.kind == "symbol" and token.value == ")"
            if token.kind == "end" or (depth == 0 and (closes or token.value == ";")):
                return True
            if depth < opened and not closes:
                return token.keyword in (*_COMBINING, "ORDER", "LIMIT", "OFFSET", "FETCH")
            depth += (token.kind == "symbol" and token.value == "(") - closes

    def query(self) -> Query:
        """A query with its WITH, ORDER BY, LIMIT and OFFSET."""
        with self.nested():
            start = self.next
            tables = self._common_tables() if self.accept("WITH") else ()
            body = self._set_operation()
            order = self.order_items() if self.accept("ORDER", "BY") else ()
            found = self._limits(Query(body, tables, order))
            self._check_end(found)
            if isinstance(body, Query) and found == Query(body):  # further parentheses say nothing
                found = body
            return replace(found, span=self.since(start))

    def _check_end(self, query: Query) -> None:
        """ORDER BY and LIMIT are those of all that stands before them, so that no query is combined behind them."""
        clauses = {"ORDER BY": query.order, "LIMIT": query.limit, "OFFSET": query.offset}
        said = next((name for name, value in clauses.items() if value), None)
        word = self.next.keyword
        if said is not None and word in _COMBINING:
            raise self.fail(
                f"{word} cannot stand behind {said}; put the query before it in parentheses: "
                f"(SELECT ... {said} ...) {word} SELECT ..."
            )

    def _common_tables(self) -> tuple[CommonTable, ...]:
        if self.at("RECURSIVE"):
            raise self.fail("WITH RECURSIVE is not supported: a stream would have to feed itself; write the levels out")
        return self.list_of(self._common_table)

    def _common_table(self) -> CommonTable:
        start = self.next
        name = self.name("a name for the query")
        columns = self._column_names() if self.at("(") else ()
        self.require("AS")
        query = self.in_parentheses(self.query)
        return CommonTable(name, columns, query, span=self.since(start))

    def _column_names(self) -> tuple[str, ...]:
        """Names of columns in parentheses, each once."""
        tokens = self.in_parentheses(lambda: self.list_of(lambda: self.name_token("a column")))
        for number, each in enumerate(tokens):
            if any(each.value == other.value for other in tokens[:number]):
                raise self.fail(f"{each.value!r} is there twice", each.span)
        return tuple(each.value for each in tokens)

    def _limits(self, query: Query) -> Query:
        while True:
            if query.limit is None and self.accept("LIMIT"):
                query = replace(query, limit=None if self.accept("ALL") else self._additive())
            elif query.offset is None and self.accept("OFFSET"):
                query = replace(query, offset=self._additive())
                self.accept_any("ROW", "ROWS")
            elif query.limit is None and self.accept("FETCH"):
                if self.accept_any("FIRST", "NEXT") is None:
                    raise self.unexpected()
                one = self.next.keyword in ("ROW", "ROWS")
                query = replace(query, limit=Constant(1, span=self.next.span) if one else self._additive())
                if self.accept_any("ROW", "ROWS") is None:
                    raise self.unexpected()
                self.require("ONLY")
            else:
                return query

    # -- set operations -------------------------------------------------------------------------------------------------

    def _set_operation(self) -> Part:
        start = self.next
        left = self._intersection()
        while word := self.accept_any("UNION", "EXCEPT", "MINUS"):
            keep = self._all()
            kind = "UNION" if word == "UNION" else "EXCEPT"
            left = SetOperation(kind, keep, left, self._intersection(), span=self.since(start))
        return left

    def _intersection(self) -> Part:
        start = self.next
        left = self._body()
        while self.accept("INTERSECT"):
            keep = self._all()
            left = SetOperation("INTERSECT", keep, left, self._body(), span=self.since(start))
        return left

    def _all(self) -> bool:
        return self.accept_any("ALL", "DISTINCT") == "ALL"

    def _body(self) -> Part:
        start = self.next
        if self.accept("("):
            query = self.query()
            self.require(")")
            return replace(query, span=self.since(start))
        if self.accept("VALUES"):
            return Values(self.list_of(self._row), span=self.since(start))
        if self.accept("TABLE"):
            name = self._column("a table")
            return Select((SelectItem(Star()),), tables=TableName(name.parts, span=name.span), span=self.since(start))
        self.require("SELECT")
        return self._select(start)

    def _row(self) -> tuple[Part, ...]:
        self.accept("ROW")
        if not self.at("("):
            return (self.expression(),)
        return self.in_parentheses(lambda: self.list_of(self.expression))

    # -- select ---------------------------------------------------------------------------------------------------------

    def _select(self, start: Token) -> Select:
        hints = self._hints()
        distinct = self.accept("DISTINCT")
        if not distinct:
            self.accept("ALL")
        items = self.list_of(self._item)
        found = Select(items, distinct, hints=hints)
        if self.accept("FROM"):
            found = replace(found, tables=self._tables())
        if self.accept("WHERE"):
            found = replace(found, where=self.expression())
        if self.accept("GROUP", "BY"):
            found = replace(found, group=self._group())
        if self.accept("HAVING"):
            found = replace(found, having=self.expression())
        if self.accept("WINDOW"):
            found = replace(found, windows=self.list_of(self._named_window))
        if self.accept("QUALIFY"):
            found = replace(found, qualify=self.expression())
        return replace(found, span=self.since(start))

    def _item(self) -> SelectItem:
        start = self.next
        if self.accept("*"):
            return SelectItem(self._without(Star(span=self.since(start))), span=self.since(start))
        expression = self.expression()
        if isinstance(expression, Star):
            return SelectItem(self._without(expression), span=self.since(start))
        alias = self._alias("a name for the column")
        return SelectItem(expression, alias, span=self.since(start))

    def _without(self, star: Star) -> Star:
        if self.next.keyword in ("EXCLUDE", "EXCEPT") and self.peek().value == "(":
            self.advance()
            return replace(star, without=self._column_names())
        return star

    def _alias(self, what: str) -> str | None:
        if self.accept("AS"):
            return self.name(what)
        return self.advance().value if self.at_name() else None

    def _group(self) -> tuple[Part, ...]:
        self.accept("DISTINCT")
        return self.list_of(self._grouping)

    def _grouping(self) -> Part:
        start = self.next
        sets = self._grouping_sets()
        if sets is not None:
            return sets
        if self.at("(") and self.peek().value == ")":
            self.require("(", ")")
            return GroupingSets("GROUPING SETS", ((),), span=self.since(start))
        return self.expression()

    def _grouping_sets(self) -> GroupingSets | None:
        start = self.next
        if self.accept("GROUPING", "SETS"):
            kind = "GROUPING SETS"
        elif self.next.keyword in ("ROLLUP", "CUBE") and (word := self.accept_any("ROLLUP", "CUBE")):
            kind = word
        else:
            return None
        members = self.in_parentheses(lambda: self.list_of(self._member))
        return GroupingSets(kind, members, span=self.since(start))  # pyright: ignore[reportArgumentType]

    def _member(self) -> tuple[Part, ...] | GroupingSets:
        inner = self._grouping_sets()
        if inner is not None:
            return inner
        if self.accept("("):
            found = () if self.at(")") else self.list_of(self.expression)
            self.require(")")
            return found
        return (self.expression(),)

    def _named_window(self) -> tuple[str, Window]:
        name = self.name("a name for the window")
        self.require("AS")
        return name, self.window()

    def _hints(self) -> tuple[Hint, ...]:
        if self.next.kind != "hint":
            return ()
        token = self.advance()
        found: list[Hint] = []
        place = 0
        while place < len(token.value.rstrip()):
            match = _HINT.match(token.value, place)
            if match is None or match.end() == place:
                raise self.fail("a hint is written /*+ NAME('key' = 'value') */", token.span)
            settings: list[tuple[str, str]] = []
            for text in filter(str.strip, (match.group(2) or "").split(",")):
                setting = _SETTING.fullmatch(text)
                if setting is None and match.group(1).upper() not in ("OPTIONS", "STATE_TTL"):
                    settings.append((text.strip(), ""))  # of a hint that is refused by its name
                    continue
                if setting is None:
                    raise self.fail(
                        f"{match.group(1)}: {text.strip()} is no setting; write 'key' = 'value'", token.span
                    )
                if any(setting.group(1) == key for key, _ in settings):
                    raise self.fail(f"{setting.group(1)!r} is there twice; leave one out", token.span)
                settings.append((setting.group(1), setting.group(2)))
            found.append(Hint(match.group(1).upper(), tuple(settings), span=token.span))
            place = match.end()
        return tuple(found)

    # -- from -----------------------------------------------------------------------------------------------------------

    def _tables(self) -> Part:
        start = self.next
        found = self._joins()
        while self.accept(","):
            found = Joined("cross", found, self._joins(), span=self.since(start))
        return found

    def _joins(self) -> Part:
        start = self.next
        found = self._table()
        while True:
            natural = self.accept("NATURAL")
            kind = self._join_kind()
            if kind is None:
                if natural:
                    raise self.unexpected()
                return found
            right = self._table()
            joined = Joined(kind, found, right, natural=natural)
            if kind != "cross" and not natural:
                if self.accept("ON"):
                    joined = replace(joined, condition=self.expression())
                elif self.accept("USING"):
                    joined = replace(joined, using=self.in_parentheses(lambda: self.list_of(self._column)))
                elif not (isinstance(right, DerivedTable | TableFunction)):
                    raise self.unexpected()
            found = replace(joined, span=self.since(start))

    def _join_kind(self) -> JoinKind | None:
        if self.accept("JOIN"):
            return "inner"
        for word, kind in _JOINS.items():
            if self.next.keyword == word and self.accept(word):
                self.accept("OUTER")
                if self.at_any("SEMI", "ANTI"):
                    raise self.fail("write WHERE EXISTS (...) or WHERE NOT EXISTS (...) instead of a SEMI or ANTI join")
                self.require("JOIN")
                return kind
            self.expect(f"{word} JOIN")
        return None

    def _table(self) -> Part:
        with self.nested():
            found = self._plain_table()
        if self.at("MATCH_RECOGNIZE"):
            found = self._match_recognize(found)
        if self.at("TABLESAMPLE"):
            raise self.fail("TABLESAMPLE is not supported; filter by RAND() < 0.1 instead")
        return found

    def _plain_table(self) -> Part:
        start = self.next
        lateral = self.accept("LATERAL")
        if lateral and not self._may_be_lateral():
            raise self.fail("LATERAL is for a query in parentheses or a function; leave it out")
        if self.accept("("):
            if not self.at_query():
                inner = self._tables()
                self.require(")")
                return replace(inner, span=self.since(start))
            query = self.query()
            self.require(")")
            return self._named(DerivedTable(query, lateral=lateral, span=self.since(start)), start)
        if self.accept("TABLE", "("):
            call = self._table_call()
            self.require(")")
            return self._named(TableFunction(call, lateral=lateral, span=self.since(start)), start)
        unnest = self.next.keyword == "UNNEST"
        self.expect("a table")
        if unnest or (self.at_name() and self.peek().value == "(" and self.peek().kind == "symbol"):
            call = self._table_call()
            ordinality = self.accept("WITH", "ORDINALITY")
            found = TableFunction(call, lateral=lateral, ordinality=ordinality, span=self.since(start))
            return self._named(found, start)
        name = self._column("a table")
        found = TableName(name.parts, span=name.span, hints=self._hints())
        if self.accept("FOR"):
            self.require("SYSTEM_TIME", "AS", "OF")
            found = replace(found, as_of=self._additive())
        return self._named(found, start)

    def _may_be_lateral(self) -> bool:
        """Whether a query in parentheses comes, or a function."""
        if self.next.kind == "symbol":
            return self.at_query()
        return self.next.keyword in ("TABLE", "UNNEST") or self.peek().value == "("

    def _table_call(self) -> Call:
        token = self.advance()
        self.require("(")
        arguments = () if self.at(")") else self.list_of(self.argument)
        self.require(")")
        name = token.keyword or token.value
        return Call(name, arguments, span=self.since(token), name=token.span)

    def _match_recognize(self, table: Part) -> Part:
        if isinstance(table, Joined):
            raise self.fail("MATCH_RECOGNIZE takes one table; put the join in parentheses: (SELECT ... JOIN ...)")
        found = self.match_recognize(table)
        alias = self._alias("a name for the matches")
        columns = self._column_names() if alias is not None and self.at("(") else ()
        return replace(found, alias=alias, columns=columns, span=self.since(table.span))

    def _named(self, table: TableName | DerivedTable | TableFunction, start: Token) -> Part:
        alias = self._alias("a name for the table")
        columns = self._column_names() if alias is not None and self.at("(") else ()
        hints = self._hints()
        found = replace(table, alias=alias, columns=columns)
        if hints:
            if not isinstance(found, TableName):
                raise self.fail("a hint stands behind the name of a table", hints[0].span)
            found = replace(found, hints=(*found.hints, *hints))
        return replace(found, span=self.since(start))
