"""The dashboard's login as the dispatcher sees it: what it offers, and which codes become tokens."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
import structlog
from oidc_provider import CLIENT, LoopbackProvider, answering, with_login
from small_cluster import ADDRESS, SmallCluster
from starlette.responses import JSONResponse, Response

from penstock.errors import UsageError
from penstock.platform.free_ports import free_port
from penstock.service.access import Access, Gate
from penstock_dispatcher.oidc.tokens import check_settings

OFFER, EXCHANGE = "/penstock/v1/login", "/penstock/v1/login/token"
VERIFIER = "v" * 43
BACK = f"{ADDRESS}/"


@asynccontextmanager
async def dispatcher(provider: LoopbackProvider, **changes: Any) -> AsyncGenerator[httpx2.AsyncClient]:
    """One at which the provider's people log in; a client without a token."""
    settings, cluster = provider.settings(client_id=CLIENT, **changes), SmallCluster()
    async with with_login(cluster, settings) as tokens:
        transport = httpx2.ASGITransport(Gate(cluster.app, Access(issuer=tokens)), raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url=ADDRESS) as http:
            yield http
    await cluster.stop()


@pytest.fixture
async def provider() -> AsyncGenerator[LoopbackProvider]:
    async with answering(LoopbackProvider(free_port())) as started:
        yield started


async def code_of(provider: LoopbackProvider, name: str) -> str:
    """What the browser of somebody who logs in comes back with."""
    digest = hashlib.sha256(VERIFIER.encode()).digest()
    asked = {
        "response_type": "code", "client_id": CLIENT, "redirect_uri": BACK, "scope": "openid", "state": "s",
        "nonce": "n", "code_challenge_method": "S256",
        "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
    }  # fmt: skip
    async with httpx2.AsyncClient(trust_env=False) as http:
        page = await http.get(provider.issuer + "/login", params=asked)
    link = page.text.split(f">Log in as {name}<")[0].rpartition("href='")[2].rstrip("'").replace("&amp;", "&")
    return parse_qs(urlsplit(link).query)["code"][0]


def given(code: str, **changes: str) -> dict[str, str]:
    """What the page sends then."""
    return {"code": code, "code_verifier": VERIFIER, "redirect_uri": BACK, "nonce": "n", **changes}


@pytest.mark.parametrize("kind", ["access_token", "id_token"])
async def test_a_code_becomes_a_token_once(provider: LoopbackProvider, kind: str) -> None:
    """The access token or the ID token, as the settings say; the second time it is worth nothing."""
    changes = {"login_token": kind} | ({"audience": CLIENT} if kind == "id_token" else {})
    async with dispatcher(provider, **changes) as http:
        offer = (await http.get(OFFER)).json()
        assert offer == {
            "issuer": provider.issuer, "authorization_endpoint": provider.issuer + "/login", "client_id": CLIENT,
            "scopes": "openid",
        }  # fmt: skip
        sent = given(await code_of(provider, "oda"))
        answer = await http.post(EXCHANGE, json=sent)
        assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
        headers = {"Authorization": f"Bearer {answer.json()['token']}"}
        who = (await http.get("/penstock/v1/whoami", headers=headers)).json()
        assert who == {"name": "oidc:oda", "role": "operate", "refused": {}}
        again = await http.post(EXCHANGE, json=sent)
        assert (again.status_code, "does not take this login (invalid_grant)" in again.text) == (400, True)
        assert "marked" not in again.text
        assert (await http.get("/penstock/v1/whoami")).status_code == 401


@pytest.mark.parametrize(
    ("changes", "name", "status", "said"),
    [
        ({"code_verifier": "w" * 43}, "oda", 400, "(invalid_grant)"),
        ({"redirect_uri": "http://evil.example/"}, "oda", 400, "(invalid_grant)"),
        ({"nonce": "other"}, "oda", 400, "is of another login (nonce)"),
        ({"nonce": "ä"}, "oda", 400, "is of another login (nonce)"),
        ({}, "nob", 403, "the token of oidc:nob gives no role here"),
    ],
)
async def test_what_does_not_fit_is_no_login(
    provider: LoopbackProvider, changes: dict[str, str], name: str, status: int, said: str
) -> None:
    """Another verifier, another place, another login; somebody without a role. No secret is in the log."""
    async with dispatcher(provider) as http:
        code = await code_of(provider, name)
        with structlog.testing.capture_logs() as lines:
            answer = await http.post(EXCHANGE, json=given(code, **changes))
        assert (answer.status_code, said in answer.text) == (status, True), answer.text
        assert code not in repr(lines)


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        (Response(b"<html>"), 503, "answers with HTTP 200, and no tokens"),
        (JSONResponse({"error": "<b>"}, 500), 400, "(HTTP 500, no ID token)"),
        (JSONResponse({"access_token": "a"}), 400, "no ID token"),
        (JSONResponse({"access_token": "a", "id_token": "a.b.c"}), 400, "that is not good here"),
        (Response(b" " * (1 << 20)), 503, "more than 256 KiB"),
    ],
)
async def test_a_provider_that_answers_nonsense(
    provider: LoopbackProvider, answer: Response, status: int, said: str
) -> None:
    """Is told from one that refuses."""
    provider.answers["/token"] = answer
    async with dispatcher(provider) as http:
        got = await http.post(EXCHANGE, json=given("code"))
        assert (got.status_code, said in got.text) == (status, True), got.text


async def test_who_may_ask_and_what_if_there_is_no_login(provider: LoopbackProvider) -> None:
    """Nobody needs a token for it, no page of another site may; the provider away is 503, no login 404."""
    async with dispatcher(provider) as http:
        evil = await http.post(EXCHANGE, json=given("code"), headers={"Origin": "http://evil.example"})
        assert evil.status_code == 403
        assert (await http.post(EXCHANGE, json={})).status_code == 400
    provider.says = {"token_endpoint": ""}
    async with dispatcher(provider) as http:
        assert "no login by authorization code" in (await http.get(OFFER)).text
    async with dispatcher(LoopbackProvider(free_port())) as http:
        assert (await http.get(OFFER)).status_code == 503
        assert (await http.post(EXCHANGE, json=given("code"))).status_code == 503
    cluster = SmallCluster()
    assert set((await cluster.http.get(OFFER)).json().values()) == {""}
    assert (await cluster.http.post(EXCHANGE, json=given("code"))).status_code == 404
    await cluster.stop()


def test_a_login_asks_for_openid() -> None:
    with pytest.raises(UsageError, match=r"oidc\.scopes"):
        check_settings(LoopbackProvider(1).settings(client_id=CLIENT, scopes="profile"))
