"""Which splits of a source one task reads: small files together, one after the other, by Spark's rule for its own files.

To start a task costs more than to read a small file. A task keeps the order of the splits, so rows are numbered as if
each had a task of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.spark.splits import RunSplit

_MOST_BYTES: Final = 128 << 20
"""As Spark has it for partitions of files (spark.sql.files.maxPartitionBytes)."""
_OPEN_BYTES: Final = 4 << 20
"""What a file costs beside its bytes (spark.sql.files.openCostInBytes)."""


def packs(splits: Sequence[RunSplit], tasks: int) -> list[range]:
    """The numbers of the splits that each task reads; those whose size is not known have a task of their own.

    Args:
        splits: what is read, in order.
        tasks: how many there are to be at least, if there are as many splits.
    """
    total = sum(split.size_bytes + _OPEN_BYTES for split in splits if split.size_bytes is not None)
    limit = min(_MOST_BYTES, max(_OPEN_BYTES, total // max(1, tasks)))
    found: list[range] = []
    room = 0
    for number, split in enumerate(splits):
        if split.size_bytes is None:
            found.append(range(number, number + 1))
            room = 0
            continue
        weight = split.size_bytes + _OPEN_BYTES
        if weight <= room:
            found[-1] = range(found[-1].start, number + 1)
            room -= weight
        else:
            found.append(range(number, number + 1))
            room = limit - weight
    return found
