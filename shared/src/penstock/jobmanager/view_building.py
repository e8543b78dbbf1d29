"""Makes the `ClusterView` of what a leader knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.coordination.cluster_view import (
    SHOWN_ACKS,
    AckView,
    CheckpointView,
    ClusterView,
    JobState,
    JobView,
    TaskView,
    VertexView,
    WorkerView,
)
from penstock.coordination.job_progress import CheckpointProgress, JobProgress
from penstock.graph.jobgraph import graph_from_json
from penstock.protocol.joblog import Begin, JobHistory
from penstock.protocol.messages import SubtaskId, TaskStatus
from penstock.protocol.phases import Phase

if TYPE_CHECKING:
    from penstock.jobmanager.job_shell import JobShell
    from penstock.jobmanager.workers import Worker
    from penstock.protocol.slots import SlotPool

_STATES: Final[dict[Phase, JobState]] = {
    Phase.OPENING: "CREATED",
    Phase.WAITING: "CREATED",
    Phase.CAPTURING: "CREATED",
    Phase.BEGINNING: "CREATED",
    Phase.RUNNING: "RUNNING",
    Phase.RESTARTING: "RESTARTING",
    Phase.ENDING: "RUNNING",
    Phase.SUSPENDED: "SUSPENDED",
}


def view_of_cluster(
    leader: str,
    address: str,
    epoch: int,
    now_us: int,
    jobs: Mapping[str, JobShell],
    workers: Mapping[str, Worker],
    slots: SlotPool,
    deaf_us: int = 0,
    now_ms: int = 0,
) -> ClusterView:
    """What the leader knows now; `deaf_us` as the view says it, `now_ms` by the clock that workers are judged by."""
    began_us = now_us - now_ms * 1_000
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
        tuple(_worker_view(name, worker, slots, began_us) for name, worker in sorted(workers.items())),
        tuple(_view_or_reason(shell, where, deaf_us) for _, shell in sorted(jobs.items())),
        deaf_us=deaf_us,
    )


def _worker_view(name: str, worker: Worker, slots: SlotPool, began_us: int) -> WorkerView:
    beat, heard_us = worker.heartbeat, began_us + worker.seen_ms * 1_000
    return WorkerView(name, beat.host, beat.slots, slots.used(name), len(worker.tasks), beat.memory_bytes, heard_us)


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
    return job_view(shell.history, shell.progress, _state(shell), where, shell.ending)


def job_view(
    history: JobHistory,
    progress: JobProgress,
    state: JobState,
    where: Mapping[tuple[str, SubtaskId], str],
    ending: str = "",
) -> JobView:
    """A job as its log and what was heard of it say; `where` and `ending` as above, and in `JobView`."""
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
                dict(progress.entered_us.get(s.subtask, {})),
                progress.rates(s.subtask),
            )
            for s in statuses
        )
        vertices.append(VertexView(vertex.id, vertex.name, vertex.parallelism, tasks))
    begins = [record for record in history.records if isinstance(record, Begin)]
    return JobView(
        job=submit.job,
        name=submit.name,
        state=state,
        parallelism=graph.parallelism,
        submitted_us=submit.submitted_us,
        attempts=len(begins),
        missing_slots=progress.missing_slots,
        restored=progress.restored,
        last_checkpoint=history.highest_checkpoint,
        vertices=tuple(vertices),
        checkpoints=_checkpoint_views(progress),
        failures=tuple(progress.failures),
        graph=history.graph,
        artifact=submit.artifact,
        ending=ending,
        totals=dict(progress.totals),
    )


def _checkpoint_views(progress: JobProgress) -> tuple[CheckpointView, ...]:
    """With the acknowledgements of the newest ones, as many as there is room for."""
    views: list[CheckpointView] = []
    room = SHOWN_ACKS
    for shown in reversed(progress.checkpoints.values()):
        room -= len(shown.acks)
        views.append(CheckpointView(
            shown.checkpoint, shown.state, shown.triggered_us, shown.duration_us, shown.size_bytes, shown.sync_us,
            shown.reason, shown.ended_us, shown.subtasks, _acks(shown) if room >= 0 or not views else {},
            shown.written_bytes,
        ))  # fmt: skip
    return tuple(reversed(views))


def _acks(shown: CheckpointProgress) -> dict[str, tuple[AckView, ...]]:
    acks: dict[str, list[AckView]] = {}
    for subtask, ack in sorted(shown.acks.items()):
        acks.setdefault(subtask.vertex, []).append(ack)
    return {vertex: tuple(found) for vertex, found in acks.items()}


def _state(shell: JobShell) -> JobState:
    terminated = shell.history.terminated
    if terminated is not None:
        return terminated.state
    state = _STATES[shell.phase]
    return "RESTARTING" if state == "CREATED" and shell.history.begin is not None else state
