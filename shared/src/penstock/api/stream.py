"""Streams and their verbs. Every verb checks what it can, adds one node to the plan and returns the next stream.

What can be done with a stream depends on what it is, and so does its class: a `Stream`, a `KeyedStream` (rows of a key
meet), a `WindowedStream` (to be aggregated) or an `UpsertStream` (a row may replace an earlier one of its key).
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, TypeVar

from penstock.api.functions import KeyedProcess, OutputTag, Process, check_process, process_types
from penstock.errors import PipelineError, nearest
from penstock.expressions import AggregatePlan, Expr, col, contains_aggregate, output_field, output_name
from penstock.graph.logical import (
    As,
    DeadLetters,
    Explode,
    Filter,
    KeyBy,
    MapBatches,
    MapRows,
    Node,
    Operation,
    ProcessRows,
    Project,
    Read,
    RunningAggregate,
    RunningReduce,
    Side,
    Union,
    Window,
    WindowAggregate,
    Write,
)
from penstock.times import Duration, duration_us
from penstock.types import (
    BINARY,
    BOOLEAN,
    STRING,
    TIMESTAMP,
    Field,
    ListType,
    Schema,
    is_row_class,
    row_class,
    schema_of,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.api.pipeline import Pipeline
    from penstock.connectors.base import Sink

T = TypeVar("T")
U = TypeVar("U")

BAD_RECORD_SCHEMA = Schema((Field("error", STRING), Field("raw", BINARY), Field("where", STRING)))
"""Columns of `dead_letters()`: what was wrong, the record as it came, and where it stood."""


class Row:
    """A row of a stream that has no class of the user: its columns are attributes."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


class _StreamBase:
    """What all streams share: the pipeline, the node, and the node's settings."""

    def __init__(self, pipeline: Pipeline, node: Node) -> None:
        self._pipeline = pipeline
        self._node = node

    @property
    def schema(self) -> Schema:
        """The columns."""
        return self._node.schema

    def uid(self, uid: str) -> Self:
        """Name the operator, so that its state is found again when the pipeline changes around it.

        Raises:
            PipelineError: another operator has this uid.
        """
        if not uid or "/" in uid:
            raise PipelineError(f"uid: {uid!r} is no name; use a short word without '/'")
        own = self._operator("uid")
        for node in self._pipeline.plan:
            if node.uid == uid and node is not own:
                raise PipelineError(f"uid: two operators are named {uid!r}: {node.id} ({node.verb}) and this one")
        own.uid = uid
        return self

    def parallelism(self, parallelism: int) -> Self:
        """How many subtasks the operator has, whatever the job's parallelism is."""
        if parallelism < 1:
            raise PipelineError(f"parallelism: must be 1 or more, got {parallelism}")
        self._operator("parallelism").parallelism = parallelism
        return self

    def max_parallelism(self, max_parallelism: int) -> Self:
        """The number of key groups: the largest parallelism the operator's state can ever be spread over."""
        if not 1 <= max_parallelism <= 32_768:
            raise PipelineError(f"max_parallelism: must be between 1 and 32768, got {max_parallelism}")
        self._operator("max_parallelism").max_parallelism = max_parallelism
        return self

    def slot_group(self, name: str) -> Self:
        """Operators of different groups never share a slot."""
        self._operator("slot_group").slot_group = name
        return self

    def chain(self, chainable: bool) -> Self:
        """`chain(False)` puts the operator behind an exchange of its own."""
        self._operator("chain").chainable = chainable
        return self

    def _operator(self, setting: str) -> Node:
        """The operator that a setting belongs to: the verb before, or what made the rows that `as_` names."""
        node = self._node
        while isinstance(node.operation, As):
            node = node.inputs[0]
        if isinstance(node.operation, KeyBy | Union | Side | DeadLetters):
            raise PipelineError(f"{setting}: {node.verb} is no operator of its own; set it on the verb before or after")
        return node

    def _derive(
        self,
        operation: Operation,
        schema: Schema,
        row_type: type[Any] | None = None,
        *,
        event_time: bool | None = None,
        keys: tuple[str, ...] = (),
        updates: bool = False,
    ) -> Node:
        """A node behind this one; it keeps the event time, but keys are lost."""
        return self._pipeline._add(
            operation,
            (self._node,),
            schema,
            row_type or row_class(schema),
            event_time=self._node.event_time if event_time is None else event_time,
            keys=keys,
            updates=updates,
        )

    def write(self, sink: Sink) -> WrittenStream:
        """Hand the rows to `sink`."""
        sink.check(self._node.schema, updates=self._node.updates)
        return WrittenStream(self._pipeline, self._derive(Write(sink), self._node.schema, self._node.row_type))

    def _side(self, tag: OutputTag[U]) -> Stream[U]:
        declared = self._node.sides.get(tag.name)
        if declared is None and not isinstance(self._node.operation, ProcessRows):
            known = nearest(tag.name, self._node.sides)
            raise PipelineError(f"side: {self._node.verb} has no side output {tag.name!r}; {known}")
        if declared is None:
            if tag.row_type is None:
                raise PipelineError(f"side: say what rows {tag.name!r} carries: OutputTag({tag.name!r}, MyRow)")
            declared = schema_of(tag.row_type, f"OutputTag({tag.name!r})")
            self._node.sides = {**self._node.sides, tag.name: declared}
        row_type: type[Any] = tag.row_type or row_class(declared)
        return Stream(self._pipeline, self._derive(Side(tag), declared, row_type))


class WrittenStream(_StreamBase):
    """The end of a stream in a sink; only its settings can be changed."""


class _ColumnVerbs(_StreamBase):
    """Verbs over columns that keep one row one row, for streams of rows and of updates alike."""

    def _select(self, exprs: tuple[Expr | str, ...], named: Mapping[str, Expr]) -> tuple[tuple[str, Expr], ...]:
        columns = [(output_name(e), e) for e in map(_as_expr, exprs)] + [(n, _as_expr(e)) for n, e in named.items()]
        if not columns:
            raise PipelineError("select: name at least one column")
        return tuple(columns)

    def _project(self, verb: Any, columns: tuple[tuple[str, Expr], ...]) -> Node:
        fields: list[Field] = []
        for name, expr in columns:
            if contains_aggregate(expr):
                raise PipelineError(f"{verb}: {expr} is an aggregate; it needs key_by and agg (after window, if any)")
            field = output_field(expr, self._node.schema, verb)
            fields.append(Field(name, field.type, field.nullable))
        return self._derive(Project(verb, columns), Schema(tuple(fields)), updates=self._node.updates)

    def _select_node(self, exprs: tuple[Expr | str, ...], named: Mapping[str, Expr]) -> Node:
        return self._project("select", self._select(exprs, named))

    def _with_columns_node(self, exprs: tuple[Expr, ...], named: Mapping[str, Expr]) -> Node:
        columns: dict[str, Expr] = {name: col(name) for name in self._node.schema.names}
        columns.update(self._select(exprs, named))
        return self._project("with_columns", tuple(columns.items()))

    def _drop_node(self, names: tuple[str, ...]) -> Node:
        for name in names:
            self._node.schema.field(name, "drop")
        return self._project("drop", tuple((n, col(n)) for n in self._node.schema.names if n not in names))

    def _rename_node(self, names: Mapping[str, str]) -> Node:
        for name in names:
            self._node.schema.field(name, "rename")
        return self._project("rename", tuple((names.get(n, n), col(n)) for n in self._node.schema.names))


class Stream(_ColumnVerbs, Generic[T]):
    """A stream of rows `T`."""

    def select(self, *exprs: Expr | str, **named: Expr) -> Stream[Row]:
        """Only these columns: names, expressions, or `name=expression`."""
        return Stream(self._pipeline, self._select_node(exprs, named))

    def with_columns(self, *exprs: Expr, **named: Expr) -> Stream[Row]:
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
        row_type = _returned_class(function, returns, "map", many=False)
        node = self._derive(MapRows(function, flat=False), schema_of(row_type, "map"), row_type)
        return Stream(self._pipeline, node)

    def flat_map(self, function: Callable[[T], Iterable[U]], *, returns: type[U] | None = None) -> Stream[U]:
        """One row in, any number of rows out: `function` returns or yields them."""
        row_type = _returned_class(function, returns, "flat_map", many=True)
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
        node = self._derive(KeyBy(), self._node.schema, self._node.row_type, keys=columns)
        return KeyedStream(self._pipeline, node)

    def process(self, process: Process[T, U]) -> Stream[U]:
        """Run a `Process`: rows in, any rows out, side outputs, operator state."""
        if isinstance(process, KeyedProcess):
            raise PipelineError(f"process: {type(process).__name__} is a KeyedProcess; it needs key_by before it")
        return Stream(self._pipeline, _process_node(self, process))

    def side(self, tag: OutputTag[U]) -> Stream[U]:
        """A side output of the operator that made this stream."""
        return self._side(tag)


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


class KeyedStream(_StreamBase, Generic[T]):
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
        return Stream(self._pipeline, _process_node(self, process))


class WindowedStream(Generic[T]):
    """A keyed stream cut into windows, to be aggregated."""

    def __init__(self, keyed: KeyedStream[T], window: Window, late: OutputTag[Any] | None) -> None:
        self._keyed = keyed
        self._window: Window = window
        self._late = late

    def late_to(self, tag: OutputTag[Any]) -> Self:
        """Send rows that come too late to the side output `tag` instead of counting and dropping them."""
        self._late = tag
        return self

    def allowed_lateness(self, lateness: Duration) -> LateWindowedStream[T]:
        """Keep windows for so long after their end: rows that come late within it correct the result."""
        lateness_us = duration_us(lateness, "allowed_lateness")
        return LateWindowedStream(self._keyed, self._window, self._late, lateness_us)

    def agg(self, **aggregates: Expr) -> Stream[Row]:
        """One row per key and window: the keys, `window_start`, `window_end` and these aggregates."""
        return Stream(self._keyed._pipeline, self._aggregate(aggregates, 0))

    def _aggregate(self, aggregates: Mapping[str, Expr], lateness_us: int) -> Node:
        keyed = self._keyed
        node = keyed._node
        keys = node.schema.select(node.keys)
        bounds = (Field("window_start", TIMESTAMP), Field("window_end", TIMESTAMP))
        plan = AggregatePlan.build(tuple(aggregates.items()), node.schema, event_time=True)
        operation = WindowAggregate(self._window, tuple(aggregates.items()), lateness_us, self._late)
        result = keyed._derive(
            operation, Schema((*keys, *bounds, *plan.output_fields)), keys=node.keys, updates=lateness_us > 0
        )
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
            """As `WindowedStream.agg`, but a later row of the same key and window replaces an earlier one."""
            return UpsertStream(self._keyed._pipeline, self._aggregate(aggregates, self._lateness_us))


class UpsertStream(_ColumnVerbs):
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

    def select(self, *exprs: Expr | str, **named: Expr) -> UpsertStream:
        """Only these columns; the key columns should be among them."""
        return UpsertStream(self._pipeline, self._select_node(exprs, named))

    def with_columns(self, *exprs: Expr, **named: Expr) -> UpsertStream:
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
        return self._side(tag)


def _process_node(stream: _StreamBase, process: Process[Any, Any] | KeyedProcess[Any, Any]) -> Node:
    check_process(process)
    taken, given = process_types(process)
    wanted = schema_of(taken, f"process: {type(process).__name__}")
    for field in wanted:
        have = stream._node.schema.field(field.name, f"process: {type(process).__name__} takes {taken.__name__}, but")
        if have.type != field.type:
            raise PipelineError(
                f"process: {type(process).__name__} takes {taken.__name__}.{field.name} as {field.type}, "
                f"the stream has {have.type}"
            )
    return stream._derive(ProcessRows(process), schema_of(given, "process"), given)


def _as_expr(value: Expr | str | Any) -> Expr:
    if isinstance(value, str):
        return col(value)
    if isinstance(value, Expr):
        return value
    from penstock.expressions import lit

    return lit(value)


def _returned_class(function: Callable[..., Any], returns: type[Any] | None, verb: str, *, many: bool) -> type[Any]:
    """The row class a function returns: `returns`, or its annotation."""
    row_type: Any = returns
    name = getattr(function, "__qualname__", repr(function))
    if row_type is None:
        target = function if hasattr(function, "__annotations__") else type(function).__call__
        try:
            row_type = typing.get_type_hints(target).get("return")
        except NameError as error:
            raise PipelineError(f"{verb}: the annotation of {name} cannot be resolved: {error}") from error
        if many and row_type is not None:
            arguments = typing.get_args(row_type)
            row_type = arguments[0] if arguments else None
    if row_type is None or not is_row_class(row_type):
        shape = "Iterable[Output]" if many else "Output"
        raise PipelineError(
            f"{verb}: {name} does not say what rows it returns; annotate it '-> {shape}' with a dataclass or Struct, "
            "or pass returns=Output"
        )
    return row_type
