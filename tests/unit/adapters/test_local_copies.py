"""Local copies of snapshots: read instead of the store, bounded, and never needed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.adapters.local_copies import LocalCopies
from penstock.adapters.memory import MemoryBlobs
from penstock.ports import BlobNotFoundError
from penstock.protocol.manifests import blob_prefix

STATE = blob_prefix("j" * 32, "a" * 32, 3, "n" * 32) + "v1-0-totals.state"


def copies(folder: Path) -> list[Path]:
    """The files."""
    return sorted(folder.iterdir())


async def test_another_process_of_the_machine_reads_the_copy(tmp_path: Path) -> None:
    """Whole or in part, also when the store does not have it any more; other objects are not copied."""
    store = MemoryBlobs()
    writer, reader = (LocalCopies(store, tmp_path, 1_000) for _ in range(2))
    await writer.put(STATE, b"0123456789")
    await writer.put("artifacts/some.zip", b"not copied")
    assert len(copies(tmp_path)) == 1
    await store.delete(STATE)
    assert await reader.get(STATE) == b"0123456789"
    assert await reader.get(STATE, 2, 5) == b"234"
    await reader.delete(STATE)
    assert copies(tmp_path) == []
    with pytest.raises(BlobNotFoundError):
        await reader.get(STATE)


async def test_without_a_copy_the_store_is_read(tmp_path: Path) -> None:
    """The folder is lost, an object is larger than all copies may be: only the copy is missing."""
    store = MemoryBlobs()
    for blobs in (LocalCopies(store, tmp_path / "gone", 1_000), LocalCopies(store, tmp_path, 9)):
        await blobs.put(STATE, b"0123456789")
        assert await blobs.get(STATE) == b"0123456789"
    assert copies(tmp_path) == []


async def test_the_oldest_copies_go_first(tmp_path: Path) -> None:
    """When they are too many bytes together."""
    store = MemoryBlobs()
    blobs = LocalCopies(store, tmp_path, 30)
    keys = [STATE.replace("/0000000003-", f"/000000000{number}-") for number in range(1, 5)]
    for age, key in enumerate(keys):
        await blobs.put(key, b"0123456789")
        for path in copies(tmp_path):
            os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 10 * (age + 1)))
    assert len(copies(tmp_path)) == 2
    for key in keys:
        await store.delete(key)
    assert [await blobs.get(key) for key in keys[2:]] == [b"0123456789"] * 2
    for key in keys[:2]:
        with pytest.raises(BlobNotFoundError):
            await blobs.get(key)


@pytest.mark.parametrize("left", [b"", b"01234", b"0123456789", b"9876543210....", b"0" * 10])
async def test_a_damaged_copy_is_replaced_by_the_store(tmp_path: Path, left: bytes) -> None:
    """A machine that lost its power leaves halves: they are not read again and again."""
    store = MemoryBlobs()
    blobs = LocalCopies(store, tmp_path, 1_000)
    await blobs.put(STATE, b"0123456789")
    copies(tmp_path)[0].write_bytes(left)
    assert await blobs.get(STATE) == b"0123456789"
    assert await blobs.get(STATE, 2, 5) == b"234"
    assert copies(tmp_path) == []
