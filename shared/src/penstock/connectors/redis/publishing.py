"""Publishes encoded rows and the mark by one script, which Redis carries out whole or not at all.

The mark of a partition is a hash, `penstock:mark:<job>:<operator>:<generation>:<partition>`. A publisher that starts
gives it the next number; a script with an older one writes nothing. The script looks at the type of everything it is to
write before it writes, because nothing is retracted of a script that fails in the middle.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from struct import pack
from typing import TYPE_CHECKING, Any, Final

import structlog

from penstock.connectors.base import ProducerFencedError, PublishContext, PublishedMark
from penstock.connectors.keyed_rows import COLUMN, GONE
from penstock.connectors.redis.encoding import NAME
from penstock.connectors.redis.places import RedisPlace
from penstock.errors import PipelineError, RefusedRowError
from penstock.protocol.publishing import ProducerEpoch

if TYPE_CHECKING:
    import polars as pl
    from redis.asyncio import Redis

_ROWS_PER_ARGUMENT: Final = 500
_FENCED: Final = b"fenced"
_LONG: Final = 1 << 16
_log = structlog.get_logger("penstock.redis")

_SCRIPT: Final = """
local producer, position, metadata, option = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local names = cmsgpack.unpack(ARGV[5])
if producer ~= '' and redis.call('HGET', KEYS[1], 'producer') ~= producer then return {'fenced'} end
local function check(key, wanted)
    local found = redis.call('TYPE', key).ok
    if found ~= 'none' and found ~= wanted then return {key, found} end
end
local function fields_of(row, first)
    local set, absent = {}, {}
    for n = 1, #names do
        local value = row[first + n]
        if value == nil then
            absent[#absent + 1] = names[n]
        else
            set[#set + 1] = names[n]
            set[#set + 1] = value
        end
    end
    return set, absent
end
%s
if producer ~= '' then redis.call('HSET', KEYS[1], 'position', position, 'metadata', metadata) end
return {}
"""
"""KEYS: the mark (and the stream). ARGV: number of the publisher (empty: there is no mark), position, metadata, an
option, names of the fields, and rows as MessagePack, some hundred in each argument. Returns nothing, or what is wrong."""

HASHES: Final = (
    _SCRIPT
    % """
local wrong = {}
for a = 6, #ARGV do
    for _, row in ipairs(cmsgpack.unpack(ARGV[a])) do
        local found = check(row[1], 'hash')
        if found then
            wrong[#wrong + 1] = found[1]
            wrong[#wrong + 1] = found[2]
        end
    end
end
if #wrong > 0 then return wrong end
for a = 6, #ARGV do
    for _, row in ipairs(cmsgpack.unpack(ARGV[a])) do
        if row[2] then
            redis.call('HDEL', row[1], unpack(names))
        else
            local set, absent = fields_of(row, 2)
            redis.call('HSET', row[1], unpack(set))
            if #absent > 0 then redis.call('HDEL', row[1], unpack(absent)) end
            if option ~= '' then redis.call('PEXPIRE', row[1], option) end
        end
    end
end
"""
)
"""Option: milliseconds until a hash is gone. Fields of others stay."""

STREAM: Final = (
    _SCRIPT
    % """
local wrong = check(KEYS[2], 'stream')
if wrong then return wrong end
for a = 6, #ARGV do
    for _, row in ipairs(cmsgpack.unpack(ARGV[a])) do
        local set = fields_of(row, 0)
        if option ~= '' then
            redis.call('XADD', KEYS[2], 'MAXLEN', '~', option, '*', unpack(set))
        else
            redis.call('XADD', KEYS[2], '*', unpack(set))
        end
    end
end
"""
)
"""Option: about how many entries are kept."""


@dataclass(frozen=True)
class RedisWriting:
    """How rows get there."""

    place: RedisPlace
    name: str
    """As errors call the destination."""
    script: str
    stream: str | None
    """The stream; None: hashes, which rows name."""
    option: str
    skips: bool = False
    """Whether rows whose name something else has are left out, instead of failing."""

    async def write(
        self, client: Redis, frames: Sequence[pl.DataFrame], mark_key: str, mark: PublishedMark | None, producer: int
    ) -> int:
        """Encoded rows, in order, and the mark, if there is one; returns how many rows are left out.

        Raises:
            ProducerFencedError: the mark has another number.
            RefusedRowError: something else has the name of a hash.
            PipelineError: something else has the name of the stream.
        """
        import polars as pl

        keys = [mark_key] if self.stream is None else [mark_key, self.stream]
        number = "" if mark is None else str(producer)
        position, metadata = ("", "") if mark is None else (str(mark.position), mark.metadata)
        arguments = [number, position, metadata, self.option, _names_of(frames), *_packed(frames)]
        found: list[bytes] = await client.register_script(self.script)(keys=keys, args=arguments)
        if found == [_FENCED]:
            raise ProducerFencedError(f"{self.name}: another publisher of {mark_key} has started")
        if not found:
            return 0
        key, kind = (part.decode(errors="replace") for part in found[:2])
        why = f"{self.name}: {key} is there, and is a {kind}; nothing was written. Remove it, or write elsewhere"
        if self.stream is not None:
            raise PipelineError(why)
        if not self.skips:
            raise RefusedRowError(f"{why}, or say bad_rows='skip' to leave such rows out")
        kept = [frame.filter(~pl.col(NAME).is_in([name.decode() for name in found[::2]])) for frame in frames]
        left_out = sum(frame.height for frame in frames) - sum(frame.height for frame in kept)
        _log.warning("rows are left out", rows=left_out, reason=why)
        return left_out + await self.write(client, kept, mark_key, mark, producer)


def _names_of(frames: Sequence[pl.DataFrame]) -> bytes:
    columns = frames[0].columns if frames else []
    return _array([_raw(name.removeprefix(COLUMN).encode()) for name in columns if name.startswith(COLUMN)])


def _packed(frames: Sequence[pl.DataFrame]) -> Iterator[bytes]:
    for frame in frames:
        fields = [name for name in frame.columns if name.startswith(COLUMN)]
        rows = frame.select(*((NAME, GONE) if NAME in frame.columns else ()), *fields)
        for some in rows.iter_slices(_ROWS_PER_ARGUMENT):
            yield _array([_array([_value(value) for value in row]) for row in some.iter_rows()])


def _value(value: str | bytes | bool | None) -> bytes:
    """A value as MessagePack; Redis knows no binary type, its texts are any bytes."""
    if value is None or isinstance(value, bool):
        return b"\xc0" if value is None else b"\xc3" if value else b"\xc2"
    return _raw(value.encode() if isinstance(value, str) else value)


def _raw(data: bytes) -> bytes:
    return (b"\xda" + pack(">H", len(data)) if len(data) < _LONG else b"\xdb" + pack(">I", len(data))) + data


def _array(parts: Sequence[bytes]) -> bytes:
    return b"\xdd" + pack(">I", len(parts)) + b"".join(parts)


def mark_key(context: PublishContext, partition: int) -> str:
    """Where the mark of a partition is."""
    return f"penstock:mark:{context.job}:{context.operator}:{context.generation}:{partition}"


class RedisPublisher:
    """The publisher of one partition of a sink; see `SinkPublisher`."""

    def __init__(self, writing: RedisWriting, context: PublishContext) -> None:
        self._writing = writing
        self._key = mark_key(context, context.partition)
        self._client: Redis | None = None
        self._producer = 0

    async def open(self) -> None:
        """See `SinkPublisher.open`."""
        async with self._certain("opening") as client:
            await client.ping()

    async def init_producer(self) -> ProducerEpoch:
        """See `SinkPublisher.init_producer`: scripts run one by one, so nothing of an earlier publisher is under way."""
        async with self._certain("taking the mark") as client:
            self._producer = await client.hincrby(self._key, "producer", 1)
        return ProducerEpoch(0, self._producer)

    async def read_mark(self) -> PublishedMark | None:
        """See `SinkPublisher.read_mark`."""
        async with self._certain("reading the mark") as client:
            position, metadata = await client.hmget(self._key, ["position", "metadata"])
        return None if position is None else PublishedMark(int(position), metadata.decode())

    async def commit(self, frames: Sequence[pl.DataFrame], mark: PublishedMark) -> int:
        """See `SinkPublisher.commit`."""
        async with self._certain("the transaction") as client:
            return await self._writing.write(client, frames, self._key, mark, self._producer)

    async def close(self) -> None:
        """See `SinkPublisher.close`."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    @contextlib.asynccontextmanager
    async def _certain(self, step: str) -> AsyncGenerator[Any]:
        """A client; whatever is not certain throws it away."""
        if self._client is None:
            self._client = self._writing.place.client()
        try:
            async with self._writing.place.within(
                f"{self._writing.name}: {step}: ", "check the rights and what is there"
            ):
                yield self._client
        except ProducerFencedError:
            raise
        except BaseException:
            await self.close()
            raise


async def forget_marks(place: RedisPlace, context: PublishContext) -> None:
    """Remove the marks of all partitions of a context."""
    client = place.client()
    async with place.within(f"redis at {place.address}: removing marks: ", "check the rights"), client:
        await client.unlink(*(mark_key(context, number) for number in range(context.partitions)))
