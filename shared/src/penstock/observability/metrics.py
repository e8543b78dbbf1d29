"""The catalogue of metrics: every number that Penstock shows has one row here, and every sample is made from a row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from penstock.times import MAX_WATERMARK, MIN_WATERMARK

if TYPE_CHECKING:
    from penstock.graph.jobgraph import JobGraph
    from penstock.runtime.progress import JobProgress

Kind = Literal["counter", "gauge"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric. Names follow Prometheus: unit last, counters end in `_total`."""

    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    help: str


@dataclass(frozen=True, slots=True)
class Sample:
    """A value of a metric at one moment."""

    metric: Metric
    labels: Mapping[str, str]
    value: float


_OPERATOR: Final = ("job", "operator", "subtask")
_SUBTASK: Final = ("job", "vertex", "subtask")
_JOB: Final = ("job",)

ROWS_IN = Metric("penstock_rows_in_total", "counter", "rows", _OPERATOR, "Rows that an operator took.")
ROWS_OUT = Metric("penstock_rows_out_total", "counter", "rows", _OPERATOR, "Rows that an operator emitted.")
LATE_ROWS = Metric("penstock_late_rows_total", "counter", "rows", _OPERATOR, "Rows too late for all their windows.")
BAD_ROWS = Metric("penstock_bad_rows_total", "counter", "rows", _OPERATOR, "Records that could not become rows.")
BYTES_IN = Metric("penstock_bytes_in_total", "counter", "bytes", _SUBTASK, "Bytes read from a source or an exchange.")
BYTES_OUT = Metric("penstock_bytes_out_total", "counter", "bytes", _SUBTASK, "Bytes written to exchanges.")
BUSY = Metric("penstock_busy_seconds_total", "counter", "seconds", _SUBTASK, "Time spent working.")
IDLE = Metric("penstock_idle_seconds_total", "counter", "seconds", _SUBTASK, "Time spent waiting for input.")
BLOCKED = Metric(
    "penstock_backpressured_seconds_total", "counter", "seconds", _SUBTASK, "Time spent waiting for credit downstream."
)
WATERMARK = Metric("penstock_watermark_seconds", "gauge", "seconds", _SUBTASK, "Event time reached, since the epoch.")
WATERMARK_LAG = Metric("penstock_watermark_lag_seconds", "gauge", "seconds", _SUBTASK, "Wall time minus watermark.")
CHECKPOINTS = Metric(
    "penstock_checkpoints_total", "counter", "checkpoints", (*_JOB, "state"), "Checkpoints by outcome."
)
CHECKPOINT_BYTES = Metric("penstock_checkpoint_size_bytes", "gauge", "bytes", _JOB, "Size of the newest complete one.")
CHECKPOINT_SECONDS = Metric(
    "penstock_checkpoint_duration_seconds", "gauge", "seconds", _JOB, "From trigger to COMPLETE of the newest one."
)
CHECKPOINT_SYNC = Metric(
    "penstock_checkpoint_sync_seconds", "gauge", "seconds", _JOB, "Longest standstill of a subtask in the newest one."
)
STATE_BYTES = Metric("penstock_state_size_bytes", "gauge", "bytes", _SUBTASK, "State in the subtask's newest snapshot.")
ATTEMPT = Metric("penstock_attempt", "gauge", "attempts", _JOB, "Number of the attempt that runs.")
FAILURES = Metric("penstock_failures_total", "counter", "failures", _JOB, "Failures of subtasks.")
LEADING = Metric("penstock_leading", "gauge", "leading", (), "1 where this coordinator leads.")
WORKERS = Metric("penstock_workers", "gauge", "workers", (), "Worker processes that the leader knows.")
SLOTS = Metric(
    "penstock_slots", "gauge", "slots", (), "Slots: of the cluster at the leader, of its own at a task manager."
)
FREE_SLOTS = Metric("penstock_free_slots", "gauge", "slots", (), "Slots that no job has.")
MISSING_SLOTS = Metric("penstock_missing_slots", "gauge", "slots", _JOB, "Slots that a job waits for.")
WORKER_MEMORY = Metric(
    "penstock_worker_memory_bytes", "gauge", "bytes", ("worker",), "Resident memory of a worker process."
)

JOB_METRICS: Final = (
    ROWS_IN, ROWS_OUT, LATE_ROWS, BAD_ROWS, BYTES_IN, BYTES_OUT, BUSY, IDLE, BLOCKED, WATERMARK, WATERMARK_LAG,
    CHECKPOINTS, CHECKPOINT_BYTES, CHECKPOINT_SECONDS, CHECKPOINT_SYNC, STATE_BYTES, ATTEMPT, FAILURES,
)  # fmt: skip
"""Of a job, made by `samples`."""
SERVICE_METRICS: Final = (LEADING, WORKERS, SLOTS, FREE_SLOTS, MISSING_SLOTS, WORKER_MEMORY)
"""Of the services themselves."""
CATALOGUE: Final = JOB_METRICS + SERVICE_METRICS

_BY_OPERATOR: Final = {"rows_in": ROWS_IN, "rows_out": ROWS_OUT, "late_rows": LATE_ROWS, "bad_rows": BAD_ROWS}
_BY_SUBTASK: Final = {
    "bytes_in": (BYTES_IN, 1.0),
    "bytes_out": (BYTES_OUT, 1.0),
    "busy_us": (BUSY, 1e-6),
    "idle_us": (IDLE, 1e-6),
    "blocked_us": (BLOCKED, 1e-6),
    "state_bytes": (STATE_BYTES, 1.0),
}


def samples(graph: JobGraph, progress: JobProgress, now_us: int) -> Iterator[Sample]:
    """Every metric of a job as it is now."""
    name = graph.name
    for subtask, status in sorted(progress.statuses.items()):
        place = {"job": name, "vertex": subtask.vertex, "subtask": str(subtask.index)}
        for operator, counters in sorted(status.metrics.items()):
            labels = {"job": name, "operator": operator, "subtask": str(subtask.index)}
            for counter, metric in _BY_OPERATOR.items():
                yield Sample(metric, labels, counters.get(counter, 0))
        for part, (metric, scale) in _BY_SUBTASK.items():
            yield Sample(metric, place, status.progress.get(part, 0) * scale)
        watermark = status.progress.get("watermark", MIN_WATERMARK)
        if MIN_WATERMARK < watermark < MAX_WATERMARK:
            yield Sample(WATERMARK, place, watermark / 1e6)
            yield Sample(WATERMARK_LAG, place, (now_us - watermark) / 1e6)
    yield from _job_samples(name, progress)


def _job_samples(name: str, progress: JobProgress) -> Iterator[Sample]:
    labels = {"job": name}
    states = [checkpoint.state for checkpoint in progress.checkpoints.values()]
    for state in ("complete", "aborted"):
        yield Sample(CHECKPOINTS, {**labels, "state": state}, states.count(state))
    complete = progress.completed_checkpoints
    if complete:
        yield Sample(CHECKPOINT_BYTES, labels, complete[-1].size_bytes)
        yield Sample(CHECKPOINT_SECONDS, labels, (complete[-1].duration_us or 0) / 1e6)
        yield Sample(CHECKPOINT_SYNC, labels, complete[-1].sync_us / 1e6)
    yield Sample(ATTEMPT, labels, progress.attempt_number)
    yield Sample(FAILURES, labels, len(progress.failures))


def prometheus_text(values: Iterable[Sample]) -> str:
    """The text exposition format of Prometheus 0.0.4."""
    by_metric: dict[Metric, list[Sample]] = {}
    for sample in values:
        by_metric.setdefault(sample.metric, []).append(sample)
    lines: list[str] = []
    for metric, found in by_metric.items():
        lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
        for sample in found:
            labels = ",".join(f'{key}="{_escape(value)}"' for key, value in sample.labels.items())
            lines.append(f"{metric.name}{{{labels}}} {sample.value!r}")
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
