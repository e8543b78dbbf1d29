"""`penstock sql`: statements of a file, of the command line, or of a prompt."""

from __future__ import annotations

import atexit
import contextlib
import json
import sys
from collections.abc import Generator, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import polars as pl
from rich.console import Console
from rich.table import Table

from penstock.cli.live_table import REFRESH_S, LiveTable, watch
from penstock.connectors import collecting, console
from penstock.embedded import EmbeddedSettings, run_pipeline
from penstock.errors import PenstockError, UsageError
from penstock.gateway.runs import END_S, Run
from penstock.loading import make_importable, parse_parameters
from penstock.pipeline import Pipeline
from penstock.plan.logical import LogicalPlan, Node
from penstock.plan.operations.write import Write
from penstock.sql.answers import Answer, completions
from penstock.sql.asking import Asking, Explanation, Listed, Listing, plan_of_writes
from penstock.sql.parsing import statements
from penstock.sql.programs import Session
from penstock.sql.syntax import Part, ResetOption, SetOption
from penstock.sql.testing.changes import Log
from penstock.sql.testing.tables import cell_of
from penstock.sql.text import SqlText, read_sql
from penstock.sql.watching import Row, WatchingSink, watched

try:
    import readline
except ImportError:  # a Python without it edits no lines
    readline = None

_NAME: Final = "sql"
_PROMPT: Final = "sql> "
_FURTHER: Final = "...> "
_HISTORY: Final = Path("~/.penstock_history")
_HELP: Final = """\
Statements end with a semicolon. SELECT shows rows; of a query without an end a table that changes in place (q leaves it),
or every change after SET 'sql-client.execution.result-mode' = 'changelog' (Ctrl-C leaves it). INSERT INTO runs until its
input ends, CREATE TABLE and CREATE VIEW declare, EXPLAIN, DESCRIBE and SHOW TABLES show. Files need no declaration:
SELECT * FROM read_csv('a.csv'), read_jsonl, read_parquet. Tab completes; quit or Ctrl-D ends."""
RESULT_MODE: Final = "sql-client.execution.result-mode"
"""How queries without an end are shown at a terminal; Flink's client calls it so."""
_MODES: Final = ("table", "changelog", "tableau")
_HEADS: Final[dict[Listed, tuple[str, ...]]] = {
    "COLUMNS": ("column", "type", ""), "SETTINGS": ("setting", "value"), "TABLES": ("tables",), "VIEWS": ("views",),
    "FUNCTIONS": ("functions",),
}  # fmt: skip


@dataclass(frozen=True)
class Sql:
    """`penstock sql`."""

    file: str | None
    execute: str | None
    param: list[str]
    parallelism: int | None
    json: bool


def sql_command(command: Sql) -> int:
    """Run statements; the exit code."""
    if command.file and command.execute:
        raise UsageError("give a file or --execute, not both")
    asked = Asked(Console(emoji=False), as_json=command.json, parallelism=command.parallelism or 1)
    parameters = parse_parameters(command.param)
    if not command.file:
        make_importable(Path.cwd())
    if command.execute:
        asked.run(_with_all_used(SqlText(command.execute, "<sql>", parameters)))
    elif command.file:
        path = Path(command.file)
        if not path.is_file():
            raise UsageError(f"{path}: there is no such file")
        make_importable(path.resolve().parent)
        asked.run(_with_all_used(read_sql(path, parameters)))
    else:
        Shell(asked).loop()
    return 0


def _with_all_used(text: SqlText) -> SqlText:
    """The text, if each of its parameters stands in it."""
    for name in text.unused:
        raise UsageError(f"no text of {text.name} has ${{{name}}}, so --param {name} says nothing")
    return text


@dataclass
class Asked:
    """Statements one after the other, and what they show."""

    output: Console
    as_json: bool = False
    parallelism: int = 1
    pipeline: Pipeline = field(default_factory=lambda: Pipeline(_NAME))

    def __post_init__(self) -> None:
        self.session = Session(self.pipeline.plan, appends=True)
        self._asking = Asking(self.session, self.parallelism)
        self._mode = _MODES[0]

    def run(self, text: SqlText) -> None:
        """All statements of a text: what it inserts is run together, behind its last statement.

        Raises:
            SqlError: it is wrong.
        """
        plan = self.pipeline.plan
        before = {*plan}
        try:
            for part in statements(text):
                self._one(text, part)
            if writes := [node for node in plan if node not in before and isinstance(node.operation, Write)]:
                self._run_writes(writes)
        finally:  # whatever came of it, a later INSERT INTO may fill the same table
            plan.nodes = [node for node in plan if node in before or not isinstance(node.operation, Write)]

    def _one(self, text: SqlText, part: Part) -> None:
        if isinstance(part, SetOption | ResetOption) and part.key in (None, RESULT_MODE):
            self._set_mode(text, part)
            if part.key is not None:
                return
        match self._asking.answer(text, part):
            case Answer() as answer:
                self._show(answer)
            case Listing("SETTINGS", rows):
                self._table(_HEADS["SETTINGS"], sorted([*rows, (RESULT_MODE, self._mode)]))
            case Listing() as listing:
                self._table(_HEADS[listing.what], listing.rows)
            case Explanation(as_json=True, graph=graph):
                print(json.dumps(graph.to_json(), indent=2))
            case Explanation() as explained:
                self.output.print(explained.tree(), markup=False, emoji=False, highlight=False, soft_wrap=True)
            case None:
                pass

    def _set_mode(self, text: SqlText, part: SetOption | ResetOption) -> None:
        """How queries without an end are shown."""
        if isinstance(part, ResetOption):
            self._mode = _MODES[0]
        elif part.value is not None:
            if part.value.lower() not in _MODES:
                raise text.error(
                    part.span, f"{part.key!r} is {', '.join(_MODES[:-1])} or {_MODES[-1]}, not {part.value!r}"
                )
            self._mode = part.value.lower()

    # -- running --------------------------------------------------------------------------------------------------------

    def _show(self, answer: Answer) -> None:
        if not answer.bounded:
            self._stream(answer)
            return
        sink = collecting.Sink()
        self._run(self.pipeline.plan.ending_in(answer.rows.node, Write(sink)))
        self._frame(answer, answer.frame(sink.rows))

    def _stream(self, answer: Answer) -> None:
        """The rows of a query without an end, until it is left: at a terminal a table that changes in place, or a log of
        changes; elsewhere lines of JSON."""
        if self.as_json or not self.output.is_terminal:
            with contextlib.suppress(KeyboardInterrupt):
                self._run(self.pipeline.plan.ending_in(answer.rows.node, Write(console.Sink())))
        elif self._mode == "table":
            self._watch(answer)
        else:
            self._log(answer)

    def _watch(self, answer: Answer) -> None:
        node = answer.rows.node
        table = LiveTable(answer, Log.of(node, ()).key)
        with self._running(node, WatchingSink(table.put, node, table.columns)) as run:
            watch(table, [name for name, _ in answer.columns], run.ended, self.output)
        self._said(f"{len(table):,} rows after {table.changes:,} changes")

    def _log(self, answer: Answer) -> None:
        """Every change in a line, behind what it does to the rows before it."""
        kinds = [each.type for each in answer.fields]
        shown = 0

        def put(rows: Sequence[Row]) -> None:
            nonlocal shown
            shown += len(rows)
            for kind, values in rows:
                self._line(kind, *map(cell_of, values, kinds))

        self._line("op", *(name for name, _ in answer.columns))
        with (
            self._running(*watched(answer, put)) as run,
            contextlib.suppress(KeyboardInterrupt),
        ):
            while not run.ended.done():  # a wait without an end hears no Ctrl-C once Polars is loaded
                wait([run.ended], REFRESH_S)
        self._said(f"{shown:,} changes")

    @contextlib.contextmanager
    def _running(self, node: Node, sink: WatchingSink) -> Generator[Run]:
        """A run of a query in the background, which ends behind the block."""
        run = Run(self.pipeline.plan.ending_in(node, Write(sink)), self.parallelism)
        run.start()
        try:
            yield run
        finally:
            run.cancel()
            wait([run.ended], END_S)
        if run.ended.done() and not run.ended.cancelled():
            run.ended.result()

    def _line(self, *cells: str) -> None:
        self.output.print(" | ".join(cells), markup=False, highlight=False, soft_wrap=True)

    def _said(self, text: str) -> None:
        self.output.print(text, style="dim", markup=False, highlight=False)

    def _run(self, plan: LogicalPlan) -> None:
        part = Pipeline(self.pipeline.name)
        part.plan = plan
        settings = EmbeddedSettings(durable=False, parallelism=self.parallelism)
        run_pipeline(part, settings, directory=None, resume=False)

    def _run_writes(self, writes: Sequence[Node]) -> None:
        self._run(plan_of_writes(self.pipeline.plan, writes))
        for write in writes:
            table = (write.uid or write.operator_id).partition(f".{write.verb}")[0]
            self._said(f"{table}: written")

    # -- showing --------------------------------------------------------------------------------------------------------

    def _frame(self, answer: Answer, frame: pl.DataFrame) -> None:
        if self.as_json or not self.output.is_terminal:
            for row in frame.iter_rows(named=True):
                print(json.dumps(row, default=str, ensure_ascii=False))
            return
        self._table(frame.columns, answer.cells(frame))
        self.output.print(f"{frame.height:,} {'row' if frame.height == 1 else 'rows'}", style="dim", highlight=False)

    def _table(self, names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        if self.as_json or not self.output.is_terminal:
            for row in rows:
                print("\t".join(row))
            return
        table = Table(*names)
        for row in rows:
            table.add_row(*row)
        self.output.print(table, markup=False, highlight=False)


class Shell:
    """A prompt: history, completion, statements of several lines."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked

    def loop(self) -> None:
        """Read statements until the input ends."""
        self._prepare()
        interactive = sys.stdin.isatty()
        if interactive:
            self._asked.output.print("Flink SQL on Penstock; help; shows what there is.", style="dim", highlight=False)
        waiting = ""
        while True:
            try:
                line = input((_FURTHER if waiting else _PROMPT) if interactive else "")
            except EOFError:
                break
            except KeyboardInterrupt:
                print()
                waiting = ""
                continue
            if not waiting and line.strip().rstrip(";").lower() in ("quit", "exit"):
                break
            if not waiting and line.strip().rstrip(";").lower() == "help":
                self._asked.output.print(_HELP, highlight=False)
                continue
            waiting = f"{waiting}\n{line}" if waiting else line
            if waiting.rstrip().endswith(";"):
                self._try(waiting)
                waiting = ""
        if waiting.strip():
            self._try(waiting)

    def _try(self, text: str) -> None:
        try:
            self._asked.run(SqlText(text))
        except PenstockError as error:
            self._asked.output.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        except KeyboardInterrupt:
            print()

    def _prepare(self) -> None:
        if readline is None:
            return
        history = _HISTORY.expanduser()
        with contextlib.suppress(OSError):
            readline.read_history_file(history)
        atexit.register(_save_history, str(history))
        readline.set_completer_delims(" \t\n()`,;=<>+-*/.'")
        readline.set_completer(self._complete)
        readline.parse_and_bind("tab: complete")

    def _complete(self, word: str, number: int) -> str | None:
        assert readline is not None
        line = readline.get_line_buffer()[: readline.get_endidx()]
        catalogue = self._asked.session.catalogue
        columns = [column.name for table in catalogue.tables.values() for column in table.statement.columns]
        found = completions(line, catalogue.names, columns)
        return found[number] if number < len(found) else None


def _save_history(path: str) -> None:
    assert readline is not None
    with contextlib.suppress(OSError):
        readline.write_history_file(path)
