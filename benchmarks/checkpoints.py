"""Checkpoints of one operator by the library's own upload, without a job around it."""

from __future__ import annotations

from penstock.ports import Blobs
from penstock.protocol.incremental import SnapshotChains
from penstock.protocol.manifests import Manifest
from penstock.task.operator import OperatorSnapshot
from penstock.task.snapshots import FrozenSubtask, chains_of, upload

OPERATOR = "op"


class Checkpoints:
    """Every one becomes COMPLETE as soon as it is written."""

    def __init__(self, blobs: Blobs, max_parallelism: int) -> None:
        self._blobs = blobs
        self._max_parallelism = max_parallelism
        self._chains = SnapshotChains()
        self._number = 0

    async def write(self, snapshot: OperatorSnapshot, *, incremental: bool) -> tuple[Manifest, int]:
        """Write what the operator froze; the manifest, and the bytes that were written for it."""
        self._number += 1
        frozen = FrozenSubtask({OPERATOR: snapshot}, 0, 0)
        base = self._chains.base if incremental else None
        stored = await upload(frozen, f"c/{self._number}/", self._blobs, "fs", lambda: 0, base)
        self._chains.snapshot_stored(self._number, chains_of(frozen, stored))
        self._chains.completed(self._number)
        manifest = Manifest(
            job="j", checkpoint=self._number, attempt="a", parallelism=1, max_parallelism=self._max_parallelism,
            subtasks={"v": {0: stored}}, operators={},
        )  # fmt: skip
        return manifest, stored.size_bytes if stored.written_bytes is None else stored.written_bytes
