"""The arithmetic of tumbling and sliding windows: which windows a moment belongs to, which are late, which are due.

Windows are cut into panes, the largest pieces that every window is a whole number of (size for tumbling, the greatest
common divisor of size and slide for sliding windows): all rows of a pane belong to the same windows. Everything here is
plain integers, microseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING

import numpy as np

from penstock.graph.logical import SlidingWindow, TumblingWindow
from penstock.times import MAX_WATERMARK, MIN_WATERMARK

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class WindowShape:
    """Windows `[start, start + size)` for every `start = offset + n * slide`."""

    size: int
    slide: int
    offset: int

    @classmethod
    def of(cls, window: TumblingWindow | SlidingWindow) -> WindowShape:
        """The shape of a declared window."""
        slide = window.slide_us if isinstance(window, SlidingWindow) else window.size_us
        return cls(window.size_us, slide, window.offset_us)

    @property
    def pane(self) -> int:
        """The length of a pane."""
        return gcd(self.size, self.slide)

    @property
    def has_gaps(self) -> bool:
        """Whether there are moments that no window covers."""
        return self.slide > self.size

    def start_at_or_before(self, moment: int) -> int:
        """The last window start that is not after `moment`."""
        return moment - (moment - self.offset) % self.slide

    def first_open(self, watermark: int, lateness: int = 0) -> int:
        """The start of the first window whose last moment plus `lateness` lies behind the watermark.

        Rows before it are late (Flink: isWindowLate of every window they belong to), windows before it are done.
        """
        earliest = watermark - lateness - self.size + 1  # a start must be greater than this
        start = self.start_at_or_before(earliest) + self.slide
        return min(max(start, MIN_WATERMARK), MAX_WATERMARK)

    def first_open_of_rows(self, watermarks: NDArray[np.int64], lateness: int) -> NDArray[np.int64]:
        """`first_open` of the watermark of every row, none of them the beginning or the end of time."""
        earliest = watermarks - (lateness + self.size - 1)
        return earliest - (earliest - self.offset) % self.slide + self.slide

    def oldest_of_rows(self, event_times: NDArray[np.int64]) -> NDArray[np.int64]:
        """The start of the first window that every row belongs to."""
        before = event_times - self.size
        return before - (before - self.offset) % self.slide + self.slide

    def panes_of_rows(self, event_times: NDArray[np.int64]) -> NDArray[np.int64]:
        """The start of the pane of every row."""
        return event_times - (event_times - self.offset) % self.pane

    def pane_of(self, moment: int) -> int:
        """The start of the pane of a moment."""
        return moment - (moment - self.offset) % self.pane

    def covers(self, event_times: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which rows some window covers."""
        return (event_times - self.offset) % self.slide < self.size

    def windows_of(self, pane: int, first: int, last: int) -> range:
        """The starts in `[first, last]` of the windows that contain a pane, rising."""
        newest = self.start_at_or_before(pane)
        oldest = self.start_at_or_before(pane + self.pane - self.size - 1) + self.slide
        low = max(oldest, self.start_at_or_before(first - 1) + self.slide)
        high = min(newest, last)
        return range(low, high + 1, self.slide)

    def windows_over(self, panes: Iterable[int], first: int, last: int) -> list[int]:
        """The starts in `[first, last]` of the windows that contain any of these panes, rising."""
        return sorted({start for pane in panes for start in self.windows_of(pane, first, last)})

    def panes_in(self, start: int) -> range:
        """The panes of the window that begins at `start`."""
        return range(start, start + self.size, self.pane)
