"""Runs on Spark as the command shows them, and what it refuses before anything is sent."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from penstock import Pipeline
from penstock.cli.logs import record_line
from penstock.cli.main import main
from penstock.cli.run_following import progress_text, run_state_text
from penstock.cli.runs import run_row, run_status_lines
from penstock.client.run_documents import RunDetail, RunOptions, RunProgress, RunSummary
from penstock.connectors import collecting, generate
from penstock.graph.jobgraph import build_job_graph

FILE = """
from dataclasses import dataclass
from penstock import Pipeline, param
from penstock.connectors import collecting, files, generate

@dataclass
class Event:
    value: int

def rows(numbers):
    return None

p = Pipeline("counts")
sink = collecting.Sink() if param("collects", False) else files.Sink(param("out", "out"), format="jsonl")
p.read(generate.Source(rows, schema=Event, rows=10)).write(sink)
"""

WAITING = RunSummary("nightly", "counts", "QUEUED", 1_000_000, position=2)
RUNNING = RunSummary(
    "nightly", "counts", "RUNNING", 1_000_000, 2_000_000, attempts=2, parallelism=4, reason="killed",
    progress=RunProgress("totals", 3, 1, 8, 5, 12_345, 4, "http://here:4040"),
)  # fmt: skip
FINISHED = replace(RUNNING, state="FINISHED", ended_us=6_000_000, progress=None, reason="", attempts=1)
FAILED = replace(FINISHED, state="FAILED", reason="ZeroDivisionError: division by zero")


@dataclass
class Event:
    value: int


def detail(summary: RunSummary, **others: Any) -> RunDetail:
    pipeline = Pipeline("counts")
    pipeline.read(generate.Source(lambda _: None, schema=Event, rows=10)).uid("events").write(collecting.Sink())
    return RunDetail(summary, build_job_graph(pipeline.plan, 1).to_json(), RunOptions(), **others)


def test_a_run_in_the_list() -> None:
    """Ids that people chose are shown whole, others as those of jobs are."""
    assert run_row(WAITING)[:5] == ("nightly", "counts", "spark", "queued, number 2 in line", "")
    assert run_row(replace(RUNNING, run="0123456789abcdef" * 2))[0] == "01234567"
    assert run_state_text(replace(RUNNING, cancel_asked=True)) == "running, is being cancelled"


def test_what_spark_is_at() -> None:
    """Stages and tasks once there are some."""
    assert progress_text(RunProgress()) == "starting Spark"
    assert progress_text(RUNNING.progress or RunProgress()) == (
        "totals: 1 of 3 stages done, 5 of 8 tasks, 12,345 rows handed on"
    )


def test_the_status_of_a_run() -> None:
    """At work, finished with its counts, failed with the user's frames."""
    working = run_status_lines(detail(RUNNING))
    assert "attempts     2, the one before is lost: killed" in working
    assert "Spark UI     http://here:4040" in working
    done = "\n".join(run_status_lines(detail(FINISHED, counts={"events": {"rows_in": 400}})))
    assert "rows read: 400 in 4.0 s\n" in done  # most of which Spark needed to start
    longer = replace(FINISHED, ended_us=(FINISHED.began_us or 0) + 100_000_000)
    done = "\n".join(run_status_lines(detail(longer, counts={"events": {"rows_in": 400}})))
    assert "rows read: 400 in 100.0 s (4 rows/s)" in done
    carried = "\n".join(run_status_lines(detail(FINISHED, counts={"events": {"rows_in": 400}}, computed=False)))
    assert "rows read: 400\n" in carried
    failed = run_status_lines(detail(FAILED, frames='  File "counts.py", line 3, in checked\n'))
    assert "state        failed: ZeroDivisionError: division by zero" in failed
    assert failed[-1] == '  File "counts.py", line 3, in checked'


@pytest.mark.parametrize(
    ("record", "line"),
    [
        ({"type": "Submitted", "name": "counts"}, "submitted: counts"),
        ({"type": "AttemptBegan", "attempt": 1, "host": "one"}, "attempt 1 began on one"),
        ({"type": "AttemptLost", "attempt": 1, "reason": "killed"}, "attempt 1 is lost: killed"),
        ({"type": "CancelAsked"}, "a client asked for its end"),
        ({"type": "RunEnded", "state": "FINISHED", "reason": ""}, "ended: finished"),
        ({"type": "Later", "seq": 7}, 'Later: {"type":"Later","seq":7}'),
    ],
)
def test_the_log_in_words(record: dict[str, Any], line: str) -> None:
    """Records of a later version are shown as they are."""
    assert record_line(record) == line


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--engine", "spark", "--checkpoint-interval", "1s", "--per-job"], "has no --per-job, --checkpoint-interval"),
        (["--run-id", "x", "--conf", "a=b", "--native", "off"], "--engine penstock has no --run-id, --conf, --native"),
        (
            ["--engine", "spark"],
            "files.Sink('out') is relative to this directory, which is not that of the pipeline service",
        ),
        (["--engine", "spark", "--param", "collects=yes"], "collecting.Sink gathers rows in the memory of a process"),
        (["--engine", "spark", "--run-id", "a/b"], "--run-id 'a/b': up to 100 letters"),
        (["--engine", "spark", "--to-savepoint", "kept"], "give an absolute path"),
        (["--engine", "spark", "--conf", "x"], "write --conf spark.name=value"),
        (["--engine", "spark", "--restart", "none"], "--restart: a run that ends is begun anew twice; give --every"),
        (["--engine", "spark", "--every", "0s"], "--every"),
        (
            ["--engine", "spark", "--every", "30s", "--to-savepoint", "/kept"],
            "--every: each step leaves a savepoint of its own; leave --to-savepoint out",
        ),
        (["--every", "30s"], "--engine penstock has no --every"),
    ],
)
def test_what_makes_no_sense_is_refused(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before a cluster is asked: exit code 2."""
    file = tmp_path / "counts.py"
    file.write_text(FILE)
    assert main(["submit", str(file), *options]) == 2
    assert message in capsys.readouterr().err
