"""The earliest of event times that come and go, to the second, in memory that does not grow with what has gone."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

_SECOND: Final = 1_000_000
_LEAST_KEPT: Final = 64


class Earliest:
    """Times in microseconds, of which the earliest one is wanted now and then."""

    def __init__(self) -> None:
        self._seconds = Counter[int]()
        """How many times there are of each second."""
        self._order: list[int] = []
        """A heap of the seconds; some are there of which no time is left, or more than once."""

    def add(self, times: Sequence[int]) -> None:
        """Times come."""
        for second, number in _seconds(times):
            if second not in self._seconds:
                heapq.heappush(self._order, second)
            self._seconds[second] += number

    def remove(self, times: Sequence[int]) -> None:
        """Times go that have come."""
        for second, number in _seconds(times):
            self._seconds[second] -= number
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


def _seconds(times: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The seconds of times, with how many there are of each."""
    seconds, numbers = np.unique(np.array(times, np.int64) // _SECOND, return_counts=True)
    return zip(seconds.tolist(), numbers.tolist(), strict=True)
