"""The same with little patience: a watermark 30 minutes behind, windows kept for two more hours, the rest set aside.

Rows that come up to two hours late correct their window's result: a later line of the same airport and day replaces an
earlier one. Rows that come later than that are written to a folder of their own, so that every row is accounted for.
"""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from penstock import OutputTag, Pipeline, col, count, param, tumbling
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


TOO_LATE = OutputTag("too-late", Flight)

p = Pipeline("departures-late")

days = (
    p.read(
        files.Source(
            DATA,
            schema=Flight,
            event_time="scheduled",
            max_out_of_orderness="30m",
            batch_rows=5,  # a few at a time, as if they came live: each handful sends its corrections
            rate=param("rate", 0) or None,
        )
    )
    .key_by("origin")
    .window(tumbling("1d"))
    .late_to(TOO_LATE)
    .allowed_lateness("2h")
    .agg(flights=count(), mean_delay_min=col("delay_min").mean(), max_delay_min=col("delay_min").max())
)
days.write(files.Sink(param("out", "out/departures_late"), existing="replace"))
days.side(TOO_LATE).write(files.Sink(param("late", "out/departures_too_late"), existing="replace"))

if __name__ == "__main__":
    p.run()
