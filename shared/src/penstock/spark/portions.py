"""Which key groups of a task are worked on together: as many as have few rows and little state. Decides only.

A chain per key group would hold the least state, but it costs some milliseconds, whatever comes to it: of 240 key groups
a second, for a step that has a thousand rows. So key groups that follow each other share a chain, as many as have some
bytes of rows, which wait here, and of state. A key group with more rows than that has a chain for itself, and its rows
flow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.protocol.keygroups import KeyGroupRange

if TYPE_CHECKING:
    import polars as pl

PORTION_BYTES: Final = 8 << 20
"""Of rows and of state as it is stored; as objects that is about ten times as large."""


@dataclass(frozen=True)
class Portion:
    """Rows of key groups that are worked on together."""

    groups: KeyGroupRange
    frames: tuple[pl.DataFrame, ...]
    """The rows in the order in which they came: those of a key group follow each other."""
    goes_on: bool = False
    """Whether they belong to the portion before."""
    whole: bool = True
    """Whether nothing of these key groups comes later."""


class Portions:
    """Puts the key groups of a task together."""

    def __init__(self, stored: Mapping[int, int]) -> None:
        """`stored` are the bytes of state of the key groups that have any: their turn comes even if they have no row."""
        self._stored = deque(sorted(stored.items()))
        self._begin()
        self._group: int | None = None
        """The one whose rows come."""
        self._flows = False
        """Whether its rows are handed on as they come."""

    def _begin(self) -> None:
        self._first: int | None = None
        self._end = 0
        self._others: list[pl.DataFrame] = []
        self._own: list[pl.DataFrame] = []
        """The rows of the last key group."""
        self._bytes = self._own_bytes = self._own_state = 0

    def add(self, group: int, frame: pl.DataFrame, size_bytes: int) -> Iterator[Portion]:
        """Rows of a key group have come, which is not below the one before; yields what is complete by that."""
        if group != self._group:
            yield from self._reach(group)
        if self._flows:
            yield Portion(KeyGroupRange(group, group + 1), (frame,), goes_on=True, whole=False)
            return
        self._own.append(frame)
        self._own_bytes += size_bytes
        if self._bytes + self._own_bytes > PORTION_BYTES:
            yield from self._split(group)

    def _split(self, group: int) -> Iterator[Portion]:
        """There are too many rows: let the last key group be for itself, and flow if it is too much alone."""
        own, own_bytes, own_state = self._own, self._own_bytes, self._own_state
        if self._first != group:
            assert self._first is not None
            yield Portion(KeyGroupRange(self._first, group), tuple(self._others))
        self._begin()
        if own_bytes > PORTION_BYTES:
            yield Portion(KeyGroupRange(group, group + 1), tuple(own), whole=False)
            self._flows = True
        else:
            self._first, self._end, self._own, self._own_bytes = group, group + 1, own, own_bytes
            self._bytes = self._own_state = own_state

    def rest(self) -> Iterator[Portion]:
        """There are no more rows."""
        while self._stored:
            yield from self._enter(*self._stored.popleft())
        yield from self._over()

    def _reach(self, group: int) -> Iterator[Portion]:
        """The turn of a key group has come, and before it that of those which have only state."""
        while self._stored and self._stored[0][0] < group:
            yield from self._enter(*self._stored.popleft())
        own_bytes = self._stored.popleft()[1] if self._stored and self._stored[0][0] == group else 0
        yield from self._enter(group, own_bytes)
        self._group, self._flows = group, False

    def _enter(self, group: int, size_bytes: int) -> Iterator[Portion]:
        if self._bytes + self._own_bytes + size_bytes > PORTION_BYTES:
            yield from self._over()
        if self._first is None:
            self._first = group
        self._others += self._own
        self._bytes += self._own_bytes + size_bytes
        self._end, self._own, self._own_bytes, self._own_state = group + 1, [], 0, size_bytes

    def _over(self) -> Iterator[Portion]:
        if self._first is not None:
            yield Portion(KeyGroupRange(self._first, self._end), (*self._others, *self._own))
        self._begin()
