"""Task managers: Flink's, with its slots, is a worker process here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from penstock.coordination.cluster_view import ClusterView, WorkerView
from penstock_dispatcher.flink.facts import UNKNOWN, endpoint

_MIB = 1 << 20


class FlinkResource(msgspec.Struct, frozen=True, rename="camel"):
    """What slots share, in MiB: a slot is a share of a process, and its memory no pool of its own."""

    cpu_cores: float
    task_heap_memory: int
    task_off_heap_memory: int = 0
    managed_memory: int = 0
    network_memory: int = 0
    extended_resources: dict[str, float] = {}


class FlinkHardware(msgspec.Struct, frozen=True, rename="camel"):
    """The machine, of which workers do not report the memory."""

    cpu_cores: int
    physical_memory: int = UNKNOWN
    free_memory: int = UNKNOWN
    managed_memory: int = 0


class FlinkMemory(msgspec.Struct, frozen=True, rename="camel"):
    """Bytes. There is one number, the resident memory of the process; the pools that Flink has are not there."""

    framework_heap: int = 0
    task_heap: int = 0
    framework_off_heap: int = 0
    task_off_heap: int = 0
    network_memory: int = 0
    managed_memory: int = 0
    jvm_metaspace: int = 0
    jvm_overhead: int = 0
    total_flink_memory: int = 0
    total_process_memory: int = 0


class FlinkSlot(msgspec.Struct, frozen=True, rename="camel"):
    """A slot that a job has."""

    job_id: str
    resource: FlinkResource
    assigned_tasks: int


class FlinkCollector(msgspec.Struct, frozen=True):
    """Collections of garbage; workers do not report them."""

    name: str
    count: int
    time: int


class FlinkMemoryMetrics(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Of a worker: its resident memory, and -1 for what a process without a virtual machine does not have."""

    heap_used: int
    heap_committed: int = UNKNOWN
    heap_max: int = UNKNOWN
    non_heap_used: int = UNKNOWN
    non_heap_committed: int = UNKNOWN
    non_heap_max: int = UNKNOWN
    direct_count: int = UNKNOWN
    direct_used: int = UNKNOWN
    direct_max: int = UNKNOWN
    mapped_count: int = UNKNOWN
    mapped_used: int = UNKNOWN
    mapped_max: int = UNKNOWN
    netty_shuffle_memory_segments_available: int = UNKNOWN
    netty_shuffle_memory_segments_used: int = UNKNOWN
    netty_shuffle_memory_segments_total: int = UNKNOWN
    netty_shuffle_memory_available: int = UNKNOWN
    netty_shuffle_memory_used: int = UNKNOWN
    netty_shuffle_memory_total: int = UNKNOWN
    garbage_collectors: tuple[FlinkCollector, ...] = ()


class FlinkTaskManager(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A worker process."""

    id: str
    path: str
    data_port: int = UNKNOWN
    jmx_port: int = UNKNOWN
    time_since_last_heartbeat: int
    """When the newest heartbeat came, in milliseconds since the epoch, whatever Flink's name for it says."""
    slots_number: int
    free_slots: int
    assigned_tasks: int
    total_resource: FlinkResource
    free_resource: FlinkResource
    hardware: FlinkHardware
    memory_configuration: FlinkMemory


class FlinkTaskManagerDetail(FlinkTaskManager, frozen=True, rename="camel", kw_only=True):
    """GET /taskmanagers/:id."""

    allocated_slots: tuple[FlinkSlot, ...]
    metrics: FlinkMemoryMetrics


class FlinkTaskManagers(msgspec.Struct, frozen=True):
    """GET /taskmanagers."""

    taskmanagers: tuple[FlinkTaskManager, ...]


class FlinkLogFile(msgspec.Struct, frozen=True):
    """A log; its time is that of the last heartbeat, since what is kept of it is in memory."""

    name: str
    size: int
    mtime: int


class FlinkLogFiles(msgspec.Struct, frozen=True):
    """GET .../logs."""

    logs: tuple[FlinkLogFile, ...]


def taskmanagers(view: ClusterView) -> FlinkTaskManagers:
    """All workers."""
    return FlinkTaskManagers(tuple(FlinkTaskManager(**_fields(worker, view.seen_us)) for worker in view.workers))


def taskmanager(worker: WorkerView, view: ClusterView) -> FlinkTaskManagerDetail:
    """A worker with its slots."""
    slots: list[FlinkSlot] = []
    for job, count in sorted(worker.used.items()):
        tasks = tasks_on(view, worker.worker, job)
        for number in range(count):  # which subtask is in which slot of a job is not told: they are spread evenly
            share = tasks // count + (number < tasks % count)
            slots.append(FlinkSlot(job, _resource(1, worker), share))
    metrics = FlinkMemoryMetrics(heap_used=worker.memory_bytes)
    return FlinkTaskManagerDetail(**_fields(worker, view.seen_us), allocated_slots=tuple(slots), metrics=metrics)


def tasks_on(view: ClusterView, worker: str, job: str) -> int:
    """How many subtasks of a job a worker runs."""
    vertices = (vertex for one in view.jobs if one.job == job for vertex in one.vertices)
    return sum(task.worker == worker for vertex in vertices for task in vertex.tasks)


def _fields(worker: WorkerView, seen_us: int) -> dict[str, Any]:
    free, memory = worker.slots - sum(worker.used.values()), worker.memory_bytes
    return {
        "id": worker.worker, "path": worker.host, "time_since_last_heartbeat": (worker.heard_us or seen_us) // 1_000,
        "data_port": _port(worker), "slots_number": worker.slots, "free_slots": free, "assigned_tasks": worker.tasks,
        "total_resource": _resource(worker.slots, worker), "free_resource": _resource(free, worker),
        "hardware": FlinkHardware(worker.slots),
        "memory_configuration": FlinkMemory(
            task_heap=memory, total_flink_memory=memory, total_process_memory=memory
        ),
    }  # fmt: skip


def _port(worker: WorkerView) -> int:
    """The port at which its task manager answers."""
    port = endpoint(worker.host).rpartition(":")[2]
    return int(port) if port.isdigit() else UNKNOWN


def _resource(slots: int, worker: WorkerView) -> FlinkResource:
    share = worker.memory_bytes * slots // max(1, worker.slots)
    return FlinkResource(float(slots), share // _MIB)


def log_name(worker: str) -> str:
    """What the log of a worker is called."""
    return f"{worker}.log"


def log_files(worker: str, lines: Iterable[str], at_us: int) -> FlinkLogFiles:
    """The one log of a worker."""
    size = sum(len(line.encode()) + 1 for line in lines)
    return FlinkLogFiles((FlinkLogFile(log_name(worker), size, at_us // 1_000),))
