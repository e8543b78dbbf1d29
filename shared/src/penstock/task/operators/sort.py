"""`sort`: all rows in one order, in one subtask.

Rows wait as those of windows do, until event time has passed them, or until the input ends. There they wait for an
integer that rises with their order, so that of those on the local disk not all are in memory at once: rows with equal
integers, such as texts that begin alike, are sorted together when their turn comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, cast

import numpy as np
import polars as pl

from penstock.core.batches import EVENT_TIME, WATERMARK
from penstock.core.times import MAX_WATERMARK, MIN_WATERMARK
from penstock.errors import UserCodeError, without_context
from penstock.plan.logical import Node
from penstock.plan.operations.sort import Sort
from penstock.state.freezes import Freezes
from penstock.state.segments import decode_segments
from penstock.task.operator import OperatorContext, OperatorSnapshot, Output, PassingOperator, RestoredState
from penstock.task.operators.ordering import RowOrder
from penstock.task.operators.progress import GroupWatermarks, LateRows
from penstock.task.operators.waiting_rows import WaitingRows

if TYPE_CHECKING:
    from penstock.types import Schema

_KIND: Final = "sort"
_TIME: Final = "__time"
"""The event time of a row that waits for the end of the input, where `EVENT_TIME` is its place in the order."""


_ARRIVAL: Final = "__arrival"
"""Int64: how many rows came before; snapshots do not keep the order in which rows arrived."""


class SortOperator(PassingOperator):
    """`sort` of facts."""

    def __init__(self, node: Node) -> None:
        operation, source = cast("Sort", node.operation), node.inputs[0]
        self._operator = node.operator_id
        self._where = f"{node.verb} ({node.operator_id})"
        self._by_event_time = operation.by_event_time
        self._keys: Schema = source.schema.select(source.keys)
        self._timed = node.event_time
        self._names = list(node.schema.names)
        self._order = RowOrder(operation.by, source.schema, "sort")
        self._late = LateRows(node, node.schema)
        self._waiting = WaitingRows(Freezes())
        self._arrived = 0
        self._context: OperatorContext
        self._watermarks: GroupWatermarks

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        self._context = context
        self._watermarks = GroupWatermarks(context, self._keys.names, restored)
        self._waiting.lies_in(context.local_state)
        for _, _, rows in decode_segments(restored.keyed if restored else (), self._operator, _KIND, self._keys):
            self._arrived = max(self._arrived, cast("int", rows[_ARRIVAL].max()) + 1)
            # Some of a full run were sent, perhaps, before the newest delta was written.
            if self._by_event_time:
                self._waiting.add(rows.filter(~self._watermarks.have_passed(rows)))
            elif np.all(self._watermarks.at_rows(rows) < MAX_WATERMARK):
                self._waiting.add(self._placed(rows))

    def process(self, frame: pl.DataFrame, output: Output) -> None:
        arrivals = pl.int_range(self._arrived, self._arrived + frame.height, dtype=pl.Int64).alias(_ARRIVAL)
        self._arrived += frame.height
        frame = frame.drop(WATERMARK, strict=False).with_columns(arrivals)
        if not self._by_event_time:
            self._waiting.add(self._placed(frame.rename({EVENT_TIME: _TIME}) if self._timed else frame))
            return
        self._waiting.add(self._late.on_time(frame, self._watermarks, output, self._context.metrics))

    def _placed(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows with their places in the order as the time for which they wait; no row waits for the least of all times,
        which has passed from the beginning."""
        places = ~self._order.coarse(self._with_order(rows))
        return rows.with_columns(places.clip(lower_bound=MIN_WATERMARK + 1).alias(EVENT_TIME))

    def _with_order(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows and what they are ordered by."""
        try:
            return rows.with_columns(self._order.columns)
        except pl.exceptions.PolarsError as error:
            raise UserCodeError(f"{self._where}: the rows could not be ordered: {without_context(error)}") from error

    def run_background_slice(self) -> bool:
        return self._waiting.run_background_slice()

    def advance(self, watermark: int, output: Output) -> None:
        if self._by_event_time or watermark == MAX_WATERMARK:
            super().advance(watermark, output)

    def _pass(self, watermark: int, output: Output) -> Iterator[None]:
        reached = self._watermarks.advance(watermark)
        if not self._by_event_time and watermark != MAX_WATERMARK:
            return
        for due in self._waiting.due(reached):
            rows = self._order.sorted(self._with_order(due), EVENT_TIME, [_ARRIVAL])
            output.rows(self._sent(rows))
            yield

    def _sent(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows in their order as they are emitted."""
        if not self._timed:
            return rows.select(self._names)
        if not self._by_event_time:
            return rows.select(*self._names, pl.col(_TIME).alias(EVENT_TIME))
        names = [*self._names, EVENT_TIME]
        if self._context.carries_watermarks:
            return rows.select(*names, (pl.col(EVENT_TIME) - 1).alias(WATERMARK))
        return rows.select(names)

    def snapshot(self) -> OperatorSnapshot | None:
        return OperatorSnapshot(keyed=self._waiting.frozen(_KIND, self._keys, self._context))
