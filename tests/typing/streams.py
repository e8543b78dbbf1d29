"""What a user's editor knows. Checked by the type checker as part of `make lint`; never run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import assert_type

from penstock import (
    KeyedContext,
    KeyedProcess,
    MapState,
    OutputTag,
    Pipeline,
    Row,
    Stream,
    UpsertStream,
    ValueState,
    col,
    count,
    tumbling,
)
from penstock.api.stream import SourceStream
from penstock.connectors import files, iterables


@dataclass
class Bid:
    auction: int
    price: float
    at: datetime


@dataclass
class Total:
    auction: int
    price: float


TOO_LATE = OutputTag("late", Bid)


class PerAuction(KeyedProcess[Bid, Total]):
    last = ValueState(float)
    seen = MapState(str, int)

    def on_row(self, row: Bid, ctx: KeyedContext[Total]) -> None:
        assert_type(self.last.get(), float | None)
        assert_type(self.last.get(default=0.0), float)
        assert_type(self.seen.get("a"), int | None)
        ctx.emit(Total(row.auction, row.price))


def double(bid: Bid) -> Total:
    return Total(bid.auction, bid.price * 2)


def several(bid: Bid) -> Iterator[Total]:
    yield Total(bid.auction, bid.price)


p = Pipeline("typed")
bids = p.read(files.Source("bids.jsonl", schema=Bid, event_time="at"))
assert_type(bids, SourceStream[Bid])
assert_type(p.read(iterables.Source(list[Bid](), schema=Bid)), SourceStream[Bid])
assert_type(bids.filter(col("price") > 1), Stream[Bid])
assert_type(bids.select("price"), Stream[Row])
assert_type(bids.map(double), Stream[Total])
assert_type(bids.flat_map(several), Stream[Total])
assert_type(bids.select("auction", "price").as_(Total), Stream[Total])
keyed = bids.key_by("auction")
assert_type(keyed.process(PerAuction()), Stream[Total])
assert_type(keyed.agg(n=count()), UpsertStream)
assert_type(keyed.window(tumbling("1m")).agg(n=count()), Stream[Row])
assert_type(keyed.window(tumbling("1m")).allowed_lateness("1m").agg(n=count()), UpsertStream)
assert_type(keyed.window(tumbling("1m")).late_to(TOO_LATE).agg(n=count()).side(TOO_LATE), Stream[Bid])
