"""Spark by Spark Connect: a server that is not this process's, and what is said where there is none."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from embedded_runs import finish, rows
from spark_runs import SPARK_CASES_FILE
from standalone import connect_server

from penstock.errors import ExternalError, UsageError
from penstock.loading import load_pipeline
from penstock.platform.free_ports import free_port
from penstock.spark.session import SparkSettings, open_session

pytestmark = [pytest.mark.timeout(300), pytest.mark.servers]


def test_a_server_gives_the_same_rows(tmp_path: Path) -> None:
    """A stage that fails once, windows by Spark's own plan, files that are committed once."""
    given = {"case": "fails-once", "out": str(tmp_path / "spark"), "marker": str(tmp_path / "marker")}
    command = [sys.executable, "-m", "penstock.cli.main", "run", str(SPARK_CASES_FILE), "--engine", "spark"]
    command += [part for name, value in given.items() for part in ("--param", f"{name}={value}")]
    with connect_server(tmp_path) as address:
        command += ["--remote", address, "--parallelism", "2"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert f"on Spark at {address}" in done.stderr
    finish(load_pipeline(str(SPARK_CASES_FILE), {**given, "out": str(tmp_path / "embedded")}), tmp_path / "state")
    for sink in ("rows", "windows", "totals"):
        got, expected = (Counter(str(row) for row in rows(tmp_path / e / sink)) for e in ("spark", "embedded"))
        assert got == expected, sink


SCRIPT = """
from __future__ import annotations

import sys
from dataclasses import dataclass

from penstock import Pipeline, col, count
from penstock.connectors import collecting, spark
from penstock.spark import to_dataframe
from penstock.spark.session import SparkSettings, open_session


@dataclass
class Total:
    odd: int
    most: int


session = open_session("x", SparkSettings(remote=sys.argv[1]))
p, sink = Pipeline("connect"), collecting.Sink()
numbers = p.read(spark.Source(session.range(10).selectExpr("id", "id % 2 as odd")))
totals = numbers.key_by("odd").agg(n=count(), most=col("id").max()).final()
print(sorted(map(tuple, to_dataframe(totals, session).collect())))
totals.map(lambda row: Total(row.odd, row.most), returns=Total).write(sink)
print(p.run(engine="spark", spark=session).total("n0-read", "rows_in"))
print(sorted(row["most"] for row in sink.rows), session.range(3).count())
"""


def test_dataframes_go_in_and_out(tmp_path: Path) -> None:
    """Over a session of the user's, which stays open; the functions of a script come along."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with connect_server(tmp_path) as address:
        command = [sys.executable, str(script), address]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[(0, 5, 8), (1, 5, 9)]", "10", "[8, 9] 3"]


@pytest.mark.parametrize("wrong", ["local[2]", "http://127.0.0.1:15002", "sc://:15002", "sc://host:many"])
def test_an_address_that_is_none_is_refused(wrong: str) -> None:
    """With the form that it must have."""
    with pytest.raises(UsageError, match="write sc://host:port"):
        open_session("x", SparkSettings(remote=wrong))


def test_a_server_that_is_not_there_is_said_at_once() -> None:
    """Instead of minutes of silence."""
    port = free_port()
    with pytest.raises(ExternalError, match=f"no Spark Connect server answers at 127.0.0.1:{port}"):
        open_session("x", SparkSettings(remote=f"sc://127.0.0.1:{port}"))
