"""The application: routes and who may use them, limits, errors, documentation, health."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from penstock.observability.metrics import Sample
from penstock.service.http_server import Readiness, health_routes
from penstock_dispatcher.bodies import BodyLimit
from penstock_dispatcher.cluster import Cluster, DispatcherPorts
from penstock_dispatcher.conditional import ConditionalAnswers
from penstock_dispatcher.describing import docs_page, openapi_of
from penstock_dispatcher.flink.routes import FlinkRoutes
from penstock_dispatcher.jobs import Jobs
from penstock_dispatcher.login_routes import LoginRoutes
from penstock_dispatcher.page_routes import page_routes
from penstock_dispatcher.penstock_routes import PenstockRoutes
from penstock_dispatcher.refusing import answer_errors
from penstock_dispatcher.route_roles import guard_routes
from penstock_dispatcher.run_routes import RunRoutes
from penstock_dispatcher.runs import Runs
from penstock_dispatcher.schedule_routes import ScheduleRoutes


def dispatcher_app(ports: DispatcherPorts, readiness: Readiness, samples: Callable[[], list[Sample]]) -> FastAPI:
    """The REST interface on these ports."""
    app = FastAPI(title="Penstock", openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    cluster = Cluster(ports)
    jobs = Jobs(cluster)
    penstock = PenstockRoutes(cluster, jobs)
    flink = FlinkRoutes(cluster, jobs, penstock, ports.settings)
    runs = Runs(cluster, ports)
    routers = (
        penstock.router(), LoginRoutes(ports.login).router(), RunRoutes(cluster, jobs, runs).router(),
        ScheduleRoutes(cluster, ports, runs).router(),
        flink.router(""), flink.router("/v1", shown=False),
    )  # fmt: skip
    for router in routers:  # each route by itself, not the router: a guard is put around every one of them
        app.router.routes.extend(router.routes)
    _document(app)
    app.router.routes.extend(health_routes(readiness, samples))
    app.router.routes.extend(page_routes())
    guard_routes(app.router.routes, ports.refused)
    app.add_middleware(ConditionalAnswers)
    app.add_middleware(BodyLimit)
    answer_errors(app)
    return app


def _document(app: FastAPI) -> None:
    async def openapi(_: Request) -> Response:
        return JSONResponse(openapi_of(app))

    async def docs(_: Request) -> Response:
        return HTMLResponse(docs_page(openapi_of(app)))

    add: Any = app.add_route
    add("/openapi.json", openapi, include_in_schema=False)
    add("/docs", docs, include_in_schema=False)
