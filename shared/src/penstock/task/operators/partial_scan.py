"""Partials merged along runs of rows: every place gets the partial of all places of its run up to it, or from it on.

A pass over a run is sequential, so it is made as a tree (Blelloch's scan): pairs are merged, the runs of pairs, which are
half as long, are solved the same way, and what is between is merged with the pair before it. Every partial is merged
about twice, in twice as many groupings as a run's length has bits, whatever the aggregates are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_PLACE: Final = "__place_of_scan"


class PartialScan:
    """Merges partials of one plan.

    Args:
        merge: the expressions that make one partial of those of a group.
        carry: elementwise expressions to be applied after every grouping.
    """

    def __init__(self, merge: Sequence[pl.Expr], carry: Sequence[pl.Expr]) -> None:
        self._merge = list(merge)
        self._carry = list(carry)

    def up_to(self, partials: pl.DataFrame, starts: NDArray[np.bool_]) -> pl.DataFrame:
        """The partial of the places of a run up to each; runs begin where `starts` is true."""
        return self._scanned(partials, starts, backward=False)

    def onward(self, partials: pl.DataFrame, ends: NDArray[np.bool_]) -> pl.DataFrame:
        """The partial of the places of a run from each on; runs end where `ends` is true."""
        return self._scanned(partials[::-1], ends[::-1], backward=True)[::-1]

    def pairs(self, earlier: pl.DataFrame, later: pl.DataFrame) -> pl.DataFrame:
        """The partials of two frames of one height, merged side by side."""
        if earlier.height == 0:
            return earlier
        places = pl.Series(_PLACE, np.arange(earlier.height))
        both = pl.concat([earlier.with_columns(places), later.with_columns(places)])
        merged = both.group_by(_PLACE, maintain_order=True).agg(self._merge).drop(_PLACE)
        return merged.with_columns(self._carry) if self._carry else merged

    def _scanned(self, partials: pl.DataFrame, starts: NDArray[np.bool_], *, backward: bool) -> pl.DataFrame:
        places = places_in_runs(starts)
        odd = np.flatnonzero(places % 2 == 1)
        if len(odd) == 0:
            return partials
        pairs = self._joined(partials[odd - 1], partials[odd], backward=backward)
        of_pairs = self._scanned(pairs, places[odd] == 1, backward=backward)
        even = np.flatnonzero((places % 2 == 0) & (places > 0))
        before = of_pairs[np.searchsorted(odd, even - 1)]
        between = self._joined(before, partials[even], backward=backward)
        first = np.flatnonzero(places == 0)
        order = np.argsort(np.concatenate([first, odd, even]), kind="stable")
        return pl.concat([partials[first], of_pairs, between])[order]

    def _joined(self, near: pl.DataFrame, far: pl.DataFrame, *, backward: bool) -> pl.DataFrame:
        return self.pairs(far, near) if backward else self.pairs(near, far)


def places_in_runs(starts: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The place of each in its run, from 0 on; the first begins one anyway."""
    places = np.arange(len(starts))
    return places - np.maximum.accumulate(np.where(starts, places, 0))
