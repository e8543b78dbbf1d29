"""The README does what it says: its first pipeline and every command in its code blocks, in a copy of the folder."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import ROOT, Command

pytestmark = pytest.mark.e2e

README = (ROOT / "README.md").read_text()
BLOCKS = [(kind, text) for kind, text in re.findall(r"```(\w*)\n(.*?)```", README, re.DOTALL)]
COMMANDS = [line for kind, text in BLOCKS if not kind for line in text.splitlines() if line.strip()]
[CLUSTER] = [text.splitlines() for kind, text in BLOCKS if kind == "sh"]
"""The walk through a cluster: in this order."""
[HISTORY] = [text.splitlines() for kind, text in BLOCKS if kind == "bash"]
"""The walk from history on Spark to the stream: likewise, on a platform of its own."""
PIPELINE, *_ = [text for kind, text in BLOCKS if kind == "python"]
"""The first one; that about savepoints is run by test_cluster_commands."""
[TEST] = [text for kind, text in BLOCKS if kind == "python" and "run_pipeline" in text]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the README's commands need, with this environment's commands where its own would be."""
    copy = tmp_path_factory.mktemp("readme")
    for name in ("examples", "Makefile", "requirements.lock"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, copy / name)
    (copy / "shared").mkdir()
    shutil.copy(ROOT / "shared" / "pyproject.toml", copy / "shared")
    for service in (ROOT / "services").iterdir():
        (copy / "services" / service.name).mkdir(parents=True)
        shutil.copy(service / "pyproject.toml", copy / "services" / service.name)
    (copy / ".venv/bin").mkdir(parents=True)
    for name, module in (("penstock", "penstock.cli.main"), ("python", None)):
        start = f'exec "{sys.executable}" ' + (f"-m {module} " if module else "") + '"$@"'
        script = copy / ".venv/bin" / name
        script.write_text(f"#!/bin/sh\n{start}\n")
        script.chmod(0o755)
    (copy / ".venv/.ready").touch()  # so that make does not install anything
    (copy / "my_departures.py").write_text(PIPELINE)
    return copy


def shell(folder: Path, command: str, timeout_s: float = 100) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", "-c", command], cwd=folder, capture_output=True, text=True, check=False, timeout=timeout_s
    )


def variants() -> Iterator[str]:
    """The commands; those that would run the whole test suite are looked at, not run."""
    for command in COMMANDS:
        if command != "make test":
            yield command


@pytest.mark.parametrize("command", list(variants()))
def test_every_command_runs(folder: Path, command: str) -> None:
    """As it stands there; one that resumes gets something to resume."""
    if command.endswith("--resume"):
        interrupt(folder, command.replace("--resume", "--fresh --param rate=4000"))
    result = shell(folder, command)
    assert result.returncode == 0, result.stdout + result.stderr


def interrupt(folder: Path, command: str) -> None:
    """Stop it in the middle of its rows; a busy machine takes longer to come to them."""
    for seconds in (3, 6, 12):
        stopped = shell(folder, f"timeout --foreground --signal INT {seconds} {command}")
        if "interrupted before anything ran" not in stopped.stderr:
            break
    assert "stopped at checkpoint" in stopped.stderr, stopped.stderr


@pytest.mark.timeout(400)
def test_the_walk_through_a_cluster(folder: Path) -> None:
    """Every line of it, in order, on a platform of its own; a worker of that platform is killed and no other."""
    try:
        for command in CLUSTER:
            result = shell(folder, command)
            assert result.returncode == 0, f"{command}\n{result.stdout}{result.stderr}"
    finally:
        shell(folder, ".venv/bin/penstock down --purge")
    assert len((folder / "expected").read_text().splitlines()) == 6_901


@pytest.mark.timeout(600)
def test_the_walk_from_history_to_the_stream(folder: Path) -> None:
    """Every line of it, in order: what Spark and the job published together is what one run comes to."""
    try:
        for command in HISTORY:
            result = shell(folder, command, timeout_s=250)
            assert result.returncode == 0, f"{command}\n{result.stdout}{result.stderr}"
    finally:
        shell(folder, ".venv/bin/penstock down --purge")
    assert len((folder / "expected").read_text().splitlines()) == 6_901


def test_its_test_of_a_pipeline_passes(folder: Path) -> None:
    """With pytest, beside the pipeline."""
    (folder / "test_departures.py").write_text(TEST)
    result = shell(folder, ".venv/bin/python -m pytest -q -p no:cacheprovider test_departures.py")
    assert "1 passed" in result.stdout, result.stdout + result.stderr


def test_make_test_is_a_target() -> None:
    """It runs these very tests, so it is only looked up."""
    assert "make test" in COMMANDS
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    targets = {line.split()[0] for line in listed.splitlines()}
    wanted = set(re.findall(r"`make (\w+)", README)) | {c.split()[1] for c in COMMANDS if "make " in c}
    assert wanted <= targets


def test_the_first_pipeline_gives_a_line_per_airport_and_day(tmp_path: Path) -> None:
    """It is run as the README says, and its result is that of the example, under other file names."""
    command = Command(tmp_path)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    command.pipeline("my_departures.py", PIPELINE)
    result = command.run("run", "my_departures.py")
    assert "out/my-departures" in result.stderr
    rows = command.rows("out/my-departures")
    assert len(rows) == 6_901
    assert sum(row["flights"] for row in rows) == 20_000
    assert rows[0].keys() == {"origin", "window_start", "window_end", "flights", "mean_delay_min"}
