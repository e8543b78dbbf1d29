"""What every implementation of the Metadata port keeps. Another one joins by adding its factory to `FACTORIES`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.adapters.directory_metadata import DirectoryMetadata
from penstock.adapters.memory import MemoryMetadata
from penstock.ports import Clock, Metadata


class ManualClock:
    """A clock that moves when the test says so."""

    def __init__(self) -> None:
        self.time_ms = 1_000_000

    def now_us(self) -> int:
        return self.time_ms * 1_000

    def monotonic_ms(self) -> int:
        return self.time_ms

    async def sleep_ms(self, duration_ms: float) -> None:
        self.time_ms += round(duration_ms)


FACTORIES: dict[str, Callable[[Path, Clock], Metadata]] = {
    "memory": lambda _, clock: MemoryMetadata(clock),
    "directory": lambda root, clock: DirectoryMetadata(root / "metadata", clock),
}


@pytest.fixture
def clock() -> ManualClock:
    """Time under the test's control."""
    return ManualClock()


@pytest.fixture(params=sorted(FACTORIES))
def metadata(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Metadata:
    """A fresh, empty store."""
    return FACTORIES[request.param](tmp_path, clock)


async def test_acquire_once(metadata: Metadata) -> None:
    """A key that is set cannot be acquired, not even with the same value."""
    assert await metadata.acquire("lease", b"me", 1_000)
    assert not await metadata.acquire("lease", b"me", 1_000)
    assert not await metadata.acquire("lease", b"you", 1_000)
    assert await metadata.get("lease") == b"me"


async def test_expiry_frees_the_key(metadata: Metadata, clock: ManualClock) -> None:
    """At the end of its time to live the key is unset and may be acquired by another."""
    await metadata.acquire("lease", b"me", 1_000)
    await clock.sleep_ms(999)
    assert await metadata.get("lease") == b"me"
    await clock.sleep_ms(1)
    assert await metadata.get("lease") is None
    assert not await metadata.renew("lease", b"me", 1_000)
    assert await metadata.acquire("lease", b"you", 1_000)


async def test_renew_extends_only_the_holder(metadata: Metadata, clock: ManualClock) -> None:
    """Renewing counts from now and only with the value that is set."""
    await metadata.acquire("lease", b"me", 1_000)
    await clock.sleep_ms(900)
    assert await metadata.renew("lease", b"me", 1_000)
    assert not await metadata.renew("lease", b"you", 9_000)
    await clock.sleep_ms(900)
    assert await metadata.get("lease") == b"me"
    await clock.sleep_ms(100)
    assert await metadata.get("lease") is None


async def test_release_only_by_the_holder(metadata: Metadata) -> None:
    """Releasing needs the value that is set, and frees the key."""
    await metadata.acquire("lease", b"me", 1_000)
    assert not await metadata.release("lease", b"you")
    assert await metadata.release("lease", b"me")
    assert not await metadata.release("lease", b"me")
    assert await metadata.acquire("lease", b"you", 1_000)


async def test_put_has_no_expiry(metadata: Metadata, clock: ManualClock) -> None:
    """A value that was put stays, replaces what was there, and may hold any bytes."""
    await metadata.acquire("k", b"old", 10)
    await metadata.put("k", bytes(range(256)))
    await clock.sleep_ms(10**9)
    assert await metadata.get("k") == bytes(range(256))
    assert await metadata.get("other") is None


async def test_racing_acquires_have_one_winner(metadata: Metadata) -> None:
    """Of many concurrent acquires exactly one succeeds and its value is set."""
    for key in map(str, range(10)):
        won = await asyncio.gather(*(metadata.acquire(key, b"%d" % number, 1_000) for number in range(8)))
        assert sum(won) == 1
        assert await metadata.get(key) == b"%d" % won.index(True)


async def test_concurrent_keys_are_all_kept(metadata: Metadata) -> None:
    """Writers of different keys do not lose each other's."""
    await asyncio.gather(*(metadata.put(f"k{number}", b"%d" % number) for number in range(30)))
    assert [await metadata.get(f"k{number}") for number in range(30)] == [b"%d" % number for number in range(30)]
