"""Windows over the raw rows, as a keyed process of the library's own: Flink's WindowOperator on keyed state and timers.

Because it is a `KeyedProcess`, what a row is late for, timers between the rows of a batch, snapshots and rescaling are
those of process functions. Here stands what Flink's WindowOperator, MergingWindowSet and CountEvictor do.

The rows of a window are kept in order of arrival, in chunks: a further row makes one chunk anew. Those of a session stay
in the slot of its first window, so that a session that grows moves no rows; only where two become one, rows are sorted
by their arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, cast

from penstock.core.times import from_micros, to_micros
from penstock.functions.process_functions import KeyedContext, KeyedProcess, OutputTag
from penstock.functions.windows.assigners import GLOBAL, Bounds, assigner
from penstock.functions.windows.definitions import GlobalWindow, RowWindow, SessionWindow
from penstock.functions.windows.triggers import (
    AtWatermark,
    EveryEventTime,
    EveryProcessingTime,
    PurgingTrigger,
    Scalar,
    Trigger,
    TriggerResult,
)
from penstock.functions.windows.window_functions import SessionTimeWindow, TimeWindow
from penstock.state.declarations import MapState

if TYPE_CHECKING:
    from penstock.protocol.messages import OperatorMetrics

Kept = tuple[int, int | None, Any]
"""Number by arrival, event time and row."""

_CHUNK: Final = 128
_KNOWN: Final = 4_096
_ARMED: Final = 65_536
ONCE: Final = (AtWatermark, EveryEventTime, EveryProcessingTime)
"""What these set with the first row of a window stays set until the window fires."""

MADE_BY: Final = "__made_by__"
"""On a class that a function makes: that function and its arguments, for whoever needs the class in another process."""


class WindowContext(KeyedContext[Any], Protocol):
    """What operators give this process beyond `KeyedContext`."""

    time: int | None
    """Event time of the row or timer, in microseconds."""
    watermark_us: int
    metrics: OperatorMetrics

    def move_to(self, time: int) -> None:
        """What is emitted from here on has this event time."""
        ...


class Meta(NamedTuple):
    """What is known of a window: where its rows are, how many chunks, the next number, how many of them were sent."""

    slot: Bounds
    chunks: int = 0
    arrivals: int = 0
    sent: int = 0


class WindowProcess(KeyedProcess[Any, Any]):
    """Assigns rows to windows, keeps them, asks the trigger, and calls `deliver` of a subclass when a window fires."""

    rows: MapState[tuple[int, int, int], tuple[Kept, ...]]
    windows = MapState(tuple[int, int], tuple[tuple[int, int], int, int, int])
    """What is known of windows with more than one chunk of rows, and of sessions."""
    memory = MapState(tuple[int, int], dict[str, bool | int | float | str | None])
    """What the trigger remembers per window."""
    timers = MapState(tuple[int, bool], tuple[tuple[int, int], ...])
    """By time, and whether it is event time: the windows that have a timer there."""

    def __init__(
        self,
        window: RowWindow,
        trigger: Trigger,
        lateness_us: int = 0,
        late: OutputTag[Any] | None = None,
        last: int | None = None,
    ) -> None:
        """Args:
        window: how rows are assigned.
        trigger: when a window fires.
        lateness_us: how long a window is kept behind its end.
        late: where late rows go; they are counted if None.
        last: a firing takes only so many rows, the newest, and forgets the others.
        """
        self._window = window
        self._merging = isinstance(window, SessionWindow)
        self._window_class = SessionTimeWindow if self._merging else TimeWindow
        self._before_end = 0 if self._merging else 1
        """How long before its end the last moment of a window is."""
        self._global = isinstance(window, GlobalWindow)
        self.ends: Iterator[int] = iter(())
        """Of sessions whose gap each row says: where those that the next rows open end."""
        own_gap = isinstance(window, SessionWindow) and window.gap is not None
        self._assigned = self._own_session if own_gap else assigner(window)
        self._trigger = trigger
        self._lateness_us = lateness_us
        self._late = late
        self._last = last
        self._retracts = False
        self._known: dict[Bounds, TimeWindow] = {}
        self._once = type(within(trigger)) in ONCE and not self._merging
        self._armed: set[tuple[Any, Bounds]] = set()
        """Windows in whose further rows the trigger has no interest while they are not late; some may be missing."""
        self._shared: dict[Any, Any] = {}
        """Equal parts of the state of many keys, which are kept once."""

    def deliver(self, bounds: Bounds, rows: Any, ctx: WindowContext, *, retracted: bool = False) -> None:
        """A window fires; with `retracted`, what it gave no longer stands."""
        raise NotImplementedError

    # -- rows -----------------------------------------------------------------------------------------------------------

    def on_row(self, row: Any, ctx: Any) -> None:
        time, is_late = ctx.time, True
        for bounds in self._assigned(time):
            if self._merging:
                bounds = self._merged(bounds, ctx)
            if self._global or self._cleanup_us(bounds) > ctx.watermark_us:
                is_late = False
                self._take(row, time, bounds, ctx)
        if is_late:
            self._refuse(row, ctx)

    def _take(self, row: Any, time: int | None, bounds: Bounds, ctx: WindowContext) -> None:
        self._append(bounds, time, row)
        if self._once and bounds[1] - self._before_end > ctx.watermark_us and (ctx.key, bounds) in self._armed:
            return
        result = self._trigger.on_row(row, self._time_window(bounds), TriggerRun(self, bounds, ctx))
        if self._once and not result:
            self._arm(bounds, ctx)
        self._act(result, bounds, ctx)
        if not self._global:
            self.set_timer(self._cleanup_us(bounds), "event", bounds, ctx)

    def _arm(self, bounds: Bounds, ctx: WindowContext) -> None:
        if len(self._armed) >= _ARMED:
            self._armed.clear()
        self._armed.add((ctx.key, bounds))

    def _refuse(self, row: Any, ctx: WindowContext) -> None:
        if self._late is None:
            ctx.metrics.late_rows += 1
        else:
            ctx.emit_to(self._late, row)

    def _cleanup_us(self, bounds: Bounds) -> int:
        """At this time the window is forgotten."""
        return min(bounds[1] - self._before_end + self._lateness_us, GLOBAL[1])

    def _time_window(self, bounds: Bounds) -> TimeWindow:
        found = self._known.get(bounds)
        if found is None:
            if len(self._known) >= _KNOWN:
                self._known.clear()
            found = self._known[bounds] = self._window_class(from_micros(bounds[0]), from_micros(bounds[1]))
        return found

    # -- timers ---------------------------------------------------------------------------------------------------------

    def on_timer(self, at: datetime, ctx: Any) -> None:
        at_us, is_event = to_micros(at), ctx.time_domain == "event"
        fired = self.timers.get((at_us, is_event), ())
        self.timers.remove((at_us, is_event))
        for bounds in fired:
            if self._merging and not self.windows.contains(bounds):
                continue  # it was merged into another
            self._fire_on_timer(at, at_us, bounds, ctx)

    def _fire_on_timer(self, at: datetime, at_us: int, bounds: Bounds, ctx: WindowContext) -> None:
        is_event = ctx.time_domain == "event"
        asked = self._trigger.on_event_time if is_event else self._trigger.on_processing_time
        result = asked(at, self._time_window(bounds), TriggerRun(self, bounds, ctx))
        self._act(result, bounds, ctx)
        if is_event and not self._global and at_us == self._cleanup_us(bounds):
            self._forget(bounds, ctx)

    def set_timer(self, at_us: int, domain: Literal["event", "processing"], bounds: Bounds, ctx: WindowContext) -> None:
        """Ask the trigger of this window at that time."""
        entry = self._same((at_us, domain == "event"))
        set_before = self.timers.get(entry, ())
        if bounds in set_before:
            return
        self.timers.set(entry, self._same((*set_before, bounds)))
        if not set_before:
            (ctx.event_timer if domain == "event" else ctx.processing_timer)(from_micros(at_us))

    def delete_timer(
        self, at_us: int, domain: Literal["event", "processing"], bounds: Bounds, ctx: WindowContext
    ) -> None:
        """Take such a timer back."""
        entry = (at_us, domain == "event")
        left = tuple(other for other in self.timers.get(entry, ()) if other != bounds)
        if left:
            self.timers.set(entry, left)
        elif self.timers.contains(entry):
            self.timers.remove(entry)
            (ctx.delete_event_timer if domain == "event" else ctx.delete_processing_timer)(from_micros(at_us))

    # -- firing ---------------------------------------------------------------------------------------------------------

    def _act(self, result: TriggerResult, bounds: Bounds, ctx: WindowContext) -> None:
        if not result.value:
            return
        if TriggerResult.FIRE in result:
            self._fire(bounds, ctx)
        if TriggerResult.PURGE in result:
            self._purge(bounds, ctx)

    def _fire(self, bounds: Bounds, ctx: WindowContext) -> None:
        self._armed.discard((ctx.key, bounds))
        meta = self._meta(bounds)
        rows = self._contents(meta)
        if self._last is not None and len(rows) > self._last:
            rows = rows[-self._last :]
            meta = self._stored(meta, rows)
        if rows:
            if self._merging or self._last is not None:
                self._remember(bounds, meta._replace(sent=meta.arrivals))
            self._deliver_at(bounds, rows, ctx)

    def _deliver_at(self, bounds: Bounds, rows: Any, ctx: WindowContext, *, retracted: bool = False) -> None:
        time = ctx.time
        if not self._global:
            ctx.move_to(bounds[1] - self._before_end)
        try:
            self.deliver(bounds, rows, ctx, retracted=retracted)
        finally:
            ctx.time = time

    def _forget(self, bounds: Bounds, ctx: WindowContext) -> None:
        self._purge(bounds, ctx)
        self._trigger.clear(self._time_window(bounds), TriggerRun(self, bounds, ctx))
        self.memory.remove(bounds)
        self.windows.remove(bounds)
        self._armed.discard((ctx.key, bounds))

    # -- sessions -------------------------------------------------------------------------------------------------------

    def _own_session(self, time: int) -> Iterable[Bounds]:
        return ((time, next(self.ends)),)

    def _merged(self, new: Bounds, ctx: WindowContext) -> Bounds:
        """The session that a row belongs to, after those that it brings together have become one."""
        touched = [bounds for bounds, _ in self.windows.items() if bounds[0] <= new[1] and bounds[1] >= new[0]]
        merged = (min(new[0], *(b[0] for b in touched)), max(new[1], *(b[1] for b in touched))) if touched else new
        if touched and touched != [merged]:
            self._merge(touched, merged, ctx)
        return merged

    def _merge(self, touched: list[Bounds], merged: Bounds, ctx: WindowContext) -> None:
        self._trigger.on_merge(self._time_window(merged), TriggerRun(self, merged, ctx, touched))
        metas = [self._meta(bounds) for bounds in touched]
        for bounds, meta in zip(touched, metas, strict=True):
            self._trigger.clear(self._time_window(bounds), TriggerRun(self, bounds, ctx))
            self.delete_timer(self._cleanup_us(bounds), "event", bounds, ctx)
            self.memory.remove(bounds)
            self.windows.remove(bounds)
            if self._retracts and meta.sent:
                self._retract(bounds, meta, ctx)
        self._remember(merged, self._together(touched, metas, merged, ctx))

    def _retract(self, bounds: Bounds, meta: Meta, ctx: WindowContext) -> None:
        sent = [kept for kept in self._contents(meta) if kept[0] < meta.sent]
        self._deliver_at(bounds, sent, ctx, retracted=True)

    def _together(self, touched: list[Bounds], metas: list[Meta], merged: Bounds, ctx: WindowContext) -> Meta:
        """What these windows hold as that of the one that they become."""
        largest = max(metas, key=lambda meta: meta.chunks)
        arrivals = max(meta.arrivals for meta in metas)
        if len(metas) > 1:
            rows = sorted(chain.from_iterable(map(self._contents, metas)), key=lambda kept: kept[0])
            for meta in metas:
                self._remove_chunks(meta)
            largest = self._stored(Meta(largest.slot), rows)
        return largest._replace(arrivals=arrivals, sent=0)

    # -- kept rows ------------------------------------------------------------------------------------------------------

    def _meta(self, bounds: Bounds) -> Meta:
        found = self.windows.get(bounds)
        if found is not None:
            return Meta(*found)
        # Of a window that is no session and has one chunk nothing else is known: it has no entry.
        return Meta(bounds, chunks=1 if not self._merging and self.rows.contains((*bounds, 0)) else 0)

    def _remember(self, bounds: Bounds, meta: Meta) -> None:
        self.windows.set(bounds, self._same((meta.slot, meta.chunks, meta.arrivals, meta.sent)))

    def _same(self, value: Any) -> Any:
        """An equal value that is there already, if one is."""
        if len(self._shared) >= _KNOWN:
            self._shared.clear()
        return self._shared.setdefault(value, value)

    def _append(self, bounds: Bounds, time: int | None, row: Any) -> None:
        meta = self._meta(bounds)
        last = self.rows.get((*meta.slot, meta.chunks - 1), ()) if meta.chunks else ()
        number = self._next_number(last, meta)
        if last and len(last) < _CHUNK:
            chunks, kept = meta.chunks, (*last, (number, time, row))
        else:
            chunks, kept = meta.chunks + 1, ((number, time, row),)
        self.rows.set(self._same((*meta.slot, chunks - 1)), kept)
        if self._merging or 1 < chunks != meta.chunks:
            self._remember(bounds, meta._replace(chunks=chunks, arrivals=number + 1))

    def _next_number(self, last: tuple[Kept, ...], meta: Meta) -> int:
        """Rows of a key are numbered where sessions may become one; else those of a window, as its last one tells."""
        if self._merging:
            return max((known[2] for known in self.windows.values()), default=0)
        return last[-1][0] + 1 if last else meta.arrivals

    def _contents(self, meta: Meta) -> list[Kept]:
        return list(chain.from_iterable(self.rows.get((*meta.slot, chunk), ()) for chunk in range(meta.chunks)))

    def _stored(self, meta: Meta, rows: list[Kept]) -> Meta:
        """The rows instead of what the window holds."""
        self._remove_chunks(meta)
        starts = range(0, len(rows), _CHUNK)
        for chunk, start in enumerate(starts):
            self.rows.set((*meta.slot, chunk), tuple(rows[start : start + _CHUNK]))
        return meta._replace(chunks=len(starts))

    def _remove_chunks(self, meta: Meta) -> None:
        for chunk in range(meta.chunks):
            self.rows.remove((*meta.slot, chunk))

    def _purge(self, bounds: Bounds, ctx: WindowContext) -> None:
        meta = self._meta(bounds)
        self._remove_chunks(meta)
        if self._merging:  # the session goes on: rows that come still belong to it
            self._remember(bounds, meta._replace(chunks=0, sent=0))
        else:
            self.windows.remove(bounds)


class TriggerRun:
    """`TriggerContext` of one window."""

    __slots__ = ("_bounds", "_ctx", "_merged", "_process")

    def __init__(
        self, process: WindowProcess, bounds: Bounds, ctx: WindowContext, merged: Iterable[Bounds] = ()
    ) -> None:
        self._process = process
        self._bounds = bounds
        self._ctx = ctx
        self._merged = merged

    @property
    def timestamp(self) -> datetime | None:
        return self._ctx.timestamp

    @property
    def watermark(self) -> datetime | None:
        return self._ctx.watermark

    @property
    def processing_time(self) -> datetime:
        return self._ctx.processing_time

    def event_timer(self, at: datetime) -> None:
        self._process.set_timer(to_micros(at), "event", self._bounds, self._ctx)

    def processing_timer(self, at: datetime) -> None:
        self._process.set_timer(to_micros(at), "processing", self._bounds, self._ctx)

    def delete_event_timer(self, at: datetime) -> None:
        self._process.delete_timer(to_micros(at), "event", self._bounds, self._ctx)

    def delete_processing_timer(self, at: datetime) -> None:
        self._process.delete_timer(to_micros(at), "processing", self._bounds, self._ctx)

    def get(self, name: str, default: Any = None) -> Any:
        return self._process.memory.get(self._bounds, {}).get(name, default)

    def set(self, name: str, value: Scalar) -> None:
        memory = self._process.memory
        memory.set(self._bounds, {**memory.get(self._bounds, {}), name: value})

    def remove(self, name: str) -> None:
        memory = self._process.memory
        left = {other: value for other, value in memory.get(self._bounds, {}).items() if other != name}
        if left:
            memory.set(self._bounds, left)
        else:
            memory.remove(self._bounds)

    def merge(self, name: str, function: Callable[[Any, Any], Scalar]) -> Any:
        memories = [self._process.memory.get(bounds, {}) for bounds in self._merged]
        values = [memory[name] for memory in memories if name in memory]
        if not values:
            return None
        folded = values[0]
        for value in values[1:]:
            folded = function(folded, value)
        self.set(name, folded)
        return folded


def declared_rows(taken: type[Any]) -> MapState[tuple[int, int, int], tuple[Kept, ...]]:
    """The state of kept rows of this class."""
    rows = MapState(tuple[int, int, int], cast("Any", tuple[tuple[int, int | None, taken], ...]))
    rows.name = "rows"
    return rows


def within(trigger: Trigger) -> Trigger:
    """The trigger that says when, without what purges."""
    return within(trigger.within) if isinstance(trigger, PurgingTrigger) else trigger
