"""What a manifest says in numbers of the checkpoint that it is of, without the handles, which are many."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from penstock.coordination.cluster_view import AckView

Acks = Mapping[str, tuple[AckView, ...]]
"""Vertex to what its subtasks acknowledged."""


class _Snapshot(msgspec.Struct, frozen=True):
    size_bytes: int = 0
    sync_us: int = 0
    async_us: int = 0
    alignment_us: int = 0
    written_bytes: int | None = None


class ManifestSizes(msgspec.Struct, frozen=True):
    """Of a manifest only what each subtask acknowledged in numbers."""

    subtasks: dict[str, dict[int, _Snapshot]]

    def acks(self) -> Acks:
        """The acknowledgements in it; when they came it does not say."""
        return {
            vertex: tuple(
                AckView(index, 0, one.size_bytes, one.sync_us, one.async_us, one.alignment_us, one.written_bytes)
                for index, one in sorted(snapshots.items())
            )
            for vertex, snapshots in self.subtasks.items()
        }
