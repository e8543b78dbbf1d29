"""A bounded topic to files, and to another topic at-least-once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from penstock import Pipeline, col, count, param, tumbling
from penstock.connectors import files, kafka

BROKERS = param("brokers", "localhost:9092")


@dataclass
class Event:
    number: int
    key: str
    at: datetime


p = Pipeline("kafka-to-kafka")
read = p.read(
    kafka.Source(param("source", "in"), schema=Event, event_time="at", end=param("end", "latest"), brokers=BROKERS)
)
windows = read.key_by("key").window(tumbling("1m")).agg(n=count(), last=col("number").max())
windows.write(files.Sink(param("out", "out")))
windows.write(
    kafka.Sink(param("target", "out"), key="key", delivery="at-least-once", brokers=BROKERS, create_partitions=2)
)
