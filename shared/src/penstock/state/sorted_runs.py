"""Rows by key and moment, for operators that look up many keys at once: what joins keep of one of their inputs.

Rows lie in runs: frames that never change, sorted by the hash of the key and a moment, so that a batch finds what it
looks for by binary search in arrays, whatever the number of rows is. New rows are a run of their own, and runs of like
size are merged (a log-structured merge tree with its levels in memory): a row is moved some log2(rows) times.

A row is of use up to a last moment. It is dropped when its run is merged, at the latest when most of its run is of no use
any more. What is asked by hash alone may be of another key: `Matches` are checked by the keys themselves.

Large runs are merged piece by piece, between which others run: `SortedRuns.go_on`. Rows are found without it; whatever
changes them finishes it first. Where state is on the local disk, so are the rows of large runs; what these are found and
forgotten by, 33 bytes a row, is in memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from penstock.state.freezes import Freezes
from penstock.state.hashing import hash64_frame, is_among
from penstock.state.mapped_frames import FrameWriter
from penstock.times import MAX_WATERMARK, MIN_WATERMARK

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

_LEAST_ROWS: Final = 1_024
"""Runs up to here are merged whatever comes."""
_ON_DISK_ROWS: Final = 262_144
"""Runs from here on lie on the local disk, where state is there."""
_LOOKED_THROUGH_ROWS: Final = 65_536
"""Runs up to here are not put in the order in which their rows cease to be of use: that costs more than to look."""
_PIECE_ROWS: Final = 65_536
_TOGETHER_BYTES: Final = 64 << 20
"""Of rows that are merged onto the disk."""
_ALL: Final = slice(None)


@dataclass(frozen=True)
class TimedRows:
    """Rows with what they are found and forgotten by; all arrays have the height of the frame."""

    frame: pl.DataFrame
    """The key columns and others, the same of all rows of one input."""
    moments: NDArray[np.int64]
    """What the other side's rows look for, beside the key."""
    until: NDArray[np.int64]
    """The last moment of event time at which a row is of use."""
    marked: NDArray[np.bool_]
    """Said of a row by whoever keeps it, and changed in place: that it has met another one."""
    at_random: pl.DataFrame | None = None
    """The frame for rows here and there, if it is on disk."""

    @property
    def height(self) -> int:
        """How many rows."""
        return self.frame.height

    def found(self) -> pl.DataFrame:
        """The frame, of which rows here and there are asked for."""
        return self.frame if self.at_random is None else self.at_random

    def picked(self, rows: NDArray[np.int64]) -> TimedRows:
        """Rows here and there, by their numbers, with marks of their own."""
        return TimedRows(self.found()[rows], self.moments[rows], self.until[rows], self.marked[rows])

    def take(self, chosen: NDArray[np.int64] | NDArray[np.bool_]) -> TimedRows:
        """The rows with these numbers, or those for which it is true, with marks of their own."""
        rows = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen
        return TimedRows(self.frame[rows], self.moments[rows], self.until[rows], self.marked[rows])

    def left_at(self, reached: NDArray[np.int64] | int) -> TimedRows:
        """The rows that are of use behind a moment, or behind one of each."""
        left = self.until > reached
        return self if left.all() else self.take(left)

    def part(self, begin: int, end: int) -> TimedRows:
        """The rows from one place to another, which stay where they are."""
        part = slice(begin, end)
        return TimedRows(self.frame[part], self.moments[part], self.until[part], self.marked[part])

    def on_disk(self, folder: Path) -> TimedRows:
        """The same, with the frame in a file, and the same marks."""
        with FrameWriter(folder) as writer:
            writer.add(self.frame)
            return replace(self, frame=writer.mapped(), at_random=writer.mapped(at_random=True))


@dataclass(frozen=True)
class FrozenRun:
    """The rows of a run in a snapshot."""

    kept: TimedRows
    chosen: NDArray[np.int64] | None
    """Which of them were of use, in rising order; None for all."""
    window: int
    """In which the newest of them came."""
    hashes: NDArray[np.uint64]
    """Of the keys of all rows that are kept; they rise."""

    def rows(self) -> TimedRows:
        """Those that were of use; not cheap."""
        return self.kept if self.chosen is None else self.kept.take(self.chosen)

    def pieces(self) -> Iterator[TimedRows]:
        """Those that were of use, some at a time."""
        rows = self.chosen
        for begin in range(0, self.kept.height if rows is None else len(rows), _PIECE_ROWS):
            end = begin + _PIECE_ROWS
            yield self.kept.part(begin, end) if rows is None else self.kept.take(rows[begin:end])

    def of_keys(self, hashes: NDArray[np.uint64]) -> Iterator[TimedRows]:
        """Those that were of use whose keys have one of these hashes, which rise; some at a time."""
        begin = np.searchsorted(self.hashes, hashes, "left")
        _, places = places_in(begin, np.searchsorted(self.hashes, hashes, "right") - begin)
        if self.chosen is not None:
            places = places[is_among(places, self.chosen)]
        for start in range(0, len(places), _PIECE_ROWS):
            yield self.kept.picked(places[start : start + _PIECE_ROWS])


class Run:
    """Rows sorted by hash, then moment, then arrival."""

    def __init__(self, rows: TimedRows, hashes: NDArray[np.uint64], window: int) -> None:
        self.rows = rows
        self.hashes = hashes
        self.window = window
        """In which the newest of them came: see `penstock.state.freezes`."""
        self.left = rows.height
        """How many rows are of use."""
        self.next_end = int(rows.until.min()) if rows.height else MAX_WATERMARK
        """Up to when none of them ceases to be of use because of event time."""
        self._order: NDArray[np.int64] | None = None
        """The rows by the moment up to which they are of use, once event time has come to the first."""
        self._ends = rows.until
        self._passed = 0
        """How many of those event time has passed."""
        self._reached = MIN_WATERMARK
        self._taken: NDArray[np.bool_] | None = None
        """Which rows were taken out; None for none."""

    def pass_by(self, reached: int) -> NDArray[np.int64]:
        """Event time has reached `reached`: the rows that are of no use from now on, in the order of their ends."""
        if reached < self.next_end:
            return np.empty(0, np.int64)
        due = self._due(reached)
        if self._taken is not None:
            due = due[~self._taken[due]]
        self._reached = reached
        self.left -= len(due)
        return due

    def _due(self, reached: int) -> NDArray[np.int64]:
        """Those that event time passes, in the order of their ends, the ones that were taken out among them."""
        until = self.rows.until
        if len(until) <= _LOOKED_THROUGH_ROWS:
            due = np.flatnonzero((until > self._reached) & (until <= reached))
            later = until[until > reached]
            self.next_end = int(later.min()) if len(later) else MAX_WATERMARK
            return due[np.argsort(until[due], kind="stable")]
        if self._order is None:
            self._order = np.argsort(until, kind="stable")
            self._ends = until[self._order]
        before, self._passed = self._passed, int(np.searchsorted(self._ends, reached, side="right"))
        self.next_end = int(self._ends[self._passed]) if self._passed < len(self._ends) else MAX_WATERMARK
        return self._order[before : self._passed]

    def take_out(self, places: NDArray[np.int64]) -> None:
        """These rows, each of which was of use, are of no use any more."""
        if self._taken is None:
            self._taken = np.zeros(self.rows.height, np.bool_)
        self._taken[places] = True
        self.left -= len(places)

    def of_use(self, places: NDArray[np.int64] | slice = _ALL) -> NDArray[np.bool_]:
        """Whether the rows at these places are of use."""
        used = self.rows.until[places] > self._reached
        return used if self._taken is None else used & ~self._taken[places]

    def gone(self) -> NDArray[np.bool_] | None:
        """Which rows are of no use any more; None for none."""
        if self.left == self.rows.height:
            return None
        return ~self.of_use()

    def freeze(self) -> FrozenRun:
        """The rows that are still of use, as they are now."""
        rows = replace(self.rows, marked=self.rows.marked.copy())
        chosen = None if self.left == self.rows.height else np.flatnonzero(self.of_use())
        return FrozenRun(rows, chosen, self.window, self.hashes)

    def before(
        self, moments: NDArray[np.int64], begin: NDArray[np.int64], end: NDArray[np.int64], *, included: bool
    ) -> NDArray[np.int64]:
        """The end of the rows from `begin` to `end` whose moment is before the one given for them, or is that."""
        low, high = begin.copy(), end.copy()
        known, last = self.rows.moments, max(0, self.rows.height - 1)
        while (undecided := low < high).any():
            middle = (low + high) >> 1
            at = known[np.minimum(middle, last)]
            further = undecided & (at <= moments if included else at < moments)
            low = np.where(further, middle + 1, low)
            high = np.where(undecided & ~further, middle, high)
        return low


@dataclass(frozen=True)
class Matches:
    """Pairs: row `asking` of those that asked has met row `found` of a run, in the order of those that asked."""

    run: Run
    asking: NDArray[np.int64]
    found: NDArray[np.int64]


class SortedRuns:
    """All rows of one input."""

    def __init__(
        self,
        keys: Sequence[str],
        *,
        newest_only: bool = False,
        nulls_equal: bool = False,
        freezes: Freezes | None = None,
    ) -> None:
        """How rows are kept.

        Args:
            keys: those of the columns by which rows are found.
            newest_only: of the rows of a key whose moments event time has reached, only the newest is of use.
            nulls_equal: whether null is a key like others; otherwise it is equal to nothing, as in SQL.
            freezes: tells which runs are kept apart; None: none ever.
        """
        self._keys = list(keys)
        self._nulls_equal = nulls_equal
        self._freezes = freezes or Freezes()
        self._newest_only = newest_only
        self._reached = MIN_WATERMARK
        self.runs: list[Run] = []
        self.folder: Path | None = None
        """Where state on the local disk lies, if it does."""
        self._tidying: Iterator[None] = iter(())
        """What is left of merging runs."""

    @property
    def height(self) -> int:
        """How many rows are there, some of which may be of no use."""
        return sum(run.rows.height for run in self.runs)

    @property
    def next_end(self) -> int:
        """Up to when event time may go without a row that is of no use any more."""
        return min((run.next_end for run in self.runs), default=MAX_WATERMARK)

    def hashes(self, frame: pl.DataFrame) -> NDArray[np.uint64]:
        """What rows are sorted and looked for by."""
        return hash64_frame(frame, self._keys)

    def go_on(self) -> bool:
        """Do a part of what is left of merging runs, for some milliseconds; whether more is left."""
        return next(self._tidying, self) is not self

    def finish(self) -> None:
        """Leave nothing of it, as is needed before a row is marked: those of runs at work have been copied."""
        while self.go_on():
            pass

    def add(self, rows: TimedRows, hashes: NDArray[np.uint64], window: int | None = None) -> None:
        """Keep rows, in order of arrival behind those that are there; they came in `window`, None for the current one."""
        if not rows.height:
            return
        self.finish()
        order = _order(hashes, rows.moments)
        window = self._freezes.current if window is None else window
        fresh = self._fresh(Run(rows.take(order), hashes[order], window))
        if not fresh.rows.height:
            return
        self.runs.append(fresh)
        self._tidying = self._tidied()
        self.go_on()

    def clear(self) -> None:
        """Keep nothing."""
        self._tidying = iter(())
        self.runs = []

    def _tidied(self) -> Iterator[None]:
        """Runs of which most is of no use become smaller, those of about one size become one, large ones lie on disk."""
        for place, run in enumerate(self.runs):
            if 2 * run.left < run.rows.height:
                self.runs[place] = yield from merged([run], folder=self.folder)
        for place in range(len(self.runs) - 1, 0, -1):
            older, newer = self.runs[place - 1 : place + 1]
            if self._is_like(older, newer) and self._freezes.together(older.window, newer.window):
                thinned = partial(self._thinned, oldest=place == 1)
                self.runs[place - 1 : place + 1] = [(yield from merged([older, newer], thinned, self.folder))]
        self.runs = [run for run in self.runs if run.left]  # what came may have been taken back
        for run in self.runs:
            if self.folder is not None and run.rows.height >= _ON_DISK_ROWS and run.rows.at_random is None:
                run.rows = run.rows.on_disk(self.folder)

    def matches(
        self,
        frame: pl.DataFrame,
        hashes: NDArray[np.uint64],
        first: NDArray[np.int64],
        last: NDArray[np.int64],
    ) -> Iterator[Matches]:
        """All pairs of rows of `frame` with rows of the same key whose moment is from `first` to `last`."""
        for run, begin, end in self._spans(hashes):
            end = self._meeting(frame, begin, end)
            if not (begin < end).any():
                continue
            begin = run.before(first, begin, end, included=False)
            yield from self._pairs(frame, run, begin, run.before(last, begin, end, included=True))

    def all_of(self, keys: pl.DataFrame) -> Iterator[Matches]:
        """All rows of these keys."""
        for run, begin, end in self._spans(self.hashes(keys)):
            yield from self._pairs(keys, run, begin, self._meeting(keys, begin, end))

    def _meeting(self, frame: pl.DataFrame, begin: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
        """The ends, with nothing for rows with a null key: all nulls have one hash, and none is equal to another."""
        for key in () if self._nulls_equal else self._keys:
            if frame[key].null_count():
                end = np.where(frame[key].is_null().to_numpy(), begin, end)
        return end

    def _spans(self, hashes: NDArray[np.uint64]) -> Iterator[tuple[Run, NDArray[np.int64], NDArray[np.int64]]]:
        """Each run, and where its rows of each hash begin and end.

        Looked for in rising order: what one search reads lies in the processor's caches when the next one comes, which is
        six times as fast.
        """
        order = np.argsort(hashes)
        rising = hashes[order]
        for run in self.runs:
            begin, end = np.empty((2, len(hashes)), np.int64)
            begin[order] = np.searchsorted(run.hashes, rising, "left")
            end[order] = np.searchsorted(run.hashes, rising, "right")
            yield run, begin, end

    def _pairs(
        self, frame: pl.DataFrame, run: Run, begin: NDArray[np.int64], end: NDArray[np.int64]
    ) -> Iterator[Matches]:
        """Rows of `frame` with those of a run from `begin` to `end` that have the same key."""
        asking, found = places_in(begin, np.maximum(end - begin, 0))
        same = self._same_keys(frame, asking, run, found)
        if len(asking):
            yield Matches(run, asking[same], found[same])

    def newest(self, frame: pl.DataFrame, hashes: NDArray[np.uint64], moments: NDArray[np.int64]) -> Iterator[Matches]:
        """Of each run at most one row per row of `frame`: the last one of the same key whose moment is not behind."""
        for run, begin, end in self._spans(hashes):
            place = run.before(moments, begin, self._meeting(frame, begin, end), included=True) - 1
            while True:  # once, but for keys that share a hash
                asking = np.flatnonzero(place >= begin)
                found = place[asking]
                other = ~self._same_keys(frame, asking, run, found)
                if not other.any():
                    break
                place[asking[other]] -= 1
            if len(asking):
                yield Matches(run, asking, found)

    def pass_by(self, reached: int) -> Iterator[tuple[Run, NDArray[np.int64]]]:
        """Event time has reached `reached`: says where the rows stand that are of no use from now on."""
        self._reached = reached
        some_due = False
        for run in self.runs:
            due = run.pass_by(reached)
            if len(due):
                some_due = True
                yield run, due
        if some_due:  # what is being merged has some of them
            self.runs = [run for run in self.runs if run.left]
            self._tidying = self._tidied()

    def freeze(self) -> list[FrozenRun]:
        """The rows that are of use, as they are now: what changes later does not change them. Copies marks alone."""
        return [run.freeze() for run in self.runs]

    def _same_keys(
        self, frame: pl.DataFrame, asking: NDArray[np.int64], run: Run, found: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        same = np.ones(len(asking), np.bool_)
        for key in self._keys:
            one, other = frame[key][asking], run.rows.found()[key][found]
            same &= (one.eq_missing(other) if self._nulls_equal else (one == other).fill_null(False)).to_numpy()
        return same

    def _fresh(self, run: Run) -> Run:
        """What is kept of rows that have just come, as a run of their own."""
        return run

    def _thinned(self, run: Run, *, oldest: bool) -> Run:
        """The run without rows that others of it make useless: behind which a newer one of the key holds by now.

        `oldest`: there is no older run for which it might still matter that there was a row.
        """
        if not self._newest_only:
            return run
        places = np.arange(run.rows.height - 1)
        older = (run.hashes[1:] == run.hashes[:-1]) & (run.rows.moments[1:] <= self._reached)
        older &= self._same_keys(run.rows.frame, places, run, places + 1)
        left = np.append(~older, np.ones(1, np.bool_))
        return run if left.all() else Run(run.rows.take(left), run.hashes[left], run.window)

    @staticmethod
    def _is_like(older: Run, newer: Run) -> bool:
        return older.rows.height <= max(_LEAST_ROWS, 2 * newer.rows.height)


def places_in(begin: NDArray[np.int64], counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All places of ranges with such beginnings and sizes, one range after the other: whose each is, and where."""
    numbers = np.repeat(np.arange(len(counts)), counts)
    return numbers, np.arange(len(numbers)) - np.repeat(np.cumsum(counts) - counts - begin, counts)


def by_end(passed: Sequence[tuple[TimedRows, NDArray[np.int64]]], rows_at_once: int) -> Iterator[list[TimedRows]]:
    """Rows that are of no use any more, some at a time: those that were of use longest come last.

    Args:
        passed: where they stand. In a part those of one are behind each other, in the order of their ends.
        rows_at_once: so many rows are in a part, but the last.
    """
    if not passed:
        return
    places = np.concatenate([due for _, due in passed])
    whose = np.repeat(np.arange(len(passed)), [len(due) for _, due in passed])
    order = np.argsort(np.concatenate([rows.until[due] for rows, due in passed]), kind="stable")
    for begin in range(0, len(order), rows_at_once):
        some = order[begin : begin + rows_at_once]
        yield [passed[each][0].picked(places[some[whose[some] == each]]) for each in np.unique(whose[some])]


def merged(
    runs: Sequence[Run], thinned: Callable[[Run], Run] = lambda run: run, folder: Path | None = None
) -> Generator[None, None, Run]:
    """What is still of use of adjacent runs, oldest first, as one; others may run wherever it yields.

    Args:
        runs: not changed meanwhile.
        thinned: is given each piece, and gives what is kept of it. Rows of one hash are in one piece.
        folder: many rows lie there, if it is given.
    """
    pieces: list[Run] = []
    frames: list[pl.DataFrame] = []
    with contextlib.ExitStack() as stack:
        writer = None
        if folder is not None and sum(run.left for run in runs) >= _ON_DISK_ROWS:
            writer = stack.enter_context(FrameWriter(folder, _TOGETHER_BYTES))
        for piece in merged_pieces(runs):
            if pieces:
                yield
            kept = thinned(piece)
            (frames.append if writer is None else writer.add)(kept.rows.frame)
            kept.rows = replace(kept.rows, frame=kept.rows.frame.clear())
            pieces.append(kept)
        if writer is not None:
            return _run_of(pieces, writer.mapped(), writer.mapped(at_random=True))
    return _run_of(pieces, frames[0] if len(frames) == 1 else (yield from _in_one(frames)))


def _in_one(frames: Sequence[pl.DataFrame]) -> Generator[None, None, pl.DataFrame]:
    """The frames in one chunk, in which rows are found several times as fast as in many."""
    columns: list[pl.Series] = []
    for name in frames[0].columns:
        columns.append(pl.concat([frame[name] for frame in frames], rechunk=True))
        yield
    return pl.DataFrame(columns)


def merged_pieces(runs: Sequence[Run]) -> Iterator[Run]:
    """What is still of use of adjacent runs, oldest first, in order, in pieces; rows of one hash are in one piece."""
    largest = max(runs, key=lambda run: run.rows.height)
    cuts = np.unique(largest.hashes[_PIECE_ROWS::_PIECE_ROWS])
    places = [np.concatenate([[0], np.searchsorted(run.hashes, cuts), [run.rows.height]]).tolist() for run in runs]
    gone = [run.gone() for run in runs]
    for piece in range(len(cuts) + 1):
        parts: list[Run] = []
        for run, at, useless in zip(runs, places, gone, strict=True):
            begin, end = at[piece : piece + 2]
            rows, hashes = run.rows.part(begin, end), run.hashes[begin:end]
            if useless is not None:
                left = ~useless[begin:end]
                rows, hashes = rows.take(left), hashes[left]
            parts.append(Run(rows, hashes, run.window))
        joined = _run_of(parts, pl.concat([part.rows.frame for part in parts]))
        order = _order(joined.hashes, joined.rows.moments)
        yield Run(joined.rows.take(order), joined.hashes[order], joined.window)


def _run_of(parts: Sequence[Run], frame: pl.DataFrame, at_random: pl.DataFrame | None = None) -> Run:
    """Parts one behind the other, of which `frame` has the rows."""
    moments, until, marked = (
        np.concatenate([getattr(part.rows, name) for part in parts]) for name in ("moments", "until", "marked")
    )
    hashes = np.concatenate([part.hashes for part in parts])
    return Run(TimedRows(frame, moments, until, marked, at_random), hashes, max(part.window for part in parts))


def _order(hashes: NDArray[np.uint64], moments: NDArray[np.int64]) -> NDArray[np.int64]:
    """By hash, then moment, then as it is. Two sorted runs one behind the other are merged in linear time."""
    order = np.argsort(hashes, kind="stable")
    by_hash, at = hashes[order], moments[order]
    if ((by_hash[1:] == by_hash[:-1]) & (at[1:] < at[:-1])).any():
        return np.lexsort((moments, hashes))
    return order
