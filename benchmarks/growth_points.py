"""One point of a curve of `benchmarks.growth`, in a process of its own, pinned to one core.

    python -m benchmarks.growth_points CURVE SIZE ROWS FOLDER CORE

Prints one line of JSON. Time on the clock is not in it: all figures are CPU-seconds of the process, and its memory.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import io
import itertools
import json
import logging
import os
import sys
import time
import uuid
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.cases import Case, RunningTotal, sums_in
from benchmarks.child import run_engine
from benchmarks.sinks import CountingSink
from penstock import Pipeline, col, count, tumbling
from penstock.adapters.memory import MemoryBlobs
from penstock.connectors import base, generate
from penstock.connectors.base import Fetched, Position, ReadContext, Split

if TYPE_CHECKING:
    import httpx2
    import numpy as np
    import numpy.typing as npt


Figures = dict[str, float]
Measure = Callable[[int, int, Path], Figures]
"""(size, rows, an empty folder)."""

FEW_KEYS = 10_000
CHECKPOINT_MS = 10_000
"""What jobs have that say nothing of it."""
NEVER_MS = 3_600_000
SETTLED_S, IDLE_S, IDLE_WITH_CHECKPOINTS_S = 1.0, 4.0, 10.0
"""How long an embedded job without rows is left alone, and then watched."""
STEP_S = 0.25
"""Between two looks at the clock meanwhile: a step that takes much longer is one in which the process was stopped."""
WATCHED_S = 20
"""Virtual seconds for which a leader is watched."""
SPARE = 10
"""Slots that stay free."""
LISTINGS = 10


@dataclass
class Bid:
    """What is generated."""

    auction: int
    price: int
    at: datetime


# -- keys and subtasks --------------------------------------------------------------------------------------------------


def bids(keys: int, rows: int | None, splits: int = 1, each_us: int = 1) -> generate.Source[Any]:
    """Rows of keys drawn by chance, so many microseconds of event time apart."""

    def content(numbers: npt.NDArray[np.int64]) -> dict[str, Any]:
        return {
            "auction": generate.random_integers(numbers, 1, 0, keys),
            "price": numbers % 1_000,
            "at": (numbers * each_us + 1_700_000_000_000_000).astype("M8[us]"),
        }

    out_of_order = f"{splits}ms"  # readers of many splits do not keep step to the row
    return generate.Source(
        content,
        schema=Bid,
        rows=rows,
        splits=splits,
        event_time="at",
        max_out_of_orderness=out_of_order,
        timezone="UTC",
    )


def _aggregated(stream: Any, size: str, out: Path) -> None:
    aggregates = {"bids": count(), "total": col("price").sum(), "highest": col("price").max()}
    stream.key_by("auction").window(tumbling(size)).agg(**aggregates).write(CountingSink(out))


def _processed(stream: Any, out: Path) -> None:
    stream.key_by("auction").process(RunningTotal()).write(CountingSink(out))


def run_rows(case: Case, folder: Path, column: str) -> Figures:
    """A job to its end; its sums must be those of all rows."""
    rows = case.rows
    found = run_engine(case, folder, rows)
    (sums,) = [case.result(folder / case.name / "penstock", rows)]
    if sums[column] != rows:
        raise SystemExit(f"{case.name}: {sums[column]} of {rows} rows are in the result")
    return {
        "rows": rows,
        "cpu_s_per_m": found["cpu_seconds"] * 1e6 / rows,
        "peak_mib": found["peak_mib"],
        "state_mib": found["state_mib"],
        "checkpoints": found["checkpoints"],
    }


def _case(name: str, rows: int, source: generate.Source[Any], build: Callable[[Any, Path], None]) -> Case:
    return Case(
        name=name,
        title="",
        rows=rows,
        source=lambda _, __: source,
        build=build,
        result=sums_in,
        checkpoint_interval_ms=CHECKPOINT_MS,
    )


def measure_keys(keys: int, rows: int, folder: Path) -> Figures:
    """All rows are in one window, which fires at the end: so many keys are held at once."""
    case = _case("growth-keys", rows, bids(keys, rows), lambda stream, out: _aggregated(stream, "1d", out))
    return run_rows(case, folder, "bids")


def measure_keys_in_rocksdb(keys: int, rows: int, folder: Path) -> Figures:
    """A `KeyedProcess` row by row, a number per key, in RocksDB with incremental checkpoints."""
    case = _case("growth-rocksdb", rows, bids(keys, rows), _processed)
    return run_rows(replace(case, backend="rocksdb", incremental=True), folder, "rows")


def measure_subtasks(subtasks: int, rows: int, folder: Path) -> Figures:
    """Windows of 10 s, half a million rows each, of few keys; sources, and behind the exchange windows, of so many
    subtasks in one process. Then what the same job costs without rows."""
    source = bids(FEW_KEYS, rows, subtasks, each_us=20)
    case = _case("growth-subtasks", rows, source, lambda stream, out: _aggregated(stream, "10s", out))
    found = run_rows(replace(case, parallelism=subtasks), folder, "bids")
    idle_s = asyncio.run(_idle(subtasks, folder / "idle", NEVER_MS, IDLE_S))
    with_s = asyncio.run(_idle(subtasks, folder / "idle-with", CHECKPOINT_MS, IDLE_WITH_CHECKPOINTS_S))
    return {**found, "idle_ms_per_subtask": idle_s * 1_000, "idle_with_checkpoints_ms_per_subtask": with_s * 1_000}


class _Silent(generate.Source[Any]):
    """Never has a row."""

    def open(self, split: Split, position: Position, context: ReadContext) -> base.SplitReader:
        """See `Source.open`."""
        return _SilentReader(context)


class _SilentReader:
    """Waits as readers of Kafka do: until there is other work, or for a second."""

    def __init__(self, context: ReadContext) -> None:
        self._context = context

    async def read(self, max_rows: int) -> Fetched | None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._context.other_work(), 1.0)
        return None

    def position(self) -> Position:
        return 0

    async def close(self) -> None:
        """Nothing is held."""


async def _idle(subtasks: int, folder: Path, interval_ms: int, watched_s: float) -> float:
    """CPU-seconds per second and subtask of a job whose source is silent."""
    from penstock.embedded import EmbeddedJob, EmbeddedSettings

    pipeline = Pipeline("growth-idle")
    silent = _Silent(lambda _: {}, schema=Bid, splits=subtasks, event_time="at", timezone="UTC")
    _aggregated(pipeline.read(silent), "10s", folder / "out")
    job = EmbeddedJob(
        pipeline, folder / "job", EmbeddedSettings(parallelism=subtasks, checkpoint_interval_ms=interval_ms)
    )
    running = asyncio.ensure_future(job.run(resume=False))
    tasks = sum(vertex.parallelism for vertex in job.graph.vertices)
    while not (job.started and job.job and _all_run(job, tasks)):
        await asyncio.wait([running], timeout=0.1)
        if running.done():
            raise SystemExit(f"the job without rows has ended: {running.result().reason}")
    await asyncio.sleep(SETTLED_S)
    cpu_s = time.process_time()
    passed_s = await _let_pass(watched_s)
    used_s = time.process_time() - cpu_s
    job.suspend()
    await running
    return used_s / passed_s / tasks


async def _let_pass(seconds: float) -> float:
    """Wait so long, without times in which the process was stopped; how long it was."""
    passed_s = 0.0
    while passed_s < seconds:
        began_s = time.monotonic()
        await asyncio.sleep(min(STEP_S, seconds))
        step_s = time.monotonic() - began_s
        passed_s += step_s if step_s < 4 * STEP_S else STEP_S
    return passed_s


def _all_run(job: Any, subtasks: int) -> bool:
    statuses = list(job.progress.statuses.values())
    return len(statuses) == subtasks and all(status.state == "running" for status in statuses)


# -- jobs ---------------------------------------------------------------------------------------------------------------


def measure_jobs(jobs: int, rows: int, folder: Path) -> Figures:
    """Jobs of one subtask without rows, under one leader; submitted to a dispatcher beside it."""
    from penstock.testing.virtual_time import VirtualLoop

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(_jobs(1, NEVER_MS))  # what is loaded with the first job is no job's
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        idle = runner.run(_jobs(jobs, NEVER_MS))
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        checkpointed = runner.run(_jobs(jobs, CHECKPOINT_MS))
    return {**idle, "checkpointed_ms_per_job": checkpointed["idle_ms_per_job"]}


async def _jobs(jobs: int, interval_ms: int) -> Figures:
    """Submit so many, watch them, list them."""
    import httpx2

    from benchmarks.leader import SimulatedWorkers
    from penstock.jobmanager.coordinator import CoordinatorTimeouts
    from penstock.service.access import Access, Gate
    from penstock.service.http_server import Readiness
    from penstock.testing.memory_cluster import MemoryCluster
    from penstock.testing.virtual_time import VirtualClock
    from penstock_dispatcher.app import dispatcher_app
    from penstock_dispatcher.cluster import DispatcherPorts

    patience = CoordinatorTimeouts(lease_ttl_ms=15_000, takeover_ms=1_000, worker_ms=60_000)
    cluster = MemoryCluster(clock=VirtualClock(0), timeouts=patience, blobs=OrderedBlobs())
    workers = SimulatedWorkers(cluster, jobs + SPARE)
    coordinator = cluster.coordinator()
    await _until(lambda: coordinator.epoch > 0)
    working = asyncio.create_task(workers.run())
    await asyncio.sleep(2)
    ports = DispatcherPorts(cluster.log, cluster.blobs, cluster.metadata, cluster.clock, lambda: uuid.uuid4().hex)
    transport = httpx2.ASGITransport(Gate(dispatcher_app(ports, Readiness(), list), Access()))
    used = Used(lambda: workers.spent_s)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as dispatcher:
        document = _document(interval_ms)
        await _submit(dispatcher, document, jobs)
        await _until(lambda: workers.running == jobs)
        submitting_s = used.so_far()
        await asyncio.sleep(2 * interval_ms / 1_000 if interval_ms == CHECKPOINT_MS else 10)
        idle_s = await _watched(used, WATCHED_S)
        listing_s = await _listed(dispatcher, used, jobs)
    working.cancel()
    await cluster.stop()
    return {
        "idle_ms_per_job": idle_s / jobs * 1_000,
        "leader_cores": idle_s,
        "submission_ms": submitting_s / jobs * 1_000,
        "listing_ms": listing_s * 1_000,
    }


class OrderedBlobs(MemoryBlobs):
    """Finds the keys of a prefix without looking at all others, as stores do."""

    def __init__(self) -> None:
        super().__init__()
        self._keys: list[str] = []

    async def put(self, key: str, data: bytes) -> None:
        """See `Blobs.put`."""
        if key not in self._objects:
            bisect.insort(self._keys, key)
        await super().put(key, data)

    async def create(self, key: str, data: bytes) -> None:
        """See `Blobs.create`."""
        await super().create(key, data)
        bisect.insort(self._keys, key)

    async def list(self, prefix: str) -> list[str]:
        """See `Blobs.list`."""
        begin = bisect.bisect_left(self._keys, prefix)
        return list(itertools.takewhile(lambda key: key.startswith(prefix), itertools.islice(self._keys, begin, None)))

    async def delete(self, key: str) -> None:
        """See `Blobs.delete`."""
        if key in self._objects:
            del self._keys[bisect.bisect_left(self._keys, key)]
        await super().delete(key)


class Used:
    """CPU time of this process without what simulated workers take."""

    def __init__(self, apart: Callable[[], float]) -> None:
        self._apart = apart
        self._began_s = self.total()

    def total(self) -> float:
        """Since the process began."""
        return time.process_time() - self._apart()

    def so_far(self) -> float:
        """Since this was made."""
        return self.total() - self._began_s


def _now_s() -> float:
    return asyncio.get_running_loop().time()


async def _watched(used: Used, seconds: float) -> float:
    before_s = used.total()
    await asyncio.sleep(seconds)
    return (used.total() - before_s) / seconds


async def _until(holds: Callable[[], bool], limit_s: float = 600) -> None:
    deadline_s = _now_s() + limit_s
    while not holds():
        if _now_s() > deadline_s:
            raise SystemExit(f"what is waited for has not come within {limit_s:.0f} s")
        await asyncio.sleep(0.02)


def _document(interval_ms: int) -> bytes:
    import msgspec

    from benchmarks.leader import pipeline
    from penstock.graph.jobgraph import build_job_graph
    from penstock.protocol.checkpoints import CheckpointSettings
    from penstock.protocol.joblog import JobSettings
    from penstock.protocol.restarts import FixedDelay

    settings = JobSettings(CheckpointSettings(interval_ms=interval_ms), FixedDelay(attempts=20, delay_ms=10))
    document = {
        "name": "load",
        "graph": build_job_graph(pipeline().plan, 1).to_json(),
        "settings": msgspec.to_builtins(settings),
        "artifact": {"target": "load.py"},
    }
    return json.dumps(document).encode()


def _sources() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("load.py", "p = 1\n")
    return buffer.getvalue()


async def _submit(dispatcher: httpx2.AsyncClient, document: bytes, jobs: int) -> None:
    sources = _sources()
    for _ in range(jobs):
        files = {"job": ("job", document), "sources": ("sources", sources)}
        response = await dispatcher.post(
            "/penstock/v1/jobs", files=files, headers={"X-Requested-With": "benchmark", "Sec-Fetch-Site": "same-origin"}
        )
        if response.status_code != 202:
            raise SystemExit(f"a submission was answered {response.status_code}: {response.text}")


async def _listed(dispatcher: httpx2.AsyncClient, used: Used, jobs: int) -> float:
    """CPU-seconds of one listing, as the dashboard asks for it; what the leader does meanwhile is in it."""
    await asyncio.sleep(5)
    before_s = used.total()
    for _ in range(LISTINGS):
        response = await dispatcher.get("/penstock/v1/jobs")
        assert len(response.json()["jobs"]) == jobs
    return (used.total() - before_s) / LISTINGS


CURVES: Mapping[str, Measure] = {
    "subtasks": measure_subtasks,
    "keys": measure_keys,
    "keys-in-rocksdb": measure_keys_in_rocksdb,
    "jobs": measure_jobs,
}


def main() -> None:
    """Do what the arguments say."""
    import structlog

    curve, size, rows, folder, core = sys.argv[1:6]
    os.sched_setaffinity(0, {int(core)})
    logging.getLogger().setLevel(logging.WARNING)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    print(json.dumps(CURVES[curve](int(size), int(rows), Path(folder))))


if __name__ == "__main__":
    main()
