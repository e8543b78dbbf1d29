"""What `benchmarks.spark_steps` runs in steps: a window and a process function from topic to topic."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from penstock import KeyedContext, KeyedProcess, Pipeline, ValueState, col, count, param, tumbling
from penstock.connectors import kafka

BROKERS = param("brokers", "localhost:9092")


@dataclass
class Event:
    key: int
    value: int
    at: datetime


@dataclass
class Counted:
    key: int
    n: int
    at: datetime


class Counting(KeyedProcess[Event, Counted]):
    """Numbers the rows of a key."""

    seen = ValueState(int)

    def on_row(self, row: Event, ctx: KeyedContext[Counted]) -> None:
        n = self.seen.get(0) + 1
        self.seen.set(n)
        ctx.emit(Counted(row.key, n, row.at))


p = Pipeline("steps")
topic = kafka.Source(
    param("events", "events"),
    schema=Event,
    event_time="at",
    max_out_of_orderness="1s",
    start="earliest",
    brokers=BROKERS,
)
keyed = p.read(topic).uid("events").key_by("key")
if param("case", "window") == "window":
    windows = keyed.window(tumbling("5s")).agg(n=count(), total=col("value").sum()).uid("windows")
    windows.select("key", "n", at=col("window_end")).write(kafka.Sink(param("results", "results"), brokers=BROKERS))
else:
    keyed.process(Counting()).uid("counting").write(kafka.Sink(param("results", "results"), brokers=BROKERS))
