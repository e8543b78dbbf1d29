"""Few rows are let come together before they are a batch; nothing that matters waits for it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl
import pytest

from penstock import Pipeline
from penstock.connectors import collecting, iterables
from penstock.graph.executiongraph import ExecutionGraph
from penstock.graph.jobgraph import build_job_graph
from penstock.protocol.checkpoints import CheckpointSettings
from penstock.protocol.joblog import JobSettings
from penstock.protocol.restarts import NoRestart
from penstock.task.chain import Chain
from penstock.task.environment import SubtaskSettings
from penstock.task.sources import SourceDriver
from penstock.task.subtask_checkpoints import SubtaskCheckpoints
from penstock.testing.memory_cluster import MemoryCluster, until


@dataclass
class Event:
    n: int
    key: int


def endless() -> Iterator[Event]:
    return (Event(n, n % 5) for n in itertools.count())


def newest(former: Event, row: Event) -> Event:
    return row


async def batches(gather_ms: int, monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], list[int]]:
    """Rows of each batch that the keyed operator of a running job takes, until some checkpoints are complete; and the
    checkpoint of each barrier that a subtask, also of the source, has come to meanwhile."""
    taken: list[int] = []
    barriers: list[int] = []
    rows = Chain.rows

    def counted(chain: Chain, number: int, frame: pl.DataFrame) -> None:
        taken.append(frame.height)
        rows(chain, number, frame)

    freeze = SubtaskCheckpoints.freeze

    def frozen(checkpoints: SubtaskCheckpoints, *of: int) -> None:
        barriers.append(of[0])
        freeze(checkpoints, *of)

    monkeypatch.setattr(Chain, "rows", counted)
    monkeypatch.setattr(SubtaskCheckpoints, "freeze", frozen)
    sink = collecting.Sink()
    pipeline = Pipeline("endless")
    source = iterables.Source(endless, schema=Event, rate=2_000, bounded=False)
    pipeline.read(source).key_by("key").reduce(newest).write(sink)  # not combined before the exchange
    cluster = MemoryCluster(data=SubtaskSettings(gather_ms=gather_ms, gather_covered_ms=gather_ms))
    settings = JobSettings(CheckpointSettings(interval_ms=100), NoRestart())
    try:
        job = await cluster.submit(pipeline.plan, settings, parallelism=2)
        cluster.coordinator()
        for _ in range(ExecutionGraph(build_job_graph(pipeline.plan, 2)).topology().slot_count):
            cluster.worker()

        async def complete() -> bool:
            history = await cluster.store.history(job)
            return history.complete is not None and history.complete.checkpoint >= 6

        await until(complete, "some checkpoints are complete")
    finally:
        await cluster.stop()
    return taken, barriers


async def test_few_rows_are_a_batch_together_and_no_barrier_waits_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a patience of minutes, checkpoints go on as ever, and what they cover is all that was read."""
    monkeypatch.setattr(
        SourceDriver, "_ends_few", lambda *_, **__: False
    )  # it reads on: what comes of that is looked at
    together, barriers = await batches(600_000, monkeypatch)
    assert sum(together) > 500
    assert len(together) <= 3 * len(barriers)  # one per channel, and that of the first rows


async def test_a_barrier_leaves_nothing_behind_that_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that would wait for minutes reads before each barrier: 600 ms of rows are there after six of them."""
    together, _ = await batches(600_000, monkeypatch)
    assert sum(together) > 500
