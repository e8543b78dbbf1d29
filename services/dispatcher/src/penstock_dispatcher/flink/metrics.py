"""What Flink's clients know as metrics: names, values as text, and what they come to over several subtasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from penstock.client.documents import ENDED
from penstock.coordination.cluster_view import TaskView, WorkerView
from penstock.core.times import MAX_WATERMARK, MIN_WATERMARK
from penstock.graph.jobgraph import JobVertex
from penstock_dispatcher.flink.facts import Subtask, job_times
from penstock_dispatcher.jobs import Found
from penstock_dispatcher.refusing import RestError

Number = int | float
Values = Mapping[str, Number | str | bool]
Aggregation = Literal["min", "max", "sum", "avg", "skew"]
AGGREGATIONS: Final = ("min", "max", "avg", "sum", "skew")


class FlinkMetricId(msgspec.Struct, frozen=True):
    """The name of a metric."""

    id: str


class FlinkMetric(msgspec.Struct, frozen=True):
    """A metric; the value is text."""

    id: str
    value: str


class FlinkAggregate(msgspec.Struct, frozen=True, omit_defaults=True):
    """A metric over several subtasks, jobs or task managers; what was not asked for is left out."""

    id: str
    min: float | None = None
    max: float | None = None
    avg: float | None = None
    sum: float | None = None
    skew: float | None = None
    """How far they are from their mean on average, in percent of it, up to 100."""


def listed(values: Values, wanted: str | None) -> tuple[FlinkMetric, ...] | tuple[FlinkMetricId, ...]:
    """The names, or of those that are wanted (separated by commas) the values; unknown ones are left out."""
    if wanted is None:
        return tuple(map(FlinkMetricId, sorted(values)))
    return tuple(FlinkMetric(name, _text(values[name])) for name in wanted.split(",") if name in values)


def _text(value: Number | str | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def aggregated(
    all_values: Sequence[Values], wanted: str | None, how: str | None = None
) -> tuple[FlinkAggregate, ...] | tuple[FlinkMetricId, ...]:
    """The names, or of those that are wanted what they come to.

    Raises:
        RestError: there is no such way to sum up.
    """
    if wanted is None:
        return tuple(map(FlinkMetricId, sorted({name for values in all_values for name in values})))
    ways = AGGREGATIONS if how is None else tuple(how.split(","))
    wrong = [way for way in ways if way not in AGGREGATIONS]
    if wrong:
        raise RestError(400, f"Cannot resolve query parameter (agg) from value {wrong[0]!r}; there are {AGGREGATIONS}")
    found: list[FlinkAggregate] = []
    for name in wanted.split(","):
        numbers = [number for number in (_number(values.get(name)) for values in all_values) if number is not None]
        if numbers:
            found.append(_aggregate(name, numbers, ways))
    return tuple(found)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _aggregate(name: str, numbers: Sequence[float], ways: Iterable[str]) -> FlinkAggregate:
    total = sum(numbers)
    values = {
        "min": min(numbers),
        "max": max(numbers),
        "avg": total / len(numbers),
        "sum": total,
        "skew": skew(numbers),
    }
    return FlinkAggregate(name, **{way: values[way] for way in ways})


def skew(numbers: Sequence[float]) -> float:
    """The mean distance from the mean, in percent of it, at most 100: Flink's measure."""
    mean = sum(numbers) / len(numbers)
    if not mean:
        return 0.0
    return min(100.0, sum(abs(number - mean) for number in numbers) / len(numbers) / abs(mean) * 100)


# -- of subtasks --------------------------------------------------------------------------------------------------------


def by_subtask(vertex: JobVertex, subtasks: Iterable[Subtask]) -> dict[str, Number | str | bool]:
    """The metrics of a vertex, as `0.numRecordsIn`."""
    return {
        f"{subtask.index}.{name}": value
        for subtask in subtasks
        for name, value in metrics_of(vertex, subtask.task).items()
    }


def metrics_of(vertex: JobVertex, task: TaskView | None) -> dict[str, Number | str | bool]:
    """Those of a subtask, and of its operators as `<operator>.numRecordsIn`; none if its worker says nothing."""
    if task is None:
        return {}
    first, last = vertex.operators[0].id, vertex.operators[-1].id
    progress, counted = task.progress, task.metrics
    values: dict[str, Number | str | bool] = {
        "numBytesIn": progress.bytes_in,
        "numBytesOut": progress.bytes_out,
        "accumulateBusyTimeMs": progress.busy_us // 1_000,
        "accumulateIdleTimeMs": progress.idle_us // 1_000,
        "accumulateBackPressuredTimeMs": progress.blocked_us // 1_000,
        "numRecordsIn": counted[first].rows_in if first in counted else 0,
        "numRecordsOut": counted[last].rows_out if last in counted else 0,
        **_rates(task, first, last),
        **_operators(task),
    }
    if isinstance(progress.records_behind, int):
        values[f"{first}.pendingRecords"] = progress.records_behind
    name = f"{first}.currentOutputWatermark" if vertex.is_source else "currentInputWatermark"
    values[name] = watermark_ms(progress.watermark)
    return values


def _rates(task: TaskView, first: str, last: str) -> dict[str, Number | bool]:
    rates = task.rates
    if rates is None:
        return {}
    return {
        "busyTimeMsPerSecond": round(rates.busy * 1_000, 3),
        "idleTimeMsPerSecond": round(rates.idle * 1_000, 3),
        "backPressuredTimeMsPerSecond": round(rates.blocked * 1_000, 3),
        "isBackPressured": rates.blocked > 0,
        "numBytesInPerSecond": rates.bytes_in,
        "numBytesOutPerSecond": rates.bytes_out,
        "numRecordsInPerSecond": rates.rows.get(first, (0.0, 0.0))[0],
        "numRecordsOutPerSecond": rates.rows.get(last, (0.0, 0.0))[1],
    }


def _operators(task: TaskView) -> dict[str, Number]:
    values: dict[str, Number] = {}
    for operator, counted in task.metrics.items():
        values |= {
            f"{operator}.numRecordsIn": counted.rows_in,
            f"{operator}.numRecordsOut": counted.rows_out,
            f"{operator}.numLateRecordsDropped": counted.late_rows,
            f"{operator}.numRecordsInErrors": counted.bad_rows,
            f"{operator}.stateBytes": counted.state_bytes,
        }
        if task.rates is not None and operator in task.rates.rows:
            came, went = task.rates.rows[operator]
            values |= {f"{operator}.numRecordsInPerSecond": came, f"{operator}.numRecordsOutPerSecond": went}
    return values


def watermark_ms(watermark_us: int) -> int:
    """A watermark in milliseconds; the lowest and the highest are Flink's own."""
    return watermark_us if watermark_us in (MIN_WATERMARK, MAX_WATERMARK) else watermark_us // 1_000


# -- of jobs and task managers ------------------------------------------------------------------------------------------


def job_metrics(found: Found, now_us: int) -> dict[str, Number | str | bool]:
    """Those of a job."""
    times, restarts = job_times(found), found.history.begin.attempt_number - 1 if found.history.begin else 0
    running = found.state == "RUNNING"
    since_ms = max(times["RUNNING"], times["CREATED"])
    up_ms = max(0, now_us // 1_000 - since_ms)
    values: dict[str, Number | str | bool] = {
        "uptime": up_ms if running else 0 if found.state not in ENDED else -1,
        "downtime": 0 if running else up_ms if found.state not in ENDED else -1,
        "numRestarts": restarts,
        "lastCompletedCheckpointId": found.history.highest_checkpoint or -1,
    }
    return values | (_checkpoint_metrics(found) if found.view is not None else {})


def _checkpoint_metrics(found: Found) -> dict[str, Number | str | bool]:
    view = found.view
    assert view is not None
    complete, aborted = view.totals.get("complete", 0), view.totals.get("aborted", 0)
    pending = sum(checkpoint.state == "in progress" for checkpoint in view.checkpoints)
    values: dict[str, Number | str | bool] = {
        "numberOfCompletedCheckpoints": complete,
        "numberOfFailedCheckpoints": aborted,
        "numberOfInProgressCheckpoints": pending,
        "totalNumberOfCheckpoints": complete + aborted + pending,
    }
    last = next((checkpoint for checkpoint in reversed(view.checkpoints) if checkpoint.state == "complete"), None)
    if last is not None:
        values |= {
            "lastCheckpointSize": last.size_bytes if last.written_bytes is None else last.written_bytes,
            "lastCheckpointFullSize": last.size_bytes,
            "lastCheckpointDuration": (last.duration_us or 0) // 1_000,
            "lastCheckpointCompletedTimestamp": (last.ended_us or 0) // 1_000,
        }
    if found.history.complete is not None:
        values["lastCheckpointExternalPath"] = found.history.complete.manifest
    return values


def worker_metrics(worker: WorkerView) -> dict[str, Number]:
    """Those of a worker process."""
    return {
        "Status.Process.Memory.Resident": worker.memory_bytes,
        "taskSlotsTotal": worker.slots,
        "taskSlotsAvailable": worker.slots - sum(worker.used.values()),
        "numRunningTasks": worker.tasks,
    }
