"""The join with a lookup: which rows meet, how often is asked, what is remembered, errors, order, snapshots."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import polars as pl
import pytest

from penstock import Pipeline, PipelineError, col, count, tumbling
from penstock.connectors import iterables, lookups
from penstock.connectors.lookups import Key, LookupOptions
from penstock.core.batches import EVENT_TIME, WATERMARK
from penstock.errors import BadRecordError, ExternalError
from penstock.graph.jobgraph import build_job_graph
from penstock.task.operators import lookup_join
from penstock.testing.harness import OperatorHarness
from penstock.types import Schema


@dataclass
class Order:
    id: int
    customer: int | None
    at: datetime


@dataclass
class Customer:
    id: int
    name: str
    level: int | None = None


START = datetime(2026, 1, 1, tzinfo=UTC)


class Table(lookups.Lookup[Customer]):
    """Customers in memory: what was asked is written down, and a call waits until the gate is open."""

    kind = "table"
    asked: list[list[Key]]
    failures: int
    gate: asyncio.Event | None

    def __init__(self, rows: Sequence[dict[str, Any]] = (), **options: Any) -> None:
        self._declare(Customer, **options)
        self.rows = list(rows)
        self.asked, self.failures, self.gate = [], 0, None

    def __deepcopy__(self, memo: object) -> Table:
        return self

    @property
    def name(self) -> str:
        return "table customers"

    def client(self, columns: Schema, keys: Schema) -> Table:
        lookups.check_lookup_keys("table.Lookup", keys)
        return self

    def describe(self) -> dict[str, Any]:
        return {"name": "customers"}

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def ask(self, keys: Sequence[Key]) -> list[list[bytes]]:
        self.asked.append(list(keys))
        if self.gate is not None:
            await self.gate.wait()
        if self.failures:
            self.failures -= 1
            raise ExternalError("nobody there")
        return [[msgspec.json.encode(row) for row in self.rows if row["id"] == id] for (id,) in keys]


ROWS = [{"id": 1, "name": "Ada"}, {"id": 2, "name": "Bob", "level": 3}, {"id": 2, "name": "Bea", "level": None}]


def orders(*customers: int | None) -> list[Order]:
    return [Order(n, customer, START) for n, customer in enumerate(customers)]


def joined(table: Table, rows: Sequence[Order], how: Any = "inner") -> list[tuple[Any, ...]]:
    stream = Pipeline("p").read(iterables.Source(rows, schema=Order)).drop("at")
    return stream.join(table, on={"customer": "id"}, how=how).collect().rows()


def harness_of(table: Table, how: Any = "inner") -> OperatorHarness:
    stream = Pipeline("p").read(iterables.Source([], schema=Order, event_time="at"))
    return OperatorHarness(stream.join(table, on={"customer": "id"}, how=how)._node)


def frame(*customers: int | None, times: Sequence[int] | None = None, marks: Sequence[int] | None = None):
    made = pl.DataFrame(
        {"id": range(len(customers)), "customer": customers, "at": START},
        schema={"id": pl.Int64, "customer": pl.Int64, "at": pl.Datetime("us", "UTC")},
    ).with_columns(pl.Series(EVENT_TIME, times or list(range(len(customers))), pl.Int64))
    return made if marks is None else made.with_columns(pl.Series(WATERMARK, marks, pl.Int64))


async def settled(harness: OperatorHarness) -> None:
    async with asyncio.timeout(20):
        while any(operator.holds_rows() for operator in harness.operators):
            harness.processing_time(harness.now_us)
            await asyncio.sleep(0.0005)


# -- rows ---------------------------------------------------------------------------------------------------------------


def test_inner_and_left():
    """Several matches are several rows, null meets nothing, the columns are the left ones and the others but the key."""
    rows = orders(2, 9, None, 1)
    assert joined(Table(ROWS), rows) == [(0, 2, "Bob", 3), (0, 2, "Bea", None), (3, 1, "Ada", None)]
    assert joined(Table(ROWS), rows, "left") == [
        (0, 2, "Bob", 3), (0, 2, "Bea", None), (1, 9, None, None), (2, None, None, None), (3, 1, "Ada", None),
    ]  # fmt: skip
    assert joined(Table(ROWS), []) == []
    assert joined(Table([]), orders(None, None)) == []


def test_a_model_of_two_loops():
    """Any rows, any sizes of calls, with and without a cache, in order or not."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(12):
        rows = [{"id": rng.randrange(8), "name": f"c{n}", "level": n} for n in range(rng.randrange(12))]
        given = orders(*(rng.choice([None, *range(10)]) for _ in range(rng.randrange(60))))
        options: LookupOptions = {
            "rows_per_call": rng.choice([1, 3, 100]), "capacity": rng.choice([1, 5]), "ordered": rng.random() < 0.5,
            "cache_ttl": rng.choice([None, "1h"]), "cache_keys": rng.choice([1, 3, 100]),
        }  # fmt: skip
        for how in ("inner", "left"):
            expected = []
            for order in given:
                met = [(r["name"], r["level"]) for r in rows if r["id"] == order.customer]
                expected += [(order.id, order.customer, *m) for m in met or [(None, None)] * (how == "left")]
            found = joined(Table(rows, **options), given, how)
            assert (found if options["ordered"] else sorted(found, key=str)) == (
                expected if options["ordered"] else sorted(expected, key=str)
            )


def test_many_keys_are_asked_for_at_once_and_each_once():
    """So many rows of a call; null keys and those that are there twice are not asked for again."""
    table = Table(ROWS, rows_per_call=4)
    joined(table, orders(1, 1, None, 2, 3, 3))
    assert table.asked == [[(1,), (2,)], [(3,)]]
    table = Table(ROWS)
    joined(table, orders(None))
    assert table.asked == []


async def test_what_is_remembered(monkeypatch):
    """Also that there is nothing; until its time is over, or others were needed since."""
    now_s = 100.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s)
    table = Table(ROWS, cache_ttl="10s", cache_keys=2)
    asker = lookup_join._Asker(
        table, Schema(table.schema.fields[1:]), Schema(table.schema.fields[1:]), table.schema.select(["id"])
    )
    await asker.open()

    async def ask(*keys: int) -> list[tuple[Any, ...]]:
        table.asked.clear()
        answers = await asker(lookup_join._Asked(["id"], [(key,) for key in keys]))
        return [answers, table.asked.copy()]

    assert (await ask(1, 7))[1] == [[(1,), (7,)]]
    answers, asked = await ask(1, 7)
    assert ([len(answer) for answer in answers], asked) == ([1, 0], [])
    await ask(1)
    assert (await ask(2))[1] == [[(2,)]]
    assert (await ask(1))[1] == []
    assert (await ask(7))[1] == [[(7,)]]
    now_s = 109.9
    assert (await ask(7))[1] == []
    now_s = 111.0
    table.rows = []
    assert (await ask(1))[1] == [[(1,)]]


async def test_a_watermark_waits_for_the_rows_before_it_and_rows_keep_their_time():
    """As behind `map_async`."""
    table = Table(ROWS)
    table.gate = asyncio.Event()
    harness = harness_of(table, "left")
    harness.frame(frame(2, 5, times=[10, 20]))
    harness.watermark(15)
    await asyncio.sleep(0)
    assert harness.collected.watermarks == []
    table.gate.set()
    await settled(harness)
    harness.processing_time(harness.now_us)
    assert pl.concat(harness.collected.frames)[EVENT_TIME].to_list() == [10, 10, 20]
    assert harness.collected.watermarks == [15]
    harness.close()


async def test_unordered_calls_do_not_pass_a_row_that_carries_a_watermark():
    """Nor where event time comes on in the middle of the rows of a call."""
    gates = [asyncio.Event() for _ in range(3)]

    class Gated(Table):
        async def ask(self, keys: Sequence[Key]) -> list[list[bytes]]:
            self.asked.append(list(keys))
            await gates[len(self.asked) - 1].wait()
            return [[msgspec.json.encode({"id": id, "name": "x"})] for (id,) in keys]

    harness = harness_of(Gated(rows_per_call=2, ordered=False))
    harness.frame(frame(1, 2, 3, 4, 5, 6, marks=[0, 8, 8, 8, 8, 8]))

    async def after(gate: int) -> list[int]:
        gates[gate].set()
        for _ in range(20):
            await asyncio.sleep(0)
            harness.processing_time(harness.now_us)
        return [row["customer"] for row in harness.output()]

    assert await after(1) == []
    assert await after(0) == [1, 2, 3, 4]
    assert await after(2) == [1, 2, 3, 4, 5, 6]
    harness.close()


async def test_rows_that_wait_are_in_the_snapshot_and_are_asked_for_again():
    """At another parallelism, too."""
    table = Table(ROWS, rows_per_call=2, capacity=1)
    table.gate = asyncio.Event()
    harness = harness_of(table)
    harness.frame(frame(1, 2, 1))
    await asyncio.sleep(0)
    snapshot = harness.snapshot()
    harness.close()
    later = Table(ROWS)
    node = (
        Pipeline("p").read(iterables.Source([], schema=Order, event_time="at")).join(later, on={"customer": "id"})._node
    )
    restored = OperatorHarness(node, parallelism=2, restored=snapshot)
    await settled(restored)
    assert sorted(row["name"] for row in restored.output()) == ["Ada", "Ada", "Bea", "Bob"]
    restored.close()


def test_windows_behind_it():
    """Event time goes on in a whole pipeline."""
    stream = Pipeline("p").read(iterables.Source(orders(1, 2, 3), schema=Order, event_time="at"))
    named = stream.join(Table(ROWS), on={"customer": "id"}).key_by("name").window(tumbling("1m")).agg(rows=count())
    assert sorted(named.select("name", "rows").collect().rows()) == [("Ada", 1), ("Bea", 1), ("Bob", 1)]


# -- what is wrong ------------------------------------------------------------------------------------------------------


def test_calls_are_made_again():
    """As often as was said; then the error names the system and the key."""
    table = Table(ROWS, retries=2, retry_delay="0s")
    table.failures = 2
    assert joined(table, orders(1)) == [(0, 1, "Ada", None)]
    table = Table(ROWS, retries=2, retry_delay="0s")
    table.failures = 3
    with pytest.raises(
        ExternalError, match=r"join \(n\d-lookup_join\): table customers: nobody there; row: key id=1 and 1 other"
    ):
        joined(table, orders(1, 3))


def test_no_answer_in_time(monkeypatch):
    """An attempt has an end, and the whole call has one."""
    monkeypatch.setattr(lookup_join, "ATTEMPT_S", 0.02)

    class Silent(Table):
        async def ask(self, keys: Sequence[Key]) -> list[list[bytes]]:
            self.asked.append(list(keys))
            await asyncio.Event().wait()
            return []

    table = Silent(retries=1, retry_delay="0s")
    with pytest.raises(ExternalError, match=r"table customers: no answer within 0.02 s; row: key id=1"):
        joined(table, orders(1))
    assert len(table.asked) == 2
    with pytest.raises(PipelineError.__mro__[1], match="nothing has come within 5ms; row: key id=1"):
        joined(Silent(timeout="5ms"), orders(1))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"id": 1, "name": 5}, "the row of id=1 is none of the schema: Expected `str`, got `int`"),
        ({"id": 1}, r"the row of id=1 is none of the schema: name: missing"),
        ({"id": 1, "name": "x", "level": "high"}, "the row of id=1 is none of the schema"),
    ],
)
def test_rows_that_are_none(row, said):
    """By system and key; asking again would not help."""
    table = Table([{"id": 0, "name": "fine"}, row])
    with pytest.raises(BadRecordError, match=f"table customers: {said}"):
        joined(table, orders(0, 1))
    assert len(table.asked) == 1


@dataclass
class Strange:
    id: int
    at: float


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"on": "id", "how": "full"}, "how is 'inner' or 'left' then, not 'full'"),
        ({"on": "id", "within": "1m"}, "within=, window=, as_of= and ttl= say which rows of two streams meet"),
        ({"on": "id", "ttl": "1m"}, "cache_ttl= at the lookup"),
        ({"on": "nothing"}, "there is no column 'nothing'"),
        ({"on": {"id": "nothing"}}, "join: on, in the lookup: there is no column 'nothing'"),
        ({"on": {"id": "name"}}, "id is int64, name of the lookup is string"),
        ({"on": []}, "on= names no column"),
        ({"on": {"id": "id", "customer": "level"}, "how": "semi"}, "how is 'inner' or 'left' then"),
    ],
)
def test_what_is_said_of_wrong_joins(options, said):
    """When the pipeline is built."""
    stream = Pipeline("p").read(iterables.Source([], schema=Order, event_time="at"))
    with pytest.raises(PipelineError, match=said):
        stream.join(Table(), **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"capacity": 0}, r"table.Lookup: capacity=0: it is at least 1"),
        ({"rows_per_call": 0}, "rows_per_call=0"),
        ({"cache_keys": 0}, "cache_keys=0"),
        ({"retries": -1}, "retries=-1: it is at least 0"),
        ({"cache_ttl": "0s"}, "table.Lookup: cache_ttl"),
        ({"timeout": "soon"}, "table.Lookup: timeout"),
    ],
)
def test_what_is_said_of_wrong_options(options, said):
    """When the lookup is declared."""
    with pytest.raises(PipelineError, match=said):
        Table(**options)


def test_updates_are_not_looked_up():
    """What is taken back would have to be the same row that was sent, and another answer may have come since."""
    updates = Pipeline("p").read(iterables.Source([], schema=Order)).key_by("customer").agg(rows=count())
    with pytest.raises(PipelineError, match="join"):
        updates.join(Table(), on={"customer": "id"})  # type: ignore[arg-type]


def test_the_plan_says_what_is_asked():
    """And a column with a name that is there twice gets a suffix."""
    stream = Pipeline("p").read(iterables.Source([], schema=Order)).with_columns(name=col("id").cast(str))
    made = stream.join(Table(cache_ttl="1m", retries=5), on={"customer": "id"}, how="left", suffix="_of")
    assert made.schema.names == ("id", "customer", "at", "name", "name_of", "level")
    assert [field.nullable for field in made.schema][-2:] == [True, True]
    from penstock.connectors import console

    made.write(console.Sink())
    operator = next(o for o in build_job_graph(made._pipeline.plan, 1).operators() if o.verb == "lookup_join")
    assert operator.settings == {
        "on": {"customer": "id"}, "how": "left", "lookup": "table", "name": "customers", "capacity": 4, "order": "kept",
        "timeout": "1m", "retries": 5, "retry_delay": "100ms", "rows_per_call": 1000, "cache_ttl": "1m",
        "cache_keys": 10_000,
    }  # fmt: skip
