"""The routes under /penstock/v1: jobs, what is asked of them, what became of it."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from penstock import __version__
from penstock.client.documents import (
    CheckpointList,
    CollectedList,
    Failures,
    JobDetail,
    JobList,
    JobLog,
    JobSource,
    Overview,
    Requested,
    RequestState,
    RescaleBody,
    SavepointBody,
    SavepointList,
    SavepointSummary,
    StopBody,
    Submission,
    WhoAmI,
    WorkerList,
)
from penstock.coordination.collected_rows import CollectedPart
from penstock.coordination.worker_logs import WorkerLogList
from penstock.errors import CorruptDataError
from penstock.graph.jobgraph import graph_from_json
from penstock.graph.rescaling import scaled
from penstock.ports import BlobNotFoundError
from penstock.protocol.joblog import Artifact, Submit
from penstock.protocol.manifests import Manifest, covers_rows
from penstock.protocol.messages import Restore
from penstock.protocol.requests import AnyRequest, CancelJob, RescaleJob, StopJob, SubmitJob, TakeSavepoint
from penstock.service.access import IDENTITY
from penstock.service.credentials import Identity
from penstock_dispatcher.bodies import check_sources, read_body, read_submission
from penstock_dispatcher.cluster import Cluster
from penstock_dispatcher.describing import answers, submits, takes
from penstock_dispatcher.graphs import checked_graph
from penstock_dispatcher.job_settings import check_settings
from penstock_dispatcher.jobs import (
    Found,
    Jobs,
    checkpoints_of,
    detail_of,
    failures_of,
    log_of,
    savepoints_of,
)
from penstock_dispatcher.refusing import RestError
from penstock_dispatcher.sources import source_of

_HEX: Final = frozenset("0123456789abcdef")

JobName = Annotated[str, Path(description="its id, the first six or more digits of it, or its name if only one has it")]


def sent(document: msgspec.Struct, status: int = 200) -> Response:
    """A document as an answer."""
    return Response(msgspec.json.encode(document), status, media_type="application/json")


def checked_id(given: str, new: str, what: str) -> str:
    """The id that a client chose, or a new one; raises `RestError` if it is none."""
    if not given:
        return new
    text = given.lower()
    if len(text) != 32 or not set(text) <= _HEX:
        raise RestError(400, f"{what}: {given!r} is no id; an id has 32 hexadecimal digits")
    return text


def _check_same(there: Submit, asked: SubmitJob) -> None:
    """What is submitted by the id of a job must be that job: a client that heard no answer asks again."""
    parts = ("name", "graph", "scalable", "settings", "artifact", "restored_from")
    written, said = (
        {part: msgspec.json.encode(getattr(request, part)) for part in parts} for request in (there, asked)
    )
    differing = [part for part in parts if written[part] != said[part]]
    if differing:
        raise RestError(
            409,
            f"job: {there.job} is the id of job {there.name}, which was submitted with something else: "
            f"{', '.join(differing)}. Nothing was changed; leave the id out, or give another one",
        )


class PenstockRoutes:
    """The handlers."""

    def __init__(self, cluster: Cluster, jobs: Jobs) -> None:
        self._cluster = cluster
        self._jobs = jobs

    def router(self) -> APIRouter:
        """All routes."""
        router = APIRouter(prefix="/penstock/v1", tags=["penstock"])
        add: Any = router.add_api_route
        add("/whoami", self.whoami, methods=["GET"], responses=answers(WhoAmI))
        add("/overview", self.overview, methods=["GET"], responses=answers(Overview))
        add("/jobs", self.list_jobs, methods=["GET"], responses=answers(JobList))
        add(
            "/jobs", self.submit, methods=["POST"], status_code=202, responses=answers(Requested, 202),
            openapi_extra=submits(Submission, "job"),
        )  # fmt: skip
        add("/jobs/{job}", self.job, methods=["GET"], responses=answers(JobDetail))
        add("/jobs/{job}/checkpoints", self.checkpoints, methods=["GET"], responses=answers(CheckpointList))
        add("/jobs/{job}/failures", self.failures, methods=["GET"], responses=answers(Failures))
        add("/jobs/{job}/log", self.log, methods=["GET"], responses=answers(JobLog))
        add("/jobs/{job}/workers/logs", self.worker_logs, methods=["GET"], responses=answers(WorkerLogList))
        add("/jobs/{job}/artifact", self.artifact, methods=["GET"])
        add("/jobs/{job}/source", self.source, methods=["GET"], responses=answers(JobSource))
        add("/jobs/{job}/collected", self.collected, methods=["GET"], responses=answers(CollectedList))
        add("/jobs/{job}/collected/{name:path}", self.part, methods=["GET"], responses=answers(CollectedPart))
        add("/jobs/{job}/requests/{request_id}", self.request_state, methods=["GET"], responses=answers(RequestState))
        asking: tuple[tuple[str, str, Any, type[msgspec.Struct]], ...] = (
            ("DELETE", "/jobs/{job}", self.delete, SavepointBody),
            ("POST", "/jobs/{job}/cancel", self.cancel, SavepointBody),
            ("POST", "/jobs/{job}/stop", self.stop, StopBody),
            ("POST", "/jobs/{job}/savepoints", self.take_savepoint, SavepointBody),
            ("POST", "/jobs/{job}/rescale", self.rescale, RescaleBody),
        )
        for method, path, handler, body in asking:
            add(
                path, handler, methods=[method], status_code=202, responses=answers(Requested, 202),
                openapi_extra=takes(body),
            )  # fmt: skip
        add("/savepoints", self.savepoints, methods=["GET"], responses=answers(SavepointList))
        add("/savepoints/find", self.find_savepoint, methods=["GET"], responses=answers(SavepointSummary))
        add("/taskmanagers", self.workers, methods=["GET"], responses=answers(WorkerList))
        return router

    # -- looking --------------------------------------------------------------------------------------------------------

    async def whoami(self, request: Request) -> Response:
        """Who asks, as their token says, and what they may do; what nobody can do here."""
        who: Identity = request.scope[IDENTITY]
        return sent(WhoAmI(who.name, str(who.role), self._cluster.refused))

    async def overview(self) -> Response:
        """The cluster: who leads it, its slots, its jobs."""
        view = await self._cluster.view.if_any()
        counts: dict[str, int] = {}
        for job in (await self._jobs.list()).jobs:
            counts[job.state] = counts.get(job.state, 0) + 1
        if view is None:
            return sent(Overview("", "", 0, 0, 0, 0, counts, __version__))
        return sent(
            Overview(
                view.leader,
                view.address,
                view.epoch,
                len(view.workers),
                view.slots,
                view.free_slots,
                counts,
                __version__,
                view.scaling,
                view.deaf_us,
            )
        )

    async def list_jobs(self) -> Response:
        """All jobs: running ones, then ended ones, newest first."""
        return sent(await self._jobs.list())

    async def job(self, job: JobName) -> Response:
        """All that is known about a job."""
        return sent(detail_of(await self._jobs.look(job)))

    async def checkpoints(self, job: JobName) -> Response:
        """The newest checkpoints of a job, newest first."""
        return sent(checkpoints_of(await self._jobs.look(job)))

    async def failures(self, job: JobName) -> Response:
        """What made attempts of a job fail, as its leader remembers."""
        return sent(failures_of(await self._jobs.look(job)))

    async def log(self, job: JobName) -> Response:
        """The job's log: what the cluster decided about it, record by record."""
        return sent(log_of(await self._jobs.find(job)))

    async def worker_logs(
        self, job: JobName, lines: Annotated[int, Query(description="the last so many of each", ge=1)] = 100
    ) -> Response:
        """What the workers of a job have logged lately, those that have ended among them."""
        return sent(await self._cluster.worker_logs((await self._jobs.look(job)).job, lines))

    async def artifact(self, job: JobName) -> Response:
        """The sources of a job, as a zip."""
        found = await self._jobs.find(job)
        artifact = found.submit.artifact
        if artifact is None:
            raise RestError(404, f"job {found.job} was submitted without sources")
        return Response(await self._cluster.artifact(artifact.key), media_type="application/zip")

    async def source(self, job: JobName) -> Response:
        """The file of a job's sources that describes its pipeline."""
        found = await self._jobs.find(job)
        artifact = found.submit.artifact
        if artifact is None:
            raise RestError(404, f"job {found.job} was submitted without sources")
        try:
            data = await self._cluster.artifact(artifact.key)
        except BlobNotFoundError as error:
            raise RestError(404, f"job {found.job}: its sources are no longer in the store") from error
        return sent(await asyncio.to_thread(source_of, found.job, artifact.target, data))

    async def collected(self, job: JobName) -> Response:
        """What the sinks of a job that gather rows in memory have so far: the names of the parts, in order."""
        return sent(CollectedList(tuple(await self._cluster.collected((await self._jobs.find(job)).job))))

    async def part(self, job: JobName, name: str) -> Response:
        """A part: the sink's operator, the checkpoint, and what `commit` of such a sink takes."""
        found = await self._jobs.find(job)
        return Response(await self._cluster.collected_part(found.job, name), media_type="application/json")

    async def workers(self) -> Response:
        """The worker processes of all task managers; 503 without a leader, which alone knows them."""
        return sent(WorkerList((await self._cluster.leading_view()).workers))

    async def savepoints(
        self, job: Annotated[str, Query(description="only of this job: id, beginning of the id, or name")] = ""
    ) -> Response:
        """What jobs can be started from: their savepoints, and of failed jobs the last checkpoint."""
        if job:
            found = await self._jobs.find(job)
            return sent(SavepointList(tuple(await self._kept(savepoints_of(found.job, found.history)))))
        active, finished = await self._cluster.ids()
        histories = await self._cluster.histories(dict.fromkeys([*active, *finished]))
        known = [one for name in sorted(histories) for one in savepoints_of(name, histories[name])]
        return sent(SavepointList(tuple(await self._kept(known))))

    async def _kept(self, known: list[SavepointSummary]) -> list[SavepointSummary]:
        """Those that nobody has removed."""
        gone = await self._cluster.disposed() if known else set[str]()
        return [one for one in known if one.manifest not in gone]

    async def find_savepoint(
        self, name: Annotated[str, Query(description="the key of its manifest, the request for it, or a job")]
    ) -> Response:
        """The savepoint of that name; of a job, the newest one."""
        return sent(await self._find_savepoint(name))

    async def _find_savepoint(self, name: str) -> SavepointSummary:
        parts = name.split("/")
        if len(parts) > 1:
            found = await self._savepoint_of_manifest(name, parts[1] if parts[0] == "jobs" else "")
            if found is not None:
                return found
            raise RestError(404, f"there is no savepoint {name!r} in this cluster's store; see penstock savepoints")
        active, finished = await self._cluster.ids()
        if name not in {*active, *finished} and len(name) == 32:
            for job, history in (await self._cluster.histories([*active, *finished])).items():
                for savepoint in savepoints_of(job, history):
                    if savepoint.request == name and await self._kept([savepoint]):
                        return savepoint
        job = await self._jobs.find(name)
        known = await self._kept(savepoints_of(job.job, job.history))
        if not known:
            raise RestError(
                404, f"job {job.submit.name} ({job.job}) has no savepoint; take one: penstock savepoint {name}"
            )
        return known[-1]

    async def _savepoint_of_manifest(self, key: str, job: str) -> SavepointSummary | None:
        if job:
            history = await self._cluster.history(job)
            for savepoint in savepoints_of(job, history):
                if savepoint.manifest == key and await self._kept([savepoint]):
                    return savepoint
            return None
        if not key.startswith("imported/"):
            return None
        stored = await self._manifest(key)
        if stored is None:
            return None
        restore, manifest = stored
        return SavepointSummary(manifest.job, "", restore.checkpoint, key, restore.sha256, "")

    async def _manifest(self, key: str) -> tuple[Restore, Manifest] | None:
        """As `Cluster.manifest`; whoever names something that is none, or not whole, is told so."""
        try:
            return await self._cluster.manifest(key)
        except CorruptDataError as error:
            raise RestError(400, f"{key!r} is no savepoint, or not whole: {error}") from error

    # -- submitting -----------------------------------------------------------------------------------------------------

    async def submit(self, request: Request) -> Response:
        """Run a job. It exists once the leader has looked at it: ask for the request of the job's own id."""
        submission, sources = await read_submission(request, Submission, "job")
        job = checked_id(submission.job, self._cluster.new_id(), "job")
        graph = checked_graph(submission.name, submission.graph, "job.graph")
        if submission.scalable is not None:
            checked_graph(submission.name, submission.scalable, "job.scalable")
        check_settings(submission.settings)
        await check_sources(sources, submission.artifact.target)
        await self._cluster.leading_view()
        await self._check_restore(submission)
        key, digest = await self._cluster.store_sources(sources)
        described = submission.artifact
        artifact = Artifact(key, digest, described.target, described.parameters, described.requirements)
        asked = SubmitJob(
            request=job, job=job, issued_us=self._cluster.now_us(), name=submission.name, graph=graph.to_json(),
            scalable=submission.scalable, settings=submission.settings, artifact=artifact,
            restored_from=submission.restored_from, allow_non_restored=submission.allow_non_restored,
            allow_unpublished=submission.allow_unpublished,
        )  # fmt: skip
        there = (await self._cluster.history(job)).submit if submission.job else None
        if there is not None:
            _check_same(there, asked)
        else:
            await self._cluster.ask(asked)
        return sent(Requested(job, job), 202)

    async def _check_restore(self, submission: Submission) -> None:
        restore = submission.restored_from
        if restore is None:
            return
        stored = await self._manifest(restore.manifest)
        if stored is None:
            raise RestError(404, f"restored_from: there is no {restore.manifest!r} in this cluster's store")
        found, manifest = stored
        if (found.sha256, found.checkpoint) != (restore.sha256, restore.checkpoint):
            raise RestError(400, f"restored_from: {restore.manifest} is another savepoint than the one that is meant")
        job = manifest.job if restore.manifest.startswith("jobs/") else ""
        savepoint = await self._savepoint_of_manifest(restore.manifest, job)
        if savepoint is None:
            raise RestError(
                400,
                f"restored_from: {restore.manifest} is a checkpoint of a job that goes on, or a savepoint that is being "
                "removed; take a savepoint of the job",
            )
        if savepoint.kind == "checkpoint" and covers_rows(manifest) and not submission.allow_unpublished:
            history = await self._cluster.history(job)
            if not history.is_published(restore.manifest):
                raise RestError(
                    400,
                    f"restored_from: the sinks of the ended job have not published all of checkpoint "
                    f"{restore.checkpoint}, so a job that starts there would lose rows; --allow-unpublished accepts that",
                )

    # -- asking ---------------------------------------------------------------------------------------------------------

    async def cancel(self, job: JobName, request: Request) -> Response:
        """Publish what is complete, then end."""
        body = await read_body(request, SavepointBody)
        found = await self._asked(job)
        return await self._send(CancelJob(**self._ids(found, body.request)))

    async def delete(self, job: JobName, request: Request) -> Response:
        """The same as to cancel it."""
        return await self.cancel(job, request)

    async def stop(self, job: JobName, request: Request) -> Response:
        """Take a savepoint and end; with `drain`, let all windows and timers fire before."""
        body = await read_body(request, StopBody)
        found = await self._asked(job)
        return await self._send(StopJob(**self._ids(found, body.request), drain=body.drain))

    async def take_savepoint(self, job: JobName, request: Request) -> Response:
        """Take a savepoint and go on."""
        body = await read_body(request, SavepointBody)
        found = await self._asked(job)
        return await self._send(TakeSavepoint(**self._ids(found, body.request)))

    async def rescale(self, job: JobName, request: Request) -> Response:
        """Go on at another parallelism."""
        body = await read_body(request, RescaleBody)
        found = await self._asked(job)
        if found.submit.scalable is None:
            raise RestError(409, f"job {found.job} was submitted without the form of its graph that can be rescaled")
        scaled(graph_from_json(found.submit.scalable), body.parallelism)
        ids = self._ids(found, body.request)
        return await self._send(RescaleJob(**ids, parallelism=body.parallelism, wait=body.wait))

    async def _asked(self, job: str) -> Found:
        found = await self._jobs.alive(job)
        await self._cluster.leading_view()
        return found

    def _ids(self, found: Found, given: str) -> dict[str, Any]:
        request = checked_id(given, self._cluster.new_id(), "request")
        return {"request": request, "job": found.job, "issued_us": self._cluster.now_us()}

    async def _send(self, request: AnyRequest) -> Response:
        await self._cluster.ask(request)
        return sent(Requested(request.job, request.request), 202)

    async def request_state(self, job: str, request_id: str) -> Response:
        """What became of a request; that for a new job has the job's id."""
        return sent(await self.outcome(checked_id(job, "", "job"), checked_id(request_id, "", "request")))

    async def outcome(self, job: str, request: str) -> RequestState:
        """What became of a request.

        Raises:
            RestError: it was never sent, or so long ago that nobody remembers.
        """
        answer = await self._cluster.answer(job, request)
        if answer is not None:
            savepoint = answer.savepoint
            if savepoint is None and answer.outcome == "completed":
                record = (await self._cluster.history(job)).savepoints.get(request)
                savepoint = record.restore if record is not None else None
            return RequestState(job, request, answer.outcome, answer.reason, savepoint)
        if job == request and (await self._cluster.history(job)).submit is not None:
            return RequestState(job, request, "completed")
        if await self._cluster.was_asked(request):
            return RequestState(job, request, "pending")
        raise RestError(404, f"there is no request {request} of job {job}")
