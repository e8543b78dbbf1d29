"""The arithmetic of tumbling, sliding and cumulative windows: which windows a moment belongs to, which are late or due.

Windows are cut into panes, the largest pieces that every window is a whole number of (all rows of a pane belong to the
same windows), and a window is known by its end: no two end together. Everything here is whole microseconds on the clock
that the windows go by, which `penstock.functions.windows.clock` puts in front: UTC, or the clock on the wall of a time
zone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING, TypeVar

from penstock.functions.windows.definitions import CumulativeWindow, FixedWindow, SlidingWindow, TumblingWindow

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Moments = TypeVar("Moments", int, "NDArray[np.int64]")
"""One moment, or those of many rows."""


@dataclass(frozen=True)
class WindowShape:
    """Windows that end every `slide` and are `size` long, or cumulative ones, which begin every `size`."""

    size: int
    slide: int
    offset: int
    cumulative: bool = False

    @classmethod
    def of(cls, window: FixedWindow) -> WindowShape:
        """The shape of a declared window."""
        match window:
            case TumblingWindow():
                return cls(window.size_us, window.size_us, window.offset_us)
            case SlidingWindow():
                return cls(window.size_us, window.slide_us, window.offset_us)
            case CumulativeWindow():
                return cls(window.size_us, window.step_us, window.offset_us, cumulative=True)

    @property
    def pane(self) -> int:
        """The length of a pane."""
        return gcd(self.size, self.slide)

    def pane_of(self, moments: Moments) -> Moments:
        """The start of the pane of a moment."""
        return moments - (moments - self.offset) % self.pane

    def end_after(self, moments: Moments) -> Moments:
        """The first end of a window behind a moment: that of the first window which the moment belongs to."""
        return moments - (moments - self.offset - self.size) % self.slide + self.slide

    def start_of(self, ends: Moments) -> Moments:
        """The start of the window with this end."""
        if self.cumulative:
            return ends - 1 - (ends - 1 - self.offset) % self.size
        return ends - self.size

    def first_open(self, mark: Moments) -> Moments:
        """The end of the first window whose last moment lies behind the watermark.

        Windows with an earlier end are over. Rows before its start are late: all their windows are (Flink: isWindowLate).
        """
        return self.end_after(mark + 1)

    def ends_of(self, pane: int) -> range:
        """The ends of the windows that contain a pane, rising."""
        every = self.size if self.cumulative else self.slide
        return range(self.end_after(pane), pane - (pane - self.offset) % every + self.size + 1, self.slide)

    def ends_over(self, panes: Iterable[int], first: int, last: int) -> list[int]:
        """The ends in `[first, last]` of the windows that contain any of these panes, rising."""
        found: set[int] = set()
        for pane in panes:
            ends = self.ends_of(pane)
            low, high = max(ends.start, self.end_after(first - 1)), min(ends.stop, last + 1)
            found.update(range(low, high, self.slide))
        return sorted(found)

    def panes_in(self, end: int) -> range:
        """The panes of the window with this end."""
        return range(self.start_of(end), end, self.pane)
