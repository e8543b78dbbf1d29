"""A group offset read require-stable through aiokafka's connections (KIP-447, OffsetFetch version 7).

aiokafka itself asks for offsets that a pending transaction may still change. That is not enough: a broker that has just
restarted grants InitProducerId while the marker of the transaction before has not reached the group's offsets, and then
gives the offset before that transaction. librdkafka can ask for stable ones, but crashed when its client was dropped.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.client import ConnectionGroup, CoordinationType
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.commit import OffsetCommitRequest
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)
from aiokafka.structs import OffsetAndMetadata

UNSTABLE_OFFSET_COMMIT: Final = 88
UNSTABLE_PAUSE_S: Final = 0.02
UNSTABLE_TRIES: Final = 100
"""For about two seconds; then a new InitProducerId may settle what is pending."""


class UnstableOffsetError(KafkaError):
    """A transaction on the offset is pending: whether it is committed will be known later."""

    retriable = True


class _StableOffsetFetchResponse(Response):
    # aiokafka declares these as abstract properties, and itself gives them as constants
    API_KEY = 9  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]
    API_VERSION = 7  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            CompactArray(
                ("topic", CompactString("utf-8")),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("offset", Int64),
                        ("leader_epoch", Int32),
                        ("metadata", CompactString("utf-8")),
                        ("error_code", Int16),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("error_code", Int16),
        ("tags", TaggedFields),
    )


class _StableOffsetFetchStruct(RequestStruct):
    FLEXIBLE_VERSION = True
    API_KEY = 9
    API_VERSION = 7
    RESPONSE_TYPE = _StableOffsetFetchResponse
    SCHEMA = Schema(
        ("consumer_group", CompactString("utf-8")),
        (
            "topics",
            CompactArray(
                ("topic", CompactString("utf-8")),
                ("partitions", CompactArray(Int32)),
                ("tags", TaggedFields),
            ),
        ),
        ("require_stable", Boolean),
        ("tags", TaggedFields),
    )


class _StableOffsetFetch(Request[_StableOffsetFetchStruct]):
    API_KEY = 9

    def __init__(self, group: str, topic: str, partition: int) -> None:
        self._asked = (group, [(topic, [partition], {})])

    def build(self, request_struct_class: type[_StableOffsetFetchStruct]) -> _StableOffsetFetchStruct:
        return request_struct_class(*self._asked, True, {})


async def stable_offset(
    producer: AIOKafkaProducer, group: str, topic: str, partition: int, idle_partition: int
) -> OffsetAndMetadata | None:
    """The group's offset once no transaction on it is pending; None if there is none.

    A broker that was killed goes on showing an offset as pending whose transaction has ended, until something is
    written to the group (seen with Kafka 4.3): so an offset of `idle_partition`, which means nothing, is committed.

    Raises:
        KafkaError: there is no certain answer (yet).
    """
    for tries in range(UNSTABLE_TRIES):
        code, found = await _fetch(producer, group, topic, partition)
        if code == 0:
            return None if found.offset < 0 else found
        if code != UNSTABLE_OFFSET_COMMIT:
            raise for_code(code)(f"offset of group {group!r}")
        if tries == UNSTABLE_TRIES // 10:
            await _write_something(producer, group, topic, idle_partition)
        await asyncio.sleep(UNSTABLE_PAUSE_S)
    raise UnstableOffsetError(f"offset of group {group!r}: a transaction is pending")


async def _write_something(producer: AIOKafkaProducer, group: str, topic: str, partition: int) -> None:
    request = OffsetCommitRequest(group, -1, "", -1, [(topic, [(partition, 0, "")])])
    answer: Any = await _ask(producer, group, request)
    [(_, [(_, code)])] = answer.topics
    if code:
        raise for_code(code)(f"writing to group {group!r}")


async def _ask(producer: AIOKafkaProducer, group: str, request: Request[Any]) -> Any:
    """The answer of the group's coordinator."""
    client = producer.client
    node = await client.coordinator_lookup(CoordinationType.GROUP, group)
    if not await client.ready(node, group=ConnectionGroup.COORDINATION):
        raise KafkaError(f"no connection to the coordinator of group {group!r}")
    return await client.send(node, request, group=ConnectionGroup.COORDINATION)


async def _fetch(producer: AIOKafkaProducer, group: str, topic: str, partition: int) -> tuple[int, OffsetAndMetadata]:
    """Error code and offset."""
    answer = await _ask(producer, group, _StableOffsetFetch(group, topic, partition))
    if answer.error_code:
        return answer.error_code, OffsetAndMetadata(-1, "")
    [(_, [(_, offset, _, metadata, code, _)], _)] = answer.topics
    return code, OffsetAndMetadata(offset, metadata or "")
