"""Partials of a pane or window as the levels of an LSM tree: frames that are merged, in parts where they are large.

A large level is dealt: its rows stand in an order of the hash of their keys, cut into the same number of parts as those
of every other one, so that levels are merged part by part. A call takes some 10 ms then, however many keys there are, and
what it works on fits into the caches of a core: merging 10 M keys in parts takes less time than at once.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.task.operators.partials import Partials

_DEALT_ROWS: Final = 1024 * 1024
_PARTS: Final = 64


class Part(NamedTuple):
    """Rows or partials."""

    frame: pl.DataFrame
    window: int
    """In which the newest of them came: see `penstock.state.freezes`."""
    begins: NDArray[np.int64] | None = None
    """Of a dealt level: where each part begins, and where the last one ends."""

    def dealt(self, by: Sequence[str]) -> Part:
        """The same rows, those of a part together, in their order within."""
        if self.begins is not None:
            return self
        # The upper half of a hash: the lower one decides where Polars puts a row in a table of its own.
        part = (self.frame.select(by).hash_rows().to_numpy() >> np.uint64(32)) % np.uint64(_PARTS)
        begins = np.concatenate([[0], np.cumsum(np.bincount(part.astype(np.intp), minlength=_PARTS))])
        order = np.argsort(part.astype(np.uint8), kind="stable")
        return Part(self.frame.rechunk()[order], self.window, begins)

    def rows_of(self, part: int) -> pl.DataFrame:
        """The rows of one part of a dealt level."""
        assert self.begins is not None
        return self.frame.slice(int(self.begins[part]), int(self.begins[part + 1] - self.begins[part]))


def is_large(rows: int) -> bool:
    """Whether so many partials are merged in parts: a call for fewer takes some 100 ms at most."""
    return rows >= _DEALT_ROWS


def merged_parts(partials: Partials, by: Sequence[str], levels: Sequence[Part]) -> Iterator[pl.DataFrame | None]:
    """The partials of levels, one per group, in parts, each as soon as it is there; None where there is none yet."""
    if len(levels) == 1:
        yield levels[0].frame
    elif not is_large(sum(level.frame.height for level in levels)):
        yield partials.merge([level.frame for level in levels], by)
    else:
        dealt: list[Part] = []
        for level in levels:
            dealt.append(level.dealt(by))
            yield None
        for part in range(_PARTS):
            yield partials.merge([level.rows_of(part) for level in dealt], by)


def merged(partials: Partials, by: Sequence[str], levels: Sequence[Part]) -> Generator[None, None, Part]:
    """The levels as one; others may run wherever it yields."""
    if len(levels) == 1:
        return levels[0]
    parts: list[pl.DataFrame] = []
    for part in merged_parts(partials, by, levels):
        if part is not None:
            parts.append(part)
        yield
    if len(parts) == 1:
        return Part(parts[0], levels[-1].window)
    begins = np.concatenate([[0], np.cumsum([part.height for part in parts])])
    return Part(pl.concat(parts), levels[-1].window, begins)
