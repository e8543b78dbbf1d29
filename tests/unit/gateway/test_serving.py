"""Who is let in, and the command."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import uuid

import httpx2
import pytest
from small_gateway import ADDRESS, DEADLINE_S, Clock

from penstock.cli.main import main
from penstock.errors import UsageError
from penstock.gateway.app import gateway_app
from penstock.gateway.serving import gateway_access, serve
from penstock.gateway.sessions import Sessions
from penstock.service.access import Gate
from penstock.settings import ClusterSettings, Secret

TOKEN = "a" * 32
SETTINGS = ClusterSettings(token=Secret(TOKEN))


def test_beyond_loopback_a_token_is_demanded() -> None:
    for host in ("127.0.0.1", "localhost", "::1"):
        assert not gateway_access(ClusterSettings(), host).wants_token
        assert gateway_access(SETTINGS, host).wants_token
    with pytest.raises(UsageError, match=r"^--host 0\.0\.0\.0: whoever can reach this address could run code"):
        gateway_access(ClusterSettings(), "0.0.0.0")
    assert gateway_access(SETTINGS, "0.0.0.0").wants_token


async def test_only_tokens_that_may_submit_are_let_in() -> None:
    access = gateway_access(SETTINGS, "127.0.0.1")
    sessions = Sessions(Clock(), lambda: str(uuid.uuid4()))
    transport = httpx2.ASGITransport(Gate(gateway_app(sessions), access))
    async with httpx2.AsyncClient(transport=transport, base_url=ADDRESS) as http:
        assert (await http.get("/healthz")).status_code == 200
        refused = await http.post("/v3/sessions", json={})
        assert refused.status_code == 401
        assert "wants a token" in refused.json()["errors"][0]
        headers = {"Authorization": f"Bearer {TOKEN}"}
        assert (await http.post("/v3/sessions", json={}, headers=headers)).status_code == 200


async def test_a_token_that_may_only_look_is_refused() -> None:
    line = f"somebody view sha256:{'0' * 64}"
    from penstock.service.credentials import digest_of

    settings = ClusterSettings(tokens=Secret(line.replace("0" * 64, digest_of("looks"))))
    sessions = Sessions(Clock(), lambda: str(uuid.uuid4()))
    transport = httpx2.ASGITransport(Gate(gateway_app(sessions), gateway_access(settings, "127.0.0.1")))
    async with httpx2.AsyncClient(transport=transport, base_url=ADDRESS) as http:
        refused = await http.post("/v3/sessions", json={}, headers={"Authorization": "Bearer looks"})
        assert refused.status_code == 403
        assert "somebody has no token with the role submit" in refused.json()["errors"][0]


async def test_a_page_of_another_site_is_refused() -> None:
    sessions = Sessions(Clock(), lambda: str(uuid.uuid4()))
    access = gateway_access(ClusterSettings(), "127.0.0.1")
    transport = httpx2.ASGITransport(Gate(gateway_app(sessions), access))
    async with httpx2.AsyncClient(transport=transport, base_url=ADDRESS) as http:
        for headers in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}):
            assert (await http.post("/v3/sessions", json={}, headers=headers)).status_code == 403


async def test_it_serves_until_it_is_told_to_end() -> None:
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(
        serve(ClusterSettings(), "127.0.0.1", 0, parallelism=1, idle_timeout_ms=60_000, listening=listening.set_result)
    )
    async with asyncio.timeout(DEADLINE_S):
        address = await listening
        async with httpx2.AsyncClient(base_url=f"http://{address}", trust_env=False) as http:
            assert (await http.get("/v2/info")).json()["productName"] == "Penstock"
        os.kill(os.getpid(), signal.SIGTERM)
        await serving


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delitem(sys.modules, "penstock.gateway.serving", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "penstock.service.http_server", raising=False)
    assert main(["sql-gateway"]) == 2
    assert "needs uvicorn, which is not installed: pip install 'penstock-streaming[cluster]'" in capsys.readouterr().err


def test_wrong_options_are_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_TOKEN", raising=False)
    assert main(["sql-gateway", "--host", "0.0.0.0"]) == 2
    assert "--host 0.0.0.0: whoever can reach this address" in capsys.readouterr().err
    assert main(["sql-gateway", "--session-idle-timeout", "soon"]) == 2
    assert "--session-idle-timeout: 'soon' is not a duration" in capsys.readouterr().err
