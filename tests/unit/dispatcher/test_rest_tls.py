"""TLS of REST, by the real server and the real client, with certificates of the test's own making."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import structlog
from fastapi import FastAPI
from small_cluster import SmallCluster, until
from tests.integration.secured import KEY_PASSWORD, Certificates, make_certificates

from penstock.client.client import client_of
from penstock.client.errors import NoAnswerError
from penstock.errors import UsageError
from penstock.platform.doctor_rest import check_rest
from penstock.service import http_limits, tls
from penstock.service.access import access_of
from penstock.service.credentials import digest_of
from penstock.service.http_server import http_server
from penstock.service.tls import server_tls
from penstock.settings import ClusterSettings, Secret, settings_to_toml


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    made = make_certificates(tmp_path_factory.mktemp("certificates"))
    request = [
        "openssl",
        "req",
        "-new",
        "-key",
        made.key(),
        "-subj",
        "/CN=old",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
    ]
    sign = [
        "openssl", "x509", "-req", "-CA", made.authority, "-CAkey", made.folder / "ca.key", "-days", "-1",
        "-copy_extensions", "copy", "-out", made.certificate("expired"),
    ]  # fmt: skip
    asked = subprocess.run(request, check=True, capture_output=True, timeout=30).stdout
    subprocess.run(sign, input=asked, check=True, capture_output=True, timeout=30)
    return made


def trusted(made: Certificates) -> ClusterSettings:
    """Of dispatchers and of clients that trust them."""
    return ClusterSettings(
        rest_ssl_certfile=str(made.certificate()), rest_ssl_keyfile=str(made.key()),
        rest_ssl_cafile=str(made.authority), token=Secret("own"),
    )  # fmt: skip


@asynccontextmanager
async def serving(settings: ClusterSettings) -> AsyncGenerator[ClusterSettings]:
    """A dispatcher with these settings; the same, with its address."""
    async with (
        server_tls(settings) as context,
        http_server(app(), "127.0.0.1:0", access_of(settings, "127.0.0.1:0"), context) as listens,
    ):
        await until(lambda: accepts(listens), "it takes connections")
        yield replace(settings, rest=f"{'https' if context else 'http'}://{listens}")


@functools.cache
def app() -> FastAPI:
    """A dispatcher's, of a cluster without a leader; it keeps nothing."""
    return SmallCluster().app


async def accepts(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except OSError:
        return False
    writer.close()
    return True


async def ask(settings: ClusterSettings) -> None:
    async with client_of(settings) as client:
        assert (await client.jobs()).jobs == ()


async def complaint(settings: ClusterSettings) -> str:
    """What client and doctor say, which is the same."""
    with pytest.raises(NoAnswerError) as raised:
        await ask(settings)
    (finding,) = await check_rest(settings)
    assert not finding.ok
    assert finding.detail == str(raised.value)
    return finding.detail


async def test_a_client_that_trusts_the_authority_is_answered(certificates: Certificates) -> None:
    """As it is written down in the settings; the doctor says who asks; plain HTTP is not spoken."""
    async with serving(trusted(certificates)) as settings:
        await ask(settings)
        (finding,) = await check_rest(settings)
        assert (finding.ok, finding.detail) == (True, "shared has the role submit")
        viewer = f"ann view sha256:{digest_of('tok')}"
        assert "rest_ssl_cafile" in settings_to_toml(replace(settings, tokens=Secret(viewer)))


async def test_what_is_wrong_is_said(certificates: Certificates) -> None:
    """A strange authority, public ones alone, another name, and plain HTTP where TLS is spoken."""
    async with serving(trusted(certificates)) as settings:
        for cafile in (str(certificates.stranger), ""):
            said = await complaint(replace(settings, rest_ssl_cafile=cafile))
            assert "its certificate is not trusted (" in said
            assert "rest_ssl_cafile" in said
        said = await complaint(replace(settings, rest=settings.rest.replace("127.0.0.1", "localhost")))
        assert "its certificate is not trusted (Hostname mismatch" in said
        assert "speaks TLS has https://" in await complaint(
            replace(settings, rest=settings.rest.replace("https", "http"))
        )
        with pytest.raises(UsageError, match="rest_ssl_cafile: /nowhere"):
            client_of(replace(settings, rest_ssl_cafile="/nowhere"))


async def test_an_expired_certificate_is_not_trusted(certificates: Certificates) -> None:
    expired = replace(trusted(certificates), rest_ssl_certfile=str(certificates.certificate("expired")))
    async with serving(expired) as settings:
        assert "not trusted (certificate has expired)" in await complaint(settings)


async def test_tls_to_a_port_without(certificates: Certificates) -> None:
    """The certificate is asked for where there is none."""
    async with serving(replace(trusted(certificates), rest_ssl_certfile="", rest_ssl_keyfile="")) as settings:
        said = await complaint(replace(settings, rest=settings.rest.replace("http", "https")))
        assert "this speaks no TLS" in said


async def test_who_begins_tls_and_says_no_more_is_cut_off(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silent before the handshake or after it."""
    monkeypatch.setattr(http_limits, "HEAD_S", 0.3)
    async with serving(trusted(certificates)) as settings:
        host, _, port = settings.rest.removeprefix("https://").rpartition(":")
        for context in (None, settings.rest_trust()):
            reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
            async with asyncio.timeout(5):
                with contextlib.suppress(ConnectionError):  # a reset is an end as well
                    assert await reader.read() == b""
            writer.close()
        await ask(settings)


async def test_a_renewed_certificate_is_seen(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a restart; while the files do not fit each other the old one stays."""
    monkeypatch.setattr(tls, "RENEW_S", 0.02)
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    shutil.copy(certificates.certificate("expired"), certificate)
    shutil.copy(certificates.key(), key)
    files = replace(trusted(certificates), rest_ssl_certfile=str(certificate), rest_ssl_keyfile=str(key))

    async def replaced(source: Path, target: Path) -> None:
        shutil.copy(source, tmp_path / "new")
        (tmp_path / "new").replace(target)

    async with serving(files) as settings:
        assert "expired" in await complaint(settings)
        with structlog.testing.capture_logs() as lines:
            await replaced(certificates.certificate("client"), certificate)  # whose key is another

            async def told() -> bool:
                return any(line["log_level"] == "error" for line in lines)

            await until(told, "that the files do not fit is said")
            assert "expired" in await complaint(settings)
            await replaced(certificates.key("client"), key)

            async def works() -> bool:
                try:
                    await ask(settings)
                except NoAnswerError:
                    return False
                return True

            await until(works, "the new certificate is shown")


async def test_files_that_are_no_certificate_keep_the_dispatcher_from_starting(certificates: Certificates) -> None:
    good = trusted(certificates)
    for wrong in (
        replace(good, rest_ssl_certfile="/nowhere"), replace(good, rest_ssl_certfile=__file__),
        replace(good, rest_ssl_keyfile=str(certificates.key("client"))), replace(good, rest_ssl_keyfile=""),
        replace(good, rest_ssl_keyfile=str(certificates.folder / "client-encrypted.key")),
        replace(good, rest_ssl_certfile=""),
    ):  # fmt: skip
        with pytest.raises(UsageError, match="rest_ssl_keyfile"):
            async with server_tls(wrong):
                pass
    encrypted = replace(
        good, rest_ssl_certfile=str(certificates.certificate("client")),
        rest_ssl_keyfile=str(certificates.folder / "client-encrypted.key"), rest_ssl_keypassword=Secret(KEY_PASSWORD),
    )  # fmt: skip
    async with serving(encrypted) as settings:
        await ask(settings)
    both = replace(good, rest_ssl_certfile=str(certificates.folder / "server-chain.pem"), rest_ssl_keyfile="")
    async with serving(both) as settings:
        await ask(settings)


async def test_the_command_line_by_tls(certificates: Certificates, tmp_path: Path) -> None:
    """With a file of settings that names the authority, and without it."""
    async with serving(trusted(certificates)) as settings:
        file = tmp_path / "cluster.toml"
        for one, code in ((settings, 0), (replace(settings, rest_ssl_cafile=""), 1)):
            file.write_text(settings_to_toml(one))
            command = [sys.executable, "-m", "penstock.cli.main", "jobs", "--cluster", str(file)]
            ran = await asyncio.create_subprocess_exec(
                *command, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
            )
            _, errors = await asyncio.wait_for(ran.communicate(), 30)
            assert ran.returncode == code, errors
            assert code == 0 or b"rest_ssl_cafile" in errors
