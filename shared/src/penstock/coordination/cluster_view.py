"""The cluster as clients see it: what the leader puts into the metadata store twice a second, as JSON.

A cache and nothing more: lost, it is there again half a second later; what it says of jobs stands in their logs.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from penstock.protocol.joblog import Artifact
from penstock.protocol.messages import OperatorMetrics, TaskProgress

VIEW: Final = "view"
"""Key of the newest `ClusterView` in the metadata store: what dispatchers show."""

SHOWN_ACKS: Final = 2_000
"""So many acknowledgements are shown per job: those of the newest checkpoints, as many whole ones as fit."""

JobState = Literal[
    "CREATED", "RUNNING", "RESTARTING", "FINISHED", "STOPPED", "CANCELED", "FAILED", "SUSPENDED", "UNOPENED"
]
"""`UNOPENED`: the leader cannot look after it for now; `failures` says why."""


class TaskRates(msgspec.Struct, frozen=True):
    """What a subtask did per second lately, over 5 to 10 s: for pages and clients that look once."""

    busy: float = 0.0
    """Share of its time, 0 to 1; so are the next two, and the three sum to 1."""
    idle: float = 0.0
    blocked: float = 0.0
    bytes_in: float = 0.0
    bytes_out: float = 0.0
    rows: dict[str, tuple[float, float]] = {}
    """Operator id to the rows that came in and went out per second."""


class TaskView(msgspec.Struct, frozen=True):
    """A subtask."""

    index: int
    state: str
    worker: str
    published: int = 0
    error: str = ""
    metrics: dict[str, OperatorMetrics] = {}
    """Operator id to its counters."""
    progress: TaskProgress = TaskProgress()
    waits_for: str = ""
    """What it waits for that does not answer."""
    since_us: dict[str, int] = {}
    """When the leader first heard of each state that it was in, in this attempt; `deployed`: when it ordered it."""
    rates: TaskRates | None = None
    """None until enough was heard of it."""


class VertexView(msgspec.Struct, frozen=True):
    """A vertex of the job graph."""

    id: str
    name: str
    parallelism: int
    tasks: tuple[TaskView, ...]


class AckView(msgspec.Struct, frozen=True, array_like=True):
    """A subtask's acknowledgement of a checkpoint. An array in JSON: there are many."""

    index: int
    at_us: int
    """When the leader heard it."""
    size_bytes: int
    sync_us: int
    async_us: int
    alignment_us: int
    written_bytes: int | None = None
    """Of what was written for it, if it names objects of earlier checkpoints too."""

    @property
    def new_bytes(self) -> int:
        """What was written for it."""
        return self.size_bytes if self.written_bytes is None else self.written_bytes


class CheckpointView(msgspec.Struct, frozen=True):
    """A checkpoint. Times in microseconds since the epoch, durations in microseconds, sizes in bytes."""

    checkpoint: int
    state: str
    triggered_us: int
    duration_us: int | None
    size_bytes: int
    sync_us: int
    reason: str = ""
    """Why it was aborted."""
    ended_us: int | None = None
    """When it was complete, or aborted."""
    subtasks: int = 0
    """How many had to acknowledge it; 0 until the first has."""
    acks: dict[str, tuple[AckView, ...]] = {}
    """Vertex to what its subtasks acknowledged; of the newest checkpoints only (`SHOWN_ACKS`)."""
    written_bytes: int | None = None
    """Of what was written for it; all of it if None."""


class JobView(msgspec.Struct, frozen=True):
    """A job that has not ended."""

    job: str
    name: str
    state: JobState
    parallelism: int
    submitted_us: int
    attempts: int
    """How often it was started: 1 if it never failed, was never rescaled and never stopped."""
    missing_slots: int
    restored: int | None
    """The checkpoint that the newest attempt started from."""
    last_checkpoint: int
    vertices: tuple[VertexView, ...]
    checkpoints: tuple[CheckpointView, ...]
    failures: tuple[str, ...]
    """What made attempts fail, newest last."""
    graph: dict[str, Any] = {}
    artifact: Artifact | None = None
    deaf_us: int = 0
    """See `ClusterView`."""
    ending: str = ""
    """Which ending or savepoint is under way, and what it waits for."""
    totals: dict[str, int] = {}
    """How many checkpoints were `complete` and `aborted`, and attempts `failed`, under this leader."""


class WorkerView(msgspec.Struct, frozen=True):
    """A worker process."""

    worker: str
    host: str
    slots: int
    used: dict[str, int]
    """Job to the number of slots it has there."""
    tasks: int
    memory_bytes: int
    heard_us: int = 0
    """When its newest heartbeat came."""


class ScalingView(msgspec.Struct, frozen=True):
    """The task managers of a cluster that is scaled, as its leader knows them."""

    wanted: int | None
    """How many are asked for; None as long as that could not be read."""
    standing: int
    """How many were heard of."""
    least: int
    most: int
    short: int = 0
    """Slots that jobs wait for in vain because of `most`."""
    problem: str = ""
    """Why the number cannot be read or set."""


class ClusterView(msgspec.Struct, frozen=True):
    """The cluster, as its leader knows it."""

    leader: str
    address: str
    epoch: int
    seen_us: int
    """When the leader wrote this: far back, there is none."""
    slots: int
    free_slots: int
    workers: tuple[WorkerView, ...]
    jobs: tuple[JobView, ...]
    scaling: ScalingView | None = None
    """None where the number of task managers is not the coordinator's to set."""
    deaf_us: int = 0
    """For how long the leader has heard nothing from the brokers: what it shows of workers and subtasks is so old. 0
    while it hears them."""
