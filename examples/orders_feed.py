"""Orders, made up as they would come in, into a Kafka topic: 2,000 a second until the job is cancelled.

`orders.py` counts them. Every order is a function of its number, so a restarted feed writes the same ones again and its
readers see each once.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import polars as pl
from numpy.typing import NDArray

from penstock import Pipeline, param
from penstock.connectors import generate, kafka

START_US = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1_000_000)


@dataclass
class Order:
    order: int
    customer: int
    euros: float
    at: datetime


def orders(numbers: NDArray[np.int64]) -> pl.DataFrame:
    """The orders of these numbers, 500 us of event time apart."""
    return pl.DataFrame(
        {
            "order": numbers,
            "customer": numbers * 7919 % 1_000,
            "euros": (numbers * 104_729 % 20_000) / 100,
            "at": pl.Series(START_US + numbers * 500).cast(pl.Datetime("us", "UTC")),
        }
    )


p = Pipeline("orders-feed")

p.read(
    generate.Source(orders, schema=Order, rows=param("rows", 1_000_000_000), event_time="at", rate=param("rate", 2_000))
).write(kafka.Sink(param("orders", "orders"), key="customer", create_partitions=param("partitions", 4)))

if __name__ == "__main__":
    p.run()
