"""How far event time has come over several inputs: the channels of a subtask, or the splits of a source.

Flink's StatusWatermarkValve: the minimum over the inputs that count. An idle one does not count. One that resumes behind
what was reached does not count either until it has caught up: nothing that was said can be retracted, and to wait for it
would stop event time without making its rows any less late.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import count

from penstock.core.times import MAX_WATERMARK, MIN_WATERMARK


@dataclass(slots=True, kw_only=True)
class InputProgress:
    """What one input has said."""

    watermark: int = MIN_WATERMARK
    idle: bool = False
    aligned: bool = True
    """Whether it counts. A new input does, so that nothing is reached before it has said something."""
    queued: bool = False
    """Whether it stands in the heap of a `CombinedProgress`."""

    @property
    def ended(self) -> bool:
        """Whether nothing follows."""
        return self.watermark == MAX_WATERMARK

    def advance(self, watermark: int, reached: int) -> None:
        """It has sent a watermark, while all together have `reached` one."""
        self.wake(reached)
        self.watermark = max(self.watermark, watermark)
        self.aligned = self.aligned or self.watermark >= reached

    def wake(self, reached: int) -> None:
        """It has sent something."""
        if self.idle:
            self.idle = False
            self.aligned = self.watermark >= reached

    def rest(self) -> None:
        """Nothing is to be waited for here."""
        self.idle = True
        self.aligned = False


def combined(inputs: Collection[InputProgress], reached: int) -> tuple[int, bool]:
    """The watermark that all together have reached now, at least `reached`, and whether all are idle.

    Of idle ones it is the greatest watermark, so that it does not depend on the order in which they became idle.
    """
    if all(each.idle for each in inputs):
        return max(reached, max((each.watermark for each in inputs), default=reached)), True
    return max(reached, least(inputs, reached)), False


def least(inputs: Iterable[InputProgress], default: int) -> int:
    """The least watermark of those that count; `default` if none does."""
    return min((each.watermark for each in inputs if each.aligned), default=default)


class CombinedProgress:
    """`combined` of inputs that are always the same, kept up: what one input says costs O(log n), amortised.

    What an input says is to be said here. The heap has a lower bound for each input that counts, once: watermarks only
    grow, so only what is found on top is brought up to date.
    """

    def __init__(self, inputs: Iterable[InputProgress]) -> None:
        self._number = 0
        self._idle = 0
        self._greatest: int | None = None
        self._heap: list[tuple[int, int, InputProgress]] = []
        self._ties = count()
        for each in inputs:
            self._number += 1
            self._idle += each.idle
            self._said(each)

    def advance(self, each: InputProgress, watermark: int, reached: int) -> None:
        """See `InputProgress.advance`."""
        self._idle -= each.idle
        each.advance(watermark, reached)
        self._said(each)

    def wake(self, each: InputProgress, reached: int) -> None:
        """See `InputProgress.wake`."""
        self._idle -= each.idle
        each.wake(reached)
        self._said(each)

    def rest(self, each: InputProgress) -> None:
        """See `InputProgress.rest`."""
        self._idle += not each.idle
        each.rest()

    def combined(self, reached: int) -> tuple[int, bool]:
        """See the function `combined`."""
        if self._idle == self._number:
            return max(reached, reached if self._greatest is None else self._greatest), True
        return max(reached, self._least(reached)), False

    def least_beside(self, one: InputProgress, default: int) -> int:
        """`least` of the others."""
        found = self._least(default)
        if not self._heap or self._heap[0][2] is not one:
            return found
        top = heapq.heappop(self._heap)
        found = self._least(default)
        heapq.heappush(self._heap, top)
        return found

    def _said(self, each: InputProgress) -> None:
        self._greatest = each.watermark if self._greatest is None else max(self._greatest, each.watermark)
        if each.aligned and not each.queued:
            each.queued = True
            heapq.heappush(self._heap, (each.watermark, next(self._ties), each))

    def _least(self, default: int) -> int:
        """The least watermark of those that count."""
        while self._heap:
            bound, tie, each = self._heap[0]
            if not each.aligned:
                heapq.heappop(self._heap)
                each.queued = False
            elif bound < each.watermark:
                heapq.heapreplace(self._heap, (each.watermark, tie, each))
            else:
                return bound
        return default
