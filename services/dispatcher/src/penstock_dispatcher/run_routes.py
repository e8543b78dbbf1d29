"""The routes under /penstock/v1/runs, for pipelines that run on Spark; and /find, for a name that may be either's."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from penstock.client.documents import ENDED, Requested, RequestState
from penstock.client.run_documents import (
    RUN_ENDED,
    Located,
    RunBody,
    RunDetail,
    RunList,
    RunLog,
    RunOptions,
    RunSubmission,
)
from penstock.errors import ExternalError, nearest
from penstock.protocol.joblog import Artifact
from penstock.protocol.requests import CancelRun, SubmitRun
from penstock.runs.run_log import RunHistory, is_run_id, overrides_refused
from penstock.runs.run_views import PipelineView
from penstock_dispatcher.bodies import check_sources, read_body, read_submission
from penstock_dispatcher.cluster import Cluster
from penstock_dispatcher.describing import answers, submits, takes
from penstock_dispatcher.graphs import checked_graph
from penstock_dispatcher.jobs import Found, Jobs
from penstock_dispatcher.naming import has_ended
from penstock_dispatcher.penstock_routes import checked_id, sent
from penstock_dispatcher.refusing import RestError
from penstock_dispatcher.runs import NO_SERVICE, Runs

RunName = Annotated[
    str, Path(description="its id, six or more characters of its beginning, or its name: the newest one")
]


class RunRoutes:
    """The handlers."""

    def __init__(self, cluster: Cluster, jobs: Jobs, runs: Runs) -> None:
        self._cluster = cluster
        self._jobs = jobs
        self._runs = runs

    def router(self) -> APIRouter:
        """All routes."""
        router = APIRouter(prefix="/penstock/v1", tags=["runs"])
        add: Any = router.add_api_route
        add("/find", self.find, methods=["GET"], responses=answers(Located))
        add("/runs", self.list_runs, methods=["GET"], responses=answers(RunList))
        add(
            "/runs", self.submit, methods=["POST"], status_code=202, responses=answers(Requested, 202),
            openapi_extra=submits(RunSubmission, "run"),
        )  # fmt: skip
        add("/runs/{run}", self.run, methods=["GET"], responses=answers(RunDetail))
        add("/runs/{run}/log", self.log, methods=["GET"], responses=answers(RunLog))
        add("/runs/{run}/requests/{request_id}", self.request_state, methods=["GET"], responses=answers(RequestState))
        for method, path in (("POST", "/runs/{run}/cancel"), ("DELETE", "/runs/{run}")):
            add(
                path, self.cancel, methods=[method], status_code=202, responses=answers(Requested, 202),
                openapi_extra=takes(RunBody), name=f"{method.lower()}_cancel_run",
            )  # fmt: skip
        return router

    # -- looking --------------------------------------------------------------------------------------------------------

    async def list_runs(self) -> Response:
        """All runs: those that wait or are at work, then ended ones, newest first."""
        return sent(await self._runs.list())

    async def run(self, run: RunName) -> Response:
        """All that is known about a run: its stages while it is at work, its counts when it has finished."""
        return sent(await self._runs.detail(await self._runs.find(run)))

    async def log(self, run: RunName) -> Response:
        """The run's log, record by record, and the last lines that an ended attempt printed."""
        return sent(await self._runs.log(await self._runs.find(run)))

    async def request_state(self, run: str, request_id: str) -> Response:
        """What became of a request for a run."""
        return sent(await self._runs.outcome(run, checked_id(request_id, "", "request")))

    async def find(
        self, name: Annotated[str, Query(description="id, beginning of an id, or name, of a job or a run")]
    ) -> Response:
        """What is meant by a name. Of a job and a run that are called the same, the one that has not ended."""
        (job, no_job), (run, no_run) = await asyncio.gather(self._job(name), self._run(name))
        found = [one for one in (job, run) if one is not None]
        going_on = [one for one in found if one.state not in ENDED | RUN_ENDED]
        if len(found) == 2:
            if len(going_on) != 1:
                raise RestError(409, f"a job and a run are called {name!r}: {found[0].id}, {found[1].id}; give the id")
            found = going_on
        if found:
            return sent(found[0])
        if no_run.status == 503:
            raise no_run
        if 409 in (no_job.status, no_run.status):
            raise no_job if no_job.status == 409 else no_run
        close = nearest(name, sorted(await self._runs.names()))
        raise RestError(404, f"there is no run {name!r}; {close}") if close.startswith("did you mean") else no_job

    async def _job(self, name: str) -> tuple[Located | None, RestError]:
        try:
            found: Found = await self._jobs.look(name)
        except RestError as error:
            return None, error
        return Located("job", found.job, found.submit.name, found.state), RestError(404, "")

    async def _run(self, name: str) -> tuple[Located | None, RestError]:
        try:
            found = await self._runs.find(name)
        except RestError as error:
            return None, error
        except ExternalError as error:
            # Runs stand in the store alone; a job that a leader shows is found all the same.
            return None, RestError(503, str(error))
        submitted = found.submitted
        return Located("run", submitted.run, submitted.name, found.state), RestError(404, "")

    # -- asking ---------------------------------------------------------------------------------------------------------

    async def submit(self, request: Request) -> Response:
        """Run a pipeline on Spark. It exists once the pipeline service has looked at it."""
        submission, sources = await read_submission(request, RunSubmission, "run")
        run = submission.run or self._cluster.new_id()
        if not is_run_id(run):
            text = "up to 100 letters, digits, dots, dashes and underscores, beginning with a letter or digit"
            raise RestError(400, f"run: {run!r} is no id; write {text}")
        asked = checked_id(submission.request, self._cluster.new_id(), "request")
        checked_graph(submission.name, submission.graph, "run.graph")
        await check_sources(sources, submission.artifact.target)
        check_options(submission.options, await self._runs.serving_view(), "run")
        history = await self._runs.history(run)
        if _is_executed_once(history):
            _check_same(run, history, submission, await asyncio.to_thread(lambda: hashlib.sha256(sources).hexdigest()))
            return sent(Requested(run, history.submitted.request), 202)
        key, digest = await self._cluster.store_sources(sources)
        described = submission.artifact
        artifact = Artifact(key, digest, described.target, described.parameters, described.requirements)
        await self._cluster.ask(
            SubmitRun(
                request=asked, job=run, issued_us=self._cluster.now_us(), name=submission.name, graph=submission.graph,
                artifact=artifact, options=submission.options,
            )
        )  # fmt: skip
        return sent(Requested(run, asked), 202)

    async def cancel(self, run: RunName, request: Request) -> Response:
        """End a run; nothing of it becomes visible unless that is decided already."""
        body = await read_body(request, RunBody)
        asked = checked_id(body.request, self._cluster.new_id(), "request")
        history = await self._runs.find(run)
        submitted, ended = history.submitted, history.ended
        if ended is not None:
            raise has_ended("run", submitted.name, submitted.run, ended.state, ended.reason)
        await self._runs.serving_view()
        await self._cluster.ask(CancelRun(request=asked, job=submitted.run, issued_us=self._cluster.now_us()))
        return sent(Requested(submitted.run, asked), 202)


def _is_executed_once(history: RunHistory) -> bool:
    """Whether a run is there that is not executed again."""
    return bool(history.records) and history.state not in ("FAILED", "CANCELED")


def _check_same(run: str, history: RunHistory, submission: RunSubmission, digest: str) -> None:
    """What is submitted again by the id of a run that is not executed again must be what that run executes."""
    before, now = history.submitted, submission.artifact
    then = before.artifact.parameters
    names = sorted(name for name in then.keys() | now.parameters.keys() if then.get(name) != now.parameters.get(name))
    differing = [f"--param {name}" for name in names]
    if (before.artifact.sha256, before.artifact.target) != (digest, now.target):
        differing.append("the pipeline's code")
    options = (
        f"--{name.removesuffix('_us').replace('_', '-')}"
        for name in ("from_savepoint", "to_savepoint", "every_us")
        if getattr(before.options, name) != getattr(submission.options, name)
    )
    differing += options
    if differing:
        raise RestError(
            409,
            f"run: {run!r} is {history.state}, and was submitted with something else: {', '.join(differing)}. Its "
            "results are not those of what is asked for now; give a new run another id",
        )


def check_options(options: RunOptions, view: PipelineView | None, part: str) -> None:
    """Raise `RestError` for options, in that part of a submission, that the service does not take."""
    if options.parallelism is not None and not 1 <= options.parallelism <= 1 << 15:
        raise RestError(400, f"{part}.options.parallelism: {options.parallelism} is not from 1 to {1 << 15}")
    if options.every_us < 0:
        raise RestError(400, f"{part}.options.every_us: {options.every_us} is less than 0")
    if options.in_steps and options.to_savepoint:
        raise RestError(400, f"{part}.options.to_savepoint: each step leaves a savepoint of its own; leave it out")
    if (options.master or options.conf) and view is None:
        raise RestError(503, NO_SERVICE)
    if (options.master or options.conf) and view is not None and not view.overrides:
        raise RestError(400, overrides_refused(view.master))
