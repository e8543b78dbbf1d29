"""Runs, schedules and jobs in steps on Spark, as the chart has them: executors as pods, event logs in the store.

Pods of executors and of the pipeline service are deleted while Spark computes; rows are compared as everywhere. What
the service must not lose lies on a volume: of the node where the pod may be, made by the trial, so that no provisioner of
volumes is needed (`<node>:/tmp/<namespace>-pipeline`, whose files stay there).
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any, Final

from tests.acceptance.orders import expected, windows
from tests.k8s.trial import ORDERS, RELEASE, ROOT, SERVERS, Trial, TrialError, TrialOverError

EXAMPLES: Final = ROOT / "examples"
MORE: Final = 400_000
MORE_RATE: Final = 250
REST_RATE: Final = 5_000
SMALL: Final = (
    "pipeline.enabled=true", "pipeline.executors.memory=768m", "pipeline.executors.memoryOverhead=768m",
    r"pipeline.conf.spark\.kubernetes\.executor\.request\.cores=100m",  # a trial's node may be a small one
)  # fmt: skip
SLOWLY: Final = """
import time


def slowly(order: Order) -> Order:
    time.sleep(0.001)
    return order


p = Pipeline("slow")
"""
HISTORY: Final = (
    "import urllib.request as r; print(r.urlopen('http://localhost:18080/api/v1/applications').read().decode())"
)
NUMBERS: Final = """
from dataclasses import dataclass
import numpy as np
import polars as pl
from penstock import Pipeline, param
from penstock.connectors import files, generate, spark


@dataclass
class Number:
    n: int


def made(numbers):
    return pl.DataFrame({"n": numbers})


read = param("read", "")
p = Pipeline(param("name", "numbers"), engine="spark")
source = (
    spark.Source(lambda session: session.read.parquet(read), schema=Number)
    if read
    else generate.Source(made, schema=Number, rows=10_000)
)
p.read(source).write(files.Sink(param("out", "s3://penstock/numbers"), format="parquet", existing="replace"))
"""
SUM: Final = """
import sys
from penstock import Pipeline
from penstock.connectors import files
found = Pipeline("read").read(files.Source(sys.argv[1])).collect()["n"]
print(len(found), found.n_unique(), found.sum())
"""


class SparkTrial(Trial):
    """A trial with a pipeline service."""

    def spark(self) -> None:
        """The same orders on Spark: refused while there is no pipeline service, then run by it, on pods of its making;
        then the day's table, on schedule, over what a job has archived."""
        command = ("submit", "again.py", "--engine", "spark", "--run-id", "orders-on-spark")
        parameters = ("--param", "until=latest", "--param", "spent=spark")
        try:
            self.penstock(*command, *parameters)
        except TrialError as error:
            if "pipeline.enabled" not in str(error):
                raise
        else:
            raise TrialError("a run on Spark was taken although there is no pipeline service")
        self.volume()
        self.upgrade(*SMALL, "pipeline.volume.existingClaim=pipeline")
        self.say("upgraded: a pipeline service")
        self.penstock(*command, *parameters, "--detach")
        self.wait(lambda: self.pods("executor"), "executors are made")
        self.say(f"executors: {', '.join(self.pods('executor'))}")
        self.penstock(*command, *parameters)
        self.say("the run on Spark has ended")
        self.compare(expected(ORDERS, closed=False), "spark")
        self.wait(lambda: not self.pods("executor"), "executors are gone")
        self.penstock("submit", str(EXAMPLES / "orders_archive.py"), "--param", "until=latest")
        self.say("the orders are archived")
        when = ("--cron", "0 0 * * *", "--start", "2026-01-01", "--end", "2026-01-02", "--param", "day={day}")
        self.penstock("schedule", "add", "orders", str(EXAMPLES / "orders_daily.py"), *when)
        ended = lambda: [run["state"] for run in self.get("/penstock/v1/schedules/orders")["ended"]]  # noqa: E731
        self.wait(ended, "the day's run has ended", 300)
        if ended() != ["FINISHED"] or windows(self.table("s3://penstock/tables/spent")) != expected(
            ORDERS, closed=False
        ):
            raise TrialError(f"the day's table is not that of the orders, or there is none: {ended()}")
        self.say("the day's table is as the orders say")
        self.penstock("schedule", "remove", "orders")
        self.history()

    def history(self) -> None:
        """The history server shows runs that are over, from the store: also those of a pod that is gone."""
        self.wait(lambda: list(self.shown().values()) == [True, True], "the history server knows both runs, as over")
        before = self.shown()
        self.lose("pipeline")
        self.wait(lambda: self.shown() == before, f"the history server of another pod shows {before}")
        self.say("the history server shows both runs, also from another pod")

    def shown(self) -> dict[str, bool]:
        """Applications that the history server shows, and whether they are over."""
        (pod,) = self.pods("pipeline")
        found = json.loads(self.kubectl("exec", pod, "--container", "history", "--", "python", "-c", HISTORY))
        return {one["id"]: one["attempts"][-1]["completed"] for one in found}

    # -- pods that are lost ---------------------------------------------------------------------------------------------

    def lose(self, part: str, *how: str) -> None:
        """Delete a pod, at once unless said otherwise; until another one has come in its place."""
        before = self.pods(part)
        pod = min(before)
        self.kubectl("delete", "pod", pod, *(how or ("--grace-period=0", "--force")))
        self.say(f"deleted {pod}")
        self.wait(lambda: set(self.pods(part).values()) - set(before.values()), f"another {part} is made")
        if part == "pipeline":
            self.wait(lambda: self.ready(part), f"{part} is back")

    def run_of(self, run: str) -> dict[str, Any]:
        """A run in short; it must not have ended."""
        summary = self.get(f"/penstock/v1/runs/{run}")["summary"]
        if summary["state"] not in ("QUEUED", "RUNNING"):
            raise TrialOverError(f"{run} is over: {summary}")
        return summary

    def computes(self, run: str, attempt: int) -> bool:
        """Whether executors have tasks of this attempt at a run."""
        found = self.run_of(run)
        return found["attempts"] == attempt and bool((found["progress"] or {}).get("tasks")) and self.runs("executor")

    def runs(self, part: str) -> bool:
        """Whether a pod of a part has started."""
        items = self.objects("pods", f"app.kubernetes.io/component={part}", f"app.kubernetes.io/instance={RELEASE}")
        return any(item["status"]["phase"] == "Running" for item in items)

    def lost_pods(self) -> None:
        """A run loses an executor, then its driver with the service's pod: its rows are there once."""
        orders = (EXAMPLES / "orders.py").read_text()
        slow = orders.replace('p = Pipeline("orders")\n', SLOWLY, 1).replace(".key_by", ".map(slowly)\n    .key_by", 1)
        Path("slow.py").write_text(slow)
        parameters = ("--param", "until=latest", "--param", "spent=slow")
        command = ("submit", "slow.py", "--engine", "spark", "--run-id", "slow", *parameters)
        self.penstock(*command, "--detach")
        self.wait(lambda: self.computes("slow", 1), "executors compute")
        self.lose("executor")
        self.wait(lambda: self.computes("slow", 1), "executors compute")
        self.lose("pipeline")
        self.wait(lambda: self.computes("slow", 2), "a second attempt computes, with a driver in another pod")
        self.say("the run has begun again, in another pod of the service")
        self.penstock(*command)
        attempts = self.get("/penstock/v1/runs/slow")["summary"]["attempts"]
        if attempts != 2:
            raise TrialError(f"the run took {attempts} attempts: an executor that is lost should not cost one")
        self.compare(expected(ORDERS, closed=False), "slow")

    def steps(self) -> None:
        """A job in steps, fed all the time, loses the same, and its pod moves; it ends behind a step, and submitted again
        it goes on with what is still to be fed, which comes at once."""
        self._feed(MORE_RATE)
        self.wait(lambda: self.jobs().get("orders-feed") == "RUNNING", "the feed runs")
        self._begin_steps()
        self._goes_on(1)
        self.lose("executor")
        self._goes_on(1)
        self.lose("pipeline")
        self._goes_on(2)
        self.lose("pipeline", "--wait=true")
        self._goes_on(3)
        ended = self._stop_steps()
        self.penstock("stop", "orders-feed")
        newest, *_ = (job["job"] for job in self.get("/penstock/v1/jobs")["jobs"] if job["name"] == "orders-feed")
        self._feed(REST_RATE, "--from-savepoint", newest)
        self._begin_steps()
        self.compare(expected(MORE), "steps")
        if self._stop_steps() <= ended:
            raise TrialError(f"the job in steps, submitted again, did not go on behind step {ended}")

    def _begin_steps(self) -> None:
        """Submit the job in steps, always by the same id."""
        Path("steps.py").write_text((EXAMPLES / "orders.py").read_text().replace('"orders")', '"steps")', 1))
        options = ("--engine", "spark", "--every", "3s", "--run-id", "steps", "--detach")
        self.penstock("submit", "steps.py", *options, "--param", "orders=more", "--param", "spent=steps")

    def _stop_steps(self) -> int:
        """End the job in steps, behind a step, whose number is returned; it has a savepoint."""
        said = self.penstock("stop", "steps").strip()
        found = re.search(r"ended behind step (\d+); savepoint: \S+", said)
        if found is None:
            raise TrialError(f"the job in steps should end behind a step, with a savepoint: {said}")
        self.say(said)
        self.wait(lambda: not self.pods("executor"), "executors are gone")
        return int(found[1])

    def _feed(self, rate: int, *options: str) -> None:
        """Feed the job in steps so many orders a second; slower than all of its stages take, it never runs out."""
        bounded = ("--param", f"rows={MORE}", "--param", f"rate={rate}", "--param", "orders=more")
        command = ("submit", str(EXAMPLES / "orders_feed.py"), "--detach", "--checkpoint-interval", "2s")
        self.penstock(*command, *options, *bounded)

    def _goes_on(self, attempts: int) -> None:
        """Until it has done another two steps: the first may have been done before."""

        def done(least: int) -> int:
            found = self.run_of("steps")
            step = (found["progress"] or {}).get("step", 0)
            return step if found["attempts"] == attempts and step >= least else 0

        step = self.wait(lambda: done(1), f"attempt {attempts} has done a step", 360)
        step = self.wait(lambda: done(step + 2), f"attempt {attempts} has done two steps more than {step}", 360)
        self.say(f"the job in steps has done step {step}, at attempt {attempts}")

    def volume(self) -> None:
        """A volume of the node where the pipeline service is to be; its pod's user may write there."""
        node = json.loads(self.run("kubectl", "get", "nodes", "--output", "json"))["items"][0]["metadata"]["name"]
        (minio,) = self.objects(
            "statefulsets", f"app.kubernetes.io/instance={SERVERS}", "app.kubernetes.io/component=minio"
        )
        image = minio["spec"]["template"]["spec"]["containers"][0]["image"]
        size, claim = {"storage": "1Gi"}, {"name": "pipeline", "namespace": self.namespace}
        here = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
        volume = {
            "capacity": size, "accessModes": ["ReadWriteOnce"], "storageClassName": "", "claimRef": claim,
            "hostPath": {"path": f"/tmp/{self.namespace}-pipeline", "type": "DirectoryOrCreate"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [here]}},
        }  # fmt: skip
        wanted = {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": {"requests": size}}
        opens: dict[str, Any] = {
            "name": "opens", "image": image, "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            "command": ["sh", "-c", "rm -rf /data/* && chmod 0777 /data"], "securityContext": {"runAsUser": 0},
        }  # fmt: skip
        mounted = [{"name": "data", "persistentVolumeClaim": {"claimName": "pipeline"}}]
        self.apply(
            ("v1", "PersistentVolume", f"{self.namespace}-pipeline", volume),
            ("v1", "PersistentVolumeClaim", "pipeline", wanted),
            ("v1", "Pod", "opens", {"restartPolicy": "Never", "containers": [opens], "volumes": mounted}),
        )
        self.kubectl("wait", "pod/opens", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=120s")
        self.kubectl("delete", "pod", "opens")

    # -- a store by https -----------------------------------------------------------------------------------------------

    def secured(self) -> None:
        """A release whose store's certificate an authority of one's own has signed: what executors read by Spark's own
        `s3a://` is what was written, and the history server shows both runs."""
        self._secured_store()
        given = (
            "clusterName=secured", "store.endpoint=https://secured-minio:9000", "store.tls.secret=secured-authority",
            *SMALL,
        )  # fmt: skip
        self.install("secured", *given)
        Path("copied.py").write_text(NUMBERS)
        with self.forwarded("secured"):
            self.penstock("submit", "copied.py", "--run-id", "written")
            parameters = ("--param", "read=s3a://penstock/numbers", "--param", "out=s3://penstock/copy")
            self.penstock("submit", "copied.py", "--run-id", "copied", *parameters, "--param", "name=copy")
        (pod, *_) = self.pods("dispatcher", "secured")
        text = self.kubectl("exec", "--stdin", pod, "--", "python", "-", "s3://penstock/copy", given=SUM)
        if text.split() != ["10000", "10000", str(sum(range(10_000)))]:
            raise TrialError(f"executors read other rows by s3a:// than were written: {text}")
        self.say("executors read s3a:// of a store whose authority only the chart's trust store knows")

    def _secured_store(self) -> None:
        """A MinIO that speaks https only, its certificate, and the authority that has signed that."""
        new = (
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-days",
            "2",
            "-nodes",
        )
        authority = ("-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.crt")
        subprocess.run([*new, *authority], check=True, capture_output=True)
        of = (
            "-subj",
            "/CN=minio",
            "-addext",
            "subjectAltName=DNS:secured-minio",
            "-addext",
            "basicConstraints=CA:FALSE",
        )
        signed = ("-CA", "ca.crt", "-CAkey", "ca.key", "-keyout", "private.key", "-out", "public.crt")
        subprocess.run([*new, *of, *signed], check=True, capture_output=True)
        for name, files in (("authority", ("ca.crt",)), ("certificate", ("public.crt", "private.key"))):
            given = [f"--from-file={file}" for file in files]
            self.kubectl("create", "secret", "generic", f"secured-{name}", *given)
        (minio,) = self.objects(
            "statefulsets", f"app.kubernetes.io/instance={SERVERS}", "app.kubernetes.io/component=minio"
        )
        pod = minio["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        container = {name: value for name, value in container.items() if not name.endswith("Probe")}
        container["args"] = ["server", "/data", "--certs-dir", "/certs"]
        container["volumeMounts"] = [*container["volumeMounts"], {"name": "certificate", "mountPath": "/certs"}]
        certificate = {"name": "certificate", "secret": {"secretName": "secured-certificate"}}
        pod |= {"containers": [container], "volumes": [{"name": "data", "emptyDir": {}}, certificate]}
        service = {"selector": {"trial": "secured-minio"}, "ports": [{"port": 9000}]}
        self.apply(("v1", "Pod", "secured-minio", pod), ("v1", "Service", "secured-minio", service))
        self.kubectl("wait", "pod/secured-minio", "--for=condition=Ready", "--timeout=120s")
