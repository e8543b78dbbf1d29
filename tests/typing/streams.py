"""What a user's editor knows. Checked by the type checker as part of `make lint`; never run."""

# What is refused below must be refused: an ignored error that is none is one.
# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import assert_type

import polars as pl
import pyarrow as pa

from penstock import (
    Accumulator,
    AggregatingState,
    BatchContext,
    BroadcastProcess,
    BroadcastState,
    Context,
    Expr,
    KeyedBatchContext,
    KeyedBroadcastProcess,
    KeyedContext,
    KeyedCoProcess,
    KeyedProcess,
    KeyedUpdates,
    MapState,
    OpenContext,
    OutputTag,
    OverStream,
    PeriodicWatermarks,
    Pipeline,
    Process,
    Row,
    Stream,
    UpsertStream,
    ValueState,
    aggregate,
    col,
    count,
    lag,
    lit,
    row_number,
    tumbling,
)
from penstock.api.stream import SourceStream
from penstock.api.update_streams import SourceUpdates
from penstock.connectors import files, generate, iterables, kafka, nexmark, redis, sockets


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


class Longest(Accumulator[list[str], str]):
    accumulator_type = list[str]

    def create(self) -> list[str]:
        return []

    def add(self, accumulator: list[str], value: str) -> list[str]:
        return [*accumulator, value]

    def merge(self, left: list[str], right: list[str]) -> list[str]:
        return left + right

    def result(self, accumulator: list[str]) -> str:
        return max(accumulator, key=len)


class PerAuction(KeyedProcess[Bid, Total]):
    longest = AggregatingState(Longest(), ttl="1h")
    last = ValueState(float)
    seen = MapState(str, int)

    def open(self, context: OpenContext) -> None:
        assert_type(context.subtask, int)

    def on_row(self, row: Bid, ctx: KeyedContext[Total]) -> None:
        assert_type(self.last.get(), float | None)
        assert_type(self.last.get(default=0.0), float)
        assert_type(self.seen.get("a"), int | None)
        assert_type(self.longest.get(), str | None)
        assert_type(self.longest.get(default=0), str | int)
        ctx.emit(Total(row.auction, row.price))


class PerBatch(KeyedProcess[Bid, Total]):
    last = ValueState(float)

    def on_batch(self, frame: pl.DataFrame, ctx: KeyedBatchContext) -> pl.DataFrame:
        assert_type(self.last.get_many(ctx.keys, default=0.0), pl.Series)
        self.last.get_many(ctx.keys, default="none")  # pyright: ignore[reportArgumentType]
        self.last.set_many(ctx.keys, [1.0])  # pyright: ignore[reportArgumentType]
        assert_type(ctx.timestamps, pl.Series)
        ctx.event_timers(ctx.keys, frame["at"])
        return frame.select("auction", "price")


class WrongBatch(Process[Bid, Total]):
    def on_batch(self, frame: pl.DataFrame, ctx: BatchContext) -> list[Total]:  # pyright: ignore
        ctx.event_timers(frame["auction"], frame["at"])  # pyright: ignore[reportAttributeAccessIssue]
        return []


class Both(KeyedCoProcess[Bid, Total, Total]):
    def on_left(self, row: Bid, ctx: KeyedContext[Total]) -> None:
        ctx.event_timer(row.at)

    def on_right(self, row: Total, ctx: KeyedContext[Total]) -> None:
        ctx.emit(row)

    def on_timer(self, at: datetime, ctx: KeyedContext[Total]) -> None: ...


class BothByBatches(KeyedCoProcess[Bid, Total, Total]):
    def on_left_batch(self, frame: pl.DataFrame, ctx: KeyedBatchContext) -> pl.DataFrame:
        ctx.event_timers(ctx.keys, frame["at"])
        return frame.select("auction", "price")

    def on_right_batch(self, frame: pl.DataFrame, ctx: KeyedContext[Total]) -> None: ...  # pyright: ignore


class Ruled(KeyedBroadcastProcess[Bid, Total, Total]):
    limits = BroadcastState(int, float)

    def on_row(self, row: Bid, ctx: KeyedContext[Total]) -> None:
        assert_type(self.limits.get(row.auction), float | None)
        assert_type(self.limits.get(row.auction, default=0.0), float)
        ctx.event_timer(row.at)

    def on_broadcast(self, row: Total, ctx: Context[Total]) -> None:
        self.limits.set(row.auction, row.price)
        self.limits.set("one", row.price)  # pyright: ignore[reportArgumentType]
        ctx.event_timer(row)  # pyright: ignore[reportAttributeAccessIssue]

    def on_timer(self, at: datetime, ctx: KeyedContext[Total]) -> None: ...


class RuledByBatches(KeyedBroadcastProcess[Bid, Total, Total]):
    limits = BroadcastState(int, float)

    def on_batch(self, frame: pl.DataFrame, ctx: KeyedBatchContext) -> None:
        assert_type(dict(self.limits.items()), dict[int, float])
        ctx.event_timers(ctx.keys, frame["at"])

    def on_broadcast(self, row: Total, ctx: Context[Total]) -> None: ...


class BesideByBatches(BroadcastProcess[Bid, Total, Total]):
    def on_batch(self, frame: pl.DataFrame, ctx: BatchContext) -> pl.DataFrame:
        ctx.event_timers(frame["auction"], frame["at"])  # pyright: ignore[reportAttributeAccessIssue]
        return frame.select("auction", "price")

    def on_broadcast(self, row: Total, ctx: Context[Total]) -> None: ...


class Beside(BroadcastProcess[Bid, Total, Total]):
    def on_row(self, row: Bid, ctx: Context[Total]) -> None: ...

    def on_broadcast(self, row: Total, ctx: Context[Total]) -> None:
        ctx.emit(row)


async def doubled_later(bid: Bid) -> Total:
    return double(bid)


def double(bid: Bid) -> Total:
    return Total(bid.auction, bid.price * 2)


def several(bid: Bid) -> Iterator[Total]:
    yield Total(bid.auction, bid.price)


class Product(Accumulator[float, float]):
    accumulator_type = float

    def create(self) -> float:
        return 1.0

    def add(self, accumulator: float, value: float) -> float:
        return accumulator * value

    def merge(self, left: float, right: float) -> float:
        return left * right

    def result(self, accumulator: float) -> float:
        return accumulator


class Heartbeats(PeriodicWatermarks):
    def on_row(self, row: Bid, event_time: datetime) -> None: ...

    def on_period(self) -> datetime | None: ...


def scored(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


p = Pipeline("typed")
bids = p.read(files.Source("bids.jsonl", schema=Bid, event_time="at"))
assert_type(bids, SourceStream[Bid])
assert_type(p.read(iterables.Source(list[Bid](), schema=Bid)), SourceStream[Bid])
assert_type(bids.filter(col("price") > 1), Stream[Bid])
assert_type(bids.join(bids, on="auction", within="1m"), Stream[Row])
assert_type(bids.join(bids, on=["auction"], within=("-1m", "0s"), how="semi"), Stream[Bid])
assert_type(bids.join(bids, on="auction", within="1m", how="anti"), Stream[Bid])
assert_type(bids.join(bids, on="auction"), Stream[Row])
sellers = redis.Lookup("auction:{auction}", schema=Bid, url="redis://localhost")
assert_type(sellers, redis.Lookup[Bid])
assert_type(bids.join(sellers, on="auction", how="left"), Stream[Row])
bids.join(sellers, on="auction", how="semi")  # pyright: ignore[reportArgumentType, reportCallIssue]
assert_type(bids.join(bids, on="auction", how="semi", ttl="1d"), Stream[Bid])
assert_type(bids.join(bids, on="auction", how="left"), UpsertStream)
assert_type(bids.join(bids, on="auction", how="left", where=col("price") > 1, nulls_equal=True), UpsertStream)
assert_type(bids.join(bids.key_by("auction").agg(bids=count()), on="auction"), UpsertStream)
assert_type(bids.key_by("auction").agg(bids=count()).join(bids, on="auction", how="anti"), UpsertStream)
assert_type(bids.key_by("auction").connect(bids.map(double).key_by("auction")).process(Both()), Stream[Total])
rules = bids.map(double).broadcast()
assert_type(bids.key_by("auction").connect(rules).process(Ruled()), Stream[Total])
assert_type(bids.connect(rules).process(Beside()), Stream[Total])
bids.connect(rules).process(Ruled())  # pyright: ignore[reportArgumentType]
bids.key_by("auction").connect(rules).process(Beside())  # pyright: ignore[reportArgumentType]
bids.connect(bids.broadcast()).process(Beside())  # pyright: ignore[reportArgumentType]
bids.connect(bids)  # pyright: ignore[reportArgumentType]
assert_type(bids.select("price"), Stream[Row])
assert_type(bids.map(double), Stream[Total])
assert_type(bids.map_async(doubled_later, timeout=None), Stream[Total])
assert_type(bids.flat_map(several), Stream[Total])
assert_type(bids.select("auction", "price").as_(Total), Stream[Total])
keyed = bids.key_by("auction")
assert_type(keyed.process(PerAuction()), Stream[Total])
assert_type(keyed.agg(n=count()), UpsertStream)
assert_type(keyed.window(tumbling("1m")).agg(n=count()), Stream[Row])
assert_type(keyed.window(tumbling("1m")).allowed_lateness("1m").agg(n=count()), UpsertStream)
assert_type(keyed.window(tumbling("1m")).late_to(TOO_LATE).agg(n=count()).side(TOO_LATE), Stream[Bid])
assert_type(keyed.over(within="1m").with_columns(n=row_number(), before=lag("price")), Stream[Row])
assert_type(keyed.over().late_to(TOO_LATE), OverStream[Bid])
assert_type(keyed.deduplicate(), Stream[Bid])
assert_type(keyed.deduplicate("first", ttl="1h"), Stream[Bid])
assert_type(keyed.deduplicate("last"), UpsertStream)
assert_type(bids.distinct("auction"), Stream[Bid])
assert_type(keyed.top(3, by="price"), UpsertStream)
assert_type(keyed.top(None, by=["price", col("at")], descending=[True, False], offset=1, rank=None), UpsertStream)
assert_type(keyed.agg(n=count()).final(), Stream[Row])
assert_type(keyed.agg(n=count()).changes(), UpsertStream)
assert_type(keyed.agg(n=count()).distinct("n"), UpsertStream)
assert_type(keyed.agg(n=count()).key_by("n").over("auction", rows=2).with_columns(all=count()), UpsertStream)
assert_type(keyed.agg(n=count()).minus(bids.select("auction", n=lit(1))), UpsertStream)
assert_type(bids.intersect(bids), UpsertStream)
assert_type(bids.intersect(bids, all=True), UpsertStream)
assert_type(bids.minus(keyed.deduplicate("last")), UpsertStream)
accounts = p.read(kafka.ChangeSource("totals", key="auction", schema=Total))
assert_type(accounts, SourceUpdates)
assert_type(accounts.uid("totals").dead_letters(), Stream[Row])
assert_type(accounts.filter(col("auction") > 1), UpsertStream)
assert_type(keyed.agg(n=count()).key_by("n"), KeyedUpdates)
assert_type(keyed.agg(n=count()).key_by("n").agg(auctions=count()), UpsertStream)
assert_type(bids.map_batches(scored), Stream[Bid])
assert_type(bids.map_batches(scored, returns=Total), Stream[Total])
assert_type(aggregate(Product(), "price"), Expr)

# Without a class, columns are attributes of any type.
columns = pa.schema([("auction", pa.int64())])
assert_type(bids.map_batches(scored, returns=columns), Stream[Row])
assert_type(p.read(files.Source("bids.parquet")), SourceStream[Row])
assert_type(p.read(files.Source("bids.parquet", schema=columns)), SourceStream[Row])
assert_type(p.read(kafka.Source("bids", schema=columns)), SourceStream[Row])
assert_type(p.read(sockets.Source("localhost", 7000, schema=columns)), SourceStream[Row])
assert_type(p.read(generate.Source(lambda n: {"auction": n}, schema=columns)), SourceStream[Row])
assert_type(p.read(generate.Source(nexmark.bids())), SourceStream[nexmark.Bid])
assert_type(p.read(iterables.Source([{"auction": 1}], schema=columns)), SourceStream[Row])
assert_type(p.read(iterables.Source([{"auction": 1}], schema=Bid)), SourceStream[Bid])
assert_type(p.read(iterables.Source(list[Bid]())), SourceStream[Bid])
assert_type(p.read(iterables.Source(list[Bid])), SourceStream[Bid])

# What has few values is checked by its text.
files.Source("bids.parqet", format="parqet")  # pyright: ignore[reportArgumentType]
assert_type(files.Source("bids.csv", schema=Bid).rate, float | None)
files.Source("bids.csv", schema=Bid).rate = 5  # pyright: ignore[reportAttributeAccessIssue]
files.Source("bids.jsonl", schema=Bid, bad_rows="skp")  # pyright: ignore[reportArgumentType]
files.Sink("out", existing="overwrite")  # pyright: ignore[reportArgumentType]
kafka.Source("bids", schema=Bid, format="jsonl")  # pyright: ignore[reportArgumentType]
kafka.Sink("bids", delivery="exactly_once")  # pyright: ignore[reportArgumentType]
kafka.Sink("bids", compression="zip")  # pyright: ignore[reportArgumentType]
sockets.Source("localhost", 7000, schema=Bid, format="json")  # pyright: ignore[reportArgumentType]
