"""`temporal_filter`: rows that are added and retracted as event time comes to the bounds of their spans.

What is to be sent later is kept as changes with the moments at which they are due: the addition of a row whose span has
not begun, and the retraction of one whose span has not ended. The retraction of a row that arrives is kept likewise, the
other way round, so that nobody looks for the row: what is due at one moment adds up, and what adds up to nothing is not
sent (as in differential dataflow: McSherry et al., CIDR 2013). A row is judged by the watermark that has arrived.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, cast

import numpy as np
import polars as pl

from penstock.core.batches import EVENT_TIME, WATERMARK
from penstock.core.times import MIN_WATERMARK
from penstock.functions.windows.definitions import RETRACTED
from penstock.plan.logical import Node
from penstock.plan.operations.temporal_filter import Bound, TemporalFilter
from penstock.state.columns import canonical_keys
from penstock.state.counted_rows import COUNT, counted
from penstock.state.freezes import Freezes
from penstock.state.segments import decode_segments
from penstock.task.operator import OperatorContext, OperatorSnapshot, Output, PassingOperator, RestoredState
from penstock.task.operators.changes import count_of_change
from penstock.task.operators.progress import GroupWatermarks
from penstock.task.operators.waiting_rows import WaitingRows

if TYPE_CHECKING:
    from numpy.typing import NDArray

_KIND: Final = "temporal-filter"


class TemporalFilterOperator(PassingOperator):
    """`temporal_filter` of facts or changes; `EVENT_TIME` of rows that wait is the moment for which they do."""

    def __init__(self, node: Node) -> None:
        operation, source = cast("TemporalFilter", node.operation), node.inputs[0]
        self._operator = node.operator_id
        self._from, self._until = operation.valid_from, operation.valid_until
        self._of_facts = source.mode != "retract"
        self._keys = source.schema.select(source.keys)
        self._names = list(node.schema.names)
        others = (name for name in node.schema.names if name not in self._keys)
        self._kept = [*self._keys.names, *others]
        self._waiting = WaitingRows(Freezes())
        self._context: OperatorContext
        self._watermarks: GroupWatermarks

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        self._context = context
        self._watermarks = GroupWatermarks(context, self._keys.names, restored)
        self._waiting.lies_in(context.local_state)
        keyed = restored.keyed if restored is not None else ()
        for _, _, rows in decode_segments(keyed, self._operator, _KIND, self._keys):
            rows = canonical_keys(rows, self._keys)
            # Some of a full run were sent, perhaps, before the newest delta was written.
            self._waiting.add(rows.filter(~self._watermarks.have_passed(rows)))

    def process(self, frame: pl.DataFrame, output: Output) -> None:
        if frame.height == 0:
            return
        if self._of_facts:
            frame = frame.with_columns(pl.lit(False).alias(RETRACTED))
        rows = canonical_keys(frame.drop(EVENT_TIME, WATERMARK, strict=False), self._keys)
        reached = self._watermarks.at_rows(rows)
        begins = _moments(rows, self._from)
        begun = begins <= reached
        seen = np.ones(rows.height, np.bool_)
        if self._until is not None:
            ends, has_end = _moments(rows, self._until), rows[self._until.column].is_not_null().to_numpy()
            seen = ~has_end | ((ends > reached) & (ends > begins))
            self._wait(rows.with_columns(~pl.col(RETRACTED)), ends, seen & has_end)
        self._wait(rows, begins, seen & ~begun)
        now = rows.select(self._names).filter(pl.Series(seen & begun))
        if now.height:
            output.rows(now)

    def _wait(self, rows: pl.DataFrame, moments: NDArray[np.int64], which: NDArray[np.bool_]) -> None:
        waiting = rows.select(self._kept).with_columns(pl.Series(EVENT_TIME, moments))
        self._waiting.add(waiting.filter(pl.Series(which)))

    def run_background_slice(self) -> bool:
        return self._waiting.run_background_slice()

    def _pass(self, watermark: int, output: Output) -> Iterator[None]:
        for due in self._waiting.due(self._watermarks.advance(watermark)):
            changed = self._added_up(due)
            if changed.height:
                output.rows(changed.select(self._names))
                yield

    def _added_up(self, due: pl.DataFrame) -> pl.DataFrame:
        """What is due, in order of the moments; of each moment the retractions first, so that a row of a key is followed
        by the next one."""
        if self._of_facts:
            return due.sort(EVENT_TIME, RETRACTED, descending=[False, True], maintain_order=True)
        columns = [name for name in due.columns if name != RETRACTED]
        sums = counted(due.with_columns(count_of_change()), columns).sort(EVENT_TIME, COUNT, maintain_order=True)
        sums = sums[np.repeat(np.arange(sums.height), sums[COUNT].abs().to_numpy())]
        return sums.with_columns((pl.col(COUNT) < 0).alias(RETRACTED))

    def snapshot(self) -> OperatorSnapshot | None:
        return OperatorSnapshot(keyed=self._waiting.frozen(_KIND, self._keys, self._context))


def _moments(rows: pl.DataFrame, bound: Bound | None) -> NDArray[np.int64]:
    """In microseconds; null is before all others."""
    if bound is None:
        return np.full(rows.height, MIN_WATERMARK)
    return rows[bound.column].to_physical().fill_null(MIN_WATERMARK).to_numpy()
