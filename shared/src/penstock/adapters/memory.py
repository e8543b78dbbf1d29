"""The ports in memory, for tests and simulations: the same contracts, nothing survives the process.

One event loop uses an instance. Offsets of `MemoryLog` are deliberately not dense, so that code which adds one to an
offset fails in a test and not on Kafka.
"""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.adapters.naming import checked_key, checked_topic
from penstock.errors import ExternalError
from penstock.ports import (
    BlobExistsError,
    BlobNotFoundError,
    Clock,
    LogRecord,
    NewRecord,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    Scale,
    ScaleChangedError,
    TopicMismatchError,
    TopicNotFoundError,
)


@dataclass(slots=True, eq=False)
class _Partition:
    offsets: list[int] = field(default_factory=list[int])
    records: list[LogRecord] = field(default_factory=list[LogRecord])
    start: int = 0
    end: int = 0
    compact_at: int = 0
    deleted: bool = False
    waiters: list[asyncio.Future[None]] = field(default_factory=list["asyncio.Future[None]"])

    def wake(self) -> None:
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.waiters.clear()

    def keep(self, records: list[LogRecord]) -> None:
        self.records = records
        self.offsets = [record.offset for record in records]


@dataclass(slots=True, eq=False)
class _Topic:
    partitions: list[_Partition]
    compacted: bool


class MemoryLog:
    """A `Log` of Python lists.

    Args:
        compact_after: superseded records of a compacted topic are dropped whenever that many more were appended.
        largest_record_bytes: what a record may have.
    """

    def __init__(self, *, compact_after: int = 1_000, largest_record_bytes: int = 1 << 30) -> None:
        self._largest_record_bytes = largest_record_bytes
        self._topics: dict[str, _Topic] = {}
        self._compact_after = compact_after
        self._closed = False

    @property
    def largest_record_bytes(self) -> int:
        """See `Log.largest_record_bytes`."""
        return self._largest_record_bytes

    async def create_topic(
        self, topic: str, partitions: int, *, compacted: bool = False, retention_ms: int | None = None
    ) -> None:
        """See `Log.create_topic`."""
        checked_topic(topic)
        there = self._topics.get(topic)
        if there is None:
            made = [_Partition(compact_at=self._compact_after) for _ in range(partitions)]
            self._topics[topic] = _Topic(made, compacted)
        elif len(there.partitions) != partitions or there.compacted != compacted:
            raise TopicMismatchError(
                f"topic {topic} exists with {len(there.partitions)} partitions (compacted: {there.compacted}); "
                f"asked for were {partitions} (compacted: {compacted})"
            )

    async def delete_topic(self, topic: str) -> None:
        """See `Log.delete_topic`."""
        there = self._topics.pop(topic, None)
        for partition in there.partitions if there else ():
            partition.deleted = True
            partition.wake()

    async def topics(self) -> list[str]:
        """See `Log.topics`."""
        return sorted(self._topics)

    async def append(self, topic: str, partition: int, records: Sequence[NewRecord]) -> int:
        """See `Log.append`."""
        there = self._partition(topic, partition)
        for record in records:
            if (size := len(record.value) + len(record.key or b"")) > self._largest_record_bytes:
                raise RecordTooLargeError(f"topic {topic}: a record of {size} bytes is larger than the log takes")
        for record in records:
            end = there.end + 1 + len(record.value)
            there.offsets.append(there.end)
            there.records.append(LogRecord(there.end, end, record.value, record.key))
            there.end = end
        if self._topics[topic].compacted and len(there.records) > there.compact_at:
            _compact(there)
            there.compact_at = len(there.records) + self._compact_after
        there.wake()
        return there.end

    async def read(
        self, topic: str, partition: int, offset: int, *, max_bytes: int = 4 << 20, timeout_s: float = 0.0
    ) -> list[LogRecord]:
        """See `Log.read`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            there = self._partition(topic, partition)
            _check_range(topic, partition, offset, there.start, there.end)
            records = _from(there, offset, max_bytes)
            if records or (remaining := deadline - loop.time()) <= 0:
                return records
            waiter: asyncio.Future[None] = loop.create_future()
            there.waiters.append(waiter)
            try:
                heard, _ = await asyncio.wait([waiter], timeout=remaining)
            finally:
                if waiter in there.waiters:
                    there.waiters.remove(waiter)
            if there.deleted:
                raise TopicNotFoundError(f"topic {topic} was deleted while partition {partition} was read")
            if not heard:  # a timer may come a rounding early: in virtual time the clock would never pass the deadline
                deadline = loop.time()

    async def offsets(self, topic: str, partition: int) -> tuple[int, int]:
        """See `Log.offsets`."""
        there = self._partition(topic, partition)
        return there.start, there.end

    async def trim(self, topic: str, partition: int, before: int) -> None:
        """See `Log.trim`."""
        there = self._partition(topic, partition)
        there.start = max(there.start, min(before, there.end))
        there.keep(there.records[bisect.bisect_left(there.offsets, there.start) :])

    async def sync(self) -> None:
        """Nothing: memory survives no power loss."""

    async def close(self) -> None:
        """Wake all readers; later calls fail."""
        self._closed = True
        for topic in self._topics.values():
            for partition in topic.partitions:
                partition.wake()

    def _partition(self, topic: str, partition: int) -> _Partition:
        if self._closed:
            raise ExternalError("the log is closed")
        there = self._topics.get(checked_topic(topic))
        if there is None:
            raise TopicNotFoundError(f"there is no topic {topic}")
        if not 0 <= partition < len(there.partitions):
            raise TopicNotFoundError(f"topic {topic} has {len(there.partitions)} partitions, there is no {partition}")
        return there.partitions[partition]


def _from(partition: _Partition, offset: int, max_bytes: int) -> list[LogRecord]:
    first = bisect.bisect_left(partition.offsets, offset)
    size = 0
    found: list[LogRecord] = []
    for index in range(first, len(partition.records)):
        record = partition.records[index]
        size += len(record.value)
        if found and size > max_bytes:
            break
        found.append(record)
    return found


def _compact(partition: _Partition) -> None:
    latest = {record.key: record.offset for record in partition.records}
    partition.keep([r for r in partition.records if r.key is None or latest[r.key] == r.offset])


def _check_range(topic: str, partition: int, offset: int, start: int, end: int) -> None:
    if not start <= offset <= end:
        raise OffsetOutOfRangeError(
            f"{topic}/{partition}: offset {offset} is outside of what is kept, {start} to {end}"
        )


class MemoryBlobs:
    """A `Blobs` of one dict."""

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}

    async def put(self, key: str, data: bytes) -> None:
        """See `Blobs.put`."""
        self._objects[checked_key(key)] = bytes(data)

    async def create(self, key: str, data: bytes) -> None:
        """See `Blobs.create`."""
        if checked_key(key) in self._objects:
            raise BlobExistsError(f"object {key} exists")
        self._objects[key] = bytes(data)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """See `Blobs.get`."""
        data = self._objects.get(checked_key(key))
        if data is None:
            raise BlobNotFoundError(f"there is no object {key}")
        return data[start:end]

    async def list(self, prefix: str) -> list[str]:
        """See `Blobs.list`."""
        return sorted(key for key in self._objects if key.startswith(prefix))

    async def delete(self, key: str) -> None:
        """See `Blobs.delete`."""
        self._objects.pop(checked_key(key), None)


class MemoryMetadata:
    """A `Metadata` of one dict; expiry by the injected clock's monotonic time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._values: dict[str, tuple[bytes, int | None]] = {}

    async def acquire(self, key: str, value: bytes, ttl_ms: int) -> bool:
        """See `Metadata.acquire`."""
        if await self.get(key) is not None:
            return False
        self._values[key] = (value, self._clock.monotonic_ms() + ttl_ms)
        return True

    async def renew(self, key: str, value: bytes, ttl_ms: int) -> bool:
        """See `Metadata.renew`."""
        if await self.get(key) != value:
            return False
        self._values[key] = (value, self._clock.monotonic_ms() + ttl_ms)
        return True

    async def release(self, key: str, value: bytes) -> bool:
        """See `Metadata.release`."""
        if await self.get(key) != value:
            return False
        del self._values[key]
        return True

    async def put(self, key: str, value: bytes) -> None:
        """See `Metadata.put`."""
        self._values[key] = (value, None)

    async def get(self, key: str) -> bytes | None:
        """See `Metadata.get`."""
        value, expires = self._values.get(key, (None, None))
        if expires is not None and self._clock.monotonic_ms() >= expires:
            return None
        return value


class MemoryScale:
    """A `TaskManagerScale` that only remembers the number."""

    def __init__(self, name: str, task_managers: int) -> None:
        """`name` is what hosts are called, before a hyphen and their number."""
        self._name = name
        self._scale = Scale(task_managers, "0")

    def number_of(self, host: str) -> int | None:
        """See `TaskManagerScale.number_of`."""
        name, _, number = host.rpartition("-")
        return int(number) if name == self._name and number.isdecimal() else None

    async def read(self) -> Scale:
        """See `TaskManagerScale.read`."""
        return self._scale

    async def write(self, task_managers: int, version: str) -> Scale:
        """See `TaskManagerScale.write`."""
        if version != self._scale.version:
            raise ScaleChangedError("somebody else changed the number of task managers")
        self._scale = Scale(task_managers, str(int(version) + 1))
        return self._scale
