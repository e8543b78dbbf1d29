"""Fraud: a small payment that is followed in less than a minute by a large one, as the next of the same account.

This is the job of Flink's tutorial on fraud detection, as a pattern of two rows: see docs/patterns.md.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
from numpy.typing import NDArray

from penstock import Pattern, Pipeline, col, param
from penstock.connectors import files, generate

START_US = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1_000_000)
SMALL_EUROS = 1
LARGE_EUROS = 500
WITHIN = timedelta(minutes=1)


@dataclass
class Payment:
    account: int
    euros: float
    at: datetime


def payments(numbers: NDArray[np.int64]) -> pl.DataFrame:
    """A payment per second: of a hundred accounts, from ten cents to a thousand euros."""
    return pl.DataFrame(
        {
            "account": generate.random_integers(numbers, seed=1, stream=0, below=100),
            "euros": np.round(10 ** (generate.random_floats(numbers, seed=1, stream=1) * 4 - 1), 2),
            "at": pl.Series(START_US + numbers * 1_000_000).cast(pl.Datetime("us", "UTC")),
        }
    )


TRIAL = Pattern.begin("small", col("euros") < SMALL_EUROS).next("large", col("euros") > LARGE_EUROS)

p = Pipeline("fraud")

(
    p.read(
        generate.Source(
            payments, schema=Payment, event_time="at", rows=param("rows", 20_000), rate=param("rate", 0) or None
        )
    )
    .key_by("account")
    .match(TRIAL, within=WITHIN)
    .select("account", tried=col("small.at"), euros=col("large.euros"), at=col("large.at"))
    .write(files.Sink(param("out", "out/fraud"), existing="replace"))
)

if __name__ == "__main__":
    p.run()
