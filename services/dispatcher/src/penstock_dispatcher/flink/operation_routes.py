"""Routes that ask for something: what `flink cancel`, `stop`, `savepoint` and `checkpoint` send, and buttons of pages."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from penstock.protocol.requests import AnyRequest, CancelJob, StopJob, TakeCheckpoint, TakeSavepoint
from penstock.service.audit import note_change
from penstock_dispatcher.bodies import read_body
from penstock_dispatcher.describing import answers, takes
from penstock_dispatcher.flink.answers import Nothing, path_id, sent
from penstock_dispatcher.flink.job_shapes import FlinkStatusId
from penstock_dispatcher.flink.lookup import Lookup
from penstock_dispatcher.flink.savepoint_disposal import SavepointDisposal
from penstock_dispatcher.flink.states import flink_state
from penstock_dispatcher.jobs import Found
from penstock_dispatcher.penstock_routes import PenstockRoutes, checked_id
from penstock_dispatcher.refusing import RestError

IN_PROGRESS: Final = FlinkStatusId("IN_PROGRESS")
COMPLETED: Final = FlinkStatusId("COMPLETED")


class FlinkSavepoint(msgspec.Struct, frozen=True):
    """The body of POST /jobs/:jobid/savepoints. Unknown fields are let through, as Flink does."""

    target_directory: str | None = msgspec.field(name="target-directory", default=None)
    cancel_job: bool | None = msgspec.field(name="cancel-job", default=False)
    format_type: str | None = msgspec.field(name="formatType", default=None)
    trigger_id: str | None = msgspec.field(name="triggerId", default=None)


class FlinkStop(msgspec.Struct, frozen=True, rename="camel"):
    """The body of POST /jobs/:jobid/stop."""

    target_directory: str | None = None
    drain: bool | None = False
    format_type: str | None = None
    trigger_id: str | None = None


class FlinkCheckpointBody(msgspec.Struct, frozen=True, rename="camel"):
    """The body of POST /jobs/:jobid/checkpoints."""

    checkpoint_type: str | None = None
    trigger_id: str | None = None


class FlinkDisposal(msgspec.Struct, frozen=True):
    """The body of POST /savepoint-disposal."""

    savepoint_path: str = msgspec.field(name="savepoint-path", default="")
    trigger_id: str | None = msgspec.field(name="triggerId", default=None)


class FlinkTriggered(msgspec.Struct, frozen=True, rename="kebab"):
    """The request is on its way; what becomes of it is asked for under its id."""

    request_id: str


class FlinkOutcome(msgspec.Struct, frozen=True):
    """What has become of a request."""

    status: FlinkStatusId
    operation: dict[str, Any] | None
    """`location` of a savepoint, `checkpointId` of a checkpoint; empty of a disposal; null while it is under way."""


class OperationRoutes:
    """The handlers."""

    def __init__(self, lookup: Lookup, penstock: PenstockRoutes, disposal: SavepointDisposal) -> None:
        self._lookup = lookup
        self._cluster = lookup.cluster
        self._penstock = penstock
        self._disposal = disposal

    def add_to(self, router: APIRouter) -> None:
        """Add all routes."""
        job = "/jobs/{job_id}"
        accepted, outcome = answers(Nothing, 202), answers(FlinkOutcome)
        add: Any = router.add_api_route
        add(job, self.patch, methods=["PATCH"], status_code=202, responses=accepted)
        add(f"{job}/yarn-cancel", self.cancel_by_get, methods=["GET"], status_code=202, responses=accepted)
        add("/applications/{application_id}/cancel", self.cancel_application, methods=["POST"], status_code=202)
        asking: tuple[tuple[str, Any, type[msgspec.Struct]], ...] = (
            ("stop", self.stop, FlinkStop),
            ("savepoints", self.take_savepoint, FlinkSavepoint),
            ("checkpoints", self.take_checkpoint, FlinkCheckpointBody),
        )
        for name, handler, body in asking:
            add(
                f"{job}/{name}", handler, methods=["POST"], status_code=202, responses=answers(FlinkTriggered, 202),
                openapi_extra=takes(body),
            )  # fmt: skip
        add(f"{job}/savepoints/{{trigger_id}}", self.savepoint, methods=["GET"], responses=outcome)
        add(f"{job}/checkpoints/{{trigger_id}}", self.checkpoint, methods=["GET"], responses=outcome)
        add(
            "/savepoint-disposal", self.dispose, methods=["POST"], responses=answers(FlinkTriggered),
            openapi_extra=takes(FlinkDisposal),
        )  # fmt: skip
        add("/savepoint-disposal/{trigger_id}", self.disposed, methods=["GET"], responses=outcome)
        add("/jobs", self.run, methods=["POST"])

    # -- cancelling -----------------------------------------------------------------------------------------------------

    async def patch(self, job_id: str, mode: str = "cancel") -> Response:
        """Flink: cancel a job."""
        if mode == "stop":
            raise RestError(308, 'the mode "stop" is no more; use POST /jobs/:jobid/stop')
        if mode != "cancel":
            raise RestError(400, f"Cannot resolve query parameter (mode) from value {mode!r}.")
        return await self._cancel(await self._exact(job_id))

    async def cancel_by_get(self, job_id: str) -> Response:
        """Flink: cancel a job, as a button of its pages does; those of other sites may not (see `Access`)."""
        return await self._cancel(await self._exact(job_id))

    async def cancel_application(self, application_id: str) -> Response:
        """Flink: cancel the job of an application."""
        found = await self._lookup.jobs.exact(path_id("applicationid", application_id))
        if found.history.terminated is not None:
            raise RestError(404, f"Application {found.job} has already ended: {flink_state(found.state)}")
        return await self._cancel(found)

    async def _cancel(self, found: Found) -> Response:
        terminated = found.history.terminated
        if terminated is not None and terminated.state != "CANCELED":
            raise RestError(
                409,
                "Job cancellation failed because the job has already reached another terminal state "
                f"({flink_state(terminated.state)}).",
            )
        if terminated is None:
            await self._cluster.leading_view()
            ids = self._cluster.new_id(), self._cluster.now_us()
            await self._cluster.ask(CancelJob(request=ids[0], job=found.job, issued_us=ids[1]))
        return sent(Nothing(), 202)

    async def _exact(self, job_id: str) -> Found:
        return await self._lookup.jobs.exact(path_id("jobid", job_id))

    # -- savepoints and checkpoints -------------------------------------------------------------------------------------

    async def stop(self, job_id: str, request: Request) -> Response:
        """Flink: stop a job with a savepoint."""
        body = await read_body(request, FlinkStop)
        _check_target(body.target_directory)
        job, trigger = await self._asked(job_id, body.trigger_id)
        return await self._send(
            StopJob(request=trigger, job=job, issued_us=self._cluster.now_us(), drain=bool(body.drain))
        )

    async def take_savepoint(self, job_id: str, request: Request) -> Response:
        """Flink: take a savepoint, and with `cancel-job` end the job at it."""
        body = await read_body(request, FlinkSavepoint)
        _check_target(body.target_directory)
        job, trigger = await self._asked(job_id, body.trigger_id)
        kind = StopJob if body.cancel_job else TakeSavepoint
        return await self._send(kind(request=trigger, job=job, issued_us=self._cluster.now_us()))

    async def take_checkpoint(self, job_id: str, request: Request) -> Response:
        """Flink: take a checkpoint now."""
        body = await read_body(request, FlinkCheckpointBody)
        if body.checkpoint_type not in (None, "CONFIGURED"):
            raise RestError(
                400,
                f"checkpointType {body.checkpoint_type!r}: a checkpoint is taken as the job's state backend does it; "
                "leave the type out (--full), or take a savepoint, which needs no other checkpoint",
            )
        job, trigger = await self._asked(job_id, body.trigger_id)
        return await self._send(TakeCheckpoint(request=trigger, job=job, issued_us=self._cluster.now_us()))

    async def _asked(self, job_id: str, trigger: str | None) -> tuple[str, str]:
        job = path_id("jobid", job_id)
        request = checked_id(trigger or "", self._cluster.new_id(), "triggerId")
        found = await self._lookup.jobs.alive(job)
        await self._cluster.leading_view()
        return found.job, request

    async def _send(self, request: AnyRequest) -> Response:
        await self._cluster.ask(request)
        return sent(FlinkTriggered(request.request), 202)

    async def savepoint(self, job_id: str, trigger_id: str) -> Response:
        """Flink: what became of a savepoint or stop."""
        return await self._outcome(job_id, trigger_id, lambda restore: {"location": restore.manifest})

    async def checkpoint(self, job_id: str, trigger_id: str) -> Response:
        """Flink: what became of a checkpoint that was asked for."""
        return await self._outcome(job_id, trigger_id, lambda restore: {"checkpointId": restore.checkpoint})

    async def _outcome(self, job_id: str, trigger_id: str, shape: Any) -> Response:
        outcome = await self._penstock.outcome(path_id("jobid", job_id), path_id("triggerid", trigger_id))
        if outcome.state == "pending":
            return sent(FlinkOutcome(IN_PROGRESS, None))
        if outcome.state == "refused" or outcome.savepoint is None:
            # Flink sends 200 with a serialised Java exception; its command line takes this as well.
            raise RestError(409, outcome.reason or "the request was for something else")
        return sent(FlinkOutcome(COMPLETED, shape(outcome.savepoint)))

    # -- removing a savepoint -------------------------------------------------------------------------------------------

    async def dispose(self, request: Request) -> Response:
        """Flink: remove a savepoint."""
        body = await read_body(request, FlinkDisposal)
        trigger = checked_id(body.trigger_id or "", self._cluster.new_id(), "triggerId")
        note_change(kind="DisposeSavepoint", savepoint=body.savepoint_path, request=trigger)
        await self._disposal.dispose(body.savepoint_path, trigger)
        return sent(FlinkTriggered(trigger))

    async def disposed(self, trigger_id: str) -> Response:
        """Flink: what became of the removal of a savepoint."""
        trigger = path_id("triggerid", trigger_id)
        if not await self._disposal.is_done(trigger):
            raise RestError(404, f"There is no savepoint disposal operation with triggerId={trigger}.")
        return sent(FlinkOutcome(COMPLETED, {}))

    # -- what cannot be had ---------------------------------------------------------------------------------------------

    async def run(self) -> Response:
        """Flink: run a job, which it sends as serialised Java: none that Penstock could run."""
        raise RestError(
            400, "a Flink program cannot run on this cluster: write it as a pipeline, and penstock submit it"
        )


def _check_target(directory: str | None) -> None:
    """Savepoints stand in the cluster's store: another place that is asked for is not passed over in silence."""
    if directory:
        raise RestError(
            400,
            f"savepoints are kept in the cluster's store, not in {directory!r}: leave the target directory out, and "
            "export with penstock savepoint JOB --to DIR",
        )
