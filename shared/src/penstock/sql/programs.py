"""A text of statements as a pipeline: tables that it declares, and what it inserts into them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any, Final

from penstock.connectors import console
from penstock.core.names import is_pipeline_name
from penstock.core.times import checked_ttl_us
from penstock.errors import PipelineError, UsageError, nearest
from penstock.expressions import Expr, col, lit
from penstock.expressions.typing_rules import promote
from penstock.plan.building.changes import final, has_end
from penstock.plan.building.columns import check_rows, project
from penstock.plan.building.rows import Rows
from penstock.plan.building.sources import write
from penstock.protocol.keygroups import DEFAULT_MAX_PARALLELISM, LARGEST_MAX_PARALLELISM
from penstock.sql.binding.context import Context
from penstock.sql.binding.names import alike
from penstock.sql.binding.queries import Binder
from penstock.sql.binding.relations import as_keyed_by, plain_columns
from penstock.sql.catalogue import Catalogue, DeclaredTable, View
from penstock.sql.connectors import connector_of, duration_setting, sink_of
from penstock.sql.functions.arguments import sql_name
from penstock.sql.parsing import statements
from penstock.sql.python_functions import imported
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
    Show,
    StatementSet,
    TableName,
)
from penstock.sql.text import SqlText
from penstock.sql.writing import finished
from penstock.types import DATE, NULL, STRING, TIMESTAMP, DataType

if TYPE_CHECKING:
    from penstock.connectors.base import Sink
    from penstock.plan.logical import LogicalPlan, Node

_NOT_OF_IDS: Final = re.compile(r"[^\w.-]")
NAME: Final = "pipeline.name"
TTL: Final = "table.exec.state.ttl"
MAX_PARALLELISM: Final = "pipeline.max-parallelism"
_SETTINGS: Final = (NAME, TTL, MAX_PARALLELISM)
_OF_THE_COMMAND: Final = {
    "parallelism.default": "--parallelism", "execution.checkpointing.interval": "--checkpoint-interval",
    "execution.checkpointing.mode": "--at-least-once", "state.backend.type": "--state-backend",
    "restart-strategy.type": "--restart",
}  # fmt: skip
_RUNTIME_MODE: Final = "execution.runtime-mode"


@dataclass
class Settings:
    """What SET says of a pipeline."""

    values: dict[str, str] = field(default_factory=dict[str, str])

    def take(self, text: SqlText, part: SetOption | ResetOption) -> None:
        """Note what a statement sets, or sets back.

        Raises:
            SqlError: it is no setting.
        """
        if isinstance(part, ResetOption):
            if part.key is not None:
                self._check_known(text, part)
            self.values.clear() if part.key is None else self.values.pop(part.key, None)
        elif part.key is not None and part.value is not None:
            self._check(text, part)
            after = Settings({**self.values, part.key: part.value})
            try:
                _ = after.state_ttl_us, after.max_parallelism
            except PipelineError as error:
                raise text.error(part.span, str(error)) from None
            self.values = after.values

    def _check(self, text: SqlText, part: SetOption) -> None:
        self._check_known(text, part)
        if part.key == NAME and not is_pipeline_name(str(part.value)):
            raise text.error(
                part.span, f"{part.value!r} is no name; use letters, digits, '-', '_' and '.', not dots alone"
            )

    @staticmethod
    def _check_known(text: SqlText, part: SetOption | ResetOption) -> None:
        if part.key in _OF_THE_COMMAND:
            option = _OF_THE_COMMAND[part.key]
            raise text.error(part.span, f"{part.key!r} is not set by a text; give the command the option {option}")
        if part.key == _RUNTIME_MODE:
            raise text.error(
                part.span, f"{part.key!r} is not needed: a job ends if its tables have an end; leave it out"
            )
        if part.key not in _SETTINGS:
            raise text.error(part.span, f"there is no setting {part.key!r}; {nearest(str(part.key), _SETTINGS)}")

    @property
    def state_ttl_us(self) -> int | None:
        """The time to live of state."""
        value = self.values.get(TTL)
        return None if value is None else checked_ttl_us(duration_setting(TTL, value), TTL) or None

    @property
    def max_parallelism(self) -> int:
        """The number of key groups."""
        value = self.values.get(MAX_PARALLELISM)
        if value is not None and not (value.isdigit() and 1 <= int(value) <= LARGEST_MAX_PARALLELISM):
            raise PipelineError(
                f"{MAX_PARALLELISM} is a whole number from 1 to {LARGEST_MAX_PARALLELISM}, not {value!r}"
            )
        return DEFAULT_MAX_PARALLELISM if value is None else int(value)


@dataclass
class Program:
    """A text of statements, parsed: what it says of the whole pipeline is known before it becomes part of a plan."""

    text: SqlText
    parsed: list[Part]
    settings: Settings = field(default_factory=Settings)

    @classmethod
    def of(cls, text: SqlText) -> Program:
        """Parse a text.

        Raises:
            SqlError: it is wrong, or sets what is no setting.
        """
        program = cls(text, statements(text))
        for each in program.parsed:
            if isinstance(each, SetOption | ResetOption):
                program.settings.take(text, each)
        return program

    def add_to(self, plan: LogicalPlan, shown: Callable[[Rows], None] | None = None) -> None:
        """Add what the text says to a plan.

        Args:
            plan: the plan.
            shown: is given the rows of each query that stands alone; they are printed if it is not given.

        Raises:
            SqlError: a statement is wrong, or the text writes nothing.
        """
        session = Session(plan)
        for each in self.parsed:
            session.execute(self.text, each, shown or _printed)
        if not session.writes:
            raise UsageError(f"{self.text.name}: writes nothing; add a query, or INSERT INTO a table")


@dataclass
class Session:
    """The tables that statements have declared so far, and the plan that they write."""

    plan: LogicalPlan
    streams: Mapping[str, Rows] = field(default_factory=dict[str, "Rows"])
    settings: Settings = field(default_factory=Settings)
    writes: int = 0
    filled: list[tuple[str, Node]] = field(default_factory=list[tuple[str, "Node"]])
    """The tables of INSERT INTO, with the nodes of the plan that write to them."""
    appends: bool = False
    """Whether each INSERT INTO is a run of its own, which adds to the files of those before it unless the table says
    otherwise. The statements of a program are one run, and a second one would double their rows."""

    def __post_init__(self) -> None:
        self.catalogue = Catalogue(self.streams)

    def over(self, plan: LogicalPlan) -> Session:
        """The declared tables and views over another plan, to see what a statement would add to it."""
        streams = {name: Rows(plan, rows.node) for name, rows in self.streams.items()}
        found = Session(plan, streams, appends=self.appends)
        catalogue = found.catalogue
        catalogue.functions.update(self.catalogue.functions)
        for name, table in self.catalogue.tables.items():
            catalogue.tables[name] = replace(table, context=replace(table.context, plan=plan, catalogue=catalogue))
        for name, view in self.catalogue.views.items():
            context = replace(view.context, plan=plan, catalogue=catalogue)
            catalogue.views[name] = replace(view, context=context, found=None)
        return found

    def execute(self, text: SqlText, part: Part, shown: Callable[[Rows], None]) -> None:
        """One statement.

        Raises:
            SqlError: it is wrong.
        """
        context = Context(text, self.plan, self.catalogue)
        match part:
            case CreateTable():
                self._create_table(context, part)
            case CreateView():
                self._create_view(context, part)
            case Drop():
                self._drop(context, part)
            case Insert():
                self._insert(context, part)
            case StatementSet():
                for each in part.statements:
                    self._insert(context, each)
            case Query():
                self.writes += 1
                shown(finished(context, Binder(context).ordered(part)))
            case SetOption() | ResetOption():
                self.settings.take(text, part)
                with context.at(part.span):
                    self.plan.state_ttl_us = self.settings.state_ttl_us
                    self.plan.max_parallelism = self.settings.max_parallelism
                self.plan.name = self.settings.values.get(NAME, self.plan.name)
            case CreateFunction():
                self._create_function(context, part)
            case Explain() | Describe() | Show():
                raise context.error(
                    part, "EXPLAIN, DESCRIBE and SHOW are for penstock sql; leave them out of a file that runs as a job"
                )
            case _:
                raise AssertionError(f"{part} is no statement")

    def _create_table(self, context: Context, part: CreateTable) -> None:
        if not self._is_new(context, part, part.name, part.only_if_new):
            return
        statement = part
        if part.like is not None:
            statement = self._like(context, part)
        if not statement.columns and not part.query:
            raise context.error(part, "the table has no columns; write CREATE TABLE t (a INT, b STRING) WITH (...)")
        if not statement.settings:
            raise context.error(part, "a table needs WITH ('connector' = ...), which says where its rows are")
        insert = None
        if statement.query is not None:
            statement, insert = self._as_query(context, statement, statement.query)
        table = DeclaredTable(statement, context)
        with context.at(part.span):
            connector_of(table.settings())
        self.catalogue.tables[part.name] = table
        if insert is None:
            return
        try:
            self._insert(context, insert)
        except PipelineError:
            del self.catalogue.tables[part.name]
            raise

    def _as_query(self, context: Context, part: CreateTable, query: Query) -> tuple[CreateTable, Insert]:
        """CREATE TABLE ... AS as the statements that it stands for.

        The table has the columns that the text declares for it, and behind them those of the query, in whose place a
        declared column of the same name stands. Where the text names columns without types, these are the query's, in
        that order.
        """
        scratch = self.over(replace(self.plan, nodes=[]))
        bound = Binder(Context(context.text, scratch.plan, scratch.catalogue)).ordered(query)
        found = {
            each.name: ColumnDefinition(each.name, each.type, each.nullable, span=query.span)
            for each in finished(context, bound).node.row_schema.fields
        }
        insert = Insert(
            Name((part.name,)), tuple(Name((name,), span=query.span) for name in found), query, span=part.span
        )
        declared = {each.name: each for each in part.columns}
        named = [each for each in part.columns if each.type is None and each.computed is None]
        for each in named:
            if each.name not in found:
                raise context.error(each, f"{each.name} needs a type; {nearest(each.name, found)}")
            if len(named) < len(declared):
                raise context.error(each, f"{each.name} needs a type, or all columns go without")
        if missing := [name for name in found if named and name not in declared]:
            raise context.error(named[-1], f"the query has a column {missing[0]} too; name all of its columns, or none")
        columns = (
            [found[name] for name in declared]
            if named
            else [each for each in part.columns if each.name not in found]
            + [declared.get(name, each) for name, each in found.items()]
        )
        return replace(part, columns=tuple(columns), query=None), insert

    def _like(self, context: Context, part: CreateTable) -> CreateTable:
        meant = alike(part.like or "", self.catalogue.tables)
        if meant is None:
            known = nearest(part.like or "", self.catalogue.tables)
            raise context.error(part, f"there is no table {part.like!r}; {known}")
        other = self.catalogue.tables[meant].statement
        own = {each.key for each in part.settings}
        return replace(
            part,
            columns=(*other.columns, *part.columns),
            watermark=part.watermark or other.watermark,
            primary_key=part.primary_key or other.primary_key,
            partitioned=part.partitioned or other.partitioned,
            settings=(*(each for each in other.settings if each.key not in own), *part.settings),
        )

    def _create_view(self, context: Context, part: CreateView) -> None:
        views = self.catalogue.views
        replaced = views.pop(part.name, None) if part.replace else None
        if not self._is_new(context, part, part.name, part.only_if_new):
            return
        views[part.name] = View(part, context)
        try:
            self._check_view(part)
        except PipelineError:
            del views[part.name]
            if replaced is not None:
                views[part.name] = replaced
            raise

    def _check_view(self, part: CreateView) -> None:
        """Bind the view, in a plan that is thrown away: also one that nobody reads is to be right."""
        catalogue = self.over(replace(self.plan, nodes=[])).catalogue
        Binder(catalogue.views[part.name].context).table(TableName((part.name,), span=part.span))

    def _create_function(self, context: Context, part: CreateFunction) -> None:
        if part.name.upper() in self.catalogue.functions:
            if part.only_if_new:
                return
            raise context.error(part, f"there is a function {part.name} already; give this another name, or DROP that")
        with context.at(part.span):
            self.catalogue.functions[part.name.upper()] = imported(part.name, part.path)

    def _is_new(self, context: Context, part: Part, name: str, only_if_new: bool) -> bool:
        if name not in self.catalogue.names:
            return True
        if only_if_new:
            return False
        raise context.error(part, f"there is a table or view {name!r} already; give this another name, or DROP that")

    def _drop(self, context: Context, part: Drop) -> None:
        catalogue = self.catalogue
        kinds: dict[str, dict[str, Any]] = {
            "TABLE": catalogue.tables, "VIEW": catalogue.views, "FUNCTION": catalogue.functions
        }  # fmt: skip
        known = kinds[part.kind]
        name = part.name.upper() if part.kind == "FUNCTION" else part.name
        if name in known:
            del known[name]
        elif not part.only_if_there:
            raise context.error(part, f"there is no {part.kind.lower()} {part.name!r}; {nearest(part.name, known)}")

    def _insert(self, context: Context, part: Insert) -> None:
        name = str(part.table)
        meant = alike(context.table_name(part.table.parts, part.table), self.catalogue.tables)
        if meant is None:
            kinds = {"a view": self.catalogue.views, "a stream of the pipeline": self.catalogue.streams}
            for kind, known in kinds.items():
                if alike(part.table.parts[-1], known) is not None:
                    raise context.error(part.table, f"{name} is {kind}; INSERT INTO takes a table of CREATE TABLE")
            raise context.error(part.table, f"there is no table {name!r}; {nearest(name, self.catalogue.tables)}")
        if part.overwrite:
            raise context.error(part, "INSERT OVERWRITE is not supported; 'existing' = 'replace' of files does that")
        table = self.catalogue.tables[meant]
        before = len(self.plan.nodes)
        rows = self._fitted(context, part, table, finished(context, Binder(context).ordered(part.query)))
        self.writes += 1
        with context.at(part.span):
            sink = sink_of(meant, table.settings(), appends=self.appends)
            written = write(self._as_taken(context, part, meant, rows, sink), sink)
        self.filled.append((meant, written.node))
        _name_state(self.plan, before, meant)

    def _as_taken(self, context: Context, part: Insert, name: str, rows: Rows, sink: Sink) -> Rows:
        """The final rows, where the table cannot replace rows and the query is over tables that have an end."""
        if not rows.node.updates or sink.upsert_key is not None or isinstance(sink, console.Sink):
            return rows
        if has_end(rows.node):
            return final(rows)
        raise context.error(
            part.query,
            f"the rows of this query are replaced as its tables grow, and {name} cannot replace rows; group by windows, "
            "or give the table a connector with PRIMARY KEY, such as 'upsert-kafka' or 'postgres'",
        )

    def _fitted(self, context: Context, part: Insert, table: DeclaredTable, rows: Rows) -> Rows:
        """The rows of a query as those of a table: columns by their place, or as the text names them."""
        target = table.physical
        names = list(target.names)
        if part.columns:
            names = []
            for each in part.columns:
                meant = alike(each.parts[-1], target.names)
                if meant is None or meant in names:
                    known = nearest(str(each), target.names)
                    reason = "is there twice" if meant else f"is no column of the table; {known}"
                    raise context.error(each, f"{each} {reason}")
                names.append(meant)
        given = rows.node.row_schema.fields
        if len(given) != len(names):
            raise context.error(
                part.query,
                f"the query has {len(given)} columns, and {table.statement.name} takes {len(names)}: {', '.join(names)}",
            )
        made: dict[str, Expr] = {}
        perhaps_null: dict[str, str] = {}
        for own, name in zip(given, names, strict=True):
            wanted = target.field(name).type
            if own.nullable and not target.field(name).nullable:
                perhaps_null[name] = own.name
            if own.type != wanted and not _fits(own.type, wanted):
                raise context.error(
                    part.query,
                    f"{own.name!r} is {sql_name(own.type)}, and {name} of the table {sql_name(wanted)}; CAST it",
                )
            made[name] = col(own.name) if own.type == wanted else col(own.name).cast(wanted)
        for each in target.fields:
            if each.name not in made:
                if not each.nullable:
                    raise context.error(part, f"{each.name} is NOT NULL and is not named; the query has to give it")
                made[each.name] = lit(None).cast(each.type)
        if perhaps_null:
            text = (
                f"{', '.join(perhaps_null)} of {table.statement.name} is NOT NULL, and a row has NULL there; leave such "
                "rows out by WHERE, or give them a value by COALESCE"
            )
            known = reduce(and_, (col(own).is_not_null() for own in perhaps_null.values()))
            rows = check_rows(rows, known, str(context.error(part.query, text)))
        if [(each.name, col(each.name).node) for each in given] == [(name, made[name].node) for name in target.names]:
            return rows
        kept = as_keyed_by(rows, plain_columns(made), "insert")
        return project(kept, "select", tuple((name, made[name]) for name in target.names))


def _name_state(plan: LogicalPlan, before: int, table: str) -> None:
    """Give operators of a statement ids of the table that it fills and of what they do, as in `departures.window`.

    So state is found again by a text that is formatted otherwise, or has more columns, or statements before this one.
    """
    taken = {node.uid for node in plan if node.uid is not None}
    for node in plan.nodes[before:]:
        if node.uid is not None or not (node.traits.keeps_state or node.traits.role == "sink"):
            continue
        name, number = _NOT_OF_IDS.sub("_", f"{table}.{node.verb}"), 2
        node.uid = name
        while node.uid in taken:
            node.uid, number = f"{name}.{number}", number + 1
        taken.add(node.uid)


def _fits(given: DataType, wanted: DataType) -> bool:
    """Whether all values of one type are values of another."""
    if given == NULL or (given, wanted) == (DATE, TIMESTAMP):
        return True
    return promote(given, wanted) == wanted and STRING not in (given, wanted)


def _printed(rows: Rows) -> None:
    """Rows to the terminal: of tables with an end the last ones."""
    write(final(rows) if rows.node.updates and has_end(rows.node) else rows, console.Sink())
