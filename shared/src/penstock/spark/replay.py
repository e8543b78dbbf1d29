"""Feeding a sorted partition to the chains of a vertex: one after the other for its key groups where the vertex is keyed.

Key groups arrive in order, those that only have state from a savepoint among them: event time passes for them too. Small
ones share a chain (see `key_group_batches`), so their rows are sorted by event time again. Where Spark has merged the
partials of a window there is one chain: the operators behind the window keep no state.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, cast

import polars as pl
import pyarrow as pa

from penstock.core.batches import EVENT_TIME, WATERMARK
from penstock.graph.jobgraph import JobVertex
from penstock.spark.framing import FrameMerger
from penstock.spark.inputs import Inputs
from penstock.spark.key_group_batches import KeyGroupBatch, KeyGroupBatcher
from penstock.spark.native import NativeWindow
from penstock.spark.outputs import StageOutputs
from penstock.spark.partials import START
from penstock.spark.taskwork import TaskWork
from penstock.spark.wire import FRAME, FROM, GROUP, INPUT, OUTPUT, READ_TAGS, REPORT, REPORT_OUTPUT, SEQ, decode_frame
from penstock.task.operators.partials import Partials

_FRAME_TAGS: Final = (GROUP, EVENT_TIME, INPUT, FROM, SEQ)
SLICE_ROWS: Final = 16_384
"""Rows that are fed at a time, at most."""


class Replay:
    """Feeds sorted batches to the chains of a task."""

    def __init__(self, work: TaskWork) -> None:
        edges = work.vertex.inputs
        self._work = work
        self._event_time = is_timed(work.vertex)
        producers = [work.plan.node(edge.link.source) for edge in edges]
        self._carries_watermarks = any(work.plan.carries_watermarks(node) for node in producers)
        self._lag = max(work.plan.watermark_lag_us(node) for node in producers)
        self._keyed = is_keyed(work.vertex)
        moment = (WATERMARK if work.by_arrival else EVENT_TIME) if self._event_time else None
        telling = (
            WATERMARK if work.by_arrival else EVENT_TIME if self._carries_watermarks and self._event_time else None
        )
        self._moving = (telling, 0 if work.by_arrival else self._lag)
        """The column by which rows tell how far event time has come, if they do, and how close is close."""
        self._inputs = Inputs(edges, watermarks=work.watermarks)
        self._merger = FrameMerger(self._inputs.schema, moment, self._inputs.read)
        self._group: int | None = None
        """The key group whose frames come."""
        stored = work.restoring.sizes(work.key_groups) if work.restoring is not None and self._keyed else {}
        self._batcher = KeyGroupBatcher(stored)
        if work.restoring is not None and not self._keyed:
            work.open_chain(work.key_groups)  # whatever comes, its state is there

    def feed(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take a batch; yields what the chains sent."""
        batch = _pass_reports(batch, self._work.outputs)
        if not batch.num_rows:
            return
        columns = {name: batch.column(batch.schema.get_field_index(name)).to_pylist() for name in _FRAME_TAGS}
        data = batch.column(batch.schema.get_field_index(FRAME))
        for row, (group, least, *origin) in enumerate(zip(*columns.values(), strict=True)):
            if self._keyed and group != self._group:
                yield from self._merged()
                self._group = group
            for complete in self._merger.add(tuple(origin), least, data[row].as_buffer()):
                yield from self._take(complete)

    def _merged(self) -> Iterator[pa.RecordBatch]:
        """Take what is left of the frames."""
        for rest in self._merger.rest():
            yield from self._take(rest)

    def _take(self, rows: pl.DataFrame) -> Iterator[pa.RecordBatch]:
        """Feed rows that are in order, or let them wait for other key groups to share their chain."""
        if self._keyed:
            assert self._group is not None
            for batch in self._batcher.add(self._group, rows, int(rows.estimated_size())):
                yield from self._feed_batch(batch)
            return
        if self._work.chain is None:
            self._work.open_chain(self._work.key_groups)
        yield from self._feed_rows(rows)

    def end(self) -> Iterator[pa.RecordBatch]:
        """There is no more input."""
        yield from self._merged()
        for batch in self._batcher.finish():
            yield from self._feed_batch(batch)
        yield from self._work.end_chain()

    def _feed_batch(self, batch: KeyGroupBatch) -> Iterator[pa.RecordBatch]:
        """Feed key groups to a chain of their own, or go on with the one at work."""
        if not batch.continues:
            yield from self._work.end_chain()
            self._work.open_chain(batch.groups, batch.frames if batch.whole else None)
        if batch.frames:
            yield from self._feed_rows(self._in_order(batch))

    def _in_order(self, batch: KeyGroupBatch) -> pl.DataFrame:
        """The rows of key groups as those of one: sorted by when they are to come, else as they are."""
        rows = pl.concat(batch.frames)
        if not self._event_time or batch.groups.end - batch.groups.start == 1:
            return rows
        return rows.sort(WATERMARK if self._work.by_arrival else EVENT_TIME, maintain_order=True)

    def _feed_rows(self, frame: pl.DataFrame) -> Iterator[pa.RecordBatch]:
        chain = self._work.chain
        assert chain is not None
        for begin in range(0, frame.height, SLICE_ROWS):
            part = frame.slice(begin, SLICE_ROWS)
            if self._work.by_arrival:
                marks = self._work.reached(part[WATERMARK])
                self._work.advance(int(marks[0]))
                part = part.with_columns(marks)
            elif self._event_time:
                marks = self._work.reached(part[EVENT_TIME] - (self._lag + 1))
                self._work.advance(int(marks[0]))
                if self._carries_watermarks:
                    part = part.with_columns(marks.alias(WATERMARK))
            for number, rows in self._inputs.split(part, *self._moving):
                chain.rows(number, rows)
            yield from self._work.outputs.drain()


class MergedFeed:
    """Feeds the merged partials of a window, sorted by window, to the chain of a task."""

    def __init__(self, work: TaskWork, native: NativeWindow) -> None:
        self._work = work
        self._native = native
        partials = Partials(work.plan.node(native.node))
        self._names = [*partials.keys.names, START, *partials.names]

    def feed(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take a batch; yields what the chain sent."""
        batch = _pass_reports(batch, self._work.outputs)
        if not batch.num_rows:
            return
        frame = decode_frame(batch, len(READ_TAGS), self._native.schema)
        frame.columns = self._names
        chain = self._work.chain or self._work.open_chain(self._work.key_groups)
        assert chain.head is not None
        first = cast("int", frame[START][0])
        self._work.advance(first + self._native.shape.size - 2)  # just below the event time of the first result
        chain.head.rows(frame)
        yield from self._work.outputs.drain()

    def end(self) -> Iterator[pa.RecordBatch]:
        """There is no more input."""
        yield from self._work.end_chain()


def _pass_reports(batch: pa.RecordBatch, outputs: StageOutputs) -> pa.RecordBatch:
    """Send on the reports in a batch; what is left are its rows."""
    output = batch.column(batch.schema.get_field_index(OUTPUT)).to_numpy()
    if not (output < 0).any():
        return batch
    reports = batch.filter(pa.array(output == REPORT_OUTPUT))
    for report in reports.column(batch.schema.get_field_index(REPORT)):
        outputs.pass_on(report.as_py())
    return batch.filter(pa.array(output >= 0))


def is_timed(vertex: JobVertex) -> bool:
    """Whether all rows that come to a vertex have event time, so that it puts them in order."""
    return bool(vertex.inputs) and all(edge.event_time for edge in vertex.inputs)


def is_keyed(vertex: JobVertex) -> bool:
    """Whether the vertex can work one key group at a time: its head alone keeps state, and that by key."""
    return bool(vertex.inputs) and all(edge.ship == "hash" for edge in vertex.inputs)
