"""Which objects of earlier checkpoints a new snapshot may refer to instead of storing the same bytes again.

Only those of the newest COMPLETE the subtask was told of: objects of a pending or aborted checkpoint may be deleted as
soon as a later one is COMPLETE. `LiveObjects` is the leader's check that this was enough.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.protocol.manifests import Manifest
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


def named_objects(manifest: Manifest) -> frozenset[str]:
    """The keys of all state objects that a checkpoint consists of."""
    return frozenset(
        handle.key
        for subtasks in manifest.subtasks.values()
        for snapshot in subtasks.values()
        for handles in snapshot.operators.values()
        for handle in (handles.keyed, handles.beside)
        if handle is not None
    )


class LiveObjects:
    """The leader's side: which objects of earlier checkpoints still exist.

    A subtask may hear of a COMPLETE later than the barrier of the next checkpoint reaches it, so the objects of the two
    newest COMPLETE are kept. A checkpoint that refers to older ones must not become COMPLETE: they may be gone.
    """

    def __init__(self, newest: Manifest | None) -> None:
        self._named = [named_objects(newest)] if newest is not None else []

    @property
    def keys(self) -> frozenset[str]:
        """What must not be deleted."""
        return frozenset[str]().union(*self._named)

    def completed(self, manifest: Manifest) -> None:
        """COMPLETE of this one stands in the job log."""
        self._named = [*self._named[-1:], named_objects(manifest)]

    def missing(self, manifest: Manifest, prefix: str) -> list[str]:
        """The objects it names that are neither its own (under `prefix`) nor certainly there."""
        keys = self.keys
        return sorted(key for key in named_objects(manifest) if not key.startswith(prefix) and key not in keys)
