"""Statements of a session as operations: what each comes to, the run that it takes, and its result as Flink shows it."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.connectors import collecting
from penstock.core.batches import of_calendar
from penstock.errors import UsageError
from penstock.gateway.buffers import MAX_ROWS, RowBuffer
from penstock.gateway.jobs import Jobs
from penstock.gateway.operations import Operation
from penstock.gateway.properties import Properties
from penstock.gateway.results import Results, done, texts
from penstock.gateway.runs import Run, Runs
from penstock.plan.logical import LogicalPlan
from penstock.plan.operations.write import Write
from penstock.sql.answers import Answer
from penstock.sql.asking import Asking, Explanation, Listed, Listing
from penstock.sql.binding.names import alike
from penstock.sql.parsing import statements
from penstock.sql.programs import Session, Settings
from penstock.sql.syntax import (
    CreateFunction,
    CreateTable,
    CreateView,
    Describe,
    Drop,
    Insert,
    Part,
    ResetOption,
    SetOption,
)
from penstock.sql.text import SqlText
from penstock.sql.watching import watched
from penstock.types import BOOLEAN, STRING, Field

if TYPE_CHECKING:
    from penstock.sql.catalogue import DeclaredTable

NAME: Final = "sql-gateway"
_JOB_ID: Final = "job id"
_HEADS: Final[Mapping[Listed, tuple[str, ...]]] = {
    "SETTINGS": ("key", "value"), "TABLES": ("table name",), "VIEWS": ("view name",), "FUNCTIONS": ("function name",),
}  # fmt: skip
_COLUMNS: Final = tuple(
    Field(name, BOOLEAN if name == "null" else STRING, nullable=True)
    for name in ("name", "type", "null", "key", "extras", "watermark")
)
_JOBS: Final = ("job id", "job name", "status", "start time")
_BEGIN_SET: Final = re.compile(r"\s*BEGIN\s+STATEMENT\s+SET\s*;?\s*", re.IGNORECASE)
_END_SET: Final = re.compile(r"\s*END\s*;?\s*", re.IGNORECASE)
_SHOW_JOBS: Final = re.compile(r"\s*SHOW\s+JOBS\s*;?\s*", re.IGNORECASE)
_STOP_JOB: Final = re.compile(r"\s*STOP\s+JOB\s+'([^']*)'\s*;?\s*", re.IGNORECASE)
_CONFIGURES: Final = (CreateTable, CreateView, CreateFunction, Drop, SetOption, ResetOption)


@dataclass
class Statements:
    """Executes the statements of one session."""

    jobs: Jobs
    runs: Runs
    buffer_rows: int = MAX_ROWS
    properties: Properties = field(default_factory=Properties)

    def __post_init__(self) -> None:
        self.session = Session(LogicalPlan(NAME), appends=True)
        self._in_order = asyncio.Lock()
        self._one_at_a_time = threading.Lock()
        """Also while a statement is being decided that was cancelled: its thread goes on."""
        self._set: list[str] | None = None
        """The statements since BEGIN STATEMENT SET."""
        self.inserts: list[Run] = []
        """The runs of INSERT INTO."""

    def open(self, properties: Mapping[str, str]) -> None:
        """Begin with these properties.

        Raises:
            UsageError: Penstock has none of that name, and it would change results.
            SqlError: the value is wrong.
        """
        for each in self.properties.open(properties):
            (part,) = statements(each)
            self.session.execute(each, part, lambda rows: None)

    def all_properties(self) -> dict[str, str]:
        """The properties that hold."""
        return {**self.properties.values, **self.session.settings.values}

    async def configure(self, statement: str) -> None:
        """Execute one that changes the session and nothing else.

        Raises:
            UsageError: it does more than that.
            SqlError: it is wrong.
        """
        part = _only_statement(SqlText(statement))
        if not _configures(part) or (isinstance(part, SetOption) and part.key is None):
            raise UsageError(
                f"Unsupported statement for configuring session:{statement}\nThe configureSession API only supports to "
                "execute statement of type CREATE TABLE, DROP TABLE, CREATE VIEW, DROP VIEW, CREATE FUNCTION, DROP "
                "FUNCTION, SET and RESET."
            )
        async with self._in_order:
            await asyncio.to_thread(self._decided, lambda: self._answer(SqlText(statement), part, {}))

    async def execute(self, operation: Operation, statement: str, config: Mapping[str, str]) -> Results:
        """Execute one; the result as soon as it can be fetched.

        Raises:
            UsageError: it is not one statement, or cannot stand there.
            SqlError: it is wrong.
            PenstockError: its run has failed.
        """
        if _SHOW_JOBS.fullmatch(statement):
            return texts(_JOBS, self.jobs.rows())
        if stopped := _STOP_JOB.fullmatch(statement):
            self.jobs.stop(stopped[1])
            return done()
        async with self._in_order:
            found = await asyncio.to_thread(self._decided, lambda: self._decide(statement, config))
        match found:
            case _Query():
                return await self._queried(operation, found)
            case LogicalPlan():
                return await self._inserted(operation, found)
            case _:
                return found

    def _with_its_set(self, statement: str) -> SqlText | None:
        """The text to execute; None if it only becomes part of a statement set, or begins one.

        Raises:
            UsageError: only INSERT INTO may stand in a set, and END behind it alone.
        """
        if self._set is None:
            if _BEGIN_SET.fullmatch(statement):
                self._set = []
                return None
            if _END_SET.fullmatch(statement):
                raise UsageError(
                    "No Statement Set to submit. 'END' statement should be used after 'BEGIN STATEMENT SET'."
                )
            return SqlText(statement)
        if _END_SET.fullmatch(statement):
            inserts, self._set = self._set, None
            return SqlText("BEGIN STATEMENT SET;\n" + ";\n".join(inserts) + ";\nEND") if inserts else None
        text = SqlText(statement)
        part = _only_statement(text)
        if not isinstance(part, Insert):
            raise UsageError(
                "Only 'INSERT' statement is allowed in Statement Set or use 'END' statement to submit Statement Set."
            )
        self._apart().session.execute(text, part, lambda rows: None)  # wrong ones are told at once
        self._set.append(text.at(part.span))
        return None

    def _decided(self, decide: Callable[[], _Found]) -> _Found:
        with self._one_at_a_time:
            return decide()

    def _decide(self, statement: str, config: Mapping[str, str]) -> _Found:
        """What a statement comes to: its result, or what is to be run first."""
        text = self._with_its_set(statement)
        return done() if text is None else self._answer(text, _only_statement(text), config)

    def _answer(self, text: SqlText, part: Part, config: Mapping[str, str]) -> _Found:
        if self.properties.take(part):
            return done()
        asking = self._asking_for(part, config)
        match asking.answer(text, part):
            case Answer() as answer:
                return _Query(answer, asking.session.plan)
            case Listing() as listing:
                return self._listed(text, part, listing)
            case Explanation(as_json=True, graph=graph):
                return texts(("result",), [(msgspec.json.format(msgspec.json.encode(graph.to_json())).decode(),)])
            case Explanation() as explained:
                return texts(("result",), [(explained.tree(),)])
            case None:
                if isinstance(part, CreateTable) and part.query is not None:
                    self._declare(part.name, asking.session)
                plan = asking.session.plan
                return plan if asking.session is not self.session and plan.nodes else done()

    def _declare(self, name: str, apart: Session) -> None:
        """Take over a table that CREATE TABLE ... AS has declared while its rows were planned apart."""
        catalogue = self.session.catalogue
        table = apart.catalogue.tables[name]
        context = replace(table.context, plan=self.session.plan, catalogue=catalogue)
        catalogue.tables[name] = replace(table, context=context)

    def _asking_for(self, part: Part, config: Mapping[str, str]) -> Asking:
        """Over the session itself for what changes it and nothing else; others have a plan of their own."""
        if _configures(part):
            if config:
                raise UsageError("executionConfig is for queries and INSERT INTO; SET changes the session")
            return Asking(self.session, self.runs.parallelism)
        asking = self._apart()
        for each in self.properties.known(config, "executionConfig"):
            (setting,) = statements(each)
            asking.session.execute(each, setting, lambda rows: None)
        return asking

    def _apart(self) -> Asking:
        session = self.session.over(replace(self.session.plan, nodes=[]))
        session.settings = Settings(dict(self.session.settings.values))
        return Asking(session, self.runs.parallelism)

    # -- results --------------------------------------------------------------------------------------------------------

    def _listed(self, text: SqlText, part: Part, listing: Listing) -> Results:
        if listing.what == "COLUMNS":
            assert isinstance(part, Describe)
            tables = self.session.catalogue.tables
            table = tables.get(alike(part.name.parts[-1], tables) or "")
            return Results(_COLUMNS, RowBuffer.of([_described(row, table) for row in listing.rows]))
        rows = sorted(self.all_properties().items()) if listing.what == "SETTINGS" else listing.rows
        return texts(_HEADS[listing.what], rows)

    async def _queried(self, operation: Operation, found: _Query) -> Results:
        if found.answer.bounded and found.answer.order:
            return await self._sorted(operation, found)
        buffer = RowBuffer(self.buffer_rows)
        node, sink = watched(found.answer, buffer.put)
        run = operation.run = self.runs.begin(found.plan.ending_in(node, Write(sink)), buffer)
        job = await asyncio.shield(asyncio.wrap_future(run.submitted))
        return Results(found.answer.fields, buffer, is_query=True, job=job)

    async def _sorted(self, operation: Operation, found: _Query) -> Results:
        """Final rows in their order, when all are there."""
        answer, sink = found.answer, collecting.Sink()
        run = operation.run = self.runs.begin(found.plan.ending_in(answer.rows.node, Write(sink)))
        ended = await asyncio.shield(asyncio.wrap_future(run.ended))
        frame = answer.frame(sink.rows)
        with of_calendar(frame.get_columns()):
            return Results(answer.fields, RowBuffer.of(frame.rows()), is_query=True, job=ended.job)

    async def _inserted(self, operation: Operation, plan: LogicalPlan) -> Results:
        operation.detached = True
        run = operation.run = self.runs.begin(plan)
        job = await asyncio.shield(asyncio.wrap_future(run.submitted))
        self.jobs.add(job, run)
        self.inserts = [*(each for each in self.inserts if not each.ended.done()), run]
        if self.properties.waits_for_inserts:
            await asyncio.shield(asyncio.wrap_future(run.ended))
        return texts((_JOB_ID,), [(job,)], job)


@dataclass(frozen=True)
class _Query:
    """A query that is to be run."""

    answer: Answer
    plan: LogicalPlan


_Found = Results | _Query | LogicalPlan
"""What a statement comes to: its result, a query to run, or a plan that writes."""


def _configures(part: Part) -> bool:
    """Whether a statement changes the session, and runs nothing."""
    return isinstance(part, _CONFIGURES) and not (isinstance(part, CreateTable) and part.query is not None)


def _only_statement(text: SqlText) -> Part:
    """The one statement of a text.

    Raises:
        UsageError: it has none, or several.
        SqlError: it is wrong.
    """
    parts = statements(text)
    if len(parts) != 1:
        raise UsageError(
            "Unsupported SQL statement! Execute statement only accepts a single SQL statement or multiple 'INSERT INTO' "
            f"statements wrapped in a 'STATEMENT SET' block; this text has {len(parts)} statements."
        )
    return parts[0]


def _described(row: Sequence[str], table: DeclaredTable | None) -> tuple[Any, ...]:
    """A column as Flink's DESCRIBE shows it: name, type, null, key, extras, watermark."""
    name, kind, said = row
    key = extras = watermark = None
    if table is not None:
        statement, text = table.statement, table.context.text
        if name in statement.primary_key:
            key = f"PRI({', '.join(statement.primary_key)})"
        declared = next((each for each in statement.columns if each.name == name), None)
        if declared is not None and declared.computed is not None:
            extras = f"AS {text.at(declared.computed.span)}"
        elif declared is not None and declared.metadata is not None:
            extras = f"METADATA FROM '{declared.metadata}'{' VIRTUAL' if declared.virtual else ''}"
        if statement.watermark is not None and statement.watermark.column == name:
            watermark = text.at(statement.watermark.expression.span)
    return name, kind, "NOT NULL" not in said, key, extras, watermark
