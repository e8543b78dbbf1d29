"""Writes encoded rows to a table within a transaction, added or by key; and sees to it that the table takes them."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import structlog

from penstock.connectors.keyed_rows import COLUMN, GONE
from penstock.connectors.sqlite.column_types import stored
from penstock.connectors.sqlite.database import (
    Columns,
    Database,
    columns_of,
    find_column,
    folded,
    missing_table,
    quoted,
    refuses_row,
)
from penstock.errors import PipelineError, RefusedRowError
from penstock.types import Schema

if TYPE_CHECKING:
    import polars as pl

_log = structlog.get_logger("penstock.sqlite")
_BEFORE: Final = "penstock_before"


@dataclass(frozen=True)
class TableWriting:
    """How rows get into the table."""

    database: Database
    table: str
    key: tuple[str, ...]
    """A row replaces the one that has the same; empty: rows are added."""
    create: bool
    skips: bool = False
    """Whether rows that SQLite refuses are left out, instead of failing."""

    @property
    def name(self) -> str:
        """As errors call it."""
        return f"table {self.table} of {self.database.full_path}"

    @property
    def where(self) -> str:
        """What leads errors."""
        return f"{self.database.what}: {self.name}: "

    # -- the table ------------------------------------------------------------------------------------------------------

    def prepare(self, columns: Schema) -> None:
        """See to it that the table takes such rows; make it, and the file, if there is none.

        Raises:
            PipelineError: it does not; names all columns that do not fit.
        """
        with self.database.connection("rwc" if self.create else "rw", self.where) as connection:
            there = columns_of(connection, self.table)
            if not there and self.create:
                connection.execute(self._made(columns))
                there = columns_of(connection, self.table)
            if not there:
                raise PipelineError(f"{self.where}{missing_table(connection, self.table)}; or make it with create=True")
            if wrong := [*misfits(columns, there, self.where)]:
                raise PipelineError(f"{self.where}it does not take these rows: {'; '.join(wrong)}")
            self._try(connection, columns.names)

    def _made(self, columns: Schema) -> str:
        parts = [
            f"{quoted(field.name)} {stored(field.type, field.name).declared}{'' if field.nullable else ' not null'}"
            for field in columns
        ]
        if self.key:
            parts.append(f"primary key ({_names(self.key)})")
        return f"create table if not exists {quoted(self.table)} ({', '.join(parts)})"

    def _try(self, connection: sqlite3.Connection, names: Sequence[str]) -> None:
        """Look whether SQLite understands the statements: it finds out here that no unique index has the key."""
        nothing = [None] * len(names)
        try:
            connection.execute(f"explain {self._insert(names)}", nothing)
        except sqlite3.OperationalError as error:
            if self.key and "ON CONFLICT" in str(error):
                raise PipelineError(
                    f"{self.where}no unique index has just the columns of key={list(self.key)}: create unique index ... "
                    f"on {quoted(self.table)} ({_names(self.key)})"
                ) from error
            raise

    # -- rows -----------------------------------------------------------------------------------------------------------

    def write(self, connection: sqlite3.Connection, frames: Iterable[pl.DataFrame]) -> int:
        """The rows, in order, in the transaction of the caller; returns how many are refused and left out."""
        refused = 0
        for frame in frames:
            for statement, rows in self._statements(frame):
                refused += self._execute(connection, statement, rows)
        return refused

    def _statements(self, frame: pl.DataFrame) -> Iterator[tuple[str, list[tuple[Any, ...]]]]:
        """What is to be done, in order: runs of rows that are written, and of ones that are deleted."""
        names = [name.removeprefix(COLUMN) for name in frame.columns if name != GONE]
        if GONE not in frame.columns:
            yield self._insert(names), frame.rows()
            return
        places = [names.index(name) for name in self.key]
        written = frame.drop(GONE).rows()
        gone = frame[GONE].to_list()
        for deletes, run in itertools.groupby(range(frame.height), key=lambda index: gone[index]):
            rows = [written[index] for index in run]
            if deletes:
                yield self._delete(), [tuple(row[place] for place in places) for row in rows]
            else:
                yield self._insert(names), rows

    def _execute(self, connection: sqlite3.Connection, statement: str, rows: list[tuple[Any, ...]]) -> int:
        """All rows, or those that are not refused; returns how many are."""
        if not self.skips:
            connection.executemany(statement, rows)
            return 0
        connection.execute(f"savepoint {_BEFORE}")
        try:
            connection.executemany(statement, rows)
            refused = 0
        except sqlite3.Error as error:
            self._check_refused(connection, error)
            connection.execute(f"rollback to {_BEFORE}")
            refused = sum(self._is_refused(connection, statement, row) for row in rows)
        connection.execute(f"release {_BEFORE}")
        return refused

    def _is_refused(self, connection: sqlite3.Connection, statement: str, row: tuple[Any, ...]) -> bool:
        """Write a row, of which nothing is there if it is refused."""
        try:
            connection.execute(statement, row)
        except sqlite3.Error as error:
            self._check_refused(connection, error)
            _log.warning("a row is refused and left out", table=self.name, reason=str(error))
            return True
        return False

    def _check_refused(self, connection: sqlite3.Connection, error: sqlite3.Error) -> None:
        """Raise it if it is none of a row, or if the table's own rule has rolled back the transaction for it."""
        if not refuses_row(error):
            raise error
        if not connection.in_transaction:
            raise RefusedRowError(
                f"{self.where}{error}; the table says `on conflict rollback` there, so nothing beside such a row can be "
                "written: change that to `on conflict abort`"
            ) from error

    def _insert(self, names: Sequence[str]) -> str:
        places = ", ".join("?" * len(names))
        insert = f"insert into {quoted(self.table)} ({_names(names)}) values ({places})"
        if not self.key:
            return insert
        key = {folded(name) for name in self.key}
        new = [f"{quoted(name)} = excluded.{quoted(name)}" for name in names if folded(name) not in key]
        action = f"update set {', '.join(new)}" if new else "nothing"
        return f"{insert} on conflict ({_names(self.key)}) do {action}"

    def _delete(self) -> str:
        return f"delete from {quoted(self.table)} where {' and '.join(f'{quoted(name)} = ?' for name in self.key)}"


def _names(names: Iterable[str]) -> str:
    return ", ".join(map(quoted, names))


def misfits(columns: Schema, there: Columns, where: str) -> Iterator[str]:
    """What is wrong, a sentence per column."""
    for field in columns:
        column = find_column(there, field.name, where)
        form = stored(field.type, field.name)
        if column.generated:
            yield f"{field.name} is generated by the table; drop the column before"
        elif column.affinity not in form.takes:
            yield f"{field.name} is {field.type} ({form.declared}), the column is {column.declared}"
        elif column.not_null and field.nullable:
            yield f"{field.name} may be null, the column may not"
    written = {folded(name) for name in columns.names}
    for name, column in there.items():
        needed = column.not_null and not (column.has_default or column.generated or column.is_rowid)
        if name not in written and needed:
            yield f"the column {column.name} needs a value, and no row has one"
