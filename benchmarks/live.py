"""`python -m benchmarks.live`: how soon the results of a running job are seen, on a cluster.

Latency: records are sent at a fixed rate, each with the time at which it was made; a filter lets every second one
through to an exactly-once sink, and a reader with `read_committed` says how old they are when it sees them. Broker,
services, job, sender and reader share the machine's cores. What a job costs that has nothing to do: `benchmarks.idle`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.kafka_events import create_topic
from benchmarks.kafka_jobs import PARALLELISM, cluster_servers, cluster_services
from benchmarks.report import keep, machine

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

PIPELINES = Path(__file__).parent / "live_pipelines.py"
WARM_S = 8.0
MEASURED_S = 20.0


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live", description=__doc__)
    parser.add_argument("--rate", type=int, default=100_000, help="records a second (100000)")
    parser.add_argument("--interval", action="append", metavar="TIME", help="checkpoint intervals (100ms, 1s)")
    arguments = parser.parse_args()
    print(f"load before: {os.getloadavg()[0]:.1f}; {machine()['processor']}, {os.cpu_count()} cores for everything")
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        results = asyncio.run(_measure(Path(folder), arguments.rate, arguments.interval or ["100ms", "1s"]))
    print(f"kept in {keep(results, None, {'broker': 'the same machine', 'rate': arguments.rate})}")
    return 0


async def _measure(folder: Path, rate: int, intervals: Sequence[str]) -> list[dict[str, Any]]:
    from penstock.platform.free_ports import free_port

    rest_port = free_port(set())
    results: list[dict[str, Any]] = []
    async with cluster_servers(folder, rest_port) as servers, cluster_services(servers, folder, rest_port):
        for interval in intervals:
            results.append(await asyncio.to_thread(_latency, servers.kafka.settings.brokers, rate, interval))
            print(_latency_line(results[-1]), flush=True)
    return results


# -- latency ------------------------------------------------------------------------------------------------------------


def _latency(brokers: str, rate: int, interval: str) -> dict[str, Any]:
    topics = {"events": f"events-{interval}", "results": f"results-{interval}"}
    for topic in topics.values():
        create_topic(brokers, topic)
    job = submit("latency", topics, interval, PARALLELISM)
    over = threading.Event()
    sender = threading.Thread(target=send, args=(brokers, topics["events"], rate, over))
    sender.start()
    try:
        ages = _ages_ms(brokers, topics["results"])
    finally:
        over.set()
        sender.join()
        penstock("cancel", job)
    return {"name": f"latency-{interval}", "rate": rate, "records": len(ages), "load": os.getloadavg()[0],
            "ms": {part: ages[int(len(ages) * part / 100)] for part in (50, 90, 99)}}  # fmt: skip


def send(brokers: str, topic: str, rate: int, over: threading.Event) -> None:
    """In steps of 5 ms, each record with the time of its step."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": brokers, "linger.ms": 2, "queue.buffering.max.messages": 1_000_000})
    begun, sent = time.perf_counter(), 0
    while not over.is_set():
        due = int((time.perf_counter() - begun) * rate) - sent
        now_us = time.time_ns() // 1_000
        records = [{"value": b'{"number":%d,"sent_us":%d}' % (sent + n, now_us)} for n in range(due)]
        for partition in range(4):
            producer.produce_batch(topic, records[partition::4], partition=partition)
        sent += due
        producer.poll(0)
        time.sleep(0.005)
    producer.flush(30)


def reader_of(brokers: str, topic: str) -> Consumer:
    """Reads what is committed of a topic of results, from the beginning on."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": brokers, "group.id": topic, "isolation.level": "read_committed",
                         "fetch.wait.max.ms": 10})  # fmt: skip
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(4)])
    return consumer


def age_ms(record: Message, now_us: float) -> float:
    """How long ago what a result is made of was sent."""
    return (now_us - json.loads(record.value() or b"")["sent_us"]) / 1_000


def _ages_ms(brokers: str, topic: str) -> list[float]:
    """How old every hundredth result was when it was seen, in order."""
    consumer = reader_of(brokers, topic)
    ages: list[float] = []
    first_s: float | None = None
    while first_s is None or time.perf_counter() < first_s + WARM_S + MEASURED_S:
        records = consumer.consume(20_000, 0.01)
        now_us = time.time_ns() / 1_000
        if records and first_s is None:
            first_s = time.perf_counter()
        if first_s is not None and time.perf_counter() >= first_s + WARM_S:
            ages += [age_ms(record, now_us) for record in records[::100]]
    consumer.close()
    return sorted(ages)


def _latency_line(result: dict[str, Any]) -> str:
    p50, p90, p99 = (result["ms"][part] for part in (50, 90, 99))
    return (
        f"{result['name']}: {result['rate']:,} records/s in, half of them out exactly once: p50 {p50:.0f} ms, "
        f"p90 {p90:.0f} ms, p99 {p99:.0f} ms ({result['records']:,} samples, load {result['load']:.1f})"
    )


def submit(pipeline: str, topics: dict[str, str], interval: str, parallelism: int) -> str:
    """Submit one of the pipelines; its job's id."""
    given = [part for name, value in topics.items() for part in ("--param", f"{name}={value}")]
    return penstock(
        "submit", f"{PIPELINES}:{pipeline}", "--detach", *given,
        "--parallelism", str(parallelism), "--checkpoint-interval", interval,
    ).strip()  # fmt: skip


def penstock(*arguments: str) -> str:
    """What the command says on its standard output."""
    command = [str(Path(sys.executable).with_name("penstock")), *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
