"""One subtask as an asyncio service: it feeds a `SubtaskMachine` and carries out what that commands.

Everything that happens outside reaches the subtask through its inbox and is handled between two batches, so operators
are never called concurrently. CPU work happens between awaits, which wait for input, credit or wall-clock timers, or let
others run where much is due or to be merged.

How it opens stands in `penstock.task.opening`, what its checkpoints consist of in `penstock.task.subtask_checkpoints`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import assert_never

import polars as pl
from msgspec import UNSET

from penstock.core.batches import WATERMARK, with_watermarks
from penstock.core.times import MAX_WATERMARK, MIN_WATERMARK
from penstock.graph.jobgraph import DEAD_LETTERS_TAG, JobVertex
from penstock.protocol.channels import AdvanceWatermark, BecomeIdle, Deliver
from penstock.protocol.messages import Acknowledged, Declined, OperatorMetrics, SubtaskId, TaskProgress
from penstock.protocol.outputs import OutputId, OutputLedger
from penstock.protocol.subtask import (
    BarrierSent,
    CreditReported,
    EmitEndOfTime,
    Finish,
    FlushRows,
    FrameRead,
    Freeze,
    Frozen,
    MarkerRead,
    Publish,
    ReportEnded,
    Send,
    SendBarrier,
    SetPaused,
    SourceExhausted,
    SubtaskCommand,
    SubtaskEvent,
    Upload,
)
from penstock.task.alignment import alignment_of
from penstock.task.chain import Chain
from penstock.task.combining import Combiner
from penstock.task.environment import TaskEnvironment
from penstock.task.exchange import Coalescer, ExchangeWriter, decode_payload, frame_schema
from penstock.task.exchange_io import CreditReport, FrameSender
from penstock.task.large_rows import LargeRows
from penstock.task.opening import OpenedOperators, ahead_of, open_operators, open_source
from penstock.task.sources import FEW_ROWS, SourceDriver
from penstock.task.split_publishing import SplitPublishing
from penstock.task.subtask_checkpoints import SubtaskCheckpoints
from penstock.task.task_loop import CheckpointedLoop, Work

PRESSED_PAUSE_S = 0.1
SLICE_MS = 20
"""How long a subtask works before it lets others run."""


class SubtaskRunner(CheckpointedLoop):
    """A deployed subtask that works on rows: those of its source, or of the vertices before it."""

    def __init__(self, environment: TaskEnvironment) -> None:
        deploy, settings = environment.deploy, environment.services.settings
        consumers = environment.execution.outputs(deploy.subtask)
        outputs = [output for _, outputs in consumers for output in outputs]
        self._ledger = OutputLedger(deploy.attempt, deploy.subtask.index, outputs, settings.credit_bytes)
        super().__init__(environment, self._ledger)
        self._sender = FrameSender(deploy, self._log, self.inbox.put)
        graph = environment.graph
        vertices = [graph.vertex(outputs[0].exchange) for _, outputs in consumers]
        self._writers = [
            ExchangeWriter(
                outputs,
                edge,
                vertex.max_parallelism,
                self._ledger,
                self._sender.enqueue,
                self._combiner(vertex) if edge.combined else None,
                largest_bytes=self._log.largest_record_bytes,
                too_large=LargeRows(
                    edge, self._vertex, vertex.name, environment.plan, self._first_metrics, self._dead_letter
                ),
            )
            for (edge, outputs), vertex in zip(consumers, vertices, strict=True)
        ]
        self._edges = [edge for edge, _ in consumers]
        self._schemas = [frame_schema(edge) for edge in self._vertex.inputs]
        takes_combined = any(edge.combined for edge in self._vertex.inputs)
        self._combined_schema = self._combiner(self._vertex).arrow_schema if takes_combined else None
        self._chain: Chain | None = None
        self._checkpoints: SubtaskCheckpoints | None = None
        self._coalescer: Coalescer | None = None
        self._source: SourceDriver | None = None
        self._alignment = alignment_of(environment.plan, environment.execution, deploy.subtask)
        self._splits: SplitPublishing | None = None
        """Publishes what the source reads, where no checkpoint is waited for."""
        self._before_first = False
        """Whether nothing may be read: the job began with the state of another one, and has no checkpoint of its own that
        a third one could begin with instead. What is published would be published again by that."""
        self._source_bytes = 0
        self._paused = False
        self._exhausted = False
        """Whether the source has no more rows; the machine is told when none waits in an operator either."""
        self._end_told = False
        self._resting = False
        """Whether nothing is to be waited for here, as soon as no row waits in an operator."""
        self._watermark = MIN_WATERMARK
        gather_ms = settings.gather_covered_ms if graph.shows_what_is_covered else settings.gather_ms
        self._gather_ms = 0 if environment.plan.is_bounded else gather_ms
        self._gathers_until_ms = 0
        """Before then no more rows are taken, unless a barrier is behind them: there were few just now."""
        self._hurries = False
        """Whether a barrier waits while the source is read."""
        self._unflushed_since_ms: int | None = None
        self._watermark_interval_ms = environment.plan.watermark_interval_us // 1_000
        self._next_watermark_ms = 0

    def _first_metrics(self) -> OperatorMetrics:
        """The counters of the vertex's first operator."""
        assert self._chain is not None
        return self._chain.metrics[self._vertex.operators[0].id]

    def _dead_letter(self, letters: pl.DataFrame) -> None:
        """Hand on dead letters of the source."""
        assert self._chain is not None
        assert self._chain.source_output is not None
        self._chain.source_output.side(DEAD_LETTERS_TAG, letters)

    def _combiner(self, vertex: JobVertex) -> Combiner:
        """Of the aggregate that a vertex begins with."""
        return Combiner(self._environment.plan.node(vertex.operators[0].node))

    # -- life -----------------------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        exchanges = [
            (edge.link.source, edge.link.tag, writer) for edge, writer in zip(self._edges, self._writers, strict=True)
        ]
        environment = self._environment
        manifest = environment.manifest
        self._before_first = self._vertex.publishes_splits and manifest is not None and manifest.job != self.deploy.job
        if self._vertex.publishes_splits:
            self._splits = SplitPublishing(environment, self._rows_published, self.inbox.wake, random.randrange)
        opened = await open_operators(environment, exchanges, self._splits)
        committer = environment.committer(opened.writers, opened.staged, self._changed)
        self._chain, self._committer = opened.chain, committer
        if self._vertex.is_source:
            self._source = await self._opened_source(opened)
        ahead = ahead_of(environment, opened.restored)
        self._checkpoints = SubtaskCheckpoints(environment, opened.chain, committer, self._source, ahead, self._splits)
        self._coalescer = Coalescer(opened.chain.rows) if opened.chain.head is not None else None
        self._is_now("running")

    async def _opened_source(self, opened: OpenedOperators) -> SourceDriver:
        begin = self._splits.begin if self._splits is not None else None
        try:
            return await open_source(self._environment, opened, self._alignment, self._other_work, begin)
        except BaseException:
            if self._splits is not None:
                await self._splits.close()
            raise

    def _rows_published(self, rows: int, left_out: int) -> None:
        assert self._chain is not None
        metrics = self._chain.metrics[self._vertex.operators[-1].id]
        metrics.rows_out += rows
        metrics.bad_rows += left_out

    def _works_beside(self) -> list[Work]:
        assert self._committer is not None
        works = [self._committer.run(), self._sender.run(), *super()._works_beside()]
        if self._splits is not None:
            works.append(self._splits.run())
        if self._alignment is not None:
            works.append(self._alignment.report(self.deploy, self._log, self._services.clock))
        return works

    async def _close(self) -> None:
        if self._source is not None:
            await self._source.close()
        if self._splits is not None:
            await self._splits.close()
        assert self._chain is not None
        self._chain.close()
        await self._chain.closed()

    # -- what others hear -----------------------------------------------------------------------------------------------

    def _operator_metrics(self) -> Mapping[str, OperatorMetrics]:
        return self._chain.metrics if self._chain else {}

    def _progress(self) -> TaskProgress:
        source = self._source
        behind, splits = source.lag() if source is not None else (None, {})
        silent = source.silent_split if source is not None else None
        return TaskProgress(
            watermark=self._watermark,
            busy_us=self.time_use.busy_us,
            idle_us=self.time_use.idle_us,
            blocked_us=self.time_use.blocked_us,
            bytes_in=self._source_bytes + self._reader.bytes_in,
            bytes_out=self._sender.bytes_out,
            state_bytes=self._checkpoints.state_bytes if self._checkpoints else 0,
            records_behind=UNSET if behind is None else behind,
            silent_split=UNSET if silent is None else silent.split,
            silent_us=UNSET if silent is None else silent.silent_ms * 1_000,
            waiting_to=UNSET if silent is None or not silent.is_empty else silent.furthest,
            splits_behind=splits or UNSET,
            unpublished_bytes=UNSET if self._splits is None else self._splits.pending_bytes,
        )

    def _waited_for(self) -> str:
        return (self._splits.waits_for if self._splits is not None else "") or super()._waited_for()

    def credit(self, report: CreditReport) -> None:
        """A consumer's report, or one of a source to wait for, read from the credits topic."""
        own = self.deploy.subtask.index
        if report.attempt != self.deploy.attempt:
            return
        if report.reached is not None and self._alignment is not None:
            self._alignment.heard(SubtaskId(report.vertex, report.partition), report.reached)
            self.inbox.wake()
        for index, producer, size in report.processed:
            output = OutputId(report.vertex, index, report.partition)
            if producer == own and output in self._ledger.outputs:
                self.inbox.put(CreditReported(output, size))

    # -- the loop -------------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        chain = self._chain
        assert chain is not None
        clock = self._services.clock
        while not self.machine.finished:
            started = self._micros()
            slice_end = clock.monotonic_ms() + SLICE_MS
            self.inbox.clear()
            rows = 0
            while not self.machine.finished and clock.monotonic_ms() < slice_end:
                event = self.inbox.take(frames=self._takes_rows(chain) and not self._gathering)
                if event is None:
                    break
                if isinstance(event, FrameRead):
                    rows += event.frame.rows
                elif isinstance(event, MarkerRead):
                    await self._read_gathered(chain)
                await self._feed(event)
            await self._coalesced(chain)
            if 0 < rows < FEW_ROWS and not self.inbox.ready(frames=True):
                self._gather()
            await self._fire_timers(chain)
            await self._end_or_rest(chain)
            self._flush_if_due()
            self.time_use.busy_us += self._micros() - started
            await self._next_input(chain)

    def _takes_rows(self, chain: Chain) -> bool:
        """Whether there is credit to emit what comes of rows, and room for them in the operators.

        A barrier does not wait for rows that wait in an operator: those before it go there, as far as there is room.
        """
        if self._splits is not None and self._splits.is_full:
            return False
        return not self._ledger.blocked() and not chain.is_full(before_barrier=self.inbox.has_barrier)

    def _gather(self) -> None:
        """Let more rows come before the next are taken: a batch of few costs about as much as one of many."""
        self._gathers_until_ms = self._services.clock.monotonic_ms() + self._gather_ms

    @property
    def _gathering(self) -> bool:
        return not self.inbox.has_barrier and self._services.clock.monotonic_ms() < self._gathers_until_ms

    async def _read_gathered(self, chain: Chain) -> None:
        """Read what has come to the source while it let rows come together: the barrier is not to leave it behind."""
        if self._source is None or self._alignment is not None or not self._gathering:
            return
        self._gathers_until_ms = 0
        end_ms, self._hurries = self._services.clock.monotonic_ms() + SLICE_MS, True
        for _ in range(self._source.split_count):
            if self._reads(chain) and self._services.clock.monotonic_ms() < end_ms:
                await self._read_source(self._source, chain)
        self._hurries = False

    def _reads(self, chain: Chain) -> bool:
        """Whether rows may be read from the source."""
        waits = self._paused or self._exhausted or self._before_first or self._gathering
        return self._source is not None and self._takes_rows(chain) and not waits

    async def _fire_timers(self, chain: Chain) -> None:
        """Many may be due, above all when a job goes on: others run meanwhile, and a cancellation is heard."""
        now_us, timer = self._services.clock.now_us(), chain.next_timer_us()
        if timer is not None and timer <= now_us:
            chain.fire_timers(now_us)
            await self._take_turns(chain)

    async def _end_or_rest(self, chain: Chain) -> None:
        """Say that the source is at its end, or that nothing comes for now, unless rows wait in an operator."""
        if chain.holds_rows():
            return
        if self._resting:
            self._resting = False
            chain.on_idle()
            for writer in self._writers:
                writer.idle()
        if self._exhausted and not self._end_told:
            self._end_told = True
            await self._feed(SourceExhausted())

    async def _settled(self, chain: Chain) -> None:
        """Wait for the rows that wait in operators: the input has ended, and the barrier may be the last."""
        while chain.holds_rows():
            self.inbox.clear()
            await self._fire_timers(chain)
            if chain.holds_rows():
                await self._wait(chain)

    async def _next_input(self, chain: Chain) -> None:
        """Read the source, or wait until there is something to do."""
        credit = self._takes_rows(chain)
        if self.machine.finished:
            return
        if self._source is not None and self._reads(chain):
            await self._read_source(self._source, chain)
            await asyncio.sleep(PRESSED_PAUSE_S if self._services.pressed() else 0)
        elif self.inbox.ready(frames=credit and not self._gathering):
            await asyncio.sleep(0)
        else:
            waited = await self._wait(chain)
            if credit:
                self.time_use.idle_us += waited
            else:
                self.time_use.blocked_us += waited

    async def _wait(self, chain: Chain) -> int:
        """Until there is something to do; for how many microseconds."""
        started = self._micros()
        await self.inbox.wait(self._timeout_s(chain))
        return self._micros() - started

    async def _other_work(self) -> None:
        """Until there is something else to do than to read the source."""
        assert self._chain is not None
        if self._hurries:
            return
        await self.inbox.wait(self._timeout_s(self._chain))

    def _timeout_s(self, chain: Chain) -> float:
        """Until the next flush or timer, at most `longest_wait_ms`."""
        timeout = self._services.settings.longest_wait_ms / 1_000
        if self._unflushed_since_ms is not None:
            due = self._unflushed_since_ms + self._services.settings.flush_ms
            timeout = min(timeout, (due - self._services.clock.monotonic_ms()) / 1_000)
        elif any(writer.waiting for writer in self._writers):  # for a watermark whose time has not come
            timeout = min(timeout, (self._next_watermark_ms - self._services.clock.monotonic_ms()) / 1_000)
        timer = chain.next_timer_us()
        if timer is not None:
            timeout = min(timeout, (timer - self._services.clock.now_us()) / 1_000_000)
        if self._gathering:
            timeout = min(timeout, (self._gathers_until_ms - self._services.clock.monotonic_ms()) / 1_000)
        return max(0.001, timeout)

    async def _read_source(self, source: SourceDriver, chain: Chain) -> None:
        started = self._micros()
        batch = await source.step()
        self._source_bytes += batch.size_bytes
        output = chain.source_output
        assert output is not None
        if batch.frame is not None:
            self._resting = False
            output.rows(batch.frame)
            await self._take_turns(chain)
            if self._splits is not None:
                self._splits.read(batch.split, batch.position)
        if batch.dead is not None:
            output.side(DEAD_LETTERS_TAG, batch.dead)
        if batch.watermark is not None:
            await self._advance(batch.watermark)
        spent = self._micros() - started
        if batch.few:
            self._gather()
        if batch.frame is None:
            self.time_use.idle_us += spent
            self._flush()
        else:
            self.time_use.busy_us += spent
        self._resting = self._resting or batch.became_idle
        self._exhausted = self._exhausted or batch.exhausted
        await self._end_or_rest(chain)
        if batch.paused:
            self.time_use.idle_us += await self._wait(chain)

    def _flush_if_due(self) -> None:
        if not any(writer.waiting for writer in self._writers):
            self._unflushed_since_ms = None
            return
        now_ms = self._services.clock.monotonic_ms()
        if self._unflushed_since_ms is None:
            self._unflushed_since_ms = now_ms
        idle_input = self._gathering or (self._source is None and not self.inbox.ready(frames=True))
        if idle_input or now_ms - self._unflushed_since_ms >= self._services.settings.flush_ms:
            self._flush()

    def _flush(self, *, watermarks: bool = False) -> None:
        """Send what waits; `watermarks`: those too for which it is not time yet."""
        now_ms = self._services.clock.monotonic_ms()
        due = watermarks or now_ms >= self._next_watermark_ms
        sent = [writer.flush(watermark=due) for writer in self._writers]
        if any(sent):
            self._next_watermark_ms = now_ms + self._watermark_interval_ms
        self._unflushed_since_ms = None

    async def _coalesced(self, chain: Chain) -> None:
        """Hand on the rows that were gathered."""
        if self._coalescer is not None:
            self._coalescer.flush()
            await self._take_turns(chain)

    @staticmethod
    async def _take_turns(chain: Chain) -> None:
        """Rows may leave much to do: others run meanwhile, and a cancellation is heard."""
        for _ in chain.run_background_slices():
            await asyncio.sleep(0)

    async def _advance(self, watermark: int) -> None:
        """Much may be due: others run meanwhile, and a cancellation is heard."""
        self._watermark = watermark
        self._resting = False
        if self._chain is not None:
            for _ in self._chain.fire_due(watermark):
                await asyncio.sleep(0)
            self._chain.watermark(watermark)

    # -- events and commands --------------------------------------------------------------------------------------------

    async def _feed(self, event: SubtaskEvent) -> None:
        await super()._feed(event)
        if self.machine.gate.aligning is not None:
            assert self._checkpoints is not None
            self._checkpoints.aligning()

    async def _carry_out(self, command: SubtaskCommand) -> None:
        if not isinstance(command, Deliver) and self._chain is not None:
            await self._coalesced(self._chain)
        match command:
            case Deliver():
                assert self._coalescer is not None
                assert self._chain is not None
                self._resting = False
                self._coalescer.add(self._vertex.inputs[command.channel.input].input, self._rows_of(command))
                await self._take_turns(self._chain)
            case AdvanceWatermark():
                await self._advance(command.watermark)
            case BecomeIdle():
                assert self._chain is not None
                self._resting = True
                await self._end_or_rest(self._chain)
            case Freeze():
                assert self._checkpoints is not None
                assert self._chain is not None
                if self._watermark == MAX_WATERMARK:
                    await self._settled(self._chain)
                    await self._chain.end()
                if self._source is not None:
                    self._flush()  # a row that proves to be too large may become a dead letter, which is of this side
                self._checkpoints.freeze(command.checkpoint, self._watermark)
                self._reader.frozen(command.checkpoint)
                await self._feed(Frozen(command.checkpoint))
            case FlushRows():
                self._flush(watermarks=True)
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
                self._flush()  # nothing follows that it could wait for
            case SetPaused():
                self._paused = command.paused
            case Publish():
                assert self._committer is not None
                assert self._checkpoints is not None
                self._before_first = False
                self._checkpoints.completed(command.checkpoint)
                self._committer.completed(command.checkpoint)
                self._reader.completed(command.checkpoint)
            case ReportEnded():
                self._is_now("ended")
            case Finish():
                self._final = command.final
            case _:
                assert_never(command)

    def _rows_of(self, command: Deliver) -> pl.DataFrame:
        """The rows of a frame; what they say of event time holds for all channels together."""
        timed = command.bounds is not None
        schema = self._combined_schema if command.combined else self._schemas[command.channel.input]
        assert schema is not None
        frame = decode_payload(command.ref, schema, timed=timed)
        return with_watermarks(frame, frame[WATERMARK], *command.bounds, every_row=True) if command.bounds else frame

    async def _upload(self, command: Upload) -> None:
        assert self._checkpoints is not None
        self.inbox.put(await self._checkpoints.upload(command))

    async def _report(self, message: Acknowledged | Declined) -> None:
        """Tell the leader, not before the confirmed frames that an ack speaks of survive a power loss."""
        if isinstance(message, Acknowledged):
            await self._services.log.sync()
        self._send_event(message)
