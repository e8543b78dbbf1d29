"""The compose file as users start it: images are built, containers killed, no row is lost or doubled."""

from __future__ import annotations

import json
import re
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator
from typing import Any

import polars as pl
import pytest

from penstock import Pipeline
from penstock.connectors import files
from penstock.errors import PipelineError
from penstock.platform.free_ports import free_port

from .committed import CommittedRows
from .docker import PROJECTS, STAND_INS, Compose, engine, run
from .orders import PARTITIONS, expected, windows

pytestmark = [pytest.mark.timeout(1_500), pytest.mark.group("containers")]

ROWS = 240_000
RATE = 2_000
TOKEN = secrets.token_hex(32)


class Demo:
    """`docker compose --profile demo up` with a feed that ends, and what its ports show."""

    def __init__(self) -> None:
        taken: set[int] = set()
        ports = {
            name: free_port(taken)
            for name in (
                "PENSTOCK_PORT",
                "KAFKA_PORT",
                "REDIS_PORT",
                "STORE_PORT",
                "PROMETHEUS_PORT",
                "SPARK_PORT",
                "SPARK_HISTORY_PORT",
            )
        }
        variables = {name: str(port) for name, port in ports.items()}
        self.ports = ports
        self.compose = Compose(
            f"{PROJECTS}{secrets.token_hex(4)}",
            variables
            | {"DEMO_ROWS": str(ROWS), "DEMO_RATE": str(RATE), "PENSTOCK_VERSION": "test", "PENSTOCK_TOKEN": TOKEN},
        )
        self.spent = CommittedRows(f"127.0.0.1:{ports['KAFKA_PORT']}", "spent", PARTITIONS)

    def get(self, path: str, port: str = "PENSTOCK_PORT") -> Any:
        """JSON from a port of the platform."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.ports[port]}{path}")
        if port == "PENSTOCK_PORT":
            request.add_header("Authorization", f"Bearer {TOKEN}")
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def epoch(self) -> int:
        """That of the leader; 0 if there is none. Every takeover begins a new one, by whichever container."""
        return self.get("/penstock/v1/overview")["epoch"]

    def leader(self) -> str | None:
        """The coordinator that leads, as a service of the compose file."""
        found = self.get("/api/v1/query?query=penstock_leading==1", "PROMETHEUS_PORT")["data"]["result"]
        addresses = {sample["metric"]["instance"].partition(":")[0] for sample in found}
        for service in ("coordinator-1", "coordinator-2"):
            form = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
            if run("docker", "inspect", "--format", form, self.compose.containers(service)[0]).strip() in addresses:
                return service
        return None


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Generator[Demo]:
    """The platform of the compose file, with images built from this tree."""
    with engine(tmp_path_factory.mktemp("docker")):
        run(STAND_INS, timeout_s=900)
        found = Demo()
        try:
            found.compose("--profile", "demo", "up", "--detach", "--build", timeout_s=1_200)
            yield found
        finally:
            found.compose.down("--profile", "demo")


def wait_for(condition: Callable[[], Any], what: str, demo: Demo, deadline_s: float = 600) -> Any:
    """Wait until it holds; connections that fail meanwhile count as not yet."""
    end = time.monotonic() + deadline_s
    seen: object = None
    while True:
        try:
            seen = condition()
        except OSError as error:
            seen = error
        if seen and not isinstance(seen, OSError):
            return seen
        assert time.monotonic() < end, f"not within {deadline_s} s: {what}; {seen}\n{demo.compose('ps')}"
        time.sleep(1)


def test_the_demo_survives_its_containers(demo: Demo) -> None:
    """All jobs run and show in REST and Prometheus; the leader's and the task manager's container are killed; the
    result is exactly what the orders say."""
    jobs = lambda: {job["name"]: job["state"] for job in demo.get("/jobs/overview")["jobs"]}  # noqa: E731
    running = dict.fromkeys(("orders", "orders-feed", "orders-archive"), "RUNNING")
    wait_for(lambda: jobs() == running, "the jobs run", demo)
    rate = "/api/v1/query?query=sum(rate(penstock_rows_in_total%7Bjob_name=%22orders%22%7D%5B30s%5D))%3E0"
    wait_for(lambda: demo.get(rate, "PROMETHEUS_PORT")["data"]["result"], "rows move in Prometheus", demo)

    demo.compose.kill("taskmanager")
    wait_for(lambda: demo.compose.restarts("taskmanager"), "the task manager is restarted", demo)
    first, epoch = wait_for(demo.leader, "somebody leads", demo), wait_for(demo.epoch, "there is an epoch", demo)
    demo.compose.kill(first)
    wait_for(lambda: demo.epoch() > epoch, "one leads in a later epoch: the other one, or this one restarted", demo)

    want = expected(ROWS)

    def complete() -> bool:
        demo.spent.read()
        return len(demo.spent.rows) >= len(want)

    wait_for(complete, "all windows are in the topic", demo, 300)
    demo.spent.read()
    assert windows(demo.spent.rows) == want
    assert jobs()["orders"] == "RUNNING"


def test_the_daily_pipeline_runs_on_spark(demo: Demo) -> None:
    """Over what the live job has archived, on the stack's own Spark cluster: the day's table has the live job's rows."""
    stored = {
        "endpoint_url": f"http://127.0.0.1:{demo.ports['STORE_PORT']}",
        "access_key_id": "penstock",
        "secret_access_key": "penstock-secret",
    }

    def table(path: str) -> pl.DataFrame:
        source = files.Source(f"s3://penstock/{path}", storage_options=stored)
        return Pipeline("read").read(source).collect()

    def archived() -> bool:
        try:
            return table("archive/orders").height == ROWS
        except PipelineError:  # not a file yet
            return False

    wait_for(archived, "all orders are archived", demo)
    scheduled = lambda: [run["state"] for run in demo.get("/penstock/v1/schedules/orders")["ended"]]  # noqa: E731
    wait_for(lambda: scheduled() == ["FINISHED"], "the day's run of the schedule is over", demo)
    daily = (
        "/opt/penstock/examples/orders_daily.py",
        "--run-id",
        "check",
        "--param",
        "day=2026-01-01",
    )
    for _ in range(2):  # the second one finds the run finished
        demo.compose("run", "--rm", "--no-deps", "demo-daily", "submit", *daily, timeout_s=900)
        found = table("tables/spent").with_columns(pl.col("window_start").dt.strftime("%Y-%m-%dT%H:%M:%S%z"))
        assert windows(found.to_dicts()) == expected(ROWS, closed=False)

    def completed() -> bool:
        applications = demo.get("/api/v1/applications", "SPARK_HISTORY_PORT")
        return [run["completed"] for each in applications for run in each["attempts"]].count(True) >= 2

    wait_for(completed, "the history server, which looks now and then, shows both runs", demo)
    [worker] = demo.get("/json/", "SPARK_PORT")["workers"]
    assert worker["state"] == "ALIVE"


def test_nobody_is_let_in_without_the_token(demo: Demo) -> None:
    """Through the port of the proxy, whatever is asked for; health needs none."""
    address = f"http://127.0.0.1:{demo.ports['PENSTOCK_PORT']}"
    for path in ("/jobs/overview", "/penstock/v1/jobs"):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(address + path, timeout=10)
    with urllib.request.urlopen(f"{address}/healthz", timeout=10) as answer:
        assert answer.status == 200


def test_task_managers_scale(demo: Demo) -> None:
    """`--scale taskmanager=2`: the cluster has the slots of both."""
    demo.compose("up", "--detach", "--scale", "taskmanager=2", "--no-recreate", "taskmanager")
    wait_for(lambda: demo.get("/overview")["slots-total"] == 8, "eight slots", demo)


@pytest.mark.parametrize("service", ["coordinator", "dispatcher", "taskmanager"])
def test_nobody_is_root_in_an_image(demo: Demo, service: str) -> None:
    """No compiler, no pip, a user of its own, a read-only root."""
    image = f"penstock/{service}:test"
    assert run("docker", "image", "inspect", "--format", "{{.Config.User}}", image).strip() == "10001:10001"
    assert "healthcheck.py" in run("docker", "image", "inspect", "--format", "{{.Config.Healthcheck}}", image)
    found = in_image(image, "ls /opt/penstock/bin; id -u; touch /opt/x 2>&1")
    assert "10001" in found.split()
    assert not re.search(r"\bpip\d*\b", found)
    assert "Read-only" in found


def test_images_are_small(demo: Demo) -> None:
    """Less than 250 MB compressed beside the base. The coordinator's has what the others' have, and Kubernetes' client.

    The fast compression is an upper bound of that of registries. Reading a gigabyte of small files takes minutes
    where other tests wait for the same disk.
    """
    size = in_image("penstock/coordinator:test", "tar --create --directory / opt/penstock | gzip --fast | wc -c")
    assert int(size) < 250_000_000


def in_image(image: str, command: str) -> str:
    """What a shell prints in a container of an image whose root is read-only."""
    shell = ("docker", "run", "--rm", "--read-only", "--entrypoint", "sh", image, "-c", command)
    return run(*shell, check=False, timeout_s=600)
