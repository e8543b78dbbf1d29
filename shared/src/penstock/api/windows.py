"""Windows: how a keyed stream is cut into finite pieces of event time."""

from __future__ import annotations

from datetime import timedelta

from penstock.connectors.declaring import zone
from penstock.core.arguments import checked
from penstock.core.times import Duration, duration_us, format_duration
from penstock.errors import PipelineError
from penstock.expressions import Expr
from penstock.functions.windows.definitions import (
    CumulativeWindow,
    GlobalWindow,
    SessionWindow,
    SlidingWindow,
    TumblingWindow,
)


@checked
def tumbling(size: Duration, *, offset: Duration = "0s", timezone: str | None = None) -> TumblingWindow:
    """Windows of one size side by side: `tumbling("1h")` is 00:00-01:00, 01:00-02:00, ... UTC.

    Args:
        size: length of a window.
        offset: shifts every window; `tumbling("1d", offset="6h")` begins days at 06:00. Less than the size; `"-6h"`
            shifts to earlier times.
        timezone: the clock by which windows begin and end, such as `"Europe/Berlin"`; UTC if there is none. A day is
            then from midnight to midnight there, 23 or 25 hours long where clocks change. Of an hour that the clock
            shows twice, the second time belongs to the last window of the first.

    Raises:
        PipelineError: a duration is none, the offset is as large as the window, or there is no such time zone.

    Example:
        >>> bids.key_by("auction").window(tumbling("1m")).agg(bids=count()).collect().height
        3
        >>> days = bids.key_by("auction").window(tumbling("1d", timezone="Asia/Tokyo")).agg(bids=count()).collect()
        >>> [start.isoformat() for start in days["window_start"].unique()]
        ['2025-12-31T15:00:00+00:00']
    """
    size_us = duration_us(size, "tumbling", positive=True)
    zone(timezone, "tumbling")
    return TumblingWindow(size_us, _offset_us(offset, size_us, "tumbling"), timezone)


@checked
def sliding(size: Duration, every: Duration, *, offset: Duration = "0s", timezone: str | None = None) -> SlidingWindow:
    """Windows of `size` that begin every `every`; a row belongs to all that cover it.

    Args:
        size: length of a window.
        every: from the beginning of one to that of the next.
        offset: shifts every window; less than `every`.
        timezone: the clock by which windows begin and end, as for `tumbling`.

    Raises:
        PipelineError: `every` is larger than `size`, so that rows would belong to no window, the offset is as large as
            `every`, or there is no such time zone.

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
    zone(timezone, "sliding")
    return SlidingWindow(size_us, slide_us, _offset_us(offset, slide_us, "sliding"), timezone)


@checked
def cumulative(
    size: Duration, every: Duration, *, offset: Duration = "0s", timezone: str | None = None
) -> CumulativeWindow:
    """Windows that grow: `cumulative("1d", every="1h")` tells after each hour what the day has brought so far.

    Those of one day begin together and end after one, two, ... steps; a row belongs to all that end behind it. Each is
    sent when it is over (Flink's CUMULATE).

    Args:
        size: length of the longest window, after which the next ones begin.
        every: how much longer each is than the one before; the size is a whole number of these.
        offset: shifts every window; less than the size.
        timezone: the clock by which windows begin and end, as for `tumbling`.

    Raises:
        PipelineError: the size is no whole number of steps, the offset is as large as the size, or there is no such
            time zone.

    Example:
        >>> so_far = bids.key_by("auction").window(cumulative("1h", every="30m")).agg(bids=count())
        >>> sorted(so_far.select("auction", "window_end", "bids").collect()["bids"].to_list())
        [2, 2, 2, 2]
    """
    size_us = duration_us(size, "cumulative", positive=True)
    step_us = duration_us(every, "cumulative: every", positive=True)
    if size_us % step_us:
        raise PipelineError(
            f"cumulative: {format_duration(size_us)} is no whole number of steps of {format_duration(step_us)}; "
            "choose every= so that the last window ends where the next ones begin"
        )
    zone(timezone, "cumulative")
    return CumulativeWindow(size_us, step_us, _offset_us(offset, size_us, "cumulative"), timezone)


@checked
def session(gap: Duration | Expr) -> SessionWindow:
    """Per key, one window per burst of rows: it ends `gap` behind its last row. A row exactly `gap` later belongs to it.

    Args:
        gap: how long a session waits for a further row; or an expression that says it of each row, as a duration or in
            whole microseconds. A session then ends when the last of its rows has waited long enough.

    Example:
        >>> bids.key_by("auction").window(session("30s")).agg(bids=count()).collect().height
        3
        >>> patient = when(col("auction") == 1).then(timedelta(minutes=5)).otherwise(timedelta(seconds=10))
        >>> bids.key_by("auction").window(session(patient)).agg(bids=count()).collect().height
        3
    """
    if isinstance(gap, Expr):
        return SessionWindow(0, gap)
    return SessionWindow(duration_us(gap, "session", positive=True))


@checked
def global_() -> GlobalWindow:
    """One window per key, without end: it gives its result at the end of the input, or when a trigger says so.

    It needs no event time. Its results have none, and no `window_start` and `window_end`. For `apply` all its rows are
    kept until a trigger purges them; for `agg` a partial is.

    Example:
        >>> bids.key_by("auction").window(global_()).agg(bids=count()).collect().rows()
        [(1, 2), (2, 2)]
    """
    return GlobalWindow()


def _offset_us(offset: Duration, between_us: int, verb: str) -> int:
    """The offset of windows that begin every `between_us` (Flink refuses a larger one as well), not negative."""
    back, offset = _sign(offset)
    offset_us = duration_us(offset, f"{verb}: offset")
    if offset_us >= between_us:
        shown = f"-{offset}" if back else offset
        raise PipelineError(
            f"{verb}: offset={shown!r} is not less than {format_duration(between_us)}, after which the next window "
            f"begins; the same windows have offset={format_duration(offset_us % between_us)!r}"
        )
    return -offset_us % between_us if back else offset_us


def _sign(offset: Duration) -> tuple[bool, Duration]:
    """Whether an offset is negative, and how large it is."""
    if isinstance(offset, timedelta):
        return offset < timedelta(0), abs(offset)
    return offset.strip().startswith("-"), offset.strip().removeprefix("-")
