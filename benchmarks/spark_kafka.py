"""`python -m benchmarks.spark_kafka [--connector FOLDER]`: a topic of JSON on Spark, and what there is beside it.

* decode: everything in the topic is read and decoded, one event in ten thousand is written to Parquet; by a pipeline on
  Spark, and by a query on Spark's own Kafka connector. That is no part of PySpark: FOLDER holds its jars
  (`spark-sql-kafka-0-10_2.13`, `spark-token-provider-kafka-0-10_2.13`, `commons-pool2`); without it there is no query.
* catch-up: the windows of W1 over all that is in the topic, into another one, exactly once: by the replay on Spark, as
  `penstock catch-up` works off a backlog, and by the job on a cluster (`penstock submit`), in whose place that is done.

Spark runs two tasks at a time, the cluster has two worker processes; the broker shares the machine's cores with all.
What comes out is compared. The clock of Spark's runs does not cover the start of the session; the second of two runs
counts. CPU-seconds are those of this process and what it started, without the broker.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.kafka import missing_parts
from benchmarks.kafka_events import COMPARISONS, create_topic, fill, topic_of
from benchmarks.kafka_jobs import cluster_services, cpu_seconds, run_submitted
from benchmarks.report import keep, machine
from benchmarks.spark import CORES, cpu_ticks, processes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIPELINES = Path(__file__).with_name("kafka_pipelines.py")
_RUNS = 2
_TICKS = os.sysconf("SC_CLK_TCK")


def main() -> int:
    """Measure and print; 1 if results differ."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_kafka", description=__doc__)
    parser.add_argument("--events", type=int, default=5_000_000)
    parser.add_argument("--connector", type=Path, metavar="FOLDER", help="jars of Spark's Kafka connector")
    parser.add_argument("--folder", help="where temporary files go; they need about 1 GB")
    parser.add_argument("--if-there", action="store_true", help="do nothing where Java or Kafka is missing")
    arguments = parser.parse_args()
    if arguments.if_there and (missing := missing_parts()):
        print(f"\nnot measured on Spark from Kafka: {missing}")
        return 0
    print(f"load before: {os.getloadavg()[0]:.1f}; {machine()['processor']}, {os.cpu_count()} cores for everything")
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=arguments.folder) as folder:
        results = asyncio.run(_measure(Path(folder), arguments.events, arguments.connector))
    print(f"\nkept in {keep(results, None, {'broker': 'the same machine', 'cores': CORES})}")
    return 0 if all(result["equal"] for result in results) else 1


async def _measure(folder: Path, events: int, connector: Path | None) -> list[dict[str, Any]]:
    from penstock.platform.free_ports import free_port
    from penstock.platform.parts import cached_parts
    from penstock.platform.servers import Servers, plan_servers
    from penstock.settings import settings_to_toml

    parts = cached_parts()
    servers = Servers(parts, folder / "servers", plan_servers(heap_mb=1_024))
    port = free_port(set())
    rest = f"http://127.0.0.1:{port}"
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(servers.kill)
        await servers.start()
        (folder / "cluster.toml").write_text(settings_to_toml(servers.settings("bench", rest)))
        os.environ["PENSTOCK_CLUSTER"] = str(folder / "cluster.toml")
        brokers = servers.kafka.settings.brokers
        await asyncio.to_thread(fill, brokers, {"json"}, events, folder)
        clients = next(parts.kafka.glob("kafka-clients-*.jar"))
        jars = [*sorted(connector.glob("*.jar")), clients] if connector is not None else []
        spark = _session(jars)
        broker = servers.kafka.nodes[0].pid
        assert broker is not None
        clock = Clock(broker, events)
        results = [await asyncio.to_thread(_decode, spark, brokers, folder, clock, bool(jars))]
        caught_up = await asyncio.to_thread(_catch_up, spark, brokers, folder, clock)
        spark.stop()
        pids = await stack.enter_async_context(cluster_services(servers, folder, port))
        results_topic = _results_topic(brokers)
        figures = await run_submitted("w1", _w1(results_topic), rest, pids, events)
        equal = await asyncio.to_thread(COMPARISONS["w1"], brokers, results_topic, folder)
        _print("catch-up: live", figures["through_rows"], figures["through_seconds"], figures["through_cpu_seconds"])
        results.append({**caught_up, "live": figures, "equal": caught_up["equal"] and equal})
        return results


class Clock:
    """Seconds and CPU-seconds of what is run, and a line about them."""

    def __init__(self, broker: int, events: int) -> None:
        self._broker = broker
        self._events = events

    def time(self, name: str, run: Callable[[], None]) -> dict[str, float]:
        """Run it twice; the second run counts."""
        figures: dict[str, float] = {}
        for _ in range(_RUNS):
            started, before, broker = time.perf_counter(), processes(), cpu_seconds(self._broker)
            run()
            took = time.perf_counter() - started
            worked = cpu_ticks(before, processes()) / _TICKS - (cpu_seconds(self._broker) - broker)
            figures = {"seconds": took, "cpu_seconds": worked}
        _print(name, self._events, figures["seconds"], figures["cpu_seconds"])
        return figures


def _print(name: str, rows: float, seconds: float, cpu: float) -> None:
    print(f"  {name:<24} {rows / seconds:12,.0f} events/s  {cpu * 1e6 / rows:6.2f} CPU-s per M", flush=True)


def _session(jars: list[Path]) -> SparkSession:
    from penstock.spark.session import SparkSettings, open_session

    conf = {"spark.ui.enabled": "false", "spark.driver.memory": "2g", "spark.sql.shuffle.partitions": str(CORES)}
    if jars:
        conf["spark.jars"] = ",".join(map(str, jars))
    return open_session("benchmark", SparkSettings(master=f"local[{CORES}]", conf=conf))


def _run(spark: SparkSession, pipeline: str, parameters: dict[str, str], folder: Path) -> None:
    from penstock.adapters.system_clock import SystemClock
    from penstock.loading import load_pipeline
    from penstock.spark.code import pack_code
    from penstock.spark.engine import RunOptions, SparkRun

    target = f"{PIPELINES}:{pipeline}"
    made, options = load_pipeline(target, parameters), RunOptions(native=False)
    SparkRun(
        spark, made, pack_code(target, parameters), run=uuid.uuid4().hex, clock=SystemClock(), parallelism=CORES,
        folder=folder / "runs", options=options,
    ).execute()  # fmt: skip


# -- decode -------------------------------------------------------------------------------------------------------------


def _decode(spark: SparkSession, brokers: str, folder: Path, clock: Clock, connector: bool) -> dict[str, Any]:
    import polars as pl

    def pipeline() -> None:
        _run(spark, "decode", {"events": topic_of("json"), "out": str(folder / "decode-penstock")}, folder)

    def query() -> None:
        _query(spark, brokers, folder / "decode-connector")

    systems = {"penstock": pipeline, **({"connector": query} if connector else {})}
    figures: dict[str, Any] = {}
    found: list[pl.DataFrame] = []
    for name, run in systems.items():
        out = folder / f"decode-{name}"

        def anew(run: Callable[[], None] = run, out: Path = out) -> None:
            shutil.rmtree(out, ignore_errors=True)
            run()

        figures[name] = clock.time(f"decode: {name}", anew)
        rows = pl.read_parquet(out / "*.parquet").select("key", "price", pl.col("at").cast(pl.Datetime("us", "UTC")))
        found.append(rows.sort(pl.all()))
    return {"name": "decode", **figures, "equal": found[0].height > 0 and all(rows.equals(found[0]) for rows in found)}


def _query(spark: SparkSession, brokers: str, out: Path) -> None:
    from pyspark.sql import functions

    options = {
        "kafka.bootstrap.servers": brokers,
        "subscribe": topic_of("json"),
        "startingOffsets": "earliest",
        "endingOffsets": "latest",
    }
    raw = spark.read.format("kafka").options(**options).load()
    text = functions.col("value").cast("string")
    events = raw.select(functions.from_json(text, "key bigint, price bigint, at timestamp").alias("e")).select("e.*")
    events.where("price = 7").write.mode("overwrite").parquet(str(out))


# -- catch-up -----------------------------------------------------------------------------------------------------------


def _catch_up(spark: SparkSession, brokers: str, folder: Path, clock: Clock) -> dict[str, Any]:
    topics: list[str] = []

    def run() -> None:
        topics.append(_results_topic(brokers))
        _run(spark, "w1", _w1(topics[-1]), folder)

    figures = clock.time("catch-up: on Spark", run)
    return {"name": "catch-up", "spark": figures, "equal": COMPARISONS["w1"](brokers, topics[-1], folder)}


def _w1(results: str) -> dict[str, str]:
    return {"events": topic_of("json"), "results": results, "format": "json"}


def _results_topic(brokers: str) -> str:
    topic = f"results-{uuid.uuid4().hex[:8]}"
    create_topic(brokers, topic)
    return topic


if __name__ == "__main__":
    sys.exit(main())
