"""The producing side of a simulated subtask: rows are gathered per partition and cut into frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.simulation.scenario import MAX_PARALLELISM, key_group_of

from penstock.protocol import subtask
from penstock.protocol.frames import Frame
from penstock.protocol.keygroups import subtask_of
from penstock.protocol.messages import Flavour
from penstock.protocol.outputs import OutputId, OutputLedger

if TYPE_CHECKING:
    from tests.simulation.tasks import Task

ROW_BYTES = 10
FRAME_ROWS = 3


class Sender:
    """Rows that wait to be cut into frames, per partition of the consumer; a sink has no outputs."""

    def __init__(self, task: Task) -> None:
        self._task = task
        scenario = task.world.scenario
        target = scenario.downstream(task.vertex)
        partitions = [] if target is None else [task.index] if target == "w" else list(range(task.parallelism))
        self._outputs = [OutputId(target or "", 0, number) for number in partitions]
        self._buffers: list[list[Any]] = [[] for _ in partitions]
        self._watermark: int | None = None
        self._idle = False
        credit_bytes = scenario.credit_bytes * (8 if target == "m" else 1)
        self.ledger = OutputLedger(task.deploy.attempt, task.index, self._outputs, credit_bytes)
        self.rows_cut: dict[OutputId, int] = {}
        self._confirmed: dict[OutputId, int] = {}
        self._early: set[tuple[OutputId, int]] = set()
        """Confirmed while one before is tried again: production sends none behind it until then."""

    def send(self, row: Any, key: int) -> None:
        """A row for the subtask that owns its key."""
        self._idle = False
        place = 0
        if len(self._outputs) > 1:
            place = subtask_of(key_group_of(key), self._task.parallelism, MAX_PARALLELISM)
        self._buffers[place].append(row)
        if len(self._buffers[place]) >= FRAME_ROWS:
            self._cut(place)

    def advance(self, watermark: int) -> None:
        """A watermark to send behind the rows that wait."""
        self._watermark = watermark
        self._idle = False

    def idle(self) -> None:
        """Tell the consumers not to wait."""
        self.flush()
        if not self._idle:
            self._idle = True
            for output in self._outputs:
                self._append(output, self.ledger.idle(output), ())

    def flush(self) -> None:
        """Cut frames of everything that waits."""
        for place in range(len(self._outputs)):
            self._cut(place)
        if self._watermark is not None:
            for output in self._outputs:
                self._append(output, self.ledger.watermark(output, self._watermark), ())
            self._watermark = None

    def barrier(self, checkpoint: int, nonce: str, flavour: Flavour) -> None:
        """Send a barrier on every output."""
        for output in self._outputs:
            self._append(output, self.ledger.barrier(output, checkpoint, nonce, flavour), ())

    def _cut(self, place: int) -> None:
        rows, self._buffers[place] = self._buffers[place], []
        if rows:
            output = self._outputs[place]
            self.rows_cut[output] = self.rows_cut.get(output, 0) + len(rows)
            self._append(output, self.ledger.data(output, len(rows), len(rows) * ROW_BYTES), tuple(rows))

    def _append(self, output: OutputId, frame: Frame, rows: tuple[Any, ...]) -> None:
        task = self._task
        topic = f"{output.exchange}.g{task.deploy.generation}"
        operation = task.world.log.append(task.worker, topic, output.partition, (frame, rows))
        operation(lambda value=None, error=None: task.worker.deliver(self._answered, output, frame, rows, error))

    def _answered(self, output: OutputId, frame: Frame, rows: tuple[Any, ...], error: BaseException | None) -> None:
        """Without a certain answer the attempt fails, or tries again: then the frame is there twice, perhaps late."""
        if error is None:
            self._confirm(output, frame.seq)
        elif self._task.world.kernel.random.random() < 0.5:
            self._task.fail(error)
        elif not self._task.gone:
            self._task.worker.later(self._task.world.kernel.short(20, 400), self._append, output, frame, rows)

    def _confirm(self, output: OutputId, seq: int) -> None:
        self._early.add((output, seq))
        following = self._confirmed.get(output, -1) + 1
        while (output, following) in self._early:
            self._early.remove((output, following))
            self._task.put(subtask.FrameConfirmed(output, following))
            self._confirmed[output] = following
            following += 1
