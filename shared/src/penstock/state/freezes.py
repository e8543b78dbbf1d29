"""Which part of an operator's state was there at which freeze, so that a snapshot may have only what came since.

State grows in parts (frames, dictionaries) that never change once they are frozen, and that are merged as they grow. Each
is of the window, what lies between two freezes, in which its newest content came. As long as a snapshot may have to tell
a window from those before it, parts are not merged across that border. Nothing is kept apart where checkpoints are not
incremental.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

_MOST_APART: Final = 16
"""Windows that are kept apart at most: behind so many freezes that came to no COMPLETE a snapshot is a full one."""

ADDS: Final = "adds"
"""Set in the header of a delta whose rows are added to those of the runs before, and of what is merged of such; there,
but false, in that of the full run, which alone need not be what the operator has."""
EVERYTHING: Final = -1
"""All there is came behind this window."""
BASE: Final = -2
"""And behind this one, of which a full run is written."""


class Freezes:
    """Counts the freezes of one operator."""

    def __init__(self) -> None:
        self.asked_since = 0
        """Set by the thread that writes a delta."""
        self._number = 0
        self._from = 0
        self._apart = False

    @property
    def current(self) -> int:
        """The window of what comes now; 0 as long as nothing is kept apart."""
        return self._number + 1 if self._apart else 0

    def together(self, one: int, other: int) -> bool:
        """Whether parts of these windows may be merged."""
        return one == other or max(one, other) <= self._settled

    @property
    def _settled(self) -> int:
        return max(self.asked_since, self._from, self._number - _MOST_APART)

    def restart(self) -> None:
        """The state has become empty: no delta builds on what it was."""
        self._from = self._number + 1

    def next(self, *, incremental: bool) -> Freeze:
        """A freeze, of all state that the operator has; `incremental`: what comes behind it is kept apart."""
        self._number += 1
        known_from = self._settled if self._apart else self._number
        self._apart = incremental
        return Freeze(self._number, known_from, self)


@dataclass(frozen=True, slots=True)
class Freeze:
    """What is known of windows at a freeze. Readable from any thread."""

    number: int
    """Of the window that it closes, from 1."""
    known_from: int
    """Content of this window and of those before it may be merged, so nothing tells them apart."""
    _owner: Freezes

    def knows_since(self, window: int) -> bool:
        """Whether what came behind that freeze can be told."""
        return self.known_from <= window <= self.number

    def since(self, window: int) -> int:
        """A delta is written of what came behind `window`, which is in a COMPLETE: nobody asks further back again."""
        self._owner.asked_since = max(window, self._owner.asked_since)
        return window


class FrozenAt(ABC):
    """Frozen state whose full runs are what it writes otherwise, and whose deltas are added: an `IncrementalPart`."""

    freeze: Freeze

    @property
    def window(self) -> int:
        """The number of this freeze."""
        return self.freeze.number

    def knows_since(self, window: int) -> bool:
        """Whether all is known that came since that freeze."""
        return self.freeze.knows_since(window)

    def segments(self) -> Iterable[tuple[int, bytes]]:
        """All of it: key groups and bytes."""
        return self.encoded(EVERYTHING)

    def full(self) -> Iterable[tuple[int, bytes]]:
        """All of it, to which deltas may be added."""
        return self.encoded(BASE)

    def delta(self, window: int) -> Iterable[tuple[int, bytes]]:
        """What came since that freeze."""
        return self.encoded(self.freeze.since(window))

    @abstractmethod
    def encoded(self, behind: int) -> Iterable[tuple[int, bytes]]:
        """Segments of what came behind that window, `EVERYTHING` and `BASE` among them."""


def added(header: Mapping[str, Any], behind: int) -> Mapping[str, Any]:
    """The header of segments of what came behind a window, if deltas are added to what was there."""
    return header if behind == EVERYTHING else {**header, ADDS: behind != BASE}
