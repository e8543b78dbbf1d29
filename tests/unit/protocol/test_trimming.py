"""The one rule of trimming."""

from __future__ import annotations

from penstock.protocol.trimming import PartitionHolds


def test_the_lowest_hold_decides():
    """And a partition is trimmed only when something more can go."""
    holds = PartitionHolds()
    assert holds.trim_to() is None
    holds.hold("reader", 9)
    holds.hold("mark", 4)
    assert holds.trim_to() == 4
    assert holds.trim_to() is None
    holds.release("mark")
    assert holds.trim_to() == 9
    assert holds.holds == {"reader": 9}
