"""Funnel: how far visitors of a shop get, from looking at something to buying it, within ten minutes.

An attempt begins when a visitor looks at something, and ends when he has bought or ten minutes are over. Steps count in
their order; what comes out of order is left out.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
from numpy.typing import NDArray

from penstock import KeyedContext, KeyedProcess, Pipeline, ValueState, count, param
from penstock.connectors import files, generate

START_US = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1_000_000)
STEPS = ("look", "basket", "buy")
WITHIN = timedelta(minutes=10)


@dataclass
class Click:
    visitor: int
    step: str
    at: datetime


@dataclass
class Attempt:
    visitor: int
    begin: datetime
    steps: int


def clicks(numbers: NDArray[np.int64]) -> pl.DataFrame:
    """A click per second of one of 200 visitors, who look more often than they buy."""
    drawn = generate.random_integers(numbers, seed=1, stream=1, below=10)
    return pl.DataFrame(
        {
            "visitor": generate.random_integers(numbers, seed=1, stream=0, below=200),
            "step": np.array(STEPS)[np.digitize(drawn, (5, 8))],
            "at": pl.Series(START_US + numbers * 1_000_000).cast(pl.Datetime("us", "UTC")),
        }
    )


class Funnel(KeyedProcess[Click, Attempt]):
    attempt = ValueState(Attempt)

    def on_row(self, row: Click, ctx: KeyedContext[Attempt]) -> None:
        attempt = self.attempt.get() or Attempt(row.visitor, row.at, 0)
        if row.step != STEPS[attempt.steps]:
            return
        if not attempt.steps:
            ctx.event_timer(attempt.begin + WITHIN)
        attempt.steps += 1
        self.attempt.set(attempt)
        if attempt.steps == len(STEPS):
            ctx.delete_event_timer(attempt.begin + WITHIN)
            self._ends(attempt, ctx)

    def on_timer(self, at: datetime, ctx: KeyedContext[Attempt]) -> None:
        attempt = self.attempt.get()
        assert attempt is not None  # its timer was deleted with it
        self._ends(attempt, ctx)

    def _ends(self, attempt: Attempt, ctx: KeyedContext[Attempt]) -> None:
        self.attempt.clear()
        ctx.emit(attempt)


p = Pipeline("funnel")

(
    p.read(
        generate.Source(
            clicks, schema=Click, event_time="at", rows=param("rows", 20_000), rate=param("rate", 0) or None
        )
    )
    .key_by("visitor")
    .process(Funnel())
    .key_by("steps")
    .agg(attempts=count())
    .final()
    .write(files.Sink(param("out", "out/funnel"), existing="replace"))
)

if __name__ == "__main__":
    p.run()
