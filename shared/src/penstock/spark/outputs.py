"""What leaves a task: rows of every edge with the subtask they are for, and reports, in batches of the wire's schema."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa

from penstock.core.batches import EVENT_TIME, WATERMARK
from penstock.core.times import MIN_WATERMARK
from penstock.plan.logical import LogicalPlan
from penstock.spark.framing import cut, frame_schema
from penstock.spark.late_rows import LateRowsKept
from penstock.spark.partials import PartialOutput
from penstock.spark.wire import (
    FROM,
    GROUP,
    OUTPUT,
    PARTITION,
    REPORT,
    REPORT_OUTPUT,
    SEQ,
    StageEdge,
    column_name,
    encode_columns,
    output_schema,
)
from penstock.state.hashing import key_groups
from penstock.task.exchange import key_group_owners

if TYPE_CHECKING:
    from numpy.typing import NDArray

BATCH_ROWS: Final = 16_384
"""Rows of an edge that are gathered before they are handed to Spark."""
BATCH_BYTES: Final = 8 << 20
"""The same for wide rows."""
FRAMED_ROWS: Final = 524_288
"""The same of an edge whose rows cross in frames, of which there is one per key group."""
FRAMED_BYTES: Final = 32 << 20
_RUN_ROWS: Final = 4_096
"""Rows in a row that a rebalanced edge sends to one subtask."""
_REPORTS: Final = 16
"""Reports that are gathered: a console sink's hold rows."""


class StageOutputs:
    """The outputs of one task."""

    def __init__(self, edges: Sequence[StageEdge], subtask: int, plan: LogicalPlan | None = None) -> None:
        """`plan` is where the operators stand of which edges speak."""
        self._schema = output_schema(edges)
        self._subtask = subtask
        self._reports: list[bytes] = []
        self._report_partitions = edges[0].partitions if edges else 1
        self.late: list[LateRowsKept] = []
        """Of the edges to operators that find rows late in streaming."""
        self.edges = [self._edge(number, edge, plan) for number, edge in enumerate(edges)]

    def _edge(self, number: int, edge: StageEdge, plan: LogicalPlan | None) -> _EdgeOutput | PartialOutput:
        late = None
        if edge.judging:
            assert plan is not None
            late = LateRowsKept(plan.node(edge.judging), edge.max_parallelism, edge.restored)
            self.late.append(late)
        if edge.native is None:
            made = _FramedOutput if edge.framed else _EdgeOutput
            lag_us = plan.watermark_lag_us(plan.node(edge.edge.link.source)) if plan is not None else 0
            return made(number, edge, self._subtask, late, lag_us)
        assert plan is not None
        return PartialOutput(number, edge, edge.native, plan, late)

    def report(self, report: Any) -> None:
        """Send a JSON value to the driver."""
        self.pass_on(msgspec.json.encode(report))

    def pass_on(self, report: bytes) -> None:
        """Send on what a stage before reported."""
        self._reports.append(report)

    def drain(self, *, everything: bool = False) -> Iterator[pa.RecordBatch]:
        """What is worth a batch by now."""
        for edge in self.edges:
            if edge.is_due(everything=everything):
                yield self._batch(*edge.take())
        if self._reports and (everything or len(self._reports) >= _REPORTS):
            reports, self._reports = self._reports, []
            columns = {
                OUTPUT: np.full(len(reports), REPORT_OUTPUT, np.int32),
                PARTITION: np.full(len(reports), self._subtask % self._report_partitions, np.int32),
                REPORT: reports,
            }
            yield self._batch(len(reports), columns)

    def _batch(self, rows: int, columns: dict[str, Any]) -> pa.RecordBatch:
        """The columns given, all others null."""
        arrays = [
            pa.array(columns[field.name], field.type) if field.name in columns else pa.nulls(rows, field.type)
            for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


class _EdgeOutput:
    """One edge out of a task: a `Receiver` at the end of a chain.

    Which subtask a row goes to depends on its key or on its number, never on how rows come in batches: a task that is
    run again because its output was lost sends every row where it went before.
    """

    def __init__(
        self, number: int, edge: StageEdge, subtask: int, late: LateRowsKept | None = None, lag_us: int = 0
    ) -> None:
        """`lag_us`: how far event time stays behind rows where no watermark is known."""
        self.edge = edge
        self._late = late
        self._lag_us = lag_us
        self._waiting = 0
        self._waiting_bytes = 0
        self._number = number
        self._subtask = subtask
        self._keys = list(edge.edge.link.keys)
        self._owners = key_group_owners(edge.partitions, edge.max_parallelism)
        self._columns = edge.schema.names
        self._frames: list[pl.DataFrame] = []
        self._sent = 0

    def rows(self, frame: pl.DataFrame) -> None:
        """Take rows."""
        if self._late is not None:
            self._late.look_at(frame)
        names = [*self._columns, EVENT_TIME] if self.edge.edge.event_time else list(self._columns)
        chosen = frame.select(names)
        if self.edge.watermarks:
            chosen = chosen.with_columns(self._watermarks(frame).alias(WATERMARK))
        self._frames.append(chosen)
        self._waiting += chosen.height
        self._waiting_bytes += int(chosen.estimated_size())

    def _watermarks(self, frame: pl.DataFrame) -> pl.Series:
        """What the split of each row had reached; null in a batch is that nothing is known yet."""
        if self.edge.known and WATERMARK in frame.columns:
            return frame[WATERMARK].fill_null(MIN_WATERMARK)
        return frame[EVENT_TIME] - (self._lag_us + 1)

    def watermark(self, watermark: int) -> None:
        """Nothing: the consumer's input is sorted, and its event time follows from the rows."""

    def is_due(self, *, everything: bool) -> bool:
        """Whether the rows gathered are worth a batch."""
        if everything:
            return self._waiting > 0
        return self._waiting >= BATCH_ROWS or self._waiting_bytes >= BATCH_BYTES

    def take(self) -> tuple[int, dict[str, Any]]:
        """The rows gathered, as columns of the wire."""
        frame = pl.concat(self._frames) if len(self._frames) > 1 else self._frames[0]
        self._frames, self._waiting, self._waiting_bytes = [], 0, 0
        rows = frame.height
        numbers = np.arange(self._sent, self._sent + rows, dtype=np.int64)
        self._sent += rows
        columns: dict[str, Any] = {
            OUTPUT: np.full(rows, self._number, np.int32),
            FROM: np.full(rows, self._subtask, np.int32),
            SEQ: numbers,
        }
        columns |= self._placed(frame, numbers)
        if self.edge.edge.event_time:
            columns[EVENT_TIME] = frame[EVENT_TIME].to_arrow()
        if self.edge.watermarks:
            columns[WATERMARK] = frame[WATERMARK].to_arrow()
        for index, column in enumerate(encode_columns(frame, self.edge.schema)):
            columns[column_name(self._number, index)] = column
        return rows, columns

    def _placed(self, frame: pl.DataFrame, numbers: NDArray[np.int64]) -> dict[str, Any]:
        if not self._keys:
            # Updates of a subtask stay in order, as in `penstock.task.exchange`.
            runs = numbers // _RUN_ROWS if self.edge.edge.link.mode == "append" else np.zeros_like(numbers)
            return {PARTITION: ((runs + self._subtask) % self.edge.partitions).astype(np.int32)}
        groups = key_groups(frame, self._keys, self.edge.max_parallelism).to_numpy()
        return {PARTITION: self._owners[groups].astype(np.int32), GROUP: groups.astype(np.int32)}


class _FramedOutput(_EdgeOutput):
    """An edge whose rows cross in frames."""

    def __init__(
        self, number: int, edge: StageEdge, subtask: int, late: LateRowsKept | None = None, lag_us: int = 0
    ) -> None:
        super().__init__(number, edge, subtask, late, lag_us)
        timed = edge.edge.event_time
        self._frame_schema = frame_schema(edge.schema, event_time=timed, watermarks=edge.watermarks)
        self._moment = (WATERMARK if edge.by_arrival else EVENT_TIME) if timed else None

    def is_due(self, *, everything: bool) -> bool:
        """Whether the rows gathered are worth being cut into frames."""
        if everything:
            return self._waiting > 0
        return self._waiting >= FRAMED_ROWS or self._waiting_bytes >= FRAMED_BYTES

    def take(self) -> tuple[int, dict[str, Any]]:
        """The rows gathered, as frames."""
        frame = pl.concat(self._frames) if len(self._frames) > 1 else self._frames[0]
        self._frames, self._waiting, self._waiting_bytes = [], 0, 0
        numbers = np.arange(self._sent, self._sent + frame.height, dtype=np.int64)
        self._sent += frame.height
        placed = self._placed(frame, numbers)
        found = list(cut(frame, placed.get(GROUP, placed[PARTITION]), self._moment, self._frame_schema))
        rows = [row for row, _, _ in found]
        columns: dict[str, Any] = {name: values[rows] for name, values in placed.items()}
        columns[OUTPUT] = np.full(len(found), self._number, np.int32)
        columns[FROM] = np.full(len(found), self._subtask, np.int32)
        columns[SEQ] = np.full(len(found), numbers[0], np.int64)
        if self._moment is not None:
            columns[EVENT_TIME] = [least for _, least, _ in found]
        columns[column_name(self._number, 0)] = [data for _, _, data in found]
        return len(found), columns
