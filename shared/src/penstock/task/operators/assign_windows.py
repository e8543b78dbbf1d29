"""Rows with the bounds of their windows as columns, once for each window that they are in."""

from __future__ import annotations

from typing import cast

import numpy as np
import polars as pl

from penstock.core.batches import EVENT_TIME, hidden_of
from penstock.core.times import MIN_WATERMARK
from penstock.plan.logical import Node
from penstock.plan.operations.assign_windows import AssignWindows
from penstock.task.operator import Operator, Output
from penstock.task.operators.join_rows import LEFT
from penstock.task.operators.join_times import WindowMeeting


class AssignWindowsOperator(Operator):
    """No row is late here: whether a window is over is for those to say who keep it."""

    def __init__(self, node: Node) -> None:
        self._windows = WindowMeeting(cast("AssignWindows", node.operation).window)
        self._names = list(node.schema.names)

    def process(self, frame: pl.DataFrame, output: Output) -> None:
        times = frame[EVENT_TIME].to_numpy()
        placed = self._windows.placed(LEFT, times, np.full(len(times), MIN_WATERMARK))
        rows = frame[placed.rows].with_columns(self._windows.bounds(placed.moments))
        output.rows(rows.select(*self._names, *hidden_of(rows)))
