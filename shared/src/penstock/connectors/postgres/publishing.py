"""Publishes encoded rows and the mark in one transaction of Postgres.

The mark of a partition is a row of the table `penstock_marks`, beside the target. A publisher that starts gives that row
the next number, for which it waits until whatever an earlier one had begun is decided, because that holds the row locked;
and a transaction whose number is not the row's any more publishes nothing. Before that it ends the sessions of earlier
ones that are in a transaction, which it knows by their name: the server waits for ever for a client that was stopped in
the middle of a `COPY`. So a publisher that was stopped, or whose connection hangs, holds nobody up and can do nothing
later, whatever it has sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.connectors.base import ProducerFencedError, PublishContext, PublishedMark
from penstock.connectors.postgres.tables import TablePlace, composed
from penstock.connectors.postgres.writing import TableWriting
from penstock.errors import ExternalError, PenstockError
from penstock.protocol.publishing import ProducerEpoch

if TYPE_CHECKING:
    import polars as pl
    from psycopg import AsyncConnection

MARKS: Final = "penstock_marks"
CALL_TIMEOUT_S: Final = 90.0
"""The deadline of each step; longer than the server's, so that it is the server who ends a transaction."""
OPTIONS: Final = " -c statement_timeout=60000 -c idle_in_transaction_session_timeout=60000 -c tcp_user_timeout=60000"
"""What is left of a publisher holds nothing for long, also if nobody follows it."""
_END_OTHERS: Final = """
select pg_terminate_backend(pid) from pg_stat_activity where application_name = current_setting('application_name')
and usename = current_user and state <> 'idle' and datname = current_database() and pid <> pg_backend_pid()
"""
_KEY: Final = "job = %s and operator = %s and generation = %s and partition = %s"
_MAKE: Final = """
create table if not exists {marks} (
    job text, operator text, generation int, partition int, producer bigint not null, position bigint, metadata text,
    changed timestamptz not null default now(), primary key (job, operator, generation, partition))
"""
_NEXT: Final = """
insert into {marks} as m (job, operator, generation, partition, producer) values (%s, %s, %s, %s, 1)
on conflict (job, operator, generation, partition) do update set producer = m.producer + 1 returning producer
"""
_DURABLE: Final = """
select set_config('synchronous_commit', 'on', false) where current_setting('synchronous_commit') = 'off'
"""


class PostgresPublisher:
    """The publisher of one partition of a sink; see `SinkPublisher`."""

    def __init__(self, writing: TableWriting, context: PublishContext) -> None:
        self._writing = writing
        self._place = writing.place
        self._key = (context.job, context.operator, context.generation, context.partition)
        self._session = f"penstock {hashlib.sha256(repr(self._key).encode()).hexdigest()[:32]}"
        self._connection: AsyncConnection[Any] | None = None
        self._producer = 0

    def _marks(self, text: str) -> Any:
        return composed(text, marks=self._place.identifier(MARKS))

    async def open(self) -> None:
        """See `SinkPublisher.open`: the table of the marks is there."""
        async with self._certain("opening") as connection:
            await make_marks(self._place, connection)

    async def init_producer(self) -> ProducerEpoch:
        """See `SinkPublisher.init_producer`: waits for the end of a transaction that has the mark."""
        async with self._certain("taking the mark") as connection:
            await connection.execute(_END_OTHERS)
            found = await (await connection.execute(self._marks(_NEXT), self._key)).fetchone()
            assert found is not None
            self._producer = found[0]
        return ProducerEpoch(0, self._producer)

    async def read_mark(self) -> PublishedMark | None:
        """See `SinkPublisher.read_mark`."""
        async with self._certain("reading the mark") as connection:
            query = self._marks("select position, metadata from {marks} where " + _KEY)
            found = await (await connection.execute(query, self._key)).fetchone()
        return None if found is None or found[0] is None else PublishedMark(*found)

    async def commit(self, frames: Sequence[pl.DataFrame], mark: PublishedMark) -> int:
        """See `SinkPublisher.commit`."""
        async with self._certain("the transaction") as connection, connection.transaction():
            query = self._marks("select producer from {marks} where " + _KEY + " for update")
            found = await (await connection.execute(query, self._key)).fetchone()
            if found != (self._producer,):
                raise ProducerFencedError(
                    f"{self._place.name}: another publisher of partition {self._key[-1]} has started"
                )
            left_out = await self._writing.write(connection, frames)
            update = self._marks("update {marks} set position = %s, metadata = %s, changed = now() where " + _KEY)
            await connection.execute(update, (mark.position, mark.metadata, *self._key))
        return left_out

    async def close(self) -> None:
        """See `SinkPublisher.close`."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    @contextlib.asynccontextmanager
    async def _certain(self, step: str) -> AsyncGenerator[AsyncConnection[Any]]:
        """A connection, with a deadline; whatever is not certain throws it away."""
        where = f"{self._place.name}: {step}: "
        try:
            with self._place.errors(where, writing=True):
                async with asyncio.timeout(CALL_TIMEOUT_S):
                    yield await self._connected()
        except ProducerFencedError:
            raise
        except BaseException as error:
            await self.close()
            if isinstance(error, TimeoutError) and not isinstance(error, PenstockError):
                raise ExternalError(f"{where}no answer within {CALL_TIMEOUT_S:g} s") from error
            raise

    async def _connected(self) -> AsyncConnection[Any]:
        if self._connection is None:
            self._connection = await self._place.connect(OPTIONS, self._session)
            await self._connection.execute(_DURABLE)
        return self._connection


async def make_marks(place: TablePlace, connection: AsyncConnection[Any]) -> None:
    """The table of the marks, if there is none."""
    import psycopg

    with contextlib.suppress(psycopg.errors.UniqueViolation, psycopg.errors.DuplicateTable):  # made at the same moment
        await connection.execute(composed(_MAKE, marks=place.identifier(MARKS)), [])


async def forget_marks(place: TablePlace, context: PublishContext) -> None:
    """Remove the marks of all partitions of a context."""
    import psycopg

    with place.errors(f"{place.name}: removing marks: "):
        async with place.connection() as connection:
            with contextlib.suppress(psycopg.errors.UndefinedTable):
                await connection.execute(
                    composed(
                        "delete from {marks} where job = %s and operator = %s and generation = %s",
                        marks=place.identifier(MARKS),
                    ),
                    (context.job, context.operator, context.generation),
                )
