"""The subtask that publishes, on an exchange in memory and a sink's cluster that answers when it is allowed to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from publishing_parts import FakeCluster, FakePublisher

from penstock import Pipeline
from penstock.adapters.memory import MemoryBlobs, MemoryLog
from penstock.adapters.system_clock import SystemClock
from penstock.connectors import iterables, kafka
from penstock.connectors.base import PublishContext, PublishedMark
from penstock.graph.executiongraph import credits_topic, exchange_topic
from penstock.graph.jobgraph import build_job_graph
from penstock.protocol.messages import Deploy, SubtaskId
from penstock.runtime.inbox import Inbox
from penstock.runtime.publishing import PublishingRunner
from penstock.runtime.subtask import Services


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


async def test_a_publisher_runs_once_its_mark_is_announced(monkeypatch):
    """Before that no checkpoint may be taken, so it does not count as running."""
    publisher = SlowPublisher(FakeCluster())

    def made(_sink: kafka.Sink, _context: PublishContext) -> SlowPublisher:
        return publisher

    monkeypatch.setattr(kafka.Sink, "publisher", made)
    pipeline = Pipeline("published")
    pipeline.read(iterables.Source(lambda: iter(()), schema=Row)).write(kafka.Sink("t", brokers="127.0.0.1:1"))
    graph = build_job_graph(pipeline.plan, 1)
    (vertex,) = [vertex for vertex in graph.vertices if vertex.publishes]
    log, job = MemoryLog(), "j" * 32
    await log.create_topic(exchange_topic(job, vertex.id, 0), 1)
    await log.create_topic(credits_topic(job), 1, compacted=True)
    deploy = Deploy(
        epoch=1, job=job, attempt="a" * 32, attempt_number=1, subtask=SubtaskId(vertex.id, 0), worker="w",
        generation=0, restore=None, start_offset=0,
    )  # fmt: skip
    said: list[str] = []
    services = Services(log, MemoryBlobs(), SystemClock())
    runner = PublishingRunner(
        deploy, graph, pipeline.plan, None, services, Inbox(), lambda _: None, lambda status: said.append(status.state)
    )
    running = asyncio.create_task(runner.run())
    try:
        async with asyncio.timeout(20):
            await publisher.committing.wait()
            assert (runner.status.state, said) == ("initializing", [])
            publisher.allowed.set()
            while not said:  # noqa: ASYNC110 (the runner tells nobody else)
                await asyncio.sleep(0.01)
        assert (runner.status.state, said) == ("running", ["running"])
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
