"""What becomes of the objects of old checkpoints."""

from __future__ import annotations

from penstock.protocol.manifests import blob_prefix, checkpoint_of, manifest_key
from penstock.protocol.retention import retired_objects

KEYS = [manifest_key("j", "a" * 32, number, "b" * 16) for number in (1, 2, 3, 4)]


def test_everything_below_the_newest_complete_is_retired():
    """A checkpoint that is never restored again goes; the newest and pending ones stay."""
    assert retired_objects(KEYS, 3, set()) == KEYS[:2]


def test_savepoints_are_retained():
    """A retained checkpoint is never deleted."""
    assert retired_objects(KEYS, 4, {2}) == [KEYS[0], KEYS[2]]


def test_only_keys_of_checkpoints_count():
    """Objects that are no part of a checkpoint are left alone."""
    assert retired_objects(["jobs/j/log/00000000000000000001", "current-job"], 9, set()) == []


def test_the_number_is_read_from_the_key():
    """A state object carries the number of its checkpoint."""
    assert checkpoint_of(blob_prefix("j", "a" * 32, 17, "b" * 16) + "v0-0-window.state") == 17
