"""Kafka and Spark: a bounded topic is read by the reader that streams, up to offsets that are fixed at the start."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta

import aiokafka
import pytest
from embedded_runs import rows
from spark_runs import HERE, run

from penstock.connectors.kafka.topics import TopicAdmin

pytestmark = pytest.mark.timeout(300)
ROWS = 600


async def test_a_bounded_topic_is_read_on_spark(platform, spark, tmp_path):
    """Every record counts once, and an at-least-once sink publishes every window."""
    settings = platform.settings("spark").kafka
    source, target = platform.settings("in").name, platform.settings("out").name
    TopicAdmin(settings, "test").create(source, 3)
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=settings.brokers)
    await producer.start()
    for number in range(ROWS):
        at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=number)
        row = {"number": number, "key": f"k{number % 5}", "at": at.isoformat()}
        await producer.send(source, json.dumps(row).encode(), partition=number % 3)
    await producer.stop()
    given = {"brokers": settings.brokers, "source": source, "target": target, "out": str(tmp_path / "spark")}
    result = run(spark, HERE / "kafka_pipeline.py", tmp_path, given)
    assert result.total("n0-read", "rows_in") == ROWS
    assert sum(row["n"] for row in rows(tmp_path / "spark")) == ROWS
    published = await records(settings.brokers, target)
    assert Counter(published) == Counter(json.dumps(row, sort_keys=True) for row in rows(tmp_path / "spark"))


async def records(brokers: str, topic: str) -> list[str]:
    """All records of a topic, as JSON with sorted keys."""
    consumer = aiokafka.AIOKafkaConsumer(topic, bootstrap_servers=brokers, auto_offset_reset="earliest")
    await consumer.start()
    try:
        parts = consumer.assignment()
        ends = await consumer.end_offsets(parts)
        found: list[str] = []
        while any([await consumer.position(part) < ends[part] for part in parts]):
            for batch in (await consumer.getmany(timeout_ms=200)).values():
                found += [json.dumps(json.loads(record.value), sort_keys=True) for record in batch]
        return found
    finally:
        await consumer.stop()
