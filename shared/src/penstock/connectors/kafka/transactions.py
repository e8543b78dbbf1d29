"""Publishes encoded records and the mark to Kafka, in one transaction with a producer of its own.

One transaction, one producer: InitProducerId fences and settles whatever was before, and a fresh producer is both safer
and faster than one that goes on (the broker makes it wait until the last transaction's markers are written). Every
future of a send is awaited, every call has a deadline, and after any doubt the producer is thrown away.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import structlog
from aiokafka import AIOKafkaProducer, TopicPartition, codec
from aiokafka.client import ConnectionGroup, CoordinationType
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    IllegalOperation,
    InvalidProducerEpoch,
    KafkaConnectionError,
    KafkaError,
    MessageSizeTooLargeError,
    ProducerFenced,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
)

from penstock.connectors.base import ProducerFencedError, PublishContext, PublishedMark
from penstock.connectors.kafka.encoding import DEAD, DEAD_HEADER, HASH, HEADER, KEY, TIMESTAMP_MS, VALUE
from penstock.connectors.kafka.mark_records import TOPIC_SETTINGS, last_mark, mark_record
from penstock.connectors.kafka.marks import SinkMarks
from penstock.connectors.kafka.topics import TopicAdmin
from penstock.errors import ExternalError, PipelineError
from penstock.kafka_clients import UNREACHED, aiokafka_options, check_brokers, raise_refusal, started
from penstock.kafka_hanging import carried_out, check_settled
from penstock.settings import KafkaSettings

if TYPE_CHECKING:
    import polars as pl
    from aiokafka.conn import AIOKafkaConnection
    from aiokafka.producer.message_accumulator import BatchBuilder

TRANSACTION_TIMEOUT_MS: Final = 60_000
"""The broker aborts a transaction that is open for so long; a chunk takes a fraction of a second."""
REQUEST_TIMEOUT_MS: Final = 15_000
CALL_TIMEOUT_S: Final = 40.0
"""The deadline of each step; shorter than the transaction's."""
CLOSE_TIMEOUT_S: Final = 2.0
BATCH_BYTES: Final = 1 << 20
"""Records are sent in batches of this size per partition, or of what the topic takes if that is less."""

_DENIED: Final = (
    TopicAuthorizationFailedError,
    GroupAuthorizationFailedError,
    ClusterAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
)
_log = structlog.get_logger("penstock.kafka")


class KafkaPublisher:
    """The publisher of one partition of a sink; see `SinkPublisher`."""

    def __init__(
        self,
        settings: KafkaSettings,
        topic: str,
        headers: Sequence[str],
        marks: SinkMarks,
        context: PublishContext,
        create_partitions: int | None,
        *,
        dead_letters: str | None = None,
        compression: str = "none",
    ) -> None:
        """`dead_letters` is the topic of rows that cannot be records of `topic`, if they are written anywhere."""
        self._settings = settings
        self._topic = topic
        self._headers = tuple(headers)
        self._marks = marks
        self._context = context
        self._create_partitions = create_partitions
        self._dead_letters = dead_letters
        self._compression = None if compression == "none" else compression
        self._mark = TopicPartition(marks.topic, context.partition)
        self._transactional_id = f"{context.job}/{context.operator}/g{context.generation}/{context.partition}"
        self._client_id = f"penstock-{context.job[:8]}-{context.partition}"
        self._producer: AIOKafkaProducer | None = None
        self._coordinator: AIOKafkaConnection | None = None
        """Over which the producer got its id, and ends its transaction as long as it lasts."""
        self._batch_bytes = BATCH_BYTES
        self._turn = context.partition
        """Which partition the next records without key go to."""
        self._discarding: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """See `SinkPublisher.open`: the topic is there, and the topic of the marks is made."""
        try:
            limit = await asyncio.to_thread(self._prepare_topics)
        except KafkaError as error:
            raise ExternalError(f"kafka at {self._settings.brokers}: {error!r}") from error
        self._batch_bytes = min(BATCH_BYTES, limit)

    def _prepare_topics(self) -> int:
        check_codec(self._compression)
        admin = TopicAdmin(self._settings, self._client_id)
        topics = [self._topic, *([self._dead_letters] if self._dead_letters is not None else [])]
        for topic in topics:
            admin.require(topic, self._create_partitions)
        needed = self._context.partitions
        found = admin.partitions(self._marks.topic)
        if found is None:
            admin.create(self._marks.topic, needed, TOPIC_SETTINGS)
            found = admin.partitions(self._marks.topic)
        if found is not None and found < needed:
            raise PipelineError(
                f"kafka: topic {self._marks.topic!r} has {found} partitions, the sink needs {needed}; "
                "somebody else made it: delete it if no job uses it"
            )
        return min(admin.max_message_bytes(topic) for topic in topics)

    # -- a transaction --------------------------------------------------------------------------------------------------

    def _options(self) -> dict[str, Any]:
        return {**aiokafka_options(self._settings, self._client_id), "request_timeout_ms": REQUEST_TIMEOUT_MS}

    async def init_producer(self) -> None:
        """See `SinkPublisher.init_producer`."""
        settled = await self._carried_out()
        await self.close()  # not while an earlier producer may still send something
        async with self._certain("InitProducerId"):
            self._producer = AIOKafkaProducer(
                **self._options(),
                acks="all",
                transactional_id=self._transactional_id,
                transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
                max_batch_size=self._batch_bytes,
                compression_type=self._compression,
            )
            try:
                await started(self._start(self._producer, settled=settled))
            except KafkaConnectionError:
                await raise_refusal(self._settings)
                raise

    async def _start(self, producer: AIOKafkaProducer, *, settled: bool) -> None:
        """`producer.start`, with a look at the last transaction before InitProducerId makes Kafka forget it."""
        await producer.client.bootstrap()
        check_brokers(producer.client)
        if not settled:
            await check_settled(producer.client, self._transactional_id, self._mark)
        await producer._sender.start()
        node = producer._sender._coordinators[CoordinationType.TRANSACTION]
        self._coordinator = producer.client._conns.get((node, ConnectionGroup.COORDINATION))

    async def _carried_out(self) -> bool:
        """Whether the last transaction is settled, from one request: of a producer that nothing was doubtful about."""
        connection, self._coordinator = self._coordinator, None
        if connection is None or self._producer is None:
            return False
        return await carried_out(connection, self._transactional_id)

    async def read_mark(self) -> PublishedMark | None:
        """See `SinkPublisher.read_mark`."""
        async with self._certain("reading the mark"):
            return await last_mark(self._options(), self._mark)

    async def commit(self, frames: Sequence[pl.DataFrame], mark: PublishedMark) -> None:
        """See `SinkPublisher.commit`."""
        producer = self._producer
        assert producer is not None
        sending: list[asyncio.Future[Any]] = []
        async with self._certain("the transaction"):
            await producer.begin_transaction()
            try:
                for frame in frames:
                    await self._send(producer, frame, sending)
                key = str(self._context.partition).encode()
                topic, partition = self._mark
                sending.append(await producer.send(topic, mark_record(mark), key=key, partition=partition))
                sending[-1].add_done_callback(_retrieve)
            except IllegalOperation:
                await asyncio.gather(*sending)  # the transaction is over already: what was sent says why
                raise
            await asyncio.gather(*sending)  # a commit succeeds even if a record of it has failed
            await producer.commit_transaction()

    async def close(self) -> None:
        """See `SinkPublisher.close`."""
        self._discard()
        if self._discarding:
            await asyncio.wait(self._discarding)  # unlike `gather` it does not hand a cancellation on to them

    # -- records --------------------------------------------------------------------------------------------------------

    async def _send(self, producer: AIOKafkaProducer, frame: pl.DataFrame, sending: list[asyncio.Future[Any]]) -> None:
        """Send the rows of a frame in batches, partition by partition, each in the order of its rows."""
        import polars as pl

        if DEAD in frame.columns:
            dead, frame = frame.filter(pl.col(DEAD).is_not_null()), frame.filter(pl.col(DEAD).is_null())
            await self._send_dead(producer, dead, sending)
        partitions = sorted(await producer.partitions_for(self._topic))
        if HASH not in frame.columns:
            await self._send_to(producer, self._records(frame), lambda: self._next(partitions), sending)
            return
        chosen = frame.with_columns(pl.col(HASH) % len(partitions))
        for (number,), part in chosen.partition_by(HASH, as_dict=True, maintain_order=True).items():
            if number is None:
                await self._send_to(producer, self._records(part), lambda: self._next(partitions), sending)
            else:
                await self._send_to(producer, self._records(part), lambda index=number: partitions[index], sending)

    async def _send_dead(
        self, producer: AIOKafkaProducer, dead: pl.DataFrame, sending: list[asyncio.Future[Any]]
    ) -> None:
        topic = self._dead_letters
        if topic is None or not dead.height:
            return
        partitions = sorted(await producer.partitions_for(topic))
        now_ms = self._context.clock_us() // 1_000
        rows = zip(dead[VALUE].to_list(), dead[DEAD].to_list(), strict=True)
        records = [(now_ms, None, value, [(DEAD_HEADER, reason.encode())]) for value, reason in rows]
        await self._send_to(producer, records, lambda: self._next(partitions), sending, topic)

    def _next(self, partitions: list[int]) -> int:
        """Where a batch of rows without key goes: as Kafka's sticky partitioner, one after another."""
        self._turn = (self._turn + 1) % len(partitions)
        return partitions[self._turn]

    async def _send_to(
        self,
        producer: AIOKafkaProducer,
        records: Iterable[Any],
        partition: Callable[[], int],
        sending: list[asyncio.Future[Any]],
        topic: str = "",
    ) -> None:
        """`topic` is another one than that of the sink."""
        topic = topic or self._topic
        batch = producer.create_batch()
        for record in records:
            if _append(batch, record):
                continue
            sending.append(await _send_batch(producer, batch, topic, partition()))
            batch = producer.create_batch()
            if not _append(batch, record):
                raise ExternalError(f"kafka topic {topic!r}: a record does not fit into an empty batch")
        if batch.record_count():
            sending.append(await _send_batch(producer, batch, topic, partition()))

    def _records(self, frame: pl.DataFrame) -> Any:
        """(timestamp, key, value, headers) per row."""
        height = frame.height
        now_ms = self._context.clock_us() // 1_000
        values = frame[VALUE].to_list()
        keys = frame[KEY].to_list() if KEY in frame.columns else [None] * height
        times = frame[TIMESTAMP_MS].fill_null(now_ms).to_list() if TIMESTAMP_MS in frame.columns else [now_ms] * height
        if not self._headers:
            return zip(times, keys, values, [[]] * height, strict=True)
        columns = [frame[f"{HEADER}{index}"].to_list() for index in range(len(self._headers))]
        headers = [list(zip(self._headers, row, strict=True)) for row in zip(*columns, strict=True)]
        return zip(times, keys, values, headers, strict=True)

    # -- doubt ----------------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _certain(self, step: str) -> AsyncGenerator[None]:
        """With a deadline; whatever is not certain throws the producer away."""
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                yield
        except BaseException as error:
            self._discard()
            meaning = self._meaning(step, error)
            if meaning is error:
                raise
            raise meaning from error

    def _meaning(self, step: str, error: BaseException) -> BaseException:
        where = f"kafka topic {self._topic!r} at {self._settings.brokers}: {step}"
        causes = [error, error.__cause__]
        if any(isinstance(cause, ProducerFenced | InvalidProducerEpoch) for cause in causes):
            return ProducerFencedError(f"{where}: another producer with id {self._transactional_id!r} has started")
        for cause in causes:
            if isinstance(cause, _DENIED):
                return PipelineError(f"{where}: {cause!r}; grant it to the user of this job")
            if isinstance(cause, MessageSizeTooLargeError):
                return PipelineError(
                    f"{where}: a record is larger than the topic takes now; its max.message.bytes was lowered while the "
                    "job ran: raise it again"
                )
        if isinstance(error, KafkaError | OSError | TimeoutError):
            text = f"{where}: {error!r}" if str(error) else f"{where}: {type(error).__name__}"
            return ExternalError(f"{text}; {UNREACHED}" if isinstance(error, KafkaConnectionError) else text)
        return error

    def _discard(self) -> None:
        """Throw the producer away; whatever it had begun is settled by the next InitProducerId."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        task = asyncio.ensure_future(_stop(producer))
        self._discarding.add(task)
        task.add_done_callback(self._discarding.discard)


def check_codec(compression: str | None) -> None:
    """Raise `PipelineError` if this process cannot compress so in a transaction."""
    if compression is not None and not getattr(codec, f"has_{compression}")():
        raise PipelineError(
            f"kafka.Sink: compression={compression!r} with exactly-once needs the package cramjam, which is not there: "
            "pip install cramjam on the task managers (and where a job is run or submitted), or write "
            "compression='gzip', which needs none"
        )


async def _send_batch(
    producer: AIOKafkaProducer, batch: BatchBuilder, topic: str, partition: int
) -> asyncio.Future[Any]:
    batch.close()
    future = await producer.send_batch(batch, topic, partition=partition)
    future.add_done_callback(_retrieve)
    await asyncio.sleep(0)  # a batch takes milliseconds to fill: others run in between
    return future


def _append(batch: BatchBuilder, record: tuple[int, bytes | None, bytes | None, Any]) -> bool:
    timestamp, key, value, headers = record
    return batch.append(timestamp=timestamp, key=key, value=value, headers=headers) is not None


def _retrieve(future: asyncio.Future[Any]) -> None:
    """So that an error which another one overtook is not reported as never looked at."""
    if not future.cancelled():
        future.exception()


async def _stop(producer: AIOKafkaProducer) -> None:
    """Close a producer, without sending what it still holds: nobody relies on that, and its successor may have begun."""
    try:
        sender = producer._sender.sender_task  # `stop` would flush first
        if sender is not None:
            sender.cancel()
            await asyncio.wait([sender], timeout=CLOSE_TIMEOUT_S)
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await producer.stop()
    except (KafkaError, OSError, TimeoutError) as error:
        _log.debug("a producer was thrown away", reason=repr(error))
    finally:
        for connection in list(producer.client._conns.values()):  # those left by a `stop` that did not come so far
            connection.close()
