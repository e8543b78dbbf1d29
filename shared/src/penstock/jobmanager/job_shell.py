"""One job under a leader: feeds its `JobMaster` and carries out what that commands, one event after another.

Every job has a task of its own, so that one that waits for the store holds up neither others nor the lease. The order in
which its commands reach `commands` is the order of its decisions.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, assert_never

import msgspec
import structlog

from penstock.coordination import failpoints
from penstock.coordination.control_topics import COMMANDS
from penstock.coordination.job_catalog import JobCatalog
from penstock.coordination.job_progress import JobProgress
from penstock.coordination.job_store import JobStore
from penstock.errors import CorruptDataError, PipelineError
from penstock.graph.executiongraph import ExecutionGraph, credits_topic, exchange_topic
from penstock.graph.jobgraph import JobGraph, graph_from_json
from penstock.graph.rescaling import scaled
from penstock.jobmanager.job_cleanup import CleanSinks, JobCleanup
from penstock.jobmanager.job_inbox import JobInbox
from penstock.jobmanager.job_spec import JobSpec, spec_of
from penstock.jobmanager.late_answers import kind_of, late_answer
from penstock.jobmanager.leadership import ControlPorts
from penstock.ports import NewRecord, TopicMismatchError
from penstock.protocol.job_observer import JobObserver
from penstock.protocol.jobevents import (
    Announce,
    Append,
    CaptureOffsets,
    ChangedGraph,
    CheckpointAsked,
    ExchangesTaken,
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
)
from penstock.protocol.joblog import (
    Begin,
    Complete,
    JobHistory,
    JobSettings,
)
from penstock.protocol.joblog_writer import (
    CreateRecord,
    JobLogWriter,
    LookForCompaction,
    ReadRecord,
    RecordCommitted,
    StepDown,
    WriterCommand,
)
from penstock.protocol.jobmaster import JobMaster
from penstock.protocol.manifests import Manifest
from penstock.protocol.messages import AnyCommand, BarrierMarker, SubtaskId, TaskStatus, encode
from penstock.protocol.phases import Phase
from penstock.protocol.requests import (
    Answer,
    AnyRequest,
    CancelJob,
    RescaleJob,
    StopJob,
    SubmitJob,
    TakeCheckpoint,
    TakeSavepoint,
)

UNREADABLE_PAUSE_MS: Final = 5_000
ASKED_AT_ONCE: Final = 32
"""How many partitions of an exchange are asked for their offsets at a time."""
MARKERS_KEPT: Final = 1_000
"""More than can be pending at a time: whoever opens the job again has to know their numbers."""
TASKS_END_MS: Final = 30_000
"""How long the remains of a job wait for subtasks that do not say that they have ended."""

_ANSWERS = {"created": JobLogWriter.created, "refused": JobLogWriter.refused, "unknown": JobLogWriter.unknown}

_log = structlog.get_logger("penstock.coordinator")


class Surroundings:
    """What a job's shell asks of the coordinator around it."""

    def __init__(
        self,
        slots_wanted: Callable[[str, int], int],
        slots_kept: Callable[[str, frozenset[str], int], None],
        slots_lacking: Callable[[str, int], int],
        tasks_of: Callable[[str], Mapping[SubtaskId, tuple[str, TaskStatus]]],
        stepped_down: Callable[[str], None],
        closed: Callable[[str], None],
    ) -> None:
        """
        Args:
            slots_wanted: the job needs so many slots in all; returns how many the cluster lacks.
            slots_kept: an attempt begins on these workers, with so many slots in all, and needs no others.
            slots_lacking: how many slots would have to come before the job could have so many in all.
            tasks_of: all subtasks that workers report of the job, of whatever attempt, with their worker.
            stepped_down: the job log says that another leader acts.
            closed: the job has ended and nothing is left to do.
        """
        self.slots_wanted = slots_wanted
        self.slots_kept = slots_kept
        self.slots_lacking = slots_lacking
        self.tasks_of = tasks_of
        self.stepped_down = stepped_down
        self.closed = closed


class JobShell:
    """One job under one leader."""

    def __init__(
        self,
        job: str,
        ports: ControlPorts,
        around: Surroundings,
        describe: Callable[[JobHistory], JobSpec] = spec_of,
        clean_sinks: CleanSinks | None = None,
        observers: Sequence[JobObserver] = (),
    ) -> None:
        """`ports` wait until the world answers (`penstock.coordination.retrying_ports`)."""
        self.job = job
        self.progress = JobProgress(job)
        self.history = JobHistory()
        self.ended: asyncio.Future[JobEnded] = asyncio.get_running_loop().create_future()
        self._ports = ports
        self._store = JobStore(ports.blobs, ports.clock)
        self._catalog = JobCatalog(ports.blobs)
        self._around = around
        self._observers = observers
        self._describe = describe
        self._unreadable = ""
        """Why the checkpoint to go on from cannot be read."""
        self._look_again_ms = 0
        self._offered = SlotsOffered({})
        """The newest offer."""
        self._waiting: Requested | None = None
        """Another parallelism that waits for slots."""
        self._remains = JobCleanup(job, ports, self._store, clean_sinks)
        self._events = JobInbox()
        self._looked = False
        """Whether what workers report was looked at: the master follows from there on."""
        self._asked: dict[str, str] = {}
        """Requests that are not answered: id to kind."""
        self.markers: deque[BarrierMarker] = deque(maxlen=MARKERS_KEPT)
        """The newest that stand in `commands`, those of former leaders too."""
        self._marked_ms = 0
        """When the newest of them was announced; 0 if a former leader did it."""
        self._complete = 0
        """The newest COMPLETE that was written here: what is older than it may go."""
        self._completed = asyncio.Event()
        self._master: JobMaster | None = None
        self._writer: JobLogWriter | None = None

    # -- from outside ---------------------------------------------------------------------------------------------------

    @property
    def attempt(self) -> str:
        """The newest attempt; empty before the first."""
        return self.history.begin.attempt if self.history.begin is not None else ""

    @property
    def graph(self) -> JobGraph:
        """The newest graph."""
        return graph_from_json(self.history.graph)

    @property
    def phase(self) -> Phase:
        """Where the job stands."""
        return self._master.phase if self._master is not None else Phase.OPENING

    @property
    def ending(self) -> str:
        """Which ending or savepoint is under way, for people; empty if none is."""
        return self._master.ending(self._ports.clock.monotonic_ms()) if self._master is not None else ""

    @property
    def settings(self) -> JobSettings:
        """How the job is run."""
        return self.history.submit.settings if self.history.submit is not None else JobSettings()

    def tell(self, event: JobEvent) -> None:
        """Something happened; handled in order, once the job is opened.

        What workers reported until then is looked at once, as it is at that moment: an older report would contradict it,
        and a subtask that it does not list yet would pass for lost.
        """
        if not self._looked and isinstance(event, StatusReported | TasksListed):
            return
        self._events.put(event)

    async def request(self, request: AnyRequest) -> None:
        """A client asks for something; requests that were answered before are known by their id."""
        if await self._catalog.answer_to(self.job, request.request) is not None:
            return
        kind = kind_of(request)
        if isinstance(request, SubmitJob):
            return
        if self.ended.done():
            await self._answer_late(request)
            return
        if isinstance(request, TakeCheckpoint):
            self._asked[request.request] = kind
            self.tell(CheckpointAsked(request.request))
            return
        try:
            requested = self._requested(request)
            waits = isinstance(request, RescaleJob) and self._waits_for_slots(request, requested)
        except PipelineError as error:
            await self._answer(request.request, kind, "refused", str(error))
            return
        self._asked[request.request] = kind
        if isinstance(request, RescaleJob) and await self._ends_waiting(request, requested):
            return
        if waits:
            self._waiting = requested
        else:
            self.tell(requested)

    def counted(self, known: TaskStatus | None, status: TaskStatus) -> bool:
        """Note the counters of a subtask about which nothing else is new; False if there is more to tell."""
        if known is None or (known.state, known.published) != (status.state, status.published):
            return False
        if status.attempt == self.attempt:
            if status.subtask not in self.progress.statuses:
                return False
            self.progress.reported(status, self._ports.clock.now_us())
        return True

    def marked_before(self, monotonic_ms: int) -> bool:
        """Whether the newest marker is as old as that, and not COMPLETE: no other record says its number."""
        newest = max((marker.checkpoint for marker in self.markers), default=0)
        return newest > self.history.highest_checkpoint and self._marked_ms <= monotonic_ms

    def is_asked(self, request: str) -> bool:
        """Whether the request waits for its answer."""
        return request in self._asked

    def _requested(self, request: CancelJob | StopJob | TakeSavepoint | RescaleJob) -> Requested:
        match request:
            case CancelJob():
                return Requested(request.request, "cancel", reason="asked by a client")
            case StopJob():
                return Requested(request.request, "stop", drain=request.drain, reason="asked by a client")
            case TakeSavepoint():
                return Requested(request.request, "savepoint")
            case RescaleJob():
                submit = self.history.submit
                if submit is None or submit.scalable is None:
                    raise PipelineError("this job was submitted without the form of its graph that can be rescaled")
                graph = scaled(graph_from_json(submit.scalable), request.parallelism)
                changed = ChangedGraph(ExecutionGraph(graph).topology(), graph.to_json())
                return Requested(request.request, "rescale", changed=changed)
            case _:
                assert_never(request)

    # -- slots for another parallelism ----------------------------------------------------------------------------------

    def _waits_for_slots(self, request: RescaleJob, requested: Requested) -> bool:
        """Whether the job goes on as it is for now.

        Raises:
            PipelineError: the slots are not there, and the request does not wait. Nothing has been stopped yet.
        """
        lacking = self._lacking(requested)
        if lacking and not request.wait:
            raise PipelineError(
                f"parallelism {request.parallelism} needs {lacking} more slots than the cluster has for this job; add "
                "task managers first, or let it wait for them (--wait): the job goes on as it is until they are there"
            )
        return lacking > 0

    def _lacking(self, requested: Requested) -> int:
        assert requested.changed is not None
        return self._around.slots_lacking(self.job, requested.changed.topology.slot_count)

    async def _ends_waiting(self, request: RescaleJob, requested: Requested) -> bool:
        """The newest request counts, also over one that waits; whether nothing is left to do for it."""
        former = self._waiting
        if former is None or former.request == request.request:  # this one was sent twice
            return former is not None
        self._waiting = None
        await self._request_done(RequestDone(former.request, "refused: another parallelism was asked for"))
        if request.parallelism != self.graph.parallelism:
            return False
        assert requested.changed is not None
        self._around.slots_wanted(self.job, requested.changed.topology.slot_count)
        await self._request_done(RequestDone(requested.request, "rescaled"))
        return True

    def _look_for_slots(self) -> None:
        """Let the request that waits be carried out once there are slots for it."""
        waiting = self._waiting
        if waiting is None or self.phase is not Phase.RUNNING:
            return
        if self._lacking(waiting):
            assert waiting.changed is not None
            self._around.slots_wanted(self.job, waiting.changed.topology.slot_count)
        else:
            self._waiting = None
            self.tell(waiting)

    # -- life -----------------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Read the job's log."""
        self.history = await self._store.history(self.job)
        self.progress.failures = [failure.reason for failure in self.history.failures]

    async def run(self, epoch: int, markers: tuple[BarrierMarker, ...]) -> None:
        """Open the job and be its master until it has ended; another leader's act, or cancellation, ends it too.

        What nobody expected is raised: the coordinator opens the job again.
        """
        self.markers.extend(marker for marker in markers if marker.job == self.job)
        try:
            async with asyncio.TaskGroup() as group:
                deleting = group.create_task(self._delete_replaced())
                await self._open(epoch, tuple(self.markers))
                while not self.ended.done():
                    event = await self._events.get()
                    if self._unreadable and await self._readable_again():
                        await self._open(epoch, tuple(self.markers))
                    await self._feed(event)
                    if isinstance(event, SlotsOffered):
                        self._offered = event
                    if isinstance(event, SlotsOffered | Ticked):
                        self._look_for_slots()
                deleting.cancel()
            await self._after(self.ended.result())
        finally:
            for observer in self._observers:
                observer.closed(self._ports.clock.now_us())

    async def _open(self, epoch: int, markers: tuple[BarrierMarker, ...]) -> None:
        manifest, self._unreadable = await self._restored()
        history = self.history
        spec = self._describe(history)
        self._writer = JobLogWriter(history)
        self._master = JobMaster(
            self.job, history, spec.topology, spec.settings.checkpoints, spec.settings.restart,
            self._ports.new_id, spec.changed, resumable=spec.resumable,
        )  # fmt: skip
        if manifest is not None:
            self.progress.restored = manifest.checkpoint
        if history.terminated is None:
            await self._ports.log.create_topic(credits_topic(self.job), 1, compacted=True)
        attempt, self._looked = self.attempt, True
        statuses = {s: found for s, found in self._around.tasks_of(self.job).items() if found[1].attempt == attempt}
        await self._feed(Opened(epoch, statuses, markers, manifest, self._unreadable))
        if self._offered.workers:
            await self._feed(self._offered)
        if history.terminated is not None and not self.ended.done():
            self.ended.set_result(JobEnded(history.terminated.state, history.terminated.reason))

    async def _restored(self) -> tuple[Manifest | None, str]:
        """The manifest of the newest COMPLETE, or why it cannot be read.

        A former leader may complete a newer one, and delete this, until our first record stands in the log: then the
        log is read again. One that stays unreadable is nothing to go on without.
        """
        while True:
            restore = self.history.restore
            if restore is None or self.history.terminated is not None:
                return None, ""
            try:
                return await self._store.manifest(restore), ""
            except CorruptDataError as error:
                known = self.history.next_seq
                await self.load()
                if self.history.next_seq == known:
                    _log.error("a job cannot go on", job=self.job[:8], error=str(error))
                    if str(error) not in self.progress.failures:
                        self.progress.failed(str(error))
                    self._look_again_ms = self._ports.clock.monotonic_ms() + UNREADABLE_PAUSE_MS
                    return None, str(error)

    async def _readable_again(self) -> bool:
        """Whether somebody has put the missing manifest back; looked at now and then."""
        now_ms, restore = self._ports.clock.monotonic_ms(), self.history.restore
        if now_ms < self._look_again_ms or restore is None:
            return False
        self._look_again_ms = now_ms + UNREADABLE_PAUSE_MS
        try:
            await self._store.manifest(restore)
        except CorruptDataError:
            return False
        return True

    async def _feed(self, event: JobEvent) -> None:
        """Hand an event to the master and carry out everything that follows from it."""
        master = self._master
        assert master is not None
        clock = self._ports.clock
        events: deque[JobEvent] = deque([event])
        while events:
            current = events.popleft()
            commands = master.handle(current, clock.monotonic_ms())
            self.progress.event(current, master, clock.now_us())
            for observer in self._observers:
                observer.event(current, master, clock.now_us())
            for command in commands:
                self.progress.command(command, clock.now_us())
                for observer in self._observers:
                    observer.command(command, clock.now_us())
            for announced, group in itertools.groupby(commands, lambda command: isinstance(command, Announce)):
                if announced:  # together: the deployments of an attempt are many
                    await self._announce([command.command for command in group if isinstance(command, Announce)])
                    continue
                for command in group:
                    events.extend(await self._carry_out(master, command))
            if isinstance(current, RecordStored) and isinstance(current.record, Begin):
                begin = current.record
                self._around.slots_kept(self.job, master.workers, master.slots_needed)
                _log.info(
                    "attempt begins", job=self.job[:8], number=begin.attempt_number, parallelism=begin.parallelism
                )

    async def _carry_out(self, master: JobMaster, command: JobCommand) -> list[JobEvent]:
        match command:
            case Append():
                assert self._writer is not None
                record = msgspec.structs.replace(command.record, at_us=self._ports.clock.now_us())
                return await self._write(self._writer.append(record, self._ports.new_id()))
            case Announce():
                await self._announce([command.command])
                return []
            case CaptureOffsets():
                return [await self._capture(command)]
            case StoreManifest():
                return [await self._store.put_manifest(command)]
            case MissSlots():
                self.progress.missing_slots = self._around.slots_wanted(self.job, command.wanted)
                return []
            case RequestDone():
                await self._request_done(command)
                return []
            case JobEnded():
                if not self.ended.done():
                    self.ended.set_result(command)
                return []
            case _:
                assert_never(command)

    async def _announce(self, commands: Sequence[AnyCommand]) -> None:
        for command in commands:
            if isinstance(command, BarrierMarker):
                self.markers.append(command)
                self._marked_ms = self._ports.clock.monotonic_ms()
        await self._ports.log.append(COMMANDS, 0, [NewRecord(encode(command)) for command in commands])

    async def _capture(self, command: CaptureOffsets) -> OffsetsCaptured | ExchangesTaken:
        offsets: dict[str, tuple[int, ...]] = {}
        log = self._ports.log
        for vertex, partitions in command.exchanges.items():
            topic = exchange_topic(self.job, vertex, command.generation)
            try:
                await log.create_topic(topic, partitions)
            except TopicMismatchError as error:
                _log.warning(
                    "exchanges of an attempt that never began are left aside", job=self.job[:8], error=str(error)
                )
                return ExchangesTaken(command.generation)
            some = asyncio.Semaphore(ASKED_AT_ONCE)

            async def ask(partition: int, topic: str = topic, some: asyncio.Semaphore = some) -> tuple[int, int]:
                async with some:
                    return await log.offsets(topic, partition)

            ends = await asyncio.gather(*map(ask, range(partitions)))
            offsets[vertex] = tuple(end for _, end in ends)
        return OffsetsCaptured(command.generation, offsets)

    async def _write(self, commands: list[WriterCommand]) -> list[JobEvent]:
        writer = self._writer
        assert writer is not None
        pending = deque(commands)
        events: list[JobEvent] = []
        while pending:
            match pending.popleft():
                case CreateRecord(record=record):
                    if isinstance(record, Complete):
                        failpoints.reached(failpoints.BEFORE_COMPLETE)
                    answer = await self._store.create_record(self.job, record)
                    pending.extend(_ANSWERS[answer](writer))
                case ReadRecord(seq=seq):
                    pending.extend(writer.read_back(await self._store.record(self.job, seq)))
                case LookForCompaction():
                    pending.extend(writer.newest_compaction(await self._store.compacted(self.job)))
                case RecordCommitted(record=record):
                    events.append(RecordStored(record))
                    if isinstance(record, Complete):
                        failpoints.reached(failpoints.AFTER_COMPLETE)
                        self._complete = record.checkpoint
                        self._completed.set()
                case StepDown(reason=reason):
                    self._around.stepped_down(reason)
                    await (
                        asyncio.Event().wait()
                    )  # nothing more is decided here: the end of leadership cancels this task
        return events

    # -- requests -------------------------------------------------------------------------------------------------------

    async def _request_done(self, done: RequestDone) -> None:
        kind = self._asked.get(done.request, "")
        if not kind:
            return
        refused = done.outcome.removeprefix("refused: ") if done.outcome.startswith("refused: ") else ""
        await self._answer(done.request, kind, "refused" if refused else "completed", refused, done)
        self._asked.pop(done.request, None)  # not before: it is asked again by who leads then

    async def _answer(
        self, request: str, kind: str, outcome: Any, reason: str, done: RequestDone | None = None
    ) -> None:
        savepoint = done.savepoint if done is not None else None
        now_us = self._ports.clock.now_us()
        await self._catalog.answer(Answer(request, self.job, kind, outcome, reason, savepoint, now_us))

    async def _answer_late(self, request: AnyRequest) -> None:
        """The job has ended, perhaps by this very request."""
        answer = late_answer(request, self.history, self._ports.clock.now_us())
        if answer is not None:
            await self._catalog.answer(answer)
        else:
            await self._answer(request.request, kind_of(request), "refused", "the job has ended")

    # -- the end --------------------------------------------------------------------------------------------------------

    async def _after(self, ended: JobEnded) -> None:
        """Answer who still waits, and remove what an ended job needs no more. Everything of it may be done twice."""
        _log.info("job ended", job=self.job[:8], state=ended.state, reason=ended.reason)
        for request, kind in list(self._asked.items()):
            asked_for = {"cancel": "CANCELED", "stop": "STOPPED"}.get(kind)
            reason = "" if ended.state == asked_for else f"the job ended before: {ended.state} {ended.reason}".rstrip()
            await self._answer(request, kind, "refused" if reason else "completed", reason)
        self._asked.clear()
        await self._tasks_end()
        terminated = self.history.terminated
        if terminated is not None:
            await self._remains.ended(self.history)
            await self._catalog.ended(self.history, self._ports.clock.now_us())
        self._around.closed(self.job)

    async def _tasks_end(self) -> None:
        """Subtasks close by themselves once they have read the end; their exchanges must be there until then."""
        clock = self._ports.clock
        deadline_ms = clock.monotonic_ms() + TASKS_END_MS
        while clock.monotonic_ms() < deadline_ms:
            if all(status.state == "failed" for _, status in self._around.tasks_of(self.job).values()):
                return
            await clock.sleep_ms(5)

    async def _delete_replaced(self) -> None:
        """What a newer COMPLETE has replaced, beside everything else; the newest counts for all before it."""
        while True:
            await self._completed.wait()
            self._completed.clear()
            await self._remains.replaced(self._complete, self.history, self._live_objects)

    def _live_objects(self) -> Collection[str]:
        assert self._master is not None
        return self._master.live_objects
