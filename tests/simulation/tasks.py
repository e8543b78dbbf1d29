"""The simulated subtask: the same steps as `penstock.task.subtask`, with tiny operators and sinks.

Its operators are in `operators`, its outputs in `sending`, its state at a barrier in `snapshots`, its publishing to
Kafka in `publisher`; here is the loop that feeds the `SubtaskMachine` and carries out what it says.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from tests.simulation.direct import SplitPublisher
from tests.simulation.kernel import Process, Violation, Work
from tests.simulation.operators import Operator, Source
from tests.simulation.publisher import Publisher
from tests.simulation.sending import ROW_BYTES, Sender
from tests.simulation.snapshots import Snapshots

from penstock.core.times import MAX_WATERMARK
from penstock.ports import OffsetOutOfRangeError
from penstock.protocol import messages, subtask
from penstock.protocol.channels import AdvanceWatermark, BecomeIdle, Deliver
from penstock.protocol.frames import Channel
from penstock.protocol.messages import SubtaskId
from penstock.protocol.outputs import OutputId, OutputLedger
from penstock.protocol.trimming import PartitionHolds

if TYPE_CHECKING:
    from tests.simulation.working import Worker
    from tests.simulation.world import World


class Task:
    """A deployed subtask."""

    def __init__(self, world: World, worker: Worker, deploy: messages.Deploy) -> None:
        self.world = world
        self.worker = worker
        self.deploy = deploy
        self.vertex = deploy.subtask.vertex
        self.index = deploy.subtask.index
        self.state: messages.TaskState = "initializing"
        self.error = ""
        self.gone = False
        self.parallelism = world.parallelism_of(deploy.attempt)
        self.operator = Operator(self)
        self.source = Source(self)
        self.sender = Sender(self)
        self.snapshots = Snapshots(self)
        self.machine = subtask.SubtaskMachine(
            deploy.job,
            deploy.attempt,
            deploy.subtask,
            "source" if self.vertex == "s" else "inner",
            world.scenario.channels(deploy.subtask, self.parallelism),
            self.ledger,
        )
        self._events: deque[subtask.SubtaskEvent] = deque()
        self._frames: deque[subtask.FrameRead] = deque()
        self._scheduled = False
        self._opened = False
        self._exhausted = False
        self.paused = False
        """Whether the source reads nothing, until what was asked of the job is done or has come to nothing."""
        self._committing = False
        self._offset = deploy.start_offset
        """Behind the last frame that was handled."""
        self._barrier_offset = deploy.start_offset
        self._credit_reported: dict[Any, int] = {}
        self.blocked_since = (0, -1)
        self._barriers: dict[int, int] = {}
        """The offset behind the barrier of each snapshot."""
        self.delivered: dict[Channel, int] = {}
        """Rows per channel, for the invariants."""
        self._processes: list[Process] = []
        self.holds = PartitionHolds()
        self.publisher: Publisher | None = None
        self.direct: dict[str, SplitPublisher] = {}
        """Who publishes the rows of a split, by its name, where there is no exchange to a publisher."""

    # -- life -----------------------------------------------------------------------------------------------------------

    @property
    def ledger(self) -> OutputLedger:
        """Of its outputs."""
        return self.sender.ledger

    @property
    def rows_cut(self) -> dict[OutputId, int]:
        """Rows sent per output."""
        return self.sender.rows_cut

    @property
    def published(self) -> int:
        """What the leader hears."""
        return self.publisher.published if self.publisher else self.snapshots.staged.published

    @property
    def status(self) -> messages.TaskStatus:
        """What the leader hears."""
        return messages.TaskStatus(
            self.deploy.job, self.deploy.attempt, self.deploy.subtask, self.state, self.published, self.error
        )

    @property
    def topic(self) -> str:
        """Of its own exchange."""
        return f"{self.vertex}.g{self.deploy.generation}"

    def begin(self) -> None:
        """Load, restore, run."""
        self._processes.append(self.worker.start(self._open(), self.fail))

    def put(self, event: subtask.SubtaskEvent) -> None:
        """Something reached the subtask."""
        if self.gone:
            return
        if isinstance(event, subtask.FrameRead):
            self._frames.append(event)
        else:
            self._events.append(event)
        self._wake()

    @property
    def has_events(self) -> bool:
        """Whether something other than frames waits."""
        return bool(self._events)

    @property
    def waits(self) -> bool:
        """Whether it runs and has nothing left to do but to wait."""
        left = self.source.progress if self.vertex == "s" else None
        return self.state == "running" and not (left or self._events or self._frames)

    def credit_changed(self) -> None:
        """Publishing went on: perhaps there is credit to report."""
        self._wake()

    def running(self) -> None:
        """Open; a publisher not before its attempt stands in the mark."""
        if self.state == "initializing":
            self.state = "running"
            self.worker.changed(self)

    def end(self, state: messages.TaskState) -> None:
        """Stop everything; answers under way go nowhere."""
        self.gone = True
        self.state = state
        for process in self._processes:
            process.cancel()

    def fail(self, error: BaseException) -> None:
        """An error of this subtask."""
        if self.gone:
            return
        self.world.check_failure(self, error)
        self.error = f"{type(error).__name__}: {error}"
        self.end("failed")
        self.worker.task_ended(self)

    def _open(self) -> Work:
        alone = self.deploy.publishes_only and self.vertex != "w"
        self._exhausted = alone
        if not alone:
            self.source.open()
        restore = self.deploy.restore
        manifest = (yield from self.snapshots.restore(restore)) if restore else None
        if self.vertex == "w":
            intervals = None
            if manifest is not None and manifest.generation == self.deploy.generation:
                intervals = manifest.intervals.get("w", {}).get(self.index, ())
            self.publisher = Publisher(self, intervals, restore.checkpoint if restore else 0)
        self._opened = True
        if self.publisher:
            self.publisher.start()
        elif self.world.scenario.direct and not alone:
            self._open_splits(restored=manifest is not None)
        else:
            self.running()
        if self.vertex != "s" and not alone:
            self.holds.hold("reader", self._offset)
            self._processes.append(self.worker.start(self._fetch(), self.fail))
        self._commit()
        self._wake()

    def _open_splits(self, *, restored: bool) -> None:
        """None is read before its mark says from where."""
        positions = self.source.positions
        self.direct = {n: SplitPublisher(self, n, at if restored else None) for n, at in positions.items()}
        for publisher in self.direct.values():
            publisher.start()
        if not self.direct:
            self.running()

    def split_opened(self, name: str, position: int) -> None:
        """The mark of a split is known, and this attempt stands in it."""
        self.source.begin_at(name, position)
        if all(publisher.machine.announced for publisher in self.direct.values()):
            self.running()
            self._wake()

    # -- the loop -------------------------------------------------------------------------------------------------------

    def _wake(self, delay_ms: int | None = None) -> None:
        if self._scheduled or not self._opened or self.gone:
            return
        self._scheduled = True
        kernel = self.world.kernel
        delay = kernel.random.randint(1, 3) if delay_ms is None else delay_ms
        slow_ms = self.worker.slow_ms + self.world.slow_task_ms(self.deploy.subtask)
        self.worker.later(delay + slow_ms, self._work)

    def _work(self) -> None:
        self._scheduled = False
        if self.gone:
            return
        try:
            self._work_once()
        except Violation:
            raise
        except Exception as error:
            self.fail(error)

    def _work_once(self) -> None:
        for _ in range(1 if self.world.slow_task_ms(self.deploy.subtask) else 4):
            if self._events:
                self._feed(self._events.popleft())
            elif self._frames and not self.ledger.blocked():
                self._feed(self._frames.popleft())
            else:
                break
            if self.gone:
                return
        self._report_credit()
        blocked = bool(self.ledger.blocked())
        if self._events or (self._frames and not blocked):
            self._wake()
            return
        opening = self.direct and self.state == "initializing"
        if self.vertex == "s" and not (blocked or opening or self.paused or self._exhausted):
            self._read_source()
            if not self.gone:
                self._wake(self.world.scenario.pace_ms)
            return
        self.sender.flush()

    def _read_source(self) -> None:
        if not self.source.read():
            self._exhausted = True
            self._feed(subtask.SourceExhausted())

    def advance(self, watermark: int) -> None:
        """Event time advances here, and for the consumers behind the rows that are sent before."""
        self.operator.advance(watermark)
        self.sender.advance(watermark)

    # -- input ----------------------------------------------------------------------------------------------------------

    def _fetch(self) -> Work:
        offset = self.deploy.start_offset
        while True:
            try:
                records = yield self.world.log.read(self.topic, self.index, offset)
            except OffsetOutOfRangeError as error:
                if self.deploy.attempt == self.world.newest_attempt and not self.world.log_damaged:
                    raise Violation(f"I12: {self.deploy.subtask} reads what was trimmed: {error}") from error
                raise
            for _, after, (frame, rows) in records:
                offset = after
                self.put(subtask.FrameRead(frame, (rows, after), len(rows) * ROW_BYTES))
            if len(self._frames) > 20:
                yield self.worker.sleep(5)

    def _report_credit(self) -> None:
        upstream = self.world.scenario.upstream(self.vertex)
        if upstream is None:
            return
        processed = self.publisher.credit() if self.publisher else self.machine.gate.processed_bytes()
        threshold = max(1, self.world.scenario.credit_bytes // 4)
        if not any(size - self._credit_reported.get(c, 0) >= threshold for c, size in processed.items()):
            return
        self._credit_reported = dict(processed)
        output = OutputId(self.vertex, 0, self.index)
        for channel, size in processed.items():
            self.world.report_credit(self.deploy.attempt, SubtaskId(upstream, channel.producer), output, size)

    # -- events and commands --------------------------------------------------------------------------------------------

    def _feed(self, event: subtask.SubtaskEvent) -> None:
        coverage = self.world.coverage
        coverage.add(f"subtask event {type(event).__name__}")
        if isinstance(event, subtask.FrameRead):
            self._barrier_offset = event.ref[1]
        for command in self.machine.handle(event):
            coverage.add(f"subtask command {type(command).__name__}")
            if self.gone:
                return
            self._carry_out(command)
        if isinstance(event, subtask.FrameRead):
            self._offset = event.ref[1]

    def _carry_out(self, command: subtask.SubtaskCommand) -> None:
        match command:
            case Deliver():
                self.world.delivered(self, command)
                rows, after = command.ref
                if self.publisher is not None:
                    self.publisher.scanned(command.channel, command.size_bytes, after)
                self.operator.deliver(rows)
            case AdvanceWatermark():
                self.advance(command.watermark)
            case BecomeIdle():
                self.sender.idle()
            case subtask.Freeze():
                self._barriers[command.checkpoint] = self._barrier_offset
                # a publisher's vertex has one channel, so the frame being handled now is the barrier
                self.snapshots.freeze(command.checkpoint, self._barrier_offset if self.vertex == "w" else 0)
                if self.publisher is not None:
                    self.publisher.acknowledged(command.checkpoint, self._barrier_offset)
                for publisher in self.direct.values():
                    publisher.flush()
                self.world.froze(self, command.checkpoint)
                self._feed(subtask.Frozen(command.checkpoint))
            case subtask.FlushRows():
                self.sender.flush()
            case subtask.SendBarrier():
                self.sender.barrier(command.checkpoint, command.nonce, command.flavour)
                self._feed(subtask.BarrierSent(command.checkpoint))
            case subtask.Upload():
                self._processes.append(self.worker.start(self.snapshots.upload(command), self.fail))
            case subtask.Send():
                message = self.world.extras.sendable(command.message)
                self.world.acked(self, message)
                self.worker.send_event(message)
            case subtask.EmitEndOfTime():
                self.advance(MAX_WATERMARK)
                self.sender.flush()
            case subtask.SetPaused():
                self.paused = command.paused
            case subtask.Publish():
                self._publish(command)
            case subtask.ReportEnded():
                self.state = "ended"
                self.worker.changed(self)
            case subtask.Finish():
                self.end("finished")
                self.worker.task_ended(self)

    # -- publishing -----------------------------------------------------------------------------------------------------

    def _publish(self, command: subtask.Publish) -> None:
        if command.checkpoint in self._barriers:
            self.holds.hold("reader", self._barriers[command.checkpoint])
        if self.publisher is not None:
            self._processes.append(self.worker.start(self.publisher.load(command), self.fail))
            return
        self.snapshots.chains.completed(command.checkpoint)
        self.snapshots.staged.completed(command.checkpoint)
        self._commit()
        self.trim()

    def _commit(self) -> None:
        """Make parts visible, one at a time."""
        if self._committing or self.vertex == "w":
            return
        self._committing = True
        self._processes.append(self.worker.start(self._commit_parts(), self.fail))

    def _commit_parts(self) -> Work:
        while parts := self.snapshots.staged.to_commit():
            yield self.worker.sleep(self.world.kernel.short(1, 10) + self.world.slow_commit_ms)
            self.world.folder.commit(parts[0].committable)
            self.snapshots.staged.committed(parts[0])
        self._committing = False
        self.worker.changed(self)

    def trim(self) -> None:
        """Let go of what nobody needs in the own partition."""
        before = self.holds.trim_to()
        if before is not None and self.vertex != "s":
            partition = self.world.log.partition(self.topic, self.index)
            partition.trimmed = max(partition.trimmed, before)
