"""The sessions of one operator: found by key, known by when they end, and never two of a key that overlap or touch.

They lie in sorted runs, like the rows of joins, so a batch looks at the sessions of its own keys, and event time at those
that end, however many there are. Sessions that were sent are apart from those that are open: these are of use until they
end, those until no late row can reach them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from penstock.state.columns import joined_by_keys
from penstock.state.deltas import deltas_by_key
from penstock.state.freezes import BASE, EVERYTHING, Freeze, Freezes, FrozenAt
from penstock.state.hashing import hash64_frame, is_among
from penstock.state.segments import encode_segments
from penstock.state.sorted_runs import FrozenRun, Run, SortedRuns, TimedRows, by_end
from penstock.task.operators.sessions import END, FIRED, FIRST, Sessions

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from penstock.task.operators.progress import GroupWatermarks

ROWS_AT_ONCE: Final = 65_536
"""Sessions that are sent at a time, if many are over."""


class SessionStore:
    """What is known of sessions, but for rows that wait."""

    def __init__(self, sessions: Sessions, lateness_us: int, folder: Path | None) -> None:
        """`lateness_us`: how long sessions are kept that were sent; `folder`: where state on the local disk lies."""
        self._sessions = sessions
        self._freezes = Freezes()
        self._open = _SessionRuns(sessions, folder, self._freezes)
        self._sent = _SessionRuns(sessions, folder, self._freezes, sent=True, lateness_us=lateness_us)
        self._all = (self._open, self._sent)

    @property
    def epoch(self) -> int:
        """In which rows come now: see `penstock.state.freezes`."""
        return self._freezes.current

    @property
    def next_end(self) -> int:
        """No session is to be sent or forgotten before event time is here."""
        return min(runs.next_end for runs in self._all)

    def run_background_slice(self) -> bool:
        """Run a slice, of some milliseconds, of the merges that are left; returns whether any are left then."""
        return any(runs.run_background_slice() for runs in self._all)

    def add(self, fresh: pl.DataFrame, epoch: int = 0) -> pl.DataFrame:
        """Take sessions, of which no two overlap or touch, and merge them with those here that they do touch.

        Args:
            fresh: the sessions.
            epoch: in which their rows came. Snapshots of its end have them, perhaps as rows that wait.

        Returns:
            those that were sent and are no more, since they have other bounds now.
        """
        touching = np.zeros(fresh.height, np.bool_)
        sent, others = (runs.take_touched(fresh, touching, epoch) for runs in (self._sent, self._open))
        if touching.any():
            merged = self._sessions.fused(pl.concat([*sent, *others, fresh.filter(touching)]))  # in order of arrival
            fresh = pl.concat([fresh.filter(~touching), merged])
        open_ones, fired = fresh, fresh[FIRED]
        if fired.any():  # in a snapshot
            self._sent.keep(fresh.filter(fired), epoch)
            open_ones = fresh.filter(~fired)
        self._open.keep(open_ones, epoch)
        if not sent:
            return self._sessions.empty
        return pl.concat(sent).join(fresh, on=[*self._sessions.by, FIRST, END], how="anti", nulls_equal=True)

    def of(self, keys: pl.DataFrame) -> pl.DataFrame:
        """The sessions of these keys."""
        return self._together([frame for runs in self._all for frame in runs.sessions_of(keys)])

    def ended(self, watermarks: GroupWatermarks) -> Iterator[pl.DataFrame]:
        """The sessions that are over and were not sent, which they are from now on; forgets those that no row reaches.

        In the order of their ends, some at a time: all are to be taken before anything else is asked.
        """
        for parts in by_end(list(self._open.passed(watermarks)), ROWS_AT_ONCE):
            over = pl.concat([self._open.sessions(rows) for rows in parts])
            if self._sent.lateness_us > 0:
                self._sent.keep(over, self.epoch)
            yield over
        for _ in self._sent.passed(watermarks):
            pass

    def frozen(
        self,
        pending: Sequence[tuple[int, pl.DataFrame]],
        header: Mapping[str, Any],
        max_parallelism: int,
        *,
        incremental: bool,
    ) -> FrozenSessions:
        """All of them as they are now, with rows that wait, by the epochs in which they came."""
        freeze = self._freezes.next(incremental=incremental)
        for runs in self._all:
            runs.went = [each for each in runs.went if each[0] > freeze.known_from]
        kept = [(runs, runs.freeze()) for runs in self._all]
        went = [each for runs in self._all for each in runs.went]
        return FrozenSessions(self._sessions, freeze, kept, went, pending, header, max_parallelism)

    def _together(self, frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
        return pl.concat(frames) if frames else self._sessions.empty


class _SessionRuns(SortedRuns):
    """Those that are open, or those that were sent."""

    def __init__(
        self, sessions: Sessions, folder: Path | None, freezes: Freezes, *, sent: bool = False, lateness_us: int = 0
    ) -> None:
        super().__init__(sessions.by, nulls_equal=True, freezes=freezes)
        self.folder = folder
        self.sent = sent
        self._sessions = sessions
        self.lateness_us = lateness_us
        """How long they are of use behind their end."""
        self.went: list[tuple[int, NDArray[np.uint64]]] = []
        """Epochs in which sessions went that had come before, and the hashes of their keys."""

    def keep(self, sessions: pl.DataFrame, epoch: int) -> None:
        """Add sessions that touch none of those here."""
        if not sessions.height:
            return
        rows = sessions[self._sessions.beside_bounds]
        until = sessions[END].to_numpy() + self.lateness_us
        kept = TimedRows(rows, sessions[FIRST].to_numpy(), until, np.zeros(rows.height, np.bool_))
        self.add(kept, self.hashes(rows), epoch)

    def sessions(self, rows: TimedRows) -> pl.DataFrame:
        """As a frame with the columns of `Sessions`; usable in any thread."""
        ends = pl.Series(END, rows.until - self.lateness_us)
        sent = pl.Series(FIRED, [self.sent]).new_from_index(0, rows.height)
        return rows.frame.hstack([pl.Series(FIRST, rows.moments), ends, sent])

    def sessions_of(self, keys: pl.DataFrame) -> Iterator[pl.DataFrame]:
        """All that are of use."""
        for matches in self.all_of(keys):
            yield self.sessions(matches.run.rows.picked(matches.found[matches.run.of_use(matches.found)]))

    def take_touched(self, fresh: pl.DataFrame, touching: NDArray[np.bool_], epoch: int) -> list[pl.DataFrame]:
        """Those that overlap or touch one of `fresh`, which are here no more; sets `touching` of these."""
        if not self.runs:
            return []
        self.finish()
        first, end, hashes = fresh[FIRST].to_numpy(), fresh[END].to_numpy(), self.hashes(fresh)
        found: list[tuple[Run, NDArray[np.int64]]] = []
        # Those of a key in a run never touched each other: of the ones that began before, the last alone may reach here.
        for matches in (*self.newest(fresh, hashes, first), *self.matches(fresh, hashes, first + 1, end)):
            run = matches.run
            touched = run.rows.until[matches.found] - self.lateness_us >= first[matches.asking]
            touched &= run.of_use(matches.found)
            touching[matches.asking[touched]] = True
            found.append((run, np.unique(matches.found[touched])))
        taken: list[pl.DataFrame] = []
        for run, places in found:
            left = places[run.of_use(places)]  # one may touch two of `fresh`
            if len(left):
                taken.append(self.sessions(run.rows.picked(left)))
                run.take_out(left)
                self._go(run, left, epoch)
        return taken

    def passed(self, watermarks: GroupWatermarks) -> Iterator[tuple[TimedRows, NDArray[np.int64]]]:
        """Where those stand that are of use no more since event time has come so far."""
        if watermarks.uneven:
            self.finish()
            for run in self.runs:
                places = np.flatnonzero((run.rows.until <= watermarks.highest) & run.of_use())
                rows = run.rows.picked(places)
                places = places[rows.until <= watermarks.of_rows(rows.frame)]
                yield run.rows, places
                run.take_out(places)
                self._go(run, places, self._freezes.current)
        for run, due in self.pass_by(watermarks.current):
            yield run.rows, due
            self._go(run, due, self._freezes.current)

    def _go(self, run: Run, places: NDArray[np.int64], epoch: int) -> None:
        """Sessions of a run are here no more; a snapshot of before `epoch` may have them."""
        if run.epoch < epoch and len(places):
            self.went.append((epoch, run.hashes[places]))


@dataclass(frozen=True)
class FrozenSessions(FrozenAt):
    """Sessions and pending rows of a snapshot: an `IncrementalPart`. A delta has all sessions of keys that changed."""

    sessions: Sessions
    freeze: Freeze
    kept: Sequence[tuple[_SessionRuns, Sequence[FrozenRun]]]
    """By whose they are."""
    went: Sequence[tuple[int, NDArray[np.uint64]]]
    """The hashes of the keys of sessions that went, by epochs."""
    pending: Sequence[tuple[int, pl.DataFrame]]
    """By the epochs in which they came: a snapshot of the end of that has them already."""
    header: Mapping[str, Any]
    max_parallelism: int

    def encoded(self, behind: int) -> Iterable[tuple[int, bytes]]:
        """One segment per key group that has sessions, or had some of keys that have changed."""
        keys, folder = self.sessions.partials.keys, self.kept[0][0].folder
        if behind in (EVERYTHING, BASE):
            stored = self._stored(lambda run: run.pieces())
            frames = self._together(stored, [rows for _, rows in self.pending])
            return encode_segments(self.header, frames, keys, self.max_parallelism, folder)
        changed = self._changed(behind)
        stored = self._stored(lambda run: run.of_keys(changed))
        pending = [rows.filter(pl.Series(is_among(self._hashes(rows), changed))) for _, rows in self.pending]
        frames = self._together(stored, [rows for rows in pending if rows.height])
        return deltas_by_key(self.header, frames, changed, self.sessions.empty, keys, self.max_parallelism, folder)

    def _stored(self, pieces: Callable[[FrozenRun], Iterable[TimedRows]]) -> Iterator[pl.DataFrame]:
        return (runs.sessions(piece) for runs, frozen in self.kept for run in frozen for piece in pieces(run))

    def _together(self, stored: Iterable[pl.DataFrame], pending: Sequence[pl.DataFrame]) -> Iterator[pl.DataFrame]:
        if not pending:
            yield from stored
            return
        by, fresh = self.sessions.by, self.sessions.of_rows(pl.concat(pending))
        keys = fresh.select(by).unique()
        together: list[pl.DataFrame] = []
        for piece in stored:
            together.append(joined_by_keys(piece, keys, by, "semi"))
            yield joined_by_keys(piece, keys, by, "anti")
        yield self.sessions.fused(pl.concat([*together, fresh]))

    def _changed(self, behind: int) -> NDArray[np.uint64]:
        """The hashes of keys of which sessions came or went behind an epoch; they rise."""
        hashes = [run.hashes for _, frozen in self.kept for run in frozen if run.epoch > behind]
        hashes += [went for epoch, went in self.went if epoch > behind]
        hashes += [self._hashes(rows) for epoch, rows in self.pending if epoch > behind]
        return np.unique(np.concatenate([*hashes, np.empty(0, np.uint64)]))

    def _hashes(self, rows: pl.DataFrame) -> NDArray[np.uint64]:
        return hash64_frame(rows, self.sessions.by)
