"""kopf watches a small API server on a socket; and the service as it is started, from the lease to its end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from penstock.service.http_server import http_server
from penstock.settings import ClusterSettings
from penstock_operator.__main__ import OperatorOptions, serve
from penstock_operator.definitions import JOB, KINDS, Kind
from penstock_operator.lease import NAME
from penstock_operator.resources import GROUP, VERSION
from penstock_operator.watching import watch

from ..dispatcher.small_cluster import until
from .small_kubernetes import SmallKubernetes

OBJECT = {
    "apiVersion": f"{GROUP}/{VERSION}",
    "kind": JOB.name,
    "metadata": {"name": "orders", "namespace": "here", "uid": "1", "resourceVersion": "7"},
}


class Watched:
    """So much of an API server as is watched: one job that is there, and changes of it."""

    def __init__(self) -> None:
        self.changes: asyncio.Queue[str] = asyncio.Queue()
        root = f"/apis/{GROUP}/{VERSION}"
        extensions = "apiextensions.k8s.io"
        groups = [
            {"name": name, "versions": [{"version": version}], "preferredVersion": {"version": version}}
            for name, version in ((GROUP, VERSION), (extensions, "v1"))
        ]
        known = {
            "/api": {"versions": ["v1"]},
            "/api/v1": {"resources": [_named("namespaces", "Namespace")]},
            "/apis": {"groups": groups},
            f"/apis/{extensions}/v1": {"resources": [_named("customresourcedefinitions", "CustomResourceDefinition")]},
        }
        routes = [Route(path, lambda _, said=said: JSONResponse(said)) for path, said in known.items()]
        routes.append(Route(root, self._kinds))
        routes += [Route(f"{root}/namespaces/here/{kind.plural}", self._objects) for kind in KINDS]
        self.kubernetes = SmallKubernetes()
        self.app = Starlette(routes=[*routes, *self.kubernetes.app.routes])
        self.asked: set[str] = set()

    async def _kinds(self, _: Request) -> Response:
        kinds = [_named(kind.plural, kind.name, namespaced=True) for kind in KINDS]
        return JSONResponse({"kind": "APIResourceList", "groupVersion": f"{GROUP}/{VERSION}", "resources": kinds})

    async def _objects(self, request: Request) -> Response:
        self.asked.add(request.headers.get("authorization", ""))
        mine = request.url.path.endswith(JOB.plural)
        if "watch" in request.query_params:
            return StreamingResponse(self._stream(mine), media_type="application/json")
        items = [OBJECT] if mine else []
        return JSONResponse({"kind": "List", "metadata": {"resourceVersion": "7"}, "items": items})

    async def _stream(self, mine: bool) -> AsyncIterator[str]:
        while True:
            kind = await self.changes.get() if mine else await asyncio.Event().wait()
            yield json.dumps({"type": kind, "object": OBJECT}) + "\n"


def _named(plural: str, kind: str, *, namespaced: bool = False) -> dict[str, Any]:
    verbs = ["get", "list", "watch", "patch"]
    return {"name": plural, "singularName": kind.lower(), "kind": kind, "namespaced": namespaced, "verbs": verbs}


@pytest.fixture
async def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Watched]:
    """It is the one of kubectl's current context."""
    server = Watched()
    async with http_server(server.app, "127.0.0.1:0") as address:
        context = {
            "apiVersion": "v1", "kind": "Config", "current-context": "x",
            "clusters": [{"name": "c", "cluster": {"server": f"http://{address}"}}],
            "users": [{"name": "u", "user": {"token": "secret"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "here"}}],
        }  # fmt: skip
        (tmp_path / "config").write_text(json.dumps(context))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        yield server


async def test_what_is_there_and_what_changes_is_looked_at(watched: Watched) -> None:
    """Of the namespaces that are named, with nothing asked for but the operator's own kinds."""
    seen: asyncio.Queue[tuple[Kind, str, str]] = asyncio.Queue()
    watching = asyncio.create_task(watch(lambda *what: seen.put_nowait(what), ["here"]))
    async with asyncio.timeout(20):
        assert await seen.get() == (JOB, "here", "orders")
        await watched.changes.put("MODIFIED")
        assert await seen.get() == (JOB, "here", "orders")
    assert watched.asked == {"Bearer secret"}
    watching.cancel()
    await asyncio.wait([watching])


async def test_the_service_holds_the_lease_and_gives_it_back(watched: Watched) -> None:
    """Meanwhile it looks after what there is."""
    kubernetes = watched.kubernetes
    spec = {"cluster": "demo", "source": {"file": "orders.py"}}
    kubernetes.put("penstockjobs", {**OBJECT, "metadata": {"name": "orders"}, "spec": spec})
    options = OperatorOptions("operator", None, "127.0.0.1:0", "text", "info", ["here"])
    serving = asyncio.create_task(serve(ClusterSettings(), options))

    async def is_looked_after() -> bool:
        return "status" in kubernetes.get("penstockjobs", "orders")

    await until(is_looked_after, "the job has a status")
    assert kubernetes.get("leases", NAME)["spec"]["holderIdentity"]
    conditions = kubernetes.get("penstockjobs", "orders")["status"]["conditions"]
    assert conditions[0]["message"] == "there is no PenstockCluster demo in namespace here"
    serving.cancel()
    await asyncio.wait([serving])
    assert not kubernetes.get("leases", NAME)["spec"]["holderIdentity"]
