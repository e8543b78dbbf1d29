"""`penstock run --ui`, in this process: what it serves, and what it says where it cannot."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock import Pipeline
from penstock.cli.run_dashboard import dashboard
from penstock.connectors import collecting, files, iterables
from penstock.connectors.base import Sink
from penstock.embedded import EmbeddedJob, EmbeddedSettings
from penstock.errors import UsageError


@dataclass
class Row:
    n: int


def job_of(sink: Sink, folder: Path, rate: float) -> EmbeddedJob:
    """A run that counts to a hundred."""
    p = Pipeline("numbers")
    p.read(iterables.Source([Row(n) for n in range(100)], rate=rate)).write(sink)
    return EmbeddedJob(p, folder, EmbeddedSettings(checkpoint_interval_ms=50, durable=False))


async def test_the_run_is_shown_while_it_runs_and_at_its_end(tmp_path: Path) -> None:
    """By the routes of a dispatcher; who asks by another name, or from another site, is not let in."""
    sink = collecting.Sink()
    job = job_of(sink, tmp_path, rate=50)
    async with dashboard(job, tmp_path, 0) as url, httpx2.AsyncClient(base_url=url) as http:
        assert url.startswith("http://127.0.0.1:")
        running = asyncio.create_task(job.run(resume=False))
        shown = await until_shown(http, lambda detail: detail["summary"]["load"] is not None)
        assert shown["summary"]["state"] == "RUNNING"
        assert shown["summary"]["name"] == "numbers"
        assert "one process" in (await http.get("/penstock/v1/jobs/numbers/workers/logs")).json()["missing"][0]
        assert (await http.get("/jobs/overview")).json()["jobs"][0]["name"] == "numbers"
        assert "<title>" in (await http.get("/")).text
        assert (await http.get("/penstock/v1/jobs", headers={"Host": "evil.example"})).status_code == 403
        elsewhere = {"Origin": "http://evil.example", "Content-Type": "application/json"}
        assert (await http.post("/penstock/v1/jobs/numbers/cancel", headers=elsewhere)).status_code == 403
        assert (await running).state == "FINISHED"
        showing = asyncio.create_task(job.show_end())
        ended = await until_shown(http, lambda detail: detail["summary"]["state"] == "FINISHED" and rows(detail) == 100)
        assert all(task["rates"] is None for task in tasks(ended))
        assert (await http.post("/penstock/v1/jobs/numbers/stop", json={})).status_code == 409
        showing.cancel()
    assert len(sink.rows) == 100


def tasks(detail: dict[str, Any]) -> list[dict[str, Any]]:
    """The subtasks of all vertices."""
    return [task for vertex in detail["vertices"] for task in vertex["tasks"]]


def rows(detail: dict[str, Any]) -> int:
    """That the first subtask has brought."""
    return max((metrics["rows_out"] for task in tasks(detail)[:1] for metrics in task["metrics"].values()), default=0)


async def until_shown(http: httpx2.AsyncClient, condition: Any) -> dict[str, Any]:
    """Ask for the job until the answer is as it should be."""
    async with asyncio.timeout(30):
        while True:
            answer = await http.get("/penstock/v1/jobs/numbers")
            if answer.status_code == 200 and condition(answer.json()):
                return answer.json()
            await asyncio.sleep(0.02)


async def test_a_job_stopped_from_it_goes_on_from_the_savepoint(tmp_path: Path) -> None:
    """Every row is there once in the end."""
    sink = collecting.Sink()
    job = job_of(sink, tmp_path, rate=50)
    async with dashboard(job, tmp_path, 0) as url, httpx2.AsyncClient(base_url=url) as http:
        running = asyncio.create_task(job.run(resume=False))
        await until_shown(http, lambda detail: detail["summary"]["last_checkpoint"] > 0)
        assert (await http.post("/penstock/v1/jobs/numbers/stop", json={})).status_code == 202
        assert (await running).state == "STOPPED"
    assert 0 < len(sink.rows) < 100
    again = job_of(sink, tmp_path, rate=1e6)
    found = await again.find()
    assert found is not None
    assert not found.finished
    assert (await again.run(resume=True)).state == "FINISHED"
    assert sorted(row["n"] for row in sink.rows) == list(range(100))


async def test_a_cancelled_job_has_nothing_to_resume(tmp_path: Path) -> None:
    """That is what cancelling means: it says so, and leaves neither staged rows nor proofs of commits."""
    job = job_of(files.Sink(tmp_path / "out"), tmp_path, rate=50)
    async with dashboard(job, tmp_path, 0) as url, httpx2.AsyncClient(base_url=url) as http:
        running = asyncio.create_task(job.run(resume=False))
        await until_shown(http, lambda detail: detail["summary"]["last_checkpoint"] > 0)
        assert (await http.post("/penstock/v1/jobs/numbers/cancel", json={})).status_code == 202
        assert (await running).state == "CANCELED"
    assert list((tmp_path / "out" / ".staging").iterdir()) == []
    assert list((tmp_path / "out").glob("part-*"))
    with pytest.raises(UsageError, match="start without --resume"):
        await job_of(collecting.Sink(), tmp_path, rate=50).run(resume=True)


async def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    """Before anything runs."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=rf"--ui-port 127\.0\.0\.1:{port}: cannot listen there"):
            async with dashboard(job_of(collecting.Sink(), tmp_path, rate=50), tmp_path, port):
                pass


async def test_where_the_dispatcher_is_missing_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other services may be there."""
    there = [EntryPoint("other", "penstock_other:run", "penstock.dashboards")]
    monkeypatch.setattr("penstock.cli.services.entry_points", lambda group: there)
    with pytest.raises(UsageError, match=r"--ui: .* install it with: pip install penstock-dispatcher"):
        async with dashboard(job_of(collecting.Sink(), tmp_path, rate=50), tmp_path, 0):
            pass
