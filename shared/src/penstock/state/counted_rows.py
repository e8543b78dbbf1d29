"""Multisets of rows by key: rows with a count of how often each is there, to which additions and retractions are added.

Rows are kept in sorted runs (`penstock.state.sorted_runs`), so a row costs being sorted a few times, and the rows of a
key are columns when they are read, however many there are. A change is a row with a count of 1, or of -1 for a
retraction. It is appended without a look at the row that it changes: the counts of equal rows are added up when they are
read, and for good when their runs are merged, where a row with a count of 0 is dropped. The sum does not depend on the
order of changes, and an incremental snapshot is a delta whose counts are added (`penstock.state.freezes`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from penstock.core.times import MAX_WATERMARK, MIN_WATERMARK
from penstock.state.freezes import Freeze, Freezes, FrozenAt, added
from penstock.state.segments import encode_segments
from penstock.state.sorted_runs import FrozenRun, Matches, Run, SortedRuns, TimedRows, merged_pieces

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from penstock.types import Schema

COUNT: Final = "__count"
"""Int64: how often a row is there."""
_PLACE: Final = "__place"
_LEAST: Final = "__least"
HAD: Final = "__had"
"""Int64: the count of a row before a sequence of changes."""
LEFT: Final = "__left"
"""Int64: the count of the row after one of them."""
UNKNOWN: Final = "__unknown"
"""Boolean: whether the change retracts a row that is not there."""
INDEX: Final = "__index"
MIN_ORDER: Final = np.iinfo(np.int64).min

_Fold = Callable[[Run, bool], Run]


class CountedRows:
    """The rows of one operator with their counts: how often each is there, and what else is counted of it."""

    def __init__(
        self,
        keys: Sequence[str],
        types: Mapping[str, pl.DataType],
        *,
        counts: Sequence[str] = (COUNT,),
        newest: str | None = None,
        order: str | None = None,
        until: str | None = None,
        folds: bool = True,
        freezes: Freezes | None = None,
    ) -> None:
        """Make an empty multiset.

        Args:
            keys: those of the columns by which rows are found.
            types: the columns of a row, all of which tell it from others.
            counts: Int64 columns beside them, which are added up where rows are the same.
            newest: an Int64 column beside them, of which the greatest is kept where rows are the same.
            order: of the columns of a row an Int64 one by which those of a key are in order.
            until: of the columns of a row the one that says up to when it is kept, in microseconds.
            folds: whether equal rows are folded into one. Where none is ever retracted, that only costs.
            freezes: of the operator, where it has other state, too.
        """
        self.freezes = freezes or Freezes()
        self._keys = list(keys)
        self._columns = list(types)
        self._counts = list(counts)
        self._newest = [] if newest is None else [newest]
        self._order = order
        self._until = until
        self._reached = MIN_WATERMARK
        self._folds = folds
        self._runs = _CountedRuns(keys, self._folded, self.freezes)
        self._none = pl.DataFrame(
            schema={INDEX: pl.Int64(), **types, **dict.fromkeys([*counts, *self._newest], pl.Int64())}
        )

    def lies_in(self, folder: Path | None) -> None:
        """Keep large runs in this folder; None: in memory."""
        self._runs.folder = folder

    def run_background_slice(self) -> bool:
        """Run a slice, of some milliseconds, of the merges that are left; returns whether any are left then."""
        return self._runs.run_background_slice()

    def add(self, rows: pl.DataFrame) -> None:
        """Add counts to those of rows."""
        rows = rows.select(*self._columns, *self._counts, *self._newest)
        self._runs.add(self._timed(rows), self._runs.hashes(rows))

    def of(self, keys: pl.DataFrame) -> pl.DataFrame:
        """The rows of these keys with `INDEX`, the place of the key among them. Folded rows are there once."""
        return self._found(self._runs.all_of(keys))

    def greatest(self, keys: pl.DataFrame, number: int) -> pl.DataFrame:
        """As `of`, but of each key at least `number` rows, if it has them: the greatest by `order`.

        Looks at few more rows than that, however many there are: rows of a key are in order in each run. What is found
        may be fewer rows where many were retracted; then it looks further.
        """
        parts: list[pl.DataFrame] = []
        asked, wide = np.arange(keys.height), number
        while len(asked):
            least = self._runs.reaching(keys[asked], wide)
            found = self._found(self._runs.not_below(keys[asked], least))
            index = found[INDEX].to_numpy()
            held = np.bincount(index, np.maximum(found[COUNT].to_numpy(), 0), minlength=len(asked))
            enough = (held >= number) | (least == MIN_ORDER)
            parts.append(found.filter(enough[index]).with_columns(pl.Series(INDEX, asked[index[enough[index]]])))
            asked, wide = asked[~enough], 4 * wide
        return pl.concat([self._none, *parts])

    def remove(self, keys: pl.DataFrame) -> None:
        """Forget all rows of these keys."""
        self.add(self.of(keys).with_columns(-pl.col(*self._counts)))

    def without_unknown(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The changes without retractions of rows that are not there at their turn, because they were forgotten.

        Args:
            rows: as for `add`, in order; `COUNT` is 1, or -1 for a retraction.
        """
        gone = rows.filter(pl.col(COUNT) < 0)
        if not gone.height:
            return rows
        there = self._like(gone).select(*self._columns, pl.col(COUNT).alias(HAD), pl.lit(0, pl.Int64).alias(COUNT))
        together = pl.concat([there, rows.select(*self._columns, pl.lit(0, pl.Int64).alias(HAD), COUNT)])
        together = together.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias(_PLACE))
        same = together.select(HAD, COUNT, pl.col(_PLACE).first().over(self._columns).alias(INDEX))
        return rows.filter(~followed(same)[UNKNOWN][there.height :])

    def _like(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows with the key, and the order, of any of these, all equal ones among them."""
        if self._order is None:
            return self.of(rows.select(self._keys).unique())
        keys = rows.select(*self._keys, self._order).unique()
        order = keys[self._order].to_numpy()
        return self._found(self._runs.matches(keys, self._runs.hashes(keys), order, order))

    def _found(self, matches: Iterable[Matches]) -> pl.DataFrame:
        found = [
            run.rows.found()[places].with_columns(pl.Series(INDEX, asking, pl.Int64))
            for run, asking, places in self._kept(matches)
        ]
        if not found:
            return self._none
        rows = pl.concat(found).select(self._none.columns)
        return counted(rows, [INDEX, *self._columns], self._counts, self._newest) if self._folds else rows

    def numbers(self, keys: pl.DataFrame) -> NDArray[np.int64]:
        """How many rows each of these keys has."""
        numbers = np.zeros(keys.height, np.int64)
        for run, asking, places in self._kept(self._runs.all_of(keys)):
            np.add.at(numbers, asking, run.rows.found()[COUNT][places].to_numpy())
        return numbers

    def _kept(self, found: Iterable[Matches]) -> Iterator[tuple[Run, NDArray[np.int64], NDArray[np.int64]]]:
        """The matches that have not expired: run, place of the key, and place in the run."""
        for matches in found:
            kept = matches.run.rows.until[matches.found] > self._reached
            yield matches.run, matches.asking[kept], matches.found[kept]

    def forget(self, reached: int) -> int:
        """Forget the rows that expire up to `reached`, which never falls; returns how many."""
        self._reached = reached
        return sum(int(run.rows.found()[COUNT][due].sum()) for run, due in self._runs.pass_by(reached))

    def all(self) -> pl.DataFrame:
        """All rows."""
        self._runs.finish()
        pieces = merged_pieces(self._runs.runs) if self._runs.runs else ()
        return pl.concat([self._none.drop(INDEX), *(self._folded(piece, False).rows.frame for piece in pieces)])

    def clear(self) -> None:
        """Forget all rows."""
        self._runs.clear()
        self.freezes.restart()

    def freeze(self) -> list[FrozenRun]:
        """A snapshot of all rows; equal rows may be in several runs."""
        return self._runs.freeze()

    def frozen(
        self, header: Mapping[str, Any], keys: Schema, max_parallelism: int, *, incremental: bool
    ) -> FrozenCounts:
        """A snapshot of all rows, for an operator that has no other state."""
        freeze = self.freezes.next(incremental=incremental)
        return FrozenCounts(self.freeze(), freeze, header, keys, max_parallelism, self._runs.folder)

    def _folded(self, run: Run, zeros: bool) -> Run:
        """Fold equal rows of a run into one, at the place of the first, and drop rows with a count of 0.

        `zeros`: keep a row with a count of 0 if it has a `newest` column: an older run may have the row, and it was
        retracted and added again since, so it is newer than that run says.
        """
        if not self._folds or not run.rows.height:
            return run
        frame, hashes = run.rows.frame, run.hashes
        same = np.concatenate([[False], hashes[1:] == hashes[:-1], [False]])
        shared = same[1:] | same[:-1]
        left = ~shared
        if shared.any():  # rows are equal only where their hashes are, and most hashes are of one row
            places = np.flatnonzero(shared)
            part = frame[places].with_columns(pl.Series(_PLACE, places))
            firsts = counted(part, self._columns, self._counts, self._newest, zeros=True, first=[_PLACE])
            places = firsts[_PLACE].to_numpy()
            left[places] = True
            added = [_replaced(frame[name], places, firsts[name]) for name in (*self._counts, *self._newest)]
            frame = frame.with_columns(added)
        if not (zeros and self._newest):
            left &= np.any([frame[name].to_numpy() != 0 for name in self._counts], axis=0)
        if left.all():
            return run
        return Run(self._timed(frame.filter(pl.Series(left))), hashes[left], run.epoch)

    def _timed(self, rows: pl.DataFrame) -> TimedRows:
        height = rows.height
        until = np.full(height, MAX_WATERMARK) if self._until is None else rows[self._until].to_numpy(writable=True)
        moments = np.zeros(height, np.int64) if self._order is None else rows[self._order].to_numpy(writable=True)
        return TimedRows(rows, moments, until, np.zeros(height, np.bool_))


@dataclass(frozen=True)
class FrozenCounts(FrozenAt):
    """The rows of a snapshot: an `IncrementalPart`. A delta has counts that are added to those before."""

    runs: Sequence[FrozenRun]
    freeze: Freeze
    header: Mapping[str, Any]
    keys: Schema
    max_parallelism: int
    folder: Path | None = None

    def encoded(self, behind: int) -> Iterable[tuple[int, bytes]]:
        """One segment per key group that has rows."""
        frames = (piece.frame for run in self.runs if run.epoch > behind for piece in run.pieces())
        return encode_segments(added(self.header, behind), frames, self.keys, self.max_parallelism, self.folder)


def counted(
    rows: pl.DataFrame, columns: Sequence[str], counts: Sequence[str] = (COUNT,), newest: Sequence[str] = (), *,
    zeros: bool = False, first: Sequence[str] = (),
) -> pl.DataFrame:  # fmt: skip
    """Add up the counts of equal rows; rows with a count of 0 are dropped, unless `zeros` asks for them."""
    sums = rows.group_by(columns, maintain_order=True).agg(
        *(pl.col(name).sum() for name in counts), *(pl.col(name).max() for name in newest),
        *(pl.col(name).first() for name in first),
    )  # fmt: skip
    return sums if zeros else sums.filter(pl.any_horizontal(pl.col(name) != 0 for name in counts))


def followed(changes: pl.DataFrame) -> pl.DataFrame:
    """Apply changes one after the other, where a retraction of a row that is not there does nothing.

    Args:
        changes: in order; `INDEX` says of what, the first `HAD` of it how often it was there, and `COUNT` is 1 or -1, or
            0 where nothing is changed.

    Returns:
        The same with `LEFT` and `UNKNOWN`.
    """
    left = pl.col(HAD).first().over(INDEX) + pl.col(COUNT).cum_sum().over(INDEX)
    least = pl.col(LEFT).cum_min().over(INDEX).clip(upper_bound=0)
    unknown = pl.col(_LEAST) < pl.col(_LEAST).shift(1, fill_value=0).over(INDEX)
    counted = changes.with_columns(left.alias(LEFT)).with_columns(least.alias(_LEAST))
    return counted.with_columns(unknown.alias(UNKNOWN), pl.col(LEFT) - pl.col(_LEAST)).drop(_LEAST)


def _replaced(column: pl.Series, places: NDArray[np.int64], values: pl.Series) -> pl.Series:
    changed = column.to_numpy(writable=True)
    changed[places] = values.to_numpy()
    return pl.Series(column.name, changed)


class _CountedRuns(SortedRuns):
    """Sorted runs in which equal rows are folded."""

    def __init__(self, keys: Sequence[str], fold: _Fold, freezes: Freezes) -> None:
        super().__init__(keys, nulls_equal=True, freezes=freezes)
        self._fold = fold

    def reaching(self, keys: pl.DataFrame, number: int) -> NDArray[np.int64]:
        """An order above which each key has few more rows than `number` in any run; `MIN_ORDER` if it has no more."""
        least = np.full(keys.height, MIN_ORDER)
        for run, begin, end in self._spans(self.hashes(keys)):
            more = np.flatnonzero(end - begin > number)
            least[more] = np.maximum(least[more], run.rows.moments[end[more] - number])
        return least

    def not_below(self, keys: pl.DataFrame, least: NDArray[np.int64]) -> Iterator[Matches]:
        """The rows of these keys whose order is at least that."""
        return self.matches(keys, self.hashes(keys), least, np.full(keys.height, MAX_WATERMARK))

    def _fresh(self, run: Run) -> Run:
        return self._fold(run, bool(self.runs))

    def _thinned(self, run: Run, *, oldest: bool) -> Run:
        return self._fold(run, not oldest)
