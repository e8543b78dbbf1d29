"""Checkpoints: counts and history, one by one, by vertex and by subtask, and how they are taken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from penstock.coordination.cluster_view import AckView
from penstock.graph.jobgraph import JobVertex
from penstock.protocol.joblog import Begin, JobHistory
from penstock_dispatcher.flink.answers import hex_id
from penstock_dispatcher.flink.checkpoint_facts import KEPT, KnownCheckpoint, checkpoints_of
from penstock_dispatcher.flink.facts import UNKNOWN
from penstock_dispatcher.flink.statistics import percentile
from penstock_dispatcher.jobs import Found

Percentile = float | str
_STATES: Final = {"complete": "COMPLETED", "aborted": "FAILED", "in progress": "IN_PROGRESS"}
_BACKENDS: Final = {
    "memory": ("HashMapStateBackend", "JobManagerCheckpointStorage"),
    "fs": ("HashMapStateBackend", "FileSystemCheckpointStorage"),
    "rocksdb": ("EmbeddedRocksDBStateBackend", "FileSystemCheckpointStorage"),
}
_REPLACED: Final = "a later checkpoint has replaced it, or nobody is left who wants it"


# -- documents ----------------------------------------------------------------------------------------------------------


class FlinkStatistics(msgspec.Struct, frozen=True):
    """Of several numbers; `"NaN"` where there is none."""

    min: int
    max: int
    avg: int
    p50: Percentile
    p90: Percentile
    p95: Percentile
    p99: Percentile
    p999: Percentile


class FlinkCheckpointCounts(msgspec.Struct, frozen=True):
    """Under the leader that shows the job; of ended jobs, those that the log still names."""

    restored: int
    total: int
    in_progress: int
    completed: int
    failed: int


class FlinkCheckpointSummary(msgspec.Struct, frozen=True):
    """Of the completed ones in the history."""

    checkpointed_size: FlinkStatistics
    state_size: FlinkStatistics
    end_to_end_duration: FlinkStatistics
    alignment_buffered: FlinkStatistics
    processed_data: FlinkStatistics
    persisted_data: FlinkStatistics


class FlinkTaskCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a vertex in a checkpoint. Nothing is buffered or persisted where barriers align on a log."""

    id: int
    status: str
    latest_ack_timestamp: int
    checkpointed_size: int
    state_size: int
    end_to_end_duration: int
    alignment_buffered: int = 0
    processed_data: int = UNKNOWN
    persisted_data: int = 0
    num_subtasks: int
    num_acknowledged_subtasks: int


class _Entry(FlinkTaskCheckpoint, frozen=True, kw_only=True):
    is_savepoint: bool
    savepoint_format: str | None = msgspec.field(name="savepointFormat")
    trigger_timestamp: int
    checkpoint_type: str
    tasks: dict[str, FlinkTaskCheckpoint] = {}


class FlinkCompletedCheckpoint(_Entry, frozen=True, kw_only=True, tag_field="className", tag="completed"):
    """A checkpoint that is complete."""

    external_path: str
    discarded: bool


class FlinkFailedCheckpoint(_Entry, frozen=True, kw_only=True, tag_field="className", tag="failed"):
    """One that came to nothing."""

    failure_timestamp: int
    failure_message: str


class FlinkPendingCheckpoint(_Entry, frozen=True, kw_only=True, tag_field="className", tag="in_progress"):
    """One under way."""


FlinkCheckpoint = FlinkCompletedCheckpoint | FlinkFailedCheckpoint | FlinkPendingCheckpoint


class FlinkRestored(msgspec.Struct, frozen=True):
    """What the newest attempt started from."""

    id: int
    restore_timestamp: int
    is_savepoint: bool
    external_path: str


class FlinkLatest(msgspec.Struct, frozen=True):
    """The newest of each kind."""

    completed: FlinkCompletedCheckpoint | None
    savepoint: FlinkCompletedCheckpoint | None
    failed: FlinkFailedCheckpoint | None
    restored: FlinkRestored | None


class FlinkCheckpoints(msgspec.Struct, frozen=True):
    """GET /jobs/:jobid/checkpoints."""

    counts: FlinkCheckpointCounts
    summary: FlinkCheckpointSummary
    latest: FlinkLatest
    history: tuple[FlinkCheckpoint, ...]


class FlinkDurations(msgspec.Struct, frozen=True, rename={"asynchronous": "async"}):
    """Milliseconds that subtasks stood still, and that writing took beside their work."""

    sync: int
    asynchronous: int


class FlinkAlignment(msgspec.Struct, frozen=True):
    """From the first barrier to the last."""

    buffered: int
    processed: int
    persisted: int
    duration: int


class FlinkDurationStatistics(msgspec.Struct, frozen=True, rename={"asynchronous": "async"}):
    """The same over subtasks."""

    sync: FlinkStatistics
    asynchronous: FlinkStatistics


class FlinkAlignmentStatistics(msgspec.Struct, frozen=True):
    """The same over subtasks."""

    buffered: FlinkStatistics
    processed: FlinkStatistics
    persisted: FlinkStatistics
    duration: FlinkStatistics


class FlinkTaskSummary(msgspec.Struct, frozen=True):
    """Over the subtasks of a vertex."""

    checkpointed_size: FlinkStatistics
    state_size: FlinkStatistics
    end_to_end_duration: FlinkStatistics
    checkpoint_duration: FlinkDurationStatistics
    alignment: FlinkAlignmentStatistics
    start_delay: FlinkStatistics


class FlinkAcknowledged(msgspec.Struct, frozen=True, tag_field="className", tag="completed"):
    """A subtask that acknowledged."""

    index: int
    ack_timestamp: int
    end_to_end_duration: int
    checkpointed_size: int
    state_size: int
    checkpoint: FlinkDurations
    alignment: FlinkAlignment
    start_delay: int = UNKNOWN
    unaligned_checkpoint: bool = False
    aborted: bool = False
    status: str = "completed"


class FlinkMissing(msgspec.Struct, frozen=True, tag_field="className", tag="pending"):
    """A subtask that did not, or of which nobody knows."""

    index: int
    status: str = "pending_or_failed"


class FlinkCheckpointSubtasks(FlinkTaskCheckpoint, frozen=True, kw_only=True):
    """GET .../checkpoints/details/:id/subtasks/:vertexid."""

    summary: FlinkTaskSummary
    subtasks: tuple[FlinkAcknowledged | FlinkMissing, ...]


class FlinkExternalization(msgspec.Struct, frozen=True):
    """What stays of checkpoints when a job ends: of a failed one the newest, of a cancelled one none."""

    enabled: bool = True
    delete_on_cancellation: bool = True


class FlinkCheckpointConfig(msgspec.Struct, frozen=True, kw_only=True):
    """GET .../checkpoints/config. Times in milliseconds."""

    mode: str
    interval: int
    timeout: int
    min_pause: int
    max_concurrent: int
    externalization: FlinkExternalization = FlinkExternalization()
    state_backend: str
    checkpoint_storage: str
    unaligned_checkpoints: bool = False
    tolerable_failed_checkpoints: int
    aligned_checkpoint_timeout: int = 0
    checkpoints_after_tasks_finish: bool = True
    state_changelog_enabled: bool = False
    changelog_periodic_materialization_interval: int = UNKNOWN
    changelog_storage: str = "none"


# -- numbers ------------------------------------------------------------------------------------------------------------


def _ms(micros: int | None) -> int:
    return UNKNOWN if micros is None else micros // 1_000


def statistics(numbers: Iterable[int]) -> FlinkStatistics:
    """Of those that are known."""
    ordered = sorted(number for number in numbers if number != UNKNOWN)
    if not ordered:
        return FlinkStatistics(0, 0, 0, "NaN", "NaN", "NaN", "NaN", "NaN")
    shares = (percentile(ordered, share) for share in (50, 90, 95, 99, 99.9))
    return FlinkStatistics(ordered[0], ordered[-1], sum(ordered) // len(ordered), *shares)


def _lasted_ms(triggered_us: int | None, acks: Iterable[AckView], otherwise_us: int | None = None) -> int:
    """From the trigger to the last acknowledgement."""
    newest_us = max((ack.at_us for ack in acks), default=0)
    if triggered_us is None or not newest_us:
        return _ms(otherwise_us)
    return max(0, newest_us - triggered_us) // 1_000


# -- shapes -------------------------------------------------------------------------------------------------------------


def checkpoints(found: Found) -> FlinkCheckpoints:
    """The history of a job."""
    known = checkpoints_of(found)
    entries = tuple(entry(one, found.vertices) for one in known[:KEPT])
    completed = [one for one in entries if isinstance(one, FlinkCompletedCheckpoint)]
    return FlinkCheckpoints(_counts(found, known), _summary(completed), _latest(found, known), entries)


def _counts(found: Found, known: Sequence[KnownCheckpoint]) -> FlinkCheckpointCounts:
    totals = found.view.totals if found.view is not None else {}
    pending = sum(one.state == "in progress" for one in known) if found.history.terminated is None else 0
    complete = totals.get("complete", sum(one.state == "complete" for one in known))
    failed = totals.get("aborted", 0)
    restored = sum(isinstance(record, Begin) and record.restore is not None for record in found.history.records)
    return FlinkCheckpointCounts(restored, complete + failed + pending, pending, complete, failed)


def _summary(completed: Sequence[FlinkCompletedCheckpoint]) -> FlinkCheckpointSummary:
    return FlinkCheckpointSummary(
        statistics(one.checkpointed_size for one in completed), statistics(one.state_size for one in completed),
        statistics(one.end_to_end_duration for one in completed),
        statistics(one.alignment_buffered for one in completed), statistics(one.processed_data for one in completed),
        statistics(one.persisted_data for one in completed),
    )  # fmt: skip


def _latest(found: Found, known: Sequence[KnownCheckpoint]) -> FlinkLatest:
    completed = savepoint = failed = None
    for one in reversed(known):
        made = entry(one, found.vertices)
        if isinstance(made, FlinkFailedCheckpoint):
            failed = made
        elif isinstance(made, FlinkCompletedCheckpoint) and one.savepoint:
            savepoint = made
        elif isinstance(made, FlinkCompletedCheckpoint):
            completed = made
    return FlinkLatest(completed, savepoint, failed, _restored(found.history))


def _restored(history: JobHistory) -> FlinkRestored | None:
    begin = history.begin
    if begin is None or begin.restore is None:
        return None
    restore = begin.restore
    foreign = history.submit is not None and restore == history.submit.restored_from
    own = any(savepoint.manifest == restore.manifest for savepoint in history.savepoints.values())
    return FlinkRestored(restore.checkpoint, begin.at_us // 1_000, foreign or own, restore.manifest)


def entry(one: KnownCheckpoint, vertices: Sequence[JobVertex], *, detailed: bool = False) -> FlinkCheckpoint:
    """A checkpoint in the history; `detailed`: with the part of each vertex."""
    all_acks = [ack for acks in one.acks.values() for ack in acks]
    total = one.subtasks or sum(vertex.parallelism for vertex in vertices)
    shared = FlinkTaskCheckpoint(
        id=one.checkpoint, status=_STATES[one.state], latest_ack_timestamp=_ms(one.newest_ack_us),
        checkpointed_size=_written(one, all_acks), state_size=_size(one, all_acks),
        end_to_end_duration=_lasted_ms(one.triggered_us, all_acks, one.duration_us), num_subtasks=total,
        num_acknowledged_subtasks=total if one.state == "complete" else one.acknowledged,
    )  # fmt: skip
    fields: dict[str, Any] = msgspec.structs.asdict(shared)
    fields |= {
        "is_savepoint": one.savepoint,
        "savepoint_format": "CANONICAL" if one.savepoint else None,
        "trigger_timestamp": _ms(one.triggered_us),
        "checkpoint_type": "SAVEPOINT" if one.savepoint else "CHECKPOINT",
        "tasks": {hex_id(vertex.id): task(one, vertex) for vertex in vertices} if detailed else {},
    }
    match one.state:
        case "complete":
            return FlinkCompletedCheckpoint(**fields, external_path=one.manifest, discarded=one.discarded)
        case "aborted":
            reason = one.reason or _REPLACED
            return FlinkFailedCheckpoint(**fields, failure_timestamp=_ms(one.ended_us), failure_message=reason)
        case _:
            return FlinkPendingCheckpoint(**fields)


def _size(one: KnownCheckpoint, acks: Sequence[AckView]) -> int:
    """That of all that was acknowledged, where the whole is not known."""
    return one.size_bytes if one.size_bytes is not None else sum(ack.size_bytes for ack in acks) if acks else UNKNOWN


def _written(one: KnownCheckpoint, acks: Sequence[AckView]) -> int:
    """Of what was written for it: Flink's checkpointed size."""
    if one.size_bytes is None:
        return sum(ack.new_bytes for ack in acks) if acks else UNKNOWN
    return one.size_bytes if one.written_bytes is None else one.written_bytes


def task(one: KnownCheckpoint, vertex: JobVertex) -> FlinkTaskCheckpoint:
    """The part of a vertex."""
    acks = one.acks.get(vertex.id, ())
    known = bool(one.acks)
    size = sum(ack.size_bytes for ack in acks) if known else UNKNOWN
    written = sum(ack.new_bytes for ack in acks) if known else UNKNOWN
    return FlinkTaskCheckpoint(
        id=one.checkpoint, status=_STATES[one.state], checkpointed_size=written, state_size=size,
        latest_ack_timestamp=max((ack.at_us for ack in acks), default=0) // 1_000 or UNKNOWN,
        end_to_end_duration=_lasted_ms(one.triggered_us, acks), num_subtasks=max(vertex.parallelism, len(acks)),
        num_acknowledged_subtasks=len(acks) if known or one.state != "complete" else vertex.parallelism,
    )  # fmt: skip


def subtasks(one: KnownCheckpoint, vertex: JobVertex) -> FlinkCheckpointSubtasks:
    """What each subtask of a vertex acknowledged."""
    part = task(one, vertex)
    acks = {ack.index: ack for ack in one.acks.get(vertex.id, ())}
    rows = tuple(
        _acknowledged(one, acks[index]) if index in acks else FlinkMissing(index) for index in range(part.num_subtasks)
    )
    summary = _task_summary([row for row in rows if isinstance(row, FlinkAcknowledged)])
    return FlinkCheckpointSubtasks(**msgspec.structs.asdict(part), summary=summary, subtasks=rows)


def _acknowledged(one: KnownCheckpoint, ack: AckView) -> FlinkAcknowledged:
    return FlinkAcknowledged(
        ack.index, ack.at_us // 1_000 or UNKNOWN, _lasted_ms(one.triggered_us, [ack]), ack.new_bytes, ack.size_bytes,
        FlinkDurations(ack.sync_us // 1_000, ack.async_us // 1_000),
        FlinkAlignment(0, UNKNOWN, 0, ack.alignment_us // 1_000), aborted=one.state == "aborted",
    )  # fmt: skip


def _task_summary(rows: Sequence[FlinkAcknowledged]) -> FlinkTaskSummary:
    return FlinkTaskSummary(
        statistics(row.checkpointed_size for row in rows), statistics(row.state_size for row in rows),
        statistics(row.end_to_end_duration for row in rows),
        FlinkDurationStatistics(
            statistics(row.checkpoint.sync for row in rows), statistics(row.checkpoint.asynchronous for row in rows)
        ),
        FlinkAlignmentStatistics(
            statistics(row.alignment.buffered for row in rows), statistics(row.alignment.processed for row in rows),
            statistics(row.alignment.persisted for row in rows), statistics(row.alignment.duration for row in rows),
        ),
        statistics(row.start_delay for row in rows),
    )  # fmt: skip


def checkpoint_config(found: Found) -> FlinkCheckpointConfig:
    """How the job's checkpoints are taken."""
    settings = found.submit.settings
    how = settings.checkpoints
    backend, storage = _BACKENDS[settings.state_backend]
    return FlinkCheckpointConfig(
        mode="exactly_once" if how.flavour == "aligned" else "at_least_once", interval=how.interval_ms,
        timeout=how.timeout_ms, min_pause=how.min_pause_ms, max_concurrent=how.max_concurrent, state_backend=backend,
        checkpoint_storage=storage, tolerable_failed_checkpoints=how.tolerable_failed,
    )  # fmt: skip
