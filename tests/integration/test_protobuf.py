"""Protobuf in topics of a real broker: written exactly once, read by other clients and by our own source."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.protobuf_messages import message

from penstock import Pipeline, col
from penstock.connectors import iterables, kafka
from penstock.connectors.kafka.topics import TopicAdmin

pytestmark = pytest.mark.timeout(120)
ORDER = message("Order")
START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Item:
    name: str
    number: int | None


@dataclass
class Order:
    id: int
    customer: str
    at: datetime
    items: list[Item]
    note: str | None


ORDERS = [
    Order(
        n, f"c{n % 7}", START + timedelta(seconds=n), [Item("a", n), Item("b", None)][: n % 3], None if n % 2 else "x"
    )
    for n in range(500)
]


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_rows_cross_a_topic(platform: Any, delivery: Any) -> None:
    """As they were, with event time; another client reads them."""
    settings, topic = platform.settings("protobuf").kafka, f"orders-{uuid.uuid4().hex[:8]}"
    p = Pipeline("write")
    sink = kafka.Sink(
        topic,
        format="protobuf",
        message=ORDER,
        key="customer",
        delivery=delivery,
        create_partitions=2,
        security=settings,
    )
    p.read(iterables.Source(ORDERS, schema=Order)).write(sink)
    assert p.run().state == "FINISHED"
    options: dict[str, Any] = {"schema": Order, "format": "protobuf", "message": ORDER, "end": "latest"}
    source = kafka.Source(topic, event_time="at", security=settings, **options)
    found = Pipeline("read").read(source).filter(col("id") % 5 == 0).collect().sort("id").to_dicts()
    assert [(row["id"], row["customer"], row["at"], row["note"]) for row in found] == [
        (order.id, order.customer, order.at, order.note) for order in ORDERS[::5]
    ]
    assert [row["items"] for row in found] == [[vars(item) for item in order.items] for order in ORDERS[::5]]
    assert sorted(ORDER.FromString(value).id for value in committed(settings.brokers, topic, 2)) == list(range(500))


def test_what_is_no_message_is_a_dead_letter(platform: Any) -> None:
    """With its place; with a registry's prefix the record is one of another producer."""
    settings, topic = platform.settings("protobuf").kafka, f"orders-{uuid.uuid4().hex[:8]}"
    prefix = b"\x00\x00\x00\x00\x2a\x02\x02"  # the message [1] of its file
    TopicAdmin(settings, "tests").require(topic, 1)
    producer = Producer({"bootstrap.servers": settings.brokers})
    good = ORDER(id=1, customer="a")
    good.at.FromDatetime(START)
    for value in (
        prefix + good.SerializeToString(),
        good.SerializeToString(),
        b"\x00\x00\x00\x00\x2a\x00" + b"\x08\x01",
    ):
        producer.produce(topic, value, partition=0)
    assert producer.flush(20) == 0
    source = kafka.Source(
        topic, schema=Order, format="protobuf", message=ORDER, registry="http://not-asked:8081", end="latest",
        bad_rows="dead_letter", security=settings,
    )  # fmt: skip
    p = Pipeline("p")
    rows = p.read(source)
    bad = rows.dead_letters().collect()
    assert rows.collect()["id"].to_list() == [1]
    assert bad["where"].to_list() == [f"kafka topic {topic!r}, partition 0, offset {n}" for n in (1, 2)]


def committed(brokers: str, topic: str, partitions: int) -> list[bytes]:
    """The values that a `read_committed` consumer has."""
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "unused", "isolation.level": "read_committed"})
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        found: list[bytes] = []
        while len(found) < len(ORDERS):
            messages = consumer.consume(1_000, 20)
            assert messages, f"{len(found)} of {len(ORDERS)} came"
            found += [each.value() for each in messages]
        return found
    finally:
        consumer.close()
