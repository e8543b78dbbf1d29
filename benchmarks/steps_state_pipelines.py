"""What `benchmarks.steps_state` runs in steps: running aggregates and a process function over files."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from penstock import KeyedContext, KeyedProcess, Pipeline, ValueState, col, count, param
from penstock.connectors import files


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
keyed = p.read(files.Source(param("in", "in"), schema=Event, event_time="at")).uid("events").key_by("key")
if param("case", "aggregates") == "aggregates":
    keyed.agg(n=count(), total=col("value").sum()).uid("totals").write(files.Sink(param("out", "out")))
else:
    keyed.process(Counting()).uid("counting").write(files.Sink(param("out", "out")))
