"""Reads the topic of requests, and hands on those that are about runs; the others are the leader's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from penstock import __version__
from penstock.coordination.control_topics import REQUESTS
from penstock.errors import CorruptDataError, ExternalError
from penstock.ports import Log, LogRecord, Metadata
from penstock.protocol.requests import AnyRunRequest, RunRequest, decode_request, refused_key, sender_of

READ_S: Final = 1.0
REQUESTS_READ: Final = "pipeline-requests-read"
"""Key of the position of the next request; lost, all kept requests are looked at again."""
RETRY_S: Final = 1.0
REFUSED_MS: Final = 3_600_000
"""How long is kept why a request was refused: as long as dispatchers know that there was one."""

_log = structlog.get_logger("penstock.pipeline")


class RequestReader:
    """Every request is handed on at least once, in order."""

    def __init__(self, log: Log, metadata: Metadata, serve: Callable[[AnyRunRequest, bool], Awaitable[None]]) -> None:
        """`log` waits until it gets an answer; `serve` does nothing for a request that it has carried out before, and is
        told of those that it may have passed over before."""
        self._log = log
        self._metadata = metadata
        self._serve = serve

    async def run(self) -> None:
        """Read until cancelled."""
        position, again = await self._first()
        while True:
            records = await self._log.read(REQUESTS, 0, position, timeout_s=READ_S)
            for record in records:
                await self._take(record, again=record.offset < again)
                position = record.next_offset
            if records:
                await self._note(position)

    async def _take(self, record: LogRecord, *, again: bool) -> None:
        try:
            request = decode_request(record.value)
        except CorruptDataError as error:
            _log.error("a request cannot be read", offset=record.offset, error=str(error))
            await self._refuse(record.value, str(error))
            return
        try:
            if isinstance(request, RunRequest):
                await self._serve(request, again)
        except CorruptDataError as error:
            _log.error("a request cannot be served", offset=record.offset, error=str(error))

    async def _refuse(self, data: bytes, problem: str) -> None:
        """Tell who asks for a run that this service does not know all that is asked."""
        asked = sender_of(data, of_runs=True)
        if asked is None:
            return
        reason = (
            f"the cluster's pipeline service, Penstock {__version__}, says: {problem}. If it is older than what asks, "
            "bring it to the same version first"
        )
        try:
            await self._metadata.acquire(refused_key(asked.request), reason.encode(), REFUSED_MS)
        except ExternalError as error:
            _log.warning("a request cannot be answered", request=asked.request, error=str(error))

    async def _first(self) -> tuple[int, int]:
        """Where to read from, and before where requests may have been read before."""
        noted = await self._noted()
        start, end = await self._log.offsets(REQUESTS, 0)
        position = int(noted) if noted is not None else -1
        return (position, position) if start <= position <= end else (start, end)

    async def _noted(self) -> bytes | None:
        while True:
            try:
                return await self._metadata.get(REQUESTS_READ)
            except ExternalError as error:
                _log.warning("cannot look up which requests are handled, trying again", error=str(error))
                await asyncio.sleep(RETRY_S)

    async def _note(self, position: int) -> None:
        try:
            await self._metadata.put(REQUESTS_READ, str(position).encode())
        except ExternalError as error:
            _log.warning("cannot note which requests are handled", error=str(error))
