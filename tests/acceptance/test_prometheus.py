"""Metrics, alerts and dashboards on a real Prometheus that scrapes a running cluster.

Every panel's query must return data, every alert must be quiet while all is well, and those that this test can provoke
must fire.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from infra.grafana.dashboards import DASHBOARDS, JOB, OPERATOR
from prometheus_client.parser import text_string_to_metric_families
from tests.services import Services, wait_for

from penstock.observability.metrics import (
    BUSY,
    CATALOGUE,
    SCALING_FAILS,
    SHORT_SLOTS,
    TASK_MANAGERS,
    TASK_MANAGERS_WANTED,
)
from penstock.platform.free_ports import free_port
from penstock.platform.server import Server

ROOT = Path(__file__).parents[2]
RULES = ROOT / "infra" / "prometheus" / "alerts.yml"
NAME = "orders"
PIPELINE = f"""
from dataclasses import dataclass
from datetime import UTC, datetime

import polars as pl

from penstock import Pattern, Pipeline, col, count, tumbling
from penstock.connectors import generate, kafka

START = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1_000_000)


@dataclass
class Order:
    key: int
    at: datetime


def rows(numbers):
    return pl.DataFrame(
        {{"key": numbers % 7, "at": pl.Series(START + numbers * 10_000).cast(pl.Datetime("us", "UTC"))}}
    )


feed = Pipeline("feed")
feed.read(generate.Source(rows, schema=Order, rows=10_000_000, event_time="at", rate=500)).write(
    kafka.Sink("orders", key="key", create_partitions=2, delivery="at-least-once")
)

p = Pipeline("{NAME}")
orders = p.read(kafka.Source("orders", schema=Order, event_time="at", max_out_of_orderness="1s")).key_by("key")
orders.window(tumbling("1s")).agg(n=count()).write(kafka.Sink("counts", key="key", create_partitions=2))
never = Pattern.begin("third", col("key") == 3).followed_by("other", col("key") != 3)
orders.match(never, within="5s").select("key").write(kafka.Sink("others", key="key", create_partitions=2))
"""

pytestmark = pytest.mark.timeout(400)


class Prometheus(Server):
    """A Prometheus of its own."""

    def __init__(self, folder: Path, config: Path, taken: set[int]) -> None:
        super().__init__("prometheus", folder, free_port(taken))
        self._config = config

    async def prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    def command(self) -> list[str]:
        program = shutil.which("prometheus")
        assert program is not None, "prometheus is missing: make acceptance installs it"
        data = self.folder / "data"
        return [
            program,
            f"--config.file={self._config}",
            f"--storage.tsdb.path={data}",
            f"--web.listen-address={self.address}",
        ]

    async def is_ready(self) -> bool:
        try:
            return await asyncio.to_thread(lambda: _get(f"http://{self.address}/-/ready").status == 200)
        except OSError:
            return False

    def api(self, path: str, **parameters: str) -> Any:
        """`data` of an answer of its API."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with _get(url) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[Any]:
        """The instant vector of a query."""
        return self.api("query", query=expression)["result"]

    def firing(self) -> set[str]:
        """Names of alerts that are pending or firing."""
        return {alert["labels"]["alertname"] for alert in self.api("alerts")["alerts"]}


def _get(url: str) -> Any:
    return urllib.request.urlopen(url, timeout=10)


class Cluster(Services):
    """Two coordinators, a dispatcher, a task manager, and the Prometheus that watches them."""

    def __init__(self, folder: Path, settings: Any) -> None:
        task_manager = ("--slots", "2")
        wanted = {"coordinator-1": (), "coordinator-2": (), "dispatcher": (), "taskmanager": task_manager}
        super().__init__(folder, settings, wanted)
        taken = {service.port for service in self.services.values()}  # none of which listens yet
        self.prometheus = Prometheus(folder / "prometheus", self._config(), taken)

    def _config(self) -> Path:
        """The scrape jobs of the compose file's Prometheus, with this test's addresses."""
        jobs = [
            {
                "job_name": f"penstock-{kind}",
                "static_configs": [{"targets": [s.address for s in self.services.values() if s.service == kind]}],
            }
            for kind in ("coordinator", "dispatcher", "taskmanager")
        ]
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(RULES)],
            "scrape_configs": jobs,
        }
        file = self.folder / "prometheus.yml"
        file.write_text(json.dumps(config))  # JSON is YAML
        return file

    async def start(self) -> None:
        """Everything, ready."""
        await super().start()
        await self.prometheus.start()

    async def end(self) -> None:
        """Nothing is left."""
        await asyncio.gather(self.prometheus.stop(), super().end())

    def submit(self, name: str) -> None:
        """A pipeline of the file, as a job."""
        self.run("submit", name, "--detach", "--checkpoint-interval", "1s")


@pytest.fixture(scope="module")
def cluster(platform: Any, tmp_path_factory: pytest.TempPathFactory) -> Generator[Cluster]:
    """A cluster with two jobs: one feeds a topic, the other counts from it into another topic."""
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "orders.py").write_text(PIPELINE)
    found = Cluster(folder, platform.settings("observed"))
    with asyncio.Runner() as runner:
        try:
            runner.run(found.start())
            found.submit("orders.py:feed")
            found.submit("orders.py:p")
            yield found
        finally:
            runner.run(found.end())


ON_SPARK = ("penstock_run", "penstock_schedule")
"""How the metrics of the pipeline service begin, which has tests of its own."""


def queries() -> list[str]:
    """Every query of every panel, for the job of this test; the operator on Kubernetes is not here."""
    boards = [board for board in DASHBOARDS if board is not OPERATOR]
    return [
        query.expression.replace(JOB, NAME) for board in boards for panel in board.panels for query in panel.queries
    ]


def selectors(rules: Any) -> list[str]:
    """The metrics, with their matchers, that alert expressions begin from."""
    found = [
        re.findall(r"\b(?:penstock_\w+|up)(?:\{[^}]*\})?", rule["query"]) for group in rules for rule in group["rules"]
    ]
    return sorted({selector for group in found for selector in group})


def test_every_panel_shows_something(cluster: Cluster) -> None:
    """No query of a dashboard is empty while a cluster runs with jobs from and to Kafka."""
    missing = queries()

    def all_there() -> bool:
        missing[:] = [query for query in missing if not cluster.prometheus.query(query)]
        return not missing

    wait_for(all_there, lambda: missing)


def test_every_metric_is_scraped(cluster: Cluster) -> None:
    """The catalogue names nothing that does not exist, and nothing exists that it does not name.

    The pipeline service, scaling and the operator on Kubernetes are not here.
    """
    scaling = {metric.name for metric in (TASK_MANAGERS_WANTED, TASK_MANAGERS, SHORT_SLOTS, SCALING_FAILS)}
    elsewhere = (*ON_SPARK, "penstock_operator_")
    named = {metric.name for metric in CATALOGUE if not metric.name.startswith(elsewhere)} - scaling
    found: set[str] = set()

    def complete() -> bool:
        found.update(name for name in cluster.prometheus.api("label/__name__/values") if name.startswith("penstock_"))
        return named <= found

    wait_for(complete, lambda: sorted(named - found))
    assert found <= named


def test_prometheus_stores_openmetrics_under_the_names_of_the_text_format(cluster: Cluster) -> None:
    """It asks for OpenMetrics, which alone tells units. Whoever asks for nothing gets text with the same names."""
    told: list[Any] = []

    def units_are_there() -> bool:
        told[:] = cluster.prometheus.api("metadata", metric="penstock_busy_seconds").get("penstock_busy_seconds", [])
        return bool(told)

    wait_for(units_are_there, lambda: cluster.prometheus.api("metadata").keys())
    assert [(one["type"], one["unit"]) for one in told] == [("counter", "seconds")]
    names: set[str] = set()
    for service in cluster.services.values():
        with _get(f"http://{service.address}/metrics") as answer:
            families = text_string_to_metric_families(answer.read().decode())
            names |= {sample.name for family in families for sample in family.samples}
    assert BUSY.name in names
    assert names <= set(cluster.prometheus.api("label/__name__/values"))


def test_alerts_stand_on_what_exists_and_are_quiet(cluster: Cluster) -> None:
    """Every selector of every rule returns data, but those of the pipeline service; on a healthy cluster no alert is
    pending."""
    rules = cluster.prometheus.api("rules")["groups"]
    assert sum(len(group["rules"]) for group in rules) >= 8
    missing = [selector for selector in selectors(rules) if not selector.startswith(ON_SPARK)]

    def all_there() -> bool:
        missing[:] = [selector for selector in missing if not cluster.prometheus.query(selector)]
        return not missing

    wait_for(all_there, lambda: missing)
    wait_for(lambda: not cluster.prometheus.firing(), cluster.prometheus.firing)
    health = {rule["name"]: (rule["health"], rule.get("lastError")) for group in rules for rule in group["rules"]}
    assert {state for state, _ in health.values()} == {"ok"}, health


def test_alerts_notice_a_task_manager_and_the_leaders_that_are_gone(cluster: Cluster) -> None:
    """Both jobs wait for slots then, and nobody is left to say so when the coordinators end too; all is well again
    when they are back."""
    *coordinators, _, task_manager = cluster.services.values()
    with asyncio.Runner() as runner:
        runner.run(task_manager.kill())
        wanted = {"PenstockSlotsMissing", "PenstockServiceDown"}
        wait_for(lambda: wanted <= cluster.prometheus.firing(), cluster.prometheus.firing)
        for coordinator in coordinators:
            runner.run(coordinator.stop())
        wait_for(lambda: "PenstockNoLeader" in cluster.prometheus.firing(), cluster.prometheus.firing)
        for service in (*coordinators, task_manager):
            runner.run(service.start())
        wait_for(lambda: not cluster.prometheus.firing(), cluster.prometheus.firing)


@pytest.mark.parametrize("arguments", [("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")])
def test_the_rules_pass_promtool(arguments: tuple[str, ...]) -> None:
    """Syntax, and the unit tests of every alert: quiet when healthy, firing with its text when not."""
    program = shutil.which("promtool")
    assert program is not None, "promtool is missing: make acceptance installs it"
    done = subprocess.run([program, *arguments], cwd=RULES.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
