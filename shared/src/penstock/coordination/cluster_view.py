"""The cluster as clients see it: what the leader puts into the metadata store twice a second, as JSON.

A cache and nothing more: lost, it is there again half a second later; what it says of jobs stands in their logs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from penstock.graph.jobgraph import graph_from_json
from penstock.jobmanager.autoscaling import ScalingView
from penstock.protocol.joblog import Artifact, Begin
from penstock.protocol.messages import SubtaskId, TaskStatus
from penstock.protocol.phases import Phase

if TYPE_CHECKING:
    from penstock.jobmanager.coordinator import Worker
    from penstock.jobmanager.job_shell import JobShell
    from penstock.protocol.slots import SlotPool

JobState = Literal[
    "CREATED", "RUNNING", "RESTARTING", "FINISHED", "STOPPED", "CANCELED", "FAILED", "SUSPENDED", "UNOPENED"
]
"""`UNOPENED`: the leader cannot look after it for now; `failures` says why."""

_STATES: dict[Phase, JobState] = {
    Phase.OPENING: "CREATED",
    Phase.WAITING: "CREATED",
    Phase.CAPTURING: "CREATED",
    Phase.BEGINNING: "CREATED",
    Phase.RUNNING: "RUNNING",
    Phase.RESTARTING: "RESTARTING",
    Phase.ENDING: "RUNNING",
    Phase.SUSPENDED: "SUSPENDED",
}


class TaskView(msgspec.Struct, frozen=True):
    """A subtask."""

    index: int
    state: str
    worker: str
    published: int = 0
    error: str = ""
    metrics: dict[str, Any] = {}
    """Operator id to its counters."""
    progress: dict[str, Any] = {}
    """Watermark, time use, bytes."""
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


def view_of_cluster(
    leader: str,
    address: str,
    epoch: int,
    now_us: int,
    jobs: Mapping[str, JobShell],
    workers: Mapping[str, Worker],
    slots: SlotPool,
    deaf_us: int = 0,
) -> ClusterView:
    """What the leader knows now; `deaf_us` as the view says it."""
    where = {
        (status.attempt, status.subtask): name for name, worker in workers.items() for status in worker.tasks.values()
    }
    return ClusterView(
        leader,
        address,
        epoch,
        now_us,
        slots.total,
        slots.free,
        tuple(_worker_view(name, worker, slots) for name, worker in sorted(workers.items())),
        tuple(_view_or_reason(shell, where, deaf_us) for _, shell in sorted(jobs.items())),
        deaf_us=deaf_us,
    )


def _worker_view(name: str, worker: Worker, slots: SlotPool) -> WorkerView:
    beat = worker.heartbeat
    return WorkerView(name, beat.host, beat.slots, slots.used(name), len(worker.tasks), beat.memory_bytes)


def _view_or_reason(shell: JobShell, where: Mapping[tuple[str, SubtaskId], str], deaf_us: int) -> JobView:
    """What cannot be shown of one job must not hide the others."""
    try:
        return msgspec.structs.replace(view_of_job(shell, where), deaf_us=deaf_us)
    except Exception as error:
        return unopened_view(shell.job, f"the job cannot be shown: {type(error).__name__}: {error}")


def unopened_view(job: str, reason: str) -> JobView:
    """A job of which the leader knows no more than what is wrong with it: its log says the rest."""
    return JobView(
        job=job, name="", state="UNOPENED", parallelism=0, submitted_us=0, attempts=0, missing_slots=0, restored=None,
        last_checkpoint=0, vertices=(), checkpoints=(), failures=(reason,),
    )  # fmt: skip


def view_of_job(shell: JobShell, where: Mapping[tuple[str, SubtaskId], str]) -> JobView:
    """A job under its leader; `where` tells the worker of every subtask of every attempt that is reported."""
    history, progress = shell.history, shell.progress
    submit = history.submit
    assert submit is not None
    graph = graph_from_json(history.graph)
    by_vertex: dict[str, list[TaskStatus]] = {}
    for subtask, status in sorted(progress.statuses.items()):
        by_vertex.setdefault(subtask.vertex, []).append(status)
    vertices: list[VertexView] = []
    for vertex in graph.vertices:
        statuses = by_vertex.get(vertex.id, [])
        tasks = tuple(
            TaskView(
                s.subtask.index,
                s.state,
                where.get((s.attempt, s.subtask), ""),
                s.published,
                s.error,
                s.metrics,
                s.progress,
                s.waits_for,
            )
            for s in statuses
        )
        vertices.append(VertexView(vertex.id, vertex.name, vertex.parallelism, tasks))
    begins = [record for record in history.records if isinstance(record, Begin)]
    return JobView(
        job=shell.job,
        name=submit.name,
        state=_state(shell, bool(begins)),
        parallelism=graph.parallelism,
        submitted_us=submit.submitted_us,
        attempts=len(begins),
        missing_slots=progress.missing_slots,
        restored=progress.restored,
        last_checkpoint=history.highest_checkpoint,
        vertices=tuple(vertices),
        checkpoints=tuple(
            CheckpointView(c.checkpoint, c.state, c.triggered_us, c.duration_us, c.size_bytes, c.sync_us, c.reason)
            for c in progress.checkpoints.values()
        ),
        failures=tuple(progress.failures),
        graph=history.graph,
        artifact=submit.artifact,
        ending=shell.ending,
    )


def _state(shell: JobShell, begun: bool) -> JobState:
    terminated = shell.history.terminated
    if terminated is not None:
        return terminated.state
    state = _STATES[shell.phase]
    return "RESTARTING" if state == "CREATED" and begun else state
