"""Statements: CREATE, INSERT, EXPLAIN, SET and their like."""

from __future__ import annotations

from typing import Final

from penstock.sql.parsing.queries import QueryParser
from penstock.sql.syntax import (
    ColumnDefinition,
    CreateFunction,
    CreateTable,
    CreateView,
    Describe,
    Drop,
    Explain,
    Insert,
    Name,
    Part,
    Query,
    ResetOption,
    SetOption,
    Setting,
    Show,
    StatementSet,
    Watermark,
)
from penstock.sql.text import SqlError
from penstock.sql.tokens import Token

_REFUSED: Final = {
    "UPDATE": "UPDATE is not supported; write INSERT INTO a table with a primary key, which replaces rows of equal keys",
    "DELETE": "a table of a pipeline is a stream, from which nothing is deleted; write a query without these rows",
    "MERGE": "MERGE is not supported; write INSERT INTO a table with a primary key, which replaces rows of equal keys",
    "TRUNCATE": "TRUNCATE is not supported; a pipeline writes its tables, and other systems empty them",
    "CALL": "procedures are not supported; checkpoints and savepoints are asked for by penstock's commands",
    "ALTER": "ALTER is not supported; a text declares its tables, so change the CREATE statement",
    "USE": "there is one catalogue and one database, so USE says nothing; leave it out",
    "LOAD": "there are no modules to load; functions that are missing come by CREATE FUNCTION",
    "UNLOAD": "there are no modules to unload",
    "COMPILE": "compiled plans are not supported; the ids of operators keep a job's state where a text is changed",
    "EXECUTE": "leave EXECUTE out: a text is run as it stands",
    "ADD": "ADD JAR is not supported; connectors are Python packages",
    "REMOVE": "there are no JARs; connectors are Python packages",
    "GRANT": "there are no users and rights in a text; the cluster's access is set outside of it",
    "REVOKE": "there are no users and rights in a text; the cluster's access is set outside of it",
    "COMMIT": "there are no transactions: what a job writes is committed by its checkpoints; leave COMMIT out",
    "ROLLBACK": "there are no transactions: what a job writes is committed by its checkpoints; leave ROLLBACK out",
    "REPLACE": "REPLACE is not supported; INSERT INTO a table with a primary key replaces rows of equal keys",
    "ANALYZE": "statistics of tables are not used, so ANALYZE says nothing; leave it out",
}  # fmt: skip


_OF_DATABASES: Final = ("DEFAULT", "UNIQUE", "CHECK", "REFERENCES", "AUTO_INCREMENT", "IDENTITY", "GENERATED")
"""What databases say of a column behind its type."""


class Parser(QueryParser):
    """Parses texts of statements."""

    _untyped: SqlError | None = None
    """What is wrong with the first column of a table that has a name alone, if no query follows that gives its type."""

    def statements(self) -> list[Part]:
        """All statements, which semicolons part."""
        found: list[Part] = []
        while True:
            while self.accept(";"):
                pass
            if self.at_end:
                return found
            found.append(self.statement())
            if not self.at_end and not self.at(";"):
                raise self.unexpected()

    def only_query(self) -> Query:
        """The one query that the text is."""
        if not self.at_query():
            self.expect("SELECT", "WITH", "VALUES")
            raise self.unexpected()
        found = self.query()
        while self.accept(";"):
            pass
        if not self.at_end:
            raise self.unexpected()
        return found

    def statement(self) -> Part:
        """One statement."""
        start = self.next
        if reason := _REFUSED.get(start.keyword):
            if start.keyword == "EXECUTE" and self.peek().keyword == "STATEMENT":
                self.advance()
                return self._statement_set(start)
            raise self.fail(reason)
        if self.at_query():
            return self.query()
        self.expect("SELECT", "WITH", "VALUES")
        parse = {
            "CREATE": self._create, "DROP": self._drop, "INSERT": self._insert, "EXPLAIN": self._explain,
            "DESCRIBE": self._describe, "DESC": self._describe, "SHOW": self._show, "SET": self._set,
            "RESET": self._reset, "BEGIN": self._statement_set,
        }  # fmt: skip
        for word, parses in parse.items():
            if self.accept(word):
                return parses(start)
        raise self.unexpected()

    # -- create ---------------------------------------------------------------------------------------------------------

    def _create(self, start: Token) -> Part:
        replaces = self.accept("OR", "REPLACE")
        self.accept("TEMPORARY")
        if self.next.keyword == "SYSTEM" and self.peek().keyword == "FUNCTION":
            self.accept("SYSTEM")
        if self.accept("TABLE"):
            if replaces:
                raise self.fail("CREATE OR REPLACE TABLE is not supported; write DROP TABLE before it")
            return self._create_table(start)
        if self.accept("VIEW"):
            new = self._if_not_exists()
            name = self.name("a name for the view")
            columns = self._column_names() if self.at("(") else ()
            self.require("AS")
            return CreateView(name, columns, self.query(), replaces, new, span=self.since(start))
        if self.accept("FUNCTION"):
            new = self._if_not_exists()
            name = self.name("a name for the function")
            self.require("AS")
            path = self.string("a path such as 'module.function'")
            language = self.name("a language such as PYTHON") if self.accept("LANGUAGE") else "JAVA"  # as in Flink
            if language.upper() != "PYTHON":
                raise self.fail(f"functions are in PYTHON, not {language}; write LANGUAGE PYTHON", self.last.span)
            return CreateFunction(name, path, "PYTHON", new, span=self.since(start))
        if self.at_any("CATALOG", "DATABASE", "MATERIALIZED", "SCHEMA", "INDEX", "UNIQUE"):
            raise self.fail(f"CREATE {self.next.keyword} is not supported; there are tables, views and functions")
        raise self.unexpected()

    def _if_not_exists(self) -> bool:
        return self.accept("IF", "NOT", "EXISTS")

    def _create_table(self, start: Token) -> Part:
        new = self._if_not_exists()
        name = self.name("a name for the table")
        columns: list[ColumnDefinition] = []
        watermark: Watermark | None = None
        key: tuple[str, ...] = ()
        self._untyped = None
        if self.accept("("):
            while True:
                here = self.next
                if self.accept("WATERMARK", "FOR"):
                    if watermark is not None:
                        raise self.fail("a table has one WATERMARK", here.span)
                    column = self.name("a column")
                    self.require("AS")
                    watermark = Watermark(column, self.expression(), span=self.since(here))
                elif self.next.keyword in ("PRIMARY", "CONSTRAINT"):
                    if self.accept("CONSTRAINT"):
                        self.name("a name for the constraint")
                    self.require("PRIMARY", "KEY")
                    self._check_no_key(key, here)
                    key = self._column_names()
                    self._not_enforced()
                else:
                    column_definition, is_key = self._column_definition()
                    if any(each.name == column_definition.name for each in columns):
                        raise self.fail(f"the column {column_definition.name!r} is there twice", here.span)
                    columns.append(column_definition)
                    if is_key:
                        self._check_no_key(key, here)
                        key = (column_definition.name,)
                if not self.accept(","):
                    break
            self.require(")")
        self._comment()
        partitioned = self._column_names() if self.accept("PARTITIONED", "BY") else ()
        if self.at("DISTRIBUTED"):
            raise self.fail("DISTRIBUTED is not supported; the connector's settings say how a table is partitioned")
        settings = self._settings() if self.accept("WITH") else ()
        like = self._like() if self.accept("LIKE") else None
        query = self.query() if self.accept("AS") else None
        if self._untyped is not None and query is None:
            raise self._untyped
        return CreateTable(
            name, tuple(columns), watermark, key, partitioned, settings, like, query, new, span=self.since(start)
        )

    def _check_no_key(self, key: tuple[str, ...], here: Token) -> None:
        if key:
            raise self.fail(
                f"a table has one PRIMARY KEY, and this has ({', '.join(key)}) already; of several "
                "columns it is PRIMARY KEY (a, b)",
                self.since(here),
            )

    def _like(self) -> str:
        name = self.name("a table")
        if self.accept("("):
            while not self.accept(")"):
                if self.accept_any("INCLUDING", "EXCLUDING", "OVERWRITING") is None:
                    raise self.unexpected()
                raise self.fail(
                    "LIKE takes all of the other table, and settings of WITH replace its own; leave the options out",
                    self.last.span,
                )
        return name

    def _column_definition(self) -> tuple[ColumnDefinition, bool]:
        start = self.next
        name = self.name("a column")
        if self.accept("AS"):
            computed = self.expression()
            self._comment()
            return ColumnDefinition(name, None, computed=computed, span=self.since(start)), False
        if self.next.value in (",", ")"):
            self.expect("a type")
            self._untyped = self._untyped or self.unexpected()
            return ColumnDefinition(name, None, span=self.since(start)), False
        kind, _ = self.type()
        metadata, virtual = None, False
        if self.accept("METADATA"):
            metadata = self.string("the name of the metadata") if self.accept("FROM") else name
            virtual = self.accept("VIRTUAL")
        nullable, key = self._nullable(), False
        while True:
            if self.at("NOT", "NULL") or self.at("NULL"):
                if nullable is not None:
                    raise self.fail("whether the column may be NULL is said already; leave one out")
                nullable = self._nullable()
            elif self.accept("PRIMARY", "KEY"):
                key = True
                self._not_enforced()
            elif self.next.keyword in _OF_DATABASES:
                raise self.fail(f"a stream cannot keep {self.next.keyword}; leave it out, and say so in the query")
            elif not self._comment():
                break
        found = ColumnDefinition(name, kind, nullable is not False, None, metadata, virtual, span=self.since(start))
        return found, key

    def _nullable(self) -> bool | None:
        """What NULL and NOT NULL say; None where neither stands."""
        if self.accept("NOT", "NULL"):
            return False
        return True if self.accept("NULL") else None

    def _not_enforced(self) -> None:
        if not self.accept("NOT", "ENFORCED"):
            raise self.fail("a stream cannot enforce a key: write PRIMARY KEY ... NOT ENFORCED")

    def _comment(self) -> bool:
        if not self.accept("COMMENT"):
            return False
        self.string("a text")
        return True

    def _settings(self) -> tuple[Setting, ...]:
        found = self.in_parentheses(lambda: self.list_of(self._setting))
        for number, each in enumerate(found):
            if any(other.key == each.key for other in found[:number]):
                raise self.fail(f"{each.key!r} is there twice; leave one out", each.span)
        return found

    def _setting(self) -> Setting:
        start = self.next
        key = self.string("a setting such as 'connector'")
        self.require("=")
        value = self.string("a value in quotes")
        return Setting(key, value, span=self.since(start))

    # -- others ---------------------------------------------------------------------------------------------------------

    def _drop(self, start: Token) -> Part:
        self.accept("TEMPORARY")
        kind = self.accept_any("TABLE", "VIEW", "FUNCTION")
        if kind is None:
            raise self.unexpected()
        there = self.accept("IF", "EXISTS")
        return Drop(kind, self.name("a name"), there, span=self.since(start))  # pyright: ignore[reportArgumentType]

    def _insert(self, start: Token) -> Insert:
        overwrite = self.accept("OVERWRITE")
        if not overwrite:
            self.require("INTO")
        self.accept("TABLE")
        table = self._column("a table")
        if self.at("PARTITION"):
            raise self.fail("PARTITION is not supported; give the columns of the partition in the query")
        columns: tuple[Name, ...] = ()
        if self.at("(") and not self.at_query():
            columns = self.in_parentheses(lambda: self.list_of(self._column))
        return Insert(table, columns, self.query(), overwrite, span=self.since(start))

    def _explain(self, start: Token) -> Part:
        details: list[str] = []
        while word := self.accept_any("PLAN", "ESTIMATED_COST", "CHANGELOG_MODE", "JSON_EXECUTION_PLAN", "PLAN_ADVICE"):
            if word == "PLAN":
                self.accept("FOR")
            else:
                details.append(word)
            self.accept(",")
        return Explain(self.statement(), tuple(details), span=self.since(start))

    def _describe(self, start: Token) -> Part:
        self.accept_any("TABLE", "EXTENDED")
        return Describe(self._column("a table"), span=self.since(start))

    def _show(self, start: Token) -> Part:
        if self.accept("CREATE"):
            kind = self.accept_any("TABLE", "VIEW")
            if kind is None:
                raise self.unexpected()
            return Show(f"CREATE {kind}", self._column("a table"), span=self.since(start))
        if self.accept("COLUMNS"):
            if self.accept_any("FROM", "IN") is None:
                raise self.unexpected()
            return Describe(self._column("a table"), span=self.since(start))
        if self.accept("USER", "FUNCTIONS"):
            like = self.string("a pattern") if self.accept("LIKE") else None
            return Show("USER FUNCTIONS", None, like, span=self.since(start))
        what = self.accept_any("TABLES", "VIEWS", "FUNCTIONS", "CATALOGS", "DATABASES", "JOBS")
        if what is None:
            raise self.unexpected()
        like = self.string("a pattern") if self.accept("LIKE") else None
        return Show(what, None, like, span=self.since(start))

    def _set(self, start: Token) -> Part:
        if self.at_end or self.at(";"):
            return SetOption(None, None, span=self.since(start))
        key = self.string("a setting in quotes") if self.next.kind == "text" else self._dotted()
        self.require("=")
        value = self.string("a value in quotes") if self.next.kind == "text" else self.advance().value
        return SetOption(key, value, span=self.since(start))

    def _dotted(self) -> str:
        parts = [self.name("a setting")]
        while self.accept_any(".", "-"):
            parts.append(self.text.at(self.last.span) + self.name("a setting"))
        return "".join(parts)

    def _reset(self, start: Token) -> Part:
        key = None if self.at_end or self.at(";") else self.string("a setting in quotes")
        return ResetOption(key, span=self.since(start))

    def _statement_set(self, start: Token) -> Part:
        self.require("STATEMENT", "SET")
        if self.accept("BEGIN"):
            pass
        self.accept(";")
        inserts: list[Insert] = []
        while not self.accept("END"):
            here = self.next
            self.require("INSERT")
            inserts.append(self._insert(here))
            self.require(";")
        if not inserts:
            raise self.fail("the statement set is empty; write INSERT INTO ... within it", self.since(start))
        return StatementSet(tuple(inserts), span=self.since(start))
