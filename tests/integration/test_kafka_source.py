"""The Kafka source on a real broker: what becomes a row, where reading begins, ends and goes on, and what fails."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import fastavro
import polars as pl
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from penstock import Pipeline, count, tumbling
from penstock.connectors import collecting, kafka
from penstock.connectors.base import EndOfSplit, Fetched, ReadContext, Split
from penstock.connectors.kafka import reading as kafka_reading
from penstock.connectors.kafka import schema_registry
from penstock.core.batches import EVENT_TIME
from penstock.embedded import EmbeddedJob, EmbeddedSettings
from penstock.errors import BadRecordError, ExternalError, PipelineError
from penstock.protocol.messages import OperatorMetrics
from penstock.protocol.restarts import FixedDelay
from penstock.settings import KafkaSettings
from penstock.task import sources
from penstock.task.bad_rows import RowValidator
from penstock.task.sources import SourceDriver
from penstock.types import STRING, Field, Schema

pytestmark = pytest.mark.timeout(180)
DEADLINE_S = 120
AT = datetime(2026, 1, 1, 12, tzinfo=UTC)


@dataclass
class Row:
    n: int


@dataclass
class Timed:
    n: int
    at: datetime


@pytest.fixture
def broker(platform) -> Broker:
    """The Kafka of this run."""
    return Broker(platform.settings("source").kafka)


class Broker:
    """Creates and fills topics."""

    def __init__(self, settings: KafkaSettings) -> None:
        self.settings = settings
        self.admin = AdminClient({"bootstrap.servers": settings.brokers})

    def topic(self, partitions: int = 1, name: str | None = None, **config: str) -> str:
        name = name or f"source-{uuid.uuid4().hex[:8]}"
        # Records of these tests are old by their timestamps, which is what a broker removes them by.
        config = {"retention.ms": "-1", **config}
        self.admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(30)
        return name

    async def has_partitions(self, topic: str, count: int) -> bool:
        """Whether the broker has heard of what the controller made."""
        return len(self.admin.list_topics(topic).topics[topic].partitions) == count

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(30)

    def producer(self, **config: Any) -> Producer:
        ordered = {"enable.idempotence": True, "max.in.flight.requests.per.connection": 1}
        return Producer({"bootstrap.servers": self.settings.brokers, "linger.ms": 1, **ordered, **config})

    def send(self, topic: str, *values: bytes | None, partition: int = 0, producer: Producer | None = None, **options):
        """Append records and wait until they are there."""
        sending = producer or self.producer()
        refused: list[Any] = []

        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                refused.append(error)

        for value in values:
            sending.produce(topic, value, partition=partition, on_delivery=delivered, **options)
        assert sending.flush(30) == 0
        assert not refused

    def numbers(self, topic: str, numbers, partition: int = 0) -> None:
        self.send(topic, *(json.dumps({"n": n}).encode() for n in numbers), partition=partition)

    def transaction(self, topic: str, *values: bytes, commit: bool) -> None:
        producer = self.producer(**{"transactional.id": uuid.uuid4().hex})
        producer.init_transactions(30)
        producer.begin_transaction()
        self.send(topic, *values, producer=producer)
        if commit:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)

    def source(self, topic: str, schema: Any = Row, **options: Any) -> kafka.Source[Any]:
        return kafka.Source(topic, schema=schema, security=self.settings, **options)


def context() -> ReadContext:
    return ReadContext(lambda: time.time_ns() // 1_000, lambda: time.monotonic_ns() // 1_000_000)


class Reading:
    """Readers of one source, as a subtask has them."""

    def __init__(self, source: kafka.Source[Any], positions: Mapping[str, Any] | None = None) -> None:
        self.frames: list[pl.DataFrame] = []
        self.bad: list[Any] = []
        shared = context()
        splits = [Split(split) for split in positions] if positions else source.discover()
        begins = positions or {split.id: source.resolve(split, late=False) for split in splits}
        self.readers = {split.id: source.open(split, begins[split.id], shared) for split in splits}
        self.ended: set[str] = set()

    async def __aenter__(self) -> Reading:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(reader.close() for reader in self.readers.values()))

    async def once(self) -> None:
        for split, reader in self.readers.items():
            if split in self.ended:
                continue
            try:
                fetched = await reader.read(65_536)
            except EndOfSplit:
                self.ended.add(split)
                continue
            if fetched is not None:
                self.take(fetched)

    def take(self, fetched: Fetched) -> None:
        self.frames.append(fetched.frame)
        self.bad += fetched.bad

    async def until(self, done: Callable[[], Any]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not done():
                await self.once()

    async def to_the_end(self) -> Reading:
        await self.until(lambda: len(self.ended) == len(self.readers))
        return self

    @property
    def rows(self) -> list[dict[str, Any]]:
        return pl.concat(self.frames).to_dicts() if self.frames else []

    @property
    def numbers(self) -> list[int]:
        return [row["n"] for row in self.rows]

    @property
    def positions(self) -> dict[str, Any]:
        return {split: reader.position() for split, reader in self.readers.items()}


async def rows_of(source: kafka.Source[Any]) -> Reading:
    """All of a bounded source."""
    async with Reading(source) as reading:
        return await reading.to_the_end()


# -- partitions, beginnings, ends ---------------------------------------------------------------------------------------


async def test_a_partition_is_a_split(broker):
    """Each is read from its own beginning to its own end."""
    topic = broker.topic(3)
    for partition in range(3):
        broker.numbers(topic, range(10 * partition, 10 * partition + 5), partition)
    source = broker.source(topic, end="latest")
    assert [split.id for split in source.discover()] == ["0", "1", "2"]
    assert sorted((await rows_of(source)).numbers) == [*range(5), *range(10, 15), *range(20, 25)]


async def test_reading_goes_on_at_a_position(broker):
    """What was handed out is not read again, what was not is."""
    topic = broker.topic()
    broker.numbers(topic, range(10))
    source = broker.source(topic)
    async with Reading(source) as first:
        await first.until(lambda: len(first.numbers) == 10)
        positions = first.positions
    broker.numbers(topic, range(10, 15))
    async with Reading(source, positions) as second:
        await second.until(lambda: len(second.numbers) == 5)
    assert second.numbers == [*range(10, 15)]


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", [0, 1, 2, 3, 4]),
        ("latest", []),
        (AT + timedelta(seconds=2), [2, 3, 4]),
        (AT + timedelta(seconds=2, microseconds=1), [3, 4]),
        (AT + timedelta(days=1), []),
        ({0: 3}, [3, 4]),
        ({1: 3}, [0, 1, 2, 3, 4]),
    ],
)
async def test_beginnings(broker, start, expected):
    """A datetime is the first record with that timestamp or a later one; what a mapping leaves out is read whole."""
    topic = broker.topic()
    for n in range(5):
        broker.send(topic, b'{"n":%d}' % n, timestamp=int((AT.timestamp() + n) * 1_000))
    assert (await rows_of(broker.source(topic, start=start, end="latest"))).numbers == expected


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("latest", [0, 1, 2, 3, 4]),
        (AT + timedelta(seconds=2), [0, 1]),
        (AT + timedelta(days=1), [0, 1, 2, 3, 4]),
        ({0: 3}, [0, 1, 2]),
        ({0: 0}, []),
        ({1: 3}, [0, 1, 2, 3, 4]),
    ],
)
async def test_ends(broker, end, expected):
    """An end is exclusive; a partition that a mapping leaves out is read to its present end."""
    topic = broker.topic()
    for n in range(5):
        broker.send(topic, b'{"n":%d}' % n, timestamp=int((AT.timestamp() + n) * 1_000))
    assert (await rows_of(broker.source(topic, end=end))).numbers == expected


async def test_what_comes_after_the_end_was_fixed_is_not_read(broker):
    """The end is resolved once."""
    topic = broker.topic()
    broker.numbers(topic, range(3))
    async with Reading(broker.source(topic, end="latest")) as reading:
        broker.numbers(topic, range(3, 9))
        await reading.to_the_end()
    assert reading.numbers == [0, 1, 2]


async def test_an_end_behind_transaction_markers_is_reached(broker):
    """The last offsets are markers, of a committed and of an aborted transaction: no record has the last offset."""
    topic = broker.topic()
    broker.transaction(topic, b'{"n":1}', b'{"n":2}', commit=True)
    broker.transaction(topic, b'{"n":8}', b'{"n":9}', commit=False)
    assert (await rows_of(broker.source(topic, end="latest"))).numbers == [1, 2]


async def test_aborted_records_are_no_rows(broker):
    """Between committed ones, and the position is right behind what was handed out."""
    topic = broker.topic()
    broker.transaction(topic, b'{"n":1}', commit=True)
    broker.transaction(topic, b'{"n":9}', commit=False)
    broker.transaction(topic, b'{"n":2}', b"[]", b'{"n":3}', commit=True)
    reading = await rows_of(broker.source(topic, end="latest", bad_rows="skip"))
    assert reading.numbers == [1, 2, 3]
    (bad,) = reading.bad
    assert bad.where.endswith("partition 0, offset 5")


async def test_only_aborted_records(broker):
    """A partition without a single row ends."""
    topic = broker.topic()
    broker.transaction(topic, b'{"n":9}', commit=False)
    assert (await rows_of(broker.source(topic, end="latest"))).numbers == []


async def test_an_open_transaction_is_waited_for(broker):
    """Its records are not read before it is decided, nor are those behind it: the order is the topic's."""
    topic = broker.topic()
    producer = broker.producer(**{"transactional.id": uuid.uuid4().hex})
    producer.init_transactions(30)
    producer.begin_transaction()
    broker.send(topic, b'{"n":1}', producer=producer)
    broker.numbers(topic, [2])
    async with Reading(broker.source(topic)) as reading:
        for _ in range(10):
            await reading.once()
        assert reading.numbers == []
        producer.commit_transaction(30)
        await reading.until(lambda: len(reading.numbers) == 2)
    assert reading.numbers == [1, 2]


async def test_an_empty_partition_ends(broker):
    """A bounded source on an empty topic has no rows."""
    assert (await rows_of(broker.source(broker.topic(2), end="latest"))).rows == []


async def test_a_compacted_topic(broker):
    """Removed records leave gaps in the offsets; rows, places of bad rows and the end are right all the same."""
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "100"}
    topic = broker.topic(**config, **{"min.compaction.lag.ms": "0", "max.compaction.lag.ms": "100"})
    source = broker.source(topic, end="latest", bad_rows="skip")
    broker.send(topic, *(b'{"n":%d}' % n for n in range(50)), key="a")
    broker.send(topic, b"bad", key="b")
    async with asyncio.timeout(DEADLINE_S):
        while True:  # compaction leaves the newest segment alone, so something has to come behind it now and then
            broker.send(topic, b'{"n":50}', key="a")
            reading = await rows_of(source)
            if set(reading.numbers) == {50}:
                break
            await asyncio.sleep(0.2)
    (bad,) = reading.bad
    assert bad.where.endswith("offset 50")


async def test_added_partitions_are_read_from_their_beginning(broker, monkeypatch):
    """Although the source begins at the end: they were not there when the job was started."""
    monkeypatch.setattr(sources, "DISCOVERY_INTERVAL_MS", 300)
    topic = broker.topic(1)
    broker.numbers(topic, [1, 2])
    driver = driver_of(broker.source(topic, start="latest"))
    await driver.open([])
    try:
        broker.admin.create_partitions([NewPartitions(topic, 2)])[topic].result(30)
        await until(lambda: broker.has_partitions(topic, 2))
        broker.numbers(topic, [7, 8], 1)
        found: list[int] = []
        async with asyncio.timeout(DEADLINE_S):
            while len(found) < 2:
                batch = await driver.step()
                found += batch.frame["n"].to_list() if batch.frame is not None else []
        assert found == [7, 8]
    finally:
        await driver.close()


def driver_of(source: kafka.Source[Any], kept: dict[str, Any] | None = None) -> SourceDriver:
    beginnings: dict[str, Any] = {} if kept is None else kept

    async def remember(split: str, position: Any) -> Any:
        return beginnings.setdefault(split, position)

    return SourceDriver(source, 0, 1, context(), OperatorMetrics(), remember)


# -- formats ------------------------------------------------------------------------------------------------------------


def arrow(*numbers: int | None) -> bytes:
    table = pa.table({"n": pa.array(numbers, pa.int64())})
    out = io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table)
    return out.getvalue()


def datum(schema: dict[str, Any], row: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return out.getvalue()


OWN = {"type": "record", "name": "row", "fields": [{"name": "n", "type": "long"}]}
OTHER = {
    "type": "record",
    "name": "other",
    "fields": [{"name": "text", "type": "string"}, {"name": "n", "type": "int"}],
}


@pytest.mark.parametrize(
    ("options", "values", "expected", "errors"),
    [
        ({}, [b'{"n":1}', b'{\n "n": 2\n}', b'{"n":3}\n'], [1, 2, 3], []),
        ({}, [b'{"n":1}', b'{"n":2}{"n":3}', b'{"n":4}\n{"n":5}', b"", b'{"n":6}'], [1, 6], [1, 2, 3]),
        ({}, [b'{"n":1}', None, b'{"n":"x"}', b"\xff", b"{}", b'{"n":2}'], [1, 2], [1, 2, 3, 4]),
        ({"format": "csv"}, [b"1", b'"2"', b"3\n", b"x", b"4\n5", b"6"], [1, 2, 3, 6], [3, 4]),
        ({"format": "arrow"}, [arrow(1, 2), b"no", arrow(3, None, 4), None, arrow(5)], [1, 2, 3, 4, 5], [1, 2, 3]),
        ({"format": "avro"}, [datum(OWN, {"n": 1}), b"\x80", datum(OWN, {"n": 2}) + b"x"], [1], [1, 2]),
        (
            {"format": "avro", "writer_schema": json.dumps(OTHER)},
            [datum(OTHER, {"text": "x", "n": 7})],
            [7],
            [],
        ),
    ],
)
async def test_formats(broker, options, values, expected, errors):
    """Every record is right or bad as a whole; bad ones are told with topic, partition and offset."""
    topic = broker.topic()
    broker.send(topic, *values)
    reading = await rows_of(broker.source(topic, end="latest", bad_rows="skip", **options))
    assert reading.numbers == expected
    assert [row.where for row in reading.bad] == [
        f"kafka topic {topic!r}, partition 0, offset {offset}" for offset in errors
    ]


@pytest.mark.parametrize(("kind", "good", "bad"), [(str, "grün", 1), (bytes, b"\xff\n", 0)])
async def test_raw_values(broker, kind, good, bad):
    """The value as it is; text must be UTF-8."""
    topic = broker.topic()
    encoded = good.encode() if isinstance(good, str) else good
    broker.send(topic, encoded, b"\xfe", encoded)
    schema = Schema((Field("value", STRING, False),)).arrow() if kind is str else pa.schema([("value", pa.binary())])
    reading = await rows_of(broker.source(topic, schema, format="raw", end="latest", bad_rows="skip"))
    assert len(reading.bad) == bad
    assert [row["value"] for row in reading.rows] == ([good, good] if bad else [good, b"\xfe", good])


@contextmanager
def registry(schemas: Mapping[int, Any]) -> Iterator[tuple[str, list[str]]]:
    """A schema registry, and what it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            number = int(self.path.rpartition("/")[2])
            self.send_response(200 if number in schemas else 404)
            self.end_headers()
            if number in schemas:
                self.wfile.write(json.dumps({"schema": json.dumps(schemas[number])}).encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def test_avro_with_a_registry(broker):
    """Each record by the schema that its id names, which is asked for once; an unknown id is the record's fault."""
    topic = broker.topic()
    own, other = datum(OWN, {"n": 1}), datum(OTHER, {"text": "x", "n": 2})
    broker.send(topic, b"\0\0\0\0\5" + own, b"\0\0\0\0\6" + other, b"\0\0\0\0\5" + own, b"\0\0\0\0\7" + own, b"\1", own)
    with registry({5: OWN, 6: OTHER}) as (address, asked):
        source = broker.source(topic, format="avro", registry=address, end="latest", bad_rows="skip")
        reading = await rows_of(source)
    assert reading.numbers == [1, 2, 1]
    assert [row.where[-1] for row in reading.bad] == ["3", "4", "5"]
    assert asked == ["/schemas/ids/5", "/schemas/ids/6", "/schemas/ids/7"]


async def test_a_registry_that_does_not_answer(broker, monkeypatch):
    """It is an error that says so, not thousands of bad records."""
    monkeypatch.setattr(schema_registry, "PATIENCE_S", 0.0)
    topic = broker.topic()
    broker.send(topic, b"\0\0\0\0\5" + datum(OWN, {"n": 1}))
    with registry({}) as (address, _):
        pass
    with pytest.raises(ExternalError, match=r"schema registry: .*/schemas/ids/5"):
        await rows_of(broker.source(topic, format="avro", registry=address, end="latest"))


# -- metadata -----------------------------------------------------------------------------------------------------------

METADATA = {"key": "k", "headers": "h", "offset": "o", "partition": "p", "timestamp": "t"}
WITH_METADATA = pa.schema(
    [
        pa.field("n", pa.int64(), nullable=False),
        pa.field("k", pa.string()),
        pa.field("h", pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))),
        pa.field("o", pa.int64()),
        pa.field("p", pa.int64()),
        pa.field("t", pa.timestamp("us", "UTC")),
    ]
)


@pytest.mark.parametrize(
    ("kind", "good"), [("json", lambda n: b'{"n":%d}' % n), ("arrow", arrow), ("csv", lambda n: b"%d" % n)]
)
async def test_metadata(broker, kind, good):
    """Key, headers, offset, partition and time stand beside the row of their record, with bad records in between."""
    topic = broker.topic(2)
    at = int(AT.timestamp() * 1_000)
    broker.send(topic, b"bad", partition=1)
    broker.send(topic, good(1), partition=1, key="one", headers=[("a", b"x"), ("b", b"")], timestamp=at)
    broker.send(topic, b"bad", None, partition=1, key="never")
    broker.send(topic, good(2), partition=1, timestamp=at + 5)
    source = broker.source(
        topic, WITH_METADATA, format=kind, metadata=METADATA, end="latest", bad_rows="skip", start={0: 0, 1: 0}
    )
    reading = await rows_of(source)
    assert len(reading.bad) == 3
    headers = [{"name": "a", "value": b"x"}, {"name": "b", "value": b""}]
    assert reading.rows == [
        {"n": 1, "k": "one", "h": headers, "o": 1, "p": 1, "t": AT},
        {"n": 2, "k": None, "h": [], "o": 4, "p": 1, "t": AT + timedelta(milliseconds=5)},
    ]


async def test_metadata_of_records_with_many_rows(broker):
    """Every row of an Arrow record has its record's, also where rows of it are bad."""
    topic = broker.topic()
    broker.send(topic, arrow(1, 2), b"bad", arrow(), arrow(None, 3, None), arrow(4))
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("o", pa.int64())])
    source = broker.source(topic, schema, format="arrow", metadata={"offset": "o"}, end="latest", bad_rows="skip")
    reading = await rows_of(source)
    assert [(row["n"], row["o"]) for row in reading.rows] == [(1, 0), (2, 0), (3, 3), (4, 4)]
    assert [row.where[-1] for row in reading.bad] == ["1", "3", "3"]


@pytest.mark.parametrize("metadata", [{}, {"timestamp": "t"}])
async def test_the_time_of_a_record_is_the_event_time_of_its_rows(broker, metadata):
    """Without a column for it, and beside one; a record of several rows has one time."""
    topic = broker.topic()
    at = int(AT.timestamp() * 1_000)
    broker.send(topic, arrow(1, 2), timestamp=at)
    broker.send(topic, b"bad", arrow(3), timestamp=at + 5)
    kept = ["n", *metadata.values()]
    schema = pa.schema([field for field in WITH_METADATA if field.name in kept])
    source = broker.source(
        topic,
        schema,
        format="arrow",
        metadata=metadata,
        end="latest",
        bad_rows="skip",
        event_time=kafka.RECORD_TIMESTAMP,
    )
    reading = await rows_of(source)
    (record,) = {name for row in reading.rows for name in row} - set(kept)
    frame = pl.DataFrame(reading.rows)
    good, _ = RowValidator(source, OperatorMetrics(), lambda: 2**52).judge(Fetched(frame), "0")
    assert good.columns == [*kept, EVENT_TIME], f"{record} is no column of the stream"
    assert good["n"].to_list() == [1, 2, 3]
    assert good[EVENT_TIME].to_list() == [at * 1_000, at * 1_000, (at + 5) * 1_000]


# -- whole jobs ---------------------------------------------------------------------------------------------------------


async def run_embedded(pipeline: Pipeline, folder, **settings: Any):
    return await EmbeddedJob(pipeline, folder, EmbeddedSettings(durable=False, **settings)).run(resume=False)


async def test_policies_for_bad_rows(broker, tmp_path):
    """`fail` names the place, `skip` counts, `dead_letter` keeps the bytes."""
    topic = broker.topic()
    broker.send(topic, b'{"n":1}', b"bad", b'{"n":2}')
    where = f"kafka topic {topic!r}, partition 0, offset 1"
    failing = Pipeline("failing")
    failing.read(broker.source(topic, end="latest")).write(collecting.Sink())
    result = await run_embedded(failing, tmp_path / "fail")
    assert result.state == "FAILED"
    assert isinstance(result.error, BadRecordError)
    assert where in str(result.error)
    good, dead = collecting.Sink(), collecting.Sink()
    pipeline = Pipeline("dead-letters")
    stream = pipeline.read(broker.source(topic, end="latest", bad_rows="dead_letter"))
    stream.write(good)
    stream.dead_letters().write(dead)
    result = await run_embedded(pipeline, tmp_path / "dead")
    assert result.state == "FINISHED", result.reason
    assert [row["n"] for row in good.rows] == [1, 2]
    (row,) = dead.rows
    assert (row["raw"], row["where"]) == (b"bad", where)


async def test_a_missing_topic_fails_at_once(broker, tmp_path):
    """Before anything runs, with what to do."""
    pipeline = Pipeline("missing")
    pipeline.read(broker.source("not-there")).write(collecting.Sink())
    with pytest.raises(PipelineError, match=r"there is no topic 'not-there' at .*create it"):
        await run_embedded(pipeline, tmp_path)


async def test_partitions_read_at_different_speeds_make_no_row_late(broker, tmp_path):
    """W1 in small: one partition holds everything of its hours before another is looked at, and no row is dropped."""
    topic = broker.topic(4)
    # Idempotent: others may put batches of a partition into another order when they try again.
    producer = broker.producer(**{"batch.num.messages": 10_000, "enable.idempotence": True})
    rows = 0
    for partition, size in enumerate((40_000, 400, 4_000, 40)):
        for n in range(size):
            at = AT + timedelta(seconds=600 * n / size, milliseconds=-(n * 7919 % 2_000))
            value = {"n": n % 100, "at": at.isoformat()}
            producer.produce(topic, json.dumps(value), partition=partition)
            rows += 1
        producer.flush(30)
    sink = collecting.Sink()
    pipeline = Pipeline("skewed")
    source = broker.source(topic, Timed, event_time="at", max_out_of_orderness="2s", end="latest")
    pipeline.read(source).key_by("n").window(tumbling("10s")).agg(rows=count()).write(sink)
    result = await run_embedded(pipeline, tmp_path, parallelism=2)
    assert result.state == "FINISHED", result.reason
    assert sum(row["rows"] for row in sink.rows) == rows


async def test_a_job_that_fails_before_its_first_checkpoint_begins_at_the_same_offsets(broker, tmp_path):
    """`latest` of its first attempt counts for the second, though records have come meanwhile."""
    topic = broker.topic()
    broker.numbers(topic, [1, 2])
    seen: list[int] = []

    def fail_once(row: Row) -> Row:
        seen.append(row.n)
        if len(seen) == 1:
            raise RuntimeError("the first attempt")
        return row

    sink = collecting.Sink()
    pipeline = Pipeline("begins-anew")
    pipeline.read(broker.source(topic, start="latest")).map(fail_once).write(sink)
    settings = EmbeddedSettings(durable=False, checkpoint_interval_ms=1_000_000, restart=FixedDelay(3, 10))
    job = EmbeddedJob(pipeline, tmp_path, settings)
    running = asyncio.create_task(job.run(resume=False))
    try:
        await until(lambda: _at_work(job))
        broker.numbers(topic, [3, 4, 5])

        async def read_again() -> bool:
            return len(seen) >= 4

        await until(read_again)
    finally:
        job.suspend()
        result = await running
    assert result.state == "SUSPENDED", result.reason
    assert seen[0] == 3
    assert [row["n"] for row in sink.rows] == [3, 4, 5]


async def _at_work(job: EmbeddedJob) -> bool:
    return job.started and any(status.state == "running" for status in job.progress.statuses.values())


# -- failures -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def frequent_checks(monkeypatch) -> None:
    """The topic is looked at more often, so that a test need not wait long."""
    monkeypatch.setattr(kafka_reading, "CHECK_INTERVAL_S", 0.5)
    monkeypatch.setattr(kafka_reading, "MISSING_S", 0.5)


async def test_a_topic_deleted_while_it_is_read(broker, frequent_checks):
    """It is an error, never silence."""
    topic = broker.topic()
    broker.numbers(topic, range(3))
    async with Reading(broker.source(topic)) as reading:
        await reading.until(lambda: len(reading.numbers) == 3)
        broker.delete(topic)
        with pytest.raises(PipelineError, match=f"{topic}.*deleted while it was read"):
            await reading.until(lambda: False)


async def test_a_topic_made_anew_while_it_is_read(broker, frequent_checks):
    """Its offsets mean other records."""
    topic = broker.topic()
    broker.numbers(topic, range(3))
    async with Reading(broker.source(topic)) as reading:
        await reading.until(lambda: len(reading.numbers) == 3)
        broker.delete(topic)
        await recreated(broker, topic)
        broker.numbers(topic, range(10))
        with pytest.raises(PipelineError, match="made anew"):
            await reading.until(lambda: False)


async def recreated(broker: Broker, topic: str) -> None:
    async def tried() -> bool:
        try:
            broker.topic(name=topic)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
            return False
        return True

    await until(tried)


async def until(done: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await done():  # noqa: ASYNC110 (what is waited for is the broker's doing)
            await asyncio.sleep(0.1)


async def test_a_topic_made_anew_between_two_attempts(broker):
    """A restored position belongs to the former topic: nothing of the new one is read."""
    topic = broker.topic()
    broker.numbers(topic, range(3))
    source = broker.source(topic)
    async with Reading(source) as reading:
        await reading.until(lambda: len(reading.numbers) == 3)
    broker.delete(topic)
    await recreated(broker, topic)
    broker.numbers(topic, range(10))
    async with Reading(source, reading.positions) as second:
        with pytest.raises(PipelineError, match="deleted and made anew, so offset 3 means another record"):
            await second.until(lambda: second.numbers)


@pytest.mark.parametrize("offset", [0, 4, 99])
async def test_an_offset_that_is_not_there_fails(broker, offset):
    """Past retention, or beyond the end: never another offset instead."""
    topic = broker.topic()
    broker.numbers(topic, range(10))
    source = broker.source(topic)
    position = source.resolve(Split("0"), late=False) | {"offset": offset}
    broker.admin.delete_records([TopicPartition(topic, 0, 5)])

    async def trimmed() -> bool:
        return source.resolve(Split("0"), late=False)["offset"] == 5

    await until(trimmed)
    async with Reading(source, {"0": position}) as reading:
        with pytest.raises(PipelineError, match=f"offset {offset} is not there"):
            await reading.until(lambda: reading.numbers)


async def test_a_cancelled_read_loses_nothing(broker):
    """`read` is cancelled at many moments; the rows come in order, once."""
    topic = broker.topic()
    broker.numbers(topic, range(5_000))
    async with Reading(broker.source(topic, end="latest")) as reading:
        (reader,) = reading.readers.values()

        async def read_and_cancel() -> None:
            for attempt in itertools.count():
                task = asyncio.ensure_future(reader.read(100))
                if attempt % 3:
                    await asyncio.sleep(0.0005 * (attempt % 7))
                    task.cancel()
                    await asyncio.wait([task])
                    if task.cancelled():
                        continue
                fetched = await task
                if fetched is not None:
                    reading.take(fetched)

        with pytest.raises(EndOfSplit):
            await asyncio.wait_for(read_and_cancel(), DEADLINE_S)
    assert reading.numbers == [*range(5_000)]


async def test_the_broker_is_killed_while_it_is_read(own_platform):
    """kill -9 and a restart: reading goes on by itself, nothing lost, nothing twice."""
    broker = Broker(own_platform.settings().kafka)
    topic = broker.topic(2)
    for partition in range(2):
        broker.numbers(topic, range(1_000 * partition, 1_000 * partition + 100), partition)
    async with Reading(broker.source(topic)) as reading:
        await reading.until(lambda: len(reading.numbers) == 200)
        await own_platform.kafka.kill()
        for _ in range(20):
            await reading.once()
        starting = asyncio.create_task(own_platform.kafka.start())
        await reading.until(starting.done)
        await starting
        for partition in range(2):
            broker.numbers(topic, range(1_000 * partition + 100, 1_000 * partition + 200), partition)
        await reading.until(lambda: len(reading.numbers) >= 400)
        for _ in range(10):
            await reading.once()
    assert sorted(reading.numbers) == [*range(200), *range(1_000, 1_200)]


async def test_brokers_that_stay_away_fail_the_attempt(own_platform, monkeypatch, frequent_checks):
    """After some patience, so that somebody hears of it."""
    monkeypatch.setattr(kafka_reading, "PATIENCE_S", 1.0)
    monkeypatch.setattr(kafka_reading, "CHECK_TIMEOUT_S", 0.5)
    broker = Broker(own_platform.settings().kafka)
    topic = broker.topic()
    broker.numbers(topic, [1])
    async with Reading(broker.source(topic)) as reading:
        await reading.until(lambda: reading.numbers)
        await own_platform.kafka.kill()
        with pytest.raises(ExternalError, match=topic):
            await reading.until(lambda: False)


async def test_a_silent_partition_does_not_slow_down_another(broker):
    """A reader waits only if no sibling has records."""
    topic = broker.topic(8)
    broker.numbers(topic, range(20), 3)
    async with Reading(broker.source(topic)) as reading:
        await reading.until(lambda: len(reading.numbers) == 20)
        attention = next(iter(reading.readers.values()))._attention
        await reading.until(lambda: attention.all_silent)
        broker.numbers(topic, range(20, 40), 5)
        await reading.until(lambda: len(reading.numbers) == 40)
        assert not attention.all_silent
