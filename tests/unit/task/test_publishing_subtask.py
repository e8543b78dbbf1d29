"""The subtask that publishes, on an exchange in memory and a sink's cluster that answers when it is allowed to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass

import polars as pl
import pyarrow as pa
import pytest
from publishing_parts import FakeCluster, FakePublisher

from penstock import Pipeline
from penstock.adapters.memory import MemoryBlobs, MemoryLog
from penstock.adapters.system_clock import SystemClock
from penstock.connectors import iterables, kafka
from penstock.connectors.base import PublishContext, PublishedMark
from penstock.graph.executiongraph import credits_topic, exchange_topic
from penstock.graph.jobgraph import build_job_graph
from penstock.ports import NewRecord
from penstock.protocol.frames import Channel, Frame, FrameKind
from penstock.protocol.messages import CheckpointCompleted, Deploy, SubtaskId
from penstock.protocol.subtask import CompletionRead
from penstock.task.environment import Services, TaskEnvironment
from penstock.task.exchange import encode_payload, frame_schema
from penstock.task.inbox import Inbox
from penstock.task.publishing_subtask import PublishingRunner


@dataclass
class Row:
    value: str


class SlowPublisher(FakePublisher):
    """Its first commit waits until it is allowed."""

    def __init__(self, cluster: FakeCluster) -> None:
        super().__init__(cluster)
        self.committing = asyncio.Event()
        self.allowed = asyncio.Event()

    async def commit(self, frames: Iterable[object], mark: PublishedMark) -> None:
        self.committing.set()
        await self.allowed.wait()
        await super().commit(list(frames), mark)


class NoBlobs(MemoryBlobs):
    """A store in which nothing is found."""

    async def get(self, key: str) -> bytes:
        raise AssertionError(f"{key} was read")


class Published:
    """A publishing subtask on an exchange in memory."""

    def __init__(self, publisher: FakePublisher, monkeypatch: pytest.MonkeyPatch) -> None:
        def made(_sink: kafka.Sink, _context: PublishContext) -> FakePublisher:
            return publisher

        monkeypatch.setattr(kafka.Sink, "publisher", made)
        pipeline = Pipeline("published")
        pipeline.read(iterables.Source(lambda: iter(()), schema=Row)).write(kafka.Sink("t", brokers="127.0.0.1:1"))
        graph = build_job_graph(pipeline.plan, 1)
        (vertex,) = [vertex for vertex in graph.vertices if vertex.publishes]
        self.log, job = MemoryLog(), "j" * 32
        self.topics = (exchange_topic(job, vertex.id, 0), credits_topic(job))
        self.deploy = Deploy(
            epoch=1, job=job, attempt="a" * 32, attempt_number=1, subtask=SubtaskId(vertex.id, 0), worker="w",
            generation=0, restore=None, start_offset=0,
        )  # fmt: skip
        self.schema = frame_schema(vertex.inputs[0])
        self.said: list[str] = []
        services = Services(self.log, NoBlobs(), SystemClock())
        self.acks: list[object] = []
        environment = TaskEnvironment(
            self.deploy, graph, pipeline.plan, None, services, Inbox(), self.acks.append,
            lambda status: self.said.append(status.state),
        )  # fmt: skip
        self.runner = PublishingRunner(environment)
        self._seq = self._rows = 0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """While this lasts."""
        exchange, credits = self.topics
        await self.log.create_topic(exchange, 1)
        await self.log.create_topic(credits, 1, compacted=True)
        task = asyncio.create_task(self.runner.run())
        try:
            async with asyncio.timeout(20):
                yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def send(self, kind: FrameKind, rows: int = 0, checkpoint: int = 0) -> None:
        """Append a frame of its one channel."""
        columns = {name: [f"{self._seq}".encode()] * rows for name in self.schema.names}
        payload = encode_payload(pl.from_arrow(pa.table(columns, self.schema))) if rows else b""
        frame = Frame(
            kind,
            "a" * 32,
            Channel(0, 0),
            self._seq,
            ordinal=self._rows,
            rows=rows,
            checkpoint=checkpoint,
            nonce="c" * 16,
        )
        self._seq += 1
        self._rows += rows
        await self.log.append(self.topics[0], 0, [NewRecord(frame.encode(payload))])

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for it."""
        while not holds():  # noqa: ASYNC110 (the runner tells nobody else)
            await asyncio.sleep(0.01)


async def test_a_publisher_runs_once_its_mark_is_announced(monkeypatch: pytest.MonkeyPatch):
    """Before that no checkpoint may be taken, so it does not count as running."""
    publisher = SlowPublisher(FakeCluster())
    published = Published(publisher, monkeypatch)
    runner = published.runner
    async with published.running():
        await publisher.committing.wait()
        assert (runner.status.state, published.said) == ("initializing", [])
        publisher.allowed.set()
        await published.until(lambda: bool(published.said))
        assert (runner.status.state, published.said) == ("running", ["running"])


async def test_a_publisher_that_is_refused_says_by_whom(monkeypatch: pytest.MonkeyPatch):
    """In its status, until it may publish; that it reads the log, which answers, takes nothing of that back."""
    cluster = FakeCluster()
    published = Published(FakePublisher(cluster), monkeypatch)
    monkeypatch.setattr(FakePublisher, "open", lambda _: asyncio.sleep(0))
    runner = published.runner
    cluster.trouble = 1.0
    async with published.running():
        await published.send(FrameKind.DATA, rows=1)
        await published.until(lambda: runner.status.waits_for == "publishing: no answer: InitProducerId, not done")
        cluster.trouble = 0.0
        await published.until(lambda: runner.state == "running" and not runner.status.waits_for)


async def test_a_publisher_reads_no_manifest(monkeypatch: pytest.MonkeyPatch):
    """What is complete of its partition it knows from its own acks: a manifest has as much of every other subtask."""
    cluster = FakeCluster()
    published = Published(FakePublisher(cluster), monkeypatch)
    deploy, runner = published.deploy, published.runner
    async with published.running():
        await published.until(lambda: runner.state == "running")
        for checkpoint in (1, 2):
            await published.send(FrameKind.DATA, rows=1)
            await published.send(FrameKind.BARRIER, checkpoint=checkpoint)
            await published.until(lambda checkpoint=checkpoint: len(published.acks) == checkpoint)
        completed = CheckpointCompleted(epoch=1, job=deploy.job, attempt=deploy.attempt, checkpoint=2, nonce="c" * 16)
        runner.inbox.put(CompletionRead(completed))
        await published.until(lambda: runner.status.published == 2)
    assert cluster.records == [b"0", b"2"]
