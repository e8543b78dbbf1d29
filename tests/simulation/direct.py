"""The simulated publishing of a split by the subtask that reads it: a `SplitPublisherMachine` and the sink's cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.operators import Output
from tests.simulation.transacting import Transacting

from penstock.protocol import publishing as p
from penstock.protocol import split_publishing as sp

if TYPE_CHECKING:
    from tests.simulation.tasks import Task

CHUNK_BYTES = 40
ROW_BYTES = 10


class SplitPublisher(Transacting):
    """Runs inside a subtask of `s`."""

    label = "split"

    def __init__(self, task: Task, name: str, restored: int | None) -> None:
        """`restored`: where a checkpoint of the job says that the split goes on; None if there is none."""
        super().__init__(task, f"d/{name}")
        self._split = name
        self._rows: list[Output] = []
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
        super()._handle(event)
        if self.machine.announced and not (self._opened or self._task.gone):
            self._opened = True
            self._task.split_opened(self._split, self.machine.position)

    def _committed(self, mark: sp.SplitMark) -> None:
        self._handle(p.Committed())
