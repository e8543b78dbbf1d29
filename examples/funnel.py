"""Funnel: how far visitors of a shop get, from looking at something to buying it, within ten minutes.

An attempt begins when a visitor looks at something, and ends when he has bought, or with the last click in less than ten
minutes. Steps count in their order; what comes out of order is left out. A match has as many rows as it can, and the next
one begins behind them.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import polars as pl
from numpy.typing import NDArray

from penstock import Pipeline, count, param
from penstock.connectors import files, generate

START_US = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1_000_000)
STEPS = ("look", "basket", "buy")


@dataclass
class Click:
    visitor: int
    step: str
    at: datetime


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


ATTEMPTS = """
SELECT steps FROM clicks MATCH_RECOGNIZE (
    PARTITION BY visitor ORDER BY at
    MEASURES COUNT(LOOK.*) + COUNT(BASKET.*) + COUNT(BUY.*) AS steps
    PATTERN (LOOK NO_BASKET* (BASKET NO_BUY* BUY?)?) WITHIN INTERVAL '10' MINUTE
    DEFINE
        LOOK AS step = 'look', BASKET AS step = 'basket', BUY AS step = 'buy',
        NO_BASKET AS step <> 'basket', NO_BUY AS step <> 'buy'
)
"""

p = Pipeline("funnel")

made = p.read(
    generate.Source(clicks, schema=Click, event_time="at", rows=param("rows", 20_000), rate=param("rate", 0) or None)
)
attempts = p.sql(ATTEMPTS, clicks=made).key_by("steps").agg(attempts=count())
attempts.final().write(files.Sink(param("out", "out/funnel"), existing="replace"))

if __name__ == "__main__":
    p.run()
