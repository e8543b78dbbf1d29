"""Encodes rows before the exchange, and publishes them with the mark in one transaction of SQLite.

Whoever begins to publish gives the mark the next number, for which it needs the lock that writing needs: so whatever an
earlier one had begun is decided by then. A transaction whose number is not the mark's any more publishes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.connectors.base import ProducerFencedError, PublishContext, PublishedMark
from penstock.connectors.sqlite.marks import Mark
from penstock.connectors.sqlite.writing import TableWriting
from penstock.protocol.publishing import ProducerEpoch

if TYPE_CHECKING:
    import polars as pl


class SqlitePublisher:
    """The publisher of one partition of a sink; see `SinkPublisher`.

    A call that is cancelled continues in its thread, with the producer's number with which it began.
    """

    def __init__(self, writing: TableWriting, context: PublishContext) -> None:
        self._writing = writing
        key = (context.job, context.operator, context.generation, context.partition)
        self._mark = Mark(writing.database, writing.where, key)
        self._producer = 0

    async def open(self) -> None:
        """See `SinkPublisher.open`: the table of the marks is there."""
        await asyncio.to_thread(self._mark.make_table)

    async def init_producer(self) -> ProducerEpoch:
        """See `SinkPublisher.init_producer`: waits for the end of a transaction that writes."""
        self._producer = await asyncio.to_thread(self._mark.next_producer)
        return ProducerEpoch(0, self._producer)

    async def read_mark(self) -> PublishedMark | None:
        """See `SinkPublisher.read_mark`."""
        found = await asyncio.to_thread(self._mark.read)
        return None if found is None else PublishedMark(*found)

    async def commit(self, frames: Sequence[pl.DataFrame], mark: PublishedMark) -> int:
        """See `SinkPublisher.commit`."""
        return await asyncio.to_thread(self._commit, frames, mark, self._producer)

    def _commit(self, frames: Sequence[pl.DataFrame], mark: PublishedMark, producer: int) -> int:
        with self._writing.database.transaction(f"{self._writing.where}the transaction: ") as connection:
            if not self._mark.move(connection, producer, mark.position, mark.metadata):
                raise ProducerFencedError(
                    f"{self._writing.name}: another publisher of partition {self._mark.key[-1]} has started"
                )
            return self._writing.write(connection, frames)

    async def close(self) -> None:
        """See `SinkPublisher.close`: nothing is open."""
