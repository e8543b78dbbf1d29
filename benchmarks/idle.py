"""`python -m benchmarks.idle`: what a cluster costs whose only job has nothing to do.

CPU time and wake-ups (voluntary context switches of all threads) of every process over a window, from /proc, and how
many records and bytes the services told each other. The job's subtasks are of `stages` vertices, the first of which
reads a Kafka topic that nobody writes to; `stages` of them share a worker process.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.kafka_events import create_topic
from benchmarks.kafka_jobs import cluster_servers, cluster_services, cpu_seconds
from benchmarks.live import penstock, submit
from benchmarks.report import keep, machine

if TYPE_CHECKING:
    from confluent_kafka import Producer

STAGES = 10
"""Vertices of the pipeline `idle`: what shares a slot."""
WARM_S = 12.0
FIRST_ROWS = 20
"""How often a row is sent after a silence, to see how long the way to the sink takes."""
_CONTROL = ("commands", "events", "requests")


@dataclass(frozen=True)
class Use:
    """What a process has used so far."""

    cpu_s: float
    wakes: int
    threads: int

    def __sub__(self, other: Use) -> Use:
        return Use(self.cpu_s - other.cpu_s, self.wakes - other.wakes, self.threads)

    def __add__(self, other: Use) -> Use:
        return Use(self.cpu_s + other.cpu_s, self.wakes + other.wakes, self.threads + other.threads)


NOTHING = Use(0, 0, 0)


def use_of(pid: int) -> Use:
    """CPU time of a process with its ended children, and how often one of its threads has woken up."""
    wakes = threads = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has just ended
            for line in (task / "status").read_text().splitlines():
                if line.startswith("voluntary_ctxt_switches:"):
                    wakes, threads = wakes + int(line.split()[1]), threads + 1
    return Use(cpu_seconds(pid), wakes, threads)


def children_of(pid: int) -> list[int]:
    """The processes that a process has started and that run."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.idle", description=__doc__)
    parser.add_argument("--subtasks", type=int, default=100, help=f"a multiple of {STAGES} (100)")
    parser.add_argument("--task-managers", type=int, default=2)
    parser.add_argument("--interval", action="append", metavar="TIME", help="checkpoint intervals (10s, 1h)")
    parser.add_argument("--seconds", type=float, default=30, help="how long is measured (30)")
    parser.add_argument("--runs", type=int, default=1)
    arguments = parser.parse_args()
    print(f"load before: {os.getloadavg()[0]:.1f}; {machine()['processor']}, {os.cpu_count()} cores for everything")
    results: list[dict[str, Any]] = []
    for _ in range(arguments.runs):
        with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
            results += asyncio.run(_measure(Path(folder), arguments))
    print(f"kept in {keep(results, None, {'broker': 'the same machine'})}")
    return 0


async def _measure(folder: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    from penstock.platform.free_ports import free_port

    rest_port = free_port(set())
    parallelism, hosts = arguments.subtasks // STAGES, arguments.task_managers
    results: list[dict[str, Any]] = []
    async with cluster_servers(folder, rest_port, heap_mb=512) as servers:
        slots = -(-parallelism // hosts)
        async with cluster_services(servers, folder, rest_port, slots=slots, task_managers=hosts) as pids:
            parts = {
                "broker": [_pid(servers.kafka.nodes[0])], "minio": [_pid(servers.minio)], "redis": [_pid(servers.redis)],
                "coordinator": [pids[0]], "dispatcher": [pids[1]], "task managers": list(pids[2:]),
            }  # fmt: skip
            for interval in arguments.interval or ["10s", "1h"]:
                brokers = servers.kafka.settings.brokers
                given = (brokers, parts, interval, parallelism, arguments.seconds)
                results.append(await asyncio.to_thread(_idle, *given))
                _print(results[-1])
    return results


def _pid(server: Any) -> int:
    return server.pid


def _idle(brokers: str, parts: dict[str, list[int]], interval: str, parallelism: int, seconds: float) -> dict[str, Any]:
    topics = {"events": f"events-{interval}", "results": f"results-{interval}"}
    for topic in topics.values():
        create_topic(brokers, topic, parallelism)
    job = submit("idle", topics, interval, parallelism)
    subtasks = _running(job)
    time.sleep(WARM_S)
    groups = {**parts, "workers": [child for pid in parts["task managers"] for child in children_of(pid)]}
    before, told = _used(groups), _told(brokers)
    begun_s = time.perf_counter()
    time.sleep(seconds)
    after, told_after = _used(groups), _told(brokers)
    seconds = time.perf_counter() - begun_s
    first_rows_ms = _first_rows_ms(brokers, topics, parallelism)
    penstock("cancel", job)
    return {
        "name": f"idle-{interval}", "subtasks": subtasks, "processes": len(groups["workers"]),
        "load": os.getloadavg()[0], "seconds": seconds,
        "percent": {name: 100 * (after[name] - before[name]).cpu_s / seconds for name in groups},
        "wakes": {name: (after[name] - before[name]).wakes / seconds for name in groups},
        "threads": {name: after[name].threads for name in groups},
        "records": {name: (told_after[name] - told[name]) / seconds for name in told},
        "first_row_ms": first_rows_ms,
    }  # fmt: skip


def _running(job: str) -> int:
    """How many subtasks there are, once all run."""
    while True:
        time.sleep(0.5)
        found = json.loads(penstock("status", job, "--json"))
        running = [task for vertex in found["vertices"] for task in vertex["tasks"] if task["state"] == "running"]
        if running and len(running) == found["summary"]["tasks"]:
            return len(running)


def _used(groups: dict[str, list[int]]) -> dict[str, Use]:
    return {name: sum(map(use_of, pids), NOTHING) for name, pids in groups.items()}


def _told(brokers: str) -> dict[str, int]:
    """How many records each control topic has had."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "penstock-unused"})
    try:
        places = {name: TopicPartition(f"penstock.bench.{name}", 0) for name in _CONTROL}
        return {name: consumer.get_watermark_offsets(place, timeout=10)[1] for name, place in places.items()}
    finally:
        consumer.close()


# -- the first row after a silence ---------------------------------------------------------------------------------------


def _first_rows_ms(brokers: str, topics: dict[str, str], parallelism: int) -> list[float]:
    """How long a row takes through all stages when none has come for more than a second, in order."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    producer = Producer({"bootstrap.servers": brokers, "linger.ms": 0})
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "penstock-unused", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topics["results"], number, 0) for number in range(parallelism)])
    try:
        return sorted(_one_row_ms(producer, consumer, topics["events"], n, n % parallelism) for n in range(FIRST_ROWS))
    finally:
        consumer.close()


def _one_row_ms(producer: Producer, consumer: Any, topic: str, number: int, partition: int) -> float:
    consumer.consume(100, 1.2)
    sent_s = time.perf_counter()
    value = b'{"number":%d,"sent_us":%d}' % (number + STAGES, time.time_ns() // 1_000)
    producer.produce(topic, value, partition=partition)
    producer.flush(10)
    found = consumer.consume(1, 30)
    if not found or found[0].error() is not None:
        raise SystemExit(f"row {number} did not come within 30 s")
    return 1_000 * (time.perf_counter() - sent_s)


def _print(result: dict[str, Any]) -> None:
    rows = result["first_row_ms"]
    print(
        f"\n{result['name']}: {result['subtasks']} subtasks, {result['processes']} workers, load {result['load']:.1f}"
    )
    for name, percent in result["percent"].items():
        print(f"{name:<14} {percent:6.2f} % of a core {result['wakes'][name]:8.0f} wake-ups/s "
              f"{result['threads'][name]:5} threads")  # fmt: skip
    print(
        f"{'all':<14} {sum(result['percent'].values()):6.2f} % of a core {sum(result['wakes'].values()):8.0f} wake-ups/s"
    )
    print("records/s:", ", ".join(f"{name} {number:.1f}" for name, number in result["records"].items()))
    print(f"first row after a silence: median {statistics.median(rows):.0f} ms, slowest {rows[-1]:.0f} ms", flush=True)


if __name__ == "__main__":
    sys.exit(main())
