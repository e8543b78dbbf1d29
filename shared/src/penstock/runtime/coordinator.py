"""The coordinator as an asyncio service: it feeds the leader's machines and carries out what they command.

One candidate of possibly several. While it leads, each of its jobs has a `JobMaster` and a `JobLogWriter`; all of their
commands are carried out one after another, so the order in which things reach `commands` is the order of decisions.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import assert_never

import msgspec
import structlog

from penstock.errors import ExternalError
from penstock.graph.executiongraph import credits_topic, exchange_prefix, exchange_topic
from penstock.ports import BlobExistsError, Blobs, Clock, Log, Metadata, NewRecord
from penstock.protocol.jobevents import (
    AckReceived,
    Announce,
    Append,
    CaptureOffsets,
    JobCommand,
    JobEnded,
    JobEvent,
    MissSlots,
    OffsetsCaptured,
    Opened,
    RecordStored,
    RequestDone,
    Requested,
    SlotsOffered,
    StatusReported,
    StoreManifest,
    TasksListed,
    Ticked,
    WorkerGone,
)
from penstock.protocol.joblog import (
    Complete,
    CreateRecord,
    JobLogWriter,
    ReadRecord,
    RecordCommitted,
    Savepoint,
    StepDown,
    WriterCommand,
)
from penstock.protocol.jobmaster import JobMaster
from penstock.protocol.leader import (
    LEASE_TTL_MS,
    AppendEpoch,
    AskForLease,
    CommandRead,
    CreateEpoch,
    EpochCreated,
    EpochsListed,
    EpochTaken,
    EpochUnknown,
    Lead,
    LeaderCommand,
    LeaderMachine,
    LeaseAnswered,
    ListEpochs,
    StopLeading,
    TimePassed,
    epoch_key,
)
from penstock.protocol.manifests import checkpoints_prefix
from penstock.protocol.messages import (
    Acknowledged,
    BarrierMarker,
    Declined,
    EpochStarted,
    Heartbeat,
    LeaderTick,
    SubtaskId,
    TaskChanged,
    TaskStatus,
    decode_command,
    decode_event,
    encode,
)
from penstock.protocol.retention import retired_objects
from penstock.runtime.job_store import UNCERTAIN_PAUSE_MS, JobStore
from penstock.runtime.progress import JobProgress
from penstock.runtime.worker import COMMANDS, EVENTS, HEARTBEAT_MS

LEASE = "leader"
TICK_MS = 50
LEADER_TICK_MS = 1_000
EVENTS_KEPT_BYTES = 8 << 20
"""Events that were obeyed are trimmed away now and then."""

_log = structlog.get_logger("penstock.coordinator")


_ANSWERS = {"created": JobLogWriter.created, "refused": JobLogWriter.refused, "unknown": JobLogWriter.unknown}


@dataclass(frozen=True)
class CoordinatorPorts:
    """What a coordinator is given of the world."""

    log: Log
    blobs: Blobs
    metadata: Metadata
    clock: Clock
    new_id: Callable[[], str]
    """32 fresh hex digits."""


@dataclass(frozen=True)
class CoordinatorTimeouts:
    """How patient a coordinator is."""

    lease_ttl_ms: int = LEASE_TTL_MS
    takeover_ms: int = 2 * HEARTBEAT_MS
    """How long a new leader listens to heartbeats before it opens jobs."""
    worker_ms: int = 20 * HEARTBEAT_MS
    """A worker without a heartbeat for so long counts as dead."""


@dataclass
class _Worker:
    slots: int
    seen_ms: int
    tasks: tuple[TaskStatus, ...] = ()


@dataclass
class _Job:
    master: JobMaster
    writer: JobLogWriter
    progress: JobProgress
    ended: asyncio.Future[JobEnded] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class CoordinatorService:
    """One candidate for leadership; `jobs` are added by whoever submits, before or while it leads."""

    def __init__(self, name: str, ports: CoordinatorPorts, timeouts: CoordinatorTimeouts) -> None:
        self._ports = ports
        self._store = JobStore(ports.blobs, ports.clock)
        self._leader = LeaderMachine(name, timeouts.lease_ttl_ms)
        self._name = name
        self._timeouts = timeouts
        self._jobs: dict[str, _Job] = {}
        self._workers: dict[str, _Worker] = {}
        self._requests: asyncio.Queue[tuple[str, Requested]] = asyncio.Queue()
        self._epoch = 0
        self._open_at_ms: int | None = None
        self._markers: tuple[BarrierMarker, ...] = ()
        self._opened: set[str] = set()
        self._retire: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
        self._deciding = asyncio.Lock()
        """Held while an event is decided and its commands are carried out: one thing at a time."""

    # -- life -----------------------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Create the control topics; before any worker or coordinator runs."""
        for topic in (COMMANDS, EVENTS):
            await self._ports.log.create_topic(topic, 1)

    async def run(self) -> None:
        """Compete for the lease, lead while it is held; ends by cancellation."""
        _, events = await self._ports.log.offsets(EVENTS, 0)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._read_events(events))
                group.create_task(self._tick())
                group.create_task(self._delete_retired())
        finally:
            if self._epoch:
                await self._ports.metadata.release(LEASE, self._name.encode())

    def add_job(self, job: str, master: JobMaster, writer: JobLogWriter) -> asyncio.Future[JobEnded]:
        """Take charge of a job whose SUBMIT stands in its log; the future tells its end."""
        entry = self._jobs[job] = _Job(master, writer, JobProgress(job))
        return entry.ended

    def request(self, job: str, request: Requested) -> None:
        """Somebody wants something of a job."""
        self._requests.put_nowait((job, request))

    def progress(self, job: str) -> JobProgress:
        """How a job is."""
        return self._jobs[job].progress

    async def delete_exchanges(self, job: str) -> None:
        """A terminated job needs its exchanges no more; called when its subtasks have ended."""
        for topic in await self._ports.log.topics():
            if topic == credits_topic(job) or topic.startswith(exchange_prefix(job)):
                await self._ports.log.delete_topic(topic)

    async def _delete_retired(self) -> None:
        """Delete the objects of checkpoints that a newer COMPLETE has replaced, beside everything else."""
        blobs = self._ports.blobs
        while True:
            job, complete = await self._retire.get()
            history = self._jobs[job].master.history
            retained = {record.checkpoint for record in history.records if isinstance(record, Savepoint)}
            keys = await blobs.list(checkpoints_prefix(job))
            live = self._jobs[job].master.live_objects
            for key in retired_objects(keys, complete, retained, live):
                await blobs.delete(key)

    # -- input ----------------------------------------------------------------------------------------------------------

    async def _read_events(self, position: int) -> None:
        log, clock = self._ports.log, self._ports.clock
        trimmed = position
        while True:
            records = await log.read(EVENTS, 0, position, timeout_s=TICK_MS / 1_000)
            if position - trimmed >= EVENTS_KEPT_BYTES:
                trimmed = position
                await log.trim(EVENTS, 0, position)
            for record in records:
                position = record.next_offset
                async with self._deciding:
                    await self._on_event(decode_event(record.value), clock.monotonic_ms())

    async def _on_event(self, event: Heartbeat | Acknowledged | Declined | TaskChanged, now_ms: int) -> None:
        match event:
            case Heartbeat():
                known = event.worker in self._workers
                self._workers[event.worker] = _Worker(event.slots, now_ms, event.tasks)
                if not known:
                    await self._offer_slots()
                for status in event.tasks:
                    await self._feed(status.job, StatusReported(event.worker, status))
                for job in list(self._opened):
                    await self._feed(job, TasksListed(event.worker, self._newest(job, event.tasks)))
            case TaskChanged():
                await self._feed(event.status.job, StatusReported(event.worker, event.status))
            case Acknowledged() | Declined():
                await self._feed(event.job, AckReceived(event))
            case _:
                assert_never(event)

    def _newest(self, job: str, tasks: tuple[TaskStatus, ...]) -> frozenset[SubtaskId]:
        """The subtasks among these that belong to the job's newest attempt."""
        attempt = self._jobs[job].master.attempt
        return frozenset(status.subtask for status in tasks if status.job == job and status.attempt == attempt)

    async def _tick(self) -> None:
        last_tick_ms = self._ports.clock.monotonic_ms() - LEADER_TICK_MS
        while True:
            async with self._deciding:
                last_tick_ms = await self._on_tick(self._ports.clock.monotonic_ms(), last_tick_ms)
            await self._ports.clock.sleep_ms(TICK_MS)

    async def _on_tick(self, now_ms: int, last_tick_ms: int) -> int:
        await self._lead(self._leader.handle(TimePassed(), now_ms))
        if self._open_at_ms is not None and now_ms >= self._open_at_ms:
            await self._open_jobs()
        await self._drop_silent_workers(now_ms)
        while not self._requests.empty():
            await self._feed(*self._requests.get_nowait())
        for job in list(self._opened):
            await self._feed(job, Ticked())
        if not self._epoch or now_ms - last_tick_ms < LEADER_TICK_MS:
            return last_tick_ms
        await self._announce(LeaderTick(epoch=self._epoch))
        return now_ms

    async def _drop_silent_workers(self, now_ms: int) -> None:
        for name, worker in list(self._workers.items()):
            if now_ms - worker.seen_ms >= self._timeouts.worker_ms:
                del self._workers[name]
                for job in list(self._opened):
                    await self._feed(job, WorkerGone(name, f"no heartbeat for {now_ms - worker.seen_ms} ms"))

    async def _offer_slots(self) -> None:
        slots = {name: worker.slots for name, worker in self._workers.items()}
        for job in list(self._opened):
            await self._feed(job, SlotsOffered(slots))

    # -- leadership -----------------------------------------------------------------------------------------------------

    async def _lead(self, commands: list[LeaderCommand]) -> None:
        pending = deque(commands)
        while pending:
            pending.extend(await self._carry_out_leader(pending.popleft()))

    async def _carry_out_leader(self, command: LeaderCommand) -> list[LeaderCommand]:
        ports = self._ports
        now_ms = ports.clock.monotonic_ms
        match command:
            case AskForLease():
                asked_ms = now_ms()
                ttl_ms = self._leader.lease_ttl_ms
                ask = ports.metadata.renew if command.renew else ports.metadata.acquire
                held = await ask(LEASE, self._name.encode(), ttl_ms)
                return self._leader.handle(LeaseAnswered(held, asked_ms), now_ms())
            case ListEpochs():
                keys = await ports.blobs.list("leaders/")
                highest = int(keys[-1].rsplit("/", 1)[1]) if keys else 0
                return self._leader.handle(EpochsListed(highest), now_ms())
            case CreateEpoch():
                return self._leader.handle(await self._create_epoch(command.epoch), now_ms())
            case AppendEpoch():
                await self._announce(EpochStarted(epoch=command.epoch, leader=self._name))
                return await self._read_commands()
            case Lead():
                self._epoch = command.epoch
                self._markers = command.markers
                self._open_at_ms = now_ms() + self._timeouts.takeover_ms
                _log.debug("leading", epoch=self._epoch)
                return []
            case StopLeading():
                self._stop_leading(command.reason)
                return []
            case _:
                assert_never(command)

    async def _create_epoch(self, epoch: int) -> EpochCreated | EpochTaken | EpochUnknown:
        """Create the epoch's object; a refusal counts only after reading back whose it is."""
        blobs = self._ports.blobs
        try:
            await blobs.create(epoch_key(epoch), self._name.encode())
        except BlobExistsError:
            try:
                owner = await blobs.get(epoch_key(epoch))
            except ExternalError:  # not there either: a conflict that wrote nothing
                return await self._epoch_unknown(epoch)
            return EpochCreated(epoch) if owner == self._name.encode() else EpochTaken(epoch)
        except ExternalError:
            return await self._epoch_unknown(epoch)
        return EpochCreated(epoch)

    async def _epoch_unknown(self, epoch: int) -> EpochUnknown:
        """Asked again at once the store would give the same answer."""
        await self._ports.clock.sleep_ms(UNCERTAIN_PAUSE_MS)
        return EpochUnknown(epoch)

    async def _read_commands(self) -> list[LeaderCommand]:
        """Everything kept in `commands` up to the end as it is now."""
        log = self._ports.log
        position, end = await log.offsets(COMMANDS, 0)
        result: list[LeaderCommand] = []
        while position < end:
            for record in await log.read(COMMANDS, 0, position):
                position = record.next_offset
                command = CommandRead(decode_command(record.value))
                result += self._leader.handle(command, self._ports.clock.monotonic_ms())
        return result

    def _stop_leading(self, reason: str) -> None:
        _log.warning("leadership lost", reason=reason)
        self._epoch = 0
        self._opened.clear()
        self._open_at_ms = None
        for job in self._jobs.values():
            if not job.ended.done():
                job.ended.set_exception(ExternalError(f"this coordinator no longer leads: {reason}"))

    async def _open_jobs(self) -> None:
        self._open_at_ms = None
        for name in self._jobs:
            await self._open_job(name)

    async def _open_job(self, name: str) -> None:
        job = self._jobs[name]
        self._opened.add(name)
        attempt = job.master.attempt
        statuses: dict[SubtaskId, tuple[str, TaskStatus]] = {
            status.subtask: (worker_name, status)
            for worker_name, worker in self._workers.items()
            for status in worker.tasks
            if status.job == name and status.attempt == attempt
        }
        markers = tuple(marker for marker in self._markers if marker.job == name)
        restore = job.master.history.restore
        manifest = await self._store.manifest(restore) if restore else None
        if manifest is not None:
            job.progress.restored = manifest.checkpoint
        await self._ports.log.create_topic(credits_topic(name), 1, compacted=True)
        await self._feed(name, Opened(self._epoch, statuses, markers, manifest))
        await self._feed(name, SlotsOffered({worker: w.slots for worker, w in self._workers.items()}))

    # -- jobs -----------------------------------------------------------------------------------------------------------

    async def _feed(self, name: str, event: JobEvent) -> None:
        """Hand an event to a job's master and carry out everything that follows from it."""
        job = self._jobs.get(name)
        if job is None or name not in self._opened:
            return
        clock = self._ports.clock
        events: deque[JobEvent] = deque([event])
        while events:
            current = events.popleft()
            commands = job.master.handle(current, clock.monotonic_ms())
            job.progress.event(current, job.master, clock.now_us())
            for command in commands:
                if name not in self._opened:  # leadership was lost while a command was carried out
                    return
                job.progress.command(command, clock.now_us())
                events.extend(await self._carry_out(name, job, command))

    async def _carry_out(self, name: str, job: _Job, command: JobCommand) -> list[JobEvent]:
        match command:
            case Append():
                return await self._write(name, job, job.writer.append(command.record, self._ports.new_id()))
            case Announce():
                await self._announce(command.command)
                return []
            case CaptureOffsets():
                return [await self._capture(name, command)]
            case StoreManifest():
                return [await self._store.put_manifest(command)]
            case MissSlots():
                job.progress.missing_slots = command.missing
                return []
            case RequestDone():
                return []
            case JobEnded():
                if not job.ended.done():
                    job.ended.set_result(command)
                return []
            case _:
                assert_never(command)

    async def _announce(self, command: msgspec.Struct) -> None:
        await self._ports.log.append(COMMANDS, 0, [NewRecord(encode(command))])

    async def _capture(self, name: str, command: CaptureOffsets) -> OffsetsCaptured:
        offsets: dict[str, tuple[int, ...]] = {}
        for vertex, partitions in command.exchanges.items():
            topic = exchange_topic(name, vertex, command.generation)
            await self._ports.log.create_topic(topic, partitions)
            ends = [await self._ports.log.offsets(topic, partition) for partition in range(partitions)]
            offsets[vertex] = tuple(end for _, end in ends)
        return OffsetsCaptured(command.generation, offsets)

    async def _write(self, name: str, job: _Job, commands: list[WriterCommand]) -> list[JobEvent]:
        pending = deque(commands)
        events: list[JobEvent] = []
        while pending:
            match pending.popleft():
                case CreateRecord(record=record):
                    answer = await self._store.create_record(name, record)
                    pending.extend(_ANSWERS[answer](job.writer))
                case ReadRecord(seq=seq):
                    pending.extend(job.writer.read_back(await self._store.record(name, seq)))
                case RecordCommitted(record=record):
                    events.append(RecordStored(record))
                    if isinstance(record, Complete):
                        self._retire.put_nowait((name, record.checkpoint))
                case StepDown(reason=reason):
                    await self._lead(self._leader.lost(reason))
        return events
