"""Objects of earlier checkpoints that a snapshot refers to instead of storing the same bytes again.

Keyed state is a full run and deltas, oldest first; a new checkpoint adds a delta to those of an earlier one. A subtask
may name objects of the newest COMPLETE that it was told of, and no others: those of a pending or aborted checkpoint may
be deleted as soon as a later one is COMPLETE, and what it changed is in the next delta again. `SnapshotChains` is the
subtask's side of that; `LiveObjects`, the leader's, checks it, whatever a subtask names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from penstock.protocol.manifests import Manifest
from penstock.protocol.messages import Handle

MAX_DELTAS: Final = 20
"""A restore reads all of them."""


class Chain(msgspec.Struct, frozen=True):
    """The keyed state of one operator of one subtask in a checkpoint."""

    runs: tuple[tuple[Handle, ...], ...]
    """The objects of the full run, then of each delta, oldest first."""
    epoch: int
    """The epoch that the freeze closed, counted per operator: a delta on top has what has changed since."""

    @property
    def is_heavy(self) -> bool:
        """Whether a full run is worth more than one more delta: as many bytes are deltas, or there are many of them."""
        full, *deltas = (sum(handle.size_bytes for handle in run) for run in self.runs)
        return sum(deltas) >= full or len(deltas) >= MAX_DELTAS


class SnapshotChains:
    """The subtask's side: on which objects a snapshot may build. Of an attempt: the first checkpoint is a full one."""

    def __init__(self) -> None:
        self._newest = 0
        self._base: Mapping[str, Chain] = {}
        self._stored: dict[int, Mapping[str, Chain]] = {}

    def base(self, operator: str) -> Chain | None:
        """What the next snapshot of an operator adds a delta to; None: it is to be a full one."""
        chain = self._base.get(operator)
        return None if chain is None or chain.is_heavy else chain

    def snapshot_stored(self, checkpoint: int, chains: Mapping[str, Chain]) -> None:
        """The durable snapshot of `checkpoint` consists of these; of a canonical one nothing is used again."""
        self._stored[checkpoint] = dict(chains)

    def completed(self, checkpoint: int) -> None:
        """The subtask was told that `checkpoint` is COMPLETE: perhaps again, by a leader that took over."""
        if checkpoint <= self._newest:
            return
        self._newest = checkpoint
        self._base = self._stored.get(checkpoint, {})
        self._stored = {number: chains for number, chains in self._stored.items() if number > checkpoint}


def named_objects(manifest: Manifest) -> frozenset[str]:
    """The keys of all state objects that a checkpoint consists of."""
    return frozenset(
        handle.key
        for subtasks in manifest.subtasks.values()
        for snapshot in subtasks.values()
        for handles in snapshot.operators.values()
        for handle in handles.objects
    )


def foreign_objects(manifest: Manifest, prefix: str) -> list[str]:
    """Those of them that are not its own, under `prefix`."""
    return sorted(key for key in named_objects(manifest) if not key.startswith(prefix))


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

    def missing(self, foreign: Iterable[str]) -> list[str]:
        """Those of another checkpoint's objects that are not certainly there."""
        keys = self.keys
        return [key for key in foreign if key not in keys]
