"""Keyed streams cut into windows, and what becomes of the windows: aggregates, rows, functions over them.

They are made by `KeyedStream.window` and `KeyedStream.count_window`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar, overload

from penstock.api.update_streams import UpsertStream
from penstock.api.verbs import Verbs
from penstock.connectors.base import Row
from penstock.core.arguments import checked
from penstock.core.times import Duration, duration_us
from penstock.errors import PipelineError
from penstock.expressions import Expr
from penstock.functions.process_functions import OutputTag
from penstock.functions.windows.definitions import GlobalWindow, RowWindow
from penstock.functions.windows.triggers import PurgingTrigger, Trigger, at_watermark
from penstock.plan.building.row_windows import Applied, RowWindows, aggregate_fired_windows, apply_to_windows
from penstock.plan.building.windows import aggregate_windows, deduplicate_windows, top_of_windows
from penstock.plan.logical import Node

if TYPE_CHECKING:
    from penstock.api.keyed_streams import KeyedStream
    from penstock.api.stream import Stream


T = TypeVar("T")
U = TypeVar("U")


@checked
class WindowedStream(Verbs, Generic[T]):
    """A keyed stream cut into windows, to be aggregated."""

    _what = "a stream in windows"

    def _instead(self, name: str) -> str:
        if self._keyed._pipeline._has_verb_of_rows(name):
            return "do it before key_by, or behind agg(...), which makes a stream of the windows' results"
        return super()._instead(name)

    _lateness_us = 0

    def __init__(self, keyed: KeyedStream[T], window: RowWindow, late: OutputTag[Any] | None) -> None:
        self._keyed = keyed
        self._window: RowWindow = window
        self._late = late

    def late_to(self, tag: OutputTag[Any]) -> Self:
        """The same windows, whose rows that come too late go to the side output `tag` instead of being counted and
        dropped.

        Example:
            >>> LATE = OutputTag("late")
            >>> per_minute = bids.key_by("auction").window(tumbling("1m")).late_to(LATE).agg(bids=count())
            >>> per_minute.side(LATE).collect().height
            0
        """
        self._has_an_end("late_to")
        other = copy.copy(self)
        other._late = tag
        return other

    def _has_an_end(self, verb: str) -> None:
        if isinstance(self._window, GlobalWindow):
            raise PipelineError(f"{verb}: no row is late for a global window, which has no end; leave it out")

    @overload
    def trigger(self, trigger: PurgingTrigger) -> PurgingStream[T]: ...  # pyright: ignore[reportOverlappingOverload] # by design: what is forgotten replaces nothing
    @overload
    def trigger(self, trigger: Trigger) -> TriggeredStream[T]: ...
    def trigger(self, trigger: Trigger) -> TriggeredStream[T] | PurgingStream[T]:
        """The same windows, which give results when `trigger` says so: `every_rows(100)`, `every("5s")`, your own.

        The rows of each window are kept until it ends. See `penstock.functions.windows.triggers`.

        Example:
            >>> early = bids.key_by("auction").window(tumbling("1h")).trigger(every("10m"))
            >>> early.agg(bids=count()).select("auction", "bids").collect().height
            4
        """
        if not trigger.ever_fires():
            raise PipelineError(
                f"trigger: {trigger.describe()} overrides none of on_row, on_event_time and on_processing_time, "
                "so no window would ever give a result; write one that returns TriggerResult.FIRE"
            )
        kind = PurgingStream if isinstance(trigger, PurgingTrigger) else TriggeredStream
        return kind(self._keyed, RowWindows(self._window, trigger, self._lateness_us, self._late))

    def apply(self, function: Applied, *, returns: type[U] | None = None) -> Stream[U]:
        """Call a function with all rows of each key and window when it fires, in order of arrival.

        Args:
            function: `function(key, window, rows)`, which returns or yields the rows of the result, or a
                `WindowFunction`. The key is a value, or a tuple of several.
            returns: class of the results of a plain function that is not annotated.

        The rows of each window are kept until it ends. With `allowed_lateness`, each row that comes late within it
        calls the function again. The event time of results is the last moment of the window.

        Example:
            >>> def dearest(key: int, window: TimeWindow, rows: list[Bid]) -> Iterator[Total]:
            ...     yield Total(key, max(row.price for row in rows))
            >>> bids.key_by("auction").window(tumbling("1m")).apply(dearest).collect().rows()
            [(1, 120.0), (2, 250.0), (2, 80.0)]
        """
        said = RowWindows(self._window, at_watermark(), self._lateness_us, self._late)
        return self._keyed._pipeline._stream_of(apply_to_windows(self._keyed._rows, said, function, returns).node)

    def allowed_lateness(self, lateness: Duration) -> LateWindowedStream[T]:
        """Keep windows for so long after their end: rows that come late within it correct the result.

        A late row can also change the bounds of a session, or make two of them one. The results that were sent for
        windows that are no more are then sent again with `retracted` true (a column that only sessions with lateness
        have), before the result of the new window. Flink sends the new result alone, and rows count twice.

        Example:
            >>> windows = bids.key_by("auction").window(tumbling("1m")).allowed_lateness("1h")
            >>> windows.agg(bids=count()).collect().height
            3
        """
        self._has_an_end("allowed_lateness")
        lateness_us = duration_us(lateness, "allowed_lateness")
        return LateWindowedStream(self._keyed, self._window, self._late, lateness_us)

    def agg(self, **aggregates: Expr) -> Stream[Row]:
        """One row per key and window: the keys, `window_start`, `window_end` and these aggregates.

        Example:
            >>> per_minute = bids.key_by("auction").window(tumbling("1m")).agg(bids=count())
            >>> per_minute.schema.names
            ('auction', 'window_start', 'window_end', 'bids')
        """
        return self._keyed._pipeline._stream_of(self._aggregate(aggregates, 0))

    def top(self, n: int, *, by: Expr | str, descending: bool = True) -> Stream[Row]:
        """The best `n` rows of every key and window, sent once when the window ends: Flink's Window Top-N.

        The keys, `window_start`, `window_end`, the rank from 1, then the other columns. Of equal rows the one with the
        smallest event time is the better one, then the one that arrived first; null and NaN are behind all others. Only
        the best rows are kept. The event time of results is the last moment of the window.

        Args:
            n: how many rows per key and window.
            by: the column or expression that orders them.
            descending: whether the greatest is the best.

        Raises:
            PipelineError: such values have no order, there is a column "rank", "window_start" or "window_end", or the
                windows have no end or may be corrected by late rows.

        Example:
            >>> best = bids.key_by("auction").window(tumbling("1h")).top(1, by="price")
            >>> sorted(best.select("auction", "rank", "price").collect().rows())
            [(1, 1, 120.0), (2, 1, 250.0)]
        """
        self._check_sent_once("top")
        rows = top_of_windows(self._keyed._rows, self._window, n, by, descending, self._late)
        return self._keyed._pipeline._stream_of(rows.node)

    def deduplicate(self, keep: Literal["first", "last"] = "first") -> Stream[Row]:
        """One row per key and window, sent when the window ends: Flink's Window Deduplication.

        The keys, `window_start`, `window_end`, then the other columns, of the row with the smallest event time, or with
        `"last"` the largest; of rows with equal times, any. The event time of results is the last moment of the window.

        Raises:
            PipelineError: there is a column "window_start" or "window_end", or the windows have no end or may be
                corrected by late rows.

        Example:
            >>> newest = bids.key_by("auction").window(tumbling("1h")).deduplicate("last")
            >>> sorted(newest.select("auction", "price").collect().rows())
            [(1, 120.0), (2, 80.0)]
        """
        self._check_sent_once("deduplicate")
        rows = deduplicate_windows(self._keyed._rows, self._window, keep, self._late)
        return self._keyed._pipeline._stream_of(rows.node)

    def _check_sent_once(self, verb: str) -> None:
        if self._lateness_us:
            raise PipelineError(
                f"{verb}: rows of windows are sent once, when a window ends; leave allowed_lateness out, or let "
                "watermarks wait longer with max_out_of_orderness"
            )

    def _aggregate(self, aggregates: Mapping[str, Expr], lateness_us: int) -> Node:
        return aggregate_windows(self._keyed._rows, self._window, aggregates, lateness_us, self._late).node


@checked
class LateWindowedStream(WindowedStream[T]):
    """Windows that are corrected by late rows; their result is a stream of updates."""

    def __init__(self, keyed: KeyedStream[T], window: RowWindow, late: OutputTag[Any] | None, lateness_us: int) -> None:
        super().__init__(keyed, window, late)
        self._lateness_us = lateness_us

    if TYPE_CHECKING:

        def agg(self, **aggregates: Expr) -> UpsertStream: ...  # pyright: ignore[reportIncompatibleMethodOverride] # by design: late corrections make it a stream of updates
    else:

        def agg(self, **aggregates: Expr) -> UpsertStream:
            """As `WindowedStream.agg`, but a later row of the same key and window replaces an earlier one.

            Of sessions, `window_start` and `window_end` say which window it is, and a row with `retracted` takes the
            earlier one away without a new result.

            Example:
                >>> bursts = bids.key_by("auction").window(session("30s")).allowed_lateness("1h").agg(bids=count())
                >>> bursts.schema.names
                ('auction', 'window_start', 'window_end', 'retracted', 'bids')
            """
            return UpsertStream(self._keyed._pipeline, self._aggregate(aggregates, self._lateness_us))


@checked
class _RowWindowed(Verbs, Generic[T]):
    """Windows whose rows are kept."""

    _what = "a stream in windows"

    def __init__(self, keyed: KeyedStream[T], said: RowWindows) -> None:
        self._keyed = keyed
        self._said = said

    def _instead(self, name: str) -> str:
        if self._keyed._pipeline._has_verb_of_rows(name):
            return "do it before key_by, or behind agg(...) or apply(...), which make a stream of the windows' results"
        if name in ("top", "deduplicate"):
            return "rows of windows are sent once, when a window ends: leave .trigger(...) out"
        if hasattr(WindowedStream, name):
            return "say it before .trigger(...)"
        return super()._instead(name)

    def apply(self, function: Applied, *, returns: type[U] | None = None) -> Stream[U]:
        """As `WindowedStream.apply`: the function is called with the rows that a window holds whenever it fires.

        Example:
            >>> def dearest(key: int, window: TimeWindow, rows: list[Bid]) -> Iterator[Total]:
            ...     yield Total(key, max(row.price for row in rows))
            >>> bids.key_by("auction").window(global_()).trigger(every_rows(1)).apply(dearest).collect().rows()
            [(1, 50.0), (2, 250.0), (1, 120.0), (2, 250.0)]
        """
        return self._keyed._pipeline._stream_of(apply_to_windows(self._keyed._rows, self._said, function, returns).node)

    def _aggregate(self, aggregates: Mapping[str, Expr]) -> Node:
        return aggregate_fired_windows(self._keyed._rows, self._said, dict(aggregates)).node


@checked
class TriggeredStream(_RowWindowed[T]):
    """Windows that fire when their trigger says so."""

    def agg(self, **aggregates: Expr) -> UpsertStream:
        """Per firing a row with the keys, `window_start`, `window_end` and the aggregates of all rows of the window.

        A row replaces the earlier ones of its key and window. Sessions have a column `retracted` beside, as with
        `allowed_lateness`: a session that was sent and then grew is retracted under its old bounds. A window holds
        partials of its aggregates; of `collect`, `quantile` and the like all values.

        Example:
            >>> early = bids.key_by("auction").window(tumbling("1h")).trigger(every_rows(1)).agg(bids=count())
            >>> early.select("auction", "bids").collect().rows()
            [(1, 1), (2, 1), (1, 2), (2, 2)]
        """
        return UpsertStream(self._keyed._pipeline, self._aggregate(aggregates))


@checked
class PurgingStream(_RowWindowed[T]):
    """Windows that forget their rows whenever they fire: `trigger(purging(...))`."""

    def agg(self, **aggregates: Expr) -> Stream[Row]:
        """Per firing a row with the keys, `window_start`, `window_end` and aggregates of what came since the last one.

        Example:
            >>> parts = bids.key_by("auction").window(tumbling("1h")).trigger(purging(every_rows(1))).agg(bids=count())
            >>> parts.select("auction", "bids").collect().rows()
            [(1, 1), (2, 1), (1, 1), (2, 1)]
        """
        return self._keyed._pipeline._stream_of(self._aggregate(aggregates))


@checked
class CountWindowedStream(_RowWindowed[T]):
    """Windows of so many rows per key."""

    def agg(self, **aggregates: Expr) -> Stream[Row]:
        """Per window a row with the keys and the aggregates.

        Example:
            >>> bids.key_by("auction").count_window(2, every=1).agg(bids=count()).collect().rows()
            [(1, 1), (2, 1), (1, 2), (2, 2)]
        """
        return self._keyed._pipeline._stream_of(self._aggregate(aggregates))
