"""Rows between the stages of a replay: they cross Spark as sorted frames of Arrow, each a row with one binary column.

To Spark a row is bytes of its own, made from columns and made to columns again at every crossing; and to sort rows it
compares them one by one. So a task gathers many rows, sorts them by key group and time itself, and hands over a frame per
key group (or, without keys, per subtask). Spark shuffles frames and sorts them by key group and the time of their first
row. Behind it the frames of a key group are merged as they come: whatever is before the first row of the next frame is
complete, so rows that come roughly in order are never all in memory.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl
import pyarrow as pa

from penstock.batches import EVENT_TIME, WATERMARK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from penstock.types import Schema

MERGED_ROWS: Final = 131_072
"""Rows of a key group that are gathered before those that are complete are handed on."""
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
    batch = pa.Table.from_batches(ordered.rechunk().to_arrow(compat_level=_OLDEST).to_batches()).combine_chunks()
    rows = batch.to_batches()[0]
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


class FrameMerger:
    """Merges the frames of a place, which come by their least moment."""

    def __init__(self, schema: pa.Schema, moment: str | None) -> None:
        self._schema = schema
        self._moment = moment
        self._frames: list[tuple[tuple[int, int, int], pa.RecordBatch]] = []
        self._rows = 0
        self._limit = MERGED_ROWS

    def add(self, origin: tuple[int, int, int], least: int | None, data: pa.Buffer) -> pl.DataFrame | None:
        """Take a frame; what is complete by now, if that is worth it.

        `origin`: input, producer and number, by which rows of equal moments are ordered.
        """
        complete = None
        if self._rows >= self._limit:
            complete = self.take(least)
            self._limit = max(MERGED_ROWS, 2 * self._rows)  # where frames overlap nothing is complete for long
        batch = pa.ipc.read_record_batch(data, self._schema)
        self._frames.append((origin, batch))
        self._rows += batch.num_rows
        return complete

    def take(self, bound: int | None = None) -> pl.DataFrame | None:
        """The rows whose moment is before `bound`, or all of them, in order."""
        self._frames.sort(key=lambda each: each[0])
        taken, left = [], []
        for origin, batch in self._frames:
            end = self._before(batch, bound)
            taken += [batch.slice(0, end)] if end else []
            left += [(origin, batch.slice(end))] if end < batch.num_rows else []
        self._frames, self._rows = left, sum(batch.num_rows for _, batch in left)
        if bound is None:
            self._limit = MERGED_ROWS
        if not taken:
            return None
        frame = pl.from_arrow(pa.Table.from_batches(taken))
        assert isinstance(frame, pl.DataFrame)
        if self._moment is None or len(taken) == 1 or frame[self._moment].is_sorted():
            return frame
        return frame[np.argsort(frame[self._moment].to_numpy(), kind="stable")]

    def _before(self, batch: pa.RecordBatch, bound: int | None) -> int:
        if bound is None or self._moment is None:
            return batch.num_rows
        moments = batch.column(batch.schema.get_field_index(self._moment)).to_numpy()
        return int(np.searchsorted(moments, bound, side="left"))
