"""What a decision about a job is made of: what is seen of it, and what is to be done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from penstock.client.documents import ENDED
from penstock_operator.autoscaling import LoadSample
from penstock_operator.resources import Deployed, JobStatus, StartPoint, StepKind

Submitter = Literal["absent", "working", "halted", "failed", "done"]
"""What tries to submit a job. `halted`: it never will."""


# -- what is seen -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobSeen:
    """A job as the cluster has it."""

    state: str
    parallelism: int = 1
    all_running: bool = False
    """Whether every subtask runs."""
    last_checkpoint: int = 0
    """Number of the newest complete one; a job begins with that of what it started from."""
    checkpointed_us: int | None = None
    """When that was complete, as far as the leader remembers."""
    behind: int | None = None
    """Records that its sources could read and have not read."""
    reason: str = ""
    """Why it failed: the user's own exception."""
    is_ending: bool = False
    """Whether the cluster is about something with it, such as a savepoint or the end of its attempt for a rescale."""
    left: StartPoint | None = None
    """What an ended job has left to go on from."""
    load: LoadSample | None = None
    """What its vertices do, as far as that is measured while all of them run."""

    @property
    def ended(self) -> bool:
        """Whether it will not run any more."""
        return self.state in ENDED


@dataclass(frozen=True, slots=True)
class Answered:
    """What the cluster says about the request of the step."""

    state: Literal["unknown", "pending", "completed", "refused"] = "unknown"
    reason: str = ""
    savepoint: StartPoint | None = None


UNKNOWN: Final = Answered()


@dataclass(frozen=True, slots=True)
class Observed:
    """What the operator observes in addition to the resource itself."""

    problem: str = ""
    """Why the cluster could not be looked at; then nothing else here is known."""
    cluster_missing: bool = False
    """Whether that is because there is no such `PenstockCluster`."""
    content: str = ""
    """SHA-256 of the ConfigMap's data, of which there is a copy now; empty if the file lies in the image."""
    content_problem: str = ""
    """Why there is none."""
    given: StartPoint | None = None
    """What `fromSavepoint` names."""
    given_problem: str = ""
    job: JobSeen | None = None
    """`status.deployed`; None if the cluster does not know it."""
    starting: JobSeen | None = None
    """`status.starting`, likewise."""
    answer: Answered = UNKNOWN
    submitter: Submitter = "absent"
    submitter_problem: str = ""
    """The last words of one that failed, or why one that works does not get on."""
    strays: tuple[str, ...] = ()
    """Jobs of `status.given_up` that are alive."""
    gone: frozenset[str] = frozenset()
    """Manifests of savepoints that were disposed of."""
    loads: tuple[LoadSample, ...] = ()
    """The measurements of `job`, oldest first. The controller keeps them in memory, and begins anew after a crash."""
    spare_slots: int | None = None
    """Slots that `job` could have besides its own; None if that is not known."""


# -- what is to be done -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Submit:
    """Have the job submitted; nothing happens if that was begun, or halted, before."""

    deployed: Deployed


@dataclass(frozen=True, slots=True)
class Halt:
    """Nobody may submit this job from now on."""

    deployed: Deployed


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask something of a job, by this id."""

    kind: StepKind
    job: str
    request: str
    parallelism: int = 0


@dataclass(frozen=True, slots=True)
class Dispose:
    """Remove a savepoint, if no job needs it."""

    manifest: str


Action = Submit | Halt | Ask | Dispose


@dataclass(frozen=True, slots=True)
class Event:
    """Something to be told, as an event of the resource."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """The status to write, and the actions to carry out once it is written."""

    status: JobStatus
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    released: bool = False
    """Whether a resource that is being deleted may go."""
