"""Rows by key and moment, for operators that look up many keys at once: a log-structured merge tree of sorted runs.

An operator that joins or counts rows looks up the keys of a whole batch, and adds the rows of that batch. A dictionary
would cost a Python object per row. Here rows are columns in *runs*: frames that never change, sorted by the hash of the
key, then by a moment, then by arrival. A batch is looked up by binary search in arrays, vectorized over its rows, once
per run. A batch that is added becomes a run of its own.

So that there are few runs, neighbours of like size are merged, as in size-tiered compaction (O'Neil et al., "The
Log-Structured Merge-Tree", 1996). Runs are ordered by age, the oldest first. Two neighbours are merged while the older
one is not more than twice as large as the newer one, or is small: sizes grow geometrically with age, there are about
log2(rows) runs, and a row is copied about as often. Runs are not merged where an incremental snapshot may have to tell
them apart (`penstock.state.freezes`).

These invariants hold:

* Within a run hashes rise, moments rise within a hash, and rows of the same hash and moment stand in order of arrival:
  a merge sorts stably and puts the older run first.
* A hash is no key: two keys may share one, so whatever is found by hash is compared by the key columns (`Matches`).
* A row does not move within its run. Deleting it is a note beside the run: event time has passed its `until`, or it was
  taken out. It is dropped when its run is merged, at the latest when more than half of the run is deleted.
* A `FrozenRun` shares the frames of its run and copies what may change, so a snapshot costs no copy of the rows.

Large runs are merged slice by slice, between which the subtask does other work: `SortedRuns.run_background_slice`. The
merge reads the old runs and replaces them at its end, so rows are found meanwhile as before; whoever adds or marks rows
finishes it first, and rows that expire begin it anew.

Where state is on the local disk, so are the rows of large runs, as memory-mapped frames; what they are found and deleted
by, 33 bytes a row, stays in memory. What the rows mean, when they expire, and how they are encoded in a snapshot is left
to the operators, and to `penstock.state.counted_rows` for rows that can be retracted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from penstock.core.times import MAX_WATERMARK, MIN_WATERMARK
from penstock.state.freezes import Freezes
from penstock.state.hashing import hash64_frame, is_among
from penstock.state.mapped_frames import FrameWriter

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

_LEAST_ROWS: Final = 1_024
"""Runs up to this size are merged whatever the size of their neighbour is."""
_ON_DISK_ROWS: Final = 262_144
"""Runs from this size on are kept on the local disk, if state is."""
_LOOKED_THROUGH_ROWS: Final = 65_536
"""Runs up to this size are scanned for expired rows; larger ones are sorted by expiry, once rows expire."""
_PIECE_ROWS: Final = 65_536
_TOGETHER_BYTES: Final = 64 << 20
"""How many bytes of merged rows are written to the disk at once."""
_ALL: Final = slice(None)


@dataclass(frozen=True)
class TimedRows:
    """Rows, and what they are found and deleted by; all arrays have the height of the frame."""

    frame: pl.DataFrame
    """The key columns and others; all rows of one `SortedRuns` have the same columns."""
    moments: NDArray[np.int64]
    """What rows of a key are sorted by and looked up by, such as their event time."""
    until: NDArray[np.int64]
    """The last moment of event time at which a row is of use; it expires after it."""
    marked: NDArray[np.bool_]
    """Whether a row has found a match, for joins. The operator sets it, in place."""
    at_random: pl.DataFrame | None = None
    """The same frame, mapped for random access; None if it is in memory."""

    @property
    def height(self) -> int:
        """The number of rows."""
        return self.frame.height

    def found(self) -> pl.DataFrame:
        """The frame for random access."""
        return self.frame if self.at_random is None else self.at_random

    def picked(self, rows: NDArray[np.int64]) -> TimedRows:
        """The rows with these numbers, by random access, with marks of their own."""
        return TimedRows(self.found()[rows], self.moments[rows], self.until[rows], self.marked[rows])

    def take(self, chosen: NDArray[np.int64] | NDArray[np.bool_]) -> TimedRows:
        """The rows with these numbers, or those for which it is true, with marks of their own."""
        rows = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen
        return TimedRows(self.frame[rows], self.moments[rows], self.until[rows], self.marked[rows])

    def left_at(self, reached: NDArray[np.int64] | int) -> TimedRows:
        """The rows that have not expired at a moment, or each at a moment of its own."""
        left = self.until > reached
        return self if left.all() else self.take(left)

    def part(self, begin: int, end: int) -> TimedRows:
        """A slice of the rows, without a copy."""
        part = slice(begin, end)
        return TimedRows(self.frame[part], self.moments[part], self.until[part], self.marked[part])

    def on_disk(self, folder: Path) -> TimedRows:
        """The same rows with their frame in a file; they share the marks."""
        with FrameWriter(folder) as writer:
            writer.add(self.frame)
            return replace(self, frame=writer.mapped(), at_random=writer.mapped(at_random=True))


@dataclass(frozen=True)
class FrozenRun:
    """The rows of a run in a snapshot."""

    kept: TimedRows
    chosen: NDArray[np.int64] | None
    """The numbers of the rows that were of use, in rising order; None for all."""
    epoch: int
    """The epoch in which the newest of them arrived."""
    hashes: NDArray[np.uint64]
    """The hashes of the keys of all rows in `kept`, in rising order."""

    def rows(self) -> TimedRows:
        """The rows that were of use, which may have to be copied."""
        return self.kept if self.chosen is None else self.kept.take(self.chosen)

    def pieces(self) -> Iterator[TimedRows]:
        """The rows that were of use, in pieces."""
        rows = self.chosen
        for begin in range(0, self.kept.height if rows is None else len(rows), _PIECE_ROWS):
            end = begin + _PIECE_ROWS
            yield self.kept.part(begin, end) if rows is None else self.kept.take(rows[begin:end])

    def of_keys(self, hashes: NDArray[np.uint64]) -> Iterator[TimedRows]:
        """The rows that were of use whose keys have one of these rising hashes, in pieces."""
        begin = np.searchsorted(self.hashes, hashes, "left")
        _, places = places_in(begin, np.searchsorted(self.hashes, hashes, "right") - begin)
        if self.chosen is not None:
            places = places[is_among(places, self.chosen)]
        for start in range(0, len(places), _PIECE_ROWS):
            yield self.kept.picked(places[start : start + _PIECE_ROWS])


class Run:
    """Rows sorted by hash, then moment, then arrival."""

    def __init__(self, rows: TimedRows, hashes: NDArray[np.uint64], epoch: int) -> None:
        self.rows = rows
        self.hashes = hashes
        self.epoch = epoch
        """The epoch in which the newest of them arrived: see `penstock.state.freezes`."""
        self.left = rows.height
        """The number of rows that are of use."""
        self.next_end = int(rows.until.min()) if rows.height else MAX_WATERMARK
        """The first moment of event time at which a row expires."""
        self._order: NDArray[np.int64] | None = None
        """The numbers of the rows in order of expiry, once the first one expires in a large run."""
        self._ends = rows.until
        self._passed = 0
        """How many of these have expired."""
        self._reached = MIN_WATERMARK
        self._taken: NDArray[np.bool_] | None = None
        """Which rows were taken out; None if none was."""

    def pass_by(self, reached: int) -> NDArray[np.int64]:
        """Advance event time to `reached`; returns the numbers of the rows that expire by that, in order of expiry."""
        if reached < self.next_end:
            return np.empty(0, np.int64)
        due = self._due(reached)
        if self._taken is not None:
            due = due[~self._taken[due]]
        self._reached = reached
        self.left -= len(due)
        return due

    def _due(self, reached: int) -> NDArray[np.int64]:
        """The rows that expire, in order of expiry, those that were taken out among them."""
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
        """Delete these rows, each of which was of use."""
        if self._taken is None:
            self._taken = np.zeros(self.rows.height, np.bool_)
        self._taken[places] = True
        self.left -= len(places)

    def of_use(self, places: NDArray[np.int64] | slice = _ALL) -> NDArray[np.bool_]:
        """Whether the rows at these places are of use."""
        used = self.rows.until[places] > self._reached
        return used if self._taken is None else used & ~self._taken[places]

    def gone(self) -> NDArray[np.bool_] | None:
        """Which rows are deleted or expired; None if none is."""
        if self.left == self.rows.height:
            return None
        return ~self.of_use()

    def freeze(self) -> FrozenRun:
        """A snapshot of the rows that are of use now."""
        rows = replace(self.rows, marked=self.rows.marked.copy())
        chosen = None if self.left == self.rows.height else np.flatnonzero(self.of_use())
        return FrozenRun(rows, chosen, self.epoch, self.hashes)

    def before(
        self, moments: NDArray[np.int64], begin: NDArray[np.int64], end: NDArray[np.int64], *, included: bool
    ) -> NDArray[np.int64]:
        """For each range of rows from `begin` to `end` the end of those whose moment is before a given one.

        Args:
            moments: one moment per range.
            begin, end: the ranges, within each of which moments rise.
            included: whether rows of that very moment belong to them.
        """
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
    """Pairs of a row that was looked up (`asking`) and a row of a run with its key (`found`), in order of the former."""

    run: Run
    asking: NDArray[np.int64]
    found: NDArray[np.int64]


class SortedRuns:
    """The rows that an operator keeps of one input, in runs of rising age."""

    def __init__(
        self,
        keys: Sequence[str],
        *,
        newest_only: bool = False,
        nulls_equal: bool = False,
        freezes: Freezes | None = None,
    ) -> None:
        """Make an empty tree.

        Args:
            keys: the columns by which rows are found.
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
        """The folder for large runs, if state is on the local disk."""
        self._tidying: Iterator[None] = iter(())
        """The merges that are left."""

    @property
    def height(self) -> int:
        """The number of rows, those among them that are deleted but not yet dropped."""
        return sum(run.rows.height for run in self.runs)

    @property
    def next_end(self) -> int:
        """The first moment of event time at which any row expires."""
        return min((run.next_end for run in self.runs), default=MAX_WATERMARK)

    def hashes(self, frame: pl.DataFrame) -> NDArray[np.uint64]:
        """The hashes of the keys of a frame, by which rows are sorted and looked up."""
        return hash64_frame(frame, self._keys)

    def run_background_slice(self) -> bool:
        """Run a slice, of some milliseconds, of the merges that are left; returns whether any are left then."""
        return next(self._tidying, self) is not self

    def finish(self) -> None:
        """Finish the merges that are left. This is needed before a row is marked, for a merge has copied the marks."""
        while self.run_background_slice():
            pass

    def add(self, rows: TimedRows, hashes: NDArray[np.uint64], epoch: int | None = None) -> None:
        """Add rows, as a run of their own; they arrived in `epoch`, None for the current one."""
        if not rows.height:
            return
        self.finish()
        order = _order(hashes, rows.moments)
        epoch = self._freezes.current if epoch is None else epoch
        fresh = self._fresh(Run(rows.take(order), hashes[order], epoch))
        if not fresh.rows.height:
            return
        self.runs.append(fresh)
        self._tidying = self._tidied()
        self.run_background_slice()

    def clear(self) -> None:
        """Delete all rows."""
        self._tidying = iter(())
        self.runs = []

    def _tidied(self) -> Iterator[None]:
        """Compact runs most of which is deleted, merge neighbours of like size, and move large runs to disk."""
        for place, run in enumerate(self.runs):
            if 2 * run.left < run.rows.height:
                self.runs[place] = yield from merged([run], folder=self.folder)
        for place in range(len(self.runs) - 1, 0, -1):
            older, newer = self.runs[place - 1 : place + 1]
            if self._is_like(older, newer) and self._freezes.together(older.epoch, newer.epoch):
                thinned = partial(self._thinned, oldest=place == 1)
                self.runs[place - 1 : place + 1] = [(yield from merged([older, newer], thinned, self.folder))]
        self.runs = [run for run in self.runs if run.left]  # all that arrived may have been retracted
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
        """Pairs of these keys with all their rows."""
        for run, begin, end in self._spans(self.hashes(keys)):
            yield from self._pairs(keys, run, begin, self._meeting(keys, begin, end))

    def _meeting(self, frame: pl.DataFrame, begin: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
        """The ends of ranges, which are empty for rows with a null key: nulls share a hash, and none equals another."""
        for key in () if self._nulls_equal else self._keys:
            if frame[key].null_count():
                end = np.where(frame[key].is_null().to_numpy(), begin, end)
        return end

    def _spans(self, hashes: NDArray[np.uint64]) -> Iterator[tuple[Run, NDArray[np.int64], NDArray[np.int64]]]:
        """Each run, with where its rows of each hash begin and end.

        Hashes are looked up in rising order: what one search reads is in the processor's caches for the next one, which
        is six times as fast.
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
        """Pairs of rows of `frame` with the rows of a run from `begin` to `end` that have the same key."""
        asking, found = places_in(begin, np.maximum(end - begin, 0))
        same = self._same_keys(frame, asking, run, found)
        if len(asking):
            yield Matches(run, asking[same], found[same])

    def newest(self, frame: pl.DataFrame, hashes: NDArray[np.uint64], moments: NDArray[np.int64]) -> Iterator[Matches]:
        """Pairs of rows of `frame` with the newest row of their key, in each run, whose moment is not later."""
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
        """Advance event time to `reached`; yields the numbers of the rows that expire by that, by run."""
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
        """A snapshot of the rows that are of use, which later changes do not affect. It copies marks alone."""
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
        """What is kept of a run that has just been added; for subclasses."""
        return run

    def _thinned(self, run: Run, *, oldest: bool) -> Run:
        """The run without rows that newer ones of their key in it have superseded by now.

        `oldest`: no older run is left in which a row might be superseded by them.
        """
        if not self._newest_only:
            return run
        places = np.arange(run.rows.height - 1)
        older = (run.hashes[1:] == run.hashes[:-1]) & (run.rows.moments[1:] <= self._reached)
        older &= self._same_keys(run.rows.frame, places, run, places + 1)
        left = np.append(~older, np.ones(1, np.bool_))
        return run if left.all() else Run(run.rows.take(left), run.hashes[left], run.epoch)

    @staticmethod
    def _is_like(older: Run, newer: Run) -> bool:
        return older.rows.height <= max(_LEAST_ROWS, 2 * newer.rows.height)


def places_in(begin: NDArray[np.int64], counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The places in ranges of such beginnings and sizes, range after range: the number of the range, and the place."""
    numbers = np.repeat(np.arange(len(counts)), counts)
    return numbers, np.arange(len(numbers)) - np.repeat(np.cumsum(counts) - counts - begin, counts)


def by_end(passed: Sequence[tuple[TimedRows, NDArray[np.int64]]], rows_at_once: int) -> Iterator[list[TimedRows]]:
    """Rows that have expired, in pieces, in order of expiry.

    Args:
        passed: rows, and the numbers of those that expired. In a piece those of each stand together, in order of expiry.
        rows_at_once: how many rows a piece has; the last one may have fewer.
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
    """Merge neighbouring runs, oldest first, into one, without deleted rows; other work may be done where it yields.

    Args:
        runs: the runs, which must not be changed meanwhile.
        thinned: reduces a piece to the rows that are kept. Rows of one hash are in one piece.
        folder: where a large run is written, if state is on the local disk.
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
    """Copy the frames into one chunk, in which rows are found several times as fast as in many."""
    columns: list[pl.Series] = []
    for name in frames[0].columns:
        columns.append(pl.concat([frame[name] for frame in frames], rechunk=True))
        yield
    return pl.DataFrame(columns)


def merged_pieces(runs: Sequence[Run]) -> Iterator[Run]:
    """Merge neighbouring runs, oldest first, into sorted pieces without deleted rows. A piece has all rows of a hash."""
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
            parts.append(Run(rows, hashes, run.epoch))
        joined = _run_of(parts, pl.concat([part.rows.frame for part in parts]))
        order = _order(joined.hashes, joined.rows.moments)
        yield Run(joined.rows.take(order), joined.hashes[order], joined.epoch)


def _run_of(parts: Sequence[Run], frame: pl.DataFrame, at_random: pl.DataFrame | None = None) -> Run:
    """The concatenation of runs, whose rows `frame` has."""
    moments, until, marked = (
        np.concatenate([getattr(part.rows, name) for part in parts]) for name in ("moments", "until", "marked")
    )
    hashes = np.concatenate([part.hashes for part in parts])
    return Run(TimedRows(frame, moments, until, marked, at_random), hashes, max(part.epoch for part in parts))


def _order(hashes: NDArray[np.uint64], moments: NDArray[np.int64]) -> NDArray[np.int64]:
    """The order by hash, then moment, then place. Two concatenated sorted runs are merged in linear time."""
    order = np.argsort(hashes, kind="stable")
    by_hash, at = hashes[order], moments[order]
    if ((by_hash[1:] == by_hash[:-1]) & (at[1:] < at[:-1])).any():
        return np.lexsort((moments, hashes))
    return order
