"""`penstock dispatcher`: parses, wires, runs."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import httpx2

from penstock.adapters.cluster_ports import cluster_log, cluster_metadata, cluster_store
from penstock.adapters.system_clock import SystemClock
from penstock.core.garbage import ease_collection
from penstock.ports import Clock
from penstock.service.access import Access, access_of
from penstock.service.credentials import token_between_services
from penstock.service.http_server import (
    Readiness,
    ServiceOptions,
    http_server,
    run_service,
    service_parser,
    watch_readiness,
)
from penstock.service.process_exit import leave
from penstock.service.tls import server_tls
from penstock.settings import ClusterSettings, shown_settings
from penstock_dispatcher.app import dispatcher_app
from penstock_dispatcher.cluster import DispatcherPorts
from penstock_dispatcher.oidc.login import Login
from penstock_dispatcher.oidc.tokens import ProviderTokens, provider_of

TASK_MANAGER_S: Final = 5.0
"""How long a task manager is waited for that is asked for its logs."""


@dataclass(frozen=True)
class DispatcherOptions(ServiceOptions):
    """`penstock dispatcher`."""

    allowed_host: list[str]
    insecure_no_token: bool


def main(argv: Sequence[str] | None = None) -> int:
    """Run a dispatcher; the exit code."""
    parser = service_parser(
        "dispatcher", "Serve the REST interface of a cluster; run as many dispatchers as you like.", "127.0.0.1:8081"
    )
    parser.add_argument(
        "--allowed-host", action="append", default=[], metavar="NAME",
        help="a name that clients call this service by, besides localhost, addresses and those in rest of the settings",
    )  # fmt: skip
    parser.add_argument(
        "--insecure-no-token", action="store_true",
        help="listen beyond loopback without a token: whoever reaches it may run code on the cluster",
    )  # fmt: skip
    return run_service(parser, argv, DispatcherOptions, serve)


async def serve(settings: ClusterSettings, options: DispatcherOptions) -> None:
    """Answer requests until cancelled."""
    ease_collection()
    clock = SystemClock()
    async with provider_of(settings.oidc, clock) as provider:
        issuer = login = None
        if provider is not None:
            issuer = ProviderTokens(settings.oidc, provider)
            login = Login(settings.oidc, provider, issuer) if settings.oidc.client_id else None
        access = access_of(settings, options.http, options.allowed_host, issuer, insecure=options.insecure_no_token)
        await _serve(settings, options.http, access, clock, login)


async def _serve(settings: ClusterSettings, address: str, access: Access, clock: Clock, login: Login | None) -> None:
    readiness = Readiness()
    async with (
        cluster_log(settings, "dispatcher") as log,
        cluster_metadata(settings) as metadata,
        cluster_store(settings) as blobs,
        httpx2.AsyncClient(trust_env=False, headers=_proof(settings), timeout=TASK_MANAGER_S) as http,
    ):
        shown = shown_settings(settings)
        ports = DispatcherPorts(log, blobs, metadata, clock, lambda: uuid.uuid4().hex, http, shown, login=login)
        app = dispatcher_app(ports, readiness, list)
        async with server_tls(settings) as tls, http_server(app, address, access, tls):
            await watch_readiness(readiness, log, blobs, clock)


def _proof(settings: ClusterSettings) -> dict[str, str]:
    proof = token_between_services(settings.token)
    return {"Authorization": f"Bearer {proof.reveal()}"} if proof else {}


if __name__ == "__main__":
    leave(main)
