"""A sink to Postgres when the server is killed, and when workers are: every row is there once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from postgres_tables import Table, Target
from tests.integration.failing_workers import with_failing_workers
from tests.integration.publishing_by_hand import check_kills_change_nothing
from tests.postgres_server import PostgresServer, running_postgres

pytestmark = [pytest.mark.timeout(180), pytest.mark.servers]


async def test_a_server_that_is_killed_changes_nothing() -> None:
    """Between and within transactions, again and again: every row once, in the end."""
    with running_postgres() as server:

        async def kill() -> None:
            server.kill()
            await asyncio.to_thread(server.start)

        await check_kills_change_nothing(Target(server), 24, 8, kill)


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
