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

JobState = Literal[
    "CREATED", "RUNNING", "RESTARTING", "FINISHED", "STOPPED", "CANCELED", "FAILED", "SUSPENDED", "UNOPENED"
]
"""`UNOPENED`: the leader cannot look after it for now; `failures` says why."""


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


class VertexView(msgspec.Struct, frozen=True):
    """A vertex of the job graph."""

    id: str
    name: str
    parallelism: int
    tasks: tuple[TaskView, ...]


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


class WorkerView(msgspec.Struct, frozen=True):
    """A worker process."""

    worker: str
    host: str
    slots: int
    used: dict[str, int]
    """Job to the number of slots it has there."""
    tasks: int
    memory_bytes: int


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
