"""The Metadata port on Redis: `SET NX PX` for the lease, compare-and-set in Lua for renewing and releasing it.

What may be done twice is tried once more when its connection turns out to be closed, as all are after a restart of
Redis. Acquiring and releasing are not, because the second try would meet its own first one: they look at the key
first, which also makes sure of the connection, and a lost answer is *unknown* and raises.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError

from penstock.errors import ExternalError, UsageError
from penstock.settings import RedisSettings

TIMEOUT_S: Final = 2.0
"""How long one operation may take, connecting included; below a third of the lease's time to live."""

_Operation = Callable[[str], Awaitable[Any]]
"""Does something with the key of this full name."""

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
        self._where = settings.address
        self._redis = redis_client(settings)

    async def acquire(self, key: str, value: bytes, ttl_ms: int) -> bool:
        """See `Metadata.acquire`."""
        if await self.get(key) is not None:
            return False
        return bool(await self._once(key, lambda name: self._redis.set(name, value, nx=True, px=ttl_ms)))

    async def renew(self, key: str, value: bytes, ttl_ms: int) -> bool:
        """See `Metadata.renew`."""
        return bool(await self._twice(key, lambda name: self._redis.eval(_RENEW, 1, name, value, ttl_ms)))

    async def release(self, key: str, value: bytes) -> bool:
        """See `Metadata.release`."""
        if await self.get(key) != value:
            return False
        return bool(await self._once(key, lambda name: self._redis.eval(_RELEASE, 1, name, value)))

    async def put(self, key: str, value: bytes) -> None:
        """See `Metadata.put`."""
        await self._twice(key, lambda name: self._redis.set(name, value))

    async def get(self, key: str) -> bytes | None:
        """See `Metadata.get`."""
        return await self._twice(key, lambda name: self._redis.get(name))

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()

    async def _twice(self, key: str, operation: _Operation) -> Any:
        return await self._once(key, lambda name: _again_when_closed(lambda: operation(name)))

    async def _once(self, key: str, operation: _Operation) -> Any:
        try:
            async with _cancellable(), asyncio.timeout(TIMEOUT_S):
                return await operation(self._prefix + key)
        except (AuthenticationError, NoPermissionError) as error:
            raise ExternalError(
                f"Redis at {self._where} refuses the login or the command ({error}); check user, password and "
                "permissions in the setting redis.url"
            ) from error
        except (RedisError, OSError, TimeoutError) as error:
            reason = str(error) or f"no answer within {TIMEOUT_S:g} s"
            raise ExternalError(
                f"Redis at {self._where}, key {self._prefix}{key}: {reason}; check that it runs and that the setting "
                "redis.url (with ssl_cafile and ssl_certfile, where it is rediss://) is right"
            ) from error


@asynccontextmanager
async def _cancellable() -> AsyncGenerator[None]:
    """Pass on a cancellation that the client has lost: it sends by `asyncio.wait_for`, which in Python 3.11 forgets one
    that arrives together with its result. A leader whose tasks went on after that would never stop leading."""
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    try:
        yield
    finally:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError


async def _again_when_closed(operation: Callable[[], Awaitable[Any]]) -> Any:
    try:
        return await operation()
    except RedisConnectionError:
        return await operation()


def redis_client(settings: RedisSettings) -> Redis:
    """A client that asks once and waits for `TIMEOUT_S`; it connects when first used.

    Raises:
        UsageError: the settings are not those of a Redis, or name certificates for one that is asked without TLS.
    """
    if not settings.address:  # the client's own error would show a part of the password
        raise UsageError(
            "setting redis.url is not a Redis address; write redis://[user:password@]host:port/database, and "
            "percent-encode what is no letter or digit in user and password"
        )
    try:
        return Redis.from_url(
            settings.url.reveal(),
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
            **_certificates(settings),  # what the address says of them counts more
        )
    except ValueError as error:
        raise UsageError(
            f"setting redis.url (at {settings.address}) is not a Redis address: {error}; write "
            "redis://[user:password@]host:port/database"
        ) from None  # the cause would show the password


def _certificates(settings: RedisSettings) -> dict[str, Any]:
    """As the client calls them."""
    files = {
        "ssl_ca_certs": settings.ssl_cafile, "ssl_certfile": settings.ssl_certfile, "ssl_keyfile": settings.ssl_keyfile,
    }  # fmt: skip
    named = {name: file for name, file in files.items() if file}
    if not named:
        return {}
    if not settings.url.reveal().startswith("rediss://"):
        raise UsageError(
            f"redis.ssl_cafile, ssl_certfile and ssl_keyfile are of no use to redis.url (at {settings.address}), which "
            "is asked without TLS; write rediss:// there, or leave them out"
        )
    try:
        context = ssl.create_default_context(cafile=settings.ssl_cafile or None)
        if settings.ssl_certfile:
            context.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile or None, password="")
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise UsageError(
            "the settings redis.ssl_cafile, ssl_certfile and ssl_keyfile cannot be used together "
            f"({settings.ssl_cafile!r}, {settings.ssl_certfile!r}, {settings.ssl_keyfile!r}): {error}"
        ) from error
    return named
