"""What a subtask decides is written to the decision log of its slot before it is done.

What a subtask makes of its input must follow from what stands in logs: only then can it be computed again. Whatever does
not follow from its input, such as where a batch ends, which rows of a split are next, and what time it is, is a
*decision*. The subtask appends it to a log, reads it back, and acts on what it reads, never on what it has written.

Subtask i of every vertex lives in slot i, and all of them share the slot's decision log, so that one append carries the
decisions of the whole slot. Nobody asks who wrote a decision: one of a process that was given up for dead and goes on is
a decision like any other. So a second `Cut` up to the same offset ends no batch, and a `Take` that does not begin where
the split stands is void.
"""

from __future__ import annotations

from collections.abc import Hashable

import msgspec


class Decision(msgspec.Struct, frozen=True, tag=True):
    """What the subtask of one vertex in this slot has decided."""

    vertex: str


class Cut(Decision, frozen=True, tag=True):
    """A batch ends: it has the records of the subtask's own partition that no batch has yet, below the offset."""

    upto: int
    time: int
    """What the clock said, in µs. The subtask's time is the highest of its log."""


class Take(Decision, frozen=True, tag=True):
    """The next batch of a source holds the rows of a split from `start` to `end`."""

    split: str
    start: int
    """Where the split stands; the decision is void if it stands elsewhere by then."""
    end: int
    time: int


class Rest(Decision, frozen=True, tag=True):
    """A split has no rows for now, and event time does not wait for it."""

    split: str
    start: int
    """Where it stands; void if it has been taken from since."""
    time: int


class AlignedBarrier(msgspec.Struct, frozen=True, tag=True):
    """The leader asks every source of the slot for a barrier at this place of the log: savepoints, rescaling, the end.

    It goes into the decision log of every slot, one after the other, and a leader may die in between or not know that
    there is a newer one. So barriers have an order, a source obeys only one that is newer than those before, and a
    newer one ends the alignment of an older. The next leader sends a barrier that stops again, as it was.
    """

    epoch: int
    """Of the leader that decided it."""
    checkpoint: int
    nonce: str
    stops: bool = False
    """Whether nothing is processed behind it. Whoever passes it stops, also who was given up for dead and goes on."""

    @property
    def order(self) -> tuple[int, int]:
        """Which of two is newer."""
        return self.epoch, self.checkpoint


AnyDecision = Cut | Take | Rest | AlignedBarrier
Decisions = tuple[AnyDecision, ...]
"""One record of a decision log."""


class DecisionWriter:
    """Appends the decisions of a slot together: what is proposed while one append is under way goes with the next."""

    def __init__(self) -> None:
        self._proposed: dict[Hashable, AnyDecision] = {}
        self._appending = False

    def propose(self, key: Hashable, decision: AnyDecision) -> None:
        """The decision replaces an earlier one of the same key that has not been appended yet."""
        self._proposed[key] = decision

    def next(self) -> Decisions:
        """What is to be appended now; nothing while an append is under way, or nothing is proposed."""
        if self._appending or not self._proposed:
            return ()
        decisions = tuple(self._proposed.values())
        self._proposed.clear()
        self._appending = True
        return decisions

    def appended(self) -> None:
        """The log has confirmed the append."""
        self._appending = False
