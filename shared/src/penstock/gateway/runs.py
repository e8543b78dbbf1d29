"""Embedded runs in the background: each in a thread and an event loop of its own, which a full buffer may hold up."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.coordination.job_progress import JobResult
from penstock.embedded import EmbeddedJob, EmbeddedSettings, succeeded
from penstock.gateway.buffers import RowBuffer
from penstock.observability.logs import keep_quiet
from penstock.pipeline import Pipeline

if TYPE_CHECKING:
    from penstock.plan.logical import LogicalPlan


END_S: Final = 10.0
"""So long runs are waited for that are told to end."""


class Run:
    """One run of a plan, and the buffer that its rows go to, if somebody fetches them."""

    def __init__(self, plan: LogicalPlan, parallelism: int, buffer: RowBuffer | None = None) -> None:
        self.name: Final = plan.name
        self._buffer = buffer
        self._plan = plan
        self._settings = EmbeddedSettings(durable=False, parallelism=parallelism)
        self.submitted: Final[Future[str]] = Future()
        """The id of the job, once its sources and sinks are there and it begins."""
        self.ended: Final[Future[JobResult]] = Future()
        """What came of it: its result, the error that it failed with, or that it was cancelled."""
        self._lock = threading.Lock()
        self._told = False
        self._work: tuple[asyncio.AbstractEventLoop, asyncio.Task[JobResult]] | None = None
        self._thread = threading.Thread(target=self._run, name=f"run-{plan.name}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def cancel(self) -> None:
        """Let it end as soon as it can, without further rows; `ended` says when it has."""
        if self._buffer is not None:
            self._buffer.close()  # a run that waits for room hears nothing else
        with self._lock:
            self._told = True
            if self._work is not None:
                loop, task = self._work
                with contextlib.suppress(RuntimeError):  # its loop is closed: it has ended by itself
                    loop.call_soon_threadsafe(task.cancel)

    def _run(self) -> None:
        keep_quiet()
        try:
            with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
                result = asyncio.run(self._to_the_end(Path(folder)))
            succeeded(result)
        except asyncio.CancelledError:
            for told in (self.submitted, self.ended):
                if told.cancel():
                    told.set_running_or_notify_cancel()  # before that, concurrent.futures.wait takes it for not done
        except BaseException as error:  # whatever it is, whoever waits is told
            if not self.submitted.done():
                self.submitted.set_exception(error)
            self.ended.set_exception(error)
        else:
            self.ended.set_result(result)

    async def _to_the_end(self, folder: Path) -> JobResult:
        pipeline = Pipeline(self.name)
        pipeline.plan = self._plan
        job = EmbeddedJob(pipeline, folder, self._settings, submitted=self.submitted.set_result)
        running = asyncio.ensure_future(job.run(resume=False))
        with self._lock:
            self._work = asyncio.get_running_loop(), running
            if self._told:
                running.cancel()
        return await running


@dataclass
class Runs:
    """All runs of a gateway that have not ended."""

    parallelism: int = 1
    _running: set[Run] = field(default_factory=set[Run])

    def __len__(self) -> int:
        return len(self._running)

    def begin(self, plan: LogicalPlan, buffer: RowBuffer | None = None) -> Run:
        """Run a plan whose rows go to a buffer, or elsewhere."""
        run = Run(plan, self.parallelism, buffer)
        self._running.add(run)
        run.ended.add_done_callback(lambda _: self._running.discard(run))
        if buffer is not None:
            run.ended.add_done_callback(lambda ended: buffer.end(None if ended.cancelled() else ended.exception()))
        run.start()
        return run

    async def end(self) -> None:
        """End all, and wait for them, but not for ever: code of the user may hold one up."""
        running = [*self._running]
        for run in running:
            run.cancel()
        if running:
            await asyncio.wait([asyncio.wrap_future(run.ended) for run in running], timeout=END_S)
