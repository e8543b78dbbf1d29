"""Runs on Spark by the pipeline service, as users ask for them: real Spark, real servers, and kills."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.services import Services, rows_of, wait_for

from penstock import savepoint
from penstock.client.run_documents import RunDetail, RunSummary
from penstock.platform.free_ports import HOST
from penstock.platform.processes import ProcessId, marked

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(500)]

ROWS = 6_000
PIPELINE = f"""
from dataclasses import dataclass
from datetime import UTC, datetime

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


def checked(event: Event) -> Event:
    return Event(event.key, event.value // (5_000 - event.value), event.at) if event.value == LIMIT else event


LIMIT = param("limit", -1)
p = Pipeline("counts")
(
    p.read(generate.Source(rows, schema=Event, rows={ROWS}, event_time="at", rate=param("rate", 20_000)))
    .uid("events")
    .map(checked)
    .key_by("key")
    .window(tumbling("100s"))
    .agg(n=count(), total=col("value").sum())
    .uid("totals")
    .write(files.Sink(param("out", "out"), format="jsonl", existing="append"))
    .uid("results")
)
"""
STEPS = """
from dataclasses import dataclass
from datetime import datetime

from penstock import Pipeline, col, count, param, tumbling
from penstock.connectors import files


@dataclass
class Event:
    key: int
    value: int
    at: datetime


p = Pipeline("live")
read = p.read(files.Source(param("in", "in"), schema=Event, event_time="at")).uid("events")
windows = read.key_by("key").window(tumbling("100s")).agg(n=count(), total=col("value").sum()).uid("totals")
windows.write(files.Sink(param("out", "out"), format="jsonl", existing="append")).uid("results")
"""
QUICK = (
    "spark.ui.enabled=false",
    "spark.sql.codegen.wholeStage=false",
    "spark.sql.codegen.factoryMode=NO_CODEGEN",
    "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
)


class Cluster(Services):
    """A dispatcher, a coordinator and a pipeline service."""

    command_s = 300.0

    def __init__(self, folder: Path, settings: Any) -> None:
        conf = [part for setting in QUICK for part in ("--conf", setting)]
        options = ("--master", "local[2]", *conf, "--dir", str(folder / "runs"))
        super().__init__(folder, settings, {"dispatcher": (), "coordinator": (), "pipeline": options})
        self.service = self.services["pipeline"]
        self.pipeline = folder / "counts.py"
        self.pipeline.write_text(PIPELINE)

    def submit(self, run: str, *, rate: int = 20_000, limit: int = -1, out: str = "") -> tuple[str | Path, ...]:
        """The command line that submits a run of the pipeline, which writes to a folder of the run's name, or `out`."""
        parameters = [f"out={self.folder / (out or run)}", f"rate={rate}", f"limit={limit}"]
        given = [part for parameter in parameters for part in ("--param", parameter)]
        return ("submit", self.pipeline, "--engine", "spark", "--parallelism", "2", "--run-id", run, *given)

    def live(self, *options: str) -> tuple[str | Path, ...]:
        """The command line that submits a job in steps, which reads the files that `feed` writes."""
        pipeline = self.folder / "live.py"
        pipeline.write_text(STEPS)
        given = ("--param", f"in={self.folder / 'fed'}", "--param", f"out={self.folder / 'live'}")
        return ("submit", pipeline, "--engine", "spark", "--every", "1s", "--parallelism", "2", *given, *options)

    def feed(self, first: int, end: int) -> None:
        """Rows with these numbers, a second of event time apart."""
        at = [
            (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=number)).isoformat() for number in range(first, end)
        ]
        rows = [{"key": number % 7, "value": number, "at": at[number - first]} for number in range(first, end)]
        temporary = self.folder / f"{first}.jsonl"
        temporary.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
        (self.folder / "fed").mkdir(exist_ok=True)
        temporary.rename(self.folder / "fed" / temporary.name)

    def has_done(self, run: str, step: int, attempts: int) -> bool:
        """Whether a job in steps, at this attempt, has come to a step."""
        summary = self.summary(run)
        if summary is None:
            return False
        assert summary.state in ("QUEUED", "RUNNING"), f"{summary}\n{self.logs()}"
        assert summary.attempts <= attempts, f"{summary}\n{self.logs()}"
        return summary.progress is not None and summary.progress.step >= step and summary.attempts == attempts

    def summary(self, run: str) -> RunSummary | None:
        """A run in short, as REST says it; None if it is not there yet."""
        try:
            with urllib.request.urlopen(f"{self.rest}/penstock/v1/runs/{run}") as answer:
                return msgspec.json.decode(answer.read(), type=RunDetail).summary
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            return None

    def computes(self, run: str, attempt: int) -> bool:
        """Whether Spark works at a stage of this attempt."""
        summary = self.summary(run)
        if summary is None:
            return False
        assert summary.state in ("QUEUED", "RUNNING"), f"{summary}\n{self.logs()}"
        progress = summary.progress
        return summary.attempts == attempt and progress is not None and bool(progress.tasks)

    def waits(self, run: str) -> bool:
        """Whether it is the first in the queue."""
        summary = self.summary(run)
        return summary is not None and summary.position == 1

    def processes(self, run: str) -> list[ProcessId]:
        """Everything that runs for a run."""
        return marked(f"{self.service.folder}/pipeline/runs/{run}")

    def check(self, run: str) -> None:
        """Every window once, every row counted."""
        rows = rows_of(self.folder / run)
        assert len({(row["key"], row["window_start"]) for row in rows}) == len(rows) == 7 * ROWS // 100
        assert sum(row["n"] for row in rows) == ROWS
        assert sum(row["total"] for row in rows) == sum(range(ROWS))


@pytest.fixture(scope="module")
def cluster(platform: Any, tmp_path_factory: pytest.TempPathFactory) -> Generator[Cluster]:
    """One for all tests here."""
    found = Cluster(tmp_path_factory.mktemp("runs"), platform.settings("runs"))
    try:
        asyncio.run(found.start())
        yield found
    finally:
        asyncio.run(found.end())


def test_a_run_survives_the_death_of_its_service(cluster: Cluster) -> None:
    """Its process killed with the service, it is begun again; the service killed alone, it is found again.

    It leaves its state as a savepoint, from which the next run brings the windows that are open: the rows are exact.
    """
    nightly = (*cluster.submit("nightly", rate=500), "--to-savepoint", cluster.folder / "kept")
    following = cluster.start_command(*nightly)
    wait_for(lambda: cluster.computes("nightly", 1), "Spark computes")
    asyncio.run(cluster.service.crash())
    for end in (signal.SIGSTOP, signal.SIGKILL):  # or what is left says how it failed without the others
        for process in cluster.processes("nightly"):
            os.kill(process.pid, end)
    asyncio.run(cluster.service.start())
    wait_for(lambda: cluster.computes("nightly", 2), "the second attempt computes")
    asyncio.run(cluster.service.crash())
    assert cluster.processes("nightly")
    asyncio.run(cluster.service.start())
    said = cluster.finish(following).stderr
    assert "attempt 2 began; the one before is lost: its process ended without a word" in said
    assert f"rows read: {ROWS:,}" in said
    assert said.rstrip().endswith("counts: finished")
    ended = cluster.summary("nightly")
    assert ended is not None
    assert ended.attempts == 2
    again = cluster.run(*nightly).stderr
    assert again.rstrip().endswith("counts: finished")
    assert len(rows_of(cluster.folder / "nightly")) == 7 * (ROWS // 100 - 1)
    cluster.run(*cluster.submit("rest", out="nightly"), "--from-savepoint", cluster.folder / "kept")
    cluster.check("nightly")
    history = cluster.run("logs", "nightly").stdout
    assert "attempt 1 is lost: its process ended without a word" in history
    assert "ended: finished" in history
    assert list((cluster.folder / "runs" / "runs").iterdir()) == []


def test_cancelled_at_work_and_in_the_queue(cluster: Cluster, tmp_path: Path) -> None:
    """The queue is to be seen; nothing of a cancelled run is visible, and none of its processes is left.

    Meanwhile a second service is refused, with the place of the first.
    """
    second = cluster.start_command("pipeline", "--http", f"{HOST}:0", "--dir", tmp_path)
    assert cluster.run(*cluster.submit("slow", rate=100), "--detach").stdout == "slow\n"
    wait_for(lambda: cluster.computes("slow", 1), "Spark computes")
    cluster.run(*cluster.submit("next"), "--detach")
    wait_for(lambda: cluster.waits("next"), "it waits")
    listed = cluster.run("jobs").stdout
    assert "queued, number 1 in line" in listed
    assert "spark" in listed
    assert "stages done" in cluster.run("status", "slow").stdout
    metrics = urllib.request.urlopen(f"http://{cluster.service.address}/metrics").read().decode()
    assert 'penstock_runs{state="RUNNING"} 1.0\n' in metrics
    assert 'penstock_run_seconds{pipeline="counts",run="slow"}' in metrics
    assert "next: canceled, asked by a client before it began" in cluster.run("cancel", "next").stdout
    assert "slow: canceled, asked by a client; nothing of it is visible" in cluster.run("cancel", "slow").stdout
    wait_for(lambda: not cluster.processes("slow"), "its processes are gone")
    assert rows_of(cluster.folder / "slow") == []
    assert "run counts (slow) has ended: CANCELED" in cluster.run("cancel", "slow", code=1).stderr
    refused = cluster.finish(second, 2).stderr
    assert f"process {cluster.service.pid} on" in refused
    assert "is the pipeline service of this cluster already" in refused


def test_missed_days_are_caught_up_each_once(cluster: Cluster) -> None:
    """Two days of a schedule, its service killed during the first run; what is wrong is refused when it is added."""
    today = datetime.now(UTC).date()
    days = [f"daily-{today - timedelta(days=days)}" for days in (2, 1)]
    given = ("--cron", "0 0 * * *", "--start", str(today - timedelta(days=2)), "--end", str(today))
    parameters = ("--param", f"out={cluster.folder}/daily-{{day}}", "--param", "rate=500")
    add = ("schedule", "add", "daily", cluster.pipeline, *given, *parameters, "--parallelism", "2")
    assert "hour '25' is none" in cluster.run(*add, "--cron", "0 25 * * *", code=1).stderr
    assert f"daily: added\nnext: {days[0]}, due" in cluster.run(*add).stdout
    assert "nothing to change" in cluster.run(*add).stdout
    assert "with something else: --retries; --replace" in cluster.run(*add, "--retries", "3", code=1).stderr
    wait_for(lambda: cluster.computes(days[0], 1), "Spark computes the first day")
    assert (
        f"{days[0]}, due {today - timedelta(days=1)} 00:00:00Z, running"
        in cluster.run("schedule", "show", "daily").stdout
    )
    asyncio.run(cluster.service.crash())
    asyncio.run(cluster.service.start())

    def done() -> list[str]:
        shown = cluster.json("schedule", "show", "daily")
        assert shown["summary"]["state"] == "ACTIVE", shown
        return [period["run"] for period in reversed(shown["ended"])]

    wait_for(lambda: done() == days, "both days are done")
    for run in days:
        cluster.check(run)
        assert cluster.run("logs", run).stdout.count("submitted:") == 1
    assert "over" in cluster.run("schedule", "list").stdout
    assert cluster.run("schedule", "remove", "daily").stdout.startswith("daily: removed")


def test_an_error_in_the_user_s_code_is_shown_as_such(cluster: Cluster) -> None:
    """With the user's frames and without a trace of the JVM, to who follows and to who looks later."""
    failed = cluster.run(*cluster.submit("broken", limit=5_000), code=1).stderr
    assert "Traceback (your code, most recent call last):" in failed
    assert "in checked" in failed
    assert "ZeroDivisionError" in failed
    assert "org.apache.spark" not in failed
    assert "ZeroDivisionError" in cluster.run("status", "broken").stdout
    assert rows_of(cluster.folder / "broken") == []
    assert {run["run"]: run["state"] for run in cluster.json("jobs", "--all")}["broken"] == "FAILED"


def test_a_job_in_steps_outlives_its_service_and_itself(cluster: Cluster) -> None:
    """Its service killed, it goes on and is found again; killed itself, with its service or alone, it is begun again.

    It stands in no other run's way, and ends behind a step: its savepoint and what is visible have every row once.
    """
    cluster.feed(0, 1_000)
    assert cluster.run(*cluster.live("--run-id", "job"), "--detach").stdout == "job\n"
    wait_for(lambda: cluster.has_done("job", 1, 1), "the first step is done")
    assert "step 1: 1,000 rows in" in cluster.run("status", "job").stdout
    asyncio.run(cluster.service.crash())
    cluster.feed(1_000, 1_500)
    asyncio.run(cluster.service.start())
    wait_for(lambda: cluster.has_done("job", 2, 1), "the same process has done the second step")
    asyncio.run(cluster.service.crash())
    kill_all(cluster.processes("job"))
    cluster.feed(1_500, 2_000)
    asyncio.run(cluster.service.start())
    wait_for(lambda: cluster.has_done("job", 3, 2), "another process has done the third step")
    kill_all(cluster.processes("job"))
    cluster.feed(2_000, 2_600)
    wait_for(lambda: cluster.has_done("job", 4, 3), "a third process has done the fourth step")

    refused = cluster.run(*cluster.live("--run-id", "second"), code=1).stderr
    assert "live goes on for ever as job, in steps" in refused
    cluster.run(*cluster.submit("beside"))
    cluster.check("beside")
    assert "is a run that ends by itself" in cluster.run("stop", "beside", code=2).stderr

    said = cluster.run("stop", "job").stdout
    assert said.startswith("job: canceled, ended behind step 4; savepoint: ")
    wait_for(lambda: not cluster.processes("job"), "its processes are gone")
    cluster.feed(2_600, 3_000)
    cluster.run(*cluster.live("--run-id", "job"), "--detach")
    wait_for(lambda: cluster.has_done("job", 5, 1), "submitted again it has gone on")
    assert "step 5: 400 rows in" in cluster.run("status", "job").stdout
    said = cluster.run("cancel", "job").stdout
    check_live(cluster, said, 3_000)
    cluster.run(*cluster.live("--run-id", "job", "--restart", "none"), "--detach")
    cluster.feed(3_000, 3_500)
    wait_for(lambda: cluster.has_done("job", 6, 1), "the sixth step is done")
    kill_all(cluster.processes("job"))
    wait_for(lambda: "given up" in said_of(cluster, "job"), "it is not begun again")
    check_live(cluster, said_of(cluster, "job"), 3_500)
    wait_for(lambda: not [*(cluster.folder / "runs" / "runs").iterdir()], "its files are gone")


def said_of(cluster: Cluster, run: str) -> str:
    """Why a run has ended."""
    summary = cluster.summary(run)
    assert summary is not None
    return summary.reason


def check_live(cluster: Cluster, said: str, rows_in: int) -> None:
    """What is visible, and the savepoint that is named, have every row once."""
    rows = rows_of(cluster.folder / "live")
    kept = savepoint.read(said.strip().rpartition("savepoint: ")[2])
    assert len({(row["key"], row["window_start"]) for row in rows}) == len(rows)
    assert sum(row["n"] for row in rows) + kept.table("totals")["__p0"].sum() == rows_in


def kill_all(processes: list[ProcessId]) -> None:
    assert processes
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
