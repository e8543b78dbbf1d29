"""So much of Kubernetes' API server as one StatefulSet's scale takes: a token, versions, and refusals in its own form."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route


def refusal(code: int, reason: str, message: str) -> Response:
    """A `Status`, as the API server answers where it does not do what is asked."""
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message}
    return JSONResponse({**status, "code": code}, code)


@dataclass
class SmallApiServer:
    """One StatefulSet of one namespace."""

    namespace: str = "here"
    name: str = "demo-taskmanager"
    replicas: int = 1
    version: int = 100
    token: str = "first"
    allowed: set[str] = field(default_factory=lambda: {"GET", "PATCH"})
    sick: bool = False
    """Whether something before it answers, not it."""
    asked: list[str] = field(default_factory=list[str])

    @property
    def app(self) -> Starlette:
        """What is served."""
        path = "/apis/apps/v1/namespaces/{namespace}/statefulsets/{name}/scale"
        return Starlette(routes=[Route(path, self._scale, methods=["GET", "PATCH"])])

    async def _scale(self, request: Request) -> Response:
        self.asked.append(request.method)
        if self.sick:
            return PlainTextResponse("bad gateway", 502)
        if request.headers.get("authorization") != f"Bearer {self.token}":
            return refusal(401, "Unauthorized", "Unauthorized")
        if request.method not in self.allowed:
            verb = request.method.lower()
            return refusal(403, "Forbidden", f'statefulsets.apps "{self.name}" is forbidden: cannot {verb}')
        if (request.path_params["namespace"], request.path_params["name"]) != (self.namespace, self.name):
            return refusal(404, "NotFound", "statefulsets.apps not found")
        if request.method == "PATCH":
            assert request.headers["content-type"] == "application/merge-patch+json"
            refused = self._patch(await request.json())
            if refused is not None:
                return refused
        return JSONResponse(self._document())

    def _patch(self, patch: dict[str, Any]) -> Response | None:
        version = patch.get("metadata", {}).get("resourceVersion", str(self.version))
        if version != str(self.version):
            return refusal(
                409, "Conflict", "the object has been modified; please apply your changes to the latest version"
            )
        if patch["spec"]["replicas"] != self.replicas:
            self.replicas = patch["spec"]["replicas"]
            self.version += 1
        return None

    def _document(self) -> dict[str, Any]:
        """Numbers of 0 are left out, as the real one does."""
        return {
            "kind": "Scale", "apiVersion": "autoscaling/v1",
            "metadata": {"name": self.name, "namespace": self.namespace, "resourceVersion": str(self.version)},
            "spec": {"replicas": self.replicas} if self.replicas else {},
            "status": {"replicas": self.replicas, "selector": "app=demo"},
        }  # fmt: skip
