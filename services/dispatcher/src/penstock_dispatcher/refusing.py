"""Errors as answers: `{"errors": [...]}`, 4xx where the caller is at fault, 503 where the cluster does not answer."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import structlog
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from penstock.client.documents import Problem
from penstock.errors import CorruptDataError, ExternalError, PenstockError, PipelineError, UsageError

_log = structlog.get_logger("penstock.dispatcher")


class RestError(PenstockError):
    """An answer other than 2xx."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def problem(status: int, messages: Sequence[str]) -> Response:
    """The answer that says so."""
    return Response(msgspec.json.encode(Problem(tuple(messages))), status, media_type="application/json")


def answer_errors(app: FastAPI) -> None:
    """Let every error of a handler become an answer."""

    async def refused(_: Request, error: Exception) -> Response:
        assert isinstance(error, RestError)
        return problem(error.status, [str(error)])

    async def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return problem(400, [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()])

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        path = request.url.path
        if error.status_code == 404 and request.method == "GET" and not path.startswith("/penstock/"):
            return problem(404, [f"Unable to load requested file {path}."])  # as Flink answers, which has files
        if error.status_code in (404, 405) and not path.startswith("/penstock/"):
            return problem(404, [f"Not found: {path}"])  # and here, wrong methods included
        text = f"{request.method} {path}: {error.detail}"
        return problem(error.status_code, [text])

    async def usage(_: Request, error: Exception) -> Response:
        return problem(400, [str(error)])

    async def unavailable(_: Request, error: Exception) -> Response:
        return problem(503, [str(error) or "the cluster does not answer in time"])

    async def corrupt(request: Request, error: Exception) -> Response:
        _log.error("a request failed", path=request.url.path, exc_info=error)
        return await failed(request, error)

    async def failed(_: Request, error: Exception) -> Response:  # Starlette raises it again: the server says so once
        return problem(500, ["Internal server error.", f"{type(error).__name__}: {error}"])

    async def left(_: Request, error: Exception) -> Response:
        return problem(408, ["the body did not come in time"])  # or there is nobody any more to read this

    for kind, handler in (
        (RestError, refused), (RequestValidationError, invalid), (HTTPException, http), (UsageError, usage),
        (PipelineError, usage), (ExternalError, unavailable), (TimeoutError, unavailable), (CorruptDataError, corrupt),
        (ClientDisconnect, left), (Exception, failed),
    ):  # fmt: skip
        app.add_exception_handler(kind, handler)
