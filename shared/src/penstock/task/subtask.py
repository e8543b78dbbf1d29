"""One subtask as an asyncio service: it feeds a `SubtaskMachine` and carries out what that commands.

Everything that happens outside reaches the subtask through its inbox and is handled between two batches, so operators
are never called concurrently. CPU work happens between awaits, which wait for input, credit or wall-clock timers, or let
others run where many event timers are due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, assert_never

from penstock.connectors.base import PublishedSink, ReadContext, SinkEncoder, SinkWriter, WriteContext
from penstock.coordination.collected_rows import collecting_sinks
from penstock.coordination.job_store import JobStore
from penstock.coordination.retrying_ports import RetryingLog, Waiting
from penstock.coordination.start_positions import StartPositionStore
from penstock.errors import ExternalError
from penstock.graph.executiongraph import ExecutionGraph
from penstock.graph.jobgraph import DEAD_LETTERS_TAG, ENCODE, JobGraph
from penstock.graph.logical import LogicalPlan, Read, Write
from penstock.ports import Blobs, Clock, Log
from penstock.protocol.channels import AdvanceWatermark, BecomeIdle, Deliver
from penstock.protocol.joblog import StateBackend
from penstock.protocol.manifests import Manifest, blob_prefix
from penstock.protocol.messages import Acknowledged, AnyEvent, Declined, Deploy, TaskState, TaskStatus
from penstock.protocol.outputs import CREDIT_BYTES, OutputId, OutputLedger
from penstock.protocol.restoring import watermarks_above
from penstock.protocol.subtask import (
    BarrierSent,
    CreditReported,
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
    SourceExhausted,
    SubtaskCommand,
    SubtaskEvent,
    SubtaskMachine,
    Upload,
    Uploaded,
    UploadFailed,
)
from penstock.task.chain import Chain, build_chain
from penstock.task.committer import STAGED, Committer, decode_staged
from penstock.task.exchange import Coalescer, ExchangeWriter, decode_payload, frame_schema
from penstock.task.exchange_io import CreditReport, ExchangeReader, FrameSender
from penstock.task.inbox import Inbox
from penstock.task.operator import OperatorMetrics, OperatorSnapshot, RestoredState
from penstock.task.sinks import are_visible, prepare_sink
from penstock.task.snapshots import FrozenSubtask, restore_operator, upload
from penstock.task.sources import SourceDriver
from penstock.times import MAX_WATERMARK, MIN_WATERMARK

SPLITS = "splits"
"""Name of the union list state that holds a source's splits."""
PRESSED_PAUSE_S = 0.1
SLICE_MS = 20
"""How long a subtask works before it lets others run."""


@dataclass(frozen=True)
class SubtaskSettings:
    """Settings of the data path."""

    flush_ms: int = 50
    credit_bytes: int = CREDIT_BYTES
    state_backend: StateBackend = "fs"
    longest_wait_ms: int = 1_000
    """How long a subtask that has nothing to do waits before it looks at wall time again, which may have jumped."""
    broker_patience_ms: int = 0
    """How long a subtask waits for a log that is away before its attempt fails; 0: not at all."""


@dataclass(frozen=True)
class Services:
    """What a subtask is given of the world."""

    log: Log
    blobs: Blobs
    clock: Clock
    settings: SubtaskSettings = field(default_factory=SubtaskSettings)
    pressed: Callable[[], bool] = lambda: False
    """Whether memory is short: sources then wait a little between two batches."""
    collects: bool = False
    """Whether rows that a sink gathers in memory are for another process, and so go into the store."""


def exchange_log(services: Services, waiting: Waiting) -> Log:
    """The log as the exchanges of a subtask use it.

    A frame may be appended twice then, the second time behind later ones at the worst: readers know it by its seq.
    """
    patience_ms = services.settings.broker_patience_ms
    return RetryingLog(services.log, services.clock, patience_ms, waiting) if patience_ms else services.log


@dataclass
class TimeUse:
    """Where a subtask's time went, in microseconds."""

    busy_us: int = 0
    idle_us: int = 0
    blocked_us: int = 0


class SubtaskRunner:
    """A deployed subtask. `run` returns when the leader commands the end, and raises when the subtask fails."""

    def __init__(
        self,
        deploy: Deploy,
        graph: JobGraph,
        plan: LogicalPlan,
        manifest: Manifest | None,
        services: Services,
        inbox: Inbox,
        send_event: Callable[[AnyEvent], None],
        status_changed: Callable[[TaskStatus], None],
    ) -> None:
        self.deploy = deploy
        self.inbox = inbox
        self.time_use = TimeUse()
        self.state: TaskState = "initializing"
        self._execution = ExecutionGraph(graph)
        self._vertex = graph.vertex(deploy.subtask.vertex)
        self._plan = plan
        self._manifest = manifest
        self._services = services
        self._send_event = send_event
        self._status_changed = status_changed
        self._source: SourceDriver | None = None
        self._paused = False
        self._exhausted = False
        self._final = False
        """Whether the job has ended with this attempt."""
        self._watermark = MIN_WATERMARK
        self._ahead: dict[str, dict[int, int]] = {}
        """Per operator: key groups whose former owner had come further than this subtask has."""
        self._aligning_since_us: int | None = None
        self._chain: Chain | None = None
        self._committer: Committer | None = None
        self._coalescer: Coalescer | None = None
        self._frozen: dict[int, FrozenSubtask] = {}
        self._background: asyncio.TaskGroup | None = None
        self._tasks: list[asyncio.Task[None]] = []
        """What runs beside the subtask; its end ends them, and a failure of one fails the subtask."""
        self._source_bytes = 0
        self._state_bytes = 0
        self.waits_for = ""
        log = exchange_log(services, self._waits)
        self._sender = FrameSender(deploy, log, inbox.put)
        self._unflushed_since_ms: int | None = None
        consumers = self._execution.outputs(deploy.subtask)
        self._ledger = OutputLedger(
            deploy.attempt,
            deploy.subtask.index,
            [output for _, outputs in consumers for output in outputs],
            services.settings.credit_bytes,
        )
        self._writers = [
            ExchangeWriter(
                outputs, edge, graph.vertex(outputs[0].exchange).max_parallelism, self._ledger, self._sender.enqueue
            )
            for edge, outputs in consumers
        ]
        self._edges = [edge for edge, _ in consumers]
        self._schemas = [frame_schema(edge) for edge in self._vertex.inputs]
        self.machine = SubtaskMachine(
            deploy.job,
            deploy.attempt,
            deploy.subtask,
            "source" if self._vertex.is_source else "inner",
            self._execution.channels(deploy.subtask),
            self._ledger,
        )
        self._reader = ExchangeReader(
            deploy, log, self.machine.gate.processed_bytes, services.settings.credit_bytes, inbox.put
        )

    # -- life -----------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Open, work until finished, close."""
        chain, committer = await self._open()
        self._chain, self._committer = chain, committer
        self._coalescer = Coalescer(chain.head.rows) if chain.head is not None else None
        self.state = "running"
        self._status_changed(self.status)
        try:
            async with asyncio.TaskGroup() as group:
                self._background = group
                self._beside(committer.run())
                self._beside(self._sender.run())
                if self._vertex.inputs:
                    self._beside(self._reader.fetch())
                    self._beside(self._reader.report_credit())
                    self._beside(self._reader.trim())
                await self._work(chain)
                for task in list(self._tasks):
                    task.cancel()
            if self._final:
                await committer.job_ended()
            self.state = "finished"
        finally:
            if self._source is not None:
                await self._source.close()
            chain.close()

    @property
    def status(self) -> TaskStatus:
        """What the leader hears."""
        metrics = {operator: _as_dict(m) for operator, m in self._chain.metrics.items()} if self._chain else {}
        return TaskStatus(
            job=self.deploy.job,
            attempt=self.deploy.attempt,
            subtask=self.deploy.subtask,
            state=self.state,
            published=self._committer.published if self._committer else 0,
            metrics=metrics,
            progress={
                "watermark": self._watermark,
                "busy_us": self.time_use.busy_us,
                "idle_us": self.time_use.idle_us,
                "blocked_us": self.time_use.blocked_us,
                "bytes_in": self._source_bytes + self._reader.bytes_in,
                "bytes_out": self._sender.bytes_out,
                "state_bytes": self._state_bytes,
                **self._lag(),
            },
            waits_for=self.waits_for,
        )

    def _waits(self, what: str) -> None:
        self.waits_for = what

    def _lag(self) -> dict[str, int]:
        behind = self._source.records_behind if self._source is not None else None
        return {} if behind is None else {"records_behind": behind}

    async def _open(self) -> tuple[Chain, Committer]:
        restored: dict[str, RestoredState | None] = {}
        if self._manifest is not None:
            for operator in self._vertex.operators:
                restored[operator.id] = await restore_operator(
                    self._manifest,
                    operator.id,
                    self._execution.key_groups(self.deploy.subtask),
                    self.deploy.subtask.index,
                    self._vertex.parallelism,
                    self._services.blobs,
                )
                state = restored[operator.id]
                if state is not None and operator.verb not in ("read", "write"):
                    self._ahead[operator.id] = dict(state.watermarks)
        writers: dict[str, SinkWriter] = {}

        def open_sink(operator: str, write: Write) -> SinkWriter:
            writers[operator] = write.sink.open(self._sink_schema(operator), self._write_context(operator))
            return writers[operator]

        store = JobStore(self._services.blobs, self._services.clock)
        for operator in self._vertex.operators:
            await prepare_sink(operator.id, operator.node, self._plan, self.deploy, self._manifest, store)
        chain = build_chain(
            self._vertex,
            self._plan,
            self.deploy.subtask.index,
            self._execution.key_groups(self.deploy.subtask),
            self._services.clock.now_us,
            restored.get,
            open_sink,
            await self._encoders(),
            [
                (edge.link.source, edge.link.tag, writer)
                for edge, writer in zip(self._edges, self._writers, strict=True)
            ],
        )
        staged = [part for state in restored.values() if state for part in decode_staged(state.lists.get(STAGED, ()))]
        if staged and self._manifest is not None and await are_visible(self._manifest, self.deploy, store):
            staged = []
        checkpoint = self.deploy.restore.checkpoint if self.deploy.restore else 0
        collected = collecting_sinks(self._vertex, self._plan, self.deploy.job, self._services.blobs)
        elsewhere = collected if self._services.collects else {}
        committer = Committer(writers, staged, checkpoint, self._published_changed, elsewhere)
        if self._vertex.is_source:
            self._source = await self._open_source(chain, restored)
        return chain, committer

    async def _encoders(self) -> dict[str, SinkEncoder]:
        encoders: dict[str, SinkEncoder] = {}
        for operator in self._vertex.operators:
            node = self._plan.node(operator.node)
            if operator.verb == ENCODE and isinstance(node.operation, Write):
                assert isinstance(node.operation.sink, PublishedSink)
                encoders[operator.id] = await node.operation.sink.encoder(node.schema, operator.id)
        return encoders

    async def _open_source(self, chain: Chain, restored: dict[str, RestoredState | None]) -> SourceDriver:
        operator = self._vertex.operators[0]
        operation = self._plan.node(operator.node).operation
        assert isinstance(operation, Read)
        clock = self._services.clock
        context = ReadContext(
            clock.now_us, clock.monotonic_ms, self._vertex.parallelism, next_timer_us=chain.next_timer_us
        )
        driver = SourceDriver(
            operation.source,
            self.deploy.subtask.index,
            self._vertex.parallelism,
            context,
            chain.metrics[operator.id],
            StartPositionStore(self._services.blobs, self.deploy.job, operator.id).remember,
        )
        state = restored.get(operator.id)
        await driver.open(state.unions.get(SPLITS, ()) if state else ())
        return driver

    def _sink_schema(self, operator: str) -> Any:
        node = next(o.node for o in self._vertex.operators if o.id == operator)
        return self._plan.node(node).schema

    def _write_context(self, operator: str) -> WriteContext:
        return WriteContext(
            operator,
            self.deploy.subtask.index,
            self.deploy.attempt,
            self.deploy.attempt_number,
            self._services.clock.now_us,
        )

    # -- the loop -------------------------------------------------------------------------------------------------------

    async def _work(self, chain: Chain) -> None:
        clock = self._services.clock
        while not self.machine.finished:
            started = self._micros()
            slice_end = clock.monotonic_ms() + SLICE_MS
            self.inbox.clear()
            credit = not self._ledger.blocked()
            while not self.machine.finished and clock.monotonic_ms() < slice_end:
                event = self.inbox.take(frames=credit)
                if event is None:
                    break
                await self._feed(event)
                credit = not self._ledger.blocked()
            if self._coalescer is not None:
                self._coalescer.flush()
            timer = chain.next_timer_us()
            if timer is not None and timer <= clock.now_us():
                chain.fire_timers(clock.now_us())
            self._flush_if_due()
            self.time_use.busy_us += self._micros() - started
            await self._next_input(chain)

    async def _next_input(self, chain: Chain) -> None:
        """Read the source, or wait until there is something to do."""
        credit = not self._ledger.blocked()
        if self.machine.finished:
            return
        if self._source is not None and credit and not (self._paused or self._exhausted):
            await self._read_source(self._source, chain)
            await asyncio.sleep(PRESSED_PAUSE_S if self._services.pressed() else 0)
        elif self.inbox.ready(frames=credit):
            await asyncio.sleep(0)
        else:
            started = self._micros()
            await self.inbox.wait(self._timeout_s(chain))
            waited = self._micros() - started
            if credit:
                self.time_use.idle_us += waited
            else:
                self.time_use.blocked_us += waited

    def _timeout_s(self, chain: Chain) -> float:
        """Until the next flush or timer, at most `longest_wait_ms`."""
        timeout = self._services.settings.longest_wait_ms / 1_000
        if self._unflushed_since_ms is not None:
            due = self._unflushed_since_ms + self._services.settings.flush_ms
            timeout = min(timeout, (due - self._services.clock.monotonic_ms()) / 1_000)
        timer = chain.next_timer_us()
        if timer is not None:
            timeout = min(timeout, (timer - self._services.clock.now_us()) / 1_000_000)
        return max(0.001, timeout)

    async def _read_source(self, source: SourceDriver, chain: Chain) -> None:
        started = self._micros()
        batch = await source.step()
        self._source_bytes += batch.size_bytes
        output = chain.source_output
        assert output is not None
        if batch.frame is not None:
            output.rows(batch.frame)
        if batch.dead is not None:
            output.side(DEAD_LETTERS_TAG, batch.dead)
        if batch.watermark is not None:
            await self._advance(batch.watermark)
        spent = self._micros() - started
        if batch.frame is None:
            self.time_use.idle_us += spent
            self._flush()
        else:
            self.time_use.busy_us += spent
        if batch.became_idle:
            for writer in self._writers:
                writer.idle()
        if batch.exhausted:
            self._exhausted = True
            await self._feed(SourceExhausted())

    def _flush_if_due(self) -> None:
        if not any(writer.waiting for writer in self._writers):
            self._unflushed_since_ms = None
            return
        now_ms = self._services.clock.monotonic_ms()
        if self._unflushed_since_ms is None:
            self._unflushed_since_ms = now_ms
        idle_input = self._source is None and not self.inbox.ready(frames=True)
        if idle_input or now_ms - self._unflushed_since_ms >= self._services.settings.flush_ms:
            self._flush()

    def _flush(self) -> None:
        for writer in self._writers:
            writer.flush()
        self._unflushed_since_ms = None

    async def _advance(self, watermark: int) -> None:
        """Many timers may be due: others run meanwhile, and a cancellation is heard."""
        self._watermark = watermark
        if self._chain is not None:
            for _ in self._chain.fire_due(watermark):
                await asyncio.sleep(0)
            self._chain.watermark(watermark)

    # -- events and commands --------------------------------------------------------------------------------------------

    async def _feed(self, event: SubtaskEvent) -> None:
        if isinstance(event, FrameRead):
            self._reader.fed(event)
        for command in self.machine.handle(event):
            await self._carry_out(command)
        if self._aligning_since_us is None and self.machine.gate.aligning is not None:
            self._aligning_since_us = self._micros()

    async def _carry_out(self, command: SubtaskCommand) -> None:
        if not isinstance(command, Deliver) and self._coalescer is not None:
            self._coalescer.flush()
        match command:
            case Deliver():
                assert self._coalescer is not None
                self._coalescer.add(decode_payload(command.ref, self._schemas[command.channel.input]))
            case AdvanceWatermark():
                await self._advance(command.watermark)
            case BecomeIdle():
                for writer in self._writers:
                    writer.idle()
            case Freeze():
                self._freeze(command.checkpoint)
                await self._feed(Frozen(command.checkpoint))
            case FlushRows():
                self._flush()
            case SendBarrier():
                for writer in self._writers:
                    writer.barrier(command.checkpoint, command.nonce, command.flavour)
                await self._feed(BarrierSent(command.checkpoint))
            case Upload():
                self._beside(self._upload(command))
            case Send():
                self._beside(self._report(command.message))
            case EmitEndOfTime():
                await self._advance(MAX_WATERMARK)
            case SetPaused():
                self._paused = command.paused
            case Publish():
                assert self._committer is not None
                self._committer.completed(command.checkpoint)
                self._reader.completed(command.checkpoint)
            case ReportEnded():
                self.state = "ended"
                self._status_changed(self.status)
            case Finish():
                self._final = command.final
            case _:
                assert_never(command)

    def _published_changed(self) -> None:
        self._status_changed(self.status)

    # -- snapshots ------------------------------------------------------------------------------------------------------

    def _freeze(self, checkpoint: int) -> None:
        assert self._chain is not None
        assert self._committer is not None
        started = self._micros()
        self._reader.frozen(checkpoint)
        snapshots: dict[str, OperatorSnapshot] = {}
        for operator, link in self._chain.operators.items():
            snapshot = link.operator.snapshot()
            if snapshot is not None:
                snapshots[operator] = snapshot
        if self._source is not None:
            snapshots[self._vertex.operators[0].id] = OperatorSnapshot(unions={SPLITS: self._source.entries()})
        listed, persists = self._committer.prepare(checkpoint)
        for operator, entries in listed.items():
            snapshots[operator] = OperatorSnapshot(lists={STAGED: entries})
        alignment_us = started - self._aligning_since_us if self._aligning_since_us is not None else 0
        self._aligning_since_us = None
        sync_us = self._micros() - started
        self._ahead = {o: watermarks_above(groups, self._watermark) for o, groups in self._ahead.items()}
        self._frozen[checkpoint] = FrozenSubtask(
            snapshots, self._watermark, sync_us, alignment_us, self._ahead, persists
        )

    async def _upload(self, command: Upload) -> None:
        frozen = self._frozen.pop(command.checkpoint)
        prefix = blob_prefix(self.deploy.job, self.deploy.attempt, command.checkpoint, command.nonce)
        prefix += f"{self.deploy.subtask.vertex}-{self.deploy.subtask.index}-"
        try:
            snapshot = await upload(
                frozen, prefix, self._services.blobs, self._services.settings.state_backend, self._micros
            )
        except Exception as error:  # a checkpoint that cannot be written is declined, whatever the reason
            away = isinstance(error, ExternalError) and error.retryable
            reason = f"{type(error).__name__}: {error}"
            self.inbox.put(UploadFailed(command.checkpoint, command.nonce, reason, away))
            return
        assert self._committer is not None
        self._committer.persisted(frozen.persist)
        self._state_bytes = snapshot.size_bytes
        self.inbox.put(Uploaded(command.checkpoint, command.nonce, snapshot))

    async def _report(self, message: Acknowledged | Declined) -> None:
        """Tell the leader, not before the confirmed frames that an ack speaks of survive a power loss."""
        if isinstance(message, Acknowledged):
            await self._services.log.sync()
        self._send_event(message)

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        assert self._background is not None
        task = self._background.create_task(work)
        self._tasks.append(task)
        task.add_done_callback(self._tasks.remove)

    def credit(self, report: CreditReport) -> None:
        """A consumer's report, read from the credits topic."""
        own = self.deploy.subtask.index
        if report.attempt != self.deploy.attempt:
            return
        for index, producer, size in report.processed:
            output = OutputId(report.vertex, index, report.partition)
            if producer == own and output in self._ledger.outputs:
                self.inbox.put(CreditReported(output, size))

    def _micros(self) -> int:
        return self._services.clock.monotonic_us()


def _as_dict(metrics: OperatorMetrics) -> dict[str, int]:
    return {name: getattr(metrics, name) for name in OperatorMetrics.__slots__}
