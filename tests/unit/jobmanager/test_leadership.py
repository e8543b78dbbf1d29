"""Leases are held by something that waits for nothing; epochs belong to who created their object."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from penstock.adapters.memory import MemoryBlobs, MemoryLog, MemoryMetadata
from penstock.coordination.control_topics import COMMANDS, create_control_topics
from penstock.jobmanager.leadership import LEASE, ControlPorts, Leadership
from penstock.ports import LogRecord, NewRecord
from penstock.protocol.leader import OFFERS_MS, EpochCreated, EpochTaken, Lead, epoch_key
from penstock.protocol.messages import EpochStarted, LeaderTick, decode_command, encode
from penstock.testing.virtual_time import VirtualClock, in_virtual_time

TTL_MS = 300


class SlowLog(MemoryLog):
    """Reads `commands` one record at a time, each after a pause."""

    def __init__(self, pause_s: float) -> None:
        super().__init__()
        self._pause_s = pause_s

    async def read(
        self, topic: str, partition: int, offset: int, *, max_bytes: int = 4 << 20, timeout_s: float = 0.0
    ) -> list[LogRecord]:
        await asyncio.sleep(self._pause_s)
        return await super().read(topic, partition, offset, max_bytes=1, timeout_s=timeout_s)


class Candidate:
    """What one candidate leads and has to stop."""

    def __init__(self, name: str, ports: ControlPorts) -> None:
        self.led: list[Lead] = []
        self.stopped: list[str] = []
        self.deaf_ms = 0
        self.leadership = Leadership(name, ports, TTL_MS, self._lead, self._stop, lambda: self.deaf_ms)

    async def _lead(self, command: Lead) -> None:
        self.led.append(command)

    async def _stop(self, reason: str) -> None:
        self.stopped.append(reason)


def ports_of(log: MemoryLog) -> ControlPorts:
    clock = VirtualClock(0)
    return ControlPorts(log, MemoryBlobs(), MemoryMetadata(clock), clock, lambda: "0" * 32)


@asynccontextmanager
async def competing(*candidates: Candidate) -> AsyncIterator[None]:
    """Candidates at work."""
    tasks = [asyncio.create_task(candidate.leadership.run()) for candidate in candidates]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until(condition: object, what: str, deadline_s: float = 20) -> None:
    """Wait for a condition."""
    assert callable(condition)
    try:
        async with asyncio.timeout(deadline_s):
            while not condition():  # noqa: ASYNC110 (any condition)
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(what) from None


async def fill(log: MemoryLog, commands: Sequence[LeaderTick]) -> None:
    await create_control_topics(log)
    await log.append(COMMANDS, 0, [NewRecord(encode(command)) for command in commands])


@in_virtual_time
async def test_a_takeover_may_read_for_longer_than_the_lease_lasts():
    """The lease is renewed meanwhile: the first epoch leads, nobody else gets in between."""
    log = SlowLog(0.02)
    await fill(log, [LeaderTick(epoch=0)] * 5 * (TTL_MS // 20))
    ports = ports_of(log)
    first, second = Candidate("first", ports), Candidate("second", ports)
    async with competing(first, second):
        await until(lambda: first.led or second.led, "one of them leads")
        assert [command.epoch for candidate in (first, second) for command in candidate.led] == [1]
        assert first.stopped == second.stopped == []
        assert await ports.blobs.list("leaders/") == [epoch_key(1)]


@in_virtual_time
async def test_who_cannot_renew_while_it_reads_gives_up():
    """Nothing is led then; the epoch that was begun stays unused."""
    log = SlowLog(0.02)
    await fill(log, [LeaderTick(epoch=0)] * 10 * (TTL_MS // 20))
    ports = ports_of(log)
    candidate = Candidate("one", ports)
    async with competing(candidate):
        await until(lambda: candidate.leadership.epoch, "an epoch is begun")
        await ports.metadata.put("leader", b"another")
        await until(lambda: candidate.stopped, "it stops")
        assert candidate.led == []


@in_virtual_time
async def test_an_epoch_of_another_is_not_taken_for_ones_own():
    """Both want epoch 1 and both creates are refused: who created it reads its own name there, the other mints 2."""
    log = MemoryLog()
    await fill(log, [])
    ports = ports_of(log)
    await ports.blobs.create(epoch_key(1), b"another")
    mine = Candidate("me", ports)
    assert await mine.leadership._create_epoch(1) == EpochTaken(1)
    await ports.blobs.create(epoch_key(2), b"me")  # as if the answer to the first try had been lost
    assert await mine.leadership._create_epoch(2) == EpochCreated(2)


@in_virtual_time
async def test_a_candidate_that_lists_too_little_leads_in_the_next_free_epoch():
    """A list that misses the newest epoch's object leads to no second leader of that epoch."""
    log = MemoryLog()
    await fill(log, [])
    ports = ports_of(log)
    await ports.blobs.create(epoch_key(1), b"another")
    listed, ports.blobs.list = ports.blobs.list, _nothing  # type: ignore[method-assign]
    mine = Candidate("me", ports)
    async with competing(mine):
        await until(lambda: mine.led, "it leads")
    assert mine.led[0].epoch == 2
    records = [decode_command(record.value) for record in await log.read(COMMANDS, 0, 0)]
    assert [record for record in records if isinstance(record, EpochStarted)] == [EpochStarted(epoch=2, leader="me")]
    assert len(await listed("leaders/")) == 2


async def _nothing(_prefix: str) -> list[str]:
    return []


@in_virtual_time
async def test_a_leader_with_the_lease_stops_when_a_higher_epoch_has_begun():
    """A candidate that had the lease for a moment began it: nobody obeys the lower one any more, so it is given up."""
    log = MemoryLog()
    await create_control_topics(log)
    candidate = Candidate("one", ports_of(log))
    async with competing(candidate):
        await until(lambda: candidate.led, "it leads")
        await candidate.leadership._ports.blobs.create(epoch_key(2), b"another")
        await log.append(COMMANDS, 0, [NewRecord(encode(EpochStarted(epoch=2, leader="another")))])
        await until(lambda: len(candidate.led) == 2, "it leads again")
        assert candidate.stopped == ["a leader of epoch 2 acts"]
        assert [led.epoch for led in candidate.led] == [1, 3]


@in_virtual_time
async def test_who_alone_hears_no_broker_gives_way_to_one_that_does():
    """Where nobody hears any the leader stays: it knows the jobs, and says what is wrong."""
    log = MemoryLog()
    await fill(log, [])
    ports = ports_of(log)
    first, second = Candidate("first", ports), Candidate("second", ports)
    async with competing(first):
        await until(lambda: first.led, "it leads")
        async with competing(second):
            first.deaf_ms = second.deaf_ms = OFFERS_MS
            asked = await _asked(ports, 5)
            assert asked == {b"first", None}  # offered again and again, and taken by nobody
            assert (first.stopped, second.led) == ([], [])
            second.deaf_ms = 0
            await until(lambda: second.led, "the one that hears brokers leads")
            await until(lambda: first.stopped, "the other one has stopped")
            assert [command.epoch for command in second.led] == [2]


async def _asked(ports: ControlPorts, times: int) -> set[bytes | None]:
    """Who had the lease until it had changed hands so often."""
    seen, changes = [await ports.metadata.get(LEASE)], 0
    async with asyncio.timeout(20):
        while changes < times:
            await asyncio.sleep(0.001)
            seen.append(await ports.metadata.get(LEASE))
            changes += seen[-1] != seen[-2]
    return set(seen)


@in_virtual_time
async def test_other_objects_beside_epochs_keep_nobody_from_leading():
    """A file that somebody, or their file system, has left in the folder is no epoch."""
    log = MemoryLog()
    await create_control_topics(log)
    ports = ports_of(log)
    for key in (epoch_key(6), "leaders/notes.txt"):
        await ports.blobs.put(key, b"")
    candidate = Candidate("one", ports)
    async with competing(candidate):
        await until(lambda: candidate.led, "it leads")
        assert candidate.led[0].epoch == 7
