"""What one fetch of a partition brought, and the few of them that are kept for the next reads."""

from __future__ import annotations

import bisect
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from aiokafka.errors import CorruptRecordException
from aiokafka.record.memory_records import MemoryRecords

from penstock.errors import CorruptDataError
from penstock.ports import LogRecord

KEPT_BYTES: Final = 64 << 20
"""How much fetched and unread data one log keeps."""
KEPT_S: Final = 30.0
"""How long it keeps what nobody asks for."""
_LOOK_S: Final = 1.0
"""How often it looks for what nobody asks for, while there is room."""

Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Chunk:
    """The records of a partition in `[start, end)`, in order; the partition ended at `partition_end` or later."""

    start: int
    end: int
    records: list[LogRecord]
    partition_end: int
    size_bytes: int

    def piece(self, offset: int, max_bytes: int) -> list[LogRecord]:
        """Records from `offset` on, at least one if there is any, at most about `max_bytes`."""
        first = bisect.bisect_left(self.records, offset, key=_offset)
        size = 0
        for index in range(first, len(self.records)):
            size += len(self.records[index].value)
            if size > max_bytes and index > first:
                return self.records[first:index]
        return self.records[first:]


def _offset(record: LogRecord) -> int:
    return record.offset


def decode(partition: Partition, offset: int, data: bytes, partition_end: int) -> Chunk:
    """The records at or after `offset` in a partition's part of the answer to a fetch.

    Raises:
        CorruptDataError: a checksum does not match.
    """
    try:
        records = list(_records(partition, offset, data))
    except CorruptRecordException as error:
        raise CorruptDataError(f"topic {partition[0]}, partition {partition[1]}, from {offset}: {error}") from error
    end = records[-1].next_offset if records else _end(offset, data)
    return Chunk(offset, end, records, partition_end, len(data))


def _records(partition: Partition, offset: int, data: bytes) -> Iterator[LogRecord]:
    batches = MemoryRecords(data)
    while batches.has_next():
        batch = batches.next_batch()
        if batch is None:
            return
        if not batch.validate_crc():
            raise CorruptDataError(
                f"topic {partition[0]}, partition {partition[1]}: a batch at or behind offset {offset} does not match "
                "its checksum; the broker's disk or the network damages data"
            )
        if batch.is_control_batch:
            continue
        # The end of a batch whose last records were compacted away is known only from the batch.
        behind = batch.next_offset
        waiting: LogRecord | None = None
        for record in batch:
            if record.offset < offset:
                continue
            if waiting is not None:
                yield waiting
            waiting = LogRecord(record.offset, record.offset + 1, record.value or b"", record.key)
        if waiting is not None:
            yield LogRecord(waiting.offset, behind, waiting.value, waiting.key)


def _end(offset: int, data: bytes) -> int:
    """Where to go on when a fetch brought batches but none of their records: all were compacted away."""
    batches = MemoryRecords(data)
    while batches.has_next():
        batch = batches.next_batch()
        if batch is not None:
            offset = max(offset, batch.next_offset)
    return offset


@dataclass(slots=True)
class _Kept:
    chunk: Chunk
    used_s: float


@dataclass(slots=True)
class ChunkStore:
    """Chunks not read to their end, bounded in bytes and in age; the longest unused goes first."""

    _kept: dict[Partition, list[_Kept]] = field(default_factory=dict[Partition, list[_Kept]])
    size_bytes: int = 0
    _looked_s: float = 0.0
    """When the age of all was looked at last."""

    def find(self, partition: Partition, offset: int) -> Chunk | None:
        """A chunk that holds `offset`."""
        for kept in self._kept.get(partition, ()):
            if kept.chunk.start <= offset < kept.chunk.end:
                kept.used_s = time.monotonic()
                return kept.chunk
        return None

    def keep(self, partition: Partition, chunk: Chunk) -> None:
        """Keep the chunk, in place of others if there are too many."""
        if any(kept.chunk is chunk for kept in self._kept.get(partition, ())):
            return
        self._kept.setdefault(partition, []).append(_Kept(chunk, time.monotonic()))
        self.size_bytes += chunk.size_bytes
        self._evict()

    def drop(self, partition: Partition, chunk: Chunk | None = None) -> None:
        """Forget the chunk, or all of the partition."""
        kept = self._kept.pop(partition, [])
        left = [] if chunk is None else [item for item in kept if item.chunk is not chunk]
        self.size_bytes += sum(item.chunk.size_bytes for item in left) - sum(item.chunk.size_bytes for item in kept)
        if left:
            self._kept[partition] = left

    def drop_topic(self, topic: str) -> None:
        """Forget all of the topic."""
        for partition in [partition for partition in self._kept if partition[0] == topic]:
            self.drop(partition)

    def _evict(self) -> None:
        now_s = time.monotonic()
        if self.size_bytes <= KEPT_BYTES and now_s - self._looked_s < _LOOK_S:
            return  # every answer comes by here, and few of them find anything to do
        self._looked_s, expired_s = now_s, now_s - KEPT_S
        by_use = sorted(
            ((kept.used_s, partition, kept.chunk) for partition, items in self._kept.items() for kept in items),
            key=lambda item: item[0],
        )
        for used_s, partition, chunk in by_use[:-1]:  # the newest stays whatever its size
            if self.size_bytes <= KEPT_BYTES and used_s >= expired_s:
                return
            self.drop(partition, chunk)
