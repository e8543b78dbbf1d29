"""Rows between the stages of a replay: they cross Spark as sorted frames of Arrow, each a row with one binary column.

To Spark a row is bytes of its own, made from columns and made to columns again at every crossing; and to sort rows it
compares them one by one. So a task gathers many rows, sorts them by key group and time itself, and hands over a frame per
key group (or, without keys, per subtask). Spark shuffles frames and sorts them by key group and the time of their first
row. Behind it the frames of a key group are merged as they come: whatever is before the first row of the next frame is
complete, so rows that come roughly in order are never all in memory. Those that come in no order wait in a file.
"""

from __future__ import annotations

import itertools
import mmap
import os
import tempfile
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl
import pyarrow as pa

from penstock.core.batches import EVENT_TIME, WATERMARK, one_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from penstock.types import Schema

MERGED_ROWS: Final = 131_072
"""Rows of a key group that are gathered before those that are complete are handed on."""
MEMORY_BYTES: Final = 256 << 20
"""Of frames that wait in memory; more than these wait in a file."""
Origin = tuple[int, int, int]
"""Input, producer and number of a frame: by these rows of equal moments are ordered."""
_OLDEST: Final = pl.CompatLevel.oldest()


def frame_schema(schema: Schema, *, event_time: bool, watermarks: bool) -> pa.Schema:
    """The columns of a frame: those of the rows, then the hidden ones."""
    hidden = {EVENT_TIME: pl.Int64()} if event_time else {}
    hidden |= {WATERMARK: pl.Int64()} if watermarks else {}
    return pl.DataFrame(schema={**schema.polars(), **hidden}).to_arrow(compat_level=_OLDEST).schema


def cut(
    frame: pl.DataFrame, places: NDArray[np.int32], moment: str | None, schema: pa.Schema
) -> Iterator[tuple[int, int | None, bytes]]:
    """The rows of each place in order of `moment`, those of equal moments as they stand there.

    Yields the number of a row of the place, the least moment, and the rows in Arrow.
    """
    order = _order(frame, places, moment)
    ordered = frame.select(schema.names)[order]
    rows = one_batch(ordered.rechunk().to_arrow(compat_level=_OLDEST), "an exchange on Spark")
    sorted_places = places[order]
    moments = ordered[moment].to_numpy() if moment is not None else None
    starts = [0, *(np.flatnonzero(np.diff(sorted_places)) + 1).tolist(), frame.height]
    for begin, end in itertools.pairwise(starts):
        least = int(moments[begin]) if moments is not None else None
        yield int(order[begin]), least, rows.slice(begin, end - begin).serialize().to_pybytes()


def _order(frame: pl.DataFrame, places: NDArray[np.int32], moment: str | None) -> NDArray[np.int64]:
    small = places.astype(np.uint16) if int(places.max()) < 1 << 16 else places  # numpy sorts these in linear time
    if moment is None or frame[moment].is_sorted():
        return np.argsort(small, kind="stable")
    by_moment = np.argsort(frame[moment].to_numpy(), kind="stable")
    return by_moment[np.argsort(small[by_moment], kind="stable")]


@dataclass(frozen=True)
class _Frame:
    """Rows that wait."""

    origin: Origin
    batch: pa.RecordBatch
    on_disk: bool = False


class FrameMerger:
    """Merges the frames of a place, which come by their least moment. What it yields is to be taken at once."""

    def __init__(
        self, schema: pa.Schema, moment: str | None, read: Callable[[Origin, pa.Buffer], pa.RecordBatch] | None = None
    ) -> None:
        """`read` makes a frame of `schema` of what came, where that has another one."""
        self._schema = schema
        self._read = read or self._same
        self._moment = moment
        self._frames: list[_Frame] = []
        self._rows = self._memory_bytes = 0
        self._limit = MERGED_ROWS

    def add(self, origin: Origin, least: int | None, data: pa.Buffer) -> Iterator[pl.DataFrame]:
        """Take a frame; yields what is complete by now, if that is worth it."""
        if self._rows >= self._limit:
            yield from self._before(least)
            self._limit = max(MERGED_ROWS, 2 * self._rows)  # where frames overlap nothing is complete for long
        batch = self._read(origin, data)
        self._frames.append(_Frame(origin, batch))
        self._rows += batch.num_rows
        self._memory_bytes += batch.nbytes
        if self._memory_bytes > MEMORY_BYTES:
            self._spill()

    def _same(self, origin: Origin, data: pa.Buffer) -> pa.RecordBatch:
        return pa.ipc.read_record_batch(data, self._schema)

    def rest(self) -> Iterator[pl.DataFrame]:
        """All that is left, in order."""
        yield from self._before(None)
        self._limit = MERGED_ROWS

    def _before(self, bound: int | None) -> Iterator[pl.DataFrame]:
        """The rows whose moment is before `bound`, or all of them, some at a time."""
        self._frames.sort(key=lambda each: each.origin)
        if self._moment is None:
            while self._frames and bound is None:
                yield self._frame([self._pop().batch])
            return
        while True:
            step = self._step(bound)
            if taken := self._take(step):
                yield self._frame(taken)
            if step == bound:
                return

    def _pop(self) -> _Frame:
        first = self._frames.pop(0)
        self._rows -= first.batch.num_rows
        self._memory_bytes -= 0 if first.on_disk else first.batch.nbytes
        return first

    def _take(self, bound: int | None) -> list[pa.RecordBatch]:
        """Cut off the rows before a moment."""
        taken: list[pa.RecordBatch] = []
        left: list[_Frame] = []
        for frame in self._frames:
            end = self._count(frame.batch, bound)
            taken += [frame.batch.slice(0, end)] if end else []
            left += [replace(frame, batch=frame.batch.slice(end))] if end < frame.batch.num_rows else []
        self._frames, self._rows = left, sum(frame.batch.num_rows for frame in left)
        self._memory_bytes = sum(frame.batch.nbytes for frame in left if not frame.on_disk)
        return taken

    def _step(self, bound: int | None) -> int | None:
        """A moment up to `bound` before which there are not too many rows, but one moment's at least."""
        if self._rows_before(bound) <= MERGED_ROWS:
            return bound
        moments = [self._moments(frame.batch) for frame in self._frames]
        low, high = min(int(each[0]) for each in moments) + 1, max(int(each[-1]) for each in moments) + 1
        high = high if bound is None else min(high, bound)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._rows_before(middle) <= MERGED_ROWS else (low, middle - 1)
        return low if bound is None or low < bound else bound

    def _rows_before(self, bound: int | None) -> int:
        return sum(self._count(frame.batch, bound) for frame in self._frames)

    def _count(self, batch: pa.RecordBatch, bound: int | None) -> int:
        if bound is None:
            return batch.num_rows
        return int(np.searchsorted(self._moments(batch), bound, side="left"))

    def _moments(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        assert self._moment is not None
        return batch.column(batch.schema.get_field_index(self._moment)).to_numpy()

    def _frame(self, batches: list[pa.RecordBatch]) -> pl.DataFrame:
        frame = pl.from_arrow(pa.Table.from_batches(batches))
        assert isinstance(frame, pl.DataFrame)
        if self._moment is None or len(batches) == 1 or frame[self._moment].is_sorted():
            return frame
        return frame[np.argsort(frame[self._moment].to_numpy(), kind="stable")]

    def _spill(self) -> None:
        """Put frames into a file without a name, from which the system reads what is looked at."""
        places: list[tuple[int, int, int]] = []
        with tempfile.TemporaryFile(dir=os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None) as file:
            for number, frame in enumerate(self._frames):
                if not frame.on_disk:
                    start = file.tell()
                    file.write(frame.batch.serialize())
                    places.append((number, start, file.tell() - start))
            file.flush()
            stored = pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        for number, start, size in places:
            batch = pa.ipc.read_record_batch(stored.slice(start, size), self._schema)
            self._frames[number] = _Frame(self._frames[number].origin, batch, on_disk=True)
        self._memory_bytes = 0
