"""The coordinator as an asyncio service: one candidate of possibly several, JobManager and ResourceManager in one.

It ties four parts together and decides nothing itself: `Leadership` (lease, epoch, fencing), one `JobShell` per job,
the `SlotPool`, and what workers and clients say (`events`, `requests`). A leader that takes over finds its jobs in the
`JobCatalog` and in their logs; nothing is kept from an earlier leadership.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, assert_never

import msgspec
import structlog

from penstock.coordination.cluster_view import VIEW, ClusterView
from penstock.coordination.control_topics import COMMANDS, EVENTS, REQUESTS, create_control_topics
from penstock.coordination.job_catalog import ACTIVE, JobCatalog
from penstock.coordination.job_progress import SHOWN, JobProgress
from penstock.coordination.job_store import JobReader
from penstock.coordination.retrying_ports import RetryingBlobs, RetryingLog, retry_until_done
from penstock.coordination.timings import HEARTBEAT_MS
from penstock.core.garbage import ease_collection
from penstock.errors import CorruptDataError, ExternalError, PenstockError
from penstock.jobmanager.autoscaling import Scaling, TaskManagerScaler
from penstock.jobmanager.job_cleanup import CleanSinks
from penstock.jobmanager.job_shell import JobShell, Surroundings
from penstock.jobmanager.job_spec import JobSpec, spec_of
from penstock.jobmanager.late_answers import late_answer
from penstock.jobmanager.leadership import TICK_MS, ControlPorts, Leadership
from penstock.jobmanager.unopened_jobs import UnopenedJobs
from penstock.jobmanager.view_building import view_of_cluster
from penstock.jobmanager.workers import Worker, Workers, identity_of
from penstock.ports import LogRecord, NewRecord, OffsetOutOfRangeError
from penstock.protocol.job_observer import JobObserver
from penstock.protocol.jobevents import (
    AckReceived,
    JobEnded,
    Requested,
    SlotsOffered,
    StatusReported,
    TasksListed,
    Ticked,
    WorkerGone,
)
from penstock.protocol.joblog import JobHistory
from penstock.protocol.leader import LEASE_TTL_MS, Lead
from penstock.protocol.messages import (
    Acknowledged,
    BarrierMarker,
    Declined,
    Heartbeat,
    LeaderTick,
    SubtaskId,
    TaskChanged,
    TaskStatus,
    decode_event,
    encode,
)
from penstock.protocol.requests import AnyRequest, CancelJob, Request, RunRequest, SubmitJob, decode_request, sender_of
from penstock.protocol.slots import SlotPool
from penstock.submission.admission import refusal, refuse

TaskManagerStarter = Callable[[str, int], None]
"""Starts a task manager for one job with so many slots, and returns at once; it ends by itself with the job."""

START_MS: Final = 60_000
"""How long task managers that were started for a job may take to come."""
LEADER_TICK_MS: Final = 1_000
TOLD_MS: Final = 5_000
"""So often jobs are told all that a worker says; between that only what is new."""
COMMANDS_KEPT_MS: Final = 600_000
"""Commands are kept for so long, or a new leader would read a day of them. Task managers that are further behind have
been given up by then: longer than any of their workers may be stuck."""
VIEW_MS: Final = 500
REQUESTS_READ: Final = "requests-read"
"""Key of the position of the first request that may not be answered; lost, all kept requests are looked at again."""
NO_STARTER: Final = (
    "the coordinator may not start task managers for one job: submit it without --per-job, so that it runs on those of "
    "the cluster; or give it a cluster of its own (on Kubernetes a release with application.enabled=true); or start the "
    "coordinators with --start-task-managers N, where they may start processes"
)
READ_S: Final = 1.0
DEAF_MS: Final = 1_500
"""A read that lasts for longer, where `READ_S` was asked for, found no broker."""
DEAF_SHOWN_MS: Final = 3_000
"""A leader that has heard nothing from brokers for so long says so to people."""
EVENTS_KEPT_BYTES: Final = 8 << 20
"""Events that were obeyed are trimmed away now and then."""

_log = structlog.get_logger("penstock.coordinator")


@dataclass(frozen=True)
class CoordinatorTimeouts:
    """How patient a coordinator is."""

    lease_ttl_ms: int = LEASE_TTL_MS
    takeover_ms: int = 2 * HEARTBEAT_MS
    """How long a new leader listens to heartbeats before it opens jobs."""
    worker_ms: int = 20 * HEARTBEAT_MS
    """A worker without a heartbeat for so long counts as dead."""


class CoordinatorService:
    """One candidate for leadership."""

    def __init__(
        self,
        name: str,
        ports: ControlPorts,
        timeouts: CoordinatorTimeouts,
        *,
        describe: Callable[[JobHistory], JobSpec] = spec_of,
        clean_sinks: CleanSinks | None = None,
        address: str = "",
        starter: TaskManagerStarter | None = None,
        scaling: Scaling | None = None,
        observe: Callable[[str], JobObserver] | None = None,
    ) -> None:
        """
        Args:
            name: unique to this process instance.
            ports: the world.
            timeouts: how patient it is.
            describe: what to make of a job's log; as it says, unless something else is known better.
            clean_sinks: removes what sinks of ended jobs keep elsewhere.
            address: where people find this coordinator, for the cluster's view.
            starter: starts task managers for jobs that want their own.
            scaling: where the number of task managers for all other jobs is set.
            observe: gives every job that this coordinator is the master of somebody who looks on.
        """
        self.name = name
        self._ports = ports
        self._patient = ControlPorts(
            RetryingLog(ports.log, ports.clock), RetryingBlobs(ports.blobs, ports.clock), ports.metadata, ports.clock,
            ports.new_id,
        )  # fmt: skip
        self._catalog = JobCatalog(self._patient.blobs)
        self._timeouts = timeouts
        self._describe = describe
        self._clean_sinks = clean_sinks
        self._observe = observe
        self._address = address
        self._starter = starter
        self._scaling = scaling
        self._scaler: TaskManagerScaler | None = None
        self._started: dict[str, int] = {}
        """When task managers were last started for a job that wants its own."""
        self._leadership = Leadership(name, ports, timeouts.lease_ttl_ms, self._lead, self._stop, self._deaf_ms)
        self._workers = Workers()
        self._heard_ms = 0
        """When the events of workers were read last."""
        self._slots = SlotPool()
        self._jobs: dict[str, JobShell] = {}
        self._progress: dict[str, JobProgress] = {}
        """Of ended jobs too, the newest ones."""
        self._leading: asyncio.Task[None] | None = None
        self._shells: dict[str, asyncio.Task[None]] = {}
        self._unopened = UnopenedJobs()
        self._to_open: set[str] = set()
        """Jobs that were found at the takeover and not looked at yet."""
        self._waiting: dict[int, AnyRequest] = {}
        """Requests without an answer, by their offset."""
        self._lead_command: Lead | None = None
        self._endings: dict[str, asyncio.Future[JobEnded]] = {}
        self._around = Surroundings(
            self._slots_wanted,
            self._slots_kept,
            self._slots_lacking,
            self._tasks_of,
            self._leadership.lost,
            self._closed,
        )

    # -- life -----------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Compete for the lease, lead while it is held; ends by cancellation and gives the lease back."""
        ease_collection()
        await create_control_topics(self._patient.log)
        _, events = await self._patient.log.offsets(EVENTS, 0)
        self._heard_ms = self._ports.clock.monotonic_ms()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._read_events(events))
                group.create_task(self._leadership.run())
                group.create_task(self._drop_silent_workers())
        finally:
            await self._stop("this coordinator ends")

    @property
    def epoch(self) -> int:
        """The epoch in which this candidate leads; 0 if it does not."""
        return self._lead_command.epoch if self._lead_command is not None else 0

    def job_ended(self, job: str) -> asyncio.Future[JobEnded]:
        """Tells the end of a job once everything of it is cleaned up, whoever led it until then."""
        if job not in self._endings:
            self._endings[job] = asyncio.get_running_loop().create_future()
        return self._endings[job]

    def tell(self, job: str, request: Requested) -> None:
        """Ask for something of a job from within this process; there is no answer."""
        if job in self._jobs:
            self._jobs[job].tell(request)

    @property
    def shells(self) -> list[JobShell]:
        """The jobs that this coordinator is the master of."""
        return list(self._jobs.values())

    def progress(self, job: str) -> JobProgress:
        """How a job is; nothing is known of it before it is opened."""
        return self._progress.get(job) or JobProgress(job)

    # -- leadership -----------------------------------------------------------------------------------------------------

    async def _lead(self, command: Lead) -> None:
        self._lead_command = command
        self._leading = asyncio.create_task(self._work(command))

    async def _stop(self, reason: str) -> None:
        """Decide nothing more, forget everything that was known of jobs."""
        self._lead_command = None
        tasks = [*self._shells.values(), *([self._leading] if self._leading else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._shells.clear()
        self._jobs.clear()
        self._unopened.clear()
        self._to_open.clear()
        self._waiting.clear()
        self._leading = None
        self._scaler = None
        self._slots = SlotPool()

    async def _work(self, command: Lead) -> None:
        """What a leader does. An error that is nobody's fault outside ends the leadership, not the process."""
        try:
            await self._ports.clock.sleep_ms(self._timeouts.takeover_ms)
            active = await self._catalog.active()
            self._slots, self._to_open = SlotPool(), set(active)
            for name, worker in self._workers.items():
                self._heard_slots(name, worker)
            for job in active:
                await self._open(job, command, command.markers)
                self._to_open.discard(job)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._tick_jobs())
                group.create_task(self._tick_workers(command))
                group.create_task(self._serve_requests(command))
                group.create_task(self._show())
                if self._scaling is not None:
                    self._scaler = TaskManagerScaler(self._scaling, self._ports.clock, self._slots, self._workers)
                    group.create_task(self._scaler.run())
        except asyncio.CancelledError:
            raise
        except Exception as error:
            _log.exception("the leader cannot go on")
            self._leadership.lost(f"{type(error).__name__}: {error}")

    async def _open(self, job: str, command: Lead, markers: Collection[BarrierMarker]) -> None:
        """Become the master of a job. One that cannot be opened is tried again, and holds up nobody."""
        if job in self._jobs:
            return
        try:
            shell, used = await self._loaded(job)
        except Exception as error:
            _log.error("a job cannot be opened", job=job[:8], error=str(error))
            self._open_later(job, command, error, markers)
            return
        self._jobs[job] = shell
        former = self._unopened.opened(job)
        if former is not None:
            shell.progress.failed(former.reason)
        self._progress.pop(job, None)
        self._progress[job] = shell.progress
        while len(self._progress) > SHOWN:
            del self._progress[next(iter(self._progress))]
        self._slots.adopt(job, used)
        self._shells[job] = asyncio.create_task(self._look_after(shell, command, markers))
        shell.tell(SlotsOffered(self._slots.offer(job)))

    async def _loaded(self, job: str) -> tuple[JobShell, dict[str, int]]:
        """What will be the master of a job, and the slots of each worker that its running attempt occupies."""
        observers = [self._observe(job)] if self._observe is not None else []
        shell = JobShell(job, self._patient, self._around, self._describe, self._clean_sinks, observers)
        await shell.load()
        if shell.history.submit is None:
            raise CorruptDataError(f"{ACTIVE}{job}: the store names a job that it has no log of; delete this object")
        attempt = shell.history.begin.attempt if shell.history.begin else ""
        return shell, self._slots_used(shell, attempt)

    async def _look_after(self, shell: JobShell, command: Lead, markers: Collection[BarrierMarker]) -> None:
        """Until the job has ended. What nobody expected ends this master, not the job: it is opened again."""
        began_ms = self._ports.clock.monotonic_ms()
        try:
            await shell.run(command.epoch, tuple(markers))
        except Exception as error:
            _log.exception("the master of a job failed; it is opened again", job=shell.job[:8])
            del self._jobs[shell.job]
            lived_ms = self._ports.clock.monotonic_ms() - began_ms
            self._open_later(shell.job, command, error, shell.markers, lived_ms)

    def _open_later(
        self, job: str, command: Lead, error: Exception, markers: Collection[BarrierMarker], lived_ms: int = 0
    ) -> None:
        if self._lead_command is not command:  # it fails while leadership ends: who leads next opens it
            return
        unopened = self._unopened.failed(job, error, markers, lived_ms)
        self._progress.setdefault(job, JobProgress(job)).failed(unopened.reason)

        async def again() -> None:
            await self._ports.clock.sleep_ms(unopened.pause_ms)
            await self._open(job, command, unopened.markers)
            if job in self._jobs:
                for request in [request for request in self._waiting.values() if request.job == job]:
                    await self._served(request, command)

        self._shells[job] = asyncio.create_task(again())

    def _slots_used(self, shell: JobShell, attempt: str) -> dict[str, int]:
        """How many slots of each worker the running attempt occupies."""
        slots = self._describe(shell.history).topology.slots
        occupied: dict[str, set[int]] = {}
        for subtask, (worker, status) in self._tasks_of(shell.job).items():
            if status.attempt == attempt and subtask in slots:
                occupied.setdefault(worker, set()).add(slots[subtask])
        return {worker: len(numbers) for worker, numbers in occupied.items()}

    async def _tick_jobs(self) -> None:
        while True:
            for shell in list(self._jobs.values()):
                shell.tell(Ticked())
            await self._ports.clock.sleep_ms(TICK_MS)

    async def _tick_workers(self, command: Lead) -> None:
        log, clock = self._patient.log, self._ports.clock
        ends: deque[tuple[int, int]] = deque()
        while True:
            end = await log.append(COMMANDS, 0, [NewRecord(encode(LeaderTick(epoch=command.epoch)))])
            now_ms = clock.monotonic_ms()
            if not ends or now_ms - ends[-1][0] >= COMMANDS_KEPT_MS // 10:
                ends.append((now_ms, end))
            while ends and now_ms - ends[0][0] >= COMMANDS_KEPT_MS and not self._next_leader_needs(ends[0][0]):
                await log.trim(COMMANDS, 0, ends.popleft()[1])
            await clock.sleep_ms(LEADER_TICK_MS)

    def _next_leader_needs(self, before_ms: int) -> bool:
        """Whether `commands` up to that time hold a marker whose number nothing else tells: it may be pending."""
        return len(self._unopened) > 0 or any(shell.marked_before(before_ms) for shell in self._jobs.values())

    # -- requests -------------------------------------------------------------------------------------------------------

    async def _serve_requests(self, command: Lead) -> None:
        log = self._patient.log
        position = noted = await self._first_request()
        while True:
            for record in await log.read(REQUESTS, 0, position, timeout_s=1.0):
                await self._read_request(record, command)
                position = record.next_offset
            # Whoever leads next asks again for what was not answered: until then nothing but this log knows of it.
            self._waiting = {offset: request for offset, request in self._waiting.items() if self._is_asked(request)}
            handled = min(self._waiting, default=position)
            if handled != noted:
                try:
                    await self._ports.metadata.put(REQUESTS_READ, str(handled).encode())
                    noted = handled
                except ExternalError as error:
                    _log.warning("cannot note which requests are handled", error=str(error))

    async def _read_request(self, record: LogRecord, command: Lead) -> None:
        try:
            request = decode_request(record.value)
        except CorruptDataError as error:
            _log.error("a request cannot be read", offset=record.offset, error=str(error))
            asked = sender_of(record.value)
            if asked is not None:
                await self._refuse(asked, f"the cluster's coordinator, of another version perhaps, says: {error}")
            return
        if isinstance(request, RunRequest):
            return
        self._waiting[record.offset] = request
        await self._served(request, command)

    async def _served(self, request: AnyRequest, command: Lead) -> None:
        """Serve a request. One that nobody expected costs its own answer, not the leader."""
        try:
            await retry_until_done(
                f"serve {type(request).__name__}", self._ports.clock, lambda: self._serve(request, command)
            )
        except Exception as error:
            _log.exception("a request cannot be carried out", job=request.job[:8], request=request.request)
            await self._refuse(request, f"{type(error).__name__}: {error}")

    async def _refuse(self, request: Request, reason: str) -> None:
        try:
            await refuse(request, reason, self._catalog, self._ports.clock)
        except Exception as error:  # its ids are none that a key can be made of
            _log.error("a request cannot be answered", error=str(error))

    def _is_asked(self, request: AnyRequest) -> bool:
        shell = self._jobs.get(request.job)
        return self._unopened.get(request.job) is not None or (shell is not None and shell.is_asked(request.request))

    async def _first_request(self) -> int:
        start, end = await self._patient.log.offsets(REQUESTS, 0)
        try:
            noted = await self._ports.metadata.get(REQUESTS_READ)
        except ExternalError:
            noted = None
        position = int(noted) if noted is not None and noted.isdigit() else start
        return position if start <= position <= end else start

    async def _serve(self, request: AnyRequest, command: Lead) -> None:
        _log.info("request", kind=type(request).__name__, job=request.job[:8])
        shell, unopened = self._jobs.get(request.job), self._unopened.get(request.job)
        if unopened is not None:
            if not isinstance(request, SubmitJob):
                reason = f"{unopened.reason}; it is tried again and again: ask again when it runs"
                await refuse(request, reason, self._catalog, self._ports.clock)
        elif shell is None and isinstance(request, SubmitJob):
            if await self._catalog.answer_to(request.job, request.request) is not None:
                return  # refused before: what was said stays true
            reason = NO_STARTER if request.settings.per_job and self._starter is None else ""
            reason = reason or await refusal(request, self._patient.blobs)
            if reason:
                await refuse(request, reason, self._catalog, self._ports.clock)
                return
            await self._catalog.submit(request, self._ports.new_id())
            if request.job in await self._catalog.active():
                await self._open(request.job, command, command.markers)
        elif shell is None:
            await self._answer_ended(request)
        else:
            await shell.request(request)

    async def _answer_ended(self, request: AnyRequest) -> None:
        """The leader that carried it out may have died before it could say so: the job log knows."""
        history = await JobReader(self._patient.blobs).history(request.job)
        answer = late_answer(request, history, self._ports.clock.now_us())
        if answer is None or (isinstance(request, CancelJob) and await self._catalog.answered(request.job, "cancel")):
            await refuse(request, "there is no such job, or it has ended", self._catalog, self._ports.clock)
        elif await self._catalog.answer_to(request.job, request.request) is None:
            await self._catalog.answer(answer)

    # -- workers --------------------------------------------------------------------------------------------------------

    async def _read_events(self, position: int) -> None:
        log, clock = self._patient.log, self._ports.clock
        trimmed = position
        while True:
            asked_ms = clock.monotonic_ms()
            try:
                records = await log.read(EVENTS, 0, position, timeout_s=READ_S)
            except OffsetOutOfRangeError:  # another leader trimmed what this one slept through; heartbeats heal it
                position, _ = await log.offsets(EVENTS, 0)
                trimmed = position
                continue
            self._heard_ms = clock.monotonic_ms()
            if self._heard_ms - asked_ms > DEAF_MS:  # no broker answered: the silence was nobody's
                self._workers.excuse(self._heard_ms - asked_ms)
            for record in records:
                position = record.next_offset
                self._read_event(record, self._heard_ms)
            if self.epoch and position - trimmed >= EVENTS_KEPT_BYTES:
                trimmed = position
                await log.trim(EVENTS, 0, position)

    def _read_event(self, record: LogRecord, now_ms: int) -> None:
        """One that this program does not read is passed over: the next heartbeat heals what it said."""
        try:
            self._on_event(decode_event(record.value), now_ms)
        except Exception:
            _log.exception("an event cannot be read", offset=record.offset)

    def _on_event(self, event: Heartbeat | Acknowledged | Declined | TaskChanged, now_ms: int) -> None:
        match event:
            case Heartbeat(leaving=reason) if reason:
                self._gone({event.worker: reason})
            case Heartbeat():
                self._on_heartbeat(event, now_ms)
            case TaskChanged(worker=name, status=status):
                worker = self._workers.get(name)
                if worker is not None:
                    worker.tasks[identity_of(status)] = status
                    if status.state in ("finished", "canceled"):
                        del worker.tasks[identity_of(status)]
                self._tell(status.job, StatusReported(name, status))
            case Acknowledged() | Declined():
                self._tell(event.job, AckReceived(event))
            case _:
                assert_never(event)

    def _on_heartbeat(self, event: Heartbeat, now_ms: int) -> None:
        # An append without an answer is repeated, behind what was heard since: it lists no subtask that began meanwhile.
        # A supervisor repeats the newest heartbeat of a worker that is busy; nothing ends there unheard.
        newer = self._workers.newer_by(event)
        if newer < 0:
            return
        former = self._workers.get(event.worker)
        worker = self._workers[event.worker] = Worker(event, now_ms, {identity_of(s): s for s in event.tasks})
        self._heard_slots(event.worker, worker)
        known = former.tasks if former is not None else {}
        if former is not None and now_ms - former.told_ms < TOLD_MS:
            worker.told_ms = former.told_ms
        else:
            worker.told_ms, known = now_ms, {}
        self._tell_tasks(event.worker, worker.tasks, known)
        if newer and not (worker.tasks and worker.tasks.keys() == known.keys()):
            self._tell_listed(event.worker, worker.tasks)

    def _tell_tasks(
        self,
        name: str,
        tasks: Mapping[tuple[str, str, SubtaskId], TaskStatus],
        known: Mapping[tuple[str, str, SubtaskId], TaskStatus],
    ) -> None:
        """Tell the jobs that have to do with a worker what is new there: most heartbeats say what is known."""
        for identity, status in tasks.items():
            shell = self._jobs.get(status.job)
            if shell is not None and not shell.counted(known.get(identity), status):
                shell.tell(StatusReported(name, status))

    def _tell_listed(self, name: str, tasks: Iterable[tuple[str, str, SubtaskId]]) -> None:
        """Tell the jobs that have slots of a worker which of their subtasks are there, and that no others are."""
        listed: dict[str, set[SubtaskId]] = {job: set() for job in self._slots.used(name)}
        for job, attempt, subtask in tasks:
            if job in self._jobs and attempt == self._jobs[job].attempt:
                listed.setdefault(job, set()).add(subtask)
        for job, subtasks in listed.items():
            if job in self._jobs:
                self._jobs[job].tell(TasksListed(name, frozenset(subtasks)))

    def _heard_slots(self, name: str, worker: Worker) -> None:
        beat = worker.heartbeat
        new = name not in self._slots.workers
        running = {status.job for status in worker.tasks.values() if new and self._occupies_slot(status)}
        self._slots.heard(name, beat.slots, beat.bound_to, running)
        self._offer()

    def _occupies_slot(self, status: TaskStatus) -> bool:
        """Not those of earlier attempts and of jobs that have ended: they are being ended, and the slot is free."""
        if status.job in self._jobs:
            return status.attempt == self._jobs[status.job].attempt
        return status.job in self._to_open or self._unopened.get(status.job) is not None

    async def _drop_silent_workers(self) -> None:
        clock = self._ports.clock
        last_ms = clock.monotonic_ms()
        while True:
            await clock.sleep_ms(TICK_MS)
            now_ms = clock.monotonic_ms()
            if now_ms - last_ms > HEARTBEAT_MS:
                # This process stood still: what workers sent meanwhile is not read yet, their silence was ours.
                self._workers.excuse(now_ms - last_ms)
            last_ms = now_ms
            # What was sent since the last reading is not read yet.
            silent = self._workers.silent(min(now_ms, self._heard_ms), self._timeouts.worker_ms)
            self._gone({name: f"no heartbeat for {now_ms - self._workers[name].seen_ms} ms" for name in silent})

    def _gone(self, reasons: Mapping[str, str]) -> None:
        """These workers are lost. Jobs hear first which slots are left: the next attempt must not begin on the others."""
        gone = {name: reason for name, reason in reasons.items() if self._workers.pop(name, None) is not None}
        for name, reason in gone.items():
            _log.info("worker gone", worker=name, reason=reason)
            self._slots.gone(name)
        self._offer()
        for shell in self._jobs.values():
            for name, reason in gone.items():
                shell.tell(WorkerGone(name, reason))

    def _tell(self, job: str, event: StatusReported | AckReceived) -> None:
        if job in self._jobs:
            self._jobs[job].tell(event)

    def _tasks_of(self, job: str) -> Mapping[SubtaskId, tuple[str, TaskStatus]]:
        return self._workers.tasks_of(job, self._jobs[job].attempt if job in self._jobs else "")

    # -- slots ----------------------------------------------------------------------------------------------------------

    def _slots_wanted(self, job: str, slots: int) -> int:
        own = self._jobs[job].settings.per_job
        self._slots.want(job, slots, own=own)
        self._offer()
        missing = self._slots.missing(job)
        if own and missing:
            self._start_task_managers(job, missing)
        return missing

    def _slots_lacking(self, job: str, slots: int) -> int:
        """How many slots are not to be had for a job; one with task managers of its own gets what it asks for."""
        return 0 if self._jobs[job].settings.per_job else self._slots.lacking(job, slots)

    def _start_task_managers(self, job: str, slots: int) -> None:
        """Once; and again if they have not come by a deadline, or are gone."""
        now_ms = self._ports.clock.monotonic_ms()
        if self._starter is None or now_ms - self._started.get(job, -START_MS) < START_MS:
            return
        self._started[job] = now_ms
        try:
            self._starter(job, slots)
        except OSError as error:
            _log.error("cannot start a task manager", job=job[:8], error=str(error))

    def _slots_kept(self, job: str, workers: frozenset[str], slots: int) -> None:
        self._slots.want(job, slots, own=self._jobs[job].settings.per_job)
        self._slots.keep(job, workers)
        self._offer()

    def _offer(self) -> None:
        for job in self._slots.allocate():
            if job in self._jobs:
                self._jobs[job].tell(SlotsOffered(self._slots.offer(job)))

    def _closed(self, job: str) -> None:
        self._slots.release(job)
        self._started.pop(job, None)
        self._unopened.closed(job)
        self._offer()
        shell = self._jobs.pop(job)
        self._shells.pop(job, None)
        future = self.job_ended(job)
        if not future.done():
            future.set_result(shell.ended.result())

    def _deaf_ms(self) -> int:
        """How long no broker has been heard."""
        return self._ports.clock.monotonic_ms() - self._heard_ms

    # -- what people see ------------------------------------------------------------------------------------------------

    def view(self) -> ClusterView:
        """The cluster as it is now."""
        clock, deaf_ms = self._ports.clock, self._deaf_ms()
        view = view_of_cluster(
            self.name, self._address, self.epoch, clock.now_us(), self._jobs, self._workers, self._slots,
            deaf_ms * 1_000 if deaf_ms >= DEAF_SHOWN_MS else 0, clock.monotonic_ms(),
        )  # fmt: skip
        view = msgspec.structs.replace(view, jobs=view.jobs + self._unopened.views())
        return view if self._scaler is None else msgspec.structs.replace(view, scaling=self._scaler.view())

    async def _show(self) -> None:
        while self.epoch:  # not once more between the end of leadership and that of this task
            try:
                await self._ports.metadata.put(VIEW, encode(self.view()))
            except PenstockError as error:
                _log.warning("dispatchers do not see how the cluster is", error=str(error))
            await self._ports.clock.sleep_ms(VIEW_MS)
