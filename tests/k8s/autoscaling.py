"""The operator scales a job on a real Kubernetes: orders come in twice as fast, and then as before.

A subtask can count a thousand orders a second at most, because it waits at each of them, as for a database: so the trial
needs few processors. There are four partitions, so of three subtasks one reads as many as each of two: two are enough for
the orders at first, and four, not three, for twice as many. The second task manager comes and goes with the parallelism.
In the end every row is compared.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, field
from typing import Any, Final

import yaml
from tests.acceptance.orders import expected
from tests.k8s.lifecycle import STEP_S, Document, Job, Lifecycle
from tests.k8s.trial import RELEASE, ROOT, TrialError, TrialOverError

VALUES: Final = (
    "operator.enabled=true", "clusterName=scaled", "taskmanager.slots=4", "taskmanager.autoscaling.enabled=true",
    "taskmanager.autoscaling.maxReplicas=2", "taskmanager.autoscaling.idleTimeout=15s",
)  # fmt: skip
SPENT: Final = {"orders": "scaled", "spent": "scaled-spent"}
"""Topics; those of other trials are left alone."""
FEW, MANY = 1_000, 2_000
WAITING: Final = """
import time

owed_s = 0.0


def waited(order: Order) -> Order:
    # Wait 0.9 ms for each; on a busy node sleep lasts longer than it should, which counts for those that follow.
    global owed_s
    owed_s += 0.0009
    if owed_s > 0.005:
        began_s = time.perf_counter()
        time.sleep(owed_s)
        owed_s -= time.perf_counter() - began_s
    return order


p = Pipeline("orders")
"""
SCALER: Final[Document] = {
    "maxParallelism": 4, "utilizationMin": 0.5, "metricsWindow": "40s", "stabilizationInterval": "15s",
    "scaleDownInterval": "30s", "catchUpDuration": "3m", "restartTime": "10s",
}  # fmt: skip


@dataclass
class Scaling(Lifecycle):
    """The trial of the autoscaler, on servers that are there."""

    seen: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Parallelism, and records behind, as the status says them."""

    def run(self) -> None:
        """All of it."""
        self._begin()
        over = threading.Event()
        watching = threading.Thread(target=self._watch, args=(over,))
        watching.start()
        try:
            before = self._settled(FEW)
            self._feed(MANY)
            self._changes("twice as many: scaled up", before, 1)
            highest = self._settled(MANY)
            self._feed(FEW)
            self._changes("as before: scaled down", highest, -1)
            self._settled(FEW)
            self.trial.wait(lambda: len(self.trial.pods("taskmanager")) == 1, "one task manager again", STEP_S)
        finally:
            over.set()
            watching.join()
        self._rescales()
        self._end()
        for what, took in self.seconds.items():
            print(f"  {what}  {'  '.join(took)}")

    def _begin(self) -> None:
        trial, examples = self.trial, ROOT / "examples"
        trial.kubectl("wait", "--for=condition=Ready", f"penstockcluster/{RELEASE}", "--timeout=2m")
        text = (examples / "orders.py").read_text().replace('p = Pipeline("orders")\n', WAITING, 1)
        common: Document = {"cluster": RELEASE, "checkpointInterval": "2s", "stableWithin": "3m", "parameters": SPENT}
        resources: list[Document] = list(yaml.safe_load_all((examples / "orders_job.yaml").read_text()))
        feed, orders = (dict[str, Any](one["spec"] | common) for one in resources)
        self.feed, self.orders = Job(trial, "orders-feed", feed), Job(trial, "orders", orders)
        self.feed.spec["parameters"] = {"orders": SPENT["orders"], "rate": str(FEW)}
        self.orders.spec |= {"parallelism": 1, "autoscaler": SCALER}
        self.feed.source((examples / "orders_feed.py").read_text())
        self.orders.source(text.replace("    .key_by", "    .map(waited)\n    .key_by", 1))
        for job in (self.feed, self.orders):
            job.apply()
            trial.wait(lambda job=job: job.runs(job.status()), f"{job.name} is stable", STEP_S)
            trial.say(f"{job.name} runs")

    def _feed(self, rate: int) -> None:
        self.feed.apply(parameters={**self.feed.spec["parameters"], "rate": str(rate)})
        self.trial.wait(lambda: self.feed.runs(self.feed.status()), "the feed has another rate", STEP_S)
        self.trial.say(f"{rate} orders a second")

    def _scaled(self) -> Document:
        return self.orders.status().get("autoscaler", {})

    def _changes(self, what: str, before: int, direction: int) -> None:
        """Until the parallelism is higher (1) or lower (-1), and the job runs at it."""

        def has_changed() -> tuple[Any, Any]:
            status = self.orders.status()
            return (status["parallelism"] - before) * direction > 0 and self.orders.runs(status), None

        self._until(what, lambda: None, has_changed, killed=False, deadline_s=2 * STEP_S)

    def _settled(self, rate: int) -> int:
        """Until what was measured at this rate fits the parallelism, and the job has caught up; the parallelism."""

        def fits() -> bool:
            behind = self.orders.status().get("recordsBehind", MANY * 60)
            found = re.match(r"sources get ([\d,]+) rows/s", self._scaled().get("reason", ""))
            measured = int(found[1].replace(",", "")) if found else 0
            well = self._scaled().get("state") in ("Balanced", "Limited")
            return well and behind < 10 * MANY and abs(measured - rate) < 0.15 * rate

        self.trial.wait(fits, f"it fits {rate} orders a second", 2 * STEP_S)
        status, pods = self.orders.status(), len(self.trial.pods("taskmanager"))
        self.trial.say(f"parallelism {status['parallelism']}, {pods} task managers; {self._scaled()['reason']}")
        return status["parallelism"]

    def _watch(self, over: threading.Event) -> None:
        said = ()
        while not over.wait(1.0):
            try:
                status = self.orders.status()
            except (TrialError, TrialOverError):
                continue
            parallelism, behind = status.get("parallelism", 0), status.get("recordsBehind", 0)
            self.seen.append((parallelism, behind))
            scaled = status.get("autoscaler", {})
            now = (parallelism, scaled.get("state"))
            if now != said:
                self.trial.say(f"  parallelism {parallelism}, {now[1]}: {scaled.get('reason')}")
            said = now

    def _rescales(self) -> None:
        events = self.trial.kubectl(
            "get", "events", "--field-selector=involvedObject.name=orders", "--sort-by=.metadata.creationTimestamp",
            "--output", r"jsonpath={range .items[*]}{.reason}{'\t'}{.message}{'\n'}{end}",
        )  # fmt: skip
        told = [line for line in events.splitlines() if line.startswith(("ScaleUp", "ScaleDown"))]
        behind = max(behind for _, behind in self.seen)
        self.trial.say(f"{len(told)} rescales, at most {behind:,} records behind\n" + "\n".join(told))
        if not 2 <= len(told) <= 5:
            raise TrialError(f"{len(told)} rescales")
        if behind > 120 * MANY:
            raise TrialError(f"{behind} records behind")

    def _end(self) -> None:
        """The feed ends, the job reads to its end, and every row is compared."""
        self._delete(self.feed)
        orders = self._count()
        self.trial.say(f"{orders} orders were fed")
        self.orders.apply(parameters={**SPENT, "until": "latest"})
        self.trial.wait(lambda: self.orders.status().get("phase") == "Finished", "the job reads to the end", STEP_S)
        self.trial.compare(expected(orders, closed=False), SPENT["spent"])
        self._delete(self.orders)
