"""Streams of updates: rows that make earlier ones no longer true, and what can be done with them.

An update replaces the former row of its key. As changes, the former row is retracted before the new one is added, so
that sums over other keys stay right; the verbs that need that put it in between by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Self, TypeVar

from penstock.api.verbs import OF_WINDOWS, StreamBase, Verbs, WrittenStream, belongs_before, is_triggered
from penstock.connectors.base import ChangeSource, Row, Sink, WatermarkStrategy
from penstock.connectors.event_times import TimeUnit
from penstock.core.arguments import checked
from penstock.core.times import Duration
from penstock.expressions import Expr, Operand, output_name
from penstock.functions.process_functions import OutputTag
from penstock.functions.windows.definitions import RANK, FixedWindow, RowWindow
from penstock.plan.building import columns as verbs
from penstock.plan.building.aggregates import aggregate, top
from penstock.plan.building.changes import distinct, final, to_changes, union_of_changes
from penstock.plan.building.grouping_sets import cube_sets, grouped, rollup_sets
from penstock.plan.building.joins import On, join_current_rows
from penstock.plan.building.keys import check_new_keys, key_by, key_names
from penstock.plan.building.over_current import frame_up_to, over_current
from penstock.plan.building.rows import Rows
from penstock.plan.building.sets import set_operation
from penstock.plan.building.sources import dead_letters, read, write
from penstock.plan.building.temporal_filters import temporal_filter
from penstock.plan.building.times import with_event_time
from penstock.plan.building.windows import aggregate_windows_of_changes, check_windows_of_changes
from penstock.plan.logical import Node, ancestors, sources_of
from penstock.plan.operations.join import JoinKind
from penstock.plan.operations.over_current import Frame, OverColumn
from penstock.plan.order import Order, orders

if TYPE_CHECKING:
    from penstock.api.pipeline import DeclaredPipeline
    from penstock.api.stream import Stream

U = TypeVar("U")


@checked
class UpsertStream(StreamBase):
    """A stream of updates: a row replaces the earlier one of its key (and window).

    `changes`, `filter` and what is keyed again have a column `retracted`: such a row takes back one that was sent before,
    the same in all other columns.
    """

    _what = "a stream of updates"

    def _instead(self, name: str) -> str:
        if name in OF_WINDOWS and (verb := belongs_before(self._node, name)):
            return f"it says something of windows, not of their results; write it before .{verb}(...)"
        if self._pipeline._has_verb(name):
            return (
                f"this is a stream of updates (a row replaces an earlier one of its key), so {name} would count or keep "
                f"outdated rows; write it, aggregate it with .key_by(...).agg(...), take .final() of it if the input has "
                f"an end, or {self._without_updates()}"
            )
        return super()._instead(name)

    def _without_updates(self) -> str:
        """What to change above, so that no row replaces another."""
        if any(is_triggered(node.operation) for node in (self._node, *ancestors(self._node))):
            return (
                "leave .trigger(...) out, or write .trigger(purging(...)), whose results are each of what came since the "
                "last one"
            )
        return "aggregate with windows without allowed_lateness"

    def changes(self, *, ttl: Duration | None = None) -> UpsertStream:
        """The same as changes: what an update replaces is retracted, by a row with `retracted` true, before the new row.

        Of the updates of a key in one batch only the last counts, and what changes nothing is not sent. The rows that
        were not retracted are, at any time, those that hold (those are -U and -D of Flink's toChangelogStream).

        Args:
            ttl: how long the row of a key is kept after its last update, in processing time and up to an eighth longer;
                its next row is added without anything being retracted then. What changes nothing is then sent, too, so
                that the keys behind live on. As `state_ttl` says if not given.

        Raises:
            PipelineError: a column of the key is not there any more, or `retracted` is the name of another one; or `ttl`
                is given and these are changes already.

        Example:
            >>> dear = bids.key_by("auction").agg(dear=(col("price").max() > 100)).changes()
            >>> dear.schema.names
            ('auction', 'dear', 'retracted')
        """
        return self._of(to_changes(self._rows, "changes", ttl))

    def _of(self, rows: Rows) -> UpsertStream:
        return UpsertStream(self._pipeline, rows.node)

    def filter(self, *predicates: Expr) -> UpsertStream:
        """Only the rows for which every predicate is true, as `changes`: one that no longer holds is retracted.

        Example:
            >>> totals = bids.key_by("auction").agg(bids=count(), revenue=col("price").sum())
            >>> totals.filter(col("revenue") > 200).final().collect().rows()
            [(2, 2, 330.0)]
        """
        return self._of(verbs.filter_rows(to_changes(self._rows, "filter"), predicates))

    def temporal_filter(
        self, *, valid_from: str | Expr | None = None, valid_until: str | Expr | None = None
    ) -> UpsertStream:
        """The current rows that are valid at the time that event time has reached, as `changes`: see
        `Stream.temporal_filter`. A row that is replaced or retracted before its span ends is retracted then.

        Raises:
            PipelineError: neither bound is given, one is no time, or event time does not advance here.

        Example:
            >>> totals = bids.key_by("auction").agg(bids=count(), newest=col("at").max())
            >>> active = totals.temporal_filter(valid_until=col("newest") + timedelta(hours=1))
            >>> active.schema.names
            ('auction', 'bids', 'newest', 'retracted')
        """
        return self._of(temporal_filter(self._rows, valid_from, valid_until))

    def with_event_time(
        self,
        event_time: str | Expr,
        *,
        time_unit: TimeUnit | None = None,
        time_format: str | None = None,
        timezone: str | None = None,
        max_out_of_orderness: Duration | None = None,
        watermarks: WatermarkStrategy | None = None,
    ) -> UpsertStream:
        """As `changes`, with a time of the row as event time: a row is retracted at the time at which it was added.

        So windows behind know where to take it back. The arguments are those of `Stream.with_event_time`; watermarks
        should leave as much time as a row may be retracted after, since windows are sent once.

        Raises:
            PipelineError: event time cannot be read from such values.

        Example:
            >>> totals = bids.key_by("auction").agg(revenue=col("price").sum(), newest=col("at").max())
            >>> timed = totals.with_event_time("newest", max_out_of_orderness="1h")
            >>> per_hour = timed.key_by(all=lit(1)).window(tumbling("1h")).agg(revenue=col("revenue").sum())
            >>> per_hour.select("all", "revenue").collect().rows()
            [(1, 500.0)]
        """
        given = (event_time, time_unit, time_format, timezone, max_out_of_orderness, watermarks)
        return self._of(with_event_time(to_changes(self._rows, "with_event_time"), *given))

    def key_by(self, *columns: str | Expr, **named: Operand) -> KeyedUpdates:
        """Bring together what holds of equal values of these columns, to aggregate it: aggregates of aggregates.

        Example:
            >>> totals = bids.key_by("auction").agg(bids=count())
            >>> sorted(totals.key_by("bids").agg(auctions=count()).final().collect().rows())
            [(2, 2)]
        """
        names = key_names(columns)
        if named:
            check_new_keys(self._rows, named)
            return self.with_columns(**named).key_by(*names, *named)
        return KeyedUpdates(self._pipeline, key_by(to_changes(self._rows, "key_by"), names).node)

    def grouping_sets(self, *sets: Sequence[str]) -> KeyedUpdates:
        """Group the current rows by several sets of columns at once; see `Stream.grouping_sets`.

        Example:
            >>> totals = bids.key_by("auction").agg(bids=count())
            >>> sorted(totals.grouping_sets(["bids"], []).agg(auctions=count()).final().collect().rows(), key=str)
            [(2, 0, 2), (None, 1, 2)]
        """
        return self._grouped("grouping_sets", sets)

    def rollup(self, *columns: str) -> KeyedUpdates:
        """Group the current rows by these columns, all but the last, and so on; see `Stream.rollup`.

        Example:
            >>> totals = bids.key_by("auction").agg(bids=count())
            >>> sorted(totals.rollup("bids").agg(auctions=count()).final().collect().rows(), key=str)
            [(2, 0, 2), (None, 1, 2)]
        """
        return self._grouped("rollup", rollup_sets(columns))

    def cube(self, *columns: str) -> KeyedUpdates:
        """Group the current rows by every subset of these columns; see `Stream.cube`.

        Example:
            >>> totals = bids.key_by("auction").agg(bids=count())
            >>> sorted(totals.cube("bids").agg(auctions=count()).final().collect().rows(), key=str)
            [(2, 0, 2), (None, 1, 2)]
        """
        return self._grouped("cube", cube_sets(columns))

    def _grouped(self, verb: str, sets: Sequence[Sequence[str]]) -> KeyedUpdates:
        return KeyedUpdates(self._pipeline, grouped(to_changes(self._rows, verb), verb, sets).node)

    def distinct(self, *columns: str, ttl: Duration | None = None) -> UpsertStream:
        """The values of these columns, of all if none is named, that any row has, once each, as `changes`.

        They are retracted with the last row that has them. What is kept is how many rows have them.

        Args:
            *columns: their names.
            ttl: how long values are kept after the last change of a row that has them, as in `KeyedUpdates.agg`.

        Raises:
            PipelineError: a column is not there, or cannot be a key.

        Example:
            >>> totals = bids.key_by("auction").agg(bids=count())
            >>> totals.distinct("bids").final().collect().rows()
            [(2,)]
        """
        return self._of(distinct(self._rows, columns, ttl))

    def union(self, *others: UpsertStream) -> UpsertStream:
        """What holds in any of several streams with the same columns, as `changes`: what holds in two holds twice.

        So rows replace no others by a key: a sink with a key has the last row of each that holds.

        Raises:
            PipelineError: the columns differ.

        Example:
            >>> dear = bids.filter(col("price") > 100).key_by("auction").agg(bids=count())
            >>> cheap = bids.filter(col("price") <= 100).key_by("auction").agg(bids=count())
            >>> sorted(dear.union(cheap).final().collect().rows())
            [(1, 1), (1, 1), (2, 1), (2, 1)]
        """
        return self._of(union_of_changes([self._rows, *(other._rows for other in others)]))

    def intersect(
        self,
        other: Stream[Any] | UpsertStream,
        *,
        all: bool = False,
        ttl: Duration | None = None,
    ) -> UpsertStream:
        """The rows that hold in both streams, as `changes`; see `Stream.intersect`.

        They are there once each, or with `all=True` as often as in both.

        Raises:
            PipelineError: the columns differ, or one cannot be a key.

        Example:
            >>> dear = bids.filter(col("price") > 200).select("auction").distinct()
            >>> totals = bids.key_by("auction").agg(revenue=col("price").sum())
            >>> totals.filter(col("revenue") > 100).select("auction").intersect(dear).final().collect().rows()
            [(2,)]
        """
        return self._of(set_operation("intersect", self._rows, other._rows, ttl, all_copies=all))

    def minus(
        self,
        other: Stream[Any] | UpsertStream,
        *,
        all: bool = False,
        ttl: Duration | None = None,
    ) -> UpsertStream:
        """The rows that hold in this stream and not in the other one, as `changes`; see `Stream.minus`.

        They are there once each, or with `all=True` as often as there are more of them here.

        Raises:
            PipelineError: the columns differ, or one cannot be a key.

        Example:
            >>> dear = bids.filter(col("price") > 200).select("auction").distinct()
            >>> totals = bids.key_by("auction").agg(revenue=col("price").sum())
            >>> totals.filter(col("revenue") > 100).select("auction").minus(dear).final().collect().rows()
            [(1,)]
        """
        return self._of(set_operation("minus", self._rows, other._rows, ttl, all_copies=all))

    def join(
        self,
        other: Stream[Any] | UpsertStream,
        *,
        on: On,
        how: JoinKind = "inner",
        ttl: Duration | None = None,
        where: Expr | None = None,
        nulls_equal: bool = False,
        suffix: str = "_right",
    ) -> UpsertStream:
        """The rows that hold beside those of another stream that have the same key, as `changes`: a regular join.

        A row replaces another by the key of the join and those of both streams; if one of them is of facts, by none:
        then equal rows may hold several times. See `Stream.join` without a word on time, which also tells of the
        arguments.

        Raises:
            PipelineError: keys are not there or of unlike types, or `where` is no condition on the columns of both.

        Example:
            >>> totals = bids.key_by("auction").agg(total=col("price").sum())
            >>> counts = bids.filter(col("price") > 100).key_by("auction").agg(dear=count())
            >>> sorted(totals.join(counts, on="auction", how="left").final().collect().rows())
            [(1, 170.0, 1), (2, 330.0, 1)]
            >>> most = bids.key_by("auction").agg(most=col("price").max())
            >>> above = totals.join(most, on="auction", how="anti", where=col("most") > col("total") * 0.75)
            >>> above.final().collect().rows()
            [(1, 170.0)]
        """
        joined = join_current_rows(self._rows, other._rows, on, how, ttl, suffix, where, nulls_equal=nulls_equal)
        return self._of(joined)

    def select(self, *exprs: Expr | str, **named: Operand) -> UpsertStream:
        """Only these columns; the key columns should be among them.

        Example:
            >>> totals = bids.key_by("auction").agg(bids=count(), revenue=col("price").sum())
            >>> sorted(totals.select("auction", "revenue").collect().rows())
            [(1, 170.0), (2, 330.0)]
        """
        return self._of(verbs.select(self._rows, exprs, named))

    def with_columns(self, *exprs: Expr, **named: Operand) -> UpsertStream:
        """All columns and these.

        Example:
            >>> totals = bids.key_by("auction").agg(bids=count(), revenue=col("price").sum())
            >>> sorted(totals.with_columns(mean=col("revenue") / col("bids")).collect().rows())
            [(1, 2, 170.0, 85.0), (2, 2, 330.0, 165.0)]
        """
        return self._of(verbs.with_columns(self._rows, exprs, named))

    def drop(self, *names: str) -> UpsertStream:
        """All columns but these.

        Example:
            >>> totals = bids.key_by("auction").agg(bids=count(), revenue=col("price").sum())
            >>> totals.drop("bids").schema.names
            ('auction', 'revenue')
        """
        return self._of(verbs.drop(self._rows, names))

    def rename(self, names: Mapping[str, str]) -> UpsertStream:
        """The same columns with other names.

        Example:
            >>> totals = bids.key_by("auction").agg(bids=count(), revenue=col("price").sum())
            >>> totals.rename({"revenue": "euros"}).schema.names
            ('auction', 'bids', 'euros')
        """
        return self._of(verbs.rename(self._rows, names))

    def write(self, sink: Sink, *, ttl: Duration | None = None) -> WrittenStream:
        """Hand the updates to `sink`, or as changes to one that wants these, or where a row may stand under another key
        than the one that it replaces.

        Args:
            sink: where they go.
            ttl: how long the row of a key is kept after its last change, in processing time and up to an eighth longer,
                where the sink needs that: to be retracted, or because the sink has one row of another key than that of
                the updates. As `state_ttl` says if not given.

        Raises:
            PipelineError: it cannot take rows of this schema, or another sink of the pipeline writes to its place; or a
                column is not there any more that says what a row replaces there; or `ttl` is given and no row is kept.

        Example:
            >>> totals = bids.key_by("auction").agg(bids=count())
            >>> written = totals.write(kafka.Sink("totals", key="auction", format="debezium"))
        """
        return WrittenStream(self._pipeline, write(self._rows, sink, ttl).node)

    def final(self) -> Stream[Row]:
        """Only the last row of every key, sent at the end of the input: a stream of rows, which all verbs take.

        The key is that of the updates: with windows the window too, behind `top` the rank. Sessions that were retracted
        are left out. Changes that have no key give every row that holds. Watermarks wait for the end as well, so that no
        row is late behind.

        Raises:
            PipelineError: a source has no end, or a column of the key is not there any more.

        Example:
            >>> totals = bids.key_by("auction").agg(revenue=col("price").sum()).final()
            >>> sorted(totals.collect().rows())
            [(1, 170.0), (2, 330.0)]
        """
        return self._pipeline._stream_of(final(self._rows).node)

    def side(self, tag: OutputTag[U]) -> Stream[U]:
        """A side output of the operator that made this stream, such as its late rows.

        Example:
            >>> LATE = OutputTag("late")
            >>> windows = bids.key_by("auction").window(tumbling("1m")).late_to(LATE).allowed_lateness("1h")
            >>> windows.agg(bids=count()).side(LATE).collect().height
            0
        """
        return self._pipeline._stream_of(self._side_rows(tag).node)


@checked
class SourceUpdates(UpsertStream):
    """Changes that come straight from a source."""

    @classmethod
    def of(cls, pipeline: DeclaredPipeline, source: ChangeSource[Any]) -> SourceUpdates:
        """The changes of a source; where it has not all of them, they are made behind it."""
        return cls(pipeline, read(pipeline.plan, source).node)

    def uid(self, uid: str) -> Self:
        """Name what reads, and what keeps the rows, so that both are found again when the pipeline changes around them.

        Raises:
            PipelineError: another operator has this uid.

        Example:
            >>> totals = p.read(kafka.ChangeSource("totals", key="auction", schema=Total)).uid("totals")
        """
        super().uid(uid)
        if self._read is not self._node:
            StreamBase(self._pipeline, self._read).uid(f"{uid}-read")
        return self

    @property
    def _read(self) -> Node:
        return next(node for node, _ in sources_of(self._node))

    def dead_letters(self) -> Stream[Row]:
        """The records that are no changes: columns error, raw, where. The source says `bad_rows="dead_letter"`.

        Example:
            >>> totals = kafka.ChangeSource("totals", key="auction", schema=Total, bad_rows="dead_letter")
            >>> p.read(totals).dead_letters().schema.names
            ('error', 'raw', 'where')
        """
        return self._pipeline._stream_of(dead_letters(self._rows.of(self._read)).node)


@checked
class KeyedUpdates(StreamBase):
    """Changes by key."""

    _what = "a keyed stream of updates"

    def _instead(self, name: str) -> str:
        if self._pipeline._has_verb(name):
            return f"updates have agg, top, over and window here; {name} would count or keep rows that were taken back"
        return super()._instead(name)

    def window(self, window: RowWindow) -> WindowedUpdates:
        """Cut the changes of each key into windows: `tumbling("10s")`, `sliding("1h", every="5m")` or
        `cumulative("1d", every="1h")`, by the time that `with_event_time` says.

        Raises:
            PipelineError: it says none, so a row that is retracted would be looked for in the window of the change; or
                windows are sessions, which rows that are retracted would part.

        Example:
            >>> totals = bids.key_by("auction").agg(revenue=col("price").sum(), newest=col("at").max())
            >>> timed = totals.with_event_time("newest", max_out_of_orderness="1h")
            >>> timed.key_by("auction").window(tumbling("1h")).agg(revenue=col("revenue").sum()).schema.names
            ('auction', 'window_start', 'window_end', 'revenue')
        """
        return WindowedUpdates(self, check_windows_of_changes(self._node, window))

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
        """The best `n` rows of every key that hold, as `UpsertStream.changes`: the keys, the rank from 1, the others.

        What stood at a rank is retracted when another row comes to stand there, or none. All rows of a key are kept.
        Of equal rows the one that was added first is the better one; null and NaN are behind all others.

        Args:
            n: how many rows per key; None: all.
            by: the column or expression that orders them, or several, of which a later one decides where the ones before
                are equal.
            descending: whether the greatest is the best; a list has one for each of `by`.
            nulls_last: whether null is behind all values or in front of them, whatever the direction is; NaN is the
                greatest value then, as in databases. A list has one for each of `by`.
            offset: how many of the best rows are left out; ranks count them.
            rank: the name of the column of ranks. None: there is none, and the columns are those of the stream; nothing
                is sent then when only ranks change.
            ttl: how long the rows of a key are kept after its last change, in processing time and up to an eighth longer;
                its next row begins anew then, nothing is sent before that, and what takes back a row of before does
                nothing. As `state_ttl` says if not given.

        Raises:
            PipelineError: such values have no order, a number is less than it may be, or a column has the name of the
                ranks.

        Example:
            >>> totals = bids.key_by("auction").agg(revenue=col("price").sum())
            >>> totals.key_by(all=lit(1)).top(1, by="revenue").select("all", "rank", "auction").final().collect().rows()
            [(1, 1, 2)]
        """
        order = orders("top", by, descending, nulls_last)
        return UpsertStream(self._pipeline, top(self._rows, n, order, ttl, offset=offset, rank=rank).node)

    def over(
        self,
        order_by: Expr | str | Sequence[Expr | str] | None = None,
        *,
        descending: bool | Sequence[bool] = False,
        nulls_last: bool | Sequence[bool] = True,
        within: Duration | float | Decimal | None = None,
        rows: int | None = None,
        ttl: Duration | None = None,
    ) -> OverUpdates:
        """Every row that holds beside the others of its key, in any order: SQL's OVER, kept current.

        Behind `with_columns` they are `UpsertStream.changes`: where the change of one row changes what is computed for
        others, these are retracted and added anew. An aggregate is of the rows of its frame:

        * all rows of the key, if there is no order;
        * with an order those up to the row, and those that are equal to it in the order (SQL's RANGE);
        * with `within` those of them that are at most so far in front of it in the order;
        * with `rows` so many rows, this one included; of equal ones in the order in which they were added (SQL's ROWS).

        All rows of a key are kept, and computed again when a batch changes one of them.

        Args:
            order_by: the column or expression that orders the rows, or several.
            descending: whether the greatest comes first; a list has one for each of `order_by`.
            nulls_last: whether null comes last, whatever the direction is; NaN is the greatest value. A list has one for
                each of `order_by`.
            within: a number, or a duration if rows are in order of a time; there is one `order_by` then.
            rows: how many rows.
            ttl: how long the rows of a key are kept after its last change, as in `top`.

        Raises:
            PipelineError: such values have no order, or the frame does not fit them.

        Example:
            >>> totals = bids.key_by("auction").agg(revenue=col("price").sum())
            >>> ranked = totals.key_by(all=lit(1)).over("revenue", descending=True)
            >>> shares = ranked.with_columns(place=row_number(), so_far=col("revenue").sum())
            >>> sorted(shares.select("auction", "revenue", "place", "so_far").final().collect().rows())
            [(1, 170.0, 2, 500.0), (2, 330.0, 1, 330.0)]
        """
        order = () if order_by is None else orders("over", order_by, descending, nulls_last)
        return OverUpdates(self, order, frame_up_to(within, rows), ttl)

    def agg(self, *, ttl: Duration | None = None, **aggregates: Expr) -> UpsertStream:
        """The running result per key of the rows that hold, as `UpsertStream.changes`; a key without any has none.

        Sums, counts, means and variances are retracted by subtraction. For all others the rows of a key are kept, as far
        as the aggregates look at them, and the result is computed anew for the keys of a batch.

        Args:
            ttl: how long a key is kept after its last change, in processing time and up to an eighth longer; its next row
                begins anew then, nothing is sent before that, and what takes back a row of before does nothing. A result
                is then sent with every change, also where it stays the same, so that the keys behind live on. For ever
                if not given.
            **aggregates: the results, by name.

        Raises:
            PipelineError: a result depends on the order of rows, which changes do not have.

        Example:
            >>> totals = bids.key_by("auction").agg(revenue=col("price").sum())
            >>> totals.key_by(all=lit(1)).agg(auctions=count(), best=col("revenue").max()).final().collect().rows()
            [(1, 2, 330.0)]
        """
        return UpsertStream(self._pipeline, aggregate(self._rows, aggregates, ttl).node)


@checked
class OverUpdates(Verbs):
    """Changes by key whose rows are to be seen beside the others that hold."""

    _what = "a stream of updates over rows"

    def _instead(self, name: str) -> str:
        if self._keyed._pipeline._has_verb(name):
            return "do it before key_by, or behind with_columns(...)"
        return super()._instead(name)

    def __init__(
        self, keyed: KeyedUpdates, order: tuple[Order, ...], frame: Frame | None, ttl: Duration | None
    ) -> None:
        self._keyed = keyed
        self._order = order
        self._frame = frame
        self._ttl = ttl

    def with_columns(self, *exprs: Expr, **named: Expr) -> UpsertStream:
        """Every row that holds with all its columns and these, as `UpsertStream.changes`.

        Aggregates are of the frame, columns of the row itself, and both can be combined. `row_number()`, `lag(...)` and
        `lead(...)` look at all rows of the key in the order, whatever the frame is.

        Raises:
            PipelineError: an expression does not fit the columns or is called as one of them, or there is none.

        Example:
            >>> totals = bids.key_by("auction").agg(revenue=col("price").sum())
            >>> shares = totals.key_by(all=lit(1)).over().with_columns(share=col("revenue") / col("revenue").sum())
            >>> sorted(shares.select("auction", "share").final().collect().rows())
            [(1, 0.34), (2, 0.66)]
        """
        columns = [(output_name(expr, "over"), expr) for expr in exprs] + list(named.items())
        over = [OverColumn(name, expr, order=self._order, frame=self._frame) for name, expr in columns]
        keyed = self._keyed
        return UpsertStream(keyed._pipeline, over_current(keyed._rows, over, self._ttl).node)


@checked
class WindowedUpdates(Verbs):
    """Changes by key cut into windows, to be aggregated."""

    _what = "a stream of updates in windows"

    def _instead(self, name: str) -> str:
        if name in OF_WINDOWS:
            return "windows of changes are sent once; let watermarks wait longer with max_out_of_orderness"
        if self._keyed._pipeline._has_verb(name):
            return "updates have agg here; aggregate, which gives a stream of rows that has all verbs"
        return super()._instead(name)

    def __init__(self, keyed: KeyedUpdates, window: FixedWindow) -> None:
        self._keyed = keyed
        self._window = window

    def agg(self, **aggregates: Expr) -> Stream[Row]:
        """One row per key and window that has rows when it ends: the keys, `window_start`, `window_end` and these.

        It is made of the rows that hold then, and is sent once: what comes for a window that is over is dropped, and
        counted as late once for each such window. Its event time is the last moment of the window.

        Raises:
            PipelineError: a result depends on the order of rows, or a column that is read is called `window_start` or
                `window_end`.

        Example:
            >>> totals = bids.key_by("auction").agg(revenue=col("price").sum(), newest=col("at").max())
            >>> timed = totals.with_event_time("newest", max_out_of_orderness="1h")
            >>> per_hour = timed.key_by("auction").window(tumbling("1h")).agg(revenue=col("revenue").sum())
            >>> sorted(per_hour.select("auction", "revenue").collect().rows())
            [(1, 170.0), (2, 330.0)]
        """
        rows = aggregate_windows_of_changes(self._keyed._rows, self._window, aggregates)
        return self._keyed._pipeline._stream_of(rows.node)
