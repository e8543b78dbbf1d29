"""Which windows a moment belongs to: Flink's WindowAssigner, for windows whose rows come one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from penstock.core.times import to_micros
from penstock.functions.windows.definitions import GlobalWindow, RowWindow, SessionWindow
from penstock.functions.windows.shape import WindowShape

if TYPE_CHECKING:
    from penstock.functions.windows.clock import WindowClock

Bounds = tuple[int, int]
"""Start and end of a window in microseconds since the epoch."""
GLOBAL: Final[Bounds] = (
    to_micros(datetime.min.replace(tzinfo=UTC)),
    to_micros(datetime.max.replace(tzinfo=UTC)),
)
_KNOWN: Final = 4_096


def assigner(window: RowWindow) -> Callable[[int], Iterable[Bounds]]:
    """The windows that a moment belongs to, in order of their ends."""
    match window:
        case GlobalWindow():
            return lambda _: (GLOBAL,)
        case SessionWindow(gap_us=gap):
            return lambda time: ((time, time + gap),)
        case _:
            from penstock.functions.windows.clock import clock_of  # loads numpy

            return _Assigned(WindowShape.of(window), clock_of(window.timezone))


class _Assigned:
    """Windows by a clock. Rows of a pane belong to the same ones, which are remembered."""

    def __init__(self, shape: WindowShape, clock: WindowClock) -> None:
        self._shape = shape
        self._clock = clock
        self._known: dict[int, tuple[Bounds, ...]] = {}

    def __call__(self, time: int) -> tuple[Bounds, ...]:
        pane = self._shape.pane_of(self._clock.shown_at(time))
        found = self._known.get(pane)
        if found is None:
            if len(self._known) >= _KNOWN:
                self._known.clear()
            found = self._known[pane] = tuple(dict.fromkeys(self._bounds(end) for end in self._shape.ends_of(pane)))
        return found

    def _bounds(self, end: int) -> Bounds:
        return self._clock.moment(self._shape.start_of(end)), self._clock.moment(end)
