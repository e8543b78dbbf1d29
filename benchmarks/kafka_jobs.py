"""Runs one job of `benchmarks.kafka`: embedded, as `penstock run` does, or on a cluster, as `penstock submit` does.

Rows and CPU time are sampled as the subtasks report them, twice a second: `steady` is what lies between the first
report of rows and the one that has all, so neither starting Python nor the end's publishing is in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.child import stages

if TYPE_CHECKING:
    from penstock.platform.servers import Servers
    from penstock.platform.services import ServiceProcess

PIPELINES = Path(__file__).parent / "kafka_pipelines.py"
PARALLELISM = 2
CHECKPOINT_INTERVAL_MS = 10_000
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and of its ended children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:15]) / TICKS


def tree_cpu_seconds(pid: int) -> float:
    """The same, with its running children."""
    total = cpu_seconds(pid)
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # whatever has ended since is in its parent's time
            for child in (task / "children").read_text().split():
                total += tree_cpu_seconds(int(child))
    return total


class Samples:
    """Rows and CPU seconds over time."""

    def __init__(self, cpu: Callable[[], float]) -> None:
        self._cpu = cpu
        self.begun = time.perf_counter()
        self.begun_cpu = cpu()
        self.taken: list[tuple[float, int, float]] = []

    def note(self, rows: int) -> None:
        """So many rows are read."""
        if rows and (not self.taken or rows != self.taken[-1][1]):
            self.taken.append((time.perf_counter(), rows, self._cpu()))

    def figures(self, events: int) -> dict[str, Any]:
        """Call at the end of the job."""
        ended, cpu = time.perf_counter(), self._cpu()
        first, last = self.taken[0], self.taken[-1]
        return {
            "start_seconds": first[0] - self.begun,
            "steady_seconds": last[0] - first[0],
            "steady_rows": last[1] - first[1],
            "steady_cpu_seconds": last[2] - first[2],
            "end_seconds": ended - last[0],
            "through_rows": events - first[1],
            "through_seconds": ended - first[0],
            "through_cpu_seconds": cpu - first[2],
            "whole_seconds": ended - self.begun,
            "whole_cpu_seconds": cpu - self.begun_cpu,
        }


async def run_embedded(pipeline: str, parameters: dict[str, str], directory: Path, events: int) -> dict[str, Any]:
    """One job, in this process and its two workers."""
    from penstock.embedded import EmbeddedJob, EmbeddedSettings, PipelineFile
    from penstock.loading import load_pipeline

    code = PipelineFile(f"{PIPELINES}:{pipeline}", parameters)
    settings = EmbeddedSettings(parallelism=PARALLELISM, checkpoint_interval_ms=CHECKPOINT_INTERVAL_MS)
    job = EmbeddedJob(load_pipeline(code.target, parameters), directory, settings, code)
    sources = [operator.id for operator in job.graph.operators() if operator.verb == "read"]
    samples = Samples(lambda: tree_cpu_seconds(os.getpid()))
    running = asyncio.ensure_future(job.run(resume=False))
    while not running.done():
        await asyncio.wait([running], timeout=0.02)
        samples.note(sum(job.progress.total(source, "rows_in") for source in sources) if job.started else 0)
    result = await running
    if result.state != "FINISHED":
        raise SystemExit(f"{pipeline}: {result.state}: {result.reason}")
    checkpoints = result.progress.completed_checkpoints
    return {
        **samples.figures(events),
        "checkpoints": len(checkpoints),
        "sync_ms": max(checkpoint.sync_us for checkpoint in checkpoints) / 1_000,
        "stages": stages(result.progress.statuses.values()),
    }


@asynccontextmanager
async def cluster_servers(folder: Path, rest_port: int, *, heap_mb: int = 1_024) -> AsyncGenerator[Servers]:
    """Kafka, Redis and MinIO for a cluster whose settings are in this folder, and are those of this process."""
    from penstock.platform.parts import cached_parts
    from penstock.platform.servers import Servers, plan_servers
    from penstock.settings import settings_to_toml

    servers = Servers(cached_parts(), folder / "servers", plan_servers(heap_mb=heap_mb))
    try:
        await servers.start()
        settings = servers.settings("bench", f"http://127.0.0.1:{rest_port}")
        (folder / "cluster.toml").write_text(settings_to_toml(settings))
        os.environ["PENSTOCK_CLUSTER"] = str(folder / "cluster.toml")
        yield servers
    finally:
        await servers.kill()


def service(name: str, folder: Path, port: int, *options: str, number: int = 0) -> ServiceProcess:
    """A service of the cluster whose settings are in this folder."""
    from penstock.platform.services import ServiceProcess

    each = f"{name}-{number}"  # what is left of a service that has ended is known by it
    return ServiceProcess(
        each, name, folder / each, port, cluster=folder / "cluster.toml", options=options,
        variables={"POLARS_MAX_THREADS": "1"}, mark=str(folder),
    )  # fmt: skip


@asynccontextmanager
async def cluster_services(
    servers: Servers, folder: Path, rest_port: int, *, slots: int = PARALLELISM, task_managers: int = 1
) -> AsyncGenerator[Sequence[int]]:
    """A coordinator, a dispatcher and task managers, `slots` in each; the pids of all, in this order."""
    from penstock.platform.free_ports import free_port

    taken = {rest_port}
    hosts = [
        service("taskmanager", folder, free_port(taken), "--slots", str(slots), number=n) for n in range(task_managers)
    ]
    services = [
        service("coordinator", folder, free_port(taken)), service("dispatcher", folder, rest_port), *hosts
    ]  # fmt: skip
    try:
        await asyncio.gather(*(each.start() for each in services))
        yield [each.pid for each in services]
    finally:
        await asyncio.gather(*(each.stop() for each in services))


async def run_submitted(
    pipeline: str, parameters: dict[str, str], rest: str, pids: Sequence[int], events: int
) -> dict[str, Any]:
    """One job, submitted to a cluster and watched through its REST API."""
    from penstock.client import ClusterClient
    from penstock.graph.jobgraph import graph_from_json

    samples = Samples(lambda: sum(tree_cpu_seconds(pid) for pid in pids))
    given = [part for name, value in parameters.items() for part in ("--param", f"{name}={value}")]
    command = [str(Path(sys.executable).with_name("penstock")), "submit", f"{PIPELINES}:{pipeline}", "--detach", *given]
    command += ["--parallelism", str(PARALLELISM), "--checkpoint-interval", f"{CHECKPOINT_INTERVAL_MS}ms"]
    done = await asyncio.to_thread(subprocess.run, command, stdout=subprocess.PIPE, text=True, check=True)
    job = done.stdout.strip()
    async with ClusterClient(rest) as cluster:
        graph = graph_from_json((await cluster.job(job)).graph)
        sources = [operator.id for operator in graph.operators() if operator.verb == "read"]
        while True:
            found = await cluster.job(job)
            tasks = [task for vertex in found.vertices for task in vertex.tasks]
            read = [task.metrics[source].rows_in for task in tasks for source in sources if source in task.metrics]
            samples.note(sum(read))
            if found.summary.ended_us is not None:
                break
            await asyncio.sleep(0.05)
    if found.summary.state != "FINISHED":
        raise SystemExit(f"{pipeline}: {found.summary.state}: {found.summary.reason}")
    return {**samples.figures(events), "checkpoints": found.summary.last_checkpoint, "stages": []}
