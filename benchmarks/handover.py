"""`python -m benchmarks.handover`: how late results are when the coordinator that leads leaves, or is killed.

Two coordinators, a job with running totals per key and an exactly-once sink, records at a fixed rate, each with the time
at which it was made. The leader is ended by SIGTERM, as in every upgrade, or by SIGKILL, and started again; the age of
the oldest result that a reader with `read_committed` sees meanwhile is how late results were. Broker, store, services,
job, sender and reader share the machine's cores.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.kafka_events import create_topic
from benchmarks.kafka_jobs import PARALLELISM, cluster_servers, service
from benchmarks.live import age_ms, penstock, reader_of, send, submit
from benchmarks.report import keep, machine

WARM_S: Final = 8.0
WATCHED_S: Final = 25.0
"""From the leader's end on."""
_WAYS: Final = ("leaves", "is killed")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.handover", description=__doc__)
    parser.add_argument("--rate", type=int, default=1_000, help="records a second (1000)")
    parser.add_argument("--interval", default="100ms", metavar="TIME", help="checkpoint interval (100ms)")
    parser.add_argument("--repeat", type=int, default=3, help="how often the leader leaves and is killed (3)")
    arguments = parser.parse_args()
    print(f"load before: {os.getloadavg()[0]:.1f}; {machine()['processor']}, {os.cpu_count()} cores for everything")
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        results = asyncio.run(_measure(Path(folder), arguments))
    print(f"kept in {keep(results, None, {'broker': 'the same machine', 'rate': arguments.rate})}")
    return 0


async def _measure(folder: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    from penstock.client import ClusterClient
    from penstock.platform.free_ports import free_port

    taken: set[int] = set()
    rest_port = free_port(taken)
    coordinators = [service("coordinator", folder, free_port(taken), number=number) for number in range(2)]
    others = [
        service("dispatcher", folder, rest_port),
        service("taskmanager", folder, free_port(taken), "--slots", str(PARALLELISM)),
    ]
    results: list[dict[str, Any]] = []
    async with contextlib.AsyncExitStack() as stack:
        servers = await stack.enter_async_context(cluster_servers(folder, rest_port))
        brokers = servers.kafka.settings.brokers
        for each in [*coordinators, *others]:
            stack.push_async_callback(each.stop)
            await each.start()
        cluster = await stack.enter_async_context(ClusterClient(f"http://127.0.0.1:{rest_port}"))
        topics = {"events": "events", "results": "results"}
        for topic in topics.values():
            create_topic(brokers, topic)
        await asyncio.to_thread(submit, "totals", topics, arguments.interval, PARALLELISM)
        over = threading.Event()
        stack.callback(over.set)
        ages = _Ages(brokers, "results", over)
        work = [
            threading.Thread(target=send, args=(brokers, "events", arguments.rate, over), daemon=True),
            ages,
        ]
        for thread in work:
            thread.start()
        for number in range(2 * arguments.repeat):
            await asyncio.sleep(WARM_S)
            before = ages.oldest_ms()
            address = (await cluster.overview()).address
            leader = next(each for each in coordinators if address.endswith(f":{each.port}"))
            way = _WAYS[number % 2]
            await leader.end(by_force=way == "is killed")
            ended_s = time.monotonic()
            await asyncio.sleep(WATCHED_S)
            result = {"leader": way, "oldest_ms": ages.oldest_ms(), "before_ms": before, "load": os.getloadavg()[0]}
            results.append(result)
            print(
                f"the leader {way}: results at most {result['oldest_ms']:.0f} ms old, {before:.0f} ms before; "
                f"watched for {time.monotonic() - ended_s:.0f} s (load {result['load']:.1f})",
                flush=True,
            )
            await leader.start()
        over.set()
        for thread in work:
            await asyncio.to_thread(thread.join)
        await asyncio.to_thread(penstock, "cancel", (await cluster.jobs()).jobs[0].job)
    return results


class _Ages(threading.Thread):
    """Reads results, and remembers how old the oldest was when it was seen."""

    def __init__(self, brokers: str, topic: str, over: threading.Event) -> None:
        super().__init__(daemon=True)
        self._brokers = brokers
        self._topic = topic
        self._over = over
        self._oldest_ms = 0.0

    def oldest_ms(self) -> float:
        """Since it was asked last."""
        oldest, self._oldest_ms = self._oldest_ms, 0.0
        return oldest

    def run(self) -> None:
        consumer = reader_of(self._brokers, self._topic)
        while not self._over.is_set():
            records = consumer.consume(20_000, 0.01)
            now_us = time.time_ns() / 1_000
            for record in records:
                self._oldest_ms = max(self._oldest_ms, age_ms(record, now_us))
        consumer.close()


if __name__ == "__main__":
    sys.exit(main())
