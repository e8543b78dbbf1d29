"""Which keys of the database have changed between two freezes, so that a snapshot need not read all of it.

A window is what lies between two freezes of an operator. Only keys are kept, in memory and within a bound; what they are
is read from the frozen database when a delta is written. Where the bound is passed nothing is known of that window, and
the snapshot is a full one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

import polars as pl

from penstock.state.rocks.store import Changes

MOST_BYTES: Final = 64 << 20
"""What the changed keys of an operator take at most, about."""
_PACKED_KEYS: Final = 100_000
"""So many are put into a column: there they take a fourth of the memory."""
_KEY_BYTES: Final = 100
"""What a key takes in a set, about."""
_READ_KEYS: Final = 65_536

Keys = pl.Series | Collection[bytes]


@dataclass(frozen=True)
class ClosedWindows:
    """The changed keys as they are known at a freeze. Readable from any thread."""

    number: int
    """Of the window that the freeze closes."""
    known_from: int
    """Of the windows behind this one all changes are known."""
    parts: tuple[tuple[int, Keys], ...]
    _owner: ChangedKeys

    def since(self, window: int) -> Iterator[bytes]:
        """The keys that changed behind this window, in order; what changed up to it is not asked for again."""
        self._owner.asked_since = max(window, self._owner.asked_since)
        parts = [_column(keys) for number, keys in self.parts if number > window]
        if parts:
            keys = pl.concat(parts).unique().sort()
            for start in range(0, len(keys), _READ_KEYS):
                yield from keys.slice(start, _READ_KEYS).to_list()


class ChangedKeys:
    """What the database of an operator was told, by windows. Nothing is kept before the first freeze."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.asked_since = 0
        """Set by the thread that writes a delta."""
        self._most_bytes = most_bytes
        self._closed = 0
        self._known_from = 1
        self._keeping = False
        self._current: set[bytes] = set()
        self._parts: list[tuple[int, Keys]] = []

    def note(self, changes: Changes) -> None:
        """These were written."""
        if not self._keeping:
            return
        self._current.update(changes)
        if len(self._current) >= _PACKED_KEYS:
            self._parts.append((self._closed + 1, _column(self._current)))
            self._current = set()
            if self._size() > self._most_bytes:
                self._give_up()

    def close(self) -> ClosedWindows:
        """A freeze: what comes next belongs to another window. Takes microseconds."""
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
        return ClosedWindows(self._closed, known_from, tuple(self._parts), self)

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
