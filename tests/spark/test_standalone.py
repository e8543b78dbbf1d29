"""A real cluster on loopback: a master and two workers of Spark's own, executors that are other processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path

import pytest
from embedded_runs import finish, rows
from spark_runs import QUICK, SPARK_CASES_FILE

from penstock.platform.free_ports import free_port
from penstock.runtime.loading import load_pipeline

pytestmark = pytest.mark.timeout(300)
DEADLINE_S = 150


def start(folder: Path, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    """A part of Spark, whose log is `<name>.log`."""
    import pyspark

    program = Path(pyspark.__file__).parent / "bin" / "spark-class"
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": QUICK["spark.driver.extraJavaOptions"],
        "SPARK_WORKER_DIR": str(folder / name),
        "PYSPARK_PYTHON": sys.executable,
    }
    with open(folder / f"{name}.log", "wb") as log:
        return subprocess.Popen([str(program), *arguments], env=environment, stdout=log, stderr=subprocess.STDOUT)


def wait_for(folder: Path, name: str, text: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    log = folder / f"{name}.log"
    while not re.search(text, log.read_text()):
        assert time.monotonic() < deadline, f"{name} does not say {text!r}: {log.read_text()[-2_000:]}"
        time.sleep(0.1)


def end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@pytest.fixture
def master(tmp_path) -> Generator[str]:
    """The address of the master, when both workers are registered."""
    taken: set[int] = set()
    port, *ui = [free_port(taken) for _ in range(4)]
    with ExitStack() as stack:
        master = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port)]
        stack.callback(end, start(tmp_path, "master", *master, "--webui-port", str(ui[0])))
        wait_for(tmp_path, "master", "New state: ALIVE")
        for name, ui_port in (("one", ui[1]), ("two", ui[2])):
            worker = ["org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--webui-port", str(ui_port)]
            options = ["--cores", "1", "--memory", "600m", f"spark://127.0.0.1:{port}"]
            stack.callback(end, start(tmp_path, name, *worker, *options))
        for name in ("one", "two"):
            wait_for(tmp_path, name, "Successfully registered")
        yield f"spark://127.0.0.1:{port}"


def test_a_cluster_gives_the_same_rows_and_its_retries_double_nothing(master, tmp_path):
    """Small executors; a task fails once on one of them and is tried again."""
    command = [
        sys.executable, "-m", "penstock.cli.main", "run", str(SPARK_CASES_FILE), "--engine", "spark", "--master", master,
        "--parallelism", "2", "--conf", "spark.executor.memory=512m", "--conf", "spark.driver.host=127.0.0.1",
        "--conf", "spark.ui.enabled=false", "--param", "case=fails-once",
    ]  # fmt: skip
    command += ["--param", f"out={tmp_path / 'spark'}", "--param", f"marker={tmp_path / 'marker'}"]
    quick = {**QUICK, "spark.executor.extraJavaOptions": QUICK["spark.driver.extraJavaOptions"]}
    command += [part for name, value in quick.items() for part in ("--conf", f"{name}={value}")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "marker").exists(), "no attempt failed"
    given = {"case": "fails-once", "out": str(tmp_path / "embedded"), "marker": str(tmp_path / "marker")}
    finish(load_pipeline(str(SPARK_CASES_FILE), given), tmp_path / "state")
    for sink in ("rows", "windows", "totals"):
        got, expected = (Counter(str(row) for row in rows(tmp_path / e / sink)) for e in ("spark", "embedded"))
        assert got == expected, sink
        assert list((tmp_path / "spark" / sink / ".staging").iterdir()) == []
