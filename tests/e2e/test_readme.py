"""README, tutorial and walks do what they say: pipelines and every command in their blocks, in a copy of the folder.

What other pages hold in blocks is checked by `tests/unit/docs`.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import ROOT, Command

pytestmark = [pytest.mark.e2e, pytest.mark.servers]


def blocks(page: str) -> list[tuple[str, str]]:
    """Kind and text of each block of code."""
    return re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


def commands(page: str) -> list[str]:
    """The lines of blocks that name no language: to be typed as they stand."""
    typed = "".join(text for kind, text in blocks(page) if not kind).replace("\\\n", "")
    return [line for line in typed.splitlines() if line.strip()]


README = (ROOT / "README.md").read_text()
COMMANDS = commands("README.md") + commands("docs/spark.md")
TUTORIAL = commands("docs/tutorial.md")
FILES = re.findall(r"<!-- file: (\S+) -->\n```python\n(.*?)```", (ROOT / "docs/tutorial.md").read_text(), re.DOTALL)
[CLUSTER] = [text.splitlines() for kind, text in blocks("docs/clusters.md") if kind == "sh"]
"""The walk through a cluster: in this order."""
[HISTORY] = [text.splitlines() for kind, text in blocks("docs/history.md") if kind == "bash"]
"""The walk from history on Spark to the stream: likewise, on a platform of its own."""
[PIPELINE] = [text for kind, text in blocks("README.md") if kind == "python"]


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
    """As it stands there."""
    result = shell(folder, command)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.timeout(300)
def test_the_tutorial(folder: Path) -> None:
    """Every line of it, in order, with its files; its commands print what it shows, but for times and checkpoints."""
    for name, text in FILES:
        (folder / name).write_text(text)
    printed = ""
    for command in TUTORIAL:
        result = shell(folder, command)
        assert result.returncode == 0, f"{command}\n{result.stdout}{result.stderr}"
        printed += result.stdout + result.stderr
    assert len((folder / "expected-delays").read_text().splitlines()) == 4_120
    for kind, text in blocks("docs/tutorial.md"):
        for line in text.splitlines() if kind == "text" else ():
            assert without_chance(line) in without_chance(printed), printed


def without_chance(text: str) -> str:
    """What commands print but for how long it took, and which checkpoint a kill came behind."""
    return re.sub(r" in [\d.,]+ m?s( \([\d,]+ rows/s\))?|checkpoint \d+", "", text)


def test_the_tutorial_shows_a_part_of_the_walk_through_a_cluster() -> None:
    """Which is run: its commands are some of those, in their order."""
    [shown] = [text.splitlines() for kind, text in blocks("docs/tutorial.md") if kind == "sh"]
    assert shown == [command for command in CLUSTER if command in shown]


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
    [shown] = [text for kind, text in blocks("README.md") if kind == "text"]
    assert all(json.loads(line) in rows for line in shown.splitlines())
