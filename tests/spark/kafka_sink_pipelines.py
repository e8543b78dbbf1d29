"""Generated rows to topics, exactly once: every row, and the newest count of every key as updates."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import polars as pl

from penstock import Pipeline, count, param
from penstock.connectors import generate, kafka

BROKERS = param("brokers", "localhost:9092")
PADDING = int(param("padding", 0))
"""Bytes that make a row long, so that it takes several batches and transactions."""
START_US = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000


@dataclass
class Event:
    number: int
    key: str
    at: datetime
    padding: str


def events(numbers) -> pl.DataFrame:
    """Keys `k0` to `k6`, a second apart."""
    given = pl.Series("number", numbers)
    at = (START_US + given * 1_000_000).cast(pl.Datetime("us", "UTC"))
    padding = pl.Series([f"{number:x}" * PADDING for number in given], dtype=pl.String)
    return pl.DataFrame(
        {"number": given, "key": "k" + (given % 7).cast(pl.String), "at": at, "padding": padding.str.slice(0, PADDING)}
    )


p = Pipeline("kafka-sinks")
read = p.read(generate.Source(events, schema=Event, rows=int(param("rows", 1_000)), splits=3, event_time="at"))
read.write(
    kafka.Sink(
        param("rows_topic", "rows"), key="key", headers={"origin": "number"}, timestamp="at", brokers=BROKERS
    )
)  # fmt: skip
updates = read.key_by("key").agg(n=count())
updates.write(kafka.Sink(param("counts_topic", "counts"), key="key", delivery="upsert", brokers=BROKERS))
