"""A cluster in one process for tests: what the fixture `penstock_cluster` gives.

Coordinator and workers are those of production, on ports in memory, in a thread of their own; so a test calls them like
any other object, and sees restarts, savepoints and rescaling as they are. Time is real: what only looks at rows is
quicker with `run_pipeline`.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from penstock.api.pipeline import DeclaredPipeline
from penstock.core.times import Duration, duration_us
from penstock.errors import ExternalError, PenstockError, UsageError, UserCodeError, nearest
from penstock.jobmanager.coordinator import CoordinatorService
from penstock.observability.logs import keep_quiet
from penstock.protocol.checkpoints import CheckpointSettings
from penstock.protocol.joblog import JobSettings
from penstock.protocol.messages import Restore
from penstock.protocol.requests import Answer, AnyRequest, CancelJob, RescaleJob, StopJob, TakeSavepoint
from penstock.protocol.restarts import FixedDelay
from penstock.testing.feeds import Collected, Feed, Rows, feeds_of, rewired
from penstock.testing.memory_cluster import MemoryCluster, until

T = TypeVar("T")
Savepoint = Restore
"""A savepoint of a job; `submit(..., from_savepoint=it)` goes on from there."""
JobState = Literal["WAITING", "RUNNING", "FINISHED", "STOPPED", "CANCELED", "FAILED"]

_ROUND_S = 5.0
"""Longer than any call takes to be begun by the loop of the cluster."""


class PenstockCluster:
    """A coordinator and some workers.

    Args:
        workers: how many.
        slots: of each worker.

    Example:
        def test_no_click_is_lost(penstock_cluster):
            job = penstock_cluster.submit(clicks(), [click("a")], ends=False, parallelism=2)
            job.wait_for_checkpoint()
            penstock_cluster.kill_worker()
            job.send([click("b")])
            job.end_input()
            job.wait()
            assert len(job.rows()) == 2
    """

    def __init__(self, *, workers: int = 2, slots: int = 4) -> None:
        keep_quiet()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="penstock-cluster", daemon=True)
        self._thread.start()
        self._closed = False
        self._slots = slots
        self._cluster = self.call(_made())
        self._coordinators: list[CoordinatorService] = []
        self._workers: list[str] = []
        self.start_coordinator()
        for _ in range(workers):
            self.start_worker()

    def call(self, work: Coroutine[Any, Any, T], timeout_s: float = 60) -> T:
        """Run a coroutine in the cluster's event loop."""
        try:
            return asyncio.run_coroutine_threadsafe(_within(work, timeout_s), self._loop).result(timeout_s + _ROUND_S)
        except TimeoutError:
            raise ExternalError(f"the cluster of the test did not answer within {timeout_s:g} s") from None

    # -- services -------------------------------------------------------------------------------------------------------

    @property
    def workers(self) -> list[str]:
        """The names of the workers that run, oldest first."""
        return list(self._workers)

    def start_worker(self, slots: int | None = None) -> str:
        """Start one more worker; its name."""

        async def start() -> str:
            return self._cluster.worker(self._slots if slots is None else slots).name

        self._workers.append(self.call(start()))
        return self._workers[-1]

    def kill_worker(self, name: str | None = None) -> None:
        """Kill a worker, the oldest if none is named: its subtasks are gone, and their jobs go on from a checkpoint.

        Raises:
            UsageError: there is none of that name.
        """
        if not self._workers or (name is not None and name not in self._workers):
            raise UsageError(f"kill_worker: there is no worker {name!r}; {nearest(name or '', self._workers)}")
        name = name or self._workers[0]
        self._workers.remove(name)
        self.call(self._cluster.kill_worker(name))

    def start_coordinator(self) -> None:
        """Start one more coordinator: a candidate for leadership."""

        async def start() -> CoordinatorService:
            return self._cluster.coordinator()

        self._coordinators.append(self.call(start()))

    def kill_coordinator(self) -> None:
        """Kill the oldest coordinator. Start another one before or after: it adopts what runs.

        Raises:
            UsageError: there is none.
        """
        if not self._coordinators:
            raise UsageError("kill_coordinator: there is none; start_coordinator() starts one")
        self.call(self._cluster.end(self._coordinators.pop(0).name))

    # -- jobs -----------------------------------------------------------------------------------------------------------

    def submit(
        self,
        pipeline: DeclaredPipeline,
        rows: Rows | Mapping[str, Rows] | None = None,
        *,
        ends: bool = True,
        parallelism: int = 1,
        own_sinks: bool = False,
        batch: int = 1_000,
        checkpoint_interval: Duration = "100ms",
        restarts: int = 3,
        from_savepoint: Savepoint | None = None,
    ) -> JobHandle:
        """Run a pipeline.

        Args:
            pipeline: as declared.
            rows: what its sources read instead of what they declare, as for `run_pipeline`; None: what they declare.
            ends: whether the sources end behind these rows; else `send` gives them more until `end_input`.
            parallelism: subtasks per operator that says nothing else.
            own_sinks: leave the pipeline's sinks as they are, instead of gathering their rows for `JobHandle.rows`.
            batch: rows that are read at a time, at most.
            checkpoint_interval: rows become visible with the checkpoint that covers them.
            restarts: how often a failed attempt is followed by another.
            from_savepoint: go on from there.

        Raises:
            UsageError: rows are for another source than there is.
            PenstockError: the cluster refuses the job, for example because the savepoint does not fit.
        """
        feeds = {} if rows is None else feeds_of(pipeline.plan, rows, ended=ends)
        sinks: Collected = {}
        plan = rewired(pipeline.plan, feeds, None if own_sinks else sinks, batch)
        interval_ms = duration_us(checkpoint_interval, "checkpoint_interval", positive=True) // 1_000
        settings = JobSettings(CheckpointSettings(interval_ms=interval_ms), FixedDelay(restarts, delay_ms=50))
        job = self.call(self._cluster.submit(plan, settings, parallelism=parallelism, restored_from=from_savepoint))
        handle = JobHandle(self, self._cluster, job, feeds, sinks)
        handle.accepted()
        return handle

    def close(self) -> None:
        """End everything; nothing of it is left but the handles' rows."""
        if self._closed:
            return
        self._closed = True
        self.call(self._cluster.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class JobHandle:
    """A job of a `PenstockCluster`; every wait has a deadline and says what it waited for."""

    def __init__(
        self, owner: PenstockCluster, cluster: MemoryCluster, job: str, feeds: dict[str, Feed], sinks: Collected
    ) -> None:
        self.job = job
        """The id of the job."""
        self._owner = owner
        self._cluster = cluster
        self._feeds = feeds
        self._sinks = sinks

    # -- input and output -----------------------------------------------------------------------------------------------

    def send(self, rows: Rows, source: str | None = None) -> None:
        """Give a source more rows.

        Raises:
            UsageError: the job was not submitted with `ends=False`, has no such source, or several and none is named.
        """
        self._feed(source).items.extend(rows)

    def end_input(self) -> None:
        """Let all sources end behind the rows that they have got."""
        for feed in self._feeds.values():
            feed.ended = True

    def _feed(self, source: str | None) -> Feed:
        names = list(self._feeds)
        name = source or (names[0] if len(names) == 1 else "")
        if name not in self._feeds:
            raise UsageError(f"send: the job was given no rows for a source {name!r}; {nearest(name, names)}")
        if self._feeds[name].ended:
            raise UsageError(f"send: the input of {name!r} has ended; submit(..., ends=False) keeps it open")
        return self._feeds[name]

    def rows(self, sink: str | None = None) -> list[dict[str, Any]]:
        """What is visible in a sink: rows that a complete checkpoint covers. `sink` is its id, if there are several.

        Raises:
            UsageError: there is no such sink, or several and none is named, or the job has its own sinks.
        """
        names = list(self._sinks)
        name = sink or (names[0] if len(names) == 1 else "")
        if name not in self._sinks:
            raise UsageError(f"rows: the job gathers no rows of a sink {name!r}; {nearest(name, names)}")
        return list(self._sinks[name])

    # -- what it does ---------------------------------------------------------------------------------------------------

    @property
    def state(self) -> JobState:
        """`WAITING` for slots or between two attempts, `RUNNING`, or how it ended."""
        return self._owner.call(self._state())

    @property
    def attempts(self) -> int:
        """How often its subtasks were started."""
        begin = self._owner.call(self._cluster.history(self.job)).begin
        return begin.attempt_number if begin is not None else 0

    async def _state(self) -> JobState:
        history = await self._cluster.history(self.job)
        if history.terminated is not None:
            return history.terminated.state
        statuses = [
            status.state
            for worker in self._cluster.live_workers()
            for status in worker.statuses()
            if history.begin is not None and (status.job, status.attempt) == (self.job, history.begin.attempt)
        ]
        return "RUNNING" if statuses and {*statuses} <= {"running", "ended"} else "WAITING"

    def wait(self, timeout: Duration = "30s") -> None:
        """Wait for the end of the job, and for the last of its rows.

        Raises:
            PenstockError: the job failed; what its code raised, if that is what it failed by.
            ExternalError: it has not ended within `timeout`.
        """

        async def over() -> bool:
            return any(found.job == self.job for found in await self._cluster.catalog.finished())

        self._until(over, "the job ends", timeout)
        terminated = self._owner.call(self._cluster.history(self.job)).terminated
        if terminated is not None and terminated.state == "FAILED":
            error = self._cluster.raised(terminated.reason)
            raise (error if isinstance(error, PenstockError) else UserCodeError(terminated.reason)) from error

    def wait_for_rows(self, count: int, sink: str | None = None, timeout: Duration = "30s") -> list[dict[str, Any]]:
        """Wait until a sink has so many rows at least; all that it has then.

        Raises:
            ExternalError: it has not within `timeout`.
        """

        async def there() -> bool:
            return len(self.rows(sink)) >= count

        self._until(there, f"{count} rows are there", timeout)
        return self.rows(sink)

    def wait_for_checkpoint(self, timeout: Duration = "30s") -> int:
        """Wait until one more checkpoint is complete than now; its number.

        Raises:
            ExternalError: none is within `timeout`.
        """
        before = self._owner.call(self._cluster.history(self.job)).highest_checkpoint

        async def completed() -> bool:
            return (await self._cluster.history(self.job)).highest_checkpoint > before

        self._until(completed, "another checkpoint is complete", timeout)
        return self._owner.call(self._cluster.history(self.job)).highest_checkpoint

    def _until(self, condition: Callable[[], Coroutine[Any, Any, bool]], what: str, timeout: Duration) -> None:
        timeout_s = duration_us(timeout, "timeout", positive=True) / 1_000_000
        self._owner.call(until(condition, f"{what} (job {self.job[:8]})", timeout_s), timeout_s + _ROUND_S)

    # -- requests -------------------------------------------------------------------------------------------------------

    def savepoint(self) -> Savepoint:
        """Take a savepoint, and go on."""
        return self._saved(self._ask("savepoint", TakeSavepoint(request=uuid.uuid4().hex, job=self.job)))

    def stop(self, *, drain: bool = False) -> Savepoint:
        """Take a savepoint and end; with `drain`, all windows and timers of event time fire before it."""
        saved = self._saved(self._ask("stop", StopJob(request=uuid.uuid4().hex, job=self.job, drain=drain)))
        self.wait()
        return saved

    def cancel(self) -> None:
        """End as soon as what is complete is visible."""
        self._ask("cancel", CancelJob(request=uuid.uuid4().hex, job=self.job))
        self.wait()

    def rescale(self, parallelism: int) -> None:
        """Go on at another parallelism."""
        self._ask("rescale", RescaleJob(request=uuid.uuid4().hex, job=self.job, parallelism=parallelism))

    def accepted(self) -> None:
        """Wait until the cluster has the job; a refusal is raised."""

        async def known() -> bool:
            return (await self._cluster.history(self.job)).submit is not None or await refused() is not None

        async def refused() -> Answer | None:
            return await self._cluster.catalog.answer_to(self.job, self.job)

        self._until(known, "the job is accepted", "30s")
        self._check("submit", self._owner.call(refused()))

    def _ask(self, what: str, request: AnyRequest) -> Answer:
        async def ask() -> Answer:
            await self._cluster.request(request)
            return await self._cluster.answer(self.job, request.request)

        answer = self._owner.call(ask())
        self._check(what, answer)
        return answer

    def _check(self, what: str, answer: Answer | None) -> None:
        if answer is not None and answer.outcome == "refused":
            raise UsageError(f"job {self.job[:8]}: {what} was refused: {answer.reason}")

    def _saved(self, answer: Answer) -> Savepoint:
        assert answer.savepoint is not None
        return answer.savepoint


async def _made() -> MemoryCluster:
    return MemoryCluster()


async def _within(work: Coroutine[Any, Any, T], timeout_s: float) -> T:
    async with asyncio.timeout(timeout_s):
        return await work
