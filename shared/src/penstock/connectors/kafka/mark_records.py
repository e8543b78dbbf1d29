"""The mark of a sink partition as the last committed record of a partition of its own, and how it is read back.

Not a group offset: a broker that was killed (Kafka 4.3) may grant InitProducerId and go on showing the group's offset
before the last transaction, or as pending for ever, although the records of that transaction are visible. A partition
that only this sink partition writes to is settled by InitProducerId like the records themselves, and does not expire.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from penstock.connectors.base import PublishedMark
from penstock.errors import CorruptDataError
from penstock.kafka.clients import started

TOPIC_SETTINGS: Final = {"cleanup.policy": "compact", "segment.bytes": str(1 << 20), "retention.ms": "-1"}
"""Only the newest mark of a partition counts."""
LOOK_BACK: Final = 16
"""How many offsets before the end the last mark is first looked for; transaction markers occupy some."""
POLL_MS: Final = 200
TRIES: Final = 50


class _Record(msgspec.Struct, frozen=True):
    position: int
    metadata: str


def mark_record(mark: PublishedMark) -> bytes:
    """The value of a mark's record."""
    return msgspec.json.encode(_Record(mark.position, mark.metadata))


async def last_mark(options: dict[str, Any], partition: TopicPartition) -> PublishedMark | None:
    """The last committed mark; None if there never was one. Only right after InitProducerId.

    Raises:
        KafkaError: there is no certain answer (yet): a transaction is pending, or records could not be read.
        CorruptDataError: somebody else has written there.
    """
    consumer = AIOKafkaConsumer(
        **options, isolation_level="read_committed", auto_offset_reset="none", enable_auto_commit=False
    )
    try:
        await started(consumer.start())
        consumer.assign([partition])
        begin = (await consumer.beginning_offsets([partition]))[partition]
        end = (await consumer.end_offsets([partition]))[partition]
        back = LOOK_BACK
        while True:
            start = max(begin, end - back)
            value = await _last_value(consumer, partition, start)
            if value is not None:
                return _decode(value, partition)
            if start == begin:
                return None
            back *= 8
    finally:
        await consumer.stop()


async def _last_value(consumer: AIOKafkaConsumer, partition: TopicPartition, start: int) -> bytes | None:
    """The value of the last record from `start` to the end, once no transaction is pending in between."""
    consumer.seek(partition, start)
    value: bytes | None = None
    for _ in range(TRIES):
        for records in (await consumer.getmany(partition, timeout_ms=POLL_MS)).values():
            value = records[-1].value
        end = consumer.highwater(partition)
        if end is not None and await consumer.position(partition) >= end:
            return value
    raise KafkaError(
        f"{partition.topic}[{partition.partition}]: a transaction is pending: read up to "
        f"{await consumer.position(partition)} of {consumer.highwater(partition)}, of which "
        f"{consumer.last_stable_offset(partition)} are settled"
    )


def _decode(value: bytes, partition: TopicPartition) -> PublishedMark:
    try:
        found = msgspec.json.decode(value, type=_Record)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise CorruptDataError(
            f"{partition.topic}[{partition.partition}]: {value[:80]!r} is no mark: somebody else has written there; "
            "publishing from there is not safe"
        ) from error
    return PublishedMark(found.position, found.metadata)
