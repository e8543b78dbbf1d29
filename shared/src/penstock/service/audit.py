"""The audit log: who changed what, or tried to, as lines of the logger `penstock.audit`.

A line is written for every request that may change something, once it is answered, whatever `--log-level` says. In it
stand names, ids and the route's own path: never a token, a body, a query or a value of a parameter.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import Any, Final

import structlog
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.service.credentials import Identity

LOGGER: Final = "penstock.audit"
_MOST_CHARACTERS: Final = 200
"""Of what a client names itself."""

_log = structlog.wrap_logger(None, wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET))
_facts: ContextVar[dict[str, str] | None] = ContextVar("facts of the change that is being asked for", default=None)


def note_change(**facts: str) -> None:
    """Say what the request at work changes: `job`, `request`, `kind`. Nothing happens where none is."""
    noted = _facts.get()
    if noted is not None:
        noted |= {name: text[:_MOST_CHARACTERS] for name, text in facts.items()}


def record_refusal(scope: Scope, identity: Identity, status: int, reason: str, path: str | None = None) -> None:
    """A request that was not let in; `path` is its route's, where one was found."""
    _write(scope, identity, path or scope["path"], "refused", status, _named(scope) | {"reason": reason})


async def audited(
    app: ASGIApp, path: str, identity: Identity, scope: Scope, receive: Receive, send: Send
) -> None:  # an ASGI application has three arguments by itself
    """Answer a request that may change something, by the route of that path, and write down what became of it."""
    status = 0

    async def noted(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        await send(message)

    facts = _named(scope)
    before = _facts.set(facts)
    try:
        await app(scope, receive, noted)
    except Exception:
        status = status or 500  # as it will be answered further out
        raise
    finally:
        _facts.reset(before)
        _write(scope, identity, path, _outcome(status), status, facts)


def _outcome(status: int) -> str:
    """In a word. What is accepted is carried out by the leader, which writes what became of it into the job's log."""
    if status == 0:
        return "unknown"  # whoever asked was gone before there was an answer
    return "accepted" if status < 400 else "refused" if status < 500 else "failed"


def _named(scope: Scope) -> dict[str, str]:
    return {name: str(value)[:_MOST_CHARACTERS] for name, value in scope.get("path_params", {}).items()}


def _write(scope: Scope, identity: Identity, path: str, outcome: str, status: int, facts: dict[str, str]) -> None:
    client = scope.get("client")
    more: dict[str, Any] = {}
    if forwarded := Headers(scope=scope).get("x-forwarded-for"):
        more["forwarded_for"] = forwarded[:_MOST_CHARACTERS]  # what a proxy says, or whoever pretends to be one
    _log.info(
        "change", logger=LOGGER, **facts, who=identity.name, role=str(identity.role or "none"),
        action=f"{scope['method']} {path[:_MOST_CHARACTERS]}", outcome=outcome, status=status,
        peer=client[0] if client else "", **more,
    )  # fmt: skip
