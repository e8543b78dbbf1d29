"""What logs, control topics and exactly-once publishing need of Kafka."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Mapping
from typing import Any, Final

import aiokafka
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError
from aiokafka.protocol.admin import ApiVersionRequest
from aiokafka.structs import OffsetAndMetadata, TopicPartition
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,  # pyright: ignore[reportPrivateImportUsage]  # public in its documentation, not in its types
    ResourceType,  # pyright: ignore[reportPrivateImportUsage]
)

from penstock.errors import ExternalError
from penstock.kafka.clients import UNREACHED, aiokafka_options, confluent_options, raise_refusal
from penstock.kafka.hanging_transactions import hanging_transactions, settle
from penstock.platform.doctor_checks import CheckFailedError, Checks, Finding, skew_finding
from penstock.settings import ClusterSettings, KafkaSettings, possible_copies

_ANSWER_S: Final = 10
_PAUSE_S: Final = 0.05
_SHOWN: Final = 5
"""Topics that are named; the others are counted."""

# What each request must be able to do, by the version that brought it.
_NEEDED: Final = {
    22: (3, "InitProducerId", "a producer that resumes after an error (Kafka 2.5)"),
    9: (7, "OffsetFetch", "offsets without those of open transactions (Kafka 2.5)"),
    21: (1, "DeleteRecords", "trimming (Kafka 1.0)"),
}


async def check_kafka(settings: ClusterSettings) -> list[Finding]:
    """All findings on Kafka."""
    checks = Checks("kafka")
    probe = _Probe(settings)
    reached = await checks.run("reached", probe.reached(), f"{UNREACHED}; and their advertised.listeners")
    if not reached:
        return checks.findings
    await checks.run("requests", probe.requests(), "use Kafka 2.5 or newer")
    await checks.run("settings of the brokers", probe.broker_settings(), "change them in server.properties or by alter")
    await checks.run(
        "copies of topics",
        probe.copies(),
        "leave the setting kafka.replication out; topics that are there get more copies by kafka-reassign-partitions.sh, "
        "and min.insync.replicas=2 by kafka-configs.sh",
    )
    await checks.run(
        "transactions that hang",
        probe.hanging(),
        "see docs/kafka.md; `penstock doctor --settle-transactions` ends those of which it says how",
    )
    created = await checks.run(
        "create a topic",
        probe.create_topic(),
        f"let the user create topics penstock.{settings.name}.*, and set kafka.replication to the brokers there are",
    )
    if created:
        await checks.run(
            "transactions, read_committed",
            probe.transactions(),
            "let the user write with idempotence and transactional ids penstock.*",
        )
        await checks.run(
            "offsets in transactions", probe.offsets(), "let the user read and write the groups penstock.*"
        )
        await checks.run("delete records", probe.trim(), "let the user delete records of penstock.*")
        await checks.run("clock", probe.clock(), "synchronise the clocks of this machine and of the brokers (NTP)")
        await checks.run("delete topic and group", probe.clean_up(), "let the user delete topics and groups penstock.*")
    return checks.findings


async def settle_transactions(settings: ClusterSettings) -> list[str]:
    """End the transactions of sinks that hang, the way they were decided; what was done, a line each.

    Raises:
        ExternalError: the brokers cannot be asked, or refuse.
    """
    client = AIOKafkaClient(**aiokafka_options(settings.kafka, "penstock-doctor"))
    try:
        await raise_refusal(settings.kafka)
        await client.bootstrap()
        return await settle(client, await hanging_transactions(client, settings.name))
    except (KafkaError, OSError, NotImplementedError) as error:
        raise ExternalError(
            f"Kafka at {settings.kafka.brokers}: settling transactions: {error!r}; it needs Kafka 3.0 and a user who may "
            "read the topics, describe transactional ids and do ClusterAction; what was not settled hangs on: do it again"
        ) from error
    finally:
        await client.close()


class _Probe:
    """One topic, one group, one transactional id, and what is done with them."""

    def __init__(self, settings: ClusterSettings) -> None:
        self._settings = settings
        self._name = f"penstock.{settings.name}.doctor.{uuid.uuid4().hex[:8]}"
        self._partition = TopicPartition(self._name, 0)
        self._admin: Any = None
        self._brokers: list[int] = []
        self._times: tuple[float, float, float] = (0.0, 0.0, 0.0)

    async def reached(self) -> str:
        await raise_refusal(self._settings.kafka)
        client = AIOKafkaClient(**self._options)
        try:
            await client.bootstrap()  # aiokafka gives up at once; librdkafka would try on until the deadline
        finally:
            await client.close()
        quiet = logging.Logger("penstock.doctor")  # of its own: what librdkafka logs is in the findings
        quiet.addHandler(logging.NullHandler())
        options = confluent_options(self._settings.kafka, "penstock-doctor")
        self._admin = AdminClient({**options, "socket.timeout.ms": _ANSWER_S * 1_000}, logger=quiet)
        cluster = await asyncio.to_thread(self._admin.describe_cluster(request_timeout=_ANSWER_S).result, _ANSWER_S)
        self._brokers = [node.id for node in cluster.nodes]
        return f"brokers: {len(self._brokers)}, cluster {cluster.cluster_id}"

    async def requests(self) -> str:
        client = AIOKafkaClient(**self._options)
        try:
            await client.bootstrap()
            answer = await client.send(self._brokers[0], ApiVersionRequest())
        finally:
            await client.close()
        newest = {key: highest for key, _, highest in answer.api_versions}
        lacking = [
            f"{name} version {least}, needed for {purpose}"
            for key, (least, name, purpose) in _NEEDED.items()
            if newest.get(key, -1) < least
        ]
        if lacking:
            raise CheckFailedError(f"the brokers lack {'; '.join(lacking)}")
        return f"all of {', '.join(name for _, name, _ in _NEEDED.values())}"

    async def broker_settings(self) -> str:
        resource = ConfigResource(ResourceType.BROKER, str(self._brokers[0]))
        future = self._admin.describe_configs([resource], request_timeout=_ANSWER_S)[resource]
        entries = await asyncio.to_thread(future.result, _ANSWER_S)
        values = {name: entry.value for name, entry in entries.items()}
        if problems := broker_problems(values, self._settings.kafka.copies(len(self._brokers))):
            raise CheckFailedError("; ".join(problems))
        automatic = values.get("auto.create.topics.enable") == "true"
        return "fit" + ("; auto.create.topics.enable hides mistyped topics, better false" if automatic else "")

    async def copies(self) -> str:
        found = await asyncio.to_thread(self._admin.list_topics, timeout=_ANSWER_S)
        own = {
            name: min(len(partition.replicas) for partition in topic.partitions.values())
            for name, topic in found.topics.items()
            if name.startswith(f"penstock.{self._settings.name}.") and topic.partitions
        }
        brokers = len(self._brokers)
        if problems := copy_problems(self._settings.kafka, brokers, own):
            raise CheckFailedError("; ".join(problems))
        return f"{self._settings.kafka.copies(brokers)} of each topic, brokers: {brokers}"

    async def hanging(self) -> str:
        client = AIOKafkaClient(**self._options)
        try:
            await client.bootstrap()
            found = await hanging_transactions(client, self._settings.name)
        except NotImplementedError:
            return "not told by brokers before Kafka 3.0"
        finally:
            await client.close()
        if found:
            rest = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
            raise CheckFailedError("; ".join(map(str, found[:_SHOWN])) + rest)
        return "none"

    async def create_topic(self) -> str:
        replication = self._settings.kafka.copies(len(self._brokers))
        if replication > len(self._brokers):
            raise CheckFailedError(f"the setting kafka.replication is {replication}, brokers: {len(self._brokers)}")
        admin = AIOKafkaAdminClient(**self._options)
        await admin.start()
        try:
            configs = {"message.timestamp.type": "LogAppendTime", "max.message.bytes": "5242880"}
            topic = NewTopic(self._name, num_partitions=1, replication_factor=replication, topic_configs=configs)
            answer: Any = await admin.create_topics([topic], timeout_ms=_ANSWER_S * 1_000)
        finally:
            await admin.close()
        _, code, *message = answer.topic_errors[0]
        if code:
            raise CheckFailedError(f"error {code}: {(message or [''])[0] or 'no reason given'}")
        return f"replicated {replication} times"

    async def transactions(self) -> str:
        before = time.time()
        producer = aiokafka.AIOKafkaProducer(
            **self._options, transactional_id=self._name, transaction_timeout_ms=_ANSWER_S * 1_000
        )
        await producer.start()
        try:
            await producer.begin_transaction()
            await producer.send_and_wait(self._name, b"aborted", partition=0)
            await producer.abort_transaction()
            await producer.begin_transaction()
            await producer.send_and_wait(self._name, b"committed", partition=0)
            marker = {self._partition: OffsetAndMetadata(7, "doctor")}
            await producer.send_offsets_to_transaction(marker, self._name)
            await producer.commit_transaction()
        finally:
            await producer.stop()
        record = await self._first_committed()
        if record.value != b"committed":
            raise CheckFailedError(f"a read_committed reader saw the record {record.value!r}")
        self._times = (record.timestamp / 1_000, before - 0.001, time.time())
        return "an aborted record stays unseen, a committed one is seen"

    async def offsets(self) -> str:
        asked = ConsumerGroupTopicPartitions(self._name, [ConfluentPartition(self._name, 0)])
        while True:  # until the deadline of the check: right after a commit they are "unstable" for a moment
            future = self._admin.list_consumer_group_offsets([asked], require_stable=True)[self._name]
            try:
                found = (await asyncio.to_thread(future.result, _ANSWER_S)).topic_partitions[0]
            except KafkaException as error:
                raise CheckFailedError(str(error.args[0])) from error
            if found.error is None and found.offset >= 0:
                break
            await asyncio.sleep(_PAUSE_S)
        if found.offset != 7 or found.metadata != "doctor":
            raise CheckFailedError(f"committed offset 7, read {found.offset} with {found.metadata!r}")
        return "committed with the records and read back"

    async def trim(self) -> str:
        admin = AIOKafkaAdminClient(**self._options)
        await admin.start()
        try:
            await admin.delete_records({self._partition: RecordsToDelete(before_offset=1)})
        finally:
            await admin.close()
        consumer = aiokafka.AIOKafkaConsumer(**self._options, enable_auto_commit=False)
        await consumer.start()
        try:
            first = (await consumer.beginning_offsets([self._partition]))[self._partition]
        finally:
            await consumer.stop()
        if first != 1:
            raise CheckFailedError(f"after deleting the first record the log begins at {first} instead of 1")
        return "a prefix goes, the rest stays"

    async def clock(self) -> str:
        return skew_finding(*self._times)

    async def clean_up(self) -> str:
        waiting = [
            *self._admin.delete_topics([self._name], operation_timeout=_ANSWER_S).values(),
            *self._admin.delete_consumer_groups([self._name]).values(),
        ]
        for future in waiting:
            try:
                await asyncio.to_thread(future.result, _ANSWER_S)
            except KafkaException as error:
                raise CheckFailedError(str(error.args[0])) from error
        return "nothing of this check is left"

    async def _first_committed(self) -> Any:
        consumer = aiokafka.AIOKafkaConsumer(
            **self._options, enable_auto_commit=False, isolation_level="read_committed", auto_offset_reset="none"
        )
        await consumer.start()
        try:
            consumer.assign([self._partition])
            consumer.seek(self._partition, 0)
            return await consumer.getone()
        finally:
            await consumer.stop()

    @property
    def _options(self) -> dict[str, Any]:
        return {**aiokafka_options(self._settings.kafka, "penstock-doctor"), "request_timeout_ms": _ANSWER_S * 1_000}


def copy_problems(settings: KafkaSettings, brokers: int, topics: Mapping[str, int]) -> list[str]:
    """Where fewer copies are kept than the brokers allow; `topics` are Penstock's own, with the copies they have."""
    possible = possible_copies(brokers)
    problems: list[str] = []
    if settings.copies(brokers) < possible:
        problems.append(
            f"the setting kafka.replication is {settings.replication}, brokers: {brokers}: a lost broker takes jobs, or "
            f"rows of theirs, with it; {possible} copies are possible"
        )
    few = sorted(name for name, copies in topics.items() if copies < possible)
    if few:
        shown = ", ".join(f"{name} ({topics[name]})" for name in few[:_SHOWN])
        rest = f" and {len(few) - _SHOWN} more" if len(few) > _SHOWN else ""
        problems.append(f"topics with fewer than {possible} copies: {shown}{rest}")
    return problems


def broker_problems(values: Mapping[str, str | None], replication: int) -> list[str]:
    """What is wrong with a broker's settings for topics of this replication; those it does not tell are left out."""
    problems: list[str] = []

    def at_least(name: str, least: int, why: str) -> None:
        value = values.get(name)
        if value is not None and int(value) < least:
            problems.append(f"{name} is {value}, at least {least} is needed: {why}")

    at_least("transaction.max.timeout.ms", 60_000, "a sink's transaction may be open that long")
    at_least("offsets.retention.minutes", 2_880, "sinks renew their markers daily")
    at_least("transaction.state.log.replication.factor", replication, "else a lost broker loses transactions")
    at_least("offsets.topic.replication.factor", replication, "else a lost broker loses the sinks' markers")
    at_least("transaction.state.log.min.isr", replication - 1, "else an acknowledged transaction may be lost")
    if values.get("unclean.leader.election.enable") == "true":
        problems.append("unclean.leader.election.enable is true: acknowledged records may be lost; set it false")
    return problems
