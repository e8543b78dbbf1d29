"""What a source task does: it brings the rows of a split, or of a partition of a DataFrame, to the chain of the vertex.

Records are checked, and event time advances, by the rules and the code of the streaming source (`penstock.task`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any, Final

import polars as pl
import pyarrow as pa

from penstock.connectors import spark
from penstock.connectors.base import (
    BadRow,
    EndOfSplit,
    Fetched,
    ReadContext,
    Source,
    Split,
    SplitReader,
    WatermarkGenerator,
)
from penstock.core.batches import EVENT_TIME, with_watermarks
from penstock.core.times import MAX_WATERMARK, MIN_WATERMARK
from penstock.formats.schema_matching import SchemaMatcher
from penstock.graph.jobgraph import DEAD_LETTERS_TAG
from penstock.plan.passes.reading import narrowed
from penstock.protocol.keygroups import key_group_range
from penstock.spark.progress import SplitReport
from penstock.spark.splits import RunSplit
from penstock.spark.surveying import reading_of
from penstock.spark.taskwork import TaskWork, now_us
from penstock.task.bad_rows import RowValidator
from penstock.task.sources import BATCH_ROWS, SplitEntry

_SILENT_S: Final = 0.01
"""Pause after a reader had nothing right now."""


def read_split(work: TaskWork, split: RunSplit) -> Iterator[pa.RecordBatch]:
    """Read a split, or the part of it that is meant, to its end; yields what the chain sent before the input's end."""
    feed = _Feed(work, split)
    reader = _open(feed.source, split)
    with asyncio.Runner() as runner:
        try:
            while (fetched := runner.run(_fetch(reader))) is not None:
                yield from feed.take(fetched)
            entry = feed.marks.entry(feed.source, reader, feed.rows)
            report = SplitReport(entry, feed.rows, bool(split.archive), split.part, feed.misspelt)
            work.outputs.report({"kind": "split", "source": work.vertex.operators[0].id, "split": report})
        finally:
            runner.run(reader.close())


def read_frame(work: TaskWork, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same for the rows of a partition of a DataFrame."""
    name = f"partition {work.subtask}"
    feed, matcher = _Feed(work, RunSplit(name)), None
    assert isinstance(feed.source, spark.Source)
    for batch in map(feed.source.named, batches):
        if matcher is None:
            matcher = SchemaMatcher(feed.source.schema, batch.schema, "spark.Source", feed.source.timezone)
        frame, bad = matcher.frame(batch)
        rows = [BadRow(reason, raw, f"{name}, row {feed.rows + index + 1}") for index, reason, raw in bad]
        yield from feed.take(Fetched(frame, rows, batch.nbytes))


class _Feed:
    """The source of a task: what it brings goes to the chain, with its event time."""

    def __init__(self, work: TaskWork, split: RunSplit) -> None:
        operator = work.vertex.operators[0]
        node = work.plan.node(operator.node)
        self.source = narrowed(work.plan, node)
        self.marks = _SplitMarks(self.source, split, work.plan.carries_watermarks(node))
        self._work = work
        self._split = split
        chain = work.open_chain(key_group_range(0, 1, work.vertex.max_parallelism))
        self._output = chain.source_output
        assert self._output is not None
        self._metrics = chain.metrics[operator.id]
        self._judge = RowValidator(self.source, self._metrics, now_us, work.plan.window_reach_us)

    @property
    def rows(self) -> int:
        """How many have come, bad ones included."""
        return self._metrics.rows_in

    @property
    def misspelt(self) -> dict[str, str]:
        """See `OperatorMetrics.misspelt`."""
        return self._metrics.misspelt_fields

    def take(self, fetched: Fetched) -> Iterator[pa.RecordBatch]:
        """Rows have come; yields what the chain sent."""
        frame, dead = self._judge.judge(fetched, self._split.split)
        before = self.marks.watermark
        assert self._output is not None
        self._output.rows(self.marks.follow(frame))
        if dead is not None:
            self._output.side(DEAD_LETTERS_TAG, dead)
        if self.marks.watermark > before:
            self._work.advance(self.marks.watermark)
        yield from self._work.outputs.drain()


def _open(source: Source[Any], split: RunSplit) -> SplitReader:
    context = ReadContext(now_us, lambda: time.monotonic_ns() // 1_000_000)
    return reading_of(source, split).open(Split(split.split), split.position, context)


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
            idle=rows == 0
            and not self._split.awake
            and self._event_time is not None
            and self._event_time.idle_after_us is not None,
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
