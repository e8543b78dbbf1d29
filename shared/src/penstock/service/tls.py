"""TLS of a service's web server: the certificate of the settings, and the next one when it is renewed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

import structlog

from penstock.errors import UsageError
from penstock.settings import ClusterSettings

RENEW_S: Final = 10.0
"""How often it is looked whether there is another certificate: who renews it writes the same files."""

_log = structlog.get_logger("penstock.service")


@asynccontextmanager
async def server_tls(settings: ClusterSettings) -> AsyncGenerator[ssl.SSLContext | None]:
    """What the web server of a dispatcher shows, kept current as long as it is used; None: it speaks plain HTTP.

    Raises:
        UsageError: certificate or key cannot be read, or do not belong together.
    """
    if not settings.rest_ssl_certfile:
        if settings.rest_ssl_keyfile:
            raise UsageError("rest_ssl_keyfile is a key without a certificate; rest_ssl_certfile names its file")
        yield None
        return
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    stamps = _stamps(settings)
    try:
        _load(context, settings)
    except OSError as error:  # ssl.SSLError is one
        raise UsageError(
            f"rest_ssl_certfile, rest_ssl_keyfile: {settings.rest_ssl_certfile}, {_keyfile(settings)}: no certificate "
            f"(PEM) with its key, or one whose rest_ssl_keypassword is another: {error}"
        ) from error
    watching = asyncio.create_task(_renew(context, settings, stamps))
    try:
        yield context
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching


async def _renew(context: ssl.SSLContext, settings: ClusterSettings, stamps: list[tuple[int, int]]) -> None:
    """Connections from then on see the new one; while the files do not fit each other, the old one."""
    while True:
        await asyncio.sleep(RENEW_S)
        now = _stamps(settings)
        if now == stamps:
            continue
        try:
            _load(context, settings)
        except OSError as error:
            _log.error("the new certificate cannot be used, the old one stays", error=str(error))
        else:
            stamps = now
            _log.info("certificate renewed", file=settings.rest_ssl_certfile)


def _load(context: ssl.SSLContext, settings: ClusterSettings) -> None:
    # Files that do not fit each other leave a context without a key: so it is tried on another one.
    for one in (ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), context):
        # With a password that is always given, a key that wants one never asks a terminal for it.
        one.load_cert_chain(settings.rest_ssl_certfile, _keyfile(settings), settings.rest_ssl_keypassword.reveal)


def _keyfile(settings: ClusterSettings) -> str:
    return settings.rest_ssl_keyfile or settings.rest_ssl_certfile  # one file may hold both


def _stamps(settings: ClusterSettings) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for path in (settings.rest_ssl_certfile, _keyfile(settings)):
        with contextlib.suppress(OSError):
            about = os.stat(path)
            found.append((about.st_mtime_ns, about.st_ino))
    return found
