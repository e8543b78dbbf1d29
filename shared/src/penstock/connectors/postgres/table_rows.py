"""The rows of a table that are there when a source of changes begins: in the order of the key, each part in one snapshot.

A part lasts as long as its connection: then the next one goes on behind the last key, as the table is by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.connectors.postgres.captured_table import Capture, CapturedTable
from penstock.connectors.postgres.change_positions import ChangePosition, Part
from penstock.connectors.postgres.slots import application_name, check_fence
from penstock.connectors.postgres.tables import composed, identifier, only_row
from penstock.connectors.postgres.text_values import SESSION

if TYPE_CHECKING:
    from psycopg import AsyncConnection
    from psycopg.sql import Composed

    from penstock.connectors.postgres.pgoutput import Values

FIRST_ROWS: Final = 256
MOST_ROWS: Final = 8_192
ROWS_BYTES: Final = 4 << 20
"""About how much is asked for at once."""
OPTIONS: Final = SESSION + " -c idle_in_transaction_session_timeout=0 -c statement_timeout=0 -c row_security=off"
"""Rows that a policy hides from a user are in the log all the same, so such a table is refused by the server."""


class TableRows:
    """Reads rows in one snapshot; `part` says how far."""

    def __init__(self, capture: Capture, table: CapturedTable, position: ChangePosition) -> None:
        self._capture = capture
        self._table = table
        self._fence = position.fence
        self._last = position.last_key
        self._limit = FIRST_ROWS
        self._connection: AsyncConnection[Any] | None = None
        self._snapshot = ""
        self._lsn = 0

    async def read(self) -> tuple[list[Values], Part]:
        """The next rows, and the part that they belong to; fewer than there could be are the last ones.

        Raises:
            ExternalError: Postgres is away.
            NotYetError: see `check_fence`.
        """
        connection = self._connection or await self._open()
        cursor = await connection.execute(self._query(), list(self._last or ()))
        result = cursor.pgresult
        assert result is not None
        rows: list[Values] = [
            [result.get_value(row, column) for column in range(result.nfields)] for row in range(result.ntuples)
        ]
        ended = len(rows) < self._limit
        if rows:
            self._last = self._key(rows[-1])
            size = sum([len(value) for row in rows for value in row if value is not None])
            self._limit = max(1, min(MOST_ROWS, ROWS_BYTES * len(rows) // max(1, size)))
        return rows, Part(self._snapshot, self._lsn, None if ended else tuple(self._last or ()))

    async def close(self) -> None:
        """End the part."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _open(self) -> AsyncConnection[Any]:
        place, name = self._capture.place, application_name("rows")
        connection = await place.connect(OPTIONS, name)
        try:
            await check_fence(self._capture, connection, self._fence)
            await connection.execute("begin isolation level repeatable read read only")
            # Before the snapshot: behind an ALTER TABLE that rewrites the table, an older one sees it empty.
            lock = "lock table only {table} in access share mode"
            await connection.execute(composed(lock, table=place.identifier()))
            query = "select pg_current_snapshot()::text"
            (self._snapshot,) = await only_row(connection, query)
            (self._lsn,) = await only_row(connection, "select (pg_current_wal_insert_lsn() - '0/0')::bigint")
            await self._make_durable()
        except BaseException:
            await connection.close()
            raise
        self._connection = connection
        return connection

    async def _make_durable(self) -> None:
        """Commit something: then all that the snapshot sees is on disk too, or a crash could undo what was read already
        (`synchronous_commit = off`)."""
        async with self._capture.place.connection() as connection:
            await connection.execute("set synchronous_commit = on")
            await connection.execute("select pg_logical_emit_message(true, 'penstock', '')")

    def _query(self) -> Composed:
        from psycopg.sql import SQL, Literal, Placeholder

        columns, key = self._table.columns, [identifier(name) for name in self._table.key]
        last = [
            composed("{value}::{type}", value=Placeholder(), type=SQL(columns[name].type))  # pyright: ignore[reportArgumentType] # from the catalogue of Postgres
            for name in self._table.key
        ]
        behind = composed("where ({key}) > ({last}) ", key=SQL(", ").join(key), last=SQL(", ").join(last))
        return composed(
            "select {columns} from only {table} {behind} order by {key} limit {limit}",
            columns=SQL(", ").join([identifier(name) for name in self._capture.rows.names]),
            table=self._capture.place.identifier(),
            behind=SQL("") if self._last is None else behind,
            key=SQL(", ").join(key),
            limit=Literal(self._limit),
        )

    def _key(self, row: Values) -> tuple[str, ...]:
        names = self._capture.rows.names
        values = [row[names.index(name)] for name in self._table.key]
        return tuple([value.decode() for value in values if value is not None])


async def parts_of_keys(
    capture: Capture, table: CapturedTable, bounds: Sequence[Sequence[str]], keys: Sequence[Sequence[str | None]]
) -> Sequence[int]:
    """Behind how many of these bounds, which are in order, each key is. Only Postgres knows the order of its texts."""
    if not bounds or not keys:
        return [0] * len(keys)
    async with capture.place.connection() as connection:
        values = [value for bound in bounds for value in bound]
        cursor = await connection.execute(
            _order_query(table, len(bounds)), [*values, *map(list, zip(*keys, strict=True))]
        )
        return [number or 0 for (number,) in await cursor.fetchall()]


def _order_query(table: CapturedTable, bounds: int) -> Composed:
    from psycopg.sql import SQL, Placeholder

    columns = [table.columns[name] for name in table.key]
    names = [identifier(f"k{number}") for number in range(len(columns))]
    arrays = [composed("{value}::text[]", value=Placeholder()) for _ in columns]
    own = [
        composed(
            "{name}::{type}" + (f" collate {column.collation}" if column.collation else ""),
            name=name, type=SQL(column.type),  # pyright: ignore[reportArgumentType] # from the catalogue of Postgres
        )
        for name, column in zip(names, columns, strict=True)
    ]  # fmt: skip
    bound = SQL(", ").join([
        composed("{value}::{type}", value=Placeholder(), type=SQL(column.type))  # pyright: ignore[reportArgumentType] # as above
        for column in columns
    ])  # fmt: skip
    behind = composed("(({own}) > ({bound}))::int", own=SQL(", ").join(own), bound=bound)
    return composed(
        "select {behind} from unnest({arrays}) with ordinality as k({names}, n) order by n",
        behind=SQL(" + ").join([behind] * bounds), arrays=SQL(", ").join(arrays), names=SQL(", ").join(names),
    )  # fmt: skip
