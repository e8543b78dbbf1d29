"""The subtasks of the newest attempt as the leader knows them: where they run and what was last heard of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.protocol.jobevents import Topology
from penstock.protocol.messages import SubtaskId, TaskStatus


class AttemptTasks:
    """Filled when an attempt begins or is taken over, and then by what workers report."""

    def __init__(self) -> None:
        self._assignment: dict[SubtaskId, str] = {}
        self.statuses: dict[SubtaskId, TaskStatus] = {}
        self.published: dict[SubtaskId, int] = {}
        """The newest checkpoint whose output is visible, per sink."""

    def begin(self, slots: Mapping[SubtaskId, int], workers: Mapping[str, int]) -> bool:
        """Fill the workers' slots in order: slot n of the job gets the n-th free slot. False if there are too few."""
        self.statuses.clear()
        self.published.clear()
        free = [worker for worker, number in sorted(workers.items()) for _ in range(number)]
        self._assignment = {subtask: free[slot] if slot < len(free) else "" for subtask, slot in slots.items()}
        return "" not in self._assignment.values()

    def adopt(self, running: Mapping[SubtaskId, tuple[str, TaskStatus]]) -> None:
        """Take what runs already as it is."""
        self._assignment = {subtask: worker for subtask, (worker, _) in running.items()}
        self.statuses = {subtask: status for subtask, (_, status) in running.items()}
        for subtask, status in self.statuses.items():
            self.published[subtask] = status.published

    def worker_of(self, subtask: SubtaskId) -> str:
        """Where a subtask runs."""
        return self._assignment[subtask]

    @property
    def workers(self) -> frozenset[str]:
        """All workers that have a subtask."""
        return frozenset(self._assignment.values()) - {""}

    def runs_on(self, worker: str) -> bool:
        """Whether the worker has subtasks of the attempt."""
        return worker in self._assignment.values()

    def heard(self, worker: str, status: TaskStatus) -> bool:
        """Note a status; False if it comes from a worker that does not run this subtask."""
        if self._assignment.get(status.subtask) != worker:
            return False
        self.statuses[status.subtask] = status
        self.published[status.subtask] = max(self.published.get(status.subtask, 0), status.published)
        return True

    def lost(self, worker: str, listed: Iterable[SubtaskId]) -> SubtaskId | None:
        """A subtask that the worker ran and does not list any more."""
        known = frozenset(listed)
        for subtask in self.statuses:
            if self._assignment.get(subtask) == worker and subtask not in known:
                return subtask
        return None

    def all_run(self, subtasks: Iterable[SubtaskId]) -> bool:
        """Whether every one of these was heard to run."""
        return all(
            subtask in self.statuses and self.statuses[subtask].state in ("running", "ended") for subtask in subtasks
        )

    def all_sources_ended(self, topology: Topology) -> bool:
        """Whether no source has more rows."""
        return all(self.statuses[subtask].state == "ended" for subtask in topology.sources)

    def unpublished(self, topology: Topology, checkpoint: int) -> bool:
        """Whether rows that the checkpoint covers stand in an exchange and are not known to be published."""
        return any(
            self.published.get(subtask, 0) < checkpoint
            for subtask in topology.sinks
            if subtask.vertex in topology.publishers
        )

    def all_published(self, topology: Topology, checkpoint: int) -> bool:
        """Whether every sink has made visible what the checkpoint covers."""
        return all(self.published.get(subtask, 0) >= checkpoint for subtask in topology.sinks)
