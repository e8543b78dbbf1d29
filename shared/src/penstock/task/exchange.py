"""The exchange as a chain sees it: rows are split by key group, buffered, cut into frames; frames become rows again.

Rows that are broadcast are not split: every frame goes to every partition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import polars as pl
import pyarrow as pa

from penstock.core.batches import EVENT_TIME, ROWS, WATERMARK, one_batch
from penstock.core.times import MAX_WATERMARK
from penstock.graph.jobgraph import JobEdge
from penstock.protocol.frames import HEADER_BYTES, MAX_PAYLOAD_BYTES, MAX_ROWS, Frame
from penstock.protocol.keygroups import key_group_range
from penstock.protocol.outputs import OutputId, OutputLedger
from penstock.state.hashing import key_groups
from penstock.task.combining import COMBINED_ROWS, Combiner
from penstock.types import schema_from_json

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.protocol.messages import Flavour

COALESCE_ROWS = 16_384
"""Readers join smaller frames up to this many rows before an operator is called."""

SendFrame = Callable[[OutputId, Frame, bytes | memoryview], None]


class TakesLargeRows(Protocol):
    """Is given each row that is too large for a frame."""

    def __call__(self, row: pl.DataFrame, size: int, limit: int, *, combined: bool) -> pl.DataFrame | None:
        """The row that goes in its place, if one does."""
        ...


def frame_schema(edge: JobEdge) -> pa.Schema:
    """The Arrow schema of the payloads of an edge."""
    schema = schema_from_json(edge.schema).arrow()
    return schema.append(pa.field(EVENT_TIME, pa.int64())) if edge.event_time else schema


def encode_payload(frame: pl.DataFrame) -> memoryview:
    """An Arrow IPC record batch without schema; copied once, when its header is put before it."""
    table = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
    for index, field in enumerate(table.schema):
        if pa.types.is_nested(field.type) and "decimal" in str(field.type):
            table = table.set_column(index, field, _copied(table.column(index)))
    return memoryview(one_batch(table, "an exchange").serialize())


def _copied(column: Any) -> Any:
    """The same values anew: Arrow writes an empty list of decimals that was cut out of others as an invalid message."""
    return column.take(pa.array(np.arange(len(column))))


def decode_payload(payload: memoryview, schema: pa.Schema, *, timed: bool = False) -> pl.DataFrame:
    """The inverse of `encode_payload`; `timed`: see `Frame`."""
    if timed:
        schema = schema.append(pa.field(WATERMARK, pa.int64()))
    batch = pa.ipc.read_record_batch(pa.py_buffer(payload), schema)
    frame = pl.from_arrow(batch)
    assert isinstance(frame, pl.DataFrame)
    return frame


def key_group_owners(partitions: int, max_parallelism: int) -> NDArray[np.uint16]:
    """The partition that each key group belongs to."""
    owners = np.empty(max_parallelism, np.uint16)
    for partition in range(partitions):
        bounds = key_group_range(partition, partitions, max_parallelism)
        owners[bounds.start : bounds.end] = partition
    return owners


class ExchangeWriter:
    """One edge out of a subtask: a `Receiver` at the end of a chain.

    Watermarks never overtake rows and are sent when rows are flushed, or at a later flush; only the newest counts then.
    """

    def __init__(
        self,
        outputs: Sequence[OutputId],
        edge: JobEdge,
        max_parallelism: int,
        ledger: OutputLedger,
        send: SendFrame,
        combiner: Combiner | None = None,
        *,
        largest_bytes: int,
        too_large: TakesLargeRows,
    ) -> None:
        """`outputs` are the partitions of the consuming vertex, in order; `combiner` is that of an edge that has one;
        `largest_bytes` is what a frame takes, and `too_large` is given every row that is larger."""
        self._largest_bytes = largest_bytes - HEADER_BYTES
        self._too_large = too_large
        self._outputs = outputs
        self._targets = [outputs] if edge.ship == "broadcast" else [[output] for output in outputs]
        """Of each buffer, the partitions to which what is cut of it goes."""
        self._columns = list(frame_schema(edge).names)
        self._timed_columns = [*self._columns, WATERMARK]
        self._event_time = edge.event_time
        self._keys = list(edge.link.keys)
        self._max_parallelism = max_parallelism
        self._owners = key_group_owners(len(outputs), max_parallelism)
        self._ledger = ledger
        self._send = send
        self._buffers: list[list[pl.DataFrame]] = [[] for _ in self._targets]
        self._buffered_rows = [0] * len(self._targets)
        self._combiner = combiner
        self._combined_columns = combiner.arrow_schema.names if combiner is not None else []
        self._uncombined: list[pl.DataFrame] = []
        self._uncombined_rows = 0
        self._buffers_combined = False
        # Updates stay in order: all of a key come from one subtask, and on the way they are not parted.
        self._turn, self._step = (0, 1) if edge.link.mode == "append" else (ledger.producer, 0)
        self._watermark: int | None = None
        self._idle = False

    @property
    def waiting(self) -> bool:
        """Whether something waits for a flush."""
        return self._watermark is not None or self._uncombined_rows > 0 or any(self._buffered_rows)

    def rows(self, frame: pl.DataFrame) -> None:
        """Split and buffer rows; full buffers are cut."""
        self._idle = False
        timed = self._event_time and WATERMARK in frame.columns
        columns = self._timed_columns if timed else self._columns
        rows = frame if frame.columns == columns else frame[columns]
        if self._combiner is None or (not self._uncombined and self._combiner.bypasses(rows.height)):
            self._buffer(rows)
            return
        self._uncombined.append(rows)
        self._uncombined_rows += rows.height
        if self._uncombined_rows >= COMBINED_ROWS:
            self._combine()

    def _combine(self) -> None:
        """Buffer what was gathered to be combined, as it is if that brings little."""
        if not self._uncombined or self._combiner is None:
            return
        gathered, self._uncombined, self._uncombined_rows = self._uncombined, [], 0
        combined = self._combiner.combine(joined(gathered))
        if combined is None:
            for rows in gathered:
                self._buffer(rows)
        else:
            timed = WATERMARK in combined.columns
            self._buffer(combined.select(*self._combined_columns, *([WATERMARK] if timed else [])), combined=True)

    def _buffer(self, rows: pl.DataFrame, *, combined: bool = False) -> None:
        """Keep rows until they are cut, none of another sort beside them."""
        if combined != self._buffers_combined:
            self._cut_all()
            self._buffers_combined = combined
        for number, part in self._split(rows):
            if part.height:
                self._buffers[number].append(part)
                self._buffered_rows[number] += part.height
                if self._buffered_rows[number] >= MAX_ROWS:
                    self._cut(number)

    def watermark(self, watermark: int) -> None:
        """Remember the watermark for the next flush."""
        self._idle = False
        self._watermark = watermark

    def flush(self, *, watermark: bool = True) -> bool:
        """Cut everything buffered, then send the newest watermark, if there is one; whether one was sent.

        Without `watermark` it is left to a later flush, unless it is the last one of all.
        """
        self._combine()
        self._cut_all()
        if self._watermark is None or not (watermark or self._watermark == MAX_WATERMARK):
            return False
        for output in self._outputs:
            self._send(output, self._ledger.watermark(output, self._watermark), b"")
        self._watermark = None
        return True

    def idle(self) -> None:
        """Tell the consumers that nothing is to be waited for here."""
        self.flush()
        if not self._idle:
            self._idle = True
            for output in self._outputs:
                self._send(output, self._ledger.idle(output), b"")

    def barrier(self, checkpoint: int, nonce: str, flavour: Flavour) -> None:
        """Send a barrier behind everything cut so far."""
        for output in self._outputs:
            self._send(output, self._ledger.barrier(output, checkpoint, nonce, flavour), b"")

    def _split(self, frame: pl.DataFrame) -> Sequence[tuple[int, pl.DataFrame]]:
        count = len(self._targets)
        if count == 1:
            return [(0, frame)]
        if not self._keys:
            self._turn = (self._turn + self._step) % count
            return [(self._turn, frame)]
        owners = self._owners[key_groups(frame, self._keys, self._max_parallelism).to_numpy()]
        # One stable sort of small integers is cheaper than a filter per partition, from two of them on (measured).
        gathered = frame[pl.Series(np.argsort(owners, kind="stable").astype(np.uint32))]
        ends = np.cumsum(np.bincount(owners, minlength=count)).tolist()
        begins = [0, *ends[:-1]]
        bounds = enumerate(zip(begins, ends, strict=True))
        return [(partition, gathered.slice(begin, end - begin)) for partition, (begin, end) in bounds]

    def _cut_all(self) -> None:
        for number in range(len(self._targets)):
            self._cut(number)

    def _cut(self, number: int) -> None:
        if not self._buffered_rows[number]:
            return
        frame = joined(self._buffers[number], rechunk=True)
        timed, combined = WATERMARK in frame.columns, self._buffers_combined
        self._buffers[number] = []
        self._buffered_rows[number] = 0
        per_row = max(1.0, frame.estimated_size() / frame.height)
        step = max(1, min(MAX_ROWS, int(MAX_PAYLOAD_BYTES / per_row)))
        for start in range(0, frame.height, step):
            self._send_rows(number, frame.slice(start, step), timed=timed, combined=combined)

    def _send_rows(self, number: int, rows: pl.DataFrame, *, timed: bool, combined: bool) -> None:
        """As one frame, or as several if that is more than the log takes."""
        payload = encode_payload(rows)
        if len(payload) > self._largest_bytes:
            if rows.height > 1:
                half = rows.height // 2
                parts = [rows.head(half), rows.slice(half)]
            else:
                instead = self._too_large(rows, len(payload), self._largest_bytes, combined=combined)
                parts = [] if instead is None else [instead]
            for part in parts:
                self._send_rows(number, part, timed=timed, combined=combined)
            return
        for output in self._targets[number]:
            header = self._ledger.data(output, rows.height, len(payload), timed=timed, combined=combined)
            self._send(output, header, payload)


def joined(frames: Sequence[pl.DataFrame], *, rechunk: bool = False) -> pl.DataFrame:
    """One frame of several, of which some may have `WATERMARK`."""
    if len(frames) == 1:
        return frames[0]
    same = all(frame.width == frames[0].width for frame in frames)
    return pl.concat(frames, how="vertical" if same else "diagonal", rechunk=rechunk)


class Coalescer:
    """Joins small frames of any channels of an input before an operator is called; their order is kept.

    Frames of several inputs may change places as long as none moves event time on, which would make others late.
    """

    def __init__(self, deliver: Callable[[int, pl.DataFrame], None]) -> None:
        """`deliver` takes the number of the input and rows."""
        self._deliver = deliver
        self._frames: dict[int, list[pl.DataFrame]] = {}
        self._rows = 0
        self._timed = False

    def add(self, number: int, frame: pl.DataFrame) -> None:
        """Take a frame of an input."""
        frames = self._frames.get(number)
        if frames and (ROWS in frame.columns) != (ROWS in frames[0].columns):
            self.flush()
        timed = WATERMARK in frame.columns
        if (timed or self._timed) and self._frames.keys() - {number}:
            self.flush()
        self._timed |= timed
        self._frames.setdefault(number, []).append(frame)
        self._rows += frame.height
        if self._rows >= COALESCE_ROWS:
            self.flush()

    def flush(self) -> None:
        """Hand on what was gathered."""
        gathered, self._frames, self._rows, self._timed = self._frames, {}, 0, False
        for number, frames in gathered.items():
            self._deliver(number, joined(frames))
