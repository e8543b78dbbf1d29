"""What a coordinator has heard of the workers of a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.protocol.messages import Heartbeat, SubtaskId, TaskStatus


@dataclass
class Worker:
    """What was last heard of a worker."""

    heartbeat: Heartbeat
    seen_ms: int
    tasks: dict[tuple[str, str, SubtaskId], TaskStatus] = field(
        default_factory=dict[tuple[str, str, SubtaskId], TaskStatus]
    )
    told_ms: int = 0
    """When its jobs were last told all that it says, known or not."""


def identity_of(status: TaskStatus) -> tuple[str, str, SubtaskId]:
    """What tells a deployed subtask from all others."""
    return status.job, status.attempt, status.subtask


class Workers(dict[str, Worker]):
    """Those that count as alive, by name."""

    def excuse(self, ms: int) -> None:
        """Nobody could be heard for so long: the silence was not theirs."""
        for worker in self.values():
            worker.seen_ms += ms

    def newer_by(self, event: Heartbeat) -> int:
        """How many heartbeats of the worker it comes after the newest that was read; a worker that does not count: 1."""
        former = self.get(event.worker)
        return event.number - former.heartbeat.number if former is not None and event.number else 1

    def silent(self, now_ms: int, longest_ms: int) -> list[str]:
        """Workers to give up: silent for too long, or of the same task manager as such a one and silent with it.

        Given up one after the other they would be as many failures, with attempts in between on slots that are dead.
        """
        late = [name for name, worker in self.items() if now_ms - worker.seen_ms >= longest_ms]
        hosts = {self[name].heartbeat.host for name in late} - {""}
        if not hosts:
            return late
        return [
            name
            for name, worker in self.items()
            if name in late or (worker.heartbeat.host in hosts and now_ms - worker.seen_ms >= longest_ms / 2)
        ]

    def tasks_of(self, job: str, attempt: str) -> Mapping[SubtaskId, tuple[str, TaskStatus]]:
        """The subtasks of a job that workers report; where several attempts are, one of this attempt wins."""
        found: dict[SubtaskId, tuple[str, TaskStatus]] = {}
        for name, worker in self.items():
            for status in worker.tasks.values():
                if status.job == job and (status.subtask not in found or status.attempt == attempt):
                    found[status.subtask] = (name, status)
        return found
