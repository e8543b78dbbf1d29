"""The metadata directory beyond the contract: several instances, an unreadable file."""

from __future__ import annotations

import asyncio
from pathlib import Path

from penstock.adapters.directory.metadata import DirectoryMetadata
from penstock.adapters.system_clock import SystemClock


async def test_instances_see_each_other(tmp_path: Path) -> None:
    """What one instance sets another reads; of racing acquires of several instances one wins."""
    stores = [DirectoryMetadata(tmp_path, SystemClock()) for _ in range(4)]
    await stores[0].put("k", b"v")
    assert await stores[1].get("k") == b"v"
    for key in map(str, range(10)):
        assert sum(await asyncio.gather(*(store.acquire(key, b"", 60_000) for store in stores))) == 1


async def test_unreadable_file_counts_as_empty(tmp_path: Path) -> None:
    """A damaged file forgets everything, which the port allows, and the store goes on."""
    store = DirectoryMetadata(tmp_path, SystemClock())
    await store.put("k", b"v")
    (tmp_path / "metadata.json").write_text('{"k": [1')
    assert await store.get("k") is None
    assert await store.acquire("k", b"w", 60_000)
    assert await store.get("k") == b"w"
