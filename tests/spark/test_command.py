"""`--engine spark` as users type it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from embedded_runs import assert_same, counted, finish, rows
from spark_runs import QUICK, SPARK_CASES_FILE, rounded

from penstock.cli.main import main
from penstock.loading import load_pipeline
from penstock.spark import session

pytestmark = [pytest.mark.timeout(300), pytest.mark.servers]
EXAMPLE = Path(__file__).parents[2] / "examples" / "departures.py"

CONF = [part for name, value in QUICK.items() for part in ("--conf", f"{name}={value}")]


def penstock(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock.cli.main", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)


def test_the_first_example_runs_on_spark(tmp_path):
    """The same rows as embedded, in the folder that the file names; the UI's address and a summary on standard error."""
    spark = ("--engine", "spark", "--master", "local[2]", "--parallelism", "2", "--run-id", "first")
    run = penstock("run", str(EXAMPLE), *spark, *CONF, folder=tmp_path)
    assert run.returncode == 0, run.stderr
    finish(load_pipeline(str(EXAMPLE), {"out": str(tmp_path / "embedded")}), tmp_path / "state")
    got, expected = counted(rows(tmp_path / "out/departures")), counted(rows(tmp_path / "embedded"))
    assert_same(rounded(got), rounded(expected), "departures")
    assert run.stdout == ""
    assert "Spark UI: http://" in run.stderr
    assert "rows read: 20,000 in" in run.stderr
    assert "files sink in out/departures: 6,901 rows" in run.stderr
    assert (tmp_path / ".penstock/departures/spark/first.json").exists()


def test_an_interrupted_run_says_how_to_go_on(tmp_path):
    """Ctrl-C cancels what Spark is at: nothing is visible, nothing is staged, no trace is shown."""
    command = [sys.executable, "-m", "penstock.cli.main", "run", str(EXAMPLE), "--param", "rate=100"]
    command += ["--engine", "spark", "--master", "local[1]", "--run-id", "nightly", *CONF]
    shown = ""
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            shown += line
            if line.startswith("computing"):
                process.send_signal(signal.SIGINT)
    assert process.returncode == 130, shown
    assert "interrupted; --run-id nightly carries this run to its end" in shown
    assert "Traceback" not in shown
    assert rows(tmp_path / "out/departures") == []


def test_the_plan_names_stages_exchanges_and_why_they_replay(capsys):
    """What Spark computes itself, and what a run would refuse."""
    assert main(["plan", str(EXAMPLE), "--engine", "spark", "--native", "off"]) == 0
    shown = capsys.readouterr().out
    assert "shuffle by origin, sorted by key group, event time" in shown
    assert "replay: Spark's own plan was not wanted (--native off)" in shown
    assert "one key group at a time" in shown
    assert main(["plan", str(EXAMPLE), "--engine", "spark"]) == 0
    shown = capsys.readouterr().out
    assert "partials of a key and window, shuffle by origin" in shown
    assert "native: Spark merges the partials" in shown
    assert "one key group at a time" not in shown
    assert main(["plan", str(SPARK_CASES_FILE), "--engine", "spark", "--param", "case=unbounded"]) == 0
    assert "cannot run on Spark:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--engine", "spark", "--resume"], "--engine spark has no --resume"),
        (["--engine", "spark", "--no-fsync", "--metrics", "y"], "has no --metrics, --no-fsync"),
        (["--master", "local[2]", "--run-id", "x"], "only --engine spark has --master, --run-id"),
        (["--native", "off"], "only --engine spark has --native"),
        (["--engine", "spark", "--master", "a", "--remote", "b"], "give one of them"),
        (["--engine", "spark", "--conf", "x"], "write --conf spark.name=value"),
    ],
)
def test_options_of_the_other_engine_are_refused_by_name(options, message, capsys):
    """Nothing is ignored in silence."""
    assert main(["run", str(EXAMPLE), *options]) == 2
    assert message in capsys.readouterr().err


def test_what_is_missing_is_named(monkeypatch, capsys):
    """Without the extra, and without Java."""
    monkeypatch.setattr(session.importlib.util, "find_spec", lambda name: None if name == "pyspark" else object())
    assert main(["run", str(EXAMPLE), "--engine", "spark"]) == 2
    assert "needs pyspark: pip install 'penstock-streaming[spark]'" in capsys.readouterr().err
    monkeypatch.undo()
    monkeypatch.setattr(session.shutil, "which", lambda *_, **__: None)
    assert main(["run", str(EXAMPLE), "--engine", "spark"]) == 2
    assert "Java 17" in capsys.readouterr().err


def test_the_library_loads_no_spark():
    """Neither a pipeline nor the plan for Spark imports PySpark."""
    code = (
        "import sys; import penstock, penstock.cli.main, penstock.connectors.files\n"
        f"penstock.cli.main.main(['plan', {str(EXAMPLE)!r}, '--engine', 'spark'])\n"
        "assert 'pyspark' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)
