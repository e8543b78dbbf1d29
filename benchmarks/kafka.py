"""`python -m benchmarks.kafka [w1-json w1-arrow w2-json] [--events N] [--repeat N]`: W1 and W2 from Kafka to Kafka.

A broker of its own is started and filled with events in four partitions; then each benchmark runs as `penstock run
--parallelism 2` does: two worker processes, checkpoints every 10 s, output in transactions. Its output is read back with
`read_committed` and compared with what DuckDB makes of the same events. Broker and generator share the machine's cores
with the job, as in the measurements of the peers.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.child import stages
from benchmarks.kafka_events import COMPARISONS, create_topic, fill, topic_of
from benchmarks.report import keep, machine

ROOT = Path(__file__).parent.parent
PIPELINES = ROOT / "benchmarks" / "kafka_pipelines.py"
PARALLELISM = 2
CHECKPOINT_INTERVAL_MS = 10_000
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class KafkaCase:
    """One benchmark."""

    name: str
    title: str
    pipeline: str
    format: str
    target: int
    """Events per second."""


CASES = (
    KafkaCase("w1-json", "10 s windows of 10,000 keys, JSON records", "w1", "json", 800_000),
    KafkaCase("w1-arrow", "10 s windows of 10,000 keys, Arrow frames", "w1", "arrow", 3_000_000),
    KafkaCase("w2-json", "filter and projection, JSON in and out", "w2", "json", 800_000),
)


def main() -> int:
    """Run what was asked for; 1 if an output is not what DuckDB says."""
    arguments = _arguments()
    if arguments.child:
        print(json.dumps(asyncio.run(_run_job(*arguments.child))))
        return 0
    if arguments.if_there and (missing := _missing()):
        print(f"\nnot measured from Kafka to Kafka: {missing}")
        return 0
    print(f"load before: {os.getloadavg()[0]:.1f}; {machine()['processor']}, {os.cpu_count()} cores for everything")
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=arguments.folder) as folder:
        results = asyncio.run(_measure(Path(folder), arguments))
    settings = {
        "parallelism": PARALLELISM,
        "checkpoint_interval_ms": CHECKPOINT_INTERVAL_MS,
        "broker": "the same machine",
    }
    print(f"\nkept in {keep(results, None, settings)}")
    return 0 if all(result["equal"] for result in results) else 1


def _missing() -> str:
    """Why there can be no broker; empty if there can."""
    from penstock.errors import PenstockError
    from penstock.platform.parts import cached_parts

    try:
        cached_parts()
    except PenstockError as error:
        return str(error)
    return ""


async def _measure(folder: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    from penstock.platform.parts import cached_parts
    from penstock.platform.servers import Servers, plan_servers
    from penstock.settings import settings_to_toml

    servers = Servers(cached_parts(), folder / "servers", plan_servers(heap_mb=1_024))
    await servers.kafka.start()
    try:
        settings = servers.settings("bench")
        (folder / "cluster.toml").write_text(settings_to_toml(settings))
        cases = [case for case in CASES if case.name in (arguments.names or [case.name for case in CASES])]
        formats = {case.format for case in cases}
        await asyncio.to_thread(fill, settings.kafka.brokers, formats, arguments.events, folder)
        pid = servers.kafka.nodes[0].pid
        assert pid is not None
        results: list[dict[str, Any]] = []
        for case in cases:
            runs = [
                await asyncio.to_thread(_run, case, folder, settings.kafka.brokers, pid, arguments.events)
                for _ in range(arguments.repeat)
            ]
            results.append(_result(case, runs, arguments.events))
            _print(results[-1])
        return results
    finally:
        await servers.kafka.kill()


def _run(case: KafkaCase, folder: Path, brokers: str, broker_pid: int, events: int) -> dict[str, Any]:
    topic = f"results-{uuid.uuid4().hex[:8]}"
    create_topic(brokers, topic)
    load, before = os.getloadavg()[0], _cpu_seconds(broker_pid)
    directory = folder / f"job-{topic}"
    command = [sys.executable, "-m", "benchmarks.kafka", "--child", case.pipeline, case.format, topic, str(directory)]
    environment = {**os.environ, "PENSTOCK_CLUSTER": str(folder / "cluster.toml"), "POLARS_MAX_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{case.name}: failed")
    figures = json.loads(done.stdout.splitlines()[-1])
    figures["broker_cpu_seconds"] = _cpu_seconds(broker_pid) - before
    figures["load"] = load
    figures["equal"] = COMPARISONS[case.pipeline](brokers, topic, folder)
    return figures


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


async def _run_job(pipeline: str, format: str, results: str, directory: str) -> dict[str, Any]:
    """One job, in this process and its workers. The clock starts with the first attempt's first row."""
    from penstock.runtime.embedded import EmbeddedJob, EmbeddedSettings, PipelineFile
    from penstock.runtime.loading import load_pipeline

    parameters = {"events": topic_of(format), "results": results, "format": format}
    code = PipelineFile(f"{PIPELINES}:{pipeline}", parameters)
    settings = EmbeddedSettings(parallelism=PARALLELISM, checkpoint_interval_ms=CHECKPOINT_INTERVAL_MS)
    job = EmbeddedJob(load_pipeline(code.target, parameters), Path(directory), settings, code)
    sources = [operator.id for vertex in job.graph.vertices for operator in vertex.operators if operator.verb == "read"]
    begun = time.perf_counter()
    running = asyncio.ensure_future(job.run(resume=False))
    samples: list[tuple[float, int, float]] = []
    while not running.done():
        await asyncio.wait([running], timeout=0.02)
        rows = sum(job.progress.total(source, "rows_in") for source in sources) if job.started else 0
        if rows and (not samples or rows != samples[-1][1]):
            samples.append((time.perf_counter(), rows, _tree_cpu_seconds()))
    result = await running
    ended, cpu = time.perf_counter(), _tree_cpu_seconds()
    if result.state != "FINISHED":
        raise SystemExit(f"{pipeline}: {result.state}: {result.reason}")
    first, last = samples[0], samples[-1]
    checkpoints = result.progress.completed_checkpoints
    return {
        "start_seconds": first[0] - begun,
        "start_cpu_seconds": first[2],
        "steady_seconds": last[0] - first[0],
        "steady_rows": last[1] - first[1],
        "steady_cpu_seconds": last[2] - first[2],
        "end_seconds": ended - last[0],
        "whole_seconds": ended - begun,
        "whole_cpu_seconds": cpu,
        "checkpoints": len(checkpoints),
        "sync_ms": max(checkpoint.sync_us for checkpoint in checkpoints) / 1_000,
        "stages": stages(result.progress.statuses.values()),
    }


def _tree_cpu_seconds() -> float:
    """CPU time of this process and its workers, ended ones included."""
    mine = os.times()
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    alive = 0.0
    for child in children:
        with contextlib.suppress(OSError):  # it has just ended
            alive += _cpu_seconds(int(child))
    return sum(mine[:4]) + alive


def _result(case: KafkaCase, runs: Sequence[dict[str, Any]], events: int) -> dict[str, Any]:
    return {"name": case.name, "title": case.title, "rows": events, "target": case.target, "runs": list(runs),
            "equal": all(run["equal"] for run in runs)}  # fmt: skip


def _print(result: dict[str, Any]) -> None:
    events = result["rows"]
    print(f"\n{result['name']}: {result['title']}; outputs {'equal' if result['equal'] else 'NOT EQUAL'}")
    for run in result["runs"]:
        steady = run["steady_rows"]
        print(
            f"  steady {steady / run['steady_seconds']:,.0f} events/s, {run['steady_cpu_seconds'] * 1e6 / steady:.2f} "
            f"CPU-s per M; all in all {run['whole_seconds']:.2f} s (start {run['start_seconds']:.2f}, end "
            f"{run['end_seconds']:.2f}), {run['whole_cpu_seconds'] * 1e6 / events:.2f} CPU-s per M, broker "
            f"{run['broker_cpu_seconds'] * 1e6 / events:.2f}; {run['checkpoints']} checkpoints; load {run['load']:.1f}; "
            f"target {result['target']:,}"
        )
        print("   ", *(f"{stage['vertex']} busy {stage['busy_us'] / 1e6:.2f} s" for stage in run["stages"]), sep="  ")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kafka", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {', '.join(case.name for case in CASES)}")
    parser.add_argument("--events", type=int, default=5_000_000)
    parser.add_argument("--repeat", type=int, default=1, help="runs of each")
    parser.add_argument("--folder", help="where temporary files go; they need about 3 GB")
    parser.add_argument("--if-there", action="store_true", help="do nothing where Kafka has not been fetched")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in {case.name for case in CASES}]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(case.name for case in CASES)}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
