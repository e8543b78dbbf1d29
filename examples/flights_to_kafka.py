"""Puts the 20,000 flights into a Kafka topic, in the order in which the aircraft left; `departures_kafka.py` reads them.

An airport's flights stay in one partition and in order, because the airport is the key. With `--param rate=1000` a
thousand come per second, as if they were live.
"""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from penstock import Pipeline, param
from penstock.connectors import files, kafka

DATA = Path(__file__).parent / "data" / "flights.jsonl"


@dataclass
class Flight:
    scheduled: datetime
    departed: datetime
    delay_min: int
    distance_mi: int
    origin: str
    destination: str


p = Pipeline("flights-to-kafka")

p.read(files.Source(DATA, schema=Flight, rate=param("rate", 0) or None)).write(
    kafka.Sink(param("topic", "flights"), key="origin", create_partitions=param("partitions", 4))
)

if __name__ == "__main__":
    p.run()
