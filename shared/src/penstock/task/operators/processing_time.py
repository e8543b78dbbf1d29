"""`with_processing_time`: the time of a row is when it passes here, and time comes on with the clock.

Windows and timers behind it are those of processing time, by the machinery of event time. What was reached is kept: after
a restart on a machine whose clock is behind, no row is late.
"""

from __future__ import annotations

from typing import Final, cast

import polars as pl

from penstock.core.batches import EVENT_TIME, WATERMARK, visible
from penstock.core.times import MAX_WATERMARK, MIN_WATERMARK
from penstock.plan.logical import Node
from penstock.plan.operations.event_time import AssignProcessingTime
from penstock.task.operator import Operator, OperatorContext, OperatorSnapshot, Output, RestoredState

REACHED: Final = "reached"
"""Name of the union list state: how far each subtask had come."""


class ProcessingTimeOperator(Operator):
    """Event time by the wall clock, which never goes back here; watermarks also when no row comes."""

    def __init__(self, node: Node) -> None:
        self._every_us = cast("AssignProcessingTime", node.operation).every_us
        self._watermark = MIN_WATERMARK
        """Handed out, or before a restart by any subtask."""
        self._next_us: int | None = None
        self._context: OperatorContext

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        self._context = context
        self._next_us = context.now_us()
        if restored is not None:
            self._watermark = max(map(int, restored.unions.get(REACHED, ())), default=MIN_WATERMARK)

    def process(self, frame: pl.DataFrame, output: Output) -> None:
        if frame.height == 0:
            return
        self._rise(self._context.now_us() - 1, output)
        hidden = {EVENT_TIME: self._watermark + 1}
        if self._context.carries_watermarks:
            hidden[WATERMARK] = self._watermark
        output.rows(visible(frame).with_columns(pl.lit(value, pl.Int64).alias(name) for name, value in hidden.items()))

    def _rise(self, watermark: int, output: Output) -> None:
        """A row may still come at the very moment that the clock shows: the watermark is the one before."""
        if watermark > self._watermark:
            self._watermark = watermark
            output.watermark(watermark)

    def advance(self, watermark: int, output: Output) -> None:
        if watermark == MAX_WATERMARK:
            self._next_us = None
            self._rise(watermark, output)

    def next_timer_us(self) -> int | None:
        return self._next_us

    def on_processing_time(self, now_us: int, output: Output) -> None:
        """Again at the next multiple of the interval: at the end of a window of whole intervals, not later."""
        self._next_us = (now_us // self._every_us + 1) * self._every_us
        self._rise(now_us - 1, output)

    def snapshot(self) -> OperatorSnapshot:
        return OperatorSnapshot(unions={REACHED: [str(self._watermark).encode()]})
