"""Streams and their verbs. Every verb checks what it can, adds one node to the plan and returns the next stream.

What can be done with a stream depends on what it is, and so does its class: a `Stream`, a `KeyedStream` (rows of a key
meet), a `WindowedStream` (to be aggregated) or an `UpsertStream` (a row may replace an earlier one of its key).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, TypeVar

from penstock.api.verbs import ColumnVerbs, StreamBase, process_node, returned_class
from penstock.errors import PipelineError, nearest
from penstock.expressions import Expr, Operand, col, contains_aggregate, output_field
from penstock.graph.logical import (
    As,
    DeadLetters,
    Explode,
    Filter,
    KeyBy,
    MapBatches,
    MapRows,
    Node,
    Read,
    RunningAggregate,
    RunningReduce,
    Union,
    Window,
    WindowAggregate,
)
from penstock.process_functions import KeyedProcess, OutputTag, Process
from penstock.times import Duration, duration_us
from penstock.types import (
    BINARY,
    BOOLEAN,
    STRING,
    TIME,
    Field,
    ListType,
    Schema,
    schema_of,
)

if TYPE_CHECKING:
    import pyarrow as pa


T = TypeVar("T")
U = TypeVar("U")


BAD_RECORD_SCHEMA = Schema((Field("error", STRING), Field("raw", BINARY), Field("where", STRING)))
"""Columns of `dead_letters()`: what was wrong, the record as it came, and where it stood."""


class Row:
    """A row of a stream that has no class of the user: its columns are attributes."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


class Stream(ColumnVerbs, Generic[T]):
    """A stream of rows `T`."""

    def select(self, *exprs: Expr | str, **named: Operand) -> Stream[Row]:
        """Only these columns: names, expressions, or `name=expression`.

        A constant other than text stands for itself; text names a column, and `lit("text")` is a constant.
        """
        return Stream(self._pipeline, self._select_node(exprs, named))

    def with_columns(self, *exprs: Expr, **named: Operand) -> Stream[Row]:
        """All columns and these; one that exists is replaced in its place."""
        return Stream(self._pipeline, self._with_columns_node(exprs, named))

    def drop(self, *names: str) -> Stream[Row]:
        """All columns but these."""
        return Stream(self._pipeline, self._drop_node(names))

    def rename(self, names: Mapping[str, str]) -> Stream[Row]:
        """The same columns with other names: `rename({"old": "new"})`."""
        return Stream(self._pipeline, self._rename_node(names))

    def filter(self, *predicates: Expr) -> Stream[T]:
        """Only the rows for which every predicate is true; null counts as false."""
        if not predicates:
            raise PipelineError("filter: give at least one predicate, such as col('price') > 0")
        predicate = predicates[0]
        for other in predicates[1:]:
            predicate = predicate & other
        field = output_field(predicate, self._node.schema, "filter")
        if field.type != BOOLEAN or contains_aggregate(predicate):
            raise PipelineError(f"filter: {predicate} is {field.type}, not boolean; compare it with something")
        return Stream(self._pipeline, self._derive(Filter(predicate), self._node.schema, self._node.row_type))

    def explode(self, *columns: str) -> Stream[Row]:
        """One row per element of these list columns."""
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
        """One row in, one row out. The output's class comes from the annotation of `function`, or from `returns`."""
        row_type = returned_class(function, returns, "map", many=False)
        node = self._derive(MapRows(function, flat=False), schema_of(row_type, "map"), row_type)
        return Stream(self._pipeline, node)

    def flat_map(self, function: Callable[[T], Iterable[U]], *, returns: type[U] | None = None) -> Stream[U]:
        """One row in, any number of rows out: `function` returns or yields them."""
        row_type = returned_class(function, returns, "flat_map", many=True)
        node = self._derive(MapRows(function, flat=True), schema_of(row_type, "flat_map"), row_type)
        return Stream(self._pipeline, node)

    def map_batches(
        self, function: Callable[[pa.RecordBatch], pa.RecordBatch], *, returns: type[U] | Schema | object | None = None
    ) -> Stream[U]:
        """An Arrow record batch in, one out: models, numpy, anything vectorised.

        Args:
            function: on a stream with event time it returns as many rows as it gets, in the same order.
            returns: the output's schema (dataclass, Struct, `pyarrow.Schema`); without it the columns stay as they are.
        """
        schema = self._node.schema if returns is None else schema_of(returns, "map_batches: returns")
        row_type = self._node.row_type if returns is None else returns if isinstance(returns, type) else None
        return Stream(self._pipeline, self._derive(MapBatches(function), schema, row_type))

    def as_(self, row_type: type[U]) -> Stream[U]:
        """Give the columns a class again; names and types must agree, in any order."""
        schema = schema_of(row_type, "as_")
        for field in schema:
            have = self._node.schema.field(field.name, f"as_({row_type.__name__})")
            if have.type != field.type:
                raise PipelineError(
                    f"as_({row_type.__name__}): {field.name} is {have.type}, the class says {field.type}"
                )
            if have.nullable and not field.nullable:
                raise PipelineError(
                    f"as_({row_type.__name__}): {field.name} may be null; declare it '| None' or use fill_null"
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
        """One stream of several with the same columns; rows of one input keep their order."""
        if not others:
            raise PipelineError("union: give at least one other stream")
        nodes = (self._node, *(other._node for other in others))
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

    def key_by(self, *columns: str) -> KeyedStream[T]:
        """Bring all rows with equal values of these columns to one subtask, in order."""
        if not columns:
            raise PipelineError("key_by: name at least one column")
        for name in columns:
            field = self._node.schema.field(name, "key_by")
            if isinstance(field.type, ListType):
                raise PipelineError(f"key_by: {name} is {field.type}; a list cannot be a key, join its elements first")
            if field.type == TIME:
                raise PipelineError(
                    f"key_by: {name} is {field.type}, which cannot be a key; key by its text: .cast(str)"
                )
        node = self._derive(KeyBy(), self._node.schema, self._node.row_type, keys=columns)
        return KeyedStream(self._pipeline, node)

    def process(self, process: Process[T, U]) -> Stream[U]:
        """Run a `Process`: rows in, any rows out, side outputs, operator state."""
        if isinstance(process, KeyedProcess):
            raise PipelineError(f"process: {type(process).__name__} is a KeyedProcess; it needs key_by before it")
        return Stream(self._pipeline, process_node(self, process))

    def side(self, tag: OutputTag[U]) -> Stream[U]:
        """A side output of the operator that made this stream."""
        return Stream(self._pipeline, self._side_node(tag))


class SourceStream(Stream[T]):
    """A stream that comes straight from a source."""

    def dead_letters(self) -> Stream[Row]:
        """The records that could not become rows: columns error, raw, where. The source says `bad_rows="dead_letter"`."""
        operation = self._node.operation
        assert isinstance(operation, Read)
        if operation.source.bad_rows != "dead_letter":
            raise PipelineError(
                f"dead_letters: the source's policy is bad_rows={operation.source.bad_rows!r}; say bad_rows='dead_letter'"
            )
        return Stream(self._pipeline, self._derive(DeadLetters(), BAD_RECORD_SCHEMA, event_time=False))


class KeyedStream(StreamBase, Generic[T]):
    """A stream whose rows of one key meet in one subtask, in order. Column verbs belong before `key_by`."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):
                raise AttributeError(name)
            verbs = ("window", "agg", "reduce", "process")
            if hasattr(Stream, name):
                raise PipelineError(f"{name}: do it before key_by; after key_by there are {', '.join(verbs)}")
            raise AttributeError(f"a keyed stream has no verb {name!r}; {nearest(name, verbs)}")

    def window(self, window: Window) -> WindowedStream[T]:
        """Cut the stream of each key into windows: `tumbling("10s")`, `sliding("1h", every="5m")`, `session("30m")`."""
        if not self._node.event_time:
            raise PipelineError(
                "window: the stream has no event time; say event_time='column' at the source "
                "(a map or process keeps the event time of its input)"
            )
        return WindowedStream(self, window, late=None)

    def agg(self, **aggregates: Expr) -> UpsertStream:
        """The running result per key: every batch emits the new result of each key it touched."""
        from penstock.expressions import AggregatePlan  # loads Polars

        keys = self._node.schema.select(self._node.keys)
        plan = AggregatePlan.build(tuple(aggregates.items()), self._node.schema, event_time=self._node.event_time)
        schema = Schema((*keys, *plan.output_fields))
        operation = RunningAggregate(tuple(aggregates.items()))
        return UpsertStream(self._pipeline, self._derive(operation, schema, keys=self._node.keys, updates=True))

    def reduce(self, function: Callable[[T, T], T]) -> UpsertStream:
        """The running `function(accumulated, row)` per key; the first row of a key is its first result."""
        operation = RunningReduce(function)
        node = self._derive(operation, self._node.schema, self._node.row_type, keys=self._node.keys, updates=True)
        return UpsertStream(self._pipeline, node)

    def process(self, process: KeyedProcess[T, U]) -> Stream[U]:
        """Run a `KeyedProcess`: state and timers per key."""
        if not isinstance(process, KeyedProcess):
            raise PipelineError(f"process: {type(process).__name__} is no KeyedProcess; after key_by only those run")
        return Stream(self._pipeline, process_node(self, process))


class WindowedStream(Generic[T]):
    """A keyed stream cut into windows, to be aggregated."""

    def __init__(self, keyed: KeyedStream[T], window: Window, late: OutputTag[Any] | None) -> None:
        self._keyed = keyed
        self._window: Window = window
        self._late = late

    def late_to(self, tag: OutputTag[Any]) -> Self:
        """The same windows, whose rows that come too late go to the side output `tag` instead of being counted and
        dropped."""
        other = copy.copy(self)
        other._late = tag
        return other

    def allowed_lateness(self, lateness: Duration) -> LateWindowedStream[T]:
        """Keep windows for so long after their end: rows that come late within it correct the result.

        A late row can also change the bounds of a session, or make two of them one. The results that were sent for
        windows that are no more are then sent again with `retracted` true (a column that only sessions with lateness
        have), before the result of the new window. Flink sends the new result alone, and rows count twice.
        """
        lateness_us = duration_us(lateness, "allowed_lateness")
        return LateWindowedStream(self._keyed, self._window, self._late, lateness_us)

    def agg(self, **aggregates: Expr) -> Stream[Row]:
        """One row per key and window: the keys, `window_start`, `window_end` and these aggregates."""
        return Stream(self._keyed._pipeline, self._aggregate(aggregates, 0))

    def _aggregate(self, aggregates: Mapping[str, Expr], lateness_us: int) -> Node:
        from penstock.expressions import AggregatePlan  # loads Polars

        keyed = self._keyed
        node = keyed._node
        keys = node.schema.select(node.keys)
        plan = AggregatePlan.build(tuple(aggregates.items()), node.schema, event_time=True)
        operation = WindowAggregate(self._window, tuple(aggregates.items()), lateness_us, self._late)
        schema = Schema((*keys, *operation.window_fields, *plan.output_fields))
        result = keyed._derive(operation, schema, keys=node.keys, updates=lateness_us > 0)
        if self._late is not None:
            result.sides = {self._late.name: node.schema}
        return result


class LateWindowedStream(WindowedStream[T]):
    """Windows that are corrected by late rows; their result is a stream of updates."""

    def __init__(self, keyed: KeyedStream[T], window: Window, late: OutputTag[Any] | None, lateness_us: int) -> None:
        super().__init__(keyed, window, late)
        self._lateness_us = lateness_us

    if TYPE_CHECKING:

        def agg(self, **aggregates: Expr) -> UpsertStream: ...  # pyright: ignore[reportIncompatibleMethodOverride] # by design: late corrections make it a stream of updates
    else:

        def agg(self, **aggregates: Expr) -> UpsertStream:
            """As `WindowedStream.agg`, but a later row of the same key and window replaces an earlier one.

            Of sessions, `window_start` and `window_end` say which window it is, and a row with `retracted` takes the
            earlier one away without a new result.
            """
            return UpsertStream(self._keyed._pipeline, self._aggregate(aggregates, self._lateness_us))


class UpsertStream(ColumnVerbs):
    """A stream of updates: a row replaces the earlier one of its key (and window). It can be shaped and written.

    Aggregating, windowing or joining it is refused until updates can be retracted: it would count twice.
    """

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):
                raise AttributeError(name)
            if hasattr(Stream, name) or hasattr(KeyedStream, name):
                raise PipelineError(
                    f"{name}: this is a stream of updates (a row replaces an earlier one of its key), so {name} would "
                    "count or keep outdated rows; write it, or aggregate with a window without allowed_lateness"
                )
            raise AttributeError(f"a stream of updates has no verb {name!r}")

    def select(self, *exprs: Expr | str, **named: Operand) -> UpsertStream:
        """Only these columns; the key columns should be among them."""
        return UpsertStream(self._pipeline, self._select_node(exprs, named))

    def with_columns(self, *exprs: Expr, **named: Operand) -> UpsertStream:
        """All columns and these."""
        return UpsertStream(self._pipeline, self._with_columns_node(exprs, named))

    def drop(self, *names: str) -> UpsertStream:
        """All columns but these."""
        return UpsertStream(self._pipeline, self._drop_node(names))

    def rename(self, names: Mapping[str, str]) -> UpsertStream:
        """The same columns with other names."""
        return UpsertStream(self._pipeline, self._rename_node(names))

    def side(self, tag: OutputTag[U]) -> Stream[U]:
        """A side output of the operator that made this stream, such as its late rows."""
        return Stream(self._pipeline, self._side_node(tag))
