"""An OpenID Connect provider on loopback, with keys of its own: discovery, keys, login by code with PKCE, and faults."""

from __future__ import annotations

import asyncio
import base64
import functools
import hashlib
import json
import time
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from html import escape
from typing import Any, Final
from urllib.parse import urlencode

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from small_cluster import SmallCluster
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from penstock.adapters.system_clock import SystemClock
from penstock.service.http_server import Readiness, http_server
from penstock.settings import OidcSettings
from penstock_dispatcher.app import dispatcher_app
from penstock_dispatcher.cluster import DispatcherPorts
from penstock_dispatcher.oidc.login import Login
from penstock_dispatcher.oidc.tokens import ProviderTokens, provider_of

AUDIENCE: Final = "penstock"
CLIENT: Final = "penstock-dashboard"
GROUPS: Final = {
    "vic": ["viewers"],
    "oda": ["operators", "viewers"],
    "sue": ["Team A", "submitters"],
    "nob": ["others"],
}
MADE: Final[dict[str, Callable[[], Any]]] = {
    "RS256": lambda: rsa.generate_private_key(65_537, 2_048),
    "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate,
}


@dataclass
class Key:
    """A key pair; PS256 and RS512 are signed with RS256's kind."""

    kid: str
    kind: str = "RS256"
    private: Any = None

    def __post_init__(self) -> None:
        self.private = self.private or MADE[self.kind]()

    def jwk(self, *, names_algorithm: bool = True) -> dict[str, Any]:
        """The public half."""
        algorithm = jwt.get_algorithm_by_name(self.kind)
        told = algorithm.to_jwk(self.private.public_key(), as_dict=True)
        return {**told, "kid": self.kid, "use": "sig"} | ({"alg": self.kind} if names_algorithm else {})


@functools.cache
def first_key() -> Key:
    """Of every provider: to make an RSA key takes a while."""
    return Key("first")


@dataclass
class LoopbackProvider:
    """One; what it does wrong is set from outside, also while it runs."""

    port: int
    keys: list[Key] = field(default_factory=lambda: [first_key()])
    asked: Counter[str] = field(default_factory=Counter)
    """How often each path was."""
    more_keys: list[Any] = field(default_factory=list)
    """JWKs beside those of `keys`."""
    says: dict[str, Any] = field(default_factory=dict)
    """Of itself, instead of the truth."""
    answers: dict[str, Response] = field(default_factory=dict)
    """By path, instead of what there is."""
    held: asyncio.Event | None = None
    """Until this is set nothing is answered."""
    lifetime_s: int = 300
    nonce: str | None = None
    """In ID tokens instead of the one that was asked with."""
    _codes: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def issuer(self) -> str:
        return f"http://127.0.0.1:{self.port}/realms/demo"

    def settings(self, **changes: Any) -> OidcSettings:
        """Of dispatchers that take its tokens."""
        given: dict[str, Any] = {
            "issuer": self.issuer, "audience": AUDIENCE, "roles_claim": "realm.groups", "view": "viewers",
            "operate": "operators, on-call", "submit": "submitters", "name_claim": "preferred_username",
        }  # fmt: skip
        return OidcSettings(**{**given, **changes})

    def claims(self, name: str = "vic", **changes: Any) -> dict[str, Any]:
        """What a token of somebody says; a change to None takes a claim away."""
        now_s = int(time.time())
        told = {
            "iss": self.issuer, "aud": [AUDIENCE, "others"], "sub": f"id-of-{name}", "preferred_username": name,
            "iat": now_s, "nbf": now_s, "exp": now_s + self.lifetime_s, "realm": {"groups": GROUPS[name]},
        }  # fmt: skip
        return {claim: value for claim, value in {**told, **changes}.items() if value is not None}

    def token(self, name: str = "vic", key: Key | None = None, algorithm: str = "", **changes: Any) -> str:
        """A signed one."""
        key = key or self.keys[0]
        return jwt.encode(self.claims(name, **changes), key.private, algorithm or key.kind, headers={"kid": key.kid})

    # -- as a server ----------------------------------------------------------------------------------------------------

    def app(self) -> Starlette:
        """All that it answers."""
        handlers = {"/.well-known/openid-configuration": self._discovery, "/keys": self._keys, "/login": self._login}
        routes = [Route("/realms/demo" + path, self._counted(path, handler)) for path, handler in handlers.items()]
        return Starlette(
            routes=[*routes, Route("/realms/demo/token", self._counted("/token", self._token), methods=["POST"])]
        )

    def _counted(self, path: str, handler: Callable[[Request], Any]) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            self.asked[path] += 1
            if self.held is not None:
                await self.held.wait()
            return self.answers[path] if path in self.answers else await handler(request)

        return answer

    async def _discovery(self, _: Request) -> Response:
        places = {"jwks_uri": "/keys", "authorization_endpoint": "/login", "token_endpoint": "/token"}
        told = {name: self.issuer + path for name, path in places.items()}
        return JSONResponse({"issuer": self.issuer, "response_types_supported": ["code"], **told, **self.says})

    async def _keys(self, _: Request) -> Response:
        return JSONResponse({"keys": [*self.more_keys, *(key.jwk() for key in self.keys)]})

    async def _login(self, request: Request) -> Response:
        """A page with a link for everybody who could log in, and one for whoever does not want to."""
        asked = dict(request.query_params)
        wanted = {"client_id": CLIENT, "response_type": "code", "code_challenge_method": "S256"}
        if wanted.items() - asked.items() or "openid" not in asked["scope"].split():
            return HTMLResponse(f"not asked as it has to be: {asked}", 400)
        links = [f"<p><a href='{escape(self._back(asked, name))}'>Log in as {name}</a>" for name in GROUPS]
        refused = asked["redirect_uri"] + "?" + urlencode({"error": "access_denied", "state": asked["state"]})
        return HTMLResponse("".join([*links, f"<p><a href='{escape(refused)}'>Do not log in</a>"]))

    def _back(self, asked: dict[str, str], name: str) -> str:
        code = uuid.uuid4().hex
        self._codes[code] = {**asked, "name": name}
        return asked["redirect_uri"] + "?" + urlencode({"code": code, "state": asked["state"], "iss": self.issuer})

    async def _token(self, request: Request) -> Response:
        async with request.form() as given:
            asked = self._codes.pop(str(given.get("code")), {})
            digest = hashlib.sha256(str(given.get("code_verifier")).encode()).digest()
            challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
            expected = {
                "client_id": CLIENT,
                "redirect_uri": asked.get("redirect_uri"),
                "grant_type": "authorization_code",
            }
            if challenge != asked.get("code_challenge") or any(given.get(k) != v for k, v in expected.items()):
                return JSONResponse({"error": "invalid_grant", "error_description": "marked"}, 400)
        nonce, name = self.nonce or asked["nonce"], asked["name"]
        identity = self.token(name, aud=CLIENT, nonce=nonce)
        return JSONResponse({"access_token": self.token(name), "id_token": identity, "token_type": "Bearer"})


@asynccontextmanager
async def with_login(cluster: SmallCluster, settings: OidcSettings) -> AsyncGenerator[ProviderTokens]:
    """Give the cluster a dispatcher at which the provider's people log in; what has to be asked who they are."""
    async with provider_of(settings, SystemClock()) as found:
        assert found is not None
        tokens = ProviderTokens(settings, found)
        ports = DispatcherPorts(
            cluster.log, cluster.blobs, cluster.metadata, cluster.clock, lambda: uuid.uuid4().hex,
            login=Login(settings, found, tokens),
        )  # fmt: skip
        cluster.app = dispatcher_app(ports, Readiness(), list)
        yield tokens


@asynccontextmanager
async def answering(provider: LoopbackProvider) -> AsyncGenerator[LoopbackProvider]:
    """It listens on its port, for so long."""
    async with http_server(provider.app(), f"127.0.0.1:{provider.port}"):
        yield provider


def forged(header: dict[str, Any], claims: dict[str, Any], signature: bytes = b"") -> str:
    """A token as nobody signs it."""
    parts = [json.dumps(header).encode(), json.dumps(claims).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)
