"""Subtasks whose snapshots refer to objects of earlier checkpoints, as incremental ones will.

No backend of production makes such snapshots yet; the leader's rules for them are in force (`LiveObjects`).
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.protocol.messages import Handle


class IncrementalHandles:
    """The handles of one subtask by operator, per checkpoint."""

    def __init__(self, restored: Mapping[str, Handle]) -> None:
        """`restored` are this subtask's own handles in the checkpoint it starts from, if its key groups are the same."""
        self._base = dict(restored)
        self._taken: dict[int, dict[str, Handle]] = {}

    def taken(self, checkpoint: int, handles: Mapping[str, Handle]) -> None:
        """The snapshot of `checkpoint` consists of these."""
        self._taken[checkpoint] = dict(handles)

    def completed(self, checkpoint: int) -> None:
        """The subtask was told that `checkpoint` is COMPLETE."""
        if checkpoint in self._taken:
            self._base = self._taken[checkpoint]
        self._taken = {number: handles for number, handles in self._taken.items() if number > checkpoint}

    def reusable(self, operator: str, sha256: str) -> Handle | None:
        """The handle of an object with just these bytes that a snapshot may name."""
        handle = self._base.get(operator)
        return handle if handle is not None and handle.sha256 == sha256 else None
