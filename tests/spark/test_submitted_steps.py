"""A job in steps as the pipeline service has it carried out: what it shows meanwhile, and what it leaves."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from state_runs import STATE_FILE, write_part
from test_steps import new_id

from penstock import savepoint
from penstock.adapters.system_clock import SystemClock
from penstock.errors import ExternalError
from penstock.loading import load_pipeline
from penstock.protocol.joblog import Artifact
from penstock.protocol.requests import RunOptions
from penstock.protocol.restarts import FixedDelay
from penstock.runs.run_log import RunOutcome
from penstock.runs.run_views import RunProgress
from penstock.spark import engine, submitted_steps
from penstock.spark.code import pack_code
from penstock.spark.committing import RunManifests
from penstock.spark.submitting import AttemptFolder, AttemptSpec


class Child:
    """What a child of the service does, in this process and without Spark."""

    def __init__(self, session: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(submitted_steps, "open_keeping_signals", lambda *_: session)
        monkeypatch.setattr(submitted_steps, "ui_address", lambda _: None)
        monkeypatch.setattr(submitted_steps, "end_session", lambda _: None)
        (root / "attempt").mkdir()
        self.root, self.folder = root, AttemptFolder(root / "attempt")
        self.said: list[str] = []
        self.shown: list[RunProgress] = []
        monkeypatch.setattr(AttemptFolder, "write_progress", lambda _, progress: self._show(progress))

    def _show(self, progress: RunProgress) -> None:
        self.shown.append(progress)
        if progress.step:
            os.kill(os.getpid(), signal.SIGTERM)

    def run(self) -> RunOutcome:
        given = {"case": "tumbling", "in": str(self.root / "in"), "out": str(self.root / "out")}
        options = RunOptions(2, "local[2]", every_us=1_000, restart=FixedDelay(attempts=1, delay_ms=5))
        spec = AttemptSpec(
            run="live", name="tumbling", artifact=Artifact("a.zip", "a", "state.py"), options=options,
            manifests=str(self.root / "steps" / "live"),
        )  # fmt: skip
        pipeline, code = load_pipeline(str(STATE_FILE), given), pack_code(str(STATE_FILE), given)
        return submitted_steps.run_steps(self.folder, spec, pipeline, code, SystemClock(), new_id, self.said.append)


@pytest.fixture
def child(local, tmp_path, monkeypatch) -> Child:
    return Child(local, tmp_path, monkeypatch)


def test_it_ends_behind_the_step_at_work_and_goes_on_there(child, tmp_path):
    """SIGTERM comes when the step is done: its line is shown, its savepoint named. The next attempt does the next one."""
    for number in (1, 2):
        write_part(tmp_path / "in", f"{number}-", number * 500 - 500, number * 500)
        outcome = child.run()
        assert outcome.state == "FINISHED"
        kept = outcome.reason.removeprefix(f"ended behind step {number}; savepoint: ")
        assert savepoint.read(kept).splits().height == number * 3
        assert child.shown[-1].at.startswith(f"step {number}: 500 rows in, ")
        assert (child.shown[-1].step, child.shown[-1].parallelism) == (number, 2)
    assert child.said == ["ending behind the step at work; once more cancels it"] * 2


def test_a_signal_while_a_step_fails_ends_the_process_and_not_the_job(child, tmp_path, monkeypatch):
    """A machine that shuts down takes away what a step needs, too: the next attempt repeats it."""

    def fail(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        raise ExternalError("the disk is gone")

    write_part(tmp_path / "in", "a-", 0, 500)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "prepare_sinks", fail)
        outcome = child.run()
    assert outcome.state == "FINISHED"
    assert outcome.reason == "the disk is gone; step 1 was begun: submitted again by its id the job carries it out"
    assert "ended behind step 1; savepoint: " in child.run().reason


@pytest.mark.parametrize(("step", "visible"), [("prepare_sinks", False), ("seal", True)])
def test_a_step_that_fails_for_good_is_told_with_where_the_job_stands(step, visible, child, tmp_path, monkeypatch):
    """After the repetitions of its strategy, each of which is shown."""

    def fail(*_: object, **__: object) -> None:
        raise ExternalError("the disk is full")

    write_part(tmp_path / "in", "a-", 0, 500)
    with monkeypatch.context() as patch:
        patch.setattr(engine, step, fail)
        outcome = child.run()
    assert outcome.state == "FAILED"
    again = "submitted again by its id the job carries it out"
    decided = ", is decided, and perhaps only partly visible" if visible else ""
    assert outcome.reason == f"the disk is full; step 1 was begun{decided}: {again}"
    assert child.shown[-1].at == "step 1 failed, and is repeated in 0.005 s: the disk is full"
    assert RunManifests(tmp_path / "steps" / "live" / "00000001").find("x") is None
    assert "ended behind step 1; savepoint: " in child.run().reason
