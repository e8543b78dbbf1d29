"""Every order, as it comes, into Parquet files on an object store, one folder per day, exactly once.

`orders_daily.py` makes the day's table of them on Spark.
"""

from dataclasses import dataclass
from datetime import datetime

from penstock import Pipeline, col, param
from penstock.connectors import files, kafka


@dataclass
class Order:
    order: int
    customer: int
    euros: float
    at: datetime


p = Pipeline("orders-archive")

(
    p.read(kafka.Source(param("orders", "orders"), schema=Order, event_time="at", end=param("until", "") or None))
    .with_columns(day=col("at").dt.date())
    .write(files.Sink(param("out", "s3://penstock/archive/orders"), format="parquet", partition_by=["day"]))
)

if __name__ == "__main__":
    p.run()
