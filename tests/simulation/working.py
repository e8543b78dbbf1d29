"""The simulated worker process: the same steps as `penstock.taskmanager.worker`."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from tests.simulation.kernel import Node, Violation, Work
from tests.simulation.leading import COMMANDS, EVENTS
from tests.simulation.tasks import Task

from penstock.ports import OffsetOutOfRangeError
from penstock.protocol import messages, subtask
from penstock.protocol.messages import SubtaskId
from penstock.protocol.worker import HandToTasks, StartTask, StopTasks, WorkerCommand, WorkerMachine

if TYPE_CHECKING:
    from tests.simulation.world import World

HEARTBEAT_MS = 150
LEADER_SILENCE_MS = 2_500


class Worker(Node):
    """One instance; a restarted process is another one."""

    def __init__(self, world: World, name: str, slots: int, *, from_start: bool) -> None:
        """`from_start`: it reads `commands` from the beginning, as if its position had been fixed long ago."""
        super().__init__(world.kernel, name)
        self._world = world
        self._slots = slots
        self.slow_ms = 0
        self.deaf_until_ms = 0
        self.machine = WorkerMachine(name, self.monotonic_ms, LEADER_SILENCE_MS)
        self.tasks: dict[tuple[str, SubtaskId], Task] = {}
        commands = world.log.partition(COMMANDS, 0)
        self._position = commands.trimmed if from_start else commands.end
        self.start(self._read_commands(), self._crash)
        self.start(self._heartbeats(), self._crash)

    def _crash(self, error: BaseException) -> None:
        if isinstance(error, OffsetOutOfRangeError):  # commands were missed: as in production the process ends
            self._world.kill_worker(self, from_start=False)
            return
        raise Violation(f"{self.name}: {type(error).__name__}: {error}") from error

    def kill(self) -> None:
        """SIGKILL, with everything it runs."""
        super().kill()
        for task in self.tasks.values():
            task.end("canceled")

    def _read_commands(self) -> Work:
        while True:
            records = yield self._world.log.read(COMMANDS, 0, self._position)
            if self.kernel.now < self.deaf_until_ms:
                yield self.sleep(self.deaf_until_ms - self.kernel.now)
            for _, after, command in records:
                self._position = after
                self._world.coverage.add(f"worker reads {type(command).__name__}")
                for obeyed in self.machine.command_read(command, self.monotonic_ms):
                    self._obey(obeyed)

    def _heartbeats(self) -> Work:
        for number in itertools.count(1):
            for command in self.machine.time_passed(self.monotonic_ms):
                self._obey(command)
            for task in self.tasks.values():
                self._world.check_credit(task)
            statuses = tuple(task.status for task in self.tasks.values())
            self.send_event(messages.Heartbeat(worker=self.name, slots=self._slots, tasks=statuses, number=number))
            yield self.sleep(HEARTBEAT_MS)

    def _obey(self, command: WorkerCommand) -> None:
        self._world.coverage.add(f"worker command {type(command).__name__}")
        self.kernel.note(self.name, command)
        match command:
            case StartTask():
                deploy = command.deploy
                self._world.starts(self, deploy)
                task = self.tasks[(deploy.attempt, deploy.subtask)] = Task(self._world, self, deploy)
                task.begin()
            case StopTasks():
                for key, task in list(self.tasks.items()):
                    if command.attempt in ("", key[0]):
                        self._cancel(key, task)
            case HandToTasks():
                for key, task in list(self.tasks.items()):
                    if key[0] == command.command.attempt:
                        task.put(_event_of(command))

    def _cancel(self, key: tuple[str, SubtaskId], task: Task) -> None:
        if task.gone:
            self.tasks.pop(key, None)
            return
        task.end("canceled")
        self.task_ended(task)

    def task_ended(self, task: Task) -> None:
        """Tell the leader; only failed subtasks stay listed."""
        self.changed(task)
        if task.state != "failed":
            self.tasks.pop((task.deploy.attempt, task.deploy.subtask), None)

    def changed(self, task: Task) -> None:
        """A subtask's state has changed."""
        self.send_event(messages.TaskChanged(worker=self.name, status=task.status))

    def send_event(self, event: messages.AnyEvent) -> None:
        """Append to `events`, unless a fault swallows it."""
        if not self.alive or self._world.loses_event(event):
            return
        self._world.log.append(self, EVENTS, 0, event)(lambda value=None, error=None: None)


def _event_of(command: HandToTasks) -> subtask.SubtaskEvent:
    match command.command:
        case messages.BarrierMarker() as marker:
            return subtask.MarkerRead(marker)
        case messages.CheckpointCompleted() as completed:
            return subtask.CompletionRead(completed)
        case messages.CheckpointAborted() as aborted:
            return subtask.AbortRead(aborted)
        case messages.FinishAttempt():
            return subtask.FinishRead()
