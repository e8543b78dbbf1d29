"""The exactly-once Kafka sink on a real broker: what a consumer with `read_committed` sees, record by record."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import time
import uuid
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiokafka
import pytest
from tests.integration.failing_workers import with_failing_workers
from tests.integration.one_job import until
from tests.integration.publishing_by_hand import FIRST, checkpoints, published
from tests.unit.task.publishing_parts import Exchange, Run

from penstock.adapters.system_clock import SystemClock
from penstock.connectors import kafka
from penstock.connectors.base import ProducerFencedError, PublishContext, PublishedMark, WriteContext
from penstock.connectors.kafka import default_cluster
from penstock.connectors.kafka.limits import TopicLimits
from penstock.connectors.kafka.marks import delete_marks, marks_of_job
from penstock.connectors.kafka.topics import TopicAdmin
from penstock.connectors.kafka.transactions import Filling
from penstock.errors import ExternalError, PipelineError, RefusedRowError
from penstock.graph.jobgraph import build_job_graph
from penstock.protocol.manifests import Interval
from penstock.protocol.publishing import Mark, PublisherPhase
from penstock.settings import KafkaSettings
from penstock.task.publish_loop import encode_mark
from penstock.task.transaction_loop import PublishingError
from penstock.types import INT64, STRING, TIMESTAMP, Field, Schema

pytestmark = pytest.mark.timeout(180)
SECOND = "b" * 32


@pytest.fixture
def settings(platform) -> KafkaSettings:
    """The Kafka of this run."""
    return platform.settings("sink").kafka


class Target:
    """A topic of this test and a sink to it."""

    def __init__(self, settings: KafkaSettings, partitions: int = 3, **options) -> None:
        self.settings = settings
        self.topic = f"target-{uuid.uuid4().hex[:8]}"
        self.job = uuid.uuid4().hex
        self.sink = kafka.Sink(self.topic, security=settings, create_partitions=partitions, **options)

    def publisher(self):
        context = PublishContext(self.job, "out", 0, 0, 1, lambda: time.time_ns() // 1_000)
        return self.sink.publisher(context)

    async def records(self) -> list[aiokafka.ConsumerRecord]:
        """Everything that is committed, in order per partition."""
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=self.settings.brokers, isolation_level="read_committed", auto_offset_reset="none"
        )
        await consumer.start()
        try:
            count = TopicAdmin(self.settings, "test").partitions(self.topic)
            assert count is not None
            parts = [aiokafka.TopicPartition(self.topic, number) for number in range(count)]
            consumer.assign(parts)
            await consumer.seek_to_beginning(*parts)
            ends = await self._ends(parts)
            found: list[aiokafka.ConsumerRecord] = []
            async with asyncio.timeout(30):
                while any([await consumer.position(part) < ends[part] for part in parts]):
                    for batch in (await consumer.getmany(timeout_ms=200)).values():
                        found += batch
            return found
        finally:
            await consumer.stop()

    async def _ends(self, parts: list[aiokafka.TopicPartition]) -> dict[aiokafka.TopicPartition, int]:
        """Behind everything, committed or not: a commit is certain before all partitions show it."""
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=self.settings.brokers)
        await consumer.start()
        try:
            return await consumer.end_offsets(parts)
        finally:
            await consumer.stop()

    async def numbers(self) -> list[int]:
        return sorted(int(record.value) for record in await self.records())


async def test_rows_are_visible_once(settings):
    """Several transactions, one record per row."""
    target, exchange = Target(settings), Exchange()
    run, _ = await published(target, exchange)
    await run.stop()
    assert await target.numbers() == list(range(40))


async def test_an_open_transaction_of_a_dead_publisher_is_aborted(settings):
    """It died between InitProducerId and the commit: the next one publishes the same rows, once."""
    target, exchange = Target(settings), Exchange()
    run, covered = await published(target, exchange)
    await run.stop()
    dead = target.publisher()
    await dead.open()
    await dead.init_producer()
    producer = dead._producer
    assert producer is not None
    batch = producer.batch(1 << 20, None)
    batch.append(timestamp=1, key=None, value=b"999")
    await producer.send(aiokafka.TopicPartition(target.topic, 0), batch)
    await producer.flush()
    exchange.rows(FIRST, range(40, 45))
    newer = Interval(FIRST, covered.end, exchange.barrier(FIRST, 2), 2)
    second = Run(target.publisher(), exchange, 2, [covered, newer], restored=2, clock=SystemClock())
    await second.until(lambda: second.published == 2)
    with pytest.raises(aiokafka.errors.InvalidProducerEpoch):
        await producer.commit()
    await second.stop()
    await dead.close()
    assert await target.numbers() == list(range(45))


async def test_a_publisher_that_was_stopped_is_refused(settings):
    """Between InitProducerId and its transaction another one starts: what it commits never becomes visible."""
    target, exchange = Target(settings), Exchange()
    run, _ = await published(target, exchange)
    await run.stop()
    stopped, newer = target.publisher(), target.publisher()
    for publisher in (stopped, newer):
        await publisher.open()
        await publisher.init_producer()
    with pytest.raises(ProducerFencedError, match="has started"):
        await stopped.commit([exchange.frames[0][1]], encode_mark(Mark(99, 9, 1)))
    await stopped.close()
    await newer.close()
    assert await target.numbers() == list(range(40))


async def test_epochs_follow_on_one_another_while_nobody_else_is_there(settings):
    """Then the mark that was committed need not be read; whoever came in between shows."""
    target, encoded = Target(settings), Exchange()
    encoded.rows(FIRST, range(3))
    first, other = target.publisher(), target.publisher()
    for publisher in (first, other):
        await publisher.open()
    granted = [await first.init_producer()]
    for number in range(3):
        await first.commit([encoded.frames[0][1]], PublishedMark(number, "{}"))
        granted.append(await first.init_producer())
    assert all(later.follows(earlier) for earlier, later in itertools.pairwise(granted))
    await first.commit([], PublishedMark(3, "{}"))
    await other.init_producer()
    assert not (await first.init_producer()).follows(granted[-1])
    assert await first.read_mark() == PublishedMark(3, "{}")
    await first.close()
    await other.close()
    assert await target.numbers() == [0, 0, 0, 1, 1, 1, 2, 2, 2]


async def test_a_producer_that_waited_for_long_is_not_in_doubt(settings):
    """Brokers close connections that are idle; nothing of the transaction has been sent."""
    target = Target(settings)
    publisher = target.publisher()
    await publisher.open()
    await publisher.init_producer()
    for connection in list(publisher._producer.client._conns.values()):
        connection.close()
    await publisher.commit([], PublishedMark(1, "{}"))
    await publisher.init_producer()
    assert await publisher.read_mark() == PublishedMark(1, "{}")
    await publisher.close()


async def test_a_zombie_leaves(settings):
    """An older attempt that learns of a COMPLETE late reads the mark of the newer one and goes."""
    target, exchange = Target(settings), Exchange()
    zombie, covered = await published(target, exchange)
    second = Run(target.publisher(), exchange, 2, [covered], restored=1, clock=SystemClock())
    await second.until(lambda: second.published == 1)
    exchange.rows(FIRST, range(900, 905))
    zombie.loop.covered([covered, Interval(FIRST, covered.end, exchange.barrier(FIRST, 2), 2)])
    await zombie.until(lambda: zombie.loop.machine.phase is PublisherPhase.EXITED)
    start = len(exchange.frames)
    exchange.rows(SECOND, range(40, 50))
    second.loop.covered([Interval(SECOND, start, exchange.barrier(SECOND, 2), 2)])
    await second.until(lambda: second.published == 2)
    await zombie.stop()
    await second.stop()
    assert await target.numbers() == list(range(50))


async def test_a_commit_whose_answer_is_lost_is_not_repeated(settings):
    """The transaction is in, the publisher does not know: it finds out from the mark."""
    target, exchange = Target(settings), Exchange()
    publisher = target.publisher()
    commit, lost = publisher.commit, itertools.count()

    async def forgetful(frames, mark):
        await commit(frames, mark)
        if next(lost) % 2:
            raise ExternalError("no answer")

    publisher.commit = forgetful
    target.publisher = lambda: publisher
    run, _ = await published(target, exchange, frames=6)
    await run.stop()
    assert await target.numbers() == list(range(60))


@pytest.mark.timeout(600)
async def test_a_broker_that_is_killed_delays_and_changes_nothing(three_brokers):
    """SIGKILL of one of three in the middle of transactions, twice: rows once and in order of their key."""
    target, exchange = Target(three_brokers.settings("own").kafka, partitions=1), Exchange()
    run = Run(target.publisher(), exchange, 1, clock=SystemClock())
    await run.until(lambda: run.marks, deadline_s=60)
    run.loop.covered(checkpoints(exchange, 40))
    # Not a broker that is alone: see "A single broker" in docs/kafka.md.
    for checkpoint, node in zip((5, 20), three_brokers.kafka.nodes, strict=False):
        await run.until(lambda checkpoint=checkpoint: run.published >= checkpoint, deadline_s=120)
        await node.restart(by_force=True)
    await run.until(lambda: run.published == 40, deadline_s=120)
    await run.stop()
    assert [int(record.value) for record in await target.records()] == list(range(10, 410))


async def test_a_missing_mark_fails(settings):
    """A checkpoint of this generation exists, so rows may be visible: nothing is made up."""
    target = Target(settings)
    run = Run(target.publisher(), Exchange(), 2, [Interval(FIRST, 0, 4, 1)], restored=1, clock=SystemClock())
    with pytest.raises(PublishingError, match="mark of this sink is missing"):
        await run.until(lambda: False)


async def test_a_mark_beyond_the_restored_end_fails(settings):
    """Somebody restored an older checkpoint than what is visible."""
    target, exchange = Target(settings), Exchange()
    run, covered = await published(target, exchange)
    await run.stop()
    older = replace_end(covered, 2)
    second = Run(target.publisher(), exchange, 2, [older], restored=1, clock=SystemClock())
    with pytest.raises(PublishingError, match="beyond 2"):
        await second.until(lambda: False)
    assert await target.numbers() == list(range(40))


def replace_end(interval: Interval, end: int) -> Interval:
    return Interval(interval.attempt, interval.start, end, interval.checkpoint)


async def test_deleted_marks_are_gone(settings):
    """Deleting them again changes nothing."""
    target, exchange = Target(settings), Exchange()
    run, _ = await published(target, exchange)
    await run.stop()
    publisher = target.publisher()
    marks = publisher._marks
    await delete_marks(settings, marks.topic)
    await delete_marks(settings, marks.topic)
    await until(lambda: TopicAdmin(settings, "test").partitions(marks.topic) is None, "the topic is gone")
    await publisher.open()
    await publisher.init_producer()
    assert await publisher.read_mark() is None
    await publisher.close()


SCHEMA = Schema((Field("id", INT64, False), Field("name", STRING, True)))


async def test_records_of_a_key_keep_their_order_and_go_where_any_client_sends_them(settings):
    """Key, headers and partition of every record; null keys are spread."""
    import polars as pl

    target = Target(settings, partitions=5, key="name", headers={"number": "id"})
    encoder = await target.sink.encoder(SCHEMA, "out")
    names = [None if n % 7 == 0 else f"key {n % 23}" for n in range(500)]
    rows = pl.DataFrame({"id": range(500), "name": names})
    publisher = target.publisher()
    await publisher.open()
    for position in range(2):
        await certain(publisher, encoder.encode(rows.slice(250 * position, 250)).frame, position)
    await publisher.close()
    found = await target.records()
    assert sorted(json.loads(record.value)["id"] for record in found) == list(range(500))
    order: dict[bytes, int] = {}
    for record in found:
        row = json.loads(record.value)
        assert record.headers == (("number", str(row["id"]).encode()),)
        assert record.key == (None if row["name"] is None else row["name"].encode())
        if record.key is not None:
            assert record.partition == aiokafka.partitioner.murmur2(record.key) % 2**31 % 5
            assert row["id"] > order.get(record.key, -1)
            order[record.key] = row["id"]


async def test_a_missing_topic_is_an_error_that_says_how_to_create_it(settings):
    """Before anything runs."""
    sink = kafka.Sink("nowhere-to-be-found", security=settings)
    with pytest.raises(PipelineError, match=r"kafka-topics\.sh --create.*create_partitions=N"):
        await asyncio.to_thread(sink.begin)


async def certain(publisher, frame, position: int) -> None:
    """A transaction, tried as `TransactionLoop` does it: a broker may not know yet that it leads a new topic."""
    async with asyncio.timeout(60):
        while True:
            await publisher.init_producer()
            mark = await publisher.read_mark()
            if mark is not None and mark.position >= position:
                return
            try:
                await publisher.commit([frame], PublishedMark(position, "{}"))
            except ExternalError as error:
                print("in doubt:", error)


async def committed(target: Target, rows) -> None:
    """Rows as the job's two halves write them: encoded, then published in one transaction."""
    encoder = await target.sink.encoder(SCHEMA, "out")
    publisher = target.publisher()
    await publisher.open()
    await certain(publisher, encoder.encode(rows).frame, 1)
    await publisher.close()


async def written(target: Target, rows) -> None:
    """Rows as the at-least-once writer writes them."""
    writer = await asyncio.to_thread(target.sink.open, SCHEMA, WriteContext("out", 0, FIRST, 1, lambda: 0))
    writer.write(rows)
    persist = writer.prepare(1).persist
    assert persist is not None
    await asyncio.to_thread(persist)
    writer.close()


WAYS = {"exactly-once": committed, "at-least-once": written}


@pytest.mark.parametrize("delivery", WAYS)
async def test_rows_that_are_too_large_go_to_the_dead_letters(settings, delivery):
    """With the reason, in a topic that takes more; all others are in the topic."""
    import polars as pl

    dead = Target(settings, partitions=2)
    admin = TopicAdmin(settings, "test")
    admin.create(dead.topic, 2, {"max.message.bytes": "300000"})
    target = Target(settings, delivery=delivery, key="name", bad_rows="dead_letter", dead_letters=dead.topic)
    admin.create(target.topic, 3, {"max.message.bytes": "20000"})
    large = {5: "x" * 100_000, 8: "y" * 900_000}
    rows = pl.DataFrame({"id": range(10), "name": [large.get(n, "small") for n in range(10)]})
    await WAYS[delivery](target, rows)
    assert sorted(json.loads(record.value)["id"] for record in await target.records()) == [0, 1, 2, 3, 4, 6, 7, 9]
    letters = sorted(await dead.records(), key=lambda record: record.value)
    assert json.loads(letters[0].value) == {"id": 5, "name": large[5]}
    assert letters[1].value.startswith(b'{"id":8,"name":"yyy')
    assert 290_000 < len(letters[1].value) < 300_000
    for letter in letters:
        reason = dict(letter.headers)["penstock-error"].decode()
        assert f"kafka topic '{target.topic}': a row makes a record of " in reason
        assert "the topic takes 20,000" in reason


@pytest.mark.parametrize("delivery", WAYS)
async def test_batches_are_no_larger_than_the_topic_takes(settings, delivery):
    """Its limit is on batches, not on records."""
    import polars as pl

    target = Target(settings, delivery=delivery)
    TopicAdmin(settings, "test").create(target.topic, 1, {"max.message.bytes": "20000"})
    await WAYS[delivery](target, pl.DataFrame({"id": range(30), "name": ["x" * 15_000] * 30}))
    assert len(await target.records()) == 30


REFUSED = Schema((Field("id", INT64), Field("name", STRING, True), Field("at", TIMESTAMP)))


def rows_that_are_refused(count: int = 3_000):
    """Every thousandth is two hours ahead, the fifth has no key; in several batches of several partitions."""
    import polars as pl

    now, ahead = datetime.now(UTC), timedelta(hours=2)
    return pl.DataFrame(
        {
            "id": range(count),
            "name": [None if n == 5 else f"{n % 7}-{'x' * 400}" for n in range(count)],
            "at": [now + ahead * (n % 1_000 == 17) for n in range(count)],
        },
        schema=REFUSED.polars(),
    )


@pytest.mark.parametrize("bad_rows", ["skip", "dead_letter", "fail"])
async def test_what_the_topic_refuses_all_the_same_goes_by_the_policy(settings, bad_rows):
    """As if the topic had been changed behind the encoder: its neighbours are committed, once, or the record is named."""
    admin, letters = TopicAdmin(settings, "test"), Target(settings, partitions=1)
    admin.create(letters.topic, 1)
    dead = {"dead_letters": letters.topic} if bad_rows == "dead_letter" else {}
    target = Target(settings, key="name", timestamp="at", bad_rows=bad_rows, **dead)
    admin.create(target.topic, 3, {"cleanup.policy": "compact", "message.timestamp.after.max.ms": "3600000"})
    encoded = target.sink._encoder(REFUSED, TopicLimits(), 1 << 20).encode(rows_that_are_refused())
    if bad_rows != "fail":  # as it is, the encoder finds all of them
        assert (await target.sink.encoder(REFUSED, "out")).encode(rows_that_are_refused()).skipped == 4
    publisher = target.publisher()
    await publisher.open()
    await publisher.init_producer()
    if bad_rows == "fail":
        with pytest.raises(RefusedRowError, match=r"INVALID_(TIMESTAMP|RECORD).*\(4 such records\)"):
            await publisher.commit([encoded.frame], PublishedMark(1, "{}"))
        await publisher.init_producer()
        await publisher.close()
        assert await target.records() == []
        return
    with pytest.raises(ExternalError, match="4 records are refused; again without them"):
        await publisher.commit([encoded.frame], PublishedMark(1, "{}"))
    await publisher.init_producer()
    assert await publisher.commit([encoded.frame], PublishedMark(1, "{}")) == 4
    await publisher.close()
    bad = [5, 17, 1_017, 2_017]
    found = sorted(json.loads(record.value)["id"] for record in await target.records())
    assert found == [n for n in range(3_000) if n not in bad]
    dead_ones = {json.loads(r.value)["id"]: dict(r.headers)["penstock-error"].decode() for r in await letters.records()}
    assert sorted(dead_ones) == (bad if dead else [])
    assert not dead or "INVALID_TIMESTAMP: Timestamp" in dead_ones[17]
    assert not dead or "Compacted topic cannot accept message without key" in dead_ones[5]


async def test_the_at_least_once_writer_does_not_wait_for_what_is_refused(settings):
    """It says so within seconds, and names the record."""
    target = Target(settings, key="name", timestamp="at", delivery="at-least-once", bad_rows="skip")
    TopicAdmin(settings, "test").create(target.topic, 1, {"message.timestamp.after.max.ms": "3600000"})
    writer = await asyncio.to_thread(target.sink.open, REFUSED, WriteContext("out", 0, FIRST, 1, lambda: 0))
    writer._encoder = target.sink._encoder(REFUSED, TopicLimits(), 0)

    def write() -> None:
        writer.write(rows_that_are_refused(20))
        persist = writer.prepare(1).persist
        assert persist is not None
        persist()

    with pytest.raises(RefusedRowError, match=r"refuses a record \(.*INVALID_TIMESTAMP"):
        await asyncio.wait_for(asyncio.to_thread(write), 20)
    writer.close()


async def test_a_compacted_topic_needs_a_key(settings):
    """Found out before anything runs; of dead letters, too."""
    target = Target(settings)
    TopicAdmin(settings, "test").create(target.topic, 1, {"cleanup.policy": "compact"})
    with pytest.raises(PipelineError, match=r"is compacted .* name the columns of the key"):
        await asyncio.to_thread(target.sink.begin)
    other = Target(settings, bad_rows="dead_letter", dead_letters=target.topic)
    with pytest.raises(PipelineError, match="dead letters have not"):
        await asyncio.to_thread(other.sink.begin)


async def test_dead_letters_of_a_transaction_that_is_not_committed_are_not_seen(settings):
    """They are as exactly-once as the rows beside them."""
    import polars as pl

    dead = Target(settings, partitions=1)
    target = Target(settings, key="name", delivery="upsert", bad_rows="dead_letter", dead_letters=dead.topic)
    encoder = await target.sink.encoder(SCHEMA, "out")
    encoded = encoder.encode(pl.DataFrame({"id": [1, 2], "name": ["k", None]}))
    assert encoded.skipped == 1
    first, second = target.publisher(), target.publisher()
    await first.open()
    await first.init_producer()
    producer = first._producer
    assert producer is not None
    await first._fill(filling := Filling(producer, 1 << 20, None), encoded.frame, producer)
    await filling.send_all()
    await producer.flush()
    await second.open()
    await second.init_producer()
    await second.commit([encoded.frame], PublishedMark(1, "{}"))
    await first.close()
    await second.close()
    (letter,) = await dead.records()
    assert json.loads(letter.value) == {"id": 2, "name": None}
    assert b"has no key (column name is null)" in dict(letter.headers)["penstock-error"]


async def test_a_missing_topic_of_dead_letters_is_an_error(settings):
    """Before anything runs, as a missing topic is."""
    present = Target(settings)
    await asyncio.to_thread(present.sink.begin)
    sink = kafka.Sink(present.topic, security=settings, bad_rows="dead_letter", dead_letters="nowhere-either")
    with pytest.raises(PipelineError, match="nowhere-either"):
        await asyncio.to_thread(sink.begin)


def stored(topic: str) -> bytes:
    """The first partition of a topic as it lies on the broker's disk."""
    shared = Path(os.environ["PENSTOCK_TEST_FOLDER"], "shared")
    (segment,) = shared.glob(f"kafka-*/data/{topic}-0/*.log")  # no walk: files of other servers come and go
    return segment.read_bytes()


CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""The lowest bits of a batch's attributes, see the protocol's record batch."""


@pytest.mark.parametrize(
    ("delivery", "compression"),
    [("exactly-once", "gzip"), *(("at-least-once", name) for name in ("gzip", "snappy", "lz4", "zstd"))],
)
async def test_batches_are_compressed(settings, delivery, compression):
    """As the codec is named, to a fraction of the bytes."""
    import polars as pl

    rows = pl.DataFrame({"id": range(2_000), "name": ["always the same " * 20] * 2_000})
    sizes: list[int] = []
    for name in ("none", compression):
        target = Target(settings, partitions=1, delivery=delivery, compression=name)
        await WAYS[delivery](target, rows)
        data = stored(target.topic)
        assert data[22] & 7 == CODECS[name]
        sizes.append(len(data))
        if name in ("none", "gzip"):  # the consumer of this test knows no other without the package cramjam
            assert len(await target.records()) == 2_000
    assert 0 < sizes[1] < sizes[0] / 5


@pytest.mark.parametrize("compression", ["snappy", "lz4", "zstd"])
async def test_a_codec_that_is_not_installed_is_refused_with_what_to_install(settings, compression, monkeypatch):
    """Before the first transaction."""
    monkeypatch.setattr(f"aiokafka.codec.has_{compression}", lambda: False)
    target = Target(settings, compression=compression)
    with pytest.raises(PipelineError, match=f"compression='{compression}'.*pip install cramjam"):
        await target.publisher().open()
    with pytest.raises(PipelineError, match="pip install cramjam"):
        await asyncio.to_thread(target.sink.begin)


async def test_the_at_least_once_writer_confirms_before_the_checkpoint(settings):
    """`persist` returns when every record is there."""
    import polars as pl

    target = Target(settings, key="name", delivery="at-least-once")
    context = WriteContext("out", 0, FIRST, 1, lambda: 0)
    writer = await asyncio.to_thread(target.sink.open, SCHEMA, context)
    writer.write(pl.DataFrame({"id": range(1_000), "name": [f"key {n % 9}" for n in range(1_000)]}))
    persist = writer.prepare(1).persist
    assert persist is not None
    await asyncio.to_thread(persist)
    writer.close()
    found = await target.records()
    assert sorted(json.loads(record.value)["id"] for record in found) == list(range(1_000))
    assert all(record.partition == aiokafka.partitioner.murmur2(record.key) % 2**31 % 3 for record in found)


def check(records: list[aiokafka.ConsumerRecord], count: int) -> None:
    """Every window once, every row counted."""
    rows = [json.loads(record.value) for record in records]
    windows = Counter((row["key"], row["window_start"]) for row in rows)
    assert [window for window, times in windows.items() if times > 1] == []
    assert len(windows) == 7 * count // 100
    assert sum(row["n"] for row in rows) == count
    assert sum(row["total"] for row in rows) == sum(range(count))
    newest: dict[bytes, str] = {}
    for record in records:
        row = json.loads(record.value)
        assert row["window_start"] > newest.get(record.key, ""), "windows of a key are out of order"
        newest[record.key] = row["window_start"]


async def test_a_job_with_failing_workers_and_a_rescale_writes_every_row_once(settings):
    """Workers die again and again, the job gets wider: a consumer sees every window once."""
    kafka.use_cluster(settings, "sink-test")
    target = Target(settings, key="key")
    cluster = await with_failing_workers(target.sink)
    check(await target.records(), cluster.input.rows)
    for marks in marks_of_job("sink-test", cluster.job, cluster.graph, range(2)):
        await delete_marks(marks.settings(settings), marks.topic)


def test_the_platforms_kafka_is_meant_where_none_is_named(settings):
    """That of `use_cluster`; what a sink names itself goes before it."""
    kafka.use_cluster(settings, "there")
    assert kafka.Sink("t").settings == settings
    assert kafka.Sink("t", brokers="elsewhere:1").settings == KafkaSettings(brokers="elsewhere:1")
    assert default_cluster.cluster_name() == "there"
    own = replace(settings, replication=3)
    assert kafka.Sink("t", security=own).settings == own


def test_the_job_graph_says_what_is_to_be_deleted():
    """The topic of the marks per generation, without the user's code."""
    from tests.integration.one_job import Event

    from penstock import Pipeline
    from penstock.connectors import iterables

    p = Pipeline("marks")
    p.read(iterables.Source([], schema=Event)).write(kafka.Sink("t", brokers="other:9092")).uid("out")
    [marks] = marks_of_job("here", "j" * 32, build_job_graph(p.plan, 2), [4])
    assert marks.topic == f"penstock.here.{'j' * 32}.out.g4.marks"
    assert marks.settings(KafkaSettings()).brokers == "other:9092"
