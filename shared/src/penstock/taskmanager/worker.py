"""A worker process as an asyncio service: obeys `commands`, runs subtasks, reports them in heartbeats."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Protocol, assert_never

import msgspec
import psutil
import structlog

from penstock.coordination.control_topics import COMMANDS
from penstock.coordination.retrying_ports import RetryingLog
from penstock.coordination.timings import HEARTBEAT_MS
from penstock.core.extras import missing_package
from penstock.core.garbage import ease_collection
from penstock.errors import PenstockError, RefusedRowError
from penstock.graph.executiongraph import credits_topic
from penstock.graph.jobgraph import JobGraph
from penstock.observability.user_frames import describe_error, first_cause, user_frames
from penstock.ports import Clock, Log, LogRecord, TopicNotFoundError
from penstock.protocol.messages import (
    AnyEvent,
    BarrierMarker,
    CheckpointAborted,
    CheckpointCompleted,
    Deploy,
    FinishAttempt,
    Heartbeat,
    TaskChanged,
    TaskStatus,
    decode_command,
)
from penstock.protocol.subtask import AbortRead, CompletionRead, FinishRead, MarkerRead
from penstock.protocol.unsendable import cut
from penstock.protocol.worker import LEADER_SILENCE_MS, HandToTasks, StartTask, StopTasks, WorkerCommand, WorkerMachine
from penstock.task.committing_subtask import CommittingRunner
from penstock.task.environment import Services, TaskEnvironment
from penstock.task.exchange_io import CreditReport
from penstock.task.inbox import Inbox
from penstock.task.publishing_subtask import PublishingRunner
from penstock.task.subtask import SubtaskRunner
from penstock.task.task_loop import TaskLoop
from penstock.taskmanager.event_appender import append_events
from penstock.taskmanager.job_loading import JobLoader

UNUSED_MS = 60_000
"""A process that is bound to a job and has had nothing to do for so long makes room for another."""
DEAF_MS = 5_000
"""A read that lasts for so long, where one second was asked for, found no broker."""
ATTEMPTS_KEPT = 3
"""Of so many attempts of a job are credit reports kept: a new one's may come before it is deployed here."""

_log = structlog.get_logger("penstock.worker")


class EventSender(Protocol):
    """How a worker's events reach the leader, in order."""

    async def send(self, events: Sequence[AnyEvent]) -> None:
        """Returns when they are on their way for certain: they survive whatever happens to this process."""
        ...


class LogEvents:
    """Appends events to the log itself, until that is certain."""

    def __init__(self, log: Log, clock: Clock) -> None:
        self._log = RetryingLog(log, clock)

    async def send(self, events: Sequence[AnyEvent]) -> None:
        """Append; a repeated event tells the leader nothing new."""
        await append_events(self._log, events)


@dataclass
class _Task:
    """A deployed subtask, from the moment of its deploy: its inbox is there before its code is loaded."""

    deploy: Deploy
    inbox: Inbox
    task: asyncio.Task[None] | None = None
    runner: TaskLoop | None = None
    failed: str = ""
    terminal: bool = False
    refused: bool = False
    frames: str = ""
    canceled: bool = False
    finished: bool = False
    stopped: bool = False
    """Whether it was told to end: whatever becomes of it then, nobody does so again."""

    @property
    def status(self) -> TaskStatus:
        if self.runner is not None:
            status = self.runner.status
        else:
            deploy = self.deploy
            status = TaskStatus(deploy.job, deploy.attempt, deploy.subtask, "initializing")
        if self.failed:
            return msgspec.structs.replace(
                status, state="failed", error=self.failed, frames=self.frames, terminal=self.terminal,
                refused=self.refused,
            )  # fmt: skip
        return msgspec.structs.replace(status, state="canceled") if self.canceled else status


class WorkerService:
    """One worker process. `run` ends when it is cancelled; then its subtasks are stopped."""

    def __init__(
        self,
        name: str,
        slots: int,
        services: Services,
        loader: JobLoader,
        leader_silence_ms: int = LEADER_SILENCE_MS,
        *,
        sender: EventSender | None = None,
        host: str = "",
    ) -> None:
        """`sender` is another way for events than the log; `host` says to people where this is."""
        self.name = name
        self.failures: list[BaseException] = []
        """What subtasks raised, newest last, for whoever runs this worker in its own process."""
        self._slots = slots
        self._services = services
        self._control = RetryingLog(services.log, services.clock)
        """For the control topics: a broker that is away ends no process, and with it no attempt."""
        self._loader = loader
        self._sender = sender or LogEvents(services.log, services.clock)
        self._host = host
        self._job_over = False
        """Whether the job that this process is bound to needs it no more."""
        self._unused_since_ms = services.clock.monotonic_ms()
        self._less_to_do = asyncio.Event()
        """Set when a subtask has ended, or the job is over: this process may be used up."""
        self._machine = WorkerMachine(name, services.clock.monotonic_ms(), leader_silence_ms)
        self._tasks: dict[tuple[str, str, str], _Task] = {}
        self._events: asyncio.Queue[AnyEvent] = asyncio.Queue(maxsize=100_000)
        self._credit_readers: dict[str, asyncio.Task[None]] = {}
        self._credits: dict[str, dict[str, dict[tuple[str, int], CreditReport]]] = {}
        """Job to its newest attempts to the newest report of each consumer, for subtasks that are not running yet."""

    async def run(self) -> None:
        """Fix the position in `commands`, register, then serve.

        Ends by cancellation, and by itself once it is bound to a job that needs it no more: another process can then
        load another job's code.
        """
        ease_collection()
        _, position = await self._services.log.offsets(COMMANDS, 0)
        try:
            async with asyncio.TaskGroup() as group:
                serving = [
                    group.create_task(self._send_events()),
                    group.create_task(self._heartbeats()),
                    group.create_task(self._read_commands(group, position)),
                ]
                while not self._used_up():
                    self._less_to_do.clear()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(1.0):
                            await self._less_to_do.wait()
                for task in [*serving, *self._credit_readers.values()]:
                    task.cancel()
        finally:
            for task in [*(t.task for t in self._tasks.values() if t.task), *self._credit_readers.values()]:
                task.cancel()

    def _used_up(self) -> bool:
        now_ms = self._services.clock.monotonic_ms()
        if not self._loader.bound_to or any(not task.failed for task in self._tasks.values()):
            self._unused_since_ms = now_ms
            return False
        return self._job_over or now_ms - self._unused_since_ms >= UNUSED_MS

    def statuses(self) -> list[TaskStatus]:
        """All subtasks of this worker."""
        return [task.status for task in self._tasks.values()]

    async def _read_commands(self, group: asyncio.TaskGroup, position: int) -> None:
        clock = self._services.clock
        while True:
            asked_ms = clock.monotonic_ms()
            records = await self._control.read(COMMANDS, 0, position, timeout_s=1.0)
            waited_ms = clock.monotonic_ms() - asked_ms
            if waited_ms > DEAF_MS:
                self._machine.deaf(waited_ms)
            for record in records:
                position = record.next_offset
                for command in self._machine.command_read(decode_command(record.value), clock.monotonic_ms()):
                    self._obey(command, group)
            for command in self._machine.time_passed(clock.monotonic_ms()):
                self._obey(command, group)

    def _obey(self, command: WorkerCommand, group: asyncio.TaskGroup) -> None:
        if isinstance(command, StopTasks) and command.final and command.job == self._loader.bound_to:
            self._job_over = True
            self._less_to_do.set()
        match command:
            case StartTask():
                self._start(command.deploy, group)
            case StopTasks():
                self._stop(command.job, command.attempt, command.reason)
            case HandToTasks():
                self._hand(command.command)
            case _:
                assert_never(command)

    # -- subtasks -------------------------------------------------------------------------------------------------------

    def _start(self, deploy: Deploy, group: asyncio.TaskGroup) -> None:
        key = (deploy.job, deploy.attempt, str(deploy.subtask))
        task = self._tasks[key] = _Task(deploy, Inbox())
        task.task = group.create_task(self._run_task(key, task))
        # Not within the task: one that is cancelled before its first step runs no line.
        task.task.add_done_callback(lambda _: self._ended(key, task))
        if deploy.job not in self._credit_readers:
            self._credit_readers[deploy.job] = group.create_task(self._read_credits(deploy.job))

    async def _run_task(self, key: tuple[str, str, str], task: _Task) -> None:
        log = _log.bind(job=key[0][:8], attempt=key[1][:8], subtask=key[2])
        try:
            job = await self._loader.load(task.deploy)
            services = self._services
            if job.state_backend is not None:
                settings = replace(services.settings, state_backend=job.state_backend, incremental=job.incremental)
                services = replace(services, settings=settings)
            environment = TaskEnvironment(
                task.deploy, job.graph, job.plan, job.manifest, services, task.inbox, self._send, self._changed
            )
            task.runner = _runner_of(task.deploy, job.graph)(environment)
            for report in self._credits.get(key[0], {}).get(key[1], {}).values():
                task.runner.credit(report)
            await task.runner.run()
            task.finished = True
            log.debug("subtask finished")
        except asyncio.CancelledError:
            log.debug("subtask canceled")
        except BaseException as raised:
            error = first_cause(raised)
            error = missing_package(error) or error
            if not isinstance(error, Exception):
                raise
            task.failed = describe_error(error)
            task.terminal = isinstance(error, PenstockError) and error.terminal
            task.refused = isinstance(error, RefusedRowError)
            task.frames = cut(user_frames(error.__cause__ or error))
            self.failures.append(error)
            log.warning("subtask failed", error=task.failed)

    def _ended(self, key: tuple[str, str, str], task: _Task) -> None:
        """However it ended; a failed subtask stays listed until its attempt is stopped."""
        task.canceled = not (task.failed or task.finished)
        self._changed(task.status)
        if (task.stopped or not task.failed) and self._tasks.get(key) is task:
            del self._tasks[key]
        self._less_to_do.set()

    def _stop(self, job: str, attempt: str, reason: str) -> None:
        for key, task in list(self._tasks.items()):
            if key[0] == job and attempt in ("", key[1]):
                _log.debug("stopping subtask", job=job[:8], subtask=key[2], reason=reason)
                if task.task is not None:
                    task.task.cancel()
                self._told_to_end(key, task)

    def _told_to_end(self, key: tuple[str, str, str], task: _Task) -> None:
        task.stopped = True
        if task.failed:
            del self._tasks[key]

    def _hand(self, command: BarrierMarker | CheckpointCompleted | CheckpointAborted | FinishAttempt) -> None:
        for key, task in list(self._tasks.items()):
            if key[:2] != (command.job, command.attempt):
                continue
            match command:
                case BarrierMarker():
                    task.inbox.put(MarkerRead(command))
                case CheckpointCompleted():
                    task.inbox.put(CompletionRead(command))
                case CheckpointAborted():
                    task.inbox.put(AbortRead(command))
                case FinishAttempt():
                    self._job_over = command.job == self._loader.bound_to
                    self._less_to_do.set()
                    task.inbox.put(FinishRead(command.final))
                    self._told_to_end(key, task)
                case _:
                    assert_never(command)

    async def _read_credits(self, job: str) -> None:
        """Hand every credit report of a job to its subtasks here, until the job has ended and its topics are deleted.

        From the start of the topic: consumers on other workers may report before anything is read here.
        """
        topic = credits_topic(job)
        try:
            position, _ = await self._control.offsets(topic, 0)
            while True:
                for record in await self._control.read(topic, 0, position, timeout_s=1.0):
                    position = record.next_offset
                    self._credit(job, record)
        except TopicNotFoundError:
            del self._credit_readers[job]
            self._credits.pop(job, None)

    def _credit(self, job: str, record: LogRecord) -> None:
        report = msgspec.json.decode(record.value, type=CreditReport)
        attempts = self._credits.setdefault(job, {})
        attempts.setdefault(report.attempt, {})[report.vertex, report.partition] = report
        if len(attempts) > ATTEMPTS_KEPT:
            del attempts[next(iter(attempts))]
        for key, task in self._tasks.items():
            if key[:2] == (job, report.attempt) and task.runner is not None:
                task.runner.credit(report)

    # -- events ---------------------------------------------------------------------------------------------------------

    def _send(self, event: AnyEvent) -> None:
        self._events.put_nowait(event)

    def _changed(self, status: TaskStatus) -> None:
        self._send(TaskChanged(worker=self.name, status=status))

    async def _heartbeats(self) -> None:
        for number in itertools.count(1):
            beat = Heartbeat(
                worker=self.name, slots=self._slots, tasks=tuple(self.statuses()), bound_to=self._loader.bound_to,
                host=self._host, memory_bytes=resident_bytes(), number=number,
            )  # fmt: skip
            self._send(beat)
            # All processes of a host at the same moments: their task manager appends what they say together.
            await self._services.clock.sleep_ms(HEARTBEAT_MS - self._services.clock.monotonic_ms() % HEARTBEAT_MS)

    async def _send_events(self) -> None:
        while True:
            batch = [await self._events.get()]
            while not self._events.empty():
                batch.append(self._events.get_nowait())
            await self._sender.send(batch)


def _runner_of(deploy: Deploy, graph: JobGraph) -> type[TaskLoop]:
    """What runs a subtask of this attempt."""
    if graph.vertex(deploy.subtask.vertex).publishes:
        return PublishingRunner
    return CommittingRunner if deploy.publishes_only else SubtaskRunner


@cache
def _this_process() -> psutil.Process:
    # Made once: to make it costs five times as much as to ask it, and every heartbeat asks.
    return psutil.Process()


def resident_bytes(pid: int | None = None) -> int:
    """Resident memory of a process (of this one); 0 if it is gone."""
    try:
        return (psutil.Process(pid) if pid else _this_process()).memory_info().rss
    except psutil.Error:
        return 0
