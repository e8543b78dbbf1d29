"""A connection over which Postgres sends what a replication slot has, by way of libpq, because psycopg has none for it.

See "Streaming Replication Protocol" in Postgres' documentation. Used on one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, Final

from penstock.connectors.postgres.captured_table import Capture
from penstock.connectors.postgres.slots import application_name
from penstock.connectors.postgres.text_values import SESSION
from penstock.errors import CorruptDataError, ExternalError

if TYPE_CHECKING:
    from psycopg import AsyncConnection

START_S: Final = 60.0
SILENT_S: Final = 60.0
"""How long a server may say nothing, though it is asked to every few seconds."""
REPORT_S: Final = 5.0
OPTIONS: Final = SESSION + " -c wal_sender_timeout=30000"
"""The server ends the session of a worker that was stopped after so long, and the slot is free for another one."""
_EPOCH_S: Final = 946_684_800
"""2000-01-01 in seconds since 1970."""
_HEADER: Final = 25
"""Bytes before the plugin's message: a letter, where it begins, where the log ends, a time."""


class ReplicationStream:
    """What a slot has from some place on. `take` never waits; `report` says what is not needed any more."""

    def __init__(self, capture: Capture, owner: str) -> None:
        self._capture = capture
        self._owner = owner
        self._connection: AsyncConnection[Any] | None = None
        self._pgconn: Any = None
        self._confirmed = 0
        self._received = 0
        self._heard_s = 0.0
        self._reporting: asyncio.Task[None] | None = None

    async def start(self, lsn: int) -> None:
        """Connect; transactions whose commit is at `lsn` or behind it come.

        Raises:
            psycopg.Error: Postgres refuses, or is away.
        """
        self._connection = await self._capture.place.connect(OPTIONS, application_name(self._owner), "database")
        self._pgconn = self._connection.pgconn
        publication = self._capture.publication.replace('"', '""').replace("'", "''")
        command = (
            f'START_REPLICATION SLOT "{self._capture.slot}" LOGICAL {lsn >> 32:X}/{lsn & 0xFFFFFFFF:X} '
            f"(proto_version '1', publication_names '\"{publication}\"')"
        )
        try:
            async with asyncio.timeout(START_S):
                await self._began(command.encode())
        except TimeoutError as error:
            raise ExternalError(f"{self._capture.where}no answer in {START_S:.0f} s; check that it runs") from error
        self._received, self._heard_s = lsn, time.monotonic()
        self._reporting = asyncio.create_task(self._report_often())

    async def _began(self, command: bytes) -> None:
        from psycopg import pq
        from psycopg.errors import error_from_result

        self._pgconn.send_query(command)
        self._pgconn.flush()
        while self._pgconn.is_busy():
            with self._readable() as ready:
                await ready
            self._pgconn.consume_input()
        result = self._pgconn.get_result()
        assert result is not None
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise error_from_result(result, encoding="utf-8")

    def take(self, most: int, most_bytes: int) -> list[tuple[int, bytes]]:
        """Messages that are at hand, each with where the log stands; an empty one says only that.

        Raises:
            psycopg.Error: the connection is broken, or the server has ended it.
        """
        taken: list[tuple[int, bytes]] = []
        size, news = 0, True
        while news and len(taken) < most and size < most_bytes:
            self._pgconn.consume_input()
            news = False
            while len(taken) < most and size < most_bytes and (data := self._copied()) is not None:
                taken.append(self._unwrapped(data))
                size += len(data)
                news = True
        if taken:
            self._heard_s = time.monotonic()
        elif time.monotonic() - self._heard_s > SILENT_S:
            raise ExternalError(f"{self._capture.where}nothing heard for {SILENT_S:.0f} s")
        return taken

    def _copied(self) -> bytes | None:
        from psycopg.errors import error_from_result

        size, data = self._pgconn.get_copy_data(1)
        if size > 0:
            return bytes(data)
        if size == 0:
            return None
        result = self._pgconn.get_result()
        if result is not None and result.error_message:
            raise error_from_result(result, encoding="utf-8")
        raise ExternalError(f"{self._capture.where}the server has ended the replication")

    def _unwrapped(self, data: bytes) -> tuple[int, bytes]:
        if data[:1] == b"w":
            begins, self._received = struct.unpack_from(">QQ", data, 1)
            return begins, data[_HEADER:]
        if data[:1] != b"k":
            raise CorruptDataError(
                f"{self._capture.where}Postgres sent what is no message of replication: {data[:40]!r}"
            )
        (self._received,) = struct.unpack_from(">Q", data, 1)
        if data[17]:
            self._send(answer=False)
        return self._received, b""

    async def wait(self, other_work: Callable[[], Awaitable[None]]) -> None:
        """Until something has come, or there is other work."""
        other = asyncio.ensure_future(other_work())
        try:
            with self._readable() as ready:
                await asyncio.wait([other, ready], return_when=asyncio.FIRST_COMPLETED)
            if other.done():
                await other
        finally:
            other.cancel()

    @contextlib.contextmanager
    def _readable(self) -> Generator[asyncio.Future[None]]:
        """Done when the socket has something."""
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        descriptor = self._pgconn.socket
        loop.add_reader(descriptor, lambda: None if ready.done() else ready.set_result(None))
        try:
            yield ready
        finally:
            loop.remove_reader(descriptor)

    def report(self, lsn: int) -> None:
        """Nothing before `lsn` will be asked for again."""
        if lsn > self._confirmed:
            self._confirmed = lsn
            self._send(answer=False)

    async def _report_often(self) -> None:
        """Also while nobody reads, lest the server believe that nobody is there; and it shall say that it is."""
        while True:
            await asyncio.sleep(REPORT_S)
            self._send(answer=True)

    def _send(self, *, answer: bool) -> None:
        import psycopg

        now_us = int((time.time() - _EPOCH_S) * 1_000_000)
        status = struct.pack(
            ">cQQQqB", b"r", max(self._received, self._confirmed), self._confirmed, self._confirmed, now_us, answer
        )
        try:
            self._pgconn.put_copy_data(status)
            self._pgconn.flush()
        except psycopg.Error:
            return  # whoever reads next comes upon it, too

    async def close(self) -> None:
        """Give the slot back."""
        if self._reporting is not None:
            self._reporting.cancel()
            await asyncio.gather(self._reporting, return_exceptions=True)
        if self._connection is not None:
            await self._connection.close()
