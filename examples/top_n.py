"""Top-N: the three flights of each airport that left latest."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from penstock import Pipeline, param
from penstock.connectors import files

DATA = Path(__file__).parent / "data" / "flights.jsonl"


@dataclass
class Flight:
    scheduled: datetime
    delay_min: int
    origin: str
    destination: str


p = Pipeline("top-n")

(
    p.read(files.Source(DATA, schema=Flight, rate=param("rate", 0) or None))
    .key_by("origin")
    .top(3, by="delay_min")
    .final()  # without it every batch sends the ranks that it changed, as updates
    .write(files.Sink(param("out", "out/top_n"), existing="replace"))
)

if __name__ == "__main__":
    p.run()
