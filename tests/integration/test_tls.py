"""Servers that speak TLS, with certificates of the test's own making."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.adapters.redis_metadata import RedisMetadata
from penstock.errors import ExternalError
from penstock.platform.free_ports import HOST, free_port
from penstock.platform.parts import cached_parts
from penstock.platform.redis import RedisServer
from penstock.settings import RedisSettings, Secret

pytestmark = pytest.mark.timeout(120)


@dataclass(frozen=True)
class Certificates:
    """Of a server on loopback, signed by an authority that nobody else knows."""

    authority: Path
    certificate: Path
    key: Path


@pytest.fixture(scope="session")
def certificates(tmp_path_factory) -> Certificates:
    """Made by openssl."""
    folder = tmp_path_factory.mktemp("certificates")
    made = Certificates(folder / "ca.pem", folder / "server.pem", folder / "server.key")
    new = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    for command in (
        (*new, "-subj", "/CN=authority", "-keyout", folder / "ca.key", "-out", made.authority),
        (
            *new, "-subj", "/CN=server", "-addext", f"subjectAltName=IP:{HOST}", "-addext", "basicConstraints=CA:FALSE",
            "-CA", made.authority, "-CAkey", folder / "ca.key", "-keyout", made.key, "-out", made.certificate,
        ),
    ):  # fmt: skip
        subprocess.run([str(part) for part in command], check=True, capture_output=True, timeout=30)
    return made


class TlsRedis(RedisServer):
    """A Redis with a second port, which speaks TLS."""

    certificates: Certificates
    tls_port: int

    async def prepare(self) -> None:
        await super().prepare()
        made = self.certificates
        lines = (
            f"tls-port {self.tls_port}", f"tls-cert-file {made.certificate}", f"tls-key-file {made.key}",
            f"tls-ca-cert-file {made.authority}", "tls-auth-clients no",
        )  # fmt: skip
        with (self.folder / "redis.conf").open("a") as file:
            file.write("\n".join(lines) + "\n")


@pytest.fixture
async def redis(certificates: Certificates, tmp_path: Path) -> AsyncIterator[TlsRedis]:
    """Its password is `secret`."""
    server = TlsRedis(cached_parts(), tmp_path, free_port(), password="secret")
    server.certificates, server.tls_port = certificates, free_port({server.port})
    await server.start()
    yield server
    await server.kill()


async def test_redis_by_tls(redis: TlsRedis) -> None:
    """`rediss://` with the authority in the address: leases and keys as ever."""
    address = f"rediss://:secret@{HOST}:{redis.tls_port}/0"
    trusting = f"{address}?ssl_ca_certs={redis.certificates.authority}"
    metadata = RedisMetadata(RedisSettings(url=Secret(trusting)), "tls")
    await metadata.put("k", b"v")
    assert await metadata.get("k") == b"v"
    assert await metadata.acquire("lease", b"me", 10_000)
    await metadata.close()


async def test_a_redis_with_a_strange_certificate_is_not_trusted(redis: TlsRedis) -> None:
    """The error says why, and shows no password."""
    metadata = RedisMetadata(RedisSettings(url=Secret(f"rediss://:secret@{HOST}:{redis.tls_port}/0")), "tls")
    with pytest.raises(ExternalError, match="certificate verify failed") as raised:
        await metadata.get("k")
    assert "secret" not in str(raised.value)
    await metadata.close()
