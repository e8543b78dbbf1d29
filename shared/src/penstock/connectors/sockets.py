"""Lines from a TCP socket: for demonstrations (`nc -lk 9999`). What was sent once cannot be read again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, Unpack

from penstock.connectors import base
from penstock.connectors.base import (
    BadRow,
    EndOfSplit,
    Fetched,
    Position,
    ReadContext,
    Split,
    T,
)
from penstock.connectors.declaring import SourceOptions, declare, zone
from penstock.core.arguments import checked
from penstock.core.times import Duration, duration_us
from penstock.errors import ExternalError, PipelineError
from penstock.types import Schema

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.formats.decoding import LineDecoder

SocketFormat = Literal["jsonl", "csv"]

_WAIT_S: Final = 0.05
_RECEIVE_BYTES: Final = 1 << 20
_MAX_LINE_BYTES: Final = 16 << 20
_CONNECT_TIMEOUT_S: Final = 10.0


class Source(base.Source[T], Generic[T]):
    """Lines that a server sends, as one split. At most at-least-once: after a restart what was read before is gone.

    Args:
        host, port: of the server.
        schema: dataclass, msgspec.Struct or pyarrow.Schema of the rows.
        format: `jsonl` or `csv` (without a header, columns in the order of the schema).
        retries: how often in a row to connect again when that fails or the connection ends; with 0 the source ends when
            the server closes the connection, otherwise it never does.
        retry_after: pause before each of them.
        **options: as at every source, see `SourceOptions`.

    Example:
        >>> lines = p.read(sockets.Source("localhost", 7000, schema=Bid, retries=3))
    """

    kind: ClassVar[str] = "sockets"

    @checked
    def __init__(
        self,
        host: str,
        port: int,
        *,
        schema: type[T] | Schema | pa.Schema,
        format: SocketFormat = "jsonl",
        retries: int = 0,
        retry_after: Duration = "1s",
        **options: Unpack[SourceOptions],
    ) -> None:
        what = "sockets.Source"
        if not 0 < port < 65_536 or retries < 0:
            raise PipelineError(f"{what}: port= is 1 to 65535 (got {port}), retries= zero or more (got {retries})")
        vars(self).update(vars(declare(what, schema, **options)))
        self.host: Final = host
        self.port: Final = port
        self.format: Final = format
        self.retries: Final = retries
        self.retry_after_us: Final = duration_us(retry_after, f"{what}: retry_after")

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"{self.host}:{self.port}"

    def discover(self) -> Sequence[Split]:
        """See `Source.discover`."""
        return [Split(self.address)]

    def open(self, split: Split, position: Position, context: ReadContext) -> base.SplitReader:
        """See `Source.open`."""
        return _Reader(self, self._decoder(), position or 0)

    def _decoder(self) -> LineDecoder:
        from penstock.formats.csv_decoding import CsvDecoder
        from penstock.formats.decoding import JsonDecoder

        naive = zone(self.timezone, "sockets.Source")
        if self.format == "csv":
            return CsvDecoder(self.schema, self.schema.names, self.address, zone=naive)
        return JsonDecoder(self.schema, naive)

    @property
    def bounded(self) -> bool:
        """Whether the source ends with the connection."""
        return self.retries == 0

    @property
    def replayable(self) -> bool:
        """False: what was sent is gone."""
        return False

    def describe(self) -> Mapping[str, Any]:
        """See `Source.describe`."""
        return {"address": self.address, "format": self.format, "retries": self.retries}


class _Reader:
    """Position: the number of lines received, for messages only."""

    def __init__(self, source: Source[Any], decoder: LineDecoder, lines: int) -> None:
        self._source = source
        self._decoder = decoder
        self._lines = lines
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._buffer = b""
        self._receiving: asyncio.Task[bytes] | None = None
        self._attempts = 0
        self._pause_until = 0.0

    async def read(self, max_rows: int) -> Fetched | None:
        """See `SplitReader.read`. Waits up to 50 ms for lines.

        Raises:
            ExternalError: the server cannot be reached, after the retries.
        """
        ends = self._decoder.ends(self._buffer)[:max_rows]
        if ends.size:
            return self._fetched(int(ends[-1]), len(ends))
        data = await self._received()
        if data is None:
            return None
        if data:
            self._buffer += data
            self._attempts = 0
            if len(self._buffer) > _MAX_LINE_BYTES and not self._decoder.ends(self._buffer).size:
                raise ExternalError(f"{self._source.address} sent a line of more than {_MAX_LINE_BYTES} bytes")
            return None
        return await self._ended()

    def _fetched(self, end: int, records: int) -> Fetched:
        block, self._buffer = self._buffer[:end], self._buffer[end:]
        decoded = self._decoder.decode(block)
        bad = [
            BadRow(line.error, line.raw, f"{self._source.address}, line {self._lines + line.index + 1}")
            for line in decoded.bad
        ]
        self._lines += records
        return Fetched(decoded.frame, bad, len(block), misspelt=decoded.misspelt)

    async def _received(self) -> bytes | None:
        """What came, empty if the connection ended, None if nothing came in time."""
        if self._receiving is None:
            # One task that outlives a cancelled or timed-out read: what it receives is not lost.
            self._receiving = asyncio.create_task(self._receive())
        await asyncio.wait([self._receiving], timeout=_WAIT_S)
        if not self._receiving.done():
            return None
        finished, self._receiving = self._receiving, None
        return finished.result()

    async def _receive(self) -> bytes:
        if self._streams is None:
            self._streams = await self._connect()
        try:
            return await self._streams[0].read(_RECEIVE_BYTES)
        except OSError:
            return b""  # reset: ended like any other connection

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        source = self._source
        while True:
            try:
                async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                    return await asyncio.open_connection(source.host, source.port)
            except (OSError, TimeoutError) as error:
                if self._attempts >= source.retries:
                    raise ExternalError(
                        f"sockets.Source: cannot connect to {source.address}: {error or 'no answer'}"
                        + (f" (tried {self._attempts + 1} times)" if self._attempts else "")
                        + "; start the server first (for example nc -lk PORT), or set retries="
                    ) from error
                self._attempts += 1
                await asyncio.sleep(source.retry_after_us / 1e6)

    async def _ended(self) -> Fetched | None:
        """The connection ended: hand out an unfinished last line, then end or connect again."""
        if self._buffer:
            return self._fetched(len(self._buffer), 1)
        await self._disconnect()
        if self._source.bounded:
            raise EndOfSplit
        if self._attempts >= self._source.retries:
            raise ExternalError(
                f"sockets.Source: {self._source.address} closed the connection {self._attempts + 1} times in a row "
                "without sending anything"
            )
        self._attempts += 1
        await asyncio.sleep(min(self._source.retry_after_us / 1e6, _WAIT_S))
        return None

    def position(self) -> Position:
        """See `SplitReader.position`."""
        return self._lines

    async def close(self) -> None:
        """See `SplitReader.close`."""
        if self._receiving is not None:
            self._receiving.cancel()
            await asyncio.wait([self._receiving])
            if not self._receiving.cancelled():
                self._receiving.exception()
            self._receiving = None
        await self._disconnect()

    async def _disconnect(self) -> None:
        if self._streams is not None:
            writer = self._streams[1]
            self._streams = None
            writer.close()
            with contextlib.suppress(OSError):  # reset by the other side: closed all the same
                await writer.wait_closed()
