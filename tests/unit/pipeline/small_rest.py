"""A dispatcher over the ports of a small pipeline service, and what is sent to it."""

from __future__ import annotations

import io
import uuid
import zipfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
from small_pipeline import SmallPipeline, until

from penstock import Pipeline
from penstock.client import ClusterClient
from penstock.client.documents import ArtifactDescription
from penstock.client.run_documents import RunOptions, RunSubmission
from penstock.connectors import collecting, iterables
from penstock.graph.jobgraph import build_job_graph
from penstock.service.access import Access, Gate
from penstock.service.http_server import Readiness
from penstock_dispatcher.app import dispatcher_app
from penstock_dispatcher.cluster import DispatcherPorts
from penstock_pipeline.service import PipelineService

ADDRESS = "http://localhost"


@dataclass
class Row:
    a: int


def graph(name: str = "flights") -> dict[str, Any]:
    pipeline = Pipeline(name)
    pipeline.read(iterables.Source([Row(1)])).write(collecting.Sink())
    return build_job_graph(pipeline.plan, 1).to_json()


def sources(text: str = "p = 1") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo("flights.py"), text + "\n")  # without a time: always the same bytes
    return buffer.getvalue()


def submission(run: str = "", **options: Any) -> RunSubmission:
    return RunSubmission("flights", graph(), ArtifactDescription("flights.py"), RunOptions(**options), run)


class Rest:
    """A dispatcher and its client."""

    def __init__(self, small: SmallPipeline) -> None:
        self.small = small
        ports = DispatcherPorts(small.log, small.blobs, small.metadata, small.clock, lambda: uuid.uuid4().hex)
        app = Gate(dispatcher_app(ports, Readiness(), list), Access())
        transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
        self.client = ClusterClient(ADDRESS, transport)
        self.http = httpx2.AsyncClient(transport=transport, base_url=ADDRESS, headers={"X-Requested-With": "test"})
        small.children.sources = sources()

    @asynccontextmanager
    async def service(self, **options: Any) -> AsyncGenerator[PipelineService]:
        """A pipeline service that the dispatcher sees."""
        async with self.small.service(**options) as service:

            async def seen() -> bool:
                return bool((await self.client.runs()).service)

            await until(seen, "the service is seen")
            yield service

    async def state(self, run: str, state: str) -> None:
        """Wait until REST says so."""

        async def there() -> bool:
            return (await self.client.run(run)).summary.state == state

        await until(there, f"{run} is {state}")
