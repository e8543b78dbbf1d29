"""Where a table of Postgres is, how it is reached, which columns it has, and what its errors mean."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator, Generator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import ExternalError, PipelineError, RefusedRowError, nearest
from penstock.settings import Secret, shown_address
from penstock.types import DataType, DecimalType, ListType, MapType, Schema, StructType

if TYPE_CHECKING:
    import psycopg
    from psycopg import AsyncConnection
    from psycopg.sql import Composed, Identifier

CONNECT_S: Final = 10
_NAME: Final = re.compile(r"[^.\"\x00]+(\.[^.\"\x00]+)?")
_PASSING: Final = ("08", "25006", "25P03", "25P04", "40", "53", "55", "57", "58")
"""Beginnings of the codes of errors that may be over soon: connections, failovers, transactions that stood still or took
too long, deadlocks, resources, restarts."""
_REFUSED: Final = ("22", "23", "44", "P0001")
"""And those of errors of the values of a row: one that does not fit, a constraint, a view's check, a trigger."""
_TYPES: Final[Mapping[str, str]] = {
    "boolean": "boolean", "int8": "smallint", "int16": "smallint", "int32": "integer", "int64": "bigint",
    "uint8": "smallint", "uint16": "integer", "uint32": "bigint", "uint64": "numeric(20, 0)", "float32": "real",
    "float64": "double precision", "string": "text", "binary": "bytea", "date": "date", "time": "time",
    "timestamp": "timestamptz", "duration": "interval",
}  # fmt: skip
_COLUMNS: Final = """
select attname, format_type(atttypid, -1), format_type(atttypid, atttypmod), attnotnull,
    atthasdef or attidentity <> '' or attgenerated <> ''
from pg_attribute where attrelid = to_regclass(%s) and attnum > 0 and not attisdropped order by attnum
"""


def postgres_type(kind: DataType, where: str) -> str:
    """The type that a column has in Postgres.

    Raises:
        PipelineError: there is none.
    """
    if isinstance(kind, ListType | MapType | StructType):
        return "jsonb"
    if isinstance(kind, DecimalType):
        return f"numeric({kind.precision}, {kind.scale})"
    if kind.name not in _TYPES:
        raise PipelineError(f"{where} is {kind}, which Postgres has no column for; drop it, or cast it before")
    return _TYPES[kind.name]


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column as it is there."""

    type: str
    """Without a length: `character varying`."""
    full_type: str
    """With it: `character varying(20)`."""
    not_null: bool
    has_default: bool


class TablePlace:
    """A table of a database.

    Args:
        what: the connector, which leads errors.
        table: its name, perhaps with its schema before it.
        url: `postgresql://user:password@host:5432/database`.

    Raises:
        PipelineError: these are no such names.
    """

    def __init__(self, what: str, table: str, url: str | Secret) -> None:
        if not _NAME.fullmatch(table):
            raise PipelineError(f"{what}: {table!r} is no name of a table, such as 'orders' or 'shop.orders'")
        self.table: Final = table
        self.url: Final = url if isinstance(url, Secret) else Secret(url)
        scheme, shown = self.url.reveal().partition("://")[0], shown_address(self.url.reveal())
        if scheme not in ("postgresql", "postgres") or not shown.partition("/")[2].strip("/"):
            raise PipelineError(
                f"{what}: url= is an address such as postgresql://user@host:5432/database; percent-encode what is no "
                "letter or digit in user and password"
            )
        self.address: Final = shown

    @property
    def name(self) -> str:
        """As errors call it."""
        return f"postgres table {self.table} at {self.address}"

    @property
    def dataset(self) -> tuple[str, str]:
        """As other tools name it: namespace and name."""
        host, _, database = self.address.partition("/")
        return f"postgres://{host}", f"{database}.{self.table}"

    def identifier(self, table: str | None = None) -> Identifier:
        """The name, quoted, for a statement with parameters; or that of another table beside it."""
        parts = self.table.split(".")
        return identifier(*(parts if table is None else [*parts[:-1], table]))

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncGenerator[AsyncConnection[Any]]:
        """A connection for as long as nothing goes wrong; see `errors`."""
        connection = await self.connect()
        try:
            yield connection
        finally:
            await connection.close()

    async def connect(
        self, options: str = "", name: str = "penstock", replication: str | None = None
    ) -> AsyncConnection[Any]:
        """A connection that commits by itself, with texts as Penstock reads and writes them, whatever the database's
        encoding; `replication`: see libpq. Options in `url` hold, unless they are those that are set here."""
        from psycopg import AsyncConnection
        from psycopg.conninfo import conninfo_to_dict

        given = conninfo_to_dict(self.url.reveal()).get("options") or ""
        own = " -c timezone=UTC -c intervalstyle=iso_8601 -c datestyle=ISO -c extra_float_digits=1"
        return await AsyncConnection.connect(
            self.url.reveal(),
            autocommit=True,
            connect_timeout=CONNECT_S,
            application_name=name,
            replication=replication,
            client_encoding="UTF8",
            options=f"{given}{own}{options}",
        )

    @contextlib.contextmanager
    def errors(self, where: str = "", *, writing: bool = False) -> Generator[None]:
        """What psycopg raises as an error of ours, behind `where`; `writing`: a row may be refused."""
        import psycopg

        try:
            yield
        except psycopg.Error as error:
            code = error.sqlstate or ""
            said = " ".join(str(error).split()) or type(error).__name__
            if code.startswith(_PASSING):
                raise ExternalError(f"{where}{said} ({code})") from error
            if writing and refuses_row(error):
                raise RefusedRowError(
                    f"{where}{said} ({code}); change the table, or say bad_rows='skip' to leave such rows out"
                ) from error
            if code:
                raise PipelineError(f"{where}{said} ({code})") from error
            if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
                raise ExternalError(f"{where}{said}; check that it runs, and url=") from error
            raise PipelineError(f"{where}{said}") from error
        except OSError as error:
            raise ExternalError(f"{where}{error}; check that it runs, and url=") from error

    async def columns(self, connection: AsyncConnection[Any]) -> dict[str, TableColumn]:
        """The columns of the table; none if there is no table."""
        name = self.identifier().as_string(connection).replace("%%", "%")
        found = await (await connection.execute(_COLUMNS, [name])).fetchall()
        return {name: TableColumn(*rest) for name, *rest in found}

    def check_columns(
        self, wanted: Schema, there: Mapping[str, TableColumn], where: str = "", *, if_missing: str = ""
    ) -> None:
        """Raise `PipelineError` if it lacks a column, or is not there, which the message ends with `if_missing` for."""
        if not there:
            raise PipelineError(f"{where}there is no such table, or the user may not see it{if_missing}")
        for name in wanted.names:
            if name not in there:
                raise PipelineError(f"{where}it has no column {name!r}; {nearest(name, there)}")


def refuses_row(error: psycopg.Error) -> bool:
    """Whether it is about the values of a row, which would be refused again."""
    return (error.sqlstate or "").startswith(_REFUSED)


def identifier(*parts: str) -> Identifier:
    """A quoted name for a statement with parameters, in which a percent sign stands twice."""
    from psycopg.sql import Identifier

    return Identifier(*(part.replace("%", "%%") for part in parts))


def composed(text: str, **parts: Any) -> Composed:
    """A statement of parts that are quoted."""
    from psycopg.sql import SQL

    return SQL(text).format(**parts)  # pyright: ignore[reportArgumentType] # by design: texts of this package only


async def only_row(connection: AsyncConnection[Any], query: str) -> tuple[Any, ...]:
    """What a query gives that always gives one row."""
    row = await (await connection.execute(query.encode())).fetchone()
    assert row is not None
    return row
