"""Flink's paths, with and without `/v1`: what its command line and its tools ask of a cluster."""

from __future__ import annotations

import datetime
from typing import Any, Final

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from penstock.protocol.requests import CancelJob, StopJob, TakeSavepoint
from penstock_dispatcher import flink_shapes as shapes
from penstock_dispatcher.bodies import read_body
from penstock_dispatcher.cluster import Cluster
from penstock_dispatcher.jobs import Found, Jobs
from penstock_dispatcher.penstock_routes import PenstockRoutes, checked_id
from penstock_dispatcher.refusing import RestError

_IN_PROGRESS: Final[dict[str, Any]] = {"status": {"id": "IN_PROGRESS"}, "operation": None}


class FlinkSavepoint(msgspec.Struct, frozen=True):
    """The body of POST /jobs/:jobid/savepoints. Unknown fields are let through, as Flink does."""

    target_directory: str | None = msgspec.field(name="target-directory", default=None)
    cancel_job: bool | None = msgspec.field(name="cancel-job", default=False)
    format_type: str | None = msgspec.field(name="formatType", default=None)
    trigger_id: str | None = msgspec.field(name="triggerId", default=None)


class FlinkStop(msgspec.Struct, frozen=True):
    """The body of POST /jobs/:jobid/stop."""

    target_directory: str | None = msgspec.field(name="targetDirectory", default=None)
    drain: bool | None = False
    format_type: str | None = msgspec.field(name="formatType", default=None)
    trigger_id: str | None = msgspec.field(name="triggerId", default=None)


class FlinkRoutes:
    """The handlers."""

    def __init__(self, cluster: Cluster, jobs: Jobs, penstock: PenstockRoutes) -> None:
        self._cluster = cluster
        self._jobs = jobs
        self._penstock = penstock

    def router(self, prefix: str) -> APIRouter:
        """All routes, below `prefix`."""
        router = APIRouter(prefix=prefix, tags=["flink"])
        add: Any = router.add_api_route
        add("/config", self.config, methods=["GET"])
        add("/overview", self.overview, methods=["GET"])
        add("/jobs", self.job_ids, methods=["GET"])
        add("/jobs/overview", self.jobs_overview, methods=["GET"])
        add("/jobs/{job_id}", self.job, methods=["GET"])
        add("/jobs/{job_id}", self.patch, methods=["PATCH"], status_code=202)
        add("/jobs/{job_id}/status", self.status, methods=["GET"])
        add("/jobs/{job_id}/plan", self.plan, methods=["GET"])
        add("/jobs/{job_id}/stop", self.stop, methods=["POST"], status_code=202)
        add("/jobs/{job_id}/savepoints", self.take_savepoint, methods=["POST"], status_code=202)
        add("/jobs/{job_id}/savepoints/{trigger_id}", self.savepoint, methods=["GET"])
        add("/taskmanagers", self.taskmanagers, methods=["GET"])
        return router

    # -- looking --------------------------------------------------------------------------------------------------------

    async def config(self) -> Response:
        """Flink: how the dashboard behaves."""
        now = datetime.datetime.now().astimezone()
        offset = now.utcoffset() or datetime.timedelta()
        return _json(shapes.config(int(offset.total_seconds() * 1_000), now.tzname() or "UTC"))

    async def overview(self) -> Response:
        """Flink: the cluster in numbers."""
        return _json(shapes.overview(await self._cluster.view.if_any(), (await self._jobs.list()).jobs))

    async def job_ids(self) -> Response:
        """Flink: ids and states of all jobs."""
        return _json(shapes.job_ids((await self._jobs.list()).jobs))

    async def jobs_overview(self) -> Response:
        """Flink: all jobs."""
        return _json(shapes.jobs_overview((await self._jobs.list()).jobs, self._cluster.now_us()))

    async def job(self, job_id: str) -> Response:
        """Flink: one job."""
        return _json(shapes.job(await self._find(job_id), self._cluster.now_us()))

    async def status(self, job_id: str) -> Response:
        """Flink: the state of a job."""
        return _json({"status": shapes.flink_state((await self._find(job_id)).state)})

    async def plan(self, job_id: str) -> Response:
        """Flink: the graph of a job."""
        found = await self._find(job_id)
        return _json({"plan": shapes.plan(found.job, found.graph)})

    async def taskmanagers(self) -> Response:
        """Flink: task managers."""
        return _json(shapes.taskmanagers(await self._cluster.leading_view()))

    async def _find(self, job_id: str) -> Found:
        return await self._jobs.exact(checked_id(job_id or "-", "", "jobid"))

    # -- asking ---------------------------------------------------------------------------------------------------------

    async def patch(self, job_id: str, mode: str = "cancel") -> Response:
        """Flink: cancel a job."""
        if mode == "stop":
            raise RestError(308, 'the mode "stop" is no more; use POST /jobs/:jobid/stop')
        if mode != "cancel":
            raise RestError(400, f"Cannot resolve query parameter (mode) from value {mode!r}.")
        found = await self._find(job_id)
        terminated = found.history.terminated
        if terminated is not None and terminated.state == "CANCELED":
            return _json({}, 202)
        if terminated is not None:
            raise RestError(
                409,
                "Job cancellation failed because the job has already reached another terminal state "
                f"({shapes.flink_state(terminated.state)}).",
            )
        await self._cluster.leading_view()
        ids = self._cluster.new_id(), self._cluster.now_us()
        await self._cluster.ask(CancelJob(request=ids[0], job=found.job, issued_us=ids[1]))
        return _json({}, 202)

    async def stop(self, job_id: str, request: Request) -> Response:
        """Flink: stop a job with a savepoint."""
        body = await read_body(request, FlinkStop)
        _check_target(body.target_directory)
        found, trigger = await self._asked(job_id, body.trigger_id)
        await self._cluster.ask(
            StopJob(request=trigger, job=found.job, issued_us=self._cluster.now_us(), drain=bool(body.drain))
        )
        return _json({"request-id": trigger}, 202)

    async def take_savepoint(self, job_id: str, request: Request) -> Response:
        """Flink: take a savepoint, and with `cancel-job` end the job at it."""
        body = await read_body(request, FlinkSavepoint)
        _check_target(body.target_directory)
        found, trigger = await self._asked(job_id, body.trigger_id)
        issued_us = self._cluster.now_us()
        if body.cancel_job:
            await self._cluster.ask(StopJob(request=trigger, job=found.job, issued_us=issued_us))
        else:
            await self._cluster.ask(TakeSavepoint(request=trigger, job=found.job, issued_us=issued_us))
        return _json({"request-id": trigger}, 202)

    async def _asked(self, job_id: str, trigger: str | None) -> tuple[Found, str]:
        job = checked_id(job_id, "", "jobid")
        request = checked_id(trigger or "", self._cluster.new_id(), "triggerId")
        found = await self._jobs.alive(job)
        await self._cluster.leading_view()
        return found, request

    async def savepoint(self, job_id: str, trigger_id: str) -> Response:
        """Flink: what became of a savepoint or stop."""
        job, trigger = checked_id(job_id, "", "jobid"), checked_id(trigger_id, "", "triggerid")
        outcome = await self._penstock.outcome(job, trigger)
        if outcome.state == "pending":
            return _json(_IN_PROGRESS)
        if outcome.state == "refused" or outcome.savepoint is None:
            # Flink sends 200 with a serialised Java exception; its command line takes this as well.
            raise RestError(409, outcome.reason or "there is no savepoint: the request was for something else")
        return _json({"status": {"id": "COMPLETED"}, "operation": {"location": outcome.savepoint.manifest}})


def _check_target(directory: str | None) -> None:
    """Savepoints stand in the cluster's store: another place that is asked for is not passed over in silence."""
    if directory:
        raise RestError(
            400,
            f"savepoints are kept in the cluster's store, not in {directory!r}: leave the target directory out, and "
            "export with penstock savepoint JOB --to DIR",
        )


def _json(value: Any, status: int = 200) -> Response:
    headers = {"access-control-allow-origin": "*"}
    return Response(msgspec.json.encode(value), status, headers, "application/json; charset=UTF-8")
