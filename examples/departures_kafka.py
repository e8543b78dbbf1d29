"""Departures per airport and day, as in `departures.py`, from one Kafka topic into another, exactly once.

`flights_to_kafka.py` fills the topic. This job waits for more flights until it is stopped; `--param until=latest` makes
it end with the flights that are there when it starts. Both topics are the platform's: `penstock run` and
`penstock submit` find it in the cluster's settings.
"""

from dataclasses import dataclass
from datetime import datetime

from penstock import Pipeline, col, count, param, tumbling
from penstock.connectors import kafka


@dataclass
class Flight:
    scheduled: datetime
    departed: datetime
    delay_min: int
    distance_mi: int
    origin: str
    destination: str


p = Pipeline("departures-kafka")

(
    p.read(
        kafka.Source(
            param("flights", "flights"),
            schema=Flight,
            event_time="scheduled",
            max_out_of_orderness="9h",
            end=param("until", "") or None,
        )
    )
    .key_by("origin")
    .window(tumbling("1d"))
    .agg(flights=count(), mean_delay_min=col("delay_min").mean(), max_delay_min=col("delay_min").max())
    .write(kafka.Sink(param("departures", "departures"), key="origin", create_partitions=param("partitions", 4)))
)

if __name__ == "__main__":
    p.run()
