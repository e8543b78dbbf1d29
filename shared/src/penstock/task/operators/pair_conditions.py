"""Pairs of rows that have the same key, and the condition of a join on them: the rest of SQL's ON.

A condition reads columns of both inputs. It is evaluated on candidate pairs, `PAIRS_AT_ONCE` at a time, of which only
these columns are brought together. Null counts as false.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from penstock.expressions import to_polars
from penstock.state.counted_rows import INDEX
from penstock.state.sorted_runs import places_in
from penstock.task.operators.columnar import expression_failure
from penstock.task.operators.join_rows import LEFT, RIGHT, JoinedSchema
from penstock.types import Schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from penstock.expressions import Expr

PAIRS_AT_ONCE: Final = 1 << 20
"""So many candidates are evaluated at a time, and about so many formed: all those of a row are."""
_MEETS: Final = "__meets"


@dataclass(frozen=True)
class Pairs:
    """Pairs of changed rows with rows of the other input, by the numbers of both."""

    asking: NDArray[np.int64]
    found: NDArray[np.int64]

    def where(self, meets: NDArray[np.bool_]) -> Pairs:
        """Those of which it is true."""
        return self if meets.all() else Pairs(self.asking[meets], self.found[meets])


class PairCondition:
    """The condition of one join."""

    def __init__(self, where: Expr, schema: JoinedSchema) -> None:
        left, right = schema.inputs
        others = tuple(field for field in right if field.name not in schema.keys)
        self._written = where
        self._where = f"join ({schema.operator})"
        self._condition = to_polars(where, Schema((*left, *others)), "join: where")
        self._read = schema.read
        self._sets_height = schema.keys.names[0]

    def true_of(
        self, number: int, came: pl.DataFrame, asking: NDArray[np.int64], there: pl.DataFrame, found: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Of which candidates it is true.

        Args:
            number: the input of the rows that came.
            came: rows of it.
            asking: the number of that row of each candidate.
            there: rows of the other input, with the same columns of keys.
            found: the number of that row of each candidate.
        """
        parts = [np.empty(0, np.bool_)]
        for begin in range(0, len(asking), PAIRS_AT_ONCE):
            part = slice(begin, begin + PAIRS_AT_ONCE)
            sides = ((came, asking[part]), (there, found[part]))
            parts.append(self._evaluated(sides if number == LEFT else sides[::-1]))
        return np.concatenate(parts)

    def _evaluated(self, sides: tuple[tuple[pl.DataFrame, NDArray[np.int64]], ...]) -> NDArray[np.bool_]:
        names = (dict.fromkeys((self._sets_height, *self._read[LEFT])), self._read[RIGHT])
        columns = [rows[name][places] for (rows, places), read in zip(sides, names, strict=True) for name in read]
        pairs = pl.DataFrame(columns)
        try:
            meets = pairs.with_columns(self._condition.alias(_MEETS))[_MEETS]
        except pl.exceptions.PolarsError as error:
            written = (("where", self._written),)
            raise expression_failure(self._where, pairs, written, [self._condition], error) from error
        return meets.fill_null(False).to_numpy()


def candidates(deltas: pl.DataFrame, theirs: pl.DataFrame, *, piecewise: bool) -> Iterator[Pairs]:
    """The pairs of rows that have the same key, in order of the changed rows.

    Args:
        deltas: changed rows of one input, with the number of their key as `INDEX`.
        theirs: rows of the other input, with that of theirs.
        piecewise: whether they are formed in pieces of about `PAIRS_AT_ONCE`, of which few may be kept.
    """
    index, there = deltas[INDEX].to_numpy(), theirs[INDEX].to_numpy()
    by_key = np.argsort(there, kind="stable")
    of_key = np.bincount(there, minlength=int(index.max(initial=-1)) + 1)
    first, sizes = (np.cumsum(of_key) - of_key)[index], of_key[index]
    for part in _slices(sizes) if piecewise else (slice(0, len(sizes)),):
        asking, found = places_in(first[part], sizes[part])
        if part.start:
            asking += part.start
        yield Pairs(asking, by_key[found])


def _slices(sizes: NDArray[np.int64]) -> Iterator[slice]:
    """Rows that have so many candidates each, in slices whose candidates are to be formed at a time."""
    steps = np.cumsum(sizes) // PAIRS_AT_ONCE
    cuts = [0, *(np.flatnonzero(np.diff(steps)) + 1).tolist(), len(sizes)]
    yield from (slice(begin, end) for begin, end in pairwise(cuts))
