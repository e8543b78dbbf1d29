"""The chart in a namespace: what is asked of it and seen, and the steps with jobs; those with runs are in `spark`."""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Final

import httpx2
from tests.acceptance.orders import PARTITIONS, Window, expected, windows

from penstock.platform.free_ports import free_port

ROOT: Final = Path(__file__).resolve().parents[2]
CHART: Final = str(ROOT / "helm" / "penstock")
RELEASE: Final = "trial"
SERVERS: Final = "servers"
ORDERS: Final = 120_000
RATE: Final = 2_000
READ: Final = """
import json, sys, time
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": "trial", "enable.auto.commit": False,
                     "isolation.level": "read_committed", "enable.partition.eof": True})
consumer.assign([TopicPartition(sys.argv[2], n, OFFSET_BEGINNING) for n in range(int(sys.argv[3]))])
open_ones, end = set(range(int(sys.argv[3]))), time.monotonic() + 60
while open_ones and time.monotonic() < end:
    for message in consumer.consume(1000, 0.5):
        if message.error() is not None:
            open_ones.discard(message.partition())
        else:
            print(message.value().decode())
consumer.close()
"""
TABLE: Final = """
import sys
from penstock import Pipeline
from penstock.connectors import files
found = Pipeline("read").read(files.Source(sys.argv[1])).collect()
text = found["window_start"].dt.strftime("%Y-%m-%dT%H:%M:%S%z")
print(found.with_columns(window_start=text).drop("window_end").write_ndjson(), end="")
"""


_INSTANCE: Final = "app.kubernetes.io/instance"


class TrialError(Exception):
    """Something is not as it must be, or not yet."""


class TrialOverError(Exception):
    """Something is not as it must be, and waiting for it is of no use."""


class Trial:
    """One trial in one namespace."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.namespace: str = options.namespace
        self._images = [f"image.repository={options.images}", f"image.tag={options.tag}", *options.set]
        self._began = time.monotonic()
        self.port = free_port()
        self.token = ""

    def say(self, text: str) -> None:
        """A line of the report, with the time since the beginning."""
        print(f"{time.monotonic() - self._began:6.1f} s  {text}", flush=True)

    # -- commands -------------------------------------------------------------------------------------------------------

    def run(self, *command: str, deadline_s: float = 300, given: str | None = None) -> str:
        """What a command prints; it must succeed."""
        environment = {**os.environ, "PENSTOCK_REST": f"http://127.0.0.1:{self.port}", "PENSTOCK_TOKEN": self.token}
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=deadline_s, input=given, env=environment
            )
        except subprocess.TimeoutExpired as error:
            raise TrialOverError(f"{' '.join(command[:6])} ...: not within {deadline_s:.0f} s") from error
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

    def objects(self, kinds: str, *selectors: str) -> list[dict[str, Any]]:
        """What there is of some kinds."""
        selector = ",".join(selectors)
        return json.loads(self.kubectl("get", kinds, "--selector", selector, "--output", "json"))["items"]

    def resource(self, kind: str, name: str) -> dict[str, Any]:
        """A custom resource; empty if there is none of that name."""
        return json.loads(self.kubectl("get", kind, name, "--ignore-not-found", "--output", "json") or "{}")

    def apply(self, *objects: tuple[str, str, str, dict[str, Any]]) -> None:
        """Make objects: version, kind, name, spec."""
        items = [
            {"apiVersion": version, "kind": kind, "metadata": {"name": name, "labels": {"trial": name}}, "spec": spec}
            for version, kind, name, spec in objects
        ]
        self.kubectl("apply", "--filename", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))

    def pods(self, part: str, release: str = RELEASE) -> dict[str, str]:
        """Names of a part's pods, with what tells a pod from a later one of the same name."""
        items = self.objects("pods", f"app.kubernetes.io/component={part}", f"{_INSTANCE}={release}")
        return {
            item["metadata"]["name"]: item["metadata"]["uid"]
            for item in items
            if "deletionTimestamp" not in item["metadata"]
        }

    def job(self, name: str) -> dict[str, Any]:
        """All that is known about a job."""
        return self.get(f"/penstock/v1/jobs/{name}")

    def get(self, path: str) -> Any:
        """JSON of the cluster's REST."""
        headers = {"Authorization": f"Bearer {self.token}"}
        answer = httpx2.get(f"http://127.0.0.1:{self.port}{path}", headers=headers, timeout=10)
        return answer.raise_for_status().json()

    def jobs(self) -> dict[str, str]:
        """State by name, of those of one name the newest's."""
        newest_last = reversed(self.get("/penstock/v1/jobs")["jobs"])
        return {job["name"]: job["state"] for job in newest_last}

    def rows(self, topic: str = "spent", release: str = RELEASE) -> list[dict[str, Any]]:
        """What a reader of committed rows sees."""
        (pod, *_) = self.pods("dispatcher", release)
        arguments = (f"{SERVERS}-kafka:9092", topic, str(PARTITIONS))
        text = self.kubectl("exec", "--stdin", pod, "--", "python", "-", *arguments, given=READ)
        return [json.loads(line) for line in text.splitlines()]

    def table(self, url: str) -> list[dict[str, Any]]:
        """The rows of files on the store."""
        (pod, *_) = self.pods("dispatcher")
        text = self.kubectl("exec", "--stdin", pod, "--", "python", "-", url, given=TABLE)
        return [json.loads(line) for line in text.splitlines()]

    def compare(self, want: list[Window], topic: str = "spent", release: str = RELEASE) -> None:
        """The rows of a topic are these, once they are all there."""
        self.wait(lambda: len(self.rows(topic, release)) >= len(want), f"all windows are in {topic}", 420)
        if windows(self.rows(topic, release)) != want:
            raise TrialError(f"the rows in {topic} are not those of the orders")
        self.say(f"{topic}: {len(want)} windows, as the orders say: nothing lost, nothing doubled")

    def wait(self, condition: Callable[[], Any], what: str, deadline_s: float = 240, pause_s: float = 1) -> Any:
        """Until it holds; what fails meanwhile counts as not yet."""
        end = time.monotonic() + deadline_s
        while True:
            try:
                found = condition()
            except (OSError, httpx2.HTTPError, TrialError) as error:
                found, last = None, error
            else:
                last = found
            if found:
                return found
            if time.monotonic() > end:
                raise TrialError(f"not within {deadline_s:.0f} s: {what}; {last}\n{self.kubectl('get', 'pods')}")
            time.sleep(pause_s)

    # -- the steps ------------------------------------------------------------------------------------------------------

    def values(self, *more: str) -> list[str]:
        """For helm: the release on the servers of the other."""
        given = (
            *self._images, f"kafka.brokers={SERVERS}-kafka:9092", f"store.endpoint=http://{SERVERS}-minio:9000",
            f"secrets.redisUrl=redis://{SERVERS}-redis:6379/0", "secrets.storeAccessKey=penstock",
            "secrets.storeSecretKey=penstock-secret", "taskmanager.slots=4", "pipeline.enabled=false", *more,
        )  # fmt: skip
        return [part for value in given for part in ("--set", value)]

    def servers(self) -> None:
        """Kafka, Redis and MinIO, of a release without a service."""
        self.run("kubectl", "create", "namespace", self.namespace)
        given = (
            *self._images, *(f"bundled.{part}.enabled=true" for part in ("kafka", "redis", "minio")),
            *(f"{part}.replicas=0" for part in ("coordinator", "dispatcher", "taskmanager")),
            "pipeline.enabled=false", "networkPolicy.enabled=false", "savepointOnUninstall=false",
        )  # fmt: skip
        options = [part for value in given for part in ("--set", value)]
        self.helm("install", SERVERS, CHART, "--wait", "--timeout", "8m", *options)
        self.say("servers are ready")

    def install(self, release: str = RELEASE, *more: str) -> None:
        """The chart, until every pod is ready; `helm test`."""
        self.helm("install", release, CHART, "--wait", "--timeout", "8m", *self.values(*more))
        self.say(f"{release} installed, every pod is ready")
        secret = ("get", "secret", f"{release}-token", "--output", "jsonpath={.data.PENSTOCK_TOKEN}")
        self.token = base64.b64decode(self.kubectl(*secret)).decode()
        if "no jobs run" not in self.helm("test", release, "--timeout", "3m", "--logs"):
            raise TrialError("helm test --logs does not show what the test said")
        self.kubectl("delete", "pod", f"{release}-test")
        self.say("helm test passed")

    @contextlib.contextmanager
    def forwarded(self, release: str = RELEASE) -> Generator[None]:
        """The REST interface of a release on a port of this machine, however often a dispatcher is replaced."""
        forward = f"kubectl --namespace {self.namespace} port-forward service/{release}-rest {self.port}:8080"
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
            before = self.pods(part)
            pod = next(iter(before))
            self.kubectl("delete", "pod", pod, "--grace-period=0", "--force")
            self.say(f"deleted {pod}")
            self.wait(
                lambda part=part, uid=before[pod]: self.ready(part) and uid not in self.pods(part).values(),
                f"{part} is back",
            )
        self.say("all are back")
        self.upgrade("taskmanager.replicas=2")
        self.wait(lambda: self.get("/overview")["slots-total"] == 8, "eight slots")
        self.say("upgraded: two task managers, eight slots")
        self.helm("rollback", RELEASE, "1", "--wait", "--timeout", "8m")
        self.wait(lambda: len(self.pods("taskmanager")) == 1, "one task manager again")
        self.say("rolled back")
        self.compare(expected(ORDERS))

    def upgrade(self, *more: str) -> None:
        """The release, with other values."""
        self.helm("upgrade", RELEASE, CHART, "--wait", "--timeout", "8m", *self.values(*more))

    def ready(self, part: str) -> bool:
        (found,) = self.objects(
            "deployments,statefulsets", f"{_INSTANCE}={RELEASE}", f"app.kubernetes.io/component={part}"
        )
        return found["status"].get("readyReplicas") == found["spec"]["replicas"]

    def scaling(self) -> None:
        """A job that wants more slots than there are gets them, and another is not disturbed when they go again."""
        self.upgrade(
            "taskmanager.autoscaling.enabled=true", "taskmanager.autoscaling.maxReplicas=3",
            "taskmanager.autoscaling.idleTimeout=15s",
        )  # fmt: skip
        self.wait(lambda: self.jobs().get("orders") == "RUNNING", "the job runs")
        attempts = self.job("orders")["attempts"]
        self.say("upgraded: task managers are scaled, one stands there")
        Path("again.py").write_text((ROOT / "examples" / "orders.py").read_text().replace('"orders")', '"again")', 1))
        parameters = ("--param", "until=latest", "--param", "spent=again")
        self.penstock("submit", "again.py", "--detach", "--parallelism", "6", *parameters)
        self.wait(lambda: len(self.pods("taskmanager")) == 2, "two task managers")
        self.say("a job wants six slots of three: a second task manager is made")
        self.wait(lambda: self.jobs().get("again") == "FINISHED", "the large job has ended")
        self.say("the large job has run and ended")
        self.compare(expected(ORDERS, closed=False), "again")
        self.wait(lambda: len(self.pods("taskmanager")) == 1, "one task manager again")
        self.say("the second task manager is gone")
        if self.job("orders")["attempts"] != attempts:
            raise TrialError("the job that ran all the time was restarted")

    def uninstall(self, release: str = RELEASE) -> None:
        """What runs is stopped with a savepoint first; nothing of the release is left."""
        self.helm("uninstall", release, "--wait", "--timeout", "8m")
        self.say(f"{release} uninstalled")
        kinds = (
            "all,configmaps,secrets,serviceaccounts,roles,rolebindings,networkpolicies,poddisruptionbudgets,ingresses,"
            "persistentvolumeclaims"
        )
        self.wait(lambda: not self.objects(kinds, f"{_INSTANCE}={release}"), "nothing is left", 90)
        self.say("nothing of it is left in the namespace")

    def goes_on(self) -> None:
        """Installed again, the cluster knows the savepoint in the store, and the job goes on from there."""
        self.install()
        self.wait(lambda: self.jobs().get("orders") == "STOPPED", "the job is known as stopped")
        *_, savepoint = self.get("/penstock/v1/savepoints?job=orders")["savepoints"]
        self.say(f"the store has its savepoint: {savepoint['manifest']}")
        orders = str(ROOT / "examples" / "orders.py")
        self.penstock("submit", orders, "--detach", "--checkpoint-interval", "2s", "--from-savepoint", "orders")
        self.wait(lambda: self._completed(savepoint["checkpoint"]), "it has completed a checkpoint from there on")
        self.compare(expected(ORDERS))

    def _completed(self, checkpoint: int) -> bool:
        found = self.get("/penstock/v1/jobs")["jobs"]
        return any(job["state"] == "RUNNING" and job["last_checkpoint"] > checkpoint for job in found)

    def application(self) -> None:
        """A release that is one job, beside the other on the same servers."""
        source = f"application.source={ROOT / 'examples' / 'orders.py'}"
        given = ("clusterName=application", "application.enabled=true", "application.file=orders.py")
        parameters = ("application.params.spent=app", "application.parallelism=2")
        options = (*self.values(*given, *parameters), "--set-file", source)
        self.helm("install", "app", CHART, "--wait", "--timeout", "8m", *options)
        self.say("app installed: application mode")
        self.compare(expected(ORDERS), "app", "app")
