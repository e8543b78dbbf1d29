"""Tokens of an OpenID Connect provider: which are good, for what, and what happens while the provider is away or slow."""

from __future__ import annotations

import asyncio
import base64
import functools
import hashlib
import hmac
import json
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import jwt
import pytest
import structlog
from fastapi import FastAPI
from oidc_provider import AUDIENCE, Key, LoopbackProvider, answering, forged
from small_cluster import ADDRESS, SmallCluster, until
from starlette.responses import JSONResponse, RedirectResponse, Response

from penstock.adapters.system_clock import SystemClock
from penstock.errors import UsageError
from penstock.platform.free_ports import free_port
from penstock.service.access import Access, Gate, access_of
from penstock.service.audit import LOGGER
from penstock.service.credentials import Credentials, shared_token
from penstock.settings import ClusterSettings, OidcSettings, Secret, load_settings
from penstock_dispatcher.oidc import provider as provider_module
from penstock_dispatcher.oidc.provider import AGAIN_MS, RENEW_MS, Provider
from penstock_dispatcher.oidc.tokens import LEEWAY_S, ProviderTokens, check_settings, provider_of

WHOAMI = "/penstock/v1/whoami"
CANCEL = "/penstock/v1/jobs/nothing/cancel"


@functools.cache
def app() -> FastAPI:
    """A dispatcher's, of a cluster without a leader; it keeps nothing."""
    return SmallCluster().app


class SetClock(SystemClock):
    """The machine's, put forward at will."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.ahead_ms


class Asked:
    """A dispatcher that takes the provider's tokens and one of its own."""

    def __init__(self, provider: Provider, settings: OidcSettings, clock: SetClock) -> None:
        self.provider, self.clock = provider, clock
        credentials = Credentials((shared_token(Secret("own.with.dots")),))
        access = Access(credentials, issuer=ProviderTokens(settings, provider))
        self._transport = httpx2.ASGITransport(Gate(app(), access), raise_app_exceptions=False)

    async def ask(self, token: str, method: str = "GET", path: str = WHOAMI) -> httpx2.Response:
        """With this token."""
        headers = {b"Authorization": f"Bearer {token}".encode("latin-1")}
        async with httpx2.AsyncClient(transport=self._transport, base_url=ADDRESS, headers=headers) as http:
            return await http.request(method, path)

    async def status(self, token: str) -> tuple[int, str]:
        """Of a request to look, and all that is said."""
        answer = await self.ask(token)
        return answer.status_code, answer.text


@asynccontextmanager
async def asked(provider: LoopbackProvider, **changes: Any) -> AsyncGenerator[Asked]:
    """A dispatcher with these settings."""
    settings, clock = provider.settings(**changes), SetClock()
    async with provider_of(settings, clock) as found:
        assert found is not None
        yield Asked(found, settings, clock)


@pytest.fixture
async def provider() -> AsyncGenerator[LoopbackProvider]:
    async with answering(LoopbackProvider(free_port())) as started:
        yield started


# -- who may what -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "role"), [("vic", "view"), ("oda", "operate"), ("sue", "submit")])
async def test_the_claim_gives_the_role(provider: LoopbackProvider, name: str, role: str) -> None:
    """The highest of those whose values stand there; the cluster's own tokens are good beside it."""
    async with asked(provider) as dispatcher:
        answer = await dispatcher.ask(provider.token(name))
        assert answer.json() == {"name": f"oidc:{name}", "role": role, "refused": {}}
        assert (await dispatcher.ask("own.with.dots")).json()["name"] == "shared"
        changed = await dispatcher.ask(provider.token(name), "POST", CANCEL)
        assert (changed.status_code == 403) == (role == "view")
        assert dispatcher.provider.issuer == provider.issuer
    assert provider.asked == {"/.well-known/openid-configuration": 1, "/keys": 1}


@pytest.mark.parametrize(
    ("path", "claims", "role"),
    [
        ("roles", {"roles": ["viewers"]}, "view"),
        ("https://x.example/roles", {"https://x.example/roles": ["on-call"]}, "operate"),
        ("scope", {"scope": "openid submitters"}, "submit"),
        ("a.b.c", {"a": {"b": {"c": ["viewers"]}}}, "view"),
    ],
)
async def test_where_roles_stand(provider: LoopbackProvider, path: str, claims: dict[str, Any], role: str) -> None:
    """A claim, dots in its name or not, one inside others, or a text as of scopes."""
    async with asked(provider, roles_claim=path) as dispatcher:
        assert (await dispatcher.ask(provider.token(**claims))).json()["role"] == role


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        (None, "its claim realm.groups is not there"),
        ({}, "its claim realm.groups is not there"),
        ("marked", "its claim realm.groups is not there"),
        ({"groups": 7}, "its claim realm.groups is neither a text nor a list of texts"),
        ({"groups": {"marked": True}}, "its claim realm.groups is neither a text nor a list of texts"),
        ({"groups": ["viewers", 7]}, "its claim realm.groups is neither a text nor a list of texts"),
        ({"groups": []}, "has none of the values that oidc.view"),
        ({"groups": ["marked", "Viewers", "viewers,operators"]}, "has none of the values that oidc.view"),
    ],
)
async def test_without_a_role_nobody_is_let_in(provider: LoopbackProvider, claim: Any, said: str) -> None:
    """403 that names the claim, to look and to change; what stands in it is told to nobody."""
    async with asked(provider) as dispatcher:
        with structlog.testing.capture_logs() as lines:
            for method, path in (("GET", WHOAMI), ("POST", CANCEL)):
                answer = await dispatcher.ask(provider.token(realm=claim), method, path)
                assert answer.status_code == 403
                assert "the token of oidc:vic gives no role here" in answer.text
                assert said in answer.text
        told = [line for line in lines if line.get("logger") == LOGGER]
        assert [(line["who"], line["role"], line["outcome"]) for line in told] == [("oidc:vic", "none", "refused")] * 2
        assert "marked" not in repr(lines)


async def test_who_it_is_in_the_audit_log(provider: LoopbackProvider) -> None:
    """The claim that the settings name, or `sub`; nobody can be called as a token of the cluster is, or break a line."""
    async with asked(provider) as dispatcher:
        changed: tuple[tuple[dict[str, Any], str], ...] = (
            ({}, "oidc:oda"), ({"preferred_username": None}, "oidc:id-of-oda"),
            ({"preferred_username": 7}, "oidc:id-of-oda"), ({"preferred_username": "shared"}, "oidc:shared"),
            ({"preferred_username": "a\nb" * 99}, "oidc:" + ("a?b" * 99)[:128]),
        )  # fmt: skip
        for changes, who in changed:
            with structlog.testing.capture_logs() as lines:
                assert (await dispatcher.ask(provider.token("oda", **changes), "POST", CANCEL)).status_code != 403
            (line,) = (line for line in lines if line.get("logger") == LOGGER)
            assert (line["who"], line["role"]) == (who, "operate")
        status, text = await dispatcher.status(provider.token(preferred_username=None, sub=None))
        assert (status, "does not say whose it is (preferred_username, sub)" in text) == (401, True)


# -- which are good -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"exp": 0}, "has expired"),
        ({"exp": None}, "its claim exp is missing"),
        ({"exp": "soon"}, "no good JSON Web Token"),
        ({"nbf": 1 << 40}, "is not good yet"),
        ({"iat": 1 << 40}, "is not good yet"),
        ({"iss": "https://elsewhere.example"}, "(iss)"),
        ({"iss": None}, "its claim iss is missing"),
        ({"aud": "others"}, "is not for penstock (aud)"),
        ({"aud": ["others", "penstock2"]}, "is not for penstock (aud)"),
        ({"aud": None}, "its claim aud is missing"),
    ],
)
async def test_what_a_token_says_must_fit(provider: LoopbackProvider, changes: dict[str, Any], said: str) -> None:
    """Issuer, audience, times: 401 that says which."""
    async with asked(provider) as dispatcher:
        status, text = await dispatcher.status(provider.token(**changes))
        assert (status, said in text) == (401, True), text


async def test_clocks_may_differ_a_little(provider: LoopbackProvider) -> None:
    """By the leeway and no more."""
    now_s = int(time.time())
    async with asked(provider) as dispatcher:
        changed: tuple[tuple[dict[str, Any], int], ...] = (
            ({"exp": now_s - LEEWAY_S + 10}, 200), ({"exp": now_s - LEEWAY_S - 1}, 401),
            ({"nbf": now_s + LEEWAY_S - 10}, 200), ({"nbf": now_s + LEEWAY_S + 60}, 401),
        )  # fmt: skip
        for changes, status in changed:
            assert (await dispatcher.ask(provider.token(**changes))).status_code == status, changes


async def test_signatures_are_by_public_keys_of_the_provider(provider: LoopbackProvider) -> None:
    """Not `none`, not HS256 with the public key, not another key of the same name, not another header."""
    key = provider.keys[0]
    public = json.dumps(key.jwk()).encode()
    claims = provider.claims("sue")
    head = forged({"alg": "HS256", "kid": "first"}, claims).rpartition(".")[0]
    signature = hmac.new(public, head.encode(), hashlib.sha256).digest()
    stolen = provider.token("vic").split(".")
    raised = forged({}, claims).split(".")[1]
    deep = '{"alg":"RS256","kid":"first","a":' + "[" * 1_500 + "]" * 1_500 + "}"
    wrong = {
        "none": forged({"alg": "none", "kid": "first"}, claims),
        "no algorithm": forged({"kid": "first"}, claims),
        "algorithm of a wrong type": forged({"alg": ["RS256"], "kid": "first"}, claims),
        "no key": jwt.encode(claims, key.private, "RS256"),
        "key of a wrong type": forged({"alg": "RS256", "kid": 7}, claims),
        "HS256": forged({"alg": "HS256", "kid": "first"}, claims, signature),
        "another key": provider.token("sue", Key("first")),
        "another kind of key": provider.token("sue", Key("first", "ES256")),
        "an algorithm that the key is not for": provider.token("sue", algorithm="RS512"),
        "other claims": ".".join((stolen[0], raised, stolen[2])),
        "critical": jwt.encode(claims, key.private, "RS256", headers={"kid": "first", "crit": ["x"], "x": 1}),
        "no claims": jwt.api_jws.encode(b"[]", key.private, "RS256", headers={"kid": "first"}),
        "nothing": "..", "no base64": "a.b.c", "odd letters": "\xe4.\xe4.\xe4",
        "deep header": f"{base64.urlsafe_b64encode(deep.encode()).rstrip(b'=').decode()}.e30.AA",
        "deep": forged({}, {}) .replace("e30", "W1tb" * 6_000, 1),
    }  # fmt: skip
    async with asked(provider) as dispatcher:
        assert (await dispatcher.ask(provider.token("sue"))).status_code == 200
        for what, token in wrong.items():
            status, text = await dispatcher.status(token)
            assert status == 401, (what, text)
            assert "this cluster wants a token, and this one" in text, what
        assert (await dispatcher.ask("own.with.dot")).status_code == 401
    assert provider.asked["/keys"] == 1


async def test_every_kind_of_key(provider: LoopbackProvider) -> None:
    """RSA, elliptic curves, Ed25519; a key that names no algorithm is good for those of its kind; others are left."""
    keys = [Key("ec", "ES256"), Key("ed", "EdDSA")]
    free, encrypts = Key("free"), Key("encrypts")
    provider.keys += keys
    provider.more_keys += [
        free.jwk(names_algorithm=False), {**encrypts.jwk(), "use": "enc"},
        {"kty": "AKP", "kid": "new", "alg": "ML-DSA-44"},
        {"kty": "oct", "kid": "secret", "k": "c2VjcmV0", "alg": "HS256"}, {"kty": "RSA", "kid": "broken", "n": 7},
        {"kty": "RSA", "kid": "odd", "alg": ["x"]}, {"kid": 7}, {},
    ]  # fmt: skip
    async with asked(provider) as dispatcher:
        for key in keys:
            assert (await dispatcher.status(provider.token(key=key)))[0] == 200
        for algorithm in ("RS256", "PS256", "RS512"):
            assert (await dispatcher.status(provider.token(key=free, algorithm=algorithm)))[0] == 200
        assert (await dispatcher.status(provider.token(key=encrypts)))[0] == 401
        secret = jwt.encode(provider.claims(), b"secret" * 8, "HS256", headers={"kid": "secret"})
        assert (await dispatcher.status(secret))[0] == 401


# -- keys that change ---------------------------------------------------------------------------------------------------


async def test_a_new_key_is_fetched_but_not_for_everybody(provider: LoopbackProvider) -> None:
    """At once for the first token that names it; names that nobody knows make no more requests than one in 10 s."""
    async with asked(provider) as dispatcher:
        before = provider.token()
        assert (await dispatcher.status(before))[0] == 200
        provider.keys = [Key("second", "ES256")]
        dispatcher.clock.ahead_ms += AGAIN_MS
        answers = await asyncio.gather(*(dispatcher.status(provider.token()) for _ in range(5)))
        assert [status for status, _ in answers] == [200] * 5
        assert provider.asked["/keys"] == 2
        assert (await dispatcher.status(before))[0] == 401
        unknown = Key("unknown", "ES256")
        for _ in range(20):
            status, text = await dispatcher.status(provider.token(key=unknown))
            assert (status, "does not have (kid)" in text) == (401, True)
        assert provider.asked["/keys"] == 2
        dispatcher.clock.ahead_ms += AGAIN_MS
        await dispatcher.status(provider.token(key=unknown))
        assert provider.asked["/keys"] == 3


async def test_a_key_that_was_withdrawn_is_good_no_longer(provider: LoopbackProvider) -> None:
    """Keys that are old are asked for while tokens are answered by them."""
    async with asked(provider) as dispatcher:
        token = provider.token()
        assert (await dispatcher.status(token))[0] == 200
        provider.keys = [Key("second", "ES256")]
        assert (await dispatcher.status(token))[0] == 200
        dispatcher.clock.ahead_ms += RENEW_MS

        async def refused() -> bool:
            return (await dispatcher.status(token))[0] == 401

        await until(refused, "the key is not good any more")


# -- a provider that is away, slow or wrong -----------------------------------------------------------------------------


async def test_a_provider_that_is_away_at_the_start() -> None:
    """The dispatcher starts, its own tokens are good, the provider's are answered 503; once it is there, they are."""
    provider = LoopbackProvider(free_port())
    async with asked(provider) as dispatcher:
        with structlog.testing.capture_logs() as lines:
            for _ in range(3):
                status, text = await dispatcher.status(provider.token())
                assert (status, provider.issuer in text, "cannot be asked now" in text) == (503, True, True)
        assert len([line for line in lines if line.get("log_level") == "warning"]) <= 1
        assert (await dispatcher.status("own.with.dots"))[0] == 200
        assert (await dispatcher.ask("", path="/healthz")).status_code == 200
        async with answering(provider):
            assert (await dispatcher.status(provider.token()))[0] == 503  # it is not asked again so soon
            dispatcher.clock.ahead_ms += AGAIN_MS
            assert (await dispatcher.status(provider.token()))[0] == 200


async def test_a_provider_that_goes_away() -> None:
    """Tokens whose keys are known are good as before, however long; of others it is said why they are not."""
    provider = LoopbackProvider(free_port())
    async with asked(provider) as dispatcher:
        async with answering(provider):
            dispatcher.clock.ahead_ms += AGAIN_MS
            assert (await dispatcher.status(provider.token()))[0] == 200
        dispatcher.clock.ahead_ms += 100 * RENEW_MS
        for _ in range(3):
            assert (await dispatcher.status(provider.token()))[0] == 200
            dispatcher.clock.ahead_ms += RENEW_MS
        status, text = await dispatcher.status(provider.token(key=Key("second", "ES256")))
        assert (status, "cannot be asked now" in text) == (503, True)


async def test_a_slow_provider_holds_up_nobody_else(
    provider: LoopbackProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has a key that is known does not wait; who has not waits so long and no longer."""
    async with asked(provider) as dispatcher:
        assert (await dispatcher.status(provider.token()))[0] == 200
        provider.held = asyncio.Event()
        dispatcher.clock.ahead_ms += RENEW_MS
        monkeypatch.setattr(provider_module, "ANSWER_S", 0.5)
        waiting = asyncio.create_task(dispatcher.status(provider.token(key=Key("second", "ES256"))))
        left = asyncio.create_task(dispatcher.status(provider.token(key=Key("second", "ES256"))))
        for _ in range(5):
            assert (await dispatcher.status(provider.token()))[0] == 200
        assert not waiting.done()
        left.cancel()  # whoever leaves takes the answer from nobody
        status, text = await waiting
        assert (status, "no answer within 0.5 s" in text) == (503, True)
        provider.held.set()
        dispatcher.clock.ahead_ms += AGAIN_MS
        assert (await dispatcher.status(provider.token()))[0] == 200


@pytest.mark.parametrize(
    ("path", "answer", "said"),
    [
        ("/keys", Response(b'{"keys": [' + b" " * (1 << 20) + b"]}"), "more than 256 KiB"),
        ("/keys", JSONResponse({"keys": []}), "has no key with a kid"),
        ("/keys", JSONResponse({"keys": [7]}), "holds no set of keys"),
        ("/keys", Response(b"<html>"), "holds no set of keys"),
        ("/keys", Response(b"", 500), "answers with HTTP 500"),
        ("/keys", RedirectResponse("http://127.0.0.1:1/"), "answers with HTTP 307"),
        ("/.well-known/openid-configuration", JSONResponse([]), "holds no description of a provider"),
        ("/.well-known/openid-configuration", JSONResponse({}, 404), "answers with HTTP 404"),
    ],
)
async def test_answers_that_are_none(provider: LoopbackProvider, path: str, answer: Response, said: str) -> None:
    """They are told, and do not replace keys that are known."""
    provider.answers[path] = answer
    async with asked(provider) as dispatcher:
        status, text = await dispatcher.status(provider.token())
        assert (status, said in text) == (503, True), text
        provider.answers.clear()
        dispatcher.clock.ahead_ms += AGAIN_MS
        assert (await dispatcher.status(provider.token()))[0] == 200
        provider.answers[path] = answer
        dispatcher.clock.ahead_ms += RENEW_MS
        assert (await dispatcher.status(provider.token(key=Key("second", "ES256"))))[0] == 503
        assert (await dispatcher.status(provider.token()))[0] == 200


@pytest.mark.parametrize(
    ("says", "said"),
    [
        ({"issuer": "https://elsewhere.example"}, "calls itself 'https://elsewhere.example'"),
        ({"jwks_uri": "http://elsewhere.example/keys"}, "its jwks_uri is no https:// URL"),
        ({"jwks_uri": "https://["}, "its jwks_uri is no https:// URL"),
        ({"token_endpoint": "ftp://127.0.0.1/"}, "its token_endpoint is no https:// URL"),
        ({"jwks_uri": 7}, "no description of a provider"),
    ],
)
async def test_what_a_provider_says_of_itself_must_fit(
    provider: LoopbackProvider, says: dict[str, Any], said: str
) -> None:
    """It has to be the one of the settings, and all its places safe."""
    provider.says = says
    async with asked(provider) as dispatcher:
        status, text = await dispatcher.status(provider.token())
        assert (status, said in text) == (503, True), text


# -- settings -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"issuer": "http://login.example.org"}, "https:// URL"),
        ({"issuer": "http://127.0.0.1.example.org"}, "https:// URL"),
        ({"issuer": "login.example.org"}, "https:// URL"),
        ({"issuer": "https://"}, "https:// URL"),
        ({"issuer": "https://["}, "https:// URL"),
        ({"issuer": "https://login.example.org?x=1"}, "no query"),
        ({"audience": ""}, "oidc.audience: say whom"),
        ({"view": "", "operate": " , ", "submit": ""}, "nobody would have a role"),
        ({"issuer": ""}, "says nothing without a provider"),
        ({"ssl_cafile": "/nowhere.pem"}, "oidc.ssl_cafile: /nowhere.pem"),
    ],
)
async def test_settings_that_prove_nothing_are_refused(changes: dict[str, Any], said: str) -> None:
    """Before anything listens."""
    with pytest.raises(UsageError, match=said):
        async with provider_of(LoopbackProvider(1).settings(**changes), SystemClock()):
            pytest.fail("it was started")


def test_settings_come_from_the_environment_and_allow_other_addresses() -> None:
    """With a provider nobody comes in without a token, so a dispatcher may listen beyond loopback."""
    variables = {"ISSUER": "https://login.example.org/", "AUDIENCE": AUDIENCE, "SUBMIT": "admins"}
    settings = load_settings(environ={f"PENSTOCK_OIDC_{name}": value for name, value in variables.items()})
    check_settings(settings.oidc)
    check_settings(ClusterSettings().oidc)
    issuer = ProviderTokens(settings.oidc, Provider(settings.oidc.issuer, httpx2.AsyncClient(), SystemClock()))
    access = access_of(settings, "0.0.0.0:1", issuer=issuer)
    assert access.wants_token
    with pytest.raises(UsageError, match=r"oidc\.issuer"):
        access_of(settings, "0.0.0.0:1")
