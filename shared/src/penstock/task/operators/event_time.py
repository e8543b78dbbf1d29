"""`with_event_time`: rows get another event time, and event time advances by it from here on.

Where the new time of a row is at most so much before the one that it had, the watermarks in front hold for it too if
they are held back by as much: `DelayingEventTimeOperator` does that, and keeps nothing. It is what Flink does behind an
interval join (KeyedCoProcessOperatorWithWatermarkDelay). Otherwise watermarks follow from the rows: `EventTimeOperator`,
Flink's TimestampsAndWatermarksOperator: what comes before says nothing about the new time, so its watermarks end here but
for the last one, which is the end of the input. What a generator has learned is part of checkpoints, where Flink's learns
it again: the same rows are late after a restart as without one. After a rescale subtasks get other rows, so that
generators begin anew, and operators behind them remember how far event time had come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import polars as pl

from penstock.core.batches import EVENT_TIME, WATERMARK, visible, with_watermarks
from penstock.core.times import MAX_WATERMARK, MIN_WATERMARK
from penstock.errors import UserCodeError
from penstock.plan.logical import Node
from penstock.plan.operations.event_time import AssignEventTime
from penstock.task.operator import Operator, OperatorContext, OperatorSnapshot, Output, RestoredState

if TYPE_CHECKING:
    from penstock.connectors.event_times import EventTimeForm


GENERATORS: Final = "generators"
"""Name of the union list state: an entry per subtask."""


class _GeneratorEntry(msgspec.Struct, frozen=True):
    """What the generator of a subtask has learned."""

    subtask: int
    parallelism: int
    watermark: int
    next_period_us: int | None
    generator: Any


class _NewTimes:
    """Gives rows their new event time."""

    def __init__(self, node: Node, form: EventTimeForm) -> None:
        self._form = form
        self._where = f"with_event_time ({node.operator_id})"

    def given(self, frame: pl.DataFrame, context: OperatorContext) -> pl.DataFrame:
        """The rows with it, and without the watermarks that they had."""
        frame = visible(frame)
        try:
            timed = frame.with_columns(self._form.micros(context.window_reach_us).alias(EVENT_TIME))
        except pl.exceptions.PolarsError as error:
            raise UserCodeError(f"{self._where}: {self._form.name}: {str(error).splitlines()[0]}") from error
        if timed[EVENT_TIME].null_count():
            row = timed.filter(pl.col(EVENT_TIME).is_null()).head(1)
            (reason,) = self._form.reasons(row)
            raise UserCodeError(
                f"{self._where}: {reason}; filter such rows out before; row: {visible(row).row(0, named=True)}"
            )
        return timed


class EventTimeOperator(Operator):
    """Event time by a form, watermarks by a strategy; one generator per subtask."""

    def __init__(self, node: Node) -> None:
        self._event_time = cast("AssignEventTime", node.operation).event_time
        self._times = _NewTimes(node, self._event_time.form)
        self._generator = self._event_time.watermarks.generator()
        self._watermark = MIN_WATERMARK
        self._repeats = False
        """Whether consumers are to hear the watermark again: it was restored, and they may wait for it."""
        self._next_period_us: int | None = None
        self._context: OperatorContext

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        self._context = context
        if restored is None:
            return
        place = context.subtask, context.parallelism
        for stored in restored.unions.get(GENERATORS, ()):
            entry = msgspec.json.decode(stored, type=_GeneratorEntry)
            if (entry.subtask, entry.parallelism) == place:
                self._watermark, self._next_period_us = entry.watermark, entry.next_period_us
                self._repeats = entry.watermark != MIN_WATERMARK
                self._generator.restore(entry.generator)

    def process(self, frame: pl.DataFrame, output: Output) -> None:
        if frame.height == 0:
            return
        timed = self._times.given(frame, self._context)
        moves = self._generator.on_batch(timed[EVENT_TIME], timed)
        if moves is None:
            self._next_period_us = self._next_period_us or self._period_from(self._context.now_us())
            output.rows(timed)
            return
        carries = self._context.carries_watermarks
        output.rows(with_watermarks(timed, moves.at_rows, self._watermark, MAX_WATERMARK, every_row=carries))
        self._rise(moves.after, output)

    def _rise(self, watermark: int | None, output: Output) -> None:
        if watermark is not None and watermark > self._watermark:
            self._watermark = watermark
            output.watermark(watermark)

    def advance(self, watermark: int, output: Output) -> None:
        if watermark == MAX_WATERMARK:
            self._next_period_us = None
            self._rise(watermark, output)

    def next_timer_us(self) -> int | None:
        return self._context.now_us() if self._repeats else self._next_period_us

    def on_processing_time(self, now_us: int, output: Output) -> None:
        """A strategy that is asked at intervals is asked, from the first row on."""
        if self._repeats:
            self._repeats = False
            output.watermark(self._watermark)
        if self._next_period_us is not None and self._next_period_us <= now_us:
            self._next_period_us = self._period_from(now_us)
            self._rise(self._generator.on_period(), output)

    def snapshot(self) -> OperatorSnapshot:
        entry = _GeneratorEntry(
            self._context.subtask, self._context.parallelism, self._watermark, self._next_period_us,
            self._generator.state(),
        )  # fmt: skip
        return OperatorSnapshot(unions={GENERATORS: [msgspec.json.encode(entry)]})

    def _period_from(self, now_us: int) -> int:
        return now_us + self._event_time.watermarks.every_us


class DelayingEventTimeOperator(Operator):
    """Event time by a form, with the watermarks of the input held back by a constant.

    A row that is not behind the watermark of the input is not behind that of the output if its new time is not before
    the old one by more than that.
    """

    def __init__(self, node: Node) -> None:
        event_time = cast("AssignEventTime", node.operation).event_time
        self._times = _NewTimes(node, event_time.form)
        self._delay = event_time.watermarks.lag_us
        self._reached = MIN_WATERMARK
        """The watermark of the input."""
        self._context: OperatorContext

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        self._context = context

    def process(self, frame: pl.DataFrame, output: Output) -> None:
        if frame.height == 0:
            return
        timed = self._times.given(frame, self._context)
        marks = pl.Series([self._reached]).new_from_index(0, frame.height)
        if WATERMARK in frame.columns:
            marks = frame[WATERMARK].fill_null(self._reached)
        ends, begins = marks == MAX_WATERMARK, marks < MIN_WATERMARK + self._delay
        marks = (marks - self._delay).set(ends, MAX_WATERMARK).set(begins, MIN_WATERMARK)
        least, carries = self._delayed(self._reached), self._context.carries_watermarks
        output.rows(with_watermarks(timed, marks, least, MAX_WATERMARK, every_row=carries))

    def _delayed(self, watermark: int) -> int:
        return watermark if watermark == MAX_WATERMARK else max(watermark, MIN_WATERMARK + self._delay) - self._delay

    def advance(self, watermark: int, output: Output) -> None:
        self._reached = watermark
        output.watermark(self._delayed(watermark))
