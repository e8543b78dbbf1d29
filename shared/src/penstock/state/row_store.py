"""Rows of columns by row id: what a table keeps of rows that it is given many at a time.

Rows lie in blocks: frames that never change, each with the ids of its rows, which rise. What is given is a block of its
own, and blocks of like size are merged, so that there are few. A row that is deleted is dropped when its block is merged,
at the latest when half of its block is deleted. A `RowView` has the rows as they are now, whatever becomes of the store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LEAST_ROWS: Final = 4_096
"""Blocks up to here are merged whatever comes."""


@dataclass(frozen=True)
class _Block:
    ids: NDArray[np.int64]
    frame: pl.DataFrame
    deleted: NDArray[np.bool_]
    """Which of the rows are; changed in place by the store alone."""

    def span(self, rising: NDArray[np.int64]) -> tuple[int, int]:
        """Which of these ids may be of this block."""
        begin, end = np.searchsorted(rising, [self.ids[0], self.ids[-1] + 1]).tolist()
        return begin, end

    def left(self) -> _Block:
        """Without what is deleted."""
        if not self.deleted.any():
            return self
        kept = np.flatnonzero(~self.deleted)
        return _Block(self.ids[kept], self.frame[kept], np.zeros(len(kept), np.bool_))


class RowView:
    """Rows that do not change. Readable from any thread."""

    def __init__(self, none: pl.DataFrame, blocks: Sequence[_Block]) -> None:
        self._none = none
        self._blocks = blocks

    def rows(self, ids: NDArray[np.int64]) -> pl.DataFrame:
        """The rows with these ids, in their order; none of them is deleted."""
        order = np.argsort(ids)
        rising = ids[order]
        parts = [self._none]
        for block in self._blocks:
            begin, end = block.span(rising)
            if begin < end:
                parts.append(block.frame[np.searchsorted(block.ids, rising[begin:end])])
        back = np.empty(len(ids), np.int64)
        back[order] = np.arange(len(ids))
        return pl.concat(parts)[back]


class RowStore:
    """Rows of the columns `types`, of which there is at least one."""

    def __init__(self, types: Mapping[str, pl.DataType]) -> None:
        self._none = pl.DataFrame(schema=dict(types))
        self._blocks: list[_Block] = []
        self._next = 0

    @property
    def height(self) -> int:
        """How many rows are there, some of which may be deleted: less than half of each block."""
        return sum(len(block.ids) for block in self._blocks)

    @property
    def empty(self) -> bool:
        """Whether no row is there."""
        return not self._blocks

    def view(self) -> RowView:
        """The rows as they are now."""
        return RowView(self._none, tuple(self._blocks))

    def append(self, frame: pl.DataFrame) -> range:
        """Keep rows; returns their ids, which are never given again."""
        ids = range(self._next, self._next + frame.height)
        self._next = ids.stop
        self._blocks.append(_Block(np.arange(ids.start, ids.stop), frame, np.zeros(frame.height, np.bool_)))
        while len(self._blocks) > 1 and _are_like(*self._blocks[-2:]):
            self._blocks[-2:] = [_merged(*self._blocks[-2:])]
        return ids

    def delete(self, ids: NDArray[np.int64]) -> None:
        """Forget rows, each of which is there."""
        rising = np.sort(ids)
        for place, block in enumerate(self._blocks):
            begin, end = block.span(rising)
            if begin == end:
                continue
            block.deleted[np.searchsorted(block.ids, rising[begin:end])] = True
            if 2 * np.count_nonzero(block.deleted) >= len(block.ids):
                self._blocks[place] = block.left()
        self._blocks = [block for block in self._blocks if len(block.ids)]


def _are_like(older: _Block, newer: _Block) -> bool:
    return len(older.ids) <= max(_LEAST_ROWS, 2 * len(newer.ids))


def _merged(older: _Block, newer: _Block) -> _Block:
    parts = [older.left(), newer.left()]
    frame = pl.concat([part.frame for part in parts], rechunk=True)
    ids, deleted = (np.concatenate([getattr(part, name) for part in parts]) for name in ("ids", "deleted"))
    return _Block(ids, frame, deleted)
