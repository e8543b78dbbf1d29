"""Streams with a key: rows of a key meet in one subtask, in order.

What `over()` and `window(...)` make of them has verbs of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar, overload

from penstock.api.connected_streams import BroadcastStream, ConnectedStreams, KeyedBroadcastConnectedStreams
from penstock.api.patterns import AfterMatch, Pattern, skip_of
from penstock.api.update_streams import UpsertStream
from penstock.api.verbs import StreamBase, Verbs
from penstock.api.windowed_streams import CountWindowedStream, WindowedStream
from penstock.connectors.base import Row
from penstock.core.arguments import checked
from penstock.core.times import Duration, duration_us
from penstock.errors import PipelineError
from penstock.expressions import Expr, col, output_name
from penstock.functions.process_functions import KeyedProcess, OutputTag
from penstock.functions.windows.definitions import RANK, RowWindow
from penstock.plan.building.aggregates import aggregate, deduplicate, over, over_frame, reduce, top
from penstock.plan.building.functions import check_connected, check_together
from penstock.plan.building.functions import process as process_rows
from penstock.plan.building.matches import match_rows
from penstock.plan.building.row_windows import count_windows
from penstock.plan.building.rows import Rows
from penstock.plan.building.windows import check_windows
from penstock.plan.operations.match_rows import MatchRows
from penstock.plan.operations.over import Over
from penstock.plan.order import orders

if TYPE_CHECKING:
    from penstock.api.stream import Stream


T = TypeVar("T")
U = TypeVar("U")


@checked
class KeyedStream(StreamBase, Generic[T]):
    """A stream whose rows of one key meet in one subtask, in order. Column verbs belong before `key_by`."""

    _what = "a stream with a key"

    def _instead(self, name: str) -> str:
        if name == "with_columns":
            return "do it before key_by; to look at other rows of the key, write .over().with_columns(...)"
        if self._pipeline._has_verb_of_rows(name):
            there = "window, over, match, top, deduplicate, agg, reduce, process"
            return f"do it before key_by; after key_by there are {there}"
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
        check_windows(self._node, window)
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
            check_together(self._rows, other._stream._rows)
            return KeyedBroadcastConnectedStreams(self, other._stream)
        check_connected(self._rows, other._rows)
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
        return OverStream(self, over_frame(self._node, within, rows))

    def match(
        self, pattern: Pattern, *, within: Duration | None = None, after_match: AfterMatch = "no_skip"
    ) -> MatchedStream[T]:
        """The matches of a pattern in the rows of every key, in order of event time: Flink's CEP.

        A row is looked at when the watermark passes its event time; one that comes later than that is late. Matches are
        told as soon as they are complete, or, where some are skipped, when no match that begins earlier is under way.

        Args:
            pattern: the rows and how they follow each other.
            within: how much later than its first row the last row of a match is at most, not included. Without it the
                rows of partial matches are kept for ever.
            after_match: where the search goes on behind a match. `"no_skip"`: all matches of all beginnings.
                `"to_next"`: one match of each beginning. `"past_last_row"`: behind the last row of the match.
                `("to_first", name)` and `("to_last", name)`: at the first or last of the rows of that name.

        Raises:
            PipelineError: `within` is no time.

        Example:
            >>> up = Pattern.begin("low").next("high", col("price") > col("low.price"))
            >>> raised = bids.key_by("auction").match(up).select("auction", low=col("low.price"), high=col("high.price"))
            >>> raised.collect().rows()
            [(1, 50.0, 120.0)]
        """
        within_us = None if within is None else duration_us(within, "match: within", positive=True)
        return MatchedStream(self, MatchRows(pattern.group, (), skip_of(after_match), within_us))

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
        rows = deduplicate(self._rows, keep, ttl)
        return self._pipeline._stream_of(rows.node) if keep == "first" else self._updates(rows)

    def top(
        self,
        n: int | None,
        *,
        by: Expr | str | Sequence[Expr | str],
        descending: bool | Sequence[bool] = True,
        nulls_last: bool | Sequence[bool] | None = None,
        offset: int = 0,
        rank: str | None = RANK,
        ttl: Duration | None = None,
    ) -> UpsertStream:
        """The best `n` rows of every key so far, as updates: the keys, the rank from 1, then the other columns.

        A row replaces the earlier one of its keys and rank; a batch sends the ranks that it changed, each row with
        its own event time. Of equal rows the one that arrived first is the better one; null and NaN are behind all
        others.

        Args:
            n: how many rows per key; None: all, which are kept then, and sent as `UpsertStream.changes`.
            by: the column or expression that orders them, or several, of which a later one decides where the ones before
                are equal.
            descending: whether the greatest is the best; a list has one for each of `by`.
            nulls_last: whether null is behind all values or in front of them, whatever the direction is; NaN is the
                greatest value then, as in databases. A list has one for each of `by`.
            offset: how many of the best rows are left out; ranks count them.
            rank: the name of the column of ranks. None: there is none, and the rows are `UpsertStream.changes` in the
                columns of the stream: a row is added when it comes to be one of the best, and retracted when it is none
                any more, and nothing is sent when only ranks change.
            ttl: how long the ranks of a key are kept after one of them changed, in processing time and up to an eighth
                longer; its next row begins anew then, and nothing is sent before that. As `state_ttl` says if not given.

        Raises:
            PipelineError: such values have no order, a number is less than it may be, or a column has the name of the
                ranks.

        Example:
            >>> best = bids.key_by("auction").top(1, by="price").select("auction", "rank", "price")
            >>> sorted(best.collect().rows())
            [(1, 1, 120.0), (2, 1, 250.0)]
            >>> others = bids.key_by("auction").top(1, by=["price", "at"], descending=[True, False], offset=1, rank=None)
            >>> sorted(others.select("auction", "price").final().collect().rows())
            [(1, 50.0), (2, 80.0)]
        """
        order = orders("top", by, descending, nulls_last)
        return self._updates(top(self._rows, n, order, ttl, offset=offset, rank=rank))

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
        return self._updates(aggregate(self._rows, aggregates, ttl))

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
        return self._updates(reduce(self._rows, function, ttl))

    def _updates(self, rows: Rows) -> UpsertStream:
        return UpsertStream(self._pipeline, rows.node)

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
        return self._pipeline._stream_of(process_rows(self._rows, process).node)


@checked
class MatchedStream(Verbs, Generic[T]):
    """The matches of a pattern, of which it is to be said what is wanted of them."""

    _what = "a stream of matches"

    def _instead(self, name: str) -> str:
        if self._keyed._pipeline._has_verb_of_rows(name):
            return "say what is wanted of the matches before: .select(...)"
        return super()._instead(name)

    def __init__(self, keyed: KeyedStream[T], operation: MatchRows) -> None:
        self._keyed = keyed
        self._operation = operation

    def _with(self, operation: MatchRows) -> Self:
        other = copy.copy(self)
        other._operation = operation
        return other

    def late_to(self, tag: OutputTag[Any]) -> Self:
        """The same, but rows that come too late go to the side output `tag` instead of being counted and dropped."""
        return self._with(replace(self._operation, late=tag))

    def timed_out_to(self, tag: OutputTag[Any]) -> Self:
        """The same, with what was matched when the time of a partial match was over in the side output `tag`.

        Its columns are those of the results; what has no rows yet is null.
        """
        return self._with(replace(self._operation, timed_out=tag))

    def select(self, *exprs: Expr | str, **named: Expr) -> Stream[Row]:
        """A row for every match: names, expressions, or `name=expression`.

        `col("fails.at")` is a column of the last row called `fails`, `col("fails.at").first()` of the first one, and
        `col("fails.amount").sum()` an aggregate of all of them; `col("fails").count()` is their number. A column without
        such a name is that of the last row of the match, and an aggregate of all rows.

        Raises:
            PipelineError: an expression does not fit the columns and the names of the pattern, the pattern could match no
                row at all or waits for ever, or the stream has no event time.
        """
        chosen = [col(expr) if isinstance(expr, str) else expr for expr in exprs]
        measures = tuple([(output_name(expr, "match"), expr) for expr in chosen] + list(named.items()))
        keyed = self._keyed
        return keyed._pipeline._stream_of(match_rows(keyed._rows, replace(self._operation, measures=measures)).node)


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
        return keyed._pipeline._stream_of(over(keyed._rows, self._frame, columns).node)
