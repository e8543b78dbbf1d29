"""Where a database of SQLite is, how it is opened, which columns a table has, and what its errors mean."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from penstock.core.times import Duration, duration_us, format_duration
from penstock.errors import CorruptDataError, ExternalError, PenstockError, PipelineError, RefusedRowError, nearest

Mode = Literal["ro", "rw", "rwc"]
"""Reading; writing to a file that is there; making it if there is none."""
Affinity = Literal["integer", "text", "blob", "real", "numeric"]
_AFFINITIES: Final[tuple[tuple[Affinity, tuple[str, ...]], ...]] = (
    ("integer", ("INT",)), ("text", ("CHAR", "CLOB", "TEXT")), ("blob", ("BLOB",)), ("real", ("REAL", "FLOA", "DOUB")),
)  # fmt: skip
_REFUSED: Final = (sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG)
"""The codes of errors of the values of a row."""
_PASSING: Final = (
    sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_INTERRUPT,
)  # fmt: skip
_BEGUN: Final = (sqlite3.SQLITE_READONLY_ROLLBACK, sqlite3.SQLITE_READONLY_RECOVERY)
_LOOK: Final = "pragma schema_version"
_COLUMNS: Final = (
    'select name, type, "notnull", dflt_value is not null, pk, hidden <> 0 from pragma_table_xinfo(?, ?) '
    "where hidden <> 1"
)


def quoted(name: str) -> str:
    """A name in a statement."""
    return '"' + name.replace('"', '""') + '"'


def folded(name: str) -> str:
    """What two names have in common that are one to SQLite: of letters of ASCII the case does not count."""
    return "".join(sign.lower() if sign.isascii() else sign for sign in name)


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column as it is there."""

    name: str
    declared: str
    """Its type as it was written, such as `VARCHAR(20)`; empty if none was."""
    not_null: bool
    has_default: bool
    key_place: int
    """Its place in the primary key, from 1; 0: it is not in it."""
    generated: bool
    is_rowid: bool = False
    """Whether it is the number of the row, which is never null."""

    @property
    def affinity(self) -> Affinity:
        """What SQLite makes of values that are put in, where it can (https://sqlite.org/datatype3.html, 3.1)."""
        declared = self.declared.upper()
        if not declared:
            return "blob"
        for affinity, parts in _AFFINITIES:
            if any(part in declared for part in parts):
                return affinity
        return "numeric"


Columns = Mapping[str, TableColumn]
"""By their `folded` names, in order."""


class Database:
    """The file of a database.

    Args:
        what: the connector, which leads errors.
        path: of the file.
        lock_timeout: how long another connection may hold the lock that is needed.

    Raises:
        PipelineError: it can be none.
    """

    def __init__(self, what: str, path: str | os.PathLike[str], lock_timeout: Duration) -> None:
        text = os.fspath(path)
        if not text or text.startswith((":memory:", "file:")) or "://" in text or "\x00" in text:
            raise PipelineError(
                f"{what}: {text!r} is no path of a file; write it as 'shop.db' (a database in memory is that of one "
                "connection, and no other one reads it)"
            )
        self.what: Final = what
        self.path: Final = text
        self._lock_us: Final = duration_us(lock_timeout, f"{what}: lock_timeout", positive=True)

    @property
    def full_path(self) -> str:
        """From the root of the file system."""
        return os.path.abspath(self.path)

    @property
    def relative_path(self) -> str:
        """The path, if it is relative to the working directory; otherwise empty."""
        return "" if os.path.isabs(self.path) else self.path

    @property
    def namespace(self) -> str:
        """As other tools name it."""
        return f"sqlite://{self.full_path}"

    @property
    def exists(self) -> bool:
        """Whether there is a file."""
        return os.path.exists(self.path)

    def same(self, other: Database) -> bool:
        """Whether both are one file."""
        return os.path.realpath(self.path) == os.path.realpath(other.path)

    # -- connections ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def connection(self, mode: Mode, where: str, *, writing: bool = False) -> Generator[sqlite3.Connection]:
        """A connection that commits by itself, closed behind; what goes wrong is an error of ours, behind `where`.

        Used by one thread at a time. `writing`: a row may be refused.
        """
        self._check_file(mode, where)
        with self._errors(where, writing=writing), contextlib.closing(self._connect(mode)) as made:
            if mode == "ro":
                self._roll_back(made)
            yield made

    def _connect(self, mode: Mode) -> sqlite3.Connection:
        made = sqlite3.connect(
            f"{Path(self.full_path).as_uri()}?mode={mode}",
            uri=True, timeout=self._lock_us / 1e6, isolation_level=None, check_same_thread=False,
        )  # fmt: skip
        made.text_factory = _text
        return made

    def _roll_back(self, reading: sqlite3.Connection) -> None:
        """Roll back the transaction of a killed process, as the next connection does, which must write for it."""
        try:
            reading.execute(_LOOK)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode not in _BEGUN:
                raise
            with contextlib.closing(self._connect("rw")) as writing:
                writing.execute(_LOOK)

    @contextlib.contextmanager
    def transaction(self, where: str, mode: Mode = "rw") -> Generator[sqlite3.Connection]:
        """The same in a transaction that writes: no other one does meanwhile. It is on disk behind it."""
        with self.connection(mode, where, writing=True) as connection:
            connection.execute("pragma synchronous = extra")
            connection.execute("begin immediate")
            try:
                yield connection
                connection.execute("commit")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("rollback")
                raise

    def _check_file(self, mode: Mode, where: str) -> None:
        beside = f" (it is relative to {os.getcwd()})" if self.relative_path else ""
        if os.path.isdir(self.full_path):
            raise PipelineError(f"{where}{self.full_path} is a folder; name the file of the database in it")
        if mode == "rwc" and not os.path.isdir(os.path.dirname(self.full_path)):
            raise PipelineError(
                f"{where}there is no folder {os.path.dirname(self.full_path)}{beside}; make it, or correct the path"
            )
        if mode != "rwc" and not self.exists:
            raise PipelineError(
                f"{where}there is no file {self.full_path}{beside}; correct the path (on a cluster it has to lead to the "
                "file wherever a subtask runs)"
            )

    @contextlib.contextmanager
    def _errors(self, where: str, *, writing: bool) -> Generator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._translated(error, where, writing=writing) from error
        except sqlite3.Warning as error:  # more than one statement, which Python 3.12 calls an error
            raise PipelineError(f"{where}{error}") from error
        except UnicodeEncodeError as error:  # of a key that was read
            raise PipelineError(f"{where}a text is no UTF-8: {error}; correct it, or read by another key") from error

    def _translated(self, error: sqlite3.Error, where: str, *, writing: bool) -> PenstockError:
        said = f"{where}{error}"
        match _code(error):
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                return ExternalError(
                    f"{said}: another connection has kept the lock of {self.full_path} for more than "
                    f"{format_duration(self._lock_us)}; end its transaction, or give lock_timeout= more"
                )
            case sqlite3.SQLITE_NOTADB:
                return PipelineError(f"{where}the file is no database of SQLite, or an encrypted one")
            case sqlite3.SQLITE_CORRUPT:
                return CorruptDataError(f"{said}; look at it with `pragma integrity_check`, and restore a backup")
            case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
                return PipelineError(
                    f"{said}; look who may read and write {self.full_path}, and its folder, where SQLite has more files"
                )
            case code if writing and code in _REFUSED:
                return RefusedRowError(f"{said}; change the table, or say bad_rows='skip' to leave such rows out")
            case code if code in _PASSING:
                return ExternalError(said)
            case _:
                return PipelineError(said)


def refuses_row(error: sqlite3.Error) -> bool:
    """Whether it is about the values of a row, which would be refused again."""
    return _code(error) in _REFUSED


def _code(error: sqlite3.Error) -> int:
    """The primary result code; 0 where Python itself raised it."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _text(data: bytes) -> str:
    """Bytes that are no UTF-8 become lone surrogates, which make a bad row instead of an error of the whole read."""
    return data.decode(errors="surrogateescape")


# -- tables -------------------------------------------------------------------------------------------------------------


def checked_table(table: str, what: str) -> str:
    """The name of a table; raises `PipelineError` if it is none."""
    if not table or "\x00" in table:
        raise PipelineError(f"{what}: {table!r} is no name of a table, such as 'orders'")
    return table


def columns_of(connection: sqlite3.Connection, table: str, schema: str = "main") -> Columns:
    """The columns of a table or view; none if there is none."""
    found = connection.execute(_COLUMNS, (table, schema)).fetchall()
    alone = [place for _, _, _, _, place, _ in found if place] == [1]
    return {
        folded(name): TableColumn(
            name, declared, bool(not_null), bool(default), place, bool(generated),
            is_rowid=bool(place) and alone and declared.upper() == "INTEGER",
        )
        for name, declared, not_null, default, place, generated in found
    }  # fmt: skip


def missing_table(connection: sqlite3.Connection, table: str) -> str:
    """What is said of a table that is not there."""
    query = "select name from sqlite_master where type in ('table', 'view') and name not like 'sqlite\\_%' escape '\\'"
    return f"there is no table {table!r}; {nearest(table, [name for (name,) in connection.execute(query)])}"


def find_column(there: Columns, name: str, where: str) -> TableColumn:
    """The column of that name; raises `PipelineError` if there is none."""
    if (found := there.get(folded(name))) is None:
        raise PipelineError(
            f"{where}it has no column {name!r}; {nearest(name, [each.name for each in there.values()])}"
        )
    return found
