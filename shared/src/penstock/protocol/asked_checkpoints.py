"""Checkpoints that somebody asked for besides the periodic ones: who waits for which, and what they are told.

They belong to no ending, and whoever asks is answered by the first checkpoint that was triggered since. Nothing of it is
recorded: a leader that takes over reads the request again.
"""

from __future__ import annotations

from penstock.protocol.jobevents import JobCommand, RequestDone
from penstock.protocol.joblog import Complete
from penstock.protocol.messages import Restore


class AskedCheckpoints:
    """Those of one job under one leader."""

    def __init__(self) -> None:
        self._waiting: dict[str, int] = {}
        """Request to the lowest checkpoint that answers it."""

    @property
    def newest(self) -> int:
        """The highest number that is waited for; 0 if none is."""
        return max(self._waiting.values(), default=0)

    def asked(self, request: str, highest: int) -> None:
        """Somebody asks; `highest` is the newest checkpoint that was triggered before."""
        self._waiting.setdefault(request, highest + 1)

    def completed(self, record: Complete) -> list[JobCommand]:
        """COMPLETE stands in the job log."""
        restore = Restore(record.checkpoint, record.manifest, record.sha256)
        return [RequestDone(request, "completed", restore) for request in self._answered_by(record.checkpoint)]

    def failed(self, checkpoint: int, reason: str) -> list[JobCommand]:
        """This checkpoint came to nothing."""
        why = f"refused: checkpoint {checkpoint} failed: {reason}"
        return [RequestDone(request, why) for request in self._answered_by(checkpoint)]

    def attempt_ends(self, reason: str) -> list[JobCommand]:
        """Nothing is triggered any more in this attempt."""
        waiting, self._waiting = list(self._waiting), {}
        return [RequestDone(request, f"refused: no checkpoint was taken: {reason}") for request in waiting]

    def _answered_by(self, checkpoint: int) -> list[str]:
        found = [request for request, lowest in self._waiting.items() if checkpoint >= lowest]
        for request in found:
            del self._waiting[request]
        return found
