"""`penstock submit` and its companions against a coordinator, a dispatcher and task managers on the real servers."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.services import Services, rows_of, wait_for

from penstock.platform.free_ports import HOST, free_port

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(280)]

ROWS = 20_000
RESTART = ("--restart", "fixed-delay:2:100ms")
PIPELINE = f"""
from datetime import UTC, datetime
from dataclasses import dataclass

import polars as pl

from penstock import Pipeline, col, count, param, tumbling
from penstock.connectors import files, generate

START = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1_000_000)


@dataclass
class Event:
    key: int
    value: int
    at: datetime


def rows(numbers):
    at = pl.Series(START + numbers * 1_000_000).cast(pl.Datetime("us", "UTC"))
    return pl.DataFrame({{"key": numbers % 7, "value": numbers, "at": at}})


p = Pipeline("counts")
(
    p.read(generate.Source(rows, schema=Event, rows={ROWS}, event_time="at", rate=param("rate", 100)))
    .uid("events")
    .key_by("key")
    .window(tumbling("100s"))
    .agg(n=count(), total=col("value").sum())
    .uid("totals")
    .write(files.Sink(param("out", "out"), format="jsonl", existing="append"))
    .uid("results")
)
"""


class Cluster(Services):
    """Coordinator, dispatcher and a task manager with three slots."""

    def __init__(self, folder: Path, settings: Any) -> None:
        super().__init__(folder, settings, {"dispatcher": (), "coordinator": (), "taskmanager": ("--slots", "3")})
        self.out = folder / "out"
        self.pipeline = folder / "counts.py"
        self.pipeline.write_text(PIPELINE)

    def submit(self, *arguments: str, rate: int = 100) -> str:
        """Submit detached; the job's id."""
        parameters = ["--param", f"out={self.out}", "--param", f"rate={rate}"]
        done = self.run(
            "submit", self.pipeline, *parameters, "--checkpoint-interval", "300ms", "--detach", *RESTART, *arguments
        )
        return done.stdout.strip()

    def state(self, job: str) -> dict[str, Any]:
        """The job in short."""
        found = self.json("status", job)["summary"]
        assert found["state"] != "FAILED", f"{found['reason']}\n{self.logs()}"
        return found

    def check(self) -> None:
        """Every window once, every row counted."""
        rows = rows_of(self.out)
        windows = [(row["key"], row["window_start"]) for row in rows]
        assert len(windows) == len(set(windows)) == 7 * ROWS // 100
        assert sum(row["n"] for row in rows) == ROWS
        assert sum(row["total"] for row in rows) == sum(range(ROWS))


@pytest.fixture
def cluster(platform: Any, tmp_path: Path) -> Generator[Cluster]:
    """One of its own for every test."""
    found = Cluster(tmp_path, platform.settings("commands"))
    with asyncio.Runner() as runner:
        try:
            runner.run(found.start())
            yield found
        finally:
            runner.run(found.end())


def check_flinks_paths(cluster: Cluster, job: str) -> None:
    """What only a real cluster has: workers that run somewhere and log something, and a checkpoint that is asked for."""
    with httpx2.Client(base_url=f"{cluster.rest}/v1", trust_env=False, headers={"connection": "close"}) as http:

        def get(path: str) -> httpx2.Response:
            answer = http.request("GET", path, content=b"{}")  # as Flink's client does
            assert answer.status_code == 200, (path, answer.text)
            return answer

        trigger = http.post(f"/jobs/{job}/checkpoints", json={}).json()["request-id"]
        wait_for(
            lambda: get(f"/jobs/{job}/checkpoints/{trigger}").json()["status"]["id"] == "COMPLETED",
            "the checkpoint is complete",
        )
        [vertex, *_] = get(f"/jobs/{job}").json()["vertices"]
        [subtask, *_] = get(f"/jobs/{job}/vertices/{vertex['id']}").json()["subtasks"]
        assert re.fullmatch(r"[\w.]+:\d+", subtask["endpoint"])
        assert subtask["duration"] > 0
        worker = subtask["taskmanager-id"]
        assert get(f"/taskmanagers/{worker}").json()["allocatedSlots"][0]["jobId"] == job
        assert "worker started" in get(f"/taskmanagers/{worker}/log").text
        settings = {one["key"]: one["value"] for one in get("/jobmanager/config").json()}
        assert settings["store.secret_key"] == "***"


def test_a_job_is_operated_from_the_command_line(cluster: Cluster) -> None:
    """Submit, status, savepoint, rescale, stop; from the savepoint to the end: the rows are exact."""
    job = cluster.submit()
    wait_for(lambda: cluster.state(job)["last_checkpoint"] > 0, "a checkpoint is complete")
    assert job[:8] in cluster.run("jobs").stdout
    assert "counts" in cluster.run("status", "counts").stdout
    assert "worker started" in cluster.run("logs", "counts", "--workers").stdout
    assert "submitted: counts" in cluster.run("logs", "counts").stdout
    check_flinks_paths(cluster, job)
    saved = cluster.json("savepoint", job[:8], "--to", cluster.folder / "kept")
    assert saved["savepoint"]["manifest"].startswith(f"jobs/{job}/")
    assert "runs at parallelism 2" in cluster.run("rescale", "counts", "2").stdout
    assert cluster.state(job)["parallelism"] == 2
    stopped = cluster.json("stop", "counts")
    savepoint = stopped["savepoint"]["manifest"]
    wait_for(lambda: cluster.state(job)["state"] == "STOPPED", "the job has stopped")

    described = cluster.json("state", savepoint)
    assert {operator["uid"] for operator in described["operators"]} >= {"events", "totals"}
    table = cluster.folder / "totals.parquet"
    cluster.run("state", job, "--uid", "totals", "--to", table)
    assert table.stat().st_size
    there = cluster.json("state", cluster.folder / "kept", "--uid", "totals", "--key", "3")
    assert {row["key"] for row in there["rows"]} <= {3}

    page = (Path(__file__).parents[2] / "docs" / "savepoints.md").read_text()
    snippet = re.search(r"```python\n(from penstock import savepoint\n.*?)```", page, re.DOTALL)
    assert snippet is not None
    edited = subprocess.run(
        [sys.executable, "-c", snippet[1]], cwd=cluster.folder, capture_output=True, text=True, check=False
    )
    assert edited.returncode == 0, edited.stderr
    assert (cluster.folder / "edited").is_dir()

    again = cluster.submit("--from-savepoint", savepoint, rate=20_000)
    wait_for(lambda: cluster.state(again)["state"] == "FINISHED", "the job has finished")
    cluster.check()
    listed = {one["job"]: one["state"] for one in cluster.json("jobs", "--all")}
    assert listed == {job: "STOPPED", again: "FINISHED"}
    assert "no jobs run" in cluster.run("jobs").stdout
    history = cluster.run("logs", job).stdout
    assert "submitted: counts" in history
    assert "attempt 2 began from checkpoint" in history
    assert history.rstrip().endswith("ended: stopped, asked by a client")


def test_attached_from_a_folder_and_cancelled(cluster: Cluster) -> None:
    """An exported savepoint is movable; attached, the end is shown; Ctrl-C leaves the job alone; cancel ends it."""
    job = cluster.submit()
    wait_for(lambda: cluster.state(job)["last_checkpoint"] > 0, "a checkpoint is complete")
    cluster.run("savepoint", job, "--to", cluster.folder / "kept")
    assert "something already" in cluster.run("savepoint", job, "--to", cluster.folder / "kept", code=2).stderr
    cluster.run("cancel", job)
    wait_for(lambda: cluster.state(job)["state"] == "CANCELED", "the job is cancelled")
    assert "has ended: CANCELED" in cluster.run("savepoint", job, code=1).stderr

    parameters = ["--param", f"out={cluster.folder / 'second'}", "--param", "rate=20000"]
    from_folder = ["--from-savepoint", cluster.folder / "kept"]
    attached = cluster.run("submit", cluster.pipeline, *parameters, *from_folder)
    assert "exactly-once" in attached.stderr
    assert attached.stderr.rstrip().endswith("counts: finished")

    follower = cluster.start_command("submit", cluster.pipeline, "--param", f"out={cluster.folder / 'other'}")
    assert follower.stderr is not None
    lines: list[str] = []
    while not any("running" in line for line in lines):
        lines.append(follower.stderr.readline())
        assert follower.poll() is None, lines
    follower.send_signal(signal.SIGINT)
    _, rest = follower.communicate(timeout=30)
    assert follower.returncode == 130
    assert "detached: job" in rest
    running = [one["job"] for one in cluster.json("jobs")]
    assert len(running) == 1
    cluster.run("cancel", "counts")


def test_what_is_wrong_is_said(cluster: Cluster) -> None:
    """Unknown jobs with the nearest name, missing slots, pipelines that make no sense there, a job that failed."""
    relative = cluster.run("submit", cluster.pipeline, code=2)
    assert "files.Sink('out') is relative to this directory" in relative.stderr
    job = cluster.submit("--parallelism", "4")
    wait_for(lambda: cluster.state(job)["missing_slots"] == 1, "one slot is missing")
    assert "waits for 1 more slot" in cluster.run("status", job).stdout
    assert "did you mean 'counts'" in cluster.run("status", "count", code=1).stderr
    cluster.run("cancel", job)
    assert "parallelism 1000" in cluster.run("rescale", cluster.submit(), "1000", code=1).stderr
    failing = cluster.folder / "failing.py"
    failing.write_text(PIPELINE.replace("numbers % 7", "numbers % 0 if numbers[-1] > 5_000 else 1 / 0"))
    done = cluster.run("submit", failing, "--param", f"out={cluster.folder / 'f'}", "--restart", "none", code=1)
    assert "ZeroDivisionError" in done.stderr


def test_collected_rows_come_to_whoever_follows(cluster: Cluster) -> None:
    """A sink that gathers rows in memory: every row once on standard output, although workers gathered them and died."""
    gathering = cluster.folder / "gathering.py"
    text = PIPELINE.replace("import files, generate", "import collecting, generate")
    gathering.write_text(
        text.replace('files.Sink(param("out", "out"), format="jsonl", existing="append")', "collecting.Sink()")
    )
    follower = cluster.start_command(
        "submit", gathering, "--param", "rate=4000", "--checkpoint-interval", "300ms", "--parallelism", "2", *RESTART
    )
    wait_for(lambda: any(job["last_checkpoint"] > 1 for job in cluster.json("jobs")), "checkpoints are complete")
    supervisor = cluster.services["taskmanager"].pid
    workers = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    assert len(workers) == 3
    for worker in workers:
        os.kill(int(worker), signal.SIGKILL)
    out, err = follower.communicate(timeout=120)
    assert follower.returncode == 0, err
    rows = [json.loads(line) for line in out.splitlines()]
    windows = [(row["key"], row["window_start"]) for row in rows]
    assert len(windows) == len(set(windows)) == 7 * ROWS // 100
    assert sum(row["total"] for row in rows) == sum(range(ROWS))


def test_without_a_cluster_the_command_says_so(tmp_path: Path) -> None:
    """No dispatcher: an error at once, exit code 1; a bad option: exit code 2."""
    command = [sys.executable, "-m", "penstock.cli.main"]
    environment = {**os.environ, "PENSTOCK_REST": f"http://{HOST}:{free_port()}"}
    done = subprocess.run(
        [*command, "jobs"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "no dispatcher answers there" in done.stderr
    done = subprocess.run(
        [*command, "stop"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2


PROGRAM = """
import sys

from totals import p  # the pipeline stands in a file of its own: that is what travels

from penstock.client import Cluster

if __name__ == "__main__":
    job = p.submit(sys.argv[1], checkpoint_interval="300ms", timeout="60s")
    assert Cluster(sys.argv[1]).job(job.id).status().summary.name == "counts"
    savepoint = job.savepoint()
    assert any(found.checkpoint == savepoint.checkpoint for found in job.savepoints())
    job.rescale(2)
    ended = job.wait("120s")
    print(ended.state, job.status().summary.parallelism)
"""


def test_a_program_submits_and_steers_a_job(cluster: Cluster, tmp_path: Path) -> None:
    """What the commands do, from Python."""
    pipeline = PIPELINE.replace('param("out", "out")', repr(str(cluster.out))).replace('param("rate", 100)', "2_000")
    (tmp_path / "totals.py").write_text(pipeline)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program), str(cluster.file)], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["FINISHED", "2"]
    assert sum(row["n"] for row in rows_of(cluster.out)) == ROWS
