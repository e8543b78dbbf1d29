"""`python -m tests.k8s`: install the chart with bundled servers, run the example, delete pods, upgrade, roll back.

It uses the current kubectl context and a namespace of its own, which it makes and deletes. The images must be there:
pushed, or imported.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Final

from tests.acceptance.orders import PARTITIONS, expected, windows

from penstock.platform.free_ports import free_port

ROOT: Final = Path(__file__).resolve().parents[2]
RELEASE: Final = "trial"
ORDERS: Final = 120_000
RATE: Final = 2_000
READ: Final = """
import json, sys, time
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": "trial", "enable.auto.commit": False,
                     "isolation.level": "read_committed", "enable.partition.eof": True})
consumer.assign([TopicPartition("spent", n, OFFSET_BEGINNING) for n in range(int(sys.argv[2]))])
open_ones, end = set(range(int(sys.argv[2]))), time.monotonic() + 60
while open_ones and time.monotonic() < end:
    for message in consumer.consume(1000, 0.5):
        if message.error() is not None:
            open_ones.discard(message.partition())
        else:
            print(message.value().decode())
consumer.close()
"""


class TrialError(Exception):
    """Something is not as it must be."""


class Trial:
    """One trial in one namespace."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.namespace: str = options.namespace
        self._values = [
            "bundled.kafka.enabled=true", "bundled.redis.enabled=true", "bundled.minio.enabled=true",
            f"image.repository={options.images}", f"image.tag={options.tag}", "taskmanager.slots=4",
            *options.set,
        ]  # fmt: skip
        self._began = time.monotonic()
        self.port = free_port()

    def say(self, text: str) -> None:
        """A line of the report, with the time since the beginning."""
        print(f"{time.monotonic() - self._began:6.1f} s  {text}", flush=True)

    # -- commands -------------------------------------------------------------------------------------------------------

    def run(self, *command: str, deadline_s: float = 300, given: str | None = None) -> str:
        """What a command prints; it must succeed."""
        environment = {**os.environ, "PENSTOCK_REST": f"http://127.0.0.1:{self.port}"}
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=deadline_s, input=given, env=environment
        )
        if done.returncode != 0:
            raise TrialError(f"{' '.join(command[:6])} ...: {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def kubectl(self, *arguments: str, **options: Any) -> str:
        """In the namespace of the trial."""
        return self.run("kubectl", "--namespace", self.namespace, *arguments, **options)

    def helm(self, *arguments: str, deadline_s: float = 600) -> str:
        """In the namespace of the trial."""
        return self.run("helm", "--namespace", self.namespace, *arguments, deadline_s=deadline_s)

    def penstock(self, *arguments: str) -> str:
        """Penstock's own command, on this machine, at the cluster's REST."""
        return self.run(sys.executable, "-m", "penstock.cli.main", *arguments)

    # -- what is looked at ----------------------------------------------------------------------------------------------

    def pods(self, part: str) -> list[str]:
        """Names of a part's pods."""
        selector = f"app.kubernetes.io/component={part}"
        items = json.loads(self.kubectl("get", "pods", "--selector", selector, "--output", "json"))["items"]
        return [item["metadata"]["name"] for item in items if "deletionTimestamp" not in item["metadata"]]

    def get(self, path: str) -> Any:
        """JSON of the cluster's REST."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            return json.load(answer)

    def jobs(self) -> dict[str, str]:
        """State by name."""
        return {job["name"]: job["state"] for job in self.get("/jobs/overview")["jobs"]}

    def rows(self) -> list[dict[str, Any]]:
        """What a reader of committed rows sees."""
        (pod, *_) = self.pods("dispatcher")
        brokers = f"{RELEASE}-kafka:9092"
        text = self.kubectl("exec", "--stdin", pod, "--", "python", "-", brokers, str(PARTITIONS), given=READ)
        return [json.loads(line) for line in text.splitlines()]

    def wait(self, condition: Callable[[], Any], what: str, deadline_s: float = 240) -> Any:
        """Until it holds; what fails meanwhile counts as not yet."""
        end = time.monotonic() + deadline_s
        while True:
            try:
                found = condition()
            except (OSError, TrialError) as error:
                found, last = None, error
            else:
                last = found
            if found:
                return found
            if time.monotonic() > end:
                raise TrialError(f"not within {deadline_s:.0f} s: {what}; {last}\n{self.kubectl('get', 'pods')}")
            time.sleep(1)

    # -- the steps ------------------------------------------------------------------------------------------------------

    def options(self, *more: str) -> list[str]:
        """Values for helm."""
        return [part for value in (*self._values, *more) for part in ("--set", value)]

    def install(self) -> None:
        """The chart, until every pod is ready; `helm test`."""
        self.run("kubectl", "create", "namespace", self.namespace)
        chart = str(ROOT / "helm" / "penstock")
        self.helm("install", RELEASE, chart, "--wait", "--timeout", "8m", *self.options())
        self.say("installed, every pod is ready")
        self.helm("test", RELEASE, "--timeout", "3m")
        self.say("helm test passed")

    @contextlib.contextmanager
    def forwarded(self) -> Generator[None]:
        """The REST interface on a port of this machine, however often a dispatcher is replaced."""
        forward = f"kubectl --namespace {self.namespace} port-forward service/{RELEASE}-rest {self.port}:8080"
        process = subprocess.Popen(
            ["sh", "-c", f"while true; do {forward}; sleep 1; done"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            self.wait(lambda: self.get("/overview"), "REST answers")
            yield
        finally:
            os.killpg(process.pid, 15)
            process.wait(30)

    def trouble(self) -> None:
        """Run the example; meanwhile pods are deleted and the release is upgraded and rolled back; compare every row."""
        examples = ROOT / "examples"
        options = ["--detach", "--checkpoint-interval", "2s"]
        bounded = ["--param", f"rows={ORDERS}", "--param", f"rate={RATE}"]
        self.penstock("submit", str(examples / "orders_feed.py"), *options, *bounded)
        self.wait(lambda: self.jobs().get("orders-feed") == "RUNNING", "the feed runs")
        self.penstock("submit", str(examples / "orders.py"), *options)
        self.wait(lambda: self.jobs().get("orders") == "RUNNING", "the job runs")
        self.say("both jobs run")
        for part in ("taskmanager", "coordinator", "coordinator", "dispatcher"):
            (pod, *_) = self.pods(part)
            self.kubectl("delete", "pod", pod, "--grace-period=0", "--force")
            self.say(f"deleted {pod}")
            self.wait(lambda part=part, pod=pod: self._ready(part) and pod not in self.pods(part), f"{part} is back")
        self.say("all are back")
        chart = str(ROOT / "helm" / "penstock")
        self.helm("upgrade", RELEASE, chart, "--wait", "--timeout", "8m", *self.options("taskmanager.replicas=2"))
        self.wait(lambda: self.get("/overview")["slots-total"] == 8, "eight slots")
        self.say("upgraded: two task managers, eight slots")
        self.helm("rollback", RELEASE, "1", "--wait", "--timeout", "8m")
        self.wait(lambda: len(self.pods("taskmanager")) == 1, "one task manager again")
        self.say("rolled back")
        want = expected(ORDERS)
        self.wait(lambda: len(self.rows()) >= len(want), "all windows are in the topic", 420)
        if windows(self.rows()) != want:
            raise TrialError("the rows are not those of the orders")
        self.say(f"{len(want)} windows, as the orders say: nothing lost, nothing doubled")

    def _ready(self, part: str) -> bool:
        found = json.loads(self.kubectl("get", "deployment", f"{RELEASE}-{part}", "--output", "json"))
        return found["status"].get("readyReplicas") == found["spec"]["replicas"]

    def uninstall(self) -> None:
        """With a savepoint of what runs."""
        self.helm("uninstall", RELEASE, "--wait", "--timeout", "8m")
        self.say("uninstalled; jobs were stopped with a savepoint")


def main() -> int:
    """Run; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.k8s", description=__doc__)
    parser.add_argument("--namespace", default="penstock-trial", help="made and deleted (penstock-trial)")
    parser.add_argument("--images", default="penstock", help="repository of the images (penstock)")
    parser.add_argument("--tag", default="dev", help="their tag (dev)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="further values of the chart")
    trial = Trial(parser.parse_args())
    try:
        trial.install()
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), trial.forwarded():
            trial.trouble()
        trial.uninstall()
    except TrialError as error:
        print(f"FAILED\n{error}", flush=True)
        return 1
    finally:
        subprocess.run(["kubectl", "delete", "namespace", trial.namespace, "--ignore-not-found"], check=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
