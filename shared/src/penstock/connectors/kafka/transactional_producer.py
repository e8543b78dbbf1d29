"""Kafka's transaction protocol, request by request: nothing is sent twice, and nothing is sent that is not needed.

`AIOKafkaProducer` tries again by itself, and an EndTxn that comes a second time may decide the next transaction
(KAFKA-17754). Here every request is sent once; whatever is not answered, or answered in any other way than expected, is
raised, and the producer is of no use any more. Only where a broker says that it has done nothing yet, it is asked again.
A transaction of few rows is three requests: which partitions, the records, the end.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient, ConnectionGroup, CoordinationType
from aiokafka.errors import (
    ConcurrentTransactions,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    KafkaError,
    LeaderNotAvailableError,
    NodeNotReadyError,
    NoError,
    NotCoordinatorError,
    OperationNotAttempted,
    for_code,
)
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.protocol import produce
from aiokafka.protocol.transaction import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.memory_records import MemoryRecords

from penstock.kafka.clients import check_brokers, without_topic_creation
from penstock.protocol.publishing import ProducerEpoch

if TYPE_CHECKING:
    from aiokafka.conn import AIOKafkaConnection

REQUEST_BYTES: Final = 8 << 20
"""About how much one produce request carries; brokers take 100 MiB."""
_PAUSE_S: Final = 0.002
"""Before a broker is asked again that is still writing the markers of the last transaction; grows."""
_LONGEST_PAUSE_S: Final = 0.1
_NOT_YET: Final = (ConcurrentTransactions, CoordinatorLoadInProgressError)
"""Nothing has been done: asking again repeats nothing."""
_ELSEWHERE: Final = (*_NOT_YET, CoordinatorNotAvailableError, NotCoordinatorError, NodeNotReadyError)
_REFUSED: Final = {10: "MESSAGE_TOO_LARGE", 18: "RECORD_LIST_TOO_LARGE", 32: "INVALID_TIMESTAMP", 87: "INVALID_RECORD"}
"""Codes by which a broker refuses a batch for what is in it: sent again, it is refused again."""
TOO_LARGE: Final = ("MESSAGE_TOO_LARGE", "RECORD_LIST_TOO_LARGE")
_SEQUENCES: Final = 1 << 31
_CODECS: Final[dict[str | None, int]] = {
    None: 0,
    "gzip": DefaultRecordBatch.CODEC_GZIP,
    "snappy": DefaultRecordBatch.CODEC_SNAPPY,
    "lz4": DefaultRecordBatch.CODEC_LZ4,
    "zstd": DefaultRecordBatch.CODEC_ZSTD,
}


class ProduceRequest(produce.ProduceRequest):
    """With the version whose answer says which records of a batch are refused (KIP-467), which aiokafka (0.14) has and
    does not use."""


ProduceRequest._CLASSES = (*produce.ProduceRequest._CLASSES, produce.ProduceRequest_v8)  # pyright: ignore[reportAttributeAccessIssue]


@dataclass(frozen=True)
class RefusedRecord:
    """A record that a broker refuses for what it is."""

    partition: TopicPartition
    code: str
    """Kafka's name of the error."""
    said: str
    """What the broker says of it."""
    at_ms: int | None
    key: bytes | None
    value: bytes | None


class RefusedBatchError(Exception):
    """A broker refuses records for what they are, so the transaction cannot be committed; sent again they are refused.

    `records` are those that it names. `unknown`: batches of which it does not say which records they are.
    """

    def __init__(self, records: list[RefusedRecord], unknown: list[RefusedRecord]) -> None:
        first = (records or unknown)[0]
        topic, number = first.partition
        super().__init__(f"{topic}[{number}]: {first.code} {first.said}".rstrip())
        self.records = records
        self.unknown = unknown


class TransactionalProducer:
    """A transactional id on a connection of its own. Driven by one task; after any error only `close` is allowed."""

    def __init__(self, options: dict[str, Any], transactional_id: str, transaction_timeout_ms: int) -> None:
        """`options` are those of `AIOKafkaClient`."""
        self.transactional_id = transactional_id
        self.client = AIOKafkaClient(**options)
        without_topic_creation(self.client)
        self._request_timeout_ms: int = options["request_timeout_ms"]
        self._transaction_timeout_ms = transaction_timeout_ms
        self._coordinator: AIOKafkaConnection | None = None
        self._producer = ProducerEpoch(-1, -1)
        self._sequences: dict[TopicPartition, int] = {}
        self._added: set[TopicPartition] = set()
        """Partitions that the coordinator knows to be in the transaction."""
        self._gathered: dict[TopicPartition, BatchBuilder] = {}
        self._sending: asyncio.Task[None] | None = None
        self._refused: list[RefusedRecord] = []
        self._refused_batches: list[RefusedRecord] = []
        self._refused_now: set[TopicPartition] = set()
        """Partitions of the request under way whose batch is refused."""

    @property
    def connected(self) -> bool:
        """Whether the connection lasts over which the coordinator has answered: it has not been killed since."""
        return self._coordinator is not None and self._coordinator.connected()

    async def connect(self, topics: Iterable[str]) -> None:
        """Find the brokers, and the leaders of the topics that will be written to.

        Raises:
            KafkaError: no broker answers.
        """
        await self.client.bootstrap()
        check_brokers(self.client)
        await self.client.set_topics(list(topics))

    async def partitions(self, topic: str) -> list[int]:
        """Of a topic, as far as they are known.

        Raises:
            KafkaError: it is not there, or this user may not see it.
        """
        return sorted(await self.client._wait_on_metadata(topic))

    # -- the transaction ------------------------------------------------------------------------------------------------

    async def init(self) -> ProducerEpoch:
        """InitProducerId: fences all others of this id and settles what they left, or what this one did.

        Raises:
            KafkaError: it was not granted for certain.
        """
        request = InitProducerIdRequest(self.transactional_id, self._transaction_timeout_ms)
        again = _ELSEWHERE if self._coordinator is None else _NOT_YET
        answer = await _once_done(lambda: self._coordinate(request), again)
        self._producer = ProducerEpoch(answer.producer_id, answer.producer_epoch)
        self._sequences.clear()
        self._added.clear()
        return self._producer

    def batch(self, limit_bytes: int, compression: str | None) -> BatchBuilder:
        """An empty batch of records."""
        return BatchBuilder(limit_bytes, _CODECS[compression], is_transactional=1)

    async def send(self, partition: TopicPartition, batch: BatchBuilder) -> None:
        """Take a full batch into the transaction; batches of one partition keep their order.

        Batches of several partitions go together; one request is under way while the next one is filled.
        """
        size = sum(waiting.size() for waiting in self._gathered.values())
        if partition in self._gathered or (size and size + batch.size() > REQUEST_BYTES):
            await self._dispatch()
        self._gathered[partition] = batch
        await asyncio.sleep(0)  # a batch takes milliseconds to fill: others run in between

    async def flush(self) -> None:
        """Send what is left; returns when all of it is written.

        Raises:
            KafkaError: it is not, for certain.
            RefusedBatchError: something of the transaction is refused.
        """
        await self._dispatch()
        await self._sent()
        if self._refused or self._refused_batches:
            raise RefusedBatchError(self._refused, self._refused_batches)

    async def commit(self) -> None:
        """Send what is left, and end the transaction.

        Raises:
            KafkaError: it is not committed for certain.
            RefusedBatchError: something of it is refused, so it is not.
        """
        await self.flush()
        await self._coordinate(EndTxnRequest(self.transactional_id, *self._producer, True))
        self._added.clear()

    async def close(self) -> None:
        """Send nothing any more, and give the connections back."""
        sending, self._sending = self._sending, None
        if sending is not None:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        try:
            await self.client.close()
        finally:
            for connection in list(self.client._conns.values()):  # those left by a `close` that did not come so far
                connection.close()

    # -- records --------------------------------------------------------------------------------------------------------

    async def _dispatch(self) -> None:
        await self._sent()
        gathered, self._gathered = self._gathered, {}
        if gathered:
            self._sending = asyncio.ensure_future(self._produce(gathered))

    async def _sent(self) -> None:
        sending = self._sending
        if sending is not None:
            await sending
            self._sending = None

    async def _produce(self, batches: dict[TopicPartition, BatchBuilder]) -> None:
        await self._add(batches.keys() - self._added)
        leaders = {partition: await self._leader(partition) for partition in batches}
        requests: defaultdict[int, defaultdict[str, list[tuple[int, bytes]]]] = defaultdict(lambda: defaultdict(list))
        for partition, batch in batches.items():
            sequence = self._sequences.get(partition, 0)
            batch._set_producer_state(*self._producer, sequence)
            requests[leaders[partition]][partition.topic].append((partition.partition, bytes(batch._build())))
        await asyncio.gather(*(self._produce_at(leader, topics) for leader, topics in requests.items()))
        for partition in batches.keys() - self._refused_now:  # behind what is refused the next batch takes its place
            sequence = self._sequences.get(partition, 0) + batches[partition].record_count()
            self._sequences[partition] = sequence % _SEQUENCES
        self._refused_now.clear()

    async def _leader(self, partition: TopicPartition) -> int:
        """Who has it; a topic that was made just now is not known to every broker yet."""

        async def known() -> int:
            leader = self.client.cluster.leader_for_partition(partition)
            if leader is None or leader == -1:
                await self.client.force_metadata_update()
                raise unknown
            return leader

        unknown = LeaderNotAvailableError(f"{partition.topic}[{partition.partition}]")
        try:
            async with asyncio.timeout(self._request_timeout_ms / 1_000):
                return await _once_done(known, (LeaderNotAvailableError,))
        except TimeoutError:
            raise unknown from None

    async def _produce_at(self, leader: int, topics: dict[str, list[tuple[int, bytes]]]) -> None:
        request = ProduceRequest(self.transactional_id, -1, self._request_timeout_ms, list(topics.items()))
        answer: Any = await self.client.send(leader, request)
        for topic, partitions in answer.topics:
            for partition, code, *rest in partitions:
                if code in _REFUSED:
                    place = TopicPartition(topic, partition)
                    self._refuse(place, code, dict(topics[topic])[partition], rest[3:])
                else:
                    _check(code, f"{topic}[{partition}]")

    def _refuse(self, place: TopicPartition, code: int, batch: bytes, told: list[Any]) -> None:
        """Note what is refused; the rest of the transaction is still sent, so that all such records are found at once."""
        errors, said = (told[0] or [], told[1] or "") if len(told) > 1 else ([], "")  # an older broker tells neither
        records = _records(batch)
        reasons = dict(errors) if errors or len(records) > 1 else {0: said}
        if not reasons:
            self._refused_batches.append(RefusedRecord(place, _REFUSED[code], said, None, None, None))
        for index, why in reasons.items():
            at_ms, key, value = records[index]
            self._refused.append(RefusedRecord(place, _REFUSED[code], why or said, at_ms, key, value))
        self._refused_now.add(place)

    async def _add(self, partitions: Iterable[TopicPartition]) -> None:
        topics: defaultdict[str, list[int]] = defaultdict(list)
        for topic, partition in sorted(partitions):
            topics[topic].append(partition)
        if not topics:
            return
        if not self._added and not self.connected:  # it waited for long; nothing of this transaction is there yet
            self._coordinator = None
        request = AddPartitionsToTxnRequest(self.transactional_id, *self._producer, list(topics.items()))
        await _once_done(lambda: self._coordinate(request), _NOT_YET)
        self._added.update(TopicPartition(topic, partition) for topic in topics for partition in topics[topic])

    # -- the coordinator ------------------------------------------------------------------------------------------------

    async def _coordinate(self, request: Any) -> Any:
        """Its answer, over one connection as long as that lasts.

        Raises:
            KafkaError: what it answered, or that it did not.
        """
        if self._coordinator is None:
            self._coordinator = await self._find_coordinator()
        try:
            answer: Any = await self._coordinator.send(request)
        except TimeoutError:
            self._coordinator.close()
            raise
        try:
            _check_answer(answer)
        except (CoordinatorNotAvailableError, NotCoordinatorError):
            self._coordinator = None
            raise
        return answer

    async def _find_coordinator(self) -> AIOKafkaConnection:
        node = await self.client.coordinator_lookup(CoordinationType.TRANSACTION, self.transactional_id)
        if not await self.client.ready(node, group=ConnectionGroup.COORDINATION):
            raise NodeNotReadyError(f"the coordinator of {self.transactional_id!r}, broker {node}")
        return self.client._conns[node, ConnectionGroup.COORDINATION]


async def _once_done(ask: Callable[[], Awaitable[Any]], not_done: tuple[type[KafkaError], ...]) -> Any:
    """The answer, once the broker does what is asked; these errors say that it has done nothing."""
    pause_s = _PAUSE_S
    while True:
        try:
            return await ask()
        except not_done:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _records(batch: bytes) -> list[tuple[int | None, bytes | None, bytes | None]]:
    """Timestamp, key and value of each record of a batch."""
    opened: Any = MemoryRecords(batch).next_batch()
    return [(record.timestamp, record.key, record.value) for record in opened]


def _check_answer(answer: Any) -> None:
    """Of InitProducerId, AddPartitionsToTxn or EndTxn; a partition that was not even looked at says nothing itself."""
    if hasattr(answer, "error_code"):
        _check(answer.error_code, "")
        return
    parts = [(code, f"{topic}[{partition}]") for topic, errors in answer.errors for partition, code in errors]
    for code, place in sorted(parts, key=lambda part: for_code(part[0]) is OperationNotAttempted):
        _check(code, place)


def _check(code: int, place: str) -> None:
    error = for_code(code)
    if error is not NoError:
        raise error(place) if place else error()
