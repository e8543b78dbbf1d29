"""The Metadata port on Redis: `SET NX PX` for the lease, compare-and-set in Lua for renewing and releasing it.

Nothing is tried twice: a command whose answer is lost is *unknown* and raises, because the second try of an acquire
would meet its own first one. A connection that a restart of Redis has closed is noticed before it is used again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Final
from urllib.parse import urlsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError

from penstock.errors import ExternalError, UsageError
from penstock.settings import RedisSettings

TIMEOUT_S: Final = 2.0
"""How long one operation may take, connecting included; below a third of the lease's time to live."""

_RENEW: Final = """
if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) end
return 0
"""
_RELEASE: Final = """
if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end
return 0
"""


class RedisMetadata:
    """A `Metadata` of the keys `penstock:<cluster>:...`. Connects when first used."""

    def __init__(self, settings: RedisSettings, cluster: str) -> None:
        self._prefix = f"penstock:{cluster}:"
        self._where = _address(settings)
        self._redis = _client(settings)

    async def acquire(self, key: str, value: bytes, ttl_ms: int) -> bool:
        """See `Metadata.acquire`."""
        return bool(await self._ask(key, self._redis.set(self._prefix + key, value, nx=True, px=ttl_ms)))

    async def renew(self, key: str, value: bytes, ttl_ms: int) -> bool:
        """See `Metadata.renew`."""
        return bool(await self._ask(key, self._eval(_RENEW, key, value, ttl_ms)))

    async def release(self, key: str, value: bytes) -> bool:
        """See `Metadata.release`."""
        return bool(await self._ask(key, self._eval(_RELEASE, key, value)))

    async def put(self, key: str, value: bytes) -> None:
        """See `Metadata.put`."""
        await self._ask(key, self._redis.set(self._prefix + key, value))

    async def get(self, key: str) -> bytes | None:
        """See `Metadata.get`."""
        return await self._ask(key, self._redis.get(self._prefix + key))

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()

    def _eval(self, script: str, key: str, *arguments: bytes | int) -> Awaitable[Any]:
        return self._redis.eval(script, 1, self._prefix + key, *arguments)

    async def _ask(self, key: str, answer: Awaitable[Any]) -> Any:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await answer
        except (AuthenticationError, NoPermissionError) as error:
            raise ExternalError(
                f"Redis at {self._where} refuses the login or the command ({error}); check user, password and "
                "permissions in the setting redis.url"
            ) from error
        except (RedisError, OSError, TimeoutError) as error:
            reason = str(error) or f"no answer within {TIMEOUT_S:g} s"
            raise ExternalError(
                f"Redis at {self._where}, key {self._prefix}{key}: {reason}; check that it runs and that the setting "
                "redis.url is right"
            ) from error


def _client(settings: RedisSettings) -> Redis:
    try:
        return Redis.from_url(
            settings.url.reveal(),
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
        )
    except ValueError as error:
        raise UsageError(
            f"setting redis.url (at {_address(settings)}) is not a Redis address: {error}; write "
            "redis://[user:password@]host:port/database"
        ) from None  # the cause would show the password


def _address(settings: RedisSettings) -> str:
    """Host, port and database without user and password."""
    return urlsplit(settings.url.reveal()).netloc.rpartition("@")[2] + urlsplit(settings.url.reveal()).path
