"""Answers that have not changed are not sent again: pages ask every other second for what is mostly the same.

The tag is made of the answer's bytes alone, so those of all dispatchers agree. This saves what goes over the network, not
the work of finding the answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import MutableMapping
from typing import Any, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_JSON: Final = "application/json"


def tag_of(data: bytes) -> str:
    """The ETag of an answer with this body."""
    return f'"{hashlib.sha256(data).hexdigest()[:32]}"'


class ConditionalAnswers:
    """Gives JSON that was asked for by GET a tag, and answers 304 to who has it already."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET":
            await self._app(scope, receive, send)
            return
        await self._app(scope, receive, _Tagging(send, Headers(scope=scope).get("if-none-match", "")))


class _Tagging:
    """Holds an answer's head back until its body is known. Answers of this interface come in one piece; what comes in
    several is handed on as it comes."""

    def __init__(self, send: Send, known: str) -> None:
        self._send = send
        self._known = known
        self._head: MutableMapping[str, Any] | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _is_tagged(message):
            self._head = message
            return
        if self._head is None:
            await self._send(message)
            return
        head, self._head = self._head, None
        if message.get("more_body"):
            await self._send(head)
            await self._send(message)
            return
        headers = MutableHeaders(scope=head)
        headers["etag"] = tag = tag_of(message.get("body", b""))
        headers["cache-control"] = "no-cache"
        if tag in self._known:
            del headers["content-length"]
            head, message = {**head, "status": 304}, {**message, "body": b""}
        await self._send(head)
        await self._send(message)


def _is_tagged(head: Message) -> bool:
    kind = Headers(raw=head["headers"]).get("content-type", "")
    return head["status"] == 200 and kind.startswith(_JSON)
