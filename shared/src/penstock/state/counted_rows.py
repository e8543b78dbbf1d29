"""Rows and how often they are there, found by key: what can be added and taken back.

They lie in sorted runs, so keeping one costs what it takes to sort it a few times, and a key's rows are columns when they
are looked at, however many they are. Taking one back is a count of -1, which meets the others when runs are merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from penstock.state.sorted_runs import Run, SortedRuns, TimedRows
from penstock.times import MAX_WATERMARK

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.types import Schema

COUNT: Final = "__count"
"""Int64: how often a row is there."""
_HASH: Final = "__hash"
INDEX: Final = "__index"


class CountedRows:
    """Rows of one operator: the columns of a schema, and `COUNT`."""

    def __init__(self, keys: Sequence[str], schema: Schema) -> None:
        """`keys`: those of the columns by which rows are found."""
        self._columns = list(schema.names)
        self._runs = _CountedRuns(keys, self._columns)
        self._none = pl.DataFrame(schema={INDEX: pl.Int64(), **schema.polars(), COUNT: pl.Int64()})

    def add(self, rows: pl.DataFrame) -> None:
        """Add counts of rows."""
        rows = counted(rows, self._columns)
        self._runs.add(_untimed(rows), self._runs.hashes(rows))

    def of(self, keys: pl.DataFrame) -> pl.DataFrame:
        """The rows of these keys, each once, with `INDEX`: the place of its key among them."""
        hashes, no_moment = self._runs.hashes(keys), np.zeros(keys.height, np.int64)
        found = [
            matches.run.rows.frame[matches.found].with_columns(pl.Series(INDEX, matches.asking, pl.Int64))
            for matches in self._runs.matches(keys, hashes, no_moment, no_moment)
        ]
        return counted(pl.concat(found), [INDEX, *self._columns]) if found else self._none

    def freeze(self) -> list[pl.DataFrame]:
        """All rows as they are now; a row may stand in several frames."""
        return [run.rows.frame for run in self._runs.runs]


def counted(rows: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """Each row once, without those whose counts come to nothing."""
    return rows.group_by(columns, maintain_order=True).agg(pl.col(COUNT).sum()).filter(pl.col(COUNT) != 0)


class _CountedRuns(SortedRuns):
    """Runs in which equal rows are one."""

    def __init__(self, keys: Sequence[str], columns: Sequence[str]) -> None:
        super().__init__(keys)
        self._columns = list(columns)

    def _thinned(self, run: Run) -> Run:
        rows = run.rows.frame.with_columns(pl.Series(_HASH, run.hashes))
        rows = counted(rows, [_HASH, *self._columns])
        return Run(_untimed(rows.drop(_HASH)), rows[_HASH].to_numpy())

    def _same_keys(
        self, frame: pl.DataFrame, asking: NDArray[np.int64], run: Run, found: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        same = np.ones(len(asking), np.bool_)
        for key in self._keys:
            same &= frame[key][asking].eq_missing(run.rows.frame[key][found]).to_numpy()
        return same


def _untimed(rows: pl.DataFrame) -> TimedRows:
    height = rows.height
    return TimedRows(rows, np.zeros(height, np.int64), np.full(height, MAX_WATERMARK), np.zeros(height, np.bool_))
