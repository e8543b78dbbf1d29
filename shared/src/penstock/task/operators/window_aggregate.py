"""Aggregates per key over tumbling, sliding and cumulative windows of event time: Flink's WindowOperator, columnar.

A batch is judged (late rows), split by pane and stored; nothing else happens per row. When the watermark passes the last
moment of a window, its panes are grouped once by key and the results go out, in order of window end. With allowed
lateness a row of a window that has fired sends the corrected results of the keys it touched, at the end of its batch.

Responsible for when windows fire, what is late, and for snapshots. The arithmetic of windows is
`penstock.functions.windows.shape`, on the clock of `penstock.functions.windows.clock`; the store is `window_panes`,
grouping `partials`. Windows are known by their ends on that clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, cast

import numpy as np
import polars as pl

from penstock.core.batches import EVENT_TIME, PANE, ROWS, WATERMARK
from penstock.core.times import MAX_WATERMARK, MIN_WATERMARK, format_duration
from penstock.errors import IncompatibleStateError
from penstock.functions.windows.definitions import FixedWindow
from penstock.plan.logical import Node
from penstock.plan.operations.window_aggregate import WindowAggregate
from penstock.state.columns import joined_by_keys
from penstock.state.freezes import ADDS
from penstock.state.segments import decode_segments
from penstock.task.operator import OperatorContext, OperatorSnapshot, Output, PassingOperator, RestoredState
from penstock.task.operators.lateness import FixedLateness
from penstock.task.operators.levels import Part, batched_segments, merged_parts
from penstock.task.operators.partials import Partials
from penstock.task.operators.progress import GroupWatermarks, LateRows
from penstock.task.operators.window_panes import FrozenPanes, Pane, PaneStore, split_runs

_KIND: Final = "window"
_WINDOW: Final = "__window"
"""Int64: end of the window of a partial."""
_UTC_MICROS: Final = pl.Datetime("us", "UTC")

_ROWS_FOR_ITS_OWN: Final = 20_000
"""Windows with fewer rows than this on average are grouped together, if many are due: a call has its own cost."""
_FEW_WINDOWS: Final = 4
_WINDOWS_AT_ONCE: Final = 512
_ROWS_AT_ONCE: Final = 65_536
"""Results that are sent before others have a turn."""


class WindowAggregateOperator(PassingOperator):
    """Tumbling, sliding and cumulative windows."""

    def __init__(self, node: Node) -> None:
        operation = cast("WindowAggregate", node.operation)
        self._operator = node.operator_id
        window = cast("FixedWindow", operation.window)
        self._timezone = window.timezone
        self._lateness = operation.allowed_lateness_us
        self._judge = FixedLateness(window, self._lateness)
        self._shape, self._clock = self._judge.shape, self._judge.clock
        self._late = LateRows(node)
        self._partials = Partials(node)
        self._by = list(self._partials.keys.names)
        self._combined_columns = [*self._by, *self._partials.names]
        self._names = [*node.schema.names, EVENT_TIME]
        self._store: PaneStore
        self._sent = 0
        """Rows since others had a turn."""
        self._context: OperatorContext
        self._watermarks: GroupWatermarks

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        self._context = context
        if context.carries_watermarks:
            self._names.append(WATERMARK)
        self._watermarks = GroupWatermarks(context, self._by, restored)
        self._store = PaneStore(self._partials, context.local_state)
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

    def run_background_slice(self) -> bool:
        return self._store.run_background_slice()

    def _process_until(self, frame: pl.DataFrame, output: Output) -> pl.DataFrame | None:
        """Take the rows before one that must not meet a window that is over by then; returns what is from there on.

        Only rows behind the watermark that they carry can be late or meet such a window.
        """
        marks, times = np.asarray(self._watermarks.at_rows(frame)), frame[EVENT_TIME].to_numpy()
        behind = times <= marks
        if not behind.any():
            self._process_rows(frame, output)
            return None
        late, shown, first_open = self._judge.find_late(times, np.broadcast_to(marks, len(times)))
        held = behind & ~late & (self._shape.end_after(shown) < first_open)
        carried = frame[WATERMARK].fill_null(MIN_WATERMARK).to_numpy()
        # Windows that are over for a key group that is ahead are no more; those over by what rows carry are still here.
        held &= (carried > self._watermarks.current) & (first_open > self._first_open(self._watermarks.current))
        end = int(held.argmax()) if held.any() else frame.height
        part, late = frame.head(end), late[:end]
        self._late.refuse(part.filter(pl.Series(late)), output, self._context.metrics)
        self._process_rows(part.filter(pl.Series(~late)), output)
        if end == frame.height:
            return None
        carried = frame[WATERMARK][end]
        for _ in self._pass(self._watermarks.current if carried is None else carried, output):
            pass
        return frame.slice(end)

    def _process_rows(self, frame: pl.DataFrame, output: Output) -> None:
        for watermark, part in self._watermarks.split(frame):
            self._process_at(part, watermark, output)

    def _process_at(self, frame: pl.DataFrame, watermark: int, output: Output) -> None:
        """Take rows for all of which `watermark` holds."""
        if frame.height == 0:
            return
        shown = self._clock.shown(frame[EVENT_TIME].to_numpy())
        first = int(shown.min())
        if watermark != MIN_WATERMARK and first < (open_from := self._shape.start_of(self._first_open(watermark))):
            late = shown < open_from
            self._late.refuse(frame.filter(pl.Series(late)), output, self._context.metrics)
            frame, shown = frame.filter(pl.Series(~late)), shown[~late]
            if frame.height == 0:
                return
            first = int(shown.min())
        last = int(shown.max())
        combined = ROWS in frame.columns
        rows = frame.select(self._combined_columns if combined else self._partials.columns)
        if self._shape.pane_of(first) == self._shape.pane_of(last):
            parts = [(self._shape.pane_of(first), rows)]
        else:
            parts = list(split_runs(rows, self._shape.pane_of(shown)))
        for pane, part in parts:
            self._store.add(pane, part, combined=combined)
        if self._lateness > 0 and self._shape.end_after(first) < self._first_unfired(watermark):
            self._update(parts, watermark, output)

    def _first_unfired(self, watermark: int) -> int:
        """The end of the first window that is not over."""
        if watermark in (MIN_WATERMARK, MAX_WATERMARK):
            return watermark
        return self._shape.first_open(self._clock.mark(watermark))

    def _first_open(self, watermark: int) -> int:
        """The end of the first window that late rows still come to."""
        beginning_or_end = watermark in (MIN_WATERMARK, MAX_WATERMARK)
        return self._first_unfired(watermark if beginning_or_end else watermark - self._lateness)

    def _update(self, parts: Sequence[tuple[int, pl.DataFrame]], watermark: int, output: Output) -> None:
        """Send corrected results of the windows that have fired, for the keys that these rows touched."""
        for end in self._due([pane for pane, _ in parts], self._first_open(watermark), self._first_unfired(watermark)):
            inside = self._shape.panes_in(end)
            touched = pl.concat([part.select(self._by) for pane, part in parts if pane in inside]).unique()
            stored: list[pl.DataFrame] = []
            for pane in inside:
                if pane in self._store.panes:
                    self._store.fold(self._store.panes[pane])
                    stored += [part.frame for part in self._store.panes[pane].partials]
            chosen = [joined_by_keys(part, touched, self._by, "semi") for part in stored]
            self._send(self._partials.merge(chosen, self._by), end, output)

    def _due(self, panes: Iterable[int], first: int, until: int) -> list[int]:
        """The ends from `first` to before `until` of the windows that contain any of these panes, rising."""
        ends = self._shape.ends_over(panes, first, until - 1)
        if not self._shape.cumulative:
            return ends
        # Where the clock skips a step, the window that it makes longer is the one before it.
        return [end for end in ends if self._clock.moment(end - self._shape.slide) < self._clock.moment(end)]

    # -- firing ---------------------------------------------------------------------------------------------------------

    def _pass(self, watermark: int, output: Output) -> Iterator[None]:
        """Event time comes to `watermark`: windows that are over are sent, and forgotten when their lateness is.

        In parts, where there is much to send; what is stored is as it was until the last one is done.
        """
        before = self._watermarks.current
        if watermark <= before:
            return
        first, until = self._first_unfired(before), self._first_unfired(watermark)
        if first < until and self._store.panes:
            yield from self._fire(self._due(self._store.panes, first, until), output)
        self._watermarks.advance(watermark)
        self._store.drop_before(self._shape.start_of(self._first_open(watermark)))

    def _fire(self, ends: Sequence[int], output: Output) -> Iterator[None]:
        panes = self._store.panes
        for begin in range(0, len(ends), _WINDOWS_AT_ONCE):
            some = ends[begin : begin + _WINDOWS_AT_ONCE]
            inside = sorted({pane for end in some for pane in self._shape.panes_in(end) if pane in panes})
            rows = sum(panes[pane].rows for pane in inside)
            if len(some) <= _FEW_WINDOWS or rows > _ROWS_FOR_ITS_OWN * len(some):
                for end in some:
                    yield from self._fire_one(end, output)
            else:
                self._fire_together(some, inside, output)
                yield from self._turn()

    def _turn(self) -> Iterator[None]:
        """Others have one, if enough was sent since they had one."""
        if self._sent >= _ROWS_AT_ONCE:
            yield
            self._sent = 0

    def _fire_one(self, end: int, output: Output) -> Iterator[None]:
        panes = [self._store.panes[pane] for pane in self._shape.panes_in(end) if pane in self._store.panes]
        for partials in self._of_window(end, panes):
            if partials is None:
                yield
                continue
            if self._watermarks.uneven:
                last_moment = self._clock.moment(end) - 1
                partials = partials.filter(pl.Series(self._watermarks.of_rows(partials) < last_moment))
            self._send(partials, end, output)
            yield from self._turn()

    def _of_window(self, end: int, panes: Sequence[Pane]) -> Iterator[pl.DataFrame | None]:
        """The partials of a window, one per key, in parts if there are many; None where there are none yet."""
        is_last = len(panes) == 1 and self._lateness == 0 and self._shape.pane == self._shape.size
        if is_last and not panes[0].partials and not panes[0].combined:
            # A tumbling window that is done after this: what came is grouped straight into results.
            yield self._partials.group([part.frame for part in panes[0].raw], self._by)
            return
        levels: list[Part] = []
        if is_last:
            self._store.fold(panes[0])
            levels += panes[0].partials
        elif self._shape.cumulative and self._lateness == 0:
            # All later windows that have any of these panes have them all: the next one merges only what is new.
            levels.append((yield from self._store.bring_together(self._shape.panes_in(end))))
        else:
            for pane in panes:
                levels.append((yield from self._store.one_partial(pane)))
        yield from merged_parts(self._partials, self._by, levels)

    def _fire_together(self, ends: Sequence[int], panes: Sequence[int], output: Output) -> None:
        """Many windows with few rows each in two calls."""
        partials = self._store.partials_with_pane(panes)
        pairs = [(pane, end) for end in ends for pane in self._shape.panes_in(end) if pane in self._store.panes]
        windows = pl.DataFrame(pairs, schema={PANE: pl.Int64, _WINDOW: pl.Int64}, orient="row")
        keyed = [*self._by, _WINDOW]
        spread = partials.join(windows, on=PANE, how="inner", maintain_order="left")
        merged = self._partials.merge([spread.select([*keyed, *self._partials.names])], keyed)
        if self._watermarks.uneven:
            last_moments = self._clock.first_shown(merged[_WINDOW].to_numpy()) - 1
            merged = merged.filter(pl.Series(self._watermarks.of_rows(merged) < last_moments))
        merged = merged.sort(_WINDOW)
        shown = merged[_WINDOW].to_numpy()
        moments = (self._clock.first_shown(each) for each in (self._shape.start_of(shown), shown))
        self._emit(merged, [pl.lit(pl.Series(each)) for each in moments], output)

    def _send(self, partials: pl.DataFrame, end: int, output: Output) -> None:
        moments = (self._clock.moment(each) for each in (self._shape.start_of(end), end))
        self._emit(partials, [pl.lit(each, pl.Int64) for each in moments], output)

    def _emit(self, partials: pl.DataFrame, bounds: Sequence[pl.Expr], output: Output) -> None:
        """Send results with the moments at which their windows start and end."""
        if partials.height == 0:
            return
        start, end = bounds
        self._sent += partials.height
        output.rows(self._partials.results(partials, [*self._by, *window_columns(start, end, end - 1)], self._names))

    # -- snapshots ------------------------------------------------------------------------------------------------------

    def snapshot(self) -> OperatorSnapshot | None:
        header = {"kind": _KIND, "window": self._described(), "partials": self._partials.describe()}
        freeze = self._store.freezes.next(incremental=self._context.incremental)
        place = (self._context.max_parallelism, self._context.local_state)
        frozen = FrozenPanes(self._partials, self._store.frozen(), freeze, header, *place)
        return OperatorSnapshot(keyed=frozen)

    def _described(self) -> dict[str, Any]:
        shape = self._shape
        described: dict[str, Any] = {"size_us": shape.size, "slide_us": shape.slide, "offset_us": shape.offset}
        if shape.cumulative:
            described["cumulative"] = True
        if self._timezone is not None:
            described["timezone"] = self._timezone
        return described

    def _restore(self, restored: RestoredState) -> None:
        for rows, repeated in batched_segments(self._decoded(restored)):
            if repeated:  # a level has one partial per key
                rows = self._partials.merge([rows], [*self._by, PANE])
            for start, part in split_runs(rows.drop(PANE), rows[PANE].to_numpy()):
                self._store.add_partials(start, part)
            self._store.relieve()

    def _decoded(self, restored: RestoredState) -> Iterator[tuple[int, pl.DataFrame, bool]]:
        """Key group, partials, and whether they are added to others of their keys and panes."""
        for group, header, rows in decode_segments(restored.keyed, self._operator, _KIND, self._partials.keys):
            if header["window"] != self._described():
                raise IncompatibleStateError(
                    f"operator {self._operator!r}: the snapshot holds {_words(header['window'])}, the pipeline has "
                    f"{_words(self._described())}; restore it with the same window, or give the operator another uid"
                )
            yield group, self._partials.restored(self._operator, header["partials"], rows), header.get(ADDS, False)


def window_columns(start: pl.Expr, end: pl.Expr, last: pl.Expr) -> list[pl.Expr]:
    """What a result says of its window, whose bounds are microseconds: the bounds, and when its turn is in event time.

    Its time is the window's last moment. Results go out in order of that, so when its turn comes no earlier one is left.
    """
    return [
        start.cast(_UTC_MICROS).alias("window_start"),
        end.cast(_UTC_MICROS).alias("window_end"),
        last.alias(EVENT_TIME),
        (last - 1).alias(WATERMARK),
    ]


def _words(window: dict[str, Any]) -> str:
    size, slide = format_duration(window["size_us"]), format_duration(window["slide_us"])
    every = f"up to {size} that grow by {slide}" if window.get("cumulative") else f"{size} every {slide}"
    offset = f", offset {format_duration(window['offset_us'])}" if window["offset_us"] else ""
    zone = f", on the clock of {window['timezone']}" if "timezone" in window else ""
    return f"windows of {every}{offset}{zone}"
