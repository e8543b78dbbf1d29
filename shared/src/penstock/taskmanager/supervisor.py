"""A task manager's supervisor: one worker process per slot, kept alive; their events and heartbeats go through it.

A worker that dies is reported in milliseconds and replaced by a process with another name. A worker that is busy in a
long call is not dead: the supervisor repeats its last heartbeat for it, up to a limit. One that shows no life at all,
because it was stopped or its host froze it, is not spoken for: its subtasks are to run elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import uuid
from asyncio.subprocess import Process
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import psutil
import structlog

from penstock.coordination.retrying_ports import RetryingLog
from penstock.coordination.timings import HEARTBEAT_MS
from penstock.coordination.worker_logs import WorkerLogs
from penstock.ports import Clock, Log
from penstock.protocol.messages import AnyEvent, Heartbeat, SubtaskId, TaskChanged, TaskStatus
from penstock.taskmanager.event_appender import append_events
from penstock.taskmanager.outbox import Outbox
from penstock.taskmanager.worker import resident_bytes
from penstock.taskmanager.worker_process import ALIVE, LENGTH, WorkerSpec, decode_batch

UNRESPONSIVE_MS: Final = 300_000
"""A worker that has not come to its event loop for so long is killed: no batch takes that long."""
LIFELESS_MS: Final = 4 * HEARTBEAT_MS
"""A worker that has neither touched its file nor used the processor for so long is not busy."""
QUICK_DEATH_MS: Final = 5_000
"""A worker that dies so soon after its start is started again with growing pauses."""
MAX_PAUSE_MS: Final = 10_000
DRAIN_S: Final = 10.0

_log = structlog.get_logger("penstock.taskmanager")

SpecOf = Callable[[str, int, str], WorkerSpec]
"""The spec of a worker: (its name, the file descriptor for its events, its folder)."""


@dataclass
class _Child:
    name: str
    process: Process
    started_ms: int
    heard_ms: int
    folder: Path
    active_ms: int = 0
    """When it last showed life."""
    activity: tuple[int, int] = (0, 0)
    beat: Heartbeat | None = None
    tasks: dict[tuple[str, str, SubtaskId], TaskStatus] = field(
        default_factory=dict[tuple[str, str, SubtaskId], TaskStatus]
    )
    killed_for: str = ""
    held_up: bool = False
    """Whether what it says waits for room in the outbox: its silence is not its own."""

    def note(self, event: AnyEvent) -> None:
        """Follow what the worker says of itself."""
        if isinstance(event, Heartbeat):
            self.beat = event
            self.tasks = {_identity(status): status for status in event.tasks}
        elif isinstance(event, TaskChanged):
            self.tasks[_identity(event.status)] = event.status
            if event.status.state in ("finished", "canceled"):
                del self.tasks[_identity(event.status)]

    def looks_alive(self, now_ms: int) -> bool:
        """Whether it has come to its turn lately, in any of its threads."""
        activity = activity_of(self.process.pid, self.folder)
        if activity != self.activity or not self.active_ms:
            self.activity, self.active_ms = activity, now_ms
        return now_ms - self.active_ms < LIFELESS_MS

    def repeated(self, memory_bytes: int) -> Heartbeat | None:
        """Its last heartbeat, as it would be now."""
        if self.beat is None:
            return None
        return msgspec.structs.replace(self.beat, tasks=tuple(self.tasks.values()), memory_bytes=memory_bytes)


def _identity(status: TaskStatus) -> tuple[str, str, SubtaskId]:
    return status.job, status.attempt, status.subtask


class Supervisor:
    """The workers of one task manager."""

    def __init__(
        self, name: str, slots: int, spec_of: SpecOf, log: Log, clock: Clock, *, memory_mb: int = 0, once: bool = False
    ) -> None:
        """`memory_mb` is what each worker may use, 0: no limit; `once`: slots whose job has ended stay empty."""
        self.name = name
        self.logs = WorkerLogs()
        self._slots = slots
        self._spec_of = spec_of
        self._log = RetryingLog(log, clock)
        self._clock = clock
        self._once = once
        self._memory_bytes = memory_mb << 20
        self._children: dict[str, _Child] = {}
        self._outbox = Outbox()
        self._leaving = False

    @property
    def workers(self) -> list[tuple[str, int]]:
        """Name and process id of every worker that lives."""
        return [(child.name, child.process.pid) for child in self._children.values()]

    async def run(self) -> None:
        """Keep all slots alive; ends by cancellation, which takes the slots back and ends all workers.

        With `once` it also ends when all its workers are used up.
        """
        try:
            async with asyncio.TaskGroup() as group:
                serving = [group.create_task(self._forward()), group.create_task(self._watch())]
                await asyncio.gather(*(group.create_task(self._keep(slot)) for slot in range(self._slots)))
                await self._outbox.join()
                for task in serving:
                    task.cancel()
        finally:
            await asyncio.shield(self._leave())

    async def _leave(self) -> None:
        """Tell the leader, then end the workers: those that do not end by themselves are killed."""
        self._leaving = True
        farewells: list[AnyEvent] = [
            Heartbeat(worker=child.name, slots=0, leaving=f"task manager {self.name} shuts down")
            for child in self._children.values()
        ]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S / 2):
                await append_events(self._log, farewells)
        for child in self._children.values():
            _signal(child.process, signal.SIGTERM)
        waits = [child.process.wait() for child in self._children.values()]
        try:
            async with asyncio.timeout(DRAIN_S / 2):
                await asyncio.gather(*waits)
        except TimeoutError:
            for child in self._children.values():
                _signal(child.process, signal.SIGKILL)
            await asyncio.gather(*(child.process.wait() for child in self._children.values()))

    # -- workers --------------------------------------------------------------------------------------------------------

    async def _keep(self, slot: int) -> None:
        pause_ms = 0
        while True:
            child = await self._run_one(slot)
            lived_ms = self._clock.monotonic_ms() - child.started_ms
            if self._once and child.process.returncode == 0:
                return
            if child.process.returncode == 0 or lived_ms >= QUICK_DEATH_MS:
                pause_ms = 0
            else:
                pause_ms = min(MAX_PAUSE_MS, 2 * pause_ms or 200)
                await self._clock.sleep_ms(pause_ms)

    async def _run_one(self, slot: int) -> _Child:
        """One process, from its start until it is dead and reported."""
        name = f"{self.name}-{slot}-{uuid.uuid4().hex[:8]}"
        with tempfile.TemporaryDirectory(prefix="penstock-worker-", ignore_cleanup_errors=True) as folder:
            return await self._run_in(name, folder)

    async def _run_in(self, name: str, folder: str) -> _Child:
        reading, writing = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "penstock.taskmanager.worker_process",
                stdin=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, pass_fds=[writing], start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(writing)
        now_ms = self._clock.monotonic_ms()
        child = self._children[name] = _Child(name, process, now_ms, now_ms, Path(folder))
        ended = asyncio.Event()
        following = asyncio.create_task(self.logs.follow(name, process.stderr, ended))
        try:
            assert process.stdin is not None
            process.stdin.write(msgspec.json.encode(self._spec_of(name, writing, folder)) + b"\n")
            with contextlib.suppress(ConnectionError):  # dead already: what it exits with says so
                await process.stdin.drain()
            await self._read_events(child, reading)
            await process.wait()
        except BaseException:
            if not self._leaving:
                _signal(process, signal.SIGKILL)
            raise
        finally:
            ended.set()
        await following
        del self._children[name]
        reason = child.killed_for or _how_it_ended(process.returncode)
        (_log.info if process.returncode == 0 else _log.warning)("worker ended", name=name, reason=reason)
        await self._outbox.put([Heartbeat(worker=name, slots=0, leaving=reason)])
        return child

    async def _read_events(self, child: _Child, descriptor: int) -> None:
        """Until the pipe closes: the process is dead, or about to be."""
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb")
        )
        try:
            while True:
                (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                events = decode_batch(await reader.readexactly(length))
                child.heard_ms = self._clock.monotonic_ms()
                for event in events:
                    child.note(event)
                    self.logs.note(child.name, event)
                child.held_up = True
                await self._outbox.put(events)
                child.held_up, child.heard_ms = False, self._clock.monotonic_ms()
        except asyncio.IncompleteReadError:
            return
        except msgspec.DecodeError as error:
            self._kill(child, f"what it says cannot be read: {error}")
        finally:
            transport.close()

    async def _watch(self) -> None:
        """Speak for workers that are busy; end those that use too much memory or never come back."""
        while True:
            await self._clock.sleep_ms(HEARTBEAT_MS)
            now_ms = self._clock.monotonic_ms()
            for child in self._children.values():
                used = resident_bytes(child.process.pid)
                silent_ms = 0 if child.held_up else now_ms - child.heard_ms
                if self._memory_bytes and used > self._memory_bytes:
                    self._kill(
                        child,
                        f"it used {used >> 20} MB of slot.memory_mb={self._memory_bytes >> 20}; raise that, use more "
                        "subtasks, or keep less state",
                    )
                elif silent_ms > UNRESPONSIVE_MS:
                    self._kill(child, f"it was stuck for {silent_ms // 1000} s")
                elif silent_ms > HEARTBEAT_MS and child.looks_alive(now_ms):
                    beat = child.repeated(used)
                    if beat is not None:
                        self._outbox.add([beat])

    def _kill(self, child: _Child, reason: str) -> None:
        if not child.killed_for:
            child.killed_for = f"killed: {reason}"
            _signal(child.process, signal.SIGKILL)

    # -- events ---------------------------------------------------------------------------------------------------------

    async def _forward(self) -> None:
        while True:
            await append_events(self._log, await self._outbox.take())
            self._outbox.appended()


def activity_of(pid: int, folder: Path) -> tuple[int, int]:
    """Changes with every sign of life: when a worker touched its file, how much of the processor it has used, in us."""
    touched = used = 0
    with contextlib.suppress(OSError):
        touched = (folder / ALIVE).stat().st_mtime_ns
    with contextlib.suppress(psutil.Error):
        times = psutil.Process(pid).cpu_times()
        used = round((times.user + times.system) * 1_000_000)
    return touched, used


def _signal(process: Process, number: signal.Signals) -> None:
    # Not through the process's object: that asks first whether it has ended, takes the exit code away from the loop, and
    # a process that ended well is one that failed with 255.
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


def _how_it_ended(code: int | None) -> str:
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return "its job needs it no more" if code == 0 else f"it ended with exit code {code}; its log says why"
