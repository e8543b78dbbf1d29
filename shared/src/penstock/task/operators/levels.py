"""Partials of a pane or window as the levels of an LSM tree: frames that are merged, in parts where they are large.

A level is an immutable frame with partial aggregates. Merging two levels adds up the partials of the same key, so a
merged level is no larger than both, and often much smaller. When levels are merged is decided by whoever keeps them
(`penstock.task.operators.window_panes`); this module merges them without stopping the subtask for long.

A large level is *dealt* into partitions by the hash of its keys, as in a partitioned hash join: the rows of partition i
stand together, and all dealt levels have the same number of partitions. Rows of one key are in the same partition of
every level, so levels are merged partition by partition, and the subtask may do other work between two of them. A call
takes some tens of milliseconds then, however many keys there are, and what it works on fits into the caches of a core:
merging 10 M keys in partitions takes less time than at once. Where state is on the local disk, so is a large level,
written partition by partition (`penstock.state.mapped_frames`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from penstock.state.mapped_frames import FrameWriter

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from penstock.task.operators.partials import Partials

_DEALT_ROWS: Final = 2 * 1024 * 1024
"""As many as raw rows are folded at once. Dealing takes half as long as merging, and pays only from here on."""
_PARTS: Final = 32
"""A power of two. A part of the smallest dealt level then has as many rows as one call is cheap for."""


class Part(NamedTuple):
    """Rows or partials."""

    frame: pl.DataFrame
    epoch: int
    """The epoch in which the newest of them arrived: see `penstock.state.freezes`."""
    begins: NDArray[np.int64] | None = None
    """Of a dealt level: where each part begins, and where the last one ends."""
    is_on_disk: bool = False

    @property
    def held_bytes(self) -> int:
        """The bytes that it takes in memory."""
        return 0 if self.is_on_disk else int(self.frame.estimated_size())

    def dealt(self, by: Sequence[str]) -> Part:
        """The same rows dealt into partitions; within one they keep their order."""
        if self.begins is not None:
            return self
        # The upper half of a hash: the lower one decides where Polars puts a row in a table of its own.
        part = (self.frame.select(by).hash_rows().to_numpy() >> np.uint64(32)) & np.uint64(_PARTS - 1)
        begins = np.concatenate([[0], np.cumsum(np.bincount(part.astype(np.intp), minlength=_PARTS))])
        order = np.argsort(part.astype(np.uint8), kind="stable")
        return Part(self.frame.rechunk()[order], self.epoch, begins)

    def rows_of(self, part: int) -> pl.DataFrame:
        """The rows of one part of a dealt level."""
        assert self.begins is not None
        return self.frame.slice(int(self.begins[part]), int(self.begins[part + 1] - self.begins[part]))


def is_large(rows: int) -> bool:
    """Whether so many partials are merged in parts: a call for fewer takes some 150 ms at most."""
    return rows >= _DEALT_ROWS


def batched_segments(segments: Iterable[tuple[int, pl.DataFrame, bool]]) -> Iterator[tuple[pl.DataFrame, bool]]:
    """Concatenate restored segments into frames of many rows, each with whether it may have several rows of a key.

    Args:
        segments: key group, rows, and whether they are added to those of other segments.
    """
    frames: list[pl.DataFrame] = []
    groups: set[int] = set()
    some_add = False
    for group, rows, adds in segments:
        frames.append(rows)
        groups.add(group)
        some_add |= adds
        if is_large(sum(frame.height for frame in frames)):
            yield pl.concat(frames), some_add or len(frames) > len(groups)
            frames, groups = [], set()
    if frames:
        yield pl.concat(frames), some_add or len(frames) > len(groups)


def merged_parts(partials: Partials, by: Sequence[str], levels: Sequence[Part]) -> Iterator[pl.DataFrame | None]:
    """Merge levels into one partial per group, in parts; yields None before the first one while levels are dealt."""
    if len(levels) == 1:
        frame = levels[0].frame
        yield from frame.iter_slices(_DEALT_ROWS) if is_large(frame.height) else (frame,)
    elif not is_large(sum(level.frame.height for level in levels)):
        yield partials.merge([level.frame for level in levels], by)
    else:
        dealt: list[Part] = []
        for level in levels:
            dealt.append(level.dealt(by))
            yield None
        for part in range(_PARTS):
            yield partials.merge([level.rows_of(part) for level in dealt], by)


def merged(
    partials: Partials, by: Sequence[str], levels: Sequence[Part], folder: Path | None = None
) -> Generator[None, None, Part]:
    """The levels as one, a large one on disk if there is a folder; others may run wherever it yields."""
    if len(levels) == 1:
        return levels[0]
    epoch = levels[-1].epoch
    if not is_large(sum(level.frame.height for level in levels)):
        return Part(partials.merge([level.frame for level in levels], by), epoch)
    if folder is None:
        parts: list[pl.DataFrame] = []
        heights = yield from _each(merged_parts(partials, by, levels), parts.append)
        return Part(pl.concat(parts), epoch, heights)
    with FrameWriter(folder) as writer:
        heights = yield from _each(merged_parts(partials, by, levels), writer.add)
        return Part(writer.mapped(), epoch, heights, is_on_disk=True)


def on_disk(levels: Sequence[Part], folder: Path) -> list[Part]:
    """The same levels, in one file.

    Raises:
        ExternalError: the disk is full or broken.
    """
    with FrameWriter(folder) as writer:
        for level in levels:
            writer.add(level.frame)
        whole = writer.mapped()
    begins = np.cumsum([0, *(level.frame.height for level in levels)]).tolist()
    return [
        level._replace(frame=whole.slice(begin, level.frame.height), is_on_disk=True)
        for level, begin in zip(levels, begins, strict=False)
    ]


def _each(
    parts: Iterator[pl.DataFrame | None], take: Callable[[pl.DataFrame], None]
) -> Generator[None, None, NDArray[np.int64]]:
    """Hand each part over; returns where they begin in all of them, and where the last one ends."""
    heights: list[int] = []
    for part in parts:
        if part is not None:
            take(part)
            heights.append(part.height)
        yield
    return np.concatenate([[0], np.cumsum(heights)])
