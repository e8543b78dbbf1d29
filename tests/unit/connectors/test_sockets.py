"""Sockets as sources, against a server on the loopback interface."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from penstock.connectors import sockets
from penstock.connectors.base import EndOfSplit
from penstock.errors import ExternalError, PipelineError


@dataclass
class Row:
    a: int
    b: str | None


class Server:
    """Hands every connection the next of its scripts: chunks to send, then the connection is closed."""

    def __init__(self) -> None:
        self.scripts: list[list[bytes]] = []
        self.hold = asyncio.Event()
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        script = self.scripts.pop(0) if self.scripts else []
        for chunk in script:
            if chunk == b"HOLD":
                await self.hold.wait()
            else:
                writer.write(chunk)
                await writer.drain()
        writer.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """A listening server."""
    made = Server()
    listening = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = listening.sockets[0].getsockname()[1]
    yield made
    made.hold.set()
    listening.close()
    await listening.wait_closed()


async def read_all(reader: Any, until: int | None = None) -> tuple[list[Any], list[Any]]:
    rows: list[Any] = []
    bad: list[Any] = []
    async with asyncio.timeout(20):
        while until is None or len(rows) < until:
            try:
                fetched = await reader.read(3)
            except EndOfSplit:
                break
            if fetched is not None:
                rows += fetched.frame.rows()
                bad += fetched.bad
    return rows, bad


async def test_lines_to_the_end(server: Server, time: Any) -> None:
    """Lines arrive whole however they are cut; bad ones are numbered; the connection's end is the source's end."""
    server.scripts = [[b'{"a":1}\n{"a', b'":2,"b":"x"}\nbad\n', b'{"a":3}\n{"a":4}\n{"a":5}\n{"a":6}']]
    source = sockets.Source("127.0.0.1", server.port, schema=Row)
    assert source.bounded
    assert not source.replayable
    reader = source.open(source.discover()[0], None, time.context())
    rows, bad = await read_all(reader)
    assert rows == [(1, None), (2, "x"), (3, None), (4, None), (5, None), (6, None)]
    assert [row.where for row in bad] == [f"127.0.0.1:{server.port}, line 3"]
    assert reader.position() == 7
    await reader.close()


async def test_csv_without_header(server: Server, time: Any) -> None:
    """CSV columns come in the order of the schema."""
    server.scripts = [[b'1,"x\ny"\n2,\n']]
    source = sockets.Source("127.0.0.1", server.port, schema=Row, format="csv")
    reader = source.open(source.discover()[0], None, time.context())
    assert (await read_all(reader))[0] == [(1, "x\ny"), (2, None)]
    await reader.close()


async def test_silence_returns_nothing(server: Server, time: Any) -> None:
    """While the server is silent, reads return None, and a read that is cancelled loses nothing."""
    server.scripts = [[b'{"a":1}\n', b"HOLD", b'{"a":2}\n']]
    source = sockets.Source("127.0.0.1", server.port, schema=Row)
    reader = source.open(source.discover()[0], None, time.context())
    rows, _ = await read_all(reader, 1)
    assert await reader.read(10) is None
    cancelled = asyncio.create_task(reader.read(10))
    await asyncio.sleep(0)
    cancelled.cancel()
    server.hold.set()
    more, _ = await read_all(reader)
    assert rows + more == [(1, None), (2, None)]
    await reader.close()


async def test_reconnects(server: Server, time: Any) -> None:
    """With retries the source connects again when the connection ends, and fails after too many in vain."""
    server.scripts = [[b'{"a":1}\n'], [b'{"a":2}\n'], []]
    source = sockets.Source("127.0.0.1", server.port, schema=Row, retries=2, retry_after="1ms")
    assert not source.bounded
    reader = source.open(source.discover()[0], None, time.context())
    assert (await read_all(reader, 2))[0] == [(1, None), (2, None)]
    with pytest.raises(ExternalError, match="times in a row without sending"):
        await read_all(reader)
    await reader.close()


async def test_nobody_listens(time: Any) -> None:
    """A server that is not there is an error that says what to do, after the retries."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        for retries, tried in ((0, "connect to"), (2, r"tried 3 times")):
            source = sockets.Source("127.0.0.1", port, schema=Row, retries=retries, retry_after="1ms")
            reader = source.open(source.discover()[0], None, time.context())
            with pytest.raises(ExternalError, match=tried):
                await read_all(reader)
            await reader.close()


async def test_closing_while_waiting(server: Server, time: Any) -> None:
    """A reader can be closed while it waits for the server."""
    server.scripts = [[b"HOLD"]]
    source = sockets.Source("127.0.0.1", server.port, schema=Row)
    reader = source.open(source.discover()[0], None, time.context())
    assert await reader.read(1) is None
    await reader.close()


def test_declaration_errors() -> None:
    """Wrong parameters are told when the source is declared."""
    with pytest.raises(PipelineError, match="no format='parquet'"):
        sockets.Source("h", 1, schema=Row, format="parquet")
    with pytest.raises(PipelineError, match="port="):
        sockets.Source("h", 70_000, schema=Row)
    assert sockets.Source("h", 1, schema=Row).describe()["address"] == "h:1"
