"""What clients ask: the records of the `requests` topic, and the answers that the leader leaves in the store.

A leader obeys requests for jobs, the pipeline service those for runs; each passes over what is the other's.

Every request has an id, which the job log (or the answer) remembers: a leader that reads a request again does nothing.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from penstock.errors import CorruptDataError
from penstock.protocol.joblog import Artifact, JobSettings
from penstock.protocol.messages import Restore
from penstock.protocol.restarts import ExponentialDelay, RestartStrategy


class Request(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Base of all requests."""

    request: str
    job: str
    issued_us: int = 0


class SubmitJob(Request, frozen=True, kw_only=True):
    """Run a job; its id is the request's."""

    name: str
    graph: dict[str, Any]
    scalable: dict[str, Any] | None = None
    settings: JobSettings = JobSettings()
    artifact: Artifact | None = None
    restored_from: Restore | None = None
    allow_non_restored: bool = False
    """Whether state of operators that the graph does not have may be dropped."""
    allow_unpublished: bool = False
    """Whether rows that the checkpoint covers and that its job never published may be lost."""


class CancelJob(Request, frozen=True, kw_only=True):
    """Publish what is complete, then end."""


class StopJob(Request, frozen=True, kw_only=True):
    """Take a savepoint and end; with `drain`, let all windows and timers fire before it."""

    drain: bool = False


class TakeSavepoint(Request, frozen=True, kw_only=True):
    """Take a savepoint and go on."""


class TakeCheckpoint(Request, frozen=True, kw_only=True):
    """Take a checkpoint now, as the periodic ones are, and go on."""


class RescaleJob(Request, frozen=True, kw_only=True):
    """Go on at another parallelism."""

    parallelism: int
    wait: bool = False
    """Whether the job goes on as it is until there are slots enough; else it is refused while there are not."""


AnyRequest = SubmitJob | CancelJob | StopJob | TakeSavepoint | TakeCheckpoint | RescaleJob


class RunOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a pipeline is run on Spark."""

    parallelism: int | None = None
    """Subtasks per operator; None: as many as Spark runs at a time."""
    master: str = ""
    """Empty: that of the pipeline service."""
    conf: dict[str, str] = {}
    """Settings of Spark, besides those of the pipeline service."""
    from_savepoint: str = ""
    """The key of a manifest in the cluster's store, or a folder or URL that the pipeline service reaches."""
    to_savepoint: str = ""
    """A folder that the pipeline service reaches, or a URL (`s3://bucket/folder`)."""
    native: bool = True
    """Whether Spark's own plan computes what is proven equal; if not, every stage replays the streaming operators."""
    every_us: int = 0
    """Go on for ever, with a step so often (microseconds), each from where the one before ended; 0: a run that ends."""
    restart: RestartStrategy = ExponentialDelay()
    """Of steps: when one that failed is repeated, and a process that died is followed by another one."""

    @property
    def in_steps(self) -> bool:
        """Whether it goes on for ever."""
        return self.every_us > 0


class RunRequest(Request, frozen=True, kw_only=True):
    """Base of what is asked of the pipeline service; the id of a run stands where that of a job does."""


class SubmitRun(RunRequest, frozen=True, kw_only=True):
    """Run a pipeline on Spark. A run of this id that failed or was cancelled is taken up again."""

    name: str
    graph: dict[str, Any]
    artifact: Artifact
    options: RunOptions = RunOptions()


class CancelRun(RunRequest, frozen=True, kw_only=True):
    """End a run; nothing of it becomes visible that is not decided already."""


AnyRunRequest = SubmitRun | CancelRun

Outcome = Literal["completed", "refused"]


class Answer(msgspec.Struct, frozen=True):
    """What became of a request."""

    request: str
    job: str
    kind: str
    outcome: Outcome
    reason: str = ""
    savepoint: Restore | None = None
    answered_us: int = 0


_REQUESTS: msgspec.json.Decoder[AnyRequest | AnyRunRequest] = msgspec.json.Decoder(AnyRequest | AnyRunRequest)


def decode_request(data: bytes) -> AnyRequest | AnyRunRequest:
    """A record of the topic; raises `CorruptDataError`."""
    try:
        return _REQUESTS.decode(data)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise CorruptDataError(f"requests: a record that this program does not read: {error}") from error


def sender_of(data: bytes, *, of_runs: bool = False) -> Request | None:
    """Who asks something of a job (`of_runs`: of a run), where no more than that can be read of a record; None if not
    even that can, or something of the other kind is meant."""
    try:
        head = msgspec.json.decode(data, type=_Head)
    except (msgspec.ValidationError, msgspec.DecodeError):
        return None
    if head.type.endswith("Run") != of_runs:
        return None
    return Request(request=head.request, job=head.job, issued_us=0)


class _Head(msgspec.Struct):
    request: str
    job: str
    type: str = ""


def answer_key(job: str, request: str) -> str:
    """The object that holds the answer."""
    return f"jobs/{job}/answers/{request}"


def refused_key(request: str) -> str:
    """The key, in the metadata store, of why the pipeline service could not read a request: with no log to put it in."""
    return f"refused-{request}"


def artifact_key(sha256: str) -> str:
    """The object that holds the sources of jobs: named by what it contains, shared by jobs with the same sources."""
    return f"artifacts/{sha256}.zip"
