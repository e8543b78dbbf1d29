"""The catalogue of metrics: every number that Penstock shows has one row here, and every sample is made from a row."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from msgspec import UNSET

from penstock.times import MAX_WATERMARK, MIN_WATERMARK

if TYPE_CHECKING:
    from penstock.coordination.job_progress import JobProgress
    from penstock.graph.jobgraph import JobGraph
    from penstock.protocol.messages import OperatorMetrics, TaskProgress

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


_JOB: Final = ("job_name", "job_id")  # `job` is Prometheus' own label; several running jobs may have one name
_OPERATOR: Final = (*_JOB, "operator", "subtask")
_SUBTASK: Final = (*_JOB, "vertex", "subtask")

ROWS_IN = Metric("penstock_rows_in_total", "counter", "rows", _OPERATOR, "Rows that an operator took.")
ROWS_OUT = Metric("penstock_rows_out_total", "counter", "rows", _OPERATOR, "Rows that an operator emitted.")
LATE_ROWS = Metric("penstock_late_rows_total", "counter", "rows", _OPERATOR, "Rows too late for all their windows.")
BAD_ROWS = Metric("penstock_bad_rows_total", "counter", "rows", _OPERATOR, "Records that could not become rows.")
FAILED_CALLS = Metric(
    "penstock_failed_calls_total",
    "counter",
    "calls",
    _OPERATOR,
    "Calls of map_async and of joins with a lookup that raised or took too long.",
)
FORGOTTEN_KEYS = Metric(
    "penstock_forgotten_keys_total", "counter", "keys", _OPERATOR,
    "Keys (of joins by key alone: rows) that were forgotten because their time to live was over.",
)  # fmt: skip
LOST_CHANGES = Metric(
    "penstock_lost_changes_total", "counter", "changes", _OPERATOR,
    "Changes that would have taken back what was forgotten, and did nothing.",
)  # fmt: skip
BYTES_IN = Metric("penstock_bytes_in_total", "counter", "bytes", _SUBTASK, "Bytes read from a source or an exchange.")
BYTES_OUT = Metric("penstock_bytes_out_total", "counter", "bytes", _SUBTASK, "Bytes written to exchanges.")
BUSY = Metric("penstock_busy_seconds_total", "counter", "seconds", _SUBTASK, "Time spent working.")
IDLE = Metric("penstock_idle_seconds_total", "counter", "seconds", _SUBTASK, "Time spent waiting for input.")
BLOCKED = Metric(
    "penstock_backpressured_seconds_total", "counter", "seconds", _SUBTASK, "Time spent waiting for credit downstream."
)
WATERMARK = Metric("penstock_watermark_seconds", "gauge", "seconds", _SUBTASK, "Event time reached, since the epoch.")
WATERMARK_LAG = Metric("penstock_watermark_lag_seconds", "gauge", "seconds", _SUBTASK, "Wall time minus watermark.")
RECORDS_BEHIND = Metric(
    "penstock_source_lag_records", "gauge", "records", _SUBTASK, "Records that wait in a source's topic."
)
UNPUBLISHED = Metric(
    "penstock_sink_unpublished_bytes",
    "gauge",
    "bytes",
    _SUBTASK,
    "What complete checkpoints cover and a sink still has to publish.",
)
PUBLISHED = Metric(
    "penstock_sink_published_checkpoint",
    "gauge",
    "checkpoint",
    _SUBTASK,
    "Checkpoint up to which everything of a sink is visible.",
)
CHECKPOINTS = Metric(
    "penstock_checkpoints_total", "counter", "checkpoints", (*_JOB, "state"), "Checkpoints by outcome."
)
COMPLETED = Metric(
    "penstock_completed_checkpoint", "gauge", "checkpoint", _JOB, "Number of the newest complete checkpoint."
)
CHECKPOINT_AGE = Metric(
    "penstock_checkpoint_age_seconds", "gauge", "seconds", _JOB,
    "Since the newest complete checkpoint, or since its coordinator has the job if there is none.",
)  # fmt: skip
CHECKPOINT_BYTES = Metric("penstock_checkpoint_size_bytes", "gauge", "bytes", _JOB, "Size of the newest complete one.")
CHECKPOINT_WRITTEN = Metric(
    "penstock_checkpoint_written_bytes", "gauge", "bytes", _JOB,
    "What was written for it: less than its size if checkpoints are incremental.",
)  # fmt: skip
CHECKPOINT_SECONDS = Metric(
    "penstock_checkpoint_duration_seconds", "gauge", "seconds", _JOB, "From trigger to COMPLETE of the newest one."
)
CHECKPOINT_SYNC = Metric(
    "penstock_checkpoint_sync_seconds", "gauge", "seconds", _JOB, "Longest standstill of a subtask in the newest one."
)
STATE_BYTES = Metric("penstock_state_size_bytes", "gauge", "bytes", _SUBTASK, "State in the subtask's newest snapshot.")
ATTEMPT = Metric("penstock_attempt", "gauge", "attempts", _JOB, "Number of the attempt that runs.")
FAILURES = Metric(
    "penstock_failures_total", "counter", "failures", _JOB, "Failed attempts since its coordinator has the job."
)
LEADING = Metric("penstock_leading", "gauge", "leading", (), "1 where this coordinator leads.")
WORKERS = Metric("penstock_workers", "gauge", "workers", (), "Worker processes that the leader knows.")
SLOTS = Metric("penstock_slots", "gauge", "slots", (), "Slots of the cluster, as its leader knows them.")
TASK_MANAGER_SLOTS = Metric(
    "penstock_task_manager_slots", "gauge", "slots", (), "Slots of a task manager whose worker process lives."
)
FREE_SLOTS = Metric("penstock_free_slots", "gauge", "slots", (), "Slots that no job has.")
MISSING_SLOTS = Metric("penstock_missing_slots", "gauge", "slots", _JOB, "Slots that a job waits for.")
TASK_MANAGERS_WANTED = Metric(
    "penstock_task_managers_wanted",
    "gauge",
    "task_managers",
    (),
    "Task managers that are asked for, where they are scaled.",
)
TASK_MANAGERS = Metric(
    "penstock_task_managers", "gauge", "task_managers", (), "Task managers that were heard of, where they are scaled."
)
SHORT_SLOTS = Metric(
    "penstock_scaling_short_slots", "gauge", "slots", (), "Slots that no more task managers are allowed for."
)
SCALING_FAILS = Metric(
    "penstock_scaling_fails", "gauge", "fails", (), "1 while the number of task managers cannot be read or set."
)
WORKER_MEMORY = Metric(
    "penstock_worker_memory_bytes", "gauge", "bytes", ("worker",), "Resident memory of a worker process."
)
_RUN: Final = ("run", "pipeline")
RUNS = Metric("penstock_runs", "gauge", "runs", ("state",), "Runs on Spark that wait or are at work.")
RUNS_ENDED = Metric(
    "penstock_runs_ended_total",
    "counter",
    "runs",
    ("state",),
    "Runs on Spark that ended since the service was started.",
)
RUN_ATTEMPTS_LOST = Metric(
    "penstock_run_attempts_lost_total", "counter", "attempts", (), "Processes of runs that ended without a result."
)
RUN_SECONDS = Metric("penstock_run_seconds", "gauge", "seconds", _RUN, "Since the attempt at a run on Spark began.")
RUN_STAGES = Metric("penstock_run_done_stages", "gauge", "stages", _RUN, "Stages of Spark that a run has done.")
RUN_TASKS = Metric(
    "penstock_run_open_tasks", "gauge", "tasks", _RUN, "Tasks of a run's active stages that are not done."
)
SCHEDULES = Metric("penstock_schedules", "gauge", "schedules", ("state",), "Schedules of runs on Spark.")
_SCHEDULE: Final = ("schedule",)
SCHEDULE_DUE = Metric(
    "penstock_schedule_due_timestamp_seconds",
    "gauge",
    "seconds",
    _SCHEDULE,
    "When the run is due, since the epoch, that a schedule is at: in the past while it is behind.",
)
SCHEDULE_BEHIND = Metric(
    "penstock_schedule_behind_periods",
    "gauge",
    "periods",
    _SCHEDULE,
    "Periods that are over and whose runs are not; none for schedules that are paused.",
)
SCHEDULE_STOPPED = Metric(
    "penstock_schedule_stopped", "gauge", "", _SCHEDULE, "1 if a schedule has stopped at a run that failed."
)
SCHEDULE_FAILURES = Metric(
    "penstock_schedule_failures_total",
    "counter",
    "failures",
    _SCHEDULE,
    "Runs of a schedule that failed since the service was started, repeated ones counted each time.",
)

JOB_METRICS: Final = (
    ROWS_IN, ROWS_OUT, LATE_ROWS, BAD_ROWS, FAILED_CALLS, FORGOTTEN_KEYS, LOST_CHANGES, BYTES_IN, BYTES_OUT, BUSY, IDLE,
    BLOCKED, WATERMARK, WATERMARK_LAG, RECORDS_BEHIND, UNPUBLISHED, PUBLISHED, CHECKPOINTS, COMPLETED, CHECKPOINT_AGE,
    CHECKPOINT_BYTES, CHECKPOINT_WRITTEN, CHECKPOINT_SECONDS, CHECKPOINT_SYNC, STATE_BYTES, ATTEMPT, FAILURES,
)  # fmt: skip
"""Of a job, made by `samples`."""
SERVICE_METRICS: Final = (
    LEADING, WORKERS, SLOTS, FREE_SLOTS, MISSING_SLOTS, TASK_MANAGERS_WANTED, TASK_MANAGERS, SHORT_SLOTS,
    SCALING_FAILS, TASK_MANAGER_SLOTS, WORKER_MEMORY, RUNS, RUNS_ENDED,
    RUN_ATTEMPTS_LOST, RUN_SECONDS, RUN_STAGES, RUN_TASKS, SCHEDULES, SCHEDULE_DUE, SCHEDULE_BEHIND,
    SCHEDULE_STOPPED, SCHEDULE_FAILURES,
)  # fmt: skip
"""Of the services themselves."""
CATALOGUE: Final = JOB_METRICS + SERVICE_METRICS


def samples(graph: JobGraph, progress: JobProgress, now_us: int) -> Iterator[Sample]:
    """Every metric of a job as it is now."""
    job = labels_of_job(graph.name, progress.job)
    sinks = {vertex.id for vertex in graph.vertices if vertex.has_sink}
    for subtask, status in sorted(progress.statuses.items()):
        place = {**job, "vertex": subtask.vertex, "subtask": str(subtask.index)}
        for operator, counters in sorted(status.metrics.items()):
            labels = {**job, "operator": operator, "subtask": str(subtask.index)}
            for metric, value in _of_operator(counters):
                yield Sample(metric, labels, value)
        for metric, value in _of_subtask(status.progress):
            yield Sample(metric, place, value)
        if subtask.vertex in sinks:
            yield Sample(PUBLISHED, place, status.published)
        watermark = status.progress.watermark
        if MIN_WATERMARK < watermark < MAX_WATERMARK:
            yield Sample(WATERMARK, place, watermark / 1e6)
            yield Sample(WATERMARK_LAG, place, (now_us - watermark) / 1e6)
    yield from _job_samples(job, progress, now_us)


def labels_of_job(name: str, job: str) -> dict[str, str]:
    """What every sample of a job says whose id is `job`."""
    return {"job_name": name, "job_id": job}


def _of_operator(counters: OperatorMetrics) -> Iterator[tuple[Metric, float]]:
    yield ROWS_IN, counters.rows_in
    yield ROWS_OUT, counters.rows_out
    yield LATE_ROWS, counters.late_rows
    yield BAD_ROWS, counters.bad_rows
    yield FAILED_CALLS, counters.failed_calls
    yield FORGOTTEN_KEYS, counters.forgotten_keys
    yield LOST_CHANGES, counters.lost_changes


def _of_subtask(progress: TaskProgress) -> Iterator[tuple[Metric, float]]:
    yield BYTES_IN, progress.bytes_in
    yield BYTES_OUT, progress.bytes_out
    yield BUSY, progress.busy_us * 1e-6
    yield IDLE, progress.idle_us * 1e-6
    yield BLOCKED, progress.blocked_us * 1e-6
    yield STATE_BYTES, progress.state_bytes
    if progress.records_behind is not UNSET:
        yield RECORDS_BEHIND, progress.records_behind
    if progress.unpublished_bytes is not UNSET:
        yield UNPUBLISHED, progress.unpublished_bytes


def _job_samples(labels: Mapping[str, str], progress: JobProgress, now_us: int) -> Iterator[Sample]:
    for state in ("complete", "aborted"):
        yield Sample(CHECKPOINTS, {**labels, "state": state}, progress.totals[state])
    yield Sample(COMPLETED, labels, progress.last_checkpoint)
    yield Sample(CHECKPOINT_AGE, labels, progress.checkpoint_age_us(now_us) / 1e6)
    complete = progress.completed_checkpoints
    if complete:
        yield Sample(CHECKPOINT_BYTES, labels, complete[-1].size_bytes)
        yield Sample(CHECKPOINT_WRITTEN, labels, complete[-1].written_bytes)
        yield Sample(CHECKPOINT_SECONDS, labels, (complete[-1].duration_us or 0) / 1e6)
        yield Sample(CHECKPOINT_SYNC, labels, complete[-1].sync_us / 1e6)
    yield Sample(ATTEMPT, labels, progress.attempt_number)
    yield Sample(FAILURES, labels, progress.totals["failed"])


def prometheus_text(values: Iterable[Sample]) -> str:
    """The text exposition format of Prometheus 0.0.4.

    Written here and not by prometheus-client, whose parser judges it in the tests: that library is for numbers that it
    keeps itself. From a snapshot such as ours it takes as many lines, four times as long, and a web server's imports in
    every `penstock run --metrics`; and `penstock metrics` would show people 1.2345678e+07 rows.
    """
    by_metric: dict[Metric, list[Sample]] = {}
    for sample in values:
        by_metric.setdefault(sample.metric, []).append(sample)
    lines: list[str] = []
    for metric, found in by_metric.items():
        lines += [f"# HELP {metric.name} {_escape(metric.help)}", f"# TYPE {metric.name} {metric.kind}"]
        for sample in found:
            labels = ",".join(f'{key}="{_quotable(value)}"' for key, value in sample.labels.items())
            lines.append(f"{metric.name}{{{labels}}} {+sample.value!r}")
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quotable(text: str) -> str:
    return _escape(text).replace('"', '\\"')


_PAGE: Final = """# Metrics

Every service shows its own at `/metrics`, in Prometheus' text format; those of jobs stand at the coordinator that
leads. `penstock metrics JOB` prints those of one job, `penstock run --metrics FILE` keeps a file current. Alert rules
and dashboards made of them lie in `infra/prometheus` and `infra/grafana`. This page is made from the catalogue.
"""


def markdown() -> str:
    """`docs/metrics.md`."""
    lines = [_PAGE, "| metric | kind | labels | |", "| --- | --- | --- | --- |"]
    lines += [f"| `{m.name}` | {m.kind} | {', '.join(m.labels)} | {m.help} |" for m in CATALOGUE]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
