"""Which keys of the database have changed in which epoch, so that an incremental snapshot need not read all of it.

An epoch is what lies between two freezes of an operator, as in `penstock.state.freezes`. Only the keys that were written
or removed are remembered, in memory and within a bound; their values are read from the frozen database when a delta is
written. Where the bound is exceeded nothing is known of that epoch, and the next snapshot is a full one. Keys of epochs
up to one since which a delta was written are forgotten: a subtask never builds upon an older COMPLETE again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

import polars as pl

from penstock.state.rocks.store import Changes

MOST_BYTES: Final = 64 << 20
"""Approximate bound of the memory that the changed keys of an operator take."""
_PACKED_KEYS: Final = 100_000
"""So many keys are packed into a column, where they take a fourth of the memory."""
_KEY_BYTES: Final = 100
"""Approximate memory of a key in a set."""
_READ_KEYS: Final = 65_536

Keys = pl.Series | Collection[bytes]


@dataclass(frozen=True)
class ClosedEpochs:
    """The changed keys as they are known at a freeze. Readable from any thread."""

    number: int
    """The number of the epoch that the freeze closes."""
    known_from: int
    """All changes are known of the epochs above this one."""
    parts: tuple[tuple[int, Keys], ...]
    _owner: ChangedKeys

    def since(self, epoch: int) -> Iterator[bytes]:
        """The keys that changed since this epoch, in order. Those that changed up to it are not asked for again."""
        self._owner.asked_since = max(epoch, self._owner.asked_since)
        parts = [_column(keys) for number, keys in self.parts if number > epoch]
        if parts:
            keys = pl.concat(parts).unique().sort()
            for start in range(0, len(keys), _READ_KEYS):
                yield from keys.slice(start, _READ_KEYS).to_list()


class ChangedKeys:
    """Remembers the keys that are written to an operator's database, by epoch. It begins with the first freeze."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.asked_since = 0
        """The newest epoch since which a delta was written; set by the thread that writes it."""
        self._most_bytes = most_bytes
        self._closed = 0
        self._known_from = 1
        self._keeping = False
        self._current: set[bytes] = set()
        self._parts: list[tuple[int, Keys]] = []

    def note(self, changes: Changes) -> None:
        """Remember the keys of these changes."""
        if not self._keeping:
            return
        self._current.update(changes)
        if len(self._current) >= _PACKED_KEYS:
            self._parts.append((self._closed + 1, _column(self._current)))
            self._current = set()
            if self._size() > self._most_bytes:
                self._give_up()

    def close(self) -> ClosedEpochs:
        """Close the current epoch, as the database is frozen. This takes microseconds."""
        self._closed += 1
        if self._current:
            self._parts.append((self._closed, self._current))
            self._current = set()
        self._parts = [part for part in self._parts if part[0] > self.asked_since]
        if self._size() > self._most_bytes:
            self._give_up()
            self._known_from = self._closed
        self._keeping = True
        known_from = max(self._known_from, self.asked_since)
        return ClosedEpochs(self._closed, known_from, tuple(self._parts), self)

    def _give_up(self) -> None:
        self._parts.clear()
        self._keeping = False
        self._known_from = self._closed + 1

    def _size(self) -> int:
        return sum(
            int(keys.estimated_size()) if isinstance(keys, pl.Series) else _KEY_BYTES * len(keys)
            for _, keys in self._parts
        )


def _column(keys: Keys) -> pl.Series:
    return keys if isinstance(keys, pl.Series) else pl.Series(list(keys), dtype=pl.Binary)
