"""The real servers can be stopped, killed, paused and restarted, and keep what they have."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiokafka
import obstore
import pytest
import redis.asyncio
import redis.exceptions
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from obstore.store import S3Store

from penstock.adapters.kafka.log import KafkaLog
from penstock.connectors.kafka.mark_records import TOPIC_SETTINGS
from penstock.connectors.kafka.topics import TopicAdmin
from penstock.kafka.clients import confluent_options
from penstock.platform.doctor import examine
from penstock.platform.doctor_kafka import check_kafka
from penstock.platform.errors import ServerStartError
from penstock.platform.parts import cached_parts
from penstock.platform.servers import Servers
from penstock.settings import ClusterSettings, Secret

pytestmark = [pytest.mark.timeout(300), pytest.mark.servers]


@asynccontextmanager
async def redis_client(servers: Servers) -> AsyncGenerator[Any]:
    """A client with a connection of its own, that does not try again by itself."""
    client: Any = redis.asyncio.Redis.from_url(servers.settings().redis.url.reveal(), socket_timeout=5)
    try:
        yield client
    finally:
        await client.aclose()


def store(settings: ClusterSettings) -> S3Store:
    """The bucket."""
    return S3Store(
        settings.store.bucket,
        endpoint=settings.store.endpoint,
        access_key_id=settings.store.access_key,
        secret_access_key=settings.store.secret_key.reveal(),
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )


async def create_topic(settings: ClusterSettings, name: str) -> None:
    """A topic of one partition, replicated as the settings say."""
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.kafka.brokers)
    await admin.start()
    try:
        answer: Any = await admin.create_topics([NewTopic(name, 1, settings.kafka.replication)])
        assert answer.topic_errors[0][1] == 0, answer
    finally:
        await admin.close()


async def produce(settings: ClusterSettings, topic: str, *values: bytes) -> None:
    """Write acknowledged by all replicas in sync."""
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=settings.kafka.brokers, acks="all")
    await producer.start()
    try:
        for value in values:
            await producer.send_and_wait(topic, value)
    finally:
        await producer.stop()


async def consume(settings: ClusterSettings, topic: str, count: int) -> list[bytes]:
    """The first records."""
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=settings.kafka.brokers, auto_offset_reset="earliest", enable_auto_commit=False
    )
    await consumer.start()
    try:
        consumer.assign([aiokafka.TopicPartition(topic, 0)])
        return [(await consumer.getone()).value or b"" for _ in range(count)]
    finally:
        await consumer.stop()


async def test_the_doctor_finds_the_platform_well(platform: Any) -> None:
    """Every check passes on the servers as they are started here, and leaves nothing behind in the store."""
    settings = platform.settings("doctor")
    findings = await examine(settings)
    assert [finding for finding in findings if not finding.ok] == []
    assert len(findings) == 18
    assert [item for chunk in store(settings).list(f"{settings.name}/") for item in chunk] == []


async def test_the_doctor_finds_what_is_wrong(platform: Any) -> None:
    """A replication that the brokers cannot have, a wrong password, a wrong key: each is a finding with advice."""
    right = platform.settings("ill")
    wrong = replace(
        right,
        kafka=replace(right.kafka, replication=3),
        redis=replace(right.redis, url=Secret(right.redis.url.reveal().replace(":", ":x", 2).replace(":x", ":", 1))),
        store=replace(right.store, secret_key=Secret("wrong-secret")),
    )
    failed = {(finding.part, finding.check): finding for finding in await examine(wrong) if not finding.ok}
    assert set(failed) == {
        ("kafka", "settings of the brokers"),
        ("kafka", "create a topic"),
        ("redis", "reached"),
        ("store", "bucket, put, get, list, delete"),
    }
    assert "kafka.replication is 3" in failed["kafka", "create a topic"].detail
    assert "SignatureDoesNotMatch" in failed["store", "bucket, put, get, list, delete"].detail
    for finding in failed.values():
        assert right.redis.url.reveal().split("@")[0].rpartition(":")[2] not in finding.detail


async def test_the_shared_platform_has_fresh_names(platform: Any) -> None:
    """Two settings are of the same servers and differ in the name only."""
    one, two = platform.settings("a"), platform.settings("a")
    assert one.name != two.name
    assert replace(one, name="") == replace(two, name="")


async def test_redis_keeps_its_data_unless_told(own_stores: Servers, tmp_path: Path) -> None:
    """Data survive SIGKILL; a restart may also go back to an older copy, or wipe everything."""
    own = own_stores.redis

    async def value() -> bytes | None:
        async with redis_client(own_stores) as client:
            return await client.get("k")

    async def write(content: str) -> None:
        async with redis_client(own_stores) as client:
            await client.set("k", content)

    await write("old")
    await own.copy_data(tmp_path / "copy")
    await write("new")
    await own.restart(by_force=True)
    assert await value() == b"new"
    await own.restart(data=tmp_path / "copy")
    assert await value() == b"old"
    await own.restart(wipe=True)
    assert await value() is None


async def test_a_paused_redis_does_not_answer(own_stores: Servers) -> None:
    """It answers again when it is resumed."""
    async with redis_client(own_stores) as client:
        assert await client.ping()
        own_stores.redis.pause()
        with pytest.raises(redis.exceptions.TimeoutError):
            await client.ping()
        own_stores.redis.resume()
    async with redis_client(own_stores) as client:
        assert await client.ping()


async def test_kafka_and_minio_keep_their_data(own_platform: Servers) -> None:
    """What was acknowledged before SIGKILL and before an orderly stop is there afterwards, on the same addresses."""
    settings = own_platform.settings()
    await create_topic(settings, "kept")
    await produce(settings, "kept", b"one")
    await obstore.put_async(store(settings), "object", b"kept")
    await own_platform.kill()
    await own_platform.start()
    assert own_platform.settings() == settings
    await produce(settings, "kept", b"two")
    await own_platform.kafka.restart()
    await own_platform.minio.restart()
    assert await consume(settings, "kept", 2) == [b"one", b"two"]
    assert bytes(await (await obstore.get_async(store(settings), "object")).bytes_async()) == b"kept"


async def test_a_port_that_is_taken_is_shown(own_platform: Servers) -> None:
    """The end of the log says why a server did not start, and nothing of it stays."""
    second = type(own_platform)(
        cached_parts(), own_platform.folder.parent / f"second-{secrets.token_hex(4)}", own_platform.plan
    )
    with pytest.raises(ServerStartError, match=r"ended while it started|another (store|Redis) answers"):
        await second.start()
    assert [server.name for server in second.all if server.is_running] == []
    assert own_platform.kafka.is_running


async def check_copies(settings: ClusterSettings) -> None:
    """Own topics and marks have three copies without being told, and the doctor sees where they have not."""
    unsaid = replace(settings.kafka, replication=0)
    for kafka, topic in ((unsaid, "three"), (replace(unsaid, replication=1), "one")):
        log = KafkaLog(kafka, settings.name)
        await log.create_topic(topic, 1)
        await log.close()
        admin = TopicAdmin(kafka, "test")
        await asyncio.to_thread(admin.create, f"penstock.{settings.name}.{topic}.marks", 1, TOPIC_SETTINGS)
    client = AdminClient(confluent_options(unsaid, "test"))
    for name in ("three", "three.marks"):
        resource = ConfigResource(ResourceType.TOPIC, f"penstock.{settings.name}.{name}")
        found = await asyncio.to_thread(client.describe_configs([resource])[resource].result, 20)
        assert found["min.insync.replicas"].value == "2"
        assert found["unclean.leader.election.enable"].value == "false"
    findings = {finding.check: finding for finding in await check_kafka(replace(settings, kafka=unsaid))}
    few = f"penstock.{settings.name}.one (1), penstock.{settings.name}.one.marks (1)"
    assert findings["copies of topics"].detail == f"topics with fewer than 3 copies: {few}"
    assert findings["create a topic"].detail == "replicated 3 times"
    log = KafkaLog(unsaid, settings.name)
    for name in ("one", "one.marks"):
        await log.delete_topic(name)
    await log.close()
    findings = {finding.check: finding for finding in await check_kafka(replace(settings, kafka=unsaid))}
    assert findings["copies of topics"].detail == "3 of each topic, brokers: 3"


async def test_three_brokers_outlive_one(three_brokers: Servers) -> None:
    """Records replicated three times are written and read while one broker is dead, and it comes back."""
    settings = three_brokers.settings()
    assert settings.kafka.replication == 3
    await create_topic(settings, "replicated")
    await produce(settings, "replicated", b"one")
    await check_copies(settings)
    await three_brokers.kafka.nodes[0].kill()
    await asyncio.wait_for(produce(settings, "replicated", b"two"), 60)
    assert await asyncio.wait_for(consume(settings, "replicated", 2), 60) == [b"one", b"two"]
    await three_brokers.kafka.start()
    assert three_brokers.kafka.is_running
