"""What event time a restored key group has reached, whoever owned it before.

Watermarks are kept per key group across a restore: with the minimum over all former owners, a row that was late for its
key group would count as early again after a rescale and fire its window a second time.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.protocol.keygroups import KeyGroupRange, key_group_range
from penstock.protocol.messages import SubtaskSnapshot


def key_group_watermarks(
    parts: Mapping[int, SubtaskSnapshot], key_groups: KeyGroupRange, max_parallelism: int
) -> dict[int, int]:
    """The watermark of every key group in `key_groups` that a former subtask owned.

    Args:
        parts: former subtask index to what it acknowledged, of all subtasks of the operator.
        key_groups: the key groups of the subtask that is restored.
        max_parallelism: of the job.
    """
    result: dict[int, int] = {}
    for index, snapshot in parts.items():
        owned = key_group_range(index, len(parts), max_parallelism)
        for group in range(max(owned.start, key_groups.start), min(owned.end, key_groups.end)):
            result[group] = max(snapshot.watermark, snapshot.ahead.get(group, snapshot.watermark))
    return result


def watermarks_above(restored: Mapping[int, int], watermark: int) -> dict[int, int]:
    """The restored key groups whose event time the subtask has not reached again: the next snapshot must keep them."""
    return {group: reached for group, reached in restored.items() if reached > watermark}
