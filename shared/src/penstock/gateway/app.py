"""The application: the paths of Flink's SQL Gateway, of versions 1 to 3 of its REST API."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock import __version__
from penstock.gateway.documents import CompleteStatement, ConfigureSession, ExecuteStatement, OpenSession, body_of
from penstock.gateway.logical_types import column
from penstock.gateway.operations import Operation
from penstock.gateway.refusing import HANDLERS, RestError
from penstock.gateway.results import Page, Results
from penstock.gateway.row_formats import RowFormat, value_in
from penstock.gateway.sessions import GatewaySession, Sessions
from penstock.service.access import IDENTITY, OPEN_PATHS, refusal
from penstock.service.credentials import ANYBODY, Identity, Role
from penstock.service.http_server import Readiness, health_routes
from penstock.sql.answers import completions

VERSIONS: Final = ("V1", "V2", "V3")
_KINDS: Final = {"+I": "INSERT", "-U": "UPDATE_BEFORE", "+U": "UPDATE_AFTER", "-D": "DELETE"}
_FORMATS: Final[Mapping[str, RowFormat]] = {"JSON": "JSON", "PLAIN_TEXT": "PLAIN_TEXT"}
_REFUSED: Final = {
    "/sessions/{session}/materialized-tables/{identifier}/refresh": "there are no materialized tables",
    "/sessions/{session}/scripts": "scripts are not deployed; penstock submit FILE.sql runs one on a cluster",
    "/workflow/embedded-scheduler/{action}": "there are no materialized tables, so no workflow refreshes one",
}
"""Paths that Flink's gateway has and this one has not, and why."""
_encode: Final = msgspec.json.Encoder(decimal_format="number").encode


def gateway_app(sessions: Sessions) -> ASGIApp:
    """The REST interface of these sessions."""
    endpoints = _Endpoints(sessions)
    routes = [*health_routes(Readiness({}), list)]
    for version in ("", "v1", "v2", "v3"):
        routes += endpoints.routes(version)
    return _Submitters(Starlette(routes=routes, exception_handlers=HANDLERS))


class _Submitters:
    """Lets those in who may run code: a statement may import Python, and read and write files."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            who: Identity = scope.get(IDENTITY, ANYBODY)
            if who.role is None or who.role < Role.SUBMIT:
                text = f"{who.name} has no token with the role submit, which SQL needs, because statements run code"
                await refusal(403, text)(scope, receive, send)
                return
        await self._app(scope, receive, send)


class _Endpoints:
    """What answers the requests."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def routes(self, version: str) -> list[Route]:
        """The paths of one version; without one they are those of the newest."""
        prefix = f"/{version}" if version else ""
        session, operation = "/sessions/{session}", "/sessions/{session}/operations/{operation}"
        table: tuple[tuple[str, str, Callable[[Request], Awaitable[Any]]], ...] = (
            ("GET", "/info", self._info),
            ("GET", "/api_versions", self._versions),
            ("POST", "/sessions", self._open),
            ("GET", session, self._config),
            ("DELETE", session, self._close),
            ("POST", f"{session}/heartbeat", self._heartbeat),
            ("POST", f"{session}/configure-session", self._configure),
            ("POST", f"{session}/statements", self._execute),
            ("GET", f"{session}/complete-statement", self._complete),
            ("GET", f"{operation}/status", self._status),
            ("POST", f"{operation}/cancel", self._cancel),
            ("DELETE", f"{operation}/close", self._close_operation),
            ("GET", f"{operation}/result/{{token}}", self._result_of(version or VERSIONS[-1].lower())),
            *(("POST", path, _refusing(reason)) for path, reason in _REFUSED.items()),
        )
        return [Route(prefix + path, _answering(answer), methods=[method]) for method, path, answer in table]

    async def _info(self, _: Request) -> Any:
        return {"productName": "Penstock", "version": __version__}

    async def _versions(self, _: Request) -> Any:
        return {"versions": VERSIONS}

    # -- sessions -------------------------------------------------------------------------------------------------------

    async def _open(self, request: Request) -> Any:
        asked = await body_of(request, OpenSession)
        return {"sessionHandle": self._sessions.open(asked.session_name or "", asked.properties or {}).handle}

    async def _config(self, request: Request) -> Any:
        return {"properties": self._session(request).statements.all_properties()}

    async def _close(self, request: Request) -> Any:
        self._sessions.close(_handle(request, "session"))
        return {"status": "CLOSED"}

    async def _heartbeat(self, request: Request) -> Any:
        self._session(request)
        return {}

    async def _configure(self, request: Request) -> Any:
        session, asked = self._session(request), await body_of(request, ConfigureSession)
        _check_timeout(asked.execution_timeout)
        await session.statements.configure(asked.statement)
        return {}

    # -- statements -----------------------------------------------------------------------------------------------------

    async def _execute(self, request: Request) -> Any:
        session, asked = self._session(request), await body_of(request, ExecuteStatement)
        _check_timeout(asked.execution_timeout)
        handle = self._sessions.new_id()
        session.begin(handle, asked.statement, asked.execution_config or {})
        return {"operationHandle": handle}

    async def _complete(self, request: Request) -> Any:
        session, asked = self._session(request), await body_of(request, CompleteStatement)
        catalogue = session.statements.session.catalogue
        columns = [each.name for table in catalogue.tables.values() for each in table.statement.columns]
        return {"candidates": completions(asked.statement[: asked.position], catalogue.names, columns)}

    async def _status(self, request: Request) -> Any:
        return {"status": self._operation(request).status}

    async def _cancel(self, request: Request) -> Any:
        operation = self._operation(request)
        operation.cancel()
        return {"status": operation.status}

    async def _close_operation(self, request: Request) -> Any:
        self._session(request).close_operation(_handle(request, "operation"))
        return {"status": "CLOSED"}

    def _result_of(self, version: str) -> Callable[[Request], Awaitable[Any]]:
        async def result(request: Request) -> Any:
            token, row_format = _token(request), _row_format(request)
            operation = self._operation(request)
            page = await operation.page(token)
            query = "" if version == "v1" else f"?rowFormat={row_format}"
            session = _handle(request, "session")
            base = f"/{version}/sessions/{session}/operations/{operation.handle}/result"
            following = {} if page.next_token is None else {"nextResultUri": f"{base}/{page.next_token}{query}"}
            if page.kind == "NOT_READY":
                return {"resultType": page.kind, **following}
            assert operation.results is not None
            return {"resultType": page.kind, **_payload(operation.results, page, row_format), **following}

        return result

    def _session(self, request: Request) -> GatewaySession:
        return self._sessions.session(_handle(request, "session"))

    def _operation(self, request: Request) -> Operation:
        return self._session(request).operation(_handle(request, "operation"))


def _answering(answer: Callable[[Request], Awaitable[Any]]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        return Response(_encode(await answer(request)), media_type="application/json")

    return endpoint


def _refusing(reason: str) -> Callable[[Request], Awaitable[Any]]:
    async def refuse(request: Request) -> Any:
        raise RestError(501, f"{request.url.path}: {reason}")

    return refuse


def _payload(results: Results, page: Page, row_format: RowFormat) -> dict[str, Any]:
    kinds = [each.type for each in results.columns]
    data = [
        {"kind": _KINDS[kind], "fields": [value_in(row_format, *each) for each in zip(values, kinds, strict=True)]}
        for kind, values in page.rows
    ]
    return {
        "isQueryResult": results.is_query,
        **({} if results.job is None else {"jobID": results.job}),
        "resultKind": results.kind,
        "results": {"columns": [column(each) for each in results.columns], "rowFormat": row_format, "data": data},
    }


def _handle(request: Request, what: str) -> str:
    given = request.path_params[what]
    try:
        return str(uuid.UUID(given))
    except ValueError:
        raise RestError(
            400, f"Bad request, could not parse parameters: Cannot resolve path parameter ({what}_handle) from value "
            f'"{given}".'
        ) from None  # fmt: skip


def _token(request: Request) -> int:
    given: str = request.path_params["token"]
    if not given.isdecimal():
        raise RestError(
            400, f'Bad request, could not parse parameters: Cannot resolve path parameter (token) from value "{given}".'
        )  # fmt: skip
    return int(given)


def _row_format(request: Request) -> RowFormat:
    given = request.query_params.get("rowFormat", "JSON")
    if given.upper() not in _FORMATS:
        raise RestError(
            400, f"Bad request, could not parse parameters: rowFormat is JSON or PLAIN_TEXT, not {given!r}."
        )
    return _FORMATS[given.upper()]


def _check_timeout(timeout_ms: int | None) -> None:
    """Flink's gateway refuses it as well."""
    if timeout_ms is not None and timeout_ms > 0:
        raise RestError(
            500, "SqlGatewayService doesn't support timeout mechanism now; leave executionTimeout out, or 0"
        )
