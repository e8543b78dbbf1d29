"""Every kind of state at once."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "integration"))

from pipelines import AGGREGATES, Event, Pairs, PerMinute  # found by the path above

from penstock import Pipeline, col, count, param, session, tumbling
from penstock.connectors import files

OUT = Path(param("out", "out"))

p = Pipeline("tables")
read = p.read(files.Source(param("in", "in"), schema=Event, event_time="at", max_out_of_orderness="5s")).uid("events")
keyed = read.key_by("key")
keyed.window(tumbling("1h")).agg(**AGGREGATES).uid("windows").write(files.Sink(OUT / "windows"))
keyed.window(session("2s")).agg(**AGGREGATES).uid("sessions").write(files.Sink(OUT / "sessions"))
keyed.agg(n=count(), total=col("value").sum()).uid("totals").write(files.Sink(OUT / "totals"))
keyed.process(PerMinute()).uid("minutes").write(files.Sink(OUT / "minutes"))
read.process(Pairs()).uid("held").write(files.Sink(OUT / "pairs"))
