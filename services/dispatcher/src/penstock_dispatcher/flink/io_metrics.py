"""Rows, bytes and times of subtasks, as Flink shows them on the pages of jobs and vertices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from penstock.graph.jobgraph import JobVertex
from penstock_dispatcher.flink.facts import UNKNOWN, Subtask
from penstock_dispatcher.flink.statistics import percentile


class FlinkIoMetrics(msgspec.Struct, frozen=True, rename="kebab"):
    """Sums since the attempt began. Times in milliseconds. Not `...-complete`: nobody reports it, or not all do."""

    read_bytes: int
    read_bytes_complete: bool
    write_bytes: int
    write_bytes_complete: bool
    read_records: int
    read_records_complete: bool
    write_records: int
    write_records_complete: bool
    accumulated_backpressured_time: int
    accumulated_idle_time: int
    accumulated_busy_time: float


class FlinkSpread(msgspec.Struct, frozen=True):
    """How a number is spread over subtasks."""

    min: int
    max: int
    avg: int
    sum: int
    median: int
    p25: int
    p75: int
    p95: int


class FlinkAggregated(msgspec.Struct, frozen=True, rename="kebab"):
    """Metrics and times in states over subtasks."""

    metrics: dict[str, FlinkSpread]
    status_duration: dict[str, FlinkSpread]


def io_metrics(vertex: JobVertex, subtasks: Iterable[Subtask]) -> FlinkIoMetrics:
    """Those of some subtasks of a vertex. A source reads nothing from others."""
    known = list(subtasks)
    tasks = [one.task for one in known if one.task is not None]
    whole = len(tasks) == len(known) > 0
    first, last = vertex.operators[0].id, vertex.operators[-1].id
    progress = [task.progress for task in tasks]
    read = 0 if vertex.is_source else sum(task.metrics[first].rows_in for task in tasks if first in task.metrics)
    return FlinkIoMetrics(
        sum(one.bytes_in for one in progress), whole, sum(one.bytes_out for one in progress), whole, read, whole,
        sum(task.metrics[last].rows_out for task in tasks if last in task.metrics), whole,
        sum(one.blocked_us for one in progress) // 1_000, sum(one.idle_us for one in progress) // 1_000,
        sum(one.busy_us for one in progress) / 1_000,
    )  # fmt: skip


def aggregated(vertex: JobVertex, subtasks: Sequence[Subtask]) -> FlinkAggregated:
    """How both are spread over subtasks."""
    metrics = [msgspec.to_builtins(io_metrics(vertex, [subtask])) for subtask in subtasks]
    names = [name for name in (metrics[0] if metrics else {}) if not name.endswith("-complete")]
    durations: dict[str, list[int]] = {}
    for subtask in subtasks:
        for state, duration in subtask.status_duration.items():
            if duration != UNKNOWN:
                durations.setdefault(state, []).append(duration)
    return FlinkAggregated(
        {name: spread([int(one[name]) for one in metrics]) for name in names},
        {state: spread(found) for state, found in durations.items()},
    )


def spread(numbers: Sequence[int]) -> FlinkSpread:
    """How these are spread; whole numbers, as Flink's."""
    ordered, total = sorted(numbers), sum(numbers)
    parts = (int(percentile(ordered, share)) for share in (50, 25, 75, 95))
    return FlinkSpread(ordered[0], ordered[-1], total // len(ordered), total, *parts)
