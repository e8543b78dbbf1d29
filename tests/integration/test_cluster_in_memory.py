"""The services of a cluster in one process on in-memory ports: several workers, several candidates for leadership."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from penstock import Pipeline, col, count, tumbling
from penstock.adapters.memory import MemoryBlobs, MemoryLog, MemoryMetadata
from penstock.adapters.system_clock import SystemClock
from penstock.connectors import collecting, iterables
from penstock.graph.executiongraph import ExecutionGraph
from penstock.graph.jobgraph import build_job_graph
from penstock.protocol.checkpoints import CheckpointSettings
from penstock.protocol.joblog import JobHistory, JobLogWriter, Submit, encode_record, log_key
from penstock.protocol.jobmaster import JobMaster
from penstock.protocol.restarts import FixedDelay
from penstock.runtime.coordinator import (
    CoordinatorPorts,
    CoordinatorService,
    CoordinatorTimeouts,
)
from penstock.runtime.job_store import JobStore
from penstock.runtime.subtask import Services
from penstock.runtime.worker import WorkerService

START = datetime(2026, 1, 1, tzinfo=UTC)
ROWS = 6_000
TIMEOUTS = CoordinatorTimeouts(lease_ttl_ms=3_000, takeover_ms=700, worker_ms=1_500)


@dataclass
class Event:
    key: int
    value: int
    at: datetime


def events() -> Iterable[Event]:
    return (Event(n % 7, n, START + timedelta(seconds=n)) for n in range(ROWS))


class Loader:
    """Hands out the pipeline that the test declared."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def load(self, deploy):
        manifest = await self._cluster.store.manifest(deploy.restore) if deploy.restore else None
        return self._cluster.graph, self._cluster.pipeline.plan, manifest


@dataclass
class Cluster:
    """Ports shared by all services, and one job."""

    rate: float | None = None
    parallelism: int = 2
    sink: collecting.Sink = field(default_factory=collecting.Sink)

    def __post_init__(self) -> None:
        self.clock = SystemClock()
        self.log = MemoryLog()
        self.blobs = MemoryBlobs()
        self.store = JobStore(self.blobs, self.clock)
        self.metadata = MemoryMetadata(self.clock)
        self.job = uuid.uuid4().hex
        self.pipeline = Pipeline("cluster")
        (
            self.pipeline.read(iterables.Source(events, schema=Event, event_time="at", rate=self.rate))
            .key_by("key")
            .window(tumbling("100s"))
            .agg(n=count(), total=col("value").sum())
            .write(self.sink)
        )
        self.graph = build_job_graph(self.pipeline.plan, self.parallelism)
        self.tasks: list[asyncio.Task[None]] = []
        self._names = itertools.count()

    async def submit(self) -> None:
        submit = Submit(seq=0, nonce="n", job=self.job, name="cluster", graph=self.graph.to_json())
        await self.blobs.create(log_key(self.job, 0), encode_record(submit))

    async def candidate(self) -> tuple[CoordinatorService, asyncio.Future, asyncio.Task[None]]:
        """Start a coordinator that would lead the job."""
        ports = CoordinatorPorts(self.log, self.blobs, self.metadata, self.clock, lambda: uuid.uuid4().hex)
        service = CoordinatorService(f"leader-{next(self._names)}", ports, TIMEOUTS)
        history = await self.store.history(self.job)
        master = JobMaster(
            self.job,
            history,
            ExecutionGraph(self.graph).topology(),
            CheckpointSettings(interval_ms=50),
            FixedDelay(attempts=20, delay_ms=10),
            ports.new_id,
        )
        ended = service.add_job(self.job, master, JobLogWriter(history))
        await service.prepare()
        return service, ended, self._start(service.run())

    def worker(self, slots: int = 1) -> asyncio.Task[None]:
        """Start a worker process, as far as one process can."""
        services = Services(self.log, self.blobs, self.clock)
        return self._start(WorkerService(f"worker-{next(self._names)}", slots, services, Loader(self)).run())

    def _start(self, service) -> asyncio.Task[None]:
        task = asyncio.ensure_future(service)
        self.tasks.append(task)
        return task

    async def history(self) -> JobHistory:
        return await self.store.history(self.job)

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def check(self) -> None:
        """Every window once, every row counted."""
        assert sum(row["n"] for row in self.sink.rows) == ROWS
        assert sum(row["total"] for row in self.sink.rows) == sum(range(ROWS))
        windows = [(row["key"], row["window_start"]) for row in self.sink.rows]
        assert len(windows) == len(set(windows)) == 7 * ROWS // 100


async def until(condition: Callable[[], object], what: str, deadline_s: float = 20) -> None:
    """Wait for a condition (perhaps a coroutine)."""
    async with asyncio.timeout(deadline_s):
        while True:
            found = condition()
            if asyncio.iscoroutine(found):
                found = await found
            if found:
                return
            await asyncio.sleep(0.01)
    pytest.fail(what)


async def test_a_job_runs_on_two_workers():
    """Slots of two workers hold the job; the result is complete and exact."""
    cluster = Cluster()
    await cluster.submit()
    try:
        _, ended, _ = await cluster.candidate()
        cluster.worker()
        cluster.worker()
        outcome = await asyncio.wait_for(ended, 30)
        assert outcome.state == "FINISHED", outcome.reason
    finally:
        await cluster.stop()
    cluster.check()


async def test_a_job_waits_for_slots_and_says_how_many_are_missing():
    """One slot is too few for parallelism 2; a second worker lets the job begin."""
    cluster = Cluster()
    await cluster.submit()
    try:
        service, ended, _ = await cluster.candidate()
        cluster.worker()
        await until(lambda: service.progress(cluster.job).missing_slots == 1, "one slot is missing")
        cluster.worker()
        assert (await asyncio.wait_for(ended, 30)).state == "FINISHED"
    finally:
        await cluster.stop()
    cluster.check()


async def test_a_dead_worker_is_replaced_and_nothing_is_lost_or_doubled():
    """The job restarts from the newest checkpoint on the slots that are left."""
    cluster = Cluster(rate=4_000)
    await cluster.submit()
    try:
        _, ended, _ = await cluster.candidate()
        first = cluster.worker()
        cluster.worker()

        async def checkpointed() -> bool:
            return (await cluster.history()).complete is not None

        await until(checkpointed, "a checkpoint is complete")
        first.cancel()
        cluster.worker()
        outcome = await asyncio.wait_for(ended, 60)
        assert outcome.state == "FINISHED", outcome.reason
        begins = [record for record in (await cluster.history()).records if type(record).__name__ == "Begin"]
        assert len(begins) >= 2
    finally:
        await cluster.stop()
    cluster.check()


async def test_a_new_leader_adopts_what_runs():
    """When the leader dies another takes over, and restarts nothing."""
    cluster = Cluster(rate=3_000)
    await cluster.submit()
    try:
        _, _, leading = await cluster.candidate()
        cluster.worker(slots=2)

        async def checkpointed() -> bool:
            return (await cluster.history()).complete is not None

        await until(checkpointed, "a checkpoint is complete")
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
        _, ended, _ = await cluster.candidate()
        outcome = await asyncio.wait_for(ended, 60)
        assert outcome.state == "FINISHED", outcome.reason
        records = [type(record).__name__ for record in (await cluster.history()).records]
        assert records.count("Begin") == 1
        assert records.count("Leader") == 2
    finally:
        await cluster.stop()
    cluster.check()
