"""Windows: how a keyed stream is cut into finite pieces of event time."""

from __future__ import annotations

from penstock.arguments import checked
from penstock.errors import PipelineError
from penstock.graph.logical import GlobalWindow, SessionWindow, SlidingWindow, TumblingWindow
from penstock.times import Duration, duration_us, format_duration


@checked
def tumbling(size: Duration, *, offset: Duration = "0s") -> TumblingWindow:
    """Windows of one size side by side: `tumbling("1h")` is 00:00-01:00, 01:00-02:00, ... UTC.

    Args:
        size: length of a window.
        offset: shifts every window; `tumbling("1d", offset="6h")` begins days at 06:00 UTC. Less than the size.

    Raises:
        PipelineError: a duration is none, or the offset is as large as the window.

    Example:
        >>> bids.key_by("auction").window(tumbling("1m")).agg(bids=count()).collect().height
        3
    """
    size_us = duration_us(size, "tumbling", positive=True)
    return TumblingWindow(size_us, _offset_us(offset, size_us, "tumbling"))


@checked
def sliding(size: Duration, every: Duration, *, offset: Duration = "0s") -> SlidingWindow:
    """Windows of `size` that begin every `every`; a row belongs to all that cover it.

    Raises:
        PipelineError: `every` is larger than `size`, so that rows would belong to no window, or the offset is as large
            as `every`.

    Example:
        >>> bids.key_by("auction").window(sliding("1m", every="30s")).agg(bids=count()).collect().height
        6
    """
    size_us = duration_us(size, "sliding", positive=True)
    slide_us = duration_us(every, "sliding: every", positive=True)
    if slide_us > size_us:
        raise PipelineError(
            f"sliding: windows of {format_duration(size_us)} every {format_duration(slide_us)} leave gaps; "
            "every must not exceed the size"
        )
    return SlidingWindow(size_us, slide_us, _offset_us(offset, slide_us, "sliding"))


@checked
def session(gap: Duration) -> SessionWindow:
    """Per key, one window per burst of rows: it ends `gap` behind its last row.

    Example:
        >>> bids.key_by("auction").window(session("30s")).agg(bids=count()).collect().height
        3
    """
    return SessionWindow(duration_us(gap, "session", positive=True))


@checked
def global_() -> GlobalWindow:
    """One window per key, without end: it gives its result at the end of the input, or when a trigger says so.

    It needs no event time. Its results have none, and no `window_start` and `window_end`. All its rows are kept until a
    trigger purges them: where only aggregates are wanted, `key_by(...).agg(...)` keeps less.

    Example:
        >>> bids.key_by("auction").window(global_()).agg(bids=count()).collect().rows()
        [(1, 2), (2, 2)]
    """
    return GlobalWindow()


def _offset_us(offset: Duration, between_us: int, verb: str) -> int:
    """The offset of windows that begin every `between_us` (Flink refuses a larger one as well)."""
    offset_us = duration_us(offset, f"{verb}: offset")
    if offset_us >= between_us:
        raise PipelineError(
            f"{verb}: offset={offset!r} is not less than {format_duration(between_us)}, after which the next window "
            f"begins; the same windows have offset={format_duration(offset_us % between_us)!r}"
        )
    return offset_us
