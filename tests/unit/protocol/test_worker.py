"""Which commands a worker obeys."""

from __future__ import annotations

import msgspec
import pytest

from penstock.protocol.messages import (
    BarrierMarker,
    CancelAttempt,
    CheckpointCompleted,
    Deploy,
    EpochStarted,
    FinishAttempt,
    LeaderTick,
    SubtaskId,
    decode_command,
)
from penstock.protocol.worker import HandToTasks, StartTask, StopTasks, WorkerMachine


def deploy(attempt: str = "a", *, worker: str = "w#1", epoch: int = 1, index: int = 0) -> Deploy:
    return Deploy(
        epoch=epoch, job="j", attempt=attempt, attempt_number=1, subtask=SubtaskId("s", index), worker=worker,
        generation=0, restore=None, start_offset=0,
    )  # fmt: skip


@pytest.fixture
def worker() -> WorkerMachine:
    return WorkerMachine("w#1", 0, leader_silence_ms=100)


def test_a_deploy_is_carried_out_once(worker: WorkerMachine):
    """However often it stands in commands."""
    assert worker.command_read(deploy(), 0) == [StartTask(deploy())]
    assert worker.command_read(deploy(), 0) == []


def test_a_restarted_process_ignores_the_deploys_of_its_former_instance(worker: WorkerMachine):
    """The name of the instance is part of a deploy."""
    assert worker.command_read(deploy(worker="w#0"), 0) == []


def test_commands_of_deposed_leaders_are_dropped(worker: WorkerMachine):
    """Whatever stands behind a higher epoch and has a lower one is void."""
    worker.command_read(EpochStarted(epoch=3, leader="c"), 0)
    assert worker.command_read(deploy(epoch=2), 0) == []
    assert worker.command_read(deploy(epoch=3), 0) != []


def test_a_command_that_is_not_read_says_its_epoch(worker: WorkerMachine):
    """A newer leader may command what this program does not know; one that says no epoch at all is passed over."""
    for odd in (b'{"type":"Dance","epoch":4}', b'{"type":"Deploy","epoch":4}', b"\xff", b"[]"):
        assert worker.command_read(decode_command(odd), 0) == []
    assert worker.command_read(deploy(epoch=3), 0) == []
    assert worker.command_read(deploy(epoch=4), 0) != []


def test_a_late_deploy_of_an_older_attempt_changes_nothing(worker: WorkerMachine):
    """An append that was tried again may be written long after a newer attempt was deployed."""
    worker.command_read(msgspec.structs.replace(deploy("b"), attempt_number=2), 0)
    for late in (deploy("a"), deploy("a", worker="other")):
        assert worker.command_read(late, 0) == []
    assert worker.command_read(msgspec.structs.replace(deploy("b", index=1), attempt_number=2), 0) != []


def test_a_newer_attempt_ends_the_older_one(worker: WorkerMachine):
    """Even if the new one is deployed to other workers only."""
    worker.command_read(deploy("a"), 0)
    newer = msgspec.structs.replace(deploy("b", worker="other"), attempt_number=2)
    [stop] = worker.command_read(newer, 0)
    assert (stop.attempt, type(stop)) == ("a", StopTasks)
    assert worker.command_read(msgspec.structs.replace(newer, subtask=SubtaskId("s", 1)), 0) == []


def test_checkpoints_and_endings_go_to_the_tasks(worker: WorkerMachine):
    """The worker notes the highest number and leaves the rest to its subtasks."""
    marker = BarrierMarker(epoch=1, job="j", attempt="a", checkpoint=5, nonce="n")
    for command in (
        marker,
        CheckpointCompleted(epoch=1, job="j", attempt="a", checkpoint=5, nonce="n"),
        FinishAttempt(epoch=1, job="j", attempt="a"),
    ):
        assert worker.command_read(command, 0) == [HandToTasks(command)]
    assert worker.highest_checkpoint == 5
    assert worker.command_read(msgspec.structs.replace(marker, checkpoint=4), 0) != []
    assert worker.highest_checkpoint == 5


def test_a_cancelled_attempt_is_stopped_at_once(worker: WorkerMachine):
    """With the leader's reason."""
    worker.command_read(deploy(), 0)
    cancel = CancelAttempt(epoch=1, job="j", attempt="a", reason="why")
    assert worker.command_read(cancel, 0) == [StopTasks("j", "a", "why")]
    assert worker.time_passed(1_000) == []


def test_the_end_of_a_job_stops_all_its_attempts(worker: WorkerMachine):
    """The cancellation of an older one was void if its leader had been deposed, and no newer one was deployed then."""
    worker.command_read(deploy("a"), 0)
    final = CancelAttempt(epoch=1, job="j", attempt="b", final=True)
    assert worker.command_read(final, 0) == [StopTasks("j", "", "", final=True)]
    assert worker.time_passed(1_000) == []


def test_the_end_of_a_job_that_is_published_stops_all_other_attempts(worker: WorkerMachine):
    """The newest one ends in order. An end that is not the job's leaves others alone."""
    worker.command_read(deploy("a"), 0)
    suspended = FinishAttempt(epoch=1, job="j", attempt="b")
    assert worker.command_read(suspended, 0) == [HandToTasks(suspended)]
    ended = FinishAttempt(epoch=1, job="j", attempt="b", final=True)
    assert worker.command_read(ended, 0) == [HandToTasks(ended), StopTasks("j", "a", "the job has ended")]
    assert worker.time_passed(1_000) == []


def test_without_a_leader_the_tasks_are_stopped(worker: WorkerMachine):
    """Nobody watches them; a tick of the leader starts the time anew."""
    worker.command_read(deploy(), 0)
    worker.command_read(LeaderTick(epoch=1), 50)
    assert worker.time_passed(149) == []
    assert worker.time_passed(150) == [StopTasks("j", "", "no leader was heard of")]
    assert worker.time_passed(300) == []
