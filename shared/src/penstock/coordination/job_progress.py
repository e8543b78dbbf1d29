"""How a job is: what the command line shows. Fed with everything the job's master hears and orders."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final, Literal

from penstock.coordination.cluster_view import AckView, TaskRates
from penstock.coordination.job_summary import summary_lines
from penstock.coordination.task_rates import RateMeter
from penstock.graph.jobgraph import JobGraph
from penstock.protocol.jobevents import (
    AckReceived,
    Announce,
    Append,
    JobCommand,
    JobEnded,
    JobEvent,
    ManifestStored,
    StatusReported,
)
from penstock.protocol.joblog import AttemptFailed, Begin, Complete
from penstock.protocol.jobmaster import JobMaster
from penstock.protocol.messages import (
    Acknowledged,
    BarrierMarker,
    CheckpointAborted,
    Deploy,
    OperatorCounter,
    OperatorMetrics,
    SubtaskId,
    TaskStatus,
)

SHOWN: Final = 100
"""How many checkpoints and failures are remembered."""
ACKS_KEPT: Final = 10
"""Of how many checkpoints it is remembered who acknowledged them: Flink's pages show so many."""


@dataclass
class CheckpointProgress:
    """A checkpoint as people see it."""

    checkpoint: int
    triggered_us: int
    state: str = "in progress"
    completed_us: int | None = None
    size_bytes: int = 0
    sync_us: int = 0
    """The longest time a subtask stood still."""
    reason: str = ""
    """Why it was aborted."""
    nonce: str = ""
    aborted_us: int | None = None
    subtasks: int = 0
    """How many have to acknowledge it; 0 until the first has."""
    acks: dict[SubtaskId, AckView] = field(default_factory=dict[SubtaskId, AckView])
    written_bytes: int = 0
    """What was written for it; less than its size where it names objects of earlier ones."""

    @property
    def ended_us(self) -> int | None:
        """When it was complete, or aborted."""
        return self.aborted_us if self.completed_us is None else self.completed_us

    @property
    def duration_us(self) -> int | None:
        """From the trigger to COMPLETE."""
        return None if self.completed_us is None else self.completed_us - self.triggered_us


@dataclass
class JobProgress:
    """The newest known facts of one job."""

    job: str
    phase: str = "opening"
    attempt_number: int = 0
    restored: int | None = None
    missing_slots: int = 0
    statuses: dict[SubtaskId, TaskStatus] = field(default_factory=dict[SubtaskId, TaskStatus])
    entered_us: dict[SubtaskId, dict[str, int]] = field(default_factory=dict[SubtaskId, dict[str, int]])
    """When each state of each subtask was first heard of in this attempt; `deployed`: when it was ordered."""
    meter: RateMeter = field(default_factory=RateMeter)
    checkpoints: dict[int, CheckpointProgress] = field(default_factory=dict[int, CheckpointProgress])
    failures: list[str] = field(default_factory=list[str])
    totals: Counter[str] = field(default_factory=Counter[str])
    """How often something happened, what is no longer remembered included: `complete`, `aborted`, `failed`."""
    since_us: int | None = None
    """When this record was begun."""
    ended: JobEnded | None = None

    def event(self, event: JobEvent, master: JobMaster, now_us: int) -> None:
        """The master was told this."""
        self.phase = master.phase.value
        if isinstance(event, StatusReported):
            status = event.status
            if status.attempt == master.attempt:
                self.reported(status, now_us)
        if isinstance(event, AckReceived) and isinstance(event.message, Acknowledged):
            self._acknowledged(event.message, master, now_us)
        if isinstance(event, ManifestStored) and event.checkpoint in self.checkpoints:
            pending = next((p for p in master.book.pending if p.checkpoint == event.checkpoint), None)
            if pending is not None:
                shown = self.checkpoints[event.checkpoint]
                shown.size_bytes = sum(snapshot.size_bytes for snapshot in pending.snapshots.values())
                shown.written_bytes = sum(
                    snapshot.size_bytes if snapshot.written_bytes is None else snapshot.written_bytes
                    for snapshot in pending.snapshots.values()
                )
                shown.sync_us = max(snapshot.sync_us for snapshot in pending.snapshots.values())

    def reported(self, status: TaskStatus, now_us: int) -> None:
        """A subtask of the newest attempt says this."""
        self.statuses[status.subtask] = status
        self.entered_us.setdefault(status.subtask, {}).setdefault(status.state, now_us)
        self.meter.reported(status, now_us)

    def rates(self, subtask: SubtaskId) -> TaskRates | None:
        """What the subtask did per second lately; None until enough was heard of it."""
        return self.meter.rates(subtask)

    def _acknowledged(self, message: Acknowledged, master: JobMaster, now_us: int) -> None:
        shown = self.checkpoints.get(message.checkpoint)
        if shown is None or shown.nonce != message.nonce:
            return
        pending = next((p for p in master.book.pending if p.checkpoint == message.checkpoint), None)
        if pending is not None:
            shown.subtasks = len(pending.missing) + len(pending.snapshots)
        snapshot = message.snapshot
        shown.acks.setdefault(message.subtask, AckView(
            message.subtask.index, now_us, snapshot.size_bytes, snapshot.sync_us, snapshot.async_us,
            snapshot.alignment_us, snapshot.written_bytes,
        ))  # fmt: skip

    def command(self, command: JobCommand, now_us: int) -> None:
        """The master ordered this."""
        if self.since_us is None:
            self.since_us = now_us
        match command:
            case Announce(command=BarrierMarker(checkpoint=checkpoint, nonce=nonce)):
                self.checkpoints[checkpoint] = CheckpointProgress(checkpoint, now_us, nonce=nonce)
                while len(self.checkpoints) > SHOWN:
                    del self.checkpoints[min(self.checkpoints)]
                for old in list(self.checkpoints.values())[-ACKS_KEPT - 1 : -ACKS_KEPT]:
                    old.acks.clear()
            case Announce(command=CheckpointAborted(checkpoint=checkpoint) as said) if checkpoint in self.checkpoints:
                self._aborted(self.checkpoints[checkpoint], said.reason, now_us)
            case Append(record=Complete(checkpoint=checkpoint)) if checkpoint in self.checkpoints:
                self.checkpoints[checkpoint].state = "complete"
                self.checkpoints[checkpoint].completed_us = now_us
                self.totals["complete"] += 1
            case Append(record=AttemptFailed(reason=reason)):
                self.failed(reason)
                self._abort_all("its attempt failed", now_us)
            case Append(record=Begin(attempt_number=number)):
                self._abort_all("its attempt ended", now_us)
                self.attempt_number = number
                self.missing_slots = 0
                self.statuses.clear()
                self.entered_us.clear()
                self.meter = RateMeter()
            case Announce(command=Deploy(subtask=subtask)):
                self.entered_us.setdefault(subtask, {})["deployed"] = now_us
            case JobEnded():
                self.ended = command
                self._abort_all("the job ended", now_us)
            case _:
                pass

    def _abort_all(self, reason: str, now_us: int) -> None:
        """With an attempt all ends that it had begun."""
        for shown in self.checkpoints.values():
            self._aborted(shown, reason, now_us)

    def _aborted(self, shown: CheckpointProgress, reason: str, now_us: int) -> None:
        if shown.state == "in progress":
            shown.state, shown.reason, shown.aborted_us = "aborted", reason, now_us
            self.totals["aborted"] += 1

    def failed(self, reason: str) -> None:
        """An attempt failed, or the coordinator could not go on."""
        self.failures = [*self.failures[1 - SHOWN :], reason]
        self.totals["failed"] += 1

    def checkpoint_age_us(self, now_us: int) -> int:
        """How long ago the newest checkpoint was completed; if none is known, how long none has been."""
        complete = self.completed_checkpoints
        last_us = complete[-1].completed_us if complete else self.since_us
        return 0 if last_us is None else now_us - last_us

    def total(self, operator: str, counter: OperatorCounter) -> int:
        """A counter of an operator over all subtasks."""
        return sum(getattr(one, counter) for one in self._metrics(operator))

    def misspelt(self, operator: str) -> dict[str, str]:
        """See `OperatorMetrics.misspelt`, over all subtasks."""
        return {name: near for one in self._metrics(operator) for name, near in one.misspelt_fields.items()}

    def _metrics(self, operator: str) -> list[OperatorMetrics]:
        return [status.metrics[operator] for status in self.statuses.values() if operator in status.metrics]

    def watermarks(self, vertex: str) -> list[int]:
        """Watermark per subtask of a vertex."""
        return [s.progress.watermark for i, s in sorted(self.statuses.items()) if i.vertex == vertex]

    @property
    def last_checkpoint(self) -> int:
        """The newest complete checkpoint, that of an earlier run included; 0 if there is none."""
        return max((c.checkpoint for c in self.completed_checkpoints), default=self.restored or 0)

    @property
    def completed_checkpoints(self) -> list[CheckpointProgress]:
        """All complete ones, oldest first."""
        return [c for c in self.checkpoints.values() if c.state == "complete"]


@dataclass(frozen=True, repr=False)
class JobResult:
    """What became of a job. Its text says it in a few lines."""

    job: str
    state: Literal["FINISHED", "STOPPED", "CANCELED", "FAILED", "SUSPENDED", "NOT_RUN"]
    reason: str
    progress: JobProgress
    error: BaseException | None = None
    """What user code or the engine raised, if the job failed."""
    graph: JobGraph | None = None
    seconds: float = 0.0
    """How long it ran here."""

    def __repr__(self) -> str:
        name = "job" if self.graph is None else self.graph.name
        lines = [f"{name}: {self.state.lower()}{f', {self.reason}' if self.reason else ''}"]
        if self.graph is not None:
            lines += summary_lines(self.graph, self.progress, self.seconds)
        return "\n".join(lines)
