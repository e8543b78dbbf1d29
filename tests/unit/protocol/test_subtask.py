"""What a subtask does about barriers, acks, pauses and its end."""

from __future__ import annotations

import pytest

from penstock.errors import ProtocolError
from penstock.protocol.frames import Channel, Frame, FrameKind
from penstock.protocol.messages import (
    Acknowledged,
    BarrierMarker,
    CheckpointAborted,
    CheckpointCompleted,
    Declined,
    SubtaskId,
    SubtaskSnapshot,
)
from penstock.protocol.outputs import OutputId, OutputLedger
from penstock.protocol.subtask import (
    AbortRead,
    BarrierSent,
    CompletionRead,
    EmitEndOfTime,
    Finish,
    FinishRead,
    FlushRows,
    FrameConfirmed,
    FrameRead,
    Freeze,
    Frozen,
    MarkerRead,
    Publish,
    ReportEnded,
    Send,
    SendBarrier,
    SetPaused,
    SourceExhausted,
    SubtaskMachine,
    Upload,
    Uploaded,
    UploadFailed,
)

ATTEMPT = "a" * 32
OUT = OutputId("k", 0, 0)


def machine(kind: str = "source", channels: tuple[Channel, ...] = ()) -> SubtaskMachine:
    ledger = OutputLedger(ATTEMPT, 0, [OUT], 1000)
    return SubtaskMachine("j", ATTEMPT, SubtaskId("s", 0), kind, channels, ledger)


def marker(checkpoint: int, **fields: object) -> MarkerRead:
    return MarkerRead(
        BarrierMarker(epoch=1, job="j", attempt=ATTEMPT, checkpoint=checkpoint, nonce=f"n{checkpoint}", **fields)
    )


def send_barrier(subject: SubtaskMachine, checkpoint: int) -> int:
    """Carry out what follows a freeze; returns the seq of the barrier."""
    subject.handle(Frozen(checkpoint))
    seq = subject.ledger.barrier(OUT, checkpoint, f"n{checkpoint}", "aligned").seq
    subject.handle(BarrierSent(checkpoint))
    return seq


def test_a_source_freezes_at_a_marker_and_sends_the_barrier_behind_its_rows():
    """The snapshot, then the rows that wait, then the barrier, then the upload."""
    subject = machine()
    assert subject.handle(marker(1)) == [Freeze(1, "n1")]
    assert subject.handle(Frozen(1)) == [FlushRows(), SendBarrier(1, "n1", "aligned"), Upload(1, "n1")]


def test_old_and_foreign_markers_are_ignored():
    """Numbers rise; a marker that was read twice or belongs to another attempt changes nothing."""
    subject = machine()
    subject.handle(marker(2))
    subject.handle(Frozen(2))
    assert subject.handle(marker(2)) == []
    assert subject.handle(marker(1)) == []
    foreign = BarrierMarker(epoch=1, job="j", attempt="b" * 32, checkpoint=9, nonce="n")
    assert subject.handle(MarkerRead(foreign)) == []


def test_the_ack_waits_for_the_upload_and_for_every_frame():
    """Durable state alone is not enough: a frame before the barrier may still be lost."""
    subject = machine()
    subject.ledger.data(OUT, 1, 10)
    subject.handle(marker(1))
    barrier = send_barrier(subject, 1)
    snapshot = SubtaskSnapshot(watermark=5)
    assert subject.handle(Uploaded(1, "n1", snapshot)) == []
    assert subject.handle(FrameConfirmed(OUT, 0)) == []
    [sent] = subject.handle(FrameConfirmed(OUT, barrier))
    assert sent == Send(
        Acknowledged(job="j", attempt=ATTEMPT, checkpoint=1, nonce="n1", subtask=SubtaskId("s", 0), snapshot=snapshot)
    )


def test_the_ack_waits_for_the_upload_even_if_all_frames_are_confirmed():
    """The other order of the same two conditions."""
    subject = machine()
    subject.handle(marker(1))
    assert subject.handle(FrameConfirmed(OUT, send_barrier(subject, 1))) == []
    assert len(subject.handle(Uploaded(1, "n1", SubtaskSnapshot()))) == 1


def test_a_failed_upload_declines_the_checkpoint():
    """The attempt goes on, the checkpoint does not."""
    subject = machine()
    subject.handle(marker(1))
    send_barrier(subject, 1)
    [command] = subject.handle(UploadFailed(1, "n1", "disk full"))
    assert isinstance(command.message, Declined)
    assert command.message.reason == "disk full"
    assert subject.handle(Uploaded(1, "n1", SubtaskSnapshot())) == []


def test_an_inner_subtask_freezes_when_its_gate_is_aligned():
    """Markers mean nothing to it; barriers that came on all channels do."""
    subject = machine("inner", (Channel(0, 0),))
    assert subject.handle(marker(1)) == []
    barrier = Frame(FrameKind.BARRIER, ATTEMPT, Channel(0, 0), 0, checkpoint=1, nonce="n1")
    assert subject.handle(FrameRead(barrier, None, 0)) == [Freeze(1, "n1")]


def test_two_freezes_at_once_are_refused():
    """The shell must report `Frozen` before anything else is processed."""
    subject = machine()
    subject.handle(marker(1))
    with pytest.raises(ProtocolError, match="while 1 is being frozen"):
        subject.handle(marker(2))
    with pytest.raises(ProtocolError, match="not asked for"):
        machine().handle(Frozen(1))


def test_a_pausing_barrier_pauses_until_it_is_aborted():
    """An abort of another checkpoint does not wake the source."""
    subject = machine()
    assert subject.handle(marker(1, pause=True)) == [SetPaused(True), Freeze(1, "n1")]
    other = CheckpointAborted(epoch=1, job="j", attempt=ATTEMPT, checkpoint=7, nonce="n7")
    assert subject.handle(AbortRead(other)) == []
    abort = CheckpointAborted(epoch=1, job="j", attempt=ATTEMPT, checkpoint=1, nonce="n1")
    assert subject.handle(AbortRead(abort)) == [SetPaused(False)]


def test_a_draining_barrier_ends_event_time_once():
    """All windows fire before the barrier."""
    subject = machine()
    assert subject.handle(marker(1, drain=True)) == [EmitEndOfTime(), Freeze(1, "n1")]
    assert subject.handle(SourceExhausted()) == [ReportEnded()]


def test_a_source_at_its_end_stays_alive():
    """It reports the end and still forwards barriers; only the leader ends it."""
    subject = machine()
    assert subject.handle(SourceExhausted()) == [EmitEndOfTime(), ReportEnded()]
    assert subject.handle(marker(1)) == [Freeze(1, "n1")]
    assert not subject.finished
    assert subject.handle(FinishRead()) == [Finish()]
    assert subject.finished


def test_completions_of_the_attempt_are_published():
    """A completion of another attempt says nothing about this one's rows."""
    subject = machine()
    done = CheckpointCompleted(epoch=1, job="j", attempt=ATTEMPT, checkpoint=3, nonce="n3")
    assert subject.handle(CompletionRead(done)) == [Publish(3, "n3")]
    foreign = CheckpointCompleted(epoch=1, job="j", attempt="b" * 32, checkpoint=4, nonce="n4")
    assert subject.handle(CompletionRead(foreign)) == []
