"""Rows combined before an exchange: one partial aggregate per key (and pane of windows) instead of the rows themselves.

What Flink calls local aggregation, and MapReduce a combiner. A key that half of all rows have then costs its subtask no
more than any other, and an exchange carries what a key came to, not what it is made of. The operator behind the exchange
merges what it gets, and judges what is late: all rows of a pane belong to the same windows, and a row that is behind its
watermark stays by itself, with its place and its watermark, behind the others (which are not late wherever they stand).

Only aggregates for which the order of rows does not matter are combined (`penstock.graph.jobgraph` decides).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import polars as pl
import pyarrow as pa

from penstock.core.batches import EVENT_TIME, PANE, ROWS, WATERMARK
from penstock.functions.windows.clock import clock_of
from penstock.functions.windows.definitions import SessionWindow
from penstock.functions.windows.shape import WindowShape
from penstock.plan.logical import Node
from penstock.plan.operations.window_aggregate import WindowAggregate
from penstock.task.operators.partials import Partials
from penstock.types import arrow_type

COMBINED_ROWS: Final = 131_072
"""Rows that are combined at once, if so many come before the next flush."""
_FEWEST_ROWS: Final = 64
_LEAST_GAIN: Final = 4
"""Measured: combining costs more than it saves where half of the rows are left, and saves a sixth where a tenth is."""
_REST_ROWS: Final = 4 * 1024 * 1024
"""After how many rows it is tried again."""
_ALONE: Final = "__alone"


class Combiner:
    """Combines rows for one aggregate."""

    def __init__(self, node: Node) -> None:
        self._partials = Partials(node)
        self._by = list(self._partials.keys.names)
        self._event_time = node.inputs[0].event_time
        self._resting_rows = 0
        self._shape: WindowShape | None = None
        operation = node.operation
        if isinstance(operation, WindowAggregate):
            assert not isinstance(operation.window, SessionWindow)
            self._shape = WindowShape.of(operation.window)
            self._clock = clock_of(operation.window.timezone)

    @property
    def arrow_schema(self) -> pa.Schema:
        """The columns of combined rows."""
        hidden = [PANE] if self._shape is not None else []
        hidden += [ROWS, EVENT_TIME] if self._event_time else [ROWS]
        fields = [*self._partials.keys, *self._partials.plan.partial_fields]
        known = [pa.field(field.name, arrow_type(field.type)) for field in fields]
        return pa.schema([*known, *(pa.field(name, pa.int64()) for name in hidden)])

    def bypasses(self, rows: int) -> bool:
        """Whether the next rows bypass the combiner, as hardly any key occurred twice in those not long before them."""
        resting = self._resting_rows > 0
        self._resting_rows -= min(rows, self._resting_rows)
        return resting

    def combine(self, rows: pl.DataFrame) -> pl.DataFrame | None:
        """The partials of rows in order of arrival, as `arrow_schema` says; None if that brings little."""
        if rows.height < _FEWEST_ROWS:
            return None
        combined = self.combined(rows)
        if combined.height * _LEAST_GAIN <= rows.height:
            return combined
        self._resting_rows = _REST_ROWS
        return None

    def combined(self, rows: pl.DataFrame) -> pl.DataFrame:
        """As `combine`, whatever it brings."""
        if self._shape is None:
            beside = [pl.len().cast(pl.Int64).alias(ROWS)]
            if self._event_time:
                beside.append(pl.col(EVENT_TIME).last())
            return self._partials.group([rows], self._by, ordered=True, beside=beside)
        shown = self._clock.shown(rows[EVENT_TIME].to_numpy())
        rows = rows.with_columns(pl.Series(PANE, self._shape.pane_of(shown)))
        if WATERMARK not in rows.columns:
            return self._grouped(rows, [*self._by, PANE])
        behind = (rows[EVENT_TIME] <= rows[WATERMARK]).fill_null(False)
        if not behind.any():
            return self._grouped(rows.drop(WATERMARK), [*self._by, PANE])
        alone = self._alone(rows.filter(behind))
        together = self._grouped(rows.filter(~behind), [*self._by, PANE])
        return pl.concat([together, alone.select(*together.columns, WATERMARK)], how="diagonal")

    def _alone(self, rows: pl.DataFrame) -> pl.DataFrame:
        numbered = rows.with_columns(pl.Series(_ALONE, np.arange(rows.height)))
        return self._grouped(numbered, [*self._by, PANE, WATERMARK, _ALONE]).sort(_ALONE)

    def _grouped(self, rows: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
        beside = [pl.len().cast(pl.Int64).alias(ROWS), pl.col(EVENT_TIME).max()]
        return self._partials.group([rows], by, beside=beside)
