"""Topics with the rows of the integration tests."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import polars as pl
from confluent_kafka import Producer
from pipelines import events

from penstock.connectors.kafka.topics import TopicAdmin
from penstock.settings import KafkaSettings

PARTITIONS = 3


class Topic:
    """A topic with the rows of the integration tests from some number on."""

    def __init__(self, settings: KafkaSettings, name: str) -> None:
        self.settings, self.name = settings, name
        TopicAdmin(settings, "test").create(name, PARTITIONS)
        self._producer = Producer(
            {
                "bootstrap.servers": settings.brokers,
                "linger.ms": 1,
                "log_level": 0,
                "enable.idempotence": True,
                "max.in.flight.requests.per.connection": 1,  # rows of a partition stay in order, whatever is sent again
            }
        )

    def send(self, first: int, end: int) -> None:
        rows = events(np.arange(first, end, dtype=np.int64)).with_columns(pl.col("at").dt.strftime("%FT%T%.6fZ"))
        for row in rows.iter_rows(named=True):
            self._producer.produce(self.name, json.dumps(row).encode(), partition=row["number"] % PARTITIONS)
        self._producer.flush(30)

    @contextmanager
    def growing(self, first: int, end: int) -> Iterator[None]:
        """Rows come while the block runs, in small batches; all are there behind it."""
        over = threading.Event()

        def grow() -> None:
            for number in range(first, end, 20):
                self.send(number, min(end, number + 20))
                over.wait(0.02)

        thread = threading.Thread(target=grow)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
