"""From the job graph to data frames: a vertex is a `mapInArrow`, an edge an exchange by subtask and a sort.

Where Spark computes a window (see `native`) an exchange by key, groupings that merge partials and a sort by window take
the place of the latter. Keys, not windows, say where a partial goes: so all windows of a key come to one task, in order.

Reports (see `wire`) flow with the rows: a stage with one consumer is computed once, within the job that computes its
consumer. A stage with several consumers would be computed once for each of them, sinks included, so it is computed by a
job of its own and kept on disk, and its reports are taken there; a stage without consumers ends its job. So is a stage
that has a sink or keeps its state: its reports name attempts, and were they shuffled, Spark would take a task that is run
again because an executor was lost for one that gives other rows each time, and give up. And the stages behind a source
that keeps its state must know how far event time comes. Should a kept partition be lost with its executor, Spark computes
it again: the rows are the same, and what that attempt stages again is never committed, because the reports of the first
one are here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark import StorageLevel, TaskContext
from pyspark.sql import functions
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.connectors import spark
from penstock.core.batches import EVENT_TIME
from penstock.graph.jobgraph import JobEdge, JobGraph, JobVertex
from penstock.plan.logical import LogicalPlan
from penstock.plan.operations.read import Read
from penstock.spark.arrival_order import ArrivalOrderAnalysis
from penstock.spark.code import TaskCode
from penstock.spark.merging import merged_partials
from penstock.spark.native import NativeWindow
from penstock.spark.packing import Packing, divided, packs
from penstock.spark.progress import split_reports
from penstock.spark.replay import is_keyed, is_timed
from penstock.spark.savepoints import RunState
from penstock.spark.splits import RunBeginning, RunSplit
from penstock.spark.stage import Attempt, StageTask, run_stage
from penstock.spark.surveying import survey
from penstock.spark.wire import (
    FRAME,
    FRAMED_NAMES,
    FROM,
    GROUP,
    INPUT,
    OUTPUT,
    PARTITION,
    READ_TAGS,
    REPORT,
    REPORT_OUTPUT,
    SEQ,
    SORT_TAGS,
    TICK_OUTPUT,
    StageEdge,
    column_name,
    output_schema,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession


class Lowering:
    """Runs the stages of a graph, in order."""

    def __init__(
        self,
        session: SparkSession,
        graph: JobGraph,
        plan: LogicalPlan,
        code: TaskCode,
        beginning: RunBeginning,
        state: RunState,
        execution: str,
        staging: str,
        entered: Callable[[JobVertex], None],
        natives: Mapping[str, NativeWindow],
    ) -> None:
        """`staging` is where rows of exactly-once sinks are staged; `entered` is told the vertex at the end of each job
        before it is run; `natives` are the vertices whose window Spark computes.
        """
        self._session = session
        self._graph = graph
        self._json = msgspec.json.encode(graph.to_json())
        self._plan = plan
        self._code = code
        self._beginning = beginning
        self._state = state
        self._execution = execution
        self._staging = staging
        self._entered = entered
        self._natives = natives
        self._arrival_order = ArrivalOrderAnalysis(graph, plan)
        self._consumers = {vertex.id: list(graph.consumers(vertex.id)) for vertex in graph.vertices}
        self._frames: dict[str, DataFrame] = {}
        self._returning = set[str]()
        """The vertex whose input is what is wanted, as rows of Spark."""
        self._kept: dict[str, DataFrame] = {}
        """Vertex to its rows, which are on disk; its reports are taken."""

    def run(self) -> list[dict[str, Any]]:
        """Compute everything; the reports of all tasks whose rows count."""
        reports: list[dict[str, Any]] = []
        try:
            for vertex in self._graph.vertices:
                frame = self._stage(vertex)
                if self._is_kept(vertex):
                    frame = self._kept[vertex.id] = frame.persist(StorageLevel.DISK_ONLY)
                self._frames[vertex.id] = frame
                if not self._consumers[vertex.id] or vertex.id in self._kept:
                    self._entered(vertex)
                    found = list(self._reports(frame))
                    reports += found
                    if vertex.is_source and self._state.keeps:
                        carried = self._beginning.carried[vertex.operators[0].id]
                        self._state.read(vertex, self._read(vertex).source, found, carried)
        finally:
            for frame in self._kept.values():
                frame.unpersist()
        if not self._state.keeps:  # which is told of all splits, and has found out
            self._check_parts(reports)
        return reports

    def _check_parts(self, reports: Sequence[dict[str, Any]]) -> None:
        """Raise `PipelineError` if parts of a file were read while it was replaced."""
        found = [report for report in reports if report["kind"] == "split"]
        for vertex in self._graph.vertices:
            if vertex.is_source:
                own = (report for report in found if report["source"] == vertex.operators[0].id)
                split_reports(own, self._read(vertex).source)

    def frame(self) -> DataFrame:
        """The rows that come to the last vertex, by number of the column; computed whenever Spark wants them."""
        *before, last = self._graph.vertices
        self._returning = {last.id}
        for vertex in before:
            self._frames[vertex.id] = self._stage(vertex)
        return _together(self._returned(last, index, edge) for index, edge in enumerate(last.inputs))

    def _returned(self, last: JobVertex, index: int, edge: JobEdge) -> DataFrame:
        number, _ = self._wanted(last, index, edge)
        names = [column_name(number, column) for column in range(len(edge.schema))]
        columns = [functions.col(name).alias(str(column)) for column, name in enumerate(names)]
        return self._frames[edge.vertex].where(functions.col(OUTPUT) == number).select(*columns)

    def _is_kept(self, vertex: JobVertex) -> bool:
        """Whether the stage is computed by a job of its own and kept on disk for those that read it."""
        consumers = len(self._consumers[vertex.id])
        return consumers > 1 or (consumers == 1 and (vertex.has_sink or self._state.keeps))

    def _reports(self, frame: DataFrame) -> Iterator[dict[str, Any]]:
        rows = frame.where(functions.col(OUTPUT) == REPORT_OUTPUT).select(REPORT).collect()
        return (msgspec.json.decode(bytes(row[0])) for row in rows)

    def _stage(self, vertex: JobVertex) -> DataFrame:
        edges = tuple(self._edge(vertex, consumer, edge) for consumer, _, edge in self._consumers[vertex.id])
        splits = self._splits(vertex) if vertex.is_source else ()
        native = self._natives.get(vertex.id)
        state = self._state.stage(vertex)
        task = StageTask(
            self._code, self._json, vertex.id, edges, splits, self._execution, self._staging, state, native
        )
        if vertex.is_source:
            source = self._source(vertex, splits)
        elif native is not None:
            source = self._merged(vertex, native)
        else:
            source = self._input(vertex, ticks=state.saved is not None)
        return source.mapInArrow(_task_function(task, vertex.name), from_arrow_schema(output_schema(edges)))

    def _edge(self, vertex: JobVertex, consumer: JobVertex, edge: JobEdge) -> StageEdge:
        native, framed = self._natives.get(consumer.id), consumer.id not in self._returning
        return self._arrival_order.edge(vertex, consumer, edge, native, self._state.reached, framed=framed)

    def _read(self, vertex: JobVertex) -> Read:
        operation = self._plan.node(vertex.operators[0].node).operation
        assert isinstance(operation, Read)
        return operation

    def _splits(self, vertex: JobVertex) -> tuple[RunSplit, ...]:
        """What the tasks of a source read, in order: its splits, large ones in parts."""
        splits = self._beginning.splits.get(vertex.operators[0].id, ())
        if not splits or self._arrival_order.read_as_a_whole(vertex, keeps=self._state.keeps):
            return splits
        most_bytes = Packing.of(self._session).limit(splits, vertex.parallelism)
        node = vertex.operators[0].node
        look = functools.partial(survey, self._session, self._code, vertex.id, node)
        lazy = bool(self._returning)  # nothing is to be computed yet
        return tuple(divided(self._read(vertex).source, splits, most_bytes, None if lazy else look))

    def _source(self, vertex: JobVertex, splits: Sequence[RunSplit]) -> DataFrame:
        """A partition per task, with the numbers of its splits in it; or the rows of a DataFrame."""
        source = self._read(vertex).source
        if isinstance(source, spark.Source):
            return source.frame(self._session)
        packed = packs(splits, vertex.parallelism, Packing.of(self._session))
        tasks = self._session.range(0, len(packed), 1, max(1, len(packed)))
        first, last = ([end(pack) for pack in packed] for end in (min, max))
        bounds = [
            functions.get(functions.array(*map(functions.lit, each)), functions.col("id")) for each in (first, last)
        ]
        return tasks.select(functions.explode(functions.sequence(*bounds)).alias("id")) if packed else tasks

    def _input(self, vertex: JobVertex, *, ticks: bool) -> DataFrame:
        """The sorted rows of a vertex; with `ticks` every partition has one row at least."""
        together = _together(self._rows_of(vertex, index, edge) for index, edge in enumerate(vertex.inputs))
        if ticks:
            known = {INPUT: functions.lit(0), OUTPUT: functions.lit(TICK_OUTPUT), PARTITION: functions.col("id")}
            columns = [
                known.get(field.name, functions.lit(None)).cast(field.dataType).alias(field.name)
                for field in together.schema.fields
            ]
            together = together.unionByName(self._session.range(0, vertex.parallelism, 1, 1).select(*columns))
        placed = together.repartitionById(vertex.parallelism, functions.col(PARTITION))
        order = sort_order(vertex, by_arrival=self._arrival_order.is_fed_in_arrival_order(vertex))
        ordered = placed.sortWithinPartitions(*order)
        return ordered.select(*FRAMED_NAMES)

    def _merged(self, vertex: JobVertex, native: NativeWindow) -> DataFrame:
        """The partials of a window, merged."""
        inputs: list[DataFrame] = []
        for index, edge in enumerate(vertex.inputs):
            number, wanted = self._wanted(vertex, index, edge)
            names = enumerate(native.schema.names)
            columns = [functions.col(column_name(number, column)).alias(name) for column, name in names]
            inputs.append(self._frames[edge.vertex].where(wanted).select(REPORT, *columns))
        return merged_partials(_together(inputs), native, vertex.parallelism)

    def _rows_of(self, vertex: JobVertex, index: int, edge: JobEdge) -> DataFrame:
        """The rows of one input."""
        number, wanted = self._wanted(vertex, index, edge)
        tags: list[Column] = [functions.lit(index).cast("int").alias(INPUT)]
        tags += [functions.col(name) for name in (*SORT_TAGS, *READ_TAGS)]
        frame = functions.col(column_name(number, 0)).alias(FRAME)
        return self._frames[edge.vertex].where(wanted).select(*tags, frame)

    def _wanted(self, vertex: JobVertex, index: int, edge: JobEdge) -> tuple[int, Column]:
        """The number of an input among its producer's outputs, and which rows are of it.

        The producer's reports are among them, where they flow on to here.
        """
        consumers = self._consumers[edge.vertex]
        number = next(
            n for n, (consumer, position, _) in enumerate(consumers) if (consumer.id, position) == (vertex.id, index)
        )
        wanted = functions.col(OUTPUT) == number
        if edge.vertex not in self._kept:
            wanted |= functions.col(OUTPUT) == REPORT_OUTPUT
        return number, wanted


def _together(inputs: Iterable[DataFrame]) -> DataFrame:
    return functools.reduce(lambda left, right: left.unionByName(right), inputs)


def sort_order(vertex: JobVertex, *, by_arrival: bool = False) -> list[Column]:
    """The order of a vertex's input: total, so that a task that is run again does the same again.

    `by_arrival`: by the watermark that rows carry, instead of by their event time.

    Spark compares rows by eight bytes of the first part, and only rows that agree there in full. So the key group, of
    which there are few, is joined with the event time in steps of 4096 us, which fits for the years 1 to 9999.
    """
    # Of a frame its first row's.
    ties = [functions.col(name) for name in (INPUT, FROM, SEQ)]
    group, moment = functions.col(GROUP).cast("long"), functions.col(EVENT_TIME)
    match is_keyed(vertex), is_timed(vertex):
        case True, True:
            # A watermark may be the beginning of time.
            first = functions.greatest(moment, functions.lit(-(1 << 58))) if by_arrival else moment
            step = functions.shiftright(first, 12) + functions.lit(1 << 46)
            return [functions.shiftleft(group, 48) + step, moment, *ties]
        case True, False:
            return [group, *ties]
        case False, True:
            return [moment, *ties]
        case _:
            return ties


def _task_function(task: StageTask, name: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def tasks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        attempt = Attempt()
        if context is not None:
            attempt = Attempt(context.taskAttemptId(), context.attemptNumber(), context.partitionId())
        return run_stage(task, batches, attempt)

    tasks.__name__ = name  # as Spark's plans and pages show it
    return tasks
