"""The leader's decisions about one job: attempts, checkpoints, failures, and the one way to end.

`JobMaster` owns no I/O and no second opinion: what happened to the job stands in the job log (`JobHistory`), when to
checkpoint in `CheckpointBook`, what becomes of its manifest in `Completions`, what is known of the running subtasks in
`AttemptTasks`, which ending is under way in `Endings`, whether to restart in a `RestartDecider`. It ties them together:

    attempt:  offsets captured -> BEGIN recorded -> deployed -> all running
    ending:   barrier -> COMPLETE recorded -> every sink has published it -> record
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, assert_never

from penstock.errors import ProtocolError
from penstock.protocol.announcing import NEW_ATTEMPT, RESCALE, Announcements
from penstock.protocol.attempts import AttemptTasks
from penstock.protocol.checkpoints import CheckpointBook, CheckpointSettings, PendingCheckpoint, Purpose
from penstock.protocol.completing import Completions
from penstock.protocol.endings import Ending, Endings
from penstock.protocol.jobevents import (
    AckReceived,
    Append,
    CaptureOffsets,
    JobCommand,
    JobEnded,
    JobEvent,
    ManifestStored,
    MissSlots,
    OffsetsCaptured,
    Opened,
    RecordStored,
    RequestDone,
    Requested,
    SlotsOffered,
    StatusReported,
    TasksListed,
    Ticked,
    Topology,
    WorkerGone,
)
from penstock.protocol.joblog import (
    AnyRecord,
    Begin,
    Complete,
    JobHistory,
    Leader,
    Savepoint,
    Submit,
    TerminalState,
    Terminated,
)
from penstock.protocol.messages import Acknowledged, Declined, SubtaskId, TaskStatus
from penstock.protocol.phases import MOVES, Phase
from penstock.protocol.restarts import RestartStrategy, restart_decider


class JobMaster:
    """One job under one leader."""

    def __init__(
        self,
        job: str,
        history: JobHistory,
        topology: Topology,
        checkpoints: CheckpointSettings,
        restarts: RestartStrategy,
        new_id: Callable[[], str],
        graph: Mapping[str, Any] | None = None,
        *,
        resumable: bool = False,
    ) -> None:
        """`new_id` gives fresh ids of 32 hex digits.

        `graph` is given if it differs from the job log's: the next attempt begins with it, on exchanges of its own.
        A `resumable` job that fails is not terminated: somebody goes on with it once the cause is removed.
        """
        self.job = job
        self.history = history
        self.topology = topology
        self.phase = Phase.OPENING
        self.phases: list[Phase] = [Phase.OPENING]
        self._book = CheckpointBook(checkpoints, lambda: new_id()[:16])
        self._restarts = restart_decider(restarts)
        self._new_id = new_id
        self._graph = graph
        self._resumable = resumable
        self._announce = Announcements(job, history)
        self._tasks = AttemptTasks()
        self._completions = Completions(job)
        self._endings = Endings(history)
        self._generation = history.begin.generation if history.begin else 0
        if history.begin is not None and graph is not None:
            self._generation += 1
        self._opened: Opened | None = None
        self._workers: Mapping[str, int] = {}
        self._appending = 0
        self._restart_at_ms = 0
        self._begin_again = ""
        self._adopted = False
        self._rescale_request = ""
        """The rescale that the next BEGIN carries out."""

    @property
    def attempt(self) -> str:
        """The newest attempt; empty before the first."""
        return self._announce.attempt

    @property
    def book(self) -> CheckpointBook:
        """The pending checkpoints."""
        return self._book

    @property
    def live_objects(self) -> frozenset[str]:
        """Objects of earlier checkpoints that incremental snapshots may refer to: not to be deleted."""
        return self._completions.live_objects

    @property
    def workers(self) -> frozenset[str]:
        """Where the subtasks of the newest attempt run, as far as they were deployed or adopted."""
        return self._tasks.workers

    @property
    def statuses(self) -> Mapping[SubtaskId, TaskStatus]:
        """What was last heard of each subtask of the newest attempt."""
        return self._tasks.statuses

    def handle(self, event: JobEvent, now_ms: int) -> list[JobCommand]:
        """Take an event; the commands are to be carried out in order."""
        if self.phase in (Phase.TERMINATED, Phase.SUSPENDED):
            return []
        if isinstance(event, RecordStored):
            self._appending -= 1
        commands = self._dispatch(event, now_ms)
        commands += self._progress(now_ms)
        self._appending += sum(isinstance(command, Append) for command in commands)
        return commands

    def _dispatch(self, event: JobEvent, now_ms: int) -> list[JobCommand]:
        match event:
            case Opened():
                return self._on_opened(event, now_ms)
            case RecordStored():
                return self._on_record(event.record, now_ms)
            case SlotsOffered():
                self._workers = event.workers
                return []
            case OffsetsCaptured():
                return self._on_offsets(event)
            case StatusReported():
                return self._on_status(event, now_ms)
            case TasksListed():
                return self._on_listed(event, now_ms)
            case WorkerGone():
                return self._on_worker_gone(event, now_ms)
            case AckReceived():
                return self._on_ack(event.message, now_ms)
            case ManifestStored():
                return self._on_manifest(event, now_ms)
            case Requested():
                return self._endings.requested(event, self.phase, now_ms)
            case Ticked():
                return []
            case _:
                assert_never(event)

    # -- opening --------------------------------------------------------------------------------------------------------

    def _on_opened(self, event: Opened, now_ms: int) -> list[JobCommand]:
        self._announce.epoch = event.epoch
        if self.history.terminated is not None:
            self._move(Phase.TERMINATED)
            return [self._announce.cancel("terminated", final=True)] if self.attempt else []
        self._opened = event
        self._book.seen(self.history.highest_checkpoint)
        for marker in event.markers:
            self._book.seen(marker.checkpoint)
        self._completions.restored(event.manifest, self._generation)
        if self.history.epoch == event.epoch:
            return self._on_leader_recorded(now_ms)
        return [Append(Leader(epoch=event.epoch))]

    def _on_leader_recorded(self, now_ms: int) -> list[JobCommand]:
        opened = self._opened
        assert opened is not None
        self._endings.opened()
        alive = {s for s, (_, status) in opened.statuses.items() if status.state in ("running", "ended")}
        if self.history.begin is not None and alive == set(self.topology.subtasks) and self._graph is None:
            return self._adopt(opened, now_ms)
        self._move(Phase.WAITING)
        return [self._announce.cancel(NEW_ATTEMPT)] if self.attempt else []

    def _adopt(self, opened: Opened, now_ms: int) -> list[JobCommand]:
        """Take the running attempt over as it is: repeat the newest COMPLETE, abort what was pending."""
        self._tasks.adopt(opened.statuses)
        self._move(Phase.RUNNING)
        self._adopted = True
        self._book.start_attempt(now_ms)
        commands: list[JobCommand] = []
        complete = self.history.complete
        if complete is not None and complete.attempt == self.attempt:
            commands.append(self._announce.completed(complete))
            if complete.ending in ("suspend", "rescale"):  # its sources are paused, and nobody knows what for
                commands.append(self._announce.aborted(complete.checkpoint, complete.checkpoint_nonce))
        newest = self.history.highest_checkpoint
        for marker in opened.markers:
            if marker.attempt == self.attempt and marker.checkpoint > newest:
                commands.append(self._announce.aborted(marker.checkpoint, marker.nonce))
                if marker.drain:
                    self._begin_again = "a drain was interrupted by a change of leader"
        return commands

    # -- an attempt -----------------------------------------------------------------------------------------------------

    def _progress(self, now_ms: int) -> list[JobCommand]:
        """What follows from the state alone, after every event."""
        if not self._appending and self._endings.cancel_is_over(self.phase, now_ms):
            return self._terminate("CANCELED", self._endings.cancel_reason())
        match self.phase:
            case Phase.WAITING:
                return self._try_begin()
            case Phase.RESTARTING if now_ms >= self._restart_at_ms:
                self._move(Phase.WAITING)
                return self._try_begin()
            case Phase.RUNNING:
                return self._while_running(now_ms)
            case _:
                return []

    def _try_begin(self) -> list[JobCommand]:
        """Begin an attempt if there are slots, but not while a record is on its way: it may be a COMPLETE."""
        if self._appending:
            return []
        ending = self._endings.current
        if ending is not None and ending.kind == "suspend" and ending.checkpoint is None:
            return self._suspend(ending)
        missing = self.topology.slot_count - sum(self._workers.values())
        if missing > 0:
            return [MissSlots(missing)]
        self._move(Phase.CAPTURING)
        return [CaptureOffsets(self._generation, self.topology.exchanges)]

    def _on_offsets(self, event: OffsetsCaptured) -> list[JobCommand]:
        if self.phase is not Phase.CAPTURING or event.generation != self._generation:
            return []
        self._move(Phase.BEGINNING)
        former = self.history.begin.attempt_number if self.history.begin else 0
        begin = Begin(
            attempt=self._new_id(), attempt_number=former + 1, restore=self.history.restore,
            parallelism=self.topology.parallelism, generation=self._generation,
            start_offsets=dict(event.offsets), graph=dict(self._graph) if self._graph is not None else None,
            request=self._rescale_request,
        )  # fmt: skip
        self._graph = None
        return [Append(begin)]

    def _on_begin_recorded(self, begin: Begin, now_ms: int) -> list[JobCommand]:
        self._move(Phase.RUNNING)
        self._adopted = False
        self._completions.attempt_begins()
        self._book.start_attempt(now_ms)
        self._endings.attempt_begins()
        if not self._tasks.begin(self.topology, self._workers):
            self._begin_again = "a slot was lost while the attempt began"
        commands: list[JobCommand] = [self._deploy(begin, s) for s in self.topology.subtasks]
        if self._rescale_request:
            commands.append(RequestDone(self._rescale_request, "rescaled"))
            self._rescale_request = ""
        return commands

    def _deploy(self, begin: Begin, subtask: SubtaskId) -> JobCommand:
        return self._announce.deploy(begin, subtask, self._tasks.worker_of(subtask))

    def _on_status(self, event: StatusReported, now_ms: int) -> list[JobCommand]:
        status = event.status
        if status.job != self.job or status.attempt != self.attempt or self.phase is not Phase.RUNNING:
            return []
        if not self._tasks.heard(event.worker, status):
            return []
        if status.state in ("failed", "canceled"):
            return self._fail(f"{status.subtask}: {status.error or status.state}", now_ms)
        return []

    def _on_listed(self, event: TasksListed, now_ms: int) -> list[JobCommand]:
        """A subtask that was there and is no longer listed has ended without being heard: its events were lost."""
        if self.phase is not Phase.RUNNING:
            return []
        subtask = self._tasks.lost(event.worker, event.subtasks)
        if subtask is not None:
            reason = f"{subtask}: worker {event.worker} no longer runs it"
            # what ran under another leader may have been ended by it: that is no failure
            return self._restart(reason, now_ms, 0) if self._adopted else self._fail(reason, now_ms)
        return []

    def _on_worker_gone(self, event: WorkerGone, now_ms: int) -> list[JobCommand]:
        self._workers = {worker: slots for worker, slots in self._workers.items() if worker != event.worker}
        if self.phase is Phase.RUNNING and self._tasks.runs_on(event.worker):
            return self._fail(f"worker {event.worker}: {event.reason}", now_ms)
        return []

    def _fail(self, reason: str, now_ms: int) -> list[JobCommand]:
        """The attempt failed: stop it, and begin another one later or give up."""
        delay_ms = self._restarts.delay_ms(now_ms)
        if delay_ms is not None:
            return self._restart(reason, now_ms, delay_ms)
        if self._resumable:
            self._move(Phase.SUSPENDED)
            return [self._announce.cancel(reason), JobEnded("FAILED", reason)]
        return [self._announce.cancel(reason), *self._terminate("FAILED", reason)]

    def _restart(self, reason: str, now_ms: int, delay_ms: int) -> list[JobCommand]:
        """Stop the attempt; another one follows."""
        self._book.abort_all()
        self._move(Phase.RESTARTING)
        self._restart_at_ms = now_ms + delay_ms
        return [self._announce.cancel(reason)]

    # -- checkpoints ----------------------------------------------------------------------------------------------------

    def _while_running(self, now_ms: int) -> list[JobCommand]:
        if self._begin_again:
            reason, self._begin_again = self._begin_again, ""
            return self._restart(reason, now_ms, 0)
        commands = self._abort(self._book.expired(now_ms), "timeout", now_ms)
        if self.phase is not Phase.RUNNING:
            return commands
        if not self._tasks.all_run(self.topology):
            return commands
        if self._tasks.all_sources_ended(self.topology):
            self._endings.sources_ended()
        if self._endings.current is not None:
            return commands + self._while_ending(self._endings.current, now_ms)
        if self._book.due(now_ms):
            commands += self._trigger("periodic", now_ms)
        return commands

    def _trigger(self, purpose: Purpose, now_ms: int, *, drain: bool = False, pause: bool = False) -> list[JobCommand]:
        pending = self._book.trigger(self.attempt, self.topology.subtasks, purpose, now_ms, drain=drain)
        return [self._announce.barrier(pending, self._book.flavour(purpose), pause=pause)]

    def _on_ack(self, message: Acknowledged | Declined, now_ms: int) -> list[JobCommand]:
        if isinstance(message, Declined):
            return self._abort(self._book.declined(message, now_ms), f"{message.subtask}: {message.reason}", now_ms)
        pending = self._book.acknowledged(message)
        if pending is None:
            return []
        begin = self.history.begin
        assert begin is not None
        return [self._completions.store(pending, begin, self.topology, self._generation, self._tasks.published)]

    def _on_manifest(self, event: ManifestStored, now_ms: int) -> list[JobCommand]:
        pending = self._completions.stored(event)
        if pending is None or self.phase is not Phase.RUNNING:
            return []
        if event.checkpoint <= self.history.highest_checkpoint:
            return []
        missing = self._completions.missing(pending)
        if missing:
            return self._abort(self._book.failed(pending, now_ms), f"it refers to {missing[0]}, perhaps gone", now_ms)
        return [Append(self._endings.marked(self._completions.record(pending, event), pending.purpose))]

    def _on_complete_recorded(self, record: Complete, now_ms: int) -> list[JobCommand]:
        pending = self._completions.completed(record.checkpoint)
        lower = self._book.completed(record.checkpoint, now_ms)
        self._endings.completed(record.checkpoint, pending.purpose)
        return [self._announce.completed(record), *(self._announce.aborted(p.checkpoint, p.nonce) for p in lower)]

    def _abort(self, aborted: list[PendingCheckpoint], reason: str, now_ms: int) -> list[JobCommand]:
        commands: list[JobCommand] = []
        for pending in aborted:
            self._completions.aborted(pending.checkpoint)
            commands.append(self._announce.aborted(pending.checkpoint, pending.nonce))
        if any(pending.drain for pending in aborted):
            return commands + self._fail(f"drain failed: {reason}", now_ms)
        if aborted and self._book.too_many_failures and self.phase is Phase.RUNNING:
            return commands + self._fail(f"checkpoint {aborted[-1].checkpoint} failed: {reason}", now_ms)
        return commands

    # -- endings --------------------------------------------------------------------------------------------------------

    def _while_ending(self, ending: Ending, now_ms: int) -> list[JobCommand]:
        if self._endings.needs_checkpoint(self._book.pending):
            return self._trigger(ending.purpose, now_ms, drain=ending.drain, pause=ending.pauses)
        if self._endings.published(self._tasks, self.topology) and not self._appending:
            return self._published_all(ending)
        return []

    def _published_all(self, ending: Ending) -> list[JobCommand]:
        match ending.kind:
            case "finish":
                return self._terminate("FINISHED", "")
            case "cancel":
                return self._terminate("CANCELED", ending.reason)
            case "savepoint" | "stop":
                return self._record_savepoint(ending)
            case "suspend":
                return self._suspend(ending)
            case "rescale":
                return self._rescale(ending)

    def _record_savepoint(self, ending: Ending) -> list[JobCommand]:
        records = self._endings.savepoint_records(ending)
        if ending.kind == "stop":
            self._move(Phase.ENDING)
        return [Append(record) for record in records]

    def _suspend(self, ending: Ending) -> list[JobCommand]:
        self._move(Phase.SUSPENDED)
        return [
            self._announce.finish(), RequestDone(ending.request, "suspended"), JobEnded("SUSPENDED", ending.reason)
        ]  # fmt: skip

    def _rescale(self, ending: Ending) -> list[JobCommand]:
        """The old generation is fully published: a new one begins with other exchanges."""
        request = ending.requested
        assert request is not None
        assert request.topology is not None
        self._book.abort_all()
        self.topology = request.topology
        self._graph = request.graph
        self._generation += 1
        self._completions.generation_begins()
        self._endings.current = None
        self._move(Phase.WAITING)
        self._rescale_request = request.request
        return [self._announce.cancel(RESCALE), *self._try_begin()]

    def _terminate(self, state: TerminalState, reason: str) -> list[JobCommand]:
        self._move(Phase.ENDING)
        self._book.abort_all()
        complete = self.history.complete
        unpublished = complete is not None and self._tasks.unpublished(self.topology, complete.checkpoint)
        return [Append(Terminated(state=state, reason=reason, unpublished=unpublished))]

    def _on_record(self, record: AnyRecord, now_ms: int) -> list[JobCommand]:
        match record:
            case Leader():
                return self._on_leader_recorded(now_ms)
            case Begin():
                return self._on_begin_recorded(record, now_ms)
            case Complete():
                return self._on_complete_recorded(record, now_ms)
            case Savepoint():
                return [RequestDone(record.request, "completed", record.restore)]
            case Terminated():
                return self._on_terminated_recorded(record)
            case Submit():
                return []

    def _on_terminated_recorded(self, record: Terminated) -> list[JobCommand]:
        self._move(Phase.TERMINATED)
        ended = JobEnded(record.state, record.reason)
        if record.state in ("FINISHED", "STOPPED"):
            return [self._announce.finish(), ended]
        cancel = self._announce.cancel(record.reason or record.state, final=True)
        return [cancel, ended] if self.attempt else [ended]

    def _move(self, phase: Phase) -> None:
        if phase not in MOVES[self.phase]:
            recent = " -> ".join(p.value for p in self.phases[-8:])
            raise ProtocolError(f"job {self.job}: {self.phase.value} -> {phase.value} is not a legal move; {recent}")
        self.phase = phase
        self.phases.append(phase)
