"""The subtask that publishes an exactly-once sink: its exchange partition is the write-ahead log.

It scans the partition without looking into payloads, takes part in checkpoints like any subtask (its snapshot is the
position behind the barrier), and publishes what COMPLETE covers. What may be published when is decided by
`penstock.protocol.publishing`, carried out by `penstock.task.publish_loop`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, assert_never

import structlog

from penstock.connectors.base import PublishContext, PublishedSink, SinkPublisher
from penstock.core.times import MIN_WATERMARK
from penstock.errors import PipelineError
from penstock.graph.executiongraph import exchange_topic
from penstock.plan.logical import LogicalPlan
from penstock.plan.operations.write import Write
from penstock.protocol.channels import AdvanceWatermark, BecomeIdle, Deliver
from penstock.protocol.manifests import Interval, Manifest, PartitionIntervals
from penstock.protocol.messages import OperatorMetrics, SubtaskSnapshot, TaskProgress
from penstock.protocol.outputs import OutputLedger
from penstock.protocol.publishing import FramesGone, FramesRead, Mark, PublisherMachine, ReadFrames
from penstock.protocol.sinkcredit import SinkCredit
from penstock.protocol.subtask import (
    BarrierSent,
    EmitEndOfTime,
    Finish,
    FlushRows,
    FrameRead,
    Freeze,
    Frozen,
    Publish,
    ReportEnded,
    Send,
    SendBarrier,
    SetPaused,
    SubtaskCommand,
    SubtaskEvent,
    Upload,
    Uploaded,
)
from penstock.task.environment import TaskEnvironment
from penstock.task.exchange import decode_payload, frame_schema
from penstock.task.publish_loop import PublishHooks, PublishLoop, ScannedFrames, read_frames
from penstock.task.task_loop import CheckpointedLoop, Work

if TYPE_CHECKING:
    import polars as pl

BACKLOG_BYTES: Final = 256 << 20
"""How much of what COMPLETE covers may wait in the log before producers are slowed down."""
KEPT_BYTES: Final = 64 << 20
"""How much of what was scanned is kept in memory until it is published; the rest is read from the log again."""
SLICE_EVENTS: Final = 500

_log = structlog.get_logger("penstock.publishing")


class PublishingRunner(CheckpointedLoop):
    """A deployed publishing subtask."""

    def __init__(self, environment: TaskEnvironment, jitter: Callable[[int], int] = random.randrange) -> None:
        deploy, settings = environment.deploy, environment.services.settings
        self._credit = SinkCredit(BACKLOG_BYTES)
        ledger = OutputLedger(deploy.attempt, deploy.subtask.index, (), settings.credit_bytes)
        super().__init__(environment, ledger, self._credit.processed_bytes)
        self._topic = exchange_topic(deploy.job, self._vertex.id, deploy.generation)
        self._schema = frame_schema(self._vertex.inputs[0])
        self._metrics = OperatorMetrics()
        self._watermark = MIN_WATERMARK
        self._published = 0
        self._unpublishable = ""
        """What keeps it from publishing; the log, which it reads too, tells of itself."""
        self._kept = ScannedFrames(KEPT_BYTES)
        restored = self._restored(environment.manifest)
        self._initial = restored or ()
        self._intervals = PartitionIntervals(deploy.attempt, deploy.start_offset, self._initial)
        first = min((interval.start for interval in self._initial), default=deploy.start_offset)
        self._reader.hold("reader", deploy.start_offset)
        self._reader.hold("mark", first)
        machine = PublisherMachine(
            deploy.attempt_number,
            jitter,
            restored=deploy.restore.checkpoint if deploy.restore else 0,
            first_position=deploy.start_offset if restored is None else None,
            exchange=f"{self._topic}[{deploy.subtask.index}]",
        )
        hooks = PublishHooks(self._read, self._decode, self._committed, self._published_up_to, self._publishing_waits)
        self._loop = PublishLoop(machine, self._publisher(environment.plan), self._services.clock, hooks)

    def _restored(self, manifest: Manifest | None) -> tuple[Interval, ...] | None:
        """What the restored checkpoint covers; None if nothing of this generation can have been published."""
        deploy = self.deploy
        if manifest is None or manifest.job != deploy.job or manifest.generation != deploy.generation:
            return None
        return manifest.intervals.get(deploy.subtask.vertex, {}).get(deploy.subtask.index, ())

    def _publisher(self, plan: LogicalPlan) -> SinkPublisher:
        operator = self._vertex.operators[0]
        node = plan.by_operator(operator.id)
        operation = node.operation if node is not None else None
        if not isinstance(operation, Write) or not isinstance(operation.sink, PublishedSink):
            raise PipelineError(f"the pipeline has no sink {operator.id!r}, whose exchange has rows to publish")
        context = PublishContext(
            self.deploy.job,
            operator.id,
            self.deploy.generation,
            self.deploy.subtask.index,
            self._vertex.parallelism,
            self._services.clock.now_us,
        )
        return operation.sink.publisher(context)

    # -- life -----------------------------------------------------------------------------------------------------------

    def _works_beside(self) -> list[Work]:
        return [*super()._works_beside(), self._loop.run(self._initial)]

    async def _work(self) -> None:
        while not self.machine.finished:
            started = self._micros()
            self.inbox.clear()
            for _ in range(SLICE_EVENTS):
                event = self.inbox.take(frames=True)
                if event is None or self.machine.finished:
                    break
                await self._feed(event)
            worked = self._micros()
            self.time_use.busy_us += worked - started
            if self.machine.finished:
                return
            if self.inbox.ready(frames=True):
                await asyncio.sleep(0)
            else:
                await self.inbox.wait(1.0)
                self.time_use.idle_us += self._micros() - worked

    # -- what others hear -----------------------------------------------------------------------------------------------

    def _published_checkpoint(self) -> int:
        return self._published

    def _publishing_waits(self, what: str) -> None:
        self._unpublishable = what

    def _waited_for(self) -> str:
        return self._unpublishable or super()._waited_for()

    def _operator_metrics(self) -> Mapping[str, OperatorMetrics]:
        return {self._vertex.operators[0].id: self._metrics}

    def _progress(self) -> TaskProgress:
        return TaskProgress(
            watermark=self._watermark,
            busy_us=self.time_use.busy_us,
            idle_us=self.time_use.idle_us,
            blocked_us=self.time_use.blocked_us,
            bytes_in=self._reader.bytes_in,
            unpublished_bytes=self._credit.waiting_bytes,
        )

    # -- events and commands --------------------------------------------------------------------------------------------

    async def _feed(self, event: SubtaskEvent) -> None:
        if isinstance(event, FrameRead):
            self._kept.scanned(self._reader.position, self._reader.next_position, event.frame, event.ref)
            if event.frame.attempt == self.deploy.attempt:
                self._metrics.rows_in += event.frame.rows
        await super()._feed(event)

    async def _carry_out(self, command: SubtaskCommand) -> None:
        match command:
            case Deliver():
                self._credit.scanned(command.channel, command.size_bytes, self._reader.position)
            case AdvanceWatermark():
                self._watermark = command.watermark
            case Freeze():
                self._reader.frozen(command.checkpoint)
                await self._feed(Frozen(command.checkpoint))
            case SendBarrier():
                await self._feed(BarrierSent(command.checkpoint))
            case Upload():
                # its one channel delivered the barrier just now, and nothing behind it was fed
                self._intervals.acknowledged(command.checkpoint, self._reader.position)
                snapshot = SubtaskSnapshot(watermark=self._watermark, position=self._reader.position)
                await self._feed(Uploaded(command.checkpoint, command.nonce, snapshot))
            case Send():
                self._send_event(command.message)
            case Publish():
                self._completed(command)
            case FlushRows() | BecomeIdle() | EmitEndOfTime() | SetPaused() | ReportEnded() | Finish():
                pass
            case _:
                assert_never(command)

    # -- publishing -----------------------------------------------------------------------------------------------------

    def _completed(self, command: Publish) -> None:
        """COMPLETE: what stands before its barrier may be published."""
        self._reader.completed(command.checkpoint)
        intervals = self._intervals.completed(command.checkpoint, self._published)
        if intervals:
            self._credit.covered(intervals[-1].end)
            self._loop.covered(intervals)

    async def _read(self, command: ReadFrames) -> FramesRead | FramesGone:
        """Frames of the asked range, from memory or from the log."""
        kept = self._kept.read(command)
        if kept is not None:
            return kept
        return await read_frames(self._services.log, self._topic, self.deploy.subtask.index, command)

    def _decode(self, ref: Any) -> pl.DataFrame:
        return decode_payload(ref, self._schema)

    def _committed(self, mark: Mark, rows: int, left_out: int) -> None:
        self._metrics.rows_out += rows
        self._metrics.bad_rows += left_out
        self._kept.published(mark.position)
        self._credit.published(mark.position)
        self._reader.hold("mark", mark.position)
        self._reader.credit_changed()
        if self.state == "initializing":  # from now on a checkpoint may be taken: see `PublisherMachine.announced`
            self._is_now("running")

    def _published_up_to(self, checkpoint: int) -> None:
        self._published = checkpoint
        self._changed()
