"""`kafka.Source`: a topic as a stream, one split per partition. Importing this loads no Kafka client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Unpack

import msgspec

from penstock.connectors import base
from penstock.connectors.base import Position, ReadContext, Split, SplitReader, T
from penstock.connectors.declaring import SourceOptions, declare, zone
from penstock.connectors.kafka.decoding import RECORD_TIMESTAMP, RowDecoder, value_decoder
from penstock.connectors.kafka.default_cluster import check_brokers, resolve, topic_dataset
from penstock.connectors.kafka.schema_registry import check_address, shown
from penstock.core.arguments import checked
from penstock.errors import PipelineError, nearest
from penstock.formats.avro import avro_schema
from penstock.formats.csv_decoding import check_csv
from penstock.formats.protobuf import protobuf_message
from penstock.settings import KafkaSettings
from penstock.types import BINARY, INT64, STRING, TIMESTAMP, ListType, Schema, StructType

if TYPE_CHECKING:
    from penstock.connectors.kafka.decoding import RecordDecoder

SourceFormat = Literal["json", "arrow", "csv", "avro", "protobuf", "raw"]
Offsets = str | datetime | Mapping[int, int]

_WHAT: Final = "kafka.Source"
_METADATA: Final = ("key", "headers", "offset", "partition", "timestamp")


class Source(base.Source[T]):
    """The records of a topic as rows.

    Every partition is a split with an event time of its own, so that one that is read faster makes no row of another
    late. Partitions that are added while the job runs are found and read from their beginning.

    Args:
        topic: must exist.
        schema: the columns of a row: dataclass, msgspec.Struct, pyarrow.Schema or Schema.
        format: `json` (an object per record), `arrow` (a record is an Arrow IPC stream of rows), `csv` (a line per
            record, without header, columns in the order of the schema), `avro`, `protobuf` (see `message`), `raw`
            (the value as it is, in the only column that is no metadata, bytes or str).
        start: where a job that starts anew begins: `"earliest"`, `"latest"`, a datetime (the first record with that
            timestamp or a later one), or partition to offset. Resolved once and remembered before the first row.
        end: None, or where the input ends, to make it bounded: `"latest"` (what is there when the job starts), a
            datetime, or partition to offset (the first that is not read). Resolved once as well.
        metadata: what else of a record goes into which column of the schema: `key` (bytes or str), `headers` (list of
            structs `name: str, value: bytes | None`), `offset`, `partition` (int), `timestamp` (datetime). What a record
            does not have is null: its key, the value of a header, its timestamp (-1, as old clients and mirrors write).
            It is bad where the column is never null, or str and the key no UTF-8.
        registry: address of a Confluent schema registry: records carry the id of the Avro schema they were written with.
            With a login it is `https://user:password@host`.
            For `protobuf` it is not asked: the id before each message is skipped.
        writer_schema: the Avro schema (JSON) that records were written with, where there is no registry.
        message: for `protobuf`, the class that protoc has made, such as `Order` of a module orders_pb2; columns are its
            fields of the same name. It goes to the tasks with its descriptors, they need no module.
        brokers: `host:port`, several separated by commas; the platform's Kafka if not given.
        security: how to reach another Kafka with TLS or a login.
        **options: as at every source, see `SourceOptions`; `event_time=kafka.RECORD_TIMESTAMP` is the time that Kafka
            has for each record; a record without one is bad.

    Raises:
        PipelineError: one of them does not fit.

    Example:
        >>> bids = p.read(kafka.Source("bids", schema=Bid, event_time="at", max_out_of_orderness="5s", end="latest"))
        >>> bids.schema.names
        ('auction', 'price', 'at', 'tags')
    """

    kind: ClassVar[str] = "kafka"
    ends_on_request: ClassVar[bool] = True
    has_numbered_splits: ClassVar[bool] = True

    @checked
    def __init__(
        self,
        topic: str,
        *,
        schema: type[T] | Any,
        format: SourceFormat = "json",
        start: Offsets = "earliest",
        end: Offsets | None = None,
        metadata: Mapping[str, str] | None = None,
        registry: str | None = None,
        writer_schema: str | None = None,
        message: Any = None,
        brokers: str | None = None,
        security: KafkaSettings | None = None,
        **options: Unpack[SourceOptions],
    ) -> None:
        if not topic:
            raise PipelineError(f"{_WHAT}: the topic's name is empty")
        event_time = options.get("event_time")
        hidden = event_time if isinstance(event_time, str) and event_time == RECORD_TIMESTAMP else None
        vars(self).update(vars(declare(_WHAT, schema, hidden, **options)))
        _check_offsets(start, ("earliest", "latest"), "start")
        _check_offsets(end, ("latest",), "end")
        check_brokers(_WHAT, brokers, security)
        if registry is not None and format not in ("avro", "protobuf"):
            raise PipelineError(f'{_WHAT}: registry= is for format="avro" or "protobuf"')
        if writer_schema is not None and format != "avro":
            raise PipelineError(f'{_WHAT}: writer_schema= is for format="avro"')
        if registry is not None:
            check_address(_WHAT, registry)
        _check_metadata(metadata or {}, self.schema)
        self.topic: Final = topic
        self.by_record_timestamp: Final = hidden is not None
        self.format: Final = format
        self.start: Final = start
        self.end: Final = end
        self.metadata: Final[Mapping[str, str]] = dict(metadata or {})
        self.registry: Final = registry
        self.writer_schema: Final = writer_schema
        self.message: Final = protobuf_message(_WHAT, format, message)
        self.brokers: Final = brokers
        self.security: Final = security
        self._check_format()

    def _check_format(self) -> None:
        values = self.value_schema
        if not values.fields:
            raise PipelineError(f"{_WHAT}: every column is metadata; nothing of the record's value would be read")
        if self.format == "raw" and (len(values.fields) != 1 or values.fields[0].type not in (BINARY, STRING)):
            raise PipelineError(
                f'{_WHAT}: format="raw" puts the value into the only column that is no metadata, of type bytes or str; '
                f"there are: {values}"
            )
        if self.format == "csv":
            check_csv(values, _WHAT)
        if self.format == "avro":
            avro_schema(values)
        if self.message is not None:
            self.message.getters(values, _WHAT)

    @property
    def value_schema(self) -> Schema:
        """The columns that come from a record's value."""
        return Schema(tuple(field for field in self.schema if field.name not in self.metadata.values()))

    @property
    def settings(self) -> KafkaSettings:
        """How to reach its Kafka, from this process."""
        return resolve(self.brokers, self.security)

    def dataset(self) -> base.Dataset:
        """See `Source.dataset`: the topic."""
        return topic_dataset(self.settings, self.topic)

    def discover(self) -> Sequence[Split]:
        """See `Source.discover`: a split per partition."""
        from penstock.connectors.kafka.offsets import partitions_of

        return [Split(str(number)) for number in range(partitions_of(self.settings, self.topic))]

    def resolve(self, split: Split, *, late: bool) -> Position:
        """See `Source.resolve`."""
        from penstock.connectors.kafka.offsets import resolved_position

        start = "earliest" if late else self.start
        return msgspec.to_builtins(resolved_position(self.settings, self.topic, int(split.id), start, self.end))

    def until_now(self, split: Split, position: Position) -> Position:
        """See `Source.until_now`: up to `end=`, or to the offsets at which the topic ends now."""
        from penstock.connectors.kafka.offsets import PartitionPosition, resolved_position

        begin = msgspec.convert(position, PartitionPosition)
        if begin.end is not None:
            return position
        found = resolved_position(self.settings, self.topic, int(split.id), "earliest", self.end or "latest")
        assert found.end is not None
        return msgspec.to_builtins(msgspec.structs.replace(begin, end=max(begin.offset, found.end)))

    def at_end(self, position: Position) -> bool:
        """See `Source.at_end`."""
        return position["end"] is not None and position["offset"] >= position["end"]

    def go_on_from(self, position: Position) -> Position | None:
        """See `Source.go_on_from`: from the same offset, without the end."""
        return {**position, "end": None}

    def open(self, split: Split, position: Position, context: ReadContext) -> SplitReader:
        """See `Source.open`."""
        from penstock.connectors.kafka.reading import Attention, TopicPartitionReader

        if position is None:
            position = self.resolve(split, late=False)
        decoder = self._decoder(zone(self.timezone, _WHAT))
        attention = context.shared.setdefault("kafka.Attention", Attention())
        number, other_work = int(split.id), context.other_work
        return TopicPartitionReader(self.settings, self.topic, number, position, decoder, attention, other_work)

    def _decoder(self, zone: tzinfo | None) -> RecordDecoder:
        values = value_decoder(self, self.value_schema, zone)
        return RowDecoder(self.schema, dict(self.metadata), values, timed=self.by_record_timestamp)

    @property
    def bounded(self) -> bool:
        """Whether it has an end."""
        return self.end is not None

    @property
    def replayable(self) -> bool:
        """True: a topic can be read again, as far as it is kept."""
        return True

    def describe(self) -> Mapping[str, Any]:
        """See `Source.describe`: what is not the default; the brokers if they are not the platform's; no security."""
        brokers = self.security.brokers if self.security is not None else self.brokers
        described: dict[str, Any] = {
            "topic": self.topic,
            "format": self.format,
            "start": None if self.start == "earliest" else _shown(self.start),
            "end": _shown(self.end),
            "metadata": dict(self.metadata),
            "timezone": self.timezone,
            "message": None if self.message is None else self.message.name,
            "registry": None if self.registry is None else shown(self.registry),
            "brokers": brokers,
        }
        return {name: value for name, value in described.items() if value not in (None, {})}


def _shown(offsets: Offsets | None) -> Any:
    if isinstance(offsets, datetime):
        return offsets.isoformat()
    return {str(key): value for key, value in offsets.items()} if isinstance(offsets, Mapping) else offsets


def _check_offsets(offsets: Offsets | None, names: Sequence[str], what: str) -> None:
    if isinstance(offsets, str) and offsets not in names:
        raise PipelineError(f"{_WHAT}: there is no {what}={offsets!r}; {nearest(offsets, names)}")
    if isinstance(offsets, datetime) and offsets.tzinfo is None:
        raise PipelineError(f"{_WHAT}: {what}= is a datetime without time zone; write for example tzinfo=UTC")
    if isinstance(offsets, Mapping) and any(number < 0 for pair in offsets.items() for number in pair):
        raise PipelineError(f"{_WHAT}: {what}= is partition to offset, both from 0; got {offsets!r}")


def _check_metadata(metadata: Mapping[str, str], schema: Schema) -> None:
    for part, column in metadata.items():
        if part not in _METADATA:
            raise PipelineError(f"{_WHAT}: metadata: a record has no {part!r}; {nearest(part, _METADATA)}")
        kind = schema.field(column, f"{_WHAT}: metadata").type
        fits = {
            "key": kind in (BINARY, STRING),
            "offset": kind == INT64,
            "partition": kind == INT64,
            "timestamp": kind == TIMESTAMP,
            "headers": _is_headers(kind),
        }[part]
        wanted = {
            "key": "bytes or str", "offset": "int", "partition": "int", "timestamp": "datetime",
            "headers": "a list of objects with name: str and value: bytes",
        }[part]  # fmt: skip
        if not fits:
            raise PipelineError(
                f"{_WHAT}: metadata: column {column!r} for the {part} is {kind}; declare it as {wanted}"
            )


def _is_headers(kind: Any) -> bool:
    if not isinstance(kind, ListType) or not isinstance(kind.inner, StructType):
        return False
    return [(field.name, field.type) for field in kind.inner.fields] == [("name", STRING), ("value", BINARY)]
