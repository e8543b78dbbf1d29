"""How far event time has come over several inputs: the channels of a subtask, or the splits of a source.

Flink's StatusWatermarkValve: the minimum over the inputs that count. An idle one does not count. One that resumes behind
what was reached does not count either until it has caught up: nothing that was said can be taken back, and to wait for it
would stop event time without making its rows any less late.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from penstock.times import MIN_WATERMARK


@dataclass(slots=True, kw_only=True)
class InputProgress:
    """What one input has said."""

    watermark: int = MIN_WATERMARK
    idle: bool = False
    aligned: bool = True
    """Whether it counts. A new input does, so that nothing is reached before it has said something."""

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
    return max(reached, min((each.watermark for each in inputs if each.aligned), default=reached)), False
