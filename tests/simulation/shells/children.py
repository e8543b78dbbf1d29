"""What a worker process and its subtasks are under a simulated task manager: a process in the same loop, and runners."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tests.simulation.shells.loop import Process
from tests.simulation.shells.ports import WORLD

from penstock.errors import ExternalError
from penstock.protocol.messages import Deploy, TaskStatus
from penstock.protocol.subtask import FinishRead
from penstock.task.environment import Services
from penstock.taskmanager.event_appender import encode_batch
from penstock.taskmanager.worker import WorkerService
from penstock.taskmanager.worker_process import LENGTH

if TYPE_CHECKING:
    from tests.simulation.shells.workers import WorkersWorld


class SimulatedChild:
    """What `asyncio.create_subprocess_exec` gives a supervisor: a worker process in the same loop."""

    def __init__(self, world: WorkersWorld, host: str, descriptor: int) -> None:
        world.children += 1
        self.pid = 1_000 + world.children
        self.returncode: int | None = None
        self.stdin, self.stderr = self, self
        self.process = Process(world.loop, f"worker-{self.pid}")
        self.host = host
        self.name = ""
        self._world = world
        self._pipe = os.dup(descriptor)
        self._ended = asyncio.Event()
        world.processes[self.process.name] = self.process
        world.child_of[self.pid] = self

    def write(self, spec: bytes) -> None:
        """The spec comes: the worker starts. Its name is all that is needed of it."""
        self.name = spec.decode().split('"')[1]
        self._world.later(self._world.draw.uniform(0.01, 0.2), self._start)

    async def drain(self) -> None:
        """It is written."""

    async def read(self, most: int) -> bytes:
        """Nothing is logged; at the end of the process standard error closes."""
        await self._ended.wait()
        return b""

    def _start(self) -> None:
        if self.returncode is None:
            self._task = self.process.start(self._run())
            self._task.add_done_callback(lambda task: self._over(task), context=WORLD)

    async def _run(self) -> None:
        world = self._world
        services = Services(world.log, world.blobs, world.clock)
        worker = world.services[self.name] = WorkerService(
            self.name, 1, services, Loader(world, self.name), 6_000, sender=self, host=self.host
        )
        await worker.run()

    async def send(self, events: Sequence[Any]) -> None:
        """See `EventSender`: once they are in the pipe they outlive this process."""
        if self.returncode is None:
            data = encode_batch(events)
            os.write(self._pipe, LENGTH.pack(len(data)) + data)

    def _over(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if error is not None and not isinstance(error, ExternalError) and not self._world.loop.over:
            self._world.violated(f"W6: {self.name} ended by {type(error).__name__}: {error}")
        self.end(0 if error is None else 1)

    def send_signal(self, number: signal.Signals) -> None:
        """See `asyncio.subprocess.Process.send_signal`."""
        if self.returncode is not None:
            raise ProcessLookupError
        self._world.note(self.name, f"gets {number.name}")
        self._world.later(self._world.draw.uniform(0.001, 0.05), self.end, -number)

    def end(self, code: int) -> None:
        """The process is gone; its end of the pipe closes."""
        if self.returncode is None:
            self.returncode = code
            self.process.kill()
            self._world.note(self.name, f"ends with {code}")
            os.close(self._pipe)
            self._ended.set()

    async def wait(self) -> int:
        """See `asyncio.subprocess.Process.wait`."""
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode


class Loader:
    """Binds the process to the first job that it loads, as production's does."""

    def __init__(self, world: WorkersWorld, worker: str) -> None:
        self.bound_to = ""
        self._world, self._worker = world, worker

    async def load(self, deploy: Deploy) -> Any:
        """Takes its time, and may fail."""
        self._world.started(self._worker, deploy)
        await asyncio.sleep(self._world.draw.choice((0.0, 0.001, 0.3)))
        if self._world.draw.random() < 0.05:
            raise ExternalError("the code cannot be had")
        self.bound_to = self.bound_to or deploy.job
        return SimpleNamespace(graph=None, plan=None, manifest=None, state_backend=None)


class Runner:
    """A subtask: runs until it is told to finish, fails, or is cancelled, and may take long over each of these."""

    def __init__(self, world: WorkersWorld, deploy: Deploy, inbox: Any, changed: Callable[[TaskStatus], None]) -> None:
        self._world, self._deploy, self._inbox, self._changed = world, deploy, inbox, changed
        self.state = "initializing"

    @property
    def status(self) -> TaskStatus:
        """What the leader hears."""
        return TaskStatus(self._deploy.job, self._deploy.attempt, self._deploy.subtask, self.state)  # pyright: ignore

    async def run(self) -> None:
        """See `SubtaskRunner.run`."""
        draw = self._world.draw
        await asyncio.sleep(draw.choice((0.0, 0.01, 0.2)))
        self.state = "running"
        self._changed(self.status)
        end_s = self._world.loop.now_s + (draw.uniform(0.1, 3.0) if draw.random() < 0.1 else 1e6)
        try:
            while True:
                self._inbox.clear()
                event = self._inbox.take(frames=False)
                if isinstance(event, FinishRead):
                    self.state = "finished"
                    return
                if self._world.loop.now_s >= end_s:
                    raise ExternalError("a subtask fails")
                if event is None:
                    await self._inbox.wait(min(1.0, max(0.001, end_s - self._world.loop.now_s)))
        except asyncio.CancelledError:
            if draw.random() < 0.2:
                raise ExternalError("what it reads is gone") from None
            if draw.random() < 0.3:
                await asyncio.sleep(draw.uniform(0.01, 0.5))
            raise

    def credit(self, report: Any) -> None:
        """It produces for nobody."""
