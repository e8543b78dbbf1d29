"""What `penstock catch-up` says when it cannot go on: from which savepoint the job can be resumed, and how."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from penstock import Pipeline
from penstock.cli import catch_up
from penstock.cli.main import _parser
from penstock.client.documents import ArtifactDescription
from penstock.protocol.checkpoints import CheckpointSettings
from penstock.protocol.joblog import JobSettings
from penstock.protocol.messages import Restore
from penstock.protocol.restarts import FixedDelay
from penstock.savepoint.folder import SEAL
from penstock.settings import ClusterSettings
from penstock.spark.committing import RunManifest, RunManifests

JOB = "0123456789abcdef0123456789abcdef"
SETTINGS = JobSettings(
    CheckpointSettings(interval_ms=1_500, flavour="at_least_once"), FixedDelay(3, 250), "memory", per_job=True
)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> catch_up._Work:
    """Catching up a job with settings of its own."""
    monkeypatch.chdir(tmp_path)
    artifact = ArtifactDescription("counts.py:p", {"topic": "two words"})
    job = catch_up._Job(JOB, "STOPPED", 3, SETTINGS, artifact, b"", tmp_path / "sources", Pipeline("counts"))
    return catch_up._Work(job, Restore(7, "jobs/x/manifest.json", "abc"), ClusterSettings())


def folder(tmp_path: Path) -> Path:
    return tmp_path / ".penstock/catch-up/01234567-7"


def decide(work: catch_up._Work, tmp_path: Path) -> RunManifests:
    manifests = RunManifests(folder(tmp_path) / "runs")
    manifests.create(RunManifest(work._run, "counts", {}, {}))
    return manifests


def test_before_it_is_decided_the_job_can_go_on_as_it_was(work, tmp_path):
    """The command has the settings that the job had, and is one that is understood."""
    said = work.how_to_go_on()
    assert f"try again with: penstock catch-up {JOB}" in said
    command = shlex.split(said.partition("as it was: penstock ")[2])
    arguments = _parser().parse_args(command)
    assert (arguments.from_savepoint, arguments.parallelism) == ("jobs/x/manifest.json", 3)
    assert (arguments.file, arguments.param) == (str(tmp_path / "sources/counts.py:p"), ["topic=two words"])
    assert (arguments.checkpoint_interval, arguments.restart) == ("1500ms", "fixed-delay:3:250ms")
    assert arguments.at_least_once
    assert arguments.per_job
    assert arguments.state_backend == "memory"


def test_what_is_partly_visible_is_carried_to_its_end(work, tmp_path):
    """No savepoint is named: from none could the job go on."""
    manifests = decide(work, tmp_path)
    for _ in range(2):
        said = work.how_to_go_on()
        assert f"without doubling a row, with: penstock catch-up {JOB}" in said
        assert "--from-savepoint" not in said
        manifests.note_committed(work._run)


def test_what_is_done_goes_on_from_the_new_savepoint(work, tmp_path):
    """The former one would do the backlog again, which is said."""
    decide(work, tmp_path).note_committed(work._run)
    target = folder(tmp_path) / "savepoint"
    target.mkdir()
    (target / SEAL).touch()
    said = work.how_to_go_on()
    assert f"--from-savepoint {target}" in said
    assert "Do not resume it from jobs/x/manifest.json" in said


def test_the_same_savepoint_is_the_same_run(work):
    """And another one, or that of another cluster, is not."""
    again = catch_up._Work(work._job, work._savepoint, ClusterSettings())
    other = catch_up._Work(work._job, Restore(7, "jobs/x/manifest.json", "abd"), ClusterSettings())
    there = catch_up._Work(work._job, work._savepoint, replace(ClusterSettings(), name="there"))
    assert again._run == work._run
    assert len({work._run, other._run, there._run}) == 3
