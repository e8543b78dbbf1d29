"""What clients of a service's web server may cost it: connections, the head and the body of a request, time.

uvicorn bounds the size of a head and nothing else, so that a client that says nothing, or says it slowly, keeps its
connection for ever. Here every wait for a client has an end, and where there are too many connections the one whose
client has been silent for the longest gives way: whoever asks, a check of health above all, is answered.
"""

from __future__ import annotations

import asyncio
from typing import Final, cast

import structlog
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS: Final = 512
"""How many are kept at a time."""
MAX_HEAD_BYTES: Final = 32 << 10
HEAD_S: Final = 10.0
"""From the beginning of a connection, or the end of the answer before, to the end of a request's head."""
BODY_SILENCE_S: Final = 10.0
"""Between two pieces of a body."""
BODY_S: Final = 120.0
"""For a whole body."""

_log = structlog.get_logger("penstock.service")


class BoundedConnection(H11Protocol):
    """A connection of uvicorn's whose client is not waited for without an end."""

    _ending: asyncio.TimerHandle | None = None
    _unsent: int = 0
    _heard_s: float = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] -- as uvicorn's own
        super().connection_made(transport)
        self._heard_s = self.loop.time()
        self._expect_request()
        if len(self.connections) > MAX_CONNECTIONS:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        self._heard_s = self.loop.time()
        super().data_received(data)
        if self._is_answering:
            self._expect_nothing()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._is_answering:  # a request that came with the one before is at work already
            self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        super().connection_lost(exc)

    @property
    def _is_answering(self) -> bool:
        return self._has_request and not self.cycle.response_complete

    @property
    def _has_request(self) -> bool:
        return cast("object", self.cycle) is not None  # uvicorn declares it without None, which it is at first

    @property
    def _awaits_client(self) -> bool:
        return not self._is_answering or self.cycle.more_body

    def _expect_request(self) -> None:
        self._expect_nothing()
        self._unsent = self.transport.get_write_buffer_size()
        self._ending = self.loop.call_later(HEAD_S, self._silent)

    def _expect_nothing(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None

    def _silent(self) -> None:
        if 0 < self.transport.get_write_buffer_size() < self._unsent:
            self._expect_request()  # it is still reading the answer
        else:
            self.transport.abort()

    def _make_room(self) -> None:
        bounded = [one for one in self.connections if isinstance(one, BoundedConnection) and one is not self]
        silent = [one for one in bounded if one._awaits_client]
        gives_way = min(silent, key=lambda one: one._heard_s, default=self)
        self.connections.discard(gives_way)  # it is lost a moment later, and must not be chosen again until then
        gives_way.transport.abort()


class Guarded:
    """Runs an application so that a client's silence or disconnection is none of its errors, and an error says so once.

    A body that does not come in time ends like a connection that is lost: reading it raises `ClientDisconnect`.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = False

        async def noted(message: Message) -> None:
            nonlocal began
            began = True
            await send(message)

        if scope["type"] == "http" and sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEAD_BYTES:
            # h11 looks at heads that come in pieces only.
            await JSONResponse({"errors": ["the head of the request is too large"]}, 431)(scope, receive, send)
            return
        try:
            await self._app(scope, _in_time(receive), noted)
        except ClientDisconnect:
            _log.debug("a client left", path=scope["path"])
            if not began:
                await JSONResponse({"errors": ["the body did not come in time"]}, 408)(scope, receive, send)
        except Exception as error:  # the outermost supervisor of a request: uvicorn would log it in its own way
            _log.error("a request failed", path=scope["path"], exc_info=error)
            if not began:
                await JSONResponse({"errors": ["Internal server error."]}, 500)(scope, receive, send)


def _in_time(receive: Receive) -> Receive:
    """Pieces of a body, each within its time; what comes after the body may take as long as it likes."""
    clock = asyncio.get_running_loop().time
    end_s = clock() + BODY_S
    whole = False

    async def bounded() -> Message:
        nonlocal whole
        if whole:
            return await receive()
        try:
            async with asyncio.timeout_at(min(clock() + BODY_SILENCE_S, end_s)):
                message = await receive()
        except TimeoutError:
            return {"type": "http.disconnect"}
        whole = not message.get("more_body", False)
        return message

    return bounded
