"""Triggers: when a window gives a result, as Flink has them.

A trigger is asked per row and per timer of a window and answers with a `TriggerResult`. What it remembers of a window and
the timers it sets belong to that window and end with it. `WindowedStream.trigger(...)` takes one.
"""

from __future__ import annotations

import enum
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from penstock.core.arguments import checked
from penstock.core.times import Duration, duration_us, format_duration, from_micros, to_micros
from penstock.errors import PipelineError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.functions.windows.window_functions import TimeWindow

Scalar = bool | int | float | str | None
"""What a trigger may remember."""

FIRE_AT: Final = "fire_at_us"
"""What triggers of an interval remember: when they fire next."""
FIRED: Final = "fired"
"""And that they have fired, and no row has come since."""


class TriggerResult(enum.Flag):
    """What becomes of a window: nothing, a result, its rows are forgotten, or a result and then they are forgotten.

    Example:
        >>> TriggerResult.FIRE_AND_PURGE == TriggerResult.FIRE | TriggerResult.PURGE
        True
    """

    CONTINUE = 0
    FIRE = 1
    PURGE = 2
    FIRE_AND_PURGE = 3


class TriggerContext(Protocol):
    """What a trigger may know and do for the window it is asked about.

    Example:
        >>> class Dear(Trigger):
        ...     def on_row(self, row: Bid, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        ...         ctx.event_timer(window.max_timestamp)
        ...         return TriggerResult.FIRE if row.price > 100 else TriggerResult.CONTINUE
        ...     def on_event_time(self, at: datetime, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        ...         return TriggerResult.FIRE if at == window.max_timestamp else TriggerResult.CONTINUE
        >>> bids.key_by("auction").window(tumbling("1m")).trigger(Dear()).agg(bids=count()).collect().height
        5
    """

    @property
    def timestamp(self) -> datetime | None:
        """Event time of the row; of a timer, its time. None if the stream has no event time."""
        ...

    @property
    def watermark(self) -> datetime | None:
        """As `Context.watermark`."""
        ...

    @property
    def processing_time(self) -> datetime:
        """The wall clock."""
        ...

    def event_timer(self, at: datetime) -> None:
        """Call `on_event_time` for this window when the watermark reaches `at`."""
        ...

    def processing_timer(self, at: datetime) -> None:
        """Call `on_processing_time` for this window when the wall clock reaches `at`."""
        ...

    def delete_event_timer(self, at: datetime) -> None:
        """Take back `event_timer(at)`."""
        ...

    def delete_processing_timer(self, at: datetime) -> None:
        """Take back `processing_timer(at)`."""
        ...

    def get(self, name: str, default: Any = None) -> Any:
        """What `set` stored for this window under `name`."""
        ...

    def set(self, name: str, value: Scalar) -> None:
        """Remember a value for this window."""
        ...

    def remove(self, name: str) -> None:
        """Forget a value of this window."""
        ...

    def merge(self, name: str, function: Callable[[Any, Any], Scalar]) -> Any:
        """In `on_merge`: fold what the merged windows hold under `name` into one value of the new window; gives it."""
        ...


class Trigger:
    """When windows fire. Override what you need; what is not overridden continues, `on_merge` and `clear` do nothing.

    One object serves all windows of a subtask: what it knows of a window it keeps with `ctx.set`.

    Example:
        >>> class Twice(Trigger):
        ...     def on_row(self, row: Bid, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        ...         ctx.set("rows", ctx.get("rows", 0) + 1)
        ...         return TriggerResult.FIRE if ctx.get("rows") == 2 else TriggerResult.CONTINUE
        ...     def on_merge(self, window: TimeWindow, ctx: TriggerContext) -> None:
        ...         ctx.merge("rows", lambda one, other: one + other)
        >>> bids.key_by("auction").window(global_()).trigger(Twice()).agg(bids=count()).collect().rows()
        [(1, 2), (2, 2)]
    """

    timers: Literal["event", "processing"] | None = None
    """Which time it needs: `"event"` is refused on a stream without event time, `"processing"` on Spark."""

    def ever_fires(self) -> bool:
        """Whether any of the methods that may fire is overridden."""
        asked = ("on_row", "on_event_time", "on_processing_time")
        return any(getattr(type(self), name) is not getattr(Trigger, name) for name in asked)

    def on_row(self, row: Any, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        """A row came into the window, which holds it already."""
        return TriggerResult.CONTINUE

    def on_event_time(self, at: datetime, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        """The watermark reached a timer of the window, or the time at which the window is forgotten."""
        return TriggerResult.CONTINUE

    def on_processing_time(self, at: datetime, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        """The wall clock reached a timer of the window."""
        return TriggerResult.CONTINUE

    def on_merge(self, window: TimeWindow, ctx: TriggerContext) -> None:
        """Sessions became one, `window`: bring what was remembered of them together, set its timers."""

    def clear(self, window: TimeWindow, ctx: TriggerContext) -> None:
        """The window ends, or was merged into another: take its timers back. What was remembered goes by itself."""

    def describe(self) -> str:
        """The trigger as the user wrote it, for plans."""
        return f"{type(self).__qualname__}()"


class AtWatermark(Trigger):
    """`at_watermark()`: Flink's EventTimeTrigger, of global windows its end-of-stream trigger."""

    def on_row(self, row: Any, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        if ctx.watermark is not None and window.max_timestamp <= ctx.watermark:
            return TriggerResult.FIRE
        ctx.event_timer(window.max_timestamp)
        return TriggerResult.CONTINUE

    def on_event_time(self, at: datetime, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE if at == window.max_timestamp else TriggerResult.CONTINUE

    def on_merge(self, window: TimeWindow, ctx: TriggerContext) -> None:
        if ctx.watermark is None or window.max_timestamp > ctx.watermark:
            ctx.event_timer(window.max_timestamp)

    def clear(self, window: TimeWindow, ctx: TriggerContext) -> None:
        ctx.delete_event_timer(window.max_timestamp)

    def describe(self) -> str:
        return "at_watermark()"


class EveryRows(Trigger):
    """`every_rows(n)`: Flink's CountTrigger."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def on_row(self, row: Any, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        rows = ctx.get("rows", 0) + 1
        if rows < self.rows:
            ctx.set("rows", rows)
            return TriggerResult.CONTINUE
        ctx.remove("rows")
        return TriggerResult.FIRE

    def on_merge(self, window: TimeWindow, ctx: TriggerContext) -> None:
        ctx.merge("rows", lambda one, other: one + other)

    def describe(self) -> str:
        return f"every_rows({self.rows})"


class _EveryInterval(AtWatermark):
    """At every whole interval since 1970 while a window is open, and at its end."""

    def __init__(self, every_us: int) -> None:
        self.every_us = every_us

    def on_row(self, row: Any, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        if super().on_row(row, window, ctx) == TriggerResult.FIRE:
            return TriggerResult.FIRE
        now = self._now(ctx)
        if ctx.get(FIRE_AT) is None and now is not None:
            self._set_next(to_micros(now) // self.every_us * self.every_us, ctx)
        return TriggerResult.CONTINUE

    def on_merge(self, window: TimeWindow, ctx: TriggerContext) -> None:
        super().on_merge(window, ctx)
        fire_at = ctx.merge(FIRE_AT, min)
        if fire_at is not None:
            self._set_timer(from_micros(fire_at), ctx)

    def clear(self, window: TimeWindow, ctx: TriggerContext) -> None:
        super().clear(window, ctx)
        fire_at = ctx.get(FIRE_AT)
        if fire_at is not None:
            self._delete_timer(from_micros(fire_at), ctx)

    def _set_next(self, since_us: int, ctx: TriggerContext) -> None:
        fire_at = since_us + self.every_us
        ctx.set(FIRE_AT, fire_at)
        self._set_timer(from_micros(fire_at), ctx)

    def _now(self, ctx: TriggerContext) -> datetime | None:
        """The time that intervals are counted in, when a row comes."""
        raise NotImplementedError

    def _set_timer(self, at: datetime, ctx: TriggerContext) -> None:
        raise NotImplementedError

    def _delete_timer(self, at: datetime, ctx: TriggerContext) -> None:
        raise NotImplementedError


class EveryEventTime(_EveryInterval):
    """`every(interval)`: Flink's ContinuousEventTimeTrigger, but for intervals in which no row came."""

    timers = "event"

    def on_row(self, row: Any, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        result = super().on_row(row, window, ctx)
        if result != TriggerResult.FIRE:
            ctx.remove(FIRED)
        return result

    def on_merge(self, window: TimeWindow, ctx: TriggerContext) -> None:
        super().on_merge(window, ctx)
        ctx.merge(FIRED, max)

    def on_event_time(self, at: datetime, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        if super().on_event_time(at, window, ctx) == TriggerResult.FIRE:
            return TriggerResult.FIRE
        at_us = to_micros(at)
        if ctx.get(FIRE_AT) != at_us:
            return TriggerResult.CONTINUE
        ctx.remove(FIRE_AT)
        ctx.set(FIRED, at_us)  # the next row sets a timer: one event far ahead passes over a million intervals
        return TriggerResult.FIRE

    def _now(self, ctx: TriggerContext) -> datetime | None:
        """Of a window that has fired, the interval that event time has come to."""
        return ctx.timestamp if ctx.get(FIRED) is None else ctx.watermark

    def _set_timer(self, at: datetime, ctx: TriggerContext) -> None:
        ctx.event_timer(at)

    def _delete_timer(self, at: datetime, ctx: TriggerContext) -> None:
        ctx.delete_event_timer(at)

    def describe(self) -> str:
        return f"every({format_duration(self.every_us)!r})"


class EveryProcessingTime(_EveryInterval):
    """`every(interval, time="processing")`: Flink's ContinuousProcessingTimeTrigger, and the window's end."""

    timers = "processing"

    def on_processing_time(self, at: datetime, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        at_us = to_micros(at)
        if ctx.get(FIRE_AT) != at_us:
            return TriggerResult.CONTINUE
        self._set_next(at_us, ctx)
        return TriggerResult.FIRE

    def _now(self, ctx: TriggerContext) -> datetime | None:
        return ctx.processing_time

    def _set_timer(self, at: datetime, ctx: TriggerContext) -> None:
        ctx.processing_timer(at)

    def _delete_timer(self, at: datetime, ctx: TriggerContext) -> None:
        ctx.delete_processing_timer(at)

    def describe(self) -> str:
        return f"every({format_duration(self.every_us)!r}, time='processing')"


class PurgingTrigger(Trigger):
    """`purging(trigger)`: Flink's PurgingTrigger."""

    def __init__(self, trigger: Trigger) -> None:
        self.within = trigger
        self.timers = trigger.timers

    def ever_fires(self) -> bool:
        return self.within.ever_fires()

    def on_row(self, row: Any, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        return _purging(self.within.on_row(row, window, ctx))

    def on_event_time(self, at: datetime, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        return _purging(self.within.on_event_time(at, window, ctx))

    def on_processing_time(self, at: datetime, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        return _purging(self.within.on_processing_time(at, window, ctx))

    def on_merge(self, window: TimeWindow, ctx: TriggerContext) -> None:
        self.within.on_merge(window, ctx)

    def clear(self, window: TimeWindow, ctx: TriggerContext) -> None:
        self.within.clear(window, ctx)

    def describe(self) -> str:
        return f"purging({self.within.describe()})"


def is_users(trigger: Trigger) -> bool:
    """Whether a user has written the trigger, or the one that it purges behind."""
    return is_users(trigger.within) if isinstance(trigger, PurgingTrigger) else type(trigger).__module__ != __name__


def _purging(result: TriggerResult) -> TriggerResult:
    return result | TriggerResult.PURGE if TriggerResult.FIRE in result else result


# -- what users write ---------------------------------------------------------------------------------------------------


def at_watermark() -> Trigger:
    """Fire when the watermark passes the window's end, and again for each late row; what windows do without a trigger.

    Global windows, which have no end, fire at the end of the input.

    Example:
        >>> bids.key_by("auction").window(tumbling("1m")).trigger(at_watermark()).agg(bids=count()).collect().height
        3
    """
    return AtWatermark()


@checked
def every_rows(rows: int) -> Trigger:
    """Fire with every `rows`-th row of a window, and not at its end: the rest of fewer rows gives no result, as in Flink.

    Example:
        >>> totals = bids.key_by("auction").window(tumbling("1m")).trigger(every_rows(2)).agg(bids=count())
        >>> totals.select("auction", "bids").collect().rows()
        [(1, 2)]

    Raises:
        PipelineError: `rows` is less than one.
    """
    if rows < 1:
        raise PipelineError(f"every_rows: must be 1 or more, got {rows}")
    return EveryRows(rows)


@checked
def every(interval: Duration, *, time: Literal["event", "processing"] = "event") -> Trigger:
    """Fire at every whole `interval` since 1970 while a window is open, at its end, and again for each late row.

    By event time it does not fire at the end of an interval in which no row came into the window, where Flink's does: the
    result would be the same, and one event far ahead passes over many intervals at once. By the wall clock it fires at
    every interval.

    Args:
        interval: how often.
        time: by the watermark, or by the wall clock. Flink fires by the wall clock without the end of the window, so that
            what came last is lost; here it fires at the end too.

    Example:
        >>> totals = bids.key_by("auction").window(tumbling("1m")).trigger(every("5s")).agg(bids=count())
        >>> totals.schema.names
        ('auction', 'window_start', 'window_end', 'bids')

    Raises:
        PipelineError: the interval is no duration, or the stream has no event time to go by.
    """
    every_us = duration_us(interval, "every", positive=True)
    return EveryEventTime(every_us) if time == "event" else EveryProcessingTime(every_us)


@checked
def purging(trigger: Trigger) -> PurgingTrigger:
    """Fire as `trigger` does, and forget the rows of the window each time: a result is of what came since the last one.

    Example:
        >>> two = bids.key_by("auction").window(global_()).trigger(purging(every_rows(2))).agg(bids=count())
        >>> two.collect().rows()
        [(1, 2), (2, 2)]
    """
    return PurgingTrigger(trigger)
