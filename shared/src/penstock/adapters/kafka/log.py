"""The Log port on Kafka: a topic is the topic `penstock.<cluster>.<name>`, a partition its partition.

Own topics carry no transactions and nobody is member of a group: readers name their offsets, so nothing is ever
rebalanced, committed or reset. Reads recover by themselves from a broker's restart; appends may fail and work again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from aiokafka import errors
from aiokafka.protocol.admin import DeleteRecordsRequest
from aiokafka.protocol.offset import OffsetRequest

from penstock.adapters.kafka.appender import LARGEST_RECORD_BYTES, KafkaAppender
from penstock.adapters.kafka.chunks import KEPT_BYTES, Chunk, ChunkStore
from penstock.adapters.kafka.connection import ANSWER_TIMEOUT_MS, Attempts, KafkaConnection
from penstock.adapters.kafka.fetcher import KafkaFetcher
from penstock.adapters.kafka.topics import KafkaTopics
from penstock.errors import ExternalError
from penstock.ports import LogRecord, NewRecord, OffsetOutOfRangeError, TopicNotFoundError
from penstock.settings import KafkaSettings

_EARLIEST: Final = -2
_LATEST: Final = -1
_READ_UNCOMMITTED: Final = 0
_CONSUMER: Final = -1


class KafkaLog:
    """A `Log` of the topics whose names begin with `penstock.<cluster>.`. Connects when first used."""

    def __init__(self, settings: KafkaSettings, cluster: str, *, client_id: str = "penstock") -> None:
        self._connection = KafkaConnection(settings, cluster, client_id)
        self._topics = KafkaTopics(self._connection)
        self._appender = KafkaAppender(self._connection)
        self._chunks = ChunkStore()
        self._fetcher = KafkaFetcher(self._connection, self._chunks)

    @property
    def largest_record_bytes(self) -> int:
        """See `Log.largest_record_bytes`."""
        return LARGEST_RECORD_BYTES

    async def create_topic(
        self, topic: str, partitions: int, *, compacted: bool = False, retention_ms: int | None = None
    ) -> None:
        """See `Log.create_topic`."""
        full = self._connection.full_name(topic)
        await self._topics.create(full, partitions, compacted=compacted, retention_ms=retention_ms)

    async def delete_topic(self, topic: str) -> None:
        """See `Log.delete_topic`."""
        full = self._connection.full_name(topic)
        await self._topics.delete(full)
        self._chunks.drop_topic(full)
        self._fetcher.fail_topic(full, TopicNotFoundError(f"topic {full} was deleted"))

    async def topics(self) -> list[str]:
        """See `Log.topics`."""
        return await self._topics.names()

    async def append(self, topic: str, partition: int, records: Sequence[NewRecord]) -> int:
        """See `Log.append`."""
        full = self._connection.full_name(topic)
        self._connection.check_open()
        if not records:
            return (await self.offsets(topic, partition))[1]
        return await self._appender.append(full, partition, records)

    async def read(
        self, topic: str, partition: int, offset: int, *, max_bytes: int = 4 << 20, timeout_s: float = 0.0
    ) -> list[LogRecord]:
        """See `Log.read`. While brokers are away it tries on, longer than `timeout_s` if need be."""
        full = self._connection.full_name(topic)
        self._connection.check_open()
        chunk = self._chunks.find((full, partition), offset)
        if chunk is None:
            chunk = await self._fetched(full, partition, offset, max_bytes, timeout_s)
        return [] if chunk is None else await self._piece(full, partition, chunk, offset, max_bytes)

    async def _piece(self, topic: str, partition: int, chunk: Chunk, offset: int, max_bytes: int) -> list[LogRecord]:
        piece = chunk.piece(offset, max_bytes)
        if not piece or piece[-1].next_offset >= chunk.end:
            self._chunks.drop((topic, partition), chunk)
            if chunk.partition_end > chunk.end and self._chunks.size_bytes < KEPT_BYTES // 2:
                # The reader will be back for what is known to follow: fetched while it works on this.
                leader = self._connection.known_leader(topic, partition)
                if leader is not None:
                    self._fetcher.prefetch(leader, (topic, partition), chunk.end, max_bytes)
        return piece

    async def _fetched(self, topic: str, partition: int, offset: int, max_bytes: int, timeout_s: float) -> Chunk | None:
        attempts = Attempts(self._connection, "read", topic)
        deadline_s = time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, deadline_s - time.monotonic())
            try:
                leader = await self._connection.leader(topic, partition)
                return await self._fetcher.fetch(leader, (topic, partition), offset, max_bytes, left_s)
            except errors.OffsetOutOfRangeError as error:
                await self._raise_out_of_range(topic, partition, offset, error)
            except (errors.KafkaError, OSError, TimeoutError) as error:
                await attempts.failed(error)

    async def _raise_out_of_range(self, topic: str, partition: int, offset: int, error: Exception) -> None:
        start, end = await self._offsets(topic, partition)
        if start <= offset <= end:
            return  # a new leader that had not caught up with what is confirmed; it has now
        raise OffsetOutOfRangeError(
            f"{topic}/{partition}: offset {offset} is outside of what is kept, {start} to {end}"
        ) from error

    async def offsets(self, topic: str, partition: int) -> tuple[int, int]:
        """See `Log.offsets`."""
        return await self._offsets(self._connection.full_name(topic), partition)

    async def trim(self, topic: str, partition: int, before: int) -> None:
        """See `Log.trim`."""
        full = self._connection.full_name(topic)
        start, end = await self._offsets(full, partition)
        before = min(before, end)  # Kafka refuses what lies beyond the end
        if before <= start:
            return

        async def trim() -> None:
            leader = await self._connection.leader(full, partition)
            request = DeleteRecordsRequest([(full, [(partition, before)])], ANSWER_TIMEOUT_MS)
            answer = await self._connection.ask(leader, request)
            for _, partitions, *_ in answer.topics:
                for _, _, code, *_ in partitions:
                    if code:
                        raise errors.for_code(code)(f"{full}/{partition}, before {before}")

        await self._connection.retrying("trim", full, trim)
        self._chunks.drop((full, partition))

    async def sync(self) -> None:
        """Nothing: what Kafka has confirmed, several brokers have. See the settings of topics."""
        self._connection.check_open()

    async def close(self) -> None:
        """See `Log.close`."""
        closed = ExternalError("the log is closed")
        self._connection.closing()
        await self._fetcher.close(closed)
        await self._appender.close(closed)
        await self._connection.close()

    async def _offsets(self, topic: str, partition: int) -> tuple[int, int]:
        async def ask(which: int) -> int:
            leader = await self._connection.leader(topic, partition)
            request = OffsetRequest(_CONSUMER, _READ_UNCOMMITTED, [(topic, [(partition, which)])])
            answer = await self._connection.ask(leader, request)
            ((_, ((_, code, _, offset),)),) = answer.topics
            if code:
                raise errors.for_code(code)(f"{topic}/{partition}")
            return offset

        # The end is asked for after the start: what is trimmed between the two cannot put the start behind the end.
        start = await self._connection.retrying("read the offsets of", topic, lambda: ask(_EARLIEST))
        return start, await self._connection.retrying("read the offsets of", topic, lambda: ask(_LATEST))
