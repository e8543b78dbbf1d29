"""Writes encoded rows to a table within a transaction: `COPY`, or by key from a temporary table; and checks the table."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import structlog

from penstock.connectors.keyed_rows import COLUMN, GONE
from penstock.connectors.postgres.encoding import copy_lines
from penstock.connectors.postgres.tables import (
    TableColumn,
    TablePlace,
    composed,
    identifier,
    postgres_type,
    refuses_row,
)
from penstock.errors import PipelineError
from penstock.types import FLOATS, INTEGERS, STRING, DataType, DecimalType, Scalar, Schema

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    import polars as pl
    from psycopg import AsyncConnection, AsyncCopy
    from psycopg.sql import Composed

STAGED: Final = "penstock_rows"
_PLACE: Final = "penstock:place"
_GONE: Final = "penstock:gone"
_INTEGERS: Final = ("smallint", "integer", "bigint")
_DIGITS: Final = {"int8": 3, "uint8": 3, "int16": 5, "uint16": 5, "int32": 10, "uint32": 10, "int64": 19, "uint64": 20}
_NUMERIC: Final = re.compile(r"numeric(?:\((\d+),(-?\d+)\))?")
_JSON: Final = ("jsonb", "json", "text")
_log = structlog.get_logger("penstock.postgres")


@dataclass(frozen=True)
class TableWriting:
    """How rows get into the table."""

    place: TablePlace
    key: tuple[str, ...]
    """A row replaces the one that has the same; empty: rows are added."""
    create: bool
    skips: bool = False
    """Whether rows that Postgres refuses are left out, instead of failing."""

    # -- the table ------------------------------------------------------------------------------------------------------

    async def prepare(self, connection: AsyncConnection[Any], columns: Schema) -> None:
        """See to it that the table takes such rows; make it, if that was asked for and there is none.

        Raises:
            PipelineError: it does not; names all columns that do not fit.
        """
        there = await self.place.columns(connection)
        if not there and self.create:
            await self._make(connection, columns)
            there = await self.place.columns(connection)
        where = f"{self.place.name}: "
        advice = "; make it, or let the sink do that by create=True"
        self.place.check_columns(columns, there, where, if_missing=advice)
        wrong = [*misfits(columns, there)]
        if wrong:
            raise PipelineError(f"{where}it does not take these rows: {'; '.join(wrong)}")
        await connection.execute(self._trial(columns), [])
        if not self.key:  # a view, or a table with row-level security, may take rows by INSERT and none by COPY
            async with _copying(connection, self.place.identifier(), columns.names):
                pass

    async def _make(self, connection: AsyncConnection[Any], columns: Schema) -> None:
        import psycopg
        from psycopg.sql import SQL

        parts = [
            composed(
                "{name} " + postgres_type(field.type, field.name) + ("" if field.nullable else " not null"),
                name=identifier(field.name),
            )
            for field in columns
        ]
        if self.key:
            parts.append(composed("primary key ({key})", key=_names(self.key)))
        statement = composed(
            "create table if not exists {table} ({parts})", table=self.place.identifier(), parts=SQL(", ").join(parts)
        )
        with contextlib.suppress(
            psycopg.errors.UniqueViolation, psycopg.errors.DuplicateTable
        ):  # made at the same moment
            await connection.execute(statement, [])

    def _trial(self, columns: Schema) -> Composed:
        """The statement that moves rows, for none of them: what is forbidden, or no unique key, is found out before."""
        source = composed(
            "select {names} from {table} where false", names=_names(columns.names), table=self.place.identifier()
        )
        return self._insert(columns.names, source)

    # -- rows -----------------------------------------------------------------------------------------------------------

    async def write(self, connection: AsyncConnection[Any], frames: Sequence[pl.DataFrame]) -> int:
        """The rows, in order, in the transaction of the caller; returns how many are refused and left out."""
        import polars as pl

        if not frames:
            return 0
        rows = pl.concat(frames)
        if self.skips:
            return await self._write_what_it_takes(connection, rows)
        await self._write(connection, rows)
        return 0

    async def _write_what_it_takes(self, connection: AsyncConnection[Any], rows: pl.DataFrame) -> int:
        """By halves, each in a savepoint, until every row that is refused stands alone; how many these are."""
        import psycopg

        try:
            async with connection.transaction():
                await self._write(connection, rows)
                await connection.execute("set constraints all immediate")  # else the commit would refuse all
                await connection.execute(f"drop table if exists pg_temp.{STAGED}".encode())
                return 0
        except psycopg.Error as error:
            if not refuses_row(error):
                raise
            if rows.height == 1:
                said = " ".join(str(error).split())
                _log.warning("a row is refused and left out", table=self.place.name, reason=said, code=error.sqlstate)
                return 1
        half = rows.height // 2
        first = await self._write_what_it_takes(connection, rows.head(half))
        return first + await self._write_what_it_takes(connection, rows.slice(half))

    async def _write(self, connection: AsyncConnection[Any], rows: pl.DataFrame) -> None:
        import polars as pl

        names = [name.removeprefix(COLUMN) for name in rows.columns if name != GONE]
        if not self.key:
            await _copy(connection, self.place.identifier(), names, rows)
            return
        rows = rows.unique([f"{COLUMN}{name}" for name in self.key], keep="last", maintain_order=True)
        await self._stage(connection, names)
        rows = rows.with_row_index(_PLACE).with_columns(pl.col(_PLACE).cast(pl.String))
        deletes = GONE in rows.columns
        if deletes:
            gone = rows.filter(GONE).select(_PLACE, pl.lit("t"), *(f"{COLUMN}{name}" for name in self.key))
            rows = rows.filter(~pl.col(GONE)).drop(GONE)
            await _copy(connection, identifier(STAGED), [_PLACE, _GONE, *self.key], gone)
        await _copy(connection, identifier(STAGED), [_PLACE, *names], rows)
        if deletes:
            await self._delete(connection)
        kept = "select {names} from ({newest}) s where {gone} is null"
        source = composed(kept, names=_names(names), newest=self._newest(), gone=identifier(_GONE))
        await connection.execute(self._insert(names, source), [])

    async def _stage(self, connection: AsyncConnection[Any], names: Sequence[str]) -> None:
        """An empty table with the types of the columns, and none of their constraints."""
        await connection.execute(
            composed(
                "create temporary table {staged} on commit drop as "
                "select {names}, 0::bigint as {place}, true as {gone} from {table} with no data",
                staged=identifier(STAGED), names=_names(names), place=identifier(_PLACE), gone=identifier(_GONE),
                table=self.place.identifier(),
            ),
            [],
        )  # fmt: skip

    def _newest(self) -> Composed:
        """The last of the staged rows of each key: only Postgres knows which texts are one, as of a uuid or an `inet`."""
        return composed(
            "select distinct on ({key}) * from {staged} order by {key}, {place} desc",
            key=_names(self.key), staged=identifier(STAGED), place=identifier(_PLACE),
        )  # fmt: skip

    async def _delete(self, connection: AsyncConnection[Any]) -> None:
        from psycopg.sql import SQL

        same = [composed("t.{name} = s.{name}", name=identifier(name)) for name in self.key]
        await connection.execute(
            composed(
                "delete from {table} t using ({newest}) s where s.{gone} and {same}",
                table=self.place.identifier(), newest=self._newest(), gone=identifier(_GONE),
                same=SQL(" and ").join(same),
            ),
            [],
        )  # fmt: skip

    def _insert(self, names: Sequence[str], source: Composed) -> Composed:
        from psycopg.sql import SQL

        insert = composed(
            "insert into {table} ({names}) {source}", table=self.place.identifier(), names=_names(names), source=source
        )
        if not self.key:
            return insert
        new = [composed("{n} = excluded.{n}", n=identifier(name)) for name in names if name not in self.key]
        action = composed("update set {new}", new=SQL(", ").join(new)) if new else SQL("nothing")
        return composed("{insert} on conflict ({key}) do {action}", insert=insert, key=_names(self.key), action=action)


def _copying(
    connection: AsyncConnection[Any], table: Any, names: Sequence[str]
) -> AbstractAsyncContextManager[AsyncCopy]:
    """Takes lines for as long as it is entered."""
    statement = composed("copy {table} ({names}) from stdin", table=table, names=_names(names))
    text = statement.as_string(connection).replace("%%", "%")  # it has no parameters
    return connection.cursor().copy(text.encode())


async def _copy(connection: AsyncConnection[Any], table: Any, names: Sequence[str], rows: pl.DataFrame) -> None:
    if not rows.height:
        return
    async with _copying(connection, table, names) as copy:
        for part in rows.iter_slices(8_192):
            await copy.write(copy_lines(part))


def _names(names: Sequence[str]) -> Composed:
    from psycopg.sql import SQL

    return SQL(", ").join([identifier(name) for name in names])


# -- types --------------------------------------------------------------------------------------------------------------


def misfits(columns: Schema, there: Mapping[str, TableColumn]) -> Sequence[str]:
    """What is wrong, a sentence per column."""
    wrong: list[str] = []
    for field in columns:
        column = there[field.name]
        if not takes(column.full_type, field.type):
            kind = postgres_type(field.type, field.name)
            wrong.append(f"{field.name} is {field.type} ({kind}), the column is {column.full_type}")
        elif column.not_null and field.nullable:
            wrong.append(f"{field.name} may be null, the column may not")
    wrong += [
        f"the column {name} needs a value, and no row has one"
        for name, column in there.items()
        if name not in columns and column.not_null and not column.has_default
    ]
    return wrong


def takes(column: str, kind: DataType) -> bool:
    """Whether a column of this type has every such value as it is, or says that it cannot. Text is read by any type."""
    if kind == STRING:
        return True
    wanted = postgres_type(kind, "")
    if wanted == "jsonb":
        return column in _JSON
    if isinstance(kind, DecimalType):
        return _has_digits(column, kind.precision - kind.scale, kind.scale)
    assert isinstance(kind, Scalar)
    if kind in INTEGERS:
        whole = column in _INTEGERS and wanted in _INTEGERS and _INTEGERS.index(column) >= _INTEGERS.index(wanted)
        return whole or _has_digits(column, _DIGITS[kind.name], 0)
    if kind in FLOATS:
        return column in ("double precision", wanted)
    return column in (wanted, _LONG.get(wanted, wanted))


_LONG: Final = {"time": "time without time zone", "timestamptz": "timestamp with time zone"}
"""As `format_type` has them."""


def _has_digits(column: str, before: int, behind: int) -> bool:
    found = _NUMERIC.fullmatch(column)
    if found is None or found[1] is None:
        return found is not None
    precision, scale = int(found[1]), int(found[2])
    return scale >= behind and precision - scale >= before
