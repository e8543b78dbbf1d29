"""The tables that a text may name: streams of the program around it, declared tables, and views."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from penstock.errors import nearest
from penstock.expressions import Expr, col
from penstock.plan.building.columns import project
from penstock.plan.building.sources import read
from penstock.plan.logical import LogicalPlan, sources_of
from penstock.sql.binding.expressions import Expressions
from penstock.sql.binding.moments import micros_of
from penstock.sql.binding.names import Bound, Scope, alike
from penstock.sql.binding.ranks import settled
from penstock.sql.binding.relations import PROCTIME, Column, Relation, relation_of
from penstock.sql.binding.seeds import one_row
from penstock.sql.connectors import TableSettings, connector_of, lookup_of, source_of
from penstock.sql.functions.arguments import sql_name
from penstock.sql.functions.function import PythonAggregate
from penstock.sql.python_functions import PythonFunction
from penstock.sql.syntax import Call, CreateTable, CreateView, Part
from penstock.sql.table_functions import called
from penstock.sql.text import counted
from penstock.types import INTEGERS, Field, Schema

if TYPE_CHECKING:
    from penstock.connectors.base import Source
    from penstock.connectors.lookups import Lookup
    from penstock.plan.building.rows import Rows
    from penstock.plan.logical import Node
    from penstock.sql.binding.context import Context
    from penstock.sql.binding.queries import Binder
    from penstock.sql.syntax import Hint, TableName


@dataclass
class DeclaredTable:
    """A table of CREATE TABLE."""

    statement: CreateTable
    context: Context
    """The text that declares it."""
    source: Source[Any] | None = None
    """Where its rows are, if not where its connector says."""

    @property
    def physical(self) -> Schema:
        """The columns that the connector's rows have, and INSERT INTO fills: neither computed nor metadata."""
        of_metadata = {each.name for each in self.statement.columns if each.metadata is not None}
        return Schema(tuple(each for each in self._typed().fields if each.name not in of_metadata))

    def settings(self, hints: tuple[Hint, ...] = ()) -> TableSettings:
        """What the connector is given."""
        statement = self.statement
        given = {each.key: each.value for each in statement.settings}
        for hint in hints:
            if hint.name != "OPTIONS":
                where = "; STATE_TTL stands behind SELECT" if hint.name == "STATE_TTL" else ""
                raise self.context.error(
                    hint, f"there is no hint {hint.name} of tables; there is OPTIONS('key' = 'value'){where}"
                )
            given.update(hint.settings)
        metadata = {each.name: each.metadata for each in statement.columns if each.metadata is not None}
        time, bound = self._event_time()
        physical = self.physical
        shown = [each for each in self._typed().fields if each.name in metadata]
        for name in statement.primary_key:
            if name not in physical:
                raise self.context.error(
                    statement, f"PRIMARY KEY: there is no column {name!r}; {nearest(name, physical.names)}"
                )
        for name in statement.partitioned:
            if name not in physical:
                raise self.context.error(
                    statement, f"PARTITIONED BY: there is no column {name!r}; {nearest(name, physical.names)}"
                )
        key = tuple(statement.primary_key)
        fields = tuple(replace(each, nullable=each.nullable and each.name not in key) for each in physical.fields)
        return TableSettings(Schema((*fields, *shown)), key, given, time, bound, metadata, statement.partitioned)

    def _event_time(self) -> tuple[str | Expr | None, int | None]:
        mark = self.statement.watermark
        if mark is None:
            return None, None
        names = [each.name for each in self.statement.columns]
        if mark.column not in names:
            raise self.context.error(mark, f"there is no column {mark.column!r}; {nearest(mark.column, names)}")
        scope = self._scope()
        delay = self._delay(scope.resolve(mark.expression), mark.column, mark.expression)
        column = next(each for each in self.statement.columns if each.name == mark.column)
        settings = {each.key for each in self.statement.settings}
        if column.type in INTEGERS and "time-unit" not in settings:
            raise self.context.error(
                mark,
                f"{mark.column} is {sql_name(column.type)}, and event time is a TIMESTAMP; compute one, for example "
                f"ts AS TO_TIMESTAMP_LTZ({mark.column}, 3), or say by 'time-unit' = 'ms' what it counts since 1970",
            )
        if column.computed is None:
            return mark.column, delay
        return Expressions(self.context, self._typed()).value(scope.resolve(column.computed)), delay

    def _delay(self, found: Part, column: str, written: Part) -> int:
        if found == Bound(column):
            return 0
        if isinstance(found, Call) and found.function == "-" and found.arguments[0] == Bound(column):
            micros = micros_of(self.context, found.arguments[1])
            if micros is not None and micros >= 0:
                return micros
        raise self.context.error(
            written, f"a watermark is {column}, or {column} - INTERVAL '5' SECOND: how much later a row may come"
        )

    def _typed(self) -> Schema:
        """All columns but the computed ones."""
        return Schema(
            tuple(
                Field(each.name, each.type, each.nullable) for each in self.statement.columns if each.type is not None
            )
        )

    def _scope(self) -> Scope:
        columns = tuple(Column(each.name, each.name) for each in self.statement.columns)
        return Scope(self.context.text, Relation(one_row(LogicalPlan("scratch")), columns))

    def relation(self, hints: tuple[Hint, ...] = ()) -> Relation:
        """The rows of the table, with its computed columns, in the order of the text."""
        with self.context.at(self.statement.span):
            rows = read(self.context.plan, self.source or source_of(self.statement.name, self.settings(hints)))
        source, _ = next(sources_of(rows.node))
        if self.source is None and not any(node.uid == self.statement.name for node in self.context.plan):
            source.uid = self.statement.name
        names = [each.name for each in self.statement.columns]
        computed = [each for each in self.statement.columns if each.computed is not None]
        if computed or list(rows.node.row_schema.names) != names:
            rows = self._with_computed(rows)
        mark = self.statement.watermark
        columns = tuple(
            Column(
                each.name,
                each.name,
                self.statement.name,
                is_time=mark is not None and mark.column == each.name,
                is_proctime=isinstance(each.computed, Call) and each.computed.function == PROCTIME,
            )
            for each in self.statement.columns
        )
        return Relation(rows, columns)

    def lookup(self, hints: tuple[Hint, ...] = ()) -> Lookup[Any]:
        """The table as one that is asked for rows by their key.

        Raises:
            SqlError: its columns are not all of the connector's rows.
        """
        for each in self.statement.columns:
            if each.computed is not None or each.metadata is not None:
                raise self.context.error(
                    each, f"{each.name} is computed, and this table is asked for its columns; compute it in SELECT"
                )
        with self.context.at(self.statement.span):
            return lookup_of(self.statement.name, self.settings(hints))

    def _with_computed(self, rows: Rows) -> Rows:
        scope = self._scope()
        expressions = Expressions(self.context, self._typed())
        made: list[tuple[str, Expr]] = []
        for each in self.statement.columns:
            if each.computed is None:
                made.append((each.name, col(each.name)))
            else:
                made.append((each.name, expressions.value(scope.resolve(each.computed))))
        with self.context.at(self.statement.span):
            return project(rows, "select", tuple(made))


@dataclass
class View:
    """A view: a query with a name, which is bound where it is first used."""

    statement: CreateView
    context: Context
    found: Relation | None = None


@dataclass
class Catalogue:
    """Tables by name."""

    streams: Mapping[str, Rows] = field(default_factory=dict[str, "Rows"])
    tables: dict[str, DeclaredTable] = field(default_factory=dict[str, DeclaredTable])
    views: dict[str, View] = field(default_factory=dict[str, View])
    functions: dict[str, PythonFunction | PythonAggregate] = field(
        default_factory=dict[str, "PythonFunction | PythonAggregate"]
    )
    """Python functions by their name in upper case."""

    _read: dict[tuple[str, tuple[Hint, ...]], Relation] = field(default_factory=dict)  # pyright: ignore
    lookups: list[tuple[str, Lookup[Any]]] = field(default_factory=list[tuple[str, "Lookup[Any]"]])
    """What the declared tables that are asked for rows are asked by, with the name of the table."""

    def of_row(self, name: str) -> PythonFunction | None:
        """The Python function of a row that has that name, if any."""
        found = self.functions.get(name)
        return found if isinstance(found, PythonFunction) else None

    @property
    def names(self) -> list[str]:
        """All that can stand in FROM."""
        return [*self.streams, *self.tables, *self.views]

    def reads(self) -> Iterator[tuple[str, Node]]:
        """What reads the declared tables that have been named so far: the name of the table, and the node of the plan."""
        for (name, _), relation in self._read.items():
            yield name, next(sources_of(relation.rows.node))[0]

    def relation(self, binder: Binder, part: TableName) -> Relation:
        """The rows of a table.

        Raises:
            SqlError: there is none of that name.
        """
        meant = alike(part.name[-1], self.names)
        if meant is None:
            known = [*self.names, *binder.tables]
            shown = ".".join(part.name)
            raise binder.context.error(part, f"there is no table {shown!r}; {nearest(part.name[-1], known)}")
        if meant in self.tables:
            key = (meant, part.hints)
            kind = connector_of(self.tables[meant].settings(part.hints))
            if kind.source is None and self.tables[meant].source is None:
                uses = ["for INSERT INTO"] if kind.sink is not None else []
                if kind.lookup is not None:
                    uses.append(f"for JOIN {meant} FOR SYSTEM_TIME AS OF a column that is PROCTIME()")
                raise binder.context.error(part, f"{meant} cannot be read: '{kind.name}' is {', and '.join(uses)}")
            if key not in self._read:
                self._read[key] = self.tables[meant].relation(part.hints)
            return self._read[key]
        if part.hints:
            raise binder.context.error(part.hints[0], f"hints are for declared tables, and {meant} is none")
        if meant in self.views:
            return self._view(binder, part, self.views[meant])
        return relation_of(self.streams[meant], meant)

    def lookup(self, part: TableName) -> Lookup[Any] | None:
        """The table as one that is asked for rows by their key; None if it can be read as a stream, or is not there.

        Raises:
            SqlError: rows cannot be asked for so.
        """
        meant = alike(part.name[-1], self.tables)
        if meant is None or self.tables[meant].source is not None:
            return None
        kind = connector_of(self.tables[meant].settings(part.hints))
        if kind.source is not None or kind.lookup is None:
            return None
        found = self.tables[meant].lookup(part.hints)
        self.lookups.append((meant, found))
        return found

    def _view(self, binder: Binder, part: TableName, view: View) -> Relation:
        name = view.statement.name
        if name in binder.views:
            raise binder.context.error(part, f"the view {name!r} names itself")
        if view.found is None:
            inner = replace(binder, context=view.context, views=(*binder.views, name), tables={})
            view.found = settled(view.context, inner.query(view.statement.query))
        columns = view.statement.columns
        have = len(list(view.found.shown))
        if len(columns) > have:
            raise view.context.error(view.statement, f"{len(columns)} names are given, and there {counted(have)}")
        return view.found.called(name, columns)

    def function(self, binder: Binder, call: Call) -> Relation:
        """The rows of a function in FROM.

        Raises:
            SqlError: there is none of that name.
        """
        return called(binder.context, call)
