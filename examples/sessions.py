"""Sessions: the rushes of each airport. One ends when nothing has left for half an hour."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from penstock import Pipeline, col, count, param, session
from penstock.connectors import files

DATA = Path(__file__).parent / "data" / "flights.jsonl"


@dataclass
class Flight:
    departed: datetime
    delay_min: int
    origin: str


p = Pipeline("sessions")

(
    p.read(files.Source(DATA, schema=Flight, event_time="departed", rate=param("rate", 0) or None))
    .key_by("origin")
    .window(session("30m"))
    .agg(flights=count(), worst_min=col("delay_min").max())
    .filter(col("flights") >= 3)
    .write(files.Sink(param("out", "out/sessions"), existing="replace"))
)

if __name__ == "__main__":
    p.run()
