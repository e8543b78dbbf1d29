"""Objects of earlier checkpoints in new snapshots."""

from __future__ import annotations

from penstock.protocol.incremental import LiveObjects, foreign_objects
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
