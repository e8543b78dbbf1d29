"""`penstock up`, `down` and `doctor` as users type them; and that no test run leaves servers behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from penstock.platform.process_table import ProcessTable
from penstock.platform.processes import ProcessId, identify, is_alive, marked
from penstock.settings import load_settings

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300), pytest.mark.servers]

ROOT = Path(__file__).parents[2]
DEADLINE_S = 120


def penstock(folder: Path, *arguments: str, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder; its exit code must be `code`."""
    command = [sys.executable, "-m", "penstock.cli.main", *arguments]
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
        env={**os.environ, **environment},
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def wait_for(condition: Callable[[], Any]) -> None:
    """Wait until it holds."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, "not within the deadline"
        time.sleep(0.05)


def processes(folder: Path) -> dict[str, ProcessId]:
    """What `up` has started in a folder and still runs."""
    return ProcessTable.load(folder / ".penstock" / "cluster.d" / "processes.json").running()


@pytest.fixture
def folder(tmp_path: Path) -> Generator[Path]:
    """Where `up` is typed; whatever it starts is ended."""
    yield tmp_path
    penstock(tmp_path, "down", "--purge")


def test_a_platform_from_up_to_purge(folder: Path) -> None:
    """Up; up again; a killed server is replaced with its data; doctor; down; up again as before; purge."""
    started = json.loads(penstock(folder, "up", "--json").stdout)
    assert {"kafka-1", "minio", "redis"} <= set(started["started"])
    file = folder / ".penstock" / "cluster.toml"
    assert file.stat().st_mode & 0o777 == 0o600
    settings = load_settings(file, {})
    assert (settings.kafka.brokers, settings.store.endpoint) == (started["kafka"], started["store"])
    assert settings.store.secret_key.reveal() not in penstock(folder, "up").stdout

    first = processes(folder)
    assert "everything runs already" in penstock(folder, "up").stdout
    assert processes(folder) == first

    os.kill(first["redis"].pid, signal.SIGKILL)
    wait_for(lambda: not is_alive(first["redis"]))
    assert "started redis" in penstock(folder, "up").stdout
    assert processes(folder)["kafka-1"] == first["kafka-1"]
    assert load_settings(file, {}) == settings

    assert json.loads(penstock(folder, "doctor", "--json").stdout)["ok"]

    stopped = penstock(folder, "down").stdout
    assert "kafka-1" in stopped
    assert processes(folder) == {}
    checks = penstock(folder, "doctor", code=1)
    assert checks.stdout.count("FAILED") == 3
    assert "Traceback" not in checks.stderr

    again = json.loads(penstock(folder, "up", "--json").stdout)
    assert [again[name] for name in ("kafka", "redis", "store")] == [
        started[name] for name in ("kafka", "redis", "store")
    ]
    penstock(folder, "down", "--purge")
    assert not (folder / ".penstock").exists()
    assert "nothing of .penstock ran" in penstock(folder, "down").stdout


def test_an_up_that_fails_half_way_leaves_nothing(folder: Path) -> None:
    """Kafka does not start: the error has the end of its log, and MinIO and Redis are ended again."""
    java = folder / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    # It formats the storage, so that the broker itself is what fails.
    java.write_text(
        '#!/bin/sh\ncase "$*" in *version*) echo \'openjdk version "17.0.1"\' >&2; exit;; *StorageTool*) exit;; esac\n'
        "echo the disk is gone; exit 3\n"
    )
    java.chmod(0o755)
    failed = penstock(folder, "up", code=1, JAVA_HOME=str(folder / "jdk"))
    assert "error: kafka-1 ended while it started" in failed.stderr
    assert "the disk is gone" in failed.stderr
    assert processes(folder) == {}
    assert marked(str(folder)) == []


def test_an_up_that_is_interrupted_leaves_nothing(folder: Path) -> None:
    """SIGTERM while the servers start."""
    up = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli.main", "up"], cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE
    )
    table = folder / ".penstock" / "cluster.d" / "processes.json"
    wait_for(lambda: table.exists() and "minio" in table.read_text())
    up.terminate()
    _, printed = up.communicate(timeout=DEADLINE_S)
    assert up.returncode == 130
    assert b"interrupted; what was started is stopped again" in printed
    assert processes(folder) == {}
    assert marked(str(folder)) == []


def test_settings_of_others_are_not_overwritten(folder: Path) -> None:
    """A cluster.toml that somebody wrote by hand stays as it is."""
    file = folder / ".penstock" / "cluster.toml"
    file.parent.mkdir()
    file.write_text('name = "mine"\n')
    assert "was not written by penstock up" in penstock(folder, "up", code=2).stderr
    assert file.read_text() == 'name = "mine"\n'


def test_missing_programs_are_one_message(folder: Path) -> None:
    """All of them, and what installs them; nothing is started."""
    failed = penstock(folder, "up", code=1, PATH=str(folder), JAVA_HOME="", PENSTOCK_CACHE=str(folder / "cache"))
    for program in ("java", "mvn", "go", "redis-server"):
        assert f"  {program} (" in failed.stderr
    assert failed.stderr.count("error:") == 1


def test_used_wrongly(folder: Path) -> None:
    """What cannot be meant is refused before anything starts."""
    assert "'99999' is not a port" in penstock(folder, "up", "--kafka-port", "99999", code=2).stderr
    assert "there is no docker-compose.yml" in penstock(folder, "up", "--with", "compose", code=2).stderr
    assert "cannot read the cluster's settings" in penstock(folder, "doctor", "--cluster", "no.toml", code=2).stderr


SLOW_TEST = """
import time

def test_uses_servers(platform, own_platform):
    print(platform.settings().kafka.brokers)
    open("started", "w").close()
    time.sleep(600)
"""


@pytest.mark.parametrize("workers", [[], ["-n", "1"]])
def test_a_killed_test_run_leaves_no_servers(tmp_path: Path, workers: list[str]) -> None:
    """SIGKILL to pytest, with and without workers, while a test uses the shared and its own servers."""
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "test_slow.py").write_text(SLOW_TEST)
    (tmp_path / "tmp").mkdir()
    with (tmp_path / "output").open("w") as output:
        run = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "--rootdir", str(tmp_path), *workers, "."],
            cwd=tmp_path,
            env={**os.environ, "TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": str(ROOT)},
            stdout=output,
            stderr=output,
        )
    children = []
    try:
        wait_for(lambda: (tmp_path / "started").exists() or run.poll() is not None)
        assert run.poll() is None, (tmp_path / "output").read_text()
        (servers,) = (tmp_path / "tmp").glob("penstock-tests-*")
        tables = [ProcessTable.load(path) for path in servers.glob("*.processes.json")]
        running = [process for table in tables for process in table.running().values()]
        assert len(running) == 7  # three shared, three own, and the reaper
        children = _children(run.pid)
    finally:
        run.kill()
        run.wait()
    wait_for(lambda: not any(is_alive(process) for process in running))
    assert marked(str(servers)) == []
    for child in children:
        wait_for(lambda process=child: not is_alive(process))


def _children(pid: int) -> list[ProcessId]:
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    found = (identify(int(number)) for number in listed.stdout.split())
    return [process for process in found if process is not None]
