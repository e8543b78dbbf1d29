"""What all streams share: the node behind them, its settings, and what is said of verbs that are not there.

The streams that users meet are in `penstock.api.stream` and the modules beside it.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

from penstock.connectors import collecting
from penstock.core.arguments import checked
from penstock.core.interactive import of_cells
from penstock.core.names import wrong_name
from penstock.errors import PipelineError, nearest
from penstock.functions.process_functions import OutputTag
from penstock.functions.windows.triggers import AtWatermark
from penstock.plan.building.functions import side
from penstock.plan.building.rows import Rows
from penstock.plan.building.sources import write
from penstock.plan.logical import Node, ancestors
from penstock.plan.operation import Operation
from penstock.plan.operations.as_ import As
from penstock.plan.operations.dead_letters import DeadLetters
from penstock.plan.operations.filter import Filter
from penstock.plan.operations.key_by import KeyBy
from penstock.plan.operations.over import Over
from penstock.plan.operations.project import Project
from penstock.plan.operations.side import Side
from penstock.plan.operations.union import Union
from penstock.plan.operations.window_aggregate import WindowAggregate
from penstock.plan.operations.window_rows import WindowRows
from penstock.plan.operations.write import Write
from penstock.types import Schema

if TYPE_CHECKING:
    import polars as pl

    from penstock.api.pipeline import DeclaredPipeline
    from penstock.connectors.base import Sink

_CALLED_ELSEWHERE: Final = {
    **dict.fromkeys(("group_by", "groupby", "groupBy", "keyBy", "partition_by", "partitionBy"), "key_by"),
    **dict.fromkeys(("where", "query"), "filter"),
    **dict.fromkeys(("unique", "drop_duplicates"), "distinct"),
    **dict.fromkeys(("order_by", "sort_values"), "sort"),
    **dict.fromkeys(("sink", "sink_to", "sinkTo", "add_sink", "addSink", "to", "save"), "write"),
    "assign": "with_columns", "concat": "union", "aggregate": "agg", "withColumnRenamed": "rename",
    "map_elements": "map", "merge": "join",
}  # fmt: skip
"""What Polars, pandas, Spark and Flink call verbs that another name lies nearer to."""
_LOOKED_AT: Final = (
    "print", "show", "tail", "limit", "take", "first", "fetch", "execute_and_collect", "to_pandas", "to_polars",
    "to_dicts", "to_arrow", "rows", "iter_rows", "iterrows", "itertuples", "sample", "describe", "foreach", "display",
)  # fmt: skip
"""What elsewhere shows rows, or takes them out."""
_OTHERWISE: Final = {
    **dict.fromkeys(("fill_null", "fillna"), 'write .with_columns(price=col("price").fill_null(0))'),
    **dict.fromkeys(("drop_nulls", "dropna"), 'write .filter(col("price").is_not_null())'),
    **dict.fromkeys(("columns", "dtypes", "shape", "collect_schema", "printSchema", "info"), "write .schema"),
    **dict.fromkeys(("run", "execute", "start", "submit"), "it is the pipeline that runs: p.run()"),
    **dict.fromkeys(
        ("foreach_batch", "foreachBatch", "map_partitions", "mapPartitions", "mapInPandas", "mapInArrow", "pipe"),
        "write .map_batches(function, returns=Class): it is given batches of Arrow",
    ),
    **dict.fromkeys(("cache", "persist"), "leave it out: what several verbs read is computed once"),
    **dict.fromkeys(
        ("repartition", "coalesce", "rebalance", "shuffle", "rescale", "set_parallelism", "setParallelism"),
        "write .parallelism(4) for as many subtasks, and .key_by(...) where rows of a key are to meet in one",
    ),
    **dict.fromkeys(
        ("assign_timestamps_and_watermarks", "withWatermark", "with_watermark"),
        'event time is told at the source: event_time="at", max_out_of_orderness="5s"',
    ),
    **dict.fromkeys(
        ("group_by_dynamic", "rolling", "resample", "time_window", "window_all"),
        'write .key_by(...).window(tumbling("1m")).agg(...)',
    ),
    **dict.fromkeys(("name", "set_uid", "alias"), 'write .uid("name")'),
}
"""What is written for what others call otherwise, where it is more than another name."""
_AGGREGATES: Final = ("count", "sum", "mean", "min", "max", "len", "size", "value_counts", "median", "std")


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
        if name in _LOOKED_AT and hasattr(type(self), "collect"):
            return (
                "a stream holds no rows before it runs; .head(5) gives the first ones, .collect() all of a stream with "
                "an end, as a frame of Polars, and .write(console.Sink()) prints them as they come"
            )
        if name in _OTHERWISE:
            return f"{self._what} has no such verb; {_OTHERWISE[name]}"
        if name in _AGGREGATES:
            return f"aggregates belong to a key: .key_by(...).agg({_example(name)})"
        return f"{self._what} has no such verb; {nearest(name, verbs_of(type(self)))}"


def _example(name: str) -> str:
    return "n=count()" if name in ("count", "len", "size", "value_counts") else f'{name}=col("price").{name}()'


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
    def _rows(self) -> Rows:
        """What the functions of `penstock.plan.building` take."""
        return Rows(self._pipeline.plan, self._node)

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
                raise PipelineError(
                    f"uid: two operators are named {uid!r}: {node.id} ({node.verb}) and this one{of_cells()}"
                )
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

    def write(self, sink: Sink) -> WrittenStream:
        """Hand the rows to `sink`. Behind `key_by` too: the rows of a key then come to it from one subtask, in order.

        Raises:
            PipelineError: it cannot take rows of this schema, or another sink of the pipeline writes to its place.

        Example:
            >>> written = bids.write(files.Sink("out", format="parquet"))
            >>> p.run().state
            'FINISHED'
        """
        return WrittenStream(self._pipeline, write(self._rows, sink).node)

    def collect(self, *, limit: int | None = None) -> pl.DataFrame:
        """Run the pipeline as far as this stream, in this process, and give its rows: a table, in a notebook.

        Nothing is written to the sinks. Rows stand in the order of their arrival; of a stream of updates, every
        update is a row. While Penstock itself imports the file, nothing runs and there are no rows.

        Args:
            limit: at most so many rows; the run ends as soon as it has them, so that a source need not have an end.

        Raises:
            PipelineError: a source has no end, and there is no `limit`.
            PenstockError: the pipeline or its code failed.

        Example:
            >>> p.read(files.Source("bids.jsonl", schema=Bid)).filter(col("price") > 100).drop("at", "tags").collect()
            shape: (2, 2)
            ...
        """
        return self._pipeline.rows_of(self._node, limit)

    def head(self, n: int = 5) -> pl.DataFrame:
        """The first rows that come, as `collect(limit=n)` gives them: a look at a stream, also at one without end.

        Example:
            >>> bids.select("auction", "price").head(2)
            shape: (2, 2)
            ...
        """
        return self.collect(limit=n)

    def __repr__(self) -> str:
        node = self._node
        keys = f" of key {', '.join(node.keys)}" if node.keys else ""
        mode = "" if node.mode == "append" else f" ({node.mode})"
        return f"{type(self).__name__}{keys}{mode}: {self.schema}"

    def _repr_html_(self) -> str:
        """The picture of it in a notebook: its columns, and the graph that leads to it."""
        from penstock.graph.jobgraph import build_job_graph
        from penstock.graph.picture import columns_of, svg_of

        plan = self._pipeline.plan.ending_in(self._node, Write(collecting.Sink()))
        what = escape(repr(self).partition(":")[0])
        picture = svg_of(build_job_graph(plan, 1))
        return f"<p>{what}; <code>.head()</code> gives its first rows</p>{columns_of(self.schema)}{picture}"

    def _side_rows(self, tag: OutputTag[Any]) -> Rows:
        """The rows of the side output `tag` of the operator that makes this stream."""
        return side(self._rows, tag, lambda: self._side_instead(tag))

    def _side_instead(self, tag: OutputTag[Any]) -> str:
        """Where the side output is that a verb has not: often at one before it."""
        for node in ancestors(self._node):
            if tag.name in node.sides:
                return f"take it from the stream that .{said_last(node)}(...) gave"
        return nearest(tag.name, self._node.sides)


class WrittenStream(StreamBase):
    """The end of a stream in a sink; only its settings can be changed."""

    _what = "the end of a stream in a sink"

    def _repr_html_(self) -> str:
        return self._pipeline._repr_html_()
