"""Which rows come too late, told from the rows and the watermarks at which they came alone.

The streaming operators judge by it, and so does Spark, which judges rows before it sorts them. Of sessions it tells
whether the window was over that a row opens by itself; a session that is open may take the row all the same, which only
the operator knows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from penstock.core.batches import EVENT_TIME
from penstock.functions.windows.clock import clock_of
from penstock.functions.windows.definitions import FixedWindow, SessionWindow
from penstock.functions.windows.shape import WindowShape
from penstock.plan.logical import Node
from penstock.plan.traits import LateBehindWatermark, LateForItsWindow, LateForWindows
from penstock.task.operators.sessions import END, SessionGap

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

Lateness = Callable[["pl.DataFrame", "NDArray[np.int64]"], "NDArray[np.bool_]"]
"""Of rows with event time and the watermark at each: which ones are late."""


def lateness_of(node: Node) -> Lateness | None:
    """When rows are late for an operator; None where no row is."""
    match node.traits.late:
        case None:
            return None
        case LateBehindWatermark():
            return lambda frame, marks: frame[EVENT_TIME].to_numpy() <= marks
        case LateForItsWindow():
            return of_windows_that_are_over
        case LateForWindows(window=window, allowed_us=allowed_us):
            if isinstance(window, SessionWindow):
                gap = SessionGap(node, window)
                return lambda frame, marks: gap.with_ends(frame)[END].to_numpy() + allowed_us <= marks
            judge = FixedLateness(window, allowed_us)
            return lambda frame, marks: judge.find_late(frame[EVENT_TIME].to_numpy(), marks)[0]


def of_windows_that_are_over(frame: pl.DataFrame, marks: NDArray[np.int64] | int) -> NDArray[np.bool_]:
    """Of rows that say in `window_end` which window they are of."""
    return frame["window_end"].to_physical().to_numpy() - 1 <= marks


class FixedLateness:
    """Lateness for windows whose bounds are known beforehand."""

    def __init__(self, window: FixedWindow, lateness_us: int) -> None:
        self.shape = WindowShape.of(window)
        self.clock = clock_of(window.timezone)
        self._lateness = lateness_us

    def find_late(
        self, times: NDArray[np.int64], marks: NDArray[np.int64]
    ) -> tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64]]:
        """Of every row: whether all its windows are over when its turn comes, its time on the clock of the windows, and
        the end of the first window that is still here then, of those from the row on."""
        behind, shown = times <= marks, self.clock.shown(times)
        first_open = self.shape.first_open(self.clock.marks(np.where(behind, marks, times) - self._lateness))
        return behind & (shown < self.shape.start_of(first_open)), shown, first_open
