"""The leader's decisions about one job: attempts, checkpoints, failures, and the one way to end.

`JobMaster` owns no I/O and no second opinion: what happened to the job stands in the job log (`JobHistory`), when to
checkpoint in `CheckpointBook`, whether to restart in a `RestartDecider`. It ties them together:

    attempt:  offsets captured -> BEGIN recorded -> deployed -> all running
    ending:   barrier -> COMPLETE recorded -> every sink has published it -> record
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, assert_never

import msgspec

from penstock.errors import ProtocolError
from penstock.protocol.checkpoints import CheckpointBook, CheckpointSettings, PendingCheckpoint, Purpose
from penstock.protocol.incremental import LiveObjects
from penstock.protocol.jobevents import (
    AckReceived,
    Announce,
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
    StoreManifest,
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
from penstock.protocol.manifests import Interval, Manifest, blob_prefix, manifest_key, open_intervals
from penstock.protocol.messages import (
    Acknowledged,
    BarrierMarker,
    CancelAttempt,
    CheckpointAborted,
    CheckpointCompleted,
    Declined,
    Deploy,
    FinishAttempt,
    SubtaskId,
    TaskStatus,
)
from penstock.protocol.phases import CANCEL_DEADLINE_MS, MOVES, Phase
from penstock.protocol.phases import Ending as _Ending
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
    ) -> None:
        """`new_id` gives fresh ids of 32 hex digits.

        `graph` is given if it differs from the job log's: the next attempt begins with it, on exchanges of its own.
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
        self._epoch = 0
        self._generation = history.begin.generation if history.begin else 0
        if history.begin is not None and graph is not None:
            self._generation += 1
        self._opened: Opened | None = None
        self._workers: Mapping[str, int] = {}
        self._assignment: dict[SubtaskId, str] = {}
        self._statuses: dict[SubtaskId, TaskStatus] = {}
        self._published: dict[SubtaskId, int] = {}
        self._intervals: Mapping[str, Mapping[int, tuple[Interval, ...]]] = {}
        self._live = LiveObjects(None)
        self._storing: dict[int, tuple[PendingCheckpoint, Manifest]] = {}
        self._appending = 0
        self._ending: _Ending | None = None
        self._requests: set[str] = set()
        self._restart_at_ms = 0
        self._begin_again = ""
        self._adopted = False
        self._rescale_request = ""
        """The rescale that the next BEGIN carries out."""

    @property
    def attempt(self) -> str:
        """The newest attempt; empty before the first."""
        return self.history.begin.attempt if self.history.begin else ""

    @property
    def book(self) -> CheckpointBook:
        """The pending checkpoints."""
        return self._book

    @property
    def live_objects(self) -> frozenset[str]:
        """Objects of earlier checkpoints that incremental snapshots may refer to: not to be deleted."""
        return self._live.keys

    @property
    def statuses(self) -> Mapping[SubtaskId, TaskStatus]:
        """What was last heard of each subtask of the newest attempt."""
        return self._statuses

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
                return self._on_request(event, now_ms)
            case Ticked():
                return []
            case _:
                assert_never(event)

    # -- opening --------------------------------------------------------------------------------------------------------

    def _on_opened(self, event: Opened, now_ms: int) -> list[JobCommand]:
        self._epoch = event.epoch
        if self.history.terminated is not None:
            self._move(Phase.TERMINATED)
            cancel = CancelAttempt(epoch=self._epoch, job=self.job, attempt=self.attempt, reason="terminated")
            return [Announce(cancel)] if self.attempt else []
        self._opened = event
        self._book.seen(self.history.highest_checkpoint)
        for marker in event.markers:
            self._book.seen(marker.checkpoint)
        manifest = event.manifest
        self._live = LiveObjects(manifest)
        if manifest is not None and manifest.job == self.job and manifest.generation == self._generation:
            self._intervals = manifest.intervals
        if self.history.epoch == event.epoch:
            return self._on_leader_recorded(now_ms)
        return [Append(Leader(epoch=event.epoch))]

    def _on_leader_recorded(self, now_ms: int) -> list[JobCommand]:
        opened = self._opened
        assert opened is not None
        self._ending = self._pending_ending()
        alive = {s for s, (_, status) in opened.statuses.items() if status.state in ("running", "ended")}
        if self.history.begin is not None and alive == set(self.topology.subtasks) and self._graph is None:
            return self._adopt(opened, now_ms)
        self._move(Phase.WAITING)
        return [self._cancel_attempt("a new attempt begins")] if self.attempt else []

    def _pending_ending(self) -> _Ending | None:
        """A stop whose checkpoint is COMPLETE goes on under a new leader; other endings are asked for again."""
        complete = self.history.complete
        if complete is None or complete.ending != "stop":
            return None
        return _Ending("stop", complete.request, reason=complete.reason, checkpoint=complete.checkpoint)

    def _adopt(self, opened: Opened, now_ms: int) -> list[JobCommand]:
        """Take the running attempt over as it is: repeat the newest COMPLETE, abort what was pending."""
        self._assignment = {subtask: worker for subtask, (worker, _) in opened.statuses.items()}
        self._statuses = {subtask: status for subtask, (_, status) in opened.statuses.items()}
        for subtask, status in self._statuses.items():
            self._published[subtask] = status.published
        self._move(Phase.RUNNING)
        self._adopted = True
        self._book.start_attempt(now_ms)
        commands: list[JobCommand] = []
        complete = self.history.complete
        if complete is not None and complete.attempt == self.attempt:
            commands.append(self._completed(complete))
            if complete.ending in ("suspend", "rescale"):  # its sources are paused, and nobody knows what for
                commands.append(self._aborted(complete.checkpoint, complete.checkpoint_nonce))
        newest = self.history.highest_checkpoint
        for marker in opened.markers:
            if marker.attempt == self.attempt and marker.checkpoint > newest:
                commands.append(self._aborted(marker.checkpoint, marker.nonce))
                if marker.drain:
                    self._begin_again = "a drain was interrupted by a change of leader"
        return commands

    # -- an attempt -----------------------------------------------------------------------------------------------------

    def _progress(self, now_ms: int) -> list[JobCommand]:
        """What follows from the state alone, after every event."""
        if self._cancel_is_over(now_ms):
            return self._terminate("CANCELED", self._cancel_reason())
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
        if self._ending is not None and self._ending.kind == "suspend" and self._ending.checkpoint is None:
            return self._suspend(self._ending)
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
        )  # fmt: skip
        self._graph = None
        return [Append(begin)]

    def _on_begin_recorded(self, begin: Begin, now_ms: int) -> list[JobCommand]:
        self._move(Phase.RUNNING)
        self._adopted = False
        self._statuses.clear()
        self._published.clear()
        self._storing.clear()
        self._book.start_attempt(now_ms)
        if self._ending is not None and self._ending.kind == "finish" and self._ending.checkpoint is None:
            self._ending = None  # this attempt's sources start from before their end
        self._assign()
        commands: list[JobCommand] = [Announce(self._deploy(begin, subtask)) for subtask in self.topology.subtasks]
        if self._rescale_request:
            commands.append(RequestDone(self._rescale_request, "rescaled"))
            self._rescale_request = ""
        return commands

    def _assign(self) -> None:
        """Fill the workers' slots in order: slot n of the job gets the n-th free slot."""
        free = [worker for worker, slots in sorted(self._workers.items()) for _ in range(slots)]
        self._assignment = {
            subtask: free[slot] if slot < len(free) else "" for subtask, slot in self.topology.slots.items()
        }
        if "" in self._assignment.values():
            self._begin_again = "a slot was lost while the attempt began"

    def _deploy(self, begin: Begin, subtask: SubtaskId) -> Deploy:
        offsets = begin.start_offsets.get(subtask.vertex)
        return Deploy(
            epoch=self._epoch, job=self.job, attempt=begin.attempt, attempt_number=begin.attempt_number,
            subtask=subtask, worker=self._assignment[subtask], generation=begin.generation, restore=begin.restore,
            start_offset=offsets[subtask.index] if offsets else 0,
        )  # fmt: skip

    def _on_status(self, event: StatusReported, now_ms: int) -> list[JobCommand]:
        status = event.status
        if status.job != self.job or status.attempt != self.attempt or self.phase is not Phase.RUNNING:
            return []
        if self._assignment.get(status.subtask) != event.worker:
            return []
        self._statuses[status.subtask] = status
        former = self._published.get(status.subtask, 0)
        self._published[status.subtask] = max(former, status.published)
        if status.state in ("failed", "canceled"):
            return self._fail(f"{status.subtask}: {status.error or status.state}", now_ms)
        return []

    def _on_listed(self, event: TasksListed, now_ms: int) -> list[JobCommand]:
        """A subtask that was there and is no longer listed has ended without being heard: its events were lost."""
        if self.phase is not Phase.RUNNING:
            return []
        for subtask in self._statuses:
            if self._assignment.get(subtask) == event.worker and subtask not in event.subtasks:
                reason = f"{subtask}: worker {event.worker} no longer runs it"
                # what ran under another leader may have been ended by it: that is no failure
                return self._restart(reason, now_ms, 0) if self._adopted else self._fail(reason, now_ms)
        return []

    def _on_worker_gone(self, event: WorkerGone, now_ms: int) -> list[JobCommand]:
        self._workers = {worker: slots for worker, slots in self._workers.items() if worker != event.worker}
        if self.phase is Phase.RUNNING and event.worker in self._assignment.values():
            return self._fail(f"worker {event.worker}: {event.reason}", now_ms)
        return []

    def _fail(self, reason: str, now_ms: int) -> list[JobCommand]:
        """The attempt failed: stop it, and begin another one later or give up."""
        delay_ms = self._restarts.delay_ms(now_ms)
        if delay_ms is not None:
            return self._restart(reason, now_ms, delay_ms)
        return [self._cancel_attempt(reason), *self._terminate("FAILED", reason)]

    def _restart(self, reason: str, now_ms: int, delay_ms: int) -> list[JobCommand]:
        """Stop the attempt; another one follows."""
        self._book.abort_all()
        self._move(Phase.RESTARTING)
        self._restart_at_ms = now_ms + delay_ms
        return [self._cancel_attempt(reason)]

    def _cancel_attempt(self, reason: str) -> Announce:
        return Announce(CancelAttempt(epoch=self._epoch, job=self.job, attempt=self.attempt, reason=reason))

    # -- checkpoints ----------------------------------------------------------------------------------------------------

    def _while_running(self, now_ms: int) -> list[JobCommand]:
        if self._begin_again:
            reason, self._begin_again = self._begin_again, ""
            return self._restart(reason, now_ms, 0)
        commands = self._abort(self._book.expired(now_ms), "timeout", now_ms)
        if self.phase is not Phase.RUNNING:
            return commands
        if not self._all_running():
            return commands
        if self._ending is None and self._all_sources_ended():
            self._ending = _Ending("finish")
        if self._ending is not None:
            return commands + self._while_ending(self._ending, now_ms)
        if self._book.due(now_ms):
            commands += self._trigger("periodic", now_ms)
        return commands

    def _all_running(self) -> bool:
        return all(
            subtask in self._statuses and self._statuses[subtask].state in ("running", "ended")
            for subtask in self.topology.subtasks
        )

    def _all_sources_ended(self) -> bool:
        return all(self._statuses[subtask].state == "ended" for subtask in self.topology.sources)

    def _trigger(self, purpose: Purpose, now_ms: int, *, drain: bool = False, pause: bool = False) -> list[JobCommand]:
        pending = self._book.trigger(self.attempt, self.topology.subtasks, purpose, now_ms, drain=drain)
        marker = BarrierMarker(
            epoch=self._epoch, job=self.job, attempt=self.attempt, checkpoint=pending.checkpoint,
            nonce=pending.nonce, flavour=self._book.flavour(purpose), pause=pause, drain=drain,
        )  # fmt: skip
        return [Announce(marker)]

    def _on_ack(self, message: Acknowledged | Declined, now_ms: int) -> list[JobCommand]:
        if isinstance(message, Declined):
            return self._abort(self._book.declined(message, now_ms), f"{message.subtask}: {message.reason}", now_ms)
        pending = self._book.acknowledged(message)
        if pending is None:
            return []
        manifest = self._manifest(pending)
        self._storing[pending.checkpoint] = (pending, manifest)
        key = manifest_key(self.job, pending.attempt, pending.checkpoint, pending.nonce)
        return [StoreManifest(manifest, pending.nonce, key)]

    def _manifest(self, pending: PendingCheckpoint) -> Manifest:
        begin = self.history.begin
        assert begin is not None
        subtasks: dict[str, dict[int, Any]] = {}
        for subtask, snapshot in sorted(pending.snapshots.items()):
            subtasks.setdefault(subtask.vertex, {})[subtask.index] = snapshot
        intervals = open_intervals(
            self._intervals, pending.snapshots, sorted(self.topology.publishers), begin.start_offsets,
            pending.attempt, pending.checkpoint, self._published,
        )  # fmt: skip
        return Manifest(
            job=self.job, checkpoint=pending.checkpoint, attempt=pending.attempt,
            parallelism=self.topology.parallelism, max_parallelism=self.topology.max_parallelism,
            subtasks=subtasks, operators=dict(self.topology.operators), intervals=intervals,
            generation=self._generation, attempt_number=begin.attempt_number,
        )  # fmt: skip

    def _on_manifest(self, event: ManifestStored, now_ms: int) -> list[JobCommand]:
        pending, manifest = self._storing.get(event.checkpoint, (None, None))
        if pending is None or manifest is None or pending.nonce != event.nonce or self.phase is not Phase.RUNNING:
            return []
        if event.checkpoint <= self.history.highest_checkpoint:
            return []
        missing = self._live.missing(
            manifest, blob_prefix(self.job, pending.attempt, pending.checkpoint, pending.nonce)
        )
        if missing:
            return self._abort(self._book.failed(pending, now_ms), f"it refers to {missing[0]}, perhaps gone", now_ms)
        complete = Complete(
            checkpoint=event.checkpoint, checkpoint_nonce=event.nonce, attempt=pending.attempt, parent=-1,
            manifest=event.key, sha256=event.sha256,
        )  # fmt: skip
        ending = self._ending
        if ending is not None and ending.purpose == pending.purpose:
            complete = msgspec.structs.replace(
                complete, ending=ending.kind, request=ending.request, reason=ending.reason
            )
        return [Append(complete)]

    def _on_complete_recorded(self, record: Complete, now_ms: int) -> list[JobCommand]:
        pending, manifest = self._storing[record.checkpoint]
        self._intervals = manifest.intervals
        self._live.completed(manifest)
        self._storing = {n: stored for n, stored in self._storing.items() if n > record.checkpoint}
        lower = self._book.completed(record.checkpoint, now_ms)
        commands: list[JobCommand] = [self._completed(record)]
        commands += [self._aborted(p.checkpoint, p.nonce) for p in lower]
        ending = self._ending
        if ending is not None and (
            ending.kind == "cancel" or (ending.checkpoint is None and pending.purpose == ending.purpose)
        ):
            ending.checkpoint = record.checkpoint
        return commands

    def _abort(self, aborted: list[PendingCheckpoint], reason: str, now_ms: int) -> list[JobCommand]:
        commands: list[JobCommand] = []
        for pending in aborted:
            self._storing.pop(pending.checkpoint, None)
            commands.append(self._aborted(pending.checkpoint, pending.nonce))
        if any(pending.drain for pending in aborted):
            return commands + self._fail(f"drain failed: {reason}", now_ms)
        if aborted and self._book.too_many_failures and self.phase is Phase.RUNNING:
            return commands + self._fail(f"checkpoint {aborted[-1].checkpoint} failed: {reason}", now_ms)
        return commands

    def _completed(self, record: Complete) -> Announce:
        return Announce(
            CheckpointCompleted(
                epoch=self._epoch,
                job=self.job,
                attempt=record.attempt,
                checkpoint=record.checkpoint,
                nonce=record.checkpoint_nonce,
            )
        )

    def _aborted(self, checkpoint: int, nonce: str) -> Announce:
        return Announce(
            CheckpointAborted(epoch=self._epoch, job=self.job, attempt=self.attempt, checkpoint=checkpoint, nonce=nonce)
        )

    # -- endings --------------------------------------------------------------------------------------------------------

    def _on_request(self, request: Requested, now_ms: int) -> list[JobCommand]:
        if request.request in self._requests:
            return []
        done = self.history.savepoints.get(request.request)
        if done is not None and request.kind == "savepoint":
            return [RequestDone(request.request, "completed", done.manifest)]
        self._requests.add(request.request)
        replaceable = self._ending is None or (request.kind == "cancel" and self._ending.kind != "cancel")
        if not replaceable or self.phase is Phase.ENDING:
            return [RequestDone(request.request, f"refused: the job is busy with {self._ending_name()}")]
        replaced = self._ending.request if self._ending else ""
        self._ending = _Ending(request.kind, request.request, request.drain, request.reason, requested=request)
        if request.kind == "cancel":
            self._ending.checkpoint = self.history.highest_checkpoint
            self._ending.deadline_ms = now_ms + CANCEL_DEADLINE_MS
        return [RequestDone(replaced, f"refused: the job is busy with {request.kind}")] if replaced else []

    def _ending_name(self) -> str:
        return self._ending.kind if self._ending else self.phase.value

    def _while_ending(self, ending: _Ending, now_ms: int) -> list[JobCommand]:
        if ending.checkpoint is None:
            if any(pending.purpose == ending.purpose for pending in self._book.pending):
                return []
            pause = ending.kind in ("stop", "rescale", "suspend")
            return self._trigger(ending.purpose, now_ms, drain=ending.drain, pause=pause)
        if self._all_published(ending.checkpoint) and not self._appending:
            return self._published_all(ending)
        return []

    def _all_published(self, checkpoint: int) -> bool:
        return all(self._published.get(subtask, 0) >= checkpoint for subtask in self.topology.sinks)

    def _published_all(self, ending: _Ending) -> list[JobCommand]:
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

    def _record_savepoint(self, ending: _Ending) -> list[JobCommand]:
        complete = self.history.complete
        assert complete is not None
        savepoint = Savepoint(
            checkpoint=complete.checkpoint, manifest=complete.manifest, sha256=complete.sha256,
            request=ending.request, published=True,
        )  # fmt: skip
        self._ending = None
        if ending.kind == "savepoint":
            return [Append(savepoint)]
        self._move(Phase.ENDING)
        terminated = Append(Terminated(state="STOPPED", reason=ending.reason))
        return [terminated] if ending.request in self.history.savepoints else [Append(savepoint), terminated]

    def _suspend(self, ending: _Ending) -> list[JobCommand]:
        self._move(Phase.SUSPENDED)
        finish = FinishAttempt(epoch=self._epoch, job=self.job, attempt=self.attempt)
        return [Announce(finish), RequestDone(ending.request, "suspended"), JobEnded("SUSPENDED", ending.reason)]

    def _rescale(self, ending: _Ending) -> list[JobCommand]:
        """The old generation is fully published: a new one begins with other exchanges."""
        request = ending.requested
        assert request is not None
        assert request.topology is not None
        cancel = CancelAttempt(epoch=self._epoch, job=self.job, attempt=self.attempt, reason="rescale")
        self._book.abort_all()
        self.topology = request.topology
        self._graph = request.graph
        self._generation += 1
        self._intervals = {}
        self._ending = None
        self._move(Phase.WAITING)
        self._rescale_request = request.request
        return [Announce(cancel), *self._try_begin()]

    def _cancel_is_over(self, now_ms: int) -> bool:
        """A cancelled job ends when there is nothing to publish, or at its deadline even if something is left."""
        ending = self._ending
        if ending is None or ending.kind != "cancel" or self.phase in (Phase.OPENING, Phase.BEGINNING, Phase.ENDING):
            return False
        if self._appending or self.phase is Phase.TERMINATED:
            return False
        return ending.checkpoint == 0 or (ending.deadline_ms is not None and now_ms >= ending.deadline_ms)

    def _cancel_reason(self) -> str:
        ending = self._ending
        assert ending is not None
        if ending.checkpoint == 0:
            return ending.reason
        return f"{ending.reason}; checkpoint {ending.checkpoint} was not fully published in time".lstrip("; ")

    def _terminate(self, state: TerminalState, reason: str) -> list[JobCommand]:
        self._move(Phase.ENDING)
        self._book.abort_all()
        return [Append(Terminated(state=state, reason=reason))]

    def _on_record(self, record: AnyRecord, now_ms: int) -> list[JobCommand]:
        match record:
            case Leader():
                return self._on_leader_recorded(now_ms)
            case Begin():
                return self._on_begin_recorded(record, now_ms)
            case Complete():
                return self._on_complete_recorded(record, now_ms)
            case Savepoint():
                return [RequestDone(record.request, "completed", record.manifest)]
            case Terminated():
                return self._on_terminated_recorded(record)
            case Submit():
                return []

    def _on_terminated_recorded(self, record: Terminated) -> list[JobCommand]:
        self._move(Phase.TERMINATED)
        ended = JobEnded(record.state, record.reason)
        if record.state in ("FINISHED", "STOPPED"):
            return [Announce(FinishAttempt(epoch=self._epoch, job=self.job, attempt=self.attempt)), ended]
        reason = record.reason or record.state
        cancel = CancelAttempt(epoch=self._epoch, job=self.job, attempt=self.attempt, reason=reason)
        return [Announce(cancel), ended] if self.attempt else [ended]

    def _move(self, phase: Phase) -> None:
        if phase not in MOVES[self.phase]:
            recent = " -> ".join(p.value for p in self.phases[-8:])
            raise ProtocolError(f"job {self.job}: {self.phase.value} -> {phase.value} is not a legal move; {recent}")
        self.phase = phase
        self.phases.append(phase)
