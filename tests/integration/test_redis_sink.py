"""Hashes and streams of a real Redis: what sinks write and refuse, and that they publish every row once."""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from time import time_ns
from typing import Any

import polars as pl
import pytest
import redis as redis_client
from redis._parsers import _AsyncRESP2Parser
from tests.integration.failing_workers import with_failing_workers
from tests.integration.publishing_by_hand import (
    check_a_stopped_publisher_is_refused,
    check_doubt_changes_nothing,
    check_kills_change_nothing,
    check_rows_are_visible_once,
    published,
)
from tests.integration.sink_rows import ALL, EMPTY, Everything, Sale, read_back, sales, sales_by_shop, write
from tests.unit.task.publishing_parts import Exchange

from penstock import Pipeline, PipelineError, col, count
from penstock.connectors import iterables, redis
from penstock.connectors.base import PublishContext, PublishedMark
from penstock.connectors.redis.places import RedisPlace
from penstock.connectors.redis.publishing import RedisPublisher
from penstock.errors import BadRecordError, ExternalError, PenstockError, RefusedRowError
from penstock.settings import Secret

pytestmark = pytest.mark.timeout(120)


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


# -- what is written ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_lookup_reads_what_a_sink_writes(keys: Keys, delivery: Any) -> None:
    """Each value of each type."""
    rows = [ALL, EMPTY, replace(ALL, id=3, ratio=-5e-324, small=-(2**63), text="\x00", amount=Decimal("-0.01"))]
    write(keys.sink(delivery=delivery), rows, Everything)
    assert read_back(keys.lookup("{id}", Everything), 3) == rows


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
    write(keys.sink("{day}/{on}"), rows, Reading)
    assert keys.hash("2026-01-01/true") == {"day": "2026-01-01", "on": "true", "note": "mine"}
    assert keys.hash("2026-01-01/false") == {"day": "2026-01-01", "on": "false", "value": "1.5"}


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_updates_by_key(keys: Keys, delivery: Any) -> None:
    """The newest row of every key; with `ttl` it goes by itself."""
    p = Pipeline("p")
    totals = p.read(iterables.Source(sales(), schema=Sale)).key_by("shop").agg(total=col("amount").sum())
    totals.write(keys.sink("{shop}", delivery=delivery, ttl="1h"))
    assert p.run().state == "FINISHED"
    assert {row["shop"]: int(row["total"]) for row in keys.hashes()} == sales_by_shop()
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
    sums = sales_by_shop()
    assert min(sums.values()) >= 100
    found = {row["shop"]: int(row["total"]) for row in keys.hashes() if "shop" in row}
    assert found == {shop: total for shop, total in sums.items() if shop > "s3"}
    assert keys.hash("s2") == {"note": "mine"}


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_stream_has_every_row_in_order(keys: Keys, delivery: Any) -> None:
    """More of them than one argument of a script holds."""
    write(keys.stream_sink(delivery=delivery), sales(2_345), Sale)
    assert [(int(e["id"]), e["shop"], int(e["amount"])) for e in keys.entries()] == [
        (s.id, s.shop, s.amount) for s in sales(2_345)
    ]


def test_a_stream_of_a_length(keys: Keys) -> None:
    """About so many of the newest entries stay."""
    write(keys.stream_sink(max_length=100), sales(2_000), Sale)
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
    with pytest.raises(RefusedRowError, match=said) as caught:
        write(keys.sink(delivery=delivery), sales(10), Sale)
    assert keys.client.exists(*(f"{keys.prefix}:{n}" for n in range(7))) == 0
    assert keys.url.reveal().split("@")[0].split(":")[-1] not in str(caught.value)
    keys.client.rpush(f"{keys.prefix}:3", "list")
    write(keys.sink(delivery=delivery, bad_rows="skip"), sales(10), Sale)
    there = [n for n in range(10) if keys.client.type(f"{keys.prefix}:{n}") == b"hash"]
    assert there == [0, 1, 2, 4, 5, 6, 8, 9]
    keys.client.set(keys.prefix, "text")
    with pytest.raises(PenstockError, match=rf"redis stream {keys.prefix} .*{keys.prefix} is there, and is a string"):
        write(keys.stream_sink(delivery=delivery), sales(10), Sale)


@dataclass
class Maybe:
    id: int | None


def test_rows_that_cannot_be_written(keys: Keys) -> None:
    """They fail the job by name, or are counted and left out."""
    with pytest.raises(BadRecordError, match=r"a row has no key .column id is null.: .*bad_rows=.skip."):
        write(keys.sink(), [Maybe(1), Maybe(None)], Maybe)
    with pytest.raises(BadRecordError, match="all columns of a row are null"):
        write(keys.stream_sink(), [Maybe(1), Maybe(None)], Maybe)
    write(keys.sink(bad_rows="skip"), [Maybe(1), Maybe(None)], Maybe)
    write(keys.stream_sink(bad_rows="skip"), [Maybe(1), Maybe(None)], Maybe)
    assert (keys.hash("1"), keys.entries()) == ({"id": "1"}, [{"id": "1"}])


def test_a_redis_that_is_away_or_refuses(keys: Keys) -> None:
    """Said before rows flow; no password."""
    away = redis.Sink("{id}", url="redis://someone:topsecret@127.0.0.1:1/0")
    with pytest.raises(
        ExternalError, match=r"redis hashes .id. at redis://127.0.0.1:1/0: .*check that it runs"
    ) as caught:
        write(away, sales(1), Sale)
    assert "topsecret" not in f"{caught.value} {away!r}"
    address = keys.url.reveal().rpartition("@")[2]
    with pytest.raises(PipelineError, match=r"it refuses the login or the command.*check user and password"):
        write(redis.StreamSink("s", url=f"redis://nobody:wrong@{address}"), sales(1), Sale)


@pytest.mark.parametrize(
    ("answer", "passes"),
    [
        ("OOM command not allowed when used memory > 'maxmemory'.", True),
        ("ERR Error running script: @user_script:8: -OOM command not allowed when used memory > 'maxmemory'.", True),
        ("READONLY You can't write against a read only replica.", True),
        ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", True),
        ("LOADING Redis is loading the dataset in memory", True),
        ("MISCONF Redis is configured to save RDB snapshots, but it is not able to.", True),
        ("BUSY Redis is busy running a script.", True),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", False),
        ("ERR unknown command 'XADD'", False),
    ],
)
def test_which_answers_pass(answer: str, passes: bool) -> None:
    """A server without memory, disk or master is asked again; what it will always refuse fails the job."""
    place = RedisPlace("redis.Sink", "redis://h")
    error = _AsyncRESP2Parser.parse_error(answer)
    with pytest.raises(ExternalError if passes else PipelineError, match=r"^there: "), place.errors("there: ", "look"):
        raise error


def test_a_key_of_another_node_says_that_it_is_a_cluster() -> None:
    """Also within a pipeline, of whose error the client takes the word away."""
    place = RedisPlace("redis.Lookup", "redis://h")
    error = _AsyncRESP2Parser.parse_error("MOVED 866 10.0.0.7:7001")
    error.args = ("Command # 1 (HMGET a b) of pipeline caused error: ('866 10.0.0.7:7001',)",)
    with (
        pytest.raises(PipelineError, match=r"^there: it is a Redis Cluster, .*10\.0\.0\.7:7001"),
        place.errors("there: ", "look"),
    ):
        raise error


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
        write(keys.stream_sink(), sales(3), Sale)
    write(keys.stream_sink(delivery="at-least-once"), sales(3), Sale)
    assert len(keys.entries()) == 3
    told["cluster_enabled"] = 1
    with pytest.raises(PipelineError, match="it is a Redis Cluster"):
        write(keys.stream_sink(delivery="at-least-once"), sales(3), Sale)


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


async def test_rows_are_visible_once(keys: Keys) -> None:
    """And the mark says how far; a second attempt goes on behind it."""
    await check_rows_are_visible_once(Target(keys))


async def test_a_publisher_that_was_stopped_is_refused(keys: Keys) -> None:
    """Before its transaction another one starts: what it sends never becomes visible."""
    await check_a_stopped_publisher_is_refused(Target(keys))


async def test_a_script_whose_answer_is_lost_is_not_repeated(keys: Keys) -> None:
    """It was carried out, or not, and the publisher does not know: it finds out from the mark."""
    target = Target(keys)

    async def before(turn: int, _: Any) -> None:
        if turn == 1:
            raise ExternalError("not sent")

    await check_doubt_changes_nothing(target, target.publisher(), 3, before)


async def test_a_redis_that_is_killed_changes_nothing(own_stores: Any) -> None:
    """It writes what it answers to its disk, and publishing goes on where it was."""
    keys = Keys(own_stores.redis.settings.url.reveal())
    await check_kills_change_nothing(Target(keys), 12, 6, lambda: own_stores.redis.restart(by_force=True))
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
