"""What waits for a job's shell while that waits for the store: every decision that is to be made, and nothing twice."""

from __future__ import annotations

import asyncio
from typing import Any

from penstock.jobmanager.job_inbox import JobInbox
from penstock.protocol.jobevents import (
    AckReceived,
    JobEvent,
    SlotsOffered,
    StatusReported,
    TasksListed,
    Ticked,
    WorkerGone,
)
from penstock.protocol.messages import Declined, SubtaskId, TaskProgress, TaskStatus

FIRST, SECOND = SubtaskId("v0", 0), SubtaskId("v0", 1)


def status(subtask: SubtaskId = FIRST, state: Any = "running", rows: int = 0, **others: Any) -> StatusReported:
    progress = TaskProgress(bytes_in=rows)
    return StatusReported("w", TaskStatus("job", "attempt", subtask, state, progress=progress, **others))


async def taken(inbox: JobInbox) -> list[JobEvent]:
    return [await inbox.get() for _ in range(len(inbox))]


async def test_what_is_said_again_does_not_wait_twice() -> None:
    """An hour of reports about two subtasks, told every five seconds, while the store is away."""
    inbox = JobInbox()
    for second in range(0, 3_600, 5):
        inbox.put(status(FIRST, rows=second))
        inbox.put(status(SECOND, rows=second))
        inbox.put(TasksListed("w", frozenset({FIRST, SECOND})))
        inbox.put(SlotsOffered({"w": 2, "other": second}))
        inbox.put(Ticked())
    assert await taken(inbox) == [
        status(FIRST), status(SECOND), TasksListed("w", frozenset({FIRST, SECOND})),
        SlotsOffered({"w": 2, "other": 3_595}),
    ]  # fmt: skip


async def test_what_differs_is_all_there_in_order() -> None:
    """States, what is published, another attempt, acknowledgements, deaths."""
    inbox = JobInbox()
    declined = AckReceived(Declined(job="job", attempt="attempt", subtask=FIRST, checkpoint=1, nonce="n", reason="no"))
    given: list[JobEvent] = [
        status(state="deploying"), status(), declined, status(published=1), declined, status(state="failed", error="x"),
        WorkerGone("w", "killed"), status(state="deploying"), WorkerGone("x", "killed"),
    ]  # fmt: skip
    for event in given:
        inbox.put(event)
    assert await taken(inbox) == given


async def test_an_offer_waits_where_the_first_one_did() -> None:
    """With what there is now: behind a death stands no offer of the slots that died."""
    inbox = JobInbox()
    inbox.put(SlotsOffered({"a": 1, "b": 1}))
    inbox.put(status())
    inbox.put(SlotsOffered({"b": 1}))
    inbox.put(WorkerGone("a", "killed"))
    assert await taken(inbox) == [SlotsOffered({"b": 1}), status(), WorkerGone("a", "killed")]
    inbox.put(SlotsOffered({"b": 2}))
    assert await taken(inbox) == [SlotsOffered({"b": 2})]


async def test_slots_of_a_worker_that_has_come_back_are_offered_behind_its_death() -> None:
    """The pool offers a slot once: a master that hears of the death behind the offer would wait for it for ever."""
    inbox = JobInbox()
    for event in (SlotsOffered({}), WorkerGone("a", "silent"), SlotsOffered({"a": 1}), SlotsOffered({"a": 2})):
        inbox.put(event)
    assert await taken(inbox) == [SlotsOffered({}), WorkerGone("a", "silent"), SlotsOffered({"a": 2})]
    inbox.put(SlotsOffered({"a": 3}))
    inbox.put(WorkerGone("b", "silent"))
    assert await inbox.get() == SlotsOffered({"a": 3})
    inbox.put(SlotsOffered({"a": 4}))
    assert await taken(inbox) == [WorkerGone("b", "silent"), SlotsOffered({"a": 4})]


async def test_a_list_behind_a_new_report_is_news() -> None:
    """It says that the subtask was lost since."""
    inbox = JobInbox()
    empty = TasksListed("w", frozenset())
    for event in (empty, empty, status(), empty, empty):
        inbox.put(event)
    assert await taken(inbox) == [empty, status(), empty]


async def test_what_was_handled_may_be_said_again() -> None:
    """The master has forgotten nothing, but may wait for it."""
    inbox = JobInbox()
    for _ in range(2):
        inbox.put(status())
        inbox.put(TasksListed("w", frozenset()))
        inbox.put(Ticked())
        assert await taken(inbox) == [status(), TasksListed("w", frozenset())]
    inbox.put(Ticked())
    inbox.put(Ticked())
    assert await taken(inbox) == [Ticked()]


async def test_who_asks_first_gets_what_comes() -> None:
    """The shell waits for its next event."""
    inbox = JobInbox()
    waiting = asyncio.create_task(inbox.get())
    await asyncio.sleep(0)
    inbox.put(WorkerGone("w", "killed"))
    async with asyncio.timeout(10):
        assert await waiting == WorkerGone("w", "killed")
