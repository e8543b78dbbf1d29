"""Attempts, failures and endings of one job."""

from __future__ import annotations

import itertools
from dataclasses import replace

import msgspec
import pytest

from penstock.errors import ProtocolError
from penstock.protocol.checkpoints import CheckpointSettings
from penstock.protocol.endings import SUSPEND_DEADLINE_MS
from penstock.protocol.jobevents import (
    AckReceived,
    Announce,
    Append,
    CaptureOffsets,
    ChangedGraph,
    ExchangesTaken,
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
    WorkerGone,
)
from penstock.protocol.joblog import AttemptFailed, Begin, Complete, JobHistory, Savepoint, Submit, Terminated
from penstock.protocol.jobmaster import PUBLISH_AGAIN_MS, SLOTS_MS, JobMaster, Phase
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
    SubtaskSnapshot,
    TaskStatus,
)
from penstock.protocol.restarts import FixedDelay, NoRestart, RestartStrategy

SOURCE = SubtaskId("s", 0)
TOPOLOGY = Topology((SOURCE,), frozenset({SOURCE}), frozenset({SOURCE}), {}, frozenset(), {SOURCE: 0}, 1, 1)


class Shell:
    """Carries out the commands of a master at once, as a store and a worker that never fail."""

    def __init__(
        self,
        history: JobHistory | None = None,
        restarts: RestartStrategy | None = None,
        changed: ChangedGraph | None = None,
    ) -> None:
        submit = Submit(seq=0, nonce="n", job="j", name="n", graph={})
        self.history = history or JobHistory.of([submit])
        ids = itertools.count(1)
        self.master = JobMaster(
            "j", self.history, TOPOLOGY, CheckpointSettings(interval_ms=100), restarts or FixedDelay(delay_ms=10),
            lambda: f"{next(ids):031x}{self.history.epoch}", changed,
        )  # fmt: skip
        self.commands: list[JobCommand] = []
        self.now = 0
        self.taken: set[int] = set()
        """Generations whose exchanges exist in another shape."""

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
            case CaptureOffsets() if command.generation in self.taken:
                return [ExchangesTaken(command.generation)]
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


def test_exchanges_of_a_leader_that_died_before_begin_are_left_aside():
    """It had made them for another parallelism: the next generation begins, and nobody deletes what others may use."""
    shell = Shell()
    shell.taken = {0, 1}
    shell.start()
    begins = [c.record for c in shell.commands if isinstance(c, Append) and isinstance(c.record, Begin)]
    assert [begin.generation for begin in begins] == [2]


def test_exchanges_that_change_under_a_running_job_are_an_error():
    """What BEGIN names is in use: there is nothing to go on with, and no generation to flee to."""
    shell = Shell()
    shell.start()
    heir = Shell(shell.history)
    heir.taken = {0}
    with pytest.raises(ProtocolError, match="generation 0 changed"):
        heir.start(epoch=2)


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


def test_what_no_attempt_can_do_better_fails_the_job_without_a_restart():
    """Rows that are gone from a log do not come back with the next attempt, whatever the restart strategy allows."""
    shell = Shell(restarts=FixedDelay(attempts=1_000, delay_ms=10))
    shell.start()
    gone = TaskStatus("j", shell.master.attempt, SOURCE, "failed", error="frames are gone", terminal=True)
    shell.feed(StatusReported("w", gone))
    shell.now = 20
    shell.feed(Ticked())
    assert shell.history.terminated is not None
    assert (shell.history.terminated.state, shell.history.terminated.reason) == ("FAILED", "s[0]: frames are gone")
    assert len(shell.announced(Deploy)) == 1


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


def test_a_new_leader_repeats_how_a_job_has_ended():
    """The former one may have died before anybody heard of it: where all is published, subtasks end in order."""
    shell = Shell()
    shell.start()
    shell.feed(Requested("r", "stop"))
    shell.ack()
    shell.report("running", published=1)
    assert shell.history.terminated is not None
    heir = Shell(shell.history)
    heir.start(2)
    assert [(command.attempt, command.final) for command in heir.announced(FinishAttempt)] == [
        (shell.master.attempt, True)
    ]
    assert heir.announced(CancelAttempt) == []


def test_a_new_leader_numbers_checkpoints_above_all_markers():
    """Also above those that never became COMPLETE: subtasks obey no marker whose number they have seen."""
    shell = Shell()
    shell.start()
    shell.now = 200
    shell.feed(Ticked())
    former = shell.announced(BarrierMarker)[-1]
    adopted = Shell(shell.history)
    status = TaskStatus("j", former.attempt, SOURCE, "running")
    adopted.feed(Opened(2, {SOURCE: ("w", status)}, (msgspec.structs.replace(former, checkpoint=7),)))
    adopted.feed(SlotsOffered({"w": 1}))
    adopted.now = 200
    adopted.feed(Ticked())
    assert [marker.checkpoint for marker in adopted.announced(BarrierMarker)] == [8]


def test_a_terminated_job_stays_terminated():
    """Whoever opens it."""
    shell = Shell(restarts=NoRestart())
    shell.start()
    shell.report("failed")
    heir = Shell(shell.history)
    heir.start(2)
    assert heir.master.phase is Phase.TERMINATED
    assert heir.announced(Deploy) == []


WIDE = Topology(
    tuple(SubtaskId("s", n) for n in range(9)), frozenset({SOURCE}), frozenset({SOURCE}), {}, frozenset(),
    {SubtaskId("s", n): n for n in range(9)}, 9, 9,
)  # fmt: skip


def _with_a_complete(shell: Shell) -> None:
    """A checkpoint is COMPLETE, and nothing of it published."""
    shell.start()
    shell.now += 100
    shell.feed(Ticked())
    shell.ack()


def _later(shell: Shell, ms: int) -> None:
    shell.now += ms
    shell.feed(Ticked())


def _outcomes(shell: Shell) -> list[str]:
    return [c.outcome for c in shell.commands if isinstance(c, RequestDone)]


def test_why_an_attempt_failed_stands_in_the_log():
    """With place, worker and the user's frames: no leader that saw it may be left."""
    shell = Shell()
    shell.start()
    status = TaskStatus("j", shell.master.attempt, SOURCE, "failed", error="ZeroDivisionError", frames="in f")
    shell.feed(StatusReported("w", status))
    (failed,) = [record for record in shell.history.records if isinstance(record, AttemptFailed)]
    assert (failed.attempt_number, failed.subtask, failed.worker, failed.frames) == (1, "s[0]", "w", "in f")
    assert failed.reason == "s[0]: ZeroDivisionError"


def test_a_failed_job_publishes_what_is_complete_first():
    """In an attempt of its sinks alone, on a single slot, which takes no checkpoint."""
    shell = Shell(restarts=NoRestart())
    _with_a_complete(shell)
    shell.report("failed")
    assert shell.history.terminated is None
    begin = shell.history.begin
    assert begin is not None
    assert begin.publishes_only
    assert shell.announced(Deploy)[-1].publishes_only
    shell.report("running")
    _later(shell, 1_000)
    assert len(shell.announced(BarrierMarker)) == 1
    shell.report("running", published=1)
    assert shell.history.terminated is not None
    assert (shell.history.terminated.state, shell.history.terminated.reason) == ("FAILED", "s[0]: failed")


def test_publishing_alone_is_tried_again_until_its_deadline():
    """No restart strategy is asked for it."""
    shell = Shell(restarts=NoRestart())
    _with_a_complete(shell)
    shell.report("failed")
    shell.report("failed")
    assert shell.master.phase is Phase.RESTARTING
    _later(shell, PUBLISH_AGAIN_MS)
    assert shell.master.phase is Phase.RUNNING
    _later(shell, 30_000)
    assert shell.history.terminated is not None
    assert "was not fully published" in shell.history.terminated.reason


def test_a_job_without_slots_obeys_what_is_asked_of_it():
    """Another parallelism, a savepoint, a stop: each from the newest COMPLETE, published by a single slot."""
    for kind, outcome in (("rescale", "rescaled"), ("savepoint", "completed"), ("stop", "completed")):
        shell = Shell()
        _with_a_complete(shell)
        shell.feed(Requested("r0", "rescale", changed=ChangedGraph(WIDE, {"parallelism": 9})))
        shell.ack()
        shell.report("running", published=2)
        assert shell.master.phase is Phase.WAITING
        narrow = ChangedGraph(TOPOLOGY, {"parallelism": 1}) if kind == "rescale" else None
        shell.feed(Requested("r1", kind, changed=narrow))
        _later(shell, SLOTS_MS)
        _later(shell, 1)
        assert outcome in _outcomes(shell), kind


@pytest.mark.parametrize("refused", [False, True])
def test_a_cancelled_job_ends_if_its_destination_refuses_what_is_complete(refused: bool):
    """Where it is only away, rows that are complete are given up by a second cancellation alone."""
    shell = Shell(restarts=FixedDelay(attempts=1_000, delay_ms=10))
    _with_a_complete(shell)
    shell.master.topology = replace(TOPOLOGY, publishers=frozenset({"s"}))
    shell.feed(Requested("r", "cancel", reason="asked"))
    for _ in range(40):
        failed = TaskStatus("j", shell.master.attempt, SOURCE, "failed", error="row 7 is refused", refused=refused)
        shell.feed(StatusReported("w", failed))
        _later(shell, 1_000)
    terminated = shell.history.terminated
    if not refused:
        assert terminated is None
        return
    assert terminated is not None
    assert (terminated.state, terminated.reason) == ("CANCELED", "asked; checkpoint 1 was not fully published in time")


def test_a_suspension_waits_for_a_while():
    """For its checkpoint, if that fails again and again; and for sinks that do not publish it."""
    for acks in (False, True):
        shell = Shell()
        shell.start()
        shell.feed(Requested("r", "suspend", reason="interrupted"))
        if acks:
            shell.ack()
        else:
            _decline(shell)
        _later(shell, SUSPEND_DEADLINE_MS - 1)
        assert shell.master.phase is Phase.RUNNING
        _later(shell, 1)
        assert shell.master.phase is Phase.SUSPENDED, acks
        assert _outcomes(shell) == ["suspended"]


def _decline(shell: Shell) -> None:
    marker = shell.announced(BarrierMarker)[-1]
    declined = Declined(
        job="j", attempt=marker.attempt, checkpoint=marker.checkpoint, nonce=marker.nonce, subtask=SOURCE,
        reason="the store is away", unavailable=True,
    )  # fmt: skip
    shell.feed(AckReceived(declined))


def test_a_cancelled_job_publishes_though_its_slots_are_gone():
    """One slot is enough for its sinks."""
    shell = Shell()
    _with_a_complete(shell)
    shell.feed(SlotsOffered({}), WorkerGone("w", "killed"))
    _later(shell, 10)
    assert shell.master.phase is Phase.WAITING
    shell.feed(Requested("r", "cancel", reason="asked"), SlotsOffered({"v": 1}))
    assert shell.master.publishes_only
    shell.feed(StatusReported("v", TaskStatus("j", shell.master.attempt, SOURCE, "running", 1)))
    assert shell.history.terminated is not None
    assert (shell.history.terminated.state, shell.history.terminated.reason) == ("CANCELED", "asked")


def test_a_changed_graph_begins_when_the_old_one_has_published():
    """Who resumes a failed run with another pipeline must not lose what the former one had complete."""
    shell = Shell()
    _with_a_complete(shell)
    heir = Shell(shell.history, changed=ChangedGraph(TOPOLOGY, {"parallelism": 2}))
    heir.start(2)
    begin = heir.history.begin
    assert begin is not None
    assert (begin.publishes_only, begin.generation, begin.graph) == (True, 0, None)
    heir.report("running", published=1)
    begin = heir.history.begin
    assert begin is not None
    assert (begin.publishes_only, begin.generation, begin.graph) == (False, 1, {"parallelism": 2})


def test_a_changed_graph_begins_at_once_where_nothing_is_complete():
    """There is nothing to publish."""
    shell = Shell()
    shell.start()
    heir = Shell(shell.history, changed=ChangedGraph(TOPOLOGY, {"parallelism": 2}))
    heir.start(2)
    begin = heir.history.begin
    assert begin is not None
    assert (begin.publishes_only, begin.generation, begin.graph) == (False, 1, {"parallelism": 2})


def test_a_job_whose_checkpoint_is_gone_can_be_cancelled():
    """Nothing begins, everything else is refused."""
    shell = Shell()
    _with_a_complete(shell)
    heir = Shell(shell.history)
    heir.feed(Opened(2, {}, unreadable="its manifest is missing"), SlotsOffered({"w": 1}))
    assert heir.announced(Deploy) == []
    heir.feed(Requested("r", "savepoint"))
    assert _outcomes(heir) == ["refused: the job cannot go on: its manifest is missing; cancel it"]
    heir.feed(Requested("r2", "cancel", reason="asked"))
    assert heir.history.terminated is not None
    assert heir.history.terminated.state == "CANCELED"


def test_a_savepoint_that_times_out_is_refused_and_restarts_nothing():
    """Who asked hears it once; the attempt goes on."""
    shell = Shell()
    shell.start()
    shell.feed(Requested("r", "savepoint"))
    _later(shell, 600_000)
    assert _outcomes(shell) == ["refused: its checkpoint 1 failed: timeout"]
    assert shell.master.phase is Phase.RUNNING


def test_a_leader_that_adopts_lets_paused_sources_go_on():
    """They paused for a rescale or a suspension that nobody carries on; who asked for it asks again."""
    for kind in ("rescale", "suspend"):
        shell = Shell()
        shell.start()
        changed = ChangedGraph(WIDE, {"parallelism": 9}) if kind == "rescale" else None
        shell.feed(Requested("r", kind, changed=changed))
        shell.ack()
        heir = Shell(shell.history)
        heir.start(2, {SOURCE: ("w", TaskStatus("j", shell.master.attempt, SOURCE, "running"))})
        assert [aborted.checkpoint for aborted in heir.announced(CheckpointAborted)] == [1], kind
