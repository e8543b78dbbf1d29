"""Hashes and streams of a real Redis: what sinks write and refuse, and that they publish every row once."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import secrets
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from time import time_ns
from typing import Annotated, Any

import polars as pl
import pytest
import redis as redis_client
from tests.integration.failing_workers import with_failing_workers
from tests.unit.task.publishing_parts import Exchange, Run

from penstock import DecimalType, Pipeline, PipelineError, col, count
from penstock.adapters.system_clock import SystemClock
from penstock.connectors import iterables, redis
from penstock.connectors.base import ProducerFencedError, PublishContext, PublishedMark
from penstock.connectors.redis.publishing import RedisPublisher
from penstock.errors import BadRecordError, ExternalError, PenstockError
from penstock.protocol.manifests import Interval
from penstock.protocol.publishing import Mark
from penstock.settings import Secret
from penstock.task.publish_loop import encode_mark

pytestmark = pytest.mark.timeout(120)

FIRST = "a" * 32
START = datetime(2026, 1, 1, 12, 30, 15, 123456, tzinfo=UTC)


class Keys:
    """Keys of one test."""

    def __init__(self, url: str) -> None:
        self.url = Secret(url)
        self.client = redis_client.Redis.from_url(url)
        self.prefix = secrets.token_hex(4)

    def sink(self, key: str = "{id}", **options: Any) -> redis.Sink:
        return redis.Sink(f"{self.prefix}:{key}", url=self.url, **options)

    def stream_sink(self, **options: Any) -> redis.StreamSink:
        return redis.StreamSink(self.prefix, url=self.url, **options)

    def lookup(self, key: str, schema: type) -> redis.Lookup[Any]:
        return redis.Lookup(f"{self.prefix}:{key}", schema=schema, url=self.url)

    def hash(self, key: str) -> dict[str, str]:
        found: Any = self.client.hgetall(f"{self.prefix}:{key}")
        return {name.decode(): value.decode() for name, value in found.items()}

    def entries(self) -> list[dict[str, str]]:
        found: Any = self.client.xrange(self.prefix)
        return [{name.decode(): value.decode() for name, value in fields.items()} for _, fields in found]

    def hashes(self) -> list[dict[str, str]]:
        return [
            self.hash(key.decode().removeprefix(f"{self.prefix}:")) for key in self.client.scan_iter(f"{self.prefix}:*")
        ]


@pytest.fixture
def keys(platform: Any) -> Iterator[Keys]:
    made = Keys(platform.settings().redis.url.reveal())
    yield made
    made.client.close()


def written(sink: Any, rows: Any, schema: Any) -> None:
    """A run of its own."""
    p = Pipeline("p")
    p.read(iterables.Source(rows, schema=schema)).write(sink)
    assert p.run().state == "FINISHED"


# -- what is written ----------------------------------------------------------------------------------------------------


@dataclass
class Everything:
    id: int
    text: str
    small: int
    amount: Annotated[Decimal, DecimalType(12, 2)]
    ratio: float
    truth: bool
    data: bytes
    at: datetime
    day: date
    moment: time
    span: timedelta
    tags: list[str]
    weights: dict[str, int]
    absent: int | None


ALL = Everything(
    1, 'say "é"\n\\', -5, Decimal("10.10"), 0.1, True, bytes(range(256)), START, date(2026, 2, 3), time(4, 5, 6, 7),
    timedelta(days=-400, seconds=1.5), ["a", "b,"], {"k": 1}, None,
)  # fmt: skip


@dataclass
class Id:
    id: int


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_lookup_reads_what_a_sink_writes(keys: Keys, delivery: Any) -> None:
    """Each value of each type."""
    empty = replace(ALL, id=2, text="", data=b"", tags=[], weights={}, span=timedelta(microseconds=-1), absent=7)
    rows = [ALL, empty, replace(ALL, id=3, ratio=-5e-324, small=-(2**63), text="\x00", amount=Decimal("-0.01"))]
    written(keys.sink(delivery=delivery), rows, Everything)
    found: list[Everything] = []

    def keep(row: Everything) -> Everything:
        found.append(row)
        return row

    ids = Pipeline("p").read(iterables.Source([Id(n) for n in (1, 2, 3)], schema=Id))
    ids.join(keys.lookup("{id}", Everything), on="id").as_(Everything).map(keep).collect()
    assert found == rows


@dataclass
class Reading:
    day: date
    on: bool
    value: float | None


def test_names_and_nulls(keys: Keys) -> None:
    """Several columns make a name, as texts; null, NaN and infinities are fields that are not there, others stay."""
    keys.client.hset(f"{keys.prefix}:2026-01-01/true", mapping={"value": "9", "note": "mine"})
    day = date(2026, 1, 1)
    rows = [Reading(day, True, None), Reading(day, False, math.nan), Reading(day, False, 1.5)]
    written(keys.sink("{day}/{on}"), rows, Reading)
    assert keys.hash("2026-01-01/true") == {"day": "2026-01-01", "on": "true", "note": "mine"}
    assert keys.hash("2026-01-01/false") == {"day": "2026-01-01", "on": "false", "value": "1.5"}


@dataclass
class Sale:
    id: int
    shop: str
    amount: int


def sales(number: int = 500) -> list[Sale]:
    return [Sale(n, f"s{n * 7 % 13}", n % 11) for n in range(number)]


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_updates_by_key(keys: Keys, delivery: Any) -> None:
    """The newest row of every key; with `ttl` it goes by itself."""
    p = Pipeline("p")
    totals = p.read(iterables.Source(sales(), schema=Sale)).key_by("shop").agg(total=col("amount").sum())
    totals.write(keys.sink("{shop}", delivery=delivery, ttl="1h"))
    assert p.run().state == "FINISHED"
    expected = {f"s{k}": sum(s.amount for s in sales() if s.shop == f"s{k}") for k in range(13)}
    assert {row["shop"]: int(row["total"]) for row in keys.hashes()} == expected
    left: Any = keys.client.pttl(f"{keys.prefix}:s1")
    assert 3_500_000 < left <= 3_600_000


def test_changes_delete(keys: Keys) -> None:
    """What is taken back and does not come again is no hash, unless somebody else has fields in it."""
    keys.client.hset(f"{keys.prefix}:s2", "note", "mine")
    p = Pipeline("p")
    read = p.read(iterables.Source(sales(), schema=Sale, rate=2_000))
    totals = read.key_by("shop").agg(total=col("amount").sum())
    totals.filter((col("total") < 100) | (col("shop") > "s3")).write(keys.sink("{shop}"))
    assert p.run().state == "FINISHED"
    sums = {s.shop: sum(o.amount for o in sales() if o.shop == s.shop) for s in sales()}
    assert min(sums.values()) >= 100
    found = {row["shop"]: int(row["total"]) for row in keys.hashes() if "shop" in row}
    assert found == {shop: total for shop, total in sums.items() if shop > "s3"}
    assert keys.hash("s2") == {"note": "mine"}


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_stream_has_every_row_in_order(keys: Keys, delivery: Any) -> None:
    """More of them than one argument of a script holds."""
    written(keys.stream_sink(delivery=delivery), sales(2_345), Sale)
    assert [(int(e["id"]), e["shop"], int(e["amount"])) for e in keys.entries()] == [
        (s.id, s.shop, s.amount) for s in sales(2_345)
    ]


def test_a_stream_of_a_length(keys: Keys) -> None:
    """About so many of the newest entries stay."""
    written(keys.stream_sink(max_length=100), sales(2_000), Sale)
    found = [int(entry["id"]) for entry in keys.entries()]
    assert 100 <= len(found) < 400
    assert found == list(range(2_000 - len(found), 2_000))


# -- what is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_another_kind_of_value_is_there(keys: Keys, delivery: Any) -> None:
    """The job fails by its name, before anything of the transaction is written."""
    keys.client.set(f"{keys.prefix}:7", "text")
    said = (
        rf"redis hashes {keys.prefix}:.id. at redis://.*{keys.prefix}:7 is there, and is a string; nothing was written"
    )
    with pytest.raises(PenstockError, match=said) as caught:
        written(keys.sink(delivery=delivery), sales(10), Sale)
    assert keys.client.exists(*(f"{keys.prefix}:{n}" for n in range(7))) == 0
    assert keys.url.reveal().split("@")[0].split(":")[-1] not in str(caught.value)
    keys.client.set(keys.prefix, "text")
    with pytest.raises(PenstockError, match=rf"redis stream {keys.prefix} .*{keys.prefix} is there, and is a string"):
        written(keys.stream_sink(delivery=delivery), sales(10), Sale)


@dataclass
class Maybe:
    id: int | None


def test_rows_that_cannot_be_written(keys: Keys) -> None:
    """They fail the job by name, or are counted and left out."""
    with pytest.raises(BadRecordError, match=r"a row has no key .column id is null.: .*bad_rows=.skip."):
        written(keys.sink(), [Maybe(1), Maybe(None)], Maybe)
    with pytest.raises(BadRecordError, match="all columns of a row are null"):
        written(keys.stream_sink(), [Maybe(1), Maybe(None)], Maybe)
    written(keys.sink(bad_rows="skip"), [Maybe(1), Maybe(None)], Maybe)
    written(keys.stream_sink(bad_rows="skip"), [Maybe(1), Maybe(None)], Maybe)
    assert (keys.hash("1"), keys.entries()) == ({"id": "1"}, [{"id": "1"}])


def test_a_redis_that_is_away_or_refuses(keys: Keys) -> None:
    """Said before rows flow; no password."""
    away = redis.Sink("{id}", url="redis://someone:topsecret@127.0.0.1:1/0")
    with pytest.raises(
        ExternalError, match=r"redis hashes .id. at redis://127.0.0.1:1/0: .*check that it runs"
    ) as caught:
        written(away, sales(1), Sale)
    assert "topsecret" not in f"{caught.value} {away!r}"
    address = keys.url.reveal().rpartition("@")[2]
    with pytest.raises(PipelineError, match=r"it refuses the login or the command.*check user and password"):
        written(redis.StreamSink("s", url=f"redis://nobody:wrong@{address}"), sales(1), Sale)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda s: s.write(redis.Sink("totals", url="redis://h")), "has to name the columns of the key in braces"),
        (lambda s: s.write(redis.Sink("{nope}", url="redis://h")), "key: there is no column .nope."),
        (lambda s: s.write(redis.Sink("{value}", url="redis://h")), "value is float64, by which rows"),
        (lambda s: s.write(redis.Sink("{on}", url="h/0")), "url= is an address such as redis://"),
        (lambda s: s.write(redis.Sink("{on}", url="redis://h", ttl="-1s")), "ttl"),
        (lambda s: s.write(redis.StreamSink("", url="redis://h")), "the stream's name is empty"),
        (lambda s: s.write(redis.StreamSink("s", url="redis://h", max_length=0)), "max_length= is a number of entries"),
        (
            lambda s: s.key_by("on").agg(n=count()).write(redis.StreamSink("s", url="redis://h")),
            "every update would count as a row",
        ),
    ],
)  # fmt: skip
def test_wrong_sinks(make: Any, said: str) -> None:
    """When the pipeline is built."""
    with pytest.raises(PipelineError, match=said):
        make(Pipeline("p").read(iterables.Source([], schema=Reading)))


def test_one_that_evicts_marks_is_refused(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless nothing is promised; and a Redis Cluster is."""
    told: dict[str, Any] = {"maxmemory": 1, "maxmemory_policy": "allkeys-lru", "cluster_enabled": 0}

    async def info(_: Any, section: str) -> dict[str, Any]:
        return told

    monkeypatch.setattr("redis.asyncio.Redis.info", info)
    with pytest.raises(PipelineError, match=r"maxmemory-policy allkeys-lru.*at-least-once"):
        written(keys.stream_sink(), sales(3), Sale)
    written(keys.stream_sink(delivery="at-least-once"), sales(3), Sale)
    assert len(keys.entries()) == 3
    told["cluster_enabled"] = 1
    with pytest.raises(PipelineError, match="it is a Redis Cluster"):
        written(keys.stream_sink(delivery="at-least-once"), sales(3), Sale)


# -- exactly once -------------------------------------------------------------------------------------------------------


class Target:
    """A stream of numbers, published by hand."""

    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        self.context = PublishContext(uuid.uuid4().hex, "out", 0, 0, 1, lambda: time_ns() // 1_000)

    def publisher(self) -> Any:
        return _OfNumbers(self.keys.stream_sink()._writing(), self.context)

    def numbers(self) -> list[int]:
        return [int(entry["n"]) for entry in self.keys.entries()]


class _OfNumbers(RedisPublisher):
    """Frames of the exchange of these tests have a column `value`."""

    async def commit(self, frames: Any, mark: PublishedMark) -> None:
        await super().commit([frame.select(pl.col("value").alias("c:n")) for frame in frames], mark)


async def published(
    target: Target, exchange: Exchange, publisher: Any = None, *, frames: int = 4
) -> tuple[Run, Interval]:
    """A first attempt that has published its first checkpoint."""
    run = Run(publisher or target.publisher(), exchange, 1, clock=SystemClock())
    await run.until(lambda: run.marks)
    for n in range(frames):
        exchange.rows(FIRST, range(10 * n, 10 * n + 10))
    covered = Interval(FIRST, 0, exchange.barrier(FIRST), 1)
    run.loop.covered([covered])
    await run.until(lambda: run.published == 1)
    return run, covered


async def test_rows_are_visible_once(keys: Keys) -> None:
    """And the mark says how far; a second attempt goes on behind it."""
    target, exchange = Target(keys), Exchange()
    run, covered = await published(target, exchange)
    await run.stop()
    exchange.rows(FIRST, range(40, 45))
    newer = Interval(FIRST, covered.end, exchange.barrier(FIRST, 2), 2)
    second = Run(target.publisher(), exchange, 2, [covered, newer], restored=2, clock=SystemClock())
    await second.until(lambda: second.published == 2)
    await second.stop()
    assert target.numbers() == list(range(45))


async def test_a_publisher_that_was_stopped_is_refused(keys: Keys) -> None:
    """Before its transaction another one starts: what it sends never becomes visible."""
    target, exchange = Target(keys), Exchange()
    run, _ = await published(target, exchange)
    await run.stop()
    stopped, newer = target.publisher(), target.publisher()
    granted = []
    for publisher in (stopped, newer, newer):
        await publisher.open()
        granted.append(await publisher.init_producer())
    assert [later.follows(earlier) for earlier, later in itertools.pairwise(granted)] == [True, True]
    with pytest.raises(ProducerFencedError, match="has started"):
        await stopped.commit([exchange.frames[0][1]], encode_mark(Mark(99, 9, 1)))
    assert await newer.read_mark() == await stopped.read_mark()
    await stopped.close()
    await newer.close()
    assert target.numbers() == list(range(40))


async def test_a_script_whose_answer_is_lost_is_not_repeated(keys: Keys) -> None:
    """It was carried out, or not, and the publisher does not know: it finds out from the mark."""
    target, exchange = Target(keys), Exchange()
    publisher = target.publisher()
    commit, turns = publisher.commit, itertools.count()

    async def doubtful(frames: Any, mark: PublishedMark) -> None:
        turn = next(turns) % 3
        if turn == 1:
            raise ExternalError("not sent")
        await commit(frames, mark)
        if turn == 2:
            raise ExternalError("no answer")

    publisher.commit = doubtful
    run, _ = await published(target, exchange, publisher, frames=12)
    await run.stop()
    assert target.numbers() == list(range(120))


async def test_a_redis_that_is_killed_changes_nothing(own_platform: Any) -> None:
    """It writes what it answers to its disk, and publishing goes on where it was."""
    keys = Keys(own_platform.redis.settings.url.reveal())
    target, exchange = Target(keys), Exchange()
    run = Run(target.publisher(), exchange, 1, clock=SystemClock())
    await run.until(lambda: run.marks)
    intervals: list[Interval] = []
    start = 0
    for checkpoint in range(1, 13):
        exchange.rows(FIRST, range(10 * checkpoint, 10 * checkpoint + 10))
        intervals.append(Interval(FIRST, start, start := exchange.barrier(FIRST, checkpoint), checkpoint))
    for number, interval in enumerate(intervals, 1):
        run.loop.covered(intervals[:number])
        if number % 6 == 0:
            await own_platform.redis.restart(by_force=True)
        await run.until(lambda interval=interval: run.published >= interval.checkpoint - 3)
    await run.until(lambda: run.published == 12)
    await run.stop()
    assert target.numbers() == list(range(10, 130))
    keys.client.close()


async def test_marks_are_forgotten(keys: Keys) -> None:
    """Those of one generation alone; where there are none, that is fine."""
    target = Target(keys)
    run, _ = await published(target, Exchange())
    await run.stop()
    left = f"penstock:mark:{target.context.job}:*"
    await keys.stream_sink().forget(replace(target.context, generation=1))
    assert len(list(keys.client.scan_iter(left))) == 1
    await keys.stream_sink().forget(target.context)
    assert list(keys.client.scan_iter(left)) == []


@pytest.mark.timeout(180)
@pytest.mark.parametrize("kind", ["hashes", "stream"])
async def test_a_job_with_failing_workers_and_a_rescale_writes_every_row_once(keys: Keys, kind: str) -> None:
    """Workers die again and again, the job gets wider: every window is there once."""
    sink = keys.sink("{key}:{window_start}") if kind == "hashes" else keys.stream_sink()
    cluster = await with_failing_workers(sink)
    rows = await asyncio.to_thread(keys.hashes if kind == "hashes" else keys.entries)
    counted = Counter((row["key"], row["window_start"]) for row in rows)
    assert set(counted.values()) == {1}
    assert len(rows) == 7 * cluster.input.rows // 100
    assert sum(int(row["n"]) for row in rows) == cluster.input.rows
    assert sum(json.loads(row["total"]) for row in rows) == sum(range(cluster.input.rows))
