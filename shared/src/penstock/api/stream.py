"""Streams and their verbs. Every verb checks what it can, adds one node to the plan and returns the next stream.

What can be done with a stream depends on what it is, and so does its class: a `Stream`, a `KeyedStream` (rows of a key
meet), a `WindowedStream` (to be aggregated) or an `UpsertStream` (a row may replace an earlier one of its key). The
others have modules of their own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast, overload

from penstock.api.connected_streams import BroadcastConnectedStreams, BroadcastStream
from penstock.api.keyed_streams import KeyedStream, OverStream
from penstock.api.update_streams import UpsertStream
from penstock.api.verbs import OF_WINDOWS, StreamBase, belongs_before
from penstock.api.windowed_streams import WindowedStream
from penstock.connectors.base import Row, WatermarkStrategy
from penstock.connectors.event_times import TimeUnit
from penstock.connectors.lookups import Lookup
from penstock.core.arguments import checked
from penstock.core.times import Duration
from penstock.expressions import Expr, Operand
from penstock.functions.process_functions import OutputTag, Process
from penstock.functions.windows.definitions import FixedWindow
from penstock.plan.building import columns as verbs
from penstock.plan.building.calls import awaited_class, call_settings, check_on_error
from penstock.plan.building.functions import check_together, returned_class
from penstock.plan.building.functions import process as process_rows
from penstock.plan.building.grouping_sets import cube_sets, grouped, rollup_sets
from penstock.plan.building.joins import (
    On,
    check_in_time,
    check_of_lookup,
    join_current_rows,
    join_in_time,
    join_lookup,
    join_time,
)
from penstock.plan.building.keys import ALL_TOGETHER, check_keys, check_new_keys, key_by, key_names
from penstock.plan.building.rows import Rows
from penstock.plan.building.sets import set_operation
from penstock.plan.building.sorting import sort
from penstock.plan.building.sources import dead_letters
from penstock.plan.building.temporal_filters import temporal_filter
from penstock.plan.building.times import with_event_time, with_processing_time
from penstock.plan.operations.join import JoinKind
from penstock.plan.operations.map_async import MapAsync
from penstock.plan.operations.map_batches import MapBatches
from penstock.plan.operations.map_rows import MapRows
from penstock.plan.order import orders
from penstock.types import Schema, schema_of

if TYPE_CHECKING:
    import pyarrow as pa


T = TypeVar("T")
U = TypeVar("U")


@checked
class Stream(StreamBase, Generic[T]):
    """A stream of rows `T`."""

    def _instead(self, name: str) -> str:
        if name == "final":
            return "its rows replace no others, so they are final as they are"
        if name in OF_WINDOWS and (verb := belongs_before(self._node, name)):
            return f"it says something of windows, not of their results; write it before .{verb}(...)"
        if hasattr(KeyedStream, name):
            return f"the stream has no key; write .key_by(...) before it, {ALL_TOGETHER}"
        if hasattr(OverStream, name):
            return "the stream has no key; write .key_by(...).over() before it"
        if hasattr(WindowedStream, name):
            return "the stream has no windows; write .key_by(...).window(...) before it"
        return super()._instead(name)

    def _of(self, rows: Rows) -> Stream[Any]:
        return Stream(self._pipeline, rows.node)

    def _updates(self, rows: Rows) -> UpsertStream:
        return UpsertStream(self._pipeline, rows.node)

    def select(self, *exprs: Expr | str, **named: Operand) -> Stream[Row]:
        """Only these columns: names, expressions, or `name=expression`.

        A constant other than text stands for itself; text names a column, and `lit("text")` is a constant. Event time
        stays as it is, also where its column is left out.

        Example:
            >>> bids.select("auction", euros=col("price") * 0.5).collect().rows()
            [(1, 25.0), (2, 125.0), (1, 60.0), (2, 40.0)]
        """
        return self._of(verbs.select(self._rows, exprs, named))

    def with_columns(self, *exprs: Expr, **named: Operand) -> Stream[Row]:
        """All columns and these; one that exists is replaced in its place.

        Event time stays as it is, also where its column is replaced: `with_event_time` says anew what it is.

        Example:
            >>> bids.with_columns(dear=col("price") > 100).select("price", "dear").collect().rows()
            [(50.0, False), (250.0, True), (120.0, True), (80.0, False)]
        """
        return self._of(verbs.with_columns(self._rows, exprs, named))

    def drop(self, *names: str) -> Stream[Row]:
        """All columns but these.

        Example:
            >>> bids.drop("at", "tags").schema.names
            ('auction', 'price')
        """
        return self._of(verbs.drop(self._rows, names))

    def rename(self, names: Mapping[str, str]) -> Stream[Row]:
        """The same columns with other names: `rename({"old": "new"})`.

        Example:
            >>> bids.rename({"price": "euros"}).schema.names
            ('auction', 'euros', 'at', 'tags')
        """
        return self._of(verbs.rename(self._rows, names))

    def filter(self, *predicates: Expr) -> Stream[T]:
        """Only the rows for which every predicate is true; null counts as false.

        Example:
            >>> bids.filter(col("price") > 100, col("auction") == 1).select("auction", "price").collect().rows()
            [(1, 120.0)]
        """
        return self._of(verbs.filter_rows(self._rows, predicates))

    def explode(self, *columns: str) -> Stream[Row]:
        """One row per element of these list columns. An empty or null list gives one row with null, as in Polars.

        Example:
            >>> bids.explode("tags").select("auction", "tags").collect().rows()
            [(1, 'new'), (2, None), (1, 'hot'), (1, 'web'), (2, 'web')]
        """
        return self._of(verbs.explode(self._rows, columns))

    def map(self, function: Callable[[T], U], *, returns: type[U] | None = None) -> Stream[U]:
        """One row in, one row out. The output's class comes from the annotation of `function`, or from `returns`.

        Example:
            >>> def doubled(bid: Bid) -> Total:
            ...     return Total(bid.auction, bid.price * 2)
            >>> bids.map(doubled).collect().rows()
            [(1, 100.0), (2, 500.0), (1, 240.0), (2, 160.0)]
        """
        row_type = returned_class(function, returns, "map", many=False)
        return self._of(self._rows.derive(MapRows(function, flat=False), schema_of(row_type, "map"), row_type))

    def flat_map(self, function: Callable[[T], Iterable[U]], *, returns: type[U] | None = None) -> Stream[U]:
        """One row in, any number of rows out: `function` returns or yields them.

        Example:
            >>> def per_tag(bid: Bid) -> Iterator[Total]:
            ...     for tag in bid.tags:
            ...         yield Total(bid.auction, bid.price)
            >>> bids.flat_map(per_tag).collect().rows()
            [(1, 50.0), (1, 120.0), (1, 120.0), (2, 80.0)]
        """
        row_type = returned_class(function, returns, "flat_map", many=True)
        return self._of(self._rows.derive(MapRows(function, flat=True), schema_of(row_type, "flat_map"), row_type))

    @overload
    def map_batches(self, function: Callable[[pa.RecordBatch], pa.RecordBatch]) -> Stream[T]: ...
    @overload
    def map_batches(self, function: Callable[[pa.RecordBatch], pa.RecordBatch], *, returns: type[U]) -> Stream[U]: ...
    @overload
    def map_batches(
        self, function: Callable[[pa.RecordBatch], pa.RecordBatch], *, returns: Schema | pa.Schema
    ) -> Stream[Row]: ...
    def map_batches(
        self,
        function: Callable[[pa.RecordBatch], pa.RecordBatch],
        *,
        returns: type[Any] | Schema | pa.Schema | None = None,
    ) -> Stream[Any]:
        """An Arrow record batch in, one out: models, numpy, anything vectorised.

        Args:
            function: on a stream with event time it returns as many rows as it gets, in the same order.
            returns: the output's schema (dataclass, Struct, `pyarrow.Schema`); without it the columns stay as they are.

        Example:
            >>> def rounded(batch: pa.RecordBatch) -> pa.RecordBatch:
            ...     tens = pc.round(batch["price"], ndigits=-2)
            ...     return pa.record_batch({"auction": batch["auction"], "price": tens})
            >>> bids.map_batches(rounded, returns=Total).collect().rows()
            [(1, 0.0), (2, 200.0), (1, 100.0), (2, 100.0)]
        """
        schema = self._node.schema if returns is None else schema_of(returns, "map_batches: returns")
        row_type = self._node.row_type if returns is None else returns if isinstance(returns, type) else None
        return self._of(self._rows.derive(MapBatches(function), schema, row_type))

    def map_async(
        self,
        function: Callable[[T], Awaitable[U]],
        *,
        capacity: int = 100,
        timeout: Duration | None = "60s",
        retries: int = 0,
        retry_delay: Duration = "100ms",
        retry_on: type[Exception] | tuple[type[Exception], ...] = Exception,
        ordered: bool = True,
        on_error: Callable[[T, Exception], U] | None = None,
        returns: type[U] | None = None,
    ) -> Stream[U]:
        """One row in, one row out, from an `async def` function that waits for others: a service, a database, a model.

        Many calls of a subtask wait at once, on its own event loop: what computes for long holds up everything there.
        Rows without a result are part of every snapshot, whose barrier does not wait for them; after a failure they are
        asked for again, so a call may be made twice for a row. At the end of the input all are waited for.

        Args:
            function: `async def`, or an object with `async def __call__(self, row)`. If that has `open(self)` and
                `close(self)`, with `async def` or without, they are called before and after all calls of a subtask, on
                a copy of its own: the place for connections.
            capacity: most rows of a subtask that are asked for at once or wait for those before them; then the input
                waits.
            timeout: how long a row may take, with all its attempts; None: for ever.
            retries: how often a call that raised is made again.
            retry_delay: how long before that; twice as long before each further time, at most a minute.
            retry_on: only after these exceptions.
            ordered: whether results keep the order of their rows. If not, a row that waits long does not hold up those
                behind it; results still never pass a moment at which event time comes on.
            on_error: `on_error(row, error)` gives the result of a row whose last attempt raised, or whose time is over
                (a `TimeoutError`). Without it, or if it raises, the job fails, naming the row.
            returns: the output's class, if the annotation of `function` does not say it.

        Example:
            >>> import asyncio
            >>> async def priced(bid: Bid) -> Total:
            ...     await asyncio.sleep(0.01 / bid.auction)  # ask somebody
            ...     return Total(bid.auction, bid.price * 2)
            >>> bids.map_async(priced, timeout="5s", retries=2).collect().rows()
            [(1, 100.0), (2, 500.0), (1, 240.0), (2, 160.0)]

        Raises:
            PipelineError: the function is not async, or does not say what it returns.
        """
        settings = call_settings("map_async", capacity, timeout, retries, retry_delay, retry_on, ordered=ordered)
        row_type = awaited_class(function, returns)
        check_on_error(on_error)
        operation = MapAsync(function, settings, on_error)
        return self._of(self._rows.derive(operation, schema_of(row_type, "map_async"), row_type))

    def as_(self, row_type: type[U]) -> Stream[U]:
        """Give the columns a class again; names and types must agree, in any order.

        Example:
            >>> totals = bids.select("auction", "price").as_(Total)
            >>> totals.map(lambda total: total, returns=Total).collect().height
            4
        """
        return self._of(verbs.with_row_class(self._rows, row_type))

    def union(self, *others: Stream[T]) -> Stream[T]:
        """One stream of several with the same columns, in any order; rows of one input keep their order.

        Example:
            >>> more = p.read(files.Source("bids.jsonl", schema=Bid, event_time="at"))
            >>> bids.union(more).collect().height
            8
        """
        return self._of(verbs.union([self._rows, *(other._rows for other in others)]))

    def intersect(
        self,
        other: Stream[Any] | UpsertStream,
        *,
        all: bool = False,
        ttl: Duration | None = None,
    ) -> UpsertStream:
        """The rows that are in both streams, once each, as `UpsertStream.changes`: SQL's INTERSECT.

        Columns are the same, in any order; rows are equal if all of them are, and null is equal to null. Rows of facts
        are there for ever, those of updates as long as they hold. What is kept is how often either stream has a row.

        Args:
            other: the other stream.
            all: whether equal rows are there several times, as often as in both streams: SQL's INTERSECT ALL. They
                replace no others by a key.
            ttl: how long that is kept after the last change of a row, as in `KeyedUpdates.agg`.

        Raises:
            PipelineError: the columns differ, or one cannot be a key.

        Example:
            >>> dear = bids.filter(col("price") > 200)
            >>> bids.select("auction").intersect(dear.select("auction")).final().collect().rows()
            [(2,)]
        """
        return self._updates(set_operation("intersect", self._rows, other._rows, ttl, all_copies=all))

    def minus(
        self,
        other: Stream[Any] | UpsertStream,
        *,
        all: bool = False,
        ttl: Duration | None = None,
    ) -> UpsertStream:
        """The rows of this stream that are not in the other one, once each, as `UpsertStream.changes`: SQL's EXCEPT.

        A row is retracted when the other stream has it, and comes again when that has it no longer. With `all=True` a
        row is there as often as this stream has more of it than the other one: SQL's EXCEPT ALL. What is said of
        `intersect` holds here too.

        Raises:
            PipelineError: the columns differ, or one cannot be a key.

        Example:
            >>> dear = bids.filter(col("price") > 200)
            >>> bids.select("auction").minus(dear.select("auction")).final().collect().rows()
            [(1,)]
            >>> sorted(bids.select("auction").minus(dear.select("auction"), all=True).final().collect().rows())
            [(1,), (1,), (2,)]
        """
        return self._updates(set_operation("minus", self._rows, other._rows, ttl, all_copies=all))

    @overload
    def join(
        self,
        other: UpsertStream,
        *,
        on: On,
        how: JoinKind = "inner",
        ttl: Duration | tuple[Duration | None, Duration | None] | None = None,
        where: Expr | None = None,
        nulls_equal: bool = False,
        suffix: str = "_right",
    ) -> UpsertStream: ...
    @overload
    def join(
        self,
        other: Lookup[Any],
        *,
        on: On,
        how: Literal["inner", "left"] = "inner",
        suffix: str = "_right",
    ) -> Stream[Row]: ...
    @overload  # without a word on time; calls that say one fit those below only
    def join(  # pyright: ignore[reportOverlappingOverload]
        self,
        other: Stream[Any],
        *,
        on: On,
        how: Literal["left", "right", "full", "anti"],
        ttl: Duration | tuple[Duration | None, Duration | None] | None = None,
        where: Expr | None = None,
        nulls_equal: bool = False,
        suffix: str = "_right",
    ) -> UpsertStream: ...
    @overload
    def join(
        self,
        other: Stream[Any],
        *,
        on: On,
        how: Literal["semi", "anti"],
        within: Duration | tuple[Duration, Duration] | None = None,
        window: FixedWindow | None = None,
        as_of: bool = False,
        ttl: Duration | tuple[Duration | None, Duration | None] | None = None,
        where: Expr | None = None,
        nulls_equal: bool = False,
        suffix: str = "_right",
    ) -> Stream[T]: ...
    @overload
    def join(
        self,
        other: Stream[Any],
        *,
        on: On,
        how: Literal["inner", "left", "right", "full"] = "inner",
        within: Duration | tuple[Duration, Duration] | None = None,
        window: FixedWindow | None = None,
        as_of: bool = False,
        ttl: Duration | tuple[Duration | None, Duration | None] | None = None,
        where: Expr | None = None,
        nulls_equal: bool = False,
        suffix: str = "_right",
    ) -> Stream[Row]: ...
    def join(
        self,
        other: Stream[Any] | UpsertStream | Lookup[Any],
        *,
        on: On,
        how: JoinKind = "inner",
        within: Duration | tuple[Duration, Duration] | None = None,
        window: FixedWindow | None = None,
        as_of: bool = False,
        ttl: Duration | tuple[Duration | None, Duration | None] | None = None,
        where: Expr | None = None,
        nulls_equal: bool = False,
        suffix: str = "_right",
    ) -> Stream[Any] | UpsertStream:
        """Rows of this stream, the left one, beside rows of another one that have the same key, and meet them in time.

        Say one of three things of time, or nothing for all rows of a key (see below):

        * `within="10m"`: event times are at most so far apart, either way; `within=("-5m", "10m")`: that of the right row
          is from 5 minutes before that of the left row to 10 minutes after it (Flink: interval join);
        * `window=tumbling("1h")`, sliding or cumulative: both are in the same window, in each that they share; the
          results have `window_start` and `window_end`, but those of `"semi"` and `"anti"` (Flink: window join);
        * `as_of=True`: the right row is the newest of its key that is not newer than the left row, with `within=` at most
          so much older (Flink: temporal join). `how` is `"inner"` or `"left"`.

        Results are final. A pair is sent when its second row comes, with the later event time of both. A row that met
        none is sent, with null beside it, when event time has passed the last moment at which one could have come, and
        has that event time; so have the rows of `"semi"` and `"anti"`. Results of a window have its last moment, those
        of `as_of` the time of the left row, when the watermark passes it. `with_event_time` gives them another one. What
        is kept are the rows that may still meet one; of `as_of` the newest right row of every key, for ever without
        `within`.

        Rows that come behind the watermark, of either stream, are late: counted, and left out. A null in a key is equal
        to nothing, as in SQL, unless `nulls_equal` says otherwise.

        Without a word on time all rows of a key meet (Flink: regular join), and all rows of both streams are kept, or as
        long as `ttl` says. Then `other` may be a stream of updates, of which the rows that hold are joined, and no event
        time is needed. Results are changes (`UpsertStream.changes`), because a row that was alone, or met one that is
        replaced, is retracted; but facts if none can be: of `"inner"` and `"semi"` of two streams of facts. They have
        the later event time of both rows, or that of the change, if both streams have one.

        `other` may be a `Lookup`, such as `postgres.Lookup("customers", ...)`: then every row is beside those that the
        other system has for its key when it is asked, or that are remembered (Flink: lookup join); nothing is said of
        time, `how` is `"inner"` or `"left"`. Calls are made as those of `map_async`: a row that waits is part of
        snapshots and asked for again after a failure; another answer may come then.

        Args:
            other: the right stream, of the same pipeline; one of updates only without a word on time. Or a lookup.
            on: the key columns: one name, several, or `{"left name": "right name"}`. They are once in the results, under
                the left name.
            how: which rows: `"inner"`: those that met one; `"left"`, `"right"`, `"full"`: all of that side, or of both;
                `"semi"`: the left rows that met any, once (in each window); `"anti"`: the left rows that met none.
            within: how far apart event times may be; at most so much is included.
            window: the windows in which rows meet.
            as_of: whether a left row meets what held at its time.
            where: a condition that a pair must fulfil beside equal keys, such as `col("price") > col("limit")`, as in
                SQL's ON. It reads the columns of both streams under the names that they have in pairs, also where `how`
                is `"semi"` or `"anti"`; null counts as false. A row that has no pair for which it is true has met none.
                It is not for `as_of` and lookups.
            nulls_equal: whether null in a key is equal to null (SQL: `IS NOT DISTINCT FROM`); otherwise it is equal to
                nothing. It is not for lookups.
            ttl: without a word on time, how long a row is kept after it came, in processing time; else `state_ttl`. A
                pair, such as `("30d", "1d")`, is of the left and of the right rows; "0s" keeps them for ever. What was
                sent of a row stays as it is. What takes back a row that is forgotten does nothing, and is counted.
            suffix: what is put behind the name of a right column that the left stream has too.

        Raises:
            PipelineError: a stream has no event time, keys are not there or of unlike types, what is said of time is
                contradictory, or `where` is no condition on the columns of both.

        Example:
            >>> dear = bids.filter(col("price") > 100).select("auction", "at", dear="price")
            >>> near = bids.join(dear, on="auction", within="30s")
            >>> sorted(near.select("auction", "price", "dear").collect().rows())
            [(1, 50.0, 120.0), (1, 120.0, 120.0), (2, 250.0, 250.0)]
            >>> since = bids.join(dear, on="auction", as_of=True, how="left")
            >>> since.select("auction", "price", "dear").collect().rows()
            [(1, 50.0, None), (2, 250.0, 250.0), (1, 120.0, 120.0), (2, 80.0, 250.0)]
            >>> raised = dear.select("auction", "at", limit="dear")
            >>> below = bids.join(raised, on="auction", within="30s", how="left", where=col("price") < col("limit"))
            >>> sorted(below.select("auction", "price", "limit").collect().rows(), key=str)
            [(1, 120.0, None), (1, 50.0, 120.0), (2, 250.0, None), (2, 80.0, None)]
            >>> totals = bids.key_by("auction").agg(total=col("price").sum())
            >>> beside = bids.select("auction", "price").join(totals, on="auction").final()
            >>> sorted(beside.collect().rows())
            [(1, 50.0, 170.0), (1, 120.0, 170.0), (2, 80.0, 330.0), (2, 250.0, 330.0)]
        """
        if isinstance(other, Lookup):
            says_more = as_of or any(each is not None for each in (within, window, ttl))
            check_of_lookup(where, nulls_equal=nulls_equal)
            return self._of(join_lookup(self._rows, other, on, how, suffix, says_more=says_more))
        time = join_time(within, window, as_of, how)
        if time is None:
            joined = join_current_rows(self._rows, other._rows, on, how, ttl, suffix, where, nulls_equal=nulls_equal)
            return self._updates(joined) if joined.node.updates else self._of(joined)
        check_in_time(other._rows, ttl)
        joined = join_in_time(self._rows, other._rows, on, how, time, suffix, where, nulls_equal=nulls_equal)
        return self._of(joined)

    def broadcast(self) -> BroadcastStream[T]:
        """This stream for `connect`: every row of it reaches every subtask of the function there.

        For what is small and that all rows of the other stream need: rules, limits, exchange rates.

        Example:
            >>> class Blocked(BroadcastProcess[Bid, Total, Total]):
            ...     blocked = BroadcastState(int, bool)
            ...     def on_broadcast(self, row, ctx):
            ...         self.blocked.set(row.auction, True)
            ...     def on_row(self, row, ctx):
            ...         if not self.blocked.contains(row.auction):
            ...             ctx.emit(Total(row.auction, row.price))
            >>> rules = bids.filter(col("price") < 0).map(lambda bid: Total(bid.auction, 0.0), returns=Total)
            >>> bids.connect(rules.broadcast()).process(Blocked()).collect().height
            4
        """
        return BroadcastStream(self)

    def connect(self, other: BroadcastStream[U]) -> BroadcastConnectedStreams[T, U]:
        """This stream and a broadcast one, for a `BroadcastProcess`; with keys, `.key_by(...)` stands before `connect`.

        Raises:
            PipelineError: one stream only has event time.

        Example:
            >>> class Noted(BroadcastProcess[Bid, Total, Total]):
            ...     def on_row(self, row, ctx):
            ...         ctx.emit(Total(row.auction, row.price))
            ...     def on_broadcast(self, row, ctx):
            ...         ctx.emit(row)
            >>> rules = bids.filter(col("price") > 200).map(lambda bid: Total(bid.auction, 0.0), returns=Total)
            >>> sorted(bids.connect(rules.broadcast()).process(Noted()).collect().rows())
            [(1, 50.0), (1, 120.0), (2, 0.0), (2, 80.0), (2, 250.0)]
        """
        check_together(self._rows, other._stream._rows)
        return BroadcastConnectedStreams(self, other._stream)

    def key_by(self, *columns: str | Expr, **named: Operand) -> KeyedStream[T]:
        """Bring all rows with equal values of these columns to one subtask, in order.

        A key that is computed gets a name, `key_by(bucket=col("auction") % 10)`, and is a further column from there on:
        Python functions behind it then see rows of a class that has it too, and not of the user's. All rows together are
        those of one constant key: `key_by(all=lit(1))`; one subtask then has them all.

        Example:
            >>> sorted(bids.key_by("auction").agg(bids=count()).collect().rows())
            [(1, 2), (2, 2)]
            >>> sorted(bids.key_by(dear=col("price") > 100).agg(bids=count()).collect().rows())
            [(False, 2), (True, 2)]
            >>> bids.key_by(all=lit(1)).agg(bids=count()).select("bids").collect()["bids"].max()
            4
        """
        names = key_names(columns)
        if named:
            check_new_keys(self._rows, named)
            return cast("KeyedStream[T]", self.with_columns(**named).key_by(*names, *named))
        return KeyedStream(self._pipeline, key_by(self._rows, names).node)

    def grouping_sets(self, *sets: Sequence[str]) -> KeyedStream[Row]:
        """Group rows by several sets of columns at once: SQL's GROUPING SETS.

        Every row is there once per set. Columns that are named in other sets only are null then, and the column
        `grouping_id` tells that from a null of the row: it has a bit per grouping column, the first one the most
        significant, which is 1 where the column is not in the set. An empty set is for all rows together.

        Raises:
            PipelineError: no column is named, one is named twice in a set, or it is not there or cannot be a key.

        Example:
            >>> sets = bids.with_columns(hot=col("price") > 100).grouping_sets(["auction"], ["hot"])
            >>> sorted(sets.agg(bids=count()).collect().rows(), key=str)
            [(1, None, 1, 2), (2, None, 1, 2), (None, False, 2, 2), (None, True, 2, 2)]
        """
        return KeyedStream(self._pipeline, grouped(self._rows, "grouping_sets", sets).node)

    def rollup(self, *columns: str) -> KeyedStream[Row]:
        """Group rows by these columns, and by all but the last, and so on up to all rows together: SQL's ROLLUP.

        See `grouping_sets`.

        Example:
            >>> totals = bids.rollup("auction").window(tumbling("1m")).agg(bids=count())
            >>> sorted(totals.select("auction", "grouping_id", "bids").collect().rows(), key=str)
            [(1, 0, 2), (2, 0, 1), (2, 0, 1), (None, 1, 1), (None, 1, 3)]
        """
        return KeyedStream(self._pipeline, grouped(self._rows, "rollup", rollup_sets(columns)).node)

    def cube(self, *columns: str) -> KeyedStream[Row]:
        """Group rows by every subset of these columns: SQL's CUBE. See `grouping_sets`.

        Raises:
            PipelineError: there are more than ten columns.

        Example:
            >>> sets = bids.with_columns(hot=col("price") > 100).cube("auction", "hot")
            >>> sets.agg(bids=count()).collect().height
            9
        """
        return KeyedStream(self._pipeline, grouped(self._rows, "cube", cube_sets(columns)).node)

    def distinct(self, *columns: str, ttl: Duration | None = None) -> Stream[T]:
        """Only the rows whose values of these columns were not there before; of all columns, if none is named.

        Args:
            columns: what makes rows the same.
            ttl: how long values are remembered, as in `KeyedStream.deduplicate`; `state_ttl` if not given.

        Example:
            >>> bids.distinct("auction").select("auction", "price").collect().rows()
            [(1, 50.0), (2, 250.0)]
        """
        names = columns or self._node.schema.names
        check_keys(self._node.schema, names, "distinct")
        return self.key_by(*names).deduplicate(ttl=ttl)

    def sort(
        self,
        by: Expr | str | Sequence[Expr | str],
        *,
        descending: bool | Sequence[bool] = False,
        nulls_last: bool | Sequence[bool] | None = None,
        late_to: OutputTag[Any] | None = None,
    ) -> Stream[T]:
        """All rows in one order, from one subtask: SQL's ORDER BY.

        The rows are emitted when the input ends. An input without an end can be sorted by its event time, and then by
        other columns: a row is emitted when the watermark passes its event time, and a row that arrives later than that
        is late. Rows that are equal in all of `by` stay in the order of their arrival.

        Args:
            by: a column or an expression, or several, of which a later one decides where the ones before are equal.
            descending: whether greater values come first; a list has one for each of `by`.
            nulls_last: whether null is behind all values or in front of them, whatever the direction is; NaN is the
                greatest value then, as in databases. Null and NaN are behind all others if not given. A list has one for
                each of `by`.
            late_to: the side output of late rows, which are counted and dropped if it is not given.

        Raises:
            PipelineError: such values have no order, the input has no end and the order does not begin with the event
                time, or `late_to` is given for an input that ends.

        Example:
            >>> bids.sort("price", descending=True).select("auction", "price").collect().rows()
            [(2, 250.0), (1, 120.0), (2, 80.0), (1, 50.0)]
        """
        return self._of(sort(self._rows, orders("sort", by, descending, nulls_last), late_to))

    def temporal_filter(
        self, *, valid_from: str | Expr | None = None, valid_until: str | Expr | None = None
    ) -> UpsertStream:
        """The rows that are valid at the time that event time has reached, as `UpsertStream.changes`: SQL's
        `WHERE valid_from <= NOW() AND NOW() < valid_until`.

        A row is added when the watermark reaches the beginning of its span, or when it arrives if that is later, and
        retracted when the watermark reaches the end. Nothing is seen of a row that arrives when its span is over. The
        rows whose spans have not ended are kept, so the bounds limit the state of what follows, too: of a running `agg`
        or a join behind it nothing older is kept. At the end of the input event time reaches its end.

        Args:
            valid_from: a column or an expression, from when on a row is valid; null or None: from its arrival.
            valid_until: when it is no longer valid; null or None: never.

        Raises:
            PipelineError: neither is given, one is no time, or the stream has no event time.

        Example:
            >>> last_day = bids.temporal_filter(valid_until=col("at") + timedelta(days=1))
            >>> last_day.key_by("auction").agg(bids=count(), dear=col("price").max()).schema.names
            ('auction', 'bids', 'dear', 'retracted')
        """
        return self._updates(temporal_filter(self._rows, valid_from, valid_until))

    def with_event_time(
        self,
        event_time: str | Expr,
        *,
        time_unit: TimeUnit | None = None,
        time_format: str | None = None,
        timezone: str | None = None,
        max_out_of_orderness: Duration | None = None,
        watermarks: WatermarkStrategy | None = None,
        watermark_delay: Duration | None = None,
    ) -> Stream[T]:
        """The same rows with another event time, by which time comes on from here: Flink's assignTimestampsAndWatermarks.

        What the stream said about event time before ends here, unless `watermark_delay` is given. Watermarks follow from
        the rows of each subtask, which may be several splits at once: where the source knows the time of a row, say it
        there.

        Args:
            event_time: a column or an expression: a timestamp, a date, text or a number. A row for which it is null or
                cannot be read fails the job; filter such rows out before.
            time_unit: what a number counts since 1970: `"s"`, `"ms"`, `"us"` or `"ns"`.
            time_format: format of text that is not RFC 3339.
            timezone: zone of text without an offset.
            max_out_of_orderness: how much later than the newest row before it a row may come, exactly so much included;
                `"0s"` if not given.
            watermarks: another strategy instead: `periodic(...)` or `punctuated(...)`.
            watermark_delay: instead of both, by how much the new event time of a row may be before the one that it has.
                The watermarks of the stream go on, held back by so much, and no row is late behind them. So either
                time of rows that have met within `("-5m", "10m")` is their event time: that of the left row with a
                delay of "10m", that of the right one with "5m".

        Example:
            >>> from penstock import Pipeline, col, count, tumbling
            >>> from penstock.connectors import iterables
            >>> from penstock.types import INT64, Field, Schema
            >>> rows = [{"ms": 1_000}, {"ms": 1_500}, {"ms": 2_000}]
            >>> p = Pipeline("example")
            >>> read = p.read(iterables.Source(rows, schema=Schema((Field("ms", INT64),))))
            >>> timed = read.with_event_time("ms", time_unit="ms").with_columns(one=1)
            >>> timed.key_by("one").window(tumbling("1s")).agg(rows=count()).collect()["rows"].to_list()
            [2, 1]

        Raises:
            PipelineError: event time cannot be read from such values.
        """
        given = (event_time, time_unit, time_format, timezone, max_out_of_orderness, watermarks, watermark_delay)
        return self._of(with_event_time(self._rows, *given))

    def with_processing_time(self, *, every: Duration = "200ms") -> Stream[T]:
        """The same rows with the wall clock's time when they pass here as event time: windows behind go by the clock.

        Time comes on with the clock, also when no row comes, and never goes back: a clock that does is waited for. No row
        is late. At the end of bounded input every window is sent, open as it may be. What comes out depends on when rows
        come and differs from run to run; `penstock.testing.run_pipeline` runs it by a clock of its own. Not on Spark.

        Args:
            every: how often time comes on while no row does, at multiples of it: windows whose ends are multiples too
                are sent when they end, others by so much later. Every time costs a message to each subtask behind.

        Example:
            >>> per_minute = bids.with_processing_time().key_by("auction").window(tumbling("1m")).agg(bids=count())
            >>> written = per_minute.select("auction", "bids").write(files.Sink("out"))
            >>> bid = Bid(1, 99.0, datetime(2026, 1, 1, tzinfo=UTC), [])
            >>> run_pipeline(p, [bid, elapse("59s"), bid, elapse("1s"), bid])
            [{'auction': 1, 'bids': 2}, {'auction': 1, 'bids': 1}]
        """
        return self._of(with_processing_time(self._rows, every))

    def process(self, process: Process[T, U]) -> Stream[U]:
        """Run a `Process`: rows in, any rows out, side outputs, operator state.

        Example:
            >>> class Dear(Process[Bid, Total]):
            ...     def on_row(self, row, ctx):
            ...         if row.price > 100:
            ...             ctx.emit(Total(row.auction, row.price))
            >>> bids.process(Dear()).collect().rows()
            [(2, 250.0), (1, 120.0)]
        """
        return self._of(process_rows(self._rows, process))

    def side(self, tag: OutputTag[U]) -> Stream[U]:
        """A side output of the operator that made this stream.

        Example:
            >>> CHEAP = OutputTag("cheap", Total)
            >>> class Dear(Process[Bid, Total]):
            ...     def on_row(self, row, ctx):
            ...         if row.price <= 100:
            ...             ctx.emit_to(CHEAP, Total(row.auction, row.price))
            >>> bids.process(Dear()).side(CHEAP).collect().rows()
            [(1, 50.0), (2, 80.0)]
        """
        return self._of(self._side_rows(tag))


class SourceStream(Stream[T]):
    """A stream that comes straight from a source."""

    def dead_letters(self) -> Stream[Row]:
        """The records that could not become rows: columns error, raw, where. The source says `bad_rows="dead_letter"`.

        Example:
            >>> read = p.read(files.Source("mixed.jsonl", schema=Total, bad_rows="dead_letter"))
            >>> read.dead_letters().select("error", "raw").collect().rows()
            [('Expected `int`, got `str` - at `$.auction`', b'{"auction": "one", "price": 1}')]
        """
        return self._of(dead_letters(self._rows))
