"""The pipeline service: reads what is asked, decides once a second, starts and ends processes, shows what it sees.

Thin on purpose: what follows from what is `run_scheduler`'s, how a log is written `run_store`'s, how processes are
treated `children`'s. Told to end it takes nothing more on and lets what runs go on: the service that comes next in the
same work folder finds it again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final, assert_never

import msgspec
import structlog

from penstock.coordination.control_topics import create_control_topics
from penstock.errors import CorruptDataError, ExternalError
from penstock.ports import BlobNotFoundError, Blobs, Clock, Log, Metadata
from penstock.protocol.requests import AnyRunRequest, CancelRun, RunOptions, SubmitRun
from penstock.runs.run_log import (
    AnyRunRecord,
    AttemptBegan,
    AttemptLost,
    CancelAsked,
    RunEnded,
    RunHistory,
    RunState,
    Submitted,
    overrides_refused,
)
from penstock.runs.run_scheduler import (
    BeginAttempt,
    EndRun,
    LoseAttempt,
    RunCommand,
    RunDecider,
    RunFacts,
    StopProcess,
    places_in_line,
)
from penstock.runs.run_store import RunStore
from penstock.runs.run_views import PIPELINE_VIEW, PipelineView, RunView
from penstock.runs.schedule_store import ScheduleStore
from penstock_pipeline.children import Children
from penstock_pipeline.request_reader import RequestReader
from penstock_pipeline.schedules import Schedules

TICK_MS: Final = 1_000

_log = structlog.get_logger("penstock.pipeline")


@dataclass(frozen=True)
class PipelinePorts:
    """The world; log and store wait until they get an answer."""

    log: Log
    blobs: Blobs
    metadata: Metadata
    clock: Clock


@dataclass(frozen=True)
class PipelineSettings:
    """How this service is set up."""

    name: str
    host: str
    address: str
    concurrent: int
    defaults: RunOptions
    overrides: bool
    """Whether runs may name a master and settings of Spark."""


@dataclass
class RunNumbers:
    """What is counted while a service lives."""

    ended: dict[str, int] = field(default_factory=dict[str, int])
    """Terminal state to number of runs."""
    lost: int = 0
    """Attempts that ended without an end of their run."""


class PipelineService:
    """The runs of one cluster."""

    def __init__(
        self,
        ports: PipelinePorts,
        store: RunStore,
        schedules: ScheduleStore,
        children: Children,
        settings: PipelineSettings,
    ) -> None:
        self._ports = ports
        self._store = store
        self._children = children
        self._settings = settings
        self._decider = RunDecider(children.place, settings.concurrent)
        self._open: dict[str, RunHistory] = {}
        """The runs that have not ended."""
        self.schedules = Schedules(schedules, store, ports.clock, self._open, self._carry_out, children.place)
        self._writing = asyncio.Lock()
        """Requests and decisions write logs, never at the same time."""
        self._view_problem = ""
        self.numbers = RunNumbers()
        self.view: PipelineView = self._view([])

    async def run(self) -> None:
        """Serve until cancelled."""
        await create_control_topics(self._ports.log)
        unreadable = {run for run in await self._store.active() if not await self._recover(run)}
        await asyncio.to_thread(self._children.forget_others, self._open.keys() | unreadable)
        async with asyncio.TaskGroup() as group:
            group.create_task(RequestReader(self._ports.log, self._ports.metadata, self._serve).run())
            group.create_task(self._act())

    def states(self) -> dict[RunState, int]:
        """The runs that have not ended, by state."""
        counts: dict[RunState, int] = {"QUEUED": 0, "RUNNING": 0}
        for history in self._open.values():
            counts[history.state] += 1
        return counts

    def running(self) -> list[tuple[RunHistory, RunView]]:
        """The runs at work with what is seen of them."""
        views = {view.run: view for view in self.view.runs}
        return [
            (history, views[run]) for run, history in self._open.items() if history.attempt is not None and run in views
        ]

    async def _recover(self, run: str) -> bool:
        """False of one that is left as it is, such as one of a newer Penstock: whoever can read it goes on with it."""
        try:
            history = await self._store.history(run)
        except CorruptDataError as error:
            _log.error("a run cannot be read, so it is left as it is", run=run, error=str(error))
            return False
        if not history.records or history.ended is not None:
            await self._store.retire(run, history)
            return True
        self._open[run] = history
        if history.attempt is not None:
            _log.info("found a run again", run=run, attempt=history.attempt.attempt, host=history.attempt.host)
        return True

    # -- requests -------------------------------------------------------------------------------------------------------

    async def _serve(self, request: AnyRunRequest, again: bool) -> None:
        """Do what is asked, once: the log of the run knows which requests were carried out."""
        async with self._writing:
            if again and (await self._history(request.job)).is_past(request.issued_us):
                _log.info("a request of long ago is passed over", kind=type(request).__name__, run=request.job)
            else:
                await self._carry_out(request)

    async def _history(self, run: str) -> RunHistory:
        return self._open.get(run) or await self._store.history(run)

    async def _carry_out(self, request: AnyRunRequest) -> None:
        history = await self._history(request.job)
        if history.knows(request.request):
            return
        _log.info("request", kind=type(request).__name__, run=request.job)
        match request:
            case SubmitRun():
                await self._submit(request, history)
            case CancelRun():
                if request.job in self._open and not history.cancel_asked:
                    await self._append(request.job, CancelAsked(request=request.request))
            case _:
                assert_never(request)

    async def _submit(self, request: SubmitRun, history: RunHistory) -> None:
        ended = history.ended
        if history.records and (ended is None or ended.state == "FINISHED"):
            return  # it is there: a run is executed once
        await self._store.announce(request.job)
        self._open[request.job] = history
        record = Submitted(
            run=request.job, request=request.request, name=request.name, graph=request.graph,
            artifact=request.artifact, options=request.options,
        )  # fmt: skip
        submitted = await self._append(request.job, record)
        refused = self._refused(request) if submitted else ""
        if refused:
            await self._end(EndRun(request.job, "FAILED", refused))

    def _refused(self, request: SubmitRun) -> str:
        """Why a run is not executed; empty if it is."""
        if (request.options.master or request.options.conf) and not self._settings.overrides:
            return overrides_refused(self._settings.defaults.master)
        return ""

    # -- decisions ------------------------------------------------------------------------------------------------------

    async def _act(self) -> None:
        while True:
            async with self._writing:
                await self.schedules.step()
                facts = await self._look()
                for command in self._decider.decide(facts, self._ports.clock.monotonic_ms()):
                    await self._obey(command)
            former, self.view = self.view, self._view(facts)
            _tell_stages(former, self.view)
            await self._show()
            await self._ports.clock.sleep_ms(TICK_MS)

    async def _look(self) -> list[RunFacts]:
        found: list[RunFacts] = []
        for run, history in list(self._open.items()):
            try:
                found.append(await asyncio.to_thread(self._children.facts, history))
            except CorruptDataError as error:
                await self._end(EndRun(run, "FAILED", str(error)))
        return found

    async def _obey(self, command: RunCommand) -> None:
        match command:
            case BeginAttempt():
                await self._begin(command)
            case LoseAttempt(run=run, attempt=attempt, reason=reason):
                _log.warning("attempt lost", run=run, attempt=attempt, reason=reason)
                self.numbers.lost += 1
                await self._store.put_output(run, self._children.output(self._open[run]))
                await self._append(run, AttemptLost(attempt=attempt, reason=reason))
            case StopProcess(run=run, forced=forced):
                self._children.stop(self._open[run], forced=forced)
            case EndRun():
                await self._end(command)
            case _:
                assert_never(command)

    async def _begin(self, command: BeginAttempt) -> None:
        submitted = self._open[command.run].submitted
        try:
            sources = await self._ports.blobs.get(submitted.artifact.key)
        except BlobNotFoundError:
            await self._end(
                EndRun(command.run, "FAILED", f"{submitted.artifact.key}: its sources are not in the store")
            )
            return
        record = AttemptBegan(attempt=command.attempt, place=self._children.place, host=self._settings.host)
        if await self._append(command.run, record):
            attempt = self._open[command.run].attempt
            assert attempt is not None
            await asyncio.to_thread(self._children.start, submitted, attempt, sources)

    async def _end(self, command: EndRun) -> None:
        run, history, outcome = command.run, self._open[command.run], command.outcome
        if history.attempt is not None:
            await self._store.put_output(run, self._children.output(history))
        record = RunEnded(state=command.state, reason=command.reason)
        if outcome is not None:
            record = msgspec.structs.replace(
                record, frames=outcome.frames, counts=outcome.counts, computed=outcome.computed
            )
        if not await self._append(run, record):
            return
        _log.info("run ended", run=run, name=history.submitted.name, state=command.state, reason=command.reason)
        self.numbers.ended[command.state] = self.numbers.ended.get(command.state, 0) + 1
        await self._store.retire(run, self._open.pop(run))
        await asyncio.to_thread(self._children.forget, run)

    async def _append(self, run: str, record: AnyRunRecord) -> bool:
        """Add to the log of an open run; False if another service wrote to it: then what that one wrote counts."""
        extended = await self._store.append(run, self._open[run], record)
        if extended is not None:
            self._open[run] = extended
            return True
        _log.warning("another service writes the log of this run", run=run, record=type(record).__name__)
        await self._recover(self._forgotten(run))
        return False

    def _forgotten(self, run: str) -> str:
        del self._open[run]
        return run

    # -- showing --------------------------------------------------------------------------------------------------------

    def _view(self, facts: list[RunFacts]) -> PipelineView:
        waiting = places_in_line(facts)
        settings = self._settings
        return PipelineView(
            service=settings.name,
            address=settings.address,
            seen_us=self._ports.clock.now_us(),
            concurrent=settings.concurrent,
            master=settings.defaults.master,
            overrides=settings.overrides,
            runs=tuple(
                RunView(run, waiting.get(run, 0), self._children.progress(history))
                for run, history in self._open.items()
            ),
        )

    async def _show(self) -> None:
        problem = ""
        try:
            await self._ports.metadata.put(PIPELINE_VIEW, msgspec.json.encode(self.view))
        except ExternalError as error:
            problem = str(error)
        if problem and not self._view_problem:
            _log.warning("what runs cannot be shown", error=problem)
        self._view_problem = problem


def _tell_stages(former: PipelineView, now: PipelineView) -> None:
    """Log what runs have come to."""
    known = {view.run: view.progress for view in former.runs}
    for view in now.runs:
        progress = view.progress
        if view.run in known and progress.at != known[view.run].at:
            _log.info("run progress", run=view.run, at=progress.at, stages=progress.stages, done=progress.stages_done)
