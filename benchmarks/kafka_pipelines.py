"""The pipelines that `benchmarks.kafka` runs, as a user would write them: W1 and W2 of the targets."""

from dataclasses import dataclass
from datetime import datetime

from penstock import Pipeline, col, count, param, tumbling
from penstock.connectors import files, kafka


@dataclass
class Event:
    key: int
    price: int
    at: datetime


EVENTS, RESULTS = param("events", "w-json"), param("results", "results")


def events(format: str) -> kafka.Source[Event]:
    return kafka.Source(EVENTS, schema=Event, event_time="at", max_out_of_orderness="2s", format=format, end="latest")


w1 = Pipeline("w1")
(
    w1.read(events(param("format", "json")))
    .key_by("key")
    .window(tumbling("10s"))
    .agg(events=count(), total=col("price").sum(), highest=col("price").max())
    .write(kafka.Sink(RESULTS))
)

w2 = Pipeline("w2")
(
    w2.read(events(param("format", "json")))
    .filter(col("price") > 5_000)
    .select("key", "at", euros=col("price") * 0.908)
    .write(kafka.Sink(RESULTS))
)

decode = Pipeline("decode")
(decode.read(events("json")).filter(col("price") == 7).write(files.Sink(param("out", "out"), format="parquet")))
