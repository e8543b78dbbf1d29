"""Kafka: `kafka.Source` reads a topic, `kafka.Sink` writes a stream to one, exactly once by default.

Without `brokers` or `security` the platform's Kafka is meant: that of `use_cluster`, else that of the settings' file and
environment. Importing this loads no Kafka client.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final, Literal, Self

from penstock.connectors import base
from penstock.connectors.base import Guarantee, Policy, PublishContext, SinkEncoder, SinkPublisher
from penstock.connectors.kafka.default_cluster import check_brokers, cluster_name, resolve, topic_dataset, use_cluster
from penstock.connectors.kafka.encoding import KafkaEncoder, RecordFormat, RecordShape, encoded_schema, raw_column
from penstock.connectors.kafka.limits import TopicLimits
from penstock.connectors.kafka.marks import KIND, SinkMarks, delete_marks, marks_of
from penstock.connectors.kafka.schema_registry import SchemaRegistry, check_address, prefix_of, shown, subject_of
from penstock.connectors.kafka.source import Source
from penstock.core.arguments import checked
from penstock.errors import PipelineError
from penstock.formats.avro import avro_schema
from penstock.formats.csv_decoding import check_csv_rows
from penstock.formats.protobuf import protobuf_message
from penstock.settings import KafkaSettings
from penstock.types import BINARY, STRING, TIMESTAMP, Schema

Delivery = Literal["exactly-once", "at-least-once", "upsert"]
Publish = Literal["checkpoint", "direct"]
Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]

__all__ = ["Compression", "Delivery", "Sink", "Source", "use_cluster"]

_WHAT = "kafka.Sink"


class Sink(base.PublishedSink):
    """Rows as records of a topic.

    Exactly-once is a Kafka transaction per checkpoint and partition: consumers with `isolation.level=read_committed`
    see every row once. Rows of one key keep their order. The partition follows from the key as with any Kafka client
    (murmur2); rows without key are spread over the partitions in batches.

    Args:
        topic: must exist, unless `create_partitions` says with how many partitions to create it.
        key: column or columns of the record's key. One column: its bytes or text as they are, other types as JSON
            writes them; several: a JSON object.
        partition_by: a column whose text chooses the partition instead of the key.
        headers: header name to column.
        timestamp: a timestamp column for the record's timestamp; the time of publishing if not given.
        format: `json` (an object per row, as `files.Sink` writes it), `csv` (without header), `avro` (a datum per row,
            see `registry`), `protobuf` (see `message`), `raw` (the bytes or text of the column `value`, or of the only
            column that nothing else uses), `arrow` (a record holds an Arrow stream of many rows: fast, without key), or
            `debezium` (an envelope of `before`, `after` and `op` per change, as Debezium's JSON without schema; the
            record's key is
            an object; of a stream of updates, changes are made).
        registry: address of a Confluent schema registry, for `avro`, with a login `https://user:password@host`: records
            are written in its wire format, and the schema of the stream is registered as the subject `<topic>-value`
            where an attempt begins. Without it a record is a bare datum.
        message: for `protobuf`, the class that protoc has made, such as `Order` of a module orders_pb2; every column is
            its field of the same name. A column that may be null needs a field that may be absent (`optional`).
        register_schema: whether the schema is registered; otherwise it must be there.
        delivery: `exactly-once`; `at-least-once` (lower latency: rows are visible before the checkpoint, and again
            after a failure); `upsert` (exactly once, for streams of updates: every record has a key, the newest of a
            key counts; where `window_start` or `window_end` is in the key, a session that was retracted becomes a
            record without a value, which deletes its key; of changes, every row that is retracted for good).
        publish: `checkpoint`, or `direct`: on a cluster, where rows come from a `kafka.Source` without keeping state,
            a transaction has the rows and where their partition goes on, and waits for no checkpoint. They are visible
            in a fraction of the time, also behind the last checkpoint of a job that fails. Embedded runs wait.
        bad_rows: what becomes of a row that cannot be a record (larger than the topic takes, a timestamp that it refuses,
            no key in an upsert stream or a compacted topic): `fail`, `skip`, which counts it, or `dead_letter`, which
            counts it and writes it to the topic `dead_letters`, in the same transaction as the rows beside it. So too,
            exactly once, of a record that a broker refuses later; at least once that fails the attempt, and the next one
            judges.
        dead_letters: the topic of those rows: JSON whatever the format is, cut to what that topic takes, with the
            reason in the header `penstock-error`.
        compression: `none`, `gzip`, `snappy`, `lz4` or `zstd`, of batches of records; but for `gzip` exactly-once needs
            the package `cramjam` on the task managers. What is larger than the topic takes is judged before it.
        brokers: `host:port`, several separated by commas; the platform's Kafka if not given.
        security: how to reach another Kafka with TLS or a login.
        create_partitions: create the topic with so many partitions if there is none.

    Raises:
        PipelineError: one of them does not fit.

    Example:
        >>> written = bids.write(kafka.Sink("bids", key="auction"))
        >>> totals = bids.key_by("auction").agg(bids=count())
        >>> written = totals.write(kafka.Sink("totals", key="auction", delivery="upsert"))
    """

    kind: ClassVar[str] = KIND

    @checked
    def __init__(
        self,
        topic: str,
        *,
        key: str | Sequence[str] | None = None,
        partition_by: str | None = None,
        headers: Mapping[str, str] | None = None,
        timestamp: str | None = None,
        format: RecordFormat = "json",
        registry: str | None = None,
        register_schema: bool = True,
        message: Any = None,
        delivery: Delivery = "exactly-once",
        publish: Publish = "checkpoint",
        bad_rows: Policy = "fail",
        dead_letters: str | None = None,
        compression: Compression = "none",
        brokers: str | None = None,
        security: KafkaSettings | None = None,
        create_partitions: int | None = None,
    ) -> None:
        keys = () if key is None else (key,) if isinstance(key, str) else tuple(key)
        _check_bad_rows(bad_rows, topic, dead_letters)
        shape = RecordShape(
            format, keys, partition_by, timestamp, dict(headers or {}), key_needed=delivery == "upsert",
            dead_letters=bad_rows == "dead_letter", message=protobuf_message(_WHAT, format, message),
        )  # fmt: skip
        _check_shape(topic, shape, create_partitions)
        _check_registry(registry, register_schema, format)
        if publish == "direct" and delivery == "at-least-once":
            raise PipelineError(f'{_WHAT}: delivery="at-least-once" writes at once; leave publish="direct" out')
        check_brokers(_WHAT, brokers, security)
        self.topic: Final = topic
        self.shape: Final = shape
        self.registry: Final = registry
        self.register_schema: Final = register_schema
        self.delivery: Final = delivery
        self.publish: Final = publish
        self.bad_rows: Final = bad_rows
        self.dead_letters: Final = dead_letters
        self.compression: Final = compression
        self.brokers: Final = brokers
        self.security: Final = security
        self.create_partitions: Final = create_partitions

    @property
    def guarantee(self) -> Guarantee:
        """Exactly-once unless declared otherwise; an upsert sink takes the same way."""
        return "at-least-once" if self.delivery == "at-least-once" else "exactly-once"

    @property
    def publishes_directly(self) -> bool:
        """See `PublishedSink.publishes_directly`."""
        return self.publish == "direct"

    def check(self, schema: Schema, *, updates: bool) -> None:
        """See `Sink.check`."""
        shape = self.shape
        for name in shape.key:
            schema.field(name, f"{_WHAT}: key")
        for name in shape.headers.values():
            schema.field(name, f"{_WHAT}: headers")
        if shape.partition_by is not None:
            schema.field(shape.partition_by, f"{_WHAT}: partition_by")
        if shape.timestamp is not None:
            found = schema.field(shape.timestamp, f"{_WHAT}: timestamp").type
            if found != TIMESTAMP:
                raise PipelineError(f"{_WHAT}: timestamp={shape.timestamp!r} is a column of {found}, not a timestamp")
        if updates and not shape.key:
            options = 'format="debezium"' if self.wants_changes else 'delivery="upsert"'
            raise PipelineError(
                f"{_WHAT}: a row of this stream may replace an earlier one of the same key, but its records have no key, "
                f"so every update would count as a row; write kafka.Sink({self.topic!r}, key=..., {options})"
            )
        self._check_format(schema)

    @property
    def wants_changes(self) -> bool:
        """See `Sink.wants_changes`: an event of Debezium has the former row."""
        return self.shape.format == "debezium"

    @property
    def upsert_key(self) -> tuple[str, ...] | None:
        """See `Sink.upsert_key`."""
        return self.shape.key if self.delivery == "upsert" or self.wants_changes else None

    def of_changes(self) -> Self:
        """See `Sink.of_changes`: in an upsert topic, records and tombstones; or Debezium's events."""
        if self.upsert_key is None:
            return self
        found = copy.copy(self)
        vars(found)["shape"] = replace(self.shape, changes=True)
        return found

    def _check_format(self, schema: Schema) -> None:
        match self.shape.format:
            case "csv":
                check_csv_rows(schema, "", _WHAT)
            case "avro":
                avro_schema(schema)
            case "protobuf":
                assert self.shape.message is not None
                self.shape.message.setters(self.shape.values(schema), _WHAT)
            case "raw":
                column = raw_column(schema, self.shape)
                if column is None or schema.field(column).type not in (BINARY, STRING):
                    raise PipelineError(
                        f'{_WHAT}: format="raw" writes the bytes of a column `value` (bytes or str), or of the only one '
                        f"that is neither key nor header; there are: {schema}"
                    )
            case _:
                pass

    def describe(self) -> Mapping[str, Any]:
        """See `Sink.describe`: what is not the default; the brokers if they are not the platform's; no security."""
        shape = self.shape
        brokers = self.security.brokers if self.security is not None else self.brokers
        described: dict[str, Any] = {
            "topic": self.topic,
            "format": shape.format,
            "message": None if shape.message is None else shape.message.name,
            "registry": None if self.registry is None else shown(self.registry),
            "register_schema": None if self.register_schema else False,
            "delivery": self.delivery,
            "publish": self.publish if self.publish != "checkpoint" else None,
            "bad_rows": self.bad_rows,
            "dead_letters": self.dead_letters,
            "compression": self.compression if self.compression != "none" else None,
            "key": list(shape.key),
            "partition_by": shape.partition_by,
            "timestamp": shape.timestamp,
            "headers": dict(shape.headers),
            "brokers": brokers,
            "create_partitions": self.create_partitions,
        }
        return {name: value for name, value in described.items() if value not in (None, [], {})}

    # -- running --------------------------------------------------------------------------------------------------------

    @property
    def settings(self) -> KafkaSettings:
        """How to reach its Kafka, from this process."""
        return resolve(self.brokers, self.security)

    def dataset(self) -> base.Dataset:
        """See `Sink.dataset`: the topic."""
        return topic_dataset(self.settings, self.topic)

    def begin(self) -> base.Removal:
        """See `Sink.begin`: a missing topic, or codec, is found out before anything runs."""
        if self.guarantee == "exactly-once" and self.compression != "none":
            from penstock.connectors.kafka.transactions import check_codec

            check_codec(self.compression)
        self._prepared(self.settings)
        return base.remove_nothing

    def _encoder(self, schema: Schema, limits: TopicLimits, dead_limit: int) -> KafkaEncoder:
        return KafkaEncoder(
            f"kafka topic {self.topic!r}", schema, self.shape, limits, self.bad_rows, dead_limit, self._prefix(schema)
        )

    def _prefix(self, schema: Schema) -> bytes:
        """What stands before each record: the id of the stream's schema, asked of the registry."""
        if self.registry is None:
            return b""
        registry = SchemaRegistry(self.registry)
        find = registry.register if self.register_schema else registry.registered
        return prefix_of(find(subject_of(self.topic), avro_schema(self.shape.values(schema))))

    def _prepared(self, settings: KafkaSettings) -> tuple[int, TopicLimits, int]:
        """Number of partitions, what the topic takes, and the largest record that the topic of dead letters does."""
        from penstock.connectors.kafka.topics import TopicAdmin

        admin = TopicAdmin(settings, "penstock-sink")
        partitions, dead_limit = admin.require(self.topic, self.create_partitions), 0
        limits = admin.limits(self.topic)
        if limits.needs_key and not self.shape.key:
            raise PipelineError(
                f"{_WHAT}: topic {self.topic!r} is compacted (cleanup.policy) and takes only records with a key; name "
                "the columns of the key: key=..., or write to another topic"
            )
        if self.dead_letters is not None:
            admin.require(self.dead_letters, self.create_partitions)
            dead = admin.limits(self.dead_letters)
            if dead.needs_key:
                raise PipelineError(
                    f"{_WHAT}: dead_letters={self.dead_letters!r} is compacted (cleanup.policy) and takes only records "
                    "with a key, which dead letters have not; name another topic"
                )
            dead_limit = dead.max_message_bytes
        return partitions, limits, dead_limit

    def encoded_schema(self, schema: Schema) -> Schema:
        """See `PublishedSink.encoded_schema`."""
        return encoded_schema(self.shape, deletes=self.shape.deletes)

    async def encoder(self, schema: Schema, operator: str) -> SinkEncoder:
        """See `PublishedSink.encoder`: asks the topic what it takes, and the registry for the schema's id."""
        _, limits, dead_limit = await asyncio.to_thread(self._prepared, self.settings)
        return await asyncio.to_thread(self._encoder, schema, limits, dead_limit)

    def publisher(self, context: PublishContext) -> SinkPublisher:
        """See `PublishedSink.publisher`."""
        from penstock.connectors.kafka.transactions import KafkaPublisher

        return KafkaPublisher(
            self.settings, self.topic, tuple(self.shape.headers), self._marks(context), context, self.create_partitions,
            bad_rows=self.bad_rows, dead_letters=self.dead_letters, compression=self.compression,
        )  # fmt: skip

    async def forget(self, context: PublishContext) -> None:
        """See `PublishedSink.forget`: deletes the topic of the marks."""
        await delete_marks(self.settings, self._marks(context).topic)

    def _marks(self, context: PublishContext) -> SinkMarks:
        return marks_of(cluster_name(), context.job, context.operator, context.generation, self.brokers)

    def open(self, schema: Schema, context: base.WriteContext) -> base.SinkWriter:
        """See `Sink.open`: the writer where the guarantee is at-least-once."""
        from penstock.connectors.kafka.writing import KafkaWriter

        settings = self.settings
        partitions, limits, dead_limit = self._prepared(settings)
        encoder = self._encoder(schema, limits, dead_limit)
        attempt = context.attempt_number if self.delivery == "upsert" else None
        return KafkaWriter(
            settings, self.topic, encoder, tuple(self.shape.headers), attempt, partitions,
            dead_letters=self.dead_letters, compression=self.compression,
        )  # fmt: skip


def _check_shape(topic: str, shape: RecordShape, create_partitions: int | None) -> None:
    if not topic:
        raise PipelineError(f"{_WHAT}: the topic's name is empty")
    if shape.key_needed and not shape.key:
        raise PipelineError(f'{_WHAT}: delivery="upsert" needs key=, the columns that say which record is replaced')
    if shape.format == "debezium" and shape.key_needed:
        raise PipelineError(
            f'{_WHAT}: delivery="upsert" keeps the newest row of a key, format="debezium" has all changes; leave one out'
        )
    if shape.format == "arrow" and (shape.hashed or shape.headers or shape.timestamp is not None):
        raise PipelineError(
            f'{_WHAT}: with format="arrow" a record holds many rows, so it has no key, partition_by, headers or '
            "timestamp of a row; leave them out or choose another format"
        )
    if create_partitions is not None and create_partitions < 1:
        raise PipelineError(f"{_WHAT}: create_partitions= is a number of partitions, got {create_partitions}")


def _check_registry(registry: str | None, register_schema: bool, kind: RecordFormat) -> None:
    if registry is None:
        if not register_schema:
            raise PipelineError(f"{_WHAT}: register_schema=False is for a sink with registry=")
        return
    if kind != "avro":
        raise PipelineError(f'{_WHAT}: registry= is for format="avro", this one is {kind!r}')
    check_address(_WHAT, registry)


def _check_bad_rows(policy: Policy, topic: str, dead_letters: str | None) -> None:
    if policy == "dead_letter" and not dead_letters:
        raise PipelineError(
            f"{_WHAT}: bad_rows='dead_letter' needs dead_letters=, the topic that such rows are written to"
        )
    if policy != "dead_letter" and dead_letters is not None:
        raise PipelineError(
            f"{_WHAT}: dead_letters={dead_letters!r} gets no rows with bad_rows={policy!r}; say 'dead_letter'"
        )
    if dead_letters == topic:
        raise PipelineError(f"{_WHAT}: dead_letters= names the topic itself; rows that it cannot take need another one")
