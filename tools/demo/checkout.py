"""A shop, for pictures of the dashboard: orders joined with their payments, what customers spend, and large orders."""

from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import polars as pl
from numpy.typing import NDArray

from penstock import Pipeline, col, count, param, tumbling
from penstock.connectors import generate, kafka

START_US = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1_000_000)
ROWS = 1_000_000_000


@dataclass
class Order:
    id: int
    customer: int
    euros: float
    at: datetime


@dataclass
class Payment:
    order: int
    paid_at: datetime


def orders(numbers: NDArray[np.int64]) -> pl.DataFrame:
    """The orders of these numbers, 50 ms apart."""
    return pl.DataFrame(
        {
            "id": numbers,
            "customer": generate.random_integers(numbers, seed=1, stream=0, below=5_000),
            "euros": generate.random_floats(numbers, seed=1, stream=1) * 200,
            "at": pl.Series(START_US + numbers * 50_000).cast(pl.Datetime("us", "UTC")),
        }
    )


def payments(numbers: NDArray[np.int64]) -> pl.DataFrame:
    """Every order is paid, up to two minutes later."""
    delay_us = generate.random_integers(numbers, seed=1, stream=2, below=120_000_000)
    return pl.DataFrame(
        {"order": numbers, "paid_at": pl.Series(START_US + numbers * 50_000 + delay_us).cast(pl.Datetime("us", "UTC"))}
    )


p = Pipeline("checkout")

rate = param("rate", 6_000)
ordered = p.read(generate.Source(orders, schema=Order, event_time="at", rows=ROWS, rate=rate))
paid = p.read(
    generate.Source(payments, schema=Payment, event_time="paid_at", max_out_of_orderness="2m", rows=ROWS, rate=rate)
)
both = ordered.join(paid, on={"id": "order"}, within=("0s", "5m"))
(
    both.key_by("customer")
    .window(tumbling("1m"))
    .agg(orders=count(), euros=col("euros").sum())
    .write(kafka.Sink("spent-per-minute", key="customer", create_partitions=4))
)
(
    both.filter(col("euros") > 190)
    .select("id", "euros")
    .write(kafka.Sink("large-orders", key="id", create_partitions=4))
)

if __name__ == "__main__":
    p.run()
