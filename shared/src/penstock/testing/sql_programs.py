"""The program of one test of SQL: the rows that it is given, what it writes of them, and queries over both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from penstock.connectors import collecting, iterables
from penstock.connectors.base import ChangeSource
from penstock.connectors.change_rows import with_changes
from penstock.connectors.keyed_rows import RETRACTED
from penstock.errors import BadRecordError, nearest
from penstock.plan.logical import LogicalPlan, Node
from penstock.plan.operations.lookup_join import LookupJoin
from penstock.plan.operations.write import Write
from penstock.sql.answers import Answer
from penstock.sql.binding.context import Context
from penstock.sql.binding.names import alike
from penstock.sql.binding.queries import Binder
from penstock.sql.binding.ranks import settled
from penstock.sql.catalogue import Catalogue, DeclaredTable
from penstock.sql.programs import Program, Session
from penstock.sql.syntax import (
    CreateFunction,
    CreateTable,
    CreateView,
    Describe,
    Explain,
    Insert,
    Part,
    Query,
    Show,
    TableName,
    parts_of,
)
from penstock.sql.testing.changes import Log
from penstock.sql.testing.comparing import Found, wants_changes, with_kinds
from penstock.sql.testing.files import Check, SqlTest
from penstock.sql.testing.given import GivenTable
from penstock.sql.testing.lookups import GivenLookup
from penstock.sql.testing.tables import TextTable
from penstock.sql.text import SqlText
from penstock.testing.feeds import Feed, elapse
from penstock.testing.pipelines import run_plan
from penstock.types import Schema

if TYPE_CHECKING:
    from penstock.expressions import Expr

_PAUSE: Final = "1ms"
"""Before a row, of whatever table: those before it are worked on when it is read."""


@dataclass(frozen=True)
class _Given:
    table: str
    rows: Sequence[dict[str, Any]]


class ProgramUnderTest:
    """The program of one test, with what the test declares, and the rows that are given so far."""

    def __init__(self, test: SqlTest, program: SqlText | None) -> None:
        self._text = test.text
        text = replace(program or SqlText(""), parameters=test.text.parameters)
        self._session = Session(LogicalPlan("test"))
        self._own_views = set[str]()
        self._given: list[_Given] = []
        self._written: dict[int, dict[str, list[_Written]]] = {}
        """What the program writes of so many statements of given rows, by table."""
        for part in Program.of(text).parsed:
            self._execute(text, part)

    def _execute(self, text: SqlText, part: Part) -> None:
        if not isinstance(part, Explain | Describe | Show):
            self._session.execute(text, part, lambda rows: None)

    def declare(self, part: CreateTable | CreateView | CreateFunction) -> None:
        """A statement of the test that declares something."""
        self._execute(self._text, part)
        if isinstance(part, CreateView):
            self._own_views.add(part.name)

    def give(self, part: Insert) -> None:
        """Rows for a table that is read."""
        name = self._table(part)
        context = Context(self._text, LogicalPlan("given"), Catalogue())
        rows = GivenTable(context, self._session.catalogue.tables[name]).rows(part)
        self._given.append(_Given(name, rows))

    def _table(self, part: Insert) -> str:
        tables = self._session.catalogue.tables
        name = alike(part.table.parts[-1], tables)
        if name is None:
            known = nearest(part.table.parts[-1], tables)
            raise self._text.error(part.table.span, f"there is no table {str(part.table)!r}; {known}")
        filled = {table for table, _ in self._session.filled}
        catalogue = self._session.catalogue
        read = {table for table, _ in (*catalogue.reads(), *catalogue.lookups)}
        if name in filled and name not in read:
            raise self._text.error(
                part.table.span,
                f"the program fills {name}, and does not read it; a test gives rows to what it reads: "
                f"{', '.join(sorted(read)) or 'nothing'}",
            )
        return name

    # -- running --------------------------------------------------------------------------------------------------------

    def _feeds(self, *catalogues: Catalogue) -> dict[str, Feed]:
        """What everything reads that reads a declared table: the given rows, statement after statement, or those that the
        program has written. Row by row, so that no change is left out."""
        feeds: dict[str, Feed] = {}
        for catalogue in catalogues:
            for name, node in catalogue.reads():
                source = catalogue.tables[name].source
                written = _one_by_one(source.given) if isinstance(source, _WrittenRows) else None
                feeds[node.operator_id] = Feed(self._items(name) if written is None else written)
        return feeds

    def _items(self, table: str) -> list[Any]:
        of_all = ((given.table, row) for given in self._given for row in given.rows)
        return _one_by_one(row if name == table else None for name, row in of_all)

    def _answering(self, plan: LogicalPlan, *catalogues: Catalogue) -> LogicalPlan:
        """The plan, in which tables that are asked for rows answer from those that are given."""
        tables = {id(lookup): catalogue.tables[name] for catalogue in catalogues for name, lookup in catalogue.lookups}
        copies: dict[str, Node] = {}
        for node in plan:
            operation = node.operation
            if isinstance(operation, LookupJoin):
                table = tables[id(operation.lookup)]
                rows = [row for given in self._given if given.table == table.statement.name for row in given.rows]
                lookup = GivenLookup(operation.lookup, rows, table.settings().key)
                operation = replace(operation, lookup=lookup)
            copies[node.id] = replace(node, operation=operation, inputs=tuple(copies[each.id] for each in node.inputs))
        return replace(plan, nodes=list(copies.values()))

    def _filled(self) -> Mapping[str, list[_Written]]:
        """What the program has written, by table, of the rows that are given so far."""
        number = len(self._given)
        if number not in self._written:
            catalogue = self._session.catalogue
            sinks = run_plan(self._answering(self._session.plan, catalogue), self._feeds(catalogue))
            found: dict[str, list[_Written]] = {}
            for name, node in self._session.filled:
                assert isinstance(node.operation, Write)
                key = node.operation.sink.upsert_key
                log = Log.of(node.inputs[0], sinks[node.operator_id], key)
                found.setdefault(name, []).append(_Written(log, tuple(key or ())))
            self._written[number] = found
        return self._written[number]

    def _asked(self, query: Query, plan: LogicalPlan) -> tuple[Catalogue, Catalogue]:
        """The tables that a query may name: those that the program fills with what it has written. And the tables behind
        the views of the program, which are read as the program reads them."""
        inner = self._session.over(plan).catalogue
        outer = Catalogue(tables={**inner.tables}, views={**inner.views}, functions=inner.functions)
        filled = {name for name, _ in self._session.filled}
        for name in self._named(query, outer):
            if name in self._own_views:
                view = outer.views[name]
                outer.views[name] = replace(view, context=replace(view.context, catalogue=outer))
            elif name in filled:
                table = outer.tables[name]
                source = _source(table, self._filled()[name])
                outer.tables[name] = replace(table, context=replace(table.context, catalogue=outer), source=source)
        return outer, inner

    def _named(self, query: Query, catalogue: Catalogue) -> set[str]:
        """The tables and views that a query names, those in views of the test too."""
        found = set[str]()
        waiting = [query]
        while waiting:
            parts = [part for part in parts_of(waiting.pop()) if isinstance(part, TableName)]
            new = {name for part in parts if (name := alike(part.name[-1], catalogue.names)) is not None} - found
            waiting += [catalogue.views[name].statement.query for name in new & self._own_views]
            found |= new
        return found

    def answer(self, check: Check, table: TextTable | None) -> Found:
        """The answer of a query: its rows, or all changes if the table that is expected lists changes.

        Raises:
            PenstockError: it has none.
        """
        plan = replace(self._session.plan, nodes=[])
        outer, inner = self._asked(check.query, plan)
        context = Context(self._text, plan, outer)
        ordered = Binder(context).ordered(check.query)
        relation = settled(context, ordered.relation)
        answer = Answer(relation.rows, tuple(relation.named().items()), ordered.order, bounded=True)
        whole = plan.ending_in(answer.rows.node, Write(collecting.Sink()))
        made = {each.operator_id for each in whole}
        feeds = {key: feed for key, feed in self._feeds(inner, outer).items() if key in made}
        (rows,) = run_plan(self._answering(whole, inner, outer), feeds).values()
        log = Log.of(answer.rows.node, rows)
        changes = table is not None and wants_changes(table, [name for name, _ in answer.columns])
        return _changes(answer, log) if changes else _final(answer, log)


def _one_by_one(rows: Iterable[Any | None]) -> list[Any]:
    """Rows with a pause before each, in which constant rows of the plan are read; None is a row of another table."""
    found: list[Any] = []
    for row in rows:
        found += [elapse(_PAUSE)] if row is None else [elapse(_PAUSE), row]
    return found


def _final(answer: Answer, log: Log) -> Found:
    """The rows that are left at the end, in their order."""
    frame = answer.sorted(_frame(answer, log.final()))
    ties = [repr(row) for row in frame.select(answer.ordered_by).iter_rows()] if answer.order else None
    return Found(answer.fields, answer.cells(answer.shown(frame)), ties)


def _changes(answer: Answer, log: Log) -> Found:
    """All changes, in the order in which they came."""
    changes = [*log.changes()]
    rows = answer.cells(answer.shown(_frame(answer, [row for _, row in changes])))
    own = [name for _, name in answer.columns]
    key = log.key if log.key is not None and {*log.key} <= {*own} else own
    return Found(
        with_kinds(answer.fields),
        [(kind, *row) for (kind, _), row in zip(changes, rows, strict=True)],
        key=[1 + own.index(name) for name in key],
    )


def _frame(answer: Answer, rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    schema = answer.rows.node.row_schema.polars()
    return pl.DataFrame([{name: row[name] for name in schema} for row in rows], schema=schema, orient="row")


# -- what the program has written, read again --------------------------------------------------------------------------


@dataclass(frozen=True)
class _Written:
    """What one INSERT INTO has written."""

    log: Log
    key: tuple[str, ...]
    """The columns by which the sink replaces rows; none if it adds them."""


class _WrittenRows(iterables.Source[Any]):
    """The rows that a program has written to a table."""

    def __init__(
        self, rows: list[Any], schema: Schema, time: str | Expr | None = None, late: str | None = None
    ) -> None:
        super().__init__(rows, schema=schema, event_time=time, max_out_of_orderness=late)
        self.given: Final = rows


class _Changes(_WrittenRows, ChangeSource[Any]):
    """The changes that a program has written to a table that replaces rows."""

    def __init__(self, log: Log, rows: Schema, key: tuple[str, ...]) -> None:
        changes = [{**row, RETRACTED: bool(log.retracted and row[log.retracted])} for row in log.rows]
        super().__init__(changes, with_changes(rows, key, complete=log.complete))
        self.rows, self.keys, self.complete = rows, key, log.complete


def _source(table: DeclaredTable, written: Sequence[_Written]) -> _WrittenRows:
    """A filled table as it would be read: with its changes, where rows are replaced by a key."""
    settings = table.settings()
    first = written[0]
    schema = Schema(tuple(replace(each, nullable=each.name not in first.key) for each in settings.schema))
    if len(written) == 1 and first.log.key is not None:
        _check_key(table.statement.name, first)
        return _Changes(first.log, schema, first.log.key)
    rows = [row for each in written for row in each.log.final()]
    if settings.event_time is None:
        return _WrittenRows(rows, schema)
    return _WrittenRows(rows, schema, settings.event_time, f"{settings.out_of_orderness_us or 0}us")


def _check_key(table: str, written: _Written) -> None:
    """Sinks refuse a row without a key, too."""
    for row in written.log.rows:
        missing = [name for name in written.key if row[name] is None]
        if missing:
            raise BadRecordError(
                f"{table}: the program writes a row whose key is NULL (column {', '.join(missing)}), and the table has "
                f"rows by key; leave such rows out: {dict(row)}"
            )
