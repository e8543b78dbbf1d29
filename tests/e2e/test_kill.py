"""SIGKILL at any moment, then --resume: the rows are those of an uninterrupted run, none lost, none doubled."""

from __future__ import annotations

import base64
import json
import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .conftest import EXAMPLES, Command, kill

pytestmark = [pytest.mark.e2e, pytest.mark.acceptance]

SEED = int(os.environ.get("PENSTOCK_TEST_SEED", random.SystemRandom().randrange(10**6)))
MOMENTS = 16
FOLDERS = 2
"""How many runs are killed side by side, so that the test uses both cores of a small machine."""
BETWEEN = 3
"""So many of them at least fall between a COMPLETE and its commit: where a busy machine lets the harness miss that time,
it kills more often."""
RATE = 10_000
"""Rows per second: 20,000 rows take two seconds."""
INTERVAL = "40ms"
PAUSE_S = 0.0003
"""Between two looks at the job log: a commit takes several milliseconds, so its beginning is not missed."""


def job_log(folder: Path) -> Iterator[dict[str, Any]]:
    """The records of the job log, straight from the store."""
    for path in sorted(folder.glob(".penstock/departures/blobs/jobs/*/log/0*")):
        yield json.loads(path.read_bytes())


class Completes:
    """Counts COMPLETE records, reading each record once: quick enough to be polled."""

    def __init__(self, folder: Path) -> None:
        self._jobs = folder / ".penstock/departures/blobs/jobs"
        self._seen: dict[str, bool] = {}

    def count(self) -> int:
        for log in self._jobs.glob("*/log"):
            for entry in os.scandir(log):
                if entry.name not in self._seen and not entry.name.startswith("."):
                    self._seen[entry.name] = b'"Complete"' in Path(entry.path).read_bytes()
        return sum(self._seen.values())


def staged_of_newest_complete(folder: Path) -> list[str]:
    """Staged files that the newest COMPLETE lists and that nobody has made visible yet."""
    records = list(job_log(folder))
    newest = [record for record in records if record["type"] == "Complete"][-1:]
    if not newest or records[-1]["type"] == "Terminated":  # a finished job's checkpoints are deleted
        return []
    manifest = json.loads((folder / ".penstock/departures/blobs" / newest[0]["manifest"]).read_bytes())
    listed = "".join(staged_parts(manifest))
    return [path.name for path in folder.glob("out/departures/.staging/*") if path.name in listed]


def staged_parts(manifest: dict[str, Any]) -> Iterator[str]:
    """The staged parts in a manifest, which stand there as base64."""
    for subtasks in manifest["subtasks"].values():
        for snapshot in subtasks.values():
            for operator in snapshot["operators"].values():
                for entry in operator["lists"].get("staged", []):
                    yield base64.b64decode(entry).decode()


@dataclass
class Tally:
    """Where kills fell."""

    moments: int = 0
    after_complete: int = 0
    between: int = 0
    """Between a COMPLETE and the commit of the files it covers."""


def start(penstock: Command, *more: str) -> subprocess.Popen[str]:
    return penstock.start(
        "run", EXAMPLES / "departures.py", "--checkpoint-interval", INTERVAL, "--param", f"rate={RATE}", *more
    )


def kill_at(penstock: Command, rng: random.Random, process: subprocess.Popen[str]) -> None:
    """Kill at a random time, or as soon as the job log has one more COMPLETE than a random number."""
    completes = Completes(penstock.folder)
    if rng.random() < 0.3:
        end, wanted = time.monotonic() + rng.uniform(0.2, 2.5), None
    else:
        end, wanted = time.monotonic() + 30, completes.count() + rng.randint(1, 10)
    while process.poll() is None and time.monotonic() < end and (wanted is None or completes.count() < wanted):
        time.sleep(PAUSE_S)
    kill(process)


def kill_often(root: Path, seed: str, moments: int, expected: Counter[str]) -> Tally:
    """Run, kill and resume in one folder after the other; every run that comes to its end must have the right rows."""
    rng = random.Random(seed)
    tally = Tally()
    while tally.moments < moments or (FOLDERS * tally.between < BETWEEN and tally.moments < 4 * moments):
        folder = root / f"{seed}-{tally.moments}"
        folder.mkdir()
        penstock = Command(folder)
        process = start(penstock)
        for _ in range(rng.randint(3, 6)):
            kill_at(penstock, rng, process)
            tally.moments += 1
            tally.after_complete += Completes(folder).count() > 0
            tally.between += bool(staged_of_newest_complete(folder))
            if ended(folder):
                break
            process = start(penstock, "--resume" if submitted(folder) else "--fresh")
        out, err = process.communicate(timeout=60) if process.poll() is None else ("", "")
        assert ended(folder), f"{folder.name} did not finish: {out}\n{err}"
        rows = counted(penstock)
        assert rows == expected, f"{folder.name}: too many {rows - expected}, too few {expected - rows}"
        assert not staged_of_newest_complete(folder), f"{folder.name}: some rows were never made visible"
        if process.returncode == 0:  # killed after its end was recorded, a run leaves what nobody needs in staging
            assert not list(folder.glob("out/departures/.staging/*"))
    return tally


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Counter[str]:
    """The rows of an uninterrupted run."""
    command = Command(tmp_path_factory.mktemp("uninterrupted"))
    command.run("run", EXAMPLES / "departures.py")
    return counted(command)


def counted(command: Command) -> Counter[str]:
    return Counter(json.dumps(row, sort_keys=True) for row in command.rows("out/departures"))


@pytest.mark.timeout(600)
def test_kills_change_nothing(tmp_path: Path, expected: Counter[str]) -> None:
    """Seeded kills, a third of them at least after a COMPLETE, some between a COMPLETE and the commit of its files."""
    print(f"seed {SEED}: repeat with PENSTOCK_TEST_SEED={SEED}")
    with ThreadPoolExecutor(FOLDERS) as pool:
        each = MOMENTS // FOLDERS
        running = [pool.submit(kill_often, tmp_path, f"{SEED}-{n}", each, expected) for n in range(FOLDERS)]
        tallies = [future.result() for future in running]
    moments = sum(tally.moments for tally in tallies)
    after_complete = sum(tally.after_complete for tally in tallies)
    between = sum(tally.between for tally in tallies)
    print(f"{moments} kills, {after_complete} after a COMPLETE, {between} between a COMPLETE and its commit")
    assert moments >= MOMENTS
    assert 3 * after_complete >= moments, (
        f"only {after_complete} of {moments} kills fell after a COMPLETE: the harness missed"
    )
    assert between >= BETWEEN, f"only {between} kills fell between a COMPLETE and the commit: the harness missed"


def submitted(folder: Path) -> bool:
    """Whether there is a job to resume (a kill may come before the job exists)."""
    return (folder / ".penstock/departures/blobs/current-job").exists()


def ended(folder: Path) -> bool:
    """Whether the job log says so."""
    return any(record["type"] == "Terminated" for record in job_log(folder))
