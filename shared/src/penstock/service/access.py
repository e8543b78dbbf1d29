"""Who may ask a service for more than its health. Whoever may submit a job runs code, so nobody else may.

Two dangers, two answers. Somebody on the network: a service that listens beyond loopback demands a token. A page in the
browser of somebody who may: its requests name the site that they come from (`Origin`, `Sec-Fetch-Site`), one that
pretends to be of this site by a name of its own for this address (DNS rebinding) names that in `Host`, and no page may
send a header of this interface, or JSON, elsewhere without asking first (a preflight, which is never granted).
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.errors import UsageError
from penstock.settings import ClusterSettings, Secret

OPEN_PATHS: Final = ("/healthz", "/readyz", "/metrics")
"""For probes and for Prometheus, which carry no token and call pods by their addresses."""
PAGE: Final = "/"
PAGE_FILES: Final = "/ui/"
"""The dispatcher's dashboard: it is the same on every cluster and holds nothing of one, so it is shown without a token,
which it asks for then. By what name it is called matters all the same."""
OWN_HEADER: Final = "x-requested-with"
"""With any value it says that a request is of no page of another site."""
OWN_PATHS: Final = "/penstock/"
"""Where it is demanded; Flink's clients do not send it, and are told from pages by their lack of an `Origin`."""
_READING: Final = ("GET", "HEAD", "OPTIONS")
_CHANGING_GET: Final = "/yarn-cancel"
"""The end of the paths at which Flink's pages change something by GET: any page may send that without a preflight."""


@dataclass(frozen=True)
class Access:
    """What is demanded of requests."""

    token: Secret = field(default_factory=Secret)
    """Empty: none."""
    hosts: frozenset[str] = frozenset()
    """Names by which this service is called, besides `localhost` and addresses in figures."""

    def refusal(self, method: str, path: str, headers: Headers) -> Response | None:
        """The answer to a request that is refused; None if it is let in."""
        if path in OPEN_PATHS:
            return None
        if self.token and _is_of_page(method, path):
            return None
        if self.token and not self._has_token(headers):
            refused = _refused(
                401, "this cluster wants a token: set PENSTOCK_TOKEN, or token in the cluster's settings"
            )
            refused.headers["www-authenticate"] = 'Bearer realm="penstock"'
            return refused
        host = headers.get("host", "")
        if not self.token and not self._is_called(host):
            return _refused(403, f"this service is not called {host!r}; name it: penstock dispatcher --allowed-host")
        if method not in _READING and _is_of_another_site(headers, host):
            return _refused(403, "this request comes from a page of another site")
        if method == "GET" and path.endswith(_CHANGING_GET) and not self.token and not _is_of_this_site(headers, host):
            return _refused(403, "only pages of this site may cancel by GET; use PATCH /jobs/ID?mode=cancel")
        if method == "POST" and path.startswith(OWN_PATHS) and not self._needs_preflight(headers):
            return _refused(403, "send JSON as application/json, or the header X-Requested-With with any value")
        return None

    def _has_token(self, headers: Headers) -> bool:
        kind, _, given = headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self.token.reveal().encode())

    def _is_called(self, host: str) -> bool:
        """A name in figures is what it says; another one is what its owner's name server says at the moment."""
        name = _name(host)
        known = name == "" or name == "localhost" or name.endswith(".localhost") or name in self.hosts
        return known or _address(name) is not None

    def _needs_preflight(self, headers: Headers) -> bool:
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        return kind == "application/json" or OWN_HEADER in headers or bool(self.token)


class Gate:
    """Runs an application for those who may ask."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            refused = self._access.refusal(scope["method"], scope["path"], Headers(scope=scope))
            if refused is not None:
                await refused(scope, receive, send)
                return
        await self._app(scope, receive, send)


def access_of(settings: ClusterSettings, http: str, hosts: Iterable[str] = (), *, insecure: bool = False) -> Access:
    """What a service demands that listens on `http` (HOST:PORT).

    Raises:
        UsageError: it listens beyond loopback and has no token, which `insecure` allows.
    """
    host = http.rpartition(":")[0].strip("[]")
    if not settings.token and not insecure and not is_loopback(host):
        raise UsageError(
            f"--http {http}: whoever can reach this address could run code on the cluster; give it a token "
            "(PENSTOCK_TOKEN, PENSTOCK_TOKEN_FILE, or token in the cluster's settings), listen on 127.0.0.1, or, where "
            "something else keeps others out, say --insecure-no-token"
        )
    public = (urlsplit(address.strip()).hostname or "" for address in settings.rest.split(","))
    return Access(settings.token, frozenset(map(_name, (*public, *hosts, host))) - {""})


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach that host."""
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def _is_of_page(method: str, path: str) -> bool:
    return method in _READING and (path == PAGE or path.startswith(PAGE_FILES))


def _refused(status: int, text: str) -> Response:
    return JSONResponse({"errors": [text]}, status)


def _is_of_another_site(headers: Headers, host: str) -> bool:
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return True
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2].lower() != host.lower()


def _is_of_this_site(headers: Headers, host: str) -> bool:
    """Whether it certainly is: browsers say it of every request to this machine, and elsewhere by the referer."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    return urlsplit(headers.get("referer", "")).netloc.lower() == host.lower()


def _name(host: str) -> str:
    """The name in `name:port`, lower case."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return (host.partition(":")[0] if host.count(":") == 1 else host).lower().rstrip(".")


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
