"""What `penstock stop --all` asks, waits for and says."""

from __future__ import annotations

import json
import time

import httpx2
import pytest

from penstock.cli import cluster, main

SAVEPOINT = {"checkpoint": 4, "sha256": "5" * 64}
FIRST, SECOND, ENDED = "1" * 32, "2" * 32, "3" * 32


class Dispatcher:
    """Two jobs run, one has ended; the second one's savepoint is refused if it is told so."""

    def __init__(self, refusal: str = "", missing: str = "") -> None:
        self.refusal = refusal
        self.missing = missing
        self.asked: list[str] = []
        self.runs: tuple[str, ...] = ()

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path.removeprefix("/penstock/v1")
        if path == "/jobs":
            return httpx2.Response(200, json={"jobs": self.jobs(), "leader": "one", "missing": self.missing})
        if path.startswith("/runs"):
            return self.run(path)
        job = path.split("/")[2]
        if path.endswith("/stop"):
            self.asked.append(job)
            return httpx2.Response(202, json={"job": job, "request": job})
        refused = {"state": "refused", "reason": self.refusal} if job == SECOND and self.refusal else None
        done = {"state": "completed", "reason": "", "savepoint": SAVEPOINT | {"manifest": f"jobs/{job}/manifest.json"}}
        return httpx2.Response(200, json={"job": job, "request": job, "kind": "stop", **(refused or done)})

    def run(self, path: str) -> httpx2.Response:
        """Those of a pipeline service, one of them in steps."""
        document = {"name": "p", "parallelism": 1, "submitted_us": 1, "attempts": 1}
        states = {run: "CANCELED" if run in self.asked else "RUNNING" for run in self.runs}
        if path == "/runs":
            listed = [{**document, "run": run, "state": state} for run, state in states.items()]
            return httpx2.Response(200, json={"runs": listed, "service": "there"})
        run = path.split("/")[2]
        if path.endswith("/cancel"):
            self.asked.append(run)
            return httpx2.Response(202, json={"job": run, "request": "r"})
        summary = {**document, "run": run, "state": states[run], "reason": "ended behind step 4"}
        options = {"every_us": 1_000_000 if run == "live" else 0}
        return httpx2.Response(200, json={"summary": summary, "graph": {}, "options": options})

    def jobs(self) -> list[object]:
        states = {FIRST: "RUNNING", SECOND: "RUNNING", ENDED: "STOPPED"}
        return [
            {"job": job, "name": f"job-{job[0]}", "state": state, "parallelism": 1, "submitted_us": 1, "live": True}
            for job, state in states.items()
        ]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch):
    """Let the command speak to a dispatcher of the test."""

    def tell(dispatcher: Dispatcher) -> None:
        transport = httpx2.MockTransport(dispatcher)
        monkeypatch.setattr(cluster, "client_of", lambda _: cluster.ClusterClient("http://one", transport))

    return tell


def test_all_that_runs_is_asked_first_and_waited_for_then(told, capsys: pytest.CaptureFixture[str]) -> None:
    """One line says what is waited for; each savepoint is named; what has ended is left alone."""
    dispatcher = Dispatcher()
    told(dispatcher)
    assert main.main(["stop", "--all", "--timeout", "2m"]) == 0
    out = capsys.readouterr().out
    assert dispatcher.asked == [FIRST, SECOND]
    assert "waiting for the savepoints of 2 jobs, up to 2m: 11111111 job-1, 22222222 job-2\n" in out
    assert f"savepoint 4: jobs/{SECOND}/manifest.json" in out


def test_jobs_in_steps_end_too(told, capsys: pytest.CaptureFixture[str]) -> None:
    """Behind their step; runs that end by themselves are left alone."""
    dispatcher = Dispatcher()
    dispatcher.runs = ("live", "nightly")
    told(dispatcher)
    assert main.main(["stop", "--all"]) == 0
    assert sorted(dispatcher.asked) == [FIRST, SECOND, "live"]
    assert "live: canceled, ended behind step 4" in capsys.readouterr().out


def test_one_that_is_refused_keeps_no_other_from_stopping(told, capsys: pytest.CaptureFixture[str]) -> None:
    """It is named with the reason, and the command fails."""
    told(Dispatcher(refusal="it waits for slots"))
    assert main.main(["stop", "--all"]) == 1
    said = capsys.readouterr()
    assert "11111111: stopped" in said.out
    assert said.err == "error: not stopped: 22222222 job-2: stop: it waits for slots\n"


def test_nothing_is_stopped_while_not_all_jobs_are_known(told, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever uninstalls a cluster would lose those that are not listed."""
    dispatcher = Dispatcher(missing="the store does not answer")
    told(dispatcher)
    assert main.main(["stop", "--all"]) == 1
    assert "not all jobs are known: the store does not answer" in capsys.readouterr().err
    assert not dispatcher.asked


def test_an_idle_cluster_is_no_failure(told, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    """There is nothing to stop."""
    monkeypatch.setattr(Dispatcher, "jobs", lambda self: [])
    told(Dispatcher())
    assert main.main(["stop", "--all"]) == 0
    assert capsys.readouterr().out == "no jobs run\n"


def test_a_job_that_failed_a_minute_ago_is_listed_with_its_reason(
    told, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that failed long ago is only counted, as what ended well."""
    now_us = time.time_ns() // 1_000
    states = ((FIRST, "FAILED", now_us - 60_000_000), (SECOND, "FAILED", 1), (ENDED, "FINISHED", now_us))
    rest = {"name": "orders", "parallelism": 1, "submitted_us": 1, "reason": "v0[0]: no such table"}
    listed = [{"job": job, "state": state, "ended_us": ended, **rest} for job, state, ended in states]
    monkeypatch.setattr(Dispatcher, "jobs", lambda self: listed)
    told(Dispatcher())
    assert main.main(["jobs"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("no jobs run\n3 ended: penstock jobs --all\n")
    assert "11111111: v0[0]: no such table\n" in out
    assert SECOND[:8] not in out
    assert ENDED[:8] not in out


def test_json_is_all_that_was_said(told, capsys: pytest.CaptureFixture[str]) -> None:
    """A list of answers, behind which stand the jobs in steps, as `stop RUN --json` says them."""
    dispatcher = Dispatcher()
    dispatcher.runs = ("live", "nightly")
    told(dispatcher)
    assert main.main(["stop", "--all", "--json"]) == 0
    *jobs, live = json.loads(capsys.readouterr().out)
    assert [answer["job"] for answer in jobs] == [FIRST, SECOND]
    assert (live["run"], live["state"], live["reason"]) == ("live", "CANCELED", "ended behind step 4")


@pytest.mark.parametrize("arguments", [["stop"], ["stop", "orders", "--all"]])
def test_one_job_or_all(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Neither and both are mistakes."""
    assert main.main(arguments) == 2
    assert "name one job, or say --all" in capsys.readouterr().err


def test_a_cluster_that_does_not_answer_is_named(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    """In one line: where, and what is wrong."""
    monkeypatch.setenv("PENSTOCK_REST", "http://127.0.0.1:1")
    assert main.main(["stop", "--all"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert "127.0.0.1:1" in line
