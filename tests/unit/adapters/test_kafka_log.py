"""The log on Kafka where a broker's answer is not the last word; that it keeps the contract is tested on real ones."""

from __future__ import annotations

import asyncio
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import errors
from aiokafka.client import AIOKafkaClient
from aiokafka.structs import BrokerMetadata

from penstock.adapters.kafka import connection, fetcher
from penstock.adapters.kafka.log import KafkaLog
from penstock.ports import OffsetOutOfRangeError
from penstock.settings import KafkaSettings
from penstock.testing.virtual_time import VirtualLoop

READERS = fetcher.LANES + 2
"""More than may be served apart."""


async def read(monkeypatch: pytest.MonkeyPatch, offset: int, kept: tuple[int, int]) -> tuple[Any, int]:
    """Read where the leader knows nothing of the offset at first, and then keeps these; what came, how often asked."""
    log, asked = KafkaLog(KafkaSettings(), "unit"), 0

    async def leader(topic: str, partition: int) -> int:
        return 1

    async def fetch(*_: object) -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise errors.OffsetOutOfRangeError

    async def offsets(topic: str, partition: int) -> tuple[int, int]:
        return kept

    monkeypatch.setattr(log._connection, "leader", leader)
    monkeypatch.setattr(log._fetcher, "fetch", fetch)
    monkeypatch.setattr(log, "_offsets", offsets)
    try:
        return await log.read("t", 0, offset), asked
    finally:
        await log.close()


@pytest.mark.parametrize("offset", [3, 5, 7])
async def test_a_new_leader_that_had_not_caught_up_is_asked_again(monkeypatch: pytest.MonkeyPatch, offset: int) -> None:
    """What it does not know of a moment after its election is not lost."""
    assert await read(monkeypatch, offset, (3, 7)) == ([], 2)


@pytest.mark.parametrize("offset", [2, 8])
async def test_what_is_not_kept_is_out_of_range(monkeypatch: pytest.MonkeyPatch, offset: int) -> None:
    """It was trimmed, or the log was truncated: never reset silently."""
    with pytest.raises(OffsetOutOfRangeError, match=rf"offset {offset} is outside of what is kept, 3 to 7"):
        await read(monkeypatch, offset, (3, 7))


@pytest.mark.parametrize("quiet_s", [0.0, inf])
async def test_a_broker_that_stands_still_is_not_taken_for_one_that_has_nothing(
    monkeypatch: pytest.MonkeyPatch, quiet_s: float
) -> None:
    """It keeps its connections: only its next answer tells; unless it has just said something."""
    monkeypatch.setattr(fetcher, "QUIET_S", quiet_s)
    log, stands_still = KafkaLog(KafkaSettings(), "unit"), asyncio.Event()

    async def leader(topic: str, partition: int) -> int:
        return 1

    async def ask(node: int, request: Any, lane: int) -> Any:
        await stands_still.wait()
        topic, ((partition, _, _),) = request._topics[0]
        return SimpleNamespace(topics=[(topic, [(partition, 0, 0, 0, [], b"")])])

    monkeypatch.setattr(log._connection, "leader", leader)
    monkeypatch.setattr(log._connection, "ask", ask)
    reading = asyncio.create_task(log.read("t", 0, 0, timeout_s=0.02))
    done, _ = await asyncio.wait([reading], timeout=0.2)
    assert bool(done) == (quiet_s > 0)
    stands_still.set()
    async with asyncio.timeout(10):
        assert await reading == []
    await log.close()


def test_readers_that_were_served_apart_go_on_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """They come one after the other, each to a lane of its own as long as there are some: a request a second."""
    assert asked_while_idle(monkeypatch, overdue_ms=0) == [READERS] * 10


def test_short_polls_grow_while_they_bring_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first second, in which all lanes but one are taken: not a hundred requests."""
    asked = asked_while_idle(monkeypatch, overdue_ms=0, first_s=0, measured_s=1)
    assert READERS + 5 < len(asked) < READERS + 30


def test_an_answer_that_does_not_come_in_time_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lane is left to itself, and what was to go on with it goes on in another."""
    asked = asked_while_idle(monkeypatch, overdue_ms=300)
    assert len(asked) <= 4 * 10
    assert sum(asked) >= READERS * 7


def asked_while_idle(
    monkeypatch: pytest.MonkeyPatch, overdue_ms: int, first_s: float = 2.5, measured_s: float = 10
) -> list[int]:
    """For how many partitions each request of some seconds asks, where there is nothing to be read."""
    asked: list[int] = []

    async def ask(node: int, request: Any, lane: int) -> Any:
        asked.append(sum(len(partitions) for _, partitions in request._topics))
        await asyncio.sleep((request._max_wait_ms + overdue_ms * (lane % 2)) / 1_000)
        empty = [(topic, [(each[0], 0, 0, 0, [], b"") for each in found]) for topic, found in request._topics]
        return SimpleNamespace(topics=empty)

    async def read_on(fetching: fetcher.KafkaFetcher, partition: int) -> None:
        await asyncio.sleep(0.007 * partition)
        while True:
            assert await fetching.fetch(1, ("t", partition), 0, 1, 1.0) is None

    async def idle() -> None:
        log = KafkaLog(KafkaSettings(), "unit")
        monkeypatch.setattr(log._connection, "ask", ask)
        readers = [asyncio.create_task(read_on(log._fetcher, partition)) for partition in range(READERS)]
        await asyncio.sleep(first_s)
        asked.clear()
        await asyncio.sleep(measured_s)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        await log._fetcher.close(RuntimeError())

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        monkeypatch.setattr(fetcher, "time", SimpleNamespace(monotonic=runner.get_loop().time))
        runner.run(idle())
    return asked


async def test_a_broker_that_names_no_broker_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was away answers before its controller counts it among the living: no topic is gone because of that."""
    bootstraps: list[AIOKafkaClient] = []

    async def bootstrap(client: AIOKafkaClient) -> None:
        bootstraps.append(client)
        if len(bootstraps) > 1:
            client.cluster._brokers = {1: BrokerMetadata(1, "b", 9, None)}

    async def taken(_: KafkaSettings) -> None:
        """The broker takes connections."""

    async def send(*_: Any, **__: Any) -> Any:
        return SimpleNamespace(topics=[(0, "penstock.unit.t", False, [(0, 0, 1)])])

    monkeypatch.setattr(AIOKafkaClient, "bootstrap", bootstrap)
    monkeypatch.setattr(AIOKafkaClient, "send", send)
    monkeypatch.setattr(connection, "why_not", taken)
    log = KafkaLog(KafkaSettings(), "unit")
    asking = log._connection
    found = await asking.retrying("read", "penstock.unit.t", lambda: asking.leader("penstock.unit.t", 0))
    assert (found, len(bootstraps)) == (1, 2)
    await log.close()
