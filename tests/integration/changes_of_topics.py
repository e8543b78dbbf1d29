"""Tables as topics of changes: what tests of several engines write there and expect of it."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Producer

from penstock.connectors.kafka.topics import TopicAdmin
from penstock.settings import KafkaSettings

Table = dict[str, dict[str, Any]]
"""What holds, by account."""


class Changes:
    """Random inserts, updates and deletes of accounts; `table` is what they come to."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.table: Table = {}

    def next(self) -> tuple[str, dict[str, Any] | None, dict[str, Any] | None]:
        """The account, its row before and after."""
        name = f"a{self._random.randrange(40)}"
        before = self.table.pop(name, None)
        if before is None or self._random.random() < 0.7:
            town = self._random.choice(["Ulm", "Bonn", "Jena"])
            self.table[name] = {"account": name, "town": town, "balance": self._random.randrange(100)}
        return name, before, self.table.get(name)


class Topics:
    """One history of a table as an upsert topic and as topics of Debezium, with former rows and without."""

    def __init__(self, settings: KafkaSettings, name: str) -> None:
        self.upserts, self.events, self.keyed = f"{name}-upserts", f"{name}-events", f"{name}-keyed"
        for topic in (self.upserts, self.events, self.keyed):
            TopicAdmin(settings, "test").create(topic, 3)
        self._producer = Producer(
            {"bootstrap.servers": settings.brokers, "linger.ms": 1, "enable.idempotence": True,
             "max.in.flight.requests.per.connection": 1}
        )  # fmt: skip

    def send(self, changes: Changes, count: int) -> None:
        for _ in range(count):
            name, before, after = changes.next()
            self._send(self.upserts, name, after)
            op = "c" if before is None else "u" if after is not None else "d"
            event = {"before": before, "after": after, "op": op}
            self._send(self.events, name, {"schema": None, "payload": event})
            known = {"account": name} if op == "d" else None
            for _ in range(2 if after is None else 1):  # some connectors repeat themselves
                self._send(self.keyed, name, {**event, "before": known})
            if after is None:
                self._send(self.events, name, None)
        self._producer.flush(30)

    def _send(self, topic: str, key: str, value: Mapping[str, Any] | None) -> None:
        self._producer.produce(topic, None if value is None else json.dumps(value).encode(), key.encode())


def towns(table: Table) -> dict[str, tuple[int, int]]:
    """Number of accounts, and the largest balance, by town."""
    found: dict[str, list[int]] = {}
    for row in table.values():
        found.setdefault(row["town"], []).append(row["balance"])
    return {town: (len(balances), max(balances)) for town, balances in found.items()}
