"""Objects of earlier checkpoints that a snapshot may refer to instead of storing the same bytes again: the leader's side.

A subtask may name objects of the newest COMPLETE that it was told of, and no others: those of a pending or aborted
checkpoint may be deleted as soon as a later one is COMPLETE. `LiveObjects` checks that, whatever a subtask names.
"""

from __future__ import annotations

from penstock.protocol.manifests import Manifest


def named_objects(manifest: Manifest) -> frozenset[str]:
    """The keys of all state objects that a checkpoint consists of."""
    return frozenset(
        handle.key
        for subtasks in manifest.subtasks.values()
        for snapshot in subtasks.values()
        for handles in snapshot.operators.values()
        for handle in (*handles.parts, handles.beside)
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
