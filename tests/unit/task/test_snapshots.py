"""Snapshots: durable, checked, and regrouped by key group at any parallelism."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import Process
from penstock.adapters.memory import MemoryBlobs
from penstock.adapters.system_clock import SystemClock
from penstock.coordination.job_store import JobStore
from penstock.core.times import to_micros
from penstock.errors import CorruptDataError, UsageError
from penstock.protocol.incremental import named_objects
from penstock.protocol.jobevents import StoreManifest
from penstock.protocol.keygroups import KeyGroupRange, key_group_range
from penstock.protocol.manifests import Manifest
from penstock.protocol.messages import Restore, SubtaskSnapshot
from penstock.savepoint.folder import read_folder
from penstock.savepoint.places import LocalPlace
from penstock.savepoint.transfer import export_savepoint
from penstock.task import snapshots
from penstock.task.operator import OperatorSnapshot, RestoredState
from penstock.task.operators import build_operator
from penstock.task.snapshots import FrozenSubtask, restore_operator, upload
from penstock.testing.harness import HarnessSnapshot, OperatorHarness, process_node

GROUPS = 12


@dataclass
class Said:
    at: datetime


@dataclass
class Seen:
    at: datetime
    watermark: datetime | None


@dataclass
class Number:
    n: int


class Untimed(Process[Number, Number]):
    def on_row(self, row, ctx):
        ctx.emit(row)


class Part:
    """Keyed state of a range: one segment per group that says which it is."""

    def __init__(self, bounds: KeyGroupRange) -> None:
        self.bounds = bounds

    def segments(self):
        for group in range(self.bounds.start, self.bounds.end):
            yield group, f"segment {group};".encode()


async def taken(blobs: MemoryBlobs, parallelism: int, backend="fs", watermark=lambda index: index) -> Manifest:
    """A checkpoint of one operator with keyed, list and union state at a parallelism."""
    clock = itertools.count()
    subtasks: dict[int, SubtaskSnapshot] = {}
    for index in range(parallelism):
        part = Part(key_group_range(index, parallelism, GROUPS))
        state = OperatorSnapshot(
            keyed=part,
            lists={"list": [f"l{index}a".encode(), f"l{index}b".encode()]},
            unions={"union": [f"u{index}".encode()]},
        )
        frozen = FrozenSubtask({"op": state}, watermark(index), 1)
        subtasks[index] = await upload(frozen, f"c/{index}-", blobs, backend, lambda: next(clock))
    return Manifest("job", 1, "a", parallelism, GROUPS, {"v0": subtasks}, {})


async def restored(blobs: MemoryBlobs, manifest: Manifest, parallelism: int) -> list[RestoredState]:
    states: list[RestoredState] = []
    for index in range(parallelism):
        bounds = key_group_range(index, parallelism, GROUPS)
        state = await restore_operator(manifest, "op", bounds, index, parallelism, blobs)
        assert state is not None
        states.append(state)
    return states


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 6), st.integers(1, 6), st.sampled_from(["fs", "memory"]))
async def test_a_restore_regroups_everything_once(before, after, backend):
    """Each segment comes to the owner of its group, each list entry to one subtask, union entries to all."""
    blobs = MemoryBlobs()
    states = await restored(blobs, await taken(blobs, before, backend), after)
    for index, state in enumerate(states):
        bounds = key_group_range(index, after, GROUPS)
        assert [group for group, _ in state.keyed] == list(range(bounds.start, bounds.end))
        assert all(data == f"segment {group};".encode() for group, data in state.keyed)
        assert sorted(state.unions["union"]) == sorted(f"u{former}".encode() for former in range(before))
        assert set(state.watermarks) == set(range(bounds.start, bounds.end))
    entries = [entry for state in states for entry in state.lists["list"]]
    assert sorted(entries) == sorted(f"l{former}{part}".encode() for former in range(before) for part in "ab")


async def test_watermarks_come_back_per_key_group():
    """A group keeps what its former owner had reached, whoever owns it now."""
    blobs = MemoryBlobs()
    (state,) = await restored(blobs, await taken(blobs, 2, watermark=lambda index: 100 + index), 1)
    assert state.watermarks == {group: 100 if group < 6 else 101 for group in range(12)}
    assert state.uniform_watermark() is None


async def test_large_state_beside_keys_stands_in_objects(monkeypatch, tmp_path):
    """An ack stays small however many splits there are; restores and exports find everything in its place."""
    blobs, small = MemoryBlobs(), await taken(MemoryBlobs(), 2)
    monkeypatch.setattr(snapshots, "MAX_BESIDE_BYTES", 3)
    manifest = await taken(blobs, 2)
    for snapshot in manifest.subtasks["v0"].values():
        handles = snapshot.operators["op"]
        assert (handles.lists, handles.unions) == ({}, {})
        assert handles.beside is not None
        assert handles.beside.key in named_objects(manifest)
    sizes = [snapshot.size_bytes for snapshot in manifest.subtasks["v0"].values()]
    assert sizes == [snapshot.size_bytes for snapshot in small.subtasks["v0"].values()]
    store = JobStore(blobs, SystemClock())
    stored = await store.put_manifest(StoreManifest(manifest, "n", "c/manifest.json"))
    restore = Restore(1, stored.key, stored.sha256)
    whole = await store.manifest(restore)
    assert named_objects(whole) == named_objects(manifest)
    for former, state in enumerate(await restored(blobs, whole, 2)):
        assert (await restored(blobs, small, 2))[former].lists == state.lists
        assert sorted(state.unions["union"]) == [b"u0", b"u1"]
    await export_savepoint(blobs, restore, tmp_path / "out")
    exported, _ = read_folder(LocalPlace(tmp_path / "out"))
    operators = [snapshot.operators["op"] for snapshot in exported.subtasks["v0"].values()]
    assert [operator.beside for operator in operators] == [None, None]
    assert [operator.unions for operator in operators] == [{"union": (b"u0",)}, {"union": (b"u1",)}]
    beside = manifest.subtasks["v0"][1].operators["op"].beside
    assert beside is not None
    await blobs.put(beside.key, b"{}")
    with pytest.raises(CorruptDataError, match=r"c/1-op\.lists is not what was written"):
        await store.manifest(restore)
    await blobs.delete(beside.key)
    with pytest.raises(CorruptDataError, match=r"c/1-op\.lists is missing"):
        await store.manifest(restore)


@pytest.mark.parametrize(("one", "other"), [("a b", "a_b"), ("a:b", "a+b"), ("a" * 300, "a" * 299)])
async def test_operators_of_like_names_do_not_share_an_object(one, other):
    """A uid may have any sign but a slash; what stands in for it in a key tells it from every other, and is short."""
    blobs, bounds = MemoryBlobs(), KeyGroupRange(0, 1)

    class Named(Part):
        def __init__(self, name):
            super().__init__(bounds)
            self.name = name

        def segments(self):
            yield 0, self.name.encode()

    states = {name: OperatorSnapshot(keyed=Named(name)) for name in (one, other)}
    snapshot = await upload(FrozenSubtask(states, 0, 1), "c/0-", blobs, "fs", lambda: 0)
    manifest = Manifest("job", 1, "a", 1, 1, {"v0": {0: snapshot}}, {})
    for name in (one, other):
        state = await restore_operator(manifest, name, bounds, 0, 1, blobs)
        assert state is not None
        assert list(state.keyed) == [(0, name.encode())]
    assert max(map(len, await blobs.list(""))) < 200


class Watching(Process[Said, Seen]):
    """Has no state; shows the watermark."""

    def on_row(self, row, ctx):
        ctx.emit(Seen(row.at, ctx.watermark))


async def test_a_function_without_state_goes_on_at_the_watermark_that_was_reached():
    """It stands in the checkpoint for that: behind with_event_time it began anew otherwise."""
    blobs, at = MemoryBlobs(), datetime(2026, 1, 1, tzinfo=UTC)
    reached = to_micros(at)
    node = process_node(Watching(), Said)
    frozen = build_operator(node).snapshot()
    assert frozen is not None
    snapshot = await upload(FrozenSubtask({"op": frozen}, reached, 1), "c/0-", blobs, "fs", lambda: 0)
    manifest = Manifest("job", 1, "a", 1, GROUPS, {"v0": {0: snapshot}}, {})
    (state,) = await restored(blobs, manifest, 1)
    held = HarnessSnapshot((), dict(state.watermarks), {}, {})
    harness = OperatorHarness(node, max_parallelism=GROUPS, restored=held)
    harness._event_time_column = "at"
    harness.rows(Said(at))
    assert harness.output() == [{"at": at, "watermark": at}]
    assert build_operator(process_node(Untimed(), Number)).snapshot() is None


async def test_damage_is_named_and_never_passed_over():
    """A missing or changed object is an error with its key."""
    blobs = MemoryBlobs()
    manifest = await taken(blobs, 1)
    await blobs.put("c/0-op.state", b"something else")
    with pytest.raises(CorruptDataError, match=r"c/0-op\.state is not what was written"):
        await restored(blobs, manifest, 1)
    await blobs.delete("c/0-op.state")
    with pytest.raises(CorruptDataError, match=r"c/0-op\.state is missing"):
        await restored(blobs, manifest, 1)


async def test_an_operator_without_a_snapshot_starts_fresh():
    """A new operator finds nothing to restore."""
    blobs = MemoryBlobs()
    manifest = await taken(blobs, 1)
    assert await restore_operator(manifest, "new", KeyGroupRange(0, GROUPS), 0, 1, blobs) is None


async def test_the_memory_backend_is_for_small_state(monkeypatch):
    """It writes no objects, and refuses what is too large with what to do."""
    blobs = MemoryBlobs()
    await taken(blobs, 1, "memory")
    assert await blobs.list("") == []
    manifest = await taken(blobs, 1, "memory")
    size = manifest.subtasks["v0"][0].operators["op"].keyed.size_bytes
    monkeypatch.setattr(snapshots, "MAX_INLINE_BYTES", size)
    with structlog.testing.capture_logs() as logs:
        await taken(blobs, 1, "memory")
    assert any("nears the limit" in line["event"] and "fs backend" in line["advice"] for line in logs)
    monkeypatch.setattr(snapshots, "MAX_INLINE_BYTES", 10)
    with pytest.raises(UsageError, match="use the fs backend"):
        await taken(blobs, 1, "memory")
