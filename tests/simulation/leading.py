"""The simulated coordinator: the steps of `penstock.jobmanager.coordinator`, as a generator instead of coroutines."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tests.simulation.kernel import Mailbox, Node, Violation, Work

from penstock.errors import ExternalError
from penstock.ports import BlobExistsError, BlobNotFoundError
from penstock.protocol import jobevents as job
from penstock.protocol import joblog, joblog_writer, leader, messages
from penstock.protocol.incremental import named_objects
from penstock.protocol.jobmaster import JobMaster
from penstock.protocol.manifests import decode_manifest, encode_manifest
from penstock.protocol.messages import SubtaskId, TaskStatus
from penstock.protocol.retention import retired_objects

if TYPE_CHECKING:
    from tests.simulation.world import World

LEASE_TTL_MS = 1_200
TICK_MS = 60
LEADER_TICK_MS = 400
TAKEOVER_MS = 400
WORKER_TIMEOUT_MS = 1_000
COMMANDS = "commands"
EVENTS = "events"


_STEPS: dict[type, str] = {
    leader.CreateEpoch: "create epoch",
    leader.AppendEpoch: "append epoch",
    leader.Lead: "take over",
}


class Coordinator(Node):
    """One candidate."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world.kernel, name)
        self._world = world
        self.machine = leader.LeaderMachine(name, LEASE_TTL_MS)
        self.master: JobMaster | None = None
        self._writer: joblog_writer.JobLogWriter | None = None
        self._inbox = Mailbox()
        self._workers: dict[str, tuple[int, int, tuple[TaskStatus, ...]]] = {}
        self._heard: dict[str, int] = {}
        """The number of each worker's newest heartbeat."""
        self.epoch = 0
        self._open_at_ms: int | None = None
        self._markers: tuple[messages.BarrierMarker, ...] = ()
        self._last_tick_ms = self.monotonic_ms
        self._ticking = False
        self._position = world.log.partition(EVENTS, 0).end
        self.start(self._main(), self._crash)
        self.start(self._read_events(), self._crash)
        self.start(self._tick(), self._crash)

    def request(self, request: job.Requested | job.CheckpointAsked) -> None:
        """A client asks."""
        self.deliver(self._inbox.put, ("request", request))

    def reopen(self, parallelism: int) -> None:
        """A client resumes a suspended job, perhaps with a changed graph."""
        self.deliver(self._inbox.put, ("reopen", parallelism))

    def _crash(self, error: BaseException) -> None:
        """As in production an error nobody expects ends the process; only those of the outside are expected."""
        self.kernel.note(self.name, f"crashes: {error!r}")
        if not isinstance(error, ExternalError):
            raise Violation(f"{self.name}: {type(error).__name__}: {error}") from error
        self.kill()
        self._world.restart_coordinator()

    def _read_events(self) -> Work:
        while True:
            for _, after, event in (yield self._world.log.read(EVENTS, 0, self._position)):
                self._position = after
                self._inbox.put(("event", event))

    def _tick(self) -> Work:
        while True:
            if not self._ticking:
                self._ticking = True
                self._inbox.put(("tick", None))
            yield self.sleep(TICK_MS)

    def _main(self) -> Work:
        while True:
            kind, value = yield self._inbox.get()
            if kind == "tick":
                self._ticking = False
                yield from self._on_tick()
            elif kind == "event":
                yield from self._on_event(value)
            elif kind == "request":
                yield from self._feed(value)
            elif kind == "reply":
                master, event = value
                if master is self.master:
                    yield from self._feed(event)
            elif kind == "reopen" and self.epoch and self.master is not None:
                yield from self._open_job(value)

    def _on_event(self, event: messages.AnyEvent) -> Work:
        coverage = self._world.coverage
        coverage.add(f"event {type(event).__name__}")
        match event:
            case messages.Heartbeat():
                if event.number < self._heard.get(event.worker, 0):
                    return  # its append was repeated: it lists no subtask that began meanwhile
                self._heard[event.worker] = event.number
                known = event.worker in self._workers
                self._workers[event.worker] = (event.slots, self.monotonic_ms, event.tasks)
                if not known:
                    yield from self._feed(job.SlotsOffered({w: s for w, (s, _, _) in self._workers.items()}))
                for status in event.tasks:
                    yield from self._feed(job.StatusReported(event.worker, status))
                listed = frozenset(status.subtask for status in event.tasks if self._is_newest(status))
                yield from self._feed(job.TasksListed(event.worker, listed))
            case messages.TaskChanged():
                yield from self._feed(job.StatusReported(event.worker, event.status))
            case messages.Acknowledged() | messages.Declined():
                yield from self._feed(job.AckReceived(event))

    def _is_newest(self, status: TaskStatus) -> bool:
        return self.master is not None and status.attempt == self.master.attempt

    def _on_tick(self) -> Work:
        yield from self._lead(self.machine.handle(leader.TimePassed(), self.monotonic_ms))
        if self._open_at_ms is not None and self.monotonic_ms >= self._open_at_ms:
            self._open_at_ms = None
            yield from self._open_job()
        for name, (_, seen_ms, _) in list(self._workers.items()):
            if self.monotonic_ms - seen_ms >= WORKER_TIMEOUT_MS:
                del self._workers[name]
                yield from self._feed(job.WorkerGone(name, "no heartbeat"))
        yield from self._feed(job.Ticked())
        if self.epoch and self.monotonic_ms - self._last_tick_ms >= LEADER_TICK_MS:
            self._last_tick_ms = self.monotonic_ms
            yield from self._announce(messages.LeaderTick(epoch=self.epoch))

    # -- leadership -----------------------------------------------------------------------------------------------------

    def _lead(self, commands: list[leader.LeaderCommand]) -> Work:
        pending = deque(commands)
        while pending:
            command = pending.popleft()
            self._world.coverage.add(f"leader command {type(command).__name__}")
            self._world.coverage.add(f"leader phase {self.machine.phase.name}")
            self.kernel.note(self.name, command)
            pending.extend((yield from self._carry_out_leader(command)))

    def _leader_event(self, event: leader.LeaderEvent) -> list[leader.LeaderCommand]:
        self._world.coverage.add(f"leader event {type(event).__name__}")
        commands = self.machine.handle(event, self.monotonic_ms)
        self._world.coverage.add(f"leader phase {self.machine.phase.name}")
        return commands

    def _carry_out_leader(self, command: leader.LeaderCommand) -> Work:
        world = self._world
        world.step(self, _STEPS.get(type(command), ""))
        match command:
            case leader.AskForLease():
                asked_ms = self.monotonic_ms
                try:
                    held = yield world.metadata.ask(command.renew, self.name, LEASE_TTL_MS)
                except ExternalError:
                    return []
                return self._leader_event(leader.LeaseAnswered(held, asked_ms))
            case leader.ListEpochs():
                while True:
                    try:
                        keys = yield world.blobs.list("leaders/")
                        break
                    except ExternalError:
                        yield self.sleep(20)
                return self._leader_event(leader.EpochsListed(int(keys[-1].rsplit("/", 1)[1]) if keys else 0))
            case leader.CreateEpoch():
                event = yield from self._create_epoch(command.epoch)
                return self._leader_event(event)
            case leader.AppendEpoch():
                yield from self._announce(messages.EpochStarted(epoch=command.epoch, leader=self.name))
                return (yield from self._read_commands())
            case leader.Lead():
                self.epoch = command.epoch
                self._markers = command.markers
                self._open_at_ms = self.monotonic_ms + TAKEOVER_MS
                world.led(self)
                return []
            case leader.StopLeading():
                self.epoch = 0
                self.master = None
                self._writer = None
                self._open_at_ms = None
                return []

    def _create_epoch(self, epoch: int) -> Work:
        key = leader.epoch_key(epoch)
        try:
            yield self._world.blobs.create(key, self.name.encode())
        except BlobExistsError:
            try:
                owner = yield self._world.blobs.get(key)
            except BlobNotFoundError:
                return leader.EpochUnknown(epoch)
            except ExternalError:
                return leader.EpochUnknown(epoch)
            return leader.EpochCreated(epoch) if owner == self.name.encode() else leader.EpochTaken(epoch)
        except ExternalError:
            yield self.sleep(20)
            return leader.EpochUnknown(epoch)
        return leader.EpochCreated(epoch)

    def _read_commands(self) -> Work:
        partition = self._world.log.partition(COMMANDS, 0)
        position, end = partition.trimmed, partition.end
        result: list[leader.LeaderCommand] = []
        while position < end:
            for _, after, command in (yield self._world.log.read(COMMANDS, 0, position)):
                position = after
                result += self._leader_event(leader.CommandRead(command))
        return result

    def _announce(self, command: messages.AnyCommand) -> Work:
        self.kernel.note(self.name, command)
        self._world.announced(command)
        yield self._world.log.append(self, COMMANDS, 0, command)

    def _open_job(self, wanted: int = 0) -> Work:
        """`wanted`: the parallelism of a graph that is not the job log's; 0: as the log says."""
        name = self._world.job
        history, manifest = yield from self._load_history()
        scenario = self._world.scenario
        parallelism = history.graph["parallelism"]
        changed: job.ChangedGraph | None = None
        if wanted not in (0, parallelism):
            changed = job.ChangedGraph(scenario.topology(wanted), {"parallelism": wanted})
        self.master = JobMaster(
            name, history, scenario.topology(parallelism), scenario.checkpoints, scenario.restarts,
            self.kernel.new_id, changed, resumable=scenario.resumable,
        )  # fmt: skip
        self._writer = joblog_writer.JobLogWriter(history)
        attempt = self.master.attempt
        statuses: dict[SubtaskId, tuple[str, TaskStatus]] = {
            status.subtask: (worker, status)
            for worker, (_, _, tasks) in self._workers.items()
            for status in tasks
            if status.attempt == attempt
        }
        yield from self._feed(job.Opened(self.epoch, statuses, self._markers, manifest))
        yield from self._feed(job.SlotsOffered({w: s for w, (s, _, _) in self._workers.items()}))

    def _load_history(self) -> Work:
        """The job log and the manifest of its newest COMPLETE; another leader may complete and delete meanwhile."""
        blobs, prefix = self._world.blobs, joblog.log_prefix(self._world.job)
        missing = ""
        while True:
            try:
                records: list[joblog.AnyRecord] = []
                for key in (yield blobs.list(prefix)):
                    records += [joblog.decode_record((yield blobs.get(key)), key)]
                history = joblog.JobHistory.of(records)
                restore = history.restore
                return history, (yield from self._load_manifest(restore)) if restore else None
            except BlobNotFoundError as error:
                if str(error) == missing:
                    raise Violation(f"I12: {self.name} needs {error}, which was deleted") from error
                missing = str(error)
            except ExternalError:
                yield self.sleep(20)

    def _load_manifest(self, restore: messages.Restore) -> Work:
        data = yield self._world.blobs.get(restore.manifest)
        if hashlib.sha256(data).hexdigest() != restore.sha256:
            raise Violation(f"I9: {restore.manifest} is not what COMPLETE says")
        return decode_manifest(data, restore.manifest)

    # -- the job --------------------------------------------------------------------------------------------------------

    def _feed(self, event: job.JobEvent) -> Work:
        events: deque[job.JobEvent] = deque([event])
        while events and self.master is not None:
            master = self.master
            current = events.popleft()
            coverage = self._world.coverage
            coverage.add(f"job event {type(current).__name__}")
            commands = master.handle(current, self.monotonic_ms)
            for before, after in zip(master.phases, master.phases[1:], strict=False):
                coverage.add(f"job move {before.name} {after.name}")
            if isinstance(current, job.RecordStored) and isinstance(current.record, joblog.Complete):
                self._retire(current.record)
            for command in commands:
                coverage.add(f"job command {type(command).__name__}")
                if master is self.master:
                    events.extend((yield from self._carry_out(master, command)))

    def _carry_out(self, master: JobMaster, command: job.JobCommand) -> Work:
        world = self._world
        match command:
            case job.Append():
                assert self._writer is not None
                return (yield from self._write(self._writer.append(command.record, self.kernel.new_id())))
            case job.Announce():
                world.step(self, f"announce {type(command.command).__name__}")
                yield from self._announce(command.command)
            case job.CaptureOffsets():
                return (yield from self._perhaps_later(master, self._capture(command)))
            case job.StoreManifest():
                return (yield from self._perhaps_later(master, self._store_manifest(command)))
            case job.RequestDone():
                world.answered(command)
            case job.JobEnded():
                world.job_ended(self, command)
            case job.MissSlots():
                pass
        return []

    def _perhaps_later(self, master: JobMaster, work: Work) -> Work:
        """Wait for the answer, or (other shells may) go on and hear it as an event of its own."""
        if not self._world.scenario.concurrent_io:
            return [(yield from work)]

        def background() -> Work:
            event = yield from work
            self._inbox.put(("reply", (master, event)))

        self.start(background(), self._crash)
        return []

    def _capture(self, command: job.CaptureOffsets) -> Work:
        yield self.sleep(self.kernel.random.randint(1, 60 if self._world.scenario.concurrent_io else 6))
        for vertex, partitions in command.exchanges.items():
            if not self._world.log.create_topic(f"{vertex}.g{command.generation}", partitions):
                return job.ExchangesTaken(command.generation)
        offsets: Mapping[str, tuple[int, ...]] = {
            vertex: tuple(
                self._world.log.partition(f"{vertex}.g{command.generation}", number).end for number in range(partitions)
            )
            for vertex, partitions in command.exchanges.items()
        }
        return job.OffsetsCaptured(command.generation, offsets)

    def _store_manifest(self, command: job.StoreManifest) -> Work:
        data = encode_manifest(command.manifest)
        self._world.step(self, "store manifest")
        while True:
            try:
                yield self._world.blobs.put(command.key, data)
                break
            except ExternalError:
                yield self.sleep(20)
        digest = hashlib.sha256(data).hexdigest()
        return job.ManifestStored(command.manifest.checkpoint, command.nonce, command.key, digest)

    def _write(self, commands: list[joblog_writer.WriterCommand]) -> Work:
        writer = self._writer
        assert writer is not None
        pending = deque(commands)
        events: list[job.JobEvent] = []
        while pending:
            command = pending.popleft()
            self._world.coverage.add(f"writer command {type(command).__name__}")
            match command:
                case joblog_writer.CreateRecord():
                    pending.extend((yield from self._create(writer, command.record)))
                case joblog_writer.ReadRecord():
                    pending.extend((yield from self._read_back(writer, command.seq)))
                case joblog_writer.LookForCompaction():  # no simulated log is ever so long; see test_job_log_compaction
                    pending.extend(writer.newest_compaction(-1))
                case joblog_writer.RecordCommitted():
                    self.kernel.note(self.name, f"recorded {command.record}")
                    self._world.step(self, f"recorded {type(command.record).__name__}")
                    events.append(job.RecordStored(command.record))
                case joblog_writer.StepDown():
                    yield from self._lead(self.machine.lost(command.reason))
        return events

    def _retire(self, record: joblog.Complete) -> None:
        """Delete what no restore needs any more."""
        blobs = self._world.blobs
        assert self._writer is not None
        assert self.master is not None
        savepoints = self._writer.history.savepoints.values()
        retained = {savepoint.checkpoint for savepoint in savepoints}
        needed = set(self.master.live_objects)
        for manifest in (savepoint.manifest for savepoint in savepoints if savepoint.refers):
            self._world.coverage.add("savepoint that refers")
            needed |= named_objects(decode_manifest(blobs.objects[manifest], manifest))
        prefix = f"jobs/{self._world.job}/checkpoints/"
        keys = [key for key in blobs.objects if key.startswith(prefix)]
        for key in retired_objects(keys, record.checkpoint, retained, needed):
            blobs.delete(key)
        newest = self._world.invariants.complete
        for kept in (*savepoints, *([newest] if newest is not None else [])):
            manifest = decode_manifest(blobs.objects[kept.manifest], kept.manifest)
            gone = sorted(key for key in named_objects(manifest) if key not in blobs.objects)
            if gone:
                raise Violation(f"I12: {kept.manifest} names {gone[0]}, which is deleted")

    def _create(self, writer: joblog_writer.JobLogWriter, record: joblog.AnyRecord) -> Work:
        self._world.step(self, f"write {type(record).__name__}")
        data = joblog.encode_record(record)
        try:
            yield self._world.blobs.create(joblog.log_key(self._world.job, record.seq), data)
        except BlobExistsError:
            return writer.refused()
        except ExternalError:
            yield self.sleep(20)
            return writer.unknown()
        return writer.created()

    def _read_back(self, writer: joblog_writer.JobLogWriter, seq: int) -> Work:
        key = joblog.log_key(self._world.job, seq)
        while True:
            try:
                return writer.read_back(joblog.decode_record((yield self._world.blobs.get(key)), key))
            except BlobNotFoundError:
                return writer.read_back(None)
            except ExternalError:
                yield self.sleep(20)
