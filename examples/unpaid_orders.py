"""Orders beside their payments, and those that nobody paid within half an hour: two joins of the same two streams.

An order is sent when its payment comes; that there is none is known when event time is half an hour further on.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import polars as pl
from numpy.typing import NDArray

from penstock import Pipeline, col, param
from penstock.connectors import files, generate

START_US = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1_000_000)


@dataclass
class Order:
    id: int
    euros: float
    at: datetime


@dataclass
class Payment:
    order: int
    paid_at: datetime


def orders(numbers: NDArray[np.int64]) -> pl.DataFrame:
    """An order per second."""
    euros = np.round(10 ** (generate.random_floats(numbers, seed=1, stream=1) * 4), 2)
    at = pl.Series(START_US + numbers * 1_000_000).cast(pl.Datetime("us", "UTC"))
    return pl.DataFrame({"id": numbers, "euros": euros, "at": at})


def payments(numbers: NDArray[np.int64]) -> pl.DataFrame:
    """Every third order is paid, up to forty minutes later; payments come in any order."""
    order = numbers * 3
    seconds = generate.random_integers(numbers, seed=1, stream=2, below=2_400)
    paid_at = pl.Series(START_US + (order + seconds) * 1_000_000).cast(pl.Datetime("us", "UTC"))
    return pl.DataFrame({"order": order, "paid_at": paid_at})


p = Pipeline("unpaid-orders")

rows = param("rows", 10_000)
ordered = p.read(generate.Source(orders, schema=Order, event_time="at", rows=rows))
paid = p.read(
    generate.Source(payments, schema=Payment, event_time="paid_at", max_out_of_orderness="40m", rows=rows // 3)
)
(
    ordered.join(paid, on={"id": "order"}, within=("0s", "30m"))
    .select("id", "euros", minutes=(col("paid_at") - col("at")).dt.total_seconds() // 60)
    .write(files.Sink(param("out", "out/paid"), existing="replace"))
)
(
    ordered.join(paid, on={"id": "order"}, within=("0s", "30m"), how="anti")
    .filter(col("euros") > 1_000)
    .write(files.Sink(param("unpaid", "out/unpaid"), existing="replace"))
)

if __name__ == "__main__":
    p.run()
