"""A job that fails, for pictures of the dashboard: one product has no price."""

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from penstock import Pipeline
from penstock.connectors import console, generate

PRICES = {"pot": 19.9, "pan": 24.5}


@dataclass
class Sale:
    product: str


@dataclass
class Priced:
    product: str
    euros: float


def sales(numbers: NDArray[np.int64]) -> pl.DataFrame:
    """Pots and pans, and a kettle after two thousand of them."""
    return pl.DataFrame({"product": ["kettle" if n == 2_000 else ("pot", "pan")[n % 2] for n in numbers]})


def price_of(sale: Sale) -> Priced:
    return Priced(sale.product, PRICES[sale.product])


p = Pipeline("prices")

p.read(generate.Source(sales, schema=Sale, rows=1_000_000, rate=1_000)).map(price_of).write(console.Sink())

if __name__ == "__main__":
    p.run()
