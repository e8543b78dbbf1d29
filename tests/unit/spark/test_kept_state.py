"""What tasks on Spark leave behind: objects of bounded size, found again by key group."""

from __future__ import annotations

import random
from types import SimpleNamespace

import msgspec
import pytest

from penstock.protocol.keygroups import KeyGroupRange
from penstock.protocol.manifests import Manifest
from penstock.spark import state
from penstock.spark.state import Keeping, Restoring, SavedState
from penstock.task.operator import OperatorSnapshot

GROUPS = 12


def chain(segments):
    """Of one operator that holds these."""
    snapshot = OperatorSnapshot(keyed=SimpleNamespace(segments=lambda: segments))
    return SimpleNamespace(operators={"op": SimpleNamespace(operator=SimpleNamespace(snapshot=lambda: snapshot))})


@pytest.mark.parametrize("limit", [1, 100, 1 << 20])
def test_a_task_writes_objects_of_bounded_size(limit, monkeypatch, tmp_path):
    """Over several chains; a key group that comes in several segments is there with all of them."""
    monkeypatch.setattr(state, "OBJECT_BYTES", limit)
    rng = random.Random(limit)
    segments = [(group, rng.randbytes(rng.randrange(1, 60))) for group in range(GROUPS) for _ in range(1 + group % 3)]
    keeping = Keeping(str(tmp_path), "prefix")
    for begin in range(0, len(segments), 7):
        keeping.keep(chain(segments[begin : begin + 7]))
    snapshot = keeping.snapshot(5, {})
    parts = snapshot.operators["op"].parts
    assert all(handle.size_bytes <= limit or len(handle.key_groups) == 1 for handle in parts)
    assert len({handle.key for handle in parts}) == len(parts) > 1
    assert snapshot.size_bytes == sum(len(data) for _, data in segments)
    manifest = Manifest("j", 1, "a", 1, GROUPS, {"v": {0: snapshot}}, {})
    restoring = Restoring(SavedState(msgspec.json.encode(manifest), str(tmp_path)), 0, 1)
    found = restoring.operator("op", KeyGroupRange(0, GROUPS))
    assert found is not None
    assert list(found.keyed) == segments
