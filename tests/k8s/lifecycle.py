"""The operator on a real Kubernetes: a job whose resource changes in every way, while orders come in all the time.

Each step is taken twice, the second time with the operator's pod deleted whenever something is under way. In the end
every row is compared, across all the jobs that the resource has been.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml
from tests.acceptance.orders import PARTITIONS, expected
from tests.k8s.trial import RELEASE, ROOT, SERVERS, Trial, TrialError, TrialOverError

Document = dict[str, Any]

STEP_S: Final = 300
GROUP: Final = "penstock.internal/v1alpha1"
VALUES: Final = ("operator.enabled=true", "taskmanager.slots=7", "clusterName=declared")
ORDERS: Final = "declared"
"""The topic that is fed; those of the chart's trial are left alone."""
KINDS: Final = "penstocksavepoints,penstockjobs"
FAILING: Final = """
fails = param("fails", "never")
if fails == "imported":
    1 / 0


def checked(order: Order) -> Order:
    if fails == "running":
        1 / 0
    return order


p = Pipeline("orders")
"""
COUNT: Final = """
import sys
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
partitions = int(sys.argv[3])
consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": "count", "enable.auto.commit": False,
                     "isolation.level": "read_committed", "enable.partition.eof": True})
consumer.assign([TopicPartition(sys.argv[2], n, OFFSET_BEGINNING) for n in range(partitions)])
ended, found = set(), 0
while len(ended) < partitions:
    for message in consumer.consume(10_000, 0.5):
        if message.error() is None:
            found += 1
        else:
            ended.add(message.partition())
print(found)
"""


def condition(status: Mapping[str, Any], kind: str) -> Document:
    """One of the conditions; empty if it was never said."""
    return next((one for one in status.get("conditions", []) if one["type"] == kind), {})


@dataclass
class Job:
    """A `PenstockJob`, as somebody has it in git; its ConfigMap has its name."""

    trial: Trial
    name: str
    spec: Document

    def apply(self, **changes: Any) -> None:
        """`kubectl apply`, with some fields changed."""
        self.spec = {**self.spec, **changes}
        self.trial.apply((GROUP, "PenstockJob", self.name, self.spec))

    def source(self, text: str) -> None:
        """`kubectl apply` of the ConfigMap."""
        data = {self.spec["source"]["file"]: text}
        document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": self.name}, "data": data}
        self.trial.kubectl("apply", "--filename", "-", given=json.dumps(document))

    def status(self) -> Document:
        """As it is now; nothing if there is no such resource."""
        return self.trial.resource("penstockjob", self.name).get("status", {})

    def runs(self, status: Document) -> bool:
        """Whether what was applied last runs, and has completed a checkpoint."""
        ready = condition(status, "Ready")
        generation = self.trial.resource("penstockjob", self.name)["metadata"]["generation"]
        as_said = ready.get("status") == "True" and ready["observedGeneration"] == generation
        return as_said and status.get("jobState") == "RUNNING" and status["deployed"].get("stable", False)


# -- what a step comes to: of the job, its status before and its status now ---------------------------------------------

Judge = Callable[[Job, Document, Document], Any]


def follows(job: Job, before: Document, now: Document) -> Any:
    """Another job runs, from a savepoint."""
    start = now.get("deployed", {}).get("start")
    return start and start.get("savepoint", True) and now["job"] != before.get("job") and job.runs(now)


def begins_anew(job: Job, before: Document, now: Document) -> Any:
    """Another job runs, from nothing."""
    return now.get("job") != before.get("job") and job.runs(now) and "start" not in now["deployed"]


def goes_on(job: Job, before: Document, now: Document) -> Any:
    """The same job runs, at the parallelism that is wanted."""
    return now["job"] == before["job"] and now.get("parallelism") == job.spec["parallelism"] and job.runs(now)


def is_suspended(job: Job, before: Document, now: Document) -> Any:
    """No job runs, and there is a savepoint."""
    state = job.trial.job(before["job"])["summary"]["state"]
    return now.get("phase") == "Suspended" and now.get("newestSavepoint") and state == "STOPPED"


def is_rolled_back(job: Job, before: Document, now: Document) -> Any:
    """The version of before runs again, and the user's exception is shown."""
    deployed = now.get("deployed", {})
    said = condition(now, "Ready").get("reason") == "RolledBack"
    said = said and "ZeroDivisionError" in condition(now, "Degraded").get("message", "")
    same = deployed.get("version") == before["deployed"]["version"]
    return said and same and now["job"] != before["job"] and deployed.get("stable")


def is_well(job: Job, before: Document, now: Document) -> Any:
    """The same job goes on, and nothing is wrong any more."""
    return now["job"] == before["job"] and condition(now, "Degraded").get("status") == "False" and job.runs(now)


def has_finished(job: Job, before: Document, now: Document) -> Any:
    """Its input has come to an end."""
    return now.get("phase") == "Finished" and condition(now, "Ready").get("reason") == "Finished"


@dataclass(frozen=True)
class Step:
    """Some fields of the spec that change, and what that comes to."""

    what: str
    changes: Document
    judge: Judge


SPENT: Final = {"orders": ORDERS, "spent": "declared-spent"}
STEPS: Final = (
    Step("upgrade, savepoint", {"upgradeMode": "savepoint", "checkpointInterval": "3s"}, follows),
    Step("upgrade, last-checkpoint", {"upgradeMode": "last-checkpoint", "checkpointInterval": "2s"}, follows),
    Step("rescaled in place, up", {"parallelism": 4}, goes_on),
    Step("rescaled in place, down", {"parallelism": 2}, goes_on),
    Step("suspended", {"state": "suspended"}, is_suspended),
    Step("resumed", {"state": "running"}, follows),
    Step("rollback: the file raises", {"parameters": {**SPENT, "fails": "imported"}}, is_rolled_back),
    Step("rollback: the job fails", {"parameters": {**SPENT, "fails": "running"}, "restart": "none"}, is_rolled_back),
    Step("back to the version that runs", {"parameters": SPENT, "restart": "exponential"}, is_well),
)  # fmt: skip


@dataclass
class Lifecycle:
    """The trial of the operator, on servers that are there."""

    trial: Trial
    seconds: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """What each step took, at first and with the operator killed."""

    def run(self) -> None:
        """All of it."""
        self._begin()
        for killed in (False, True):
            for step in STEPS:
                self._take(step, self.orders, killed)
            self._take(Step("upgrade, stateless", self._elsewhere(killed), begins_anew), self.beside, killed)
            self._savepoint(killed)
            self._another_from_a_deleted_one(killed)
        self._end()
        width = max(map(len, self.seconds))
        for what, took in self.seconds.items():
            print(f"  {what:{width}}  {'  '.join(took)}")

    # -- the beginning and the end --------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """The two jobs of the example, and one beside them that is upgraded without state."""
        trial, examples = self.trial, ROOT / "examples"
        trial.kubectl("wait", "--for=condition=Ready", f"penstockcluster/{RELEASE}", "--timeout=2m")
        text = (examples / "orders.py").read_text().replace('p = Pipeline("orders")\n', FAILING, 1)
        text = text.replace("    .key_by", "    .map(checked)\n    .key_by", 1)
        common: Document = {"cluster": RELEASE, "checkpointInterval": "2s", "stableWithin": "3m", "parameters": SPENT}
        resources: list[Document] = list(yaml.safe_load_all((examples / "orders_job.yaml").read_text()))
        feed, orders = (dict[str, Any](one["spec"] | common) for one in resources)
        feed["parameters"] = {"orders": ORDERS, "rate": "1000"}
        beside = {**orders, "source": {**orders["source"], "configMap": "beside"}, "upgradeMode": "stateless"}
        self.feed, self.orders = Job(trial, "orders-feed", feed), Job(trial, "orders", orders)
        self.beside = Job(trial, "beside", {**beside, "parameters": {**SPENT, "spent": "beside"}, "parallelism": 1})
        self.feed.source((examples / "orders_feed.py").read_text())
        self.orders.source(text)
        self.beside.source(text)
        for job in (self.feed, self.orders, self.beside):
            job.apply()
            trial.kubectl("wait", "--for=condition=Ready", f"penstockjob/{job.name}", "--timeout=5m", deadline_s=320)
            trial.wait(lambda job=job: job.runs(job.status()), f"{job.name} is stable", STEP_S)
            trial.say(f"{job.name} runs")
        print(trial.kubectl("get", "penstockclusters,penstockjobs"))

    def _elsewhere(self, killed: bool) -> Document:
        """The job without state begins with the first order, so it gets a topic of its own each time."""
        return {"parameters": {**SPENT, "spent": "anew-killed" if killed else "anew"}}

    def _end(self) -> None:
        """The feed ends, the jobs read to its end, and every row is compared."""
        self._delete(self.feed)
        orders = self._count()
        self.trial.say(f"{orders} orders were fed")
        for job in (self.orders, self.beside):
            parameters = {**job.spec["parameters"], "until": "latest"}
            mode = {"upgradeMode": "last-checkpoint"}
            self._take(
                Step(f"{job.name} reads to the end", {"parameters": parameters, **mode}, has_finished),
                job,
                killed=False,
            )
        for topic in (SPENT["spent"], "anew-killed"):
            self.trial.compare(expected(orders, closed=False), topic)
        for job in (self.orders, self.beside):
            self._delete(job)
        if self.trial.kubectl("get", KINDS, "--output", "name"):
            raise TrialError("some resources are still there")

    def _count(self) -> int:
        """Orders in the topic."""
        (pod, *_) = self.trial.pods("dispatcher")
        arguments = (f"{SERVERS}-kafka:9092", self.feed.spec["parameters"]["orders"], str(PARTITIONS))
        return int(self.trial.kubectl("exec", "--stdin", pod, "--", "python", "-", *arguments, given=COUNT))

    # -- steps ----------------------------------------------------------------------------------------------------------

    def _take(self, step: Step, job: Job, killed: bool) -> None:
        before = job.status()

        def ended() -> Any:
            now = job.status()
            return step.judge(job, before, now), now.get("step")

        self._until(step.what, lambda: job.apply(**step.changes), ended, killed)

    def _until(
        self, what: str, begin: Callable[[], Any], look: Callable[[], tuple[Any, Any]], killed: bool,
        deadline_s: float = STEP_S,
    ) -> None:  # fmt: skip
        """Until a step has come to its end; `look` also says what is under way: the operator is killed at each of it."""
        interrupted: list[Any] = []

        def ended() -> Any:
            over, under_way = look()
            moment = (under_way or {}).get("request")
            if killed and moment and moment not in interrupted:
                interrupted.append(moment)
                self._kill()
            return over

        began = time.monotonic()
        begin()
        self.trial.wait(ended, what, deadline_s, pause_s=0.2)
        took = f"{time.monotonic() - began:5.1f} s" + (f" ({len(interrupted)} killed)" if killed else "")
        self.seconds.setdefault(what, []).append(took)
        self.trial.say(f"{what}: {took}")

    def _kill(self) -> None:
        operators = "app.kubernetes.io/component=operator"
        self.trial.kubectl("delete", "pod", "--selector", operators, "--grace-period=0", "--force", "--wait=false")

    def _savepoint(self, killed: bool) -> None:
        """Taken by a resource of its own, and disposed of with it."""
        name = "killed" if killed else "now"
        spec = {"job": "orders", "disposeOnDelete": True}

        def taken() -> Any:
            status = self.trial.resource("penstocksavepoint", name).get("status", {})
            under_way = status if status.get("phase") == "InProgress" else None
            return status.get("phase") == "Completed" and status["manifest"], under_way

        self._until("savepoint", lambda: self.trial.apply((GROUP, "PenstockSavepoint", name, spec)), taken, killed)
        status = self.trial.resource("penstocksavepoint", name)["status"]
        if status["manifest"] not in self._savepoints(status["job"]):
            raise TrialError(f"the cluster does not know the savepoint of {status}")
        self.trial.kubectl("delete", "penstocksavepoint", name, "--timeout=2m")
        if status["manifest"] in self._savepoints(status["job"]):
            raise TrialError(f"a savepoint was not disposed of: {status}")

    def _savepoints(self, job: str) -> list[str]:
        return [one["manifest"] for one in self.trial.get(f"/penstock/v1/savepoints?job={job}")["savepoints"]]

    def _another_from_a_deleted_one(self, killed: bool) -> None:
        """Deleted with a savepoint, and made again from it: by the same name, by somebody who knows the savepoint."""
        before = self.orders.status()
        self._delete(self.orders, killed)
        summary = self.trial.job(before["job"])["summary"]
        if summary["state"] != "STOPPED":
            raise TrialOverError(f"the job of a resource that was deleted is {summary}")
        changes = {"fromSavepoint": before["job"]}
        self._take(Step("made anew from its savepoint", changes, follows), self.orders, killed=False)
        del self.orders.spec["fromSavepoint"]

    def _delete(self, job: Job, killed: bool = False) -> None:
        """With a savepoint, as the finalizer has it."""

        def gone() -> Any:
            found = self.trial.resource("penstockjob", job.name)
            return not found, found.get("status", {}).get("step")

        begin = ("delete", "penstockjob", job.name, "--wait=false")
        self._until(f"{job.name} deleted with savepoint", lambda: self.trial.kubectl(*begin), gone, killed)
