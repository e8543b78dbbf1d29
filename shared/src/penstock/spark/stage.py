"""What runs in a Spark task: it reads the task's input, drives the chain of the vertex, and yields what the chain sends.

The chain is the one that `penstock.task.chain` builds for streaming; only what surrounds it differs. A source task
reads one split to its end, or a partition of a DataFrame (see `reading`). Any other task gets its rows sorted by event
time and, where the vertex is keyed, by key group first: then every key group has a chain of its own, one after the other,
so that a task holds the state of one key group at a time; or it gets partials of a window that Spark has merged (see
`native`), sorted by window. Before rows are fed the watermark moves to just below the first of them, so no row is ever
late; the end of the input is the end of event time, unless the run keeps its state for a stream to go on with (see
`progress`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from penstock.connectors import spark
from penstock.core.garbage import ease_collection
from penstock.graph.jobgraph import JobVertex, graph_from_json
from penstock.plan.logical import LogicalPlan
from penstock.plan.operations.read import Read
from penstock.spark.arrival_order import ArrivalOrderAnalysis
from penstock.spark.code import TaskCode, load_plan
from penstock.spark.failures import wrapped
from penstock.spark.native import NativeWindow
from penstock.spark.reading import read_frame, read_split
from penstock.spark.replay import MergedFeed, Replay
from penstock.spark.splits import RunSplit
from penstock.spark.state import NO_STATE, StageState
from penstock.spark.taskwork import TaskWork
from penstock.spark.wire import PARTITION, StageEdge


@dataclass(frozen=True)
class StageTask:
    """What all tasks of a stage are given; plain values, because it travels in the closure."""

    code: TaskCode
    graph: bytes
    """The job graph as JSON."""
    vertex: str
    edges: tuple[StageEdge, ...]
    splits: tuple[RunSplit, ...]
    """Of a source: every split."""
    execution: str
    """What no other execution of the pipeline has; begins every name that a task gives."""
    staging: str
    """The folder or URL, seen from every machine, where rows of exactly-once sinks are staged."""
    state: StageState = NO_STATE
    native: NativeWindow | None = None
    """The window at the head of the vertex, if what comes are its partials, merged by Spark."""


@dataclass(frozen=True)
class Attempt:
    """Which attempt of a task this is, as Spark counts."""

    id: int = 0
    number: int = 0
    partition: int = 0
    """Which of the stage's partitions it computes."""


def run_stage(task: StageTask, batches: Iterator[pa.RecordBatch], attempt: Attempt) -> Iterator[pa.RecordBatch]:
    """The rows that one task sends.

    Raises:
        TaskFailedError: whatever went wrong, in a form that reaches the driver.
    """
    try:
        graph = graph_from_json(msgspec.json.decode(task.graph))
        vertex, arrival = graph.vertex(task.vertex), ArrivalOrderAnalysis(graph, load_plan(task.code))
        by_arrival, watermarks = arrival.is_fed_in_arrival_order(vertex), arrival.carries_watermarks(vertex)
        context = TaskContext(task, vertex, arrival.plan, attempt, by_arrival, watermarks)
        work = _read if vertex.is_source else _replay
        for batch in batches:
            if batch.num_rows:
                yield from work(context, batch, batches)
    except Exception as error:  # the outermost supervisor of a task: what it raises must reach the driver
        raise wrapped(error, task.vertex) from None


@dataclass(frozen=True)
class TaskContext:
    """A task and what it is made of."""

    task: StageTask
    vertex: JobVertex
    plan: LogicalPlan
    attempt: Attempt
    by_arrival: bool
    watermarks: bool = False

    def work(self, subtask: int, part: int = 0) -> TaskWork:
        """What the chains of one subtask share; `part`: which part of its first split it reads."""
        attempt = f"{self.task.execution}-{self.attempt.id}"
        ease_collection()
        return TaskWork(
            self.vertex,
            self.plan,
            self.task.edges,
            subtask,
            attempt,
            self.attempt.number,
            self.task.staging,
            self.task.state,
            self.task.native,
            self.by_arrival,
            self.watermarks,
            part,
        )


# -- sources ------------------------------------------------------------------------------------------------------------


def _read(context: TaskContext, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read the splits whose numbers are the task's input, rising, or the rows that are."""
    operation = context.plan.node(context.vertex.operators[0].node).operation
    assert isinstance(operation, Read)
    batches = itertools.chain((first,), rest)
    if isinstance(operation.source, spark.Source):
        yield from _worked(context.work(context.attempt.partition), lambda work: read_frame(work, batches))
        return
    numbers = [number for batch in batches for number in batch.column(0).to_numpy().tolist()]
    splits = [context.task.splits[number] for number in numbers]
    yield from _worked(context.work(numbers[0], splits[0].part), lambda work: _read_all(work, splits))


def _read_all(work: TaskWork, splits: Iterable[RunSplit]) -> Iterator[pa.RecordBatch]:
    """One split after the other, each with a chain of its own."""
    for split in splits:
        yield from read_split(work, split)
        yield from work.end_chain()


def _worked(work: TaskWork, read: Callable[[TaskWork], Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    try:
        yield from read(work)
        yield from work.end_chain()
        yield from work.finish()
    finally:
        work.close()


# -- replay -------------------------------------------------------------------------------------------------------------


def _replay(context: TaskContext, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Feed a sorted partition to the vertex."""
    work = context.work(int(first.column(first.schema.get_field_index(PARTITION)).to_numpy()[0]))
    try:
        native = context.task.native
        feed = Replay(work) if native is None else MergedFeed(work, native)
        yield from feed.feed(first)
        for batch in rest:
            yield from feed.feed(batch)
        yield from feed.end()
        yield from work.finish()
    finally:
        work.close()
