"""Departures per airport and day: flights, mean and maximum delay, from 20,000 real flights.

Rows come in the order in which the aircraft really left, event time is when they should have: the stream is out of
order by up to 491 minutes, so the watermark waits nine hours and no row is late.
"""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from penstock import Pipeline, col, count, param, tumbling
from penstock.connectors import files

DATA = Path(__file__).parent / "data" / "flights.jsonl"


@dataclass
class Flight:
    scheduled: datetime
    departed: datetime
    delay_min: int
    distance_mi: int
    origin: str
    destination: str


p = Pipeline("departures")

(
    p.read(
        files.Source(
            DATA, schema=Flight, event_time="scheduled", max_out_of_orderness="9h", rate=param("rate", 0) or None
        )
    )
    .key_by("origin")
    .window(tumbling("1d"))
    .agg(flights=count(), mean_delay_min=col("delay_min").mean(), max_delay_min=col("delay_min").max())
    .write(files.Sink(param("out", "out/departures"), existing="replace"))
)

if __name__ == "__main__":
    p.run()
