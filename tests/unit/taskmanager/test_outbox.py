"""What a task manager keeps for the leader while the brokers are away."""

from __future__ import annotations

import asyncio

import pytest

from penstock.protocol.messages import AnyEvent, Heartbeat, SubtaskId, TaskChanged, TaskStatus
from penstock.taskmanager.outbox import TOGETHER_S, Outbox


def beat(worker: str, number: int) -> Heartbeat:
    return Heartbeat(worker=worker, slots=1, number=number)


def changed(worker: str, index: int) -> TaskChanged:
    status = TaskStatus(job="job", attempt="attempt", subtask=SubtaskId("v0", index), state="running")
    return TaskChanged(worker=worker, status=status)


async def test_events_keep_their_order() -> None:
    """All that waits is taken at once."""
    outbox = Outbox()
    given: list[AnyEvent] = [beat("a", 1), changed("a", 0), beat("b", 1), changed("b", 1)]
    await outbox.put(given[:2])
    await outbox.put(given[2:])
    assert await outbox.take() == given
    assert len(outbox) == 0


async def test_of_each_worker_only_the_newest_heartbeat_waits() -> None:
    """A day without brokers; what is no heartbeat stays, before the heartbeats that came behind it."""
    outbox = Outbox()
    outbox.add([changed("a", 0)])
    for number in range(1, 86_401):
        outbox.add([beat("a", number)])
        outbox.add([beat("b", number)])
    assert len(outbox) == 3
    outbox.add([changed("b", 1), beat("a", 86_401)])
    assert await outbox.take() == [changed("a", 0), beat("b", 86_400), changed("b", 1), beat("a", 86_401)]


async def test_heartbeats_wait_for_one_another_and_nothing_else_waits() -> None:
    """Those of several workers, which come at about the same moment, make one append."""
    outbox = Outbox()
    outbox.add([beat("a", 1)])
    taking = asyncio.create_task(outbox.take())
    await asyncio.sleep(0)
    outbox.add([beat("b", 1)])
    assert await taking == [beat("a", 1), beat("b", 1)]
    for urgent in (changed("b", 1), Heartbeat(worker="b", slots=0, leaving="it ended")):
        outbox.add([beat("a", 2)])
        taking = asyncio.create_task(outbox.take())
        await asyncio.sleep(0)
        outbox.add([urgent])
        async with asyncio.timeout(TOGETHER_S / 2):
            assert await taking == [beat("a", 2), urgent]


async def test_who_has_more_to_say_waits_for_room() -> None:
    """In turn, and nobody is forgotten; heartbeats of those who live are still taken."""
    outbox = Outbox(limit=3)
    putting = [asyncio.create_task(outbox.put([changed("a", index)])) for index in range(8)]
    taken: list[AnyEvent] = []
    async with asyncio.timeout(10):
        while len(taken) < 9:
            if not taken:
                await asyncio.sleep(0)
                assert sum(one.done() for one in putting) <= 3
                outbox.add([beat("a", 1)])
            assert len(outbox) <= 4
            taken += await outbox.take()
        await asyncio.gather(*putting)
    found = sorted(event.status.subtask.index for event in taken if isinstance(event, TaskChanged))
    assert found == list(range(8))
    assert beat("a", 1) in taken


async def test_all_is_said_once_it_stands_in_the_log() -> None:
    """Not when it was taken, and not while more waits."""
    outbox = Outbox()
    await outbox.join()
    outbox.add([beat("a", 1)])
    joining = asyncio.create_task(outbox.join())
    await outbox.take()
    outbox.add([beat("a", 2)])
    outbox.appended()
    await asyncio.sleep(0)
    assert not joining.done()
    await outbox.take()
    outbox.appended()
    async with asyncio.timeout(10):
        await joining


@pytest.mark.parametrize("cancelled", [0, 1])
async def test_who_gives_up_takes_no_room(cancelled: int) -> None:
    """A worker that is ended while it waits."""
    outbox = Outbox(limit=1)
    outbox.add([changed("a", 0)])
    putting = [asyncio.create_task(outbox.put([changed("b", index)])) for index in range(2)]
    await asyncio.sleep(0)
    putting[cancelled].cancel()
    async with asyncio.timeout(10):
        assert await outbox.take() == [changed("a", 0)]
        assert await outbox.take() == [changed("b", 1 - cancelled)]
