"""Publishes encoded records and the mark to Kafka, in one transaction with a producer of its own.

Each transaction has an epoch of its own: InitProducerId fences and settles whatever was before, and an EndTxn that comes
late can decide nothing of a later transaction. As long as nothing is doubtful it is asked over the connection on which
the last transaction was ended; that the epoch is the next one shows that nobody else had the id in between. Every call
has a deadline, and after any doubt the producer is thrown away.

A record that the topic refuses for what it is would be refused again. The policy for bad rows decides: the transaction is
begun anew without it, with the record among the dead letters if there are any, or the attempt fails and names it.
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
    ProducerFenced,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
    UnknownTopicOrPartitionError,
)

from penstock.connectors.base import Policy, ProducerFencedError, PublishContext, PublishedMark
from penstock.connectors.kafka.encoding import (
    DEAD,
    DEAD_HEADER,
    HASH,
    HEADER,
    KEY,
    TIMESTAMP_MS,
    VALUE,
    cut_letters,
)
from penstock.connectors.kafka.mark_records import TOPIC_SETTINGS, last_mark, mark_record
from penstock.connectors.kafka.marks import SinkMarks
from penstock.connectors.kafka.topics import TopicAdmin
from penstock.connectors.kafka.transactional_producer import (
    TOO_LARGE,
    RefusedBatchError,
    RefusedRecord,
    TransactionalProducer,
)
from penstock.core.times import format_time
from penstock.errors import ExternalError, PipelineError, RefusedRowError
from penstock.kafka.clients import UNREACHED, aiokafka_options, raise_refusal, started
from penstock.kafka.hanging_transactions import end_hanging
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
INVALID_TIMESTAMP: Final = "INVALID_TIMESTAMP"
_WAYS_OUT: Final = (
    "nothing of the transaction is visible. Let the topic take the record (max.message.bytes, "
    "message.timestamp.after.max.ms and before.max.ms, cleanup.policy), and what is complete is published; or set "
    "bad_rows='skip' or 'dead_letter' and go on with it"
)
_Identity = tuple[bytes | None, bytes | None, int | None]
"""Value and key of a record, and its timestamp where it is refused for that: what is the same in all is refused alike."""
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
        bad_rows: Policy = "fail",
        dead_letters: str | None = None,
        compression: str = "none",
    ) -> None:
        """`bad_rows` says what becomes of rows that cannot be records of `topic`; `dead_letters` is the topic of those,
        if they are written anywhere."""
        self._settings = settings
        self._topic = topic
        self._headers = tuple(headers)
        self._marks = marks
        self._context = context
        self._create_partitions = create_partitions
        self._bad_rows = bad_rows
        self._dead_letters = dead_letters
        self._compression = None if compression == "none" else compression
        self._mark = TopicPartition(marks.topic, context.partition)
        self._transactional_id = f"{context.job}/{context.operator}/g{context.generation}/{context.partition}"
        self._client_id = f"penstock-{context.job[:8]}-{context.partition}"
        self._producer: TransactionalProducer | None = None
        self._takes_bytes = self._batch_bytes = BATCH_BYTES
        self._dead_bytes = 0
        self._refused: dict[_Identity, str] = {}
        """Records that the topic refuses, and why, until the transaction without them is committed."""
        self._topic_unknown = False
        """Whether a broker does not know a topic: it was deleted, or is not known everywhere yet."""
        self._turn = context.partition
        """Which partition records without key go to."""
        self._discarding: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """See `SinkPublisher.open`: the topic is there, and the topic of the marks is made."""
        try:
            await asyncio.to_thread(self._prepare_topics)
        except KafkaError as error:
            raise ExternalError(f"kafka at {self._settings.brokers}: {error!r}") from error

    def _prepare_topics(self) -> None:
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
        limits = [admin.limits(topic).max_message_bytes for topic in topics]
        self._takes_bytes = self._batch_bytes = min(BATCH_BYTES, *limits)
        self._dead_bytes = limits[-1]
        self._topic_unknown = False

    # -- a transaction --------------------------------------------------------------------------------------------------

    def _options(self) -> dict[str, Any]:
        return {**aiokafka_options(self._settings, self._client_id), "request_timeout_ms": REQUEST_TIMEOUT_MS}

    async def init_producer(self) -> ProducerEpoch:
        """See `SinkPublisher.init_producer`."""
        if self._topic_unknown:
            await self.open()
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

    async def commit(self, frames: Sequence[pl.DataFrame], mark: PublishedMark) -> int:
        """See `SinkPublisher.commit`."""
        producer = self._producer
        assert producer is not None
        self._turn += 1
        left_out = 0
        try:
            async with self._certain("the transaction"):
                filling = Filling(producer, self._batch_bytes, self._compression)
                for frame in frames:
                    left_out += await self._fill(filling, frame, producer)
                record = (self._now_ms(), str(self._context.partition).encode(), mark_record(mark), [])
                await filling.append(self._mark, [record])
                await filling.send_all()
                await producer.commit()
        except RefusedBatchError as error:
            raise await self._refusal(error, frames) from error
        if left_out:
            _log.warning(
                "the topic refuses records, which are left out",
                topic=self._topic, rows=left_out, dead_letters=self._dead_letters,
                reason=next(iter(self._refused.values())),
            )  # fmt: skip
        self._refused.clear()
        self._batch_bytes = self._takes_bytes
        return left_out

    async def close(self) -> None:
        """See `SinkPublisher.close`."""
        self._discard()
        if self._discarding:
            await asyncio.wait(self._discarding)  # unlike `gather` it does not hand a cancellation on to them

    # -- records --------------------------------------------------------------------------------------------------------

    async def _fill(self, filling: Filling, frame: pl.DataFrame, producer: TransactionalProducer) -> int:
        """Take the rows of a frame into batches, partition by partition, each in the order of its rows.

        Returns how many are left out because the topic refuses them.
        """
        import polars as pl

        left_out = 0
        if self._refused:
            frame, letters = self._without_refused(frame)
            left_out = letters.height
            await self._fill_dead(filling, letters, producer)
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
        return left_out

    def _without_refused(self, frame: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Rows that the topic is not known to refuse, and the others as dead letters, cut to what their topic takes."""
        import polars as pl

        values, keys, times = (_column(frame, name) for name in (VALUE, KEY, TIMESTAMP_MS))
        found = [
            self._refused.get((value, key, at_ms)) or self._refused.get((value, key, None))
            for value, key, at_ms in zip(values, keys, times, strict=True)
        ]
        reasons = pl.Series(DEAD, found, pl.String)
        letters = frame.select(VALUE, reasons).filter(pl.col(DEAD).is_not_null())
        return frame.filter(reasons.is_null()), cut_letters(letters, self._dead_bytes)

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
            if isinstance(cause, UnknownTopicOrPartitionError):
                self._topic_unknown = True
        if isinstance(error, KafkaError | OSError | TimeoutError):
            text = f"{where}: {error!r}" if str(error) else f"{where}: {type(error).__name__}"
            return ExternalError(f"{text}; {UNREACHED}" if isinstance(error, KafkaConnectionError) else text)
        return error

    async def _refusal(
        self, error: RefusedBatchError, frames: Sequence[pl.DataFrame]
    ) -> ExternalError | RefusedRowError:
        """What it means that records are refused: the transaction is to be begun anew without them, or nothing helps."""
        where = f"kafka topic {self._topic!r} at {self._settings.brokers}"
        for record in (*error.records, *error.unknown):
            if record.partition.topic != self._topic:
                return RefusedRowError(f"{where}: {error}; let topic {record.partition.topic!r} take such records")
        if not error.records:
            return await self._smaller(where, error)
        own = {at_ms for frame in frames for at_ms in _column(frame, TIMESTAMP_MS)}
        for record in error.records:
            of_key = (
                record.key is None and "key" in record.said
            )  # a batch has one code, whatever is wrong with its records
            if record.code == INVALID_TIMESTAMP and record.at_ms not in own and not of_key:
                return RefusedRowError(
                    f"{where}: {error}: the time of publishing; set the clock of this machine, or of the broker"
                )
        if self._bad_rows == "fail":
            return RefusedRowError(
                f"{where}: {_described(error.records[0])} ({len(error.records):,} such records); {_WAYS_OUT}"
            )
        for record in error.records:
            at_ms = record.at_ms if record.code == INVALID_TIMESTAMP and record.at_ms in own else None
            self._refused[record.value, record.key, at_ms] = f"{where}: {_described(record)}"
        return ExternalError(f"{where}: {len(error.records):,} records are refused; again without them: {error}")

    async def _smaller(self, where: str, error: RefusedBatchError) -> ExternalError:
        """Batches are refused, and it is not known for which of their records: smaller ones show it."""
        before = self._batch_bytes
        if error.unknown[0].code in TOO_LARGE:  # than the topic takes now: it was changed
            await self.open()
        if self._batch_bytes >= before:
            self._batch_bytes = max(1, before // 2)
        return ExternalError(f"{where}: {error}; again with batches of {self._batch_bytes:,} bytes")

    def _discard(self) -> None:
        """Throw the producer away; whatever it had begun is settled by the next InitProducerId."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        task = asyncio.ensure_future(_stop(producer))
        self._discarding.add(task)
        task.add_done_callback(self._discarding.discard)


def _column(frame: pl.DataFrame, name: str) -> Sequence[Any]:
    """The values of a column of records; null where there is none."""
    return frame[name].to_list() if name in frame.columns else [None] * frame.height


def _described(record: RefusedRecord) -> str:
    """Which record is refused, and why."""
    at = "none" if record.at_ms is None else format_time(record.at_ms * 1_000)
    return (
        f"a broker refuses a record ({record.code}: {record.said or 'it does not say more'}): "
        f"key {(record.key or b'')[:200]!r}, timestamp {at}, partition {record.partition.partition}, "
        f"value {(record.value or b'')[:200]!r}"
    )


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
