"""Rows that wait until event time has passed their own: they leave in order of it, those of one time as they came.

They are held as they come, in memory, and looked through when some are due. Where state is on the local disk and they
become many they lie in sorted runs, of which event time finds those that are due. Nobody looks for them by key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

import numpy as np
import polars as pl

from penstock.core.batches import EVENT_TIME
from penstock.core.times import MAX_WATERMARK
from penstock.state.freezes import Freeze, Freezes, FrozenAt, added
from penstock.state.segments import encode_segments
from penstock.state.sorted_runs import SortedRuns, TimedRows, by_end

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.task.operator import OperatorContext
    from penstock.types import Schema

_HELD_ROWS: Final = 262_144
"""So many are not held in memory, where state is on the local disk: as a run they lie there."""
_ROWS_AT_ONCE: Final = 65_536
"""Of those from the disk."""


class WaitingRows:
    """Rows of one operator."""

    def __init__(self, freezes: Freezes) -> None:
        """`freezes`: tells which rows came before a snapshot."""
        self._freezes = freezes
        self._held: dict[int, list[pl.DataFrame]] = {}
        """In order of arrival, by the epochs in which they came: see `penstock.state.freezes`."""
        self._held_rows = 0
        self._earliest = MAX_WATERMARK
        """The first event time of those."""
        self._stored = SortedRuns((), freezes=freezes)
        """Those that came before all that are held, by the number of their arrival."""
        self._numbered = 0

    def lies_in(self, folder: Path | None) -> None:
        """State on the local disk lies there, if it does."""
        self._stored.folder = folder

    def run_background_slice(self) -> bool:
        """Run a slice, of some milliseconds, of the merges that are left; returns whether any are left then."""
        return self._stored.run_background_slice()

    def add(self, rows: pl.DataFrame) -> None:
        """Rows that wait from now on, all with the same columns, `EVENT_TIME` among them."""
        if not rows.height:
            return
        self._hold(self._freezes.current, rows)
        if self._stored.folder is not None and self._held_rows >= _HELD_ROWS:
            self._store()

    def _hold(self, epoch: int, rows: pl.DataFrame) -> None:
        self._held.setdefault(epoch, []).append(rows)
        self._held_rows += rows.height
        self._earliest = min(self._earliest, cast("int", rows[EVENT_TIME].min()))

    def _store(self) -> None:
        for epoch, rows in self._drain_held():
            numbers = np.arange(self._numbered, self._numbered + rows.height, dtype=np.uint64)
            self._numbered += rows.height
            self._stored.add(_timed(rows), numbers, epoch)

    def _drain_held(self) -> list[tuple[int, pl.DataFrame]]:
        """Those that are held, and are not any more."""
        held, self._held, self._held_rows, self._earliest = self._held, {}, 0, MAX_WATERMARK
        return [(epoch, pl.concat(frames)) for epoch, frames in held.items()]

    def due(self, reached: int) -> Iterator[pl.DataFrame]:
        """Event time has reached `reached`: those that wait no more, those of one time in one frame.

        All are to be taken before anything else.
        """
        before: pl.DataFrame | None = None
        for rows in self._in_order(reached):
            if before is not None:
                end = before[EVENT_TIME].search_sorted(rows[EVENT_TIME][0])
                if end:
                    yield before.head(end)
                rows = pl.concat([before.slice(end), rows])
            before = rows
        if before is not None:
            yield before

    def _in_order(self, reached: int) -> Iterator[pl.DataFrame]:
        passed = [(run.rows, places) for run, places in self._stored.pass_by(reached)]
        held = self._held_due(reached) if self._earliest <= reached else []
        if not passed:
            parts = [held] if held else []
        else:
            passed += [(_timed(rows), np.arange(rows.height)) for rows in held]
            parts = ([rows.frame for rows in part] for part in by_end(passed, _ROWS_AT_ONCE))
        for frames in parts:
            yield pl.concat(frames).sort(EVENT_TIME, maintain_order=True)

    def _held_due(self, reached: int) -> list[pl.DataFrame]:
        due: list[pl.DataFrame] = []
        for epoch, rows in self._drain_held():
            due.append(rows.filter(pl.col(EVENT_TIME) <= reached))
            later = rows.filter(pl.col(EVENT_TIME) > reached)
            if later.height:
                before = next(reversed(self._held), epoch)
                self._hold(before if self._freezes.together(before, epoch) else epoch, later)
        return due

    def freeze(self) -> list[tuple[int, Iterable[pl.DataFrame]]]:
        """Those that wait now: epochs, and frames in order of arrival, which may be taken once, from any thread."""
        stored = [(run.epoch, (piece.frame for piece in run.pieces())) for run in self._stored.freeze()]
        return [*stored, *((epoch, list(frames)) for epoch, frames in self._held.items())]

    def frozen(self, kind: str, keys: Schema, context: OperatorContext) -> FrozenRows:
        """The same as the state of an operator that keeps nothing else.

        Args:
            kind: what the segments are called.
            keys: the columns whose values say which key group a row belongs to.
            context: of the operator.
        """
        waiting, freeze = self.freeze(), self._freezes.next(incremental=context.incremental)
        return FrozenRows(freeze, kind, waiting, keys, context.max_parallelism, context.local_state)


@dataclass(frozen=True)
class FrozenRows(FrozenAt):
    """Rows that wait: an `IncrementalPart`. A delta has those that came; event time tells which wait no more."""

    freeze: Freeze
    kind: str
    waiting: Sequence[tuple[int, Iterable[pl.DataFrame]]]
    keys: Schema
    max_parallelism: int
    folder: Path | None

    def encoded(self, behind: int) -> Iterable[tuple[int, bytes]]:
        """One segment per key group that has rows."""
        frames = (rows for epoch, frames in self.waiting if epoch > behind for rows in frames)
        return encode_segments(added({"kind": self.kind}, behind), frames, self.keys, self.max_parallelism, self.folder)


def _timed(rows: pl.DataFrame) -> TimedRows:
    times = rows[EVENT_TIME].to_numpy()
    return TimedRows(rows, times, times, np.zeros(rows.height, np.bool_))
