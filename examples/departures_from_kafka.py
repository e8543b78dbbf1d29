"""Writes what `departures_kafka.py` has put into its topic to files, so that it can be compared with `departures.py`:

    diff <(sort out/departures/part-*) <(sort out/departures-kafka/part-*)

Only what is committed is read, as every Kafka consumer with `isolation.level=read_committed` does.
"""

from dataclasses import dataclass
from datetime import datetime

from penstock import Pipeline, param
from penstock.connectors import files, kafka


@dataclass
class Departures:
    origin: str
    window_start: datetime
    window_end: datetime
    flights: int
    mean_delay_min: float
    max_delay_min: int


p = Pipeline("departures-from-kafka")

p.read(kafka.Source(param("departures", "departures"), schema=Departures, end="latest")).write(
    files.Sink(param("out", "out/departures-kafka"), existing="replace")
)

if __name__ == "__main__":
    p.run()
