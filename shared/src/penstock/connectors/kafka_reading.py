"""Reading one partition of a user's topic, through confluent-kafka, in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from penstock.connectors.base import BadRow, EndOfSplit, Fetched
from penstock.connectors.kafka_decoding import RecordDecoder
from penstock.connectors.kafka_topics import LOG_WARNINGS, TopicAdmin
from penstock.errors import ExternalError, PipelineError
from penstock.kafka_clients import confluent_options
from penstock.settings import KafkaSettings

TIMEOUT_S: Final = 20.0
WAIT_S: Final = 0.05
MAX_RECORDS: Final = 32_768
"""How many records are taken from the client at once: beyond that, rows leave the processor's caches."""
MAX_ARROW_RECORDS: Final = 16


class PartitionPosition(msgspec.Struct, frozen=True):
    """Where a partition is read next, and where it ends."""

    offset: int
    end: int | None = None


def partitions_of(settings: KafkaSettings, topic: str) -> int:
    """How many partitions a topic has.

    Raises:
        PipelineError: there is no such topic.
    """
    found = TopicAdmin(settings, "penstock-source").partitions(topic)
    if found is None:
        raise PipelineError(
            f"kafka: there is no topic {topic!r} at {settings.brokers}; create it, or correct the name in kafka.Source"
        )
    return found


def resolved_position(
    settings: KafkaSettings, topic: str, partition: int, start: Any, end: Any
) -> dict[str, int | None]:
    """Offsets for what the user wrote: names, a datetime, or partition to offset."""
    consumer = _consumer(settings)
    try:
        place = TopicPartition(topic, partition)
        low, high = consumer.get_watermark_offsets(place, timeout=TIMEOUT_S)
        first = _resolved(consumer, place, start, low, high)
        last = None if end is None else max(first, _resolved(consumer, place, end, low, high))
        return {"offset": first, "end": last}
    except KafkaException as error:
        raise ExternalError(f"kafka topic {topic!r}, partition {partition}: {error.args[0].str()}") from error
    finally:
        consumer.close()


def _resolved(consumer: Consumer, place: TopicPartition, wanted: Any, low: int, high: int) -> int:
    if wanted == "earliest":
        return low
    if wanted == "latest":
        return high
    if isinstance(wanted, datetime):
        asked = TopicPartition(place.topic, place.partition, int(wanted.timestamp() * 1_000))
        found = consumer.offsets_for_times([asked], timeout=TIMEOUT_S)[0]
        return high if found.offset in (OFFSET_END, -1) else found.offset
    # A partition that is not named: all of it where it starts, nothing held back where it ends.
    return wanted.get(place.partition, low if place.partition not in wanted else high)


def _consumer(settings: KafkaSettings) -> Consumer:
    return Consumer(
        {
            **confluent_options(settings, "penstock-source"),
            "group.id": "penstock-unused",  # required by the client; nothing is ever committed
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.queue.backoff.ms": 5,  # at its default of a second a decode loop stood still three quarters of it
            "fetch.wait.max.ms": 50,
            "queued.max.messages.kbytes": 32_768,
            "fetch.message.max.bytes": 4 << 20,
            "fetch.max.bytes": 64 << 20,
            "log_level": LOG_WARNINGS,
        }
    )


class PartitionReader:
    """A `SplitReader` of one partition."""

    def __init__(
        self, settings: KafkaSettings, topic: str, partition: int, position: Any, decoder: RecordDecoder
    ) -> None:
        self._where = f"kafka topic {topic!r}, partition {partition}"
        self._brokers = settings.brokers
        found = msgspec.convert(position, PartitionPosition)
        self._offset = found.offset
        self._end = found.end
        self._decoder = decoder
        self._limit = MAX_RECORDS if decoder.rows_per_value else MAX_ARROW_RECORDS
        self._consumer = _consumer(settings)
        self._consumer.assign([TopicPartition(topic, partition, self._offset)])
        self._reading: asyncio.Future[tuple[list[Any], int]] | None = None
        self._reached = found.end is not None and self._offset >= found.end

    async def read(self, max_rows: int) -> Fetched | None:
        """See `SplitReader.read`: records that were taken from the client outlive a cancelled call."""
        if self._reached:
            raise EndOfSplit
        if self._reading is None:
            self._reading = asyncio.ensure_future(asyncio.to_thread(self._take, min(max_rows, self._limit)))
        records, behind = await asyncio.shield(self._reading)
        self._reading = None
        self._offset = max(self._offset, behind)
        self._reached = self._end is not None and self._offset >= self._end
        if not records:
            if self._reached:
                raise EndOfSplit
            return None
        decoded = self._decoder.decode(records)
        bad = [
            BadRow(line.error, line.raw, f"{self._where}, offset {records[line.index].offset()}")
            for line in decoded.bad
        ]
        return Fetched(decoded.frame, bad, sum(map(len, records)))

    def _take(self, count: int) -> tuple[list[Any], int]:
        """Records that are at hand, else what comes within a moment; and the offset behind all that was looked at."""
        try:
            messages: Sequence[Any] = self._consumer.consume(count, 0)
            if not messages:
                messages = self._consumer.consume(1, WAIT_S)
        except KafkaException as error:
            raise self._failed(error.args[0]) from error
        if not messages:
            return [], self._offset
        records: list[Any] = [message for message in messages if message.error() is None]
        behind = records[-1].offset() + 1 if records else self._offset
        if len(records) < len(messages):
            for message in messages:
                behind = max(behind, self._noted(message))
        if self._end is not None and behind > self._end:
            records = [record for record in records if record.offset() < self._end]
        return records, behind

    def _noted(self, message: Any) -> int:
        """The offset that a message about the partition tells; transaction markers occupy offsets before its end."""
        error: KafkaError | None = message.error()
        if error is None:
            return 0
        if error.code() == KafkaError._PARTITION_EOF:
            return message.offset()
        if error.retriable() or error.code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
            return 0
        raise self._failed(error)

    def _failed(self, error: KafkaError) -> Exception:
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            return PipelineError(
                f"{self._where}: offset {self._offset} is not there (any more): the topic's retention has removed it, or "
                "the topic was made anew. Nothing was skipped. Start the job anew with start=..., or restore older data"
            )
        if error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION):
            return PipelineError(
                f"{self._where}: the topic was deleted while it was read; create it again, or stop the job"
            )
        return ExternalError(f"{self._where} at {self._brokers}: {error.str()}")

    def position(self) -> Any:
        """See `SplitReader.position`."""
        return msgspec.to_builtins(PartitionPosition(self._offset, self._end))

    async def close(self) -> None:
        """See `SplitReader.close`."""
        if self._reading is not None:
            await asyncio.wait([self._reading])
        await asyncio.to_thread(self._consumer.close)
