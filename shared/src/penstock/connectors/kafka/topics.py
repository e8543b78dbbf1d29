"""Topics of a user's Kafka: are they there, how many partitions, which records do they take. All of it blocks."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import (
    KafkaError,
    KafkaException,
    TopicCollection,  # pyright: ignore[reportPrivateImportUsage] # its documented place
)
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,  # pyright: ignore[reportPrivateImportUsage] # its documented place
    NewPartitions,  # pyright: ignore[reportPrivateImportUsage] # its documented place
    NewTopic,  # pyright: ignore[reportPrivateImportUsage] # its documented place
    ResourceType,  # pyright: ignore[reportPrivateImportUsage] # its documented place
)

from penstock.connectors.kafka.limits import TopicLimits
from penstock.core.blocking import run_in_thread
from penstock.errors import ExternalError, PipelineError
from penstock.kafka.clients import UNREACHED, confluent_options, durable_topic, raise_refusal
from penstock.settings import KafkaSettings

TIMEOUT_S: Final = 20.0
REFUSAL_S: Final = 3.0
"""How long a client goes without an answer before its brokers are asked whether they refuse it."""
_PAUSE_S: Final = 0.1
LOG_WARNINGS: Final = 4
"""librdkafka's level: at its default it reports every client that is closed."""
LOGGER: Final = logging.getLogger("librdkafka")
"""Given to every client: without one librdkafka writes to standard error by itself, between the lines of our logs."""
_DENIED: Final = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
)
_AWAY: Final = (
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._AUTHENTICATION,
    KafkaError._SSL,
)


class TopicAdmin:
    """Administration of one cluster."""

    def __init__(self, settings: KafkaSettings, client_id: str) -> None:
        self._settings = settings
        self._client = AdminClient({**confluent_options(settings, client_id), "log_level": LOG_WARNINGS}, logger=LOGGER)

    def partitions(self, topic: str) -> int | None:
        """How many partitions the topic has; None if there is no such topic."""
        try:
            found = self._listed(topic).topics.get(topic)
        except KafkaException as error:
            raise self._error(f"looking for topic {topic!r}", error) from error
        if found is None:
            return None
        if found.error is None:
            return len(found.partitions)
        if found.error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
            return None
        raise self._error(f"looking for topic {topic!r}", KafkaException(found.error))

    def topic_id(self, topic: str, timeout_s: float) -> str:
        """The id that the broker gave the topic when it was created.

        Raises:
            KafkaException, TimeoutError: it says none.
        """
        asked: Any = self._client.describe_topics(TopicCollection([topic]), request_timeout=timeout_s)[topic]
        return str(asked.result(timeout_s + 1).topic_id)

    def _listed(self, topic: str) -> Any:
        """What the brokers say of a topic. Who is refused by them is told soon, and not only that nobody answers."""
        try:
            return self._client.list_topics(topic, timeout=REFUSAL_S)
        except KafkaException as error:
            if not is_away(error.args[0]):
                raise
        run_in_thread(raise_refusal(self._settings))
        return self._client.list_topics(topic, timeout=TIMEOUT_S)

    def require(self, topic: str, create_partitions: int | None) -> int:
        """The number of partitions of a topic, which is created if that is wanted.

        Raises:
            PipelineError: there is no such topic; says how to create it.
        """
        found = self.partitions(topic)
        if found is not None:
            return found
        if create_partitions is not None:
            self.create(topic, create_partitions)
            return create_partitions
        raise PipelineError(
            f"kafka: there is no topic {topic!r} at {self._settings.brokers}; create it (kafka-topics.sh --create "
            f"--topic {topic} --partitions N --bootstrap-server {self._settings.brokers}), or let the sink do that: "
            "kafka.Sink(..., create_partitions=N)"
        )

    def create(self, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        """Create a topic; nothing happens if it is there.

        `config` is that of a topic of Penstock's own, which then keeps what it has confirmed; one of the user is as the
        brokers make it.
        """
        copies = self._settings.copies(self._brokers())
        own = {} if config is None else {**config, **durable_topic(copies)}
        wanted = NewTopic(topic, num_partitions=partitions, replication_factor=copies, config=own)
        creating = self._client.create_topics([wanted], operation_timeout=TIMEOUT_S)
        self._result(f"creating topic {topic!r}", creating[topic], (KafkaError.TOPIC_ALREADY_EXISTS,))

    def grow(self, topic: str, partitions: int) -> None:
        """Add partitions until there are so many. Nothing happens if there are."""
        (future,) = self._client.create_partitions(
            [NewPartitions(topic, partitions)], operation_timeout=TIMEOUT_S
        ).values()
        self._result(f"adding partitions to topic {topic!r}", future, (KafkaError.INVALID_PARTITIONS,))

    def _brokers(self) -> int:
        """How many there are."""
        try:
            return len(self._client.list_topics(timeout=TIMEOUT_S).brokers)
        except KafkaException as error:
            raise self._error("counting the brokers", error) from error

    def limits(self, topic: str) -> TopicLimits:
        """What the topic takes, Kafka's default size if that may not be read; waits a while for a topic that not all
        brokers know of yet."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                return TopicLimits.of({name: entry.value for name, entry in self._settings_of(topic).items()})
            except KafkaException as error:
                if is_denied(error):
                    return TopicLimits()
                if _code(error) != KafkaError.UNKNOWN_TOPIC_OR_PART or time.monotonic() > deadline:
                    raise self._error(f"reading the settings of topic {topic!r}", error) from error
            time.sleep(_PAUSE_S)

    def _settings_of(self, topic: str) -> Any:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        describing: Any = self._client.describe_configs([resource], request_timeout=TIMEOUT_S)[resource]
        try:
            return describing.result(TIMEOUT_S)
        except TimeoutError as error:
            raise ExternalError(f"kafka at {self._settings.brokers}: no answer about topic {topic!r}") from error

    def delete_topic(self, topic: str) -> None:
        """Delete a topic; nothing happens if there is none."""
        deleting = self._client.delete_topics([topic], operation_timeout=TIMEOUT_S)
        self._result(f"deleting topic {topic!r}", deleting[topic], (KafkaError.UNKNOWN_TOPIC_OR_PART,))

    def _result(self, what: str, future: Future[Any], fine: tuple[int, ...]) -> None:
        try:
            future.result(TIMEOUT_S)
        except KafkaException as error:
            if _code(error) not in fine:
                raise self._error(what, error) from error
        except TimeoutError as error:
            raise ExternalError(f"kafka at {self._settings.brokers}: {what}: no answer in {TIMEOUT_S:.0f} s") from error

    def _error(self, what: str, error: KafkaException) -> ExternalError | PipelineError:
        text = f"kafka at {self._settings.brokers}: {what}: {error.args[0]}"
        if is_denied(error):
            return PipelineError(f"{text}; grant it to this user")
        return ExternalError(f"{text}; {UNREACHED}" if is_away(error.args[0]) else text)


def is_denied(error: KafkaException) -> bool:
    """Whether a right is missing: no retry helps."""
    return _code(error) in _DENIED


def is_away(error: KafkaError) -> bool:
    """Whether no broker answers, or none that takes this client: librdkafka does not tell the two apart."""
    return error.code() in _AWAY


def _code(error: KafkaException) -> int:
    return error.args[0].code()
