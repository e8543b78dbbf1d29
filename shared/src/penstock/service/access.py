"""Who is let in by a service, beyond its health. What they may do there is for the routes to say, which name a `Role`.

Two dangers, two answers. Somebody on the network: a service that listens beyond loopback demands a token. A page in the
browser of somebody who may: its requests name the site that they come from (`Origin`, `Sec-Fetch-Site`), one that
pretends to be of this site by a name of its own for this address (DNS rebinding) names that in `Host`, and no page may
send a header of this interface, or JSON, elsewhere without asking first (a preflight, which is never granted).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.errors import UsageError
from penstock.service.audit import record_refusal
from penstock.service.credentials import (
    ANYBODY,
    PASSER_BY,
    Credentials,
    Identity,
    WrongTokenError,
    credentials_of,
    inner_credentials_of,
)
from penstock.settings import ClusterSettings

OPEN_PATHS: Final = ("/healthz", "/readyz", "/metrics")
"""For probes and for Prometheus, which carry no token and call pods by their addresses."""
PAGE: Final = "/"
PAGE_FILES: Final = "/ui/"
DOCUMENTATION: Final = "/documentation/"
"""The dispatcher's dashboard, and the documentation: they are the same on every cluster and hold nothing of one, so they
are shown without a token, which the dashboard asks for then. By what name they are called matters all the same."""
LOGIN: Final = "/penstock/v1/login"
LOGIN_TOKEN: Final = "/penstock/v1/login/token"
"""Of the dashboard, for who has no token yet."""
OWN_HEADER: Final = "x-requested-with"
"""With any value it says that a request is of no page of another site."""
OWN_PATHS: Final = "/penstock/"
"""Where it is demanded; Flink's clients do not send it, and are told from pages by their lack of an `Origin`."""
_READING: Final = ("GET", "HEAD", "OPTIONS")
_CHANGING_GET: Final = "/yarn-cancel"
"""The end of the paths at which Flink's pages change something by GET: any page may send that without a preflight."""


IDENTITY: Final = "penstock.identity"
"""Where an application finds, in the scope of a request, the `Identity` of who asks."""


class NotAdmittedError(Exception):
    """Why somebody is not let in."""

    def __init__(self, status: int, reason: str, who: Identity = PASSER_BY) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.who = who


class Issuer(Protocol):
    """Somebody else who makes tokens, and signs them."""

    async def identify(self, token: str) -> Identity:
        """Who has this token; always one with a role.

        Raises:
            WrongTokenError: nobody, or nobody any longer.
            NotAdmittedError: somebody without a role (403), or it cannot be found out now (503).
        """
        ...


@dataclass(frozen=True)
class Access:
    """What is demanded of requests."""

    credentials: Credentials = field(default_factory=Credentials)
    """Without any, and without an `issuer`, no token is wanted."""
    hosts: frozenset[str] = frozenset()
    """Names by which this service is called, besides `localhost` and addresses in figures."""
    issuer: Issuer | None = None
    """Whose tokens count besides."""

    @property
    def wants_token(self) -> bool:
        """Whether one is demanded at all."""
        return bool(self.credentials) or self.issuer is not None

    async def admit(self, method: str, path: str, headers: Headers) -> Identity:
        """Who asks.

        Raises:
            NotAdmittedError: they are not let in.
        """
        if path in OPEN_PATHS or (self.wants_token and _is_of_page(method, path)):
            return PASSER_BY
        if path in (LOGIN, LOGIN_TOKEN):
            who = PASSER_BY
        else:
            who = await self._identity(headers) if self.wants_token else ANYBODY
        if problem := self._problem(method, path, headers):
            raise NotAdmittedError(403, problem, who)
        return who

    async def _identity(self, headers: Headers) -> Identity:
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not given.strip():
            raise NotAdmittedError(
                401, "this cluster wants a token: set PENSTOCK_TOKEN, or token in the cluster's settings"
            )
        try:
            return await self._identify(given.strip())
        except WrongTokenError as error:
            raise NotAdmittedError(
                401, f"this cluster wants a token, and {error}; set PENSTOCK_TOKEN, or token in the cluster's settings"
            ) from None

    async def _identify(self, token: str) -> Identity:
        """The cluster's own tokens come first; what is none of them and has the form of a JWT is the issuer's."""
        try:
            return self.credentials.identify(token)
        except WrongTokenError:
            if self.issuer is None or token.count(".") != 2:
                raise
        return await self.issuer.identify(token)

    def _problem(self, method: str, path: str, headers: Headers) -> str:
        """What makes a request look like one that a page of another site had sent; empty if nothing does."""
        host = headers.get("host", "")
        if not self.wants_token and not self._is_called(host):
            return (
                f"this service is not called {host!r}; call it localhost, or by its address; penstock dispatcher takes "
                "further names by --allowed-host"
            )
        if method not in _READING and _is_of_another_site(headers, host):
            return "this request comes from a page of another site"
        if method == "GET" and _changes_by_get(path) and not self.wants_token and not _is_of_this_site(headers, host):
            return "only pages of this site may cancel by GET; use PATCH /jobs/ID?mode=cancel"
        if method == "POST" and path.startswith(OWN_PATHS) and not self._needs_preflight(headers):
            return "send JSON as application/json, or the header X-Requested-With with any value"
        return ""

    def _is_called(self, host: str) -> bool:
        """A name in figures is what it says; another one is what its owner's name server says at the moment."""
        name = _name(host)
        known = name == "" or name == "localhost" or name.endswith(".localhost") or name in self.hosts
        return known or _address(name) is not None

    def _needs_preflight(self, headers: Headers) -> bool:
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        return kind == "application/json" or OWN_HEADER in headers or self.wants_token


class Gate:
    """Runs an application for those who may ask, and tells it who they are."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            try:
                scope[IDENTITY] = await self._access.admit(scope["method"], scope["path"], headers)
            except NotAdmittedError as refused:
                if _is_told(scope, headers):
                    record_refusal(scope, refused.who, refused.status, refused.reason)
                await _answer(refused)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _is_told(scope: Scope, headers: Headers) -> bool:
    """Whether a refusal is one for the audit log: of a change, or of a token that was given."""
    return scope["method"] not in _READING or _changes_by_get(scope["path"]) or "authorization" in headers


def _answer(refused: NotAdmittedError) -> Response:
    given = {"www-authenticate": 'Bearer realm="penstock"'} if refused.status == 401 else None
    return refusal(refused.status, refused.reason, given)


def refusal(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    """The answer to a request that is refused."""
    return JSONResponse({"errors": [text]}, status, headers)


def access_of(
    settings: ClusterSettings, http: str, hosts: Iterable[str] = (), issuer: Issuer | None = None, *,
    insecure: bool = False, inner: bool = False,
) -> Access:  # fmt: skip
    """What a service demands that listens on `http` (HOST:PORT); an `inner` one is asked by services alone.

    Raises:
        UsageError: it listens beyond loopback and has no token, which `insecure` allows; or the tokens are not readable.
    """
    host = http.rpartition(":")[0].strip("[]")
    credentials = inner_credentials_of(settings) if inner else credentials_of(settings)
    if not credentials and issuer is None and not insecure and not is_loopback(host):
        raise UsageError(
            f"--http {http}: whoever can reach this address could run code on the cluster; give it a token "
            "(PENSTOCK_TOKEN, PENSTOCK_TOKEN_FILE, or token in the cluster's settings; or several, with a role each: "
            "penstock token; or oidc.issuer), listen on 127.0.0.1, or, where "
            "something else keeps others out, say --insecure-no-token"
        )
    public = (urlsplit(address.strip()).hostname or "" for address in settings.rest.split(","))
    return Access(credentials, frozenset(map(_name, (*public, *hosts, host))) - {""}, issuer)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach that host."""
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def _is_of_page(method: str, path: str) -> bool:
    return method in _READING and (path == PAGE or path.startswith((PAGE_FILES, DOCUMENTATION)))


def _changes_by_get(path: str) -> bool:
    return path.endswith(_CHANGING_GET)


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
