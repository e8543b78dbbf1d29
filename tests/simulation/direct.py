"""The simulated publishing of a split by the subtask that reads it: a `SplitPublisherMachine` and the sink's cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tests.simulation.operators import Output
from tests.simulation.publisher import EPOCHS, answered

from penstock.protocol import publishing as p
from penstock.protocol import split_publishing as sp

if TYPE_CHECKING:
    from tests.simulation.tasks import Task

CHUNK_BYTES = 40
ROW_BYTES = 10


class SplitPublisher:
    """Runs inside a subtask of `s`."""

    def __init__(self, task: Task, name: str, restored: int | None) -> None:
        """`restored`: where a checkpoint of the job says that the split goes on; None if there is none."""
        self._task = task
        self._world = task.world
        self._name = f"d/{name}"
        self._split = name
        self._rows: list[Output] = []
        self._epoch = 0
        self._opened = False
        self.machine = sp.SplitPublisherMachine(
            task.deploy.attempt_number,
            lambda below: self._world.kernel.random.randrange(below),
            restored or 0,
            must_have_mark=restored is not None,
            chunk_bytes=CHUNK_BYTES,
            split=self._name,
        )

    def start(self) -> None:
        """Announce the attempt."""
        self._obey(self.machine.start())

    def row(self, number: int, position: int, nonce: int | None) -> None:
        """A row of the split, if the filter has let it pass."""
        if nonce is not None:
            self._rows.append(Output("row", int(self._split), (number,), position, nonce))

    def run_read(self, position: int) -> None:
        """All rows of a read have come."""
        rows, self._rows = self._rows, []
        self._handle(sp.Offered(tuple(rows), position, ROW_BYTES * len(rows)))

    def flush(self) -> None:
        """A barrier."""
        self._handle(sp.Flush())

    def _handle(self, event: sp.SplitEvent) -> None:
        if self._task.gone:
            return
        self._world.coverage.add(f"split event {type(event).__name__}")
        commands = self.machine.handle(event)
        self._world.coverage.add(f"split phase {self.machine.phase.name}")
        self._obey(commands)
        if self.machine.announced and not self._opened:
            self._opened = True
            self._task.split_opened(self._split, self.machine.position)

    def _obey(self, commands: Sequence[sp.SplitCommand]) -> None:
        for command in commands:
            self._world.coverage.add(f"split command {type(command).__name__}")
            self._carry_out(command)

    def _carry_out(self, command: sp.SplitCommand) -> None:
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
                operation(self._answer(lambda _: self._handle(p.Committed())))
            case p.BackOff():
                task.worker.later(command.delay_ms, self._handle, p.BackedOff())
            case p.Exit():
                self._world.kernel.note(str(task.deploy.subtask), f"publisher exits: {command.reason}")
                self._world.publisher_exited(task)
            case p.FailJob():
                self._world.publisher_fails(task, command.reason)

    def _answer(self, then: Any) -> Any:
        return answered(self._task, then, self._handle)

    def _ready(self, epoch: int) -> None:
        self._epoch = epoch
        self._world.step(self._task.worker, "producer ready")
        self._handle(p.ProducerReady(p.ProducerEpoch(*divmod(epoch, EPOCHS))))
