"""Two-phase sinks inside a chain: which staged parts are to be made visible when, and what a snapshot must list.

A staged part belongs to the first COMPLETE at or above its checkpoint (a part of an aborted checkpoint becomes visible
with the next one: the state has moved past its rows). It is listed in every snapshot until it is known to be visible.
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

    @property
    def published(self) -> int:
        """The checkpoint up to which everything of this subtask is visible."""
        return self._published

    def prepared(self, parts: Iterable[StagedPart]) -> None:
        """Parts were staged for a checkpoint."""
        self._parts.extend(parts)

    def listed(self) -> list[StagedPart]:
        """What the snapshot being taken must list."""
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
        self._advance()

    def _advance(self) -> None:
        if not self.to_commit():
            self._published = max(self._published, self._complete)
