"""Flink's JSON for what a Penstock cluster has: the shapes of Flink 2.3's REST interface."""

from __future__ import annotations

import hashlib
from typing import Any, Final

from penstock.client.documents import ENDED, JobSummary, TaskView, VertexView, WorkerView
from penstock.coordination.cluster_view import ClusterView
from penstock.graph.jobgraph import JobGraph, JobVertex
from penstock.protocol.joblog import Begin, JobHistory
from penstock.protocol.messages import OperatorMetrics
from penstock_dispatcher.jobs import Found, summary_of

FLINK_VERSION: Final = "2.3.0"
"""The version whose interface this is."""
COMMIT: Final = "penstock"

_TASK_STATES: Final[tuple[str, ...]] = (
    "CREATED", "SCHEDULED", "DEPLOYING", "INITIALIZING", "RUNNING", "FINISHED", "CANCELING", "CANCELED", "FAILED",
    "RECONCILING",
)  # fmt: skip
_JOB_STATES: Final[tuple[str, ...]] = (
    "INITIALIZING", "CREATED", "RUNNING", "FAILING", "FAILED", "CANCELLING", "CANCELED", "FINISHED", "RESTARTING",
    "SUSPENDED", "RECONCILING",
)  # fmt: skip
_OF_TASK: Final = {
    "initializing": "INITIALIZING", "running": "RUNNING", "ended": "RUNNING", "finished": "FINISHED",
    "canceled": "CANCELED", "failed": "FAILED",
}  # fmt: skip
_ENDED_TASK: Final = {"FINISHED": "FINISHED", "STOPPED": "FINISHED", "CANCELED": "CANCELED", "FAILED": "FAILED"}
_SHIPS: Final = {"forward": "FORWARD", "hash": "HASH", "rebalance": "REBALANCE"}


def hex_id(text: str) -> str:
    """Flink's ids of vertices and slot groups have 32 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def flink_state(state: str) -> str:
    """Flink has no state of its own for a job that was stopped with a savepoint, nor for one that has no master."""
    return {"STOPPED": "FINISHED", "UNOPENED": "INITIALIZING"}.get(state, state)


def config(offset_ms: int, zone: str) -> dict[str, Any]:
    """GET /config."""
    return {
        "refresh-interval": 3000,
        "timezone-name": zone,
        "timezone-offset": offset_ms,
        "flink-version": FLINK_VERSION,
        "flink-revision": f"{COMMIT} @ 1970-01-01T00:00:00Z",
        "features": {"web-submit": False, "web-cancel": True, "web-rescale": False, "web-history": False},
    }


def overview(view: ClusterView | None, jobs: tuple[JobSummary, ...]) -> dict[str, Any]:
    """GET /overview."""
    states = [flink_state(job.state) for job in jobs]
    return {
        "taskmanagers": len(view.workers) if view else 0,
        "slots-total": view.slots if view else 0,
        "slots-available": view.free_slots if view else 0,
        "jobs-running": sum(state not in ENDED for state in states),
        "jobs-finished": states.count("FINISHED"),
        "jobs-cancelled": states.count("CANCELED"),
        "jobs-failed": states.count("FAILED"),
        "flink-version": FLINK_VERSION,
        "flink-commit": COMMIT,
    }


def job_ids(jobs: tuple[JobSummary, ...]) -> dict[str, Any]:
    """GET /jobs."""
    return {"jobs": [{"id": job.job, "status": flink_state(job.state)} for job in jobs]}


def jobs_overview(jobs: tuple[JobSummary, ...], now_us: int) -> dict[str, Any]:
    """GET /jobs/overview."""
    return {"jobs": [_job_overview(job, now_us) for job in jobs]}


def _job_overview(job: JobSummary, now_us: int) -> dict[str, Any]:
    ended_task = _ENDED_TASK.get(job.state, "")
    counts = {state.lower(): 0 for state in _TASK_STATES}
    if ended_task:
        counts[ended_task.lower()] = job.tasks
    else:
        counts["running"] = job.running_tasks
        counts["created"] = job.tasks - job.running_tasks
    return {
        "jid": job.job,
        "name": job.name,
        "jobType": "STREAMING",
        "schedulerType": "Default",
        **_times(job, now_us),
        "state": flink_state(job.state),
        "last-modification": (job.ended_us or job.submitted_us) // 1_000,
        "tasks": {"total": job.tasks, **counts},
        "pending-operators": 0,
    }


def _times(job: JobSummary, now_us: int) -> dict[str, int]:
    end_us = job.ended_us if job.ended_us is not None else None
    ended = job.state in ENDED
    return {
        "start-time": job.submitted_us // 1_000,
        "end-time": end_us // 1_000 if end_us is not None else -1 if not ended else job.submitted_us // 1_000,
        "duration": max(0, ((end_us if end_us is not None else now_us) - job.submitted_us) // 1_000),
    }


def job(found: Found, now_us: int) -> dict[str, Any]:
    """GET /jobs/:jobid."""
    summary = summary_of(found)
    graph, state = found.graph, flink_state(summary.state)
    times = _times(summary, now_us)
    shown = {vertex.id: vertex for vertex in found.view.vertices} if found.view is not None else {}
    vertices = [_vertex(vertex, shown.get(vertex.id), state, times) for vertex in graph.vertices]
    counts: dict[str, int] = dict.fromkeys(_TASK_STATES, 0)
    for vertex in vertices:
        counts[vertex["status"]] += 1
    return {
        "jid": found.job,
        "application-id": found.job,
        "name": summary.name,
        "isStoppable": False,
        "state": state,
        "job-type": "STREAMING",
        "schedulerType": "Default",
        **times,
        "maxParallelism": graph.max_parallelism,
        "now": now_us // 1_000,
        "timestamps": _timestamps(found.history, summary, state),
        "vertices": vertices,
        "status-counts": counts,
        "plan": plan(found.job, graph),
        "pending-operators": 0,
    }


def _timestamps(history: JobHistory, summary: JobSummary, state: str) -> dict[str, int]:
    """When a job came into its states, as far as anybody noted it; 0: never."""
    times: dict[str, int] = dict.fromkeys(_JOB_STATES, 0)
    times["INITIALIZING"] = times["CREATED"] = summary.submitted_us // 1_000
    if any(isinstance(record, Begin) for record in history.records):
        times["RUNNING"] = summary.submitted_us // 1_000
    if summary.ended_us is not None:
        times[state] = summary.ended_us // 1_000
    return times


def _vertex(vertex: JobVertex, shown: VertexView | None, state: str, times: dict[str, int]) -> dict[str, Any]:
    tasks: dict[str, int] = dict.fromkeys(_TASK_STATES, 0)
    if state in ENDED:
        tasks[_ENDED_TASK[state]] = vertex.parallelism
    else:
        found = shown.tasks if shown is not None else ()
        for task in found:
            tasks[_OF_TASK[task.state]] += 1
        tasks["CREATED"] += max(0, vertex.parallelism - len(found))
    return {
        "id": hex_id(vertex.id),
        "slotSharingGroupId": hex_id(vertex.slot_group),
        "name": vertex.name,
        "maxParallelism": vertex.max_parallelism,
        "parallelism": vertex.parallelism,
        "status": _vertex_state(tasks, vertex.parallelism),
        **times,
        "tasks": tasks,
        "metrics": _metrics(vertex, shown.tasks if shown is not None else ()),
    }


def _vertex_state(tasks: dict[str, int], total: int) -> str:
    """As Flink's ExecutionJobVertex.getAggregateJobVertexState."""
    if tasks["FAILED"]:
        return "FAILED"
    if tasks["CANCELED"]:
        return "CANCELED"
    if tasks["RUNNING"]:
        return "RUNNING"
    if tasks["FINISHED"]:
        return "FINISHED" if tasks["FINISHED"] == total else "RUNNING"
    return "INITIALIZING" if tasks["INITIALIZING"] else "CREATED"


def _metrics(vertex: JobVertex, tasks: tuple[TaskView, ...]) -> dict[str, Any]:
    first, last = vertex.operators[0].id, vertex.operators[-1].id
    all_progress = [task.progress for task in tasks]
    return {
        "read-bytes": sum(progress.bytes_in for progress in all_progress),
        "read-bytes-complete": True,
        "write-bytes": sum(progress.bytes_out for progress in all_progress),
        "write-bytes-complete": True,
        "read-records": 0 if vertex.is_source else sum(one.rows_in for one in _metrics_of(tasks, first)),
        "read-records-complete": True,
        "write-records": sum(one.rows_out for one in _metrics_of(tasks, last)),
        "write-records-complete": True,
        "accumulated-backpressured-time": sum(progress.blocked_us for progress in all_progress) // 1_000,
        "accumulated-idle-time": sum(progress.idle_us for progress in all_progress) // 1_000,
        "accumulated-busy-time": sum(progress.busy_us for progress in all_progress) / 1_000,
    }


def _metrics_of(tasks: tuple[TaskView, ...], operator: str) -> list[OperatorMetrics]:
    return [task.metrics[operator] for task in tasks if operator in task.metrics]


def plan(job_id: str, graph: JobGraph) -> dict[str, Any]:
    """The plan in GET /jobs/:jobid."""
    return {"jid": job_id, "name": graph.name, "type": "STREAMING", "nodes": [_node(v) for v in graph.vertices]}


def _node(vertex: JobVertex) -> dict[str, Any]:
    node: dict[str, Any] = {
        "id": hex_id(vertex.id),
        "parallelism": vertex.parallelism,
        "operator": "",
        "operator_strategy": "",
        "description": "<br/>".join(f"{operator.verb} {operator.id}" for operator in vertex.operators),
        "optimizer_properties": {},
    }
    if vertex.inputs:
        node["inputs"] = [
            {
                "num": number,
                "id": hex_id(edge.vertex),
                "ship_strategy": _SHIPS[edge.ship],
                "exchange": "pipelined_bounded",
            }
            for number, edge in enumerate(vertex.inputs)
        ]
    return node


def taskmanagers(view: ClusterView) -> dict[str, Any]:
    """GET /taskmanagers: Flink's task manager with its slots is a worker process here."""
    return {"taskmanagers": [_taskmanager(worker, view.seen_us) for worker in view.workers]}


def _taskmanager(worker: WorkerView, seen_us: int) -> dict[str, Any]:
    free = worker.slots - sum(worker.used.values())
    resource = {
        "cpuCores": float(worker.slots), "taskHeapMemory": worker.memory_bytes >> 20, "taskOffHeapMemory": 0,
        "managedMemory": 0, "networkMemory": 0, "extendedResources": {},
    }  # fmt: skip
    none = dict.fromkeys(
        (
            "frameworkHeap",
            "frameworkOffHeap",
            "taskOffHeap",
            "networkMemory",
            "managedMemory",
            "jvmMetaspace",
            "jvmOverhead",
        ),
        0,
    )
    memory = {"taskHeap": worker.memory_bytes, "totalFlinkMemory": worker.memory_bytes}
    return {
        "id": worker.worker,
        "path": worker.host,
        "dataPort": -1,
        "jmxPort": -1,
        "timeSinceLastHeartbeat": seen_us // 1_000,
        "slotsNumber": worker.slots,
        "freeSlots": free,
        "assignedTasks": worker.tasks,
        "totalResource": resource,
        "freeResource": {**resource, "cpuCores": float(free)},
        "hardware": {"cpuCores": worker.slots, "physicalMemory": 0, "freeMemory": 0, "managedMemory": 0},
        "memoryConfiguration": {**none, **memory, "totalProcessMemory": worker.memory_bytes},
    }
