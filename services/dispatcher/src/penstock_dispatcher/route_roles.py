"""Which role each route needs: all of them stand here, and one that does not keeps the dispatcher from starting.

Flink's routes stand without `/v1`, below which they are a second time. A test asks each route as each role.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.service.access import IDENTITY, refusal
from penstock.service.audit import audited, record_refusal
from penstock.service.credentials import PASSER_BY, Identity, Role

_OPEN: Final = """
GET /healthz
GET /readyz
GET /metrics
GET /
GET /ui/{path:path}
GET /documentation/{path:path}
GET /penstock/v1/login
POST /penstock/v1/login/token
"""
"""Without a token: what probes, Prometheus and a browser that has none yet ask for. It says nothing of any job."""

_VIEW: Final = """
GET /openapi.json
GET /docs
GET /penstock/v1/whoami
GET /penstock/v1/overview
GET /penstock/v1/jobs
GET /penstock/v1/jobs/{job}
GET /penstock/v1/jobs/{job}/checkpoints
GET /penstock/v1/jobs/{job}/failures
GET /penstock/v1/jobs/{job}/log
GET /penstock/v1/jobs/{job}/workers/logs
GET /penstock/v1/jobs/{job}/artifact
GET /penstock/v1/jobs/{job}/source
GET /penstock/v1/jobs/{job}/collected
GET /penstock/v1/jobs/{job}/collected/{name:path}
GET /penstock/v1/jobs/{job}/requests/{request_id}
GET /penstock/v1/savepoints
GET /penstock/v1/savepoints/find
GET /penstock/v1/taskmanagers
GET /penstock/v1/find
GET /penstock/v1/runs
GET /penstock/v1/runs/{run}
GET /penstock/v1/runs/{run}/log
GET /penstock/v1/runs/{run}/requests/{request_id}
GET /penstock/v1/schedules
GET /penstock/v1/schedules/{name}

GET /config
GET /overview
GET /jobs
GET /jobs/overview
GET /jobs/metrics
GET /applications/overview
GET /applications/{application_id}
GET /applications/{application_id}/exceptions
GET /applications/{application_id}/jobmanager/config
GET /jobmanager/config
GET /jobmanager/environment
GET /jobmanager/metrics
GET /jobmanager/logs
GET /jobmanager/log
GET /jobmanager/stdout
GET /jobmanager/logs/{name}
GET /jobmanager/thread-dump
GET /jars
GET /datasets
GET /jobs/{job_id}
GET /jobs/{job_id}/status
GET /jobs/{job_id}/plan
GET /jobs/{job_id}/config
GET /jobs/{job_id}/exceptions
GET /jobs/{job_id}/accumulators
GET /jobs/{job_id}/execution-result
GET /jobs/{job_id}/metrics
GET /jobs/{job_id}/jobmanager/config
GET /jobs/{job_id}/jobmanager/environment
GET /jobs/{job_id}/resource-requirements
GET /jobs/{job_id}/rescales/{page:path}
GET /jobs/{job_id}/checkpoints
GET /jobs/{job_id}/checkpoints/config
GET /jobs/{job_id}/checkpoints/details/{checkpoint}
GET /jobs/{job_id}/checkpoints/details/{checkpoint}/subtasks/{vertex_id}
GET /jobs/{job_id}/savepoints/{trigger_id}
GET /jobs/{job_id}/checkpoints/{trigger_id}
GET /savepoint-disposal/{trigger_id}
GET /jobs/{job_id}/vertices/{vertex_id}
GET /jobs/{job_id}/vertices/{vertex_id}/taskmanagers
GET /jobs/{job_id}/vertices/{vertex_id}/subtasktimes
GET /jobs/{job_id}/vertices/{vertex_id}/backpressure
GET /jobs/{job_id}/vertices/{vertex_id}/watermarks
GET /jobs/{job_id}/vertices/{vertex_id}/accumulators
GET /jobs/{job_id}/vertices/{vertex_id}/flamegraph
GET /jobs/{job_id}/vertices/{vertex_id}/metrics
GET /jobs/{job_id}/vertices/{vertex_id}/jm-operator-metrics
GET /jobs/{job_id}/vertices/{vertex_id}/subtasks/accumulators
GET /jobs/{job_id}/vertices/{vertex_id}/subtasks/metrics
GET /jobs/{job_id}/vertices/{vertex_id}/subtasks/{index}
GET /jobs/{job_id}/vertices/{vertex_id}/subtasks/{index}/metrics
GET /jobs/{job_id}/vertices/{vertex_id}/subtasks/{index}/attempts/{attempt}
GET /jobs/{job_id}/vertices/{vertex_id}/subtasks/{index}/attempts/{attempt}/accumulators
GET /taskmanagers
GET /taskmanagers/metrics
GET /taskmanagers/{worker_id}
GET /taskmanagers/{worker_id}/metrics
GET /taskmanagers/{worker_id}/log
GET /taskmanagers/{worker_id}/logs
GET /taskmanagers/{worker_id}/logs/{name}
GET /taskmanagers/{worker_id}/stdout
GET /taskmanagers/{worker_id}/thread-dump
"""

_OPERATE: Final = """
DELETE /penstock/v1/jobs/{job}
POST /penstock/v1/jobs/{job}/cancel
POST /penstock/v1/jobs/{job}/stop
POST /penstock/v1/jobs/{job}/savepoints
POST /penstock/v1/jobs/{job}/rescale
DELETE /penstock/v1/runs/{run}
POST /penstock/v1/runs/{run}/cancel
POST /penstock/v1/schedules/{name}/pause
POST /penstock/v1/schedules/{name}/resume
DELETE /penstock/v1/schedules/{name}

PATCH /jobs/{job_id}
GET /jobs/{job_id}/yarn-cancel
POST /applications/{application_id}/cancel
POST /jobs/{job_id}/stop
POST /jobs/{job_id}/savepoints
POST /jobs/{job_id}/checkpoints
POST /savepoint-disposal
PUT /jobs/{job_id}/resource-requirements
"""

_SUBMIT: Final = """
POST /penstock/v1/jobs
POST /penstock/v1/runs
POST /penstock/v1/schedules
POST /jobs
"""
"""What runs code."""


ROLES: Final = {
    route: role
    for text, role in ((_OPEN, None), (_VIEW, Role.VIEW), (_OPERATE, Role.OPERATE), (_SUBMIT, Role.SUBMIT))
    for route in text.split("\n")
    if route
}
"""The role that a route needs, by its method and path; None: it is open to all."""


_RESCALE: Final = ("POST /penstock/v1/jobs/{job}/rescale", "PUT /jobs/{job_id}/resource-requirements")


def guard_routes(routes: list[BaseRoute], refused: Mapping[str, str] = MappingProxyType({})) -> None:
    """Let each route answer only those who have its role; those for what is `refused` (see `DispatcherPorts`) say why.

    Raises:
        ValueError: the role of one is not stated.
    """
    for route in routes:
        if not isinstance(route, Route):
            raise ValueError(f"{route!r}: only single routes have roles; add them one by one")
        roles = {name: _role_of(name) for name in _names(route)}
        if len(set(roles.values())) != 1:
            raise ValueError(f"{sorted(roles)} is one route and needs one role")
        why = next((refused[_deed_of(name)] for name in roles if _deed_of(name) in refused), "")
        route.app = _Guarded(route.app, route.path, next(iter(roles.values())), why)


def _names(route: Route) -> list[str]:
    """As in `ROLES`; HEAD is asked for as GET is."""
    return [f"{method} {route.path}" for method in sorted((route.methods or set()) - {"HEAD"})]


def _plain(name: str) -> str:
    return name.replace(" /v1/", " /", 1)


def _deed_of(name: str) -> str:
    """What a route is for, if that is something that not every dispatcher can do."""
    plain = _plain(name)
    return "rescale" if plain in _RESCALE else "submit" if ROLES[plain] is Role.SUBMIT else ""


def _role_of(name: str) -> Role | None:
    plain = _plain(name)
    if plain not in ROLES:
        raise ValueError(f"{name}: it is not stated which role this route needs; do so in {__name__}")
    return ROLES[plain]


class _Guarded:
    """A route for those who have its role; changes, and attempts at them, are written down."""

    def __init__(self, app: ASGIApp, path: str, role: Role | None, refused: str) -> None:
        """`refused`: why nobody can do it here; empty: they can."""
        self._app = app
        self._path = path
        self._role = role
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        who: Identity = scope.get(IDENTITY, PASSER_BY)
        if self._role is None:
            await self._app(scope, receive, send)
        elif who.role is None or who.role < self._role:
            await self._refuse(who, self._role, scope, receive, send)
        elif self._refused:
            record_refusal(scope, who, 409, self._refused, self._path)
            await refusal(409, self._refused)(scope, receive, send)
        elif self._role is Role.VIEW:
            await self._app(scope, receive, send)
        else:
            await audited(self._app, self._path, who, scope, receive, send)

    async def _refuse(self, who: Identity, wanted: Role, *request: Any) -> None:
        has = f"the role {who.role}" if who.role is not None else "no role"
        reason = f"this needs the role {wanted}, and {who.name} has {has}: use a token with that role (penstock token)"
        record_refusal(request[0], who, 403, reason, self._path)
        await refusal(403, reason)(*request)
