"""What runs in a Spark task: it reads the task's input, drives the chain of the vertex, and yields what the chain sends.

The chain is the one that `penstock.runtime.chain` builds for streaming; only what surrounds it differs. A source task
reads one split to its end. Any other task gets its rows sorted by event time and, where the vertex is keyed, by key
group first: then every key group has a chain of its own, one after the other, so that a task holds the state of one key
group at a time. Before rows are fed the watermark moves to just below the first of them, so no row is ever late; the end
of the input is the end of event time.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa

from penstock.batches import EVENT_TIME
from penstock.connectors.base import EndOfSplit, Fetched, Position, ReadContext, Split, SplitReader
from penstock.graph.jobgraph import DEAD_LETTERS_TAG, JobVertex, graph_from_json
from penstock.graph.logical import LogicalPlan, Read
from penstock.protocol.keygroups import key_group_range
from penstock.runtime.judging import RowJudge
from penstock.runtime.sources import BATCH_ROWS
from penstock.spark.code import PipelineCode, load_plan
from penstock.spark.failures import wrapped
from penstock.spark.replay import Replay
from penstock.spark.taskwork import TaskWork, now_us
from penstock.spark.wire import PARTITION, StageEdge

if TYPE_CHECKING:
    pass

_SILENT_S: Final = 0.01
"""Pause after a reader had nothing right now."""


@dataclass(frozen=True)
class StageTask:
    """What all tasks of a stage are given; plain values, because it travels in the closure."""

    code: PipelineCode
    graph: bytes
    """The job graph as JSON."""
    vertex: str
    edges: tuple[StageEdge, ...]
    splits: tuple[tuple[str, Position], ...]
    """Of a source: every split with the position that it begins at."""
    execution: str
    """What no other execution of the pipeline has; begins every name that a task gives."""
    staging: str
    """The folder, seen from every machine, where rows of exactly-once sinks are staged."""


@dataclass(frozen=True)
class Attempt:
    """Which attempt of a task this is, as Spark counts."""

    id: int = 0
    number: int = 0


def run_stage(task: StageTask, batches: Iterator[pa.RecordBatch], attempt: Attempt) -> Iterator[pa.RecordBatch]:
    """The rows that one task sends.

    Raises:
        TaskFailedError: whatever went wrong, in a form that reaches the driver.
    """
    try:
        vertex = graph_from_json(msgspec.json.decode(task.graph)).vertex(task.vertex)
        context = _Context(task, vertex, load_plan(task.code), attempt)
        for batch in batches:
            if batch.num_rows:
                work = _read_splits if vertex.is_source else _replay
                yield from work(context, batch, batches)
    except Exception as error:  # the outermost supervisor of a task: what it raises must reach the driver
        raise wrapped(error, task.vertex) from None


@dataclass(frozen=True)
class _Context:
    task: StageTask
    vertex: JobVertex
    plan: LogicalPlan
    attempt: Attempt

    def work(self, subtask: int) -> TaskWork:
        attempt = f"{self.task.execution}-{self.attempt.id}"
        return TaskWork(
            self.vertex, self.plan, self.task.edges, subtask, attempt, self.attempt.number, self.task.staging
        )


# -- sources ------------------------------------------------------------------------------------------------------------


def _read_splits(context: _Context, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read the splits whose numbers are the task's input."""
    for batch in itertools.chain((first,), rest):
        for index in batch.column(0).to_numpy().tolist():
            work = context.work(index)
            try:
                with asyncio.Runner() as runner:
                    yield from _read_split(work, runner, context.plan, *context.task.splits[index])
                yield from work.finish()
            finally:
                work.close()


def _read_split(
    work: TaskWork, runner: asyncio.Runner, plan: LogicalPlan, split: str, position: Position
) -> Iterator[pa.RecordBatch]:
    operator = work.vertex.operators[0]
    operation = plan.node(operator.node).operation
    assert isinstance(operation, Read)
    source = operation.source
    chain = work.open_chain(key_group_range(0, 1, work.vertex.max_parallelism))
    output = chain.source_output
    assert output is not None
    judge = RowJudge(source, chain.metrics[operator.id])
    generator = source.event_time.watermarks.generator() if source.event_time is not None else None
    reader = source.open(Split(split), position, ReadContext(now_us, lambda: time.monotonic_ns() // 1_000_000))
    try:
        while (fetched := runner.run(_fetch(reader))) is not None:
            frame, dead = judge.judge(fetched, split)
            output.rows(frame)
            if dead is not None:
                output.side(DEAD_LETTERS_TAG, dead)
            if generator is not None and frame.height:
                watermark = generator.on_batch(frame[EVENT_TIME], frame)
                if watermark is not None:
                    chain.watermark(watermark)
            yield from work.outputs.drain()
    finally:
        runner.run(reader.close())
    yield from work.end_chain()


async def _fetch(reader: SplitReader) -> Fetched | None:
    """The next rows; None at the end."""
    while True:
        try:
            fetched = await reader.read(BATCH_ROWS)
        except EndOfSplit:
            return None
        if fetched is not None:
            return fetched
        await asyncio.sleep(_SILENT_S)


# -- replay -------------------------------------------------------------------------------------------------------------


def _replay(context: _Context, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Feed a sorted partition to the vertex."""
    work = context.work(int(first.column(first.schema.get_field_index(PARTITION)).to_numpy()[0]))
    try:
        replay = Replay(work)
        yield from replay.feed(first)
        for batch in rest:
            yield from replay.feed(batch)
        yield from work.end_chain()
        yield from work.finish()
    finally:
        work.close()
