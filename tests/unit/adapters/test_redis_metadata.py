"""What the adapter of Redis says when Redis does not answer as it should."""

from __future__ import annotations

import asyncio
import time

import pytest

from penstock.adapters.redis_metadata import TIMEOUT_S, RedisMetadata
from penstock.errors import ExternalError, UsageError
from penstock.settings import RedisSettings, Secret


async def test_nobody_listens() -> None:
    """Without a server every operation fails with its address and key and without the password."""
    metadata = RedisMetadata(RedisSettings(Secret("redis://ann:pa55word@127.0.0.1:1/3")), "c")
    for operation in (
        metadata.get("k"),
        metadata.put("k", b""),
        metadata.acquire("k", b"", 1),
        metadata.renew("k", b"", 1),
        metadata.release("k", b""),
    ):
        with pytest.raises(ExternalError, match=r"127\.0\.0\.1:1/3, key penstock:c:k") as caught:
            await operation
        assert "pa55word" not in str(caught.value)
    await metadata.close()


async def test_a_silent_server_is_not_waited_for() -> None:
    """A server that accepts and says nothing counts as failed after the timeout."""

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    metadata = RedisMetadata(RedisSettings(Secret(f"redis://127.0.0.1:{port}/0")), "c")
    started = time.monotonic()
    with pytest.raises(ExternalError, match="check that it runs"):
        await metadata.acquire("lease", b"me", 1_000)
    assert time.monotonic() - started < 2 * TIMEOUT_S
    await metadata.close()
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize(
    ("scheme", "files", "says"),
    [
        ("redis", {"ssl_cafile": "/etc/ca.pem"}, r"redis\.url \(at host:1/0\).*rediss://"),
        ("rediss", {"ssl_cafile": "/nowhere/ca.pem"}, "ssl_cafile.*/nowhere/ca.pem.*No such file"),
        ("rediss", {"ssl_certfile": __file__, "ssl_keyfile": __file__}, "ssl_certfile.*PEM"),
    ],
)
def test_certificates_that_are_of_no_use(scheme: str, files: dict[str, str], says: str) -> None:
    """They are refused at once, with the settings' names and without the password."""
    with pytest.raises(UsageError, match=says) as caught:
        RedisMetadata(RedisSettings(Secret(f"{scheme}://:pa55word@host:1/0"), **files), "c")
    assert "pa55word" not in str(caught.value)


@pytest.mark.parametrize("url", ["", "http://:pa55word@host/", "redis://:pa55word@host:port/"])
def test_addresses_that_are_none(url: str) -> None:
    """What is not an address of Redis is refused with the setting's name and without the password."""
    with pytest.raises(UsageError, match=r"redis\.url") as caught:
        RedisMetadata(RedisSettings(Secret(url)), "c")
    assert "pa55word" not in str(caught.value) + repr(caught.value.__cause__)


@pytest.mark.parametrize("sign", "/?#[@")
def test_passwords_that_are_not_encoded(sign: str) -> None:
    """An address is read otherwise than it was meant: no half of the password passes for a host or a port."""
    settings = RedisSettings(Secret(f"redis://ann:pa55{sign}w0rd@host:6379/0"))
    if sign == "@":
        assert settings.address == "host:6379/0"
        return
    with pytest.raises(UsageError, match=r"redis\.url.*percent-encode") as caught:
        RedisMetadata(settings, "c")
    assert not [half for half in ("pa55", "w0rd") if half in settings.address + str(caught.value)]
    assert caught.value.__cause__ is None
