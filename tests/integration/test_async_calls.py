"""map_async in whole jobs: no row is lost or doubled whatever interrupts it, and a slow call stops no barrier."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from embedded_runs import Stress, assert_same, counted, finish, rows, settings
from tests.integration.one_job import Cluster, Event, until

from penstock import Pipeline, col, count, tumbling
from penstock.connectors import files, iterables
from penstock.embedded import EmbeddedJob
from penstock.errors import UserCodeError
from penstock.graph.jobgraph import build_job_graph
from penstock.testing import elapse, run_pipeline

START = datetime(2026, 1, 1, tzinfo=UTC)
ROWS = 3_000


@dataclass
class Reading:
    n: int
    at: datetime


@dataclass
class Answer:
    n: int
    answer: int
    at: datetime


def readings(number: int = ROWS) -> list[Reading]:
    return [Reading(n, START + timedelta(seconds=n)) for n in range(number)]


async def sometime(reading: Reading) -> Answer:
    """Nobody knows which one comes first."""
    if random.random() < 0.5:
        await asyncio.sleep(random.random() * 0.004)
    return Answer(reading.n, reading.n * 2, reading.at)


def windows_pipeline(out: Path, *, ordered: bool, chained: bool) -> Pipeline:
    p = Pipeline("windows")
    source = iterables.Source(readings(), schema=Reading, event_time="at", rate=8_000)
    answered = p.read(source).map_async(sometime, ordered=ordered, capacity=40).chain(chained)
    windows = answered.key_by(key=col("n") % 5).window(tumbling("100s"))
    windows.agg(rows=count(), total=col("answer").sum()).write(files.Sink(out, format="jsonl"))
    return p


@pytest.mark.parametrize(("ordered", "chained"), [(True, True), (False, False)])
def test_every_row_has_one_answer_whatever_interrupts_the_job(tmp_path: Path, ordered: bool, chained: bool):
    """Cancelled at any moment, resumed at another parallelism: rows that waited are asked for again, none is late."""

    def make(out: Path) -> Pipeline:
        return windows_pipeline(out, ordered=ordered, chained=chained)

    seed = str(random.randrange(1 << 30))
    print(f"seed {seed}")
    stress = Stress(make, tmp_path, seed)
    found = rows(stress.run())
    expected = [
        {"key": key, "rows": 20, "total": sum(2 * n for n in range(first, first + 100) if n % 5 == key)}
        for first in range(0, ROWS, 100)
        for key in range(5)
    ]
    kept = [{name: row[name] for name in ("key", "rows", "total")} for row in found]
    assert_same(counted(kept), counted(expected), stress)


class Slow:
    """Row 500 is not answered before the test says so."""

    def __init__(self, *, ends: bool = False) -> None:
        """`ends`: the input does not wait for the answer."""
        self.ends = ends
        self.released = asyncio.Event()
        self.asked = 0

    def input(self) -> Iterable[Reading]:
        """Rows until the answer came, and some more."""
        n, after = 0, 0
        while n < ROWS or (after < 100 and not self.ends):
            after += self.released.is_set()
            yield Reading(n, START + timedelta(seconds=n))
            n += 1

    async def answer(self, reading: Reading) -> Answer:
        if reading.n == 500:
            self.asked += 1
            await self.released.wait()
        return Answer(reading.n, 0, reading.at)


def slow_pipeline(slow: Slow, out: Path, *, chained: bool) -> Pipeline:
    p = Pipeline("slow")
    read = p.read(iterables.Source(slow.input, schema=Reading, event_time="at", rate=4_000))
    read.map_async(slow.answer, timeout=None, capacity=10).chain(chained).write(files.Sink(out, format="jsonl"))
    return p


@asynccontextmanager
async def running(pipeline: Pipeline, directory: Path) -> AsyncIterator[EmbeddedJob]:
    """A job that is cancelled at the end."""
    job = EmbeddedJob(pipeline, directory, settings(1, 40))
    task = asyncio.create_task(job.run(resume=False))
    try:
        yield job
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(("chained", "ends"), [(True, False), (False, False), (True, True)])
def test_a_slow_call_stops_no_barrier(tmp_path: Path, chained: bool, ends: bool):
    """Checkpoints complete while it waits and all that is behind it, and what they hold is exact.

    Also when the source has no more rows: its end is told when all have their answer.
    """
    slow, out, state = Slow(ends=ends), tmp_path / "out", tmp_path / "state"

    async def until_checkpoints() -> int:
        async with running(slow_pipeline(slow, out, chained=chained), state) as job:
            await until(lambda: slow.asked, "the slow call is made")
            begun = len(job.progress.completed_checkpoints)
            await until(lambda: len(job.progress.completed_checkpoints) >= begun + 4, "four checkpoints")
            return len(rows(out))

    before = asyncio.run(until_checkpoints())
    assert before <= 500
    slow.released = asyncio.Event()
    slow.released.set()
    finish(slow_pipeline(slow, out, chained=chained), state, resume=True)
    assert slow.asked == 2
    found = [row["n"] for row in rows(out)]
    assert sorted(found) == list(range(len(found)))
    assert len(found) >= ROWS


def test_a_subtask_with_rows_that_wait_is_not_idle():
    """Its source is silent for longer than `idle_after`: time goes on without it when its row has been sent."""

    async def slow(reading: Reading) -> Answer:
        await asyncio.sleep(60)
        return Answer(reading.n, 1, reading.at)

    p = Pipeline("idle")
    first = p.read(iterables.Source([], schema=Reading, event_time="at", idle_after="1s")).uid("slow")
    second = p.read(iterables.Source([], schema=Reading, event_time="at")).uid("quick")
    both = first.map_async(slow, timeout=None).union(
        second.with_columns(answer=0).select("n", "answer", "at").as_(Answer)
    )
    windows = both.key_by(all=col("n") * 0).window(tumbling("100s")).agg(rows=count(), slow=col("answer").sum())
    windows.select("rows", "slow").write(files.Sink("out"))
    given = readings(1_000)
    held = [given[5], elapse("30s"), elapse("50s"), given[999]]
    beside = [given[1], elapse("10s"), *given[2:], elapse("80s")]
    found = run_pipeline(p, {"slow": held, "quick": beside})
    assert found[0] == {"rows": 100, "slow": 1}
    assert sum(row["rows"] for row in found) == 1_001


def test_a_call_that_fails_fails_the_job(tmp_path: Path):
    """The error is the user's, with the row."""

    async def fails(reading: Reading) -> Answer:
        raise LookupError(f"no {reading.n}")

    p = Pipeline("fails")
    p.read(iterables.Source(readings(5), schema=Reading)).map_async(fails).write(files.Sink(tmp_path / "out"))
    with pytest.raises(UserCodeError, match=r"fails raised LookupError: no 0; row: Reading\(n=0"):
        p.run()


async def test_a_killed_worker_loses_no_call():
    """On a cluster in memory: another one asks again for what waited."""

    async def same(event: Event) -> Event:
        await asyncio.sleep(random.random() * 0.02)
        return event

    cluster = Cluster(held=True)
    cluster.pipeline = Pipeline("cluster")
    read = cluster.pipeline.read(iterables.Source(cluster.input, schema=Event, event_time="at", rate=5_000))
    windows = read.map_async(same, ordered=False).key_by("key").window(tumbling("100s"))
    windows.agg(n=count(), total=col("value").sum()).write(cluster.sink)
    cluster.graph = build_job_graph(cluster.pipeline.plan, 2)
    await cluster.submit()
    try:
        _, ended, _ = await cluster.candidate()
        killed = cluster.worker()
        cluster.worker()
        for _ in range(2):
            seen = len(cluster.sink.rows)
            await until(lambda seen=seen: len(cluster.sink.rows) > seen, "a checkpoint makes windows visible")
            await cluster.kill_worker(killed.name)
            killed = cluster.worker()
        cluster.input.end()
        outcome = await asyncio.wait_for(ended, 60)
        assert outcome.state == "FINISHED", outcome.reason
    finally:
        await cluster.stop()
    cluster.check()
