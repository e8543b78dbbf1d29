"""The pipelines of `benchmarks.spark`: `--param case=NAME --param input=FOLDER --param out=FOLDER`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from penstock import KeyedContext, KeyedProcess, Pipeline, ValueState, col, count, param, session, tumbling
from penstock.connectors import files


@dataclass
class Bid:
    """A bid without its texts."""

    auction: int
    price: int
    at: datetime


@dataclass
class Total:
    """What the process function emits."""

    auction: int
    total: int


END = datetime(2100, 1, 1, tzinfo=UTC)
"""After all bids."""


class Totals(KeyedProcess[Bid, Total]):
    """Adds up the bids of an auction, row by row, and emits them when event time ends."""

    sum = ValueState(int)

    def on_row(self, row: Bid, ctx: KeyedContext[Total]) -> None:
        """Add a bid."""
        so_far = self.sum.get()
        if so_far is None:
            ctx.event_timer(END)
        self.sum.set((so_far or 0) + row.price)

    def on_timer(self, at: datetime, ctx: KeyedContext[Total]) -> None:
        """Emit the sum."""
        ctx.emit(Total(ctx.key, self.sum.get(default=0)))


def _pipeline(case: str) -> Pipeline:
    made = Pipeline(f"benchmark-{case}")
    bids = made.read(files.Source(param("input", "in"), schema=Bid, event_time="at"))
    sink = files.Sink(param("out", "out"), format="parquet")
    if case == "chain":
        bids.filter(col("price") % 10 < 9).with_columns(doubled=col("price") * 2).select(
            "auction", "doubled", "at"
        ).write(sink)
        return made
    keyed = bids.key_by("auction")
    if case == "process":
        keyed.process(Totals()).write(sink)
        return made
    window = session("3s") if case == "session" else tumbling("10s")
    windows = keyed.window(window).allowed_lateness("1m" if case == "patient" else "0s")
    windows.agg(bids=count(), total=col("price").sum(), highest=col("price").max()).write(sink)
    return made


p = _pipeline(param("case", "window"))
