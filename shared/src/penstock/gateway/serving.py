"""A gateway as it runs: its address, who is let in, its sessions, until it is told to end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import uuid
from collections.abc import Callable

from penstock.adapters.system_clock import SystemClock
from penstock.errors import UsageError
from penstock.gateway.app import gateway_app
from penstock.gateway.sessions import Sessions
from penstock.service.access import Access, is_loopback
from penstock.service.credentials import credentials_of
from penstock.service.http_server import http_server
from penstock.settings import ClusterSettings


def gateway_access(settings: ClusterSettings, host: str) -> Access:
    """Who is let in: on loopback whoever reaches it, unless there is a token; beyond loopback nobody without one.

    Raises:
        UsageError: it listens beyond loopback and has no token; or the tokens are not readable.
    """
    credentials = credentials_of(settings)
    if not credentials and not is_loopback(host):
        raise UsageError(
            f"--host {host}: whoever can reach this address could run code, because CREATE FUNCTION imports Python; set "
            "PENSTOCK_TOKEN, which clients send as Authorization: Bearer, or listen on 127.0.0.1"
        )
    return Access(credentials, frozenset({host}))


async def serve(
    settings: ClusterSettings, host: str, port: int, *, parallelism: int, idle_timeout_ms: int,
    listening: Callable[[str], None],
) -> None:  # fmt: skip
    """Answer requests until SIGTERM or SIGINT; then all runs end.

    Args:
        settings: of the tokens.
        host: the address to listen on.
        port: 0 is any free one.
        parallelism: of the runs.
        idle_timeout_ms: how long a session is kept of which nothing is heard.
        listening: is told the address, HOST:PORT.

    Raises:
        UsageError: the address is taken, or beyond loopback without a token.
    """
    access = gateway_access(settings, host)
    sessions = Sessions(SystemClock(), lambda: str(uuid.uuid4()), parallelism, idle_timeout_ms)
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    async with http_server(gateway_app(sessions), address, access, option="--host, --port") as listens:
        watching = asyncio.create_task(sessions.watch())
        listening(listens)
        try:
            await told.wait()
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
            await sessions.end()
