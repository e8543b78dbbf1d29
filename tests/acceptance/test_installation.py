"""The library as its users get it: built, installed into a fresh environment, and used outside of the clone.

What is built from the source archive is what is built from the clone; the README's first program runs with nothing but
what the wheel asks for, and does not double its rows; every extra resolves by name, and what misses one names it.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import dataclass
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from tools.rooms import ROOT

from penstock.core.extras import DISTRIBUTION, EXTRAS, install

DECLARED = tomllib.loads((ROOT / "shared/pyproject.toml").read_text())["project"]["optional-dependencies"]
[FIRST] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
WITHOUT_EXTRAS = """
import sys
from dataclasses import dataclass
from penstock import Pipeline
from penstock.connectors import files, http, iceberg, iterables, kafka, opensearch, postgres, redis

@dataclass
class Row:
    i: int

@dataclass
class Named(Row):
    name: str

p = Pipeline("without-extras")
rows = p.read(iterables.Source([Row(1)], schema=Row))
{}
"""
"""What of it runs fails."""
MISSING = {
    "p.read(kafka.Source('t', schema=Row, brokers='localhost:1')).write(files.Sink('out')); p.run()": "kafka",
    "rows.write(kafka.Sink('t', brokers='localhost:1')); p.run()": "kafka",
    "rows.write(postgres.Sink('t', url='postgresql://h/d')); p.run()": "postgres",
    "rows.join(postgres.Lookup('t', schema=Named, url='postgresql://h/d'), on='i').collect()": "postgres",
    "rows.write(redis.Sink('{i}', url='redis://h')); p.run()": "cluster",
    "rows.write(http.Sink('http://h')); p.run()": "cluster",
    "rows.write(opensearch.Sink('rows', url='http://h')); p.run()": "cluster",
    "rows.write(iceberg.Sink('a.b', catalog={'type': 'sql', 'uri': 'sqlite:///x'}))": "iceberg",
    "rows.write(files.Sink('s3://bucket/out'))": "stores",
    "rows.write(files.Sink('out')); p.run(engine='spark')": "spark",
    "rows.write(files.Sink('out')); p.run(state_backend='rocksdb')": "rocksdb",
    "rows.write(files.Sink('out')); p.submit()": "cluster",
    "from penstock.client import Cluster": "cluster",
}
"""What misses an extra, and which."""


@dataclass(frozen=True)
class Installation:
    """What was built, and the environment it is installed in."""

    wheel: Path
    sdist: Path
    folder: Path

    def __call__(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment outside of the clone."""
        program = self.folder / "env/bin" / command[0]
        return subprocess.run(
            [program, *command[1:]], cwd=self.folder, capture_output=True, text=True, check=False, timeout=100
        )


def uv(*arguments: str | Path) -> str:
    """What uv says."""
    command = [Path(sys.executable).with_name("uv"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """The versions that the requirements are locked at; the wheel itself says what it needs."""
    folder = tmp_path_factory.mktemp("installation")
    uv("build", "--no-build-isolation", "--python", sys.executable, "--out-dir", folder / "dist", "shared")
    uv("venv", "--python", sys.executable, folder / "env")
    (wheel,), (sdist,) = (folder / "dist").glob("*.whl"), (folder / "dist").glob("*.tar.gz")
    python = folder / "env/bin/python"
    uv("pip", "install", "--python", python, "--constraint", "requirements.lock", wheel)
    return Installation(wheel, sdist, folder)


def test_the_archive_of_sources_holds_what_the_wheel_is_made_of(installed: Installation, tmp_path: Path) -> None:
    """A wheel built from it has the same files."""
    build = ("build", "--wheel", "--no-build-isolation", "--python", sys.executable, "--out-dir", tmp_path)
    uv(*build, installed.sdist)
    (again,) = tmp_path.glob("*.whl")
    names = [
        {each.filename: each.CRC for each in zipfile.ZipFile(wheel).infolist()} for wheel in (again, installed.wheel)
    ]
    assert names[0] == names[1]
    assert "penstock/py.typed" in names[0]


def test_the_first_program_runs_twice_and_leaves_every_row_once(installed: Installation) -> None:
    """With nothing but the wheel and what it asks for, by Python and by the command."""
    shutil.copytree(ROOT / "examples/data", installed.folder / "examples/data")
    (installed.folder / "my_departures.py").write_text(FIRST)
    for command in (("python", "my_departures.py"), ("penstock", "run", "--fresh", "my_departures.py")):
        done = installed(*command)
        assert done.returncode == 0, done.stderr
        parts = (installed.folder / "out/my-departures").glob("part-*")
        rows = [json.loads(line) for part in parts for line in part.read_text().splitlines()]
        assert (len(rows), sum(row["flights"] for row in rows)) == (6_901, 20_000)


def test_every_extra_resolves_by_name(installed: Installation) -> None:
    """All at once, at the locked versions; an extra that the wheel does not have would be warned of."""
    everything = f"{DISTRIBUTION}[{','.join(DECLARED)}] @ {installed.wheel.as_uri()}"
    python = installed.folder / "env/bin/python"
    said = uv("pip", "install", "--dry-run", "--python", python, "--constraint", "requirements.lock", everything)
    assert "warning" not in said
    for package in (
        "aiokafka",
        "obstore",
        "pyiceberg",
        "psycopg",
        "rocksdict",
        "lightkube",
        "testcontainers",
        "pyspark",
    ):
        assert f" + {package}==" in said


def test_a_missing_extra_is_named(installed: Installation) -> None:
    """By the error that a program ends with. All in one process, each in a module of its own."""
    tried = f"""
for text in {list(MISSING)!r}:
    try:
        exec(compile({WITHOUT_EXTRAS!r}.format(text), "use.py", "exec"), vars(sys.modules["__main__"]))
    except Exception as error:
        print(type(error).__name__, error)
    else:
        print("nothing is missing")
"""
    (installed.folder / "use.py").write_text(f"import sys\n{tried}")
    done = installed("python", "use.py")
    said = done.stdout.splitlines()
    assert len(said) == len(MISSING), done.stderr
    for (text, extra), line in zip(MISSING.items(), said, strict=True):
        assert install(extra) in line, (text, line)


def test_a_command_names_the_extra_that_it_needs(installed: Installation) -> None:
    """Those of a cluster, and a run."""
    program = WITHOUT_EXTRAS.format("rows.write(kafka.Sink('t', brokers='localhost:1'))")
    (installed.folder / "sends.py").write_text(program)
    for extra, command in (("cluster", ("up",)), ("cluster", ("jobs",)), ("kafka", ("run", "sends.py"))):
        done = installed("penstock", *command)
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1].endswith(install(extra)), done.stderr


def test_the_extras_of_packages_are_those_of_the_distribution() -> None:
    """Every package that messages name comes with the extra that they name."""
    brought = {extra: brought_by(extra) for extra in DECLARED}
    owners = packages_distributions()
    for package, extra in EXTRAS.items():
        distributions = {owner.lower().replace("_", "-") for owner in owners.get(package, ())}
        assert distributions & brought[extra], (package, extra, distributions)


def brought_by(extra: str) -> set[str]:
    """The distributions that an extra installs, with those that these need."""
    found: set[str] = set()
    waiting = [Requirement(each) for each in DECLARED[extra]]
    while waiting:
        wanted = waiting.pop()
        name = wanted.name.lower().replace("_", "-")
        if name == DISTRIBUTION:
            waiting += [Requirement(each) for extra in wanted.extras for each in DECLARED[extra]]
        elif name not in found:
            found.add(name)
            needed = map(Requirement, requires(name) or ())
            chosen = [{"extra": extra} for extra in ("", *wanted.extras)]
            waiting += [each for each in needed if not each.marker or any(map(each.marker.evaluate, chosen))]
    return found
