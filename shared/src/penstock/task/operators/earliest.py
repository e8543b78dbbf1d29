"""The earliest of event times that come and go, to the second, in memory that does not grow with what has gone."""

from __future__ import annotations

import heapq
from collections import Counter
from typing import Final

_SECOND: Final = 1_000_000
_LEAST_KEPT: Final = 64


class Earliest:
    """Times in microseconds, of which the earliest one is wanted now and then."""

    def __init__(self) -> None:
        self._seconds = Counter[int]()
        """How many times there are of each second."""
        self._order: list[int] = []
        """A heap of the seconds; some are there of which no time is left, or more than once."""

    def add(self, time: int) -> None:
        """A time comes."""
        second = time // _SECOND
        if second not in self._seconds:
            heapq.heappush(self._order, second)
        self._seconds[second] += 1

    def remove(self, time: int) -> None:
        """A time goes that has come."""
        second = time // _SECOND
        self._seconds[second] -= 1
        if not self._seconds[second]:
            del self._seconds[second]
        if len(self._order) > 2 * len(self._seconds) + _LEAST_KEPT:
            self._order = sorted(self._seconds)

    def clear(self) -> None:
        """All times go."""
        self._seconds.clear()
        self._order.clear()

    @property
    def second(self) -> int | None:
        """The second of the earliest time since the epoch; None if there is no time."""
        while self._order and self._order[0] not in self._seconds:
            heapq.heappop(self._order)
        return self._order[0] if self._order else None
