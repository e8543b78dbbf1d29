"""A leader takes for lost only what is lost: heartbeats may be older than what it knows, and may come twice."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tests.integration.one_job import Cluster, until

from penstock.adapters.memory import MemoryBlobs, MemoryLog
from penstock.coordination.control_topics import EVENTS
from penstock.ports import NewRecord
from penstock.protocol.joblog import Begin
from penstock.protocol.messages import Heartbeat, TaskChanged, decode_event


class HeartbeatCounter(MemoryLog):
    """Counts heartbeats."""

    heartbeats = 0

    async def append(self, topic: str, partition: int, records: Sequence[NewRecord]) -> int:
        if topic == EVENTS:
            self.heartbeats += sum(isinstance(decode_event(record.value), Heartbeat) for record in records)
        return await super().append(topic, partition, records)


async def test_heartbeats_that_come_while_a_job_is_opened_lose_nothing(monkeypatch):
    """A new leader waits for the store while workers go on: it adopts what runs, and restarts nothing."""
    log = HeartbeatCounter()
    cluster = Cluster(rate=3_000, log=log)
    await cluster.submit()
    get, waited = MemoryBlobs.get, 0

    async def slow_manifest(blobs: MemoryBlobs, key: str, start: int = 0, end: int | None = None) -> bytes:
        nonlocal waited
        if key.endswith("/manifest.json"):
            waited, seen = waited + 1, log.heartbeats
            await until(lambda: log.heartbeats >= seen + 2, "the first of two more heartbeats is read")
        return await get(blobs, key, start, end)

    try:
        _, _, leading = await cluster.candidate()
        cluster.worker(slots=2)
        await until(cluster.checkpointed, "a checkpoint is complete")
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
        monkeypatch.setattr(MemoryBlobs, "get", slow_manifest)
        _, ended, _ = await cluster.candidate()
        outcome = await asyncio.wait_for(ended, 60)
        assert outcome.state == "FINISHED", outcome.reason
        assert waited
        history = await cluster.history()
        assert not history.failures
        assert sum(isinstance(record, Begin) for record in history.records) == 1
    finally:
        await cluster.stop()
    cluster.check()


class RepeatingLog(MemoryLog):
    """What was appended last comes again once a subtask runs, as if one answer about all of it had been lost."""

    def __init__(self) -> None:
        super().__init__()
        self.repeated = 0
        self._unanswered: list[NewRecord] = []

    async def append(self, topic: str, partition: int, records: Sequence[NewRecord]) -> int:
        end = await super().append(topic, partition, records)
        if topic != EVENTS:
            return end
        for record in records:
            event = decode_event(record.value)
            if isinstance(event, Heartbeat) and not event.tasks:
                self._unanswered = []
            self._unanswered.append(record)
            if isinstance(event, TaskChanged) and event.status.state == "running":
                self.repeated += 1
                end = await super().append(topic, partition, self._unanswered)
        return end


async def test_a_heartbeat_that_is_appended_twice_loses_nothing():
    """The second time it comes after the news of subtasks that it does not know yet."""
    log = RepeatingLog()
    cluster = Cluster(log=log)
    await cluster.submit()
    try:
        _, ended, _ = await cluster.candidate()
        cluster.worker(slots=2)
        outcome = await asyncio.wait_for(ended, 60)
        assert outcome.state == "FINISHED", outcome.reason
        assert log.repeated
        assert not (await cluster.history()).failures
    finally:
        await cluster.stop()
    cluster.check()
