"""Reading the changes of a table while jobs are killed and the server crashes: each change once, in order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
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
from penstock.embedded import EmbeddedJob

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running_postgres() as found:
        yield found


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


@pytest.mark.parametrize("before_images", [False, True])
async def test_a_job_that_is_killed_again_and_again_has_each_change_once(
    server: PostgresServer, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch, before_images: bool
) -> None:
    """While rows are read and afterwards; transactions are open side by side, roll back, are huge, change keys."""
    print(f"PENSTOCK_TEST_SEED={seed}")
    chance = random.Random(seed)
    monkeypatch.setattr(table_rows, "FIRST_ROWS", 40)
    monkeypatch.setattr(table_rows, "MOST_ROWS", 40)
    monkeypatch.setattr(change_reading, "MOST_CHANGES", 700)
    bounds: list[int] = []
    ask = change_reading.parts_of_keys

    async def noted(capture: Any, found: Any, parts: Any, keys: Any) -> Any:
        bounds.append(len(parts))
        return await ask(capture, found, parts, keys)

    monkeypatch.setattr(change_reading, "parts_of_keys", noted)
    table, out = ChangingTable(server, seed, 6_000, full=before_images), tmp_path / "out"
    try:
        for attempt in range(7):
            made = pipeline(table, out, before_images=before_images)
            async with running(made, tmp_path / "job", resume=attempt > 0) as run:
                await run.complete(1)  # the slot is made, which waits for open transactions
                await asyncio.to_thread(table.change, 60)
                await run.complete(chance.randint(1, 3))
                if attempt >= 4:
                    await asyncio.to_thread(table.large, 2_000)
                    await run.complete(chance.randint(1, 3))
        async with running(pipeline(table, out, before_images=before_images), tmp_path / "job", resume=True) as run:
            await asyncio.to_thread(table.change, 300)
            await asyncio.to_thread(table.commit)
            await run.agrees(table, out)
    finally:
        table.close()
    assert max(bounds, default=0) >= 1, "no restart came while rows were read"
