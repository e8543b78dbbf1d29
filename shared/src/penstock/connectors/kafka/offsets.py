"""Where in a user's topic reading begins and ends, and which topic it is. All of it blocks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

import msgspec
from confluent_kafka import (
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from penstock.connectors.kafka.topics import LOGGER, TopicAdmin, is_away
from penstock.core.blocking import run_in_thread
from penstock.errors import ExternalError, PipelineError
from penstock.kafka.clients import UNREACHED, confluent_options, raise_refusal
from penstock.settings import KafkaSettings

TIMEOUT_S: Final = 20.0
_CLIENT_ID: Final = "penstock-source"
_PAUSE_S: Final = 0.1
_PASSING: Final = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._TRANSPORT,
)
"""A partition that was just made, or whose leader is just changing, is not known everywhere yet."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class PartitionPosition(msgspec.Struct, frozen=True):
    """Where a partition is read next, and where it ends."""

    offset: int
    end: int | None = None
    topic_id: str | None = None
    """Tells a topic from one that was made anew under its name; None where the broker does not say it."""


@lru_cache(maxsize=4)
def _admin(settings: KafkaSettings) -> TopicAdmin:
    """Kept, because every subtask asks again every ten seconds, and a client costs more than its answer; but not where
    nobody answers: a new one tries at once."""
    return TopicAdmin(settings, _CLIENT_ID)


def partitions_of(settings: KafkaSettings, topic: str) -> int:
    """How many partitions a topic has.

    Raises:
        PipelineError: there is no such topic.
    """
    try:
        found = _admin(settings).partitions(topic)
    except ExternalError:
        _admin.cache_clear()
        raise
    if found is None:
        raise PipelineError(
            f"kafka: there is no topic {topic!r} at {settings.brokers}; create it, or correct the name in kafka.Source"
        )
    return found


def topic_id(settings: KafkaSettings, topic: str, timeout_s: float = TIMEOUT_S) -> str | None:
    """The id that the broker gave the topic when it was created; None if this user may not see it.

    Raises:
        PipelineError: there is no such topic.
        ExternalError: no broker answers.
    """
    try:
        return _admin(settings).topic_id(topic, timeout_s)
    except KafkaException as error:
        code = error.args[0].code()
        if code in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.UNSUPPORTED_VERSION):
            return None
        if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise PipelineError(f"kafka: there is no topic {topic!r} at {settings.brokers} (any more)") from error
        _admin.cache_clear()
        text = f"kafka topic {topic!r} at {settings.brokers}: {error.args[0].str()}"
        if is_away(error.args[0]):
            run_in_thread(raise_refusal(settings))
            text += f"; {UNREACHED}"
        raise ExternalError(text) from error
    except TimeoutError as error:
        _admin.cache_clear()
        raise ExternalError(f"kafka topic {topic!r} at {settings.brokers}: no answer in {timeout_s:.0f} s") from error


def resolved_position(settings: KafkaSettings, topic: str, partition: int, start: Any, end: Any) -> PartitionPosition:
    """Offsets for what the user wrote: names, a datetime, or partition to offset.

    Raises:
        ExternalError: no broker answers.
    """
    consumer = source_consumer(settings)
    place = TopicPartition(topic, partition)
    give_up_s = time.monotonic() + TIMEOUT_S
    try:
        while True:
            try:
                first, last = _bounds(consumer, place, start, end)
                break
            except KafkaException as error:
                if error.args[0].code() not in _PASSING or time.monotonic() > give_up_s:
                    raise ExternalError(
                        f"kafka topic {topic!r}, partition {partition} at {settings.brokers}: {error.args[0].str()}"
                    ) from error
            time.sleep(_PAUSE_S)
    finally:
        consumer.close()
    return PartitionPosition(first, last, topic_id(settings, topic))


def _bounds(consumer: Consumer, place: TopicPartition, start: Any, end: Any) -> tuple[int, int | None]:
    low, high = consumer.get_watermark_offsets(place, timeout=TIMEOUT_S)
    # What a mapping does not name begins at its beginning and ends at its present end.
    first = _offset(consumer, place, start, low, high, unnamed=low)
    return first, None if end is None else max(first, _offset(consumer, place, end, low, high, unnamed=high))


def _offset(consumer: Consumer, place: TopicPartition, wanted: Any, low: int, high: int, unnamed: int) -> int:
    if wanted == "earliest":
        return low
    if wanted == "latest":
        return high
    if isinstance(wanted, Mapping):
        return wanted.get(place.partition, unnamed)  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    # Records have whole milliseconds: the first at or after the moment is that of the next whole one.
    millis = -((_EPOCH - wanted) // timedelta(milliseconds=1))
    found = consumer.offsets_for_times([TopicPartition(place.topic, place.partition, millis)], timeout=TIMEOUT_S)[0]
    if found.error is not None:
        raise KafkaException(found.error)
    return high if found.offset in (OFFSET_END, -1) else found.offset


def source_consumer(settings: KafkaSettings, *, ends: bool = True) -> Consumer:
    """A client for one partition, which says what it comes upon and decides nothing by itself; `ends`: it is read up to
    some offset, and that it is at its end comes with an answer that has nothing."""
    return Consumer(
        {
            **confluent_options(settings, _CLIENT_ID),
            "group.id": "penstock-unused",  # required by the client; nothing is ever committed
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.queue.backoff.ms": 5,  # at its default of a second a decode loop stood still three quarters of it
            "fetch.wait.max.ms": 1_000 if ends else 5_000,  # of a broker that has nothing: news it tells at once
            "queued.max.messages.kbytes": 16_384,
            "fetch.message.max.bytes": 2 << 20,
            "reconnect.backoff.max.ms": 1_000,
            "log_level": LOG_SEVERE,
        },
        logger=LOGGER,
    )


LOG_SEVERE: Final = 2
"""librdkafka's level for critical messages: that a broker is away, which it would report over and over, is told by the
reader, once and with what to do."""
