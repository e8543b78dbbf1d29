"""Writes numbered events into the source topic, and knows what every sink must hold because of them."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

from penstock.kafka.clients import confluent_options
from penstock.settings import KafkaSettings

TOPIC: Final = "events"
PARTITIONS: Final = 4
KEYS: Final = 16
RATE: Final = 200
"""Events per second."""
DISORDER_US: Final = 1_900_000
"""How much later than its time an event may come; the pipeline waits for 2 s."""
SECOND_US: Final = 1_000_000
BLOCK: Final = 10_000
"""How many numbers make a block."""
EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)

_TICK_S: Final = 0.02
_FLUSH_S: Final = 120.0


@dataclass
class Window:
    """What the row of one key and second must say."""

    rows: int = 0
    total: int = 0
    first: int = -1
    last: int = -1

    def add(self, number: int, value: int) -> None:
        """Count an event. Numbers ascend."""
        self.rows += 1
        self.total += value
        self.first = number if self.first < 0 else self.first
        self.last = number


@dataclass
class Known:
    """What was produced, as the sinks must show it. Written before the events are sent, so it is never behind them."""

    ids: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """By key, in order."""
    kept: dict[str, list[tuple[int, int]]] = field(default_factory=dict[str, list[tuple[int, int]]])
    """Those that pass the filter, with the doubled value."""
    values: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """By key, of all its events in order."""
    totals: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """The sums up to each of these."""
    windows: dict[tuple[str, int], Window] = field(default_factory=dict[tuple[str, int], Window])
    """By key and start in seconds since `EPOCH`."""

    rows: Counter[tuple[str, int]] = field(default_factory=Counter[tuple[str, int]])
    """By key and block of numbers."""
    to_join: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    """Number and key of the events that are joined with the rows of their block."""

    def add(self, number: int, key: str, value: int, at_us: int) -> None:
        """An event is about to be sent."""
        self.rows[key, number // BLOCK] += 1
        if value % 50 == 0:
            self.to_join.append((number, key))
        totals = self.totals.setdefault(key, [])
        totals.append((totals[-1] if totals else 0) + value)
        self.values.setdefault(key, []).append(value)
        self.ids.setdefault(key, []).append(number)
        if value % 3 == 0:
            self.kept.setdefault(key, []).append((number, value * 2))
        self.windows.setdefault((key, at_us // SECOND_US), Window()).add(number, value)

    def joined(self) -> set[tuple[int, str, int]]:
        """The rows of the join that hold: each with how many fifties of rows its block has."""
        return {(number, key, self.rows[key, number // BLOCK] // 50) for number, key in self.to_join}


class Feed:
    """A thread that writes `RATE` events per second until it is stopped, or has written `limit`."""

    def __init__(self, settings: KafkaSettings, seed: int, limit: int) -> None:
        self.known = Known()
        self.produced = 0
        """The number of the next event."""
        self.delivered = 0
        self.problems: list[str] = []
        self._limit = limit
        self._rng = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)
        options = confluent_options(settings, "chaos-feed")
        # An event that the feed gave up on would be missing for good: it waits for the broker as long as it takes.
        # With several requests in flight librdkafka may write an event twice when the leader of a partition changes,
        # idempotent or not (confluentinc/librdkafka#4953).
        options |= {"max.in.flight.requests.per.connection": 1}
        options |= {"enable.idempotence": True, "delivery.timeout.ms": 600_000, "log_level": 0, "linger.ms": 5}
        self._producer = Producer(options)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> None:
        """Write no more; returns when everything that was written has been confirmed.

        Raises:
            AssertionError: not everything was.
        """
        self._stop.set()
        self._thread.join(_FLUSH_S)
        left = self._producer.flush(_FLUSH_S)
        assert not left, f"the feed could not deliver {left} events within {_FLUSH_S:.0f} s"
        assert not self.problems, f"the feed could not deliver: {self.problems[:5]}"
        assert self.delivered == self.produced, f"{self.delivered} of {self.produced} events were confirmed"

    def _run(self) -> None:
        began = time.monotonic()
        while not self._stop.is_set() and self.produced < self._limit:
            due = min(self._limit, int((time.monotonic() - began) * RATE))
            while self.produced < due and not self._stop.is_set():
                self._write(self.produced)
                self.produced += 1
            self._producer.poll(_TICK_S)
            self._stop.wait(_TICK_S)

    def _write(self, number: int) -> None:
        chosen, value = self._rng.randrange(KEYS), self._rng.randrange(1_000)
        at_us = max(0, number * SECOND_US // RATE - self._rng.randrange(DISORDER_US))
        key, partition = f"k{chosen:02}", chosen % PARTITIONS
        at = (EPOCH + timedelta(microseconds=at_us)).isoformat()
        self.known.add(number, key, value, at_us)
        event = {"id": number, "key": key, "part": partition, "value": value, "at": at}
        while True:
            try:
                self._producer.produce(
                    TOPIC, json.dumps(event).encode(), key.encode(), partition, on_delivery=self._delivered
                )
                return
            except BufferError:  # the broker has been away for long
                self._producer.poll(0.1)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.delivered += 1
        else:
            self.problems.append(str(error))


def doubled_events(settings: KafkaSettings) -> list[str]:
    """What the source topic holds twice: not the job's fault, whoever wrote it."""
    options = confluent_options(settings, "chaos-doubled-events")
    options |= {"group.id": "chaos-doubled-events", "enable.auto.commit": False, "enable.partition.eof": True}
    consumer, seen, doubled, ended = Consumer(options), set[int](), list[str](), 0
    consumer.assign([TopicPartition(TOPIC, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
    deadline = time.monotonic() + _FLUSH_S
    while ended < PARTITIONS and time.monotonic() < deadline:
        for message in consumer.consume(10_000, 1.0):
            error = message.error()
            if error is not None:
                ended += error.code() == KafkaError._PARTITION_EOF
                continue
            number = int(json.loads(message.value() or b"")["id"])
            if number in seen:
                doubled.append(
                    f"the source topic has #{number} again: {TOPIC}-{message.partition()}@{message.offset()}"
                )
            seen.add(number)
    consumer.close()
    return doubled
