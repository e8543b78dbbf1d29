"""Streams of updates: rows that make earlier ones no longer true, and what can be done with them.

An update replaces the former row of its key. As changes, the former row is taken back before the new one is added, so
that sums over other keys stay right; the verbs that need that put it in between by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self, TypeVar

from penstock.api.joins import On, regular_join_node
from penstock.api.over import top_schema
from penstock.api.sets import set_node
from penstock.api.updates import check_ends, known_keys, moves, takes_back, update_keys
from penstock.api.verbs import (
    OF_WINDOWS,
    ColumnVerbs,
    StreamBase,
    Verbs,
    WrittenStream,
    belongs_before,
    check_keys,
    dead_letters_node,
    is_triggered,
    key_names,
    keyed_node,
)
from penstock.arguments import checked
from penstock.connectors.base import ChangeSource, Row, Sink, WatermarkStrategy
from penstock.connectors.event_times import TimeUnit
from penstock.errors import PipelineError
from penstock.expressions import Expr, Operand, col, columns_of, decided_by_arrival
from penstock.graph.logical import (
    RETRACTED,
    AggregateChanges,
    AssignEventTime,
    AssignWindows,
    Filter,
    FixedWindow,
    JoinKind,
    KeyBy,
    LastRows,
    Mode,
    Node,
    Project,
    Read,
    RowWindow,
    ToChanges,
    Top,
    Union,
    WindowChanges,
    ancestors,
    window_bounds,
)
from penstock.process_functions import OutputTag
from penstock.times import Duration
from penstock.types import BOOLEAN, Field, Schema, can_be_key, row_class

if TYPE_CHECKING:
    from penstock.api.pipeline import DeclaredPipeline
    from penstock.api.stream import Stream

U = TypeVar("U")


@checked
class UpsertStream(ColumnVerbs):
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
        """The same as changes: what an update replaces is taken back, by a row with `retracted` true, before the new row.

        Of the updates of a key in one batch only the last counts, and what changes nothing is not sent. The rows that
        were not taken back are, at any time, those that hold (those are -U and -D of Flink's toChangelogStream).

        Args:
            ttl: how long the row of a key is kept after its last update, in processing time and up to an eighth longer;
                its next row is added without anything being taken back then. What changes nothing is then sent, too, so
                that the keys behind live on. As `state_ttl` says if not given.

        Raises:
            PipelineError: a column of the key is not there any more, or `retracted` is the name of another one; or `ttl`
                is given and these are changes already.

        Example:
            >>> dear = bids.key_by("auction").agg(dear=(col("price").max() > 100)).changes()
            >>> dear.schema.names
            ('auction', 'dear', 'retracted')
        """
        return UpsertStream(self._pipeline, self._changes_node("changes", ttl))

    def _changes_node(self, verb: str, ttl: Duration | None = None) -> Node:
        if self._node.mode == "retract":
            if ttl is not None:
                raise PipelineError(
                    f"{verb}: these are changes already, so no rows are kept here, and ttl= says nothing; give it to "
                    f"{self._node.verb}, or to what is before it"
                )
            return self._node
        keys, retracted = update_keys(self._node, verb)
        if retracted != RETRACTED and RETRACTED in self._node.schema:
            raise PipelineError(f"{verb}: there is a column {RETRACTED!r} already; rename it before")
        fields = tuple(field for field in self._node.schema if field.name != retracted)
        return self._changed(keys, retracted, Schema((*fields, Field(RETRACTED, BOOLEAN))), ttl)

    def _changed(
        self, keys: tuple[str, ...], retracted: str | None, schema: Schema, ttl: Duration | None = None
    ) -> Node:
        by_key = UpsertStream(self._pipeline, self._derive(KeyBy(), self._node.schema, keys=keys, mode="upsert"))
        operation = ToChanges(retracted, self._pipeline._ttl_us(ttl, "changes"))
        return by_key._derive(operation, schema, keys=keys, mode="retract")

    def filter(self, *predicates: Expr) -> UpsertStream:
        """Only the rows for which every predicate is true, as `changes`: one that no longer holds is taken back.

        Example:
            >>> totals = bids.key_by("auction").agg(bids=count(), revenue=col("price").sum())
            >>> totals.filter(col("revenue") > 200).final().collect().rows()
            [(2, 2, 330.0)]
        """
        changes = UpsertStream(self._pipeline, self._changes_node("filter"))
        return UpsertStream(self._pipeline, changes._filter_node(predicates))

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
        """As `changes`, with a time of the row as event time: a row is taken back at the time at which it was added.

        So windows behind know where to take it back. The arguments are those of `Stream.with_event_time`; watermarks
        should leave as much time as a row may be taken back after, since windows are sent once.

        Raises:
            PipelineError: event time cannot be read from such values.

        Example:
            >>> totals = bids.key_by("auction").agg(revenue=col("price").sum(), newest=col("at").max())
            >>> timed = totals.with_event_time("newest", max_out_of_orderness="1h")
            >>> per_hour = timed.key_by(all=lit(1)).window(tumbling("1h")).agg(revenue=col("revenue").sum())
            >>> per_hour.select("all", "revenue").collect().rows()
            [(1, 500.0)]
        """
        changes = UpsertStream(self._pipeline, self._changes_node("with_event_time"))
        node = changes._timed_node(event_time, time_unit, time_format, timezone, max_out_of_orderness, watermarks)
        return UpsertStream(self._pipeline, node)

    def key_by(self, *columns: str | Expr, **named: Operand) -> KeyedUpdates:
        """Bring together what holds of equal values of these columns, to aggregate it: aggregates of aggregates.

        Example:
            >>> totals = bids.key_by("auction").agg(bids=count())
            >>> sorted(totals.key_by("bids").agg(auctions=count()).final().collect().rows())
            [(2, 2)]
        """
        names = key_names(columns)
        if named:
            self._check_new_keys(named)
            return self.with_columns(**named).key_by(*names, *named)
        changes = UpsertStream(self._pipeline, self._changes_node("key_by"))
        return KeyedUpdates(self._pipeline, changes._keyed_node(names))

    def distinct(self, *columns: str, ttl: Duration | None = None) -> UpsertStream:
        """The values of these columns, of all if none is named, that any row has, once each, as `changes`.

        They are taken back with the last row that has them. What is kept is how many rows have them.

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
        changes = UpsertStream(self._pipeline, self._changes_node("distinct"))
        names = columns or changes._node.row_schema.names
        check_keys(changes._node.row_schema, names, "distinct")
        operation = AggregateChanges((), "distinct", ttl_us=self._pipeline._ttl_us(ttl, "distinct"))
        return UpsertStream(self._pipeline, changes.key_by(*names)._changed(operation))

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
        changes = [each if each._node.mode == "append" else each.changes() for each in (self, *others)]
        return UpsertStream(self._pipeline, changes[0]._union_node(changes[1:]))

    def intersect(self, other: Stream[Any] | UpsertStream, *, ttl: Duration | None = None) -> UpsertStream:
        """The rows that hold in both streams, once each, as `changes`; see `Stream.intersect`.

        Raises:
            PipelineError: the columns differ, or one cannot be a key.

        Example:
            >>> dear = bids.filter(col("price") > 200).select("auction").distinct()
            >>> totals = bids.key_by("auction").agg(revenue=col("price").sum())
            >>> totals.filter(col("revenue") > 100).select("auction").intersect(dear).final().collect().rows()
            [(2,)]
        """
        return UpsertStream(self._pipeline, set_node("intersect", self, other, ttl))

    def minus(self, other: Stream[Any] | UpsertStream, *, ttl: Duration | None = None) -> UpsertStream:
        """The rows that hold in this stream and not in the other one, once each, as `changes`; see `Stream.minus`.

        Raises:
            PipelineError: the columns differ, or one cannot be a key.

        Example:
            >>> dear = bids.filter(col("price") > 200).select("auction").distinct()
            >>> totals = bids.key_by("auction").agg(revenue=col("price").sum())
            >>> totals.filter(col("revenue") > 100).select("auction").minus(dear).final().collect().rows()
            [(1,)]
        """
        return UpsertStream(self._pipeline, set_node("minus", self, other, ttl))

    def join(
        self,
        other: Stream[Any] | UpsertStream,
        *,
        on: On,
        how: JoinKind = "inner",
        ttl: Duration | None = None,
        suffix: str = "_right",
    ) -> UpsertStream:
        """The rows that hold beside those of another stream that have the same key, as `changes`: a regular join.

        A row replaces another by the key of the join and those of both streams; if one of them is of facts, by none:
        then equal rows may hold several times. See `Stream.join` without a word on time, which also tells of the
        arguments.

        Raises:
            PipelineError: keys are not there or of unlike types.

        Example:
            >>> totals = bids.key_by("auction").agg(total=col("price").sum())
            >>> counts = bids.filter(col("price") > 100).key_by("auction").agg(dear=count())
            >>> sorted(totals.join(counts, on="auction", how="left").final().collect().rows())
            [(1, 170.0, 1), (2, 330.0, 1)]
        """
        return UpsertStream(self._pipeline, regular_join_node(self, other, on, how, ttl, suffix))

    def select(self, *exprs: Expr | str, **named: Operand) -> UpsertStream:
        """Only these columns; the key columns should be among them.

        Example:
            >>> totals = bids.key_by("auction").agg(bids=count(), revenue=col("price").sum())
            >>> sorted(totals.select("auction", "revenue").collect().rows())
            [(1, 170.0), (2, 330.0)]
        """
        return UpsertStream(self._pipeline, self._select_node(exprs, named))

    def with_columns(self, *exprs: Expr, **named: Operand) -> UpsertStream:
        """All columns and these.

        Example:
            >>> totals = bids.key_by("auction").agg(bids=count(), revenue=col("price").sum())
            >>> sorted(totals.with_columns(mean=col("revenue") / col("bids")).collect().rows())
            [(1, 2, 170.0, 85.0), (2, 2, 330.0, 165.0)]
        """
        return UpsertStream(self._pipeline, self._with_columns_node(exprs, named))

    def drop(self, *names: str) -> UpsertStream:
        """All columns but these.

        Example:
            >>> totals = bids.key_by("auction").agg(bids=count(), revenue=col("price").sum())
            >>> totals.drop("bids").schema.names
            ('auction', 'revenue')
        """
        return UpsertStream(self._pipeline, self._drop_node(names))

    def rename(self, names: Mapping[str, str]) -> UpsertStream:
        """The same columns with other names.

        Example:
            >>> totals = bids.key_by("auction").agg(bids=count(), revenue=col("price").sum())
            >>> totals.rename({"revenue": "euros"}).schema.names
            ('auction', 'bids', 'euros')
        """
        return UpsertStream(self._pipeline, self._rename_node(names))

    def write(self, sink: Sink, *, ttl: Duration | None = None) -> WrittenStream:
        """Hand the updates to `sink`, or as changes to one that wants these, or where a row may stand under another key
        than the one that it replaces.

        Args:
            sink: where they go.
            ttl: how long the row of a key is kept after its last change, in processing time and up to an eighth longer,
                where the sink needs that: to be taken back, or because the sink has one row of another key than that of
                the updates. As `state_ttl` says if not given.

        Raises:
            PipelineError: it cannot take rows of this schema, or another sink of the pipeline writes to its place; or a
                column is not there any more that says what a row replaces there; or `ttl` is given and no row is kept.

        Example:
            >>> totals = bids.key_by("auction").agg(bids=count())
            >>> written = totals.write(kafka.Sink("totals", key="auction", format="debezium"))
        """
        key = sink.upsert_key
        if self._node.mode == "upsert" and key is not None:
            if sink.wants_changes or moves(self._node, key):
                return self.changes(ttl=ttl)._written(sink, ttl)
            sink = sink.of_changes() if takes_back(self._node, key) else sink
        written = self._written(sink, ttl)
        if ttl is not None and written._node.inputs[0] is self._node:
            raise PipelineError(
                "write: no rows are kept for this sink, so ttl= says nothing; leave it out, or give it to what is before"
            )
        return written

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
        check_ends(self._node)
        if self._node.mode == "retract" and known_keys(self._node) is None:
            return self._all_that_hold().drop(RETRACTED)
        keys, retracted = update_keys(self._node, "final")
        by_key = UpsertStream(self._pipeline, self._derive(KeyBy(), self._node.schema, keys=keys, mode="upsert"))
        last = self._pipeline._stream_of(by_key._derive(LastRows(retracted), self._node.schema))
        return last.drop(RETRACTED) if self._node.mode == "retract" else last

    def _all_that_hold(self) -> Stream[Any]:
        """Rows without a key are kept where any columns send them, which are those that can be keys."""
        schema = self._node.schema
        keys = tuple(field.name for field in schema if field.name != RETRACTED and can_be_key(field.type))
        if not keys:
            raise PipelineError("final: no column can be a key, so rows cannot be told apart; add one that can")
        by_key = UpsertStream(self._pipeline, self._derive(KeyBy(), schema, keys=keys, mode="retract"))
        return self._pipeline._stream_of(by_key._derive(LastRows(RETRACTED, all_that_hold=True), schema))

    def side(self, tag: OutputTag[U]) -> Stream[U]:
        """A side output of the operator that made this stream, such as its late rows.

        Example:
            >>> LATE = OutputTag("late")
            >>> windows = bids.key_by("auction").window(tumbling("1m")).late_to(LATE).allowed_lateness("1h")
            >>> windows.agg(bids=count()).side(LATE).collect().height
            0
        """
        return self._pipeline._stream_of(self._side_node(tag))


@checked
class SourceUpdates(UpsertStream):
    """Changes that come straight from a source."""

    @classmethod
    def of(cls, pipeline: DeclaredPipeline, source: ChangeSource[Any]) -> SourceUpdates:
        """The changes of a source; where it has not all of them, they are made behind it."""
        mode: Mode = "retract" if source.complete else "upsert"
        node = pipeline._add(Read(source), (), source.schema, row_class(source.schema), event_time=False, mode=mode)
        if source.complete:
            return cls(pipeline, node)
        schema = Schema((*source.rows, Field(RETRACTED, BOOLEAN)))
        return cls(pipeline, UpsertStream(pipeline, node)._changed(source.keys, RETRACTED, schema))

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
        return next(node for node in (self._node, *ancestors(self._node)) if isinstance(node.operation, Read))

    def dead_letters(self) -> Stream[Row]:
        """The records that are no changes: columns error, raw, where. The source says `bad_rows="dead_letter"`.

        Example:
            >>> totals = kafka.ChangeSource("totals", key="auction", schema=Total, bad_rows="dead_letter")
            >>> p.read(totals).dead_letters().schema.names
            ('error', 'raw', 'where')
        """
        return self._pipeline._stream_of(dead_letters_node(StreamBase(self._pipeline, self._read)))


@checked
class KeyedUpdates(StreamBase):
    """Changes by key."""

    _what = "a keyed stream of updates"

    def _instead(self, name: str) -> str:
        if self._pipeline._has_verb(name):
            return f"updates have agg, top and window here; {name} would count or keep rows that were taken back"
        return super()._instead(name)

    def window(self, window: RowWindow) -> WindowedUpdates:
        """Cut the changes of each key into windows: `tumbling("10s")`, `sliding("1h", every="5m")` or
        `cumulative("1d", every="1h")`, by the time that `with_event_time` says.

        Raises:
            PipelineError: it says none, so a row that is taken back would be looked for in the window of the change; or
                windows are sessions, which rows that are taken back would part.

        Example:
            >>> totals = bids.key_by("auction").agg(revenue=col("price").sum(), newest=col("at").max())
            >>> timed = totals.with_event_time("newest", max_out_of_orderness="1h")
            >>> timed.key_by("auction").window(tumbling("1h")).agg(revenue=col("revenue").sum()).schema.names
            ('auction', 'window_start', 'window_end', 'revenue')
        """
        if not isinstance(window, FixedWindow):
            raise PipelineError(
                "window: of changes there are tumbling, sliding and cumulative windows; a row that is taken back may "
                "part a session, and for all rows together write .agg(...) without a window"
            )
        if not _has_own_time(self._node):
            raise PipelineError(
                "window: a row that is taken back comes at the time of the change, so it would be looked for in another "
                'window than its own; say which column is its time: .with_event_time("at", max_out_of_orderness="1h") '
                "before key_by"
            )
        return WindowedUpdates(self, window)

    def top(self, n: int, *, by: Expr | str, descending: bool = True, ttl: Duration | None = None) -> UpsertStream:
        """The best `n` rows of every key that hold, as `UpsertStream.changes`: the keys, the rank from 1, the others.

        What stood at a rank is taken back when another row comes to stand there, or none. All rows of a key are kept.
        Of equal rows the one that was added first is the better one; null and NaN are behind all others.

        Args:
            n: how many rows per key.
            by: the column or expression that orders them.
            descending: whether the greatest is the best.
            ttl: how long the rows of a key are kept after its last change, in processing time and up to an eighth longer;
                its next row begins anew then, nothing is sent before that, and what takes back a row of before does
                nothing. As `state_ttl` says if not given.

        Raises:
            PipelineError: such values have no order, or there is a column "rank".

        Example:
            >>> totals = bids.key_by("auction").agg(revenue=col("price").sum())
            >>> totals.key_by(all=lit(1)).top(1, by="revenue").select("all", "rank", "auction").final().collect().rows()
            [(1, 1, 2)]
        """
        order = col(by) if isinstance(by, str) else by
        self._check_unread("top", {str(order): order})
        schema = top_schema(n, order, self._node.schema, self._node.keys)
        operation = Top(n, order, descending, self._pipeline._ttl_us(ttl, "top"))
        return UpsertStream(self._pipeline, self._derive(operation, schema, keys=self._node.keys, mode="retract"))

    def agg(self, *, ttl: Duration | None = None, **aggregates: Expr) -> UpsertStream:
        """The running result per key of the rows that hold, as `UpsertStream.changes`; a key without any has none.

        Sums, counts, means and variances are taken back by subtraction. For all others the rows of a key are kept, as far
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
        operation = AggregateChanges(tuple(aggregates.items()), ttl_us=self._pipeline._ttl_us(ttl, "agg"))
        return UpsertStream(self._pipeline, self._changed(operation, self._results(aggregates)))

    def _results(self, aggregates: Mapping[str, Expr]) -> tuple[Field, ...]:
        """The columns that these aggregates make.

        Raises:
            PipelineError: one cannot be made of changes.
        """
        from penstock.expressions.aggregates import AggregatePlan  # loads Polars

        for name, expr in aggregates.items():
            if reasons := decided_by_arrival(expr):
                raise PipelineError(
                    f"agg: {name} = {expr} depends on {', '.join(reasons)}, and rows that are taken back have no place "
                    "among them; take min, max or collect_distinct"
                )
        self._check_unread("agg", aggregates)
        node = self._node
        return AggregatePlan.build(tuple(aggregates.items()), node.schema, event_time=node.event_time).output_fields

    def _changed(self, operation: AggregateChanges, results: tuple[Field, ...] = ()) -> Node:
        """What a key comes to, behind the key."""
        schema = Schema((*self._node.schema.select(self._node.keys), *results, Field(RETRACTED, BOOLEAN)))
        return self._derive(operation, schema, keys=self._node.keys, mode="retract")


def _has_own_time(node: Node) -> bool:
    """Whether the event time of a change is made of the row, so that it is the same where the row is taken back."""
    match node.operation:
        case AssignEventTime():
            return True
        case Filter() | Project() | KeyBy() | Union():
            return all(map(_has_own_time, node.inputs))
        case _:
            return False


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
        keyed, results = self._keyed, self._keyed._results(aggregates)
        node, bounds = keyed._node, window_bounds(retracts=False)
        read = {*node.keys}.union(*(columns_of(expr) for expr in aggregates.values()))
        if taken := [name for name in (field.name for field in bounds) if name in read]:
            raise PipelineError(
                f"window: {', '.join(taken)} says which window a row is in; rename that of yours before"
            )
        rows = [field for field in node.row_schema if field.name in read]
        changes = UpsertStream(keyed._pipeline, node.inputs[0])  # by key and window they go their way at once
        windows = changes._derive(
            AssignWindows(self._window), Schema((*rows, *bounds, Field(RETRACTED, BOOLEAN))), mode="retract"
        )
        keys = (*node.keys, *(field.name for field in bounds))
        by_window = StreamBase(keyed._pipeline, keyed_node(UpsertStream(keyed._pipeline, windows), keys))
        schema = Schema((*by_window._node.schema.select(keys), *results))
        operation = WindowChanges(self._window, tuple(aggregates.items()))
        return keyed._pipeline._stream_of(by_window._derive(operation, schema, keys=keys))
