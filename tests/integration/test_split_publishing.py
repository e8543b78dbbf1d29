"""A chain without state from Kafka to Kafka: rows are visible without checkpoints, each once, whatever happens."""

from __future__ import annotations

import asyncio
import json
import random
import time
import uuid
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import pytest
from confluent_kafka import Producer
from tests.integration.one_job import TIMEOUTS, until
from tests.integration.test_kafka_sink import Target

from penstock import Pipeline, col
from penstock.connectors import kafka
from penstock.connectors.kafka.marks import delete_marks, marks_of_job
from penstock.connectors.kafka.topics import TopicAdmin
from penstock.errors import PipelineError, UsageError
from penstock.graph.jobgraph import JobGraph, build_job_graph, graph_from_json
from penstock.protocol.checkpoints import CheckpointSettings
from penstock.protocol.joblog import JobSettings
from penstock.protocol.messages import Restore
from penstock.protocol.requests import RescaleJob, StopJob, TakeSavepoint
from penstock.protocol.restarts import FixedDelay, NoRestart, RestartStrategy
from penstock.savepoint.transfer import export_savepoint
from penstock.settings import KafkaSettings
from penstock.task import sources
from penstock.testing.memory_cluster import MemoryCluster

pytestmark = pytest.mark.timeout(180)
PARTITIONS = 4
NEVER_MS = 3_600_000


@dataclass
class Order:
    """A row of the input."""

    number: int
    shop: str


@dataclass
class Taken:
    """A row of the output; the nonce differs whenever it is made again."""

    number: int
    shop: str
    nonce: int


def taken(order: Order) -> Taken:
    """Not deterministic, so that a row that is published by two attempts is seen."""
    return Taken(order.number, order.shop, random.getrandbits(40))


class Orders(MemoryCluster):
    """A cluster in memory, a topic that is written meanwhile, and jobs that filter it into another."""

    def __init__(self, settings: KafkaSettings, interval_ms: int) -> None:
        super().__init__(timeouts=TIMEOUTS)
        kafka.use_cluster(settings, "split-test")
        self.settings = settings
        self.source = f"orders-{uuid.uuid4().hex[:8]}"
        self.admin = TopicAdmin(settings, "test")
        self.admin.create(self.source, PARTITIONS)
        self.target = Target(settings, key="shop", publish="direct")
        self.admin.create(self.target.topic, 3)
        self.sent = 0
        self.jobs: list[str] = []
        self.connect()
        self.interval_ms = interval_ms
        self.restarts: RestartStrategy = FixedDelay(attempts=50, delay_ms=10)

    def connect(self) -> None:
        """A producer that knows all partitions there are now."""
        self._producer = Producer({"bootstrap.servers": self.settings.brokers, "linger.ms": 2})

    def pipeline(self) -> Pipeline:
        """One of three rows is left out, and all of one partition."""
        p = Pipeline("orders")
        orders = p.read(kafka.Source(self.source, schema=Order, format="json", security=self.settings)).uid("in")
        kept = orders.filter((col("number") % 3 != 0) & (col("number") % PARTITIONS != 1))
        kept.map(taken).write(self.target.sink).uid("out")
        return p

    def graph(self) -> JobGraph:
        """Of the pipeline as clusters run it."""
        return build_job_graph(self.pipeline().plan, 2, by_splits=True)

    async def start(self, parallelism: int = 2, restored_from: Restore | None = None) -> str:
        """Submit the job."""
        settings = JobSettings(CheckpointSettings(interval_ms=self.interval_ms, min_pause_ms=0), self.restarts)
        job = await self.submit(self.pipeline().plan, settings, parallelism=parallelism, restored_from=restored_from)
        self.jobs.append(job)
        return job

    def send(self, count: int, partitions: int = PARTITIONS) -> None:
        """More rows, spread by number."""
        for number in range(self.sent, self.sent + count):
            value = json.dumps({"number": number, "shop": f"s{number % 11}"})
            self._producer.produce(self.source, value, partition=number % partitions)
        self._producer.flush(30)
        self.sent += count

    async def sending(self, per_s: int = 2_000) -> None:
        """Rows come until this is cancelled."""
        while True:
            await asyncio.to_thread(self.send, per_s // 20)
            await asyncio.sleep(0.05)

    @property
    def expected(self) -> list[int]:
        """The rows that are to be visible in the end."""
        return [number for number in range(self.sent) if number % 3 and number % PARTITIONS != 1]

    async def visible(self) -> list[int]:
        """The numbers of the rows that are visible."""
        return [json.loads(record.value)["number"] for record in await self.target.records()]

    async def all_visible(self) -> bool:
        """Whether nothing is missing."""
        return len(set(await self.visible())) >= len(self.expected)

    async def complete(self, job: str) -> int:
        """The newest complete checkpoint."""
        record = (await self.history(job)).complete
        return record.checkpoint if record is not None else 0

    async def beyond(self, job: str, checkpoint: int) -> bool:
        """Whether a newer one is complete."""
        return await self.complete(job) > checkpoint

    async def check(self) -> None:
        """Every row once; rows of a partition in their order."""
        await until(self.all_visible, "every row is visible")
        found = await self.visible()
        twice = [number for number, times in Counter(found).items() if times > 1]
        assert twice == [], f"{len(twice)} rows are visible twice"
        assert sorted(found) == self.expected

    async def restore(self, job: str) -> Restore:
        """What a job that has ended left to go on from."""
        retained = (await self.history(job)).retained
        assert retained is not None
        return Restore(retained.checkpoint, retained.manifest, retained.sha256)


@pytest.fixture
async def orders(platform) -> AsyncGenerator[Orders]:
    """A cluster with a leader and three workers, checkpoints every 100 ms."""
    cluster = Orders(platform.settings("splits").kafka, 100)
    cluster.coordinator()
    for _ in range(3):
        cluster.worker(2)
    yield cluster
    await cluster.stop()
    for job in cluster.jobs:
        for marks in marks_of_job("split-test", job, cluster.graph(), [0]):
            await delete_marks(marks.settings(cluster.settings), marks.topic)


def test_only_chains_without_state_take_this_way(platform) -> None:
    """Where the sink says so; an embedded run, whose graph may be changed before it is resumed, does not."""
    settings = platform.settings("splits").kafka
    sink = kafka.Sink("out", key="shop", security=settings, publish="direct")

    def source():
        return Pipeline("p").read(kafka.Source("in", schema=Order, format="json", security=settings))

    def verbs(stream, to=sink, **options) -> list[list[str]]:
        stream.write(to)
        graph = build_job_graph(stream._pipeline.plan, 2, **options)
        assert graph_from_json(graph.to_json()) == graph
        return [[operator.verb for operator in vertex.operators] for vertex in graph.vertices]

    kept = col("number") > 3
    assert verbs(source().filter(kept).map(taken), by_splits=True) == [["read", "filter", "map", "encode", "publish"]]
    assert verbs(source(), by_splits=True) == [["read", "encode", "publish"]]
    assert verbs(source().filter(kept)) == [["read", "filter", "encode"], ["publish"]]
    assert verbs(source(), by_splits=True, at_least_once=True) == [["read", "write"]]
    assert verbs(source(), by_splits=True, publish=False) == [["read", "write"]]
    waits = kafka.Sink("out", key="shop", security=settings)
    assert verbs(source(), waits, by_splits=True) == [["read", "encode"], ["publish"]]
    one, two = source(), source()
    two.filter(kept).write(waits)
    for stream in (source().distinct("shop"), one.union(one.filter(kept)), two):
        with pytest.raises(PipelineError, match="is to publish directly, and has to wait for checkpoints"):
            verbs(stream, by_splits=True)


async def test_rows_are_visible_before_any_checkpoint(platform) -> None:
    """A checkpoint an hour: rows are there in a moment."""
    cluster = Orders(platform.settings("splits").kafka, NEVER_MS)
    try:
        cluster.coordinator()
        cluster.worker(2)
        job = await cluster.start()
        cluster.send(3_000)
        await cluster.check()
        cluster.send(60)
        began = time.monotonic()
        await cluster.check()
        print(f"visible after {time.monotonic() - began:.2f} s, which a consumer needs most of")
        assert not await cluster.complete(job)
    finally:
        await cluster.stop()


async def test_failing_workers_and_rescales_lose_and_double_nothing(orders) -> None:
    """While rows come in, workers die, some of them without a word, and the job gets wider and narrower."""
    job = await orders.start()
    sending = asyncio.create_task(orders.sending())
    for _ in range(3):
        seen = await orders.complete(job)
        await until(lambda seen=seen: orders.beyond(job, seen), "a checkpoint is complete")
        await orders.kill_worker(next(iter(orders.live_workers())).name)
        orders.worker(2)
    for parallelism in (4, 1):
        seen = await orders.complete(job)
        await until(lambda seen=seen: orders.beyond(job, seen), "a checkpoint is complete after a restart")
        await orders.request(RescaleJob(request=f"to {parallelism}", job=job, parallelism=parallelism))
        answer = await orders.answer(job, f"to {parallelism}", 60)
        assert answer.outcome == "completed", answer.reason
    sending.cancel()
    await orders.check()


async def test_a_stop_leaves_a_savepoint_behind_which_nothing_is_visible(orders) -> None:
    """The next job begins there: nothing is lost, nothing is doubled, and the marks of the first are gone."""
    first = await orders.start()
    sending = asyncio.create_task(orders.sending())
    await until(lambda: orders.beyond(first, 2), "checkpoints are complete")
    await orders.request(StopJob(request="stop", job=first))
    answer = await orders.answer(first, "stop", 60)
    assert answer.outcome == "completed", answer.reason
    history = await orders.history(first)
    (savepoint,) = history.savepoints.values()
    restore = Restore(savepoint.checkpoint, savepoint.manifest, savepoint.sha256)
    second = await orders.start(3, restored_from=restore)
    await until(lambda: orders.beyond(second, savepoint.checkpoint), "the second job has a checkpoint")
    sending.cancel()
    await orders.check()


async def test_a_failed_job_is_followed_from_where_its_marks_stand(orders, tmp_path) -> None:
    """It has published behind its last checkpoint: a job that starts from that goes on behind those rows."""
    orders.interval_ms, orders.restarts = NEVER_MS, NoRestart()
    first = await orders.start()
    orders.send(500)
    await orders.check()
    await orders.request(TakeSavepoint(request="kept", job=first))  # a COMPLETE, then rows behind it
    assert (await orders.answer(first, "kept", 60)).outcome == "completed"
    orders.send(2_000)
    await orders.check()
    for worker in [worker.name for worker in orders.live_workers() if worker.statuses()]:
        await orders.kill_worker(worker)
        orders.worker(2)

    async def failed() -> bool:
        return (await orders.history(first)).terminated is not None

    await until(failed, "the job has failed")
    orders.interval_ms = 100
    with pytest.raises(UsageError, match="published rows behind it"):
        await export_savepoint(orders.blobs, await orders.restore(first), tmp_path / "kept")
    second = await orders.start(1, restored_from=await orders.restore(first))
    orders.send(400)
    await until(lambda: orders.beyond(second, 1), "the second job has a checkpoint")
    await orders.check()


async def test_partitions_that_are_added_are_read_and_published(orders, monkeypatch) -> None:
    """Their marks stand in new partitions of the topic of the marks."""
    monkeypatch.setattr(sources, "DISCOVERY_INTERVAL_MS", 500)
    await orders.start()
    orders.send(300)
    await orders.check()
    orders.admin.grow(orders.source, PARTITIONS + 2)
    await until(lambda: orders.admin.partitions(orders.source) == PARTITIONS + 2, "the topic has more partitions")
    orders.connect()
    orders.send(300, partitions=PARTITIONS + 2)
    await orders.check()
