"""The documents of the REST interface under /penstock/v1: what the dispatcher sends and its clients read.

Times are microseconds since the epoch, durations microseconds, sizes bytes. Fields may be added; clients ignore those
that they do not know.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from penstock.coordination.cluster_view import CheckpointView, JobState, ScalingView, TaskView, VertexView, WorkerView
from penstock.protocol.joblog import JobSettings
from penstock.protocol.messages import Restore
from penstock.protocol.requests import Answer

__all__ = [
    "Answer", "ArtifactDescription", "Checkpoint", "CheckpointList", "CheckpointView", "FailedAttempt", "Failures",
    "JobDetail", "JobList", "JobLoad", "JobLog", "JobSource", "JobState", "JobSummary", "Overview", "Problem",
    "Requested", "RequestState", "RescaleBody", "SavepointBody", "SavepointList", "SavepointSummary", "StopBody",
    "Submission", "TaskView", "VertexView", "WorkerList", "WorkerView",
]  # fmt: skip

ENDED: frozenset[str] = frozenset({"FINISHED", "STOPPED", "CANCELED", "FAILED"})
"""States that a job does not leave any more."""

MAX_SOURCES_BYTES = 64 << 20
"""The largest zip of sources that a submission may carry."""
MAX_DOCUMENT_BYTES = 4 << 20
"""The largest document about a job (its graph, mostly) that a submission may carry."""


class Problem(msgspec.Struct, frozen=True):
    """What an error answer says."""

    errors: tuple[str, ...]


NO_COORDINATOR: Final = "no coordinator leads this cluster now"
"""Begins what a dispatcher says where only a leader can help; clients wait for one by it."""


# -- what is asked ------------------------------------------------------------------------------------------------------


class ArtifactDescription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be known about the sources of a job, besides their bytes."""

    target: str
    """The pipeline in them: `file.py`, or `file.py:name`."""
    parameters: dict[str, str] = {}
    requirements: tuple[str, ...] = ()


class Submission(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The part `job` of a submission."""

    name: str
    graph: dict[str, Any]
    artifact: ArtifactDescription
    scalable: dict[str, Any] | None = None
    settings: JobSettings = JobSettings()
    restored_from: Restore | None = None
    allow_non_restored: bool = False
    allow_unpublished: bool = False
    job: str = ""
    """The id that the job gets, 32 hex digits: a submission sent twice is one job. The dispatcher makes one if it is
    empty."""


class CollectedList(msgspec.Struct, frozen=True):
    """The parts of what the sinks of a job gathered in memory, in order; each is at `/jobs/{job}/collected/{name}`."""

    parts: tuple[str, ...]


class StopBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to stop."""

    drain: bool = False
    """Let all windows and timers fire before."""
    request: str = ""
    """The id of the request, 32 hex digits: one that is sent twice is carried out once."""


class SavepointBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of a savepoint or a cancellation there is nothing to say but the request's id."""

    request: str = ""


class RescaleBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to go on."""

    parallelism: int
    request: str = ""
    wait: bool = False
    """Whether the job goes on as it is until there are slots enough; else it is refused while there are not."""


# -- what is answered ---------------------------------------------------------------------------------------------------


class Requested(msgspec.Struct, frozen=True):
    """The request is on its way; what becomes of it is asked for under its id."""

    job: str
    request: str


class RequestState(msgspec.Struct, frozen=True):
    """What has become of a request."""

    job: str
    request: str
    state: Literal["pending", "completed", "refused"]
    reason: str = ""
    savepoint: Restore | None = None


class JobLoad(msgspec.Struct, frozen=True):
    """How a running job does, measured over the last 5 to 10 s."""

    rows_in: float
    """Rows a second that its sources emit."""
    rows_out: float
    """Rows a second that come to its sinks."""
    busy: float
    """Share of its time, 0 to 1, that the busiest subtask works."""
    blocked: float
    """Share of its time, 0 to 1, that the subtask waits for what is downstream that waits most (backpressure)."""
    records_behind: int | None = None
    """Records that are there and not read; None where no source can tell."""


class JobSource(msgspec.Struct, frozen=True):
    """What was submitted, as text."""

    job: str
    target: str
    """The pipeline in it: `file.py`, or `file.py:name`."""
    files: tuple[str, ...]
    """All files of the zip."""
    text: str
    """The file that `target` names; only its beginning where `whole` is false."""
    whole: bool = True


class JobSummary(msgspec.Struct, frozen=True):
    """A job in a list."""

    job: str
    name: str
    state: JobState
    parallelism: int
    submitted_us: int
    ended_us: int | None = None
    reason: str = ""
    """Why it ended; what is wrong with it; or which ending is under way, and what that waits for."""
    running_tasks: int = 0
    tasks: int = 0
    missing_slots: int = 0
    last_checkpoint: int = 0
    """The newest complete one, 0 if there is none."""
    live: bool = False
    """Whether a leader says this now; else it is what the job's log says."""
    changed_us: int = 0
    """When the newest record of its log was written; 0 if that is not known."""
    attempts: int = 0
    """How often it was started, as far as that is known: not of a job in the list that has ended."""
    load: JobLoad | None = None
    """None where nobody measures it."""
    last_checkpoint_us: int = 0
    """When the newest checkpoint was complete; 0 if that is not known."""
    failures: int = 0
    """How many attempts have failed since the newest checkpoint was complete: the job may be in a loop of restarts."""
    failure: str = ""
    """Why the last of these failed."""


class JobList(msgspec.Struct, frozen=True):
    """Running jobs first, then ended ones; each group newest first."""

    jobs: tuple[JobSummary, ...]
    leader: str
    """Who leads the cluster; empty if nobody does."""
    missing: str = ""
    """What could not be read, and why; then jobs are shown as their leader sees them."""
    deaf_us: int = 0
    """For how long the leader has heard nothing from the brokers: what it says of subtasks is so old. 0 while it hears
    them."""


class JobDetail(msgspec.Struct, frozen=True):
    """A job."""

    summary: JobSummary
    attempts: int
    restored: int | None
    """The checkpoint that the newest attempt started from."""
    vertices: tuple[VertexView, ...]
    checkpoints: tuple[CheckpointView, ...]
    failures: tuple[str, ...]
    graph: dict[str, Any]
    missing: str = ""
    """Why the job's log could not be read; then all this is what its leader shows."""
    deaf_us: int = 0
    """For how long the leader has heard nothing from the brokers: the vertices are shown as they were then. 0 while it
    hears them."""
    checkpoint_interval_us: int = 0
    """From the start of one checkpoint to the next, as it was submitted; 0 if that is not known."""


class Checkpoint(msgspec.Struct, frozen=True):
    """A checkpoint; what a leader has forgotten is None."""

    checkpoint: int
    state: str
    savepoint: bool = False
    manifest: str = ""
    triggered_us: int | None = None
    duration_us: int | None = None
    size_bytes: int | None = None
    sync_us: int | None = None
    reason: str = ""
    """Why it failed, if it did and was not merely replaced by a later one."""


class CheckpointList(msgspec.Struct, frozen=True):
    """The newest checkpoints, newest first."""

    job: str
    checkpoints: tuple[Checkpoint, ...]
    restored: int | None


class FailedAttempt(msgspec.Struct, frozen=True):
    """Why an attempt was given up, as the job's log has it."""

    attempt_number: int
    reason: str
    subtask: str
    """Where it failed, if that was in a subtask: `vertex[index]`."""
    worker: str
    """Which worker process failed, or ran the subtask."""
    frames: str
    """Where in the user's code, as in a traceback."""
    at_us: int
    """When, in microseconds since the epoch."""


class Failures(msgspec.Struct, frozen=True):
    """What made attempts fail, newest last."""

    job: str
    failures: tuple[str, ...]
    """What the leader says, a line each; what keeps a job from being opened, too."""
    reason: str
    """Why the job failed for good; empty if it did not."""
    attempts: tuple[FailedAttempt, ...] = ()
    """The newest failed attempts."""


class JobLog(msgspec.Struct, frozen=True):
    """The records of the job's log, as they stand in the store but for the graphs."""

    job: str
    records: tuple[dict[str, Any], ...]


class SavepointSummary(msgspec.Struct, frozen=True):
    """Something that a job can be started from."""

    job: str
    name: str
    checkpoint: int
    manifest: str
    sha256: str
    request: str
    kind: Literal["savepoint", "checkpoint"] = "savepoint"

    @property
    def restore(self) -> Restore:
        """How a submission names it."""
        return Restore(self.checkpoint, self.manifest, self.sha256)


class SavepointList(msgspec.Struct, frozen=True):
    """Savepoints, oldest first within a job."""

    savepoints: tuple[SavepointSummary, ...]


class WorkerList(msgspec.Struct, frozen=True):
    """The worker processes of all task managers."""

    workers: tuple[WorkerView, ...]


class LoginOffer(msgspec.Struct, frozen=True, kw_only=True):
    """Where the dashboard's users log in; all empty where they do not."""

    issuer: str = ""
    authorization_endpoint: str = ""
    client_id: str = ""
    scopes: str = ""


class LoginCode(msgspec.Struct, frozen=True):
    """What a login came back with (RFC 6749 4.1.3, RFC 7636 4.5), and what its ID token has to repeat."""

    code: str
    code_verifier: str
    redirect_uri: str
    nonce: str


class LoginToken(msgspec.Struct, frozen=True):
    """What it became."""

    token: str
    """To be shown as any other; the dispatcher keeps nothing of it."""


class WhoAmI(msgspec.Struct, frozen=True):
    """Who asks, as the dispatcher sees it."""

    name: str
    """Of the token; `shared` for the cluster's own, `anonymous` where none is wanted."""
    role: str
    """`view`, `operate` or `submit`; each may do what those before it may."""
    refused: dict[str, str] = {}
    """What nobody can do here, `submit` or `rescale`, and why: an embedded run has no slots but its own."""


class Overview(msgspec.Struct, frozen=True):
    """The cluster."""

    leader: str
    address: str
    epoch: int
    workers: int
    slots: int
    free_slots: int
    jobs: dict[str, int]
    """State to number of jobs."""
    version: str
    scaling: ScalingView | None = None
    """Where the coordinator sets the number of task managers."""
    deaf_us: int = 0
    """For how long the leader has heard nothing from the brokers; 0 while it hears them."""
