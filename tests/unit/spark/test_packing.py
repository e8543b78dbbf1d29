"""Small files share a task, in order; large ones and those of unknown size do not."""

from __future__ import annotations

import random

from penstock.spark.packing import packs
from penstock.spark.splits import RunSplit

MIB = 1 << 20


def splits(*sizes: int | None) -> list[RunSplit]:
    return [RunSplit(str(number), size_bytes=size) for number, size in enumerate(sizes)]


def test_small_files_share_tasks() -> None:
    """As with Spark: 4 MiB for each file, 128 MiB for a task, as many tasks as run at a time at least."""
    found = packs(splits(*[1_000] * 1_000), 2)
    assert len(found) == 33
    assert [number for pack in found for number in pack] == list(range(1_000))
    assert packs(splits(10, 10, 10, 10), 2) == [range(2), range(2, 4)]


def test_large_files_and_others_have_tasks_of_their_own() -> None:
    assert packs(splits(200 * MIB, 200 * MIB, 10), 2) == [range(1), range(1, 2), range(2, 3)]
    assert packs(splits(None, None), 2) == [range(1), range(1, 2)]
    assert packs(splits(10, None, 10), 1) == [range(1), range(1, 2), range(2, 3)]
    assert packs([], 2) == []


def test_any_splits_are_read_once_and_in_order() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(200):
        given = splits(*[chance.choice([None, 0, 1, MIB, 100 * MIB, 300 * MIB]) for _ in range(chance.randrange(40))])
        found = packs(given, chance.randrange(1, 9))
        assert [number for pack in found for number in pack] == list(range(len(given)))
