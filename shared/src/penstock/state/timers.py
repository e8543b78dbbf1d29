"""Timers of a keyed operator: which are set, and which are due next.

A `Table` of (key, time) says which timers are set, so setting one twice is setting it once and a snapshot is taken in
constant time; a heap orders them. The heap may hold entries that were deleted since: they are skipped when they come up
and swept when they are the majority.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import count
from typing import Any, Final

from penstock.state.backend import ABSENT, FrozenTable, Table

_SWEEP_ABOVE: Final = 10_000
_NEVER: Final = 2**63


class TimerQueue:
    """Timers by (key, time in microseconds), given out in order of time, then of setting."""

    __slots__ = ("_heap", "_numbers", "table")

    def __init__(self) -> None:
        self.table = Table()
        self._heap: list[tuple[int, int, Any]] = []
        self._numbers = count()

    def set(self, key: Any, time: int) -> None:
        """Set a timer; nothing happens if it is set."""
        entry = (key, time)
        table = self.table
        if (entry in table.live or table.layers) and table.get(entry) is not ABSENT:
            return
        table.live[entry] = True
        heapq.heappush(self._heap, (time, next(self._numbers), key))

    def delete(self, key: Any, time: int) -> None:
        """Take a timer back; nothing happens if it is not set."""
        self.table.remove((key, time))
        if len(self._heap) > _SWEEP_ABOVE and len(self._heap) > 4 * self.table.size_bound():
            self._sweep()

    def _sweep(self) -> None:
        first: dict[tuple[Any, int], int] = {}
        for time, number, key in self._heap:
            entry = (key, time)
            if self.table.get(entry) is not ABSENT and number < first.get(entry, number + 1):
                first[entry] = number
        self._heap = [(time, number, key) for (key, time), number in first.items()]
        heapq.heapify(self._heap)

    @property
    def earliest(self) -> int:
        """Before this no timer is due. It takes no search: a timer that was deleted since may have been the one."""
        return self._heap[0][0] if self._heap else _NEVER

    def next_time(self) -> int | None:
        """The time of the next timer."""
        while self._heap:
            time, _, key = self._heap[0]
            if self.table.get((key, time)) is not ABSENT:
                return time
            heapq.heappop(self._heap)
        return None

    def due(self, until: int) -> Iterator[tuple[Any, int]]:
        """Take out and yield the timers up to `until`, those included that are set while this goes on."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            time, _, key = heapq.heappop(heap)
            entry = (key, time)
            if self.table.get(entry) is not ABSENT:
                self.table.remove(entry)
                yield key, time
            heap = self._heap  # a sweep replaces it

    def freeze(self) -> FrozenTable:
        """The set timers as they are now: keys (key, time)."""
        return self.table.freeze()
