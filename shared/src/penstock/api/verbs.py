"""What all streams share: the node behind them, its settings, and the verbs that keep one row one row.

The streams that users meet are in `penstock.api.stream` and the modules beside it.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, TypeVar

from penstock.api.process_checks import check_methods
from penstock.api.updates import known_keys
from penstock.arguments import checked
from penstock.connectors.base import EventTime, WatermarkStrategy
from penstock.connectors.declaring import watermark_strategy, zone
from penstock.connectors.event_times import TimeUnit, event_time_form
from penstock.connectors.watermarks import for_rows
from penstock.errors import PipelineError, nearest
from penstock.expressions import (
    Expr,
    Operand,
    col,
    columns_of,
    contains_aggregate,
    lit,
    needs_over,
    output_field,
    output_name,
)
from penstock.expressions.nodes import Column
from penstock.graph.logical import (
    RETRACTED,
    As,
    AssignEventTime,
    DeadLetters,
    Filter,
    KeyBy,
    Materialize,
    Mode,
    Node,
    Operation,
    Over,
    ProcessRows,
    Project,
    Read,
    Side,
    Union,
    WindowAggregate,
    WindowRows,
    Write,
    ancestors,
)
from penstock.names import wrong_name
from penstock.observability.user_frames import place_of
from penstock.process_functions import (
    BroadcastProcess,
    KeyedBroadcastProcess,
    KeyedCoProcess,
    KeyedProcess,
    OutputTag,
    Process,
    check_process,
    input_methods,
    process_types,
)
from penstock.times import Duration
from penstock.triggers import AtWatermark
from penstock.types import (
    BINARY,
    BOOLEAN,
    STRING,
    Field,
    ListType,
    MapType,
    Schema,
    StructType,
    can_be_key,
    is_row_class,
    row_class,
    schema_of,
)

if TYPE_CHECKING:
    import polars as pl

    from penstock.api.pipeline import DeclaredPipeline
    from penstock.connectors.base import Sink

T = TypeVar("T")
U = TypeVar("U")


_CALLED_ELSEWHERE: Final = {"group_by": "key_by", "groupby": "key_by", "keyBy": "key_by"}
"""What Polars, pandas and Flink call verbs that another name lies nearer to."""


BAD_RECORD_SCHEMA = Schema((Field("error", STRING), Field("raw", BINARY), Field("where", STRING)))
"""Columns of `dead_letters()`: what was wrong, the record as it came, and where it stood."""


ALL_TOGETHER: Final = "or .key_by(all=lit(1)) for all rows together"
OF_WINDOWS: Final = ("late_to", "allowed_lateness", "trigger")


def _of_column(name: str) -> str:
    """How a column is written, and how its values come."""
    return f"write col({name!r}) in an expression; its values are .collect()[{name!r}]"


class NoSuchVerbError(PipelineError, AttributeError):
    """What is asked of a stream is no verb of its kind."""


class Verbs:
    """Says of a verb that is not there what to write instead."""

    _what = "a stream"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):
                raise AttributeError(name)
            raise NoSuchVerbError(f"{name}: {self._instead(name)}")

    def _instead(self, name: str) -> str:
        if name.startswith("join"):
            return "write .join(other, on=...) on a stream of rows or of updates, before key_by"
        if name in _CALLED_ELSEWHERE:
            here = _CALLED_ELSEWHERE[name]
            return f"did you mean {here!r}?" if hasattr(type(self), here) else self._instead(here)
        return f"{self._what} has no such verb; {nearest(name, verbs_of(type(self)))}"


def verbs_of(kind: type) -> list[str]:
    """The names of what a stream of this class can do."""
    return [name for name in dir(kind) if not name.startswith("_")]


def said_last(node: Node) -> str:
    """The last verb that users wrote to have an operator: what a window gives, they asked for with `agg`."""
    match node.operation:
        case WindowAggregate(aggregates=((verb, _), *_), unpacked=True):
            return verb
        case WindowRows(aggregates=()):
            return "apply"
        case WindowAggregate() | WindowRows():
            return "agg"
        case Over():
            return "with_columns"
        case _:
            return node.verb


def is_triggered(operation: Operation) -> bool:
    """Whether windows fire otherwise than they do without `trigger(...)`."""
    return isinstance(operation, WindowRows) and not operation.count and type(operation.trigger) is not AtWatermark


def belongs_before(node: Node, name: str) -> str | None:
    """The verb that a setting of windows, `name`, must stand before, if the rows are results of windows."""
    for above in (node, *ancestors(node)):
        operation = above.operation
        if is_triggered(operation) and name != "trigger":
            return "trigger"
        if isinstance(operation, WindowRows) and operation.count:
            return None
        if isinstance(operation, WindowAggregate | WindowRows) or (isinstance(operation, Over) and name == "late_to"):
            return said_last(above)
        if not isinstance(operation, Project | Filter | As):
            return None
    return None


@checked
class StreamBase(Verbs):
    """What all streams share: the pipeline, the node, and the node's settings."""

    def __init__(self, pipeline: DeclaredPipeline, node: Node) -> None:
        self._pipeline = pipeline
        self._node = node

    @property
    def schema(self) -> Schema:
        """The columns."""
        return self._node.schema

    if not TYPE_CHECKING:

        def __getitem__(self, name: object) -> NoReturn:
            # Python asks here for row 0 as well, when rows are to be iterated over.
            if isinstance(name, str):
                raise PipelineError(f"stream[{name!r}]: {_of_column(name)}")
            raise PipelineError("a stream holds no rows, it says how they are made; stream.collect().rows() gives them")

    def _instead(self, name: str) -> str:
        if name in self._node.schema:
            return f"it is a column, no verb; {_of_column(name)}"
        return super()._instead(name)

    def uid(self, uid: str) -> Self:
        """Name the operator, so that its state is found again when the pipeline changes around it.

        Raises:
            PipelineError: another operator has this uid.

        Example:
            >>> totals = bids.key_by("auction").agg(bids=count()).uid("totals")
        """
        if reason := wrong_name(uid):
            raise PipelineError(f"uid: {uid!r} is no name: {reason}; use a short word without '/'")
        own = self._operator("uid")
        for node in self._pipeline.plan:
            if node.uid == uid and node is not own:
                raise PipelineError(f"uid: two operators are named {uid!r}: {node.id} ({node.verb}) and this one")
        own.uid = uid
        return self

    def parallelism(self, parallelism: int) -> Self:
        """How many subtasks the operator has, whatever the job's parallelism is.

        Example:
            >>> dear = bids.filter(col("price") > 100).parallelism(4)
        """
        if parallelism < 1:
            raise PipelineError(f"parallelism: must be 1 or more, got {parallelism}")
        self._operator("parallelism").parallelism = parallelism
        return self

    def slot_group(self, name: str) -> Self:
        """Operators of different groups never share a slot.

        Example:
            >>> totals = bids.key_by("auction").agg(bids=count()).slot_group("heavy")
        """
        self._operator("slot_group").slot_group = name
        return self

    def chain(self, chainable: bool) -> Self:
        """`chain(False)` puts the operator behind an exchange of its own.

        Example:
            >>> dear = bids.filter(col("price") > 100).chain(False)
        """
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
        mode: Mode = "append",
    ) -> Node:
        """A node behind this one; it keeps the event time, but keys are lost."""
        return self._pipeline._add(
            operation,
            (self._node,),
            schema,
            row_type or row_class(schema),
            event_time=self._node.event_time if event_time is None else event_time,
            keys=keys,
            mode=mode,
        )

    def _check_unread(self, verb: str, written: Mapping[str, Expr]) -> None:
        """Of changes, nobody reads what they do: a row that is taken back is to be treated as when it was added."""
        for text, expr in written.items():
            if self._node.mode == "retract" and RETRACTED in columns_of(expr):
                raise PipelineError(
                    f"{verb}: {text} reads {RETRACTED}, so a row that is taken back would not be treated as when it was "
                    "added; leave that column as it is"
                )

    def write(self, sink: Sink) -> WrittenStream:
        """Hand the rows to `sink`. Behind `key_by` too: the rows of a key then come to it from one subtask, in order.

        Raises:
            PipelineError: it cannot take rows of this schema, or another sink of the pipeline writes to its place.

        Example:
            >>> written = bids.write(files.Sink("out", format="parquet"))
            >>> p.run().state
            'FINISHED'
        """
        return self._written(sink)

    def _written(self, sink: Sink, ttl: Duration | None = None) -> WrittenStream:
        """What `write` gives; `ttl`: how long the rows are kept that a sink with a key of its own needs."""
        sink.check(self._node.schema, updates=self._node.updates)
        stream = self
        if self._node.mode == "retract":
            stream, sink = self._as_changes_of(sink.upsert_key, ttl), sink.of_changes()
        for node in self._pipeline.plan:
            if sink.place is not None and isinstance(node.operation, Write) and node.operation.sink.place == sink.place:
                raise PipelineError(
                    f"write: {sink.place} is written by {node.operator_id} already, and the rows of both would be mixed; "
                    "write one stream there: a.union(b).write(...)"
                )
        return WrittenStream(self._pipeline, stream._derive(Write(sink), self._node.schema, self._node.row_type))

    def _as_changes_of(self, wanted: Sequence[str] | None, ttl: Duration | None) -> StreamBase:
        """The changes by which rows of a sink with this key are replaced; all are rows there, if it has none."""
        if wanted is None:
            return self
        known = known_keys(self._node)
        if known is not None and set(known) <= set(wanted):
            return self
        by_key = StreamBase(self._pipeline, keyed_node(self, tuple(wanted)))
        operation = Materialize(self._pipeline._ttl_us(ttl, "write"))
        node = by_key._derive(operation, self._node.schema, keys=tuple(wanted), mode="retract")
        return StreamBase(self._pipeline, node)

    def collect(self) -> pl.DataFrame:
        """Run the pipeline as far as this stream, in this process, and give its rows: a table, in a notebook.

        Nothing is written to the sinks. Rows stand in the order of their arrival; of a stream of updates, every
        update is a row. While Penstock itself imports the file, nothing runs and there are no rows.

        Raises:
            PipelineError: a source has no end.
            PenstockError: the pipeline or its code failed.

        Example:
            >>> p.read(files.Source("bids.jsonl", schema=Bid)).filter(col("price") > 100).drop("at", "tags").collect()
            shape: (2, 2)
            ...
        """
        return self._pipeline.rows_of(self._node)

    def _side_node(self, tag: OutputTag[Any]) -> Node:
        """The side output `tag` of the operator behind this stream."""
        declared = self._node.sides.get(tag.name)
        if declared is None and not isinstance(self._node.operation, ProcessRows):
            raise PipelineError(f"side: {self._node.verb} has no side output {tag.name!r}; {self._side_instead(tag)}")
        if declared is None:
            if tag.row_type is None:
                raise PipelineError(f"side: say what rows {tag.name!r} carries: OutputTag({tag.name!r}, MyRow)")
            declared = schema_of(tag.row_type, f"OutputTag({tag.name!r})")
            self._node.sides = {**self._node.sides, tag.name: declared}
        return self._derive(Side(tag), declared, tag.row_type or row_class(declared))

    def _side_instead(self, tag: OutputTag[Any]) -> str:
        """Where the side output is that a verb has not: often at one before it."""
        for node in ancestors(self._node):
            if tag.name in node.sides:
                return f"take it from the stream that .{said_last(node)}(...) gave"
        return nearest(tag.name, self._node.sides)


class WrittenStream(StreamBase):
    """The end of a stream in a sink; only its settings can be changed."""

    _what = "the end of a stream in a sink"


class ColumnVerbs(StreamBase):
    """Verbs over columns that keep one row one row, for streams of rows and of updates alike."""

    def _select(
        self, verb: str, exprs: tuple[Expr | str, ...], named: Mapping[str, Operand]
    ) -> tuple[tuple[str, Expr], ...]:
        for name, text in named.items():
            if isinstance(text, str) and text not in self._node.schema:
                known = nearest(text, self._node.schema.names)
                raise PipelineError(
                    f"{verb}: there is no column {text!r}; {known}; the text itself is {name}=lit({text!r})"
                )
        columns = [(output_name(e), e) for e in map(_as_expr, exprs)] + [(n, _as_expr(e)) for n, e in named.items()]
        if not columns:
            raise PipelineError("select: name at least one column")
        return tuple(columns)

    def _project(self, verb: Any, columns: tuple[tuple[str, Expr], ...]) -> Node:
        if self._node.mode == "retract":
            columns = self._with_retracted(verb, columns)
        fields: list[Field] = []
        for name, expr in columns:
            if contains_aggregate(expr):
                raise PipelineError(f"{verb}: {_of_many(expr)}")
            field = output_field(expr, self._node.schema, verb)
            fields.append(Field(name, field.type, field.nullable))
        return self._derive(Project(verb, columns), Schema(tuple(fields)), mode=self._node.mode)

    def _filter_node(self, predicates: tuple[Expr, ...]) -> Node:
        if not predicates:
            raise PipelineError("filter: give at least one predicate, such as col('price') > 0")
        predicate = predicates[0]
        for other in predicates[1:]:
            predicate = predicate & other
        field = output_field(predicate, self._node.schema, "filter")
        if field.type != BOOLEAN or contains_aggregate(predicate):
            raise PipelineError(f"filter: {predicate} is {field.type}, not boolean; compare it with something")
        self._check_unread("filter", {str(predicate): predicate})
        return self._derive(Filter(predicate), self._node.schema, self._node.row_type, mode=self._node.mode)

    def _union_node(self, others: Sequence[ColumnVerbs]) -> Node:
        if not others:
            raise PipelineError("union: give at least one other stream")
        if any(other._node.updates != self._node.updates for other in others):
            raise PipelineError(
                "union: some of these are streams of updates and some of rows; make those of rows newest rows of a key "
                'before, .key_by("id").deduplicate("last"), or take .final() of the updates'
            )
        check_alike("union", (self, *others))
        schema, nodes = self._node.schema, [self._node]
        for other in others:
            moved = other._node.schema.names != schema.names
            nodes.append(other._select_node(schema.names, {}) if moved else other._node)
        if len({id(node) for node in nodes}) < len(nodes):
            raise PipelineError("union: the same stream is there twice")
        fields = tuple(
            Field(field.name, field.type, any(node.schema.fields[place].nullable for node in nodes))
            for place, field in enumerate(schema)
        )
        event_time = all(node.event_time for node in nodes)
        if not event_time and any(node.event_time for node in nodes):
            without = ", ".join(str(number) for number, node in enumerate(nodes, 1) if not node.event_time)
            raise PipelineError(
                f"union: some streams have event time and some have none (without: number {without} of {len(nodes)}); "
                "say event_time='column' at their sources, or with_event_time(...) before union"
            )
        row_type, mode = self._node.row_type, self._node.mode
        return self._pipeline._add(Union(), tuple(nodes), Schema(fields), row_type, event_time=event_time, mode=mode)

    def _check_new_keys(self, named: Iterable[str]) -> None:
        for name in named:
            if name in self._node.schema:
                raise PipelineError(f"key_by: there is a column {name!r} already; give {name}= another name")

    def _timed_node(
        self,
        event_time: str | Expr,
        time_unit: TimeUnit | None,
        time_format: str | None,
        timezone: str | None,
        max_out_of_orderness: Duration | None,
        watermarks: WatermarkStrategy | None,
    ) -> Node:
        what, node = "with_event_time", self._node
        zone(timezone, what)
        form = event_time_form(what, event_time, node.schema, unit=time_unit, format=time_format, timezone=timezone)
        self._check_unread(what, {str(form.expression): form.expression})
        strategy = for_rows(watermark_strategy(what, max_out_of_orderness, watermarks), node.row_type)
        operation = AssignEventTime(EventTime(form, strategy))
        return self._derive(operation, node.schema, node.row_type, event_time=True, mode=node.mode)

    def _keyed_node(self, names: Sequence[str]) -> Node:
        if not names:
            raise PipelineError(f"key_by: name at least one column, {ALL_TOGETHER}")
        self._check_unread("key_by", {name: col(name) for name in names})
        return keyed_node(self, names)

    def _with_retracted(self, verb: str, columns: tuple[tuple[str, Expr], ...]) -> tuple[tuple[str, Expr], ...]:
        """The columns, and the one that tells what a change does, as it is and last."""
        kept = col(RETRACTED)
        others = {name: expr for name, expr in columns if (name, expr.node) != (RETRACTED, kept.node)}
        self._check_unread(verb, others)
        if RETRACTED in others:
            raise PipelineError(f"{verb}: {RETRACTED} says which changes take rows back; give the column another name")
        return (*others.items(), (RETRACTED, kept))

    def _select_node(self, exprs: tuple[Expr | str, ...], named: Mapping[str, Operand]) -> Node:
        return self._project("select", self._select("select", exprs, named))

    def _with_columns_node(self, exprs: tuple[Expr, ...], named: Mapping[str, Operand]) -> Node:
        columns: dict[str, Expr] = {name: col(name) for name in self._node.schema.names}
        columns.update(self._select("with_columns", exprs, named))
        return self._project("with_columns", tuple(columns.items()))

    def _drop_node(self, names: tuple[str, ...]) -> Node:
        for name in names:
            self._node.schema.field(name, "drop")
        return self._project("drop", tuple((n, col(n)) for n in self._node.schema.names if n not in names))

    def _rename_node(self, names: Mapping[str, str]) -> Node:
        for name in names:
            self._node.schema.field(name, "rename")
        return self._project("rename", tuple((names.get(n, n), col(n)) for n in self._node.schema.names))


def check_alike(verb: str, streams: Sequence[StreamBase]) -> None:
    """Rows of these streams can stand in one.

    Raises:
        PipelineError: they are of different pipelines, or their columns differ.
    """
    if any(stream._pipeline is not streams[0]._pipeline for stream in streams):
        raise PipelineError(f"{verb}: another stream is of another pipeline; read all of them in one")
    schemas = [stream._node.row_schema for stream in streams]
    for schema in schemas[1:]:
        if {field.name: field.type for field in schema} != {field.name: field.type for field in schemas[0]}:
            raise PipelineError(f"{verb}: the columns differ: ({schemas[0]}) and ({schema})")


def keyed_node(stream: StreamBase, names: Sequence[str]) -> Node:
    """The node by which rows of a key meet."""
    check_keys(stream._node.schema, names, "key_by")
    node = stream._node
    return stream._derive(KeyBy(), node.schema, node.row_type, keys=tuple(names), mode=node.mode)


def check_keys(schema: Schema, names: Iterable[str], verb: str) -> None:
    """Columns by which `verb` tells rows apart.

    Raises:
        PipelineError: one is not there, or of a type that cannot be a key.
    """
    for name in names:
        field = schema.field(name, verb)
        if isinstance(field.type, ListType):
            raise PipelineError(f"{verb}: {name} is {field.type}; a list cannot be a key, join its elements first")
        if isinstance(field.type, MapType):
            raise PipelineError(f"{verb}: {name} is {field.type}; a map cannot be a key, take a value: .map.get(...)")
        if isinstance(field.type, StructType):
            raise PipelineError(
                f"{verb}: {name} is {field.type}; a struct cannot be a key, key by its fields: "
                f"col({name!r}).struct.field(...)"
            )
        if not can_be_key(field.type):
            raise PipelineError(f"{verb}: {name} is {field.type}, which cannot be a key; key by its text: .cast(str)")


def key_names(columns: Iterable[str | Expr]) -> list[str]:
    """The columns that keys are, of those that there are."""
    return [_key_name(column) for column in columns]


def _key_name(column: str | Expr) -> str:
    if isinstance(column, str):
        return column
    if isinstance(column.node, Column):
        return column.node.name
    raise PipelineError(f"key_by: {column} has no name; write key_by(name={column})")


def _of_many(expr: Expr) -> str:
    """What to write instead of an aggregate where rows are seen one by one."""
    beside = "write .key_by(...).over().with_columns(...)"
    if needs_over(expr):
        return f"{expr} looks at other rows of a key; {beside}"
    return (
        f"{expr} is an aggregate; it needs key_by and agg (after window, if any); to have it beside every row, {beside}"
    )


def dead_letters_node(read: StreamBase) -> Node:
    """The records of a source that could not become rows."""
    operation = read._node.operation
    assert isinstance(operation, Read)
    if operation.source.bad_rows != "dead_letter":
        raise PipelineError(
            f"dead_letters: the source's policy is bad_rows={operation.source.bad_rows!r}; say bad_rows='dead_letter'"
        )
    return read._derive(DeadLetters(), BAD_RECORD_SCHEMA, event_time=False)


def process_node(stream: StreamBase, process: Process[Any, Any] | KeyedProcess[Any, Any]) -> Node:
    check_process(process)
    check_methods(process, event_time=stream._node.event_time)
    taken, given = process_types(process)
    check_taken(stream, taken, f"process: {type(process).__name__}")
    return stream._derive(ProcessRows(process), schema_of(given, "process"), given)


def co_process_node(
    left: StreamBase,
    right: StreamBase,
    process: KeyedCoProcess[Any, Any, Any] | BroadcastProcess[Any, Any, Any] | KeyedBroadcastProcess[Any, Any, Any],
) -> Node:
    """The node of two connected streams."""
    check_process(process)
    check_methods(process, event_time=left._node.event_time)
    *taken, given = process_types(process)
    for stream, row_type, method in zip((left, right), taken, input_methods(process), strict=True):
        check_taken(stream, row_type, f"process: {method} of {type(process).__name__}")
    return left._pipeline._add(
        ProcessRows(process), (left._node, right._node), schema_of(given, "process"), given,
        event_time=left._node.event_time,
    )  # fmt: skip


def check_connected(left: StreamBase, right: StreamBase) -> None:
    """Two streams with a key can be connected.

    Raises:
        PipelineError: they are of different pipelines, their keys are of unlike types, or one only has event time.
    """
    check_together(left, right)
    kinds = [[stream._node.schema.field(key).type for key in stream._node.keys] for stream in (left, right)]
    if kinds[0] != kinds[1]:
        shown = [
            ", ".join(f"{key}: {kind}" for key, kind in zip(stream._node.keys, of, strict=True))
            for stream, of in zip((left, right), kinds, strict=True)
        ]
        raise PipelineError(
            f"connect: this stream is keyed by {shown[0]}, the other one by {shown[1]}; keys must have the same types in "
            "the same order"
        )


def check_together(left: StreamBase, right: StreamBase) -> None:
    """A function can see the rows of both streams.

    Raises:
        PipelineError: they are of different pipelines, or one only has event time.
    """
    if left._pipeline is not right._pipeline:
        raise PipelineError("connect: the other stream is of another pipeline; read both in one")
    if left._node.event_time != right._node.event_time:
        raise PipelineError(
            "connect: one stream has event time and the other has none; say event_time='column' at its source, or "
            "with_event_time(...) or with_processing_time() before key_by or broadcast"
        )


def check_taken(stream: StreamBase, taken: type[Any], what: str) -> None:
    """The stream has the columns of the rows that the class `what` takes."""
    for field in schema_of(taken, what):
        have = stream._node.schema.field(field.name, f"{what} takes {taken.__name__}, but")
        if have.type != field.type:
            raise PipelineError(
                f"{what} takes {taken.__name__}.{field.name} as {field.type}, the stream has {have.type}"
            )


def _as_expr(value: Expr | str | Any) -> Expr:
    if isinstance(value, str):
        return col(value)
    if isinstance(value, Expr):
        return value
    return lit(value)


def returned_class(function: Callable[..., Any], returns: type[Any] | None, verb: str, *, many: bool) -> type[Any]:
    """The row class a function returns: `returns`, or its annotation."""
    row_type: Any = returns
    name = getattr(function, "__qualname__", repr(function))
    where = f" ({place})" if (place := place_of(function)) else ""
    if row_type is None:
        target = function if hasattr(function, "__annotations__") else type(function).__call__
        try:
            row_type = typing.get_type_hints(target).get("return")
        except NameError as error:
            raise PipelineError(f"{verb}: the annotation of {name} cannot be resolved: {error}{where}") from error
        if many and row_type is not None:
            arguments = typing.get_args(row_type)
            row_type = arguments[0] if arguments else None
    if isinstance(row_type, type) and row_type is not type(None) and not is_row_class(row_type):
        raise PipelineError(
            f"{verb}: {name} returns {row_type.__name__}, which is no class of rows; return a dataclass or Struct "
            f"that has a field for it{where}"
        )
    if row_type is None or not is_row_class(row_type):
        shape = "Iterable[Output]" if many else "Output"
        raise PipelineError(
            f"{verb}: {name} does not say what rows it returns; annotate it '-> {shape}' with a dataclass or Struct, "
            f"or pass returns=Output{where}"
        )
    return row_type
