"""Avro sinks and a schema registry: the records of a real broker, in Confluent's wire format."""

from __future__ import annotations

import asyncio
import io
import json
import os
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiokafka
import fastavro
import pytest
from tests.integration.registries import StandIn, let_check, served

from penstock import Pipeline
from penstock.connectors import collecting, iterables, kafka
from penstock.connectors.kafka import schema_registry
from penstock.connectors.kafka.schema_registry import PREFIX, SchemaRegistry
from penstock.connectors.kafka.topics import TopicAdmin
from penstock.embedded import EmbeddedJob, EmbeddedSettings, JobResult
from penstock.errors import ExternalError, PipelineError
from penstock.formats.avro import avro_schema
from penstock.platform.free_ports import free_port
from penstock.settings import KafkaSettings
from penstock.types import INT64, STRING, Field, Schema

pytestmark = pytest.mark.timeout(120)
SCHEMA = Schema((Field("id", INT64), Field("name", STRING)))


@dataclass
class Row:
    """What is written."""

    id: int
    name: str


@pytest.fixture
def settings(platform) -> KafkaSettings:
    """The Kafka of this run."""
    return platform.settings("registry").kafka


@pytest.fixture
def registry() -> Iterator[str]:
    """The address of one, a real one if there is one."""
    if real := os.environ.get("PENSTOCK_TEST_REGISTRY"):
        yield real
        return
    with served(StandIn()) as stand_in:
        yield stand_in.address


@pytest.fixture
def topic(settings: KafkaSettings) -> str:
    """Of this test."""
    name = f"registered-{uuid.uuid4().hex[:8]}"
    TopicAdmin(settings, "test").create(name, 1)
    return name


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits for a registry that does not come."""
    monkeypatch.setattr(schema_registry, "PATIENCE_S", 1.0)


async def run(pipeline: Pipeline, folder: Path) -> JobResult:
    return await EmbeddedJob(pipeline, folder, EmbeddedSettings(durable=False)).run(resume=False)


def writing(rows: list[Row], sink: kafka.Sink) -> Pipeline:
    pipeline = Pipeline("registered")
    pipeline.read(iterables.Source(rows, schema=Row)).uid("rows").write(sink).uid("out")
    return pipeline


async def values(settings: KafkaSettings, topic: str, count: int) -> list[bytes]:
    """The first committed records."""
    consumer = aiokafka.AIOKafkaConsumer(
        topic, bootstrap_servers=settings.brokers, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        async with asyncio.timeout(30):
            return [(await consumer.getone()).value or b"" for _ in range(count)]
    finally:
        await consumer.stop()


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once", "upsert"])
async def test_records_carry_the_id_of_their_schema(settings, registry, topic, tmp_path, delivery):
    """Any client of the registry can read them, our own source among them."""
    rows = [Row(n, f"row {n}") for n in range(5)]
    sink = kafka.Sink(topic, format="avro", key="id", registry=registry, delivery=delivery, security=settings)
    result = await run(writing(rows, sink), tmp_path / "write")
    assert result.state == "FINISHED", result.reason
    found = await values(settings, topic, len(rows))
    [(magic, number)] = {PREFIX.unpack_from(value) for value in found}
    assert magic == 0
    schema = SchemaRegistry(registry).schema(number)
    assert schema == avro_schema(SCHEMA)
    assert number == SchemaRegistry(registry).registered(f"{topic}-value", schema)
    read: list[Any] = [fastavro.schemaless_reader(io.BytesIO(value[5:]), schema, None) for value in found]
    assert sorted(read, key=lambda row: row["id"]) == [{"id": row.id, "name": row.name} for row in rows]
    pipeline, back = Pipeline("back"), collecting.Sink()
    source = kafka.Source(topic, schema=Row, format="avro", registry=registry, end="latest", security=settings)
    pipeline.read(source).write(back)
    result = await run(pipeline, tmp_path / "read")
    assert result.state == "FINISHED", result.reason
    assert sorted(row["id"] for row in back.rows) == [0, 1, 2, 3, 4]


async def test_a_dead_letter_is_json_beside_registered_records(settings, registry, topic, tmp_path):
    """In the same transaction, and without the prefix."""
    dead = f"{topic}-dead"
    TopicAdmin(settings, "test").create(dead, 1)
    small = f"{topic}-small"
    TopicAdmin(settings, "test").create(small, 1, {"max.message.bytes": "20000"})
    sink = kafka.Sink(
        small, format="avro", registry=registry, bad_rows="dead_letter", dead_letters=dead, security=settings
    )
    result = await run(writing([Row(1, "small"), Row(2, "x" * 100_000)], sink), tmp_path)
    assert result.state == "FINISHED", result.reason
    [good] = await values(settings, small, 1)
    assert good.startswith(b"\0")
    [letter] = await values(settings, dead, 1)
    assert json.loads(letter)["id"] == 2


async def test_a_schema_that_does_not_fit_fails_the_job_before_its_first_row(settings, registry, topic, tmp_path):
    """With what the registry says, and what to do."""
    let_check(registry, f"{topic}-value")
    other = Schema((Field("id", STRING), Field("name", STRING)))
    SchemaRegistry(registry).register(f"{topic}-value", avro_schema(other))
    sink = kafka.Sink(topic, format="avro", registry=registry, security=settings)
    result = await run(writing([Row(1, "a")], sink), tmp_path)
    assert result.state == "FAILED"
    assert f"subject '{topic}-value'" in result.reason
    assert "(409); the stream's columns and types do not fit" in result.reason


async def test_a_schema_that_must_be_there_is_not_registered(settings, registry, topic):
    """It is looked for, and an error shows what to register."""
    sink = kafka.Sink(topic, format="avro", registry=registry, register_schema=False, security=settings)
    with pytest.raises(PipelineError, match=r'has no such schema.*register it.*"type": "record"'):
        await sink.encoder(SCHEMA, "out")
    number = SchemaRegistry(registry).register(f"{topic}-value", avro_schema(SCHEMA))
    import polars as pl

    encoder = await sink.encoder(SCHEMA, "out")
    [value] = encoder.encode(pl.DataFrame({"id": [1], "name": ["a"]})).frame["value"]
    assert PREFIX.unpack_from(value) == (0, number)


async def test_a_registry_that_is_away_is_waited_for(settings, topic, monkeypatch):
    """For a while; then the error says where it was looked for."""
    port = free_port()
    sink = kafka.Sink(topic, format="avro", registry=f"http://127.0.0.1:{port}", security=settings)
    with pytest.raises(ExternalError, match=rf"schema registry: http://127.0.0.1:{port}/subjects/.*check that it runs"):
        await sink.encoder(SCHEMA, "out")
    monkeypatch.setattr(schema_registry, "PATIENCE_S", 30.0)
    paused = threading.Event()

    def sleep(_: float) -> None:
        paused.set()
        time.sleep(0.05)  # the client's own pause, shortened

    monkeypatch.setattr(schema_registry, "_pause", sleep)
    asked = asyncio.create_task(sink.encoder(SCHEMA, "out"))
    assert await asyncio.to_thread(paused.wait, 20)
    with served(StandIn(port=port)) as stand_in:
        await asked
        assert list(stand_in.subjects) == [f"{topic}-value"]


async def test_a_registry_with_a_login(settings, topic, tmp_path):
    """The login of the address, also for the source; it appears in no error and no plan."""
    with served(StandIn("ann:p@ss:word")) as stand_in:
        plain = stand_in.address.removeprefix("http://")
        right, wrong = f"http://ann:p%40ss:word@{plain}", f"http://ann:wr0ng@{plain}/"
        sink = kafka.Sink(topic, format="avro", registry=right, security=settings)
        result = await run(writing([Row(1, "a")], sink), tmp_path / "write")
        assert result.state == "FINISHED", result.reason
        assert sink.describe()["registry"] == stand_in.address
        pipeline, back = Pipeline("back"), collecting.Sink()
        source = kafka.Source(topic, schema=Row, format="avro", registry=right, end="latest", security=settings)
        assert source.describe()["registry"] == stand_in.address
        pipeline.read(source).write(back)
        result = await run(pipeline, tmp_path / "read")
        assert result.state == "FINISHED", result.reason
        assert back.rows == [{"id": 1, "name": "a"}]
        for refused in (wrong, stand_in.address):
            with pytest.raises(PipelineError, match=r"Unauthorized \(401\); check the user and the password") as raised:
                await kafka.Sink(topic, format="avro", registry=refused, security=settings).encoder(SCHEMA, "out")
            assert "wr0ng" not in str(raised.value)
