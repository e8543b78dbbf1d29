"""A pipeline service on ports in memory, with processes that do what a test says."""

from __future__ import annotations

import asyncio
import itertools
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from penstock.adapters.memory import MemoryBlobs, MemoryLog, MemoryMetadata
from penstock.adapters.system_clock import SystemClock
from penstock.coordination.control_topics import REQUESTS
from penstock.ports import NewRecord
from penstock.protocol.joblog import Artifact
from penstock.protocol.messages import encode
from penstock.protocol.requests import CancelRun, RunOptions, RunRequest, SubmitRun
from penstock.runs.run_log import AttemptBegan, RunHistory, RunOutcome, Submitted
from penstock.runs.run_scheduler import RunFacts
from penstock.runs.run_store import RunStore
from penstock.runs.run_views import RunProgress
from penstock.runs.schedule_store import ScheduleStore
from penstock_pipeline.service import PipelinePorts, PipelineService, PipelineSettings

DONE = RunOutcome("FINISHED", counts={"events": {"rows_in": 7}})


@dataclass(frozen=True)
class Process:
    """What is to be seen of an attempt."""

    alive: bool = True
    outcome: RunOutcome | None = None
    decided: bool = False


class FakeChildren:
    """Processes in name only; they outlive the service, as the real ones do."""

    def __init__(self, place: str = "here") -> None:
        self.place = place
        self.processes: dict[str, Process] = {}
        self.started: list[tuple[str, int]] = []
        self.forgotten: list[str] = []
        self.sources = b"zip"

    def change(self, run: str, **changes: Any) -> None:
        """Something happens to a process."""
        self.processes[run] = replace(self.processes[run], **changes)

    def facts(self, history: RunHistory) -> RunFacts:
        known = self.processes.get(history.submitted.run)
        attempt = history.attempt
        if known is None or attempt is None or (history.submitted.run, attempt.attempt) not in self.started:
            return RunFacts(history, decided=known is not None and known.decided)
        return RunFacts(history, known.alive, known.outcome, known.decided)

    def progress(self, history: RunHistory) -> RunProgress:
        return RunProgress(at="totals", stages=2, stages_done=1)

    def output(self, history: RunHistory) -> str:
        return "what Spark printed"

    def start(self, submitted: Submitted, attempt: AttemptBegan, sources: bytes) -> None:
        assert sources == self.sources
        self.started.append((submitted.run, attempt.attempt))
        decided = submitted.run in self.processes and self.processes[submitted.run].decided
        self.processes[submitted.run] = Process(decided=decided)

    def stop(self, history: RunHistory, *, forced: bool) -> None:
        self.change(history.submitted.run, alive=False)

    def forget(self, run: str) -> None:
        self.forgotten.append(run)

    def forget_others(self, runs: Set[str]) -> None:
        self.forgotten += sorted(self.processes.keys() - runs)


class SetClock(SystemClock):
    """Its wall time is what a test says."""

    def __init__(self, wall_us: int) -> None:
        self.wall_us = wall_us

    def now_us(self) -> int:
        return self.wall_us


class SmallPipeline:
    """The ports, the processes, and services that are started one after the other."""

    def __init__(self, clock: SystemClock | None = None) -> None:
        self.clock = clock or SystemClock()
        self.log = MemoryLog()
        self.blobs = MemoryBlobs()
        self.metadata = MemoryMetadata(self.clock)
        self.children = FakeChildren()
        numbers = itertools.count()
        self.store = RunStore(self.blobs, self.clock, lambda: f"{next(numbers):032x}")
        self.schedules = ScheduleStore(self.blobs, self.clock, lambda: f"{next(numbers):032x}")

    @asynccontextmanager
    async def service(self, *, concurrent: int = 1, overrides: bool = False) -> AsyncGenerator[PipelineService]:
        """One that serves while the block runs; it ends as one that is killed does."""
        await self.blobs.put("artifacts/a.zip", b"zip")
        ports = PipelinePorts(self.log, self.blobs, self.metadata, self.clock)
        settings = PipelineSettings("one", "host", "address", concurrent, RunOptions(master="local[2]"), overrides)
        service = PipelineService(ports, self.store, self.schedules, self.children, settings)  # pyright: ignore[reportArgumentType]
        serving = asyncio.ensure_future(service.run())
        try:
            yield service
        finally:
            serving.cancel()
            [ended] = await asyncio.gather(serving, return_exceptions=True)
            assert isinstance(ended, asyncio.CancelledError), "".join(traceback.format_exception(ended))

    async def ask(self, request: RunRequest) -> None:
        """Append a request."""
        await self.log.create_topic(REQUESTS, 1)
        await self.log.append(REQUESTS, 0, [NewRecord(encode(request))])

    async def submit(self, run: str, *, request: str = "", name: str = "flights", **options: Any) -> None:
        """Ask for a run."""
        await self.ask(
            SubmitRun(
                request=request or f"submit-{run}", job=run, issued_us=self.clock.now_us(), name=name, graph={},
                artifact=Artifact("artifacts/a.zip", "a", "flights.py"), options=RunOptions(**options),
            )
        )  # fmt: skip

    async def cancel(self, run: str, request: str = "") -> None:
        """Ask for its end."""
        await self.ask(CancelRun(request=request or f"cancel-{run}", job=run, issued_us=self.clock.now_us()))

    async def state(self, run: str, state: str, attempts: int | None = None) -> RunHistory:
        """Wait until a run is in that state."""
        history = RunHistory()

        async def is_there() -> bool:
            nonlocal history
            history = await self.store.history(run)
            if not history.records:
                return False
            attempt = history.attempt
            if attempt is not None and (run, attempt.attempt) not in self.children.started:
                return False  # its record is there, its process not yet
            return history.state == state and attempts in (None, len(history.attempts))

        await until(is_there, f"{run} is {state}")
        return history


async def until(condition: Callable[[], Awaitable[bool]], what: str, deadline_s: float = 30) -> None:
    """Wait for a condition."""
    try:
        async with asyncio.timeout(deadline_s):
            while True:
                if await condition():
                    return
                await asyncio.sleep(0.02)
    except TimeoutError:
        pytest.fail(f"not within {deadline_s} s: {what}")
