"""A sink to Postgres when the server is killed, and when workers are: every row is there once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from postgres_tables import FIRST, Table, Target
from tests.integration.failing_workers import with_failing_workers
from tests.postgres_server import PostgresServer, running_postgres
from tests.unit.task.publishing_parts import Exchange, Run

from penstock.adapters.system_clock import SystemClock
from penstock.protocol.manifests import Interval

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running_postgres() as found:
        yield found


async def test_a_server_that_is_killed_changes_nothing() -> None:
    """Between and within transactions, again and again: every row once, in the end."""
    with running_postgres() as server:
        target, exchange = Target(server), Exchange()
        run = Run(target.publisher(), exchange, 1, clock=SystemClock())
        await run.until(lambda: run.marks)
        intervals: list[Interval] = []
        start = 0
        for checkpoint in range(1, 25):
            exchange.rows(FIRST, range(10 * checkpoint, 10 * checkpoint + 10))
            intervals.append(Interval(FIRST, start, start := exchange.barrier(FIRST, checkpoint), checkpoint))
        for number, interval in enumerate(intervals, 1):
            run.loop.covered(intervals[:number])
            if number % 8 == 0:
                server.kill()
                await asyncio.to_thread(server.start)
            await run.until(lambda interval=interval: run.published >= interval.checkpoint - 3)
        await run.until(lambda: run.published == 24)
        await run.stop()
        assert target.numbers() == list(range(10, 250))


@pytest.mark.parametrize("key", [None, ("key", "window_start")])
async def test_a_job_with_failing_workers_and_a_rescale_writes_every_row_once(server: PostgresServer, key: Any) -> None:
    """Workers die again and again, the job gets wider: the table has every window once."""
    table = Table(server, "")
    table.do("drop table {}")
    cluster = await with_failing_workers(table.sink(create=True, key=key))
    rows = table.do("select key, window_start, n, total from {}")
    assert sum(n for _, _, n, _ in rows) == cluster.input.rows
    assert sum(total for *_, total in rows) == sum(range(cluster.input.rows))
    assert len(rows) == len({row[:2] for row in rows}) == 7 * cluster.input.rows // 100
