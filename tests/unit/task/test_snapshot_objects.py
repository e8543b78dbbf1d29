"""Keyed state in objects of bounded size: cut, stored, read back part by part, by every reader."""

from __future__ import annotations

import asyncio
import itertools
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import KeyedProcess, ValueState
from penstock.adapters.directory.blobs import DirectoryBlobs
from penstock.adapters.memory import MemoryBlobs
from penstock.errors import CorruptDataError, ExternalError, UsageError
from penstock.functions.process_functions import ListState
from penstock.protocol.incremental import named_objects
from penstock.protocol.keygroups import KeyGroupRange, key_group_range
from penstock.protocol.manifests import Manifest, decode_manifest, encode_manifest
from penstock.protocol.messages import Handle, OperatorHandles, SubtaskSnapshot
from penstock.savepoint.folder import with_keys
from penstock.savepoint.objects import StoreObjects
from penstock.state.declarations import declared_states, describe_states
from penstock.state.keyed_state import KeyCursor
from penstock.state.rocks import backend as rocks
from penstock.task import snapshot_objects, snapshots
from penstock.task.keyed_states import keyed_backend
from penstock.task.operator import OperatorContext, OperatorSnapshot
from penstock.task.snapshot_objects import LaidDown, RestoreFolder, objects_of
from penstock.task.snapshots import FrozenSubtask, restore_operator, upload
from penstock.types import INT64, Field, Schema

KEYS = Schema((Field("key", INT64),))
GROUPS = 8
ALL = KeyGroupRange(0, GROUPS)
OBJECT = 16 << 10
SEGMENT = 4 << 10


@pytest.fixture
def small(monkeypatch):
    """Objects and segments that a test's state fills many of."""
    monkeypatch.setattr(snapshot_objects, "OBJECT_BYTES", OBJECT)
    monkeypatch.setattr(rocks, "_SEGMENT_BYTES", SEGMENT)
    monkeypatch.setattr(rocks, "ROWS_PER_FRAME", 100)


class Counting(KeyedProcess[dict, dict]):
    total = ValueState(int)
    seen = ListState(int)


class Held:
    """The state of `Counting`, and timers, of a range of key groups on one backend."""

    def __init__(self, local_state=None, groups: KeyGroupRange = ALL, segments=()) -> None:
        self.groups, self.cursor = groups, KeyCursor()
        context = OperatorContext("op", 0, 1, GROUPS, groups, lambda: 0, local_state=local_state)
        self.backend = keyed_backend("op", KEYS, self.cursor, context)
        described = describe_states(Counting)
        self.total, self.seen = (
            self.backend.bind(one, described[name]) for name, one in declared_states(Counting).items()
        )
        self.backend.restore(segments)

    def fill(self, keys: int):
        """A value, a list and a timer for every key."""
        for key in range(keys):
            self.cursor.key = key
            self.total.set(key * 3)
            self.seen.update([key, key + 1])
            self.backend.event_timers.set(key, 1_000 + key)
            if key % 5_000 == 0:
                self.backend.maintain(1)
        return self

    def content(self, keys: int):
        """What every key has, and the timers."""
        found = []
        for key in range(keys):
            self.cursor.key = key
            found.append((self.total.get(), self.seen.get()))
        return [one for one in found if one != (None, [])], sorted(self.backend.event_timers.due(1 << 40))

    async def checkpoint(self, blobs, prefix="c/0-", backend="fs") -> SubtaskSnapshot:
        frozen = FrozenSubtask({"op": OperatorSnapshot(keyed=self.backend.freeze())}, 0, 1)
        return await upload(frozen, prefix, blobs, backend, itertools.count().__next__)


def complete(*subtasks: SubtaskSnapshot) -> Manifest:
    return Manifest("j", 1, "a", len(subtasks), GROUPS, {"v": dict(enumerate(subtasks))}, {})


class Watched(MemoryBlobs):
    """Says what was written and read, and fails when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.put_sizes: dict[str, int] = {}
        self.got: list[str] = []
        self.failing = ""

    async def put(self, key: str, data: bytes) -> None:
        if self.failing and key.endswith(self.failing):
            raise ExternalError(f"{key}: the store is away")
        self.put_sizes[key] = len(data)
        await super().put(key, data)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        self.got.append(key)
        return await super().get(key, start, end)


@given(st.lists(st.tuples(st.integers(0, 5), st.binary(min_size=1, max_size=40)), max_size=40), st.integers(1, 60))
def test_objects_are_bounded_and_hold_every_segment_in_order(segments, limit):
    """A segment is never cut, and a key group is in an object once."""
    segments = sorted(segments, key=lambda one: one[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot_objects, "OBJECT_BYTES", limit)
        objects = list(objects_of(lambda: segments))
    assert [(g, o.data[a:b]) for o in objects for g, (a, b) in o.key_groups.items()] == segments
    for found in objects:
        assert len(found.data) <= limit or len(found.key_groups) == 1
        assert found.handle("k").size_bytes == len(found.data) == max(end for _, end in found.key_groups.values())


@pytest.mark.parametrize("after", [1, 2, 3])
@pytest.mark.parametrize(("writes", "reads"), [("disk", "disk"), ("disk", "memory"), ("memory", "disk")])
async def test_large_state_comes_back_at_any_parallelism_on_every_backend(writes, reads, after, small, tmp_path):
    """From several objects, of which a subtask fetches those that have its key groups."""
    blobs, place = Watched(), {"disk": tmp_path, "memory": None}
    held = Held(place[writes]).fill(1_500)
    manifest = complete(await held.checkpoint(blobs))
    manifest = decode_manifest(encode_manifest(manifest), "m")
    assert len(named_objects(manifest)) == len(blobs.put_sizes) >= GROUPS
    content = []
    for index in range(after):
        groups = key_group_range(index, after, GROUPS)
        blobs.got.clear()
        folder = RestoreFolder(tmp_path / "laid") if reads == "disk" else None
        state = await restore_operator(manifest, "op", groups, index, after, blobs, folder)
        parts = manifest.subtasks["v"][0].operators["op"].parts
        assert blobs.got == [handle.key for handle in parts if any(group in groups for group in handle.key_groups)]
        assert after == 1 or len(blobs.got) < len(parts)
        again = Held(place[reads], groups, state.keyed)
        assert isinstance(state.keyed, LaidDown) == (reads == "disk")
        if folder is not None:
            folder.close()
        content.append(again.content(1_500))
        again.backend.close()
    assert list((tmp_path / "laid").glob("*")) == []
    expected = held.content(1_500)
    assert sorted(one for values, _ in content for one in values) == sorted(expected[0])
    assert sorted(one for _, timers in content for one in timers) == expected[1]
    held.backend.close()


async def test_memory_does_not_grow_with_the_state(small, tmp_path):
    """Neither when a snapshot is written nor when it is restored: four times the state, the same peak."""

    async def peaks(keys: int) -> tuple[int, int, int]:
        blobs = DirectoryBlobs(tmp_path / f"blobs{keys}")
        held = Held(tmp_path / "local").fill(keys)
        held.backend.maintain(1)
        for state in held.backend._states.values():
            state.forget()
        tracemalloc.start()
        snapshot = await held.checkpoint(blobs)
        written = tracemalloc.get_traced_memory()[1]
        held.backend.close()
        folder = RestoreFolder(tmp_path / "laid")
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        state = await restore_operator(complete(snapshot), "op", ALL, 0, 1, blobs, folder)
        restored = Held(tmp_path / "local", ALL, state.keyed)
        read = tracemalloc.get_traced_memory()[1] - before
        tracemalloc.stop()
        restored.backend.close()
        folder.close()
        return written, read, snapshot.size_bytes

    few, many = await peaks(1_000), await peaks(4_000)
    print(few, many)
    more = many[2] - few[2]
    assert more > 2 * few[2]
    assert many[0] - few[0] < more / 5, "handles alone: these objects are a thousandth of real ones"
    assert many[1] - few[1] < more / 5


async def test_a_store_that_fails_in_the_middle_of_an_upload_fails_the_checkpoint_alone(small, tmp_path):
    """What is there already is of no checkpoint; the next one is whole and names nothing of the failed one."""
    blobs, held = Watched(), Held(tmp_path).fill(1_500)
    blobs.failing = ".state.3"
    with pytest.raises(ExternalError, match=r"c/0-op\.state\.3 could not be stored"):
        await held.checkpoint(blobs)
    assert set(blobs.put_sizes) == {"c/0-op.state", "c/0-op.state.1", "c/0-op.state.2"}
    blobs.failing = ""
    snapshot = await held.checkpoint(blobs, "d/0-")
    assert all(key.startswith("d/") for key in named_objects(complete(snapshot)))
    state = await restore_operator(complete(snapshot), "op", ALL, 0, 1, blobs)
    again = Held(segments=state.keyed)
    assert again.content(1_500) == held.content(1_500)
    held.backend.close()


async def test_an_upload_that_is_cancelled_leaves_the_state_usable(small, tmp_path):
    """The subtask fails or ends meanwhile; state in memory is not left leased."""
    for place in (tmp_path, None):
        held = Held(place).fill(1_000)
        blobs, reached = Watched(), asyncio.Event()

        async def hang(key, data, reached=reached):
            reached.set()
            await asyncio.Event().wait()

        blobs.put = hang
        task = asyncio.create_task(held.checkpoint(blobs))
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        snapshot = await held.checkpoint(Watched(), "d/0-")
        assert snapshot.operators["op"].parts
        held.backend.close()


async def test_damage_in_any_object_is_named(small, tmp_path):
    """A restore never passes over a part of the state."""
    blobs, held = Watched(), Held(tmp_path).fill(1_500)
    manifest = complete(await held.checkpoint(blobs))
    held.backend.close()
    await blobs.put("c/0-op.state.2", b"something else")
    with pytest.raises(CorruptDataError, match=r"c/0-op\.state\.2 is not what was written"):
        await restore_operator(manifest, "op", ALL, 0, 1, blobs)
    await blobs.delete("c/0-op.state.2")
    folder = RestoreFolder(tmp_path / "laid")
    with pytest.raises(CorruptDataError, match=r"c/0-op\.state\.2 is missing"):
        await restore_operator(manifest, "op", ALL, 0, 1, blobs, folder)
    folder.close()
    assert list((tmp_path / "laid").iterdir()) == []


async def test_the_memory_backend_counts_all_objects(small, monkeypatch):
    """It refuses once they are too large together."""
    held = Held().fill(1_500)
    snapshot = await held.checkpoint(Watched(), backend="memory")
    inline = snapshot.operators["op"].parts
    assert len(inline) > 1
    assert all(handle.inline for handle in inline)
    again = Held(segments=(await restore_operator(complete(snapshot), "op", ALL, 0, 1, Watched())).keyed)
    monkeypatch.setattr(snapshots, "MAX_INLINE_BYTES", sum(handle.size_bytes for handle in inline) - 1)
    with pytest.raises(UsageError, match="use the fs backend"):
        await held.checkpoint(Watched(), backend="memory")
    assert again.content(1_500) == held.content(1_500)


async def test_the_local_disk_may_fail_while_state_is_restored(small, tmp_path):
    """With the folder and what to look for."""
    (tmp_path / "file").touch()
    with pytest.raises(ExternalError, match=r"local folder .*file: .*look whether the disk is full or broken"):
        RestoreFolder(tmp_path / "file")
    folder = RestoreFolder(tmp_path / "laid")
    laid = LaidDown([(3, folder.lay_down(b"0123456789"), 2, 5), (4, folder.lay_down(b"x"), 0, 1)])
    assert (list(laid), list(laid[1:]), len(laid)) == ([(3, b"234"), (4, b"x")], [(4, b"x")], 2)
    folder.close()
    with pytest.raises(ExternalError, match="cannot be kept in the local folder"):
        laid[0]
    with pytest.raises(ExternalError, match="cannot be kept in the local folder"):
        folder.lay_down(b"more")


async def test_state_of_nothing_has_no_objects(tmp_path):
    """As before there was more than one."""
    blobs, held = Watched(), Held(tmp_path)
    snapshot = await held.checkpoint(blobs)
    held.backend.close()
    assert (snapshot.operators["op"], blobs.put_sizes) == (OperatorHandles(), {})


async def test_who_reads_savepoints_finds_every_object(small):
    """Segments by key group, and new keys for all of them."""
    blobs, held = Watched(), Held().fill(1_500)
    manifest = complete(await held.checkpoint(blobs))
    parts = manifest.subtasks["v"][0].operators["op"].parts
    reader = StoreObjects(blobs)
    found = [reader.segment(handle, group) for handle in parts for group in handle.key_groups]
    assert found == [data for _, data in (await restore_operator(manifest, "op", ALL, 0, 1, blobs)).keyed]
    renamed = with_keys(manifest, lambda key: f"x/{key}")
    assert named_objects(renamed) == {f"x/{key}" for key in named_objects(manifest)}
    assert [replace_key(h) for h in renamed.subtasks["v"][0].operators["op"].parts] == list(parts)


def replace_key(handle: Handle) -> Handle:
    return Handle(handle.key.removeprefix("x/"), handle.sha256, handle.size_bytes, handle.key_groups)
