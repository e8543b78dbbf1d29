"""A cluster of production's services on simulated ports: coordinators, workers, jobs with file sinks, faults, invariants.

What is looked at: what lands in the job logs, in `commands` and in the sinks' folders, at the moment that it does, and in
the end what has become of every job.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import Callable, Generator, MutableMapping, Sequence
from typing import Any

import structlog
from tests.simulation.kernel import Violation
from tests.simulation.shells.extras import FIRST_SEED, check_rescale, install_extras, parallelism_of, small_limits
from tests.simulation.shells.filesystem import FileSystem, Inode
from tests.simulation.shells.jobs import Job, draw_jobs
from tests.simulation.shells.loop import Process, SeededLoop, current
from tests.simulation.shells.ports import (
    WORLD,
    SimulatedBlobs,
    SimulatedLog,
    SimulatedMetadata,
    VirtualClock,
    Wire,
    at_once,
)

from penstock.adapters.memory import MemoryBlobs, MemoryLog
from penstock.coordination.control_topics import COMMANDS, EVENTS, REQUESTS, create_control_topics
from penstock.coordination.job_catalog import FINISHED, answer_key
from penstock.coordination.job_store import JobStore
from penstock.errors import ExternalError, PipelineError
from penstock.graph.jobgraph import graph_from_json
from penstock.jobmanager.coordinator import CoordinatorService, CoordinatorTimeouts
from penstock.jobmanager.leadership import LEASE, ControlPorts
from penstock.ports import NewRecord, RecordTooLargeError
from penstock.protocol import joblog
from penstock.protocol.jobmaster import JobMaster
from penstock.protocol.leader import epoch_key
from penstock.protocol.manifests import Manifest, objects_beside, with_beside
from penstock.protocol.messages import Deploy, EpochStarted, Heartbeat, Restore, decode_command, encode
from penstock.protocol.requests import CancelJob, RescaleJob, StopJob, TakeSavepoint
from penstock.task.environment import Services
from penstock.task.sinks import staged_parts
from penstock.taskmanager.job_loading import LoadedJob
from penstock.taskmanager.worker import WorkerService

TIMEOUTS = CoordinatorTimeouts(lease_ttl_ms=3_000, takeover_ms=700, worker_ms=1_500)
HEAL_S = 6.0
FORMER = "part-00000000-of-a-former-job.jsonl"
PROGRESS_S = 90.0
KNOWN_S = 4.0
"""So long after the last fault, a leader has heard from every worker which job it is bound to."""
SETTLED_S = 40.0
"""So long after the last job has ended its subtasks and slots are given back."""
ON_ITS_WAY_OUT_S = 0.01
"""So long after a leader began to stop its last task may come to its turn once more; epochs are there for that."""
AFTER_LEASE_S = 1.0
"""So long may who has lost the lease still pass for a leader: its next look at the clock, and no more."""


class Unlucky(Exception):  # noqa: N818 (what a fault raises in a master)
    """Nobody expected this."""


class ClusterWorld:
    """One history; `compete`: its jobs compete for workers, each of which holds the code of one job, as real ones do."""

    def __init__(
        self, loop: SeededLoop, seed: int, note: Callable[[str, object], None], *, compete: bool = False
    ) -> None:
        self.loop = loop
        self.note = note
        self.draw = random.Random(seed ^ 0xC1)
        self.coverage: Counter[str] = Counter()
        self.wire = Wire(loop)
        self.clock = VirtualClock(loop)
        self.log = SimulatedLog(self.wire)
        self.blobs = SimulatedBlobs(self.wire)
        self.metadata = SimulatedMetadata(self.wire, self.clock)
        self.folders = FileSystem()
        self.jobs = {job.id: job for job in draw_jobs(self.draw, extras=seed >= FIRST_SEED)}
        self.plans = {job.id: job.plan() for job in self.jobs.values()}
        self.processes: list[Process] = []
        self.coordinators: dict[str, CoordinatorService] = {}
        self.workers: dict[str, WorkerService] = {}
        self.of: dict[str, Process] = {}
        self.failing_masters: set[str] = set()
        self.lease_lost_s = -1e9
        """When the metadata store forgot the lease."""
        self.records: dict[str, joblog.JobHistory] = {}
        self.parallelisms: dict[str, set[int]] = {}
        """Those at which attempts of a job began, but for the first."""
        self.covered: dict[str, set[str]] = {}
        """Per job the parts that a COMPLETE lists."""
        self.visible: dict[str, Counter[int]] = {job: Counter() for job in self.jobs}
        self.shown: dict[str, set[str]] = {job: set() for job in self.jobs}
        self.asked: list[tuple[str, str]] = []
        """Requests that are in the log for certain, with their job."""
        self.violation: Violation | None = None
        self.trapped: list[tuple[str, Callable[[Process], None]]] = []
        self._view = MemoryBlobs()
        self._view._objects = self.blobs._objects
        self._store = _StoreAtOnce(self._view, self.clock)
        self._overdue: dict[str, float] = {}
        self._stopped_s: dict[str, float] = {}
        """When leaders began to stop."""
        self._names = 0
        self.blobs.written = self._written
        self.log.asked = self._said
        self.compete = compete
        self.small = False
        """Whether frames and acks must be small."""
        self.settings = install_extras(self, seed)
        self.log.landed = self._landed
        self.folders.renamed = self._renamed
        loop.stepped = self._stepped
        loop.set_exception_handler(self._raised)

    # -- services -------------------------------------------------------------------------------------------------------

    def import_slowly(self) -> None:
        """The worker that runs imports a job's code: nothing else runs in it, and what it says last is from before."""
        process = current()
        assert process is not None
        if self.loop.now_s < HEAL_S and self.draw.random() < 0.5:
            self.coverage["a slow import"] += 1
            self.stop(process, self.draw.uniform(0.2, 4.0))

    def refused(self, deploy: Deploy, bound_to: str) -> None:
        """C12: no attempt begins on a worker that is known to hold the code of another job."""
        self.coverage["refused by a worker that holds another job's code"] += 1
        if self.loop.now_s > HEAL_S + KNOWN_S:
            self.violated(f"C12: {deploy.job[:4]} is given {deploy.worker}, which is bound to {bound_to[:4]}")

    def process(self, kind: str) -> Process:
        """A new process."""
        self._names += 1
        process = Process(self.loop, f"{kind}-{self._names}")
        self.processes.append(process)
        self.of[process.name] = process
        return process

    def start_coordinator(self) -> None:
        """One more candidate."""
        process = self.process("leader")
        ports = ControlPorts(self.log, self.blobs, self.metadata, self.clock, self.new_id)
        service = self.coordinators[process.name] = CoordinatorService(process.name, ports, TIMEOUTS)
        self._watch(process, process.start(service.run()), self.start_coordinator)

    def start_worker(self, slots: int) -> None:
        """One more worker process."""
        process = self.process("worker")
        services = Services(self.log, self.blobs, self.clock, self.settings)
        worker = WorkerService(process.name, slots, services, _Loader(self), leader_silence_ms=8_000)
        self.workers[process.name] = worker
        self._watch(process, process.start(worker.run()), lambda: self.start_worker(slots))

    def _watch(self, process: Process, task: asyncio.Task[None], again: Callable[[], None]) -> None:
        """Who ends by an error of the outside is started again, as in production; other errors are findings."""

        def ended(task: asyncio.Task[None]) -> None:
            if task.cancelled() or self.loop.over:
                return
            error = task.exception()
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            self.note(process.name, f"ended: {error!r}")
            process.kill()
            if isinstance(error, RecordTooLargeError):
                self.violated(f"C10: {process.name} ended by a record that is too large: {error}")
            if error is not None and not isinstance(error, ExternalError):
                self.violated(f"{process.name} ended by {type(error).__name__}: {error}")
            self.later(0.3, again)
            if process.name in self.workers:
                self.later(0.1, self._farewell, process.name)

        task.add_done_callback(ended)

    def later(self, delay_s: float, action: Callable[..., object], *args: Any) -> None:
        """In the world's own time."""
        self.loop.call_later(delay_s, action, *args, context=WORLD)

    def new_id(self) -> str:
        """A fresh id of 32 hex digits."""
        return f"{self.draw.getrandbits(128):032x}"

    def kill(self, process: Process) -> None:
        """SIGKILL; another takes its place, and a supervisor may say so."""
        if not process.alive:
            return
        self.note(process.name, "is killed")
        process.kill()
        if process.name in self.coordinators:
            self.later(self.draw.uniform(0.1, 1.0), self.start_coordinator)
            return
        slots = self.workers[process.name]._slots
        if self.draw.random() < 0.7:
            self.later(self.draw.uniform(0.01, 0.3), self._farewell, process.name)
        self.later(self.draw.uniform(0.1, 1.0), self.start_worker, slots)

    def _farewell(self, name: str) -> None:
        gone = Heartbeat(worker=name, slots=0, leaving="killed")
        at_once(MemoryLog.append(self.log, EVENTS, 0, [NewRecord(encode(gone))]))

    def stop(self, process: Process, seconds: float) -> None:
        """SIGSTOP, and SIGCONT later."""
        if process.runs:
            self.note(process.name, f"stands still for {seconds:.2f} s")
            process.stop()
            self.later(seconds, process.go_on)

    def some(self, kind: str) -> Process | None:
        """A process that runs."""
        there = [process for process in self.processes if process.runs and process.name.startswith(kind)]
        return self.draw.choice(there) if there else None

    def leader(self) -> Process | None:
        """Who leads."""
        return next((self.of[n] for n, s in self.coordinators.items() if s.epoch and self.of[n].alive), None)

    # -- what is looked at ----------------------------------------------------------------------------------------------

    def violated(self, what: str) -> None:
        """An invariant does not hold; the first finding counts."""
        self.note("VIOLATION", what)
        self.violation = self.violation or Violation(what)

    def _raised(self, _: object, context: dict[str, Any]) -> None:
        """What nobody awaited, and errors of callbacks."""
        if not self.loop.over:
            self.violated(f"C8: {context.get('message')}: {context.get('exception')!r}")

    def _stepped(self, process: Process | None, what: str) -> None:
        """A thread is about to take a step in a folder."""
        kind = what.split(" ")[0]
        self.coverage[f"step {kind}"] += 1
        if process is None:
            return
        self.note(process.name, what)
        for trap in self.trapped:
            if trap[0] == kind:
                self.trapped.remove(trap)
                trap[1](process)
                return

    def _said(self, topic: str, records: Sequence[NewRecord], who: str) -> None:
        """C9: who does not lead, or leads in another epoch, gives no orders."""
        service = self.coordinators.get(who)
        if topic != COMMANDS or service is None:
            return
        for record in records:
            command = decode_command(record.value)
            just_now = self.loop.now_s - self._stopped_s.get(who, -1.0) < ON_ITS_WAY_OUT_S
            if not (isinstance(command, EpochStarted) or just_now or command.epoch == service.epoch):
                what = type(command).__name__
                self.violated(f"C9: {who}, which leads in epoch {service.epoch}, says {what} in {command.epoch}")

    def _landed(self, topic: str, partition: int, records: Sequence[NewRecord], who: str) -> None:
        """Only who has minted an epoch says anything in its name."""
        if topic != COMMANDS:
            return
        for record in records:
            command = decode_command(record.value)
            owner = self.blobs.object(epoch_key(command.epoch))
            self.note(who or "ghost", command)
            self.coverage[f"command {type(command).__name__}"] += 1
            if who and (owner is None or owner.decode() != who):
                self.violated(f"C1: {who} says {type(command).__name__} in epoch {command.epoch}, which is {owner}'s")

    def _written(self, key: str, data: bytes, who: str) -> None:
        parts = key.split("/")
        if parts[0] == "jobs" and len(parts) == 4 and parts[2] == "log" and parts[3].isdigit():
            self._recorded(parts[1], joblog.decode_record(data, key))

    def _recorded(self, job: str, record: joblog.AnyRecord) -> None:
        name = type(record).__name__
        self.note(job[:4], f"records {name}")
        self.coverage[f"record {name}"] += 1
        history = self.records.setdefault(job, joblog.JobHistory())
        try:
            history.apply(record)
        except Exception as error:
            self.violated(f"C2: the log of {job[:4]} takes {name}: {error}")
            return
        if isinstance(record, joblog.Begin) and (parallelism := parallelism_of(record)) is not None:
            self.parallelisms.setdefault(job, set()).add(parallelism)
        if isinstance(record, joblog.Complete):
            restore = Restore(record.checkpoint, record.manifest, record.sha256)
            try:
                manifest = at_once(self._store.manifest(restore))
            except Exception as error:
                self.violated(f"C3: COMPLETE {record.checkpoint} of {job[:4]}: {error}")
                return
            parts = {part["visible"] for found in staged_parts(manifest).values() for part in found}
            self.covered.setdefault(job, set()).update(parts)
            if self.jobs[job].poison == "manifest":
                del self.blobs._objects[record.manifest]

    def _renamed(self, name: str, data: bytes) -> None:
        """S1, S2: a part that becomes visible is covered by a COMPLETE, and none of its rows was visible before."""
        _, _, job, part = name.split("/")
        self.note(job[:4], f"{part} becomes visible")
        if part not in self.covered.get(job, set()):
            self.violated(f"S1: {part} of {job[:4]} is visible, no COMPLETE lists it")
        if part in self.shown[job] and name not in self.folders.taken:
            return  # the power failed before the rename was durable: it is the same file
        self.shown[job].add(part)
        for line in data.splitlines():
            row = json.loads(line)
            self.visible[job][row["id"]] += 1
            if self.visible[job][row["id"]] > 1:
                self.violated(f"S2: row {row['id']} of {job[:4]} is visible twice")

    def _look_at_leaders(self) -> None:
        """C4: who has lost the lease for a while does not lead; who stood still is given the time to see it."""
        now = self.loop.now_s
        holder = self.metadata.holder(LEASE)
        for name, service in self.coordinators.items():
            process = self.of[name]
            if not (process.runs and service.epoch) or holder == name or now - self.lease_lost_s < 4:
                self._overdue[name] = now
                continue
            since = max(self._overdue.setdefault(name, now), process.ran_again_at)
            if now - since > AFTER_LEASE_S:
                self.violated(
                    f"C4: {name} leads epoch {service.epoch} without the lease, which {holder or 'nobody'} has"
                )

    def logged(self, _: object, level: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """What services log tells the story; some of it must not happen."""
        self.note("log", f"{level} {event}")
        what = str(event.get("event"))
        self.coverage[f"logged {what}"] += 1
        process = current()
        if what == "leadership lost" and process is not None:
            self._stopped_s[process.name] = self.loop.now_s
        if what == "the leader cannot go on" and not self.loop.over:
            self.violated(f"C5: {what}: {event}")
        raise structlog.DropEvent

    # -- the history ----------------------------------------------------------------------------------------------------

    async def run(self, faults: Sequence[tuple[float, Callable[[ClusterWorld], None], str]]) -> None:
        """Until every job has ended and everything is given back."""
        await create_control_topics(_Direct(self.log))  # pyright: ignore
        for _ in range(2):
            self.start_coordinator()
        slots = 1 if self.compete else self.draw.choice((1, 2))
        enough = self.draw.choice((2, 3)) if slots == 2 else 4
        for _ in range(sum(job.parallelism for job in self.jobs.values()) if self.compete else enough):
            self.start_worker(slots)
        client = self.process("client")
        for job in self.jobs.values():
            if job.replaces:
                self.folders.files[f"{job.folder}/{FORMER}"] = self.folders.durable[f"{job.folder}/{FORMER}"] = Inode()
            client.start(self._client(job))
        for at_s, inject, name in faults:
            self.later(at_s, self._inject, name, inject)
        self.later(HEAL_S, self._heal)
        await self._until(self._all_ended, HEAL_S + PROGRESS_S, "every job ends")
        await self._until(self._given_back, self.loop.now_s + SETTLED_S, "slots and subtasks are given back")
        self._final()

    def _inject(self, name: str, inject: Callable[[ClusterWorld], None]) -> None:
        self.note("fault", name)
        self.coverage[f"fault {name}"] += 1
        inject(self)

    def _heal(self) -> None:
        self.note("world", "heals")
        self.wire.trouble = lambda action, what: ""
        self.wire.slow_s = 0.0
        self.loop.thread_delay_s = lambda: self.loop.random.uniform(0, 0.005)
        self.trapped.clear()
        self.failing_masters.clear()
        for process in self.processes:
            if process.alive and process.stopped:
                process.go_on()

    async def _client(self, job: Job) -> None:
        """Submits until that is certain: the same request may come twice."""
        await asyncio.sleep(job.submitted_s)
        request = job.submission(self.plans[job.id])
        if job.poison == "graph":
            request.graph["vertices"] = "of another version"
            self.blobs._objects[f"active/{job.id}"] = b""
            submit = joblog.Submit(seq=0, nonce="n", job=job.id, name="strange", graph=request.graph)
            self.blobs._objects[joblog.log_key(job.id, 0)] = joblog.encode_record(submit)
            return
        await self._ask(request)
        if job.asks:
            await asyncio.sleep(max(0.0, job.asks_s - self.loop.now_s))
            kinds = {"cancel": CancelJob, "stop": StopJob, "savepoint": TakeSavepoint}
            if job.asks == "rescale":
                request = RescaleJob(request=f"rescale-{job.id}", job=job.id, parallelism=job.wanted, wait=job.waits)
            else:
                request = kinds[job.asks](request=self.new_id(), job=job.id)
            await self._ask(request)
            self.asked.append((job.id, request.request))

    async def _ask(self, request: Any) -> None:
        while True:
            with contextlib.suppress(ExternalError):
                await self.log.append(REQUESTS, 0, [NewRecord(encode(request))])
                return
            await asyncio.sleep(0.2)

    async def _until(self, condition: Callable[[], str], end_s: float, what: str) -> None:
        while missing := condition():
            if self.loop.now_s > end_s:
                self.violated(f"C6: not in time: {what}: {missing}")
            self._look_at_leaders()
            if self.violation is not None:
                raise self.violation
            await asyncio.sleep(0.05)

    def _all_ended(self) -> str:
        """Which jobs that can end have not."""
        missing = [
            job.id[:4]
            for job in self.jobs.values()
            if job.poison not in ("graph", "manifest")
            and not (self._has_ended(job.id) and self.blobs.keys(FINISHED + job.id))
        ]
        missing += [f"answer to {asked}" for job, asked in self.asked if not self.blobs.keys(answer_key(job, asked))]
        return ", ".join(missing)

    def _given_back(self) -> str:
        """What ended jobs still hold."""
        held = [
            f"{status.job[:4]} {status.subtask} {status.state} on {name}"
            for name, worker in self.workers.items()
            if self.of[name].alive
            for status in worker.statuses()
            if self._has_ended(status.job)
        ]
        leader = self.leader()
        if leader is None:
            return "there is no leader"
        slots = self.coordinators[leader.name]._slots
        for name in slots.workers:
            held += [f"a slot of {name} for {job[:4]}" for job in slots.used(name) if self._has_ended(job)]
        return ", ".join(held)

    def _has_ended(self, job: str) -> bool:
        history = self.records.get(job)
        return history is not None and history.terminated is not None

    def _final(self) -> None:
        """S3: what is visible is what COMPLETE covers, and of a finished job that is every row."""
        for job in self.jobs.values():
            history = self.records.get(job.id)
            if history is None or history.terminated is None:
                continue
            ended = history.terminated
            self.coverage[f"end {ended.state}"] += 1
            missing = self.covered.get(job.id, set()) - self.shown[job.id]
            if missing and not ended.unpublished:
                self.violated(f"S3: {job.id[:4]} is {ended.state}, {sorted(missing)} never became visible")
            if ended.state == "FINISHED" and len(self.visible[job.id]) != job.rows:
                self.violated(f"S3: {job.id[:4]} is FINISHED with {len(self.visible[job.id])} of {job.rows} rows")
            if ended.state == "FAILED" and job.poison != "row":
                self.violated(f"C7: {job.id[:4]} has FAILED: {ended.reason}")
            if job.replaces and job.id in self.covered:
                self.coverage["former files replaced"] += 1
                if f"{job.folder}/{FORMER}" in self.folders.files and not self.coverage["fault power_fails"]:
                    self.violated(f"S5: {job.id[:4]} replaces what was there, and {FORMER} is there still")
            if job.asks == "rescale":
                check_rescale(self, job)
            there = self.folders.taken | self.folders.files.keys()
            if lost := {part for part in self.shown[job.id] if f"{job.folder}/{part}" not in there}:
                self.violated(f"S4: {sorted(lost)} of {job.id[:4]} were visible and are gone")
            left = [name for name in self.folders.files if name.startswith(f"{job.folder}/.staging/")]
            self.coverage["left in staging"] += len(left)
        if self.violation is not None:
            raise self.violation

    @contextlib.contextmanager
    def installed(self) -> Generator[None]:
        """Under production's classes."""
        handle, world = JobMaster.handle, self

        def faulty(master: JobMaster, event: Any, now_ms: int) -> Any:
            if master.job in world.failing_masters:
                world.failing_masters.discard(master.job)
                raise Unlucky("nobody expected this")
            return handle(master, event, now_ms)

        former = structlog.get_config()
        structlog.configure(processors=[self.logged], cache_logger_on_first_use=False)
        JobMaster.handle = faulty
        try:
            with self.folders.installed(), small_limits() if self.small else contextlib.nullcontext():
                yield
        finally:
            JobMaster.handle = handle
            structlog.configure(**former)


class _StoreAtOnce(JobStore):
    """Reads of memory wait for nothing, as long as they are made one after another."""

    async def whole(self, manifest: Manifest) -> Manifest:
        """See `JobStore.whole`."""
        found = {handle.key: await self._beside(handle) for handle in objects_beside(manifest)}
        return with_beside(manifest, found) if found else manifest


class _Direct:
    """The log as the world itself uses it."""

    def __init__(self, log: MemoryLog) -> None:
        self.create_topic = log.create_topic


class _Loader:
    """Any job's code, as `MemoryCluster` has it; of one job only where jobs compete, as `StoreLoader` has it."""

    def __init__(self, world: ClusterWorld) -> None:
        self.bound_to = ""
        self._world = world
        self._store = JobStore(world.blobs, world.clock)

    async def load(self, deploy: Deploy) -> LoadedJob:
        """See `JobLoader`."""
        if self.bound_to not in ("", deploy.job):
            self._world.refused(deploy, self.bound_to)
            raise PipelineError(f"this process holds the code of job {self.bound_to[:4]} and serves no other")
        if self._world.compete and not self.bound_to:
            self.bound_to = deploy.job
            self._world.import_slowly()
        manifest = await self._store.manifest(deploy.restore) if deploy.restore else None
        history = await self._store.history(deploy.job)
        return LoadedJob(graph_from_json(history.graph), self._world.plans[deploy.job], manifest)
