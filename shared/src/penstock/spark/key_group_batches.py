"""Batches of key groups: which key groups of a task share a chain of operators. This module decides, and runs nothing.

A chain per key group would hold the least state in memory, but every chain costs some milliseconds, however few rows it
gets: with 240 key groups that is a second, for a step of a thousand rows. So neighbouring key groups share a chain as
long as their rows, which are buffered here, and their stored state are below `BATCH_BYTES` together. A key group with
more rows than that has a chain for itself, and its rows are handed on as they arrive, unbuffered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.protocol.keygroups import KeyGroupRange

if TYPE_CHECKING:
    import polars as pl

BATCH_BYTES: Final = 8 << 20
"""Of rows and of state as it is stored; as objects that is about ten times as large."""


@dataclass(frozen=True)
class KeyGroupBatch:
    """Rows of neighbouring key groups that share a chain."""

    groups: KeyGroupRange
    frames: tuple[pl.DataFrame, ...]
    """The rows in order of arrival: those of a key group follow each other."""
    continues: bool = False
    """Whether these rows belong to the same chain as those of the batch before."""
    whole: bool = True
    """Whether these are all rows of its key groups."""


class KeyGroupBatcher:
    """Cuts the key groups of a task, which arrive in rising order, into batches."""

    def __init__(self, stored: Mapping[int, int]) -> None:
        """`stored` are the bytes of state of the key groups that have any: they get a chain even if they have no rows."""
        self._stored = deque(sorted(stored.items()))
        self._begin()
        self._group: int | None = None
        """The key group whose rows arrive now."""
        self._flows = False
        """Whether its rows are handed on as they arrive, because they are too many to be buffered."""

    def _begin(self) -> None:
        self._first: int | None = None
        self._end = 0
        self._others: list[pl.DataFrame] = []
        self._own: list[pl.DataFrame] = []
        """The rows of the last key group."""
        self._bytes = self._own_bytes = self._own_state = 0

    def add(self, group: int, frame: pl.DataFrame, size_bytes: int) -> Iterator[KeyGroupBatch]:
        """Add rows of a key group, which is not below the one before; yields the batches that are complete by that."""
        if group != self._group:
            yield from self._reach(group)
        if self._flows:
            yield KeyGroupBatch(KeyGroupRange(group, group + 1), (frame,), continues=True, whole=False)
            return
        self._own.append(frame)
        self._own_bytes += size_bytes
        if self._bytes + self._own_bytes > BATCH_BYTES:
            yield from self._split(group)

    def _split(self, group: int) -> Iterator[KeyGroupBatch]:
        """Too many rows are buffered: end the batch before the last key group, and buffer that one only if it fits."""
        own, own_bytes, own_state = self._own, self._own_bytes, self._own_state
        if self._first != group:
            assert self._first is not None
            yield KeyGroupBatch(KeyGroupRange(self._first, group), tuple(self._others))
        self._begin()
        if own_bytes > BATCH_BYTES:
            yield KeyGroupBatch(KeyGroupRange(group, group + 1), tuple(own), whole=False)
            self._flows = True
        else:
            self._first, self._end, self._own, self._own_bytes = group, group + 1, own, own_bytes
            self._bytes = self._own_state = own_state

    def finish(self) -> Iterator[KeyGroupBatch]:
        """The input has ended: yields the remaining batches."""
        while self._stored:
            yield from self._enter(*self._stored.popleft())
        yield from self._over()

    def _reach(self, group: int) -> Iterator[KeyGroupBatch]:
        """The first rows of a key group arrive: enter the key groups before it that have only state, then this one."""
        while self._stored and self._stored[0][0] < group:
            yield from self._enter(*self._stored.popleft())
        own_bytes = self._stored.popleft()[1] if self._stored and self._stored[0][0] == group else 0
        yield from self._enter(group, own_bytes)
        self._group, self._flows = group, False

    def _enter(self, group: int, size_bytes: int) -> Iterator[KeyGroupBatch]:
        if self._bytes + self._own_bytes + size_bytes > BATCH_BYTES:
            yield from self._over()
        if self._first is None:
            self._first = group
        self._others += self._own
        self._bytes += self._own_bytes + size_bytes
        self._end, self._own, self._own_bytes, self._own_state = group + 1, [], 0, size_bytes

    def _over(self) -> Iterator[KeyGroupBatch]:
        if self._first is not None:
            yield KeyGroupBatch(KeyGroupRange(self._first, self._end), (*self._others, *self._own))
        self._begin()
