"""A topic to windows, sessions and a process with timers: what is open when history ends goes on in the stream."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "integration"))

from pipelines import AGGREGATES, Event, PerMinute  # found by the path above

from penstock import Pipeline, param, session, tumbling
from penstock.connectors import files, kafka

OUT = Path(param("out", "out"))

p = Pipeline("seam")
topic = kafka.Source(
    param("topic", "events"),
    schema=Event,
    event_time="at",
    max_out_of_orderness="5s",
    idle_after=param("idle", "") or None,
    end=param("end", "") or None,
    brokers=param("brokers", "localhost:9092"),
)
keyed = p.read(topic).uid("events").key_by("key")
keyed.window(tumbling("10s")).agg(**AGGREGATES).uid("windows").write(files.Sink(OUT / "windows")).uid("windows-out")
keyed.window(session("2s")).agg(**AGGREGATES).uid("sessions").write(files.Sink(OUT / "sessions")).uid("sessions-out")
keyed.process(PerMinute()).uid("minutes").write(files.Sink(OUT / "minutes")).uid("minutes-out")
