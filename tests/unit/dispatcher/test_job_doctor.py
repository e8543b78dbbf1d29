"""`penstock doctor JOB` on jobs that really are slow, skewed or refused, through a dispatcher."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count

import pytest
from small_cluster import small_cluster, until

from penstock import KeyedProcess, Pipeline
from penstock.cli.diagnosis import JobFinding, diagnose
from penstock.cli.job_doctor import look
from penstock.connectors import collecting, iterables
from penstock.task import sources
from penstock.task.environment import SubtaskSettings

PER_ROW_S = 0.001


@dataclass
class Row:
    key: int
    n: int


class Slow(KeyedProcess[Row, Row]):
    """Works for a millisecond on each row."""

    def on_row(self, row, ctx):
        until_s = time.perf_counter() + PER_ROW_S
        while time.perf_counter() < until_s:
            pass
        ctx.emit(row)


def rows(key: Callable[[int], int]) -> Callable[[], Iterable[Row]]:
    """Rows without an end."""
    return lambda: (Row(key(n), n) for n in count())


def slow_pipeline(key: Callable[[int], int], parallelism: int) -> Pipeline:
    """More rows than the process can take."""
    pipeline = Pipeline("slow")
    read = pipeline.read(iterables.Source(rows(key), schema=Row))
    read.key_by("key").process(Slow()).uid("slow").parallelism(parallelism).write(collecting.Sink())
    return pipeline


@pytest.mark.parametrize(
    ("key", "parallelism", "check", "seen"),
    [
        pytest.param(lambda n: n % 64, 1, "bottleneck", "v1 (slow) works for", id="a slow operator"),
        pytest.param(lambda n: n % 64 if n % 16 == 0 else 3, 2, "skew", "times the mean", id="a skewed key"),
    ],
)
async def test_a_job_that_is_slow_is_found_so(
    key: Callable[[int], int], parallelism: int, check: str, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By name, on what the leader has measured: the cause, and nothing else of rows."""
    monkeypatch.setattr(sources, "BATCH_ROWS", 32)  # all share this event loop, which must not be held up for long
    async with small_cluster(data=SubtaskSettings(flush_ms=0, credit_bytes=1_024)) as cluster:
        cluster.pipeline = slow_pipeline(key, parallelism)
        await cluster.submit()
        found: list[JobFinding] = []

        async def told() -> bool:
            found[:] = diagnose(await look(cluster.client, "slow"))
            return any(finding.check == check for finding in found)

        await until(told, f"{check} is found")
        (finding,) = (finding for finding in found if finding.check in ("bottleneck", "skew", "input"))
        assert finding.seen.startswith("v0 (read) is held up for")
        assert seen in finding.seen
