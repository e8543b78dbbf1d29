"""What one task of a source reads: a part of a large file, or several small ones, by Spark's rule for its own files.

To start a task costs more than to read a small file, and a large one is read by several tasks. A task keeps the order of
the splits and of their parts, and so do the numbers of tasks: rows are numbered as if each split had a task of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.connectors.base import Split
from penstock.errors import UsageError
from penstock.spark.splits import RunSplit
from penstock.spark.surveying import Survey, reading_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.connectors.base import Position, Source

_MOST: Final = ("spark.sql.files.maxPartitionBytes", 128 << 20)
_OPEN: Final = ("spark.sql.files.openCostInBytes", 4 << 20)
_UNITS: Final = {"": 0, "b": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}


@dataclass(frozen=True)
class Packing:
    """How much a task reads."""

    most_bytes: int = _MOST[1]
    """As `spark.sql.files.maxPartitionBytes` says."""
    open_bytes: int = _OPEN[1]
    """What a file costs beside its bytes, as `spark.sql.files.openCostInBytes` says."""

    @classmethod
    def of(cls, session: SparkSession) -> Packing:
        """As a session has it.

        Raises:
            UsageError: a setting is no number of bytes.
        """
        return cls(*(_bytes(name, session.conf.get(name, str(default))) for name, default in (_MOST, _OPEN)))

    def limit(self, splits: Sequence[RunSplit], tasks: int) -> int:
        """How many bytes a task reads at most, where there are to be so many tasks at least."""
        total = sum(split.size_bytes + self.open_bytes for split in splits if split.size_bytes is not None)
        return max(1, min(self.most_bytes, max(self.open_bytes, total // max(1, tasks))))


def _bytes(name: str, text: str | None) -> int:
    """A size as Spark has it: `134217728`, `128m`, `128MB`."""
    found = re.fullmatch(r"\s*(\d+)\s*([kmgtp]?)b?\s*", text or "", re.IGNORECASE)
    if found is None:
        raise UsageError(f"{name} is {text!r}, which is no number of bytes; write it as 134217728, 128m or 128MB")
    return int(found[1]) << 10 * _UNITS[found[2].lower()]


def divided(
    source: Source[Any], splits: Sequence[RunSplit], most_bytes: int, survey: Survey | None = None
) -> Iterator[RunSplit]:
    """The splits, those with more than `most_bytes` in parts, as far as their source can tell where these begin.

    What was read before is read on from its position, as a whole.

    Args:
        source: the one that is read.
        splits: of it, in order.
        most_bytes: how much a task reads.
        survey: looks at parts of which all must be known before one can be read; None: such splits are read as a whole.
    """
    planned = [_Planned(split, reading_of(source, split)) for split in splits]
    positions = [each.positions(most_bytes, surveys=survey is not None) for each in planned]
    asked = [(each.split, at) for each, found in zip(planned, positions, strict=True) if each.surveys for at in found]
    seen = iter(survey(asked) if survey is not None and asked else ())
    for each, found in zip(planned, positions, strict=True):
        known = each.source.surveyed(found, [next(seen) for _ in found]) if each.surveys and found else found
        yield from _parts(each.split, known, most_bytes) if known else (each.split,)


@dataclass(frozen=True)
class _Planned:
    """A split and what reads it."""

    split: RunSplit
    source: Source[Any]

    @property
    def _found(self) -> Split:
        return Split(self.split.split, self.split.size_bytes)

    @property
    def surveys(self) -> bool:
        return self.source.needs_survey(self._found)

    def positions(self, most_bytes: int, *, surveys: bool) -> Sequence[Position]:
        size, begun = self.split.size_bytes, self.split.position is not None or self.split.former is not None
        if size is None or size <= most_bytes or begun or (self.surveys and not surveys):
            return ()
        return self.source.ranges(self._found, most_bytes)


def _parts(split: RunSplit, positions: Sequence[Position], most_bytes: int) -> Iterator[RunSplit]:
    left = split.size_bytes or 0
    for number, position in enumerate(positions):
        size_bytes = min(left, most_bytes)
        yield msgspec.structs.replace(split, position=position, part=number, size_bytes=size_bytes)
        left -= size_bytes


def packs(splits: Sequence[RunSplit], tasks: int, packing: Packing = Packing()) -> list[range]:
    """The numbers of the splits that each task reads; those whose size is not known have a task of their own.

    Args:
        splits: what is read, in order.
        tasks: how many there are to be at least, if there are as many splits.
        packing: how much a task reads.
    """
    limit = packing.limit(splits, tasks)
    found: list[range] = []
    room = 0
    for number, split in enumerate(splits):
        if split.size_bytes is None:
            found.append(range(number, number + 1))
            room = 0
            continue
        weight = split.size_bytes + packing.open_bytes
        if weight <= room:
            found[-1] = range(found[-1].start, number + 1)
            room -= weight
        else:
            found.append(range(number, number + 1))
            room = limit - weight
    return found
