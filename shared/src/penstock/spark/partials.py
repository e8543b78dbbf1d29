"""The two ends of a window aggregate that Spark merges: rows become partials before it, partials results behind it.

Both are the streaming aggregate's own expressions. Partials are made of as many rows at a time as a task has at hand,
so where keys come again there is much less to hand to Spark than there are rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from penstock.core.batches import EVENT_TIME
from penstock.plan.logical import LogicalPlan
from penstock.spark.late_rows import LateRowsKept
from penstock.spark.native import NativeWindow
from penstock.spark.wire import OUTPUT, StageEdge, column_name, encode_columns
from penstock.task.operator import Operator, OperatorContext, Output, RestoredState
from penstock.task.operators.partials import Partials
from penstock.task.operators.window_aggregate import window_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

BATCH_ROWS: Final = 131_072
"""Rows that are gathered before they are grouped."""
BATCH_BYTES: Final = 32 << 20
"""The same for wide rows."""
START: Final = "__start"
"""Int64: start of the pane or window of a partial."""


class PartialOutput:
    """An edge out of a task to a window that Spark merges: a `Receiver` at the end of a chain."""

    def __init__(
        self,
        number: int,
        edge: StageEdge,
        native: NativeWindow,
        plan: LogicalPlan,
        late: LateRowsKept | None = None,
    ) -> None:
        self.edge = edge
        self._late = late
        self.rows_taken = 0
        self.consumer = native.operator
        self._number = number
        self._native = native
        self._partials = Partials(plan.node(native.node))
        self._frames: list[pl.DataFrame] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0

    def rows(self, frame: pl.DataFrame) -> None:
        """Take rows."""
        if self._late is not None:
            self._late.look_at(frame)
        chosen = frame.select([*self._partials.columns, EVENT_TIME])
        self._frames.append(chosen)
        self.rows_taken += chosen.height
        self._waiting_rows += chosen.height
        self._waiting_bytes += int(chosen.estimated_size())

    def watermark(self, watermark: int) -> None:
        """Nothing: all windows are due at the end of the input."""

    def is_due(self, *, everything: bool) -> bool:
        """Whether the rows gathered are worth a batch."""
        if everything:
            return bool(self._frames)
        return self._waiting_rows >= BATCH_ROWS or self._waiting_bytes >= BATCH_BYTES

    def take(self) -> tuple[int, dict[str, Any]]:
        """The partials of the rows gathered, as columns of the wire."""
        rows = pl.concat(self._frames)
        self._frames, self._waiting_rows, self._waiting_bytes = [], 0, 0
        starts = self._native.shape.pane_of(rows[EVENT_TIME].to_numpy())
        by = [*self._partials.keys.names, START]
        grouped = self._partials.group([rows.with_columns(pl.Series(START, starts))], by)
        travelling = grouped.select([*by, *self._partials.names])
        travelling.columns = list(self._native.schema.names)
        columns: dict[str, Any] = {OUTPUT: np.full(grouped.height, self._number, np.int32)}
        for index, column in enumerate(encode_columns(travelling, self._native.schema)):
            columns[column_name(self._number, index)] = column
        return grouped.height, columns


class MergedWindows(Operator):
    """Stands in a chain for the window aggregate: merged partials in, one per key and window; results out."""

    def __init__(self, native: NativeWindow, plan: LogicalPlan) -> None:
        node = plan.node(native.node)
        self._partials = Partials(node)
        self._leading: Sequence[pl.Expr | str] = [
            *self._partials.keys.names,
            *window_columns(pl.col(START), pl.col(START) + native.shape.size, pl.col(START) + native.shape.size - 1),
        ]
        self._names = [*node.schema.names, EVENT_TIME]
        self._context: OperatorContext

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        self._context = context

    def process(self, frame: pl.DataFrame, output: Output) -> None:
        self._context.metrics.rows_in -= frame.height  # those who made the partials know how many rows came
        output.rows(self._partials.results(frame, self._leading, self._names))
