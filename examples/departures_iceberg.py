"""Departures per airport and day into a table of Apache Iceberg: the pipeline of `departures.py` with another sink.

Needs `pip install 'penstock-streaming[iceberg]'`. Its catalog is a file here; a real one is another `catalog=` and
nothing else. A second run appends its rows beside those of the first one.
"""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from penstock import Pipeline, col, count, param, tumbling
from penstock.connectors import files, iceberg

DATA = Path(__file__).parent / "data" / "flights.jsonl"

lake = Path(param("lake", "out/lake")).absolute()
lake.mkdir(parents=True, exist_ok=True)
catalog = {"type": "sql", "uri": f"sqlite:///{lake}/catalog.db", "warehouse": lake.as_uri()}


@dataclass
class Flight:
    scheduled: datetime
    departed: datetime
    delay_min: int
    distance_mi: int
    origin: str
    destination: str


p = Pipeline("departures-iceberg")

(
    p.read(
        files.Source(
            DATA, schema=Flight, event_time="scheduled", max_out_of_orderness="9h", rate=param("rate", 0) or None
        )
    )
    .key_by("origin")
    .window(tumbling("1d"))
    .agg(flights=count(), mean_delay_min=col("delay_min").mean(), max_delay_min=col("delay_min").max())
    .write(iceberg.Sink("flights.departures", catalog=catalog, partition_by=["month(window_start)"]))
)

if __name__ == "__main__":
    p.run()
