"""`python -m benchmarks.kafka [w1-json w1-arrow w2-json] [--events N] [--repeat N]`: W1 and W2 from Kafka to Kafka.

A broker of its own is started and filled with events in four partitions; then each benchmark runs as `penstock run
--parallelism 2` does (frames cross a directory on disk), or with `--cluster` as `penstock submit` does (they cross the
broker, snapshots go to MinIO): two worker processes, checkpoints every 10 s, output in transactions. Its output is
read back with `read_committed` and compared with what DuckDB makes of the same events. The broker shares the machine's
cores with the job, as in the measurements of the peers.
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
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.kafka_events import COMPARISONS, create_topic, fill, topic_of
from benchmarks.kafka_jobs import (
    CHECKPOINT_INTERVAL_MS,
    PARALLELISM,
    cluster_services,
    cpu_seconds,
    run_embedded,
    run_submitted,
)
from benchmarks.report import keep, machine

ROOT = Path(__file__).parent.parent


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
        pipeline, parameters, directory = arguments.child
        job = run_embedded(pipeline, json.loads(parameters), Path(directory), arguments.events)
        print(json.dumps(asyncio.run(job)))
        return 0
    if arguments.if_there and (missing := missing_parts()):
        print(f"\nnot measured from Kafka to Kafka: {missing}")
        return 0
    print(f"load before: {os.getloadavg()[0]:.1f}; {machine()['processor']}, {os.cpu_count()} cores for everything")
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=arguments.folder) as folder:
        results = asyncio.run(_measure(Path(folder), arguments))
    settings = {
        "parallelism": PARALLELISM,
        "checkpoint_interval_ms": CHECKPOINT_INTERVAL_MS,
        "broker": "the same machine",
        "cluster": arguments.cluster,
    }
    print(f"\nkept in {keep(results, None, settings)}")
    return 0 if all(result["equal"] for result in results) else 1


def missing_parts() -> str:
    """Why there can be no broker; empty if there can."""
    from penstock.errors import PenstockError
    from penstock.platform.parts import cached_parts

    try:
        cached_parts()
    except PenstockError as error:
        return str(error)
    return ""


async def _measure(folder: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    from penstock.platform.free_ports import free_port
    from penstock.platform.parts import cached_parts
    from penstock.platform.servers import Servers, plan_servers
    from penstock.settings import settings_to_toml

    servers = Servers(cached_parts(), folder / "servers", plan_servers(heap_mb=1_024))
    rest_port = free_port(set())
    rest = f"http://127.0.0.1:{rest_port}"
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(servers.kill)
        await (servers if arguments.cluster else servers.kafka).start()
        (folder / "cluster.toml").write_text(settings_to_toml(servers.settings("bench", rest)))
        os.environ["PENSTOCK_CLUSTER"] = str(folder / "cluster.toml")
        brokers, broker = servers.kafka.settings.brokers, servers.kafka.nodes[0].pid
        assert broker is not None
        cases = [case for case in CASES if case.name in (arguments.names or [case.name for case in CASES])]
        await asyncio.to_thread(fill, brokers, {case.format for case in cases}, arguments.events, folder)
        pids: Sequence[int] = ()
        if arguments.cluster:
            pids = await stack.enter_async_context(cluster_services(servers, folder, rest_port))
        results: list[dict[str, Any]] = []
        for case in cases:
            runs: list[dict[str, Any]] = []
            for _ in range(arguments.repeat):
                results_topic = f"results-{uuid.uuid4().hex[:8]}"
                create_topic(brokers, results_topic)
                load, before = os.getloadavg()[0], cpu_seconds(broker)
                parameters = {"events": topic_of(case.format), "results": results_topic, "format": case.format}
                if arguments.cluster:
                    figures = await run_submitted(case.pipeline, parameters, rest, pids, arguments.events)
                else:
                    figures = await asyncio.to_thread(_in_child, case, parameters, folder, arguments.events)
                figures |= {"broker_cpu_seconds": cpu_seconds(broker) - before, "load": load}
                figures["equal"] = await asyncio.to_thread(COMPARISONS[case.pipeline], brokers, results_topic, folder)
                runs.append(figures)
            results.append(_result(case, runs, arguments.events))
            _print(results[-1])
        return results


def _in_child(case: KafkaCase, parameters: dict[str, str], folder: Path, events: int) -> dict[str, Any]:
    directory = str(folder / f"job-{parameters['results']}")
    command = [sys.executable, "-m", "benchmarks.kafka", "--child", case.pipeline, json.dumps(parameters), directory]
    environment = {**os.environ, "POLARS_MAX_THREADS": "1"}
    done = subprocess.run(
        [*command, "--events", str(events)], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{case.name}: failed")
    return json.loads(done.stdout.splitlines()[-1])


def _result(case: KafkaCase, runs: Sequence[dict[str, Any]], events: int) -> dict[str, Any]:
    return {"name": case.name, "title": case.title, "rows": events, "target": case.target, "runs": list(runs),
            "equal": all(run["equal"] for run in runs)}  # fmt: skip


def _print(result: dict[str, Any]) -> None:
    events = result["rows"]
    print(f"\n{result['name']}: {result['title']}; outputs {'equal' if result['equal'] else 'NOT EQUAL'}")
    for run in result["runs"]:
        steady, through = run["steady_rows"], run["through_rows"]
        print(
            f"  steady {steady / run['steady_seconds']:,.0f} events/s, {run['steady_cpu_seconds'] * 1e6 / steady:.2f} "
            f"CPU-s per M; until all is visible {through / run['through_seconds']:,.0f} events/s, "
            f"{run['through_cpu_seconds'] * 1e6 / through:.2f} CPU-s per M; broker "
            f"{run['broker_cpu_seconds'] * 1e6 / events:.2f} CPU-s per M; start {run['start_seconds']:.2f} s, whole "
            f"{run['whole_seconds']:.2f} s; {run['checkpoints']} checkpoints; load {run['load']:.1f}; "
            f"target {result['target']:,}"
        )
        print("   ", *(f"{stage['vertex']} busy {stage['busy_us'] / 1e6:.2f} s" for stage in run["stages"]), sep="  ")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kafka", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {', '.join(case.name for case in CASES)}")
    parser.add_argument("--events", type=int, default=5_000_000)
    parser.add_argument("--repeat", type=int, default=1, help="runs of each")
    parser.add_argument("--folder", help="where temporary files go; they need about 3 GB")
    parser.add_argument("--cluster", action="store_true", help="submit to a cluster instead of running embedded")
    parser.add_argument("--if-there", action="store_true", help="do nothing where Kafka has not been fetched")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in {case.name for case in CASES}]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(case.name for case in CASES)}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
