"""`sqlite.Sink`: rows of a stream into a table, exactly once by a mark in the same transaction, added or by key."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from penstock.connectors import base
from penstock.connectors.base import Guarantee, PublishContext, SinkEncoder, SinkPublisher, WriteContext
from penstock.connectors.gathering import GatheringWriter
from penstock.connectors.keyed_rows import KeyedRows, TableRowEncoder, TakesChanges, key_of
from penstock.connectors.sqlite.column_types import check_columns
from penstock.connectors.sqlite.database import Database, checked_table
from penstock.connectors.sqlite.encoding import encoded_schema, row_encoder
from penstock.connectors.sqlite.marks import forget_marks
from penstock.connectors.sqlite.publishing import SqlitePublisher
from penstock.connectors.sqlite.writing import TableWriting
from penstock.core.arguments import checked
from penstock.core.times import Duration
from penstock.types import Schema

if TYPE_CHECKING:
    import polars as pl

Delivery = Literal["exactly-once", "at-least-once"]

_WHAT: Final = "sqlite.Sink"


class Sink(TakesChanges, base.PublishedSink):
    """Rows into a table of SQLite, exactly once: a transaction per checkpoint and subtask has rows and a mark together.

    Without `key` rows are added. With it, a row replaces the one that has the same key, and a row that is retracted is
    deleted (of changes; of updates only where the key has `window_start` or `window_end`, as sessions that are
    retracted): the table is the result. The key needs a unique index, and rows of one key their order, so write such a
    stream as it comes from `key_by`. SQLite has one writer at a time: subtasks wait for each other, and for others that
    write to the file.

    Args:
        database: the path of its file. On a cluster it must lead to one file wherever a subtask runs, on a disk of one
            machine: network file systems do not lock files as SQLite needs it.
        table: its name. Columns are matched by name and checked before rows flow; the table may have more, if these may
            be null or have defaults.
        key: column or columns of which the table has each value once.
        create: make the table, and the file, if there is none, with the key as primary key.
        delivery: `exactly-once`; or `at-least-once`, whose rows are committed when a checkpoint begins instead of when it
            is complete: without a key they are there again after a failure. They wait in memory until then.
        bad_rows: what becomes of a row that SQLite has no way to hold (NaN, whole numbers beyond 64 bits with a sign, no
            key), or refuses (a constraint, a trigger): `fail`, or `skip`, which counts it.
        lock_timeout: how long another connection may write before the transaction is tried again.

    Raises:
        PipelineError: something of it does not fit.

    Example:
        >>> written = bids.select("auction", "price").write(sqlite.Sink("shop.db", table="bids"))
        >>> totals = bids.key_by("auction").agg(price=col("price").sum())
        >>> written = totals.write(sqlite.Sink("shop.db", table="totals", key="auction"))
        >>> p.run().state
        'FINISHED'
        >>> Pipeline("totals").read(sqlite.Source("shop.db", table="totals", schema=Total)).collect().rows()
        [(1, 170.0), (2, 330.0)]
    """

    kind: ClassVar[str] = "sqlite"

    @checked
    def __init__(
        self,
        database: str | os.PathLike[str],
        table: str,
        *,
        key: str | Sequence[str] | None = None,
        create: bool = True,
        delivery: Delivery = "exactly-once",
        bad_rows: Literal["fail", "skip"] = "fail",
        lock_timeout: Duration = "60s",
    ) -> None:
        self.database: Final = Database(_WHAT, database, lock_timeout)
        self.table: Final = checked_table(table, _WHAT)
        self.key: Final = key_of(key, _WHAT)
        self.create: Final = create
        self.delivery: Final = delivery
        self.bad_rows: Final = bad_rows

    @property
    def guarantee(self) -> Guarantee:
        """Exactly-once unless declared otherwise."""
        return self.delivery

    @property
    def relative_path(self) -> str:
        """See `Sink.relative_path`."""
        return self.database.relative_path

    def dataset(self) -> base.Dataset:
        """See `Sink.dataset`."""
        return base.Dataset(self.database.namespace, self.table)

    def check(self, schema: Schema, *, updates: bool) -> None:
        """See `Sink.check`."""
        self._rows.check(schema, updates=updates, instead=f"write sqlite.Sink(..., table={self.table!r}, key=...)")
        check_columns(schema, _WHAT)

    @property
    def upsert_key(self) -> tuple[str, ...] | None:
        """See `Sink.upsert_key`."""
        return self.key or None

    def describe(self) -> Mapping[str, Any]:
        """See `Sink.describe`."""
        described: dict[str, Any] = {
            "database": self.database.path, "table": self.table, "key": list(self.key), "create": self.create,
            "delivery": self.delivery, "bad_rows": self.bad_rows,
        }  # fmt: skip
        return {name: value for name, value in described.items() if value != []}

    # -- running --------------------------------------------------------------------------------------------------------

    @property
    def _rows(self) -> KeyedRows:
        return KeyedRows(_WHAT, self.key, self._changes)

    @property
    def _writing(self) -> TableWriting:
        return TableWriting(self.database, self.table, self.key, self.create, skips=self.bad_rows == "skip")

    def _encoder(self, schema: Schema) -> TableRowEncoder:
        return row_encoder(self._writing.name, schema, self._rows, skips=self.bad_rows == "skip")

    def reach(self, schema: Schema) -> None:
        """See `Sink.reach`: the table takes such rows; it is made if there is none."""
        self._writing.prepare(self._rows.columns(schema))

    def encoded_schema(self, schema: Schema) -> Schema:
        """See `PublishedSink.encoded_schema`."""
        return encoded_schema(self._rows.columns(schema), deletes=self._rows.deletes)

    async def encoder(self, schema: Schema, operator: str) -> SinkEncoder:
        """See `PublishedSink.encoder`: looks whether the table takes such rows."""
        await asyncio.to_thread(self.reach, schema)
        return self._encoder(schema)

    def publisher(self, context: PublishContext) -> SinkPublisher:
        """See `PublishedSink.publisher`."""
        return SqlitePublisher(self._writing, context)

    async def forget(self, context: PublishContext) -> None:
        """See `PublishedSink.forget`."""
        job = (context.job, context.operator, context.generation)
        await asyncio.to_thread(forget_marks, self.database, self._writing.where, *job)

    def open(self, schema: Schema, context: WriteContext) -> base.SinkWriter:
        """See `Sink.open`: the writer where the guarantee is at-least-once."""
        return GatheringWriter(self._encoder(schema), self._written)

    async def _written(self, frames: Sequence[pl.DataFrame]) -> int:
        return await asyncio.to_thread(self._write, frames)

    def _write(self, frames: Sequence[pl.DataFrame]) -> int:
        writing = self._writing
        with self.database.transaction(writing.where) as connection:
            return writing.write(connection, frames)
