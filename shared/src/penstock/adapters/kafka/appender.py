"""Appending to Kafka: idempotent, every batch confirmed by all replicas in sync, order kept, no doubt passed over.

What is appended to a partition while a batch of it is under way goes into its next batch (group commit), so calls made
at once share a request and calls one after another keep their order. A failed delivery leaves the producer's sequence
numbers in doubt (aiokafka #1017): it is thrown away with all that is under way in it, and the next call makes another.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from aiokafka import AIOKafkaProducer, errors
from aiokafka.structs import RecordMetadata

from penstock.adapters.kafka.connection import RECOVERY_TIMEOUT_S, KafkaConnection
from penstock.adapters.kafka.topics import LARGEST_BATCH_BYTES
from penstock.errors import PenstockError
from penstock.kafka.clients import aiokafka_options, check_brokers, started, without_topic_creation
from penstock.ports import NewRecord, RecordTooLargeError, TopicNotFoundError

BATCH_BYTES: Final = 4 << 20
"""Target size of a batch; a larger record makes a batch of its own."""
LARGEST_RECORD_BYTES: Final = LARGEST_BATCH_BYTES - 1_024
_LOOK_S: Final = 2.0
"""How often a delivery that takes long looks whether its topic is still there."""
_STOP_TIMEOUT_S: Final = 5.0

Partition = tuple[str, int]


@dataclass(slots=True, eq=False)
class _Call:
    """Records of one append that are not confirmed yet."""

    records: Sequence[NewRecord]
    done: asyncio.Future[int]
    """The offset behind the last record."""
    sent: int = 0

    def fail(self, error: PenstockError) -> None:
        if not self.done.done():
            own = type(error)(*error.args)
            own.__cause__ = error.__cause__
            self.done.set_exception(own)
            self.done.exception()  # a cancelled call has nobody to hear it


@dataclass(slots=True, eq=False)
class _Generation:
    """A producer and all that is under way in it: they end together."""

    started: asyncio.Task[AIOKafkaProducer]
    queues: dict[Partition, deque[_Call]] = field(default_factory=dict[Partition, deque[_Call]])
    calls: set[_Call] = field(default_factory=set[_Call])
    senders: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    ended: bool = False


class KafkaAppender:
    """Appends of one log, by one producer at a time. Callers bound how much is under way."""

    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection
        self._generation: _Generation | None = None
        self._stopping: set[asyncio.Task[None]] = set()

    async def append(self, topic: str, partition: int, records: Sequence[NewRecord]) -> int:
        """See `Log.append`; `records` is not empty. The order of calls is the order in which they begin.

        Raises:
            ExternalError: unknown what was written.
            RecordTooLargeError: Kafka would refuse one of the records.
            TopicNotFoundError: the topic does not exist, or was deleted meanwhile.
        """
        for record in records:
            _check_size(topic, record)
        if self._generation is None:
            self._generation = _Generation(asyncio.create_task(self._start()))
        generation = self._generation
        call = _Call(records, asyncio.get_running_loop().create_future())
        self._enqueue(generation, (topic, partition), call)
        try:
            return await self._confirmed(generation, topic, call)
        finally:
            generation.calls.discard(call)

    async def close(self, error: PenstockError) -> None:
        """Fail what is under way and give back the connections."""
        if self._generation is not None:
            self._discard(self._generation, error)
        await asyncio.gather(*self._stopping)

    async def _confirmed(self, generation: _Generation, topic: str, call: _Call) -> int:
        give_up_s = asyncio.get_running_loop().time() + RECOVERY_TIMEOUT_S
        while not call.done.done():
            await asyncio.wait([call.done], timeout=_LOOK_S)
            if call.done.done():
                break
            # aiokafka tries forever, so that only its caller can end what cannot succeed.
            if await self._is_gone(topic):
                error = f"topic {topic} was deleted while records were appended (Kafka at {self._brokers})"
                self._discard(generation, TopicNotFoundError(error))
            elif asyncio.get_running_loop().time() > give_up_s:
                reason = TimeoutError(f"not confirmed within {RECOVERY_TIMEOUT_S:.0f} s")
                self._discard(generation, self._connection.failure("append to", topic, reason))
        return call.done.result()

    async def _is_gone(self, topic: str) -> bool:
        try:
            return await self._connection.missing_everywhere(topic)
        except (errors.KafkaError, OSError, TimeoutError):
            return False

    async def _start(self) -> AIOKafkaProducer:
        return await self._connection.retrying("append to", f"{self._connection.prefix}*", self._start_once)

    async def _start_once(self) -> AIOKafkaProducer:
        options = aiokafka_options(self._connection.settings, self._connection.client_id)
        producer = AIOKafkaProducer(
            **options, acks="all", enable_idempotence=True, linger_ms=0, max_batch_size=BATCH_BYTES,
            max_request_size=LARGEST_BATCH_BYTES,
        )  # fmt: skip
        without_topic_creation(producer.client)
        try:
            async with asyncio.timeout(RECOVERY_TIMEOUT_S):
                await started(producer.start())
            check_brokers(producer.client)
        except BaseException:
            await producer.stop()
            raise
        return producer

    def _enqueue(self, generation: _Generation, partition: Partition, call: _Call) -> None:
        generation.calls.add(call)
        queue = generation.queues.get(partition)
        if queue is not None:
            queue.append(call)
            return
        generation.queues[partition] = deque([call])
        sender = asyncio.create_task(self._send(generation, partition))
        generation.senders.add(sender)
        sender.add_done_callback(generation.senders.discard)

    async def _send(self, generation: _Generation, partition: Partition) -> None:
        """Send the partition's queue until it is empty, one batch being confirmed and the next one ready."""
        topic, index = partition
        queue = generation.queues[partition]
        try:
            await self._connection.retrying("append to", topic, lambda: self._connection.leader(topic, index))
            producer = await asyncio.shield(generation.started)
            while queue:
                batch, calls = _fill(producer.create_batch(), queue)
                delivery = await producer.send_batch(batch, topic, partition=index)
                delivery.add_done_callback(lambda done, calls=calls: self._delivered(generation, topic, calls, done))
        except TopicNotFoundError as error:  # nothing of these was sent
            for call in queue:
                call.fail(error)
        except PenstockError as error:
            self._discard(generation, error)
        except Exception as error:  # whatever it is, the callers must hear of it
            self._discard(generation, self._connection.failure("append to", topic, error))
        finally:
            generation.queues.pop(partition, None)

    def _delivered(
        self, generation: _Generation, topic: str, calls: list[tuple[_Call, int | None]], done: asyncio.Future[Any]
    ) -> None:
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        metadata: RecordMetadata | None = None if error else done.result()
        if metadata is None or metadata.offset < 0:  # written twice, and the broker has forgotten where
            error = error or errors.DuplicateSequenceNumber("the offset of the records is unknown")
            self._discard(generation, self._connection.failure("append to", topic, error))
            return
        for call, last in calls:
            if last is not None and not call.done.done():
                call.done.set_result(metadata.offset + last + 1)

    def _discard(self, generation: _Generation, error: PenstockError) -> None:
        """End the producer and fail all that is under way in it."""
        if self._generation is generation:
            self._generation = None
        if generation.ended:
            return
        generation.ended = True
        for call in generation.calls:
            call.fail(error)
        for sender in generation.senders:
            if sender is not asyncio.current_task():
                sender.cancel()
        stop = asyncio.create_task(_stop(generation.started))
        self._stopping.add(stop)
        stop.add_done_callback(self._stopping.discard)

    @property
    def _brokers(self) -> str:
        return self._connection.settings.brokers


def _fill(batch: Any, queue: deque[_Call]) -> tuple[Any, list[tuple[_Call, int | None]]]:
    """Move records from the queue into the batch; for each call the place of its last record, if it is in the batch."""
    calls: list[tuple[_Call, int | None]] = []
    count = 0
    while queue:
        call = queue[0]
        while call.sent < len(call.records):
            record = call.records[call.sent]
            if batch.append(key=record.key, value=record.value, timestamp=None) is None:
                calls.append((call, None))
                return batch, calls
            call.sent += 1
            count += 1
        calls.append((call, count - 1))
        queue.popleft()
    batch.close()
    return batch, calls


def _check_size(topic: str, record: NewRecord) -> None:
    size = len(record.value) + len(record.key or b"")
    if size > LARGEST_RECORD_BYTES:
        raise RecordTooLargeError(
            f"topic {topic}: a record of {size} bytes is larger than what its topics take, {LARGEST_RECORD_BYTES}; "
            "make rows smaller, or batches of fewer rows"
        )


async def _stop(started: asyncio.Task[AIOKafkaProducer]) -> None:
    """Stop it without waiting for deliveries: aiokafka's own stop waits for them as long as a broker is away."""
    started.cancel()
    try:
        producer = await started
    except (asyncio.CancelledError, Exception):  # it never started, and who waited for it has been told
        return
    producer._closed = True
    for close in (producer._sender.close, producer.client.close):
        with suppress(errors.KafkaError, OSError, TimeoutError):  # what was in it has failed already
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                await close()
