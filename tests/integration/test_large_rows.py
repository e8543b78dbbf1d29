"""Rows that are larger than a record of the cluster's log: by the policy of their source, else the job fails once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from penstock import Pipeline, col
from penstock.adapters.memory import MemoryLog
from penstock.api.stream import Stream
from penstock.connectors import collecting, files
from penstock.connectors.base import Policy
from penstock.graph.executiongraph import ExecutionGraph
from penstock.graph.jobgraph import build_job_graph
from penstock.protocol.checkpoints import CheckpointSettings
from penstock.protocol.joblog import JobHistory, JobSettings
from penstock.protocol.restarts import ExponentialDelay
from penstock.testing.memory_cluster import MemoryCluster

LARGEST = 100_000
"""What a record of the log takes; that of Kafka takes 8 MiB."""


@dataclass
class Note:
    id: int
    text: str


def notes(folder: Path) -> Path:
    """A file of two hundred small ones, one that is too large, and two that are too large only together."""
    lengths = {50: 200_000, 60: 70_000, 61: 70_000}
    lines = [json.dumps({"id": n, "text": "x" * lengths.get(n, 10)}) for n in range(200)]
    (folder / "notes.jsonl").write_text("\n".join(lines) + "\n")
    return folder / "notes.jsonl"


def newest(former: Note, row: Note) -> Note:
    return row


def enlarged(row: Note) -> Note:
    return replace(row, text="x" * (200_000 if row.id == 70 else 10))


async def run(folder: Path, bad_rows: Policy, change: Callable[[Any], Any] = lambda stream: stream) -> tuple[Any, ...]:
    """How the job ended, its history, its rows, its dead letters, and how many rows its source counts as bad."""
    pipeline, rows, letters = Pipeline("notes"), collecting.Sink(), collecting.Sink()
    read = pipeline.read(files.Source(notes(folder), schema=Note, bad_rows=bad_rows))
    change(read).key_by("id").reduce(newest).final().write(rows)
    if bad_rows == "dead_letter":
        read.dead_letters().write(letters)
    cluster = MemoryCluster(log=MemoryLog(largest_record_bytes=LARGEST))
    settings = JobSettings(CheckpointSettings(interval_ms=100), ExponentialDelay(initial_ms=10))
    try:
        job = await cluster.submit(pipeline.plan, settings, parallelism=2)
        coordinator = cluster.coordinator()
        for _ in range(ExecutionGraph(build_job_graph(pipeline.plan, 2)).topology().slot_count):
            cluster.worker()
        outcome = await asyncio.wait_for(coordinator.job_ended(job), 30)
        progress = coordinator.progress(job)
        bad = sum(counted.bad_rows for status in progress.statuses.values() for counted in status.metrics.values())
        return outcome, await cluster.store.history(job), rows.rows, letters.rows, bad
    finally:
        await cluster.stop()


def attempts(history: JobHistory) -> int:
    assert history.begin is not None
    return history.begin.attempt_number


@pytest.mark.parametrize("bad_rows", ["skip", "dead_letter"])
async def test_a_row_that_a_source_brought_goes_by_its_policy(bad_rows: Policy, tmp_path: Path) -> None:
    """It is counted, and its beginning is a dead letter; rows that are too large only together are divided."""
    outcome, _, rows, letters, bad = await run(tmp_path, bad_rows, lambda stream: stream.filter(col("id") >= 0))
    assert outcome.state == "FINISHED", outcome.reason
    assert sorted(row["id"] for row in rows) == [n for n in range(200) if n != 50]
    assert bad == 1
    assert [letter["raw"][:20] for letter in letters] == (
        [b'{"id":"50","text":"x'] if bad_rows == "dead_letter" else []
    )
    assert all("exchange to" in letter["error"] and "key id=50" in letter["error"] for letter in letters)


async def test_it_fails_the_job_once_and_says_what_to_do(tmp_path: Path) -> None:
    """Another attempt would read it again."""
    outcome, history, *_ = await run(tmp_path, "fail")
    assert (outcome.state, attempts(history)) == ("FAILED", 1)
    assert "a row of 200,2" in outcome.reason
    assert "key id=50" in outcome.reason
    assert "bad_rows='skip' (counted) or 'dead_letter' at the source" in outcome.reason


async def test_a_row_that_a_function_made_fails_the_job_though_the_source_skips(tmp_path: Path) -> None:
    """It is no bad row of the source; the operator is named."""

    def mapped(stream: Stream[Note]) -> Any:
        return stream.filter(col("id") != 50).map(enlarged, returns=Note).uid("enlarged")

    outcome, history, *_ = await run(tmp_path, "skip", mapped)
    assert (outcome.state, attempts(history)) == ("FAILED", 1)
    assert "enlarged: a row of " in outcome.reason
    assert "key id=70" in outcome.reason
    assert "bad_rows" not in outcome.reason
