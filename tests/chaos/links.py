"""What lies between one service and Redis or the store: a proxy that holds back what passes, in one direction or both.

Nothing is lost and no connection is closed, as with packets that a network drops and TCP sends again: what was held back
arrives when the link is healed, late. Kafka is left out: its brokers tell clients other addresses than that of a proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final, Literal

from penstock.platform.free_ports import HOST

Disturbance = Literal["cut", "mute", "deaf", "slow"]
"""Both ways held back; what the service says; what it would hear; both ways, but only for a moment."""
DISTURBANCES: Final[tuple[Disturbance, ...]] = ("cut", "mute", "deaf", "slow")
SLOW_S: Final = 0.2
_CHUNK_BYTES: Final = 1 << 16
_HELD: Final[dict[Disturbance, tuple[str, ...]]] = {
    "cut": ("out", "in"), "mute": ("out",), "deaf": ("in",), "slow": (),
}  # fmt: skip


class Link:
    """Listens on `port`, and speaks to `target` (a port of this machine)."""

    def __init__(self, port: int, target: int) -> None:
        self.port = port
        self.met = 0
        """How many pieces were held back: whether a disturbance has hit anything."""
        self._target = target
        self._slow = False
        self._open = {"out": asyncio.Event(), "in": asyncio.Event()}
        self._server: asyncio.Server | None = None
        self._passing: set[asyncio.Task[None]] = set()
        self.heal()

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._connected, HOST, self.port)

    async def close(self) -> None:
        """End all connections."""
        if self._server is not None:
            self._server.close()
        for task in self._passing:
            task.cancel()
        await asyncio.gather(*self._passing, return_exceptions=True)

    def disturb(self, how: Disturbance) -> None:
        """From now on, also for connections that are open."""
        self._slow = how == "slow"
        for direction in _HELD[how]:
            self._open[direction].clear()

    def heal(self) -> None:
        """Everything passes, first what was held back."""
        self._slow = False
        for gate in self._open.values():
            gate.set()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._passing.add(task)
        try:
            await self._connect(reader, writer)
        except OSError:
            pass  # one side is away, and the other one learns it from its closed connection
        finally:
            self._passing.discard(task)
            writer.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(HOST, self._target)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass(reader, back, "out"))
                group.create_task(self._pass(there, writer, "in"))
        except* OSError:
            pass
        finally:
            back.close()

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, direction: str) -> None:
        while data := await source.read(_CHUNK_BYTES):
            gate = self._open[direction]
            self.met += self._slow or not gate.is_set()
            if self._slow:
                await asyncio.sleep(SLOW_S)
            await gate.wait()
            sink.write(data)
            await sink.drain()
        with contextlib.suppress(OSError):
            sink.write_eof()
