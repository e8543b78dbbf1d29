"""Savepoints that travel, and what can be read in them without user code."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import polars as pl
import pytest

from penstock import savepoint as savepoints
from penstock.adapters.memory import MemoryBlobs
from penstock.errors import CorruptDataError, PipelineError, UsageError
from penstock.protocol.manifests import Manifest, decode_manifest, encode_manifest
from penstock.protocol.messages import Handle, OperatorHandles, Restore, SubtaskSnapshot
from penstock.savepoint import objects
from penstock.savepoint.folder import SavepointPlace, check_target, read_folder, write_file
from penstock.savepoint.listing import entries_of, only_key, rows_of
from penstock.savepoint.operators import checked_uid
from penstock.savepoint.places import LocalPlace, find_place, place_of
from penstock.savepoint.transfer import export_savepoint, import_savepoint
from penstock.state.segments import encode_segments
from penstock.types import Schema, schema_of

KEYS = {"keys": [{"name": "account", "type": "int64"}], "verb": "process"}


def _schema() -> Schema:
    import pyarrow as pa

    return schema_of(pa.schema([("account", pa.int64())]))


async def savepoint(blobs: MemoryBlobs) -> Restore:
    """One operator in two subtasks, with values, timers and a list."""
    subtasks: dict[int, SubtaskSnapshot] = {}
    for index in range(2):
        frame = pl.DataFrame(
            {
                "account": [index * 10 + n for n in range(5)],
                "__state": pl.Series([0] * 5, dtype=pl.UInt16),
                "__subkey": pl.Series([None] * 5, dtype=pl.Binary),
                "__value": [msgspec.msgpack.encode({"amount": n}) for n in range(5)],
                "__time_us": pl.Series([None] * 5, dtype=pl.Int64),
            }
        )
        groups: dict[int, tuple[int, int]] = {}
        data = b""
        for group, segment in encode_segments({"kind": "objects", "names": ["last"]}, [frame], _schema(), 240):
            groups[group] = (len(data), len(data) + len(segment))
            data += segment
        key = f"jobs/j/checkpoints/0000000007-a-b/fraud-{index}.state"
        await blobs.put(key, data)
        handle = Handle(key, hashlib.sha256(data).hexdigest(), len(data), groups)
        lists = {"splits": (b'{"id":"0"}',)}
        subtasks[index] = SubtaskSnapshot(operators={"fraud": OperatorHandles(keyed=handle, lists=lists)})
    manifest = Manifest(
        job="j", checkpoint=7, attempt="a", parallelism=2, max_parallelism=240, subtasks={"v1": subtasks},
        operators={"fraud": msgspec.json.encode(KEYS).decode()},
    )  # fmt: skip
    data = encode_manifest(manifest)
    await blobs.put("jobs/j/checkpoints/0000000007-a-b/manifest.json", data)
    return Restore(7, "jobs/j/checkpoints/0000000007-a-b/manifest.json", hashlib.sha256(data).hexdigest())


@pytest.fixture(params=["a folder", "a store"])
def place(request: pytest.FixtureRequest, bucket: Path) -> SavepointPlace:
    """A place whose parts stand in the folder `bucket / "kept"` either way."""
    return LocalPlace(bucket / "kept") if request.param == "a folder" else place_of("s3://bucket/kept/")


async def test_a_savepoint_travels_through_a_folder(place: SavepointPlace) -> None:
    """Exported, brought into an empty store, exported again: the same rows, and keys only of the new store."""
    blobs, other = MemoryBlobs(), MemoryBlobs()
    restore = await savepoint(blobs)
    await export_savepoint(blobs, restore, place)
    brought = await import_savepoint(other, place)
    assert await import_savepoint(other, place) == brought
    keys = await other.list("")
    assert len(keys) == 3
    assert all(key.startswith("imported/") for key in keys)
    manifest = decode_manifest(await other.get(brought.manifest), brought.manifest)
    handles = [s.operators["fraud"].keyed for s in manifest.subtasks["v1"].values()]
    assert {handle.key for handle in handles if handle} < set(keys)
    assert brought.checkpoint == restore.checkpoint


async def test_a_savepoint_in_a_folder_is_its_owner_s(tmp_path: Path) -> None:
    """State is what the rows were about: neither the folder nor a file in it can be read by others."""
    folder = tmp_path / "backup" / "monday"
    write_file(folder / "objects" / "a", b"state")
    write_file(folder / "objects" / "a", b"state again")
    for path in (tmp_path / "backup", folder, folder / "objects"):
        assert path.stat().st_mode & 0o777 == 0o700
    assert (folder / "objects" / "a").stat().st_mode & 0o777 == 0o600


async def test_a_savepoint_in_a_folder_is_read(place: SavepointPlace) -> None:
    """Operators, keys and values; one key; entries of lists."""
    blobs = MemoryBlobs()
    await export_savepoint(blobs, await savepoint(blobs), place)
    kept = savepoints.read(str(place))
    (operator,) = kept.operators
    assert (operator.uid, operator.verb, operator.subtasks) == ("fraud", "process", 2)
    assert operator.entries == {"splits": 2}
    rows = rows_of(kept, "fraud")
    assert sorted(rows["account"].to_list()) == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]
    (one,) = only_key(rows, operator.schema, "12").to_dicts()
    assert (one["state"], one["value"]) == ("last", '{"amount":2}')
    assert only_key(rows, operator.schema, "99").is_empty()
    with pytest.raises(UsageError, match="is no Int64"):
        only_key(rows, operator.schema, "abc")
    assert entries_of(kept.manifest, "fraud") == {"splits": ['{"id":"0"}', '{"id":"0"}']}
    with pytest.raises(UsageError, match="did you mean 'fraud'"):
        checked_uid(kept.manifest, "fraut")


async def test_what_is_damaged_is_named(place: SavepointPlace, bucket: Path) -> None:
    """A changed object, a changed manifest, an export that was not finished, a folder that is in use."""
    blobs = MemoryBlobs()
    folder = bucket / "kept"
    check_target(place)
    await export_savepoint(blobs, await savepoint(blobs), place)
    with pytest.raises(UsageError, match="there is something already"):
        check_target(place)
    name = next((folder / "objects").iterdir())
    whole = name.read_bytes()
    name.write_bytes(whole[:-1])
    with pytest.raises(CorruptDataError, match=name.name):
        await import_savepoint(MemoryBlobs(), place)
    name.unlink()
    with pytest.raises(CorruptDataError, match="is missing"):
        await import_savepoint(MemoryBlobs(), place)
    (folder / "manifest.json").write_bytes(b"{}")
    with pytest.raises(CorruptDataError, match="checksum"):
        read_folder(place)
    (folder / "savepoint.json").unlink()
    with pytest.raises(UsageError, match="export was not finished"):
        read_folder(place)


async def test_a_savepoint_below_a_url_has_one_writer(bucket: Path) -> None:
    """What says that it is whole is written again by the same one, and by nobody else; the first one's stays."""
    place, blobs = place_of("s3://bucket/kept"), MemoryBlobs()
    restore = await savepoint(blobs)
    await export_savepoint(blobs, restore, place)
    await export_savepoint(blobs, restore, place)  # as one that died behind its last write and is made again
    whole = sorted(path.name for path in (bucket / "kept").rglob("*") if path.is_file())
    assert len(whole) == 4
    with pytest.raises(UsageError, match=r"s3://bucket/kept: somebody else has written manifest.json there meanwhile"):
        place.write("manifest.json", b"another")
    assert savepoints.read("s3://bucket/kept").checkpoint == 7
    for name in place.sizes():
        place.remove(name)
    assert place.is_free()
    with pytest.raises(UsageError, match="no savepoint is there"):
        savepoints.read("s3://bucket/kept")


def test_a_place_has_one_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However it is written; what is no folder that is there may be the key of a manifest."""
    monkeypatch.chdir(tmp_path)
    assert place_of("kept").address == str(tmp_path / "kept")
    assert place_of("s3a://bucket/kept/").address == place_of("s3://bucket/kept").address == "s3://bucket/kept"
    assert find_place("jobs/j/manifest.json") is None
    with pytest.raises(PipelineError, match=r"--to-savepoint: 's3:///kept' names no bucket"):
        place_of("s3:///kept", "--to-savepoint")


async def test_of_small_objects_of_a_store_as_many_are_kept_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Key groups of two operators come in turns: neither object is read for every one of them."""
    blobs = MemoryBlobs()
    handles: list[Handle] = []
    for number in range(4):
        data = bytes([number]) * 10
        await blobs.put(f"o{number}", data)
        handles.append(Handle(f"o{number}", hashlib.sha256(data).hexdigest(), 10, {0: (0, 5), 1: (5, 10)}))
    asked: list[str] = []
    get = blobs.get

    async def counted(key: str, start: int = 0, end: int | None = None) -> bytes:
        asked.append(key)
        return await get(key, start, end)

    monkeypatch.setattr(blobs, "get", counted)
    monkeypatch.setattr(objects, "_WHOLE_BYTES", 30)
    reader = objects.StoreObjects(blobs)
    for number, group in ((0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (3, 0), (1, 0), (0, 0)):
        assert reader.segment(handles[number], group) == bytes([number]) * 5
    assert asked == ["o0", "o1", "o2", "o3", "o0"]
