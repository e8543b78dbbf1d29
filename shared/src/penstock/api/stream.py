"""Streams and their verbs. Every verb checks what it can, adds one node to the plan and returns the next stream.

What can be done with a stream depends on what it is, and so does its class: a `Stream`, a `KeyedStream` (rows of a key
meet), a `WindowedStream` (to be aggregated) or an `UpsertStream` (a row may replace an earlier one of its key).
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar, cast, overload

from penstock.api.async_verbs import awaited_class, call_settings
from penstock.api.joins import (
    JoinWindow,
    On,
    in_time,
    join_node,
    join_time,
    lookup_join_node,
    regular_join_node,
)
from penstock.api.over import others_than, over_schema, top_schema, window_rows_schema
from penstock.api.row_windows import Applied, RowWindows, aggregate_node, apply_node, count_windows
from penstock.api.update_streams import UpsertStream
from penstock.api.verbs import (
    ALL_TOGETHER,
    OF_WINDOWS,
    ColumnVerbs,
    StreamBase,
    Verbs,
    belongs_before,
    check_connected,
    check_together,
    co_process_node,
    dead_letters_node,
    key_names,
    process_node,
    returned_class,
)
from penstock.arguments import checked
from penstock.connectors.base import EventTime, Row, WatermarkStrategy
from penstock.connectors.declaring import watermark_strategy, zone
from penstock.connectors.event_times import TimeUnit, event_time_form
from penstock.connectors.lookups import Lookup
from penstock.connectors.watermarks import for_rows
from penstock.errors import PipelineError
from penstock.expressions import Expr, Operand, col, contains_aggregate, output_field, output_name, struct
from penstock.graph.logical import (
    As,
    AssignEventTime,
    AssignProcessingTime,
    Deduplicate,
    Explode,
    GlobalWindow,
    JoinKind,
    MapAsync,
    MapBatches,
    MapRows,
    Mode,
    Node,
    Over,
    RowWindow,
    RunningAggregate,
    RunningReduce,
    SessionWindow,
    Top,
    Union,
    WindowAggregate,
)
from penstock.process_functions import (
    BroadcastProcess,
    KeyedBroadcastProcess,
    KeyedCoProcess,
    KeyedProcess,
    OutputTag,
    Process,
)
from penstock.times import Duration, duration_us
from penstock.triggers import PurgingTrigger, Trigger, at_watermark
from penstock.types import (
    DURATION,
    INTEGERS,
    Field,
    ListType,
    Schema,
    schema_of,
)

if TYPE_CHECKING:
    import pyarrow as pa


T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")


@checked
class Stream(ColumnVerbs, Generic[T]):
    """A stream of rows `T`."""

    def _instead(self, name: str) -> str:
        if name in OF_WINDOWS and (verb := belongs_before(self._node, name)):
            return f"it says something of windows, not of their results; write it before .{verb}(...)"
        if hasattr(KeyedStream, name):
            return f"the stream has no key; write .key_by(...) before it, {ALL_TOGETHER}"
        if hasattr(OverStream, name):
            return "the stream has no key; write .key_by(...).over() before it"
        if hasattr(WindowedStream, name):
            return "the stream has no windows; write .key_by(...).window(...) before it"
        return super()._instead(name)

    def select(self, *exprs: Expr | str, **named: Operand) -> Stream[Row]:
        """Only these columns: names, expressions, or `name=expression`.

        A constant other than text stands for itself; text names a column, and `lit("text")` is a constant.

        Example:
            >>> bids.select("auction", euros=col("price") * 0.5).collect().rows()
            [(1, 25.0), (2, 125.0), (1, 60.0), (2, 40.0)]
        """
        return Stream(self._pipeline, self._select_node(exprs, named))

    def with_columns(self, *exprs: Expr, **named: Operand) -> Stream[Row]:
        """All columns and these; one that exists is replaced in its place.

        Example:
            >>> bids.with_columns(dear=col("price") > 100).select("price", "dear").collect().rows()
            [(50.0, False), (250.0, True), (120.0, True), (80.0, False)]
        """
        return Stream(self._pipeline, self._with_columns_node(exprs, named))

    def drop(self, *names: str) -> Stream[Row]:
        """All columns but these.

        Example:
            >>> bids.drop("at", "tags").schema.names
            ('auction', 'price')
        """
        return Stream(self._pipeline, self._drop_node(names))

    def rename(self, names: Mapping[str, str]) -> Stream[Row]:
        """The same columns with other names: `rename({"old": "new"})`.

        Example:
            >>> bids.rename({"price": "euros"}).schema.names
            ('auction', 'euros', 'at', 'tags')
        """
        return Stream(self._pipeline, self._rename_node(names))

    def filter(self, *predicates: Expr) -> Stream[T]:
        """Only the rows for which every predicate is true; null counts as false.

        Example:
            >>> bids.filter(col("price") > 100, col("auction") == 1).select("auction", "price").collect().rows()
            [(1, 120.0)]
        """
        return Stream(self._pipeline, self._filter_node(predicates))

    def explode(self, *columns: str) -> Stream[Row]:
        """One row per element of these list columns. An empty or null list gives one row with null, as in Polars.

        Example:
            >>> bids.explode("tags").select("auction", "tags").collect().rows()
            [(1, 'new'), (2, None), (1, 'hot'), (1, 'web'), (2, 'web')]
        """
        if not columns:
            raise PipelineError("explode: name at least one list column")
        fields: list[Field] = []
        for field in self._node.schema:
            if field.name in columns:
                if not isinstance(field.type, ListType):
                    raise PipelineError(f"explode: {field.name} is {field.type}, not a list")
                field = Field(field.name, field.type.inner, nullable=True)
            fields.append(field)
        for name in columns:
            self._node.schema.field(name, "explode")
        return Stream(self._pipeline, self._derive(Explode(columns), Schema(tuple(fields))))

    def map(self, function: Callable[[T], U], *, returns: type[U] | None = None) -> Stream[U]:
        """One row in, one row out. The output's class comes from the annotation of `function`, or from `returns`.

        Example:
            >>> def doubled(bid: Bid) -> Total:
            ...     return Total(bid.auction, bid.price * 2)
            >>> bids.map(doubled).collect().rows()
            [(1, 100.0), (2, 500.0), (1, 240.0), (2, 160.0)]
        """
        row_type = returned_class(function, returns, "map", many=False)
        node = self._derive(MapRows(function, flat=False), schema_of(row_type, "map"), row_type)
        return Stream(self._pipeline, node)

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
        node = self._derive(MapRows(function, flat=True), schema_of(row_type, "flat_map"), row_type)
        return Stream(self._pipeline, node)

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
        return Stream(self._pipeline, self._derive(MapBatches(function), schema, row_type))

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
            function: `async def`, or an object with `async def __call__(self, row)`. If that has `async def open(self)`
                and `async def close(self)`, they are called before and after all calls of a subtask, on a copy of its
                own: the place for connections.
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
        node = self._derive(MapAsync(function, settings, on_error), schema_of(row_type, "map_async"), row_type)
        return Stream(self._pipeline, node)

    def as_(self, row_type: type[U]) -> Stream[U]:
        """Give the columns a class again; names and types must agree, in any order.

        Example:
            >>> totals = bids.select("auction", "price").as_(Total)
            >>> totals.map(lambda total: total, returns=Total).collect().height
            4
        """
        schema = schema_of(row_type, "as_")
        for field in schema:
            have = self._node.schema.field(field.name, f"as_({row_type.__name__})")
            if have.type != field.type:
                raise PipelineError(
                    f"as_({row_type.__name__}): {field.name} is {have.type}, the class says {field.type}"
                )
            if have.nullable and not field.nullable:
                raise PipelineError(
                    f"as_({row_type.__name__}): {field.name} may be null; declare it '| None', use fill_null, "
                    "or give schema= at the source, which then takes no row without it"
                )
        extra = [name for name in self._node.schema.names if name not in schema]
        if extra:
            raise PipelineError(f"as_({row_type.__name__}): the class lacks {', '.join(extra)}; drop them first")
        if schema.names != self._node.schema.names:
            return Stream(self._pipeline, self._project("select", tuple((n, col(n)) for n in schema.names))).as_(
                row_type
            )
        return Stream(self._pipeline, self._derive(As(), schema, row_type))

    def union(self, *others: Stream[T]) -> Stream[T]:
        """One stream of several with the same columns, in any order; rows of one input keep their order.

        Example:
            >>> more = p.read(files.Source("bids.jsonl", schema=Bid, event_time="at"))
            >>> bids.union(more).collect().height
            8
        """
        if not others:
            raise PipelineError("union: give at least one other stream")
        names = self._node.schema.names
        same = [other._node.schema.names != names and set(other._node.schema.names) == set(names) for other in others]
        ordered = [other.select(*names) if again else other for other, again in zip(others, same, strict=True)]
        nodes = (self._node, *(other._node for other in ordered))
        for other in nodes[1:]:
            if [(f.name, f.type) for f in other.schema] != [(f.name, f.type) for f in self._node.schema]:
                raise PipelineError(f"union: the columns differ: ({self._node.schema}) and ({other.schema})")
        if len({id(node) for node in nodes}) < len(nodes):
            raise PipelineError("union: the same stream is there twice")
        merged = Schema(
            tuple(
                Field(field.name, field.type, any(node.schema.fields[i].nullable for node in nodes))
                for i, field in enumerate(self._node.schema)
            )
        )
        event_time = all(node.event_time for node in nodes)
        if not event_time and any(node.event_time for node in nodes):
            raise PipelineError("union: some inputs have event time and some have none")
        node = self._pipeline._add(Union(), nodes, merged, self._node.row_type, event_time=event_time)
        return Stream(self._pipeline, node)

    @overload
    def join(
        self,
        other: UpsertStream,
        *,
        on: On,
        how: JoinKind = "inner",
        ttl: Duration | None = None,
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
        ttl: Duration | None = None,
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
        window: JoinWindow | None = None,
        as_of: bool = False,
        ttl: Duration | None = None,
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
        window: JoinWindow | None = None,
        as_of: bool = False,
        ttl: Duration | None = None,
        suffix: str = "_right",
    ) -> Stream[Row]: ...
    def join(
        self,
        other: Stream[Any] | UpsertStream | Lookup[Any],
        *,
        on: On,
        how: JoinKind = "inner",
        within: Duration | tuple[Duration, Duration] | None = None,
        window: JoinWindow | None = None,
        as_of: bool = False,
        ttl: Duration | None = None,
        suffix: str = "_right",
    ) -> Stream[Any] | UpsertStream:
        """Rows of this stream, the left one, beside rows of another one that have the same key, and meet them in time.

        Say one of three things of time, or nothing for all rows of a key (see below):

        * `within="10m"`: event times are at most so far apart, either way; `within=("-5m", "10m")`: that of the right row
          is from 5 minutes before that of the left row to 10 minutes after it (Flink: interval join);
        * `window=tumbling("1h")`, sliding or cumulative: both are in the same window, in each that they share; the
          results have `window_start` and `window_end` (Flink: window join);
        * `as_of=True`: the right row is the newest of its key that is not newer than the left row, with `within=` at most
          so much older (Flink: temporal join). `how` is `"inner"` or `"left"`.

        Results are final. A pair is sent when its second row comes, with the later event time of both. A row that met
        none is sent, with null beside it, when event time has passed the last moment at which one could have come, and
        has that event time; so have the rows of `"semi"` and `"anti"`. Results of a window have its last moment, those
        of `as_of` the time of the left row, when the watermark passes it. `with_event_time` gives them another one. What
        is kept are the rows that may still meet one; of `as_of` the newest right row of every key, for ever without
        `within`.

        Rows that come behind the watermark, of either stream, are late: counted, and left out. A null in a key is equal
        to nothing, as in SQL.

        Without a word on time all rows of a key meet (Flink: regular join), and all rows of both streams are kept, or as
        long as `ttl` says. Then `other` may be a stream of updates, of which the rows that hold are joined, and no event
        time is needed. Results are changes (`UpsertStream.changes`), because a row that was alone, or met one that is
        replaced, is taken back; but facts if none can be: of `"inner"` and `"semi"` of two streams of facts. They have
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
            ttl: without a word on time, how long a row is kept after it came, in processing time; for ever if not given.
                What was sent of it stays as it is. What takes back a row that is forgotten is counted as late.
            suffix: what is put behind the name of a right column that the left stream has too.

        Raises:
            PipelineError: a stream has no event time, keys are not there or of unlike types, or what is said of time is
                contradictory.

        Example:
            >>> dear = bids.filter(col("price") > 100).select("auction", "at", dear="price")
            >>> near = bids.join(dear, on="auction", within="30s")
            >>> sorted(near.select("auction", "price", "dear").collect().rows())
            [(1, 50.0, 120.0), (1, 120.0, 120.0), (2, 250.0, 250.0)]
            >>> since = bids.join(dear, on="auction", as_of=True, how="left")
            >>> since.select("auction", "price", "dear").collect().rows()
            [(1, 50.0, None), (2, 250.0, 250.0), (1, 120.0, 120.0), (2, 80.0, 250.0)]
            >>> totals = bids.key_by("auction").agg(total=col("price").sum())
            >>> beside = bids.select("auction", "price").join(totals, on="auction").final()
            >>> sorted(beside.collect().rows())
            [(1, 50.0, 170.0), (1, 120.0, 170.0), (2, 80.0, 330.0), (2, 250.0, 330.0)]
        """
        if isinstance(other, Lookup):
            says_more = as_of or any(each is not None for each in (within, window, ttl))
            return Stream(self._pipeline, lookup_join_node(self, other, on, how, suffix, says_more=says_more))
        time = join_time(within, window, as_of, how)
        if time is None:
            node = regular_join_node(self, other, on, how, ttl, suffix)
            return UpsertStream(self._pipeline, node) if node.updates else Stream(self._pipeline, node)
        return Stream(self._pipeline, join_node(self, in_time(other, ttl), on, how, time, suffix))

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
        check_together(self, other._stream)
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
            self._check_new_keys(named)
            return cast("KeyedStream[T]", self.with_columns(**named).key_by(*names, *named))
        return KeyedStream(self._pipeline, self._keyed_node(names))

    def distinct(self, *columns: str, ttl: Duration | None = None) -> Stream[T]:
        """Only the rows whose values of these columns were not there before; of all columns, if none is named.

        Args:
            columns: what makes rows the same.
            ttl: how long values are remembered, as in `KeyedStream.deduplicate`; without it for ever.

        Example:
            >>> bids.distinct("auction").select("auction", "price").collect().rows()
            [(1, 50.0), (2, 250.0)]
        """
        return self.key_by(*(columns or self._node.schema.names)).deduplicate(ttl=ttl)

    def with_event_time(
        self,
        event_time: str | Expr,
        *,
        time_unit: TimeUnit | None = None,
        time_format: str | None = None,
        timezone: str | None = None,
        max_out_of_orderness: Duration | None = None,
        watermarks: WatermarkStrategy | None = None,
    ) -> Stream[T]:
        """The same rows with another event time, by which time comes on from here: Flink's assignTimestampsAndWatermarks.

        What the stream said about event time before ends here. Watermarks follow from the rows of each subtask, which
        may be several splits at once: where the source knows the time of a row, say it there.

        Args:
            event_time: a column or an expression: a timestamp, a date, text or a number. A row for which it is null or
                cannot be read fails the job; filter such rows out before.
            time_unit: what a number counts since 1970: `"s"`, `"ms"`, `"us"` or `"ns"`.
            time_format: format of text that is not RFC 3339.
            timezone: zone of text without an offset.
            max_out_of_orderness: how much later than the newest row before it a row may come, exactly so much included;
                `"0s"` if not given.
            watermarks: another strategy instead: `periodic(...)` or `punctuated(...)`.

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
        what, node = "with_event_time", self._node
        zone(timezone, what)
        form = event_time_form(what, event_time, node.schema, unit=time_unit, format=time_format, timezone=timezone)
        strategy = for_rows(watermark_strategy(what, max_out_of_orderness, watermarks), node.row_type)
        operation = AssignEventTime(EventTime(form, strategy))
        return Stream(self._pipeline, self._derive(operation, node.schema, node.row_type, event_time=True))

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
        operation = AssignProcessingTime(duration_us(every, "with_processing_time: every", positive=True))
        return Stream(self._pipeline, self._derive(operation, self._node.schema, self._node.row_type, event_time=True))

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
        return Stream(self._pipeline, process_node(self, process))

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
        return Stream(self._pipeline, self._side_node(tag))


@checked
def _check_gap(gap: Expr, columns: Schema) -> None:
    kind = output_field(gap, columns, "session").type
    if contains_aggregate(gap) or (kind != DURATION and kind not in INTEGERS):
        raise PipelineError(
            f"session: the gap {gap} is {kind}; it must say of each row how long a session waits behind it: a duration, "
            "or whole microseconds"
        )


class SourceStream(Stream[T]):
    """A stream that comes straight from a source."""

    def dead_letters(self) -> Stream[Row]:
        """The records that could not become rows: columns error, raw, where. The source says `bad_rows="dead_letter"`.

        Example:
            >>> read = p.read(files.Source("mixed.jsonl", schema=Total, bad_rows="dead_letter"))
            >>> read.dead_letters().select("error", "raw").collect().rows()
            [('Expected `int`, got `str` - at `$.auction`', b'{"auction": "one", "price": 1}')]
        """
        return Stream(self._pipeline, dead_letters_node(self))


@checked
class KeyedStream(StreamBase, Generic[T]):
    """A stream whose rows of one key meet in one subtask, in order. Column verbs belong before `key_by`."""

    _what = "a stream with a key"

    def _instead(self, name: str) -> str:
        if name == "with_columns":
            return "do it before key_by; to look at other rows of the key, write .over().with_columns(...)"
        if hasattr(Stream, name):
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
                from when it was written; after that its next row is new. Without it keys are remembered for ever.

        Example:
            >>> bids.key_by("auction").deduplicate().select("auction", "price").collect().rows()
            [(1, 50.0), (2, 250.0)]
            >>> newest = bids.key_by("auction").deduplicate("last", ttl="1d").select("auction", "price")
            >>> sorted(newest.collect().rows())
            [(1, 120.0), (2, 80.0)]
        """
        ttl_us = None if ttl is None else duration_us(ttl, "deduplicate: ttl", positive=True)
        node, operation = self._node, Deduplicate(keep, ttl_us)
        if keep == "first":
            return Stream(self._pipeline, self._derive(operation, node.schema, node.row_type))
        derived = self._derive(operation, node.schema, node.row_type, keys=node.keys, mode="upsert")
        return UpsertStream(self._pipeline, derived)

    def top(self, n: int, *, by: Expr | str, descending: bool = True) -> UpsertStream:
        """The best `n` rows of every key so far, as updates: the keys, the rank from 1, then the other columns.

        A row replaces the earlier one of its keys and rank; a batch sends the ranks that it changed, each row with
        its own event time. Of equal rows the one that arrived first is the better one; null and NaN are behind all
        others.

        Args:
            n: how many rows per key.
            by: the column or expression that orders them.
            descending: whether the greatest is the best.

        Raises:
            PipelineError: such values have no order, or there is a column "rank".

        Example:
            >>> best = bids.key_by("auction").top(1, by="price").select("auction", "rank", "price")
            >>> sorted(best.collect().rows())
            [(1, 1, 120.0), (2, 1, 250.0)]
        """
        order = col(by) if isinstance(by, str) else by
        schema = top_schema(n, order, self._node.schema, self._node.keys)
        derived = self._derive(Top(n, order, descending), schema, keys=self._node.keys, mode="upsert")
        return UpsertStream(self._pipeline, derived)

    def agg(self, **aggregates: Expr) -> UpsertStream:
        """The running result per key: every batch emits the new result of each key it touched.

        Example:
            >>> totals = bids.key_by("auction").agg(bids=count(), revenue=col("price").sum())
            >>> sorted(totals.collect().rows())
            [(1, 2, 170.0), (2, 2, 330.0)]
        """
        from penstock.expressions.aggregates import AggregatePlan  # loads Polars

        keys = self._node.schema.select(self._node.keys)
        plan = AggregatePlan.build(tuple(aggregates.items()), self._node.schema, event_time=self._node.event_time)
        schema = Schema((*keys, *plan.output_fields))
        operation = RunningAggregate(tuple(aggregates.items()))
        return UpsertStream(self._pipeline, self._derive(operation, schema, keys=self._node.keys, mode="upsert"))

    def reduce(self, function: Callable[[T, T], T]) -> UpsertStream:
        """The running `function(accumulated, row)` per key; the first row of a key is its first result.

        Example:
            >>> def dearer(one: Bid, other: Bid) -> Bid:
            ...     return max(one, other, key=lambda bid: bid.price)
            >>> sorted(bids.key_by("auction").reduce(dearer).select("auction", "price").collect().rows())
            [(1, 120.0), (2, 250.0)]
        """
        operation = RunningReduce(function)
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
        return Stream(self._pipeline, process_node(self, process))


@checked
class ConnectedStreams(Verbs, Generic[T, U]):
    """Two streams with a common key; only `.process(...)` makes a stream of them again."""

    _what = "a pair of connected streams"

    def __init__(self, left: KeyedStream[T], right: KeyedStream[U]) -> None:
        self._left = left
        self._right = right

    def process(self, process: KeyedCoProcess[T, U, V]) -> Stream[V]:
        """Run a `KeyedCoProcess`: rows of either stream in, any rows out, with state and timers per key.

        Example:
            >>> dear = bids.filter(col("price") > 200)
            >>> class Warned(KeyedCoProcess[Bid, Bid, Total]):
            ...     def on_left(self, row, ctx):
            ...         ctx.emit(Total(ctx.key, 0.0))
            ...     def on_right(self, row, ctx):
            ...         ctx.emit(Total(ctx.key, row.price))
            >>> bids.key_by("auction").connect(dear.key_by("auction")).process(Warned()).collect().height
            5
        """
        return Stream(self._left._pipeline, co_process_node(self._left, self._right, process))


class BroadcastStream(Verbs, Generic[T]):
    """A stream of which every row is to reach every subtask; only `connect` of another stream takes it."""

    _what = "a broadcast stream"

    def __init__(self, stream: Stream[T]) -> None:
        self._stream = stream

    def _instead(self, name: str) -> str:
        if name == "connect":
            return "write it the other way round: stream.connect(rules.broadcast())"
        if hasattr(Stream, name):
            return "do it before broadcast; after it only .connect(...) of another stream takes the rows"
        return super()._instead(name)


@checked
class BroadcastConnectedStreams(Verbs, Generic[T, U]):
    """A stream without key and a broadcast one; only `.process(...)` makes a stream of them again."""

    _what = "a pair of connected streams"

    def __init__(self, left: Stream[T], right: Stream[U]) -> None:
        self._left = left
        self._right = right

    def process(self, process: BroadcastProcess[T, U, V]) -> Stream[V]:
        """Run a `BroadcastProcess`: rows of either stream in, any rows out, with broadcast state.

        Example:
            >>> class Both(BroadcastProcess[Bid, Bid, Total]):
            ...     def on_row(self, row, ctx):
            ...         ctx.emit(Total(row.auction, row.price))
            ...     def on_broadcast(self, row, ctx):
            ...         ctx.emit(Total(row.auction, 0.0))
            >>> bids.connect(bids.filter(col("price") > 200).broadcast()).process(Both()).collect().height
            5
        """
        return Stream(self._left._pipeline, co_process_node(self._left, self._right, process))


@checked
class KeyedBroadcastConnectedStreams(Verbs, Generic[T, U]):
    """A stream with a key and a broadcast one; only `.process(...)` makes a stream of them again."""

    _what = "a pair of connected streams"

    def __init__(self, left: KeyedStream[T], right: Stream[U]) -> None:
        self._left = left
        self._right = right

    def process(self, process: KeyedBroadcastProcess[T, U, V]) -> Stream[V]:
        """Run a `KeyedBroadcastProcess`: state and timers per key of the first stream, and broadcast state.

        Example:
            >>> class Both(KeyedBroadcastProcess[Bid, Bid, Total]):
            ...     seen = ValueState(int)
            ...     def on_row(self, row, ctx):
            ...         self.seen.set(self.seen.get(default=0) + 1)
            ...         ctx.emit(Total(ctx.key, self.seen.get(default=0)))
            ...     def on_broadcast(self, row, ctx):
            ...         ctx.emit(Total(row.auction, 0.0))
            >>> dear = bids.filter(col("price") > 200).broadcast()
            >>> sorted(bids.key_by("auction").connect(dear).process(Both()).collect().rows())
            [(1, 1.0), (1, 2.0), (2, 0.0), (2, 1.0), (2, 2.0)]
        """
        return Stream(self._left._pipeline, co_process_node(self._left, self._right, process))


@checked
class OverStream(Verbs, Generic[T]):
    """A keyed stream whose rows are to be seen beside the rows before them."""

    _what = "a stream over rows"

    def _instead(self, name: str) -> str:
        if hasattr(Stream, name):
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
        return Stream(keyed._pipeline, node)


@checked
class WindowedStream(Verbs, Generic[T]):
    """A keyed stream cut into windows, to be aggregated."""

    _what = "a stream in windows"

    def _instead(self, name: str) -> str:
        if hasattr(Stream, name):
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

        The rows of each window are kept until it ends. See `penstock.triggers`.

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
        return Stream(self._keyed._pipeline, apply_node(self._keyed, said, function, returns))

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
        return Stream(self._keyed._pipeline, self._aggregate(aggregates, 0))

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
        order = col(by) if isinstance(by, str) else by
        node = self._keyed._node
        schema = window_rows_schema("top", top_schema(n, order, node.schema, node.keys), node.keys)
        packed = self._packed("top")
        return self._rows("top", packed.top_k_by(order, n) if descending else packed.bottom_k_by(order, n), schema)

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
        node = self._keyed._node
        schema = window_rows_schema("deduplicate", node.schema, node.keys)
        packed = self._packed("deduplicate")
        return self._rows("deduplicate", packed.first() if keep == "first" else packed.last(), schema)

    def _packed(self, verb: str) -> Expr:
        """All columns but the keys as one value."""
        node = self._keyed._node
        others = [field.name for field in others_than(node.keys, node.schema)]
        if not others:
            raise PipelineError(
                f"{verb}: all columns are keys, so rows of a key do not differ; write .agg(rows=count())"
            )
        return struct(*others)

    def _rows(self, verb: str, packed: Expr, schema: Schema) -> Stream[Row]:
        if isinstance(self._window, GlobalWindow):
            raise PipelineError(
                f"{verb}: a global window has no end; write key_by(...).{verb}(...), whose rows are updates"
            )
        if self._lateness_us:
            raise PipelineError(
                f"{verb}: rows of windows are sent once, when a window ends; leave allowed_lateness out, or let "
                "watermarks wait longer with max_out_of_orderness"
            )
        operation = WindowAggregate(self._window, ((verb, packed),), 0, self._late, unpacked=True)
        return Stream(self._keyed._pipeline, self._derived(operation, schema))

    def _aggregate(self, aggregates: Mapping[str, Expr], lateness_us: int) -> Node:
        from penstock.expressions.aggregates import AggregatePlan  # loads Polars

        keyed = self._keyed
        if isinstance(self._window, GlobalWindow):
            return aggregate_node(keyed, RowWindows(self._window, at_watermark()), dict(aggregates))
        node = keyed._node
        keys = node.schema.select(node.keys)
        plan = AggregatePlan.build(tuple(aggregates.items()), node.schema, event_time=True)
        operation = WindowAggregate(self._window, tuple(aggregates.items()), lateness_us, self._late)
        schema = Schema((*keys, *operation.window_fields, *plan.output_fields))
        return self._derived(operation, schema)

    def _derived(self, operation: WindowAggregate, schema: Schema) -> Node:
        node = self._keyed._node
        mode: Mode = "upsert" if operation.allowed_lateness_us > 0 else "append"
        result = self._keyed._derive(operation, schema, keys=node.keys, mode=mode)
        if self._late is not None:
            result.sides = {self._late.name: node.schema}
        return result


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
        if hasattr(Stream, name):
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
        return Stream(self._keyed._pipeline, apply_node(self._keyed, self._said, function, returns))

    def _aggregate(self, aggregates: Mapping[str, Expr]) -> Node:
        return aggregate_node(self._keyed, self._said, dict(aggregates))


@checked
class TriggeredStream(_RowWindowed[T]):
    """Windows that fire when their trigger says so."""

    def agg(self, **aggregates: Expr) -> UpsertStream:
        """Per firing a row with the keys, `window_start`, `window_end` and the aggregates of all rows of the window.

        A row replaces the earlier ones of its key and window. Sessions have a column `retracted` beside, as with
        `allowed_lateness`: a session that was sent and then grew is taken back under its old bounds. A window holds
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
        return Stream(self._keyed._pipeline, self._aggregate(aggregates))


@checked
class CountWindowedStream(_RowWindowed[T]):
    """Windows of so many rows per key."""

    def agg(self, **aggregates: Expr) -> Stream[Row]:
        """Per window a row with the keys and the aggregates.

        Example:
            >>> bids.key_by("auction").count_window(2, every=1).agg(bids=count()).collect().rows()
            [(1, 1), (2, 1), (1, 2), (2, 2)]
        """
        return Stream(self._keyed._pipeline, self._aggregate(aggregates))
