"""What an operator sees while Kafka stands still, and while it is down: soon, the right cause, and nothing is lost."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from tests.services import Services, rows_of, wait_for

from penstock.connectors.kafka.topics import TopicAdmin

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

SHOWN_S = 8.0
"""Within this time it is said that the brokers are away."""
AWAY_S = 20.0
"""Longer than a worker may be silent (10 s), than an answer may take (15 s), than a broker's session (4 s)."""
BACK_S = 30.0
ROWS = 20_000
MAKES = f"""
from dataclasses import dataclass

import polars as pl

from penstock import Pipeline
from penstock.connectors import generate, kafka


@dataclass
class Number:
    number: int


def rows(numbers):
    return pl.DataFrame({{"number": numbers}})


p = Pipeline("makes")
made = generate.Source(rows, schema=Number, rows={ROWS}, rate=500)
p.read(made).uid("numbers").write(kafka.Sink("made")).uid("made")
"""
READS = """
from dataclasses import dataclass

from penstock import Pipeline, param
from penstock.connectors import files, kafka


@dataclass
class Number:
    number: int


p = Pipeline("reads")
p.read(kafka.Source("made", schema=Number)).uid("made").write(files.Sink(param("out", ""), format="jsonl")).uid("rows")
"""


@dataclass
class Seen:
    """What was shown while the brokers were away."""

    deaf_after_s: float = 0.0
    """When all documents said so."""
    others: set[str] = field(default_factory=set[str])
    """Whatever else was said to be wrong."""


class Cluster(Services):
    """Coordinator, dispatcher, a task manager; a job that writes to Kafka, one that reads what it wrote."""

    def __init__(self, folder: Path, settings: Any) -> None:
        super().__init__(folder, settings, {"dispatcher": (), "coordinator": (), "taskmanager": ("--slots", "2")})
        TopicAdmin(settings.kafka, "made").create("made", 2)
        self.out = folder / "out"
        self.jobs: list[str] = []

    def submit(self) -> None:
        for name, text in (("makes", MAKES), ("reads", READS)):
            file = self.folder / f"{name}.py"
            file.write_text(text)
            options = ("--param", f"out={self.out}") if name == "reads" else ()
            done = self.run("submit", file, *options, "--checkpoint-interval", "300ms", "--detach")
            self.jobs.append(done.stdout.strip())
        wait_for(self.checkpointed, "checkpoints are complete", 60)

    def checkpointed(self, more_than: int = 2) -> bool:
        return all(self.get(f"jobs/{job}")["summary"]["last_checkpoint"] > more_than for job in self.jobs)

    def get(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.rest}/penstock/v1/{path}", timeout=10) as answer:
            return json.load(answer)

    def look(self) -> tuple[list[int], set[str]]:
        """For how long nothing was heard, by every document, and what else is said to be wrong."""
        listed, details = self.get("jobs"), [self.get(f"jobs/{job}") for job in self.jobs]
        problems = {listed["missing"], "" if listed["leader"] else "no leader"}
        for one in details:
            problems |= {one["missing"], one["summary"]["state"], *one["failures"], f"attempt {one['attempts']}"}
        return [found["deaf_us"] for found in (listed, *details)], problems - {"", "RUNNING", "attempt 1"}

    def watch(self, duration_s: float) -> Seen:
        """Look again and again."""
        seen, began_s = Seen(), time.monotonic()
        while (passed_s := time.monotonic() - began_s) < duration_s:
            deaf_us, others = self.look()
            if all(deaf_us):
                seen.deaf_after_s = seen.deaf_after_s or passed_s
            seen.others |= others
            time.sleep(0.1)
        return seen

    def not_ready(self, service: str) -> list[str]:
        """Why a service is not ready."""
        try:
            with urllib.request.urlopen(f"http://{self.services[service].address}/readyz", timeout=10):
                return []
        except urllib.error.HTTPError as answer:
            return json.load(answer)["errors"]


@pytest.fixture
def cluster(own_platform: Any, tmp_path: Path) -> Generator[Cluster]:
    with asyncio.Runner() as runner:
        found = Cluster(tmp_path, own_platform.settings("away"))
        try:
            runner.run(found.start())
            found.submit()
            yield found
        finally:
            runner.run(found.end())


@pytest.mark.parametrize("how", ["stands-still", "down"])
def test_brokers_that_are_away_are_named_soon_and_cost_nothing(
    cluster: Cluster, own_platform: Any, how: Literal["stands-still", "down"]
) -> None:
    """Stopped with open connections, or ended: the documents, the commands and the probes tell; then the jobs go on."""
    (broker,) = own_platform.kafka.nodes
    with asyncio.Runner() as runner:
        if how == "stands-still":
            broker.pause()
        else:
            runner.run(broker.kill())
        seen = cluster.watch(AWAY_S)
        assert 0 < seen.deaf_after_s < SHOWN_S
        assert not seen.others
        for command in (("status", "reads"), ("status", "makes"), ("jobs",)):
            assert "has heard nothing from the brokers for" in cluster.run(*command).stdout
        refused = cluster.run("savepoint", "reads", code=1).stderr
        assert "Kafka does not answer" in refused
        assert "may have arrived all the same" in refused
        for service in cluster.services:
            assert [error.partition(":")[0] for error in cluster.not_ready(service)] == ["kafka"]
        if how == "stands-still":
            broker.resume()
        else:
            runner.run(broker.start())
    wait_for(lambda: not any(cluster.look()[0]), "the brokers are heard again", BACK_S)
    wait_for(lambda: not any(map(cluster.not_ready, cluster.services)), "all services are ready", BACK_S)
    wait_for(lambda: len(rows_of(cluster.out)) >= ROWS, lambda: f"{len(rows_of(cluster.out))} rows\n{cluster.logs()}")
    assert sorted(row["number"] for row in rows_of(cluster.out)) == list(range(ROWS))
    assert not cluster.look()[1] - {"FINISHED"}
