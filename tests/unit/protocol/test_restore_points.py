"""Where a subtask begins after a failure, where histories would be long in coming to it."""

from __future__ import annotations

from penstock.protocol.messages import SubtaskId
from penstock.protocol.restore_points import RestorePoint, RestorePoints

SUBTASK = SubtaskId("totals", 0)


def test_a_snapshot_that_has_read_less_does_not_follow_one_with_fewer_batches() -> None:
    """What was read and dropped as known is trimmed, though no batch was made of it."""
    points = RestorePoints()
    points.begin(SUBTASK)
    read_further = RestorePoint(checkpoint=1, number=5, needs=30, decided=7)
    points.reads(SUBTASK, 1, needs=30, decided=7)
    assert points.complete({SUBTASK: read_further}) == {SUBTASK}
    assert points.trim(SUBTASK) == 30
    assert points.begin(SUBTASK) == (2, read_further)

    assert not points.complete({SUBTASK: RestorePoint(checkpoint=2, number=6, needs=15, decided=8)})
    assert points.of(SUBTASK) == read_further
    assert points.complete({SUBTASK: RestorePoint(checkpoint=3, number=6, needs=31, decided=8)})


def test_what_the_newest_incarnation_restores_is_kept_until_it_has_read_it() -> None:
    """Whatever others that were given up report, and complete."""
    points = RestorePoints()
    points.begin(SUBTASK)
    points.begin(SUBTASK)
    points.reads(SUBTASK, 1, needs=40, decided=9)
    points.complete({SUBTASK: RestorePoint(checkpoint=1, number=8, needs=40, decided=9)})
    assert (points.trim(SUBTASK), points.trim_decisions(0)) == (0, 0)
    points.reads(SUBTASK, 2, needs=12, decided=3)
    assert (points.trim(SUBTASK), points.trim_decisions(0)) == (12, 3)
