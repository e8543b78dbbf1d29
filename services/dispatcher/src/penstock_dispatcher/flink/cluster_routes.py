"""Routes of the cluster: what the overview, the lists of jobs and applications, and the page of the job manager ask."""

from __future__ import annotations

import datetime
from collections.abc import Mapping

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from penstock_dispatcher.flink import cluster_shapes as shapes
from penstock_dispatcher.flink.answers import get, path_id, sent
from penstock_dispatcher.flink.job_shapes import FlinkApplicationFailures, application_failures
from penstock_dispatcher.flink.lookup import Lookup
from penstock_dispatcher.flink.metrics import aggregated, job_metrics, listed
from penstock_dispatcher.flink.taskmanager_shapes import FlinkLogFiles
from penstock_dispatcher.jobs import Found
from penstock_dispatcher.refusing import RestError


class ClusterRoutes:
    """The handlers."""

    def __init__(self, lookup: Lookup, settings: Mapping[str, str]) -> None:
        """`settings` are those of this process, as they may be shown."""
        self._lookup = lookup
        self._cluster = lookup.cluster
        self._jobs = lookup.jobs
        self._settings = settings

    def add_to(self, router: APIRouter) -> None:
        """Add all routes."""
        get(router, "/config", self.config, shapes.FlinkConfig)
        get(router, "/overview", self.overview, shapes.FlinkOverview)
        get(router, "/jobs", self.job_ids, shapes.FlinkJobIds)
        get(router, "/jobs/overview", self.jobs_overview, shapes.FlinkJobs)
        get(router, "/jobs/metrics", self.jobs_metrics)
        get(router, "/applications/overview", self.applications, shapes.FlinkApplications)
        get(router, "/applications/{application_id}", self.application, shapes.FlinkApplication)
        get(router, "/applications/{application_id}/exceptions", self.application_failures, FlinkApplicationFailures)
        get(router, "/applications/{application_id}/jobmanager/config", self.settings_of_application)
        get(router, "/jobmanager/config", self.settings)
        get(router, "/jobmanager/environment", self.environment, shapes.FlinkEnvironment)
        get(router, "/jobmanager/metrics", self.metrics)
        get(router, "/jobmanager/logs", self.logs, FlinkLogFiles)
        for name in ("log", "stdout", "logs/{name}", "thread-dump"):
            get(router, f"/jobmanager/{name}", self.no_log)
        get(router, "/jars", self.jars, shapes.FlinkJars)
        get(router, "/datasets", self.data_sets, shapes.FlinkDataSets)

    async def config(self) -> Response:
        """Flink: how the dashboard behaves."""
        now = datetime.datetime.now().astimezone()
        offset = now.utcoffset() or datetime.timedelta()
        return sent(shapes.config(int(offset.total_seconds() * 1_000), now.tzname() or "UTC"))

    async def overview(self) -> Response:
        """Flink: the cluster in numbers."""
        return sent(shapes.overview(await self._lookup.view(), (await self._jobs.list()).jobs))

    async def job_ids(self) -> Response:
        """Flink: ids and states of all jobs."""
        return sent(shapes.job_ids((await self._jobs.list()).jobs))

    async def jobs_overview(self) -> Response:
        """Flink: all jobs."""
        return sent(shapes.jobs_overview((await self._jobs.list()).jobs, self._cluster.now_us()))

    async def jobs_metrics(self, get: str | None = None, agg: str | None = None, jobs: str | None = None) -> Response:
        """Flink: metrics of jobs that have not ended, summed up; `jobs`: of these only."""
        wanted = jobs.split(",") if jobs else [job.job for job in (await self._jobs.list()).jobs if job.live]
        found = [await self._lookup.job(job) for job in wanted]
        now_us = self._cluster.now_us()
        return sent(aggregated([job_metrics(job, now_us) for job in found], get, agg))

    # -- applications ---------------------------------------------------------------------------------------------------

    async def applications(self) -> Response:
        """Flink: all applications; every job has one of its own."""
        return sent(shapes.applications((await self._jobs.list()).jobs, self._cluster.now_us()))

    async def application(self, application_id: str) -> Response:
        """Flink: an application."""
        return sent(shapes.application(await self._application(application_id), self._cluster.now_us()))

    async def application_failures(self, application_id: str) -> Response:
        """Flink: why an application failed."""
        return sent(application_failures(await self._application(application_id)))

    async def settings_of_application(self, application_id: str) -> Response:
        """Flink: the settings of the cluster that runs it."""
        await self._application(application_id)
        return await self.settings()

    async def _application(self, application_id: str) -> Found:
        return await self._jobs.look(path_id("applicationid", application_id))

    # -- the job manager ------------------------------------------------------------------------------------------------

    async def settings(self) -> Response:
        """Flink: the settings of the cluster, as this dispatcher has them; secrets are masked."""
        return sent(shapes.settings_shown(self._settings))

    async def environment(self) -> Response:
        """Flink: what this dispatcher runs on."""
        return sent(shapes.environment())

    async def metrics(self, get: str | None = None) -> Response:
        """Flink: metrics of the cluster."""
        return sent(listed(shapes.cluster_metrics(await self._lookup.view(), (await self._jobs.list()).jobs), get))

    async def logs(self) -> Response:
        """Flink: log files of the job manager; coordinators write to their standard error only."""
        return sent(FlinkLogFiles(()))

    async def no_log(self, request: Request) -> Response:
        """Flink: a log of the job manager, which is not kept where a dispatcher could read it."""
        raise RestError(
            404,
            f"{request.url.path}: coordinators log to their standard error, which the platform keeps (penstock up: in "
            "its folder; containers: their logs); the workers' are at /taskmanagers/ID/log",
        )

    # -- what Penstock does not have ------------------------------------------------------------------------------------

    async def jars(self, request: Request) -> Response:
        """Flink: jars to run; pipelines are submitted with `penstock submit`."""
        return sent(shapes.FlinkJars(f"{request.url.scheme}://{request.url.netloc}"))

    async def data_sets(self) -> Response:
        """Flink: cached results; there are none."""
        return sent(shapes.FlinkDataSets())
