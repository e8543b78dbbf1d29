"""How the vertices of a job are: rows, rates, where the time goes, what is behind, how far event time has come.

Counters are those of the attempt that runs. Rates and shares of time come from two looks at them, a moment apart; from
one look alone the shares are those of the whole attempt.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import UNSET

from penstock.cli.cluster import span
from penstock.cli.display import watermark_text
from penstock.coordination.job_progress import JobProgress
from penstock.graph.jobgraph import JobGraph, JobVertex
from penstock.protocol.messages import TaskStatus

COLUMNS = (
    "vertex", "parallelism", "subtasks", "rows in", "rows out", "rows/s", "busy", "blocked", "skew", "behind",
    "watermark",
)  # fmt: skip
RIGHT = tuple(column for column in COLUMNS if column not in ("vertex", "subtasks", "watermark"))


@dataclass(frozen=True)
class Look:
    """What was known of a job at one moment."""

    progress: JobProgress
    attempts: int
    at_s: float


def vertex_rows(graph: JobGraph, now: Look, before: Look | None = None) -> list[tuple[str, ...]]:
    """A row of the table per vertex. `before` is left out if another attempt ran then: its counters were others."""
    former = before if before is not None and before.attempts == now.attempts else None
    return [_row(vertex, now, former) for vertex in graph.vertices]


def _row(vertex: JobVertex, now: Look, before: Look | None) -> tuple[str, ...]:
    first, last = vertex.operators[0].id, vertex.operators[-1].id
    statuses = _statuses(vertex, now)
    rows = now.progress.total(first, "rows_in")
    busy, blocked = _shares(statuses, _statuses(vertex, before) if before else [])
    marks = now.progress.watermarks(vertex.id)
    return (
        vertex.name,
        str(vertex.parallelism),
        _states(statuses),
        f"{rows:,}",
        f"{now.progress.total(last, 'rows_out'):,}",
        _rate(rows, now, first, before),
        busy,
        blocked,
        _skew([status.metrics[first].rows_in if first in status.metrics else 0 for status in statuses]),
        _behind(statuses),
        (watermark_text(min(marks)) if marks else "") + _waits(statuses),
    )


def _statuses(vertex: JobVertex, look: Look) -> list[TaskStatus]:
    return [status for subtask, status in look.progress.statuses.items() if subtask.vertex == vertex.id]


def _states(statuses: list[TaskStatus]) -> str:
    counts: dict[str, int] = {}
    for status in statuses:
        counts[status.state] = counts.get(status.state, 0) + 1
    return ", ".join(f"{count} {state}" for state, count in sorted(counts.items())) or "-"


def _rate(rows: int, now: Look, operator: str, before: Look | None) -> str:
    if before is None or now.at_s <= before.at_s:
        return ""
    return f"{max(0, rows - before.progress.total(operator, 'rows_in')) / (now.at_s - before.at_s):,.0f}"


def _shares(statuses: list[TaskStatus], before: list[TaskStatus]) -> tuple[str, str]:
    """Of the time of all subtasks: at work, and held up by what is downstream (backpressure)."""
    busy, idle, blocked = (now - then for now, then in zip(_times(statuses), _times(before), strict=True))
    total = busy + idle + blocked
    if total <= 0:
        return "", ""
    return f"{busy / total:.0%}", f"{blocked / total:.0%}"


def _times(statuses: list[TaskStatus]) -> tuple[int, int, int]:
    """Busy, idle and blocked."""
    all_progress = [status.progress for status in statuses]
    return (
        sum(progress.busy_us for progress in all_progress),
        sum(progress.idle_us for progress in all_progress),
        sum(progress.blocked_us for progress in all_progress),
    )


def _skew(rows: list[int]) -> str:
    """The rows of the subtask with the most, as a multiple of the mean."""
    if len(rows) < 2 or not sum(rows):
        return ""
    return f"{max(rows) * len(rows) / sum(rows):.1f}x"


def _waits(statuses: list[TaskStatus]) -> str:
    """The silent split of a source that event time waits for; of several, the one that has been silent for longest."""
    found = [status.progress for status in statuses if status.progress.silent_split is not UNSET]
    if not found:
        return ""
    silent = max(found, key=lambda each: each.silent_us or 0)
    lasts = "" if silent.silent_us is UNSET else f", silent for {span(silent.silent_us)}"
    return f" (waits for split {silent.silent_split}{lasts})"


def _behind(statuses: list[TaskStatus]) -> str:
    """Records that are still to be read, where sources know it."""
    found = [status.progress.records_behind for status in statuses]
    known = [behind for behind in found if behind is not UNSET]
    return f"{sum(known):,}" if known else ""
