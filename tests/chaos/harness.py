"""One run: a job, faults one after the other, a comparison of everything that came out.

Before each fault the job runs, everything is healed and a checkpoint was completed since; after it rows must come again
from every partition of the source. Beside that job another one runs (`beside`). At the end the job is stopped with drain
and every row is accounted for.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from aiokafka.client import AIOKafkaClient
from tests.chaos.beside import Beside
from tests.chaos.cluster import SLOTS, ChaosCluster, ChaosError, until
from tests.chaos.faults import Fault
from tests.chaos.feed import RATE, Feed, doubled_events
from tests.chaos.hygiene import inspect
from tests.chaos.outputs import Outputs
from tests.chaos.report import CycleResult, Report

from penstock.coordination.cluster_view import ClusterView, JobView
from penstock.kafka.clients import aiokafka_options
from penstock.kafka.hanging_transactions import Hanging, hanging_transactions
from penstock.platform.server import Recorder, no_recorder
from penstock.platform.servers import Servers
from penstock.settings import ClusterSettings

RECOVERY_S: Final = 90.0
HEALED_S: Final = 60.0
STARTED_S: Final = 90.0
DRAINED_S: Final = 90.0
LONGEST_CYCLE_S: Final = 120
"""On average; bounds the feed."""

_EVIDENCE_S: Final = 20.0
_PAUSE_S: Final = 0.01
_TIMELINE_S: Final = 0.2


@dataclass
class CycleRun:
    """One cycle, as its fault sees it; see `faults.Cycle`."""

    cluster: ChaosCluster
    job: str
    rng: random.Random
    feed: Feed
    outputs: Outputs

    def __post_init__(self) -> None:
        self.notes: list[str] = []
        self.first_s: float | None = None
        self._struck = asyncio.Event()
        self._began = 0.0
        self._number = 0

    def struck(self) -> None:
        """The fault has fallen."""
        self._began, self._number = time.monotonic(), self.feed.produced
        self._struck.set()

    def note(self, text: str) -> None:
        """For the line that is printed."""
        self.notes.append(text)

    async def recovered(self) -> None:
        """Wait until rows come again."""
        await self.recovery()

    async def recovery(self) -> float:
        """Seconds from the fault until a row of every partition of the source is visible that was produced after it."""
        await self._struck.wait()
        while not self.outputs.all_since(self._number):
            passed = time.monotonic() - self._began
            if self.first_s is None and self.outputs.some_since(self._number):
                self.first_s = passed
            if self.outputs.problems:
                raise ChaosError(self.outputs.verdict(windows=False))
            if passed > RECOVERY_S:
                late = {part: newest for part, newest in self.outputs.newest.items() if newest < self._number}
                raise ChaosError(f"no row above #{self._number} within {RECOVERY_S:.0f} s; newest by partition: {late}")
            await asyncio.sleep(_PAUSE_S)
        took = time.monotonic() - self._began
        self.first_s = took if self.first_s is None else self.first_s
        return took


class ChaosRun:
    """A run on servers that are started; who started them ends them."""

    def __init__(
        self, servers: Servers, seed: int, *, beside: int | None = None, mark: str = "", record: Recorder = no_recorder
    ) -> None:
        """`beside`: how many jobs run beside, one after the other; None for as many as there is time for."""
        self.report = Report(seed)
        self.cluster = ChaosCluster(servers, mark=mark, record=record)
        self._beside = Beside(self.cluster, seed, beside)
        self.report.beside = self._beside.ended
        self._seed = seed
        self._job = ""
        self._epoch = 0
        self._late: dict[str, set[int]] = {}

    async def run(self, faults: Sequence[Fault]) -> Report:
        """Everything; the report, which is also kept up to date in `report`.

        Raises:
            ChaosError: something that must hold did not; says what, the seed, and where the logs are.
        """
        try:
            await self.cluster.start()
            await self._torment(faults)
        except Exception as error:
            self.report.failure = f"{type(error).__name__}: {error}"
            raise ChaosError(await self._evidence(error)) from error
        finally:
            await self.cluster.close()
        return self.report

    async def _torment(self, faults: Sequence[Fault]) -> None:
        kafka = self.cluster.settings.kafka
        feed = Feed(kafka, self._seed, RATE * LONGEST_CYCLE_S * (len(faults) + 2))
        feed.start()
        outputs = Outputs(kafka, feed.known)
        timeline = asyncio.create_task(self._write_timeline(outputs))
        try:
            self._job = await self.cluster.submit()
            await until("the first rows", STARTED_S, lambda: _true(outputs.all_since(0)))
            for number, fault in enumerate(faults, 1):
                self.report.current = f"the job beside, before cycle {number}"
                await self._beside.go_on(len(faults) - number + 1)
                await self._cycle(number, fault, feed, outputs)
            await self._end(feed, outputs)
            self.report.rows = dict(outputs.rows)
        finally:
            timeline.cancel()
            try:
                await asyncio.to_thread(feed.stop)
            finally:
                await asyncio.to_thread(outputs.close)
        self.report.left = await inspect(self.cluster)
        if self.report.problems:
            raise ChaosError("\n  ".join(["leaders that do not stop:", *self.report.problems[:20]]))

    async def _cycle(self, number: int, fault: Fault, feed: Feed, outputs: Outputs) -> None:
        self.report.current = f"cycle {number}: {fault.name} {fault.step}".rstrip()
        before = await self._healed(feed, outputs)
        rng = random.Random(f"{self._seed}-{number}")
        run = CycleRun(self.cluster, self._job, rng, feed, outputs)
        watching = asyncio.create_task(run.recovery())
        try:
            await fault.strike(run)
            recovery_s = await watching
        finally:
            watching.cancel()
        if outputs.problems:
            raise ChaosError(outputs.verdict(windows=False))
        after = await until("the leader's view of the job", HEALED_S, lambda: self.cluster.job(self._job))
        result = CycleResult(
            number, fault.name, fault.step, round(recovery_s, 2), round(run.first_s or recovery_s, 2),
            before.attempts, after.attempts, "; ".join(run.notes),
        )  # fmt: skip
        self.report.add(result)

    async def _healed(self, feed: Feed, outputs: Outputs) -> JobView:
        """The job runs and keeps up, all slots are there, a checkpoint is completed that was not when we began."""
        began: list[int] = []
        behind = feed.produced

        async def look() -> JobView | None:
            view = await self.cluster.view()
            job = next((job for job in view.jobs if job.job == self._job), None) if view is not None else None
            if view is None or job is None:
                return None
            if not began:
                began.append(job.last_checkpoint)
            if outputs.problems:
                raise ChaosError(outputs.verdict(windows=False))
            whole = view.slots == SLOTS * len(self.cluster.task_managers) and outputs.all_since(behind)
            healed = job.state == "RUNNING" and whole and await self._beside.is_calm()
            return job if healed and job.last_checkpoint > began[0] else None

        return await until("the job running on a whole cluster and keeping up, with a new checkpoint", HEALED_S, look)

    async def _end(self, feed: Feed, outputs: Outputs) -> None:
        """The job beside has ended; no more input, everything published, stopped with drain."""
        self.report.current = "the end"
        await self._beside.end()
        await asyncio.to_thread(feed.stop)
        await until(
            "everything published", DRAINED_S, lambda: _true(not outputs.missing(windows=False) or outputs.problems)
        )
        answer = await self.cluster.answer(self._job, await self.cluster.stop(self._job))
        if answer.outcome != "completed":
            raise ChaosError(f"the job was not stopped: {answer}")
        await until("the job in the list of ended ones", HEALED_S, lambda: self.cluster.finished(self._job))
        await until("all windows", HEALED_S, lambda: _true(not outputs.missing(windows=True) or outputs.problems))
        verdict = outputs.verdict(windows=True)
        if verdict:
            raise ChaosError(verdict)

    def _note_late_leader(self, view: ClusterView) -> None:
        """One that wakes up may finish the write it was in, no more."""
        where = f"{self.report.current}: {view.address}"
        self._late.setdefault(where, set()).add(view.seen_us)
        if len(self._late[where]) == 2:
            self.report.problems.append(f"{where} leads no more (epoch {view.epoch} < {self._epoch}) and goes on")

    async def _write_timeline(self, outputs: Outputs) -> None:
        """Every change of what the leader shows, with its time, into a file beside the logs."""
        last = ""
        with (self.cluster.folder / "timeline.log").open("w") as file:
            while True:
                view = await self.cluster.view()
                if view is not None and view.epoch < self._epoch:
                    self._note_late_leader(view)
                self._epoch = max(self._epoch, view.epoch if view is not None else 0)
                shown = _timeline(view, self._job) + f" | newest rows {sorted(outputs.newest.values())}"
                if shown != last:
                    last = shown
                    file.write(f"{datetime.now(UTC):%H:%M:%S.%f} {self.report.current}: {shown}\n")
                    file.flush()
                await asyncio.sleep(_TIMELINE_S)

    async def _evidence(self, error: Exception) -> str:
        """What is known when something failed."""
        lines = [f"{self.report.current}: {error}", f"seed {self._seed}; logs: {self.cluster.folder}"]
        try:
            view = await self.cluster.view()
        except Exception as unseen:
            lines.append(f"no view of the cluster: {unseen}")
        else:
            lines += (
                ["no fresh view of the cluster"] if view is None else [_shown(view.jobs), f"workers: {view.workers}"]
            )
        try:
            lines += [f"hanging transaction: {found}" for found in await _hanging(self.cluster.settings)]
        except Exception as unread:
            lines.append(f"Kafka does not tell which transactions hang: {unread}")
        try:
            lines += await asyncio.to_thread(doubled_events, self.cluster.settings.kafka)
        except Exception as unread:
            lines.append(f"the source topic could not be read: {unread}")
        return "\n".join([*lines, self.cluster.tails()])


async def _hanging(settings: ClusterSettings) -> list[Hanging]:
    client = AIOKafkaClient(**aiokafka_options(settings.kafka, "chaos-evidence"))
    try:
        async with asyncio.timeout(_EVIDENCE_S):
            await client.bootstrap()
            return await hanging_transactions(client, settings.name)
    finally:
        await client.close()


def _timeline(view: ClusterView | None, job: str) -> str:
    """What matters of a view, in a line."""
    if view is None:
        return "no fresh view"
    found = next((found for found in view.jobs if found.job == job), None)
    head = f"epoch {view.epoch}, {view.slots} slots, {view.free_slots} free"
    if found is None:
        return f"{head}, no job"
    tasks = Counter(task.state for vertex in found.vertices for task in vertex.tasks)
    pending = [f"{c.checkpoint} {c.state}" for c in found.checkpoints[-2:]]
    return (
        f"{head} | {found.state} attempt {found.attempts}, {found.missing_slots} slots missing, {dict(tasks)}, "
        f"complete {found.last_checkpoint}, {pending}"
    )


async def _true(value: object) -> bool:
    return bool(value)


def _shown(jobs: Sequence[JobView]) -> str:
    lines: list[str] = []
    for job in jobs:
        lines.append(
            f"job {job.job[:8]}: {job.state}, attempt {job.attempts}, parallelism {job.parallelism}, "
            f"checkpoint {job.last_checkpoint}, missing slots {job.missing_slots}"
        )
        for vertex in job.vertices:
            tasks = [(task.index, task.state, task.worker, task.published, task.error) for task in vertex.tasks]
            lines.append(f"  {vertex.name}: {tasks}")
        lines += [f"  failure: {failure}" for failure in job.failures[-10:]]
        lines += [f"  {checkpoint}" for checkpoint in job.checkpoints[-5:]]
    return "\n".join(lines) or "no job is shown"
