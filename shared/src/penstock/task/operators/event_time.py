"""`with_event_time`: rows get another event time, and time comes on by it from here on.

Flink's TimestampsAndWatermarksOperator: what comes before says nothing about the new time, so its watermarks end here but
for the last one, which is the end of the input. The state of the generator is not kept, as in Flink: after a restart it
learns from the rows that come again, and what is behind it remembers how far it had come.
"""

from __future__ import annotations

from typing import cast

import polars as pl

from penstock.core.batches import EVENT_TIME, visible, with_watermarks
from penstock.core.times import MAX_WATERMARK, MIN_WATERMARK
from penstock.errors import UserCodeError
from penstock.plan.logical import Node
from penstock.plan.operations.event_time import AssignEventTime
from penstock.task.operator import Operator, OperatorContext, Output, RestoredState


class EventTimeOperator(Operator):
    """Event time by a form, watermarks by a strategy; one generator per subtask."""

    def __init__(self, node: Node) -> None:
        self._event_time = cast("AssignEventTime", node.operation).event_time
        self._form = self._event_time.form
        self._where = f"with_event_time ({node.operator_id})"
        self._generator = self._event_time.watermarks.generator()
        self._watermark = MIN_WATERMARK
        self._next_period_us: int | None = None
        self._context: OperatorContext

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        self._context = context

    def process(self, frame: pl.DataFrame, output: Output) -> None:
        if frame.height == 0:
            return
        timed = self._timed(visible(frame))
        moves = self._generator.on_batch(timed[EVENT_TIME], timed)
        if moves is None:
            self._next_period_us = self._next_period_us or self._period_from(self._context.now_us())
            output.rows(timed)
            return
        carries = self._context.carries_watermarks
        output.rows(with_watermarks(timed, moves.at_rows, self._watermark, MAX_WATERMARK, every_row=carries))
        self._rise(moves.after, output)

    def _timed(self, frame: pl.DataFrame) -> pl.DataFrame:
        try:
            timed = frame.with_columns(self._form.micros(self._context.window_reach_us).alias(EVENT_TIME))
        except pl.exceptions.PolarsError as error:
            raise UserCodeError(f"{self._where}: {self._form.name}: {str(error).splitlines()[0]}") from error
        if timed[EVENT_TIME].null_count():
            row = timed.filter(pl.col(EVENT_TIME).is_null()).head(1)
            (reason,) = self._form.reasons(row)
            raise UserCodeError(
                f"{self._where}: {reason}; filter such rows out before; row: {visible(row).row(0, named=True)}"
            )
        return timed

    def _rise(self, watermark: int | None, output: Output) -> None:
        if watermark is not None and watermark > self._watermark:
            self._watermark = watermark
            output.watermark(watermark)

    def advance(self, watermark: int, output: Output) -> None:
        if watermark == MAX_WATERMARK:
            self._next_period_us = None
            self._rise(watermark, output)

    def next_timer_us(self) -> int | None:
        return self._next_period_us

    def on_processing_time(self, now_us: int, output: Output) -> None:
        """A strategy that is asked at intervals is asked, from the first row on."""
        self._next_period_us = self._period_from(now_us)
        self._rise(self._generator.on_period(), output)

    def _period_from(self, now_us: int) -> int:
        return now_us + self._event_time.watermarks.every_us
