"""Streaks of delays: three or more flights in a row that leave an airport more than half an hour late.

A `KeyedProcess` follows each airport: a streak ends with a flight that leaves in time, or when nothing has left for two
hours, which a timer sees. Rows come in the order in which the aircraft really left, so that time is the event time here.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from penstock import KeyedContext, KeyedProcess, Pipeline, ValueState, param
from penstock.connectors import files

DATA = Path(__file__).parent / "data" / "flights.jsonl"
LATE_MIN = 30
QUIET = timedelta(hours=2)


@dataclass
class Flight:
    departed: datetime
    delay_min: int
    origin: str


@dataclass
class Streak:
    airport: str
    begin: datetime
    end: datetime
    flights: int
    worst_min: int


class Streaks(KeyedProcess[Flight, Streak]):
    current = ValueState(Streak)

    def on_row(self, row: Flight, ctx: KeyedContext[Streak]) -> None:
        streak = self.current.get()
        if streak is not None and (row.delay_min <= LATE_MIN or row.departed - streak.end >= QUIET):
            self._ends(streak, ctx)
            streak = None
        if row.delay_min > LATE_MIN:
            if streak is None:
                streak = Streak(row.origin, row.departed, row.departed, 0, 0)
            streak.end = row.departed
            streak.flights += 1
            streak.worst_min = max(streak.worst_min, row.delay_min)
            self.current.set(streak)
            ctx.event_timer(row.departed + QUIET)

    def on_timer(self, at: datetime, ctx: KeyedContext[Streak]) -> None:
        streak = self.current.get()
        if streak is not None and at - streak.end >= QUIET:  # else it went on, and a later timer is set
            self._ends(streak, ctx)

    def _ends(self, streak: Streak, ctx: KeyedContext[Streak]) -> None:
        self.current.clear()
        if streak.flights >= 3:
            ctx.emit(streak)


p = Pipeline("delay-streaks")

(
    p.read(files.Source(DATA, schema=Flight, event_time="departed", rate=param("rate", 0) or None))
    .key_by("origin")
    .process(Streaks())
    .write(files.Sink(param("out", "out/delay_streaks"), existing="replace"))
)

if __name__ == "__main__":
    p.run()
