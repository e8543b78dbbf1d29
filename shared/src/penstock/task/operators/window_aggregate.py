"""Aggregates per key over tumbling and sliding windows of event time: Flink's WindowOperator, columnar.

A batch is judged (late rows), split by pane and stored; nothing else happens per row. When the watermark passes the last
moment of a window, its panes are grouped once by key and the results go out, in order of window end. With allowed
lateness a row of a window that has fired sends the corrected results of the keys it touched, at the end of its batch.

Responsible for when windows fire, what is late, and for snapshots. The arithmetic of windows is `window_shape`, the store
`window_panes`, grouping `partials`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import numpy as np
import polars as pl

from penstock.batches import EVENT_TIME, WATERMARK
from penstock.errors import IncompatibleStateError
from penstock.graph.logical import Node, SlidingWindow, TumblingWindow, WindowAggregate
from penstock.state.segments import decode_segments
from penstock.task.operator import Operator, OperatorContext, OperatorSnapshot, Output, RestoredState
from penstock.task.operators.partials import Partials
from penstock.task.operators.progress import GroupWatermarks, LateRows
from penstock.task.operators.window_panes import PANE, FrozenPanes, PaneStore, split_runs
from penstock.task.operators.window_shape import WindowShape
from penstock.times import MIN_WATERMARK, format_duration

_KIND: Final = "window"
_WINDOW: Final = "__window"
"""Int64: start of the window of a partial."""
_UTC_MICROS: Final = pl.Datetime("us", "UTC")

_ROWS_FOR_ITS_OWN: Final = 20_000
"""Windows with fewer rows than this on average are grouped together, if many are due: a call has its own cost."""
_FEW_WINDOWS: Final = 4
_WINDOWS_AT_ONCE: Final = 512


class WindowAggregateOperator(Operator):
    """Tumbling and sliding windows."""

    def __init__(self, node: Node) -> None:
        operation = cast("WindowAggregate", node.operation)
        self._operator = node.operator_id
        self._shape = WindowShape.of(cast("TumblingWindow | SlidingWindow", operation.window))
        self._lateness = operation.allowed_lateness_us
        self._late = LateRows(node)
        self._partials = Partials(node)
        self._by = list(self._partials.keys.names)
        self._names = [*node.schema.names, EVENT_TIME]
        self._store = PaneStore(self._partials)
        self._context: OperatorContext
        self._watermarks: GroupWatermarks

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        self._context = context
        if context.carries_watermarks:
            self._names.append(WATERMARK)
        self._watermarks = GroupWatermarks(context, self._by, restored)
        if restored is not None:
            self._restore(restored)

    # -- rows -----------------------------------------------------------------------------------------------------------

    def process(self, frame: pl.DataFrame, output: Output) -> None:
        if WATERMARK in frame.columns:
            rest: pl.DataFrame | None = frame
            while rest is not None:
                rest = self._process_until(rest, output)
        else:
            self._process_rows(frame, output)

    def _process_until(self, frame: pl.DataFrame, output: Output) -> pl.DataFrame | None:
        """Take the rows before one that must not meet a window that is over by then; returns what is from there on.

        Only rows behind the watermark that they carry can be late or meet such a window.
        """
        marks, times = np.asarray(self._watermarks.at_rows(frame)), frame[EVENT_TIME].to_numpy()
        behind = times <= marks
        if not behind.any():
            self._process_rows(frame, output)
            return None
        first_open = self._shape.first_open_of_rows(np.where(behind, marks, times), self._lateness)
        late = behind & (times < first_open)
        if self._shape.has_gaps:
            covered = self._shape.covers(times)
            late = np.where(covered, late, behind & (times <= marks - self._lateness))
            behind &= covered
        held = behind & ~late & (self._shape.oldest_of_rows(times) < first_open)
        carried = frame[WATERMARK].fill_null(MIN_WATERMARK).to_numpy()
        # Windows that are over for a key group that is ahead are no more; those over by what rows carry are still here.
        reached = self._shape.first_open(self._watermarks.current, self._lateness)
        held &= (carried > self._watermarks.current) & (first_open > reached)
        end = int(held.argmax()) if held.any() else frame.height
        part, late = frame.head(end), late[:end]
        self._late.refuse(part.filter(pl.Series(late)), output, self._context.metrics)
        self._process_rows(part.filter(pl.Series(~late)), output)
        if end == frame.height:
            return None
        carried = frame[WATERMARK][end]
        self._pass(self._watermarks.current if carried is None else carried, output)
        return frame.slice(end)

    def _process_rows(self, frame: pl.DataFrame, output: Output) -> None:
        for watermark, part in self._watermarks.split(frame):
            self._process_at(part, watermark, output)

    def _process_at(self, frame: pl.DataFrame, watermark: int, output: Output) -> None:
        """Take rows for all of which `watermark` holds."""
        if self._shape.has_gaps:
            frame = self._without_uncovered(frame, watermark, output)
        if watermark != MIN_WATERMARK:
            frame = self._without_late(frame, self._shape.first_open(watermark, self._lateness), output)
        if frame.height == 0:
            return
        first, last = cast("int", frame[EVENT_TIME].min()), cast("int", frame[EVENT_TIME].max())
        rows = frame.select(self._partials.columns)
        updated = self._lateness > 0 and self._may_have_fired(first, watermark)
        if self._shape.pane_of(first) == self._shape.pane_of(last):
            parts = [(self._shape.pane_of(first), rows)]
        else:
            parts = list(split_runs(rows, self._shape.panes_of_rows(frame[EVENT_TIME].to_numpy())))
        for pane, part in parts:
            self._store.add(pane, part)
        if updated:
            self._update(parts, watermark, output)

    def _without_late(self, frame: pl.DataFrame, first_open: int, output: Output) -> pl.DataFrame:
        times = frame[EVENT_TIME]
        earliest = cast("int | None", times.min())
        if earliest is None or earliest >= first_open:
            return frame
        self._late.refuse(frame.filter(times < first_open), output, self._context.metrics)
        return frame.filter(times >= first_open)

    def _without_uncovered(self, frame: pl.DataFrame, watermark: int, output: Output) -> pl.DataFrame:
        """Rows between two windows belong nowhere; as in Flink they count as late once they are behind the watermark."""
        times = frame[EVENT_TIME].to_numpy()
        covered = self._shape.covers(times)
        if covered.all():
            return frame
        if watermark != MIN_WATERMARK:
            behind = frame.filter(pl.Series(~covered & (times <= watermark - self._lateness)))
            self._late.refuse(behind, output, self._context.metrics)
        return frame.filter(pl.Series(covered))

    def _may_have_fired(self, moment: int, watermark: int) -> bool:
        """Whether some window of `moment`, or of a later one, has fired already."""
        oldest = self._shape.start_at_or_before(moment - self._shape.size) + self._shape.slide
        return watermark != MIN_WATERMARK and oldest < self._shape.first_open(watermark)

    def _update(self, parts: Sequence[tuple[int, pl.DataFrame]], watermark: int, output: Output) -> None:
        """Send corrected results of the windows that have fired, for the keys that these rows touched."""
        closed = self._shape.first_open(watermark) - 1
        kept = self._shape.first_open(watermark, self._lateness)
        for start in self._shape.windows_over([pane for pane, _ in parts], kept, closed):
            inside = self._shape.panes_in(start)
            touched = pl.concat([part.select(self._by) for pane, part in parts if pane in inside]).unique()
            stored: list[pl.DataFrame] = []
            for pane in inside:
                if pane in self._store.panes:
                    self._store.fold(self._store.panes[pane])
                    stored += self._store.panes[pane].partials
            chosen = [part.join(touched, on=self._by, how="semi", nulls_equal=True) for part in stored]
            self._send(self._partials.merge(chosen, self._by), start, output)

    # -- firing ---------------------------------------------------------------------------------------------------------

    def fire_due(self, watermark: int, output: Output) -> bool:
        self._pass(watermark, output)
        return False

    def _pass(self, watermark: int, output: Output) -> None:
        """Event time comes to `watermark`: windows that are over are sent, and forgotten when their lateness is."""
        before = self._watermarks.current
        if watermark <= before:
            return
        first = self._shape.first_open(before) if before != MIN_WATERMARK else MIN_WATERMARK
        last = self._shape.first_open(watermark) - 1
        if first <= last and self._store.panes:
            self._fire(self._shape.windows_over(self._store.panes, first, last), output)
        self._watermarks.advance(watermark)
        self._store.drop_before(self._shape.first_open(watermark, self._lateness))

    def _fire(self, starts: Sequence[int], output: Output) -> None:
        panes = self._store.panes
        for begin in range(0, len(starts), _WINDOWS_AT_ONCE):
            some = starts[begin : begin + _WINDOWS_AT_ONCE]
            inside = sorted({pane for start in some for pane in self._shape.panes_in(start) if pane in panes})
            rows = sum(panes[pane].raw_rows + sum(part.height for part in panes[pane].partials) for pane in inside)
            if len(some) <= _FEW_WINDOWS or rows > _ROWS_FOR_ITS_OWN * len(some):
                for start in some:
                    self._fire_one(start, output)
            else:
                self._fire_together(some, inside, output)

    def _fire_one(self, start: int, output: Output) -> None:
        panes = [self._store.panes[pane] for pane in self._shape.panes_in(start) if pane in self._store.panes]
        if len(panes) == 1 and not panes[0].partials and self._lateness == 0 and self._shape.slide >= self._shape.size:
            # A tumbling window that is done after this: what came is grouped straight into results.
            partials = self._partials.group(panes[0].raw, self._by)
        else:
            stored = [self._store.one_partial(pane) for pane in panes]
            partials = stored[0] if len(stored) == 1 else self._partials.merge(stored, self._by)
        if self._watermarks.uneven:
            last_moment = start + self._shape.size - 1
            partials = partials.filter(pl.Series(self._watermarks.of_rows(partials) < last_moment))
        self._send(partials, start, output)

    def _fire_together(self, starts: Sequence[int], panes: Sequence[int], output: Output) -> None:
        """Many windows with few rows each in two calls."""
        partials = self._store.partials_with_pane(panes)
        pairs = [(pane, start) for start in starts for pane in self._shape.panes_in(start) if pane in self._store.panes]
        windows = pl.DataFrame(pairs, schema={PANE: pl.Int64, _WINDOW: pl.Int64}, orient="row")
        keyed = [*self._by, _WINDOW]
        spread = partials.join(windows, on=PANE, how="inner", maintain_order="left")
        merged = self._partials.merge([spread.select([*keyed, *self._partials.names])], keyed)
        if self._watermarks.uneven:
            ends = merged[_WINDOW].to_numpy() + (self._shape.size - 1)
            merged = merged.filter(pl.Series(self._watermarks.of_rows(merged) < ends))
        self._emit(merged.sort(_WINDOW), pl.col(_WINDOW), output)

    def _send(self, partials: pl.DataFrame, start: int, output: Output) -> None:
        self._emit(partials, pl.lit(start, pl.Int64), output)

    def _emit(self, partials: pl.DataFrame, start: pl.Expr, output: Output) -> None:
        if partials.height == 0:
            return
        leading = [*self._by, *window_columns(start, start + self._shape.size)]
        output.rows(self._partials.results(partials, leading, self._names))

    # -- snapshots ------------------------------------------------------------------------------------------------------

    def snapshot(self) -> OperatorSnapshot | None:
        header = {"kind": _KIND, "window": self._described(), "partials": self._partials.describe()}
        frozen = FrozenPanes(self._partials, self._store.frozen(), header, self._context.max_parallelism)
        return OperatorSnapshot(keyed=frozen)

    def _described(self) -> dict[str, int]:
        return {"size_us": self._shape.size, "slide_us": self._shape.slide, "offset_us": self._shape.offset}

    def _restore(self, restored: RestoredState) -> None:
        frames: list[pl.DataFrame] = []
        groups: set[int] = set()
        for group, header, rows in decode_segments(restored.keyed, self._operator, _KIND, self._partials.keys):
            if header["window"] != self._described():
                raise IncompatibleStateError(
                    f"operator {self._operator!r}: the snapshot holds {_words(header['window'])}, the pipeline has "
                    f"{_words(self._described())}; restore it with the same window, or give the operator another uid"
                )
            frames.append(self._partials.restored(self._operator, header["partials"], rows))
            groups.add(group)
        if frames:
            rows = pl.concat(frames)
            if len(frames) > len(groups):  # several parts of one key group may hold the same key and pane
                rows = self._partials.merge([rows], [*self._by, PANE])
            for start, part in split_runs(rows.drop(PANE), rows[PANE].to_numpy()):
                self._store.add_partials(start, part)


def window_columns(start: pl.Expr, end: pl.Expr) -> list[pl.Expr]:
    """What a result says of its window, whose bounds are microseconds: the bounds, and when its turn is in event time.

    Its time is the window's last moment. Results go out in order of that, so when its turn comes no earlier one is left.
    """
    return [
        start.cast(_UTC_MICROS).alias("window_start"),
        end.cast(_UTC_MICROS).alias("window_end"),
        (end - 1).alias(EVENT_TIME),
        (end - 2).alias(WATERMARK),
    ]


def _words(window: dict[str, Any]) -> str:
    size, slide = format_duration(window["size_us"]), format_duration(window["slide_us"])
    offset = f", offset {format_duration(window['offset_us'])}" if window["offset_us"] else ""
    return f"windows of {size} every {slide}{offset}"
