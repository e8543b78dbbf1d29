"""Topics of a cluster in Kafka: made with the settings the protocol needs, listed, deleted, until everyone knows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from aiokafka import errors
from aiokafka.protocol.admin import CreateTopicsRequest, DeleteTopicsRequest, DescribeConfigsRequest
from aiokafka.protocol.metadata import MetadataRequest

from penstock.adapters.kafka.connection import ANSWER_TIMEOUT_MS, RECOVERY_TIMEOUT_S, KafkaConnection
from penstock.errors import ExternalError
from penstock.kafka.clients import durable_topic
from penstock.ports import TopicMismatchError

LARGEST_BATCH_BYTES: Final = 8 << 20
_TOPIC_RESOURCE: Final = 2


class KafkaTopics:
    """Creates, lists and deletes the topics of one cluster, whose names begin with its prefix."""

    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection

    async def create(self, topic: str, partitions: int, *, compacted: bool, retention_ms: int | None) -> None:
        """See `Log.create_topic`; returns when every broker knows a leader of every partition."""

        async def create() -> bool:
            client = await self._connection.connected()
            copies = self._connection.settings.copies(len(client.cluster.brokers()))
            configs = list(_configs(copies, compacted, retention_ms).items())
            request = (topic, partitions, copies, [], configs)
            answer = await self._connection.ask_any(CreateTopicsRequest([request], ANSWER_TIMEOUT_MS, False))  # pyright: ignore[reportArgumentType]
            ((_, code, *message),) = answer.topic_errors
            if code and code != errors.TopicAlreadyExistsError.errno:
                raise errors.for_code(code)(*message)
            return not code

        is_new = await self._connection.retrying("create topic", topic, create)
        # Somebody else's new topic, too, is unknown to some brokers at first.
        await self._until("create topic", topic, self._connection.led_everywhere)
        if not is_new:
            await self._check_same(topic, partitions, compacted)

    async def _check_same(self, topic: str, partitions: int, compacted: bool) -> None:
        there = len(await self._connection.leaders(topic))
        if there != partitions:
            raise TopicMismatchError(f"topic {topic} exists with {there} partitions, not {partitions}; delete it first")
        is_compacted = "compact" in await self._config(topic, "cleanup.policy")
        if is_compacted != compacted:
            raise TopicMismatchError(
                f"topic {topic} exists and is {'' if is_compacted else 'not '}compacted, it should be the other; "
                "delete it first"
            )

    async def _config(self, topic: str, name: str) -> str:
        answer = await self._connection.ask_any(DescribeConfigsRequest([(_TOPIC_RESOURCE, topic, [name])]))
        ((code, message, _, _, entries),) = answer.resources
        if code:
            raise errors.for_code(code)(message)
        return next(str(entry[1]) for entry in entries if entry[0] == name)

    async def delete(self, topic: str) -> None:
        """See `Log.delete_topic`; returns when no broker knows it any more."""

        async def delete() -> None:
            answer = await self._connection.ask_any(DeleteTopicsRequest([topic], ANSWER_TIMEOUT_MS))
            ((_, code, *message),) = answer.topic_error_codes
            if code and code != errors.UnknownTopicOrPartitionError.errno:
                raise errors.for_code(code)(*message)

        await self._connection.retrying("delete topic", topic, delete)
        await self._until("delete topic", topic, self._connection.missing_everywhere)
        await self._connection.deleted(topic)

    async def names(self) -> list[str]:
        """All topics of the cluster, without its prefix, sorted."""
        prefix = self._connection.prefix

        async def ask() -> list[str]:
            answer = await self._connection.ask_any(MetadataRequest(None))
            names = [topic for code, topic, _, _ in answer.topics if not code]
            return sorted(name.removeprefix(prefix) for name in names if name.startswith(prefix))

        return await self._connection.retrying("list topics", f"{prefix}*", ask)

    async def _until(self, what: str, topic: str, condition: Callable[[str], Awaitable[bool]]) -> None:
        deadline_s = time.monotonic() + RECOVERY_TIMEOUT_S
        while not await self._connection.retrying(what, topic, lambda: condition(topic)):
            if time.monotonic() > deadline_s:
                raise ExternalError(
                    f"Kafka at {self._connection.settings.brokers}: cannot {what} {topic}: the brokers do not agree "
                    f"on it for {RECOVERY_TIMEOUT_S:.0f} s; check that all of them run"
                )
            await asyncio.sleep(0.01)


def _configs(copies: int, compacted: bool, retention_ms: int | None) -> dict[str, str]:
    """What the protocol asks of a topic (see protocol.md, Logs). Records are never lost to a default of the broker."""
    return {
        # `delete` beside `compact`: a topic that is only compacted refuses to be trimmed.
        "cleanup.policy": "compact,delete" if compacted else "delete",
        "retention.ms": str(-1 if retention_ms is None else retention_ms),
        "retention.bytes": "-1",
        # Only closed segments are compacted or expire.
        "segment.bytes": str((64 if retention_ms is None and not compacted else 16) << 20),
        "message.timestamp.type": "LogAppendTime",
        "max.message.bytes": str(LARGEST_BATCH_BYTES),
        **durable_topic(copies),
    }
