"""Servers that speak TLS and ask for a login, with certificates of the test's own making: what works, and what is said
where something does not fit. Settings are those that a user writes into `cluster.toml`.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiokafka
import pytest
from tests.integration.secured import (
    KEY_PASSWORD,
    PASSWORD,
    Certificates,
    SecuredKafka,
    SecuredMinio,
    make_certificates,
)

from penstock import Pipeline
from penstock.adapters.kafka import connection as kafka_connection
from penstock.adapters.kafka.log import KafkaLog
from penstock.adapters.redis_metadata import RedisMetadata
from penstock.adapters.s3_blobs import S3Blobs
from penstock.connectors import kafka
from penstock.connectors.base import PublishContext, WriteContext
from penstock.connectors.files.store_clients import _client, location
from penstock.connectors.kafka import topics as kafka_topics
from penstock.connectors.kafka.offsets import topic_id
from penstock.connectors.kafka.topics import TopicAdmin
from penstock.embedded import EmbeddedJob, EmbeddedSettings
from penstock.errors import ExternalError, PenstockError, UsageError
from penstock.kafka.clients import aiokafka_options
from penstock.platform.buckets import ensure_bucket
from penstock.platform.doctor_kafka import check_kafka
from penstock.platform.doctor_redis import check_redis
from penstock.platform.doctor_store import check_store
from penstock.platform.free_ports import HOST, free_port
from penstock.platform.parts import cached_parts
from penstock.platform.redis import RedisServer
from penstock.ports import NewRecord
from penstock.settings import (
    FILE_VARIABLE,
    ClusterSettings,
    KafkaSettings,
    RedisSettings,
    Secret,
    load_settings,
    settings_to_toml,
)

pytestmark = [pytest.mark.timeout(120), pytest.mark.servers]
BOUND_S = 15.0
"""How long a client may take to say what is wrong, with the deadlines of these tests."""


@pytest.fixture(scope="session")
def certificates(tmp_path_factory) -> Certificates:
    """Of this run."""
    return make_certificates(tmp_path_factory.mktemp("certificates"))


# -- Kafka --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker(certificates: Certificates, tmp_path_factory) -> Iterator[SecuredKafka]:
    """One broker with a listener of each kind."""
    server = SecuredKafka(tmp_path_factory.mktemp("kafka"), certificates)
    asyncio.run(server.start())
    server.add_user()
    yield server
    asyncio.run(server.kill())


@dataclass
class Number:
    """A row."""

    n: int


def written_down(settings: KafkaSettings, folder: Path) -> ClusterSettings:
    """The settings as they come back from the file of a user, who points to it."""
    file = folder / "cluster.toml"
    file.write_text(settings_to_toml(ClusterSettings(name=f"tls-{uuid.uuid4().hex[:8]}", kafka=settings)))
    os.environ[FILE_VARIABLE] = str(file)  # taken back by a fixture of all tests
    found = load_settings()
    assert found.kafka == settings
    return found


async def use_log(settings: KafkaSettings) -> None:
    """The log of exchanges and control topics: appends and reads."""
    log = KafkaLog(settings, f"tls-{uuid.uuid4().hex[:8]}")
    try:
        await log.create_topic("exchange", 1)
        await log.append("exchange", 0, [NewRecord(b"row")])
        assert [record.value for record in await log.read("exchange", 0, 0, max_bytes=100, timeout_s=5)] == [b"row"]
    finally:
        await log.close()


async def use_admin(settings: KafkaSettings) -> None:
    """What looks for the topics of sources and sinks."""
    assert await asyncio.to_thread(lambda: TopicAdmin(settings, "test").partitions("none")) is None


async def use_topic_id(settings: KafkaSettings) -> None:
    """What a running source asks now and then."""
    assert await asyncio.to_thread(topic_id, settings, "known", 2.0)


async def use_publisher(settings: KafkaSettings) -> None:
    """The transactional producer of an exactly-once sink."""
    context = PublishContext(uuid.uuid4().hex, "out", 0, 0, 1, lambda: time.time_ns() // 1_000)
    publisher = kafka.Sink("known", security=settings).publisher(context)
    try:
        await publisher.init_producer()
    finally:
        await publisher.close()


async def use_writer(settings: KafkaSettings) -> None:
    """The producer of an at-least-once sink."""
    from penstock.types import INT64, Field, Schema

    sink = kafka.Sink("known", security=settings, delivery="at-least-once")
    context = WriteContext("out", 0, "a" * 32, 1, lambda: 0)
    writer = await asyncio.to_thread(sink.open, Schema((Field("n", INT64),)), context)
    writer.close()


CLIENTS: dict[str, Callable[[KafkaSettings], Awaitable[None]]] = {
    "log": use_log, "admin": use_admin, "topic id": use_topic_id, "publisher": use_publisher, "writer": use_writer,
}  # fmt: skip
GOOD = [
    ("TLS", ""), ("MUTUAL", ""), ("LOGIN", "PLAIN"), ("LOGIN", "SCRAM-SHA-256"), ("LOGIN", "SCRAM-SHA-512"),
    ("OPENLOGIN", "SCRAM-SHA-256"),
]  # fmt: skip


@pytest.fixture(scope="module")
def known(broker: SecuredKafka) -> None:
    """A topic that is there."""
    TopicAdmin(broker.settings, "test").create("known", 1)


@pytest.mark.parametrize(("listener", "mechanism"), GOOD)
@pytest.mark.usefixtures("known")
async def test_every_client_comes_through(broker: SecuredKafka, tmp_path: Path, listener: str, mechanism: str) -> None:
    """Also with a certificate of its own whose key is encrypted. The doctor uses aiokafka's admin and consumers too."""
    settings = written_down(broker.by(listener, mechanism or "PLAIN"), tmp_path)
    for use in CLIENTS.values():
        await use(settings.kafka)
    findings = await check_kafka(settings)
    assert [finding for finding in findings if not finding.ok] == []
    assert len(findings) == 11


@pytest.mark.parametrize(("listener", "mechanism"), [("MUTUAL", "PLAIN"), ("LOGIN", "SCRAM-SHA-256")])
async def test_a_job_from_topic_to_topic(broker: SecuredKafka, tmp_path: Path, listener: str, mechanism: str) -> None:
    """Exactly once and at least once, with nothing about security in the pipeline."""
    settings = written_down(broker.by(listener, mechanism), tmp_path)
    names = [f"{name}-{uuid.uuid4().hex[:8]}" for name in ("from", "once", "least")]
    admin = TopicAdmin(settings.kafka, "test")
    for name in names:
        admin.create(name, 2)
    await send(settings.kafka, names[0], 100)
    pipeline = Pipeline("secured")
    stream = pipeline.read(kafka.Source(names[0], schema=Number, end="latest")).uid("numbers")
    stream.write(kafka.Sink(names[1])).uid("once")
    stream.write(kafka.Sink(names[2], delivery="at-least-once")).uid("least")
    result = await EmbeddedJob(pipeline, tmp_path / "job", EmbeddedSettings(durable=False)).run(resume=False)
    assert result.state == "FINISHED", result.reason
    for name in names[1:]:
        assert sorted(await received(settings.kafka, name, 100)) == list(range(100))


async def send(settings: KafkaSettings, topic: str, count: int) -> None:
    """Numbers as JSON."""
    producer = aiokafka.AIOKafkaProducer(**aiokafka_options(settings, "test"))
    await producer.start()
    try:
        await asyncio.gather(*[await producer.send(topic, b'{"n":%d}' % n) for n in range(count)])
    finally:
        await producer.stop()


async def received(settings: KafkaSettings, topic: str, least: int) -> list[int]:
    """What is committed, once there is so much, and what comes right behind it."""
    consumer = aiokafka.AIOKafkaConsumer(
        topic, **aiokafka_options(settings, "test"), isolation_level="read_committed", auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        found: list[int] = []
        async with asyncio.timeout(30):
            while len(found) < least or (batch := await consumer.getmany(timeout_ms=300)):
                batch = batch if len(found) >= least else await consumer.getmany(timeout_ms=300)
                found += [json.loads(record.value)["n"] for records in batch.values() for record in records]
        return found
    finally:
        await consumer.stop()


@dataclass(frozen=True)
class Wrong:
    """What a user has got wrong, and the setting that every client must name."""

    change: Callable[[SecuredKafka], KafkaSettings]
    setting: str
    says: str = ""


def strangers(broker: SecuredKafka, **more: Any) -> KafkaSettings:
    return replace(broker.by("TLS"), ssl_cafile=str(broker.certificates.stranger), **more)


def without_certificate(broker: SecuredKafka) -> KafkaSettings:
    return replace(broker.by("MUTUAL"), ssl_certfile="", ssl_keyfile="", ssl_keypassword=Secret(""))


WRONG = {
    "wrong authority": Wrong(strangers, "ssl_cafile", "CERTIFICATE_VERIFY_FAILED"),
    "wrong password, SCRAM": Wrong(
        lambda broker: replace(broker.by("LOGIN", "SCRAM-SHA-256"), sasl_password=Secret("no")), "sasl_password",
        "SaslAuthenticationFailed",
    ),
    "wrong password, PLAIN": Wrong(
        lambda broker: replace(broker.by("LOGIN"), sasl_password=Secret("no")), "sasl_password",
        "SaslAuthenticationFailed",
    ),
    "plain text at a port with TLS": Wrong(
        lambda broker: replace(broker.by("TLS"), security_protocol="PLAINTEXT"), "security_protocol"
    ),
    "TLS at a port without": Wrong(
        lambda broker: replace(broker.by("TLS"), brokers=broker.settings.brokers), "security_protocol"
    ),
    "no login at a port that wants one": Wrong(
        lambda broker: replace(broker.by("LOGIN"), security_protocol="SSL"), "security_protocol"
    ),
    "no certificate of the client": Wrong(without_certificate, "ssl_certfile"),
    "wrong password of the key": Wrong(
        lambda broker: replace(broker.by("MUTUAL"), ssl_keypassword=Secret("no")), "ssl_keypassword"
    ),
    "no password of the key": Wrong(
        lambda broker: replace(broker.by("MUTUAL"), ssl_keypassword=Secret("")), "ssl_keypassword"
    ),
    "no file of the authority": Wrong(
        lambda broker: replace(broker.by("TLS"), ssl_cafile="/nowhere/ca.pem"), "ssl_cafile", "/nowhere/ca.pem"
    ),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.usefixtures("known")
async def test_what_is_wrong_is_said(broker: SecuredKafka, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By every client, in time, with the setting to correct, and with no secret."""
    monkeypatch.setattr(kafka_connection, "RECOVERY_TIMEOUT_S", 2.0)
    monkeypatch.setattr(kafka_topics, "TIMEOUT_S", 2.0)
    monkeypatch.setattr(kafka_topics, "REFUSAL_S", 1.0)
    case = WRONG[wrong]
    settings = case.change(broker)
    said = await asyncio.gather(*(complaint(name, settings) for name in CLIENTS), doctors_complaint(settings))
    for who, text in zip([*CLIENTS, "doctor"], said, strict=True):
        assert case.setting in text, f"{who}: {text}"
        assert case.says in text, f"{who}: {text}"
        assert PASSWORD not in text
        assert KEY_PASSWORD not in text


async def complaint(client: str, settings: KafkaSettings) -> str:
    """What the client says, which is one of our errors."""
    with pytest.raises(PenstockError) as raised:
        async with asyncio.timeout(BOUND_S):
            await CLIENTS[client](settings)
    return str(raised.value)


async def doctors_complaint(settings: KafkaSettings) -> str:
    """Its one finding: nothing else can be checked."""
    async with asyncio.timeout(BOUND_S):
        (finding,) = await check_kafka(ClusterSettings(kafka=settings))
    assert not finding.ok
    return f"{finding.detail}; {finding.advice}"


# -- MinIO --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def minio(certificates: Certificates, tmp_path_factory) -> Iterator[SecuredMinio]:
    """It speaks https only."""
    server = SecuredMinio(tmp_path_factory.mktemp("minio"), certificates)
    asyncio.run(server.start())
    yield server
    asyncio.run(server.kill())


async def test_pipelines_find_the_authority_of_a_store(minio: SecuredMinio, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the variables that the chart sets: `s3://` without options."""
    ensure_bucket(replace(minio.settings, bucket="rows"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", minio.settings.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", minio.settings.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", minio.settings.secret_key.reveal())
    monkeypatch.setenv("AWS_CA_BUNDLE", str(minio.certificates.authority))
    _client.cache_clear()
    place = location("s3://rows/a", None, "here")
    assert place is not None
    await place.store.put_async("a", b"1")
    assert bytes(await (await place.store.get_async("a")).bytes_async()) == b"1"
    _client.cache_clear()


async def test_a_store_by_https(minio: SecuredMinio) -> None:
    """With an authority of one's own: objects, the bucket, and all that the doctor looks at."""
    settings = ClusterSettings(name="tls", store=minio.settings)
    assert [(f.check, f.detail) for f in await check_store(settings) if not f.ok] == []
    ensure_bucket(replace(minio.settings, bucket="another"))
    blobs = S3Blobs(replace(minio.settings, bucket="another"), "tls")
    await blobs.put("k", b"v")
    assert await blobs.get("k") == b"v"
    await blobs.close()


@pytest.mark.parametrize("authority", ["stranger", "public ones only"])
async def test_a_store_with_a_strange_certificate_is_not_trusted(minio: SecuredMinio, authority: str) -> None:
    """The error says so, and which setting is meant."""
    cafile = str(minio.certificates.stranger) if authority == "stranger" else ""
    settings = replace(minio.settings, ssl_cafile=cafile)
    blobs = S3Blobs(settings, "tls")
    with pytest.raises(ExternalError, match=r"UnknownIssuer.*store\.ssl_cafile"):
        async with asyncio.timeout(BOUND_S):
            await blobs.get("k")
    await blobs.close()
    with pytest.raises(ExternalError, match=r"CERTIFICATE_VERIFY_FAILED.*store\.ssl_cafile"):
        ensure_bucket(settings)


@pytest.mark.parametrize("file", ["/nowhere/ca.pem", __file__])
async def test_a_file_without_certificates_is_refused(minio: SecuredMinio, file: str) -> None:
    """Where the store is first used."""
    settings = replace(minio.settings, ssl_cafile=file)
    for use in (lambda: S3Blobs(settings, "tls"), lambda: ensure_bucket(settings)):
        with pytest.raises(UsageError, match=rf"store\.ssl_cafile: {file}"):
            use()


# -- Redis --------------------------------------------------------------------------------------------------------------


class TlsRedis(RedisServer):
    """A Redis with a second port, which speaks TLS."""

    certificates: Certificates
    tls_port: int
    mutual = False

    async def prepare(self) -> None:
        await super().prepare()
        made = self.certificates
        lines = (
            f"tls-port {self.tls_port}", f"tls-cert-file {made.certificate()}", f"tls-key-file {made.key()}",
            f"tls-ca-cert-file {made.authority}", f"tls-auth-clients {'yes' if self.mutual else 'no'}",
        )  # fmt: skip
        with (self.folder / "redis.conf").open("a") as file:
            file.write("\n".join(lines) + "\n")


@pytest.fixture
async def redis(certificates: Certificates, tmp_path: Path) -> AsyncIterator[TlsRedis]:
    """Its password is `secret`."""
    server = TlsRedis(cached_parts(), tmp_path, free_port(), password="secret")
    server.certificates, server.tls_port = certificates, free_port({server.port})
    await server.start()
    yield server
    await server.kill()


async def test_redis_by_tls(redis: TlsRedis) -> None:
    """`rediss://` with the authority in the address: leases and keys as ever."""
    address = f"rediss://:secret@{HOST}:{redis.tls_port}/0"
    trusting = f"{address}?ssl_ca_certs={redis.certificates.authority}"
    metadata = RedisMetadata(RedisSettings(url=Secret(trusting)), "tls")
    await metadata.put("k", b"v")
    assert await metadata.get("k") == b"v"
    assert await metadata.acquire("lease", b"me", 10_000)
    await metadata.close()


async def test_redis_by_settings(redis: TlsRedis) -> None:
    """Authority, certificate and key by settings of their own; the doctor uses them, too."""
    await redis.kill()
    redis.mutual = True
    await redis.start()
    made = redis.certificates
    trusting = RedisSettings(Secret(f"rediss://:secret@{HOST}:{redis.tls_port}/0"), ssl_cafile=str(made.authority))
    known = replace(trusting, ssl_certfile=str(made.certificate("client")), ssl_keyfile=str(made.key("client")))
    findings = await check_redis(ClusterSettings(name="tls", redis=known))
    assert [(found.check, found.detail) for found in findings if not found.ok] == []
    (finding,) = await check_redis(ClusterSettings(name="tls", redis=trusting))
    assert not finding.ok


async def test_a_redis_with_a_strange_certificate_is_not_trusted(redis: TlsRedis) -> None:
    """The error says why, and shows no password."""
    metadata = RedisMetadata(RedisSettings(url=Secret(f"rediss://:secret@{HOST}:{redis.tls_port}/0")), "tls")
    with pytest.raises(ExternalError, match="certificate verify failed") as raised:
        await metadata.get("k")
    assert "secret" not in str(raised.value)
    await metadata.close()
