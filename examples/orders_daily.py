"""What each customer spent per ten seconds of a day, of all orders that `orders_archive.py` has kept of it.

The same windows as those of the live job, `orders.py`, but for orders that came too late for it: here all are in time.
At home on Spark (`penstock submit orders_daily.py --run-id orders-2026-01-01 --param day=2026-01-01`), it runs on every
engine. A run that is repeated replaces the day's table.
"""

from dataclasses import dataclass
from datetime import date, datetime

from penstock import Pipeline, col, count, param, tumbling
from penstock.connectors import files


@dataclass
class Order:
    order: int
    customer: int
    euros: float
    at: datetime
    day: date


day = param("day", "2026-01-01")
p = Pipeline("orders-daily", engine="spark")

(
    p.read(
        files.Source(
            f"{param('archive', 's3://penstock/archive/orders')}/day={day}",
            schema=Order,
            event_time="at",
            max_out_of_orderness="1d",
        )
    )
    .key_by("customer")
    .window(tumbling("10s"))
    .agg(orders=count(), euros=col("euros").sum())
    .write(files.Sink(f"{param('out', 's3://penstock/tables/spent')}/day={day}", format="parquet", existing="replace"))
)

if __name__ == "__main__":
    p.run()
