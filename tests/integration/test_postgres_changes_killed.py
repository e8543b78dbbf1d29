"""Reading the changes of a table while jobs are killed and the server crashes: each change once, in order."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from changing_table import ChangingTable, replayed
from embedded_runs import rows, settings
from tests.integration.one_job import until
from tests.postgres_server import PostgresServer, running_postgres

from penstock import Pipeline
from penstock.connectors import files
from penstock.connectors.postgres import change_reading, table_rows
from penstock.connectors.postgres.change_log import ChangeLog
from penstock.connectors.postgres.change_positions import ChangePosition
from penstock.embedded import EmbeddedJob

pytestmark = [pytest.mark.timeout(400), pytest.mark.servers]
LAST = 9
"""The attempt that comes to the end, if a restart has come within a transaction by then."""
MOST = 40
"""The last one that may."""


def pipeline(table: ChangingTable, out: Path, **options: Any) -> Pipeline:
    p = Pipeline("orders")
    p.read(table.source(**options)).uid("orders").write(files.Sink(out)).uid("log")
    return p


@dataclass
class Run:
    """A job that runs."""

    job: EmbeddedJob
    task: asyncio.Task[Any]

    async def until(self, condition: Callable[[], Awaitable[bool]], what: str) -> None:
        async def holds() -> bool:
            assert not self.task.done(), self.task.result()
            return await condition()

        await until(holds, what)

    async def complete(self, count: int) -> None:
        """So many checkpoints more."""
        before = len(self.job.progress.completed_checkpoints) if self.job.started else 0

        async def there() -> bool:
            return self.job.started and len(self.job.progress.completed_checkpoints) >= before + count

        await self.until(there, f"{count} checkpoints are complete")

    async def agrees(self, table: ChangingTable, out: Path) -> None:
        """The log comes to what the table is."""

        async def same() -> bool:
            await asyncio.sleep(1)  # looking at all of it takes as long as the job would need to go on
            return replayed(log_of(out)) == await asyncio.to_thread(table.rows)

        await self.until(same, "the log comes to the table")


@asynccontextmanager
async def running(made: Pipeline, folder: Path, *, resume: bool) -> AsyncIterator[Run]:
    """A job, cancelled at the end wherever it is by then."""
    job = EmbeddedJob(made, folder, settings(1, 20))
    run = asyncio.create_task(job.run(resume=resume))
    try:
        yield Run(job, run)
    finally:
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)


def log_of(out: Path) -> list[dict[str, Any]]:
    return rows(out) if out.exists() else []


class Noted:
    """What restarts came upon, so that a test is not passed that has met nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bounds = 0
        """Between parts of the rows, by which keys of changes were told apart."""
        self.left_in_part = 0
        """How often the log was gone on with within a transaction."""
        ask = change_reading.parts_of_keys

        async def noted(capture: Any, found: Any, bounds: Any, keys: Any) -> Any:
            self.bounds = max(self.bounds, len(bounds))
            return await ask(capture, found, bounds, keys)

        def log(capture: Any, found: Any, position: ChangePosition) -> ChangeLog:
            self.left_in_part += position.done > 0
            return ChangeLog(capture, found, position)

        monkeypatch.setattr(change_reading, "parts_of_keys", noted)
        monkeypatch.setattr(change_reading, "ChangeLog", log)


@pytest.mark.parametrize("before_images", [False, True])
def test_a_job_that_is_killed_again_and_again_has_each_change_once(
    server: PostgresServer, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch, before_images: bool
) -> None:
    """While rows are read and afterwards; transactions are open side by side, roll back, are huge, change keys."""
    print(f"PENSTOCK_TEST_SEED={seed}")
    chance = random.Random(seed)
    monkeypatch.setattr(table_rows, "FIRST_ROWS", 40)
    monkeypatch.setattr(table_rows, "MOST_ROWS", 40)
    monkeypatch.setattr(change_reading, "MOST_CHANGES", 100)
    noted = Noted(monkeypatch)
    table, out = ChangingTable(server, seed, 6_000, full=before_images), tmp_path / "out"

    async def attempt(number: int, *, is_last: bool) -> None:
        made = pipeline(table, out, before_images=before_images)
        async with running(made, tmp_path / "job", resume=number > 0) as run:
            await run.complete(1)  # the slot is made, which waits for open transactions
            if number < 4:
                await asyncio.to_thread(table.change, 60)
            elif number < LAST or is_last:  # else there is enough that it may be interrupted in
                await asyncio.to_thread(table.large, 1_000)
            await run.complete(chance.randint(1, 3))
            if is_last:
                await asyncio.to_thread(table.change, 300)
                await asyncio.to_thread(table.commit)
                await run.agrees(table, out)

    try:
        number = 0
        while number < LAST or (not noted.left_in_part and number < MOST):
            asyncio.run(
                attempt(number, is_last=False)
            )  # with a loop of its own: behind it none of its threads is at work
            number += 1
        asyncio.run(attempt(number, is_last=True))
    finally:
        table.close()
    assert noted.bounds, "no restart came while rows were read"
    assert noted.left_in_part, "no restart came within a transaction"


async def test_a_server_that_crashes_and_is_stopped_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While rows are read, and later; the job goes on by itself. Stopping waits for what the job has not confirmed."""
    monkeypatch.setattr(table_rows, "FIRST_ROWS", 20)
    monkeypatch.setattr(table_rows, "MOST_ROWS", 20)
    out = tmp_path / "out"
    with running_postgres() as server:
        table = ChangingTable(server, 1, 8_000, full=True)
        table.close()
        async with running(pipeline(table, out, before_images=True), tmp_path / "job", resume=False) as run:
            await run.complete(1)
            assert len(log_of(out)) < 8_000
            for how in (signal.SIGQUIT, signal.SIGQUIT, signal.SIGINT, signal.SIGQUIT):
                table.table.do("update {} set total = total + 1 where id % 3 = 0")
                table.table.do("update {} set id = id + 100000, town = null where id % 100 = 1")
                await asyncio.to_thread(server.kill, how)
                await asyncio.to_thread(server.start)
                await run.complete(2)
            table.table.do("delete from {} where id % 7 = 0")
            await run.agrees(table, out)
