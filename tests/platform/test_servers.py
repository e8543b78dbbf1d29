"""The servers of the local platform can be stopped, killed, paused and restarted, and keep what they have."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import redis.asyncio

from penstock.platform.servers import Servers


@asynccontextmanager
async def redis_client(servers: Servers) -> AsyncGenerator[Any]:
    """A client with a connection of its own."""
    client: Any = redis.asyncio.Redis.from_url(servers.settings().redis.url.reveal())
    try:
        yield client
    finally:
        await client.aclose()


async def test_redis_keeps_its_data_unless_wiped(own_platform: Servers) -> None:
    """What was written is there after SIGKILL, and gone after a restart that wipes."""
    async with redis_client(own_platform) as client:
        await client.set("k", "v")
    await own_platform.redis.restart(by_force=True)
    async with redis_client(own_platform) as client:
        assert await client.get("k") == b"v"
    await own_platform.redis.restart(wipe=True)
    async with redis_client(own_platform) as client:
        assert await client.get("k") is None


async def test_the_shared_platform_has_fresh_names(platform: Any) -> None:
    """Two settings on the same servers differ in the name only."""
    one, two = platform.settings("a"), platform.settings("a")
    assert one.kafka == two.kafka
    assert one.name != two.name
