"""Objects of earlier checkpoints in new snapshots."""

from __future__ import annotations

from penstock.protocol.incremental import MAX_DELTAS, Chain, LiveObjects, SnapshotChains, foreign_objects
from penstock.protocol.manifests import Manifest
from penstock.protocol.messages import Handle, OperatorHandles, SubtaskSnapshot


def handle(key: str) -> Handle:
    return Handle(key, f"sha of {key}", 1)


def manifest(checkpoint: int, key: str) -> Manifest:
    snapshot = SubtaskSnapshot(operators={"op": OperatorHandles(keyed=handle(key))})
    return Manifest(
        job="j", checkpoint=checkpoint, attempt="a", parallelism=1, max_parallelism=1, subtasks={"k": {0: snapshot}},
        operators={},
    )  # fmt: skip


def test_a_checkpoint_that_names_what_may_be_gone_is_found():
    """The two newest COMPLETE keep their objects, and a checkpoint may name its own."""
    live = LiveObjects(manifest(1, "1/op"))
    live.completed(manifest(2, "2/op"))
    assert live.missing(foreign_objects(manifest(3, "1/op"), "3/")) == []
    live.completed(manifest(3, "3/op"))
    assert live.missing(foreign_objects(manifest(4, "1/op"), "4/")) == ["1/op"]
    assert live.missing(foreign_objects(manifest(4, "4/op"), "4/")) == []
    assert live.keys == {"2/op", "3/op"}


def chain(epoch: int, *sizes: int) -> Chain:
    return Chain(tuple((Handle(f"{epoch}/{number}", "", size),) for number, size in enumerate(sizes)), epoch)


def test_a_snapshot_builds_on_the_newest_complete_that_the_subtask_was_told_of():
    """Not on one that was taken and is not complete, not on a canonical one, and not on an older one told again."""
    chains = SnapshotChains()
    chains.snapshot_stored(1, {"op": chain(1, 100)})
    assert chains.base("op") is None
    chains.completed(1)
    chains.snapshot_stored(2, {"op": chain(2, 100, 1)})
    assert chains.base("op") == chain(1, 100)
    chains.snapshot_stored(3, {"op": chain(3, 100, 1)})
    chains.completed(3)
    chains.completed(1)
    assert chains.base("op") == chain(3, 100, 1)
    assert chains.base("other") is None
    chains.snapshot_stored(4, {})
    chains.completed(4)
    assert chains.base("op") is None


def test_many_or_heavy_deltas_are_followed_by_a_full_run():
    """So that a restore reads a bounded part more than the state."""
    assert not chain(1, 100, 50, 49).is_heavy
    assert chain(1, 100, 50, 50).is_heavy
    assert chain(1, 0).is_heavy
    assert chain(1, 10_000, *[1] * MAX_DELTAS).is_heavy
