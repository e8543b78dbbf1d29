"""`python -m tests.soak`: a feed and a job that counts it, at a steady rate; memory, lag and checkpoints are watched.

At the end every window is compared. The pipelines are the two of the examples, the servers and services those of a
cluster on one machine; nobody kills anything (`make chaos` does).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Final

from benchmarks.kafka_jobs import cluster_services
from tests.soak.flatness import FEWEST, grown_lag, grown_memory, growth
from tests.soak.ledger import Ledger

from penstock.client import ClusterClient
from penstock.client.documents import JobDetail
from penstock.connectors.kafka.topics import TopicAdmin
from penstock.kafka.clients import confluent_options
from penstock.platform.free_ports import free_port
from penstock.platform.parts import cached_parts
from penstock.platform.servers import Servers, plan_servers
from penstock.settings import KafkaSettings, settings_to_toml

EXAMPLES: Final = Path(__file__).parents[2] / "examples"
PARTITIONS: Final = 4
SLOTS: Final = 3
SAMPLE_S: Final = 5.0
SLOWEST_CHECKPOINT_S: Final = 60.0
ENDED_S: Final = 180.0
MIB: Final = 1 << 20


def main() -> int:
    """Run; the exit code says whether everything held."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="how long orders come in (60)")
    parser.add_argument("--rate", type=int, default=50_000, help="orders a second (50000)")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="penstock-soak-"))
    print(f"{options.rate:,} orders a second for {options.minutes:g} minutes; logs: {folder}", flush=True)
    problems = asyncio.run(_run(folder, options.rate, round(options.rate * options.minutes * 60)))
    if not problems:
        shutil.rmtree(folder)
    print("\n".join(problems) or "nothing lost, nothing doubled")
    return 1 if problems else 0


async def _run(folder: Path, rate: int, orders: int) -> list[str]:
    async with _cluster(folder) as (kafka, rest, pids):
        await asyncio.to_thread(TopicAdmin(kafka, "soak").create, "orders", PARTITIONS)
        counting = await _submit("orders.py", 2)
        feed = await _submit("orders_feed.py", 1, f"rows={orders}", f"rate={rate}")
        reader = Reader(kafka, orders)
        watch = Watch(pids, counting)
        try:
            async with ClusterClient(rest) as client:
                await watch.until_ended(client, feed, reader, orders / rate + ENDED_S)
                await _until("every order counted", ENDED_S, client, counting, lambda job: _counted(job) == orders)
                await _penstock("stop", counting, "--drain")
            await asyncio.to_thread(reader.decided.wait, ENDED_S)
        finally:
            await asyncio.to_thread(reader.close)
    print(watch.summary())
    print(f"{orders:,} orders, {reader.ledger.rows:,} windows compared")
    return [*reader.ledger.verdict(), *watch.verdict(rate)]


@contextlib.asynccontextmanager
async def _cluster(folder: Path) -> AsyncGenerator[tuple[KafkaSettings, str, Sequence[int]]]:
    servers = Servers(cached_parts(), folder / "servers", plan_servers(heap_mb=1_024))
    port = free_port(set())
    rest = f"http://127.0.0.1:{port}"
    settings = servers.settings("soak", rest)
    (folder / "cluster.toml").write_text(settings_to_toml(settings))
    os.environ["PENSTOCK_CLUSTER"] = str(folder / "cluster.toml")
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(servers.kill)
        await servers.start()
        pids = await stack.enter_async_context(cluster_services(servers, folder, port, slots=SLOTS))
        yield settings.kafka, rest, pids


async def _submit(example: str, parallelism: int, *parameters: str) -> str:
    given = [part for parameter in (*parameters, f"partitions={PARTITIONS}") for part in ("--param", parameter)]
    return (
        await _penstock("submit", str(EXAMPLES / example), "--detach", "--parallelism", str(parallelism), *given)
    ).strip()


async def _penstock(*arguments: str) -> str:
    command = [sys.executable, "-m", "penstock.cli.main", *arguments]
    return (await asyncio.to_thread(subprocess.run, command, stdout=subprocess.PIPE, text=True, check=True)).stdout


async def _until(
    what: str, deadline_s: float, client: ClusterClient, job: str, holds: Callable[[JobDetail], bool]
) -> None:
    end = time.monotonic() + deadline_s
    while not holds(await client.job(job)):
        if time.monotonic() > end:
            raise SystemExit(f"{what}: not within {deadline_s:.0f} s")
        await asyncio.sleep(1)


def _counted(job: JobDetail) -> int:
    """Rows that the sources of a job have read."""
    sources = [node["id"] for vertex in job.graph["vertices"] for node in vertex["operators"] if node["verb"] == "read"]
    tasks = [task for vertex in job.vertices for task in vertex.tasks]
    return sum(task.metrics[source].rows_in for task in tasks for source in sources if source in task.metrics)


class Watch:
    """Samples of everything that must stay as it is."""

    def __init__(self, pids: Sequence[int], job: str) -> None:
        self._services = dict(zip(("coordinator", "dispatcher", "task manager"), pids, strict=True))
        self._job = job
        self._memory: dict[str, list[float]] = defaultdict(list)
        self._lag: list[float] = []
        self._checkpoint = 0
        self._completed_s = time.monotonic()
        self._slowest_s = 0.0
        self._problems: list[str] = []

    async def until_ended(self, client: ClusterClient, feed: str, reader: Reader, deadline_s: float) -> None:
        """Sample until the feed has written everything, or something is wrong."""
        begun = time.monotonic()
        while not reader.ledger.problems and not self._problems:
            if time.monotonic() > begun + deadline_s:
                self._problems.append(f"the feed has not ended within {deadline_s:.0f} s")
                return
            state = (await client.job(feed)).summary.state
            if state == "FINISHED":
                return
            job = await client.job(self._job)
            self._sample(job)
            if state not in ("INITIALIZING", "CREATED", "RUNNING") or job.attempts > 1:
                self._problems.append(f"the feed is {state}, the job in attempt {job.attempts}: {job.failures}")
            if len(self._lag) % 12 == 0:
                now = {name: f"{samples[-1]:.0f}" for name, samples in self._memory.items()}
                print(
                    f"{time.monotonic() - begun:6.0f} s  lag {self._lag[-1]:9,.0f}  checkpoint {self._checkpoint}  "
                    f"windows {reader.ledger.rows:,}  MiB {json.dumps(now)}",
                    flush=True,
                )
            await asyncio.sleep(SAMPLE_S)

    def _sample(self, job: JobDetail) -> None:
        for name, pid in self._services.items():
            self._memory[name].append(_resident_mb(pid))
            for number, child in enumerate(_children(pid)):
                self._memory[f"{name}'s worker {number}"].append(_resident_mb(child))
        tasks = [task for vertex in job.vertices for task in vertex.tasks]
        self._lag.append(sum(task.progress.records_behind or 0 for task in tasks))
        now = time.monotonic()
        if job.summary.last_checkpoint != self._checkpoint:
            self._checkpoint, self._completed_s = job.summary.last_checkpoint, now
        self._slowest_s = max(self._slowest_s, now - self._completed_s)

    def summary(self) -> str:
        """Figures, early and at the end."""
        if len(self._lag) < FEWEST:
            return f"memory and lag are not judged: that takes more than {FEWEST * SAMPLE_S / 60:.0f} minutes"
        lines = [f"{name}: {_pair(samples)} MiB" for name, samples in self._memory.items() if len(samples) >= FEWEST]
        return "\n".join([*lines, f"lag: {_pair(self._lag)} records", f"slowest checkpoint {self._slowest_s:.0f} s"])

    def verdict(self, rate: int) -> list[str]:
        """What is wrong; nothing if all is right."""
        problems = [grown_memory(name, samples) for name, samples in self._memory.items()]
        problems.append(grown_lag(self._lag, rate))
        if self._slowest_s > SLOWEST_CHECKPOINT_S:
            problems.append(f"no checkpoint was completed for {self._slowest_s:.0f} s")
        return [*self._problems, *(problem for problem in problems if problem)]


class Reader:
    """A thread that reads what is committed, until it is closed."""

    def __init__(self, settings: KafkaSettings, orders: int) -> None:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        self.ledger = Ledger(orders)
        self.decided = threading.Event()
        """Every window is there, or one is wrong."""
        self._stop = threading.Event()
        options = {"group.id": "soak", "isolation.level": "read_committed", "enable.auto.commit": False}
        self._consumer = Consumer({**confluent_options(settings, "soak"), **options})
        self._consumer.assign([TopicPartition("spent", n, OFFSET_BEGINNING) for n in range(PARTITIONS)])
        self._thread = threading.Thread(target=self._run, name="reader", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Read no more."""
        self._stop.set()
        self._thread.join(30)
        self._consumer.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            for message in self._consumer.consume(5_000, 0.2):
                value, where = message.value(), f"spent[{message.partition()}]@{message.offset()}"
                if message.error() is None and value is not None:
                    self.ledger.note(value, where)
            if self.ledger.complete or self.ledger.problems:
                self.decided.set()


def _pair(samples: Sequence[float]) -> str:
    early, late = growth(samples)
    return f"{early:,.0f} early, {late:,.0f} at the end"


def _resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB


def _children(pid: int) -> list[int]:
    return [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]


if __name__ == "__main__":
    sys.exit(main())
