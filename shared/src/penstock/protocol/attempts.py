"""The subtasks of the newest attempt as the leader knows them: on which worker each runs, and what it reported last."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from penstock.protocol.jobevents import Topology
from penstock.protocol.messages import SubtaskId, TaskStatus


class AttemptTasks:
    """The subtasks of one attempt: set when it begins or is adopted, then updated by what workers report."""

    def __init__(self) -> None:
        self._assignment: dict[SubtaskId, str] = {}
        self._heard_of: dict[str, set[SubtaskId]] = {}
        """Maps a worker to its subtasks that have reported. This and the next two spare scans of all subtasks."""
        self._up: set[SubtaskId] = set()
        self._ended: set[SubtaskId] = set()
        self.statuses: dict[SubtaskId, TaskStatus] = {}
        self.published: dict[SubtaskId, int] = {}
        """The newest checkpoint whose output is visible, per sink."""

    def begin(self, slots: Mapping[SubtaskId, int], workers: Mapping[str, int]) -> bool:
        """Fill the workers' slots in order: slot n of the job gets the n-th free slot. False if there are too few."""
        self.statuses.clear()
        self.published.clear()
        self._count()
        free = [worker for worker, number in sorted(workers.items()) for _ in range(number)]
        self._assignment = {subtask: free[slot] if slot < len(free) else "" for subtask, slot in slots.items()}
        return "" not in self._assignment.values()

    def adopt(self, running: Mapping[SubtaskId, tuple[str, TaskStatus]]) -> None:
        """Adopt subtasks that run already, with what they reported."""
        self._assignment = {subtask: worker for subtask, (worker, _) in running.items()}
        self.statuses = {subtask: status for subtask, (_, status) in running.items()}
        for subtask, status in self.statuses.items():
            self.published[subtask] = status.published
        self._count()

    def _count(self) -> None:
        self._heard_of.clear()
        self._up.clear()
        self._ended.clear()
        for subtask, status in self.statuses.items():
            self._note(self._assignment[subtask], status)

    def _note(self, worker: str, status: TaskStatus) -> None:
        self._heard_of.setdefault(worker, set()).add(status.subtask)
        for states, found in ((("running", "ended"), self._up), (("ended",), self._ended)):
            (found.add if status.state in states else found.discard)(status.subtask)

    def worker_of(self, subtask: SubtaskId) -> str:
        """The worker that runs a subtask."""
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
        self._note(worker, status)
        self.published[status.subtask] = max(self.published.get(status.subtask, 0), status.published)
        return True

    def lost(self, worker: str, listed: Iterable[SubtaskId]) -> SubtaskId | None:
        """A subtask that the worker ran and does not list any more."""
        return min(self._heard_of.get(worker, set()) - set(listed), default=None)

    def all_run(self, subtasks: Collection[SubtaskId]) -> bool:
        """Whether every one of these, which are all of the attempt, was heard to run."""
        return len(self._up) == len(subtasks)  # none but those of the attempt are noted

    def all_sources_ended(self, topology: Topology) -> bool:
        """Whether no source has more rows."""
        return len(self._ended) >= len(topology.sources) and self._ended.issuperset(topology.sources)

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
