"""What a leader remembers of a job for people: rates of subtasks, times of states, who acknowledged which checkpoint."""

from __future__ import annotations

import msgspec
import pytest

from penstock.coordination.job_progress import ACKS_KEPT, JobProgress
from penstock.coordination.task_rates import RateMeter
from penstock.protocol.jobevents import AckReceived, Announce, Append, JobEnded, JobEvent
from penstock.protocol.joblog import AttemptFailed, Begin, Complete
from penstock.protocol.jobmaster import JobMaster
from penstock.protocol.messages import (
    Acknowledged,
    BarrierMarker,
    CheckpointAborted,
    OperatorMetrics,
    SubtaskId,
    SubtaskSnapshot,
    TaskProgress,
    TaskStatus,
)

SUBTASK = SubtaskId("v", 0)
SECOND = 1_000_000


def status(seconds: float, state: str = "running") -> TaskStatus:
    """A subtask that is busy for 2 of 10 seconds, held up for 3, and takes in 100 rows in one."""
    us = int(seconds * SECOND)
    progress = TaskProgress(busy_us=us // 5, idle_us=us // 2, blocked_us=us * 3 // 10, bytes_in=us // 1_000)
    metrics = {"op": OperatorMetrics(rows_in=us // 10_000, rows_out=us // 100_000)}
    return TaskStatus("j", "a", SUBTASK, state, metrics=metrics, progress=progress)  # type: ignore[arg-type]


def test_rates_are_those_of_the_last_seconds() -> None:
    """None before there is a second to speak of, then shares of time that sum to 1, and rows per second."""
    meter = RateMeter()
    assert meter.rates(SUBTASK) is None
    for half in range(3):
        assert meter.rates(SUBTASK) is None
        meter.reported(status(half / 2), half * SECOND // 2)
    rates = meter.rates(SUBTASK)
    assert rates is not None
    assert (rates.busy, rates.idle, rates.blocked) == (0.2, 0.5, 0.3)
    assert rates.rows == {"op": (100.0, 10.0)}
    assert rates.bytes_in == 1_000.0


def test_rates_forget_what_is_long_ago() -> None:
    """A subtask that works no more has a rate of nothing ten seconds later."""
    meter = RateMeter()
    for half in range(40):
        meter.reported(status(half / 2), half * SECOND // 2)
    last = status(19.5)
    for half in range(40, 62):
        meter.reported(last, half * SECOND // 2)
    rates = meter.rates(SUBTASK)
    assert rates is not None
    assert (rates.busy, rates.rows) == (0.0, {"op": (0.0, 0.0)})


def test_counters_that_are_raised_after_the_report_are_not_taken_for_it() -> None:
    """In one process a subtask and its leader share them."""
    meter, shared = RateMeter(), OperatorMetrics()
    for second in range(3):
        shared.rows_in = 100 * second
        meter.reported(msgspec.structs.replace(status(second), metrics={"op": shared}), second * SECOND)
    rates = meter.rates(SUBTASK)
    assert rates is not None
    assert rates.rows["op"][0] == 100


def test_the_time_of_a_state_is_when_it_was_first_heard_of() -> None:
    """Repeated by every heartbeat, it stays."""
    progress = JobProgress("j")
    for at_us, state in ((1, "initializing"), (2, "running"), (3, "running")):
        progress.reported(status(at_us, state), at_us)
    assert progress.entered_us[SUBTASK] == {"initializing": 1, "running": 2}


class _Master:
    """As much of a master as is looked at."""

    class _Phase:
        value = "running"

    class _Book:
        pending: tuple[object, ...] = ()

    phase, book, attempt = _Phase(), _Book(), "a"


def event(progress: JobProgress, said: JobEvent, now_us: int) -> None:
    """The master was told this."""
    master: JobMaster = _Master()  # type: ignore[assignment]
    progress.event(said, master, now_us)


def acknowledged(checkpoint: int, nonce: str = "n") -> AckReceived:
    """An ack of the subtask."""
    return AckReceived(
        Acknowledged(
            job="j", attempt="a", checkpoint=checkpoint, nonce=nonce, subtask=SUBTASK,
            snapshot=SubtaskSnapshot(size_bytes=7, sync_us=1, async_us=2, alignment_us=3),
        )
    )  # fmt: skip


@pytest.mark.parametrize("nonce", ["n", "of a leader before"])
def test_acknowledgements_are_kept_of_the_checkpoint_that_they_are_for(nonce: str) -> None:
    """With the time at which they came; not those of another checkpoint with the same number."""
    progress = JobProgress("j")
    progress.command(Announce(BarrierMarker(epoch=1, job="j", attempt="a", checkpoint=1, nonce="n")), 10)
    event(progress, acknowledged(1, nonce), 20)
    event(progress, acknowledged(1, nonce), 30)
    acks = progress.checkpoints[1].acks
    assert [ack.at_us for ack in acks.values()] == ([20] if nonce == "n" else [])
    progress.command(
        Announce(CheckpointAborted(epoch=1, job="j", attempt="a", checkpoint=1, nonce="n", reason="timeout")), 40
    )
    assert progress.checkpoints[1].ended_us == 40


def test_acknowledgements_of_old_checkpoints_are_forgotten() -> None:
    """A leader of a thousand subtasks keeps no hundred thousand of them."""
    progress = JobProgress("j")
    for checkpoint in range(1, ACKS_KEPT + 3):
        progress.command(Announce(BarrierMarker(epoch=1, job="j", attempt="a", checkpoint=checkpoint, nonce="n")), 10)
        event(progress, acknowledged(checkpoint), 20)
    kept = [number for number, shown in progress.checkpoints.items() if shown.acks]
    assert kept == list(range(3, ACKS_KEPT + 3))


ENDS = {
    "its attempt failed": Append(AttemptFailed(attempt="a", attempt_number=1, reason="lost")),
    "its attempt ended": Append(
        Begin(attempt="b", attempt_number=2, restore=None, parallelism=1, generation=1, start_offsets={})
    ),
    "the job ended": JobEnded("CANCELED", ""),
}


@pytest.mark.parametrize("reason", ENDS)
def test_what_an_attempt_had_begun_ends_with_it(reason: str) -> None:
    """A checkpoint that nobody works on any more is not in progress for ever."""
    progress = JobProgress("j")
    for number in (1, 2, 3):
        begun = BarrierMarker(epoch=1, job="j", attempt="a", checkpoint=number, nonce="n")
        progress.command(Announce(begun), number)
    complete = Complete(checkpoint=1, checkpoint_nonce="n", attempt="a", parent=-1, manifest="m", sha256="")
    progress.command(Append(complete), 4)
    late = CheckpointAborted(epoch=1, job="j", attempt="a", checkpoint=3, nonce="n", reason="late")
    progress.command(Announce(msgspec.structs.replace(late, checkpoint=2, reason="too slow")), 5)
    progress.command(ENDS[reason], 6)
    progress.command(Announce(late), 7)
    shown = [(each.state, each.reason, each.ended_us) for each in progress.checkpoints.values()]
    assert shown == [("complete", "", 4), ("aborted", "too slow", 5), ("aborted", reason, 6)]
    assert (progress.totals["complete"], progress.totals["aborted"]) == (1, 2)
