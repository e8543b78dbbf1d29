"""A whole cluster in one process, behind a dispatcher that is asked without a network."""

from __future__ import annotations

import asyncio
import io
import json
import uuid
import zipfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import msgspec
import pytest

from penstock import Pipeline, col, count, tumbling
from penstock.client import ClusterClient
from penstock.connectors import collecting, iterables
from penstock.graph.jobgraph import build_job_graph
from penstock.graph.rescaling import scalable_form
from penstock.jobmanager.coordinator import CoordinatorTimeouts
from penstock.protocol.checkpoints import CheckpointSettings
from penstock.protocol.joblog import JobSettings
from penstock.protocol.restarts import FixedDelay
from penstock.service.access import Access, Gate
from penstock.service.http_server import Readiness
from penstock.task.environment import SubtaskSettings
from penstock.testing.memory_cluster import MemoryCluster
from penstock_dispatcher.app import dispatcher_app
from penstock_dispatcher.cluster import DispatcherPorts

START = datetime(2026, 1, 1, tzinfo=UTC)
ROWS = 6_000
TIMEOUTS = CoordinatorTimeouts(lease_ttl_ms=3_000, takeover_ms=300, worker_ms=1_500)
ADDRESS = "http://localhost"


@dataclass
class Event:
    key: int
    value: int
    at: datetime


def events() -> Iterable[Event]:
    return (Event(n % 7, n, START + timedelta(seconds=n)) for n in range(ROWS))


def sources(file: str = "cluster.py") -> bytes:
    """A zip with a file in it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo(file), "p = 1\n")  # without the time: the same bytes whenever it is called
    return buffer.getvalue()


class SmallCluster:
    """Ports, a pipeline, and a dispatcher; coordinators and workers are started by the test."""

    def __init__(
        self,
        *,
        rate: float | None = 100,
        collects: bool = False,
        other: SmallCluster | None = None,
        data: SubtaskSettings | None = None,
    ) -> None:
        """`rate`: rows a second; by default no job ends of itself while a test asks for it. `collects`: as `Services`.
        `other`: a cluster of which this is one more dispatcher. `data`: settings of the data path."""
        self._collects = collects
        own = MemoryCluster(timeouts=TIMEOUTS, data=data, collects=collects, plan_of=lambda _: self.pipeline.plan)
        self.services = own if other is None else other.services
        self.clock, self.store = self.services.clock, self.services.store
        self.log, self.blobs, self.metadata = self.services.log, self.services.blobs, self.services.metadata
        self.sink = collecting.Sink()
        self.set_rate(rate)
        ports = DispatcherPorts(self.log, self.blobs, self.metadata, self.clock, lambda: uuid.uuid4().hex)
        self.app = dispatcher_app(ports, Readiness(), list)
        self.transport = httpx2.ASGITransport(Gate(self.app, Access()), raise_app_exceptions=False)
        own_page = {"X-Requested-With": "test", "Sec-Fetch-Site": "same-origin"}  # which may change something by GET
        self.http = httpx2.AsyncClient(transport=self.transport, base_url=ADDRESS, headers=own_page)
        self.client = ClusterClient(ADDRESS, self.transport)

    def set_rate(self, rate: float | None) -> None:
        """How many rows a second the jobs read that are submitted or restored from now on."""
        self.pipeline = Pipeline("counts")
        written = (
            self.pipeline.read(iterables.Source(events, schema=Event, event_time="at", rate=rate))
            .key_by("key")
            .window(tumbling("100s"))
            .agg(n=count(), total=col("value").sum())
            .write(self.sink)
        )
        if self._collects:
            written.uid("the sink: 100 %")

    def document(self, **changes: Any) -> dict[str, Any]:
        """A submission's JSON part, as a client would write it."""
        settings = JobSettings(CheckpointSettings(interval_ms=50), FixedDelay(attempts=20, delay_ms=10))
        return {
            "name": self.pipeline.name,
            "graph": build_job_graph(self.pipeline.plan, 2).to_json(),
            "scalable": scalable_form(self.pipeline.plan).to_json(),
            "settings": msgspec.to_builtins(settings),
            "artifact": {"target": "cluster.py"},
            **changes,
        }

    async def post(self, document: Any, data: bytes | None = None) -> httpx2.Response:
        """Submit whatever this is."""
        text = document if isinstance(document, bytes) else json.dumps(document).encode()
        files = {"job": ("job", text), "sources": ("sources", sources() if data is None else data)}
        return await self.http.post("/penstock/v1/jobs", files=files)

    async def submit(self, **changes: Any) -> str:
        """Submit the pipeline; its id."""
        response = await self.post(self.document(**changes))
        assert response.status_code == 202, response.text
        return response.json()["job"]

    def worker(self, slots: int = 1) -> None:
        """Start a worker."""
        self.services.worker(slots)

    async def led(self) -> None:
        """Start a coordinator and wait until it leads."""
        self.services.coordinator(address="here")

        async def leads() -> bool:
            return bool((await self.client.overview()).leader)

        await until(leads, "a coordinator leads")

    async def checkpointed(self, job: str) -> None:
        """Wait for a complete checkpoint."""

        async def complete() -> bool:
            return (await self.store.history(job)).complete is not None

        await until(complete, "a checkpoint is complete")

    async def ended(self, job: str) -> str:
        """Wait for the end; the state."""

        async def over() -> bool:
            return any(found.job == job and found.ended_us is not None for found in (await self.client.jobs()).jobs)

        await until(over, "the job has ended")
        return (await self.client.job(job)).summary.state

    async def stop(self) -> None:
        """End everything."""
        await self.services.stop()
        await self.http.aclose()
        await self.client.close()

    def check(self) -> None:
        """Every window once, every row counted."""
        assert sum(row["n"] for row in self.sink.rows) == ROWS
        assert len(self.sink.rows) == 7 * ROWS // 100


@asynccontextmanager
async def small_cluster(*, slots: int = 2, leads: bool = True, **options: Any) -> AsyncGenerator[SmallCluster]:
    """One with a leader and workers."""
    cluster = SmallCluster(**options)
    try:
        if leads:
            await cluster.led()
        for _ in range(slots):
            cluster.worker()
        yield cluster
    finally:
        await cluster.stop()


async def until(condition: Callable[[], Awaitable[bool]], what: str, deadline_s: float = 30) -> None:
    """Wait for a condition."""
    try:
        async with asyncio.timeout(deadline_s):
            while True:
                if await condition():
                    return
                await asyncio.sleep(0.02)
    except TimeoutError:
        pytest.fail(f"not within {deadline_s} s: {what}")
