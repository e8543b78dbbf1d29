"""Which role may do what: every route states one and demands it, and every change and attempt is in the audit log."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
import structlog
from fastapi import FastAPI
from small_cluster import ADDRESS, SmallCluster, small_cluster, sources
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from penstock.client import ClusterClient
from penstock.client.errors import RefusedError
from penstock.service.access import Access, Gate
from penstock.service.audit import LOGGER
from penstock.service.credentials import Role, credentials_of, digest_of
from penstock.settings import ClusterSettings, Secret
from penstock_dispatcher.route_roles import ROLES, guard_routes

TOKENS = {Role.VIEW: "tok-of-vic", Role.OPERATE: "tok-of-oda", Role.SUBMIT: "tok-of-sue"}
NAMES = {Role.VIEW: "vic", Role.OPERATE: "oda", Role.SUBMIT: "sue"}
EXPIRED = "tok-of-eve"
SETTINGS = ClusterSettings(
    token=Secret("tok-of-all"),
    tokens=Secret(
        ",".join(f"{NAMES[role]} {role} sha256:{digest_of(token)}" for role, token in TOKENS.items())
        + f",eve submit sha256:{digest_of(EXPIRED)} 2020-01-01"
    ),
)


def asker(cluster: SmallCluster, token: str) -> httpx2.AsyncClient:
    """Who asks this cluster with a token, from 127.0.0.1."""
    app = Gate(cluster.app, Access(credentials_of(SETTINGS)))
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx2.AsyncClient(transport=transport, base_url=ADDRESS, headers=headers)


@asynccontextmanager
async def quiet_cluster() -> AsyncGenerator[SmallCluster]:
    """Without a leader: what is let in is refused for that, or because there is no such job."""
    async with small_cluster(leads=False, slots=0) as cluster:
        yield cluster


def routes(app: FastAPI) -> list[tuple[str, str]]:
    """Method and path of every route that there is, HEAD beside GET."""
    found: list[tuple[str, str]] = []
    for route in app.router.routes:
        assert isinstance(route, Route), f"what is behind {route} has no role of its own"
        found += [(method, route.path) for method in sorted(route.methods or ())]
    return found


def role_of(method: str, path: str) -> Role | None:
    """As it is stated."""
    method = "GET" if method == "HEAD" else method
    return ROLES[f"{method} {path.removeprefix('/v1')}"]


async def test_every_route_demands_the_role_that_it_states() -> None:
    """401 without a token, 403 with one of a lower role, which says what is missing; anything else with it."""
    async with quiet_cluster() as cluster:
        every = routes(cluster.app)
        assert len(every) > 150
        assert {f"{method} {path.removeprefix('/v1')}" for method, path in every if method != "HEAD"} == set(ROLES)
        for method, path in every:
            needs, url = role_of(method, path), re.sub(r"\{[^}]*\}", "ab" * 16, path)
            for has in (None, *Role):
                async with asker(cluster, TOKENS[has] if has else "") as http:
                    answer = await http.request(method, url)
                where = f"{method} {path} as {has}: {answer.text[:200]}"
                if needs is None or (has is not None and has >= needs):
                    assert answer.status_code not in (401, 403, 405), where
                elif has is None:
                    assert answer.status_code == 401, where
                    assert method == "HEAD" or "wants a token" in answer.text, where
                else:
                    assert answer.status_code == 403, where
                    assert f"this needs the role {needs}, and {NAMES[has]} has the role {has}" in answer.text, where


def test_a_change_is_for_those_who_operate_or_submit() -> None:
    """So a route that is added with another method than GET cannot be stated as one to look at."""
    for route, role in ROLES.items():
        changes = not route.startswith("GET ") or route.endswith("/yarn-cancel")
        if route == "POST /penstock/v1/login/token":  # which changes nothing, and keeps nothing
            changes = False
        assert changes == (role in (Role.OPERATE, Role.SUBMIT)), route


@pytest.mark.parametrize("path", ["/new", "/penstock/v1/new"])
def test_a_route_without_a_role_keeps_the_dispatcher_from_starting(path: str) -> None:
    """Nobody has to remember it."""

    async def new(_: Request) -> Response:
        return Response()

    with pytest.raises(ValueError, match=f"GET {path}: it is not stated which role"):
        guard_routes([Route(path, new)])
    with pytest.raises(ValueError, match="needs one role"):
        guard_routes([Route("/jobs", new, methods=["GET", "POST"])])
    with pytest.raises(ValueError, match="one by one"):
        guard_routes([Mount("/jobs", routes=[Route("/", new)])])


async def test_a_route_that_no_gate_stands_before_lets_nobody_in() -> None:
    """The default is to refuse."""
    async with quiet_cluster() as cluster:
        transport = httpx2.ASGITransport(cluster.app, raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url=ADDRESS) as http:
            assert (await http.get("/jobs")).status_code == 403
            assert (await http.get("/healthz")).status_code == 200


async def test_who_asks_is_told_who_they_are() -> None:
    """The shared token may do everything, as ever; so may all where no token is wanted."""
    async with quiet_cluster() as cluster:
        expected = {TOKENS[role]: (NAMES[role], str(role)) for role in Role} | {"tok-of-all": ("shared", "submit")}
        for token, who in expected.items():
            async with asker(cluster, token) as http:
                answer = (await http.get("/penstock/v1/whoami")).json()
                assert (answer["name"], answer["role"]) == who
        found = await cluster.client.whoami()
        assert (found.name, found.role) == ("anonymous", "submit")


async def test_an_expired_token_is_refused_and_says_so() -> None:
    """And who shows another that is wrong learns nothing."""
    async with quiet_cluster() as cluster:
        async with asker(cluster, EXPIRED) as http:
            answer = await http.get("/jobs")
            assert answer.status_code == 401
            assert "the token of eve expired at the end of 2020-01-01" in answer.text
            assert answer.headers["www-authenticate"].startswith("Bearer")
        async with asker(cluster, "tok-of-noone") as http:
            assert "none of the cluster's" in (await http.get("/jobs")).text


async def test_a_body_is_not_read_of_somebody_who_may_not_send_it() -> None:
    """A submission of any size by who may only look is refused at its head."""
    async with quiet_cluster() as cluster:
        pieces = 0

        async def endless() -> AsyncGenerator[bytes]:
            nonlocal pieces
            while pieces < 100:
                pieces += 1
                yield b"x" * 1_000

        async with asker(cluster, TOKENS[Role.OPERATE]) as http:
            answer = await http.post("/penstock/v1/jobs", content=endless())
        assert answer.status_code == 403
        assert pieces <= 1


# -- the audit log ------------------------------------------------------------------------------------------------------


def audit(lines: list[Any]) -> list[dict[str, Any]]:
    """The lines of that logger."""
    return [line for line in lines if line.get("logger") == LOGGER]


async def test_every_change_is_written_down() -> None:
    """Who, what, which job, outcome, from where; the name that was asked by does not matter, the id is told."""
    async with small_cluster() as cluster:
        with structlog.testing.capture_logs() as lines:
            async with asker(cluster, TOKENS[Role.SUBMIT]) as sue, asker(cluster, TOKENS[Role.OPERATE]) as oda:
                files = {"job": ("j", cluster_document(cluster)), "sources": ("s", sources())}
                job = (await sue.post("/penstock/v1/jobs", files=files)).json()["job"]
                await cluster.checkpointed(job)
                savepoint = await oda.post(f"/penstock/v1/jobs/{job[:8]}/savepoints", json={})
                assert savepoint.status_code == 202
                assert (await oda.post(f"/penstock/v1/jobs/{job}/rescale", json={"parallelism": 0})).status_code == 400
                cancelled = await oda.get(f"/jobs/{job}/yarn-cancel", headers={"X-Forwarded-For": "10.1.2.3"})
                assert cancelled.status_code == 202
        made, saved, rescaled, ended = audit(lines)
        common = {"event": "change", "logger": LOGGER, "log_level": "info", "peer": "127.0.0.1"}
        assert made == common | {
            "who": "sue", "role": "submit", "action": "POST /penstock/v1/jobs", "kind": "SubmitJob", "job": job,
            "request": job, "outcome": "accepted", "status": 202,
        }  # fmt: skip
        assert saved == common | {
            "who": "oda", "role": "operate", "action": "POST /penstock/v1/jobs/{job}/savepoints",
            "kind": "TakeSavepoint", "job": job, "request": savepoint.json()["request"], "outcome": "accepted",
            "status": 202,
        }  # fmt: skip
        assert (rescaled["outcome"], rescaled["status"], rescaled["job"]) == ("refused", 400, job)
        assert (ended["kind"], ended["job"], ended["action"]) == ("CancelJob", job, "GET /jobs/{job_id}/yarn-cancel")
        assert ended["forwarded_for"] == "10.1.2.3"


async def test_what_is_refused_is_written_down_and_no_secret_is() -> None:
    """Without a token, with a wrong or expired one, with the wrong role, from a page of another site."""
    async with quiet_cluster() as cluster:
        attempts: list[tuple[str, dict[str, str], str, int]] = [
            ("", {}, "anonymous", 401),
            ("tok-of-noone", {}, "anonymous", 401),
            (EXPIRED, {}, "anonymous", 401),
            (TOKENS[Role.VIEW], {}, "vic", 403),
            (TOKENS[Role.SUBMIT], {"Origin": "http://evil.example"}, "sue", 403),
        ]
        for token, headers, who, status in attempts:
            with structlog.testing.capture_logs() as lines:
                async with asker(cluster, token) as http:
                    path = f"/penstock/v1/jobs/a%0Ab/cancel?token={TOKENS[Role.VIEW]}"
                    assert (await http.post(path, headers=headers, content=b"marked")).status_code == status
            (line,) = audit(lines)
            assert (line["who"], line["outcome"], line["status"]) == (who, "refused", status)
            assert line["reason"]
            assert "tok-of" not in repr(lines)
            assert "marked" not in repr(lines)
        with structlog.testing.capture_logs() as lines:  # looking is no change, but a wrong token is told
            for token in ("", TOKENS[Role.VIEW], "tok-of-noone"):
                async with asker(cluster, token) as http:
                    await http.get("/jobs")
        assert [line["action"] for line in audit(lines)] == ["GET /jobs"]


async def test_a_change_that_fails_is_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 503 where the cluster does not answer, and 500 for a defect of ours."""
    async with quiet_cluster() as cluster, asker(cluster, TOKENS[Role.OPERATE]) as http:
        with structlog.testing.capture_logs() as lines:
            await http.post("/savepoint-disposal", json={"savepoint-path": "x" * 1_000})
        assert audit(lines)[0]["savepoint"] == "x" * 200
        assert audit(lines)[0]["outcome"] == "refused"

        async def broken(*_: Any) -> Any:
            raise KeyError("a defect")

        monkeypatch.setattr("penstock_dispatcher.flink.savepoint_disposal.SavepointDisposal.dispose", broken)
        with structlog.testing.capture_logs() as lines:
            assert (await http.post("/savepoint-disposal", json={})).status_code == 500
        assert (audit(lines)[0]["outcome"], audit(lines)[0]["status"]) == ("failed", 500)


async def test_the_client_says_what_the_token_lacks() -> None:
    """As `penstock cancel` prints it."""
    async with quiet_cluster() as cluster:
        app = Gate(cluster.app, Access(credentials_of(SETTINGS)))
        transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
        async with ClusterClient(ADDRESS, transport, token=Secret(TOKENS[Role.VIEW])) as client:
            assert (await client.jobs()).jobs == ()
            with pytest.raises(RefusedError, match="needs the role operate, and vic has the role view"):
                await client.cancel("orders")


def cluster_document(cluster: SmallCluster) -> bytes:
    """A submission's JSON part."""
    return json.dumps(cluster.document()).encode()
