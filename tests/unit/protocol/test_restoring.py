"""Event time of restored key groups."""

from __future__ import annotations

from penstock.protocol.keygroups import key_group_range
from penstock.protocol.messages import SubtaskSnapshot
from penstock.protocol.restoring import key_group_watermarks, watermarks_above


def test_every_key_group_keeps_the_watermark_of_its_former_owner():
    """The minimum over all owners would make late rows early again."""
    parts = {0: SubtaskSnapshot(watermark=100), 1: SubtaskSnapshot(watermark=7)}
    restored = key_group_watermarks(parts, key_group_range(0, 1, 4), 4)
    assert restored == {0: 100, 1: 100, 2: 7, 3: 7}
    assert key_group_watermarks(parts, key_group_range(3, 4, 4), 4) == {3: 7}


def test_a_watermark_survives_several_restores():
    """What a subtask has not reached again stands in its next snapshot."""
    ahead = watermarks_above({0: 100, 1: 5}, 20)
    assert ahead == {0: 100}
    parts = {0: SubtaskSnapshot(watermark=20, ahead=ahead)}
    assert key_group_watermarks(parts, key_group_range(0, 1, 2), 2) == {0: 100, 1: 20}
