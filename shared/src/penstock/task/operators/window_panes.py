"""Where windows keep their rows: one store per pane, with rows as they came and partial aggregates, both immutable.

Rows are kept as slices of the batches they came in, at no cost, until there are enough to be worth grouping: grouping
half a million rows at once costs half of grouping them in pieces. Partials of a pane are merged like the levels of an
LSM tree: a merge is made when it at least doubles the smaller part, so every row is merged a logarithmic number of times.
A large merge is left to `PaneStore.run_background_slice`, which runs it slice by slice; its levels stay as they are
until it is done. Where state is on the local disk, large levels are, and the largest of the others from 256 MiB on.

Frames are never changed, so a snapshot is a copy of lists. An incremental one has the frames of the panes that came since
an earlier one; so long those are not merged with what was there (`penstock.state.freezes`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from penstock.core.batches import PANE
from penstock.functions.windows.clock import clock_of
from penstock.state.freezes import Freeze, Freezes, FrozenAt, added
from penstock.state.segments import encode_segments
from penstock.task.operators.levels import Part, is_large, merged, merged_parts, on_disk
from penstock.task.operators.partials import Partials

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

_UTC_MICROS: Final = pl.Datetime("us", "UTC")

_RAW_ROWS: Final = 512 * 1024
_MOST_RAW_ROWS: Final = 2 * 1024 * 1024
_ALL_RAW_ROWS: Final = 8 * 1024 * 1024
"""Rows kept as they came, over all panes; bounds memory where there are many panes."""
_RAW_ROWS_BESIDE_DISK: Final = 2 * 1024 * 1024
"""The same where state is on the local disk."""
_HELD_BYTES: Final = 256 << 20
"""Of levels, over all panes, kept in memory where state is on the local disk."""


@dataclass(slots=True)
class Pane:
    """Rows and partials of one pane in order of arrival: the partials are older than the rows."""

    raw: list[Part] = field(default_factory=list[Part])
    raw_rows: int = 0
    combined: bool = False
    """Whether the input has partials already."""
    partials: list[Part] = field(default_factory=list[Part])
    whole: Part | None = None
    """All partials as one, if that was asked for and they are kept apart."""

    @property
    def rows(self) -> int:
        """Of both."""
        return self.raw_rows + sum(part.frame.height for part in self.partials)

    def frozen(self) -> Pane:
        """A copy that shares the frames."""
        return Pane(list(self.raw), self.raw_rows, self.combined, list(self.partials))

    def behind(self, epoch: int) -> Pane:
        """The parts that arrived since that epoch."""
        raw, partials = ([part for part in parts if part.epoch > epoch] for parts in (self.raw, self.partials))
        return Pane(raw, sum(part.frame.height for part in raw), self.combined, partials)


class PaneStore:
    """The panes of an operator by their start."""

    def __init__(self, partials: Partials, folder: Path | None = None) -> None:
        """`folder` is where state on the local disk lies, if it does."""
        self.panes: dict[int, Pane] = {}
        self._folder = folder
        self._all_raw_rows = _ALL_RAW_ROWS if folder is None else _RAW_ROWS_BESIDE_DISK
        self.freezes = Freezes()
        self._partials = partials
        self._by = list(partials.keys.names)
        self._raw_rows = 0
        self._raw_limit = _RAW_ROWS
        self._merging: dict[int, Iterator[None]] = {}
        """What is left of merging the levels of a pane, by its identity; each holds its pane."""

    def add(self, start: int, rows: pl.DataFrame, *, combined: bool = False) -> None:
        """Store rows of one pane, or partials if rows come `combined`."""
        pane = self.panes.get(start)
        if pane is None:
            pane = self.panes[start] = Pane(combined=combined)
        elif pane.combined != combined:
            self.fold(pane)
            pane.combined = combined
        pane.raw.append(Part(rows, self.freezes.current))
        pane.raw_rows += rows.height
        self._raw_rows += rows.height
        if pane.raw_rows >= self._raw_limit:
            self._adapt(pane.raw_rows, self.fold(pane))
            self.relieve()
        if self._raw_rows >= self._all_raw_rows:
            for other in sorted(self.panes.values(), key=lambda each: -each.raw_rows):
                self.fold(other)
                if self._raw_rows < self._all_raw_rows // 2:
                    break
            self.relieve()

    def add_partials(self, start: int, partials: pl.DataFrame) -> None:
        """Store partials that were made before anything else that the pane holds, or are of other keys."""
        self.panes.setdefault(start, Pane()).partials.append(Part(partials, self.freezes.current))

    def relieve(self) -> None:
        """Move the largest levels to the disk, if state is there and all of them are too much for memory.

        Raises:
            ExternalError: the disk is full or broken.
        """
        if self._folder is None:
            return
        held = [(part.held_bytes, pane, at) for pane in self.panes.values() for at, part in enumerate(pane.partials)]
        too_much = sum(size for size, _, _ in held) - _HELD_BYTES // 2
        if too_much <= _HELD_BYTES // 2:
            return
        moved: list[tuple[Pane, int]] = []
        for size, pane, at in sorted(held, key=lambda each: -each[0]):
            moved.append((pane, at))
            too_much -= size
            if too_much <= 0:
                break
        there = on_disk([pane.partials[at] for pane, at in moved], self._folder)
        for (pane, at), part in zip(moved, there, strict=True):
            pane.partials[at] = part

    def _adapt(self, rows: int, groups: int) -> None:
        """Collect more rows before grouping where grouping brings little: most keys are there once."""
        if groups > rows // 2:
            self._raw_limit = min(2 * self._raw_limit, _MOST_RAW_ROWS)
        elif groups < rows // 8:
            self._raw_limit = max(self._raw_limit // 2, _RAW_ROWS)

    def fold(self, pane: Pane) -> int:
        """Group the rows of a pane into partials; returns how many partials they made."""
        if not pane.raw:
            return 0
        self._finish_merging(pane)
        fold = self._partials.merge if pane.combined else self._partials.group
        groups, pane.whole = 0, None
        for parts in self._together(pane.raw):
            grouped = fold([part.frame for part in parts], self._by)
            groups += grouped.height
            pane.partials.append(Part(grouped, parts[-1].epoch))
        self._raw_rows -= pane.raw_rows
        pane.raw, pane.raw_rows = [], 0
        self._merging[id(pane)] = self._merge_levels(pane)
        if not is_large(pane.rows):
            self._finish_merging(pane)
        return groups

    def _finish_merging(self, pane: Pane) -> None:
        for _ in self._merging.pop(id(pane), ()):
            pass

    def run_background_slice(self) -> bool:
        """Run a slice of the merges that are left; returns whether any are left then."""
        while self._merging:
            first = next(iter(self._merging))
            for _ in self._merging[first]:
                return True
            del self._merging[first]
        return False

    def _together(self, parts: Sequence[Part]) -> list[list[Part]]:
        """The parts in their order, those that may be merged in one list; epochs never fall."""
        lists = [[parts[0]]]
        for part in parts[1:]:
            if self.freezes.together(lists[-1][-1].epoch, part.epoch):
                lists[-1].append(part)
            else:
                lists.append([part])
        return lists

    def _merge_levels(self, pane: Pane) -> Iterator[None]:
        """Merge the newest of parts that may be merged with older ones, each less than twice as large as it by then."""
        after: list[Part] = []
        for parts in reversed(self._together(pane.partials)):
            merging, rows = [parts[-1]], parts[-1].frame.height
            kept: list[Part] = []
            for older in reversed(parts[:-1]):
                if not kept and older.frame.height < 2 * rows:
                    merging.insert(0, older)
                    rows += older.frame.height
                else:
                    kept.insert(0, older)
            one = yield from merged(self._partials, self._by, merging, self._folder)
            after[:0] = [*kept, one]
        pane.partials = after

    def one_partial(self, pane: Pane) -> Generator[None, None, Part]:
        """Everything a pane holds as one level, which it keeps; others may run wherever it yields."""
        self.fold(pane)
        if pane.whole is None:
            self._merging.pop(id(pane), None)
            ones: list[Part] = []
            for parts in self._together(pane.partials):
                ones += [(yield from merged(self._partials, self._by, parts, self._folder))]
            pane.partials = ones
            pane.whole = yield from merged(self._partials, self._by, ones, self._folder)
        return pane.whole

    def bring_together(self, starts: Sequence[int]) -> Generator[None, None, Part]:
        """Keep what these panes hold as if it were of the first of them; all of it as one level, see `one_partial`."""
        present = [start for start in starts if start in self.panes]
        for start in present:
            self.fold(self.panes[start])
        together = Pane(partials=[part for start in present for part in self.panes[start].partials])
        self._forget(present)
        self.panes[starts[0]] = together
        return (yield from self.one_partial(together))

    def drop_before(self, start: int) -> None:
        """Forget the panes that begin before `start`."""
        self._forget([pane for pane in self.panes if pane < start])

    def _forget(self, starts: Sequence[int]) -> None:
        for start in starts:
            pane = self.panes.pop(start)
            self._raw_rows -= pane.raw_rows
            self._merging.pop(id(pane), None)

    def frozen(self) -> dict[int, Pane]:
        """The panes as they are now."""
        return {start: pane.frozen() for start, pane in self.panes.items()}

    def partials_with_pane(self, starts: Iterable[int]) -> pl.DataFrame:
        """The partials of many panes, one per key and pane, with the column `PANE`; for panes with few rows each."""
        chosen = [(start, self.panes[start]) for start in starts]
        return pane_partials(self._partials, self._by, chosen)


def split_runs(frame: pl.DataFrame, starts: NDArray[np.int64]) -> Iterator[tuple[int, pl.DataFrame]]:
    """The rows by pane, in order of arrival within each."""
    first, last = int(starts.min()), int(starts.max())
    if first == last:
        yield first, frame
        return
    changes = np.flatnonzero(starts[1:] != starts[:-1]) + 1
    distinct = len(np.unique(starts[np.concatenate([[0], changes])]))
    if distinct < len(changes) + 1:
        # Two or three panes are picked out one after the other; many are brought together by one stable sort.
        if distinct <= 3:
            for start in np.unique(starts).tolist():
                yield start, frame.filter(pl.Series(starts == start))
            return
        order = np.argsort(starts, kind="stable")
        frame, starts = frame[order], starts[order]
        changes = np.flatnonzero(starts[1:] != starts[:-1]) + 1
    begins = [0, *changes.tolist()]
    for begin, end in zip(begins, [*begins[1:], frame.height], strict=True):
        yield int(starts[begin]), frame.slice(begin, end - begin)


def pane_partials(partials: Partials, by: Sequence[str], panes: Sequence[tuple[int, Pane]]) -> pl.DataFrame:
    """One partial per key and pane, with the column `PANE`."""
    keyed = [*by, PANE]
    raw = [(start, part.frame) for start, pane in panes if not pane.combined for part in pane.raw]
    merged = [(start, part.frame) for start, pane in panes for part in pane.partials]
    unmerged = [(start, part.frame) for start, pane in panes if pane.combined for part in pane.raw]
    parts: list[pl.DataFrame] = []
    if merged or unmerged:
        parts.append(_with_pane([*merged, *unmerged]))
    if raw:
        parts.append(partials.group([_with_pane(raw)], keyed))
    if not unmerged and (not merged or (not raw and len(merged) == len(panes))):
        return parts[0].select([*keyed, *partials.names])
    return partials.merge([part.select([*keyed, *partials.names]) for part in parts], keyed)


def _with_pane(frames: Sequence[tuple[int, pl.DataFrame]]) -> pl.DataFrame:
    starts = np.repeat(
        np.array([start for start, _ in frames], np.int64), np.array([frame.height for _, frame in frames], np.int64)
    )
    return pl.concat([frame for _, frame in frames]).with_columns(pl.Series(PANE, starts))


class FrozenPanes(FrozenAt):
    """The panes of a snapshot: an `IncrementalPart`. A delta has partials that are added to those before.

    It does not say which panes were forgotten since: event time, which no checkpoint is behind, does.
    """

    def __init__(
        self, partials: Partials, panes: Mapping[int, Pane], freeze: Freeze, header: Mapping[str, Any],
        max_parallelism: int, folder: Path | None = None,
    ) -> None:  # fmt: skip
        """`folder` is where state on the local disk lies, if it does: much is not put in order in memory then."""
        self.freeze = freeze
        self._partials = partials
        self._panes = panes
        self._header = header
        self._max_parallelism = max_parallelism
        self._folder = folder

    def encoded(self, behind: int) -> Iterable[tuple[int, bytes]]:
        """One segment per key group that has partials; sorted by pane within."""
        came = [(start, pane.behind(behind)) for start, pane in sorted(self._panes.items())]
        frames = (rows for start, pane in came if pane.raw or pane.partials for rows in self._rows_of(start, pane))
        return encode_segments(
            added(self._header, behind), frames, self._partials.keys, self._max_parallelism, self._folder
        )

    def _rows_of(self, start: int, pane: Pane) -> Iterator[pl.DataFrame]:
        """The partials of a pane, in parts if there are many: a long call would keep Polars' threads from the others."""
        by = list(self._partials.keys.names)
        columns = [*by, PANE, *self._partials.names]
        if not is_large(pane.rows):
            yield pane_partials(self._partials, by, [(start, pane)]).select(columns)
            return
        levels = list(pane.partials)
        if pane.raw:
            fold = self._partials.merge if pane.combined else self._partials.group
            levels.append(Part(fold([part.frame for part in pane.raw], by), pane.raw[-1].epoch))
        for part in merged_parts(self._partials, by, levels):
            if part is not None:
                yield part.with_columns(pl.lit(start, pl.Int64).alias(PANE)).select(columns)


# -- panes of a snapshot as a table -------------------------------------------------------------------------------------


def pane_bounds(header: Mapping[str, Any]) -> tuple[str, str]:
    """The columns that say which time a pane covers: the window's where each window is one pane."""
    window = header["window"]
    return ("window_start", "window_end") if window["size_us"] == window["slide_us"] else ("pane_start", "pane_end")


def table_of_panes(header: Mapping[str, Any], rows: pl.DataFrame) -> pl.DataFrame:
    """The rows of a segment with the bounds of their pane as timestamps (behind the keys) instead of `PANE`."""
    keys = [part["name"] for part in header["keys"]]
    clock, shown = clock_of(header["window"].get("timezone")), rows[PANE].to_numpy()
    bounds = (clock.first_shown(each) for each in (shown, shown + _pane_us(header)))
    return rows.select(
        *keys,
        *(pl.Series(name, bound).cast(_UTC_MICROS) for name, bound in zip(pane_bounds(header), bounds, strict=True)),
        *(name for name in rows.columns if name not in keys and name != PANE),
    )


def panes_of_table(header: Mapping[str, Any], table: pl.DataFrame) -> pl.DataFrame:
    """The inverse of `table_of_panes`, sorted by pane.

    Raises:
        ValueError: a pane begins or ends where none of these windows has one.
    """
    first, end = pane_bounds(header)
    clock, length = clock_of(header["window"].get("timezone")), _pane_us(header)
    whole = table.filter(pl.col(first).is_not_null() & pl.col(end).is_not_null())
    start, until = (whole[name].cast(pl.Int64).to_numpy() for name in (first, end))
    shown = clock.shown(start)
    shown = shown - (shown - header["window"]["offset_us"]) % length  # not every day begins at its midnight
    wrong = (clock.first_shown(shown) != start) | (clock.first_shown(shown + length) != until)
    bad = table.filter(pl.col(first).is_null() | pl.col(end).is_null()).rows(named=True)
    if bad := [*bad, *whole.filter(pl.Series(wrong)).rows(named=True)]:
        raise ValueError(f"{first} {bad[0][first]}, {end} {bad[0][end]}: the windows have no such pane")
    keys = [part["name"] for part in header["keys"]]
    others = [name for name in table.columns if name not in (*keys, first, end)]
    return table.select(*keys, pl.Series(PANE, shown), *others).sort(PANE, maintain_order=True)


def _pane_us(header: Mapping[str, Any]) -> int:
    return gcd(header["window"]["size_us"], header["window"]["slide_us"])
