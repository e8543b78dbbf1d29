"""The simulated publisher of one sink partition: a `PublisherMachine` and the sink's cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tests.simulation.kernel import Violation, Work
from tests.simulation.transacting import Transacting

from penstock.errors import ExternalError
from penstock.ports import BlobNotFoundError, OffsetOutOfRangeError
from penstock.protocol import publishing as p
from penstock.protocol.frames import Channel
from penstock.protocol.manifests import Interval, PartitionIntervals, decode_manifest, manifest_key
from penstock.protocol.sinkcredit import SinkCredit
from penstock.protocol.subtask import Publish

if TYPE_CHECKING:
    from tests.simulation.tasks import Task

CHUNK_BYTES = 60
AGE_MS = 900


class Publisher(Transacting):
    """Runs inside the subtask of `w`."""

    label = "publisher"

    def __init__(self, task: Task, intervals: Sequence[Interval] | None, restored: int) -> None:
        """`intervals` of the checkpoint that is restored; None if nothing of this generation can be published."""
        super().__init__(task, f"w.g{task.deploy.generation}/{task.index}")
        self.machine = p.PublisherMachine(
            task.deploy.attempt_number,
            lambda below: self._world.kernel.random.randrange(below),
            CHUNK_BYTES,
            restored=restored,
            first_position=task.deploy.start_offset if intervals is None else None,
        )
        self._initial = tuple(intervals or ())
        self._intervals = PartitionIntervals(task.deploy.attempt, task.deploy.start_offset, self._initial)
        self._credit = SinkCredit(self._world.scenario.credit_bytes)
        self.published = 0
        first = min((interval.start for interval in self._initial), default=task.deploy.start_offset)
        task.holds.hold("mark", first)

    def start(self) -> None:
        """Announce the attempt and publish what the restored checkpoint covers."""
        self._obey(self.machine.start(self._initial))
        self._task.worker.later(AGE_MS, self._age)

    def credit(self) -> dict[Channel, int]:
        """Bytes processed per channel."""
        return self._credit.processed_bytes()

    def scanned(self, channel: Channel, size_bytes: int, offset: int) -> None:
        """A frame of the sink exchange was scanned."""
        self._credit.scanned(channel, size_bytes, offset)

    def acknowledged(self, checkpoint: int, position: int) -> None:
        """The barrier of a checkpoint has come."""
        self._intervals.acknowledged(checkpoint, position)

    def load(self, command: Publish) -> Work:
        """COMPLETE: what may be published is what its manifest says, though publishers need not read that."""
        deploy = self._task.deploy
        known = self._intervals.completed(command.checkpoint, self.published)
        key = manifest_key(deploy.job, deploy.attempt, command.checkpoint, command.nonce)
        while True:
            try:
                manifest = decode_manifest((yield self._world.blobs.get(key)), key)
                break
            except BlobNotFoundError:
                return
            except ExternalError:
                yield self._task.worker.sleep(self._world.kernel.short(20, 50))
        intervals = manifest.intervals["w"][self._task.index]
        if known and not _say_the_same(known, intervals):
            raise Violation(f"{deploy.subtask} takes {known} for complete, the manifest says {intervals}")
        self._credit.covered(max(interval.end for interval in intervals))
        self._world.step(self._task.worker, "covered")
        self._handle(p.Covered(intervals))

    def _age(self) -> None:
        """The mark is committed again now and then."""
        self._handle(p.MarkAged())
        if not self._task.gone:
            self._task.worker.later(AGE_MS, self._age)

    def _carry_out_other(self, command: p.PublisherCommand) -> None:
        match command:
            case p.ReadFrames():
                self._task.worker.later(self._world.kernel.short(1, 4), self._read, command)
            case p.ReportPublished():
                self.published = command.checkpoint
                self._task.worker.changed(self._task)
            case _:
                super()._carry_out_other(command)

    def _ready(self, epoch: int) -> None:
        super()._ready(epoch)
        if self.machine.phase in (p.PublisherPhase.WAITING, p.PublisherPhase.READING_FRAMES):
            self._world.coverage.add("publisher goes on from its own mark")

    def _committed(self, mark: p.Mark) -> None:
        self._task.holds.hold("mark", mark.position)
        self._credit.published(mark.position)
        self._handle(p.Committed())
        if self.machine.announced:
            self._task.running()
        self._task.trim()
        self._task.credit_changed()

    def _read(self, command: p.ReadFrames) -> None:
        if self._task.gone:
            return
        partition = self._world.log.partition(self._task.topic, self._task.index)
        try:
            records = partition.read(command.start, 1_000)
        except OffsetOutOfRangeError as error:
            if self._world.log_damaged:
                self._handle(p.FramesGone(str(error)))
                return
            if self._task.deploy.attempt == self._world.newest_attempt:
                raise Violation(f"I12: the publisher reads what was trimmed: {error}") from error
            self._task.fail(error)
            return
        frames: list[Any] = []
        size, end = 0, command.start
        for offset, after, (frame, rows) in records:
            if size >= command.max_bytes:
                break
            if offset >= command.end:
                end = command.end
                break
            frames.append((offset, after, frame, (self._task.topic, self._task.index, offset, frame, rows), 0))
            size += 10 * len(rows)
            end = after
        if end > command.start:
            self._handle(p.FramesRead(frames, end))
        else:
            self._handle(p.FramesGone(f"it ends at {partition.end}"))


def _say_the_same(known: Sequence[Interval], manifest: Sequence[Interval]) -> bool:
    """Whether both name the same frames of the same attempts, but for a beginning that is published."""
    mine, said = ({(i.attempt, o) for i in each for o in range(i.start, i.end)} for each in (known, manifest))
    return mine <= said and all(offset < known[0].start for _, offset in said - mine)
