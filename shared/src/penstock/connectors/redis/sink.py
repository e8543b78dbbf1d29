"""`redis.Sink`: rows into hashes by key, `redis.StreamSink`: into a stream; exactly once by a mark in the same script."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self

from penstock.connectors import base
from penstock.connectors.base import Guarantee, PublishContext, SinkEncoder, SinkPublisher, WriteContext
from penstock.connectors.gathering import GatheringWriter
from penstock.connectors.keyed_rows import KeyedRows
from penstock.connectors.lookups import KeyTemplate, template_columns
from penstock.connectors.redis.encoding import RedisEncoder, encoded_schema
from penstock.connectors.redis.places import RedisPlace
from penstock.core.arguments import checked
from penstock.core.blocking import run_blocking
from penstock.core.times import Duration, duration_us, format_duration
from penstock.errors import PipelineError
from penstock.settings import Secret
from penstock.types import Schema

if TYPE_CHECKING:
    import polars as pl

    from penstock.connectors.redis.publishing import RedisWriting

Delivery = Literal["exactly-once", "at-least-once"]


class _RedisSink(base.PublishedSink):
    """What both sinks are."""

    kind: ClassVar[str] = "redis"
    _place: RedisPlace
    delivery: Delivery
    bad_rows: Literal["fail", "skip"]

    @property
    def guarantee(self) -> Guarantee:
        """Exactly-once unless declared otherwise."""
        return self.delivery

    @property
    @abstractmethod
    def _rows(self) -> KeyedRows:
        """How rows are told apart."""

    @abstractmethod
    def _template(self, schema: Schema) -> KeyTemplate | None:
        """What makes the names of hashes."""

    @abstractmethod
    def _writing(self) -> RedisWriting:
        """How rows get there."""

    async def _prepared(self) -> None:
        writing = self._writing()
        async with (
            self._place.within(f"{writing.name}: ", "check the rights of the user"),
            self._place.client() as client,
        ):
            cluster, memory = await client.info("cluster"), await client.info("memory")
        if cluster.get("cluster_enabled"):
            raise PipelineError(
                f"{writing.name}: it is a Redis Cluster, whose nodes cannot write rows and mark together; write to a "
                "Redis of one node (with replicas as you like)"
            )
        policy = str(memory.get("maxmemory_policy", ""))
        if memory.get("maxmemory") and policy.startswith("allkeys") and self.delivery == "exactly-once":
            raise PipelineError(
                f"{writing.name}: it evicts any key when memory is short (maxmemory-policy {policy}), also the mark "
                'of what is published; set another policy, or say delivery="at-least-once"'
            )

    def reach(self, schema: Schema) -> None:
        """See `Sink.reach`: it answers, and keeps what is written."""
        run_blocking(self._prepared())

    def encoded_schema(self, schema: Schema) -> Schema:
        """See `PublishedSink.encoded_schema`."""
        return encoded_schema(self._rows.columns(schema), named=bool(self._rows.key))

    def _encoder(self, schema: Schema) -> RedisEncoder:
        return RedisEncoder(
            self._writing().name, schema, self._rows, self._template(schema), skips=self.bad_rows == "skip"
        )

    async def encoder(self, schema: Schema, operator: str) -> SinkEncoder:
        """See `PublishedSink.encoder`."""
        return self._encoder(schema)

    def publisher(self, context: PublishContext) -> SinkPublisher:
        """See `PublishedSink.publisher`."""
        from penstock.connectors.redis.publishing import RedisPublisher

        return RedisPublisher(self._writing(), context)

    async def forget(self, context: PublishContext) -> None:
        """See `PublishedSink.forget`."""
        from penstock.connectors.redis.publishing import forget_marks

        await forget_marks(self._place, context)

    def open(self, schema: Schema, context: WriteContext) -> base.SinkWriter:
        """See `Sink.open`: the writer where the guarantee is at-least-once."""
        return GatheringWriter(self._encoder(schema), self._written)

    async def _written(self, frames: Sequence[pl.DataFrame]) -> int:
        writing, left_out = self._writing(), 0
        async with self._place.client() as client:
            for frame in frames:
                async with self._place.within(f"{writing.name}: ", "check the rights and what is there"):
                    left_out += await writing.write(client, [frame], "penstock:no-mark", None, 0)
        return left_out


class Sink(_RedisSink):
    """Rows into hashes of Redis, one per key, exactly once: what `redis.Lookup` reads.

    A row sets the fields that its columns name; null is a field that is not there, and other fields of the hash stay.
    A row that is retracted deletes its fields (of changes; of updates only where the key has `window_start` or
    `window_end`). A subtask writes the rows of a checkpoint together, when it is complete. Not for Redis Cluster.

    Args:
        key: name of the hash, with the columns of the key in braces: `"customer:{id}"`.
        url: `redis://user:password@host:6379/0`, or `rediss://` (TLS); a `Secret` if it has a password.
        ttl: how long after it was last written a hash is gone; None: it stays.
        delivery: `exactly-once`; or `at-least-once`, whose rows are written when a checkpoint begins instead of when
            it is complete: older ones may be there again until the newest one of their key is.
        bad_rows: what becomes of a row whose key has a null, or text with what separates it from the next column, in
            `"{shop}:{item}"` a shop with a `:`, or where something else has the name of the hash: `fail`, or `skip`,
            which counts it.

    Raises:
        PipelineError: something of it does not fit.

    Example:
        >>> totals = bids.key_by("auction").agg(bids=count())
        >>> written = totals.write(redis.Sink("totals:{auction}", url="redis://localhost", ttl="1d"))
    """

    @checked
    def __init__(
        self,
        key: str,
        *,
        url: str | Secret,
        ttl: Duration | None = None,
        delivery: Delivery = "exactly-once",
        bad_rows: Literal["fail", "skip"] = "fail",
    ) -> None:
        what = "redis.Sink"
        self.key: Final = key
        self._keyed = KeyedRows(what, template_columns(what, key))
        self._place = RedisPlace(what, url)
        self.ttl_us: Final = None if ttl is None else duration_us(ttl, f"{what}: ttl", positive=True)
        self.delivery = delivery
        self.bad_rows = bad_rows

    @property
    def _rows(self) -> KeyedRows:
        return self._keyed

    def _template(self, schema: Schema) -> KeyTemplate:
        return KeyTemplate(self._keyed.what, self.key, schema.select(self._keyed.key))

    def _writing(self) -> RedisWriting:
        from penstock.connectors.redis.publishing import HASHES, RedisWriting

        ttl = "" if self.ttl_us is None else str(max(1, self.ttl_us // 1_000))
        return RedisWriting(
            self._place, f"redis hashes {self.key} at {self._place.address}", HASHES, None, ttl, self.bad_rows == "skip"
        )

    def check(self, schema: Schema, *, updates: bool) -> None:
        """See `Sink.check`."""
        self._keyed.check(schema, updates=updates, instead="")
        self._template(schema)

    @property
    def upsert_key(self) -> tuple[str, ...]:
        """See `Sink.upsert_key`."""
        return self._keyed.key

    def of_changes(self) -> Self:
        """See `Sink.of_changes`: what is retracted is deleted."""
        found = copy.copy(self)
        found._keyed = KeyedRows(self._keyed.what, self._keyed.key, changes=True)
        return found

    def dataset(self) -> base.Dataset:
        """See `Sink.dataset`."""
        return base.Dataset(self._place.address, self.key)

    def describe(self) -> Mapping[str, Any]:
        """See `Sink.describe`."""
        described = {
            "key": self.key, "url": self._place.address, "delivery": self.delivery, "bad_rows": self.bad_rows,
            "ttl": None if self.ttl_us is None else format_duration(self.ttl_us),
        }  # fmt: skip
        return {name: value for name, value in described.items() if value is not None}


class StreamSink(_RedisSink):
    """Rows into a stream of Redis (`XADD`), exactly once: an entry per row, a field per column, null is none.

    Values are those of `redis.Sink`. A subtask adds the rows of a checkpoint together, when it is complete. Not for Redis
    Cluster.

    Args:
        stream: its key, `"orders"`; made with the first row.
        url: `redis://user:password@host:6379/0`, or `rediss://` (TLS); a `Secret` if it has a password.
        max_length: about how many entries are kept, the newest ones (`MAXLEN ~`); None: all.
        delivery: `exactly-once`; or `at-least-once`, whose rows are added when a checkpoint begins instead of when it is
            complete, and are there again after a failure.
        bad_rows: what becomes of a row of which all columns are null: `fail`, or `skip`, which counts it.

    Raises:
        PipelineError: something of it does not fit.

    Example:
        >>> written = bids.select("auction", "price").write(redis.StreamSink("bids", url="redis://localhost"))
    """

    @checked
    def __init__(
        self,
        stream: str,
        *,
        url: str | Secret,
        max_length: int | None = None,
        delivery: Delivery = "exactly-once",
        bad_rows: Literal["fail", "skip"] = "fail",
    ) -> None:
        what = "redis.StreamSink"
        if not stream:
            raise PipelineError(f"{what}: the stream's name is empty")
        if max_length is not None and max_length < 1:
            raise PipelineError(f"{what}: max_length= is a number of entries, got {max_length}")
        self.stream: Final = stream
        self.max_length: Final = max_length
        self._place = RedisPlace(what, url)
        self.delivery = delivery
        self.bad_rows = bad_rows

    @property
    def _rows(self) -> KeyedRows:
        return KeyedRows("redis.StreamSink", ())

    def _template(self, schema: Schema) -> None:
        return None

    def _writing(self) -> RedisWriting:
        from penstock.connectors.redis.publishing import STREAM, RedisWriting

        length = "" if self.max_length is None else str(self.max_length)
        name = f"redis stream {self.stream} at {self._place.address}"
        return RedisWriting(self._place, name, STREAM, self.stream, length)

    def check(self, schema: Schema, *, updates: bool) -> None:
        """See `Sink.check`."""
        self._rows.check(schema, updates=updates, instead='write redis.Sink("name:{key}") or the stream\'s `final()`')

    def dataset(self) -> base.Dataset:
        """See `Sink.dataset`."""
        return base.Dataset(self._place.address, self.stream)

    def describe(self) -> Mapping[str, Any]:
        """See `Sink.describe`."""
        described = {
            "stream": self.stream, "url": self._place.address, "max_length": self.max_length,
            "delivery": self.delivery, "bad_rows": self.bad_rows,
        }  # fmt: skip
        return {name: value for name, value in described.items() if value is not None}
