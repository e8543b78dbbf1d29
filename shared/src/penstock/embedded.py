"""Embedded mode: coordinator, worker and log in one process on one directory. The same code as on a cluster.

The directory holds the log, the snapshots and the job log; SIGKILL at any moment loses nothing: `resume` continues.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec.structs import replace as replace_struct

from penstock.adapters.directory.blobs import DirectoryBlobs
from penstock.adapters.directory.claim import claimed
from penstock.adapters.directory.log import DirectoryLog
from penstock.adapters.memory import MemoryMetadata
from penstock.adapters.system_clock import SystemClock
from penstock.connectors.base import Sink
from penstock.coordination.cluster_view import VIEW, ClusterView
from penstock.coordination.control_topics import create_control_topics
from penstock.coordination.job_catalog import JobCatalog
from penstock.coordination.job_progress import JobProgress, JobResult
from penstock.coordination.job_store import JobStore
from penstock.coordination.job_summary import summary_lines
from penstock.coordination.worker_logs import WorkerLogList
from penstock.core.arguments import checked
from penstock.core.blocking import run_blocking
from penstock.core.interactive import StatusLine
from penstock.core.times import Duration
from penstock.errors import PenstockError, ProtocolError, UsageError, UserCodeError
from penstock.graph.executiongraph import ExecutionGraph
from penstock.graph.jobgraph import JobGraph, build_job_graph, fingerprint, graph_from_json
from penstock.jobmanager.coordinator import VIEW_MS, CoordinatorService, CoordinatorTimeouts
from penstock.jobmanager.job_spec import JobSpec
from penstock.jobmanager.leadership import ControlPorts
from penstock.jobmanager.view_building import job_view
from penstock.observability.logs import LogFormat, keep_quiet
from penstock.observability.user_frames import user_frames
from penstock.plan.logical import LogicalPlan
from penstock.plan.operations.read import Read
from penstock.plan.operations.write import Write
from penstock.ports import BlobNotFoundError
from penstock.protocol.checkpoints import CheckpointSettings
from penstock.protocol.jobevents import ChangedGraph, JobEnded, Requested
from penstock.protocol.joblog import JobHistory, JobSettings, Submit
from penstock.protocol.messages import Deploy, Restore, encode
from penstock.protocol.restarts import NoRestart, RestartStrategy
from penstock.state.rocks.store import require_rocksdb
from penstock.submission.admission import check_compatible
from penstock.submission.cluster_checks import check_streams
from penstock.submission.options import check_incremental, interval_ms
from penstock.submission.restart_text import parse_restart
from penstock.task.environment import Services, SubtaskSettings
from penstock.task.sinks import staged_parts
from penstock.taskmanager.job_loading import LoadedJob, graph_of
from penstock.taskmanager.supervisor import Supervisor
from penstock.taskmanager.worker import WorkerService
from penstock.taskmanager.worker_process import WorkerSpec

if TYPE_CHECKING:
    from penstock.api.pipeline import DeclaredPipeline
    from penstock.connectors import collecting
    from penstock.savepoint.folder import SavepointPlace

FOREVER_MS = 10**12
"""Coordinator and worker live and die together in one event loop: a user's function that holds it up kills neither."""
HOST = "this machine"
"""Where the workers of an embedded run say that they are."""
ONE_PROCESS = "this run is one process: what it logs goes to the standard error of penstock run"
SHOWN_EVERY_S: Final = 0.5
"""So often a notebook is shown how a run is."""
CURRENT = "current-job"
"""Names the job that a directory belongs to."""


@dataclass(frozen=True)
class EmbeddedSettings:
    """How an embedded run behaves."""

    parallelism: int = 1
    checkpoint_interval_ms: int = 10_000
    durable: bool = True
    """fsync before COMPLETE, so that results survive a power loss; without it only the death of the process."""
    at_least_once: bool = False
    restart: RestartStrategy = field(default_factory=NoRestart)
    data: SubtaskSettings = field(default_factory=SubtaskSettings)


@dataclass(frozen=True)
class FoundJob:
    """A job that an earlier run left in a directory."""

    job: str
    history: JobHistory

    @property
    def finished(self) -> bool:
        """Whether there is nothing to continue: a stopped job goes on from its savepoint, of a cancelled one none is
        left."""
        return self.history.terminated is not None and self.history.terminated.state in ("FINISHED", "CANCELED")


@dataclass(frozen=True)
class PipelineFile:
    """Where a pipeline was loaded from, so that other processes can load it again."""

    target: str
    """`file.py` or `file.py:name`."""
    parameters: dict[str, str] = field(default_factory=dict[str, str])
    log_format: LogFormat = "text"
    log_level: str = "error"


class _Loader:
    """The job's code is in this process already."""

    def __init__(self, graph: JobGraph, plan: LogicalPlan, store: JobStore) -> None:
        self._graph = graph
        self._plan = plan
        self._store = store

    @property
    def bound_to(self) -> str:
        return ""

    async def load(self, deploy: Deploy) -> LoadedJob:
        manifest = await self._store.manifest(deploy.restore) if deploy.restore else None
        graph = self._graph
        if deploy.publishes_only:  # of the pipeline as it was when it wrote what is to be published
            graph = graph_of(await self._store.history(deploy.job), deploy.attempt)
        return LoadedJob(graph, self._plan, manifest)


class EmbeddedJob:
    """One job in one directory.

    With one slot everything runs in this process; with several each slot is a process of its own, if `code` says where
    such a process finds the pipeline. `submitted` is told the id of a job that begins anew.
    """

    def __init__(
        self, pipeline: DeclaredPipeline, directory: Path, settings: EmbeddedSettings, code: PipelineFile | None = None,
        *, submitted: Callable[[str], None] | None = None,
    ) -> None:  # fmt: skip
        self._code = code
        self._submitted = submitted
        self._plan = pipeline.plan
        self._directory = directory
        self._clock = SystemClock()
        self._blobs = DirectoryBlobs(directory / "blobs")
        self._store = JobStore(self._blobs, self._clock)
        # The lease needs nothing that outlives the process: nobody else can lead in a directory that is claimed, and a
        # lease that a killed run left behind would have to be waited out.
        self.metadata: Final = MemoryMetadata(self._clock)
        """What the run shows of itself, for a dashboard beside it."""
        if settings.data.state_backend == "rocksdb":
            require_rocksdb()
            settings = replace(settings, data=replace(settings.data, local_state=str(directory / "local")))
        self._settings = settings
        check_streams(pipeline.plan)
        self.graph = build_job_graph(pipeline.plan, settings.parallelism, at_least_once=settings.at_least_once)
        self.job = ""
        self._coordinator: CoordinatorService | None = None
        self._worker: WorkerService | None = None
        self._supervisor: Supervisor | None = None

    @property
    def processes(self) -> int:
        """How many processes run subtasks: one per slot, or this one alone."""
        if self._code is None or any(sink.in_process for _, sink in self._sinks()):
            return 1
        return ExecutionGraph(self.graph).topology().slot_count

    async def find(self) -> FoundJob | None:
        """The job that an earlier run left in this directory."""
        try:
            job = (await self._blobs.get(CURRENT)).decode()
        except BlobNotFoundError:
            return None
        history = await self._store.history(job)
        return FoundJob(job, history) if history.submit is not None else None

    async def run(self, *, resume: bool, from_savepoint: Path | SavepointPlace | None = None) -> JobResult:
        """Run to the end of the input, to a suspension or a failure.

        Args:
            resume: continue what the directory holds.
            from_savepoint: the place of a savepoint that a run which begins anew starts with.

        Raises:
            UsageError: there is nothing to resume, no savepoint, or another run is at work in the directory.
            IncompatibleStateError: the pipeline changed so that its state does not fit; names the operator.
        """
        with claimed(self._directory):
            return await self._run(resume=resume, from_savepoint=from_savepoint)

    async def _run(self, *, resume: bool, from_savepoint: Path | SavepointPlace | None) -> JobResult:
        started = time.monotonic()
        history = await self._continue() if resume else await self._start_anew(from_savepoint)
        await self._recover_sinks(history)
        async with self._services() as ended:
            outcome = await ended
        history = await self._store.history(self.job)
        if history.terminated is not None:
            await self._recover_sinks(history)
        progress = self._require_coordinator().progress(self.job)
        error, seconds = self._error(outcome, progress), time.monotonic() - started
        return JobResult(self.job, outcome.state, outcome.reason, progress, error, self.graph, seconds)

    def _error(self, outcome: JobEnded, progress: JobProgress) -> BaseException | None:
        """What made the job fail: the exception itself where it was raised in this process."""
        if outcome.state != "FAILED":
            return None
        if self._worker is not None and self._worker.failures:
            return self._worker.failures[0]
        frames = next((status.frames for status in progress.statuses.values() if status.frames), "")
        return UserCodeError(outcome.reason, frames) if frames else None

    def suspend(self) -> None:
        """Stop at a checkpoint, to be resumed later."""
        if self._coordinator is not None:
            self._coordinator.tell(self.job, Requested(uuid.uuid4().hex, "suspend", reason="interrupted"))

    def worker_logs(self, job: str, lines: int) -> WorkerLogList:
        """The last lines of every worker process that has worked for a job; without one, of all."""
        if self._supervisor is None:
            return WorkerLogList((), (ONE_PROCESS,))
        return self._supervisor.logs.list(job, lines)

    async def show_end(self) -> None:
        """Show how the job was at its end, as the coordinator did while it ran; ends by cancellation."""
        ended = self.progress.ended
        assert ended is not None
        view = job_view(await self._store.history(self.job), self.progress, ended.state, {})
        still = [replace_struct(vertex, tasks=tuple(replace_struct(task, rates=None) for task in vertex.tasks))
                 for vertex in view.vertices]  # fmt: skip
        view = replace_struct(view, vertices=tuple(still))
        while True:
            await self.metadata.put(VIEW, encode(ClusterView("", "", 0, self.now_us(), 0, 0, (), (view,))))
            await self._clock.sleep_ms(VIEW_MS)

    def now_us(self) -> int:
        """Wall time as the job sees it."""
        return self._clock.now_us()

    @property
    def started(self) -> bool:
        """Whether there is progress to look at."""
        return self._coordinator is not None

    @property
    def progress(self) -> JobProgress:
        """How the job is."""
        return self._require_coordinator().progress(self.job)

    def _require_coordinator(self) -> CoordinatorService:
        assert self._coordinator is not None
        return self._coordinator

    async def _start_anew(self, from_savepoint: Path | SavepointPlace | None) -> JobHistory:
        """Forget what an earlier run left, then submit, from the savepoint in that folder if there is one.

        Killed at any moment of it, the directory holds a job that is whole or none: the job's name goes first and comes
        last. What a source or a sink refuses, it refuses before anything of the earlier run is gone.
        """
        for node in self._plan:
            if isinstance(node.operation, Read):
                await asyncio.to_thread(node.operation.source.discover)  # a wrong path must not cost earlier results
            elif isinstance(node.operation, Write):
                await asyncio.to_thread(node.operation.sink.reach, node.schema)
        from penstock.savepoint.folder import read_folder  # they load what reads states
        from penstock.savepoint.places import place_of
        from penstock.savepoint.transfer import import_savepoint

        if from_savepoint is not None:
            check_compatible(self.graph, (await asyncio.to_thread(read_folder, place_of(from_savepoint)))[0])
        for _, sink in self._sinks() if from_savepoint is None else ():
            await asyncio.to_thread(sink.begin)  # what it finds is removed when the job runs
        await self._blobs.delete(CURRENT)
        await asyncio.to_thread(self._clear)
        if from_savepoint is None:
            return await self._submit(None)
        return await self._submit(await import_savepoint(self._blobs, from_savepoint))

    def _clear(self) -> None:
        shutil.rmtree(self._directory / "log", ignore_errors=True)
        for entry in (self._directory / "blobs").iterdir():  # which itself stays: a dashboard may be reading it
            if entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)
        self._store = JobStore(self._blobs, self._clock)

    # -- start ----------------------------------------------------------------------------------------------------------

    async def _submit(self, restored_from: Restore | None) -> JobHistory:
        self.job = uuid.uuid4().hex
        submit = Submit(
            seq=0,
            nonce=uuid.uuid4().hex,
            job=self.job,
            name=self.graph.name,
            graph=self.graph.to_json(),
            restored_from=restored_from,
            settings=self._job_settings,
            submitted_us=self._clock.now_us(),
        )
        await JobCatalog(self._blobs).create(submit)
        await self._blobs.put(CURRENT, self.job.encode())
        if self._submitted is not None:
            self._submitted(self.job)
        return JobHistory.of([submit])

    async def _continue(self) -> JobHistory:
        found = await self.find()
        if found is None:
            raise UsageError(f"--resume: {self._directory} holds no earlier run; start without --resume")
        if found.finished:
            # It may have been killed between its end and its clean-up. Others may write there by now.
            await self._recover_sinks(found.history, found.history.attempts)
            raise UsageError(
                f"--resume: the run in {self._directory} has finished; start without --resume to run it again"
            )
        restore = found.history.restore
        if restore is not None:
            check_compatible(self.graph, await self._store.manifest(restore))
        if found.history.terminated is None:
            self.job = found.job
            assert found.history.submit is not None
            await JobCatalog(self._blobs).create(found.history.submit)
            return found.history
        return await self._submit(restore)

    async def _recover_sinks(self, history: JobHistory, attempts: Collection[str] | None = None) -> None:
        """Let every sink remove the staged parts and proofs of commits (of these attempts) that this job does not need.

        A job that has ended needs those of the checkpoint that it retains, if it retains one. No attempt of it runs: see
        `claimed`.
        """
        retained = history.retained.restore if history.retained is not None else None
        restore = history.restore if history.terminated is None else retained
        needed = staged_parts(await self._store.manifest(restore) if restore is not None else None)
        for operator, sink in self._sinks():
            remove = await asyncio.to_thread(sink.recover, needed.get(operator, []), operator, attempts=attempts)
            await asyncio.to_thread(remove)

    def _sinks(self) -> list[tuple[str, Sink]]:
        return [(node.operator_id, node.operation.sink) for node in self._plan if isinstance(node.operation, Write)]

    def _describe(self, history: JobHistory) -> JobSpec:
        """The job as this run has it: another parallelism or a compatible change begins with the next attempt."""
        before = graph_from_json(history.graph)
        changed: ChangedGraph | None = None
        if fingerprint(before) != fingerprint(self.graph):
            changed = ChangedGraph(ExecutionGraph(self.graph).topology(), self.graph.to_json())
        return JobSpec(ExecutionGraph(before).topology(), self._job_settings, changed, resumable=True)

    @property
    def _job_settings(self) -> JobSettings:
        return JobSettings(
            CheckpointSettings(
                interval_ms=self._settings.checkpoint_interval_ms,
                flavour="at_least_once" if self._settings.at_least_once else "aligned",
                incremental=self._settings.data.incremental,
            ),
            self._settings.restart,
            self._settings.data.state_backend,
        )

    # -- services -------------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _services(self) -> AsyncGenerator[asyncio.Future[JobEnded]]:
        log = DirectoryLog(self._directory / "log", durable=self._settings.durable)
        ports = ControlPorts(log, self._blobs, self.metadata, self._clock, lambda: uuid.uuid4().hex)
        timeouts = CoordinatorTimeouts(FOREVER_MS, 0, FOREVER_MS)
        self._coordinator = CoordinatorService(
            uuid.uuid4().hex, ports, timeouts, describe=self._describe, address="this run"
        )
        ended = self._coordinator.job_ended(self.job)
        await create_control_topics(log)
        serving = [asyncio.ensure_future(self._coordinator.run()), asyncio.ensure_future(self._workers(log))]
        for service in serving:
            service.add_done_callback(lambda done: _fail_with(ended, done))
        try:
            yield ended
        finally:
            for service in serving:
                service.cancel()
            await asyncio.gather(*serving, return_exceptions=True)
            await log.close()

    async def _workers(self, log: DirectoryLog) -> None:
        """Offer the slots that the job needs."""
        if self.processes > 1:
            self._supervisor = Supervisor("embedded", self.processes, self._spec, log, self._clock)
            await self._supervisor.run()
            return
        slots = ExecutionGraph(self.graph).topology().slot_count
        services = Services(log, self._blobs, self._clock, self._settings.data)
        loader = _Loader(self.graph, self._plan, self._store)
        self._worker = WorkerService(uuid.uuid4().hex, slots, services, loader, FOREVER_MS, host=HOST)
        await self._worker.run()

    def _spec(self, worker: str, events_fd: int, folder: str) -> WorkerSpec:
        assert self._code is not None
        return WorkerSpec(
            name=worker, host=HOST, events_fd=events_fd, folder=folder,
            directory=str(self._directory.absolute()), target=self._code.target, parameters=self._code.parameters,
            durable=self._settings.durable,
            leader_silence_ms=FOREVER_MS, data=self._settings.data, log_level=self._code.log_level,
            log_format=self._code.log_format,
        )  # fmt: skip


def _fail_with(ended: asyncio.Future[JobEnded], service: asyncio.Future[None]) -> None:
    """A service that ends by itself before the job has failed, and with it the run."""
    if ended.done() or service.cancelled():
        return
    ended.set_exception(service.exception() or ProtocolError("a service of the embedded run ended by itself"))


def default_directory(name: str) -> Path:
    """Where `penstock run` keeps log and snapshots of a pipeline unless told otherwise."""
    return Path(".penstock") / name


@checked
def run(
    pipeline: DeclaredPipeline,
    *,
    parallelism: int,
    directory: str | Path | None,
    resume: bool = False,
    checkpoint_interval: Duration = "10s",
    at_least_once: bool = False,
    restart: str = "none",
    state_backend: Literal["fs", "memory", "rocksdb"] = "fs",
    incremental_checkpoints: bool = False,
    durable: bool = True,
    from_savepoint: str | Path | None = None,
) -> JobResult:
    """See `Pipeline.run`."""
    check_incremental(incremental_checkpoints, state_backend)
    settings = EmbeddedSettings(
        parallelism=parallelism,
        checkpoint_interval_ms=interval_ms(checkpoint_interval, "checkpoint_interval"),
        durable=durable,
        at_least_once=at_least_once,
        restart=parse_restart(restart),
        data=SubtaskSettings(state_backend=state_backend, incremental=incremental_checkpoints),
    )
    if from_savepoint is not None and resume:
        raise UsageError("run: resume= continues a run, from_savepoint= begins one with a savepoint's state: give one")
    savepoint = None if from_savepoint is None else _place_of(from_savepoint)
    return run_pipeline(pipeline, settings, directory=directory, resume=resume, from_savepoint=savepoint)


def _place_of(savepoint: str | Path) -> SavepointPlace:
    from penstock.savepoint.places import place_of  # loads what reads states

    return place_of(savepoint, "from_savepoint")


def run_pipeline(
    pipeline: DeclaredPipeline,
    settings: EmbeddedSettings,
    *,
    directory: str | Path | None,
    resume: bool,
    from_savepoint: Path | SavepointPlace | None = None,
) -> JobResult:
    """Run a pipeline in this process.

    Raises:
        PenstockError: the job failed; the error is what its code or the engine raised.
    """
    keep_quiet()
    with contextlib.ExitStack() as stack:
        if directory is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-")))
        else:
            folder = Path(directory)
        job = EmbeddedJob(pipeline, folder, settings)
        result = run_blocking(_shown(job, job.run(resume=resume, from_savepoint=from_savepoint)))
    return succeeded(result)


async def _shown(job: EmbeddedJob, running: Coroutine[Any, Any, JobResult]) -> JobResult:
    """Run a job, and in a notebook show how it is while it runs."""
    line = StatusLine.if_any()
    if line is None:
        return await running
    showing = asyncio.create_task(_show(job, line))
    try:
        return await running
    finally:
        showing.cancel()
        line.clear()


async def _show(job: EmbeddedJob, line: StatusLine) -> None:
    started = time.monotonic()
    while True:
        await asyncio.sleep(SHOWN_EVERY_S)
        if job.started:
            lines = summary_lines(job.graph, job.progress, time.monotonic() - started)
            line.show(job.job, "\n".join([f"{job.graph.name}: {job.progress.phase}", *lines]))


def first_rows(pipeline: DeclaredPipeline, sink: collecting.FirstRows) -> None:
    """Run a pipeline that ends in this sink, until its input ends or the sink has its rows.

    Raises:
        PenstockError: the job failed; the error is what its code or the engine raised.
    """
    keep_quiet()

    async def until_full(folder: Path) -> JobResult | None:
        job = EmbeddedJob(pipeline, folder, EmbeddedSettings(durable=False))
        running = asyncio.ensure_future(_shown(job, job.run(resume=False)))
        loop = asyncio.get_running_loop()
        sink.when_full(lambda: loop.call_soon_threadsafe(running.cancel))
        try:
            return await running
        except asyncio.CancelledError:
            if not sink.full:
                raise
            return None

    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        result = run_blocking(until_full(Path(folder)))
    if result is not None:
        succeeded(result)


def succeeded(result: JobResult) -> JobResult:
    """The result of a run that did not fail.

    Raises:
        PenstockError: it failed; the error is what its code or the engine raised.
    """
    if result.state == "FAILED":
        told = _told(result.reason, result.error)
        if told is result.error:
            raise told
        raise told from result.error
    return result


def _told(reason: str, error: BaseException | None) -> PenstockError:
    """The error of a job that failed. What no code of the user raised is not blamed on it."""
    if isinstance(error, PenstockError):
        return error
    if error is None or user_frames(error):
        return UserCodeError(reason)
    return PenstockError(f"{reason} (raised inside Penstock, not by the pipeline's code; please report it as a bug)")
