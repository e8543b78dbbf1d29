"""Checkpoints that somebody asks for: taken at once where the job runs, and everybody is told what came of them."""

from __future__ import annotations

from tests.unit.protocol.test_jobmaster import SOURCE, Shell

from penstock.protocol.jobevents import AckReceived, CheckpointAsked, RequestDone, Requested, SlotsOffered, Ticked
from penstock.protocol.messages import BarrierMarker, Declined


def answers(shell: Shell) -> dict[str, tuple[str, int]]:
    """Request to the answer and the checkpoint in it."""
    done = [command for command in shell.commands if isinstance(command, RequestDone)]
    return {one.request: (one.outcome, one.savepoint.checkpoint if one.savepoint else 0) for one in done}


def markers(shell: Shell) -> list[int]:
    """The checkpoints that were triggered."""
    return [marker.checkpoint for marker in shell.announced(BarrierMarker)]  # type: ignore[attr-defined]


def decline(shell: Shell) -> None:
    """The subtask cannot take the newest checkpoint."""
    marker = shell.announced(BarrierMarker)[-1]
    assert isinstance(marker, BarrierMarker)
    said = Declined(
        job="j", attempt=marker.attempt, checkpoint=marker.checkpoint, nonce=marker.nonce, subtask=SOURCE,
        reason="disk full",
    )  # fmt: skip
    shell.feed(AckReceived(said))


def test_one_is_triggered_at_once_and_answers_all_who_wait_for_it():
    """Long before the interval is over; asked twice by the same request, it is one."""
    shell = Shell()
    shell.start()
    shell.feed(CheckpointAsked("a"))
    assert markers(shell) == [1]
    shell.ack()
    assert answers(shell) == {"a": ("completed", 1)}
    shell.feed(Ticked())
    assert markers(shell) == [1]


def test_one_that_was_triggered_before_is_no_answer():
    """What it captured is older than the question: the next one follows as soon as it may."""
    shell = Shell()
    shell.start()
    shell.feed(CheckpointAsked("a"), CheckpointAsked("b"))
    assert markers(shell) == [1]
    shell.ack()
    assert answers(shell) == {"a": ("completed", 1)}
    assert markers(shell) == [1, 2]
    shell.ack()
    assert answers(shell)["b"] == ("completed", 2)
    assert markers(shell) == [1, 2]


def test_a_savepoint_meanwhile_answers_too():
    """Any checkpoint that was triggered since is one."""
    shell = Shell()
    shell.start()
    shell.feed(CheckpointAsked("a"))
    shell.feed(CheckpointAsked("b"), Requested("s", "savepoint"))
    shell.ack()
    shell.ack()
    assert answers(shell)["b"] == ("completed", 2)


def test_who_asks_is_told_why_none_was_taken():
    """Declined, or the attempt fails: refused at once, and nobody waits for what never comes."""
    shell = Shell()
    shell.start()
    shell.feed(CheckpointAsked("a"))
    decline(shell)
    assert answers(shell)["a"] == (f"refused: checkpoint 1 failed: {SOURCE}: disk full", 0)
    shell.feed(CheckpointAsked("b"))
    shell.report("failed")
    outcome, checkpoint = answers(shell)["b"]
    assert (outcome.startswith("refused: no checkpoint was taken:"), checkpoint) == (True, 0)


def test_a_job_that_does_not_run_takes_none():
    """It waits for slots, its subtasks start, or it is ending already."""
    waiting = Shell()
    waiting.feed(CheckpointAsked("early"))
    waiting.start()
    shell = Shell()
    shell.start()
    shell.feed(Requested("stop", "stop"), CheckpointAsked("late"))
    assert answers(shell)["late"] == ("refused: it is being stopped", 0)
    waiting.feed(SlotsOffered({}), CheckpointAsked("late"))
    assert "refused: the job does not run now" in answers(waiting)["early"][0]
