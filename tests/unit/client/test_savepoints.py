"""Savepoints that travel, and what can be read in them without user code."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import polars as pl
import pytest

from penstock import savepoint as savepoints
from penstock.adapters.memory import MemoryBlobs
from penstock.errors import CorruptDataError, UsageError
from penstock.protocol.manifests import Manifest, decode_manifest, encode_manifest
from penstock.protocol.messages import Handle, OperatorHandles, Restore, SubtaskSnapshot
from penstock.savepoint.folder import check_target, read_folder, write_file
from penstock.savepoint.listing import entries_of, only_key, rows_of
from penstock.savepoint.operators import checked_uid
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


async def test_a_savepoint_travels_through_a_folder(tmp_path: Path) -> None:
    """Exported, brought into an empty store, exported again: the same rows, and keys only of the new store."""
    blobs, other = MemoryBlobs(), MemoryBlobs()
    restore = await savepoint(blobs)
    await export_savepoint(blobs, restore, tmp_path / "kept")
    brought = await import_savepoint(other, tmp_path / "kept")
    assert await import_savepoint(other, tmp_path / "kept") == brought
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


async def test_a_savepoint_in_a_folder_is_read(tmp_path: Path) -> None:
    """Operators, keys and values; one key; entries of lists."""
    blobs = MemoryBlobs()
    await export_savepoint(blobs, await savepoint(blobs), tmp_path / "kept")
    kept = savepoints.read(tmp_path / "kept")
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


async def test_what_is_damaged_is_named(tmp_path: Path) -> None:
    """A changed object, a changed manifest, an export that was not finished, a folder that is in use."""
    blobs = MemoryBlobs()
    folder = tmp_path / "kept"
    await export_savepoint(blobs, await savepoint(blobs), folder)
    with pytest.raises(UsageError, match="there is something already"):
        check_target(folder)
    check_target(tmp_path / "new")
    name = next((folder / "objects").iterdir())
    whole = name.read_bytes()
    name.write_bytes(whole[:-1])
    with pytest.raises(CorruptDataError, match=name.name):
        await import_savepoint(MemoryBlobs(), folder)
    name.unlink()
    with pytest.raises(CorruptDataError, match="is missing"):
        await import_savepoint(MemoryBlobs(), folder)
    (folder / "manifest.json").write_bytes(b"{}")
    with pytest.raises(CorruptDataError, match="checksum"):
        read_folder(folder)
    (folder / "savepoint.json").unlink()
    with pytest.raises(UsageError, match="export was not finished"):
        read_folder(folder)
