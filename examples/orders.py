"""What each customer spends per ten seconds, from the topic that `orders_feed.py` fills into another, exactly once."""

from dataclasses import dataclass
from datetime import datetime

from penstock import Pipeline, col, count, param, tumbling
from penstock.connectors import kafka


@dataclass
class Order:
    order: int
    customer: int
    euros: float
    at: datetime


p = Pipeline("orders")

(
    p.read(
        kafka.Source(
            param("orders", "orders"),
            schema=Order,
            event_time="at",
            max_out_of_orderness="1s",
            end=param("until", "") or None,
        )
    )
    .key_by("customer")
    .window(tumbling("10s"))
    .agg(orders=count(), euros=col("euros").sum())
    .write(kafka.Sink(param("spent", "spent"), key="customer", create_partitions=param("partitions", 4)))
)

if __name__ == "__main__":
    p.run()
