"""Departures per airport so far into a table of Postgres that always has the newest: a row per airport, replaced by key.

Needs `pip install 'penstock-streaming[postgres]'` and a server:
`--param database=postgresql://user:password@host/name`. The table is made if there is none.
"""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from penstock import Pipeline, col, count, param
from penstock.connectors import files, postgres
from penstock.settings import Secret

DATA = Path(__file__).parent / "data" / "flights.jsonl"


@dataclass
class Flight:
    scheduled: datetime
    departed: datetime
    delay_min: int
    distance_mi: int
    origin: str
    destination: str


p = Pipeline("departures-postgres")

(
    p.read(files.Source(DATA, schema=Flight, rate=param("rate", 0) or None))
    .key_by("origin")
    .agg(flights=count(), mean_delay_min=col("delay_min").mean(), max_delay_min=col("delay_min").max())
    .write(
        postgres.Sink(
            "departures", url=Secret(param("database", "postgresql://localhost/flights")), key="origin", create=True
        )
    )
)

if __name__ == "__main__":
    p.run()
