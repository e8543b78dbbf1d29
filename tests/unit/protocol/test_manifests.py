"""The form of manifests: what this version writes is read by the one before wherever that can understand it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptDataError
from penstock.protocol.manifests import (
    Interval,
    Manifest,
    PartitionIntervals,
    decode_manifest,
    encode_manifest,
    open_intervals,
)
from penstock.protocol.messages import Handle, OperatorHandles, SubtaskId, SubtaskSnapshot


def _manifest(handles: OperatorHandles) -> Manifest:
    snapshot = SubtaskSnapshot(operators={"op": handles})
    return Manifest("j", 1, "a", 1, 240, {"v": {0: snapshot}}, {})


def test_a_manifest_has_the_newer_form_only_where_it_must() -> None:
    """A program that does not know lists in objects of their own, or keyed state in several, must refuse them."""
    plain = _manifest(OperatorHandles(lists={"splits": (b"a",)}))
    assert msgspec.json.decode(encode_manifest(plain))["version"] == 1
    apart = _manifest(OperatorHandles(beside=Handle("key", "sha", 1)))
    assert msgspec.json.decode(encode_manifest(apart))["version"] == 2
    several = _manifest(OperatorHandles().with_parts([Handle("a", "sha", 1), Handle("b", "sha", 1)]))
    assert msgspec.json.decode(encode_manifest(several))["version"] == 3
    for manifest in (plain, apart, several):
        assert decode_manifest(encode_manifest(manifest), "key").subtasks == manifest.subtasks


def test_a_manifest_of_a_later_version_is_refused() -> None:
    """It names the object and what this program reads."""
    later = msgspec.json.encode({**msgspec.to_builtins(_manifest(OperatorHandles())), "version": 5})
    with pytest.raises(CorruptDataError, match="some/key: manifest format 5, this program reads up to 4"):
        decode_manifest(later, "some/key")


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans(), st.booleans()), max_size=20))
def test_a_publisher_knows_what_manifests_say(steps: list[tuple[int, bool, bool]]) -> None:
    """Frames, whether the checkpoint is completed, and whether all before it is published when its manifest is made."""
    sink, attempt, position, published = SubtaskId("w", 0), "a" * 32, 10, 0
    said = {"w": {0: (Interval("b" * 32, 3, 9, 4),)}}
    known = PartitionIntervals(attempt, position, said["w"][0])
    for checkpoint, (frames, completed, visible) in enumerate(steps, 5):
        position += frames
        known.acknowledged(checkpoint, position)
        if not completed:
            continue
        published = checkpoint - 1 if visible else published
        snapshot = {sink: SubtaskSnapshot(position=position)}
        said = open_intervals(said, snapshot, ["w"], {"w": (10,)}, attempt, checkpoint, {sink: published})
        assert known.completed(checkpoint, published) == said["w"][0]
        assert known.completed(checkpoint, published) == ()
