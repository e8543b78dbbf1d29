"""Key groups: the unit in which keyed state moves. Only the arithmetic of ranges; hashing is `penstock.state.hashing`."""

from __future__ import annotations

from typing import Final

import msgspec

DEFAULT_MAX_PARALLELISM: Final = 240
LARGEST_MAX_PARALLELISM: Final = 32_768
"""Divisible by every parallelism up to 6 and by 8, 10, 12, 15, 16, 20, 24: even shares for common sizes."""


class KeyGroupRange(msgspec.Struct, frozen=True):
    """The key groups `[start, end)` of one subtask."""

    start: int
    end: int

    def __contains__(self, key_group: object) -> bool:
        return isinstance(key_group, int) and self.start <= key_group < self.end

    def __len__(self) -> int:
        return self.end - self.start


def key_group_range(subtask: int, parallelism: int, max_parallelism: int) -> KeyGroupRange:
    """The contiguous range of a subtask, as Flink's KeyGroupRangeAssignment computes it."""
    start = (subtask * max_parallelism + parallelism - 1) // parallelism
    end = ((subtask + 1) * max_parallelism + parallelism - 1) // parallelism
    return KeyGroupRange(start, end)


def subtask_of(key_group: int, parallelism: int, max_parallelism: int) -> int:
    """The subtask whose range holds the key group."""
    return key_group * parallelism // max_parallelism
