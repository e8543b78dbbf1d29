"""Aggregates per key over sessions: windows that last as long as rows follow each other closely.

As in Flink (EventTimeSessionWindows), a row opens the window `[time, time + gap)`, and windows of a key that intersect or
touch are one: rows up to and including `gap` apart share a session, which ends `gap` after its last row. (The gap may be
each row's own; the session then ends where the furthest of its windows does.) It is over, and sent, when the watermark
has reached that end, which is its last moment: a row exactly there would still belong to it. (Flink sends it one moment
before, so that such a row belongs to it or not, depending on when the watermark came.) A row is late if the session it
would belong to, merged with those it touches, is over by more than the lateness.

With lateness a session that was sent may get other bounds, or become one with another. Its result is then sent once
more, marked as retracted, because nothing else would ever replace it: the merged session is another window.

Columnar: rows wait until something may be due, then are sorted, cut into sessions by the gaps between neighbours, and
merged with the stored sessions that they touch. Only where a key has rows behind the watermark are its rows numbered one
by one, because there the order of arrival decides.
"""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import polars as pl

from penstock.core.batches import EVENT_TIME, WATERMARK
from penstock.core.times import MAX_WATERMARK
from penstock.functions.windows.definitions import RETRACTED, SessionWindow
from penstock.plan.logical import Node
from penstock.plan.operations.window_aggregate import WindowAggregate
from penstock.state.columns import joined_by_keys, key_values
from penstock.state.segments import decode_segments
from penstock.task.operator import Operator, OperatorContext, OperatorSnapshot, Output, RestoredState
from penstock.task.operators.levels import batched_segments
from penstock.task.operators.partials import Partials
from penstock.task.operators.progress import GroupWatermarks, LateRows
from penstock.task.operators.session_store import ROWS_AT_ONCE, SessionStore
from penstock.task.operators.sessions import END, FIRST, SessionGap, Sessions, with_end
from penstock.task.operators.window_aggregate import window_columns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_KIND: Final = "session"
_ROW: Final = "__row"
_MARK: Final = "__mark"

_PENDING_ROWS: Final = 256 * 1024


class SessionWindowOperator(Operator):
    """Session windows."""

    def __init__(self, node: Node) -> None:
        operation = cast("WindowAggregate", node.operation)
        self._operator = node.operator_id
        self._gap = SessionGap(node, cast("SessionWindow", operation.window))
        self._lateness = operation.allowed_lateness_us
        self._retracts = operation.retracts
        self._late = LateRows(node)
        self._partials = Partials(node)
        self._by = list(self._partials.keys.names)
        self._names = [*node.schema.names, EVENT_TIME]
        self._row_columns = list(dict.fromkeys([*self._partials.columns, EVENT_TIME, END]))
        self._sessions = Sessions(self._partials, even=self._gap.even)
        self._stored: SessionStore
        self._pending: list[tuple[int, pl.DataFrame]] = []
        """Rows that wait, by the windows in which they came."""
        self._pending_rows = 0
        self._pending_end = MAX_WATERMARK
        """When the first of the windows that those rows open is over."""
        self._ended: Iterator[pl.DataFrame] | None = None
        """What is left to be sent of sessions that are over, if anything is."""
        self._context: OperatorContext
        self._watermarks: GroupWatermarks

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        self._context = context
        if context.carries_watermarks:
            self._names.append(WATERMARK)
        self._watermarks = GroupWatermarks(context, self._by, restored)
        self._stored = SessionStore(self._sessions, self._lateness, context.local_state)
        if restored is not None:
            self._restore(restored)

    # -- rows ---------------------------------------------------------------------------------------------------------

    def process(self, frame: pl.DataFrame, output: Output) -> None:
        rest = self._process_until(self._gap.with_ends(frame), output)
        while rest is not None:
            rest = self._process_until(rest, output)

    def _process_until(self, frame: pl.DataFrame, output: Output) -> pl.DataFrame | None:
        """Take the rows before one that must not meet a session that is over by then; returns what is from there on."""
        marks = self._watermarks.at_rows(frame)
        times = frame[EVENT_TIME].to_numpy()
        behind = np.asarray(times <= marks)
        # A row that is not behind touches no session that was sent: what waits retracts nothing, a snapshot may merge it.
        at_once = self._lateness > 0 and bool(behind.any())
        # Where time has not moved within the batch, nothing is over that is still here: the late ones alone matter.
        doubtful = behind
        if WATERMARK not in frame.columns:
            doubtful = np.asarray(frame[END].to_numpy() + self._lateness <= marks)
        if not doubtful.any():
            self._accept(frame, output, at_once=at_once)
            return None
        late, end = self._find_late(frame, doubtful, marks, output)
        good = np.ones(end, np.bool_)
        good[late] = False
        before = frame.head(end)
        self._late.refuse(before.filter(pl.Series(~good)), output, self._context.metrics)
        self._accept(before.filter(pl.Series(good)), output, at_once=at_once)
        if end == frame.height:
            return None
        carried = frame[WATERMARK][end] if WATERMARK in frame.columns else None
        self._watermarks.advance(self._watermarks.current if carried is None else carried)
        self._settle(output)
        return frame.slice(end)

    def _accept(self, rows: pl.DataFrame, output: Output, *, at_once: bool) -> None:
        if rows.height == 0:
            return
        self._pending.append((self._stored.epoch, rows.select(self._row_columns)))
        self._pending_rows += rows.height
        self._pending_end = min(self._pending_end, cast("int", rows[END].min()))
        if at_once:
            self._settle(output)
        elif self._pending_rows >= _PENDING_ROWS:
            self._merge_pending(output)

    def _find_late(
        self, frame: pl.DataFrame, doubtful: NDArray[np.bool_], marks: NDArray[np.int64] | int, output: Output
    ) -> tuple[list[int], int]:
        """The numbers of the rows that are late, and of the first one that has to wait until sessions are over, if any.

        A row whose own window is over is saved by a session that it touches on arrival. Within a batch time moves: a
        session that ended by then has gone, though it is still here.
        """
        self._merge_pending(output)
        keys = frame.filter(pl.Series(doubtful)).select(self._by).unique()
        numbered = frame.with_columns(pl.Series(_MARK, np.broadcast_to(marks, frame.height))).with_row_index(_ROW)
        numbered = joined_by_keys(numbered, keys, self._by, "semi")
        spans = self._spans(keys)
        columns = (numbered[name].to_list() for name in (_ROW, EVENT_TIME, END, _MARK))
        late: list[int] = []
        for key, row, time, row_end, mark in zip(key_values(numbered, self._partials.keys), *columns, strict=True):
            first, end, gone = time, row_end, False
            apart: list[tuple[int, int]] = []
            for span in spans.get(key, ()):
                if span[0] > row_end or span[1] < time:
                    apart.append(span)
                elif span[1] + self._lateness <= mark:
                    gone = True
                else:
                    first, end = min(first, span[0]), max(end, span[1])
            if end + self._lateness <= mark:
                late.append(row)
            elif gone:
                return late, row
            else:
                spans[key] = [*apart, (first, end)]
        return late, frame.height

    def _spans(self, keys: pl.DataFrame) -> dict[Any, list[tuple[int, int]]]:
        """The sessions of some keys: when they begin and end."""
        stored = self._stored.of(keys)
        spans: dict[Any, list[tuple[int, int]]] = {}
        bounds = (stored[name].to_list() for name in (FIRST, END))
        for key, first, end in zip(key_values(stored, self._partials.keys), *bounds, strict=True):
            spans.setdefault(key, []).append((first, end))
        return spans

    # -- sessions -----------------------------------------------------------------------------------------------------

    def fire_due(self, watermark: int, output: Output) -> bool:
        if self._ended is None:
            uneven = self._watermarks.uneven
            current = self._watermarks.advance(watermark)
            if not uneven and current < min(self._pending_end, self._stored.next_end):
                return False
            self._ended = self._settled(output)
        for over in self._ended:
            self._send(over, output)
            if over.height == ROWS_AT_ONCE:
                return True
        self._ended = None
        return False

    def run_background_slice(self) -> bool:
        return self._stored.run_background_slice()

    def _merge_pending(self, output: Output) -> None:
        if not self._pending:
            return
        pending, self._pending, self._pending_rows, self._pending_end = self._pending, [], 0, MAX_WATERMARK
        # What came before a freeze by itself: its snapshot has these sessions, so the next one need not have them again.
        for window, parts in groupby(pending, key=itemgetter(0)):
            replaced = self._stored.add(self._sessions.of_rows(pl.concat([rows for _, rows in parts])), window)
            if self._retracts:
                self._send(replaced, output, retracted=True)

    def _settle(self, output: Output) -> None:
        for over in self._settled(output):
            self._send(over, output)

    def _settled(self, output: Output) -> Iterator[pl.DataFrame]:
        """The sessions that are over, to be sent; forgets those that no late row can reach any more."""
        self._merge_pending(output)
        return self._stored.ended(self._watermarks)

    def _send(self, over: pl.DataFrame, output: Output, *, retracted: bool = False) -> None:
        if over.height == 0:
            return
        leading: list[pl.Expr | str] = [*self._by, *window_columns(pl.col(FIRST), pl.col(END), pl.col(END))]
        if self._retracts:
            leading.append(pl.lit(retracted).alias(RETRACTED))
        output.rows(self._partials.results(over.sort(END, maintain_order=True), leading, self._names))

    # -- snapshots ----------------------------------------------------------------------------------------------------

    def snapshot(self) -> OperatorSnapshot | None:
        header = {"kind": _KIND, **self._gap.describe(), "partials": self._partials.describe()}
        context = self._context
        frozen = self._stored.frozen(
            list(self._pending), header, context.max_parallelism, incremental=context.incremental
        )
        return OperatorSnapshot(keyed=frozen)

    def _restore(self, restored: RestoredState) -> None:
        for sessions, repeated in batched_segments(self._decoded(restored)):
            self._stored.add(self._sessions.fused(sessions) if repeated else sessions)

    def _decoded(self, restored: RestoredState) -> Iterator[tuple[int, pl.DataFrame, bool]]:
        """Key group and sessions."""
        for group, header, rows in decode_segments(restored.keyed, self._operator, _KIND, self._partials.keys):
            self._gap.check(self._operator, header)
            rows = self._partials.restored(self._operator, header["partials"], with_end(header, rows))
            yield group, rows.select(self._sessions.columns), False
