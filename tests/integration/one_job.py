"""A cluster in memory that runs one job: windows over a stream whose every row can be accounted for."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from penstock import Pipeline, col, count, tumbling
from penstock.adapters.memory import MemoryLog
from penstock.connectors import collecting, iterables
from penstock.connectors.base import Sink
from penstock.graph.jobgraph import build_job_graph
from penstock.graph.rescaling import scalable_form
from penstock.jobmanager.coordinator import CoordinatorService, CoordinatorTimeouts
from penstock.protocol.checkpoints import CheckpointSettings
from penstock.protocol.joblog import JobHistory, JobSettings
from penstock.protocol.messages import Restore
from penstock.protocol.requests import Answer, SubmitJob
from penstock.protocol.restarts import FixedDelay, RestartStrategy
from penstock.task.environment import SubtaskSettings
from penstock.testing.memory_cluster import MemoryCluster

START = datetime(2026, 1, 1, tzinfo=UTC)
ROWS = 6_000
DEADLINE_S = 120
RESTARTS = FixedDelay(attempts=20, delay_ms=10)
TIMEOUTS = CoordinatorTimeouts(lease_ttl_ms=3_000, takeover_ms=700, worker_ms=1_500)


@dataclass
class Event:
    key: int
    value: int
    at: datetime


class Input:
    """Rows 0, 1, 2, ...: `ROWS` of them, or as many as come until the test calls `end`.

    What a test does to a job must not race with the end of the input, which a loaded machine lets it lose.
    """

    def __init__(self, *, held: bool) -> None:
        self.rows = 0 if held else ROWS
        """How many there are; 0: not known yet."""
        self._made = 0

    def __call__(self) -> Iterable[Event]:
        """From the first row on, as after every restart."""
        n = 0
        while not self.rows or n < self.rows:
            self._made = max(self._made, n + 1)
            yield Event(n % 7, n, START + timedelta(seconds=n))
            n += 1

    def end(self) -> None:
        """No row after those of the window that is being read."""
        self.rows = max(ROWS, -(-self._made // 100) * 100)


class Cluster(MemoryCluster):
    """One job on ports in memory."""

    def __init__(
        self,
        *,
        rate: float | None = None,
        held: bool = False,
        parallelism: int = 2,
        sink: Sink | None = None,
        log: MemoryLog | None = None,
        data: SubtaskSettings | None = None,
    ) -> None:
        """`held`: the input lasts until `input.end()`. `sink`: rows go there instead of being gathered for `check`."""
        super().__init__(timeouts=TIMEOUTS, plan_of=lambda _: self.pipeline.plan, log=log, data=data)
        self.job = uuid.uuid4().hex
        self.coordinators: list[CoordinatorService] = []
        self.sink = collecting.Sink()
        self.input = Input(held=held)
        self.pipeline = Pipeline("cluster")
        (
            self.pipeline.read(iterables.Source(self.input, schema=Event, event_time="at", rate=rate))
            .key_by("key")
            .window(tumbling("100s"))
            .agg(n=count(), total=col("value").sum())
            .write(sink or self.sink)
        )
        self.graph = build_job_graph(self.pipeline.plan, parallelism)

    async def submit(self, restart: RestartStrategy = RESTARTS, restored_from: Restore | None = None) -> None:
        """By the id that the test knows already; again, if it says so again. `restored_from`: a job of its own."""
        self.job = uuid.uuid4().hex if restored_from is not None else self.job
        settings = JobSettings(CheckpointSettings(interval_ms=50), restart)
        request = SubmitJob(
            request=self.job, job=self.job, name="cluster", graph=self.graph.to_json(),
            scalable=scalable_form(self.pipeline.plan).to_json(), settings=settings,
            restored_from=restored_from,
        )  # fmt: skip
        await self.request(request)

    async def answer(self, request: str) -> Answer:
        """The answer to a request about the job."""
        return await super().answer(self.job, request, DEADLINE_S)

    async def candidate(self) -> tuple[CoordinatorService, asyncio.Future, asyncio.Task[None]]:
        """Start a coordinator that would lead the job."""
        service = self.coordinator()
        self.coordinators.append(service)
        return service, service.job_ended(self.job), self.tasks[service.name]

    async def checkpointed(self) -> bool:
        """Whether a checkpoint is complete."""
        return (await self.history()).complete is not None

    async def history(self, job: str = "") -> JobHistory:
        """The log of the job, if no other is named."""
        return await super().history(job or self.job)

    def check(self) -> None:
        """Every window once, every row counted."""
        assert sum(row["n"] for row in self.sink.rows) == self.input.rows
        assert sum(row["total"] for row in self.sink.rows) == sum(range(self.input.rows))
        windows = [(row["key"], row["window_start"]) for row in self.sink.rows]
        assert len(windows) == len(set(windows)) == 7 * self.input.rows // 100


async def until(condition: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> None:
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
