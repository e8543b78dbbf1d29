"""A topic to windows, which go to a topic and to files: what a job in steps reads and writes."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "integration"))

from pipelines import AGGREGATES, Event  # found by the path above

from penstock import Pipeline, col, param, tumbling
from penstock.connectors import files, kafka

BROKERS = param("brokers", "localhost:9092")

p = Pipeline("steps")
topic = kafka.Source(
    param("topic", "events"),
    schema=Event,
    event_time="at",
    max_out_of_orderness="5s",
    idle_after=param("idle", "") or None,
    start=param("start", "earliest"),
    brokers=BROKERS,
)
read = p.read(topic).uid("events")
windows = read.key_by("key").window(tumbling("10s")).agg(**AGGREGATES).uid("windows")
windows.write(files.Sink(Path(param("out", "out")))).uid("files-out")
windows.filter(col("n") > 0).write(kafka.Sink(param("to", "windows"), key="key", brokers=BROKERS)).uid("topic-out")
