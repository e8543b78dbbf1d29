"""Epochs of an operator's state: which content arrived between which freezes, so that a snapshot may be a delta.

A checkpoint freezes the state of an operator, and an incremental one writes only what has changed since an earlier
checkpoint. State is kept in immutable parts (frames, dictionaries) that are merged as they grow, like the runs of an LSM
tree, so the question is which parts a delta consists of. The answer is a number per part.

An *epoch* is what arrives between two freezes (the epochs of Carbone et al., "State Management in Apache Flink", VLDB
2017, counted per operator and attempt): freeze n closes epoch n. New content belongs to the current epoch, and a merged
part to the newest epoch of what it was merged from. The delta since epoch e consists of all parts whose epoch is above e.
It is exact under one condition: no part above e has content that arrived up to e. Where deltas are added up (`ADDS`),
such content would be counted twice. So two parts of different epochs may be merged only if no delta will ever be asked
for that tells them apart. `Freezes.together` decides that, and whoever merges asks it.

Three things let epochs be merged again:

* A delta was written since epoch e, for which e had to be part of a COMPLETE. A subtask never builds upon an older
  COMPLETE than the newest that it was told of (`penstock.protocol.incremental`), so nobody asks about epochs up to e.
* So many freezes came to no COMPLETE that keeping more epochs apart would cost too many small parts. The next
  checkpoint is a full one then: `Freeze.knows_since` says so.
* The state was cleared (`Freezes.restart`): no delta builds on what it was.

A freeze runs in the subtask's thread, and a delta is written in another. A `Freeze` is immutable, and so are the parts
that are frozen with it, so merges that come later do not change a snapshot that is being written. The one value that the
other thread sets is `asked_since`, which only rises: to read it late delays a merge and does no harm.

This module counts. How a delta is encoded, and merged with the runs before it when it is restored, is left to
`penstock.state.deltas`; the RocksDB backend, which tracks single changed keys, counts its epochs itself
(`penstock.state.rocks.changed`). Where checkpoints are not incremental there is one epoch, number 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

_MOST_APART: Final = 16
"""How many epochs are kept apart at most: after so many freezes without a COMPLETE a snapshot is a full one."""

ADDS: Final = "adds"
"""Key in the header of a segment: true in a delta whose rows are added to those of earlier runs, and in what was merged
from such deltas; false in the full run that they are added to. Segments without it are the operator's whole state."""
EVERYTHING: Final = -1
"""Stands for an epoch before all others: all content of an operator arrived after it."""
BASE: Final = -2
"""As `EVERYTHING`, but the segments are a full run to which deltas may be added."""


class Freezes:
    """Counts the freezes of one operator, and decides which epochs may be merged."""

    def __init__(self) -> None:
        self.asked_since = 0
        """The newest epoch since which a delta was written; set by the thread that writes it."""
        self._number = 0
        self._from = 0
        self._apart = False

    @property
    def current(self) -> int:
        """The epoch of content that arrives now; 0 as long as no epochs are kept apart."""
        return self._number + 1 if self._apart else 0

    def together(self, one: int, other: int) -> bool:
        """Whether parts of these two epochs may be merged: no delta will be asked for that tells them apart."""
        return one == other or max(one, other) <= self._settled

    @property
    def _settled(self) -> int:
        return max(self.asked_since, self._from, self._number - _MOST_APART)

    def restart(self) -> None:
        """Note that the state was cleared: no delta may build on what it was."""
        self._from = self._number + 1

    def next(self, *, incremental: bool) -> Freeze:
        """Close the current epoch, as all state of the operator is frozen now.

        Args:
            incremental: whether later content is kept apart, so that later snapshots may be deltas since this freeze.
        """
        self._number += 1
        known_from = self._settled if self._apart else self._number
        self._apart = incremental
        return Freeze(self._number, known_from, self)


@dataclass(frozen=True, slots=True)
class Freeze:
    """One freeze, and since which epochs it can tell what arrived. It may be read from any thread."""

    number: int
    """The number of the epoch that it closes, from 1."""
    known_from: int
    """Content of this epoch and of those before it may have been merged, so they cannot be told apart."""
    _owner: Freezes

    def knows_since(self, epoch: int) -> bool:
        """Whether a delta since that epoch is possible."""
        return self.known_from <= epoch <= self.number

    def since(self, epoch: int) -> int:
        """Note that a delta since `epoch` is written, which is part of a COMPLETE: epochs up to it may be merged now.

        Returns:
            The epoch.
        """
        self._owner.asked_since = max(epoch, self._owner.asked_since)
        return epoch


class FrozenAt(ABC):
    """Frozen state whose deltas are added up: an `IncrementalPart` that encodes whatever arrived since an epoch."""

    freeze: Freeze

    @property
    def epoch(self) -> int:
        """The number of the epoch that this freeze closed."""
        return self.freeze.number

    def knows_since(self, epoch: int) -> bool:
        """Whether a delta since that epoch is possible."""
        return self.freeze.knows_since(epoch)

    def segments(self) -> Iterable[tuple[int, bytes]]:
        """The whole state: key groups and segments."""
        return self.encoded(EVERYTHING)

    def full(self) -> Iterable[tuple[int, bytes]]:
        """The whole state, as a full run to which deltas may be added."""
        return self.encoded(BASE)

    def delta(self, epoch: int) -> Iterable[tuple[int, bytes]]:
        """The content that arrived since that epoch."""
        return self.encoded(self.freeze.since(epoch))

    @abstractmethod
    def encoded(self, behind: int) -> Iterable[tuple[int, bytes]]:
        """Segments of the content that arrived since an epoch, `EVERYTHING` or `BASE`."""


def added(header: Mapping[str, Any], behind: int) -> Mapping[str, Any]:
    """The header of the segments of `FrozenAt.encoded`, with `ADDS` where it belongs there."""
    return header if behind == EVERYTHING else {**header, ADDS: behind != BASE}
