"""The catalogue of metrics: every number that Penstock shows has one row here, and every sample is made from a row.

`Snapshot` hands samples to prometheus-client, which writes them in Prometheus' text format or in OpenMetrics.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from msgspec import UNSET

from penstock.core.times import MAX_WATERMARK, MIN_WATERMARK

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.core import Metric as Family

    from penstock.coordination.job_progress import JobProgress
    from penstock.graph.jobgraph import JobGraph
    from penstock.protocol.messages import OperatorMetrics, TaskProgress

Kind = Literal["counter", "gauge"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric. Names follow Prometheus: unit last, counters end in `_total`. Flags and ordinals have no unit."""

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


_JOB: Final = ("job_name", "job_id")  # Prometheus sets the label `job` itself; several running jobs may share a name
_OPERATOR: Final = (*_JOB, "operator", "subtask")
_SUBTASK: Final = (*_JOB, "vertex", "subtask")

ROWS_IN = Metric("penstock_rows_in_total", "counter", "rows", _OPERATOR, "Rows that an operator has received.")
ROWS_OUT = Metric("penstock_rows_out_total", "counter", "rows", _OPERATOR, "Rows that an operator has emitted.")
LATE_ROWS = Metric(
    "penstock_late_rows_total", "counter", "rows", _OPERATOR, "Rows that came too late for all their windows."
)
BAD_ROWS = Metric("penstock_bad_rows_total", "counter", "rows", _OPERATOR, "Records that were rejected as bad rows.")
FAILED_CALLS = Metric(
    "penstock_failed_calls_total",
    "counter",
    "calls",
    _OPERATOR,
    "Calls of map_async and of lookup joins that raised an exception or timed out.",
)
FORGOTTEN_KEYS = Metric(
    "penstock_forgotten_keys_total", "counter", "keys", _OPERATOR,
    "Keys whose state has expired by its time to live (for joins by key alone: rows).",
)  # fmt: skip
LOST_CHANGES = Metric(
    "penstock_lost_changes_total", "counter", "changes", _OPERATOR,
    "Changes without effect, because the state of the row that they retract has expired.",
)  # fmt: skip
PARTIAL_MATCHES = Metric(
    "penstock_partial_matches", "gauge", "matches", _OPERATOR,
    "Matches of a pattern that have begun and may go on, whose rows are kept.",
)  # fmt: skip
PARTIAL_MATCH_AGE = Metric(
    "penstock_partial_match_age_seconds", "gauge", "seconds", _OPERATOR,
    "Event time since the first row of the oldest partial match of a pattern, up to the watermark; 0 without one.",
)  # fmt: skip
BYTES_IN = Metric(
    "penstock_bytes_in_total",
    "counter",
    "bytes",
    _SUBTASK,
    "Bytes that a subtask has read from a source or an exchange.",
)
BYTES_OUT = Metric(
    "penstock_bytes_out_total", "counter", "bytes", _SUBTASK, "Bytes that a subtask has written to exchanges."
)
BUSY = Metric("penstock_busy_seconds_total", "counter", "seconds", _SUBTASK, "Time that a subtask has spent working.")
IDLE = Metric(
    "penstock_idle_seconds_total", "counter", "seconds", _SUBTASK, "Time that a subtask has spent waiting for input."
)
BLOCKED = Metric(
    "penstock_backpressured_seconds_total",
    "counter",
    "seconds",
    _SUBTASK,
    "Time that a subtask has spent waiting for credit from downstream.",
)
WATERMARK = Metric(
    "penstock_watermark_seconds", "gauge", "seconds", _SUBTASK, "Watermark of a subtask, as seconds since the epoch."
)
WATERMARK_LAG = Metric(
    "penstock_watermark_lag_seconds", "gauge", "seconds", _SUBTASK, "Wall clock time minus the watermark of a subtask."
)
RECORDS_BEHIND = Metric(
    "penstock_source_lag_records",
    "gauge",
    "records",
    _SUBTASK,
    "Records in a source's topic that have not been read yet.",
)
UNPUBLISHED = Metric(
    "penstock_sink_unpublished_bytes",
    "gauge",
    "bytes",
    _SUBTASK,
    "Bytes covered by complete checkpoints that a sink has not published yet.",
)
PUBLISHED = Metric(
    "penstock_sink_published_checkpoint",
    "gauge",
    "",
    _SUBTASK,
    "Number of the checkpoint up to which all output of a sink is published.",
)
CHECKPOINTS = Metric(
    "penstock_checkpoints_total", "counter", "checkpoints", (*_JOB, "state"), "Checkpoints of a job by outcome."
)
COMPLETED = Metric("penstock_completed_checkpoint", "gauge", "", _JOB, "Number of the newest complete checkpoint.")
CHECKPOINT_AGE = Metric(
    "penstock_checkpoint_age_seconds", "gauge", "seconds", _JOB,
    "Time since the newest complete checkpoint, or since the leader took over the job if there is none.",
)  # fmt: skip
CHECKPOINT_BYTES = Metric(
    "penstock_checkpoint_size_bytes", "gauge", "bytes", _JOB, "Size of the newest complete checkpoint."
)
CHECKPOINT_WRITTEN = Metric(
    "penstock_checkpoint_written_bytes", "gauge", "bytes", _JOB,
    "Bytes written for the newest complete checkpoint, fewer than its size if it is incremental.",
)  # fmt: skip
CHECKPOINT_SECONDS = Metric(
    "penstock_checkpoint_duration_seconds",
    "gauge",
    "seconds",
    _JOB,
    "Duration of the newest complete checkpoint, from its trigger to COMPLETE.",
)
CHECKPOINT_SYNC = Metric(
    "penstock_checkpoint_sync_seconds",
    "gauge",
    "seconds",
    _JOB,
    "Longest synchronous phase of a subtask's snapshot in the newest complete checkpoint.",
)
STATE_BYTES = Metric(
    "penstock_state_size_bytes", "gauge", "bytes", _SUBTASK, "Size of the state in the newest snapshot of a subtask."
)
ATTEMPT = Metric("penstock_attempt", "gauge", "", _JOB, "Number of the current attempt.")
FAILURES = Metric(
    "penstock_failures_total",
    "counter",
    "failures",
    _JOB,
    "Attempts that have failed since the leader took over the job.",
)
LEADING = Metric("penstock_leading", "gauge", "", (), "1 if this coordinator is the leader, otherwise 0.")
WORKERS = Metric("penstock_workers", "gauge", "workers", (), "Worker processes that the leader knows.")
SLOTS = Metric("penstock_slots", "gauge", "slots", (), "Slots of all worker processes that the leader knows.")
TASK_MANAGER_SLOTS = Metric(
    "penstock_task_manager_slots", "gauge", "slots", (), "Slots of a task manager whose worker processes are alive."
)
FREE_SLOTS = Metric("penstock_free_slots", "gauge", "slots", (), "Slots that are not assigned to a job.")
MISSING_SLOTS = Metric("penstock_missing_slots", "gauge", "slots", _JOB, "Slots that a job waits for.")
TASK_MANAGERS_WANTED = Metric(
    "penstock_task_managers_wanted",
    "gauge",
    "task_managers",
    (),
    "Task managers that the autoscaler has requested.",
)
TASK_MANAGERS = Metric(
    "penstock_task_managers", "gauge", "task_managers", (), "Task managers from which the autoscaler has heard."
)
SHORT_SLOTS = Metric(
    "penstock_scaling_short_slots",
    "gauge",
    "slots",
    (),
    "Slots that are missing because the maximum number of task managers is reached.",
)
SCALING_FAILS = Metric(
    "penstock_scaling_fails", "gauge", "", (), "1 while the number of task managers cannot be read or set."
)
WORKER_MEMORY = Metric(
    "penstock_worker_memory_bytes", "gauge", "bytes", ("worker",), "Resident memory of a worker process."
)
_RUN: Final = ("run", "pipeline")
RUNS = Metric("penstock_runs", "gauge", "runs", ("state",), "Runs on Spark that are queued or running.")
RUNS_ENDED = Metric(
    "penstock_runs_ended_total",
    "counter",
    "runs",
    ("state",),
    "Runs on Spark that have ended since the service was started.",
)
RUN_ATTEMPTS_LOST = Metric(
    "penstock_run_attempts_lost_total",
    "counter",
    "attempts",
    (),
    "Processes of runs on Spark that have ended without a result.",
)
RUN_SECONDS = Metric(
    "penstock_run_seconds", "gauge", "seconds", _RUN, "Time since the current attempt of a run on Spark began."
)
RUN_STAGES = Metric("penstock_run_done_stages", "gauge", "stages", _RUN, "Stages of Spark that a run has completed.")
RUN_TASKS = Metric(
    "penstock_run_open_tasks", "gauge", "tasks", _RUN, "Tasks of a run's active stages that are not complete."
)
SCHEDULES = Metric("penstock_schedules", "gauge", "schedules", ("state",), "Schedules of runs on Spark.")
_SCHEDULE: Final = ("schedule",)
SCHEDULE_DUE = Metric(
    "penstock_schedule_due_timestamp_seconds",
    "gauge",
    "seconds",
    _SCHEDULE,
    "Due time of the first run of a schedule that has not ended, since the epoch; in the past while it is behind.",
)
SCHEDULE_BEHIND = Metric(
    "penstock_schedule_behind_periods",
    "gauge",
    "periods",
    _SCHEDULE,
    "Periods that have ended and whose runs have not; a paused schedule has no sample.",
)
SCHEDULE_STOPPED = Metric(
    "penstock_schedule_stopped",
    "gauge",
    "",
    _SCHEDULE,
    "1 if a schedule is stopped because a run has failed, otherwise 0.",
)
SCHEDULE_FAILURES = Metric(
    "penstock_schedule_failures_total",
    "counter",
    "failures",
    _SCHEDULE,
    "Failed runs of a schedule since the service was started; every repetition counts.",
)
_KIND: Final = ("kind",)
OPERATOR_LEADING = Metric(
    "penstock_operator_leading", "gauge", "", (), "1 for the operator on Kubernetes that is at work, 0 for others."
)
OPERATOR_PASSES = Metric(
    "penstock_operator_passes_total", "counter", "passes", _KIND, "Looks at a resource of the operator on Kubernetes."
)
OPERATOR_FAILURES = Metric(
    "penstock_operator_failed_passes_total",
    "counter",
    "passes",
    _KIND,
    "Looks that came to nothing; they are repeated.",
)
OPERATOR_RESOURCES = Metric(
    "penstock_operator_resources", "gauge", "resources", ("kind", "ready"), "Resources of the operator on Kubernetes."
)
_RESOURCE: Final = ("namespace", "name")
OPERATOR_PARALLELISM = Metric(
    "penstock_operator_parallelism",
    "gauge",
    "parallelism",
    _RESOURCE,
    "Parallelism of the job of a resource with autoscaler.",
)
OPERATOR_RECOMMENDED = Metric(
    "penstock_operator_recommended_parallelism", "gauge", "parallelism", _RESOURCE, "The one that its load asks for."
)
OPERATOR_RESCALES = Metric(
    "penstock_operator_rescales_total",
    "counter",
    "rescales",
    ("direction",),
    "Changes of parallelism that autoscalers have decided on: ScaleUp, ScaleDown.",
)

JOB_METRICS: Final = (
    ROWS_IN, ROWS_OUT, LATE_ROWS, BAD_ROWS, FAILED_CALLS, FORGOTTEN_KEYS, LOST_CHANGES, PARTIAL_MATCHES,
    PARTIAL_MATCH_AGE, BYTES_IN, BYTES_OUT, BUSY, IDLE, BLOCKED, WATERMARK, WATERMARK_LAG, RECORDS_BEHIND, UNPUBLISHED,
    PUBLISHED, CHECKPOINTS, COMPLETED, CHECKPOINT_AGE, CHECKPOINT_BYTES, CHECKPOINT_WRITTEN, CHECKPOINT_SECONDS,
    CHECKPOINT_SYNC, STATE_BYTES, ATTEMPT, FAILURES,
)  # fmt: skip
"""The metrics of a job, of which `samples` makes samples."""
SERVICE_METRICS: Final = (
    LEADING, WORKERS, SLOTS, FREE_SLOTS, MISSING_SLOTS, TASK_MANAGERS_WANTED, TASK_MANAGERS, SHORT_SLOTS,
    SCALING_FAILS, TASK_MANAGER_SLOTS, WORKER_MEMORY, RUNS, RUNS_ENDED,
    RUN_ATTEMPTS_LOST, RUN_SECONDS, RUN_STAGES, RUN_TASKS, SCHEDULES, SCHEDULE_DUE, SCHEDULE_BEHIND,
    SCHEDULE_STOPPED, SCHEDULE_FAILURES, OPERATOR_LEADING, OPERATOR_PASSES, OPERATOR_FAILURES, OPERATOR_RESOURCES,
    OPERATOR_PARALLELISM, OPERATOR_RECOMMENDED, OPERATOR_RESCALES,
)  # fmt: skip
"""The metrics of the services themselves."""
CATALOGUE: Final = JOB_METRICS + SERVICE_METRICS


def samples(graph: JobGraph, progress: JobProgress, now_us: int) -> Iterator[Sample]:
    """The current samples of all metrics of a job."""
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
    """The labels that all samples of the job with the id `job` have."""
    return {"job_name": name, "job_id": job}


def _of_operator(counters: OperatorMetrics) -> Iterator[tuple[Metric, float]]:
    yield ROWS_IN, counters.rows_in
    yield ROWS_OUT, counters.rows_out
    yield LATE_ROWS, counters.late_rows
    yield BAD_ROWS, counters.bad_rows
    yield FAILED_CALLS, counters.failed_calls
    yield FORGOTTEN_KEYS, counters.forgotten_keys
    yield LOST_CHANGES, counters.lost_changes
    if counters.partial_matches is not UNSET:
        yield PARTIAL_MATCHES, counters.partial_matches
    if counters.partial_match_age_s is not UNSET:
        yield PARTIAL_MATCH_AGE, counters.partial_match_age_s


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


class Snapshot:
    """Samples of one moment as a collector of prometheus-client, whose encoders write them in Prometheus' formats.

    Pass it to `generate_latest`, `write_to_textfile`, or the encoder that `choose_encoder` finds. No registry is used:
    Penstock counts by itself, and shows none of prometheus-client's own metrics (process, garbage collection, platform).
    """

    def __init__(self, values: Iterable[Sample]) -> None:
        self._values = tuple(values)

    def collect(self) -> Iterable[Family]:
        """A metric family per metric, in the order in which metrics first occur among the samples."""
        found: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for sample in self._values:
            metric = sample.metric
            family = found.get(metric.name)
            if family is None:
                family = found[metric.name] = _family(metric)
            family.add_metric([sample.labels[label] for label in metric.labels], sample.value)
        return found.values()


def _family(metric: Metric) -> CounterMetricFamily | GaugeMetricFamily:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    # A unit that does not end the family's name would be appended to it.
    unit = metric.unit if metric.name.removesuffix("_total").endswith(f"_{metric.unit}") else ""
    return kind(metric.name, metric.help, labels=metric.labels, unit=unit)


_PAGE: Final = """# Metrics

Every service shows its own metrics at `/metrics`; the leading coordinator shows those of jobs, too. The answer is in
Prometheus' text format 0.0.4, or in OpenMetrics if the request accepts `application/openmetrics-text; version=1.0.0`,
for which Prometheus asks. A metric is stored under the same name either way; OpenMetrics also tells its unit.

`penstock metrics JOB` prints the metrics of one job in the text format. Numbers of a million and more have an exponent
there, as in `1.2345678e+07`, which keeps all their digits; `penstock metrics JOB --json` prints integers.
`penstock run --metrics FILE` keeps a file current in the text format, which the node exporter reads.

Alert rules and dashboards for these metrics lie in `infra/prometheus` and `infra/grafana`. This page is made from the
catalogue.
"""


def markdown() -> str:
    """The content of `docs/metrics.md`."""
    lines = [_PAGE, "| metric | kind | labels | |", "| --- | --- | --- | --- |"]
    lines += [f"| `{m.name}` | {m.kind} | {', '.join(m.labels)} | {m.help} |" for m in CATALOGUE]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
