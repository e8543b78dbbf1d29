"""Publishes encoded records and the mark to Kafka, in one transaction with a producer of its own.

Each transaction has an epoch of its own: InitProducerId fences and settles whatever was before, and an EndTxn that comes
late can decide nothing of a later transaction. As long as nothing is doubtful it is asked over the connection on which
the last transaction was ended; that the epoch is the next one shows that nobody else had the id in between. Every call
has a deadline, and after any doubt the producer is thrown away.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import structlog
from aiokafka import TopicPartition, codec
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
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
from penstock.connectors.kafka.transactional_producer import TransactionalProducer
from penstock.errors import ExternalError, PipelineError
from penstock.kafka_clients import UNREACHED, aiokafka_options, raise_refusal, started
from penstock.kafka_hanging import end_hanging
from penstock.protocol.publishing import ProducerEpoch
from penstock.settings import KafkaSettings

if TYPE_CHECKING:
    import polars as pl
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
        self._producer: TransactionalProducer | None = None
        self._batch_bytes = BATCH_BYTES
        self._turn = context.partition
        """Which partition records without key go to."""
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
        topics = self._topics()
        for topic in topics:
            admin.require(topic, self._create_partitions)
        needed = self._context.partitions
        found = admin.partitions(self._marks.topic)
        if found is None:
            admin.create(self._marks.topic, needed, TOPIC_SETTINGS)
            found = admin.partitions(self._marks.topic)
        if found is not None and found < needed:  # a partition was added to the topic that is read
            admin.grow(self._marks.topic, needed)
        return min(admin.max_message_bytes(topic) for topic in topics)

    # -- a transaction --------------------------------------------------------------------------------------------------

    def _options(self) -> dict[str, Any]:
        return {**aiokafka_options(self._settings, self._client_id), "request_timeout_ms": REQUEST_TIMEOUT_MS}

    async def init_producer(self) -> ProducerEpoch:
        """See `SinkPublisher.init_producer`."""
        producer = self._producer
        if producer is not None and producer.connected:
            async with self._certain("InitProducerId"):
                return await producer.init()
        await self.close()  # not while an earlier producer may still send something
        async with self._certain("InitProducerId"):
            self._producer = producer = TransactionalProducer(
                self._options(), self._transactional_id, TRANSACTION_TIMEOUT_MS
            )
            try:
                await started(self._connect(producer))
            except KafkaConnectionError:
                await raise_refusal(self._settings)
                raise
            return await producer.init()

    async def _connect(self, producer: TransactionalProducer) -> None:
        """With a look at the last transaction before InitProducerId makes Kafka forget it."""
        await producer.connect([*self._topics(), self._mark.topic])
        await end_hanging(producer.client, self._transactional_id, self._mark, self._topics())

    def _topics(self) -> list[str]:
        return [self._topic, *([self._dead_letters] if self._dead_letters is not None else [])]

    async def read_mark(self) -> PublishedMark | None:
        """See `SinkPublisher.read_mark`."""
        async with self._certain("reading the mark"):
            return await last_mark(self._options(), self._mark)

    async def commit(self, frames: Sequence[pl.DataFrame], mark: PublishedMark) -> None:
        """See `SinkPublisher.commit`."""
        producer = self._producer
        assert producer is not None
        self._turn += 1
        async with self._certain("the transaction"):
            filling = Filling(producer, self._batch_bytes, self._compression)
            for frame in frames:
                await self._fill(filling, frame, producer)
            record = (self._now_ms(), str(self._context.partition).encode(), mark_record(mark), [])
            await filling.append(self._mark, [record])
            await filling.send_all()
            await producer.commit()

    async def close(self) -> None:
        """See `SinkPublisher.close`."""
        self._discard()
        if self._discarding:
            await asyncio.wait(self._discarding)  # unlike `gather` it does not hand a cancellation on to them

    # -- records --------------------------------------------------------------------------------------------------------

    async def _fill(self, filling: Filling, frame: pl.DataFrame, producer: TransactionalProducer) -> None:
        """Take the rows of a frame into batches, partition by partition, each in the order of its rows."""
        import polars as pl

        if DEAD in frame.columns:
            dead, frame = frame.filter(pl.col(DEAD).is_not_null()), frame.filter(pl.col(DEAD).is_null())
            await self._fill_dead(filling, dead, producer)
        partitions = [TopicPartition(self._topic, number) for number in await producer.partitions(self._topic)]
        parts = {None: frame}
        if HASH in frame.columns:
            chosen = frame.with_columns(pl.col(HASH) % len(partitions))
            parts = {k: part for (k,), part in chosen.partition_by(HASH, as_dict=True, maintain_order=True).items()}
        for number, part in parts.items():
            if number is None:
                await self._spread(filling, self._records(part), partitions)
            else:
                await filling.append(partitions[number], self._records(part))

    async def _fill_dead(self, filling: Filling, dead: pl.DataFrame, producer: TransactionalProducer) -> None:
        topic = self._dead_letters
        if topic is None or not dead.height:
            return
        partitions = [TopicPartition(topic, number) for number in await producer.partitions(topic)]
        now_ms = self._now_ms()
        rows = zip(dead[VALUE].to_list(), dead[DEAD].to_list(), strict=True)
        records = [(now_ms, None, value, [(DEAD_HEADER, reason.encode())]) for value, reason in rows]
        await self._spread(filling, records, partitions)

    async def _spread(self, filling: Filling, records: Iterable[Any], partitions: list[TopicPartition]) -> None:
        """Rows without key, as Kafka's sticky partitioner: a batch is filled before the next partition has its turn."""

        def following() -> TopicPartition:
            self._turn += 1
            return partitions[self._turn % len(partitions)]

        await filling.append(partitions[self._turn % len(partitions)], records, following)

    def _now_ms(self) -> int:
        return self._context.clock_us() // 1_000

    def _records(self, frame: pl.DataFrame) -> Any:
        """(timestamp, key, value, headers) per row."""
        height = frame.height
        now_ms = self._now_ms()
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


class Filling:
    """The batches of a transaction that are not full, one per partition."""

    def __init__(self, producer: TransactionalProducer, limit_bytes: int, compression: str | None) -> None:
        self._producer = producer
        self._limit_bytes = limit_bytes
        self._compression = compression
        self._batches: dict[TopicPartition, BatchBuilder] = {}

    async def append(
        self, partition: TopicPartition, records: Iterable[Any], following: Callable[[], TopicPartition] | None = None
    ) -> None:
        """Add (timestamp in ms, key, value, headers); `following` says where to go on behind a full batch."""
        batch = self._batch(partition)
        for record in records:
            while not _append(batch, record):
                if not batch.record_count():
                    raise ExternalError(f"kafka topic {partition.topic!r}: a record does not fit into an empty batch")
                await self._send(partition)
                partition = following() if following is not None else partition
                batch = self._batch(partition)

    async def send_all(self) -> None:
        """Hand over what is left."""
        for partition in list(self._batches):
            await self._send(partition)

    def _batch(self, partition: TopicPartition) -> BatchBuilder:
        if partition not in self._batches:
            self._batches[partition] = self._producer.batch(self._limit_bytes, self._compression)
        return self._batches[partition]

    async def _send(self, partition: TopicPartition) -> None:
        batch = self._batches.pop(partition)
        if batch.record_count():
            await self._producer.send(partition, batch)


def _append(batch: BatchBuilder, record: tuple[int, bytes | None, bytes | None, Any]) -> bool:
    timestamp, key, value, headers = record
    return batch.append(timestamp=timestamp, key=key, value=value, headers=headers) is not None


async def _stop(producer: TransactionalProducer) -> None:
    """Close a producer: its successor may have begun."""
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await producer.close()
    except (KafkaError, OSError, TimeoutError) as error:
        _log.debug("a producer was thrown away", reason=repr(error))
