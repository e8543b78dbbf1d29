"""Moving averages: beside each flight the mean delay of its airport's last ten flights, and of those of the last hour."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from penstock import Pipeline, col, count, param
from penstock.connectors import files

DATA = Path(__file__).parent / "data" / "flights.jsonl"


@dataclass
class Flight:
    departed: datetime
    delay_min: int
    origin: str
    destination: str


p = Pipeline("moving-average")

(
    p.read(files.Source(DATA, schema=Flight, event_time="departed", rate=param("rate", 0) or None))
    .key_by("origin")
    .over(rows=10)
    .with_columns(of_ten=col("delay_min").mean())
    .key_by("origin")
    .over(within="1h")
    .with_columns(of_hour=col("delay_min").mean(), in_hour=count())
    .write(files.Sink(param("out", "out/moving_average"), existing="replace"))
)

if __name__ == "__main__":
    p.run()
