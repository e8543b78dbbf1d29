"""A real cluster on loopback: a master and two workers of Spark's own, executors that are other processes."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from embedded_runs import finish, rows
from spark_runs import SPARK_CASES_FILE
from standalone import penstock_run

from penstock.loading import load_pipeline

pytestmark = [pytest.mark.timeout(300), pytest.mark.servers]


def test_a_cluster_gives_the_same_rows_and_its_retries_double_nothing(standalone, tmp_path):
    """Small executors; a task fails once on one of them and is tried again."""
    given = {"case": "fails-once", "out": str(tmp_path / "spark"), "marker": str(tmp_path / "marker")}
    command = penstock_run(standalone, SPARK_CASES_FILE, given, {})
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "marker").exists(), "no attempt failed"
    finish(load_pipeline(str(SPARK_CASES_FILE), {**given, "out": str(tmp_path / "embedded")}), tmp_path / "state")
    for sink in ("rows", "windows", "totals"):
        got, expected = (Counter(str(row) for row in rows(tmp_path / e / sink)) for e in ("spark", "embedded"))
        assert got == expected, sink
        assert list((tmp_path / "spark" / sink / ".staging").iterdir()) == []


STARVING = """
import sys
from pathlib import Path
from spark_runs import QUICK, SPARK_CASES_FILE, execute, prepare
from penstock.spark.session import SparkSettings, open_session
from penstock.spark.tracking import RunTracker

master, root = sys.argv[1:]
own = {"spark.executor.memory": "32g", "spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false"}
session = open_session("starving", SparkSettings(master, conf={**QUICK, **own}))
tracker = RunTracker(session, lambda progress: print(progress.at, flush=True))
given = {"case": "fails-once", "out": f"{root}/out", "marker": f"{root}/marker"}
run = prepare(session, SPARK_CASES_FILE, Path(root), given)
tracker.begins(run)
with tracker.followed():
    execute(run)
"""


def test_a_run_that_no_executor_serves_says_so(standalone, tmp_path):
    """Its executors are larger than the workers: Spark waits for better times, and so does the run, but says so."""
    command = [sys.executable, "-c", STARVING, standalone, str(tmp_path)]
    with subprocess.Popen(
        command, cwd=Path(__file__).parent, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as starving:
        assert starving.stdout is not None
        try:
            said = next(line for line in starving.stdout if "executors" in line)
        finally:
            starving.kill()
    assert said.endswith("waiting for executors: none is there\n")
