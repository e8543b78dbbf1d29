"""Interrupted anywhere, resumed at another parallelism, cut into any batches: a pipeline's result stays the same."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from embedded_runs import Attempt, Stress, compare, finish, rows, settings
from pipelines import CASES, Case, Result, source, write_files

from penstock import Pipeline
from penstock.adapters.directory.blobs import DirectoryBlobs
from penstock.connectors import files
from penstock.embedded import EmbeddedJob
from penstock.errors import UsageError
from penstock.jobmanager.job_shell import JobShell
from penstock.protocol.jobevents import JobEvent, RecordStored
from penstock.protocol.joblog import StateBackend, Terminated
from penstock.savepoint.transfer import export_savepoint
from penstock.state.rocks import backend as rocks
from penstock.task import exchange, snapshot_objects, sources
from penstock.task.environment import SubtaskSettings

RATE = 6_000
HISTORIES = int(os.environ.get("PENSTOCK_TEST_HISTORIES", "1"))
"""Interrupted histories per pipeline; more of them are for a search by hand."""


@pytest.fixture(scope="session")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """The result of every pipeline, uninterrupted, with one subtask per operator and large batches."""
    results: dict[str, Result] = {}
    for case in CASES:
        folder = tmp_path_factory.mktemp(case.name)
        write_files(folder / "in")
        finish(case.declare(folder / "out", None), folder / "state")
        results[case.name] = case.result(folder / "out")
        assert results[case.name]
    return results


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_interruptions_change_nothing(
    case: Case, expected: dict[str, Result], tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seeded cancellations in the middle of a run, each resumed at 1, 2 or 3 subtasks per operator, with state in memory
    or on the local disk; snapshots are in many small objects."""
    monkeypatch.setattr(snapshot_objects, "OBJECT_BYTES", 4_000)
    monkeypatch.setattr(rocks, "_SEGMENT_BYTES", 500)
    for n in range(HISTORIES):
        print(f"seed {seed + n}: repeat with PENSTOCK_TEST_SEED={seed + n}")
        root = tmp_path / str(n)
        write_files(root / "in")
        stress = Stress(lambda out: case.declare(out, RATE), root, f"{seed + n}-{case.name}")
        out = stress.run()
        print(stress.resumed, "resumed from a checkpoint:", stress.history)
        compare(case.result(out), expected[case.name], f"seed {seed + n}: {stress.history}")


def test_a_source_at_its_end_makes_no_key_group_old(expected: dict[str, Result], tmp_path: Path) -> None:
    """Restored 3 -> 1 -> 2 while one source subtask has no split: its end of time is not that of any window."""
    case = next(case for case in CASES if case.name == "files")
    write_files(tmp_path / "in")
    planned = (Attempt(3, 20, 0, after_checkpoints=3), Attempt(1, 20, 0, after_checkpoints=2), Attempt(2, 20, 60, None))
    stress = Stress(lambda out: case.declare(out, 500), tmp_path, "planned", planned=planned)
    compare(case.result(stress.run()), expected["files"], stress.history)
    assert len(stress.history) == 3


async def dies_behind(
    step: str, job: EmbeddedJob, patched: pytest.MonkeyPatch, last: Callable[[Any], bool] = lambda _: True
) -> None:
    """Run a job whose leader takes no step behind this one, with the result that counts; then cancel the run."""
    take, taken = getattr(JobShell, step), asyncio.Event()

    async def takes(shell: JobShell, argument: Any) -> Any:
        result = await take(shell, argument)
        if last(result):
            taken.set()
            await asyncio.Event().wait()
        return result

    patched.setattr(JobShell, step, takes)
    run = asyncio.create_task(job.run(resume=False))
    await asyncio.wait_for(taken.wait(), 30)
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)


def test_a_leader_that_dies_between_exchanges_and_begin(
    expected: dict[str, Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one begins at another parallelism: it neither waits for what is there to change nor writes into it."""
    case = next(case for case in CASES if case.name == "retimed")
    write_files(tmp_path / "in")
    job = EmbeddedJob(case.declare(tmp_path / "out", None), tmp_path / "state", settings(2))
    with monkeypatch.context() as patched:
        asyncio.run(dies_behind("_capture", job, patched))
    finish(case.declare(tmp_path / "out", None), tmp_path / "state", settings(3), resume=True)
    compare(case.result(tmp_path / "out"), expected["retimed"], "resumed")


def test_a_run_that_dies_behind_its_end_leaves_nothing_staged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proofs of commits are needed until the end is recorded. If the run is killed then, resuming removes them."""

    def pipeline() -> Pipeline:
        p = Pipeline("ended")
        p.read(source(None)).write(files.Sink(tmp_path / "out"))
        return p

    def is_end(events: list[JobEvent]) -> bool:
        return any(isinstance(event, RecordStored) and isinstance(event.record, Terminated) for event in events)

    with monkeypatch.context() as patched:
        asyncio.run(dies_behind("_write", EmbeddedJob(pipeline(), tmp_path / "state", settings(2)), patched, is_end))
    made, staging = rows(tmp_path / "out"), tmp_path / "out" / ".staging"
    assert {path.suffix for path in staging.iterdir()} == {".committed"}
    anothers = staging / f"{next(staging.iterdir()).name.partition('-attempt')[0]}-attempt1-{'a' * 32}-1.jsonl"
    anothers.touch()
    with pytest.raises(UsageError, match="has finished"):
        finish(pipeline(), tmp_path / "state", resume=True)
    assert list(staging.iterdir()) == [anothers], "that of a job which writes there by now"
    assert rows(tmp_path / "out") == made != []


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [("keyed-process", "rocksdb", "fs"), ("keyed-process", "fs", "rocksdb"), ("sessions", "fs", "fs")],
)
def test_a_run_begins_with_a_savepoint(
    name: str, before: StateBackend, after: StateBackend, expected: dict[str, Result], tmp_path: Path
) -> None:
    """In another directory, at another parallelism, on another state backend: with its state and positions, behind what
    it has made visible."""
    case = next(case for case in CASES if case.name == name)

    async def stopped() -> None:
        how = settings(2, 20, data=SubtaskSettings(state_backend=before, incremental=before != "memory"))
        job = EmbeddedJob(case.declare(tmp_path / "out", 200), tmp_path / "state", how)
        run = asyncio.create_task(job.run(resume=False))
        async with asyncio.timeout(60):
            while not job.started or len(job.progress.completed_checkpoints) < 3:
                await asyncio.wait([run], timeout=0.001)
            job.suspend()
            assert (await run).state == "SUSPENDED"
        found = await job.find()
        assert found is not None
        assert found.history.restore is not None
        await export_savepoint(DirectoryBlobs(tmp_path / "state" / "blobs"), found.history.restore, tmp_path / "kept")

    asyncio.run(stopped())
    shutil.rmtree(tmp_path / "state")
    again = case.declare(tmp_path / "out", None)
    other, kept = tmp_path / "other", tmp_path / "kept"
    assert again.run(parallelism=3, directory=other, from_savepoint=kept, state_backend=after).state == "FINISHED"
    compare(case.result(tmp_path / "out"), expected[name], "from a savepoint")


def test_what_no_run_can_begin_with(tmp_path: Path) -> None:
    """Where no savepoint is, and a run that is continued besides."""
    p = Pipeline("p")
    p.read(source(None)).write(files.Sink(tmp_path / "out"))
    with pytest.raises(UsageError, match="nowhere: no savepoint is there"):
        p.run(directory=tmp_path / "state", from_savepoint=tmp_path / "nowhere")
    with pytest.raises(UsageError, match="give one"):
        p.run(directory=tmp_path / "state", from_savepoint=tmp_path / "nowhere", resume=True)


@pytest.mark.acceptance
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_batches_and_settings_change_nothing(
    case: Case, expected: dict[str, Result], tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sources that read a few rows at a time, tiny credit, frequent checkpoints, any parallelism: the same result."""
    rng = random.Random(f"{seed}-{case.name}")
    batch, joined = rng.choice((17, 60, 500)), rng.choice((1, 100, 16_384))
    monkeypatch.setattr(sources, "BATCH_ROWS", batch)
    monkeypatch.setattr(exchange, "COALESCE_ROWS", joined)
    backend: StateBackend = rng.choice(("fs", "rocksdb"))
    data = SubtaskSettings(
        flush_ms=rng.choice((1, 50)),
        credit_bytes=rng.choice((1, 5_000, 4 << 20)),
        state_backend=backend,
        incremental=rng.choice((True, False)),
    )
    how = settings(rng.choice((1, 2, 3, 4)), rng.choice((2, 20, 10_000)), data=data)
    what = f"seed {seed}: {batch} rows a batch, joined to {joined}, {how}"
    print(what)
    write_files(tmp_path / "in")
    finish(case.declare(tmp_path / "out", None), tmp_path / "state", how)
    compare(case.result(tmp_path / "out"), expected[case.name], what)
