"""Two-phase sinks inside a chain: which staged parts are to be made visible when, and what a snapshot must list.

A staged part belongs to the first COMPLETE at or above its checkpoint (a part of an aborted checkpoint becomes visible
with the next one: the state has moved past its rows). It is listed in every snapshot until it is known to be visible.

The sink keeps a proof of the commit as long as a checkpoint that may be restored lists the part: until a snapshot that
was taken after the commit, and so does not list it, is COMPLETE. Those of the last checkpoints go when the job has
ended: a savepoint of it is restored by another job only if all that it lists is on record as visible. Until the end is
recorded another attempt may commit again, so they cannot go earlier. If the process dies in between, they stay until
`Sink.recover` is called: by the next job of the pipeline, and in embedded mode also when the run is resumed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec


class StagedPart(msgspec.Struct, frozen=True):
    """A part staged for a checkpoint; `committable` is what the sink needs to make it visible."""

    operator: str
    checkpoint: int
    committable: Any


class StagedParts:
    """The staged parts of one subtask that are not known to be visible."""

    def __init__(self, restored: Iterable[StagedPart], restored_checkpoint: int) -> None:
        """Restored parts stand in a COMPLETE manifest, so they are to be committed at once."""
        self._parts = list(restored)
        self._complete = restored_checkpoint
        self._published = 0 if self._parts else restored_checkpoint
        self._visible: list[StagedPart] = []
        """Committed since the last snapshot."""
        self._unlisted: list[tuple[int, StagedPart]] = []
        """Committed before the snapshot of that checkpoint."""

    @property
    def published(self) -> int:
        """The checkpoint up to which everything of this subtask is visible."""
        return self._published

    def prepared(self, parts: Iterable[StagedPart]) -> None:
        """Parts were staged for a checkpoint."""
        self._parts.extend(parts)

    def listed(self, checkpoint: int) -> list[StagedPart]:
        """What the snapshot of `checkpoint`, being taken now, must list."""
        self._unlisted += [(checkpoint, part) for part in self._visible]
        self._visible = []
        return list(self._parts)

    def completed(self, checkpoint: int) -> None:
        """COMPLETE of `checkpoint` stands in the job log."""
        self._complete = max(self._complete, checkpoint)
        self._advance()

    def to_commit(self) -> list[StagedPart]:
        """The parts to make visible now, oldest first."""
        return [part for part in self._parts if part.checkpoint <= self._complete]

    def committed(self, part: StagedPart) -> None:
        """The part is visible."""
        self._parts.remove(part)
        self._visible.append(part)
        self._advance()

    def to_forget(self) -> list[StagedPart]:
        """The committed parts that nothing lists any more."""
        return [part for checkpoint, part in self._unlisted if checkpoint <= self._complete]

    def to_forget_at_the_end(self) -> list[StagedPart]:
        """All committed parts that are not forgotten: the job has ended, and no checkpoint is restored as its own any
        more."""
        return [*(part for _, part in self._unlisted), *self._visible]

    def forgotten(self, parts: Iterable[StagedPart]) -> None:
        """These parts are forgotten for certain; until then they are named again."""
        gone = list(parts)
        self._unlisted = [(checkpoint, part) for checkpoint, part in self._unlisted if part not in gone]
        self._visible = [part for part in self._visible if part not in gone]

    def _advance(self) -> None:
        if not self.to_commit():
            self._published = max(self._published, self._complete)
