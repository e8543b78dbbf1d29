"""Reading one partition of a user's topic, through confluent-kafka, in a thread per batch.

Where the partitions of a subtask have nothing, a thread for each of them waits in the client, which wakes it with the
first record; the event loop hears of that alone, and waits for whatever else there is to do meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import lt
from typing import Any, Final

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from penstock.connectors.base import BadRow, EndOfSplit, Fetched
from penstock.connectors.kafka.decoding import RecordDecoder, Records
from penstock.connectors.kafka.offsets import PartitionPosition, source_consumer, topic_id
from penstock.errors import ExternalError, PipelineError
from penstock.settings import KafkaSettings

WAIT_S: Final = 0.05
"""How long all readers of a subtask together wait for records when none has any."""
_SHORTEST_WAIT_S: Final = 0.005
IDLE_AFTER_S: Final = 1.0
"""After so long without any they wait side by side instead, each in a thread of its own. Not sooner: those threads take
and decode beside each other where records flow, which cost a third of the throughput."""
LONGEST_WAIT_S: Final = 1.0
"""How long a thread waits in the client until it looks around."""
CLOSING_S: Final = 0.25
"""How long it may take until a thread that waits hears that its reader is closed; the client knows nothing shorter."""
END_INTERVAL_S: Final = 0.5
"""How often a reader asks its client where the partition ends."""
MAX_RECORDS: Final = 32_768
MAX_ARROW_RECORDS: Final = 16
MAX_BYTES: Final = 8 << 20
"""How much is taken from the client at once: beyond that, rows leave the processor's caches."""
QUICK_RECORDS: Final = 512
"""Where there were fewer last, they are taken and decoded on the event loop: a thread would cost more than they do."""
QUICK_BYTES: Final = 256 << 10
STEP_RECORDS: Final = 2_048
"""Records whose objects exist at the same time. Measured: 1.0 CPU-seconds per million records, 1.2 with 16,384."""
CHECK_INTERVAL_S: Final = 10.0
"""How often a reader asks whether the topic is still the same one."""
CHECK_TIMEOUT_S: Final = 5.0
MISSING_S: Final = 3.0
"""How long a topic must be missing before it counts as deleted: a broker may not have heard of a new one yet."""
PATIENCE_S: Final = 120.0
"""How long brokers may be away before the attempt fails; the restart strategy decides what then."""

_AWAY: Final = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE, KafkaError._TIMED_OUT)
_NO_OFFSET: Final = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
_GONE: Final = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.UNKNOWN_TOPIC_ID,
    KafkaError.INCONSISTENT_TOPIC_ID,
)


_WAITING: Final = ThreadPoolExecutor(10_000, "kafka-source")
"""For threads that wait, one per partition: those of the event loop are few, and for work."""

Taken = tuple[Fetched | None, int]
"""The rows of the records at hand, and the offset behind all that was looked at."""


class Attention:
    """What the readers of one subtask know of each other, so that none waits while another has records."""

    def __init__(self) -> None:
        self._silent: dict[int, bool] = {}
        self._waiting: dict[int, asyncio.Future[Taken]] = {}
        """What the readers wait for that have had nothing."""
        self._heard_s = time.monotonic()

    def note(self, partition: int, *, silent: bool) -> None:
        """The last look at the partition brought something, or nothing."""
        self._silent[partition] = silent
        self._waiting.pop(partition, None)
        if not silent:
            self._heard_s = time.monotonic()

    def waits(self, partition: int, reading: asyncio.Future[Taken]) -> None:
        """The partition is looked at for as long as it has nothing."""
        self._waiting[partition] = reading

    def forget(self, partition: int) -> None:
        """It is not read any more."""
        self._silent.pop(partition, None)
        self._waiting.pop(partition, None)

    @property
    def all_silent(self) -> bool:
        """Whether the last look at every partition brought nothing."""
        return bool(self._silent) and all(self._silent.values())

    @property
    def wait_s(self) -> float:
        """How long a reader without records may wait while the others wait for it."""
        return max(_SHORTEST_WAIT_S, WAIT_S / len(self._silent)) if self.all_silent else 0.0

    @property
    def idle(self) -> bool:
        """Whether there has been nothing for so long that the readers wait side by side."""
        return self.all_silent and time.monotonic() - self._heard_s >= IDLE_AFTER_S

    async def news(self, other_work: Callable[[], Awaitable[None]]) -> None:
        """Until one of the partitions has something, or there is other work; not at all unless all are waited for."""
        waiting = list(self._waiting.values())
        if not self.all_silent or len(waiting) < len(self._silent) or any(reading.done() for reading in waiting):
            return
        other = asyncio.ensure_future(other_work())
        try:
            await asyncio.wait([*waiting, other], return_when=asyncio.FIRST_COMPLETED)
            if other.done():
                await other
        finally:
            other.cancel()


class TopicPartitionReader:
    """A `SplitReader` of one partition.

    `position` is behind everything that `read` has handed out, transaction markers and removed records included.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        topic: str,
        partition: int,
        position: Any,
        decoder: RecordDecoder,
        attention: Attention,
        other_work: Callable[[], Awaitable[None]],
    ) -> None:
        self._where = f"kafka topic {topic!r}, partition {partition}"
        self._settings = settings
        self._topic = topic
        self._partition = partition
        begin = msgspec.convert(position, PartitionPosition)
        self._offset = begin.offset
        self._end = begin.end
        self._id = begin.topic_id
        self._decoder = decoder
        self._attention = attention
        self._other_work = other_work
        self._closing = False
        self._limit = MAX_RECORDS if decoder.rows_per_value else MAX_ARROW_RECORDS
        self._consumer: Consumer | None = None
        self._reading: asyncio.Future[Taken] | None = None
        self._waits = False
        """Whether `_reading` may last."""
        self._quick = False
        """Whether the last look at the partition brought few records, but some."""
        self._partition_end = -1
        self._next_end_s = float("-inf")
        self._checked_s = float("-inf")
        self._heard_s = time.monotonic()
        self._away: KafkaError | None = None
        self._answered = False
        self._missing_s: float | None = None

    async def read(self, max_rows: int) -> Fetched | None:
        """See `SplitReader.read`: records that were taken from the client outlive a cancelled call."""
        if self._end is not None and self._offset >= self._end:
            raise EndOfSplit
        if self._reading is None and self._is_quick:
            self._waits = False
            return self._advance(self._read(min(max_rows, self._limit, QUICK_RECORDS)))
        if self._reading is None:
            self._begin(min(max_rows, self._limit))
        assert self._reading is not None
        if self._waits:
            await self._attention.news(self._other_work)
            if not self._reading.done():
                return None
        # Cancelled here, even when the batch is ready already, the next call finds it; a failure is found again too.
        taken = await asyncio.shield(self._reading)
        self._reading = None
        return self._advance(taken)

    @property
    def _is_quick(self) -> bool:
        """Whether the next look takes no time to speak of: nothing is waited for, asked for or begun."""
        checked_ago_s = time.monotonic() - self._checked_s
        return self._quick and self._attention.wait_s == 0 and checked_ago_s < CHECK_INTERVAL_S

    def _advance(self, taken: Taken) -> Fetched | None:
        fetched, behind = taken
        self._offset = max(self._offset, behind)
        self._attention.note(self._partition, silent=fetched is None)
        return fetched

    def _begin(self, limit: int) -> None:
        """Look for records in a thread: for as long as there are none, if that keeps nobody from others."""
        self._waits = self._attention.idle
        if not self._waits:
            self._reading = asyncio.ensure_future(asyncio.to_thread(self._read, limit))
            return
        self._reading = asyncio.get_running_loop().run_in_executor(_WAITING, self._read, limit)
        self._attention.waits(self._partition, self._reading)

    def position(self) -> Any:
        """See `SplitReader.position`."""
        return msgspec.to_builtins(PartitionPosition(self._offset, self._end, self._id))

    def records_behind(self) -> int | None:
        """Records between the position and the end of the partition as the client last heard of it; None: not yet."""
        # Not asked of the client here: that waits for a thread that waits in the client.
        high = self._partition_end
        return None if high < 0 else max(0, min(high, self._end or high) - self._offset)

    @property
    def has_answered(self) -> bool:
        """Whether a broker has sent records of the partition, or that it has no more of them, and none is away."""
        return self._answered and self._away is None

    async def close(self) -> None:
        """See `SplitReader.close`."""
        self._closing = True
        self._attention.forget(self._partition)
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)  # nobody asks for it any more
            self._reading = None
        consumer, self._consumer = self._consumer, None  # whoever asks meanwhile must not find one that is closing
        if consumer is not None:
            await asyncio.to_thread(consumer.close)

    # -- in a thread ----------------------------------------------------------------------------------------------------

    def _read(self, limit: int) -> Taken:
        if time.monotonic() - self._checked_s >= CHECK_INTERVAL_S:
            self._check_topic()
        records = Records(keep_messages=self._decoder.keep_messages)
        behind = self._take(records, limit)
        if not records.values:
            self._quick = False
            return None, behind
        size_bytes = records.size_bytes
        few = len(records.values) < QUICK_RECORDS and size_bytes < QUICK_BYTES
        self._quick = few and not self._decoder.asks
        decoded = self._decoder.decode(records)
        bad = [
            BadRow(line.error, line.raw, f"{self._where}, offset {records.offsets[line.index]}") for line in decoded.bad
        ]
        is_all = len(records.values) < limit and size_bytes < MAX_BYTES
        return Fetched(decoded.frame, bad, size_bytes, is_all, decoded.misspelt), behind

    def _take(self, records: Records, limit: int) -> int:
        """Move records that are at hand to `records`, or what comes while they are waited for."""
        consumer = self._started()
        behind = self._offset
        wait_s = LONGEST_WAIT_S if self._waits else self._attention.wait_s
        while len(records.values) < limit and records.size_bytes < MAX_BYTES:
            messages = self._consumed(consumer, min(STEP_RECORDS, limit - len(records.values)), wait_s)
            wait_s = 0.0
            if not messages:
                break
            behind = self._sorted_out(messages, records, behind)
            if self._end is not None and behind >= self._end:
                behind = self._end  # what was taken from behind it is left to who goes on from here
                break
        self._note_end(consumer)
        return behind

    def _note_end(self, consumer: Consumer) -> None:
        """Ask the client where the partition ends, as often as anybody hears of it."""
        if time.monotonic() >= self._next_end_s:
            self._next_end_s = time.monotonic() + END_INTERVAL_S
            place = TopicPartition(self._topic, self._partition)
            _, self._partition_end = consumer.get_watermark_offsets(place, cached=True)

    def _consumed(self, consumer: Consumer, count: int, wait_s: float) -> list[Any]:
        """What is at hand, or else the first that comes."""
        try:
            messages: list[Any] = consumer.consume(count, 0)
            until_s = time.monotonic() + wait_s
            while not messages and not self._closing and (left_s := until_s - time.monotonic()) > 0:
                messages = consumer.consume(1, min(left_s, CLOSING_S))
        except KafkaException as error:
            raise self._failed(error.args[0]) from error
        return messages

    def _started(self) -> Consumer:
        if self._consumer is None:
            self._consumer = source_consumer(self._settings, ends=self._end is not None)
            self._consumer.assign([TopicPartition(self._topic, self._partition, self._offset)])
        return self._consumer

    def _sorted_out(self, messages: Sequence[Any], records: Records, behind: int) -> int:
        """Add the records before the end to `records`; what is none may be news of the partition."""
        told = behind
        if any(map(Message.error, messages)):
            for message in messages:
                if message.error() is not None:
                    told = max(told, self._noted(message))
            messages = [message for message in messages if message.error() is None]
        if not messages:
            return told
        self._away, self._answered = None, True
        # Not from `told` on: the news that a partition is at its end comes along with the records before it.
        messages = _each_once(messages, behind)
        if messages:
            behind = messages[-1].offset() + 1
        if self._end is not None and behind > self._end:
            messages = [message for message in messages if message.offset() < self._end]
        records.add(messages)
        return max(behind, told)

    def _noted(self, message: Any) -> int:
        """The offset that news of the partition tells; transaction markers occupy offsets before its end."""
        error: KafkaError = message.error()
        if error.code() == KafkaError._PARTITION_EOF:
            self._away, self._answered = None, True
            return message.offset()
        if error.code() in _AWAY or (error.retriable() and error.code() not in _GONE):
            if self._away is None:
                self._away, self._heard_s, self._checked_s = error, time.monotonic(), time.monotonic()
            return 0
        raise self._failed(error)

    def _check_topic(self) -> None:
        """Whether the topic is there and the one that reading began with; clears the doubt about brokers.

        Raises:
            PipelineError: it is not.
            ExternalError: no broker has answered for too long.
        """
        try:
            found = topic_id(self._settings, self._topic, CHECK_TIMEOUT_S)
        except ExternalError:
            if self._away is None and self._consumer is None:
                raise  # at the start nothing is waited for
            self._away = self._away or KafkaError(KafkaError._ALL_BROKERS_DOWN)
            if time.monotonic() - self._heard_s > PATIENCE_S:
                raise
        except PipelineError as error:
            self._missing_s = self._missing_s or time.monotonic()
            if time.monotonic() - self._missing_s > MISSING_S:
                raise self._deleted() from error
            self._checked_s = time.monotonic() - CHECK_INTERVAL_S + 1
            return
        else:
            self._away, self._missing_s, self._heard_s = None, None, time.monotonic()
            if self._id is not None and found is not None and found != self._id:
                raise PipelineError(
                    f"{self._where}: the topic was deleted and made anew, so offset {self._offset} means another record "
                    "now. Nothing was skipped. Start the job anew, without its former state"
                )
        self._checked_s = time.monotonic()

    def _failed(self, error: KafkaError) -> Exception:
        if error.code() in _NO_OFFSET:
            return PipelineError(
                f"{self._where}: offset {self._offset} is not there (any more): the topic's retention has removed it, "
                "the topic was made anew, or it has never been so long. Nothing was skipped. Start the job anew with "
                "start=..., or restore older data"
            )
        if error.code() in _GONE:
            return self._deleted()
        if error.code() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._AUTHENTICATION):
            return PipelineError(f"{self._where} at {self._settings.brokers}: {error.str()}; grant it to this user")
        return ExternalError(f"{self._where} at {self._settings.brokers}: {error.str()}")

    def _deleted(self) -> PipelineError:
        return PipelineError(
            f"{self._where}: the topic was deleted while it was read; create it again, or stop the job"
        )


def _each_once(messages: Sequence[Any], behind: int) -> Sequence[Any]:
    """The messages from `behind` on; librdkafka has given some out again, also within a batch, as a leader changed."""
    offsets = [message.offset() for message in messages]
    if offsets[0] >= behind and all(map(lt, offsets, offsets[1:])):
        return messages
    fresh: list[Any] = []
    for message, offset in zip(messages, offsets, strict=True):
        if offset >= behind:
            fresh.append(message)
            behind = offset + 1
    return fresh
