"""What has become visible in a topic, read again and again."""

from __future__ import annotations

import json
import time
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

MOST_S: Final = 20.0
"""How long one reading takes at the most; the next one goes on from there."""


class CommittedRows:
    """The committed records of a topic of JSON, each once."""

    def __init__(self, brokers: str, topic: str, partitions: int) -> None:
        self.rows: list[Any] = []
        self._brokers = brokers
        self._topic = topic
        self._position = dict.fromkeys(range(partitions), OFFSET_BEGINNING)

    def read(self) -> None:
        """Add to `rows` what has become visible since."""
        options = {"group.id": "test", "enable.auto.commit": False, "isolation.level": "read_committed"}
        consumer = Consumer({"bootstrap.servers": self._brokers, "enable.partition.eof": True, **options})
        try:
            consumer.assign([TopicPartition(self._topic, number, at) for number, at in self._position.items()])
            open_ones = set(self._position)
            end = time.monotonic() + MOST_S
            while open_ones and time.monotonic() < end:
                for message in consumer.consume(1_000, 0.5):
                    if message.error() is not None:
                        open_ones.discard(message.partition())
                        continue
                    self._position[message.partition()] = message.offset() + 1
                    self.rows.append(json.loads(message.value()))
        finally:
            consumer.close()
