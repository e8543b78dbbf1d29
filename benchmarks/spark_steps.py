"""`python -m benchmarks.spark_steps --connector FOLDER`: a job in steps, and Structured Streaming beside it.

A window of five seconds and a process function that numbers the rows of a key, from topic to topic: as a pipeline with
`--every`, and as the query that one would write, with `trigger(processingTime=...)` (and `transformWithStateInPandas`).
Both have the same session with two tasks at a time, the same rows per second, and begin a step as often.

Latency is how long after its time a result is written: after the end of a window, after the time of the row; of the
second half of the rows, since in the first one the JVM still compiles. CPU-seconds
are those of this process and what it started, without the broker and the sender. Penstock's results are read by what is
committed, those of the query as they come: its sink writes at least once. FOLDER holds the jars of Spark's connector, as
in `benchmarks.spark_kafka`.
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
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.kafka_events import create_topic
from benchmarks.kafka_jobs import cpu_seconds
from benchmarks.spark import CORES, cpu_ticks, processes

PIPELINES = Path(__file__).with_name("steps_pipelines.py")
PARTITIONS = 4
_TICKS = os.sysconf("SC_CLK_TCK")
_BEHIND_US = 3_600_000_000
"""How far behind the others the rows are that close the windows."""


def main() -> int:
    """Measure and print; 1 if a result is missing or doubled."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_steps", description=__doc__)
    parser.add_argument("--connector", type=Path, metavar="FOLDER", required=True, help="jars of Spark's connector")
    parser.add_argument("--rate", type=int, default=2_000, help="rows per second")
    parser.add_argument("--seconds", type=int, default=40)
    parser.add_argument("--keys", type=int, default=1_000)
    parser.add_argument("--every", type=int, default=2, help="seconds between two steps")
    parser.add_argument("--send", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.send:
        return _send(*arguments.send, arguments)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        return asyncio.run(_measure(Path(folder), arguments))


def _send(brokers: str, topic: str, arguments: argparse.Namespace) -> int:
    """The rows of one measurement, in a process of its own: at the times that they name, a hundredth of a second each."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": brokers, "linger.ms": 5})
    began = time.time()
    for number in range(arguments.rate * arguments.seconds):
        if number % max(1, arguments.rate // 100) == 0:
            time.sleep(max(0.0, began + number / arguments.rate - time.time()))
        at = int(time.time() * 1e6)
        producer.produce(topic, _row(number % arguments.keys, number, at), partition=number % PARTITIONS)
        producer.poll(0)
    for partition in range(PARTITIONS):
        producer.produce(topic, _row(-1, 0, int(time.time() * 1e6) + _BEHIND_US), partition=partition)
    producer.flush(60)
    return 0


def _row(key: int, value: int, at_us: int) -> bytes:
    at = datetime.fromtimestamp(at_us / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return json.dumps({"key": key, "value": value, "at": at}).encode()


async def _measure(folder: Path, arguments: argparse.Namespace) -> int:
    from penstock.platform.parts import cached_parts
    from penstock.platform.servers import Servers, plan_servers

    parts = cached_parts()
    servers = Servers(parts, folder / "servers", plan_servers(heap_mb=512))
    await servers.start()
    try:
        jars = sorted(arguments.connector.glob("*.jar"))
        if not any(jar.name.startswith("kafka-clients") for jar in jars):
            jars.append(next(parts.kafka.glob("kafka-clients-*.jar")))
        broker = servers.kafka.nodes[0].pid
        assert broker is not None
        return await asyncio.to_thread(_all, servers.kafka.settings.brokers, broker, jars, folder, arguments)
    finally:
        await servers.kill()


def _all(brokers: str, broker: int, jars: list[Path], folder: Path, arguments: argparse.Namespace) -> int:
    from penstock.spark.session import SparkSettings, open_session

    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    conf = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "2g",
        "spark.sql.shuffle.partitions": str(CORES),
        "spark.jars": ",".join(map(str, jars)),
        "spark.sql.streaming.stateStore.providerClass": provider,
    }
    spark = open_session("benchmark", SparkSettings(master=f"local[{CORES}]", conf=conf))
    rows = f"{arguments.rate:,} rows/s of {arguments.keys:,} keys, {arguments.seconds} s"
    print(f"load before: {os.getloadavg()[0]:.1f}; {rows}, a step every {arguments.every} s", flush=True)
    wrong = 0
    for case in ("window", "process"):
        for name, started in (("steps", _steps), ("streaming", _streaming)):
            events, results = (f"{what}-{uuid.uuid4().hex[:8]}" for what in ("events", "results"))
            for topic in (events, results):
                create_topic(brokers, topic)
            place = folder / f"{case}-{name}"
            end = started(spark, case, brokers, events, results, place, arguments.every)
            wrong += _one(f"{case}: {name}", brokers, broker, events, results, end, arguments)
    spark.stop()
    return 1 if wrong else 0


def _steps(
    spark: Any, case: str, brokers: str, events: str, results: str, place: Path, every: int
) -> Callable[[], None]:
    from penstock.adapters.system_clock import SystemClock
    from penstock.loading import load_pipeline
    from penstock.spark.code import pack_code
    from penstock.spark.continuous import ContinuousOptions, ContinuousRun

    given = {"case": case, "brokers": brokers, "events": events, "results": results}
    target, stop = str(PIPELINES), threading.Event()
    options = ContinuousOptions(every * 1_000_000, place, parallelism=CORES)
    pipeline, code = load_pipeline(target, given), pack_code(target, given)
    run = ContinuousRun(pipeline, code, options, SystemClock(), lambda: uuid.uuid4().hex, lambda: spark)
    thread = threading.Thread(target=run.run, args=(stop,))
    thread.start()

    def end() -> None:
        stop.set()
        thread.join()

    return end


def _streaming(
    spark: Any, case: str, brokers: str, events: str, results: str, place: Path, every: int
) -> Callable[[], None]:
    from benchmarks.steps_queries import query

    stop: Callable[[], None] = query(spark, case, brokers, events, results, str(place), f"{every} seconds").stop
    return stop


def _one(
    name: str, brokers: str, broker: int, events: str, results: str, end: Callable[[], None],
    arguments: argparse.Namespace,
) -> int:  # fmt: skip
    """Send, wait for all results, print; how many rows are missing or came twice."""
    sent = arguments.rate * arguments.seconds
    before, of_broker = processes(), cpu_seconds(broker)
    sender = [sys.executable, "-m", "benchmarks.spark_steps", "--connector", ".", "--send", brokers, events]
    sender += [f"--{each}={getattr(arguments, each)}" for each in ("rate", "seconds", "keys")]
    middle_ms = (time.time() + arguments.seconds / 2) * 1_000  # the JVM compiles until then
    with subprocess.Popen(sender) as sending:
        _, _, used = os.wait4(sending.pid, 0)
        sending.returncode = 0
    found = _found(brokers, results, sent, deadline_s=90)
    cpu = cpu_ticks(before, processes()) / _TICKS - (cpu_seconds(broker) - of_broker) - used.ru_utime - used.ru_stime
    end()
    rows = sum(n for n, _, _ in found) if name.startswith("window") else len(found)
    late = sorted(latency for _, latency, at in found if at > middle_ms)
    middle, most = (late[int(len(late) * part)] / 1_000 if late else float("nan") for part in (0.5, 0.99))
    print(
        f"  {name:<20} {rows:,} of {sent:,} rows in {len(found):,} results, latency {middle:.1f} s, 99 % {most:.1f} s, "
        f"{cpu:.1f} CPU-s, {cpu * 1e6 / sent:.0f} per M rows",
        flush=True,
    )
    return abs(sent - rows)


def _found(brokers: str, topic: str, sent: int, deadline_s: float) -> list[tuple[int, float, float]]:
    """Count, latency and time (ms) of every result, until those of all rows are there."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": brokers, "group.id": uuid.uuid4().hex, "isolation.level": "read_committed"}
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found: list[tuple[int, float, float]] = []
    rows, deadline = 0, time.monotonic() + deadline_s
    while time.monotonic() < deadline and rows < sent:
        for message in consumer.consume(10_000, 1.0):
            row = json.loads(message.value() or b"{}")
            if row["key"] >= 0:
                at = datetime.fromisoformat(row["at"]).timestamp() * 1_000
                found.append((row["n"], message.timestamp()[1] - at, at))
                rows = len(found)
        if rows and rows < sent and sum(n for n, _, _ in found) == sent:
            break  # windows
    consumer.close()
    return found


if __name__ == "__main__":
    sys.exit(main())
