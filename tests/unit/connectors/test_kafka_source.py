"""Kafka sources as they are declared, and decisions of their readers that need no broker."""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError

from penstock.connectors import kafka
from penstock.connectors.base import Fetched, KnowsAnswers
from penstock.connectors.declaring import zone
from penstock.connectors.kafka.avro_values import AvroValues
from penstock.connectors.kafka.decoding import RECORD_TIMESTAMP, Records, value_decoder
from penstock.connectors.kafka.reading import (
    CLOSING_S,
    WAIT_S,
    Attention,
    TopicPartitionReader,
)
from penstock.core.batches import EVENT_TIME
from penstock.errors import ExternalError, PipelineError
from penstock.formats.avro import encode_avro
from penstock.formats.columns import FrameBuilder
from penstock.protocol.messages import OperatorMetrics
from penstock.settings import KafkaSettings, Secret
from penstock.task.bad_rows import RowValidator
from penstock.types import BINARY, INT64, STRING, TIMESTAMP, DataType, Field, ListType, Schema, schema_of


@dataclass
class Row:
    n: int
    at: datetime


@dataclass
class WithKey:
    n: int
    key: str


BROKER = KafkaSettings(brokers="127.0.0.1:1")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"format": "jsn"}, "there is no format='jsn'; did you mean 'json'"),
        ({"start": "earlist"}, "there is no start='earlist'; did you mean 'earliest'"),
        ({"end": "earliest"}, "there is no end='earliest'"),
        ({"start": datetime(2026, 1, 1)}, "start= is a datetime without time zone"),  # noqa: DTZ001 (what is refused)
        ({"start": {0: -1}}, "start= is partition to offset, both from 0"),
        ({"end": 7}, "end= takes text, a datetime, a dict or None, got 7"),
        ({"brokers": "a:1", "security": KafkaSettings(brokers="b:1")}, "name the brokers once"),
        ({"registry": "http://r"}, 'is for format="avro" or "protobuf"'),
        ({"metadata": {"offst": "n"}}, "a record has no 'offst'; did you mean 'offset'"),
        ({"metadata": {"key": "n"}}, "column 'n' for the key is .*; declare it as bytes or str"),
        ({"metadata": {"offset": "m"}}, "metadata: .*'m'"),
        ({"format": "raw"}, 'format="raw" puts the value into the only column'),
        ({"metadata": {"offset": "n", "timestamp": "at"}}, "every column is metadata"),
    ],
)
def test_what_does_not_fit_is_refused_where_it_is_written(options, error):
    """With the nearest name, or what to write."""
    with pytest.raises(PipelineError, match=error):
        kafka.Source("t", schema=Row, **options)


def test_plans_show_what_is_not_the_default_and_no_secret():
    """The start is part of what is shown, the password is not."""
    security = KafkaSettings(brokers="b:1", sasl_username="u", sasl_password=Secret("hidden"))
    source = kafka.Source(
        "t", schema=Row, security=security, start=datetime(2026, 1, 1, tzinfo=UTC), end={1: 5}, format="csv"
    )
    assert source.describe() == {
        "topic": "t",
        "format": "csv",
        "start": "2026-01-01T00:00:00+00:00",
        "end": {"1": 5},
        "brokers": "b:1",
    }
    assert kafka.Source("t", schema=Row).describe() == {"topic": "t", "format": "json"}
    assert repr(kafka.Source("t", schema=Row)) == "kafka.Source(topic='t', format='json')"
    assert "hidden" not in repr(kafka.Source("t", schema=Row, format="avro", registry="https://u:hidden@host"))
    assert source.bounded
    assert not kafka.Source("t", schema=Row).bounded


def test_metadata_is_no_part_of_the_value():
    """Columns of metadata are not looked for in the record."""
    source = kafka.Source("t", schema=WithKey, metadata={"key": "key"})
    assert source.value_schema.names == ["n"] or tuple(source.value_schema.names) == ("n",)


class Message:
    """What confluent hands out, as far as records are made of it."""

    def __init__(self, offset: int, value: bytes | None = b"{}", error: KafkaError | None = None) -> None:
        self._offset, self._value, self._error = offset, value, error

    def error(self) -> KafkaError | None:
        return self._error

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes | None:
        return self._value


@pytest.mark.parametrize("offsets", [[5, 6, 7], [5, 7, 8], [3], [1, 9]])
def test_offsets_of_records(offsets):
    """Also where markers or removed records lie between them."""
    records = Records(keep_messages=False)
    records.add([Message(offset) for offset in offsets])
    records.add([])
    assert records.offsets == offsets
    assert records.size_bytes == 2 * len(offsets)
    assert not records.messages


def sorted_out(monkeypatch, *batches):
    """The offsets of the records that a reader at offset 3 takes of these messages, and where it stands behind them."""
    monkeypatch.setattr("penstock.connectors.kafka.reading.Message", Message)
    source = kafka.Source("t", schema=Row, security=BROKER)
    reader = TopicPartitionReader(BROKER, "t", 3, {"offset": 3}, decoder_of(source), Attention(), never)
    records, behind = Records(keep_messages=False), 3
    for messages in batches:
        behind = reader._sorted_out(messages, records, behind)
    return records.offsets, behind


@pytest.mark.parametrize("message", ["a record", "the end"])
def test_a_partition_that_no_broker_has_answered_for_is_not_silent(monkeypatch, message):
    """Nor one whose brokers are away: it does not become idle by what cannot be known."""
    monkeypatch.setattr("penstock.connectors.kafka.reading.Message", Message)
    source = kafka.Source("t", schema=Row, security=BROKER)
    reader = TopicPartitionReader(BROKER, "t", 3, {"offset": 3}, decoder_of(source), Attention(), never)
    assert isinstance(reader, KnowsAnswers)
    answer = Message(3) if message == "a record" else Message(3, error=KafkaError(KafkaError._PARTITION_EOF))
    away = Message(3, error=KafkaError(KafkaError._ALL_BROKERS_DOWN))
    told = list[bool]()
    for heard in ([], [away], [answer], [away], [answer]):
        reader._sorted_out(heard, Records(keep_messages=False), 3)
        told.append(reader.has_answered)
    assert told == [False, False, True, False, True]


def of(*offsets):
    return [Message(offset) for offset in offsets]


@pytest.mark.parametrize(
    "batches",
    [
        [[3, 4], [3, 4], [5, 6, 7]],
        [[3, 4], [4], [5, 6, 7]],
        [[3, 4], [2, 3, 4, 5, 6], [5, 6, 7]],
        [[3, 4, 5, 3, 4, 5, 6, 7]],
        [[3, 4], [5, 6, 3, 4, 5, 6, 7]],
        [[3, 4, 5, 6, 5, 7]],
        [[3, 4, 4, 5, 6], [7, 6, 7]],
    ],
)
def test_what_the_client_gives_out_again_is_left_out(batches, monkeypatch):
    """librdkafka has done so when the leader of a partition changed; a row would count twice."""
    assert sorted_out(monkeypatch, *(of(*offsets) for offsets in batches)) == ([3, 4, 5, 6, 7], 8)


@pytest.mark.parametrize("place", range(4))
def test_the_news_that_a_partition_is_at_its_end_leaves_out_no_records(place, monkeypatch):
    """The client gives it out among the records: those before it were lost where it said that reading was behind them."""
    messages = of(3, 4, 5)
    messages.insert(place, Message(3 + place, error=KafkaError(KafkaError._PARTITION_EOF)))
    assert sorted_out(monkeypatch, messages) == ([3, 4, 5], 6)


def test_the_end_of_a_partition_lies_behind_the_markers_of_transactions(monkeypatch):
    news = Message(8, error=KafkaError(KafkaError._PARTITION_EOF))
    assert sorted_out(monkeypatch, [*of(3, 4), news]) == ([3, 4], 8)
    assert sorted_out(monkeypatch, [*of(3, 4), news], of(8, 9)) == ([3, 4, 8, 9], 10)


async def never() -> None:
    await asyncio.Event().wait()


async def at_once() -> None:
    """There is other work."""


def of_readers(silent: int, waiting: int) -> tuple[Attention, list[asyncio.Future[Any]]]:
    """What so many readers know that had nothing, the first of which wait."""
    attention, loop = Attention(), asyncio.get_running_loop()
    for partition in range(silent):
        attention.note(partition, silent=True)
    readings: list[asyncio.Future[Any]] = [loop.create_future() for _ in range(waiting)]
    for partition, reading in enumerate(readings):
        attention.waits(partition, reading)
    return attention, readings


async def waited_for(attention: Attention, other_work: Callable[[], Awaitable[None]] = never) -> asyncio.Task[None]:
    """A reader's waiting, after so many turns of the loop that it is over if it is to be."""
    waiting = asyncio.ensure_future(attention.news(other_work))
    for _ in range(10):
        await asyncio.sleep(0)
    return waiting


async def test_silent_readers_wait_until_one_of_them_has_something():
    """Whoever's turn it is: no look at a partition is made meanwhile."""
    attention, readings = of_readers(silent=3, waiting=3)
    waiting = await waited_for(attention)
    assert not waiting.done()
    readings[2].set_result((None, 0))
    await waiting
    assert (await waited_for(attention)).done()


async def test_nobody_waits_while_a_sibling_has_records_or_is_not_looked_at():
    assert not Attention().all_silent
    attention, _ = of_readers(silent=2, waiting=1)
    assert attention.all_silent
    assert (await waited_for(attention)).done()
    attention, _ = of_readers(silent=2, waiting=2)
    attention.note(1, silent=False)
    assert not attention.all_silent
    assert (await waited_for(attention)).done()
    attention.forget(1)
    waiting = await waited_for(attention)
    assert not waiting.done()
    waiting.cancel()


async def test_other_work_ends_the_waiting_for_records():
    """A barrier is heard at once."""
    attention, readings = of_readers(silent=2, waiting=2)
    assert (await waited_for(attention, at_once)).done()
    assert not any(reading.done() for reading in readings)


class EmptyTopic:
    """A client that counts how it is asked, and has nothing."""

    def __init__(self) -> None:
        self.looks: list[float] = []

    def consume(self, count: int, timeout_s: float) -> list[Message]:
        self.looks.append(timeout_s)
        time.sleep(timeout_s / 1_000)
        return []

    def get_watermark_offsets(self, place: object, *, cached: bool) -> tuple[int, int]:
        assert cached
        return 0, 3

    def close(self) -> None:
        self.looks.append(-1)


async def test_readers_wait_for_each_other_until_there_has_been_nothing_for_a_while(monkeypatch):
    """Where records flow no thread reads beside another."""
    attention = Attention()
    attention.note(0, silent=False)
    attention.note(1, silent=True)
    assert (attention.wait_s, attention.idle) == (0, False)
    attention.note(0, silent=True)
    assert (attention.wait_s, attention.idle) == (WAIT_S / 2, False)
    monkeypatch.setattr("penstock.connectors.kafka.reading.IDLE_AFTER_S", 0)
    assert attention.idle
    attention.note(1, silent=False)
    assert (attention.wait_s, attention.idle) == (0, False)


async def test_an_idle_partition_is_looked_at_once_a_second(monkeypatch):
    """One waiting of a thread, however often the subtask has something else to do."""
    client = EmptyTopic()
    monkeypatch.setattr("penstock.connectors.kafka.reading.source_consumer", lambda settings, ends: _assigned(client))
    monkeypatch.setattr(TopicPartitionReader, "_check_topic", lambda self: None)
    monkeypatch.setattr("penstock.connectors.kafka.reading.IDLE_AFTER_S", 0)
    source = kafka.Source("t", schema=Row, security=BROKER)
    reader = TopicPartitionReader(BROKER, "t", 0, {"offset": 3}, decoder_of(source), Attention(), at_once)
    assert await reader.read(10) is None
    assert client.looks == [0]
    for _ in range(100):
        assert await reader.read(10) is None
    end = time.monotonic() + 10
    while len(client.looks) < 3:  # the thread may take its time to begin
        assert time.monotonic() < end, client.looks
        await asyncio.sleep(0.001)
    assert client.looks[:2] == [0, 0]
    assert all(0 < timeout_s <= CLOSING_S for timeout_s in client.looks[2:])
    assert client.looks.count(0) == 2
    assert reader.position()["offset"] == 3
    assert reader.records_behind() == 0
    await reader.close()
    assert client.looks[-1] == -1


def _assigned(client: EmptyTopic) -> EmptyTopic:
    client.assign = lambda places: None  # type: ignore[attr-defined]
    return client


@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        (KafkaError._AUTO_OFFSET_RESET, PipelineError, "offset 7 is not there .* Nothing was skipped"),
        (KafkaError.OFFSET_OUT_OF_RANGE, PipelineError, "offset 7 is not there"),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, PipelineError, "deleted while it was read"),
        (KafkaError.UNKNOWN_TOPIC_ID, PipelineError, "deleted while it was read"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, PipelineError, "grant it to this user"),
        (KafkaError._BAD_MSG, ExternalError, "at 127.0.0.1:1"),
    ],
)
def test_what_the_broker_says_as_an_error(code, kind, message):
    """Each names topic and partition and what to do."""
    source = kafka.Source("t", schema=Row, security=BROKER)
    attention = Attention()
    reader = TopicPartitionReader(BROKER, "t", 3, {"offset": 7}, decoder_of(source), attention, never)
    error = reader._failed(KafkaError(code))
    assert isinstance(error, kind)
    with pytest.raises(kind, match=f"kafka topic 't', partition 3.*{message}"):
        raise error


def decoder_of(source):
    return source._decoder(None)


def test_arrow_headers_need_their_shape():
    """A list of name and value, nothing else."""
    schema = pa.schema([pa.field("n", pa.int64()), pa.field("h", pa.list_(pa.string()))])
    with pytest.raises(PipelineError, match="list of objects with name: str and value: bytes"):
        kafka.Source("t", schema=schema, metadata={"headers": "h"})


class Whole(Message):
    """A message with all its metadata."""

    def __init__(self, offset: int, value: bytes | None, key: bytes | None, millis: int | None) -> None:
        super().__init__(offset, value)
        self._key, self._millis = key, millis

    def key(self) -> bytes | None:
        return self._key

    def timestamp(self) -> tuple[int, int]:
        return (0, -1) if self._millis is None else (1, self._millis)


@dataclass
class Marked:
    key: str
    n: int
    at: datetime


@dataclass
class MarkedLoosely:
    key: bytes | None
    n: int
    at: datetime | None


def marked(schema: type, messages: list[Whole], **options: Any) -> Any:
    metadata = {"key": "key", "timestamp": "at"}
    source = kafka.Source("t", schema=schema, metadata=metadata, security=BROKER, **options)
    records = Records(keep_messages=True)
    records.add(messages)
    return decoder_of(source).decode(records)


def test_metadata_that_does_not_fit_its_column_makes_the_record_bad():
    """Not null in a column that never is, nor one and the same key for all that are no text."""
    messages = [
        Whole(0, b'{"n":0}', b"a", 5), Whole(1, b'{"n":1}', None, 5), Whole(2, b"{}", None, 5),
        Whole(3, None, None, 5), Whole(4, b'{"n":4}', b"\x00\xff", 5), Whole(5, b'{"n":5}', b"b", None),
        Whole(6, b'{"n":6}', b"c", 10**15), Whole(7, b'{"n":7}', b"d", 7), Whole(8, b'{"n":8}', b"d", 2**62),
    ]  # fmt: skip
    decoded = marked(Marked, messages)
    assert decoded.frame["n"].to_list() == [0, 7]
    assert decoded.frame["key"].to_list() == ["a", "d"]
    missing = "missing; declare it as '... | None' if it may be (the event time never may)"
    far = "the record's timestamp, {} ms, is not within the years 1 to 9999"
    assert [(line.index, line.error, line.raw) for line in decoded.bad] == [
        (1, f"key: {missing}", b'{"n":1}'), (2, f"n: {missing}", b"{}"),
        (3, "the record has no value (a tombstone)", b""), (4, "key: not UTF-8; declare it as bytes", b'{"n":4}'),
        (5, f"at: {missing}", b'{"n":5}'), (6, f"at: {far.format(10**15)}", b'{"n":6}'),
        (8, f"at: {far.format(2**62)}", b'{"n":8}'),
    ]  # fmt: skip
    loose = marked(MarkedLoosely, messages[:2] + messages[4:6])
    assert not loose.bad
    assert loose.frame["key"].to_list() == [b"a", None, b"\x00\xff", b"b"]
    assert loose.frame["at"].null_count() == 1


def test_records_of_several_rows_whose_metadata_does_not_fit():
    """All rows of such a record go, and the record is bad once."""

    def stream(*numbers: int | None) -> bytes:
        sink = pa.BufferOutputStream()
        batch = pa.record_batch({"n": pa.array(numbers, pa.int64())})
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return sink.getvalue().to_pybytes()

    values = [stream(1, 2), stream(3, None, 4), b"none", stream(), stream(5, None), stream(6)]
    keys = [b"a", None, None, None, b"b", b"\xff"]
    messages = [Whole(offset, value, key, 5) for offset, (value, key) in enumerate(zip(values, keys, strict=True))]
    decoded = marked(Marked, messages, format="arrow", event_time=RECORD_TIMESTAMP)
    assert list(zip(decoded.frame["key"], decoded.frame["n"], strict=True)) == [("a", 1), ("a", 2), ("b", 5)]
    assert decoded.frame[RECORD_TIMESTAMP].len() == 3
    assert [(line.index, line.error.split(":")[0]) for line in decoded.bad] == [
        (1, "key"), (2, "no Arrow stream of these rows"), (4, "n"), (5, "key"),
    ]  # fmt: skip


def test_a_timestamp_of_a_record_that_is_no_event_time():
    """Whatever number a producer has set."""
    source = kafka.Source("t", schema=Row, event_time=RECORD_TIMESTAMP, security=BROKER)
    records = Records(keep_messages=True)
    value = b'{"n":1,"at":"2026-01-01T00:00:00Z"}'
    records.add([Whole(0, value, None, 5), Whole(1, value, None, 2**62), Whole(2, value, None, None)])
    decoded = decoder_of(source).decode(records)
    assert decoded.frame[RECORD_TIMESTAMP].dt.epoch("us").to_list() == [5_000, None]
    assert [line.index for line in decoded.bad] == [1]


def test_a_record_without_a_timestamp_has_no_time() -> None:
    """It is null as a column and a bad row as event time, not a moment before 1970 began."""
    source = kafka.Source("t", schema=Row, event_time=RECORD_TIMESTAMP, security=BROKER, bad_rows="dead_letter")
    records, value = Records(keep_messages=True), b'{"n":1,"at":"2026-01-01T00:00:00Z"}'
    records.add([Whole(0, value, None, -1), Whole(1, value, None, 0), Whole(2, value, None, -2)])
    good, bad = RowValidator(source, OperatorMetrics(), lambda: 2**52).judge(
        Fetched(decoder_of(source).decode(records).frame), "s"
    )
    assert good[EVENT_TIME].to_list() == [0, -2_000]
    assert bad is not None
    assert bad["error"].to_list() == ["event time record_timestamp is null"]
    loose = marked(MarkedLoosely, [Whole(0, b'{"n":0}', b"a", -1)])
    assert (loose.frame["at"].to_list(), loose.bad) == ([None], [])
    assert [line.error.partition(":")[0] for line in marked(Marked, [Whole(0, b'{"n":0}', b"a", -1)]).bad] == ["at"]


@dataclass
class Header:
    name: str
    value: bytes


@dataclass
class LooseHeader:
    name: str
    value: bytes | None


@dataclass
class WithHeaders:
    n: int
    headers: list[Header]


@dataclass
class WithLooseHeaders:
    n: int
    headers: list[LooseHeader]


class Headed(Message):
    def headers(self) -> list[tuple[str, bytes | None]]:
        return [("full", b"v"), ("empty", b"")] + ([("null", None)] if self.offset() else [])


def test_null_values_of_headers_stay_null() -> None:
    """Nor are they empty where the column takes no null: then the record is bad."""
    records = Records(keep_messages=True)
    records.add([Headed(number, b'{"n":%d}' % number) for number in range(2)])

    def read(schema: type) -> Any:
        source = kafka.Source("t", schema=schema, metadata={"headers": "headers"}, security=BROKER)
        return decoder_of(source).decode(records)

    loose, strict = read(WithLooseHeaders), read(WithHeaders)
    assert [[each["value"] for each in row] for row in loose.frame["headers"]] == [[b"v", b""], [b"v", b"", None]]
    assert strict.frame["n"].to_list() == [0]
    reason = "headers: the value of a header is null; declare it as value: bytes | None"
    assert [(line.index, line.error) for line in strict.bad] == [(1, reason)]


@dataclass
class Took:
    took: timedelta


@dataclass
class Times:
    took: timedelta | None
    list: list[timedelta]
    map: dict[str, timedelta]
    structs: list[Took] | None
    of: Took | None


def test_durations_in_avro_are_read_as_they_are_written():
    """Microseconds, nested as well."""
    schema, second = schema_of(Times, "test"), timedelta(seconds=1)
    rows = [
        {"took": second, "list": [second, None], "map": {"a": -second, "b": None},
         "structs": [{"took": second}, None], "of": {"took": timedelta(microseconds=1)}},
        {"took": None, "list": [], "map": {}, "structs": None, "of": None},
    ]  # fmt: skip
    frame, _ = FrameBuilder(schema).frame([[row[name] for row in rows] for name in schema.names])
    source = kafka.Source("t", schema=Times, format="avro", security=BROKER)
    decoded, _ = value_decoder(source, schema, None).decode(encode_avro(frame, schema).to_list())
    assert not decoded.bad
    assert decoded.frame.equals(frame)


@dataclass
class Moments:
    at: datetime
    list: list[datetime]
    map: dict[str, datetime]


def test_timestamps_in_avro_that_have_no_zone_have_that_of_the_source():
    """Nested as well; without `timezone=` they are refused."""
    at: dict[str, Any] = {"type": "long", "logicalType": "local-timestamp-micros"}
    fields = [
        {"name": "at", "type": at}, {"name": "list", "type": {"type": "array", "items": at}},
        {"name": "map", "type": {"type": "map", "values": at}},
    ]  # fmt: skip
    writer, clock, out = {"type": "record", "name": "R", "fields": fields}, datetime(2026, 1, 1), io.BytesIO()  # noqa: DTZ001
    fastavro.schemaless_writer(out, fastavro.parse_schema(writer), {"at": clock, "list": [clock], "map": {"a": clock}})

    def read(timezone: str | None) -> Any:
        writer_schema = json.dumps(writer)
        source = kafka.Source(
            "t", schema=Moments, format="avro", writer_schema=writer_schema, timezone=timezone, security=BROKER
        )
        return value_decoder(source, source.schema, zone(timezone, "test")).decode([out.getvalue()])[0]

    moment = datetime(2025, 12, 31, 23, tzinfo=UTC)
    decoded = read("Europe/Berlin")
    assert not decoded.bad
    assert (decoded.frame["at"][0], decoded.frame["list"].to_list()) == (moment, [[moment]])
    assert decoded.frame["map"].to_list() == [{"a": moment}]
    [bad] = read(None).bad
    assert "has no time zone; name its zone with timezone=" in bad.error


@pytest.mark.parametrize("logical", ["timestamp-nanos", "local-timestamp-nanos"])
def test_nanoseconds_of_avro_are_never_taken_for_another_unit(logical: str) -> None:
    """The library of Avro hands them on as numbers, and a number is no timestamp."""
    at = {"type": "long", "logicalType": logical}
    writer, out = {"type": "record", "name": "R", "fields": [{"name": "at", "type": at}]}, io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(writer), {"at": 1_700_000_000_000_000_000})
    values = AvroValues(Schema((Field("at", TIMESTAMP),)), None, json.dumps(writer), UTC)
    [bad] = values.decode([out.getvalue()])[0].bad
    assert "at: expected timestamp, got the number 1700000000000000000" in bad.error


@pytest.mark.parametrize("kind", [STRING, BINARY])
def test_uuids_of_avro_are_text_or_bytes(kind: DataType) -> None:
    """Within others, too, and beside text that is none."""
    uuid = {"type": "string", "logicalType": "uuid"}
    columns = {"id": ["null", uuid], "list": {"type": "array", "items": uuid}, "text": "string"}
    writer = {"type": "record", "name": "R", "fields": [{"name": name, "type": each} for name, each in columns.items()]}
    one, two = UUID(int=1), UUID(int=2**127)
    schema = Schema((Field("id", kind, nullable=True), Field("list", ListType(kind)), Field("text", STRING)))
    values = AvroValues(schema, None, json.dumps(writer), UTC)
    data: list[bytes] = []
    for first in (one, None):
        out = io.BytesIO()
        row = {"id": first and str(first), "list": [str(two)], "text": "t"}
        fastavro.schemaless_writer(out, fastavro.parse_schema(writer), row)
        data.append(out.getvalue())
    decoded = values.decode(data)[0]
    assert not decoded.bad
    plain = str if kind == STRING else (lambda each: each.bytes)
    assert decoded.frame.rows() == [(plain(one), [plain(two)], "t"), (None, [plain(two)], "t")]


def test_avro_that_ends_too_early_says_so() -> None:
    """Not in the words of the library."""
    values = AvroValues(Schema((Field("n", INT64), Field("text", STRING))), None, None, UTC)
    bad = values.decode([b"", b"\x02", b"\x02\x08ab"])[0].bad
    assert [line.error for line in bad] == [
        "no datum of its schema: the value is empty",
        "no datum of its schema: its 1 bytes end before it does",
        "no datum of its schema: its 4 bytes end before it does",
    ]
