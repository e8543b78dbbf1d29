"""Requests to Kafka's brokers: who leads a partition, how long an answer may take, and what is tried again.

aiokafka's client keeps the connections (several per broker where requests must not wait for each other, `lane`) and
knows the wire; its consumer is not used, see `fetcher`. Leaders are asked for topic by topic, because only that
tells a topic that is not there from one that has no leader yet.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from aiokafka import errors
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.metadata import MetadataRequest

from penstock.adapters.naming import MAX_TOPIC_LENGTH, checked_topic
from penstock.errors import ExternalError, UsageError
from penstock.kafka.clients import (
    UNREACHED,
    aiokafka_options,
    check_brokers,
    refusal,
    started,
    why_not,
    without_topic_creation,
)
from penstock.ports import TopicNotFoundError
from penstock.settings import KafkaSettings

ANSWER_TIMEOUT_MS: Final = 15_000
"""A connection on which an answer takes longer is given up. Longer than any long poll."""
RECOVERY_TIMEOUT_S: Final = 30.0
"""How long what failed is tried again before it is an error: a broker's restart or a change of leader fits in."""
_FIRST_BACKOFF_S: Final = 0.02
_LONGEST_BACKOFF_S: Final = 1.0

T = TypeVar("T")

RETRIABLE: Final = (
    OSError,
    TimeoutError,
    errors.NodeNotReadyError,
    errors.StaleMetadata,
    errors.KafkaConnectionError,
    errors.KafkaTimeoutError,
    errors.RequestTimedOutError,
    errors.CorrelationIdError,
    errors.ReplicaNotAvailableError,
)


class KafkaConnection:
    """One client of the cluster's brokers. Connects when first used."""

    def __init__(self, settings: KafkaSettings, cluster: str, client_id: str) -> None:
        self.settings = settings
        self.client_id = client_id
        self.prefix = f"penstock.{cluster}."
        self._client: AIOKafkaClient | None = None
        self._connecting = asyncio.Lock()
        self._leaders: dict[str, dict[int, int]] = {}
        self._closed = False

    def full_name(self, topic: str) -> str:
        """The name of the topic in Kafka.

        Raises:
            UsageError: the name, with the cluster's prefix, is none that Kafka takes.
        """
        full = self.prefix + checked_topic(topic)
        if len(full) > MAX_TOPIC_LENGTH:
            raise UsageError(
                f"topic {full!r} has {len(full)} characters, Kafka allows {MAX_TOPIC_LENGTH}; choose another name, or "
                "a shorter one for the cluster"
            )
        return full

    async def connected(self) -> AIOKafkaClient:
        """The client, which knows the brokers."""
        self.check_open()
        async with self._connecting:
            if self._client is None:
                options = aiokafka_options(self.settings, self.client_id)
                options["request_timeout_ms"] = ANSWER_TIMEOUT_MS
                client = AIOKafkaClient(**options)
                without_topic_creation(client)
                try:
                    async with asyncio.timeout(ANSWER_TIMEOUT_MS / 1_000):
                        await started(client.bootstrap())
                    check_brokers(client)
                except BaseException as error:
                    await client.close()
                    reason = await why_not(self.settings) if isinstance(error, errors.KafkaConnectionError) else None
                    if reason is not None:
                        raise reason from reason.__cause__
                    raise
                self._client = client
        self.check_open()
        return self._client

    def check_open(self) -> None:
        """Raise `ExternalError` after `close`."""
        if self._closed:
            raise ExternalError("the log is closed")

    async def ask(self, node: int | str, request: Any, lane: int = 0) -> Any:
        """The broker's answer. Requests of one lane are answered one after another.

        Raises:
            KafkaError, OSError, TimeoutError: there is none; whether the request took effect is unknown.
        """
        client = await self.connected()
        async with asyncio.timeout(2 * ANSWER_TIMEOUT_MS / 1_000):
            # Any hashable tells connections apart; the client's own two groups are 0 and 1.
            return await client.send(node, request, group=lane)  # pyright: ignore[reportArgumentType]

    async def ask_any(self, request: Any) -> Any:
        """The answer of some broker."""
        node = (await self.connected()).get_random_node()
        assert node is not None  # no metadata without brokers replaces what is known of them
        return await self.ask(node, request)

    async def leader(self, topic: str, partition: int) -> int:
        """The broker that leads the partition.

        Raises:
            TopicNotFoundError: there is no such topic, or no such partition of it.
            LeaderNotAvailableError: nobody leads it just now.
        """
        leaders = self._leaders.get(topic) or await self.leaders(topic)
        if partition not in leaders:
            raise TopicNotFoundError(
                f"topic {topic} has {len(leaders)} partitions, there is no {partition} (Kafka at {self.settings.brokers})"
            )
        if leaders[partition] < 0:
            self.forget(topic)
            raise errors.LeaderNotAvailableError(topic, partition)
        return leaders[partition]

    def known_leader(self, topic: str, partition: int) -> int | None:
        """The broker that led the partition when it was last asked for."""
        leader = self._leaders.get(topic, {}).get(partition, -1)
        return None if leader < 0 else leader

    async def leaders(self, topic: str) -> dict[int, int]:
        """The leaders of all partitions, asked for anew; -1 where there is none.

        Raises:
            TopicNotFoundError: no broker knows the topic.
        """
        self.forget(topic)
        client = await self.connected()
        for broker in client.cluster.brokers():
            # A broker may not have heard of a new topic yet, so all are asked before it counts as missing.
            found = await self._leaders_by(broker.nodeId, topic)
            if found is not None:
                self._leaders[topic] = found
                client.add_topic(topic)
                return found
        await self.deleted(topic)  # else it is asked for forever
        raise TopicNotFoundError(f"there is no topic {topic} (Kafka at {self.settings.brokers})")

    async def missing_everywhere(self, topic: str) -> bool:
        """Whether no broker knows the topic (any more)."""
        client = await self.connected()
        return all([await self._leaders_by(broker.nodeId, topic) is None for broker in client.cluster.brokers()])

    async def led_everywhere(self, topic: str) -> bool:
        """Whether every broker knows a leader of every partition."""
        client = await self.connected()
        known = [await self._leaders_by(broker.nodeId, topic) for broker in client.cluster.brokers()]
        return all(leaders and min(leaders.values()) >= 0 for leaders in known)

    async def _leaders_by(self, node: int | str, topic: str) -> dict[int, int] | None:
        answer = await self.ask(node, MetadataRequest([topic], allow_auto_topic_creation=False))
        ((code, _, _, partitions),) = answer.topics
        if code == errors.UnknownTopicOrPartitionError.errno:
            return None
        if code:
            raise errors.for_code(code)(topic)
        return {partition: leader for _, partition, leader, *_ in partitions}

    async def deleted(self, topic: str) -> None:
        """Know nothing of the topic any more, and ask for it no more."""
        self.forget(topic)
        client = await self.connected()
        if topic in client._topics:
            client.set_topics(client._topics - {topic})

    def forget(self, topic: str) -> None:
        """Ask for the topic's leaders anew before they are needed again."""
        self._leaders.pop(topic, None)

    async def retrying(self, what: str, topic: str, operation: Callable[[], Awaitable[T]]) -> T:
        """What the operation returns, tried again after what may pass, with leaders asked for anew.

        Raises:
            ExternalError: it cannot pass, or did not within `RECOVERY_TIMEOUT_S`; names brokers, topic and advice.
        """
        attempts = Attempts(self, what, topic)
        while True:
            try:
                return await operation()
            except (errors.KafkaError, OSError, TimeoutError) as error:
                await attempts.failed(error)

    def failure(self, what: str, topic: str, error: BaseException) -> ExternalError:
        """`error` as ours."""
        if isinstance(error, errors.TopicAuthorizationFailedError | errors.ClusterAuthorizationFailedError):
            advice = "give the setting kafka.sasl_username's user the rights on topics of this prefix"
        else:
            advice = refusal(error) or UNREACHED
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        failure = ExternalError(f"Kafka at {self.settings.brokers}: cannot {what} {topic}: {reason}; {advice}")
        failure.__cause__ = error
        return failure

    def closing(self) -> None:
        """Let later calls fail."""
        self._closed = True

    async def close(self) -> None:
        """Close the connections; later calls fail."""
        self._closed = True
        client, self._client = self._client, None
        if client is not None:
            async with asyncio.timeout(ANSWER_TIMEOUT_MS / 1_000):
                await client.close()


class Attempts:
    """Failures of one operation in a row: waits before the next attempt, until it has lasted too long."""

    def __init__(self, connection: KafkaConnection, what: str, topic: str) -> None:
        self._connection = connection
        self._what = what
        self._topic = topic
        self._backoff_s = _FIRST_BACKOFF_S
        self._give_up_s = time.monotonic() + RECOVERY_TIMEOUT_S

    async def failed(self, error: BaseException) -> None:
        """Return when it is time for the next attempt.

        Raises:
            ExternalError: another attempt cannot help, or there were enough.
        """
        self._connection.check_open()
        may_pass = refusal(error) is None and (isinstance(error, RETRIABLE) or getattr(error, "retriable", False))
        if not may_pass or time.monotonic() > self._give_up_s:
            raise self._connection.failure(self._what, self._topic, error)
        self._connection.forget(self._topic)
        await asyncio.sleep(self._backoff_s)
        self._backoff_s = min(2 * self._backoff_s, _LONGEST_BACKOFF_S)
