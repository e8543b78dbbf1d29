"""Transactions that no marker will end, made on a real broker that does not check who takes part in a transaction.

Records of a transaction are written to a partition that its coordinator was not told of, so that it writes no marker
there: the state in which a single broker leaves one that is killed between a decision and its markers.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from typing import Any

import aiokafka
import pytest
from aiokafka import TopicPartition
from aiokafka.errors import ClusterAuthorizationFailedError
from aiokafka.protocol.transaction import EndTxnRequest

from penstock.cli.main import main
from penstock.connectors import kafka
from penstock.connectors.base import PublishContext, PublishedMark
from penstock.connectors.kafka import transactions
from penstock.connectors.kafka.default_cluster import use_cluster
from penstock.connectors.kafka.mark_records import mark_record
from penstock.connectors.kafka.transactional_producer import TransactionalProducer
from penstock.connectors.kafka.transactions import KafkaPublisher
from penstock.errors import ExternalError
from penstock.kafka import hanging_transactions as kafka_hanging
from penstock.kafka.hanging_transactions import end_hanging
from penstock.platform.doctor_kafka import check_kafka, settle_transactions
from penstock.platform.free_ports import free_port
from penstock.platform.kafka import KafkaNode, KafkaServer, new_cluster_id
from penstock.platform.parts import cached_parts
from penstock.settings import ClusterSettings, KafkaSettings, settings_to_toml

pytestmark = [pytest.mark.timeout(120), pytest.mark.servers]
NAME = "hanging"


class Trusting(KafkaServer):
    """A broker that lets a producer write without saying so to the coordinator, as brokers before Kafka 3.6 did."""

    async def prepare(self) -> None:
        await super().prepare()
        with self._properties.open("a") as file:
            file.write("transaction.partition.verification.enable=false\n")


@pytest.fixture(scope="module")
def broker(tmp_path_factory) -> Iterator[KafkaSettings]:
    """Of this module."""
    taken: set[int] = set()
    node = KafkaNode(1, free_port(taken), free_port(taken))
    folder = tmp_path_factory.mktemp("kafka")
    server = Trusting(cached_parts(), folder, node, nodes=[node], cluster_id=new_cluster_id(), heap_mb=256)
    asyncio.run(server.start())
    yield server.settings
    asyncio.run(server.kill())


class Sink:
    """A sink of a job, and what its publisher writes."""

    def __init__(self, settings: KafkaSettings) -> None:
        use_cluster(settings, NAME)
        self.settings = settings
        self.cluster = ClusterSettings(name=NAME, kafka=settings)
        self.topic = f"target-{uuid.uuid4().hex[:8]}"
        self.job = uuid.uuid4().hex
        self.sink = kafka.Sink(self.topic, security=settings, create_partitions=1)

    def publisher(self) -> KafkaPublisher:
        context = PublishContext(self.job, "out", 0, 0, 1, lambda: time.time_ns() // 1_000)
        publisher = self.sink.publisher(context)
        assert isinstance(publisher, KafkaPublisher)
        return publisher

    async def transact(self, *, untold: str, commit: bool = True, close: bool = True) -> KafkaPublisher:
        """A transaction of a row and a mark, whose coordinator was not told of the `mark`, or of the `row`."""
        publisher = self.publisher()
        await publisher.open()
        await publisher.init_producer()
        producer = publisher._producer
        assert producer is not None
        row, mark = TopicPartition(self.topic, 0), publisher._mark
        untold_of = mark if untold == "mark" else row
        records = {row: (None, b"1"), mark: (b"0", mark_record(PublishedMark(7, "{}")))}
        producer._added.add(untold_of)
        now_ms = int(time.time() * 1_000)  # a broker deletes old rows when it has run for half a minute
        for place, (key, value) in records.items():
            batch = producer.batch(1 << 20, None)
            batch.append(timestamp=now_ms, key=key, value=value)
            await producer.send(place, batch)
        await producer.flush()
        await producer._coordinate(EndTxnRequest(producer.transactional_id, *producer._producer, commit))
        await self._ended(producer)
        if close:
            await publisher.close()
        return publisher

    async def _ended(self, producer: TransactionalProducer) -> None:
        """The broker answers the end of a transaction before its coordinator is done with it."""
        async with asyncio.timeout(20):
            while True:
                state = await kafka_hanging._state(producer.client, producer.transactional_id)
                if state.name in kafka_hanging._DONE:
                    return
                await asyncio.sleep(0.02)

    async def problems(self) -> list[str]:
        """What the doctor says of the transactions of this sink."""
        findings = await check_kafka(self.cluster)
        assert [f.check for f in findings if not f.ok] in ([], ["transactions that hang"])
        return [part for f in findings if not f.ok for part in f.detail.split("; ") if self.job in part]

    async def seen(self) -> list[bytes]:
        """What a reader of what is committed sees, if nothing is in its way."""
        consumer = aiokafka.AIOKafkaConsumer(
            self.topic, bootstrap_servers=self.settings.brokers, isolation_level="read_committed",
            auto_offset_reset="earliest",
        )  # fmt: skip
        await consumer.start()
        try:
            place = TopicPartition(self.topic, 0)
            await consumer.seek_to_beginning(place)
            found: list[bytes] = []
            async with asyncio.timeout(60):
                while await consumer.position(place) < (await consumer.end_offsets([place]))[place]:
                    batch = await consumer.getmany(timeout_ms=200)
                    found += [record.value or b"" for records in batch.values() for record in records]
            return found
        finally:
            await consumer.stop()

    async def sees(self, expected: list[bytes]) -> None:
        """Wait until that is what such a reader sees: a broker tells of a marker before readers get past it."""
        async with asyncio.timeout(90):
            while await self.seen() != expected:  # noqa: ASYNC110 (a broker is asked: nothing here says when)
                await asyncio.sleep(0.1)


def disconnect(producer: TransactionalProducer) -> None:
    """As a coordinator that is killed does."""
    assert producer._coordinator is not None
    producer._coordinator.close()


async def denied(*_: Any) -> list[str]:
    """A user without the right ClusterAction."""
    raise ClusterAuthorizationFailedError


async def ended(*_: Any) -> None:
    """Nothing is looked at."""


@pytest.fixture
def sink(broker: KafkaSettings) -> Sink:
    """Of a job of this test."""
    return Sink(broker)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("untold", ["mark", "row"])
async def test_the_next_publisher_ends_what_hangs_as_its_coordinator_says(
    sink: Sink, untold: str, commit: bool
) -> None:
    """Before it makes it forget: then rows and mark are there both, or neither."""
    await sink.transact(untold=untold, commit=commit)
    [problem] = await sink.problems()
    assert f"to be {'committed' if commit else 'aborted'}: its " in problem
    publisher = sink.publisher()
    await publisher.init_producer()
    assert await sink.problems() == []
    mark = await publisher.read_mark()
    await publisher.commit([], PublishedMark(8, "{}"))
    await publisher.close()
    assert mark == (PublishedMark(7, "{}") if commit else None)
    await sink.sees([b"1"] if commit else [])


@pytest.mark.parametrize("commit", [True, False])
async def test_where_the_publisher_may_not_it_waits_and_the_doctor_settles(
    sink: Sink, commit: bool, monkeypatch
) -> None:
    """It does not let the coordinator forget which way it was decided."""
    await sink.transact(untold="mark", commit=commit)
    publisher = sink.publisher()
    with monkeypatch.context() as patched:
        patched.setattr(kafka_hanging, "settle", denied)
        for _ in range(2):
            with pytest.raises(ExternalError, match=r"says Complete.*ClusterAction is needed: .*--settle-transactions"):
                await publisher.init_producer()
    await publisher.close()
    [problem] = await sink.problems()
    assert f"to be {'committed' if commit else 'aborted'}: its coordinator says Complete" in problem
    assert any(sink.job in line for line in await settle_transactions(sink.cluster))
    assert await sink.problems() == []
    await publisher.init_producer()
    mark = await publisher.read_mark()
    await publisher.close()
    assert mark == (PublishedMark(7, "{}") if commit else None)
    await sink.sees([b"1"] if commit else [])


@pytest.mark.parametrize("commit", [True, False])
async def test_what_hangs_in_a_part_is_settled_as_its_mark_is(sink: Sink, commit: bool, monkeypatch) -> None:
    """By the doctor also after a later transaction, when its coordinator knows it no more."""
    await sink.transact(untold="row", commit=commit)
    publisher = sink.publisher()
    with monkeypatch.context() as patched:
        patched.setattr(transactions, "end_hanging", ended)
        await publisher.init_producer()
    await publisher.commit([], PublishedMark(8, "{}"))
    await publisher.close()
    [problem] = await sink.problems()
    assert (
        f"{sink.topic}[0] from offset 0: to be {'committed' if commit else 'aborted'}: its marker stands in" in problem
    )
    await settle_transactions(sink.cluster)
    assert await sink.problems() == []
    await sink.sees([b"1"] if commit else [])


async def test_what_nobody_knows_any_more_is_left_alone(sink: Sink) -> None:
    """Somebody else has called InitProducerId: it is said, and settled by nobody but the operator."""
    await sink.transact(untold="mark")
    publisher = sink.publisher()
    other = aiokafka.AIOKafkaProducer(
        bootstrap_servers=sink.settings.brokers, transactional_id=publisher._transactional_id
    )
    await other.start()
    await other.stop()
    [problem] = await sink.problems()
    assert "undecidable: no marker in" in problem
    [line] = [line for line in await settle_transactions(sink.cluster) if sink.job in line]
    assert line.startswith("left alone: ")
    assert len(await sink.problems()) == 1


async def test_an_open_transaction_does_not_hang(sink: Sink) -> None:
    """Its coordinator will end it."""
    publisher = sink.publisher()
    await publisher.open()
    await publisher.init_producer()
    producer = publisher._producer
    assert producer is not None
    for place in (TopicPartition(sink.topic, 0), publisher._mark):
        batch = producer.batch(1 << 20, None)
        batch.append(timestamp=1, key=b"0", value=b"{}")
        await producer.send(place, batch)
    await producer.flush()
    assert await sink.problems() == []
    assert not [line for line in await settle_transactions(sink.cluster) if sink.job in line]
    await producer.commit()
    await publisher.close()


async def test_the_long_look_is_taken_at_first_and_after_a_doubt_only(sink: Sink, monkeypatch) -> None:
    """While the connection lasts over which a transaction was ended, its coordinator knows what became of it."""
    looks: list[int] = []

    async def look(*arguments: Any) -> None:
        looks.append(number)
        await end_hanging(*arguments)

    monkeypatch.setattr(transactions, "end_hanging", look)
    publisher = sink.publisher()
    await publisher.open()
    for number in range(6):
        if number == 3:
            assert publisher._producer is not None
            disconnect(publisher._producer)
        await publisher.init_producer()
        await publisher.commit([], PublishedMark(number, "{}"))
    await publisher.close()
    assert looks == [0, 3]


async def test_what_hangs_since_a_broken_connection_is_not_forgotten(sink: Sink) -> None:
    """By the process that had committed it either."""
    publisher = await sink.transact(untold="mark", close=False)
    assert publisher._producer is not None
    disconnect(publisher._producer)
    await publisher.init_producer()
    assert await publisher.read_mark() == PublishedMark(7, "{}")
    await publisher.close()
    assert await sink.problems() == []


async def test_the_command_settles_on_a_word(sink: Sink, tmp_path, capsys) -> None:
    """And says what it did; the store of this test is away, which is another finding."""
    await sink.transact(untold="row")
    file = tmp_path / "cluster.toml"
    file.write_text(settings_to_toml(sink.cluster))
    assert await asyncio.to_thread(main, ["doctor", "--cluster", str(file), "--settle-transactions"]) == 1
    said = capsys.readouterr()
    assert f"committed: {sink.job}/out/g0/0: {sink.topic}[0] from offset 0" in said.err
    assert sink.job not in said.out
    await sink.sees([b"1"])
