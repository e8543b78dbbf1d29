"""What the simulated publishers have in common: a machine that publishes in transactions, and the sink's cluster."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tests.simulation.parts import FencedError

from penstock.protocol import publishing as p

if TYPE_CHECKING:
    from tests.simulation.tasks import Task

EPOCHS = 5
"""So many of a producer id, then there is another one."""


class Transacting(ABC):
    """Runs inside a subtask."""

    machine: Any
    label: str
    """What it is called in what the histories reach."""

    def __init__(self, task: Task, name: str) -> None:
        """`name` of the transactional id."""
        self._task = task
        self._world = task.world
        self._name = name
        self._epoch = 0

    @abstractmethod
    def _committed(self, mark: Any) -> None:
        """A transaction is committed for certain."""

    def _carry_out_other(self, command: Any) -> None:
        """What its machine alone commands."""
        raise NotImplementedError(f"{type(command).__name__}")

    def _handle(self, event: Any) -> None:
        if self._task.gone:
            return
        coverage = self._world.coverage
        coverage.add(f"{self.label} event {type(event).__name__}")
        commands = self.machine.handle(event)
        coverage.add(f"{self.label} phase {self.machine.phase.name}")
        self._obey(commands)

    def _obey(self, commands: Iterable[Any]) -> None:
        for command in commands:
            self._world.coverage.add(f"{self.label} command {type(command).__name__}")
            self._carry_out(command)

    def _carry_out(self, command: Any) -> None:
        task, cluster = self._task, self._world.cluster
        match command:
            case p.InitProducer():
                self._world.step(task.worker, "init producer")
                cluster.init_producer(self._name)(self._answer(self._ready))
            case p.ReadMark():
                cluster.read_mark(self._name, self._epoch)(self._answer(lambda mark: self._handle(p.MarkRead(mark))))
            case p.CommitTransaction():
                self._world.step(task.worker, "commit transaction")
                operation = cluster.commit(self._name, self._epoch, command.refs, command.mark)
                operation(self._answer(lambda _: self._committed(command.mark)))
            case p.BackOff():
                task.worker.later(command.delay_ms, self._handle, p.BackedOff())
            case p.Exit():
                self._world.kernel.note(str(task.deploy.subtask), f"publisher exits: {command.reason}")
                self._world.publisher_exited(task)
            case p.FailJob():
                self._world.publisher_fails(task, command.reason)
            case _:
                self._carry_out_other(command)

    def _answer(self, then: Any) -> Any:
        """Hand the answer to this process, unless the task is gone; errors are events."""

        def handle(value: Any = None, error: BaseException | None = None) -> None:
            if self._task.gone:
                return
            if error is None:
                then(value)
            elif isinstance(error, FencedError):
                self._handle(p.Fenced())
            else:
                self._handle(p.Doubtful(str(error)))

        return lambda value=None, error=None: self._task.worker.deliver(handle, value, error)

    def _ready(self, epoch: int) -> None:
        self._epoch = epoch
        self._world.step(self._task.worker, "producer ready")
        self._handle(p.ProducerReady(p.ProducerEpoch(*divmod(epoch, EPOCHS))))
