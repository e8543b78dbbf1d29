"""The operator at work: a Kubernetes in memory, and a whole cluster behind its dispatcher."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from itertools import pairwise
from typing import Any

import pytest

from penstock.adapters.system_clock import SystemClock
from penstock.client import ClusterClient
from penstock.graph.jobgraph import build_job_graph
from penstock_operator.clusters import Clusters
from penstock_operator.controller import Controller
from penstock_operator.definitions import CLUSTER, JOB, SAVEPOINT
from penstock_operator.metrics import Numbers, operator_samples
from penstock_operator.resources import ClusterSpec

from ..dispatcher.small_cluster import ADDRESS, SmallCluster, small_cluster
from .small_kubernetes import Document, SmallKubernetes

SPEC: Document = {
    "cluster": "demo",
    "source": {"configMap": "orders", "file": "orders.py"},
    "parallelism": 2,
    "checkpointInterval": "50ms",
    "stableWithin": "20s",
}


class AtThisCluster(Clusters):
    """Every `PenstockCluster` is the one of the test."""

    def __init__(self, api: Any, client: ClusterClient) -> None:
        super().__init__(api)
        self._client = client

    async def client(self, namespace: str, name: str) -> tuple[ClusterClient, ClusterSpec]:
        """As its parent, asked without a network."""
        _, spec = await super().client(namespace, name)
        return self._client, spec


class Trial:
    """Kubernetes, a cluster, an operator; and who carries out Jobs."""

    def __init__(self, cluster: SmallCluster) -> None:
        self.kubernetes, self.cluster, self.numbers = SmallKubernetes(), cluster, Numbers()
        api = self.kubernetes.api()
        clusters = AtThisCluster(api, cluster.client)
        self.controller = Controller(api, clusters, SystemClock(), self.numbers)
        self.broken: set[str] = set()
        """Parameters of versions whose file raises."""
        spec = {"rest": ADDRESS, "token": {"name": "token", "key": "PENSTOCK_TOKEN"}, "clientImage": "client:1"}
        self.kubernetes.put("secrets", {"metadata": {"name": "token"}, "data": {"PENSTOCK_TOKEN": "dG9rZW4="}})
        self.kubernetes.put("penstockclusters", _resource("PenstockCluster", "demo", spec))
        self.kubernetes.put("configmaps", {"metadata": {"name": "orders"}, "data": {"orders.py": "p = 1"}})

    def apply(self, **changes: Any) -> None:
        """`kubectl apply` of the job."""
        self.kubernetes.put("penstockjobs", _resource("PenstockJob", "orders", {**SPEC, **changes}))

    @property
    def status(self) -> Document:
        """Of the job."""
        return self.kubernetes.get("penstockjobs", "orders").get("status", {})

    def condition(self, kind: str) -> Document:
        """One of its conditions."""
        return next((one for one in self.status.get("conditions", []) if one["type"] == kind), {})

    async def until(self, what: str, holds: Any, deadline_s: float = 30) -> None:
        """Let the operator and the Jobs go on until something is so."""
        try:
            async with asyncio.timeout(deadline_s):
                while not holds():
                    await self.controller.look_after(JOB, "here", "orders")
                    await self.carry_out_jobs()
                    await asyncio.sleep(0.02)
        except TimeoutError:
            pytest.fail(f"not within {deadline_s} s: {what}; {self.status}")

    async def running(self, parallelism: int = 2) -> str:
        """Until what was applied runs, and is stable; the id of its job."""

        def holds() -> bool:
            generation = self.kubernetes.get("penstockjobs", "orders")["metadata"]["generation"]
            ready = self.condition("Ready")
            done = ready.get("status") == "True" and ready["observedGeneration"] == generation
            return done and self.status["deployed"].get("stable", False) and self.status["parallelism"] == parallelism

        await self.until("the job runs", holds)
        return self.status["job"]

    async def carry_out_jobs(self) -> None:
        """As the job controller, kubelet and `penstock submit` do."""
        for job in self.kubernetes.named("jobs"):
            if not job["spec"]["suspend"] and "status" not in job:
                done = await self._submitted(job["spec"]["template"]["spec"]["containers"][0]["command"])
                condition = {"type": "Complete" if done else "Failed", "status": "True"}
                job["status"] = {"conditions": [condition]}

    async def _submitted(self, command: list[str]) -> bool:
        options = dict(pairwise(command))
        if any(parameter in self.broken for parameter in command):
            job = command[command.index("--job-id") + 1]
            message = "orders.py, line 3: ZeroDivisionError: division by zero"
            state = {"terminated": {"exitCode": 1, "message": message}}
            labels = {"job-name": f"orders-{job[:16]}"}
            pod = {
                "metadata": {"name": f"pod-{job}", "labels": labels},
                "status": {"containerStatuses": [{"state": state}]},
            }
            self.kubernetes.put("pods", pod)
            return False
        changes: dict[str, Any] = {"job": options["--job-id"]}
        changes["graph"] = build_job_graph(self.cluster.pipeline.plan, int(options["--parallelism"])).to_json()
        if "--from-savepoint" in options:
            restore = (await self.cluster.client.savepoint(options["--from-savepoint"])).restore
            changes["restored_from"] = {
                "checkpoint": restore.checkpoint, "manifest": restore.manifest, "sha256": restore.sha256,
            }  # fmt: skip
        answer = await self.cluster.post(self.cluster.document(**changes))
        assert answer.status_code == 202, answer.text
        return True

    def reasons(self) -> list[str]:
        """Those of all events."""
        return [event["reason"] for event in self.kubernetes.named("events")]


def _resource(kind: str, name: str, spec: Document) -> Document:
    return {"apiVersion": "penstock.internal/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


@pytest.fixture
async def trial() -> AsyncGenerator[Trial]:
    """With slots for four subtasks."""
    async with small_cluster(slots=4) as cluster:
        yield Trial(cluster)


@pytest.fixture
async def idle() -> AsyncGenerator[Trial]:
    """With nobody who leads, where none is needed."""
    async with small_cluster(slots=0, leads=False) as cluster:
        yield Trial(cluster)


async def test_a_job_is_run_rescaled_upgraded_suspended_resumed_and_deleted(trial: Trial) -> None:
    """Its state goes from one to the other, and at the end every row is in one window, once. The cluster is described."""
    trial.apply()
    first = await trial.running()
    await trial.until("its checkpoints are seen", lambda: trial.status.get("lastCheckpointTime", "").startswith("20"))
    assert trial.status["lastCheckpoint"] > 0
    await trial.controller.look_after(CLUSTER, "here", "demo")
    described = trial.kubernetes.get("penstockclusters", "demo")["status"]
    assert (described["slots"], described["freeSlots"], described["runningJobs"]) == (4, 2, 1)
    assert described["conditions"][0]["status"] == "True"
    trial.apply(parallelism=3)
    assert await trial.running(3) == first
    trial.apply(parallelism=3, parameters={"day": "2"})
    second = await trial.running(3)
    assert second != first
    assert (await trial.cluster.client.job(first)).summary.state == "STOPPED"
    assert trial.status["deployed"]["start"]["manifest"] == trial.status["savepoints"][0]["manifest"]
    trial.apply(parallelism=3, parameters={"day": "2"}, state="suspended")
    await trial.until("it is suspended", lambda: trial.status["phase"] == "Suspended")
    assert (await trial.cluster.client.job(second)).summary.state == "STOPPED"
    trial.cluster.set_rate(None)
    trial.apply(parallelism=3, parameters={"day": "2"})
    await trial.until("it ends", lambda: trial.status["phase"] == "Finished")
    trial.cluster.check()
    trial.kubernetes.delete("penstockjobs", "orders")
    await trial.until("it is gone", lambda: not trial.kubernetes.named("penstockjobs"))
    numbers = {sample.metric.name: sample.value for sample in operator_samples(trial.numbers, leading=True)}
    assert (numbers["penstock_operator_leading"], numbers["penstock_operator_failed_passes_total"]) == (1.0, 0.0)
    assert {"Submitted", "Stable", "Rescaled", "SavepointTaken", "Ended"} <= set(trial.reasons())


async def test_a_job_is_scaled_by_its_load(trial: Trial) -> None:
    """A row a second is too little for three subtasks. What somebody says instead counts, and is measured."""
    trial.cluster.set_rate(1.0)
    quick = {"maxParallelism": 4, "metricsWindow": "200ms", "stabilizationInterval": "0s", "scaleDownInterval": "0s"}
    trial.apply(parallelism=3, autoscaler=quick)
    job = await trial.running(1)
    scaled = trial.status["autoscaler"]
    assert (scaled["lastRescale"]["before"], scaled["lastRescale"]["after"], scaled["insteadOf"]) == (3, 1, 3)
    assert trial.status["deployed"]["parallelism"] == 3, "what the spec says stays what it says"
    trial.apply(parallelism=2, autoscaler={**quick, "dryRun": True})
    assert await trial.running(2) == job
    await trial.until("it is recommended", lambda: trial.status["autoscaler"].get("recommendedParallelism") == 1)
    assert trial.status["parallelism"] == 2
    assert [one for one in trial.reasons() if one in ("ScaleDown", "Recommended")] == ["ScaleDown", "Recommended"]
    samples = [one for one in operator_samples(trial.numbers, leading=True) if "parallelism" in one.metric.name]
    labels = {"namespace": "here", "name": "orders"}
    assert [(one.labels, one.value) for one in samples] == [(labels, 2), (labels, 1)]


async def test_a_version_that_cannot_start_is_rolled_back(trial: Trial) -> None:
    """The user's own exception says why; what is in the ConfigMap now is not what the last stable version was made of."""
    trial.apply()
    await trial.running()
    copy = trial.status["deployed"]["version"]["content"]
    trial.broken.add("day=0")
    trial.kubernetes.put("configmaps", {"metadata": {"name": "orders"}, "data": {"orders.py": "1 / 0"}})
    trial.apply(parameters={"day": "0"})
    await trial.until("it is rolled back", lambda: trial.condition("Ready").get("reason") == "RolledBack")
    assert "ZeroDivisionError" in trial.condition("Degraded")["message"]
    assert trial.status["deployed"]["version"]["content"] == copy
    assert trial.status["deployed"]["start"]["manifest"] == trial.status["savepoints"][0]["manifest"]
    job = trial.status["job"]
    await trial.until("it is stable", lambda: trial.status["deployed"].get("stable"))
    assert trial.status["job"] == job, "what has failed is not tried again"
    mounted = next(one for one in trial.kubernetes.named("jobs") if job[:16] in one["metadata"]["name"])
    volumes = mounted["spec"]["template"]["spec"]["volumes"]
    assert {"name": "pipeline", "configMap": {"name": f"orders-source-{copy[:12]}"}} in volumes
    trial.kubernetes.put("configmaps", {"metadata": {"name": "orders"}, "data": {"orders.py": "p = 2"}})
    trial.apply(parameters={"day": "1"})
    await trial.running()


async def test_a_savepoint_on_demand_and_one_of_a_job_that_is_deleted(trial: Trial) -> None:
    """The former is named, and disposed of with its resource; the resource of a job is there until the job has ended."""
    trial.apply()
    job = await trial.running()
    resource = _resource("PenstockSavepoint", "now", {"job": "orders", "disposeOnDelete": True})
    trial.kubernetes.put("penstocksavepoints", resource)

    async def phase(wanted: str) -> Document:
        async with asyncio.timeout(20):
            while True:
                await trial.controller.look_after(SAVEPOINT, "here", "now")
                found = trial.kubernetes.objects.get(("penstocksavepoints", "now"), {}).get("status", {"phase": "Gone"})
                if found["phase"] == wanted:
                    return found
                await asyncio.sleep(0.02)

    taken = await phase("Completed")
    (known,) = (await trial.cluster.client.savepoints(job)).savepoints
    assert (taken["manifest"], taken["checkpoint"]) == (known.manifest, known.checkpoint)
    await trial.cluster.checkpointed(job)
    trial.kubernetes.delete("penstocksavepoints", "now")
    await phase("Gone")
    assert not (await trial.cluster.client.savepoints(job)).savepoints
    trial.kubernetes.delete("penstockjobs", "orders")
    await trial.until("it is gone", lambda: not trial.kubernetes.named("penstockjobs"))
    assert (await trial.cluster.client.job(job)).summary.state == "STOPPED"
    assert (await trial.cluster.client.savepoints(job)).savepoints


async def test_what_is_wrong_is_said_in_the_status(idle: Trial) -> None:
    """A ConfigMap that is not there, a time that is none."""
    idle.apply(source={"configMap": "order", "file": "orders.py"})
    await idle.until("it says so", lambda: idle.condition("Degraded").get("reason") == "InvalidSpec")
    assert "there is no ConfigMap order in namespace here" in idle.condition("Degraded")["message"]
    idle.apply(stableWithin="soon")
    await idle.until("it says so", lambda: "soon" in idle.condition("Degraded")["message"])
    idle.apply()
    await idle.controller.look_after(JOB, "here", "orders")
    assert (idle.status["phase"], idle.condition("Degraded")["status"]) == ("Starting", "False")


async def test_resources_are_counted_by_an_operator_that_has_nothing_to_write(idle: Trial) -> None:
    """Such as one that begins anew, and finds that all is as it should be."""
    idle.apply()
    await idle.controller.look_after(JOB, "here", "orders")
    await idle.controller.look_after(CLUSTER, "here", "demo")
    idle.numbers.ready.clear()
    written = [idle.kubernetes.get(*one) for one in (("penstockjobs", "orders"), ("penstockclusters", "demo"))]
    await idle.controller.look_after(JOB, "here", "orders")
    await idle.controller.look_after(CLUSTER, "here", "demo")
    assert [idle.kubernetes.get(*one) for one in (("penstockjobs", "orders"), ("penstockclusters", "demo"))] == written
    assert idle.numbers.ready == {
        ("PenstockJob", "here", "orders"): "False",
        ("PenstockCluster", "here", "demo"): "False",
    }


async def test_nobody_writes_upon_what_has_changed(idle: Trial) -> None:
    """Kubernetes refuses it, and nothing was done."""
    idle.apply()
    await idle.controller.look_after(JOB, "here", "orders")
    read = idle.kubernetes.get("penstockjobs", "orders")
    api = idle.kubernetes.api()
    assert await api.write_status(JOB, read, {"counter": 7}) is not None
    assert await api.write_status(JOB, read, {"counter": 8}) is None
    assert idle.status["counter"] == 7


async def test_a_right_that_is_missing_is_named(idle: Trial, capsys: pytest.CaptureFixture[str]) -> None:
    """In the log; and it is tried again."""
    idle.kubernetes.refuses = "penstockjobs"
    idle.apply()
    assert await idle.controller.look_after(JOB, "here", "orders")
    assert idle.numbers.failures["PenstockJob"] == 1
    assert "its service account lacks a right" in capsys.readouterr().out
