"""Checkpoints that users ask for besides the periodic ones: which request waits for which one.

Such a checkpoint belongs to no ending. A request is answered by the first checkpoint that was triggered after it, so
several requests may share one. Nothing is recorded: a leader that takes over reads the requests again.
"""

from __future__ import annotations

from penstock.protocol.jobevents import JobCommand, RequestDone
from penstock.protocol.joblog import Complete


class AskedCheckpoints:
    """Checkpoints that users asked for in one job: says whether one is wanted, and answers each request once."""

    def __init__(self) -> None:
        self._waiting: dict[str, int] = {}
        """Maps a request to the lowest checkpoint that answers it."""

    @property
    def newest(self) -> int:
        """The highest checkpoint that a request waits for; 0 if none does."""
        return max(self._waiting.values(), default=0)

    def asked(self, request: str, highest: int) -> None:
        """Note a request; `highest` is the newest checkpoint that was triggered before it."""
        self._waiting.setdefault(request, highest + 1)

    def completed(self, record: Complete) -> list[JobCommand]:
        """Answer the requests that waited for this checkpoint: its COMPLETE is recorded."""
        return [RequestDone(request, "completed", record.restore) for request in self._answered_by(record.checkpoint)]

    def failed(self, checkpoint: int, reason: str) -> list[JobCommand]:
        """Refuse the requests that waited for this checkpoint: it failed."""
        why = f"refused: checkpoint {checkpoint} failed: {reason}"
        return [RequestDone(request, why) for request in self._answered_by(checkpoint)]

    def attempt_ends(self, reason: str) -> list[JobCommand]:
        """Refuse all requests: the attempt ends, and triggers no further checkpoint."""
        waiting, self._waiting = list(self._waiting), {}
        return [RequestDone(request, f"refused: no checkpoint was taken: {reason}") for request in waiting]

    def _answered_by(self, checkpoint: int) -> list[str]:
        found = [request for request, lowest in self._waiting.items() if checkpoint >= lowest]
        for request in found:
            del self._waiting[request]
        return found
