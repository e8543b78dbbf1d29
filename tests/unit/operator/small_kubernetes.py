"""So much of Kubernetes' API server as the operator asks: objects with versions, a status apart, finalizers, refusals."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import httpx2
from lightkube.config.kubeconfig import KubeConfig
from lightkube.config.models import Cluster, User
from lightkube.core.async_client import AsyncClient
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from penstock_operator.kubernetes import KubernetesApi

NAMESPACE = "here"
Document = dict[str, Any]


def refusal(code: int, reason: str) -> Response:
    """A `Status`, as the API server answers where it does not do what is asked."""
    return JSONResponse({"kind": "Status", "apiVersion": "v1", "reason": reason, "message": reason, "code": code}, code)


@dataclass
class SmallKubernetes:
    """All objects by plural and name, of one namespace."""

    objects: dict[tuple[str, str], Document] = field(default_factory=dict[tuple[str, str], Document])
    refuses: str = ""
    """A plural that nobody may change."""

    def __post_init__(self) -> None:
        self._versions = itertools.count(1)
        paths = [
            root + rest
            for root in ("/api/v1/namespaces/{namespace}", "/apis/{group}/{version}/namespaces/{namespace}")
            for rest in ("/{plural}", "/{plural}/{name}", "/{plural}/{name}/{part}")
        ]
        methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
        self.app = Starlette(routes=[Route(path, self._answer, methods=methods) for path in paths])

    def api(self) -> KubernetesApi:
        """What the operator asks it by, without a network."""
        config = KubeConfig.from_one(cluster=Cluster(server="http://k8s"), user=User(token="t"), namespace=NAMESPACE)
        transport = httpx2.ASGITransport(self.app)
        return KubernetesApi(AsyncClient(config, transport=transport, trust_env=False))

    # -- as kubectl does it ---------------------------------------------------------------------------------------------

    def put(self, plural: str, document: Document) -> Document:
        """`kubectl apply`: the generation counts changes of the spec."""
        name = document["metadata"]["name"]
        before = self.objects.get((plural, name), {"metadata": {"uid": f"uid-of-{name}", "generation": 0}})
        generation = before["metadata"]["generation"] + (before.get("spec") != document.get("spec"))
        metadata = {**before["metadata"], **document["metadata"], "namespace": NAMESPACE, "generation": generation}
        return self._store(plural, name, {**before, **document, "metadata": metadata})

    def get(self, plural: str, name: str) -> Document:
        """`kubectl get`."""
        return self.objects[plural, name]

    def delete(self, plural: str, name: str) -> None:
        """`kubectl delete --wait=false`."""
        found = self.objects[plural, name]
        metadata = {**found["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
        self._store(plural, name, {**found, "metadata": metadata})

    def named(self, plural: str) -> list[Document]:
        """All of a kind."""
        return [found for (kind, _), found in self.objects.items() if kind == plural]

    def _store(self, plural: str, name: str, document: Document) -> Document:
        metadata = {**document["metadata"], "resourceVersion": str(next(self._versions))}
        self.objects[plural, name] = {**document, "metadata": metadata}
        if "deletionTimestamp" in metadata and not metadata.get("finalizers"):
            del self.objects[plural, name]
        return {**document, "metadata": metadata}

    # -- as clients do it -----------------------------------------------------------------------------------------------

    async def _answer(self, request: Request) -> Response:
        plural, name = request.path_params["plural"], request.path_params.get("name", "")
        if request.method == "GET":
            return self._read(plural, name, request.query_params.get("labelSelector", ""))
        if plural == self.refuses:
            return refusal(403, "Forbidden")
        if request.method == "DELETE":
            return JSONResponse({}) if self.objects.pop((plural, name), None) else refusal(404, "NotFound")
        body = await request.json()
        if request.method == "POST":
            return self._create(plural, body)
        return self._change(plural, name, request.path_params.get("part", ""), request.method, body)

    def _read(self, plural: str, name: str, label: str) -> Response:
        if name:
            found = self.objects.get((plural, name))
            return JSONResponse(found) if found is not None else refusal(404, "NotFound")
        key, _, value = label.partition("=")
        items = [one for one in self.named(plural) if not key or one["metadata"].get("labels", {}).get(key) == value]
        return JSONResponse({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items})

    def _create(self, plural: str, body: Document) -> Response:
        metadata = body["metadata"]
        name = metadata.get("name") or f"{metadata['generateName']}{next(self._versions)}"
        if (plural, name) in self.objects:
            return refusal(409, "AlreadyExists")
        fresh = {"uid": f"uid-of-{name}", "generation": 1, "namespace": NAMESPACE}
        return JSONResponse(self._store(plural, name, {**body, "metadata": {**fresh, **metadata, "name": name}}), 201)

    def _change(self, plural: str, name: str, part: str, method: str, body: Document) -> Response:
        found = self.objects.get((plural, name))
        if found is None:
            return refusal(404, "NotFound")
        known = body.get("metadata", {}).get("resourceVersion", found["metadata"]["resourceVersion"])
        if known != found["metadata"]["resourceVersion"]:
            return refusal(409, "Conflict")
        if part == "status":
            changed = {**found, "status": body["status"]}
        elif method == "PUT":
            changed = {**found, **body}
        else:
            changed = {**found, **{key: {**found.get(key, {}), **value} for key, value in body.items()}}
        return JSONResponse(self._store(plural, name, changed) if changed != found else found)
