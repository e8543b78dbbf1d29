"""Errors as answers, in Flink's form: `{"errors": [...]}`, with the status that Flink's gateway gives.

A request that is none is 400, a path that is none 404. Whatever a statement, a session or an operation is refused for is
500, as in Flink, whose clients look for the reason in the second text.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from penstock.errors import PenstockError, described

_log = structlog.get_logger("penstock.gateway")


class RestError(PenstockError):
    """An answer other than 200, or 500."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, RestError)
    return _errors(error.status, str(error))


async def _no_path(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code in (404, 405):  # a wrong method is no path either
        return _errors(404, f"Not found: {request.url.path}")
    return _errors(error.status_code, error.detail)


async def _told(_: Request, error: Exception) -> Response:
    return _failure(error)


async def _failed(request: Request, error: Exception) -> Response:
    _log.error("a request failed", path=request.url.path, exc_info=error)
    return _failure(error)


async def _left(_: Request, error: Exception) -> Response:
    return _errors(408, "the body did not come in time")


def _failure(error: BaseException) -> Response:
    text = f"<Exception on server side:\n{described(error)}\nEnd of exception on server side>"
    return _errors(500, "Internal server error.", text)


def _errors(status: int, *texts: str) -> Response:
    return JSONResponse({"errors": texts}, status)


HANDLERS: Final[Mapping[Any, Callable[[Request, Exception], Awaitable[Response]]]] = {
    RestError: _refused, HTTPException: _no_path, PenstockError: _told, ClientDisconnect: _left, Exception: _failed,
}  # fmt: skip
"""For Starlette: what answers which error."""
