"""What `penstock run` does about interrupts and metrics files, without running anything."""

from __future__ import annotations

import asyncio
import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from penstock.cli.run import Run, _announce, _Interrupts, _repeated, _write_metrics_once
from penstock.coordination.job_progress import JobProgress
from penstock.embedded import EmbeddedJob, FoundJob
from penstock.errors import ExternalError
from penstock.graph.jobgraph import JobGraph
from penstock.protocol.joblog import JobHistory, Submit


class FakeJob:
    """A job that has begun or not."""

    def __init__(self, *, started: bool) -> None:
        self.started = started
        self.suspended = 0
        self.graph = JobGraph("fake", 1, 240, ())
        self.progress = JobProgress("job")

    def suspend(self) -> None:
        self.suspended += 1

    def now_us(self) -> int:
        return 0


def as_job(fake: FakeJob) -> EmbeddedJob:
    return cast("EmbeddedJob", cast("object", fake))


async def test_resuming_a_run_without_a_checkpoint_says_that_it_begins_anew() -> None:
    """It was killed too early for anything to go on from."""
    submit = Submit(seq=0, nonce="n", job="job", name="fake", graph=JobGraph("fake", 1, 240, ()).to_json())
    found, out = FoundJob("job", JobHistory.of([submit])), io.StringIO()

    class Found(FakeJob):
        processes = 2

        async def find(self) -> FoundJob:
            return found

    command = cast("Run", cast("object", SimpleNamespace(resume=True, fresh=False)))
    await _announce(as_job(Found(started=False)), Path("state"), command, Console(file=out))
    assert "had no complete checkpoint, so this one reads from the beginning" in out.getvalue()


async def test_an_interrupt_before_the_job_has_begun_cancels_it() -> None:
    """There is no checkpoint to stop at."""
    running: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    fake = FakeJob(started=False)
    _Interrupts(as_job(fake), running, Console(file=io.StringIO())).interrupt()
    assert running.cancelled()
    assert fake.suspended == 0


async def test_the_first_interrupt_stops_at_a_checkpoint() -> None:
    """And says what a second one would do."""
    running: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    fake, out = FakeJob(started=True), io.StringIO()
    _Interrupts(as_job(fake), running, Console(file=out)).interrupt()
    assert fake.suspended == 1
    assert not running.done()
    assert out.getvalue() == "stopping at a checkpoint; Ctrl-C again stops at once\n"


def test_the_command_that_goes_on_repeats_what_matters() -> None:
    """Parameters, directory and parallelism: without them `--resume` would mean another job."""
    nothing = Run(
        file="f.py", parallelism=None, param=[], at_least_once=False, checkpoint_interval="10s", dir=None, resume=False,
        fresh=False, from_savepoint=None, metrics=None, state_backend="fs", incremental_checkpoints=False, no_fsync=False,
        ui=False, ui_port=None, ui_keep=False, log_format="text", log_level="error",
    )  # fmt: skip
    given = replace(nothing, param=["rate=5", "out=a b"], dir="state", parallelism=3)
    assert _repeated(given) == ["--param", "rate=5", "--param", "out=a b", "--dir", "state", "--parallelism", "3"]
    assert _repeated(nothing) == []


def test_a_metrics_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """No reader sees half of it, and no temporary file is left; a folder that is not there is named."""
    fake = as_job(FakeJob(started=True))
    for _ in range(2):
        _write_metrics_once(fake, tmp_path / "m.prom")
    assert [path.name for path in tmp_path.iterdir()] == ["m.prom"]
    assert "penstock_attempt" in (tmp_path / "m.prom").read_text()
    with pytest.raises(ExternalError, match=r"--metrics .*nowhere"):
        _write_metrics_once(fake, tmp_path / "nowhere" / "m.prom")
    _write_metrics_once(as_job(FakeJob(started=False)), tmp_path / "none.prom")
    assert not (tmp_path / "none.prom").exists()
