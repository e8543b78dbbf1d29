"""A vertex and its subtasks: the table, task managers, times, backpressure, watermarks, accumulators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.graph.jobgraph import JobVertex
from penstock_dispatcher.flink.answers import hex_id
from penstock_dispatcher.flink.facts import UNASSIGNED, Subtask, lasted_ms
from penstock_dispatcher.flink.io_metrics import FlinkAggregated, FlinkIoMetrics, aggregated, io_metrics
from penstock_dispatcher.flink.job_shapes import span
from penstock_dispatcher.flink.metrics import FlinkMetric, watermark_ms
from penstock_dispatcher.flink.states import TERMINAL, counted, vertex_state

LOW: Final = 0.1
HIGH: Final = 0.5
"""Shares of time under backpressure from which on Flink calls it low, and high."""
FLAMES_OFF: Final = -2
"""In the place of a time: this cluster takes no samples of stacks."""


class FlinkSubtask(msgspec.Struct, frozen=True, rename="kebab"):
    """A subtask in the table of its vertex, or by itself."""

    subtask: int
    status: str
    attempt: int
    endpoint: str
    start_time: int
    end_time: int
    duration: int
    metrics: FlinkIoMetrics
    taskmanager_id: str
    status_duration: dict[str, int]
    start_time_again: int = msgspec.field(name="start_time")


class FlinkVertex(msgspec.Struct, frozen=True):
    """GET /jobs/:jobid/vertices/:vertexid."""

    id: str
    name: str
    parallelism: int
    max_parallelism: int = msgspec.field(name="maxParallelism")
    now: int
    subtasks: tuple[FlinkSubtask, ...]
    aggregated: FlinkAggregated


class FlinkVertexOnTaskManager(msgspec.Struct, frozen=True, rename="kebab"):
    """The subtasks of a vertex that one worker runs."""

    endpoint: str
    status: str
    start_time: int
    end_time: int
    duration: int
    metrics: FlinkIoMetrics
    status_counts: dict[str, int]
    taskmanager_id: str
    aggregated: FlinkAggregated


class FlinkVertexTaskManagers(msgspec.Struct, frozen=True):
    """GET .../taskmanagers."""

    id: str
    name: str
    now: int
    taskmanagers: tuple[FlinkVertexOnTaskManager, ...]


class FlinkSubtaskTimes(msgspec.Struct, frozen=True):
    """When a subtask came into its states."""

    subtask: int
    endpoint: str
    duration: int
    timestamps: dict[str, int]


class FlinkVertexTimes(msgspec.Struct, frozen=True):
    """GET .../subtasktimes."""

    id: str
    name: str
    now: int
    subtasks: tuple[FlinkSubtaskTimes, ...]


class FlinkSubtaskBackPressure(msgspec.Struct, frozen=True):
    """Where the time of a subtask goes; shares from 0 to 1."""

    subtask: int
    level: str = msgspec.field(name="backpressureLevel")
    ratio: float
    idle_ratio: float = msgspec.field(name="idleRatio")
    busy_ratio: float = msgspec.field(name="busyRatio")
    level_again: str = msgspec.field(name="backpressure-level")


class FlinkBackPressure(msgspec.Struct, frozen=True, omit_defaults=True):
    """GET .../backpressure; `deprecated`: nothing is known yet."""

    status: str
    level: str | None = msgspec.field(name="backpressureLevel", default=None)
    end_timestamp: int | None = msgspec.field(name="end-timestamp", default=None)
    subtasks: tuple[FlinkSubtaskBackPressure, ...] | None = None
    level_again: str | None = msgspec.field(name="backpressure-level", default=None)


class FlinkVertexAccumulators(msgspec.Struct, frozen=True, rename="kebab"):
    """GET .../accumulators: Penstock has none."""

    id: str
    user_accumulators: tuple[str, ...] = ()


class FlinkSubtaskAccumulators(msgspec.Struct, frozen=True, rename="kebab"):
    """Of one subtask."""

    subtask: int
    attempt: int
    endpoint: str
    user_accumulators: tuple[str, ...] = ()


class FlinkSubtasksAccumulators(msgspec.Struct, frozen=True):
    """GET .../subtasks/accumulators."""

    id: str
    parallelism: int
    subtasks: tuple[FlinkSubtaskAccumulators, ...]


class FlinkAttemptAccumulators(msgspec.Struct, frozen=True, rename="kebab"):
    """GET .../subtasks/:index/attempts/:attempt/accumulators."""

    subtask: int
    attempt: int
    id: str
    user_accumulators: tuple[str, ...] = ()


class FlinkFlames(msgspec.Struct, frozen=True, rename="camel"):
    """GET .../flamegraph: there is none, and Flink's word for that is -2."""

    end_timestamp: int = FLAMES_OFF
    data: None = None


def vertex(one: JobVertex, subtasks: Sequence[Subtask], now_us: int) -> FlinkVertex:
    """The table of its subtasks."""
    return FlinkVertex(
        hex_id(one.id), one.name, one.parallelism, one.max_parallelism, now_us // 1_000,
        tuple(subtask(one, task) for task in subtasks), aggregated(one, subtasks),
    )  # fmt: skip


def subtask(one: JobVertex, task: Subtask) -> FlinkSubtask:
    """A subtask."""
    return FlinkSubtask(
        task.index, task.state, task.attempt, task.endpoint, task.start_ms, task.end_ms, task.duration_ms,
        io_metrics(one, [task]), task.worker or UNASSIGNED, task.status_duration, task.start_ms,
    )  # fmt: skip


def taskmanagers(one: JobVertex, subtasks: Sequence[Subtask], now_us: int) -> FlinkVertexTaskManagers:
    """Its subtasks by the worker that runs them."""
    by_worker: dict[str, list[Subtask]] = {}
    for task in subtasks:
        by_worker.setdefault(task.worker, []).append(task)
    found = tuple(_on_worker(one, tasks, now_us) for _, tasks in sorted(by_worker.items()))
    return FlinkVertexTaskManagers(hex_id(one.id), one.name, now_us // 1_000, found)


def _on_worker(one: JobVertex, tasks: Sequence[Subtask], now_us: int) -> FlinkVertexOnTaskManager:
    (start, end), states = span(tasks), counted(task.state for task in tasks)
    duration = lasted_ms(start, end, now_us // 1_000, all(task.state in TERMINAL for task in tasks))
    return FlinkVertexOnTaskManager(
        tasks[0].endpoint, vertex_state(states, len(tasks)), start, end, duration, io_metrics(one, tasks), states,
        tasks[0].worker or UNASSIGNED, aggregated(one, tasks),
    )  # fmt: skip


def times(one: JobVertex, subtasks: Sequence[Subtask], now_us: int) -> FlinkVertexTimes:
    """When its subtasks came into their states."""
    found = (FlinkSubtaskTimes(task.index, task.endpoint, task.duration_ms, dict(task.timestamps)) for task in subtasks)
    return FlinkVertexTimes(hex_id(one.id), one.name, now_us // 1_000, tuple(found))


def backpressure(subtasks: Sequence[Subtask], now_us: int) -> FlinkBackPressure:
    """Where the time of its subtasks goes, as far as it is known."""
    found: list[FlinkSubtaskBackPressure] = []
    for task in subtasks:
        rates = task.task.rates if task.task is not None else None
        if rates is not None:
            level, ratio = level_of(rates.blocked), round(rates.blocked, 3)
            idle, busy = round(rates.idle, 3), round(rates.busy, 3)
            found.append(FlinkSubtaskBackPressure(task.index, level, ratio, idle, busy, level))
    if not found:
        return FlinkBackPressure("deprecated")
    worst = level_of(max(one.ratio for one in found))
    return FlinkBackPressure("ok", worst, now_us // 1_000, tuple(found), worst)


def level_of(ratio: float) -> str:
    """Flink's word for a share of time under backpressure."""
    return "ok" if ratio <= LOW else "low" if ratio <= HIGH else "high"


def watermarks(one: JobVertex, subtasks: Sequence[Subtask]) -> tuple[FlinkMetric, ...]:
    """What has come in at each subtask; nothing comes in at a source."""
    tasks = () if one.is_source else [task.task for task in subtasks if task.task is not None]
    return tuple(
        FlinkMetric(f"{task.index}.currentInputWatermark", str(watermark_ms(task.progress.watermark))) for task in tasks
    )


def accumulators(one: JobVertex, subtasks: Sequence[Subtask]) -> FlinkSubtasksAccumulators:
    """None, subtask by subtask."""
    found = tuple(FlinkSubtaskAccumulators(task.index, task.attempt, task.endpoint) for task in subtasks)
    return FlinkSubtasksAccumulators(hex_id(one.id), one.parallelism, found)


def attempt_accumulators(job_id: str, one: JobVertex, task: Subtask) -> FlinkAttemptAccumulators:
    """None, of one attempt; its id is made as Flink's is, of the attempt's parts."""
    execution = f"{job_id}_{hex_id(one.id)}_{task.index}_{task.attempt}"
    return FlinkAttemptAccumulators(task.index, task.attempt, execution)
