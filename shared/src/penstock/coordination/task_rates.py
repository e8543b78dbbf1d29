"""What subtasks do per second, from the counters that their heartbeats carry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.coordination.cluster_view import TaskRates
from penstock.protocol.messages import SubtaskId, TaskProgress, TaskStatus

SPAN_US: Final = 5_000_000
"""Rates are those of at least so long a time, and of about twice as long at most."""
EARLY_US: Final = 1_000_000
"""But the first ones are those of a shorter time: there is something to see a second after the start."""


@dataclass(frozen=True)
class _Sample:
    at_us: int
    progress: TaskProgress
    rows: dict[str, tuple[int, int]]


class RateMeter:
    """The subtasks of one attempt: per subtask the report from which on is counted, the one that takes its place next,
    and the newest."""

    def __init__(self) -> None:
        self._samples: dict[SubtaskId, tuple[_Sample, _Sample, _Sample]] = {}

    def reported(self, status: TaskStatus, now_us: int) -> None:
        """A subtask says this now. Its counters only grow."""
        rows = {operator: (counted.rows_in, counted.rows_out) for operator, counted in status.metrics.items()}
        new = _Sample(now_us, status.progress, rows)
        older, later, _ = self._samples.get(status.subtask, (new, new, new))
        if now_us - later.at_us >= SPAN_US:
            older, later = later, new
        self._samples[status.subtask] = (older, later, new)

    def rates(self, subtask: SubtaskId) -> TaskRates | None:
        """Those of a subtask; None until enough was heard of it."""
        if subtask not in self._samples:
            return None
        older, _, newest = self._samples[subtask]
        return _rates(older, newest) if newest.at_us - older.at_us >= EARLY_US else None


def _rates(before: _Sample, after: _Sample) -> TaskRates:
    first, last = before.progress, after.progress
    seconds = (after.at_us - before.at_us) / 1_000_000
    spent = (last.busy_us - first.busy_us, last.idle_us - first.idle_us, last.blocked_us - first.blocked_us)
    total = max(1, sum(spent))
    nothing = (0, 0)
    return TaskRates(
        busy=spent[0] / total, idle=spent[1] / total, blocked=spent[2] / total,
        bytes_in=(last.bytes_in - first.bytes_in) / seconds, bytes_out=(last.bytes_out - first.bytes_out) / seconds,
        rows={
            operator: ((came - before.rows.get(operator, nothing)[0]) / seconds,
                       (went - before.rows.get(operator, nothing)[1]) / seconds)
            for operator, (came, went) in after.rows.items()
        },
    )  # fmt: skip
