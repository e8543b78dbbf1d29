"""Attempts, failures and endings of one job."""

from __future__ import annotations

import itertools

import msgspec

from penstock.protocol.checkpoints import CheckpointSettings
from penstock.protocol.jobevents import (
    AckReceived,
    Announce,
    Append,
    CaptureOffsets,
    JobCommand,
    JobEvent,
    ManifestStored,
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
)
from penstock.protocol.joblog import Begin, Complete, JobHistory, Savepoint, Submit, Terminated
from penstock.protocol.jobmaster import JobMaster, Phase
from penstock.protocol.messages import (
    Acknowledged,
    BarrierMarker,
    CheckpointCompleted,
    Deploy,
    SubtaskId,
    SubtaskSnapshot,
    TaskStatus,
)
from penstock.protocol.restarts import FixedDelay, NoRestart, RestartStrategy

SOURCE = SubtaskId("s", 0)
TOPOLOGY = Topology((SOURCE,), frozenset({SOURCE}), frozenset({SOURCE}), {}, frozenset(), {SOURCE: 0}, 1, 1)


class Shell:
    """Carries out the commands of a master at once, as a store and a worker that never fail."""

    def __init__(self, history: JobHistory | None = None, restarts: RestartStrategy | None = None) -> None:
        submit = Submit(seq=0, nonce="n", job="j", name="n", graph={})
        self.history = history or JobHistory.of([submit])
        ids = itertools.count(1)
        self.master = JobMaster(
            "j", self.history, TOPOLOGY, CheckpointSettings(interval_ms=100), restarts or FixedDelay(delay_ms=10),
            lambda: f"{next(ids):032x}",
        )  # fmt: skip
        self.commands: list[JobCommand] = []
        self.now = 0

    def feed(self, *events: JobEvent) -> None:
        queue = list(events)
        while queue:
            for command in self.master.handle(queue.pop(0), self.now):
                self.commands.append(command)
                queue += self._answer(command)

    def _answer(self, command: JobCommand) -> list[JobEvent]:
        match command:
            case Append(record=record):
                parent = self.history.complete.seq if self.history.complete else -1
                extra = {"parent": parent} if isinstance(record, Complete) else {}
                stored = msgspec.structs.replace(record, seq=self.history.next_seq, **extra)
                self.history.apply(stored)
                return [RecordStored(stored)]
            case CaptureOffsets():
                return [OffsetsCaptured(command.generation, {})]
            case StoreManifest():
                return [ManifestStored(command.manifest.checkpoint, command.nonce, command.key, "sha")]
            case _:
                return []

    def start(self, epoch: int = 1, statuses: dict[SubtaskId, tuple[str, TaskStatus]] | None = None) -> None:
        self.feed(Opened(epoch, statuses or {}), SlotsOffered({"w": 1}))
        if not statuses:
            self.report("running")

    def report(self, state: str, published: int = 0) -> None:
        self.feed(StatusReported("w", TaskStatus("j", self.master.attempt, SOURCE, state, published)))

    def announced(self, kind: type) -> list[object]:
        return [c.command for c in self.commands if isinstance(c, Announce) and isinstance(c.command, kind)]

    def ack(self) -> None:
        marker = self.announced(BarrierMarker)[-1]
        self.feed(
            AckReceived(
                Acknowledged(
                    job="j", attempt=marker.attempt, checkpoint=marker.checkpoint, nonce=marker.nonce, subtask=SOURCE,
                    snapshot=SubtaskSnapshot(),
                )
            )
        )  # fmt: skip


def test_begin_stands_in_the_log_before_anything_is_deployed():
    """And a periodic checkpoint follows when all run."""
    shell = Shell()
    shell.start()
    kinds = [type(c.record) for c in shell.commands if isinstance(c, Append)]
    assert kinds[-1] is Begin
    assert len(shell.announced(Deploy)) == 1
    shell.now = 100
    shell.feed(Ticked())
    assert len(shell.announced(BarrierMarker)) == 1
    assert shell.announced(CheckpointCompleted) == []
    shell.ack()
    assert len(shell.announced(CheckpointCompleted)) == 1


def test_the_end_waits_for_the_final_checkpoint_and_for_publishing():
    """A source at its end does not end the job by itself."""
    shell = Shell()
    shell.start()
    shell.report("ended")
    shell.ack()
    assert shell.master.phase is Phase.RUNNING
    shell.report("ended", published=1)
    assert shell.master.phase is Phase.TERMINATED
    assert shell.history.terminated is not None
    assert shell.history.terminated.state == "FINISHED"


def test_the_end_of_one_attempt_is_not_the_end_of_the_next():
    """A new attempt's sources start from before their end: found by the simulation."""
    shell = Shell()
    shell.start()
    shell.report("ended")
    shell.report("failed")
    shell.now = 50
    shell.feed(Ticked())
    shell.report("running")
    shell.now = 160
    shell.feed(Ticked())
    shell.ack()
    shell.report("running", published=9)
    assert shell.master.phase is Phase.RUNNING


def test_without_restarts_a_failure_fails_the_job():
    """FAILED stands in the log."""
    shell = Shell(restarts=NoRestart())
    shell.start()
    shell.report("failed")
    assert shell.history.terminated is not None
    assert shell.history.terminated.state == "FAILED"


def test_a_subtask_that_is_no_longer_listed_fails_the_attempt():
    """Its own event was lost."""
    shell = Shell()
    shell.start()
    shell.feed(TasksListed("w", frozenset({SOURCE})))
    assert shell.master.phase is Phase.RUNNING
    shell.feed(TasksListed("w", frozenset()))
    assert shell.master.phase is Phase.RESTARTING


def test_a_savepoint_is_done_when_it_is_published():
    """Only then can it be restored anywhere; the same request is obeyed once."""
    shell = Shell()
    shell.start()
    shell.feed(Requested("r", "savepoint"))
    shell.ack()
    assert not any(isinstance(c, RequestDone) for c in shell.commands)
    shell.report("running", published=1)
    assert [c.outcome for c in shell.commands if isinstance(c, RequestDone)] == ["completed"]
    assert isinstance(shell.history.records[-1], Savepoint)
    other = Shell(shell.history)
    status = TaskStatus("j", shell.master.attempt, SOURCE, "running", 1)
    other.start(2, {SOURCE: ("w", status)})
    other.feed(Requested("r", "savepoint"))
    assert [c.outcome for c in other.commands if isinstance(c, RequestDone)] == ["completed"]


def test_a_new_leader_carries_a_complete_stop_on():
    """It repeats the newest COMPLETE, waits for publishing and records the end."""
    shell = Shell()
    shell.start()
    shell.feed(Requested("r", "stop", reason="asked"))
    shell.ack()
    heir = Shell(shell.history)
    heir.start(2, {SOURCE: ("w", TaskStatus("j", shell.master.attempt, SOURCE, "running", 0))})
    assert len(heir.announced(CheckpointCompleted)) == 1
    assert heir.announced(Deploy) == []
    heir.report("running", published=1)
    assert heir.history.terminated == Terminated(seq=6, state="STOPPED", reason="asked")


def test_a_terminated_job_stays_terminated():
    """Whoever opens it."""
    shell = Shell(restarts=NoRestart())
    shell.start()
    shell.report("failed")
    heir = Shell(shell.history)
    heir.start(2)
    assert heir.master.phase is Phase.TERMINATED
    assert heir.announced(Deploy) == []
