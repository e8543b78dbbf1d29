"""Windowed top-N: the three flights of each airport and day that left latest, sent when the day is over."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from penstock import Pipeline, param, tumbling
from penstock.connectors import files

DATA = Path(__file__).parent / "data" / "flights.jsonl"


@dataclass
class Flight:
    departed: datetime
    delay_min: int
    origin: str
    destination: str


p = Pipeline("top-n-per-day")

(
    p.read(files.Source(DATA, schema=Flight, event_time="departed", rate=param("rate", 0) or None))
    .key_by("origin")
    .window(tumbling("1d"))
    .top(3, by="delay_min")
    .write(files.Sink(param("out", "out/top_n_per_day"), existing="replace"))
)

if __name__ == "__main__":
    p.run()
