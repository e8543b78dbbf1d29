"""What runs in a Spark task: it reads the task's input, drives the chain of the vertex, and yields what the chain sends.

The chain is the one that `penstock.task.chain` builds for streaming; only what surrounds it differs. A source task
reads one split to its end. Any other task gets its rows sorted by event time and, where the vertex is keyed, by key
group first: then every key group has a chain of its own, one after the other, so that a task holds the state of one key
group at a time; or it gets partials of a window that Spark has merged (see `native`), sorted by window. Before rows are
fed the watermark moves to just below the first of them, so no row is ever late; the end of the input is the end of event
time, unless the run keeps its state for a stream to go on with (see `progress`).
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import polars as pl
import pyarrow as pa

from penstock.batches import EVENT_TIME, with_watermarks
from penstock.connectors.base import EndOfSplit, Fetched, ReadContext, Source, Split, SplitReader, WatermarkGenerator
from penstock.graph.jobgraph import DEAD_LETTERS_TAG, JobVertex, graph_from_json
from penstock.graph.logical import LogicalPlan, Read
from penstock.protocol.keygroups import key_group_range
from penstock.spark.archives import archive_of
from penstock.spark.code import PipelineCode, load_plan
from penstock.spark.failures import wrapped
from penstock.spark.native import NativeWindow
from penstock.spark.progress import SplitReport
from penstock.spark.replay import MergedFeed, Replay
from penstock.spark.splits import RunSplit
from penstock.spark.state import NO_STATE, StageState
from penstock.spark.taskwork import TaskWork, now_us
from penstock.spark.wire import PARTITION, StageEdge
from penstock.task.bad_rows import RowValidator
from penstock.task.sources import BATCH_ROWS, SplitEntry
from penstock.times import MAX_WATERMARK, MIN_WATERMARK

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
    splits: tuple[RunSplit, ...]
    """Of a source: every split."""
    execution: str
    """What no other execution of the pipeline has; begins every name that a task gives."""
    staging: str
    """The folder, seen from every machine, where rows of exactly-once sinks are staged."""
    state: StageState = NO_STATE
    native: NativeWindow | None = None
    """The window at the head of the vertex, if what comes are its partials, merged by Spark."""


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
            self.vertex,
            self.plan,
            self.task.edges,
            subtask,
            attempt,
            self.attempt.number,
            self.task.staging,
            self.task.state,
            self.task.native,
        )


# -- sources ------------------------------------------------------------------------------------------------------------


def _read_splits(context: _Context, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read the splits whose numbers are the task's input."""
    for batch in itertools.chain((first,), rest):
        for index in batch.column(0).to_numpy().tolist():
            work = context.work(index)
            try:
                with asyncio.Runner() as runner:
                    yield from _read_split(work, runner, context.plan, context.task.splits[index])
                yield from work.finish()
            finally:
                work.close()


def _read_split(work: TaskWork, runner: asyncio.Runner, plan: LogicalPlan, split: RunSplit) -> Iterator[pa.RecordBatch]:
    operator = work.vertex.operators[0]
    operation = plan.node(operator.node).operation
    assert isinstance(operation, Read)
    source = operation.source
    chain = work.open_chain(key_group_range(0, 1, work.vertex.max_parallelism))
    output = chain.source_output
    assert output is not None
    metrics = chain.metrics[operator.id]
    judge = RowValidator(source, metrics, plan.window_reach_us)
    marks = _SplitMarks(source, split, plan.carries_watermarks(plan.node(operator.node)))
    reader = _open(source, split)
    try:
        while (fetched := runner.run(_fetch(reader))) is not None:
            frame, dead = judge.judge(fetched, split.split)
            before = marks.watermark
            output.rows(marks.follow(frame))
            if dead is not None:
                output.side(DEAD_LETTERS_TAG, dead)
            if marks.watermark > before:
                work.advance(marks.watermark)
            yield from work.outputs.drain()
        report = SplitReport(marks.entry(source, reader, metrics.rows_in), metrics.rows_in, bool(split.archive))
        work.outputs.report({"kind": "split", "split": report})
    finally:
        runner.run(reader.close())
    yield from work.end_chain()


def _open(source: Source[Any], split: RunSplit) -> SplitReader:
    context = ReadContext(now_us, lambda: time.monotonic_ns() // 1_000_000)
    if split.archive:
        return archive_of(source, split.archive).open(split.split, context)
    return source.open(Split(split.split), split.position, context)


class _SplitMarks:
    """How event time comes on in a split, by the generator that streaming has for it."""

    def __init__(self, source: Source[Any], split: RunSplit, carries_watermarks: bool) -> None:
        self._split = split
        self._carries_watermarks = carries_watermarks
        self._generator: WatermarkGenerator | None = None
        self.watermark = split.former.watermark if split.former is not None else MIN_WATERMARK
        self._event_time = source.event_time
        if source.event_time is not None:
            self._generator = source.event_time.watermarks.generator()
            if split.former is not None:
                self._generator.restore(split.former.generator)

    def follow(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Rows have come; the same with the watermark that they are to carry."""
        moves = self._generator.on_batch(frame[EVENT_TIME], frame) if self._generator and frame.height else None
        if moves is None:
            return frame
        least = self.watermark
        self._rise(moves.after)
        return with_watermarks(frame, moves.at_rows, least, MAX_WATERMARK, every_row=self._carries_watermarks)

    def _rise(self, watermark: int | None) -> None:
        if watermark is not None:
            self.watermark = max(self.watermark, watermark)

    def entry(self, source: Source[Any], reader: SplitReader, rows: int) -> SplitEntry:
        """The split as streaming would snapshot it now that it is read."""
        if self._generator is not None:
            self._rise(self._generator.on_period())  # a moment of silence follows the last row
        position = reader.position()
        onward = None if self._split.archive else source.go_on_from(position)
        return SplitEntry(
            split=self._split.split,
            position=position if onward is None else onward,
            finished=onward is None,
            watermark=self.watermark,
            idle=rows == 0 and self._event_time is not None and self._event_time.idle_after_us is not None,
            generator=self._generator.state() if self._generator is not None else None,
        )


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
        native = context.task.native
        feed = Replay(work) if native is None else MergedFeed(work, native)
        yield from feed.feed(first)
        for batch in rest:
            yield from feed.feed(batch)
        yield from feed.end()
        yield from work.finish()
    finally:
        work.close()
