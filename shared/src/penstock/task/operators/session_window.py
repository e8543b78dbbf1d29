"""Aggregates per key over sessions: windows that last as long as rows follow each other closely.

As in Flink (EventTimeSessionWindows), a row opens the window `[time, time + gap)`, and windows of a key that intersect or
touch are one: rows up to and including `gap` apart share a session, which ends `gap` after its last row. It is over, and
sent, when the watermark has reached that end: a row exactly there would still belong to it. (Flink sends it one moment
before, so that such a row belongs to it or not, depending on when the watermark came.) A row is late if the session it
would belong to, merged with those it touches, is over by more than the lateness.

With lateness a session that was sent may get other bounds, or become one with another. Its result is then sent once
more, marked as retracted, because nothing else would ever replace it: the merged session is another window.

Columnar: rows wait until something may be due, then are sorted, cut into sessions by the gaps between neighbours, and
merged with the stored sessions of the same keys. Only where a key has rows behind the watermark are its rows judged one
by one, because there the order of arrival decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import polars as pl

from penstock.batches import EVENT_TIME, WATERMARK
from penstock.errors import IncompatibleStateError
from penstock.graph.logical import RETRACTED, Node, SessionWindow, WindowAggregate
from penstock.state.columns import key_values
from penstock.state.segments import decode_segments, encode_segments
from penstock.task.operator import Operator, OperatorContext, OperatorSnapshot, Output, RestoredState
from penstock.task.operators.partials import Partials
from penstock.task.operators.progress import GroupWatermarks, LateRows
from penstock.task.operators.window_aggregate import window_columns
from penstock.times import MAX_WATERMARK, MIN_WATERMARK, format_duration
from penstock.types import polars_type

if TYPE_CHECKING:
    from numpy.typing import NDArray

_KIND: Final = "session"
_FIRST: Final = "__first"
"""Int64: event time of the first row of a session."""
_LAST: Final = "__last"
"""Int64: event time of the last row."""
_FIRED: Final = "__fired"
"""Boolean: whether the session was sent and no row came since."""
_SESSION: Final = "__session"
_KEY: Final = "__key"
_ROW: Final = "__row"
_MARK: Final = "__mark"
_UTC_MICROS: Final = pl.Datetime("us", "UTC")

_PENDING_ROWS: Final = 256 * 1024


class Sessions:
    """Cuts rows into sessions and merges sessions: pure functions of immutable frames, usable in any thread."""

    def __init__(self, partials: Partials, gap: int) -> None:
        self.gap = gap
        self.partials = partials
        self._by = list(partials.keys.names)
        self.columns = [*self._by, _FIRST, _LAST, _FIRED, *partials.names]
        kinds = [(field.name, field.type) for field in (*partials.keys, *partials.plan.partial_fields)]
        types = {name: polars_type(kind) for name, kind in kinds}
        types |= {_FIRST: pl.Int64(), _LAST: pl.Int64(), _FIRED: pl.Boolean()}
        self.empty = pl.DataFrame(schema={name: types[name] for name in self.columns})

    def merged(self, stored: pl.DataFrame, pending: Sequence[pl.DataFrame]) -> pl.DataFrame:
        """The stored sessions with the pending rows in them."""
        if not pending:
            return stored
        fresh = self._of_rows(pl.concat(pending))
        if stored.height == 0:
            return fresh
        keys = fresh.select(self._by).unique()
        touched = stored.join(keys, on=self._by, how="semi", nulls_equal=True)
        apart = stored.join(keys, on=self._by, how="anti", nulls_equal=True)
        return pl.concat([apart, self.fused(pl.concat([touched, fresh]))])

    def _of_rows(self, rows: pl.DataFrame) -> pl.DataFrame:
        ordered = rows.sort([*self._by, EVENT_TIME], maintain_order=True)
        far = (pl.col(EVENT_TIME) - pl.col(EVENT_TIME).shift()) > self.gap
        numbered = ordered.with_columns(_numbered(self._key_changes() | far, _SESSION))
        beside = [
            pl.col(self._by).first(),
            pl.col(EVENT_TIME).first().alias(_FIRST),
            pl.col(EVENT_TIME).last().alias(_LAST),
            pl.lit(False).alias(_FIRED),
        ]
        return self.partials.group([numbered], [_SESSION], ordered=True, beside=beside).select(self.columns)

    def fused(self, sessions: pl.DataFrame) -> pl.DataFrame:
        """Sessions of which some may overlap or touch, merged where they do; a session with a new part is new."""
        ordered = sessions.with_row_index(_ROW).sort([*self._by, _FIRST])
        ordered = ordered.with_columns(_numbered(self._key_changes(), _KEY))
        reached = pl.col(_LAST).cum_max().over(_KEY).shift()
        starts = self._key_changes() | (pl.col(_FIRST) - reached > self.gap)
        # Back in the order of arrival, which decides between rows of equal event time.
        numbered = ordered.with_columns(_numbered(starts, _SESSION)).sort(_ROW)
        beside = [
            pl.col(self._by).first(),
            pl.col(_FIRST).min(),
            pl.col(_LAST).max(),
            pl.col(_FIRED).all(),
        ]
        return self.partials.merge([numbered], [_SESSION], ordered=True, beside=beside).select(self.columns)

    def _key_changes(self) -> pl.Expr:
        return pl.any_horizontal(pl.col(key).ne_missing(pl.col(key).shift()) for key in self._by)


def _numbered(changes: pl.Expr, name: str) -> pl.Expr:
    """Numbers runs that begin where `changes` is true; whatever the first row compares to, it begins one anyway."""
    return changes.fill_null(False).cast(pl.Int64).cum_sum().alias(name)


class FrozenSessions:
    """Sessions and pending rows of a snapshot: a `KeyedPart`."""

    def __init__(
        self,
        sessions: Sessions,
        stored: pl.DataFrame,
        pending: Sequence[pl.DataFrame],
        header: Mapping[str, Any],
        max_parallelism: int,
    ) -> None:
        self._sessions = sessions
        self._stored = stored
        self._pending = pending
        self._header = header
        self._max_parallelism = max_parallelism

    def segments(self) -> Iterable[tuple[int, bytes]]:
        """One segment per key group that has sessions."""
        frames = [self._sessions.merged(self._stored, self._pending)]
        return encode_segments(self._header, frames, self._sessions.partials.keys, self._max_parallelism)


class SessionWindowOperator(Operator):
    """Session windows."""

    def __init__(self, node: Node) -> None:
        operation = cast("WindowAggregate", node.operation)
        self._operator = node.operator_id
        self._gap = cast("SessionWindow", operation.window).gap_us
        self._lateness = operation.allowed_lateness_us
        self._kept = self._gap + self._lateness
        """How long after its last row a session is kept."""
        self._retracts = operation.retracts
        self._late = LateRows(node)
        self._partials = Partials(node)
        self._by = list(self._partials.keys.names)
        self._names = [*node.schema.names, EVENT_TIME]
        self._row_columns = list(dict.fromkeys([*self._partials.columns, EVENT_TIME]))
        self._sessions = Sessions(self._partials, self._gap)
        self._stored = self._sessions.empty
        self._pending: list[pl.DataFrame] = []
        self._pending_rows = 0
        self._next_due = MAX_WATERMARK
        """No session is to be sent or forgotten before the watermark is here."""
        self._context: OperatorContext
        self._watermarks: GroupWatermarks

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        self._context = context
        if context.carries_watermarks:
            self._names.append(WATERMARK)
        self._watermarks = GroupWatermarks(context, self._by, restored)
        if restored is not None:
            self._restore(restored)

    # -- rows ---------------------------------------------------------------------------------------------------------

    def process(self, frame: pl.DataFrame, output: Output) -> None:
        rest = self._process_until(frame, output)
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
        doubtful = behind if WATERMARK in frame.columns else np.asarray(times + self._kept <= marks)
        if not doubtful.any():
            self._accept(frame, output, at_once=at_once)
            return None
        late, end = self._judged(frame, doubtful, marks, output)
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
        self._pending.append(rows.select(self._row_columns))
        self._pending_rows += rows.height
        self._next_due = min(self._next_due, cast("int", rows[EVENT_TIME].min()) + self._gap)
        if at_once:
            self._settle(output)
        elif self._pending_rows >= max(_PENDING_ROWS, self._stored.height // 4):
            self._merge_pending(output)

    def _judged(
        self, frame: pl.DataFrame, doubtful: NDArray[np.bool_], marks: NDArray[np.int64] | int, output: Output
    ) -> tuple[list[int], int]:
        """The numbers of the rows that are late, and of the first one that has to wait until sessions are over, if any.

        A row whose own window is over is saved by a session that it touches on arrival. Within a batch time moves: a
        session that ended by then has gone, though it is still here.
        """
        self._merge_pending(output)
        keys = frame.filter(pl.Series(doubtful)).select(self._by).unique()
        numbered = frame.with_columns(pl.Series(_MARK, np.broadcast_to(marks, frame.height))).with_row_index(_ROW)
        judged = numbered.join(keys, on=self._by, how="semi", nulls_equal=True, maintain_order="left")
        spans = self._spans(keys)
        columns = (judged[name].to_list() for name in (_ROW, EVENT_TIME, _MARK))
        late: list[int] = []
        for key, row, time, mark in zip(key_values(judged, self._partials.keys), *columns, strict=True):
            first, last, gone = time, time, False
            apart: list[tuple[int, int]] = []
            for span in spans.get(key, ()):
                if span[0] > time + self._gap or span[1] + self._gap < time:
                    apart.append(span)
                elif span[1] + self._kept <= mark:
                    gone = True
                else:
                    first, last = min(first, span[0]), max(last, span[1])
            if last + self._kept <= mark:
                late.append(row)
            elif gone:
                return late, row
            else:
                spans[key] = [*apart, (first, last)]
        return late, frame.height

    def _spans(self, keys: pl.DataFrame) -> dict[Any, list[tuple[int, int]]]:
        """The sessions of some keys: times of their first and last rows."""
        stored = self._stored.join(keys, on=self._by, how="semi", nulls_equal=True)
        spans: dict[Any, list[tuple[int, int]]] = {}
        for key, first, last in zip(
            key_values(stored, self._partials.keys), stored[_FIRST].to_list(), stored[_LAST].to_list(), strict=True
        ):
            spans.setdefault(key, []).append((first, last))
        return spans

    # -- sessions -----------------------------------------------------------------------------------------------------

    def fire_due(self, watermark: int, output: Output) -> bool:
        uneven = self._watermarks.uneven
        current = self._watermarks.advance(watermark)
        if uneven or current >= self._next_due:
            self._settle(output)
        return False

    def advance(self, watermark: int, output: Output) -> None:
        """Pass on that time is a moment behind: the results that come next may have the watermark as their event time."""
        while self.fire_due(watermark, output):
            pass
        output.watermark(watermark if watermark == MAX_WATERMARK else watermark - 1)

    def _merge_pending(self, output: Output) -> None:
        if not self._pending:
            return
        before = self._stored
        self._stored = self._sessions.merged(before, self._pending)
        self._pending, self._pending_rows = [], 0
        if self._retracts:
            window = [*self._by, _FIRST, _LAST]
            gone = before.filter(pl.col(_FIRED)).join(self._stored, on=window, how="anti", nulls_equal=True)
            self._send(gone, output, retracted=True)

    def _settle(self, output: Output) -> None:
        """Send the sessions that are over, forget those that no late row can reach any more."""
        self._merge_pending(output)
        stored = self._stored
        if stored.height == 0:
            self._next_due = MAX_WATERMARK
            return
        marks = self._watermarks.of_rows(stored) if self._watermarks.uneven else self._watermarks.current
        end = stored[_LAST].to_numpy() + self._gap
        over = end <= marks
        self._send(stored.filter(pl.Series(over & ~stored[_FIRED].to_numpy())), output)
        if self._lateness > 0:
            stored = stored.with_columns(pl.Series(_FIRED, over))
        kept = end + self._lateness > marks
        self._stored = stored.filter(pl.Series(kept))
        waiting = np.where(over, end + self._lateness, end)[kept]
        self._next_due = int(waiting.min()) if len(waiting) else MAX_WATERMARK

    def _send(self, over: pl.DataFrame, output: Output, *, retracted: bool = False) -> None:
        if over.height == 0:
            return
        leading: list[pl.Expr | str] = [*self._by, *window_columns(pl.col(_FIRST), pl.col(_LAST) + self._gap)]
        if self._retracts:
            leading.append(pl.lit(retracted).alias(RETRACTED))
        output.rows(self._partials.results(over.sort(_LAST, maintain_order=True), leading, self._names))

    # -- snapshots ----------------------------------------------------------------------------------------------------

    def snapshot(self) -> OperatorSnapshot | None:
        header = {"kind": _KIND, "gap_us": self._gap, "partials": self._partials.describe()}
        frozen = FrozenSessions(
            self._sessions, self._stored, list(self._pending), header, self._context.max_parallelism
        )
        return OperatorSnapshot(keyed=frozen)

    def _restore(self, restored: RestoredState) -> None:
        frames: list[pl.DataFrame] = []
        groups: set[int] = set()
        for group, header, rows in decode_segments(restored.keyed, self._operator, _KIND, self._partials.keys):
            if header["gap_us"] != self._gap:
                raise IncompatibleStateError(
                    f"operator {self._operator!r}: the snapshot holds sessions with a gap of "
                    f"{format_duration(header['gap_us'])}, the pipeline has {format_duration(self._gap)}; restore it "
                    "with the same gap, or give the operator another uid"
                )
            frames.append(self._partials.restored(self._operator, header["partials"], rows))
            groups.add(group)
        if frames:
            self._stored = pl.concat(frames)
            if len(frames) > len(groups):  # several parts of one key group may hold the same key
                self._stored = self._sessions.fused(self._stored)
            self._next_due = MIN_WATERMARK


# -- sessions of a snapshot as a table ----------------------------------------------------------------------------------


def table_of_sessions(header: Mapping[str, Any], rows: pl.DataFrame) -> pl.DataFrame:
    """The rows of a segment with the bounds of their window as timestamps and `fired`, behind the keys."""
    keys = [part["name"] for part in header["keys"]]
    return rows.select(
        *keys,
        pl.col(_FIRST).cast(_UTC_MICROS).alias("window_start"),
        (pl.col(_LAST) + header["gap_us"]).cast(_UTC_MICROS).alias("window_end"),
        pl.col(_FIRED).alias("fired"),
        *(name for name in rows.columns if name not in (*keys, _FIRST, _LAST, _FIRED)),
    )


def sessions_of_table(header: Mapping[str, Any], table: pl.DataFrame) -> pl.DataFrame:
    """The inverse of `table_of_sessions`.

    Raises:
        ValueError: a session is shorter than the gap, or two of a key overlap or touch, which makes them one.
    """
    keys = [part["name"] for part in header["keys"]]
    start, end = pl.col("window_start").cast(pl.Int64), pl.col("window_end").cast(pl.Int64)
    if bad := table.filter((end - start < header["gap_us"]).fill_null(True)).rows(named=True):
        window = f"window_start {bad[0]['window_start']}, window_end {bad[0]['window_end']}"
        raise ValueError(f"{window}: a session lasts at least its gap of {format_duration(header['gap_us'])}")
    ordered = table.sort([*keys, "window_start"])
    same_key = pl.all_horizontal(pl.col(key).eq_missing(pl.col(key).shift()) for key in keys)
    touching = same_key & (start <= end.shift())
    if bad := ordered.with_row_index(_ROW).filter(touching & (pl.col(_ROW) > 0)).rows(named=True):
        key = ", ".join(f"{name} {bad[0][name]!r}" for name in keys)
        raise ValueError(f"{key}: two sessions overlap or touch at {bad[0]['window_start']}; make them one")
    columns = [start.alias(_FIRST), (end - header["gap_us"]).alias(_LAST), pl.col("fired").alias(_FIRED)]
    others = [name for name in table.columns if name not in (*keys, "window_start", "window_end", "fired")]
    return table.select(*keys, *columns, *others)
