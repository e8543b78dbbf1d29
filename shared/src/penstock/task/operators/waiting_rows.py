"""Rows that wait until event time has passed their own: they leave in order of it, those of one time as they came.

They are held as they come, in memory, and looked through when some are due. Where state is on the local disk and they
become many they lie in sorted runs, of which event time finds those that are due. Nobody looks for them by key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, cast

import numpy as np
import polars as pl

from penstock.batches import EVENT_TIME
from penstock.state.sorted_runs import SortedRuns, TimedRows, by_end
from penstock.times import MAX_WATERMARK

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.state.freezes import Freezes

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
        """In order of arrival, by the windows in which they came: see `penstock.state.freezes`."""
        self._held_rows = 0
        self._earliest = MAX_WATERMARK
        """The first event time of those."""
        self._stored = SortedRuns((), freezes=freezes)
        """Those that came before all that are held, by the number of their arrival."""
        self._numbered = 0

    def lies_in(self, folder: Path | None) -> None:
        """State on the local disk lies there, if it does."""
        self._stored.folder = folder

    def go_on(self) -> bool:
        """Do a part of what is left of keeping them, for some milliseconds; whether more is left."""
        return self._stored.go_on()

    def add(self, rows: pl.DataFrame) -> None:
        """Rows that wait from now on, all with the same columns, `EVENT_TIME` among them."""
        if not rows.height:
            return
        self._hold(self._freezes.current, rows)
        if self._stored.folder is not None and self._held_rows >= _HELD_ROWS:
            self._store()

    def _hold(self, window: int, rows: pl.DataFrame) -> None:
        self._held.setdefault(window, []).append(rows)
        self._held_rows += rows.height
        self._earliest = min(self._earliest, cast("int", rows[EVENT_TIME].min()))

    def _store(self) -> None:
        for window, rows in self._taken():
            numbers = np.arange(self._numbered, self._numbered + rows.height, dtype=np.uint64)
            self._numbered += rows.height
            self._stored.add(_timed(rows), numbers, window)

    def _taken(self) -> list[tuple[int, pl.DataFrame]]:
        """Those that are held, and are not any more."""
        held, self._held, self._held_rows, self._earliest = self._held, {}, 0, MAX_WATERMARK
        return [(window, pl.concat(frames)) for window, frames in held.items()]

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
        for window, rows in self._taken():
            due.append(rows.filter(pl.col(EVENT_TIME) <= reached))
            later = rows.filter(pl.col(EVENT_TIME) > reached)
            if later.height:
                before = next(reversed(self._held), window)
                self._hold(before if self._freezes.together(before, window) else window, later)
        return due

    def freeze(self) -> list[tuple[int, Iterable[pl.DataFrame]]]:
        """Those that wait now: windows, and frames in order of arrival, which may be taken once, from any thread."""
        stored = [(run.window, (piece.frame for piece in run.pieces())) for run in self._stored.freeze()]
        return [*stored, *((window, list(frames)) for window, frames in self._held.items())]


def _timed(rows: pl.DataFrame) -> TimedRows:
    times = rows[EVENT_TIME].to_numpy()
    return TimedRows(rows, times, times, np.zeros(rows.height, np.bool_))
