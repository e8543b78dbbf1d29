"""Timers in the database: which are due next, whatever their number.

Every key group has its timers in order of time. The first ones of each group are held in memory; a heap says which
group is next, as in Flink's KeyGroupPartitionedPriorityQueue. Timers of one moment come in no particular order.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final

from penstock.state.rocks.layout import HEADER_BYTES, Places, end_of, slot_bytes, time_bytes, time_of
from penstock.state.rocks.store import Changes, RocksStore

HEAD: Final = 128
"""Timers of a key group that are read at once."""
_NEVER: Final = 2**63


class _Group:
    """The timers of one key group: the first ones here, all of them in the database."""

    __slots__ = ("announced", "beyond", "first", "prefix")

    def __init__(self, prefix: bytes) -> None:
        self.prefix: Final = prefix
        self.first: list[bytes] = []
        self.beyond: bytes | None = prefix
        """From here on only the database knows what there is; None: there is nothing more."""
        self.announced: bytes | None = None
        """The entry by which the group stands in the heap."""

    def holds(self, entry: bytes) -> bool:
        """Whether an entry belongs to those in memory."""
        return self.beyond is None or entry < self.beyond


class RocksTimers:
    """Timers by (key, time in microseconds), given out in order of time.

    Args:
        store: where they stand.
        slot: under which they stand.
        places: of keys.
        write: writes to the database. Only `changes` are written here: this may be in the midst of a row, whose
            function has values of states in hand that it is going to change.
    """

    def __init__(self, store: RocksStore, slot: int, places: Places, write: Callable[[Changes], None]) -> None:
        self.changes: dict[bytes, bytes | None] = {}
        """What the database does not know yet."""
        self._store = store
        self._slot = slot_bytes(slot)
        self._places = places
        self._write = write
        self._groups: dict[bytes, _Group] = {}
        self._heads: list[tuple[bytes, bytes]] = []
        """Of each key group that has timers its first entry and its name, and perhaps former first ones."""

    def set(self, key: Any, time: int) -> None:
        """Set a timer; nothing happens if it is set."""
        name, data = self._places.of(key)
        group = self._group(name)
        entry = group.prefix + time_bytes(time) + data
        self.changes[entry] = b""
        if not group.holds(entry):
            return
        first = group.first
        index = bisect_left(first, entry)
        if index < len(first) and first[index] == entry:
            return
        first.insert(index, entry)
        if index == 0:
            self._announce(name, group)
        if len(first) > 4 * HEAD:
            group.beyond = first[HEAD]
            del first[HEAD:]

    def delete(self, key: Any, time: int) -> None:
        """Take a timer back; nothing happens if it is not set."""
        name, data = self._places.of(key)
        group = self._group(name)
        self._remove(group, group.prefix + time_bytes(time) + data)

    def _remove(self, group: _Group, entry: bytes) -> None:
        self.changes[entry] = None
        index = bisect_left(group.first, entry)
        if index < len(group.first) and group.first[index] == entry:
            del group.first[index]

    def _group(self, name: bytes) -> _Group:
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = _Group(name + self._slot)
            self._read_on(name, group)
        return group

    def _read_on(self, name: bytes, group: _Group) -> None:
        """Take the next timers of a key group into memory."""
        assert group.beyond is not None
        if self.changes:
            self._write(self.changes)
            self.changes.clear()
        found = self._store.scan(group.beyond, end_of(group.prefix))
        group.first = [entry for entry, _ in islice(found, HEAD)]
        following = next(found, None)
        group.beyond = following[0] if following else None
        self._announce(name, group)

    def _announce(self, name: bytes, group: _Group) -> None:
        if group.first and group.announced != group.first[0]:
            group.announced = group.first[0]
            heapq.heappush(self._heads, (group.announced[HEADER_BYTES:], name))

    def open(self, names: Iterable[bytes]) -> None:
        """Look what timers the key groups of these names have."""
        for name in names:
            self._group(name)

    @property
    def earliest(self) -> int:
        """Before this no timer is due. It takes no search: a timer that was deleted since may have been the one."""
        return time_of(self._heads[0][0][:8]) if self._heads else _NEVER

    def _next(self) -> tuple[_Group, bytes] | None:
        """The first entry of all, and its key group."""
        while self._heads:
            head, name = self._heads[0]
            group = self._groups[name]
            if not group.first and group.beyond is not None:
                self._read_on(name, group)
            if group.first and group.first[0][HEADER_BYTES:] == head:
                return group, group.first[0]
            heapq.heappop(self._heads)
            if group.announced is not None and group.announced[HEADER_BYTES:] == head:
                group.announced = None
            self._announce(name, group)
        return None

    def next_time(self) -> int | None:
        """The time of the next timer."""
        found = self._next()
        return None if found is None else _time_of(found[1])

    def due(self, until: int) -> Iterator[tuple[Any, int]]:
        """Take out and yield the timers up to `until`, those included that are set while this goes on."""
        while (found := self._next()) is not None:
            group, entry = found
            time = _time_of(entry)
            if time > until:
                return
            self._remove(group, entry)
            yield self._places.decode(entry[HEADER_BYTES + 8 :]), time


def _time_of(entry: bytes) -> int:
    return time_of(entry[HEADER_BYTES : HEADER_BYTES + 8])
