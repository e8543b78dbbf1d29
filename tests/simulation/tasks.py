"""The simulated subtask: the same steps as `penstock.runtime.subtask`, with tiny operators and sinks.

The operator in `k` is non-deterministic on purpose: every row it emits carries a random nonce, so that a row that was
published by two attempts can never look like one.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
from tests.simulation.kernel import Process, Violation, Work
from tests.simulation.publisher import Publisher
from tests.simulation.scenario import MAX_PARALLELISM, WINDOW, Row, key_group_of

from penstock.errors import ExternalError
from penstock.ports import BlobNotFoundError, OffsetOutOfRangeError
from penstock.protocol import messages, subtask
from penstock.protocol.channels import AdvanceWatermark, BecomeIdle, Deliver
from penstock.protocol.committing import StagedPart, StagedParts
from penstock.protocol.frames import Channel, Frame
from penstock.protocol.incremental import IncrementalHandles
from penstock.protocol.keygroups import subtask_of
from penstock.protocol.manifests import Manifest, blob_prefix, decode_manifest
from penstock.protocol.messages import Handle, OperatorHandles, SubtaskId, SubtaskSnapshot
from penstock.protocol.outputs import OutputId, OutputLedger
from penstock.protocol.restoring import key_group_watermarks, watermarks_above
from penstock.protocol.trimming import PartitionHolds
from penstock.protocol.uploading import Put, UploadDone, UploadGivenUp, UploadMachine
from penstock.times import MAX_WATERMARK, MIN_WATERMARK

if TYPE_CHECKING:
    from tests.simulation.working import Worker
    from tests.simulation.world import World

ROW_BYTES = 10
FRAME_ROWS = 3


class Output(msgspec.Struct, frozen=True):
    """A row of the result: which source rows it stands for, and the nonce of whoever made it."""

    kind: str
    key: int
    ids: tuple[int, ...]
    number: int
    """The count of the key so far, or the start of the window."""
    nonce: int


@dataclass
class _Split:
    position: int = 0
    watermark: int = MIN_WATERMARK


@dataclass
class _Frozen:
    """What was captured at a barrier."""

    keyed: dict[int, bytes]
    lists: dict[str, tuple[bytes, ...]]
    unions: dict[str, tuple[bytes, ...]]
    watermark: int
    watermarks: dict[int, int]
    position: int


@dataclass
class _Edge:
    """Rows that wait to be cut into frames, per partition of the consumer."""

    outputs: list[OutputId]
    buffers: list[list[Any]] = field(default_factory=list[list[Any]])
    watermark: int | None = None
    idle: bool = False


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
        scenario = world.scenario
        target = scenario.downstream(self.vertex)
        partitions = [] if target is None else [self.index] if target == "w" else list(range(self.parallelism))
        outputs = [OutputId(target or "", 0, number) for number in partitions]
        self._edge = _Edge(outputs, [[] for _ in outputs]) if target else None
        credit_bytes = scenario.credit_bytes * (8 if target == "m" else 1)
        self.ledger = OutputLedger(deploy.attempt, self.index, outputs, credit_bytes)
        self.machine = subtask.SubtaskMachine(
            deploy.job,
            deploy.attempt,
            deploy.subtask,
            "source" if self.vertex == "s" else "inner",
            scenario.channels(deploy.subtask, self.parallelism),
            self.ledger,
        )
        self._key_groups = scenario.key_groups(deploy.subtask, self.parallelism)
        self._events: deque[subtask.SubtaskEvent] = deque()
        self._frames: deque[subtask.FrameRead] = deque()
        self._scheduled = False
        self._opened = False
        self._splits: dict[str, _Split] = {}
        self._exhausted = False
        self._paused = False
        self._watermark = MIN_WATERMARK
        self._restored_watermarks: dict[int, int] = {}
        self._keyed: dict[int, dict[int, Any]] = {}
        self._written: list[Output] = []
        self._staged = StagedParts((), 0)
        self._incremental = IncrementalHandles({})
        self._committing = False
        self._frozen: dict[int, _Frozen] = {}
        self._offset = deploy.start_offset
        """Behind the last frame that was handled."""
        self._barrier_offset = deploy.start_offset
        self._credit_reported: dict[Any, int] = {}
        self.blocked_since = (0, -1)
        self._barriers: dict[int, int] = {}
        """The offset behind the barrier of each snapshot."""
        self.rows_cut: dict[OutputId, int] = {}
        self.delivered: dict[Channel, int] = {}
        """Rows per channel, for the invariants."""
        self._processes: list[Process] = []
        self.holds = PartitionHolds()
        self.publisher: Publisher | None = None

    # -- life -----------------------------------------------------------------------------------------------------------

    @property
    def published(self) -> int:
        """What the leader hears."""
        return self.publisher.published if self.publisher else self._staged.published

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

    def credit_changed(self) -> None:
        """Publishing went on: perhaps there is credit to report."""
        self._wake()

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
        scenario = self.world.scenario
        for name, rows in scenario.splits.items():
            if self.vertex == "s" and int(name) % self.parallelism == self.index:
                self._splits[name] = _Split()
                assert rows
        manifest = None
        restore = self.deploy.restore
        if restore is not None:
            data = yield from self._get(restore.manifest)
            manifest = decode_manifest(data, restore.manifest)
            yield from self._restore(manifest)
        if self.vertex == "w":
            intervals = manifest.intervals.get("w", {}).get(self.index, ()) if manifest else ()
            if manifest is not None and manifest.generation != self.deploy.generation:
                intervals = ()
            self.publisher = Publisher(self, intervals, restore.checkpoint if restore else 0)
        self._opened = True
        self.state = "running"
        self.worker.changed(self)
        if self.publisher:
            self.publisher.start()
        if self.vertex != "s":
            self.holds.hold("reader", self._offset)
            self._processes.append(self.worker.start(self._fetch(), self.fail))
        self._commit()
        self._wake()

    def _get(self, key: str) -> Work:
        for _ in range(4):
            try:
                return (yield self.world.blobs.get(key))
            except BlobNotFoundError as error:
                if self.deploy.attempt == self.world.newest_attempt:
                    raise Violation(f"I9/I12: {self.deploy.subtask} needs {key}, which is not there") from error
                raise
            except ExternalError:
                yield self.worker.sleep(self.world.kernel.short(20, 60))
        raise ExternalError(f"{key} cannot be read")

    def _restore(self, manifest: Manifest) -> Work:
        parts = {i: s for i, s in sorted(manifest.subtasks.get(self.vertex, {}).items()) if "op" in s.operators}
        if self.vertex == "s":
            for snapshot in parts.values():
                for entry in snapshot.operators["op"].unions.get("splits", ()):
                    name, position, watermark = json.loads(entry)
                    if name in self._splits:
                        self._splits[name] = _Split(position, watermark)
        self._restored_watermarks = key_group_watermarks(parts, self._key_groups, manifest.max_parallelism)
        staged: list[bytes] = []
        if len(parts) == self.parallelism and parts[self.index].operators["op"].keyed is not None:
            self._incremental = IncrementalHandles({"op": parts[self.index].operators["op"].keyed})
        for snapshot in parts.values():
            handles = snapshot.operators["op"]
            staged += handles.lists.get("staged", ())
            if handles.keyed is not None:
                yield from self._restore_keyed(handles.keyed)
        mine = [msgspec.json.decode(entry, type=StagedPart) for entry in staged[self.index :: self.parallelism]]
        self._staged = StagedParts(mine, manifest.checkpoint)

    def _restore_keyed(self, handle: Handle) -> Work:
        wanted = {group: bounds for group, bounds in handle.key_groups.items() if group in self._key_groups}
        if not wanted:
            return
        data = yield from self._get(handle.key)
        if hashlib.sha256(data).hexdigest() != handle.sha256:
            raise Violation(f"I9: {handle.key} is not what was acknowledged")
        for group, (start, end) in wanted.items():
            self._keyed[group] = {int(key): value for key, value in json.loads(data[start:end]).items()}

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
        if self.vertex == "s" and not (blocked or self._paused or self._exhausted):
            self._read_source()
            if not self.gone:
                self._wake(self.world.scenario.pace_ms)
            return
        self._flush()

    def _read_source(self) -> None:
        scenario, draw = self.world.scenario, self.world.kernel.random
        open_splits = [n for n, s in self._splits.items() if s.position < len(scenario.splits[n])]
        if not open_splits:
            self._exhausted = True
            self._feed(subtask.SourceExhausted())
            return
        if draw.random() < scenario.idle_chance:
            self._idle()
            return
        name = draw.choice(open_splits)
        split = self._splits[name]
        for row in scenario.splits[name][split.position : split.position + draw.randint(1, 3)]:
            split.position += 1
            split.watermark = max(split.watermark, row.time - 12)
            self._emit_source(name, split, row)
        progress = [self._splits[n].watermark for n in open_splits]
        if min(progress) > self._watermark:
            self._advance(min(progress))
        if draw.random() < 0.3:
            self._flush()

    def _emit_source(self, name: str, split: _Split, row: Row) -> None:
        if self.vertex == self.world.scenario.vertices[-1]:
            self._write(Output("row", int(name), (row.id,), split.position, self._nonce()))
        else:
            self._send_row(row, row.spread if self.world.scenario.downstream("s") == "m" else row.key)

    # -- operators ------------------------------------------------------------------------------------------------------

    def _nonce(self) -> int:
        return self.world.kernel.random.getrandbits(40)

    def _deliver(self, rows: Sequence[Any]) -> None:
        for row in rows:
            if self.vertex == "m":
                state = self._keyed.setdefault(key_group_of(row.spread), {})
                state[row.spread] = state.get(row.spread, 0) + 1
                self._send_row(row, row.key)
            elif self.vertex == "k":
                self._count(row)

    def _count(self, row: Row) -> None:
        group = key_group_of(row.key)
        if group not in self._key_groups:
            raise Violation(f"{self.deploy.subtask}: key group {group} is not its own")
        state = self._keyed.setdefault(group, {})
        if not self.world.scenario.windowed:
            state[row.key] = state.get(row.key, 0) + 1
            self._emit(Output("row", row.key, (row.id,), state[row.key], self._nonce()))
            return
        start = row.time // WINDOW * WINDOW
        watermark = max(self._watermark, self._restored_watermarks.get(group, MIN_WATERMARK))
        if start + WINDOW - 1 <= watermark:
            self._emit(Output("late", row.key, (row.id,), start, self._nonce()))
        else:
            state.setdefault(row.key, {}).setdefault(str(start), []).append(row.id)

    def _fire(self) -> None:
        for state in self._keyed.values():
            for key, windows in list(state.items()):
                for start in [s for s in windows if int(s) + WINDOW - 1 <= self._watermark]:
                    self._emit(Output("window", key, tuple(windows.pop(start)), int(start), self._nonce()))
                if not windows:
                    del state[key]

    def _emit(self, output: Output) -> None:
        if self.vertex == self.world.scenario.vertices[-1]:
            self._write(output)
        else:
            self._send_row(output, output.key)

    def _write(self, output: Output) -> None:
        self._written.append(output)

    def _advance(self, watermark: int) -> None:
        self._watermark = max(self._watermark, watermark)
        if self.vertex == "k" and self.world.scenario.windowed:
            self._fire()
        if self._edge is not None:
            self._edge.watermark = watermark
            self._edge.idle = False

    def _idle(self) -> None:
        self._flush()
        if self._edge is not None and not self._edge.idle:
            self._edge.idle = True
            for output in self._edge.outputs:
                self._append(output, self.ledger.idle(output), ())

    # -- output ---------------------------------------------------------------------------------------------------------

    def _send_row(self, row: Any, key: int) -> None:
        edge = self._edge
        assert edge is not None
        edge.idle = False
        place = 0 if len(edge.outputs) == 1 else subtask_of(key_group_of(key), self.parallelism, MAX_PARALLELISM)
        edge.buffers[place].append(row)
        if len(edge.buffers[place]) >= FRAME_ROWS:
            self._cut(edge, place)

    def _cut(self, edge: _Edge, place: int) -> None:
        rows, edge.buffers[place] = edge.buffers[place], []
        if rows:
            output = edge.outputs[place]
            self.rows_cut[output] = self.rows_cut.get(output, 0) + len(rows)
            self._append(output, self.ledger.data(output, len(rows), len(rows) * ROW_BYTES), tuple(rows))

    def _flush(self) -> None:
        edge = self._edge
        if edge is None:
            return
        for place in range(len(edge.outputs)):
            self._cut(edge, place)
        if edge.watermark is not None:
            for output in edge.outputs:
                self._append(output, self.ledger.watermark(output, edge.watermark), ())
            edge.watermark = None

    def _append(self, output: OutputId, frame: Frame, rows: tuple[Any, ...]) -> None:
        topic = f"{output.exchange}.g{self.deploy.generation}"
        operation = self.world.log.append(self.worker, topic, output.partition, (frame, rows))
        operation(lambda value=None, error=None: self.worker.deliver(self._confirmed, output, frame.seq, error))

    def _confirmed(self, output: OutputId, seq: int, error: BaseException | None) -> None:
        if error is not None:
            self.fail(error)
        else:
            self.put(subtask.FrameConfirmed(output, seq))

    # -- input ----------------------------------------------------------------------------------------------------------

    def _fetch(self) -> Work:
        offset = self.deploy.start_offset
        while True:
            try:
                records = yield self.world.log.read(self.topic, self.index, offset)
            except OffsetOutOfRangeError as error:
                if self.deploy.attempt == self.world.newest_attempt:
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
                self._deliver(rows)
            case AdvanceWatermark():
                self._advance(command.watermark)
            case BecomeIdle():
                self._idle()
            case subtask.Freeze():
                self._freeze(command.checkpoint)
                self.world.froze(self, command.checkpoint)
                self._feed(subtask.Frozen(command.checkpoint))
            case subtask.FlushRows():
                self._flush()
            case subtask.SendBarrier():
                for output in self._edge.outputs if self._edge else ():
                    frame = self.ledger.barrier(output, command.checkpoint, command.nonce, command.flavour)
                    self._append(output, frame, ())
                self._feed(subtask.BarrierSent(command.checkpoint))
            case subtask.Upload():
                self._processes.append(self.worker.start(self._upload(command), self.fail))
            case subtask.Send():
                self.world.acked(self, command.message)
                self.worker.send_event(command.message)
            case subtask.EmitEndOfTime():
                self._advance(MAX_WATERMARK)
                self._flush()
            case subtask.SetPaused():
                self._paused = command.paused
            case subtask.Publish():
                self._publish(command)
            case subtask.ReportEnded():
                self.state = "ended"
                self.worker.changed(self)
            case subtask.Finish():
                self.end("finished")
                self.worker.task_ended(self)

    # -- snapshots ------------------------------------------------------------------------------------------------------

    def _freeze(self, checkpoint: int) -> None:
        keyed = {group: json.dumps(state).encode() for group, state in sorted(self._keyed.items()) if state}
        unions = {
            "splits": tuple(json.dumps([n, s.position, s.watermark]).encode() for n, s in sorted(self._splits.items()))
        }
        if self._written:
            name = f"{checkpoint}-{self.deploy.attempt[:8]}-{self.deploy.subtask}"
            self.world.folder.staged[name] = self._written
            self._written = []
            self._staged.prepared([StagedPart("op", checkpoint, name)])
        lists = {"staged": tuple(msgspec.json.encode(part) for part in self._staged.listed())}
        above = watermarks_above(self._restored_watermarks, self._watermark)
        self._barriers[checkpoint] = self._barrier_offset
        self._frozen[checkpoint] = _Frozen(keyed, lists, unions, self._watermark, above, self._offset_of_barrier())

    def _offset_of_barrier(self) -> int:
        """A publisher's vertex has one channel, so the frame being handled now is the barrier."""
        return self._barrier_offset if self.vertex == "w" else 0

    def _upload(self, command: subtask.Upload) -> Work:
        frozen = self._frozen.pop(command.checkpoint)
        prefix = blob_prefix(self.deploy.job, self.deploy.attempt, command.checkpoint, command.nonce)
        handle, data = self._assemble(frozen, f"{prefix}{self.vertex}-{self.index}-op.state")
        reused = self._incremental.reusable("op", handle.sha256) if handle else None
        handle = reused or handle
        self._incremental.taken(command.checkpoint, {"op": handle} if handle else {})
        operator = OperatorHandles(keyed=handle, lists=frozen.lists, unions=frozen.unions)
        snapshot = SubtaskSnapshot(
            operators={"op": operator},
            watermark=frozen.watermark,
            ahead=frozen.watermarks,
            position=frozen.position,
        )
        uploads = UploadMachine([handle.key] if handle and not reused else [], tries=3)
        pending = deque(uploads.start())
        while pending:
            match pending.popleft():
                case Put(key=key):
                    try:
                        yield self.world.blobs.put(key, data)
                        pending.extend(uploads.stored(key))
                    except ExternalError as error:
                        pending.extend(uploads.unknown(key, str(error)))
                case UploadDone():
                    self.put(subtask.Uploaded(command.checkpoint, command.nonce, snapshot))
                case UploadGivenUp(reason=reason):
                    self.put(subtask.UploadFailed(command.checkpoint, command.nonce, reason))

    @staticmethod
    def _assemble(frozen: _Frozen, key: str) -> tuple[Handle | None, bytes]:
        index: dict[int, tuple[int, int]] = {}
        data = b""
        for group, segment in frozen.keyed.items():
            index[group] = (len(data), len(data) + len(segment))
            data += segment
        if not data:
            return None, b""
        return Handle(key, hashlib.sha256(data).hexdigest(), len(data), index), data

    # -- publishing -----------------------------------------------------------------------------------------------------

    def _publish(self, command: subtask.Publish) -> None:
        if command.checkpoint in self._barriers:
            self.holds.hold("reader", self._barriers[command.checkpoint])
        if self.publisher is not None:
            self._processes.append(self.worker.start(self.publisher.load(command), self.fail))
            return
        self._incremental.completed(command.checkpoint)
        self._staged.completed(command.checkpoint)
        self._commit()
        self.trim()

    def _commit(self) -> None:
        """Make parts visible, one at a time."""
        if self._committing or self.vertex == "w":
            return
        self._committing = True
        self._processes.append(self.worker.start(self._commit_parts(), self.fail))

    def _commit_parts(self) -> Work:
        while parts := self._staged.to_commit():
            yield self.worker.sleep(self.world.kernel.short(1, 10) + self.world.slow_commit_ms)
            self.world.folder.commit(parts[0].committable)
            self._staged.committed(parts[0])
        self._committing = False
        self.worker.changed(self)

    def trim(self) -> None:
        """Let go of what nobody needs in the own partition."""
        before = self.holds.trim_to()
        if before is not None and self.vertex != "s":
            partition = self.world.log.partition(self.topic, self.index)
            partition.trimmed = max(partition.trimmed, before)
