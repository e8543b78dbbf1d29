"""Streams with a key: rows of a key meet in one subtask, in order.

What `over()` and `window(...)` make of them has verbs of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar, overload

from penstock.api.connected_streams import BroadcastStream, ConnectedStreams, KeyedBroadcastConnectedStreams
from penstock.api.over import aggregates_schema, over_schema, top_schema
from penstock.api.row_windows import count_windows
from penstock.api.update_streams import UpsertStream
from penstock.api.verbs import StreamBase, Verbs, check_connected, check_together, process_node
from penstock.api.windowed_streams import CountWindowedStream, WindowedStream
from penstock.arguments import checked
from penstock.connectors.base import Row
from penstock.errors import PipelineError
from penstock.expressions import Expr, col, contains_aggregate, output_field, output_name
from penstock.graph.logical import (
    Deduplicate,
    GlobalWindow,
    Over,
    RowWindow,
    RunningAggregate,
    RunningReduce,
    SessionWindow,
    Top,
)
from penstock.process_functions import KeyedProcess, OutputTag
from penstock.times import Duration, duration_us
from penstock.types import DURATION, INTEGERS, Schema

if TYPE_CHECKING:
    from penstock.api.stream import Stream


T = TypeVar("T")
U = TypeVar("U")


@checked
def _check_gap(gap: Expr, columns: Schema) -> None:
    kind = output_field(gap, columns, "session").type
    if contains_aggregate(gap) or (kind != DURATION and kind not in INTEGERS):
        raise PipelineError(
            f"session: the gap {gap} is {kind}; it must say of each row how long a session waits behind it: a duration, "
            "or whole microseconds"
        )


@checked
class KeyedStream(StreamBase, Generic[T]):
    """A stream whose rows of one key meet in one subtask, in order. Column verbs belong before `key_by`."""

    _what = "a stream with a key"

    def _instead(self, name: str) -> str:
        if name == "with_columns":
            return "do it before key_by; to look at other rows of the key, write .over().with_columns(...)"
        if self._pipeline._has_verb_of_rows(name):
            return "do it before key_by; after key_by there are window, over, top, deduplicate, agg, reduce, process"
        return super()._instead(name)

    def window(self, window: RowWindow) -> WindowedStream[T]:
        """Cut the stream of each key into windows: `tumbling("10s")`, `sliding("1h", every="5m")`,
        `cumulative("1d", every="1h")`, `session("30m")`.

        `global_()` is one window per key without end.

        Example:
            >>> per_minute = bids.key_by("auction").window(tumbling("1m")).agg(bids=count(), highest=col("price").max())
            >>> sorted(per_minute.select("auction", "bids", "highest").collect().rows())
            [(1, 2, 120.0), (2, 1, 80.0), (2, 1, 250.0)]
        """
        if not self._node.event_time and not isinstance(window, GlobalWindow):
            raise PipelineError(
                "window: the stream has no event time; say event_time='column' at the source "
                "(a map or process keeps the event time of its input), or with_processing_time() before key_by"
            )
        if isinstance(window, SessionWindow) and window.gap is not None:
            _check_gap(window.gap, self._node.schema)
        return WindowedStream(self, window, late=None)

    @overload
    def connect(self, other: KeyedStream[U]) -> ConnectedStreams[T, U]: ...
    @overload
    def connect(self, other: BroadcastStream[U]) -> KeyedBroadcastConnectedStreams[T, U]: ...
    def connect(
        self, other: KeyedStream[U] | BroadcastStream[U]
    ) -> ConnectedStreams[T, U] | KeyedBroadcastConnectedStreams[T, U]:
        """This stream and another one, for a function over the rows of both.

        The other one has a key of the same types, and the function is a `KeyedCoProcess`; or it is broadcast, and the
        function, of which every subtask gets all rows of it, is a `KeyedBroadcastProcess`.

        Raises:
            PipelineError: the keys have unlike types, or one stream only has event time.

        Example:
            >>> dear = bids.filter(col("price") > 200)
            >>> class Warned(KeyedCoProcess[Bid, Bid, Total]):
            ...     seen = ValueState(int)
            ...     def on_left(self, row, ctx):
            ...         self.seen.set(self.seen.get(default=0) + 1)
            ...     def on_right(self, row, ctx):
            ...         ctx.emit(Total(ctx.key, row.price))
            >>> bids.key_by("auction").connect(dear.key_by("auction")).process(Warned()).collect().rows()
            [(2, 250.0)]
        """
        if isinstance(other, BroadcastStream):
            check_together(self, other._stream)
            return KeyedBroadcastConnectedStreams(self, other._stream)
        check_connected(self, other)
        return ConnectedStreams(self, other)

    def count_window(self, size: int, every: int | None = None) -> CountWindowedStream[T]:
        """A result per `size` rows of a key, or after each `every` rows one of the newest `size`: Flink's countWindow.

        The first results of `count_window(size, every)` are of fewer rows, as long as there are no more. Rows at the end
        of the input that complete no window give no result. It needs no event time; the event time of a result is that
        of the row that completed it.

        Args:
            size: rows of a window.
            every: how many rows after a result the next one comes; `size` if not given.

        Example:
            >>> bids.key_by("auction").count_window(2).agg(revenue=col("price").sum()).collect().rows()
            [(1, 170.0), (2, 330.0)]

        Raises:
            PipelineError: a number is less than one.
        """
        if size < 1 or (every is not None and every < 1):
            raise PipelineError(f"count_window: size and every must be 1 or more, got {size} and {every}")
        return CountWindowedStream(self, count_windows(size, every or size))

    def over(self, within: Duration | None = None, rows: int | None = None) -> OverStream[T]:
        """Every row beside the rows of its key before it, by event time: SQL's OVER.

        A row is sent, in order of event time, when the watermark passes its event time; one that comes later than that
        is late. An aggregate is of the rows of its frame, which ends at the row itself:

        * all rows so far, if nothing is given, or with `within` those that are at most so much older. Rows of equal
          event time have the same frame, and so the same result (Flink's RANGE);
        * with `rows` so many rows, this one included; of equal event time in order of arrival (Flink's ROWS).

        What is kept per key is what frames still need: a total, the last rows, or the rows within.

        Raises:
            PipelineError: the stream has no event time, or both are given.

        Example:
            >>> minute = bids.key_by("auction").over(within="1m").with_columns(total=col("price").sum())
            >>> minute.select("auction", "total").collect().rows()
            [(1, 50.0), (2, 250.0), (1, 170.0), (2, 330.0)]
            >>> before = bids.key_by("auction").over(rows=2).with_columns(mean=col("price").mean())
            >>> before.select("auction", "mean").collect().rows()
            [(1, 50.0), (2, 250.0), (1, 85.0), (2, 165.0)]
        """
        if not self._node.event_time:
            raise PipelineError(
                "over: the stream has no event time, by which its rows are ordered; say event_time='column' at the "
                "source, or with_event_time(...)"
            )
        if within is not None and rows is not None:
            raise PipelineError("over: give within= or rows=, not both")
        if rows is not None and rows < 1:
            raise PipelineError(f"over: rows must be 1 or more, this one included; got {rows}")
        within_us = None if within is None else duration_us(within, "over: within")
        return OverStream(self, Over((), within_us, rows))

    @overload
    def deduplicate(self, keep: Literal["first"] = "first", *, ttl: Duration | None = None) -> Stream[T]: ...
    @overload
    def deduplicate(self, keep: Literal["last"], *, ttl: Duration | None = None) -> UpsertStream: ...
    def deduplicate(
        self, keep: Literal["first", "last"] = "first", *, ttl: Duration | None = None
    ) -> Stream[T] | UpsertStream:
        """One row per key.

        Args:
            keep: `"first"`: the row of a key that arrives first, at once. `"last"`: updates; every batch sends the newest
                row of each key, by event time if there is one (of equal times by arrival), if none newer was sent.
            ttl: how long a key is remembered after its row was sent, in processing time, as Flink's state that lives
                from when it was written; after that its next row is new. `state_ttl` if not given.

        Example:
            >>> bids.key_by("auction").deduplicate().select("auction", "price").collect().rows()
            [(1, 50.0), (2, 250.0)]
            >>> newest = bids.key_by("auction").deduplicate("last", ttl="1d").select("auction", "price")
            >>> sorted(newest.collect().rows())
            [(1, 120.0), (2, 80.0)]
        """
        node, operation = self._node, Deduplicate(keep, self._pipeline._ttl_us(ttl, "deduplicate"))
        if keep == "first":
            return self._pipeline._stream_of(self._derive(operation, node.schema, node.row_type))
        derived = self._derive(operation, node.schema, node.row_type, keys=node.keys, mode="upsert")
        return UpsertStream(self._pipeline, derived)

    def top(self, n: int, *, by: Expr | str, descending: bool = True, ttl: Duration | None = None) -> UpsertStream:
        """The best `n` rows of every key so far, as updates: the keys, the rank from 1, then the other columns.

        A row replaces the earlier one of its keys and rank; a batch sends the ranks that it changed, each row with
        its own event time. Of equal rows the one that arrived first is the better one; null and NaN are behind all
        others.

        Args:
            n: how many rows per key.
            by: the column or expression that orders them.
            descending: whether the greatest is the best.
            ttl: how long the ranks of a key are kept after one of them changed, in processing time and up to an eighth
                longer; its next row begins anew then, and nothing is sent before that. As `state_ttl` says if not given.

        Raises:
            PipelineError: such values have no order, or there is a column "rank".

        Example:
            >>> best = bids.key_by("auction").top(1, by="price").select("auction", "rank", "price")
            >>> sorted(best.collect().rows())
            [(1, 1, 120.0), (2, 1, 250.0)]
        """
        order = col(by) if isinstance(by, str) else by
        schema = top_schema(n, order, self._node.schema, self._node.keys)
        operation = Top(n, order, descending, self._pipeline._ttl_us(ttl, "top"))
        derived = self._derive(operation, schema, keys=self._node.keys, mode="upsert")
        return UpsertStream(self._pipeline, derived)

    def agg(self, *, ttl: Duration | None = None, **aggregates: Expr) -> UpsertStream:
        """The running result per key: every batch emits the new result of each key it touched.

        Args:
            ttl: how long the result of a key is kept after its last row, in processing time and up to an eighth longer;
                its next row begins anew then, and nothing is sent before that. As `state_ttl` says if not given.
            **aggregates: the results, by name.

        Example:
            >>> totals = bids.key_by("auction").agg(bids=count(), revenue=col("price").sum())
            >>> sorted(totals.collect().rows())
            [(1, 2, 170.0), (2, 2, 330.0)]
        """
        from penstock.expressions.aggregates import AggregatePlan  # loads Polars

        keys = self._node.schema.select(self._node.keys)
        plan = AggregatePlan.build(tuple(aggregates.items()), self._node.schema, event_time=self._node.event_time)
        schema = aggregates_schema(keys, (), plan.output_fields)
        operation = RunningAggregate(tuple(aggregates.items()), self._pipeline._ttl_us(ttl, "agg"))
        return UpsertStream(self._pipeline, self._derive(operation, schema, keys=self._node.keys, mode="upsert"))

    def reduce(self, function: Callable[[T, T], T], *, ttl: Duration | None = None) -> UpsertStream:
        """The running `function(accumulated, row)` per key; the first row of a key is its first result.

        Args:
            function: gives the new result.
            ttl: how long the result of a key is kept after its last row, in processing time; its next row is its first
                one then, and nothing is sent before that. As `state_ttl` says if not given.

        Example:
            >>> def dearer(one: Bid, other: Bid) -> Bid:
            ...     return max(one, other, key=lambda bid: bid.price)
            >>> sorted(bids.key_by("auction").reduce(dearer).select("auction", "price").collect().rows())
            [(1, 120.0), (2, 250.0)]
        """
        operation = RunningReduce(function, self._pipeline._ttl_us(ttl, "reduce"))
        node = self._derive(operation, self._node.schema, self._node.row_type, keys=self._node.keys, mode="upsert")
        return UpsertStream(self._pipeline, node)

    def process(self, process: KeyedProcess[T, U]) -> Stream[U]:
        """Run a `KeyedProcess`: state and timers per key.

        Example:
            >>> class Raised(KeyedProcess[Bid, Total]):
            ...     last = ValueState(float)
            ...     def on_row(self, row, ctx):
            ...         if row.price > self.last.get(default=row.price):
            ...             ctx.emit(Total(row.auction, row.price))
            ...         self.last.set(row.price)
            >>> bids.key_by("auction").process(Raised()).collect().rows()
            [(1, 120.0)]
        """
        return self._pipeline._stream_of(process_node(self, process))


@checked
class OverStream(Verbs, Generic[T]):
    """A keyed stream whose rows are to be seen beside the rows before them."""

    _what = "a stream over rows"

    def _instead(self, name: str) -> str:
        if self._keyed._pipeline._has_verb_of_rows(name):
            return "do it before key_by, or behind with_columns(...)"
        return super()._instead(name)

    def __init__(self, keyed: KeyedStream[T], frame: Over) -> None:
        self._keyed = keyed
        self._frame = frame

    def late_to(self, tag: OutputTag[Any]) -> Self:
        """The same, but rows that come too late go to the side output `tag` instead of being counted and dropped.

        Example:
            >>> LATE = OutputTag("late")
            >>> totals = bids.key_by("auction").over().late_to(LATE).with_columns(total=col("price").sum())
            >>> totals.side(LATE).collect().height
            0
        """
        other = copy.copy(self)
        other._frame = replace(self._frame, late=tag)
        return other

    def with_columns(self, *exprs: Expr, **named: Expr) -> Stream[Row]:
        """Every row with all its columns and these, which are computed from the rows of its frame.

        Aggregates are of the frame, columns of the row itself, and both can be combined. `row_number()`, `lag(...)` and
        `lead(...)` look at all rows of the key by event time, whatever the frame is.

        Raises:
            PipelineError: an expression does not fit the columns, or there is none.

        Example:
            >>> over = bids.key_by("auction").over()
            >>> shares = over.with_columns(n=row_number(), share=col("price") / col("price").sum())
            >>> shares.select("auction", "n", col("share").round(2)).collect().rows()
            [(1, 1, 1.0), (2, 1, 1.0), (1, 2, 0.71), (2, 2, 0.24)]
        """
        keyed = self._keyed
        columns = tuple([(output_name(expr, "over"), expr) for expr in exprs] + list(named.items()))
        node = keyed._derive(replace(self._frame, columns=columns), over_schema(columns, keyed._node.schema))
        if self._frame.late is not None:
            node.sides = {self._frame.late.name: keyed._node.schema}
        return keyed._pipeline._stream_of(node)
