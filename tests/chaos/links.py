"""What lies between one service and Kafka, Redis or the store: a proxy that holds back what passes, one way or both.

Nothing is lost and no connection is closed, as with packets that a network drops and TCP sends again: what was held back
arrives when the link is healed, late. Brokers tell their clients the addresses of all brokers: on the way through a link
to one of them these become the addresses of the service's own links.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import struct
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Final, Literal

from penstock.platform.free_ports import HOST

Disturbance = Literal["cut", "mute", "deaf", "slow"]
"""Both ways held back; what the service says; what it would hear; both ways, but only for a moment."""
DISTURBANCES: Final[tuple[Disturbance, ...]] = ("cut", "mute", "deaf", "slow")
SLOW_S: Final = 0.2
_CHUNK_BYTES: Final = 1 << 16
_LENGTH: Final = struct.Struct(">i")
_HELD: Final[dict[Disturbance, tuple[str, ...]]] = {
    "cut": ("out", "in"), "mute": ("out",), "deaf": ("in",), "slow": (),
}  # fmt: skip


class Link:
    """Listens on `port`, and speaks to `target` (a port of this machine)."""

    def __init__(self, port: int, target: int) -> None:
        self.port = port
        self.met = 0
        """How many pieces were held back: whether a disturbance has hit anything."""
        self.target = target
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
        except (OSError, asyncio.CancelledError):
            pass  # one side is away, and the other one learns it from its closed connection; or `close` ends it
        finally:
            self._passing.discard(task)
            writer.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(HOST, self.target)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass(reader, back, "out"))
                group.create_task(self._pass(there, writer, "in"))
        except* OSError:
            pass
        finally:
            back.close()

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, direction: str) -> None:
        async for data in self._pieces(source, direction):
            gate = self._open[direction]
            self.met += self._slow or not gate.is_set()
            if self._slow:
                await asyncio.sleep(SLOW_S)
            await gate.wait()
            sink.write(data)
            await sink.drain()
        with contextlib.suppress(OSError):
            sink.write_eof()

    async def _pieces(self, source: asyncio.StreamReader, direction: str) -> AsyncGenerator[bytes]:
        while data := await source.read(_CHUNK_BYTES):
            yield data


class BrokerLink(Link):
    """A link to a broker. Its answers come whole, and name links instead of brokers."""

    def __init__(self, port: int, target: int, links: Mapping[int, int]) -> None:
        """`links`: of this service, the port of its link by that of the broker."""
        super().__init__(port, target)
        self._named = {_address(broker): _address(link) for broker, link in links.items()}

    async def _pieces(self, source: asyncio.StreamReader, direction: str) -> AsyncGenerator[bytes]:
        if direction == "out":
            async for data in super()._pieces(source, direction):
                yield data
            return
        with contextlib.suppress(asyncio.IncompleteReadError):  # the broker has closed the connection
            while True:
                head = await source.readexactly(_LENGTH.size)
                answer = await source.readexactly(*_LENGTH.unpack(head))
                for broker, link in self._named.items():
                    answer = answer.replace(broker, link)
                yield head + answer


class Links:
    """All links of a service to a part: to Kafka one to each broker."""

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = tuple(links)

    @property
    def met(self) -> int:
        """How many pieces were held back."""
        return sum(link.met for link in self._links)

    async def start(self) -> None:
        """Listen."""
        await asyncio.gather(*(link.start() for link in self._links))

    async def close(self) -> None:
        """End all connections."""
        await asyncio.gather(*(link.close() for link in self._links))

    def disturb(self, how: Disturbance) -> None:
        """See `Link.disturb`."""
        for link in self._links:
            link.disturb(how)

    def heal(self) -> None:
        """See `Link.heal`."""
        for link in self._links:
            link.heal()

    def instead_of_targets(self, text: str) -> str:
        """Settings with the addresses of the links."""
        for link in self._links:
            text = re.sub(rf"{HOST}:{link.target}\b", f"{HOST}:{link.port}", text)
        return text


def _address(port: int) -> bytes:
    """As it stands in all answers that name brokers, whatever their version: the host, and its port behind it."""
    return HOST.encode() + _LENGTH.pack(port)
