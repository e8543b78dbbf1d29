"""A shop, for pictures of the dashboard: orders joined with their payments, what customers spend, and large orders."""

from dataclasses import dataclass
from datetime import datetime

import numpy as np
import polars as pl
from numpy.typing import NDArray

from penstock import Pipeline, col, count, param, tumbling
from penstock.connectors import generate, kafka

ROWS = 1_000_000_000


SPACING_US = 500
"""Two thousand a second, in event time as on the clock."""
start_us = param("start", 1_767_225_600) * 1_000_000
"""Seconds since the epoch: with the present (`$(date +%s)`) event time is beside the clock."""


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
    """The orders of these numbers."""
    return pl.DataFrame(
        {
            "id": numbers,
            "customer": generate.random_integers(numbers, seed=1, stream=0, below=5_000),
            "euros": generate.random_floats(numbers, seed=1, stream=1) * 200,
            "at": pl.Series(start_us + numbers * SPACING_US).cast(pl.Datetime("us", "UTC")),
        }
    )


def payments(numbers: NDArray[np.int64]) -> pl.DataFrame:
    """Every order is paid, up to ten seconds later."""
    delay_us = generate.random_integers(numbers, seed=1, stream=2, below=10_000_000)
    return pl.DataFrame(
        {
            "order": numbers,
            "paid_at": pl.Series(start_us + numbers * SPACING_US + delay_us).cast(pl.Datetime("us", "UTC")),
        }
    )


p = Pipeline("checkout")

rate = 1_000_000 // SPACING_US
ordered = p.read(generate.Source(orders, schema=Order, event_time="at", rows=ROWS, rate=rate))
paid = p.read(
    generate.Source(payments, schema=Payment, event_time="paid_at", max_out_of_orderness="10s", rows=ROWS, rate=rate)
)
both = ordered.join(paid, on={"id": "order"}, within=("0s", "10s"))
(
    both.key_by("customer")
    .window(tumbling("5s"))
    .agg(orders=count(), euros=col("euros").sum())
    .write(kafka.Sink("spent", key="customer", create_partitions=4))
)
(both.filter(col("euros") > 190).select("id", "euros").write(kafka.Sink("large-orders", key="id", create_partitions=4)))

if __name__ == "__main__":
    p.run()
