"""What every implementation of the Metadata port keeps. Another one joins by adding its factory to `FACTORIES`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Protocol

import pytest
from redis.asyncio import Redis
from tests.lanes import implementations

from penstock.adapters.memory import MemoryMetadata
from penstock.adapters.redis_metadata import RedisMetadata
from penstock.ports import Metadata
from penstock.settings import ClusterSettings


class Ageing(Protocol):
    """Time that passes when the test says so."""

    async def sleep_ms(self, duration_ms: float) -> None: ...


class ManualClock:
    """A clock that moves when the test says so."""

    def __init__(self) -> None:
        self.time_ms = 1_000_000

    def now_us(self) -> int:
        return self.time_ms * 1_000

    def monotonic_ms(self) -> int:
        return self.time_ms

    def monotonic_us(self) -> int:
        return self.time_ms * 1_000

    async def sleep_ms(self, duration_ms: float) -> None:
        self.time_ms += round(duration_ms)


class AgeingRedis:
    """Redis goes by its own clock: instead of waiting, what is left of every key's time to live is cut."""

    def __init__(self, redis: Redis, prefix: str) -> None:
        self._redis = redis
        self._prefix = prefix

    async def sleep_ms(self, duration_ms: float) -> None:
        async for key in self._redis.scan_iter(f"{self._prefix}*"):
            left = await self._redis.pttl(key)
            if left >= 0:
                await self._redis.pexpire(key, left - round(duration_ms))


Made = tuple[Metadata, Ageing]


async def memory(_: Callable[[], ClusterSettings]) -> AsyncIterator[Made]:
    clock = ManualClock()
    yield MemoryMetadata(clock), clock


async def redis(cluster: Callable[[], ClusterSettings]) -> AsyncIterator[Made]:
    settings = cluster()
    metadata = RedisMetadata(settings.redis, settings.name)
    async with Redis.from_url(settings.redis.url.reveal()) as server:
        yield metadata, AgeingRedis(server, f"penstock:{settings.name}:")
        async for key in server.scan_iter(f"penstock:{settings.name}:*"):
            await server.delete(key)
    await metadata.close()


FACTORIES = {"memory": memory, "redis": redis}


@pytest.fixture(params=implementations(FACTORIES, "redis"))
async def made(request: pytest.FixtureRequest, cluster: Callable[[], ClusterSettings]) -> AsyncIterator[Made]:
    """A fresh, empty store, and its time."""
    async for pair in FACTORIES[request.param](cluster):
        yield pair


@pytest.fixture
def metadata(made: Made) -> Metadata:
    """A fresh, empty store."""
    return made[0]


@pytest.fixture
def clock(made: Made) -> Ageing:
    """Time under the test's control."""
    return made[1]


async def test_acquire_once(metadata: Metadata) -> None:
    """A key that is set cannot be acquired, not even with the same value."""
    assert await metadata.acquire("lease", b"me", 60_000)
    assert not await metadata.acquire("lease", b"me", 60_000)
    assert not await metadata.acquire("lease", b"you", 60_000)
    assert await metadata.get("lease") == b"me"


async def test_expiry_frees_the_key(metadata: Metadata, clock: Ageing) -> None:
    """At the end of its time to live the key is unset and may be acquired by another."""
    await metadata.acquire("lease", b"me", 60_000)
    await clock.sleep_ms(50_000)
    assert await metadata.get("lease") == b"me"
    await clock.sleep_ms(10_000)
    assert await metadata.get("lease") is None
    assert not await metadata.renew("lease", b"me", 60_000)
    assert await metadata.acquire("lease", b"you", 60_000)


async def test_renew_extends_only_the_holder(metadata: Metadata, clock: Ageing) -> None:
    """Renewing counts from now and only with the value that is set."""
    await metadata.acquire("lease", b"me", 60_000)
    await clock.sleep_ms(50_000)
    assert await metadata.renew("lease", b"me", 60_000)
    assert not await metadata.renew("lease", b"you", 600_000)
    await clock.sleep_ms(50_000)
    assert await metadata.get("lease") == b"me"
    await clock.sleep_ms(10_000)
    assert await metadata.get("lease") is None


async def test_release_only_by_the_holder(metadata: Metadata) -> None:
    """Releasing needs the value that is set, and frees the key."""
    await metadata.acquire("lease", b"me", 60_000)
    assert not await metadata.release("lease", b"you")
    assert await metadata.release("lease", b"me")
    assert not await metadata.release("lease", b"me")
    assert await metadata.acquire("lease", b"you", 60_000)


async def test_put_has_no_expiry(metadata: Metadata, clock: Ageing) -> None:
    """A value that was put stays, replaces what was there, and may hold any bytes."""
    await metadata.acquire("k", b"old", 10_000)
    await metadata.put("k", bytes(range(256)))
    await clock.sleep_ms(10**9)
    assert await metadata.get("k") == bytes(range(256))
    assert await metadata.get("other") is None


async def test_racing_acquires_have_one_winner(metadata: Metadata) -> None:
    """Of many concurrent acquires exactly one succeeds and its value is set."""
    for key in map(str, range(10)):
        won = await asyncio.gather(*(metadata.acquire(key, b"%d" % number, 60_000) for number in range(8)))
        assert sum(won) == 1
        assert await metadata.get(key) == b"%d" % won.index(True)


async def test_concurrent_keys_are_all_kept(metadata: Metadata) -> None:
    """Writers of different keys do not lose each other's."""
    await asyncio.gather(*(metadata.put(f"k{number}", b"%d" % number) for number in range(30)))
    assert [await metadata.get(f"k{number}") for number in range(30)] == [b"%d" % number for number in range(30)]


async def test_bytes_and_keys_of_any_kind(metadata: Metadata) -> None:
    """A lease is compared byte by byte, and keys may hold slashes, colons, blanks and any letters."""
    value = bytes(range(256))
    for key in ("jobs/1/cache", "a:b", "a b", "ä日本", "*", ""):
        assert await metadata.acquire(key, value, 60_000)
        assert not await metadata.renew(key, value[:-1], 60_000)
        assert await metadata.renew(key, value, 60_000)
        assert await metadata.release(key, value)
        assert await metadata.get(key) is None


async def test_a_put_ends_a_lease(metadata: Metadata, clock: Ageing) -> None:
    """A key that was put over a lease belongs to nobody who held it before, and expires no more."""
    await metadata.acquire("lease", b"me", 60_000)
    await metadata.put("lease", b"operator")
    assert not await metadata.renew("lease", b"me", 60_000)
    assert not await metadata.release("lease", b"me")
    await clock.sleep_ms(120_000)
    assert await metadata.get("lease") == b"operator"
