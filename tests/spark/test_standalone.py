"""A real cluster on loopback: a master and two workers of Spark's own, executors that are other processes."""

from __future__ import annotations

import subprocess
from collections import Counter

import pytest
from embedded_runs import finish, rows
from spark_runs import SPARK_CASES_FILE
from standalone import penstock_run

from penstock.api.loading import load_pipeline

pytestmark = pytest.mark.timeout(300)


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
