"""The leader's decisions about one job: attempts, checkpoints, failures, and the one way to end.

A job outlives its tasks, its workers and its leaders. `JobMaster` is what one leader knows of one job, and does what
Flink's JobMaster and CheckpointCoordinator do. Every leader builds it anew from the job log. It owns no I/O: events go
in, and commands come out, which are records to be appended to the job log and messages to task managers.

**The job log decides.** An *attempt* exists once its BEGIN is recorded, a checkpoint is COMPLETE once that is recorded,
and the job has ended once TERMINATED is. What follows from a record is commanded only after the record is stored: no
task is deployed before BEGIN, and nobody is told of a checkpoint before COMPLETE. Records are created conditionally, so
of two leaders that both take themselves for the only one just one can append; the other one is refused and steps down.
While a record is under way to the store no attempt begins and no job ends: it may be a COMPLETE, from which the next
attempt has to start.

**Epochs.** A leader appends LEADER with its epoch before its first command for a job that has not ended. Every command
carries the epoch, and receivers drop those of a lower one. Statuses and acknowledgements carry the attempt that they are
of, and those of an earlier one are dropped here.

**Attempts.** One attempt counts, the newest; what is left of earlier ones is cancelled, and nobody reads what it sends:

    attempt:  offsets captured -> BEGIN recorded -> deployed -> all running

BEGIN says which checkpoint is restored (the newest COMPLETE, never an older one), which generation of exchanges is used,
and from which offsets they are read. A subtask is deployed once per attempt; in doubt a new attempt begins.

**Recovery.** If any subtask fails, or its worker is lost, the whole attempt ends: there is no failover of single regions.
The restart strategy says when the next attempt begins, or that the job fails; it is not asked about an attempt that the
job needs to end. A leader that takes over restarts nothing that runs. If every subtask of the newest attempt is alive,
and the graph is the same, it adopts the attempt, repeats its newest COMPLETE, and aborts the checkpoints that were
pending, because the former leader had their acknowledgements. (A drain among them cannot be undone, as sources send the
last watermark before its barrier; then a new attempt begins.) Otherwise it cancels the attempt and begins a new one.

**Endings.** All of them take the same way, and a savepoint does, too:

    ending:   barrier -> COMPLETE recorded -> every sink has published it -> record

An ending whose checkpoint is COMPLETE needs no more than its sinks: if its attempt is lost, the next one *publishes
only*. It runs the sinks alone, in as many slots as there are, reads no row and takes no checkpoint. So a job publishes
what is complete before it has failed, when the slots for all of it are gone, and before a changed graph begins.

What stands in the log is left to `JobHistory`, when to checkpoint to `CheckpointBook`, what becomes of a manifest to
`Completions`, what is known of the running subtasks to `AttemptTasks`, which ending is under way to `Endings`, and
whether to restart to a `RestartDecider`. Legal moves between the phases of a job are in `penstock.protocol.phases`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import assert_never

from penstock.errors import ProtocolError
from penstock.protocol.asked_checkpoints import AskedCheckpoints
from penstock.protocol.attempts import AttemptTasks
from penstock.protocol.checkpoints import CheckpointBook, CheckpointSettings, PendingCheckpoint, Purpose
from penstock.protocol.completing import Completions
from penstock.protocol.endings import Ending, Endings
from penstock.protocol.jobevents import (
    AckReceived,
    Announce,
    Append,
    CaptureOffsets,
    ChangedGraph,
    CheckpointAsked,
    ExchangesTaken,
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
    AttemptFailed,
    Begin,
    Complete,
    JobHistory,
    Leader,
    Savepoint,
    Submit,
    TerminalState,
    Terminated,
)
from penstock.protocol.leader_commands import NEW_ATTEMPT, RESCALE, Announcements
from penstock.protocol.messages import Acknowledged, Declined, SubtaskId, TaskStatus
from penstock.protocol.phases import MOVES, Phase, check_move
from penstock.protocol.restarts import RestartStrategy, restart_decider

SLOTS_MS = 10_000
"""How long slots may be missing until what was asked of the job is done without running it, or refused."""
PUBLISH_AGAIN_MS = 1_000
"""How long after a failure an attempt that a job needs to end begins again: no restart strategy is asked."""


class JobMaster:
    """The decisions of one leader about one job: it takes events and returns commands."""

    def __init__(
        self,
        job: str,
        history: JobHistory,
        topology: Topology,
        checkpoints: CheckpointSettings,
        restarts: RestartStrategy,
        new_id: Callable[[], str],
        changed: ChangedGraph | None = None,
        *,
        resumable: bool = False,
    ) -> None:
        """`topology` is that of the job log's graph; `new_id` gives fresh ids of 32 hex digits.

        A `changed` graph begins once what is complete is published, on exchanges of its own.
        A `resumable` job that fails is not terminated: a user resumes it once the cause is removed.
        """
        self.job = job
        self.history = history
        self.topology = topology
        self.phase = Phase.OPENING
        self.phases: list[Phase] = [Phase.OPENING]
        self._book = CheckpointBook(checkpoints, lambda: new_id()[:16])
        self._restarts = restart_decider(restarts)
        self._new_id = new_id
        self._changed = changed
        """The graph that the next BEGIN starts instead of the job log's, if any."""
        self._resumable = resumable
        self._announce = Announcements(job, history)
        self._tasks = AttemptTasks()
        self._completions = Completions(job)
        self._endings = Endings(history)
        self._asked = AskedCheckpoints()
        self._generation = history.begin.generation if history.begin else 0
        self._opened: Opened | None = None
        self._workers: Mapping[str, int] = {}
        self._appending = 0
        """How many records are under way to the job log: while there are any, no attempt begins and no job ends."""
        self._restart_at_ms = 0
        self._begin_again = ""
        """Why the running attempt is ended and another one begins at once; empty if that is not so."""
        self._missing_since_ms: int | None = None
        """Since when there are too few slots for an attempt; None while there are enough."""
        self._adopted = False
        """Whether the running attempt was begun by a former leader."""
        self._rescale_request = ""
        """The id of the request for the rescale that the next BEGIN carries out; empty if there is none."""

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
        """The workers on which subtasks of the newest attempt run, as far as they were deployed or adopted."""
        return self._tasks.workers

    @property
    def statuses(self) -> Mapping[SubtaskId, TaskStatus]:
        """The status that each subtask of the newest attempt reported last."""
        return self._tasks.statuses

    @property
    def publishes_only(self) -> bool:
        """Whether the newest attempt runs the sinks alone."""
        return self.history.begin is not None and self.history.begin.publishes_only

    @property
    def subtasks(self) -> Collection[SubtaskId]:
        """The subtasks of the newest attempt."""
        if not self.publishes_only:
            return self.topology.subtasks
        return [subtask for subtask in self.topology.subtasks if subtask in self.topology.sinks]

    def ending(self, now_ms: int) -> str:
        """A text for users that says which ending or savepoint is under way; empty if none is."""
        return self._endings.status(now_ms)

    @property
    def slots_needed(self) -> int:
        """How many slots the newest attempt, or the one that is about to begin, cannot do without."""
        ending = self._endings.current
        alone = self.publishes_only if self.phase is Phase.RUNNING else ending is not None and ending.needs_sinks_only
        return 1 if alone else self.topology.slot_count

    def handle(self, event: JobEvent, now_ms: int) -> list[JobCommand]:
        """Take an event and return the commands that follow from it, which are to be carried out in order."""
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
            case ExchangesTaken():
                return self._on_exchanges_taken(event)
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
            case CheckpointAsked():
                return self._on_checkpoint_asked(event, now_ms)
            case Requested():
                return self._endings.requested(event, self.phase, self._unreadable, now_ms)
            case Ticked():
                return []
            case _:
                assert_never(event)

    # -- opening --------------------------------------------------------------------------------------------------------

    def _on_opened(self, event: Opened, now_ms: int) -> list[JobCommand]:
        self._announce.epoch = event.epoch
        if self.history.terminated is not None:
            self._move(Phase.TERMINATED)
            return self._end_attempt(self.history.terminated)
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
        begun = self.history.begin is not None
        self._endings.opened(self._changed if begun else None)
        alive = {s for s, (_, status) in opened.statuses.items() if status.state in ("running", "ended")}
        if begun and alive == set(self.subtasks) and self._changed is None and not opened.unreadable:
            return self._adopt(opened, now_ms)
        if self._changed is not None and not begun:
            self.topology = self._changed.topology
        self._move(Phase.WAITING)
        return [self._announce.cancel(NEW_ATTEMPT)] if self.attempt else []

    @property
    def _unreadable(self) -> str:
        return self._opened.unreadable if self._opened is not None else ""

    def _adopt(self, opened: Opened, now_ms: int) -> list[JobCommand]:
        """Take the running attempt over as it is: repeat the newest COMPLETE, and abort the pending checkpoints."""
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
        """The commands that follow from the state alone; asked for after every event."""
        ending = self._endings.current
        if ending is not None and not self._appending and self._is_over(now_ms):
            return self._terminate(ending.terminal_state, self._endings.last_words(self._tasks, self.topology))
        match self.phase:
            case Phase.WAITING:
                return self._try_begin(now_ms)
            case Phase.RESTARTING if now_ms >= self._restart_at_ms:
                self._move(Phase.WAITING)
                return self._try_begin(now_ms)
            case Phase.RUNNING:
                return self._while_running(now_ms)
            case _:
                return []

    def _is_over(self, now_ms: int) -> bool:
        """Whether the ending under way has nothing left to wait for.

        If the job cannot be read, its sinks cannot publish either: a cancelled job ends as it is.
        """
        if self._unreadable:
            ending = self._endings.current
            return self.phase is Phase.WAITING and ending is not None and ending.kind == "cancel"
        return self._endings.is_over(self._tasks, self.topology, self.phase, now_ms)

    def _try_begin(self, now_ms: int) -> list[JobCommand]:
        """Begin an attempt if there are slots, but not while a record is on its way: it may be a COMPLETE."""
        if self._appending or self._unreadable:
            return []
        ending = self._endings.current
        if ending is not None and ending.kind == "suspend" and not ending.checkpoint:
            return self._suspend(ending)
        if ending is not None and ending.kind == "rescale" and ending.checkpoint == 0:
            return self._rescale(ending, now_ms)
        if ending is not None and ending.needs_sinks_only and self._endings.published(self._tasks, self.topology):
            return self._published_all(ending, now_ms)
        missing = self.slots_needed - sum(self._workers.values())
        if missing > 0:
            return [*self._without_slots(missing, now_ms), MissSlots(missing, self.slots_needed)]
        self._missing_since_ms = None
        self._move(Phase.CAPTURING)
        return [CaptureOffsets(self._generation, self.topology.exchanges)]

    def _without_slots(self, missing: int, now_ms: int) -> list[JobCommand]:
        if self._missing_since_ms is None:
            self._missing_since_ms = now_ms
        return self._endings.without_slots(missing) if now_ms - self._missing_since_ms >= SLOTS_MS else []

    def _on_offsets(self, event: OffsetsCaptured) -> list[JobCommand]:
        if self.phase is not Phase.CAPTURING or event.generation != self._generation:
            return []
        self._move(Phase.BEGINNING)
        former = self.history.begin.attempt_number if self.history.begin else 0
        ending = self._endings.current
        alone = ending is not None and ending.needs_sinks_only
        changed = None if alone else self._changed
        begin = Begin(
            attempt=self._new_id(), attempt_number=former + 1, restore=self.history.restore,
            parallelism=self.topology.parallelism, generation=self._generation,
            start_offsets=dict(event.offsets), graph=dict(changed.graph) if changed is not None else None,
            request="" if alone else self._rescale_request, publishes_only=alone,
        )  # fmt: skip
        if not alone:
            self._changed = None
        return [Append(begin)]

    def _on_exchanges_taken(self, event: ExchangesTaken) -> list[JobCommand]:
        """Take the next number: a leader before us died between its exchanges and its BEGIN, at another parallelism.

        No attempt has ever used them. They are not made anew: a leader that is no more, and does not know it yet, must
        never delete what another one's attempt may be reading. They go with the generations before.
        """
        if self.phase is not Phase.CAPTURING or event.generation != self._generation:
            return []
        begin = self.history.begin
        if begin is not None and begin.generation == event.generation:
            raise ProtocolError(f"job {self.job}: the exchanges of generation {event.generation} changed while it runs")
        self._generation += 1
        return [CaptureOffsets(self._generation, self.topology.exchanges)]

    def _on_begin_recorded(self, begin: Begin, now_ms: int) -> list[JobCommand]:
        self._move(Phase.RUNNING)
        self._adopted = False
        self._completions.attempt_begins()
        self._book.start_attempt(now_ms)
        self._endings.attempt_begins()
        if not self._tasks.begin(self._slots_of(begin), self._workers):
            self._begin_again = "a slot was lost while the attempt began"
        commands: list[JobCommand] = [self._deploy(begin, s) for s in self.subtasks]
        if self._rescale_request and not begin.publishes_only:
            commands.append(RequestDone(self._rescale_request, "rescaled"))
            self._rescale_request = ""
        return commands

    def _slots_of(self, begin: Begin) -> Mapping[SubtaskId, int]:
        """The slot of each subtask. Sinks that run alone share the slots that there are."""
        slots = self.topology.slots
        if not begin.publishes_only:
            return slots
        available = max(1, sum(self._workers.values()))
        return {subtask: slots[subtask] % available for subtask in self.subtasks}

    def _deploy(self, begin: Begin, subtask: SubtaskId) -> JobCommand:
        return self._announce.deploy(begin, subtask, self._tasks.worker_of(subtask))

    def _on_status(self, event: StatusReported, now_ms: int) -> list[JobCommand]:
        status = event.status
        if status.job != self.job or status.attempt != self.attempt or self.phase is not Phase.RUNNING:
            return []
        if not self._tasks.heard(event.worker, status):
            return []
        if status.state in ("failed", "canceled"):
            return self._fail(f"{status.subtask}: {status.error or status.state}", now_ms, event.worker, status)
        return []

    def _on_listed(self, event: TasksListed, now_ms: int) -> list[JobCommand]:
        """A subtask that was there and is no longer listed has ended without being heard: its events were lost."""
        if self.phase is not Phase.RUNNING:
            return []
        subtask = self._tasks.lost(event.worker, event.subtasks)
        if subtask is not None:
            reason = f"{subtask}: worker {event.worker} no longer runs it"
            # what ran under another leader may have been ended by it: that is no failure
            if self._adopted:
                return [*self._restart(reason, now_ms, 0), self._failed(reason, event.worker)]
            return self._fail(reason, now_ms, event.worker)
        return []

    def _on_worker_gone(self, event: WorkerGone, now_ms: int) -> list[JobCommand]:
        self._workers = {worker: slots for worker, slots in self._workers.items() if worker != event.worker}
        if self.phase is Phase.RUNNING and self._tasks.runs_on(event.worker):
            return self._fail(f"worker {event.worker}: {event.reason}", now_ms, event.worker)
        return []

    def _fail(self, reason: str, now_ms: int, worker: str = "", status: TaskStatus | None = None) -> list[JobCommand]:
        """The attempt failed: stop it, and begin another one later, or let the job fail once all is published."""
        failed = self._failed(reason, worker, status)
        ending = self._endings.current
        terminal = status is not None and status.terminal
        if ending is not None and ending.deadline_ms is not None:
            if terminal or (status is not None and status.refused):
                self._endings.cannot_publish()
            return [*self._restart(reason, now_ms, self._endings.publish_again_ms(PUBLISH_AGAIN_MS, now_ms)), failed]
        delay_ms = None if terminal else self._restarts.delay_ms(now_ms)
        if delay_ms is not None:
            return [*self._restart(reason, now_ms, delay_ms), failed]
        if self._resumable:
            self._move(Phase.SUSPENDED)
            return [self._announce.cancel(reason), failed, JobEnded("FAILED", reason)]
        return [*self._restart(reason, now_ms, 0), failed, *self._endings.fails(reason, now_ms)]

    def _failed(self, reason: str, worker: str = "", status: TaskStatus | None = None) -> Append:
        begin = self.history.begin
        assert begin is not None
        return Append(AttemptFailed(
            attempt=begin.attempt, attempt_number=begin.attempt_number, reason=reason, worker=worker,
            subtask=str(status.subtask) if status is not None else "", frames=status.frames if status is not None else "",
        ))  # fmt: skip

    def _restart(self, reason: str, now_ms: int, delay_ms: int) -> list[JobCommand]:
        """Stop the attempt; the next one begins after the delay."""
        self._book.abort_all()
        self._move(Phase.RESTARTING)
        self._restart_at_ms = now_ms + delay_ms
        return [self._announce.cancel(reason), *self._asked.attempt_ends(reason)]

    # -- checkpoints ----------------------------------------------------------------------------------------------------

    def _while_running(self, now_ms: int) -> list[JobCommand]:
        if self._begin_again:
            reason, self._begin_again = self._begin_again, ""
            return [*self._restart(reason, now_ms, 0), self._failed(reason)]
        if self.publishes_only:
            return self._while_publishing(now_ms)
        commands = self._abort(self._book.expired(now_ms), "timeout", now_ms)
        if self.phase is not Phase.RUNNING:
            return commands
        if not self._tasks.all_run(self.subtasks):
            return commands
        if self._tasks.all_sources_ended(self.topology):
            self._endings.sources_ended()
        if self._endings.current is not None:
            return commands + self._while_ending(self._endings.current, now_ms)
        if self._book.due(now_ms, self._asked.newest):
            commands += self._trigger("periodic", now_ms)
        return commands

    def _on_checkpoint_asked(self, event: CheckpointAsked, now_ms: int) -> list[JobCommand]:
        """A user asks for a checkpoint: refused unless the job runs, and while an ending or savepoint is under way."""
        runs = self.phase is Phase.RUNNING and not self.publishes_only and self._tasks.all_run(self.subtasks)
        busy = self._endings.status(now_ms)
        if not runs or busy:
            return [RequestDone(event.request, f"refused: {busy or 'the job does not run now'}")]
        self._asked.asked(event.request, self._book.highest)
        return []

    def _while_publishing(self, now_ms: int) -> list[JobCommand]:
        """End an attempt that publishes only, once all is published or its ending was withdrawn."""
        ending = self._endings.current
        if ending is None or not ending.needs_sinks_only:
            return self._restart(NEW_ATTEMPT, now_ms, 0)
        if self._endings.published(self._tasks, self.topology) and not self._appending:
            return self._published_all(ending, now_ms)
        return []

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
        aborted = (self._announce.aborted(p.checkpoint, p.nonce) for p in lower)
        return [self._announce.completed(record), *aborted, *self._asked.completed(record)]

    def _abort(self, aborted: list[PendingCheckpoint], reason: str, now_ms: int) -> list[JobCommand]:
        commands: list[JobCommand] = []
        for pending in aborted:
            self._completions.aborted(pending.checkpoint)
            commands.append(self._announce.aborted(pending.checkpoint, pending.nonce, reason))
            commands += self._endings.checkpoint_failed(pending, reason)
            commands += self._asked.failed(pending.checkpoint, reason)
        if any(pending.drain for pending in aborted):
            return commands + self._fail(f"drain failed: {reason}", now_ms)
        if aborted and self._book.too_many_failures and self.phase is Phase.RUNNING:
            return commands + self._fail(f"checkpoint {aborted[-1].checkpoint} failed: {reason}", now_ms)
        return commands

    # -- endings --------------------------------------------------------------------------------------------------------

    def _while_ending(self, ending: Ending, now_ms: int) -> list[JobCommand]:
        if self._endings.suspends_now(now_ms) and not self._appending:
            return self._suspend(ending, self._announce.cancel("suspended"))
        if self._endings.needs_checkpoint(self._book.pending):
            if not self._book.may_retry(now_ms):
                return []
            return self._trigger(ending.purpose, now_ms, drain=ending.drain, pause=ending.pauses)
        if self._endings.published(self._tasks, self.topology) and not self._appending:
            return self._published_all(ending, now_ms)
        return []

    def _published_all(self, ending: Ending, now_ms: int) -> list[JobCommand]:
        match ending.kind:
            case "finish":
                return self._terminate("FINISHED", "")
            case "cancel" | "fail":
                return self._terminate(ending.terminal_state, ending.reason)
            case "savepoint" | "stop":
                return self._record_savepoint(ending)
            case "suspend":
                return self._suspend(ending)
            case "rescale":
                return self._rescale(ending, now_ms)

    def _record_savepoint(self, ending: Ending) -> list[JobCommand]:
        records = self._endings.savepoint_records(ending)
        if ending.kind == "stop":
            self._move(Phase.ENDING)
        return [Append(record) for record in records]

    def _suspend(self, ending: Ending, stop: Announce | None = None) -> list[JobCommand]:
        self._move(Phase.SUSPENDED)
        without = "" if ending.checkpoint or not ending.failed else f", without a last checkpoint: {ending.failed}"
        return [
            stop or self._announce.finish(), RequestDone(ending.request, "suspended"),
            JobEnded("SUSPENDED", ending.reason + without),
        ]  # fmt: skip

    def _rescale(self, ending: Ending, now_ms: int) -> list[JobCommand]:
        """Begin a new generation of exchanges, as the old one is fully published."""
        assert ending.changed is not None
        self._book.abort_all()
        self._changed = ending.changed
        self.topology = ending.changed.topology
        self._generation += 1
        self._completions.generation_begins()
        self._endings.generation_begins()
        self._rescale_request = ending.request
        if self.phase is not Phase.WAITING:
            self._move(Phase.WAITING)
        return [self._announce.cancel(RESCALE), *self._try_begin(now_ms)]

    def _terminate(self, state: TerminalState, reason: str) -> list[JobCommand]:
        self._move(Phase.ENDING)
        self._book.abort_all()
        unpublished = self._endings.unpublished(self._tasks, self.topology)
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
            case Submit() | AttemptFailed():
                return []

    def _on_terminated_recorded(self, record: Terminated) -> list[JobCommand]:
        self._move(Phase.TERMINATED)
        return [*self._end_attempt(record), JobEnded(record.state, record.reason)]

    def _end_attempt(self, record: Terminated) -> list[JobCommand]:
        """The job has ended. Where everything is published, the subtasks also remove the proofs of their commits."""
        if not self.attempt:
            return []
        if record.state in ("FINISHED", "STOPPED"):
            return [self._announce.finish(final=True)]
        return [self._announce.cancel(record.reason or record.state, final=True)]

    def _move(self, phase: Phase) -> None:
        check_move(f"job {self.job}", MOVES, self.phases, phase)
        self.phase = phase
        self.phases.append(phase)
