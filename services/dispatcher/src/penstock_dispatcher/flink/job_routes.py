"""Routes of one job: its page, plan, configuration, failures, metrics, result, and what it may be rescaled to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from penstock.protocol.requests import RescaleJob
from penstock_dispatcher.bodies import read_body
from penstock_dispatcher.flink import job_shapes as shapes
from penstock_dispatcher.flink.answers import Nothing, get, sent
from penstock_dispatcher.flink.cluster_shapes import FlinkEnvironment, environment, settings_shown
from penstock_dispatcher.flink.lookup import Lookup, number
from penstock_dispatcher.flink.metrics import job_metrics, listed
from penstock_dispatcher.flink.states import flink_state
from penstock_dispatcher.refusing import RestError

FAILURES: int = 20
"""How many are answered where nobody says how many: Flink's number."""


class JobRoutes:
    """The handlers."""

    def __init__(self, lookup: Lookup, settings: Mapping[str, str]) -> None:
        """`settings` are those of this process, as they may be shown."""
        self._lookup = lookup
        self._cluster = lookup.cluster
        self._settings = settings

    def add_to(self, router: APIRouter) -> None:
        """Add all routes."""
        job = "/jobs/{job_id}"
        get(router, job, self.job, shapes.FlinkJob)
        get(router, f"{job}/status", self.status, shapes.FlinkJobStatus)
        get(router, f"{job}/plan", self.plan, shapes.FlinkJobPlan)
        get(router, f"{job}/config", self.config, shapes.FlinkJobConfig)
        get(router, f"{job}/exceptions", self.failures, shapes.FlinkFailures)
        get(router, f"{job}/accumulators", self.accumulators, shapes.FlinkJobAccumulators)
        get(router, f"{job}/execution-result", self.result, shapes.FlinkExecutionResult)
        get(router, f"{job}/metrics", self.metrics)
        get(router, f"{job}/jobmanager/config", self.settings)
        get(router, f"{job}/jobmanager/environment", self.environment, FlinkEnvironment)
        get(router, f"{job}/resource-requirements", self.requirements)
        get(router, f"{job}/rescales/{{page:path}}", self.rescales)
        add: Any = router.add_api_route
        add(f"{job}/resource-requirements", self.rescale, methods=["PUT"])

    async def job(self, job_id: str) -> Response:
        """Flink: one job."""
        found = await self._lookup.job(job_id)
        return sent(shapes.job(found, await self._lookup.view(), self._cluster.now_us()))

    async def status(self, job_id: str) -> Response:
        """Flink: the state of a job."""
        return sent(shapes.FlinkJobStatus(flink_state((await self._lookup.job(job_id)).state)))

    async def plan(self, job_id: str) -> Response:
        """Flink: the graph of a job."""
        found = await self._lookup.job(job_id)
        return sent(shapes.FlinkJobPlan(shapes.plan(found.job, shapes.graph_of(found))))

    async def config(self, job_id: str) -> Response:
        """Flink: how a job is run."""
        return sent(shapes.job_config(await self._lookup.job(job_id)))

    async def failures(self, job_id: str, maxExceptions: str = str(FAILURES)) -> Response:  # noqa: N803 -- Flink's name
        """Flink: why attempts of a job failed, newest first."""
        most = number("maxExceptions", maxExceptions)
        found = await self._lookup.job(job_id)
        return sent(shapes.failures(found, await self._lookup.view(), most))

    async def accumulators(self, job_id: str) -> Response:
        """Flink: accumulators; there are none."""
        await self._lookup.job(job_id)
        return sent(shapes.FlinkJobAccumulators())

    async def result(self, job_id: str) -> Response:
        """Flink: how a job ended."""
        return sent(shapes.execution_result(await self._lookup.job(job_id), self._cluster.now_us()))

    async def metrics(self, job_id: str, get: str | None = None) -> Response:
        """Flink: metrics of a job."""
        return sent(listed(job_metrics(await self._lookup.job(job_id), self._cluster.now_us()), get))

    async def settings(self, job_id: str) -> Response:
        """Flink: the settings of the cluster that runs it."""
        await self._lookup.job(job_id)
        return sent(settings_shown(self._settings))

    async def environment(self, job_id: str) -> Response:
        """Flink: what this dispatcher runs on."""
        await self._lookup.job(job_id)
        return sent(environment())

    # -- rescaling ------------------------------------------------------------------------------------------------------

    async def requirements(self, job_id: str) -> Response:
        """Flink: how many subtasks the vertices may have."""
        return sent(shapes.requirements(shapes.graph_of(await self._lookup.job(job_id))))

    async def rescale(self, job_id: str, request: Request) -> Response:
        """Flink: go on with as many subtasks as these upper bounds say, once there are slots for them."""
        wanted = await read_body(request, dict[str, shapes.FlinkRequirement])
        found = await self._lookup.jobs.alive((await self._lookup.job(job_id)).job)
        parallelism = shapes.parallelism_for({vertex.lower(): one for vertex, one in wanted.items()}, found)
        if parallelism is not None:
            await self._cluster.leading_view()
            request_id, now_us = self._cluster.new_id(), self._cluster.now_us()
            await self._cluster.ask(
                RescaleJob(request=request_id, job=found.job, issued_us=now_us, parallelism=parallelism, wait=True)
            )
        return sent(Nothing())

    async def rescales(self, job_id: str) -> Response:
        """Flink: what its adaptive scheduler did; Penstock rescales when it is asked to."""
        await self._lookup.job(job_id)
        raise RestError(
            404, "there is no history of rescales: jobs are rescaled on request, and GET /penstock/v1 has that"
        )
