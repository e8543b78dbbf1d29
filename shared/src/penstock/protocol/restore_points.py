"""The leader's book of a determinate job: where each subtask begins after a failure, and what is kept of its logs.

Snapshots of one checkpoint are not aligned, and each is restored over its own logs. So nothing requires those of a job to
be of one checkpoint either: a subtask begins at the newest place of any completed checkpoint, and never at an older one,
whose logs may have been trimmed. An incarnation that has not come so far yet may well send an older one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from penstock.protocol.messages import SubtaskId


class RestorePoint(msgspec.Struct, frozen=True):
    """A snapshot of a subtask and the place that it was taken at."""

    checkpoint: int
    number: int
    """Of the newest batch in it."""
    needs: int
    """The lowest offset of the subtask's partition that is read when it is restored."""
    decided: int
    """Likewise of its slot's decision log."""

    def follows(self, other: RestorePoint) -> bool:
        """Whether it is behind the other in nothing: of two incarnations, one may have made more batches and the other
        have read further, and what it has read is trimmed."""
        return self.number >= other.number and self.needs >= other.needs and self.decided >= other.decided


START = RestorePoint(0, 0, 0, 0)
"""Of a subtask without a snapshot."""


@dataclass(slots=True)
class _Incarnation:
    number: int
    needs: int
    """The lowest offset of the partition that it may still read: of what it restores, then where it reports to be."""
    decided: int


class RestorePoints:
    """Of all subtasks in one generation of exchanges. A new leader makes it from the job log: `begin` and `complete`."""

    def __init__(self) -> None:
        self._points: dict[SubtaskId, RestorePoint] = {}
        self._newest: dict[SubtaskId, _Incarnation] = {}

    def of(self, subtask: SubtaskId) -> RestorePoint:
        """Where the next incarnation begins."""
        return self._points.get(subtask, START)

    def incarnation(self, subtask: SubtaskId) -> int:
        """The number of the newest one; 0 if none has begun."""
        newest = self._newest.get(subtask)
        return newest.number if newest is not None else 0

    def begin(self, subtask: SubtaskId) -> tuple[int, RestorePoint]:
        """Another incarnation begins: its number, and where."""
        point, number = self.of(subtask), self.incarnation(subtask) + 1
        self._newest[subtask] = _Incarnation(number, point.needs, point.decided)
        return number, point

    def reads(self, subtask: SubtaskId, incarnation: int, needs: int, decided: int) -> None:
        """An incarnation reports how far it has read. Of any but the newest it says nothing about what is needed."""
        newest = self._newest.get(subtask)
        if newest is not None and newest.number == incarnation:
            newest.needs, newest.decided = max(newest.needs, needs), max(newest.decided, decided)

    def complete(self, snapshots: Mapping[SubtaskId, RestorePoint]) -> frozenset[SubtaskId]:
        """A checkpoint is complete: the subtasks that begin at their snapshot of it from now on."""
        newer = frozenset(
            subtask for subtask, point in snapshots.items() if point.follows(self.of(subtask))
        )  # fmt: skip
        self._points |= {subtask: snapshots[subtask] for subtask in newer}
        return newer

    def trim(self, subtask: SubtaskId) -> int:
        """Records of the subtask's partition below this offset are not needed any more."""
        return min(self.of(subtask).needs, self._newest[subtask].needs)

    def trim_decisions(self, slot: int) -> int:
        """Likewise of a slot's decision log, which all its subtasks read."""
        return min(
            min(self.of(subtask).decided, newest.decided)
            for subtask, newest in self._newest.items()
            if subtask.index == slot
        )
