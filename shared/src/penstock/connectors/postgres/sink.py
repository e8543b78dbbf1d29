"""`postgres.Sink`: rows of a stream into a table, exactly once by a mark in the same transaction, added or by key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from penstock.connectors import base
from penstock.connectors.base import Guarantee, PublishContext, SinkEncoder, SinkPublisher, WriteContext
from penstock.connectors.gathering import GatheringWriter
from penstock.connectors.keyed_rows import KeyedRows, TableRowEncoder, TakesChanges, key_of
from penstock.connectors.postgres.encoding import encoded_schema, row_encoder
from penstock.connectors.postgres.tables import TablePlace, postgres_type
from penstock.connectors.postgres.writing import TableWriting
from penstock.core.arguments import checked
from penstock.core.blocking import run_blocking
from penstock.settings import Secret
from penstock.types import Schema

if TYPE_CHECKING:
    import polars as pl

Delivery = Literal["exactly-once", "at-least-once"]

_WHAT: Final = "postgres.Sink"


class Sink(TakesChanges, base.PublishedSink):
    """Rows into a table of Postgres, exactly once: a transaction per checkpoint and subtask has rows and a mark together.

    Without `key` rows are added. With it, a row replaces the one that has the same key, and a row that is retracted is
    deleted (of changes; of updates only where the key has `window_start` or `window_end`, as sessions that are
    retracted): the table is the result. The key needs a unique index, and rows of one key their order, so write such a
    stream as it comes from `key_by`. Needs `penstock-streaming[postgres]`.

    Args:
        table: its name, `"orders"` or `"shop.orders"`. Columns are matched by name and checked before rows flow; the
            table may have more, if these may be null or have defaults.
        url: `postgresql://user:password@host:5432/database`; a `Secret` if it has a password.
        key: column or columns of which the table has each value once.
        create: make the table if there is none, with the key as primary key.
        delivery: `exactly-once`; or `at-least-once`, whose rows are committed when a checkpoint begins instead of when it
            is complete: without a key they are there again after a failure. They wait in memory until then.
        bad_rows: what becomes of a row that Postgres has no way to hold (a text with a zero character, no key), or
            refuses (a constraint, a trigger, a text that is too long): `fail`, or `skip`, which counts it.

    Raises:
        PipelineError: something of it does not fit.

    Example:
        >>> shop = "postgresql://localhost/shop"
        >>> written = bids.select("auction", "price").write(postgres.Sink("bids", url=shop))
        >>> totals = bids.key_by("auction").agg(bids=count())
        >>> written = totals.write(postgres.Sink("totals", url=shop, key="auction", create=True))
    """

    kind: ClassVar[str] = "postgres"

    @checked
    def __init__(
        self,
        table: str,
        *,
        url: str | Secret,
        key: str | Sequence[str] | None = None,
        create: bool = False,
        delivery: Delivery = "exactly-once",
        bad_rows: Literal["fail", "skip"] = "fail",
    ) -> None:
        self.target: Final = TablePlace(_WHAT, table, url)
        self.key: Final = key_of(key, _WHAT)
        self.create: Final = create
        self.delivery: Final = delivery
        self.bad_rows: Final = bad_rows

    @property
    def guarantee(self) -> Guarantee:
        """Exactly-once unless declared otherwise."""
        return self.delivery

    def dataset(self) -> base.Dataset:
        """See `Sink.dataset`."""
        return base.Dataset(*self.target.dataset)

    def check(self, schema: Schema, *, updates: bool) -> None:
        """See `Sink.check`."""
        self._rows.check(schema, updates=updates, instead=f"write postgres.Sink({self.target.table!r}, key=...)")
        for field in schema:
            postgres_type(field.type, f"{_WHAT}: {field.name}")

    @property
    def upsert_key(self) -> tuple[str, ...] | None:
        """See `Sink.upsert_key`."""
        return self.key or None

    def describe(self) -> Mapping[str, Any]:
        """See `Sink.describe`."""
        described: dict[str, Any] = {
            "table": self.target.table, "url": self.target.address, "key": list(self.key), "create": self.create or None,
            "delivery": self.delivery, "bad_rows": self.bad_rows,
        }  # fmt: skip
        return {name: value for name, value in described.items() if value not in (None, [])}

    # -- running --------------------------------------------------------------------------------------------------------

    @property
    def _rows(self) -> KeyedRows:
        return KeyedRows(_WHAT, self.key, self._changes)

    def _writing(self) -> TableWriting:
        return TableWriting(self.target, self.key, self.create, skips=self.bad_rows == "skip")

    def _encoder(self, schema: Schema) -> TableRowEncoder:
        return row_encoder(self.target.name, schema, self._rows, skips=self.bad_rows == "skip")

    async def _prepared(self, schema: Schema) -> None:
        with self.target.errors(f"{self.target.name}: "):
            async with self.target.connection() as connection:
                await self._writing().prepare(connection, self._rows.columns(schema))

    def reach(self, schema: Schema) -> None:
        """See `Sink.reach`: the table takes such rows; it is made if that was asked for."""
        run_blocking(self._prepared(schema))

    def encoded_schema(self, schema: Schema) -> Schema:
        """See `PublishedSink.encoded_schema`."""
        return encoded_schema(self._rows.columns(schema), deletes=self._rows.deletes)

    async def encoder(self, schema: Schema, operator: str) -> SinkEncoder:
        """See `PublishedSink.encoder`: looks whether the table takes such rows."""
        await self._prepared(schema)
        return self._encoder(schema)

    def publisher(self, context: PublishContext) -> SinkPublisher:
        """See `PublishedSink.publisher`."""
        from penstock.connectors.postgres.publishing import PostgresPublisher

        return PostgresPublisher(self._writing(), context)

    async def forget(self, context: PublishContext) -> None:
        """See `PublishedSink.forget`."""
        from penstock.connectors.postgres.publishing import forget_marks

        await forget_marks(self.target, context)

    def open(self, schema: Schema, context: WriteContext) -> base.SinkWriter:
        """See `Sink.open`: the writer where the guarantee is at-least-once."""
        return GatheringWriter(self._encoder(schema), self._written)

    async def _written(self, frames: Sequence[pl.DataFrame]) -> int:
        with self.target.errors(f"{self.target.name}: ", writing=True):
            async with self.target.connection() as connection, connection.transaction():
                return await self._writing().write(connection, frames)
