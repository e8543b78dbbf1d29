"""What the lease and the metadata need of Redis."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from typing import Any, Final

from penstock.adapters.redis_metadata import RedisMetadata, redis_client
from penstock.platform.doctor_checks import CheckFailedError, Checks, Finding, skew_finding
from penstock.settings import ClusterSettings

LEAST_VERSION: Final = (6, 0)

_LEASE_MS: Final = 300
_PAUSE_S: Final = 0.05


async def check_redis(settings: ClusterSettings) -> list[Finding]:
    """All findings on Redis."""
    checks = Checks("redis")
    client: Any = redis_client(settings.redis)
    try:
        if not await checks.run("reached", _reached(client), "check that Redis runs and the setting redis.url"):
            return checks.findings
        await checks.run(
            "lease (SET NX PX, renew, release)",
            _lease(settings),
            "let the user of redis.url run SET, GET, DEL, PEXPIRE and EVAL on keys penstock:*",
        )
        await checks.run(
            "keys are never evicted",
            _eviction(client),
            "set maxmemory-policy noeviction: an evicted lease makes a new leader",
        )
        await checks.run("clock", _clock(client), "synchronise the clocks of this machine and of Redis (NTP)")
    finally:
        await client.aclose()
    return checks.findings


async def _reached(client: Any) -> str:
    await client.ping()
    version = str((await client.info("server"))["redis_version"])
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < LEAST_VERSION:
        raise CheckFailedError(f"version {version}; {LEAST_VERSION[0]}.{LEAST_VERSION[1]} or newer is needed")
    return f"version {version}"


async def _lease(settings: ClusterSettings) -> str:
    metadata = RedisMetadata(settings.redis, settings.name)
    key, ours, theirs = f"doctor:{uuid.uuid4().hex}", b"ours", b"theirs"
    try:
        _see(await metadata.acquire(key, ours, 30_000), "a free key could not be acquired")
        _see(not await metadata.acquire(key, theirs, 30_000), "a held key was acquired by another")
        _see(not await metadata.renew(key, theirs, 30_000), "a held key was renewed by another")
        _see(not await metadata.release(key, theirs), "a held key was released by another")
        started = time.monotonic()  # not behind the answer, which may take its time: the lease begins before it
        _see(await metadata.renew(key, ours, _LEASE_MS), "the holder could not renew")
        while not await metadata.acquire(key, theirs, 30_000):
            _see(time.monotonic() - started < 5, f"a lease of {_LEASE_MS} ms did not expire within 5 s")
            await asyncio.sleep(_PAUSE_S)
        early = time.monotonic() - started < _LEASE_MS / 1_000 * 0.9
        _see(not early, f"a lease of {_LEASE_MS} ms expired too early")
        _see(await metadata.release(key, theirs), "the holder could not release")
    finally:
        await metadata.close()
    return "one holder at a time, and it expires"


async def _eviction(client: Any) -> str:
    try:
        info = await client.info("memory")
        policy = str(info["maxmemory_policy"])
    except KeyError:
        return "not told by this server"
    if policy != "noeviction" and int(info.get("maxmemory", 0)):
        raise CheckFailedError(f"maxmemory-policy is {policy}")
    return f"maxmemory-policy {policy}"


async def _clock(client: Any) -> str:
    before = time.time()
    seconds, microseconds = await client.time()
    return skew_finding(seconds + microseconds / 1_000_000, before, time.time())


def _see(expected: bool, otherwise: str) -> None:
    if not expected:
        raise CheckFailedError(otherwise)
