"""What catching up says when it cannot go on: from which savepoint the job can be resumed, and how."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from penstock import Pipeline
from penstock.cli.main import _parser
from penstock.client.documents import ArtifactDescription
from penstock.errors import ExternalError
from penstock.protocol.checkpoints import CheckpointSettings
from penstock.protocol.joblog import JobSettings
from penstock.protocol.messages import Restore
from penstock.protocol.restarts import FixedDelay
from penstock.savepoint.folder import SEAL
from penstock.savepoint.places import StoredPlace, place_of
from penstock.settings import ClusterSettings
from penstock.spark.catching_up import Backlog, StoppedJob
from penstock.spark.committing import RunManifest, RunManifests
from penstock.spark.splits import RunBeginning, RunBeginnings

JOB = "0123456789abcdef0123456789abcdef"
SETTINGS = JobSettings(
    CheckpointSettings(interval_ms=1_500, flavour="at_least_once"), FixedDelay(3, 250), "memory", per_job=True
)


@pytest.fixture
def backlog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Backlog:
    """Catching up a job with settings of its own."""
    monkeypatch.chdir(tmp_path)
    artifact = ArtifactDescription("counts.py:p", {"topic": "two words"})
    job = StoppedJob(JOB, "STOPPED", 3, SETTINGS, artifact, b"", tmp_path / "sources", Pipeline("counts"))
    return Backlog(job, Restore(7, "jobs/x/manifest.json", "abc"), ClusterSettings())


def folder(tmp_path: Path) -> Path:
    return tmp_path / ".penstock/catch-up/01234567-7"


def decide(backlog: Backlog, tmp_path: Path) -> RunManifests:
    manifests = RunManifests(folder(tmp_path) / "runs")
    manifests.folder.mkdir(parents=True)
    manifests.create(RunManifest(backlog.run_id, "counts", {}, {}))
    return manifests


def test_before_it_is_decided_the_job_can_go_on_as_it_was(backlog, tmp_path):
    """The command has the settings that the job had, and is one that is understood."""
    said = backlog.how_to_go_on()
    assert f"try again with: penstock catch-up {JOB}" in said
    command = shlex.split(said.partition("as it was: penstock ")[2])
    arguments = _parser().parse_args(command)
    assert (arguments.from_savepoint, arguments.parallelism) == ("jobs/x/manifest.json", 3)
    assert (arguments.file, arguments.param) == (str(tmp_path / "sources/counts.py:p"), ["topic=two words"])
    assert (arguments.checkpoint_interval, arguments.restart) == ("1500ms", "fixed-delay:3:250ms")
    assert arguments.at_least_once
    assert arguments.per_job
    assert arguments.state_backend == "memory"


def test_what_is_partly_visible_is_carried_to_its_end(backlog, tmp_path):
    """No savepoint is named: from none could the job go on."""
    manifests = decide(backlog, tmp_path)
    for _ in range(2):
        said = backlog.how_to_go_on()
        assert f"without doubling a row, with: penstock catch-up {JOB}" in said
        assert "--from-savepoint" not in said
        manifests.note_committed(backlog.run_id)


def test_what_is_done_goes_on_from_the_new_savepoint(backlog, tmp_path):
    """The former one would do the backlog again, which is said."""
    decide(backlog, tmp_path).note_committed(backlog.run_id)
    target = folder(tmp_path) / "savepoint"
    target.mkdir()
    (target / SEAL).touch()
    said = backlog.how_to_go_on()
    assert f"--from-savepoint {target}" in said
    assert "Do not resume it from jobs/x/manifest.json" in said


def test_where_rows_are_staged_the_savepoint_is_left_too(backlog, tmp_path, bucket, monkeypatch):
    """Under a name of this backlog's own, which another process finds again; a store that is away hides no advice."""
    settings = ClusterSettings()
    staged = [Backlog(backlog._job, backlog._savepoint, settings, "s3://bucket/staged") for _ in range(2)]
    target = str(staged[0]._target)
    assert target.startswith("s3://bucket/staged/")
    assert target == str(staged[1]._target)
    staged[0]._manifests.create(RunManifest(backlog.run_id, "counts", {}, {}))
    staged[0]._manifests.note_committed(backlog.run_id)
    assert "--from-savepoint" not in staged[1].how_to_go_on()
    place_of(target).write(SEAL, b"{}")
    assert f"--from-savepoint {target}" in staged[1].how_to_go_on()

    def away(*_: object) -> None:
        raise ExternalError("no answer")

    monkeypatch.setattr(StoredPlace, "sizes", away)
    assert f"with: penstock catch-up {JOB}" in staged[1].how_to_go_on()


def test_a_run_that_began_to_leave_its_savepoint_goes_on_there(backlog, tmp_path):
    """Whatever is said of staging when it is repeated: `penstock catch-up JOB` alone carries it to its end."""
    manifests = decide(backlog, tmp_path)
    RunBeginnings(manifests.folder).fix(backlog.run_id, RunBeginning({}, target="s3://bucket/staged/1/savepoint"))
    assert str(backlog._target) == "s3://bucket/staged/1/savepoint"


def test_the_same_savepoint_is_the_same_run(backlog):
    """And another one, or that of another cluster, is not."""
    again = Backlog(backlog._job, backlog._savepoint, ClusterSettings())
    other = Backlog(backlog._job, Restore(7, "jobs/x/manifest.json", "abd"), ClusterSettings())
    there = Backlog(backlog._job, backlog._savepoint, replace(ClusterSettings(), name="there"))
    assert again.run_id == backlog.run_id
    assert len({backlog.run_id, other.run_id, there.run_id}) == 3
