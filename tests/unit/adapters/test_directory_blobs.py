"""The blob directory beyond the contract: files on disk, temporary files, errors, several instances."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from penstock.adapters.directory.blobs import DirectoryBlobs
from penstock.errors import ExternalError, UsageError
from penstock.ports import BlobExistsError, BlobNotFoundError


async def test_objects_are_plain_files(tmp_path: Path) -> None:
    """An object is the file at its key; nothing else remains in the folder."""
    blobs = DirectoryBlobs(tmp_path)
    await blobs.put("a/b", b"1")
    await blobs.create("a/c", b"2")
    with pytest.raises(BlobExistsError):
        await blobs.create("a/c", b"3")
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["b", "c"]
    assert (tmp_path / "a" / "c").read_bytes() == b"2"


async def test_temporary_files_are_not_objects(tmp_path: Path) -> None:
    """What a killed writer left is not listed, cannot be named, and is swept once it is old."""
    blobs = DirectoryBlobs(tmp_path)
    await blobs.put("a/b", b"1")
    fresh, old = tmp_path / "a" / ".tmp-fresh", tmp_path / "a" / ".tmp-old"
    fresh.write_bytes(b"")
    old.write_bytes(b"")
    os.utime(old, (1, 1))
    assert await blobs.list("") == ["a/b"]
    with pytest.raises(UsageError, match="reserved"):
        await blobs.get("a/.tmp-fresh")
    DirectoryBlobs(tmp_path)
    assert fresh.exists()
    assert not old.exists()


async def test_two_instances_racing_to_create(tmp_path: Path) -> None:
    """Instances share nothing but the directory, and still one create wins."""
    stores = [DirectoryBlobs(tmp_path) for _ in range(4)]
    for key in map(str, range(10)):
        results = await asyncio.gather(
            *(s.create(key, b"%d" % n) for n, s in enumerate(stores)), return_exceptions=True
        )
        assert sum(result is None for result in results) == 1


async def test_refused_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails is an external error and leaves neither an object nor a temporary file."""
    blobs = DirectoryBlobs(tmp_path)

    def refuse(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(ExternalError, match="No space left"):
        await blobs.put("a", b"1")
    assert list(tmp_path.iterdir()) == []


async def test_object_where_a_folder_is_needed(tmp_path: Path) -> None:
    """A key below an existing object cannot be written, and says why."""
    blobs = DirectoryBlobs(tmp_path)
    await blobs.put("a", b"1")
    with pytest.raises(ExternalError, match="cannot write"):
        await blobs.put("a/b", b"2")


async def test_a_folder_that_cannot_be_listed_is_not_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody may take a store that refuses, or is gone, for one without objects."""
    blobs = DirectoryBlobs(tmp_path / "store")
    await blobs.put("active/a", b"")
    scandir = os.scandir

    def refuse(path: str) -> Any:
        if str(path).endswith("active"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", refuse)
        with pytest.raises(ExternalError, match="Permission denied"):
            await blobs.list("active/")
        with pytest.raises(ExternalError, match="Permission denied"):
            await blobs.list("")
    assert await blobs.list("other/") == []
    assert await blobs.list("active/a/b") == []
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    with pytest.raises(ExternalError, match="No such file"):
        await blobs.list("active/")


async def test_keys_too_long_for_a_file(tmp_path: Path) -> None:
    """There is no such object, and none can be written."""
    blobs = DirectoryBlobs(tmp_path)
    key = f"a/{'x' * 300}/b"
    with pytest.raises(BlobNotFoundError):
        await blobs.get(key)
    for write in (blobs.put, blobs.create):
        with pytest.raises(ExternalError, match="too long"):
            await write(key, b"")
    await blobs.delete(key)
