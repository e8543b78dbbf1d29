"""The windows that a plan can have, and the conditions of time under which rows are joined."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.core.times import format_duration
from penstock.types import BOOLEAN, TIMESTAMP, Field

if TYPE_CHECKING:
    from penstock.expressions import Expr


@dataclass(frozen=True, slots=True)
class TumblingWindow:
    """`[n * size + offset, (n + 1) * size + offset)` in microseconds, on the clock of the time zone or else in UTC."""

    size_us: int
    offset_us: int = 0
    timezone: str | None = None


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """Windows of `size_us` that start every `slide_us`; a row belongs to each that covers it."""

    size_us: int
    slide_us: int
    offset_us: int = 0
    timezone: str | None = None


@dataclass(frozen=True, slots=True)
class CumulativeWindow:
    """Windows that start every `size_us` and end after one, two, ... steps, up to `size_us` (Flink: CUMULATE)."""

    size_us: int
    step_us: int
    offset_us: int = 0
    timezone: str | None = None


@dataclass(frozen=True, slots=True)
class SessionWindow:
    """Per key, rows that are at most a gap apart share a window `[first, last + gap)` (Flink merges windows that touch).

    The gap is `gap_us`, or that of each row: a duration, or whole microseconds.
    """

    gap_us: int
    gap: Expr | None = None


@dataclass(frozen=True, slots=True)
class GlobalWindow:
    """One window per key, without end."""


FixedWindow = TumblingWindow | SlidingWindow | CumulativeWindow
"""Windows whose bounds are known beforehand."""

Window = FixedWindow | SessionWindow
RowWindow = Window | GlobalWindow
"""Windows whose rows are kept."""


@dataclass(frozen=True, slots=True)
class Within:
    """Rows meet whose event times are so close: that of the right one is `[left + lower_us, left + upper_us]`."""

    lower_us: int
    upper_us: int


@dataclass(frozen=True, slots=True)
class AsOf:
    """A left row meets the newest right row that is not newer, at most `tolerance_us` older."""

    tolerance_us: int | None = None


JoinTime = Within | FixedWindow | AsOf
"""Which rows of a key meet, beside the key; rows of windows meet in each window that they share."""

RETRACTED: Final = "retracted"
"""Boolean column of changes, and of sessions with lateness: true in a row that retracts one that was sent before."""

RANK: Final = "rank"
"""Int64 column of `top`: the place of a row among those of its key, from 1."""

_DAY_US: Final = 86_400_000_000


def window_bounds(*, retracts: bool) -> tuple[Field, ...]:
    """The columns in which a result names its window, and with `retracts` whether it retracts an earlier result."""
    bounds = (Field("window_start", TIMESTAMP), Field("window_end", TIMESTAMP))
    return (*bounds, Field(RETRACTED, BOOLEAN)) if retracts else bounds


def reach_us(window: RowWindow | JoinTime) -> int:
    """How far the bounds of a window may be from a row in it; a shift of the time zone's clock is at most a day."""
    match window:
        case GlobalWindow() | AsOf():
            return 0
        case Within():
            return max(abs(window.lower_us), abs(window.upper_us))
        case SessionWindow(gap_us=gap_us):
            return gap_us
        case _:
            return window.size_us + (_DAY_US if window.timezone is not None else 0)


def describe_window(window: RowWindow) -> str:
    """The window as the user wrote it."""
    match window:
        case TumblingWindow():
            return f"tumbling({format_duration(window.size_us)!r}{_placed(window)})"
        case SlidingWindow():
            every = format_duration(window.slide_us)
            return f"sliding({format_duration(window.size_us)!r}, every={every!r}{_placed(window)})"
        case CumulativeWindow():
            every = format_duration(window.step_us)
            return f"cumulative({format_duration(window.size_us)!r}, every={every!r}{_placed(window)})"
        case SessionWindow(gap=None):
            return f"session({format_duration(window.gap_us)!r})"
        case SessionWindow():
            return f"session({window.gap})"
        case GlobalWindow():
            return "global_()"


def _placed(window: FixedWindow) -> str:
    offset = f", offset={format_duration(window.offset_us)!r}" if window.offset_us else ""
    return f"{offset}, timezone={window.timezone!r}" if window.timezone else offset


def describe_join_time(time: JoinTime) -> dict[str, str]:
    """Which rows of a key meet, as the user wrote it."""
    match time:
        case Within(lower_us=lower, upper_us=upper):
            return {
                "within": " to ".join(("-" if each < 0 else "") + format_duration(abs(each)) for each in (lower, upper))
            }
        case AsOf(tolerance_us=tolerance):
            older = "" if tolerance is None else f", at most {format_duration(tolerance)} older"
            return {"as_of": f"the newest{older}"}
        case window:
            return {"window": describe_window(window)}
