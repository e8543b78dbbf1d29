"""The pipelines that `benchmarks.live` runs."""

from dataclasses import dataclass

from penstock import Pipeline, col, count, param
from penstock.connectors import kafka


@dataclass
class Event:
    number: int
    sent_us: int


latency = Pipeline("latency")
(
    latency.read(kafka.Source(param("events", "events"), schema=Event, format="json"))
    .filter(col("number") % 2 == 0)
    .write(kafka.Sink(param("results", "results")))
)

idle = Pipeline("idle")
stream = idle.read(kafka.Source(param("events", "events"), schema=Event, format="json"))
for step in range(8):
    stream = stream.filter(col("number") > step).chain(False)
stream.write(kafka.Sink(param("results", "results"), delivery="at-least-once"))

totals = Pipeline("totals")
(
    totals.read(kafka.Source(param("events", "events"), schema=Event, format="json"))
    .select("sent_us", key=col("number") % 1000)
    .key_by("key")
    .agg(rows=count(), sent_us=col("sent_us").max())
    .write(kafka.Sink(param("results", "results"), key="key", delivery="exactly-once"))
)
