"""Clusters as a browser sees them: a dispatcher on ports in memory, behind a real server, with what a leader would show.

`python tests/unit/dashboard/shown_cluster.py [PORT]` serves one with a troubled job and others, to look at.
"""

from __future__ import annotations

import asyncio
import math
import random
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

sys.path.append(str(Path(__file__).parent.parent / "dispatcher"))
from recorded_cluster import ATTEMPT, JOB, NONCE, OTHER, SECOND, RecordedCluster
from small_cluster import Event, SmallCluster, events, sources, until

from penstock import Pipeline, col, count, tumbling
from penstock.connectors import collecting, iterables
from penstock.coordination.cluster_view import (
    VIEW,
    AckView,
    CheckpointView,
    ClusterView,
    JobView,
    TaskRates,
    TaskView,
    VertexView,
    WorkerView,
)
from penstock.coordination.job_catalog import ACTIVE, FINISHED, FinishedJob
from penstock.graph.jobgraph import JobGraph, JobVertex, build_job_graph
from penstock.graph.rescaling import scalable_form
from penstock.protocol.joblog import Artifact, AttemptFailed, Begin, Complete, Leader, Submit, Terminated
from penstock.protocol.messages import OperatorMetrics, TaskProgress
from penstock.service.access import Issuer, access_of
from penstock.service.http_server import http_server
from penstock.settings import ClusterSettings, Secret

FAILED_JOB: Final = "f" * 32
SOURCE_KEY: Final = "artifacts/source.zip"
FRAMES: Final = "  File \"orders.py\", line 31, in price_of\n    return PRICES[order.product]\nKeyError: 'kettle'"
REASON: Final = "v1[0]: KeyError: 'kettle'"
MINUTE: Final = 60 * SECOND


class ShownCluster(RecordedCluster):
    """A leader that shows what it is told, again and again, so that it is never old."""

    def __init__(self) -> None:
        super().__init__()
        self.began_us = self.clock.now_us() - 47 * MINUTE
        self.jobs: list[JobView] = []
        self.workers: tuple[WorkerView, ...] = ()
        self.leads = True
        self.slots = 8
        self.orders = orders_graph(2)

    async def refresh(self) -> None:
        """Show it once more."""
        if not self.leads:
            await self.metadata.put(
                VIEW, msgspec.json.encode(ClusterView("", "", 0, self.clock.now_us(), 0, 0, (), ()))
            )
            return
        used = sum(sum(worker.used.values()) for worker in self.workers)
        view = ClusterView(
            "coordinator-1", "127.0.0.1:8082", 3, self.clock.now_us(), self.slots, max(0, self.slots - used),
            self.workers, tuple(self.jobs),
        )  # fmt: skip
        await self.metadata.put(VIEW, msgspec.json.encode(view))

    async def record_orders(self, job: str = JOB, name: str = "orders", *, failing: int = 0, **changes: Any) -> JobView:
        """A job that runs in its second attempt, whose join holds up what is before it.

        Args:
            job: its id.
            name: how it is called.
            failing: how many attempts have failed since its newest checkpoint, which is old then.
            changes: what else the leader shows of it.
        """
        graph = self.orders
        await self.blobs.put(SOURCE_KEY, sources("orders.py"))
        artifact = Artifact(SOURCE_KEY, "0" * 64, "orders.py", {"password": "hunter2"})
        submit = Submit(
            job=job, name=name, graph=graph.to_json(), submitted_us=self.began_us, at_us=self.began_us,
            artifact=artifact, scalable=scalable_form(orders_plan()).to_json(),
        )  # fmt: skip
        failed = AttemptFailed(
            attempt=ATTEMPT, attempt_number=1, reason=REASON, subtask="v1[0]", worker="worker-1", frames=FRAMES,
            at_us=self.began_us + 12 * MINUTE,
        )  # fmt: skip
        await self.write(
            submit, Leader(epoch=1, at_us=self.began_us), self._began(1, 0), failed, self._began(2, 12 * MINUTE + SECOND),
            self._completed(61, 35 * MINUTE if failing else 0),
            *self._failing(failed, failing),
            job=job,
        )  # fmt: skip
        view = self.orders_view(job, name, **changes)
        self.jobs.append(view)
        return view

    def _failing(self, failed: AttemptFailed, times: int) -> Iterator[AttemptFailed | Begin]:
        """Attempts that failed like this one, each behind the other, and those that followed them."""
        for number in range(2, 2 + times):
            yield msgspec.structs.replace(
                failed, attempt=f"{number:032x}", attempt_number=number, at_us=self.clock.now_us()
            )
            yield self._began(number + 1, 47 * MINUTE)

    def _began(self, number: int, after_us: int) -> Begin:
        return Begin(
            attempt=ATTEMPT if number == 1 else f"{number:032x}", attempt_number=number, restore=None, parallelism=2,
            generation=0, start_offsets={}, at_us=self.began_us + after_us,
        )  # fmt: skip

    def _completed(self, checkpoint: int, ago_us: int) -> Complete:
        return Complete(
            checkpoint=checkpoint, checkpoint_nonce=NONCE, attempt=f"{2:032x}", parent=-1, manifest=f"jobs/m{checkpoint}",
            sha256="0" * 64, at_us=self.clock.now_us() - ago_us,
        )  # fmt: skip

    def orders_view(self, job: str = JOB, name: str = "orders", **changes: Any) -> JobView:
        """What the leader shows of it now."""
        wave = math.sin(self.clock.now_us() / SECOND / 9)
        fields: dict[str, Any] = {
            "job": job, "name": name, "state": "RUNNING", "parallelism": 2, "submitted_us": self.began_us, "attempts": 2,
            "missing_slots": 0, "restored": 14, "last_checkpoint": 61,
            "vertices": tuple(self._vertex(place, vertex, wave) for place, vertex in enumerate(self.orders.vertices)),
            "checkpoints": tuple(self._checkpoints()), "failures": (REASON,), "graph": self.orders.to_json(),
            "totals": {"complete": 60, "aborted": 1, "failed": 1},
        }  # fmt: skip
        return JobView(**{**fields, **changes})

    def _vertex(self, place: int, vertex: JobVertex, wave: float) -> VertexView:
        tasks = tuple(self._task(place, vertex, index, wave) for index in range(vertex.parallelism))
        return VertexView(vertex.id, vertex.name, vertex.parallelism, tasks)

    def _task(self, place: int, vertex: JobVertex, index: int, wave: float) -> TaskView:
        slow = place == 2
        busy = 0.93 if slow else 0.22 + 0.05 * wave + index / 20
        blocked = 0.58 + 0.05 * wave if place < 2 and not slow else 0.0
        rows = 41_200 * (1 + 0.06 * wave) * (0.62 if index and slow else 1) / (1 + place)
        metrics = {
            operator.id: OperatorMetrics(
                rows_in=round(1e6 * (3 - index) / (1 + place)), rows_out=round(9e5 * (3 - index) / (1 + place)),
                late_rows=17 if slow else 0,
                state_bytes=(38 << 20) >> index if operator.state and not vertex.is_source else 0,
            )
            for operator in vertex.operators
        }  # fmt: skip
        lag = round(120_000 * (1 + wave)) if vertex.is_source else msgspec.UNSET
        unpublished = 1 << 20 if vertex.publishes else msgspec.UNSET
        now_us = self.clock.now_us()
        progress = TaskProgress(
            watermark=now_us - (4 + 9 * place) * SECOND, busy_us=int(9e8), idle_us=int(2e8), blocked_us=int(1e8),
            bytes_in=1 << 30, bytes_out=1 << 29, state_bytes=38 << 20 if slow else 1 << 12, records_behind=lag,
            unpublished_bytes=unpublished,
            splits_behind={str(index): lag - 900, str(index + 3): 900} if isinstance(lag, int) else msgspec.UNSET,
        )  # fmt: skip
        rates = TaskRates(
            busy, max(0.0, 1 - busy - blocked), min(blocked, 1 - busy), 4e6, 3e6,
            {operator.id: (rows, rows * 0.9) for operator in vertex.operators},
        )  # fmt: skip
        return TaskView(
            index, "running", f"worker-{index % 2 + 1}", published=60 if vertex.has_sink else 0, metrics=metrics,
            progress=progress, since_us={"running": self.began_us + 12 * MINUTE}, rates=rates,
        )  # fmt: skip

    def _checkpoints(self) -> list[CheckpointView]:
        now_us, dice = self.clock.now_us(), random.Random(5)
        shown: list[CheckpointView] = []
        for number in range(42, 62):
            at_us = now_us - (61 - number) * 10 * SECOND - 2 * SECOND
            took_us = dice.randint(180_000, 900_000)
            if number == 54:
                shown.append(
                    CheckpointView(
                        54, "aborted", at_us, None, 0, 0, "no answer from v2[1] within 10 s", at_us + 10 * SECOND, 9
                    )
                )
                continue
            acks = {
                vertex.id: tuple(AckView(i, at_us + took_us, 4 << 20 if "join" in vertex.name else 2_000, 1_500, 40_000,
                                         90_000) for i in range(vertex.parallelism))
                for vertex in self.orders.vertices
            } if number > 56 else {}  # fmt: skip
            shown.append(
                CheckpointView(number, "complete", at_us, took_us, (64 << 20) + dice.randint(0, 30 << 20),
                               dice.randint(900, 4_000), "", at_us + took_us, 9, acks)
            )  # fmt: skip
        return shown

    async def record_failed(self, job: str = FAILED_JOB, name: str = "prices") -> None:
        """A job that is FAILED, with what the user's code raised."""
        submit = Submit(job=job, name=name, graph=self.graph.to_json(), submitted_us=self.began_us, at_us=self.began_us)
        failed = AttemptFailed(
            attempt=ATTEMPT, attempt_number=1, reason=REASON, subtask="v1[0]", worker="worker-9", frames=FRAMES,
            at_us=self.began_us + MINUTE,
        )  # fmt: skip
        end_us = self.began_us + 2 * MINUTE
        ended = Terminated(state="FAILED", reason=f"gave up after 1 restart: {REASON}", at_us=end_us)
        await self.write(submit, self._began(1, SECOND), failed, ended, job=job)
        summary = FinishedJob(job, name, "FAILED", ended.reason, self.began_us, end_us, 2, 0)
        await self.blobs.put(FINISHED + job, msgspec.json.encode(summary))
        await self.blobs.delete(ACTIVE + job)

    async def record_finished(self, number: int) -> None:
        """A job that has ended well; there may be many."""
        job, begin_us = f"{number:032x}", self.began_us - number * 61 * SECOND
        summary = FinishedJob(job, f"daily-{number:04}", "FINISHED", "", begin_us, begin_us + 50 * SECOND, 2, 7)
        await self.blobs.put(FINISHED + job, msgspec.json.encode(summary))

    def add_workers(self) -> None:
        """Two that work, one that waits."""
        now_us = self.clock.now_us()
        self.workers = tuple(
            WorkerView(f"worker-{n}", f"taskmanager-{(n + 1) // 2} 127.0.0.1:{4710 + (n + 1) // 2}", 2,
                       {JOB: 2} if n < 3 else {}, 5 if n < 3 else 0, (210 << 20) + n * 7_000_000, now_us)
            for n in range(1, 5)
        )  # fmt: skip


def orders_plan() -> Any:
    """Two sources, one of them filtered, joined, counted in windows, written twice."""
    p = Pipeline("orders")
    orders = p.read(iterables.Source(events, schema=Event, event_time="at", rate=1.0))
    prices = p.read(iterables.Source(events, schema=Event, event_time="at", rate=1.0))
    both = orders.filter(col("value") > 0).join(prices.filter(col("value") > 3), on="key", window=tumbling("1m"))
    both.key_by("key").window(tumbling("10m")).agg(n=count()).write(collecting.Sink())
    both.write(collecting.Sink())
    return p.plan


def orders_graph(parallelism: int) -> JobGraph:
    """The graph of that."""
    return build_job_graph(orders_plan(), parallelism)


@asynccontextmanager
async def listening(
    cluster: SmallCluster, address: str = "127.0.0.1:0", token: str = "", tokens: str = "", issuer: Issuer | None = None
) -> AsyncGenerator[str]:
    """A cluster's dispatcher behind a server that takes connections by now; its URL. `tokens`: as in the settings."""
    settings = ClusterSettings(token=Secret(token), tokens=Secret(tokens))
    async with http_server(cluster.app, address, access_of(settings, address, issuer=issuer)) as listens:
        host, _, port = listens.rpartition(":")

        async def accepts() -> bool:
            try:
                _, writer = await asyncio.open_connection(host, int(port))
            except OSError:
                return False
            writer.close()
            return True

        await until(accepts, "the server takes connections")
        yield f"http://{listens}"


@asynccontextmanager
async def served(
    cluster: ShownCluster, address: str = "127.0.0.1:0", token: str = "", tokens: str = "", issuer: Issuer | None = None
) -> AsyncGenerator[str]:
    """Its dispatcher behind a server; the address. What the leader shows is kept fresh."""

    async def keep_fresh() -> None:
        while True:
            await cluster.refresh()
            await asyncio.sleep(0.5)

    await cluster.refresh()
    fresh = asyncio.create_task(keep_fresh())
    try:
        async with listening(cluster, address, token, tokens, issuer) as url:
            yield url
    finally:
        fresh.cancel()
        with suppress(asyncio.CancelledError):
            await fresh


async def _look(port: str) -> None:
    cluster = ShownCluster()
    cluster.add_workers()
    await cluster.record_orders()
    await cluster.record_orders(OTHER, "fraud-alerts", state="RESTARTING", missing_slots=2)
    await cluster.record_failed()
    for number in range(1, 30):
        await cluster.record_finished(number)
    async with served(cluster, f"127.0.0.1:{port}"):
        while True:
            await asyncio.sleep(1)
            cluster.jobs[0] = cluster.orders_view()


if __name__ == "__main__":
    asyncio.run(_look(sys.argv[1] if len(sys.argv) > 1 else "8099"))
