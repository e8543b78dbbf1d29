"""Fraud: a small payment that is followed within a minute by a large one, as the next of the same account.

This is the job of Flink's tutorial on fraud detection: a `KeyedProcess` remembers that the last payment was small, and
a timer makes it forget after a minute.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
from numpy.typing import NDArray

from penstock import KeyedContext, KeyedProcess, Pipeline, ValueState, param
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


@dataclass
class Alert:
    account: int
    tried: datetime
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


class SmallThenLarge(KeyedProcess[Payment, Alert]):
    tried = ValueState(datetime)

    def on_row(self, row: Payment, ctx: KeyedContext[Alert]) -> None:
        tried = self.tried.get()
        if tried is not None:
            if row.euros > LARGE_EUROS:
                ctx.emit(Alert(row.account, tried, row.euros, row.at))
            ctx.delete_event_timer(tried + WITHIN)
            self.tried.clear()
        if row.euros < SMALL_EUROS:
            self.tried.set(row.at)
            ctx.event_timer(row.at + WITHIN)

    def on_timer(self, at: datetime, ctx: KeyedContext[Alert]) -> None:
        self.tried.clear()


p = Pipeline("fraud")

(
    p.read(
        generate.Source(
            payments, schema=Payment, event_time="at", rows=param("rows", 20_000), rate=param("rate", 0) or None
        )
    )
    .key_by("account")
    .process(SmallThenLarge())
    .write(files.Sink(param("out", "out/fraud"), existing="replace"))
)

if __name__ == "__main__":
    p.run()
