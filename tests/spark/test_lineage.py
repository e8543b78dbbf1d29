"""What OpenLineage is told of a run: inputs and outputs by name, counts, how it ended; what is not told, and why."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Generator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from penstock import Pipeline, col, count
from penstock.adapters.system_clock import SystemClock
from penstock.connectors import console, files, kafka
from penstock.connectors.base import Dataset
from penstock.errors import PenstockError
from penstock.spark.engine import RunOptions, SparkRun
from penstock.spark.pickling import pickle_plan

PARENT = "0190c6d8-6b4c-7c2a-8d3e-1f2a3b4c5d6e"


@dataclass
class Sale:
    """A line of the input."""

    item: str
    euros: int


@dataclass
class Collector:
    """Takes events by HTTP."""

    url: str = ""
    events: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    status: int = 201


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Generator[Collector]:
    """A server on loopback that lineage is told to."""
    taken = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            taken.events.append(json.loads(body))
            self.send_response(taken.status)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    taken.url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("OPENLINEAGE_URL", taken.url)
    yield taken
    for name in [name for name in os.environ if name.startswith("OPENLINEAGE__")]:
        del os.environ[name]  # the client puts the shorter ones there under its own names
    server.shutdown()
    server.server_close()


@dataclass
class Runs:
    """Runs of a small pipeline, tasks in this process."""

    session: Any
    folder: Path
    said: list[str] = field(default_factory=list[str])

    def __call__(self, *, run: str = "monday", broken: bool = False) -> None:
        (self.folder / "in").mkdir(exist_ok=True)
        lines = [{"item": "tea", "euros": 3}, {"item": "tea", "euros": 4}, {"item": "cup", "euros": 9}]
        (self.folder / "in" / "day.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        p = Pipeline("sales")
        sales = p.read(files.Source(self.folder / "in" / "*.jsonl", schema=Sale))
        if broken:
            sales.map(_fail).write(files.Sink(self.folder / "out", existing="append"))
        else:
            sales.filter(col("euros") > 3).key_by("item").agg(sold=count()).final().write(
                files.Sink(self.folder / "out", existing="append")
            )
            sales.write(console.Sink())
        SparkRun(
            self.session,
            p,
            pickle_plan(p.plan),
            run=run,
            clock=SystemClock(),
            folder=self.folder / "runs",
            parallelism=1,
            options=RunOptions(warn=self.said.append),
        ).execute()


def _fail(sale: Sale) -> Sale:
    raise ValueError("no tea")


@pytest.fixture
def runs(local: Any, tmp_path: Path) -> Runs:
    """Not told to anybody unless a test says so."""
    return Runs(local, tmp_path)


def test_a_run_tells_what_it_reads_and_writes(
    runs: Runs, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two events of one run: names and schemas of data, rows at the end, whose part it is. The console has no name."""
    monkeypatch.setenv("OPENLINEAGE_PARENT_ID", f"shop/daily.sales/{PARENT}")
    monkeypatch.setenv("OPENLINEAGE_NAMESPACE", "shop")
    runs()
    begun, ended = collector.events
    assert (begun["eventType"], ended["eventType"]) == ("START", "COMPLETE")
    assert begun["run"]["runId"] == ended["run"]["runId"]
    assert (ended["job"]["namespace"], ended["job"]["name"]) == ("shop", "sales")
    assert ended["run"]["facets"]["externalQuery"]["externalQueryId"] == "monday"
    assert ended["run"]["facets"]["parent"]["run"]["runId"] == PARENT
    assert ended["run"]["facets"]["parent"]["job"]["name"] == "daily.sales"
    [read], [written] = ended["inputs"], ended["outputs"]
    assert (read["namespace"], read["name"]) == ("file", str(runs.folder / "in"))
    assert (written["namespace"], written["name"]) == ("file", str(runs.folder / "out"))
    assert [part["name"] for part in read["facets"]["schema"]["fields"]] == ["item", "euros"]
    assert [(part["name"], part["type"]) for part in written["facets"]["schema"]["fields"]] == [
        ("item", "string"),
        ("sold", "int64"),
    ]
    assert read["inputFacets"]["inputStatistics"]["rowCount"] == 3
    assert written["outputFacets"]["outputStatistics"]["rowCount"] == 2
    assert "inputFacets" not in begun["inputs"][0] or not begun["inputs"][0]["inputFacets"]
    assert not runs.said


def test_a_run_that_fails_tells_why(runs: Runs, collector: Collector) -> None:
    """And the next one under its id is another run there."""
    with pytest.raises(PenstockError, match="no tea"):
        runs(broken=True)
    assert [event["eventType"] for event in collector.events] == ["START", "FAIL"]
    assert "no tea" in collector.events[1]["run"]["facets"]["errorMessage"]["message"]
    runs()
    assert [event["eventType"] for event in collector.events] == ["START", "FAIL", "START", "COMPLETE"]
    assert collector.events[2]["run"]["runId"] != collector.events[0]["run"]["runId"]


def test_a_collector_that_refuses_costs_a_warning(runs: Runs, collector: Collector) -> None:
    """The run is the same."""
    collector.status = 400
    runs()
    assert len(list((runs.folder / "out").glob("part-*"))) == 1
    assert [line.split(" could")[0] for line in runs.said] == ["lineage: START", "lineage: COMPLETE"]


def test_what_is_configured_wrongly_is_said(runs: Runs, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    """A parent that is none; a library that is not there."""
    monkeypatch.setenv("OPENLINEAGE_PARENT_ID", "monday")
    runs()
    assert runs.said == ["no lineage is told: OPENLINEAGE_PARENT_ID='monday' is not of the form namespace/job/run"]
    monkeypatch.setitem(sys.modules, "openlineage.client", None)
    runs(run="tuesday")
    assert runs.said[1].endswith("and not there: pip install 'penstock-streaming[lineage]'")
    assert collector.events == []


def test_without_variables_nothing_is_imported(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor told, whatever a file in the working directory says."""
    monkeypatch.setitem(sys.modules, "openlineage.client", None)
    runs()
    assert not runs.said


def test_data_is_named_as_openlineage_names_it(tmp_path: Path) -> None:
    """Patterns by the folder from which on they are one, topics by their first broker."""
    stores = {"endpoint_url": "http://127.0.0.1:9"}
    named = {
        files.Source(f"{tmp_path}/2026-*/x.jsonl", schema=Sale): Dataset("file", str(tmp_path)),
        files.Source("s3://shop/orders/day=*/*.jsonl", schema=Sale, storage_options=stores): Dataset(
            "s3://shop", "orders"
        ),
        files.Sink("s3a://shop/out/", storage_options=stores): Dataset("s3://shop", "out"),
        files.Source("s3://shop/*.jsonl", schema=Sale, storage_options=stores): Dataset("s3://shop", "/"),
        kafka.Source("sales", schema=Sale, brokers="one:9092, two:9092"): Dataset("kafka://one:9092", "sales"),
        kafka.Sink("sales", brokers="one:9092"): Dataset("kafka://one:9092", "sales"),
        console.Sink(): None,
    }
    assert {connector: connector.dataset() for connector in named} == named
