"""Window functions: code of the user over all rows of a key and window, when it fires.

What users subclass (`WindowFunction`) and what they are given (`TimeWindow`). `penstock.functions.windows.process` calls
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.functions.process_functions import Context, OpenContext

In = TypeVar("In")
Out = TypeVar("Out")

_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """A window `[start, end)` in UTC. A global window reaches from the first moment of a datetime to the last.

    Example:
        >>> def spread(key: int, window: TimeWindow, rows: list[Bid]) -> Iterator[Total]:
        ...     yield Total(key, (window.end - window.start).total_seconds())
        >>> bids.key_by("auction").window(tumbling("1m")).apply(spread).collect().rows()
        [(1, 60.0), (2, 60.0), (2, 60.0)]
    """

    start: datetime
    end: datetime

    @property
    def max_timestamp(self) -> datetime:
        """The last moment of the window, the event time of its results."""
        return self.end - _MICROSECOND


class SessionTimeWindow(TimeWindow):
    """A session: a row exactly at its end belongs to it, so that is its last moment."""

    __slots__ = ()

    @property
    def max_timestamp(self) -> datetime:
        return self.end


class WindowFunction(Generic[In, Out]):
    """A function over all rows of a key and window. `apply` of a windowed stream takes an object of it.

    Every subtask works on its own deep copy; connections and the like are made in `open`.

    Example:
        >>> class Dearest(WindowFunction[Bid, Total]):
        ...     def apply(self, key, window, rows, ctx):
        ...         ctx.emit(Total(key, max(row.price for row in rows)))
        >>> bids.key_by("auction").window(tumbling("1m")).apply(Dearest()).collect().rows()
        [(1, 120.0), (2, 250.0), (2, 80.0)]
    """

    def open(self, context: OpenContext) -> None:
        """Called once per subtask before the first row."""

    def apply(self, key: Any, window: TimeWindow, rows: Sequence[In], ctx: Context[Out]) -> None:
        """Called when a window fires.

        Args:
            key: a value, or a tuple if the stream is keyed by several columns.
            window: which one.
            rows: what it holds, in order of arrival. They are the kept rows themselves: do not change them.
            ctx: sends rows on; their event time is the window's last moment.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Called once per subtask at its end, also after a failure."""
