"""From the last ack to COMPLETE: the manifests under way, and what of earlier checkpoints they may refer to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.protocol.checkpoints import SELF_CONTAINED, PendingCheckpoint
from penstock.protocol.incremental import LiveObjects, foreign_objects
from penstock.protocol.jobevents import ManifestStored, StoreManifest, Topology
from penstock.protocol.joblog import Begin, Complete
from penstock.protocol.manifests import Interval, Manifest, blob_prefix, manifest_key, open_intervals
from penstock.protocol.messages import SubtaskId


class Completions:
    """The manifests of one job that are being stored."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._intervals: Mapping[str, Mapping[int, tuple[Interval, ...]]] = {}
        self._live = LiveObjects(None)
        self._storing: dict[int, tuple[PendingCheckpoint, Manifest]] = {}

    @property
    def live_objects(self) -> frozenset[str]:
        """Objects of earlier checkpoints that incremental snapshots may refer to: not to be deleted."""
        return self._live.keys

    def restored(self, manifest: Manifest | None, generation: int) -> None:
        """The newest COMPLETE that a leader found; intervals of another generation are published already."""
        self._live = LiveObjects(manifest)
        if manifest is not None and manifest.job == self._job and manifest.generation == generation:
            self._intervals = manifest.intervals

    def attempt_begins(self) -> None:
        """Manifests of an earlier attempt must not become COMPLETE any more."""
        self._storing.clear()

    def generation_begins(self) -> None:
        """The old exchanges are fully published."""
        self._intervals = {}

    def aborted(self, checkpoint: int) -> None:
        """Its manifest is of no use, even if it is stored."""
        self._storing.pop(checkpoint, None)

    def store(
        self, pending: PendingCheckpoint, begin: Begin, topology: Topology, generation: int,
        published: Mapping[SubtaskId, int],
    ) -> StoreManifest:  # fmt: skip
        """All acks are in: write the manifest."""
        subtasks: dict[str, dict[int, Any]] = {}
        for subtask, snapshot in sorted(pending.snapshots.items()):
            subtasks.setdefault(subtask.vertex, {})[subtask.index] = snapshot
        intervals = open_intervals(
            self._intervals, pending.snapshots, sorted(topology.publishers), begin.start_offsets,
            pending.attempt, pending.checkpoint, published,
        )  # fmt: skip
        manifest = Manifest(
            job=self._job, checkpoint=pending.checkpoint, attempt=pending.attempt,
            parallelism=topology.parallelism, max_parallelism=topology.max_parallelism,
            subtasks=subtasks, operators=dict(topology.operators), intervals=intervals,
            generation=generation, attempt_number=begin.attempt_number,
        )  # fmt: skip
        self._storing[pending.checkpoint] = (pending, manifest)
        key = manifest_key(self._job, pending.attempt, pending.checkpoint, pending.nonce)
        return StoreManifest(manifest, pending.nonce, key)

    def stored(self, event: ManifestStored) -> PendingCheckpoint | None:
        """The checkpoint whose manifest is durable now, unless it was given up meanwhile."""
        pending, _ = self._storing.get(event.checkpoint, (None, None))
        return pending if pending is not None and pending.nonce == event.nonce else None

    def missing(self, pending: PendingCheckpoint) -> list[str]:
        """Objects that the manifest refers to and that are perhaps gone, or must not be referred to by a savepoint."""
        foreign = self._foreign(pending)
        return foreign if pending.purpose in SELF_CONTAINED else self._live.missing(foreign)

    def _foreign(self, pending: PendingCheckpoint) -> list[str]:
        _, manifest = self._storing[pending.checkpoint]
        prefix = blob_prefix(self._job, pending.attempt, pending.checkpoint, pending.nonce)
        return foreign_objects(manifest, prefix)

    def record(self, pending: PendingCheckpoint, event: ManifestStored) -> Complete:
        """The record that makes the checkpoint COMPLETE."""
        return Complete(
            checkpoint=event.checkpoint, checkpoint_nonce=event.nonce, attempt=pending.attempt, parent=-1,
            manifest=event.key, sha256=event.sha256, refers=bool(self._foreign(pending)),
        )  # fmt: skip

    def completed(self, checkpoint: int) -> PendingCheckpoint:
        """COMPLETE stands in the job log: lower ones that are being stored come to nothing."""
        pending, manifest = self._storing[checkpoint]
        self._intervals = manifest.intervals
        self._live.completed(manifest)
        self._storing = {n: stored for n, stored in self._storing.items() if n > checkpoint}
        return pending
