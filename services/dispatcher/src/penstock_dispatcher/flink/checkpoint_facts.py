"""What is known of the checkpoints of a job: the log says which are complete, its leader remembers the rest."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from penstock.coordination.cluster_view import AckView, CheckpointView
from penstock.protocol.joblog import Complete, Savepoint
from penstock_dispatcher.jobs import Found
from penstock_dispatcher.manifest_sizes import Acks, ManifestSizes

KEPT: Final = 10
"""So many checkpoints are in Flink's history."""


@dataclass(frozen=True)
class KnownCheckpoint:
    """A checkpoint; what nobody remembers is None. Microseconds, bytes."""

    checkpoint: int
    state: str
    """`complete`, `aborted`, `in progress`."""
    savepoint: bool = False
    manifest: str = ""
    triggered_us: int | None = None
    ended_us: int | None = None
    size_bytes: int | None = None
    written_bytes: int | None = None
    """What was written for it; less than its size if it is incremental."""
    duration_us: int | None = None
    reason: str = ""
    subtasks: int = 0
    """How many have to acknowledge it; 0 if that is not known."""
    acks: Acks = field(default_factory=dict[str, tuple[AckView, ...]])
    discarded: bool = False

    @property
    def newest_ack_us(self) -> int | None:
        """When the last acknowledgement came; of a complete one that is forgotten, when its COMPLETE was written."""
        times = [ack.at_us for acks in self.acks.values() for ack in acks if ack.at_us]
        return max(times, default=self.ended_us if self.state == "complete" else None)

    @property
    def acknowledged(self) -> int:
        """How many subtasks have, as far as it is known."""
        return sum(map(len, self.acks.values()))


def checkpoints_of(found: Found) -> list[KnownCheckpoint]:
    """All that are known, newest first."""
    known: dict[int, KnownCheckpoint] = {}
    for record in found.history.records:
        if isinstance(record, Complete):
            known[record.checkpoint] = _of_record(record)
        elif isinstance(record, Savepoint):
            completed = known.get(record.checkpoint)
            ended_us = completed.ended_us if completed is not None else None
            known[record.checkpoint] = replace(_of_record(record), savepoint=True, ended_us=ended_us)
    for seen in found.view.checkpoints if found.view is not None else ():
        known[seen.checkpoint] = _with_view(known.get(seen.checkpoint), seen)
    newest = found.history.highest_checkpoint
    return [
        replace(one, discarded=one.state == "complete" and not one.savepoint and one.checkpoint < newest)
        for _, one in sorted(known.items(), reverse=True)
    ]


def _of_record(record: Complete | Savepoint) -> KnownCheckpoint:
    return KnownCheckpoint(record.checkpoint, "complete", manifest=record.manifest, ended_us=record.at_us or None)


def _with_view(known: KnownCheckpoint | None, seen: CheckpointView) -> KnownCheckpoint:
    """The log has the last word about what is complete."""
    one = known if known is not None else KnownCheckpoint(seen.checkpoint, seen.state)
    return replace(
        one, triggered_us=seen.triggered_us, ended_us=seen.ended_us or one.ended_us,
        size_bytes=seen.size_bytes if seen.state == "complete" else None, duration_us=seen.duration_us,
        reason=seen.reason, subtasks=seen.subtasks, acks=seen.acks,
        written_bytes=seen.written_bytes if seen.state == "complete" else None,
    )  # fmt: skip


# -- what the manifest says ---------------------------------------------------------------------------------------------


def with_manifest(one: KnownCheckpoint, sizes: ManifestSizes | None) -> KnownCheckpoint:
    """The checkpoint with what its manifest says, where its leader has forgotten it."""
    if sizes is None or one.acks:
        return one
    acks = sizes.acks()
    total = sum(ack.size_bytes for found in acks.values() for ack in found)
    written = sum(ack.new_bytes for found in acks.values() for ack in found)
    subtasks = sum(map(len, acks.values()))
    return replace(one, acks=acks, subtasks=subtasks, size_bytes=total, written_bytes=written)
