"""What a coordinator knows of workers: who is silent, which heartbeat is newer, which subtasks run where."""

from __future__ import annotations

from penstock.jobmanager.workers import Worker, Workers, identity_of
from penstock.protocol.messages import Heartbeat, SubtaskId, TaskStatus

LONGEST_MS = 1_000


def worker(name: str, seen_ms: int, *tasks: TaskStatus, host: str = "", number: int = 0) -> Worker:
    beat = Heartbeat(worker=name, slots=1, tasks=tasks, host=host, number=number)
    return Worker(beat, seen_ms, {identity_of(status): status for status in tasks})


def test_a_worker_is_given_up_with_those_of_its_task_manager_that_are_silent_too() -> None:
    """One after the other they would be as many failures; those that still speak stay, and so do other hosts'."""
    workers = Workers(
        late=worker("late", 0, host="one"),
        beside=worker("beside", 400, host="one"),
        speaks=worker("speaks", 900, host="one"),
        elsewhere=worker("elsewhere", 400, host="two"),
    )
    assert workers.silent(1_000, LONGEST_MS) == ["late", "beside"]
    assert workers.silent(999, LONGEST_MS) == []


def test_hosts_that_are_not_known_are_nobodys() -> None:
    workers = Workers(late=worker("late", 0), beside=worker("beside", 400))
    assert workers.silent(1_000, LONGEST_MS) == ["late"]


def test_silence_that_is_excused_does_not_count() -> None:
    """Nobody could be heard: neither this worker nor another is to be given up for it."""
    workers = Workers(one=worker("one", 0), other=worker("other", 100))
    workers.excuse(500)
    assert workers.silent(1_499, LONGEST_MS) == []
    assert workers.silent(1_500, LONGEST_MS) == ["one"]


def test_heartbeats_are_compared_by_their_numbers() -> None:
    """A repeated one is 0 newer; one of a worker that is not known, or does not count, is as good as the next one."""
    workers = Workers(one=worker("one", 0, number=7))
    newer = [workers.newer_by(Heartbeat(worker="one", slots=1, number=number)) for number in (6, 7, 9, 0)]
    assert newer == [-1, 0, 2, 1]
    assert workers.newer_by(Heartbeat(worker="new", slots=1, number=40)) == 1


def test_of_several_attempts_the_subtask_of_the_newest_is_meant() -> None:
    """Whichever worker is asked first; other jobs have subtasks of their own."""
    subtask = SubtaskId("v", 0)
    old, new, other = (
        TaskStatus(job, attempt, subtask, "running") for job, attempt in (("j", "old"), ("j", "new"), ("k", "new"))
    )
    for first, second in ((old, new), (new, old)):
        workers = Workers(a=worker("a", 0, first), b=worker("b", 0, second, other))
        [(_, found)] = workers.tasks_of("j", "new").values()
        assert found == new
    assert workers.tasks_of("l", "") == {}
