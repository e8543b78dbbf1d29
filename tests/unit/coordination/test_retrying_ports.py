"""Ports that wait until the world answers, and let through what is an answer."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.adapters.memory import MemoryBlobs, MemoryLog
from penstock.coordination.retrying_ports import MAX_PAUSE_MS, RetryingBlobs, RetryingLog
from penstock.errors import ExternalError
from penstock.ports import BlobExistsError, BlobNotFoundError, NewRecord, OffsetOutOfRangeError


class Clock:
    """Remembers the pauses instead of making them."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    def now_us(self) -> int:
        return 0

    def monotonic_ms(self) -> int:
        return 0

    def monotonic_us(self) -> int:
        return 0

    async def sleep_ms(self, duration_ms: float) -> None:
        self.pauses.append(duration_ms)


def failing(target: Any, name: str, times: int) -> None:
    """Let a method fail so often before it works."""
    original = getattr(target, name)
    left = [times]

    async def method(*args: Any, **kwargs: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise ExternalError("down")
        return await original(*args, **kwargs)

    setattr(target, name, method)


async def test_a_store_that_is_down_is_waited_for() -> None:
    """Pauses grow up to a limit; then the answer comes."""
    blobs, clock = MemoryBlobs(), Clock()
    failing(blobs, "put", 8)
    await RetryingBlobs(blobs, clock).put("k", b"v")
    assert await blobs.get("k") == b"v"
    assert clock.pauses == sorted(clock.pauses)
    assert clock.pauses[0] < clock.pauses[-1] == MAX_PAUSE_MS


async def test_answers_come_through() -> None:
    """What is not there is not waited for, and what exists is not written."""
    blobs, log, clock = MemoryBlobs(), MemoryLog(), Clock()
    patient = RetryingBlobs(blobs, clock)
    with pytest.raises(BlobNotFoundError):
        await patient.get("k")
    await patient.create("k", b"1")
    with pytest.raises(BlobExistsError):
        await patient.create("k", b"2")
    await log.create_topic("t", 1)
    with pytest.raises(OffsetOutOfRangeError):
        await RetryingLog(log, clock).read("t", 0, 99)
    assert clock.pauses == []


async def test_an_uncertain_create_is_not_repeated_here() -> None:
    """What it means is decided by the job log's writer."""
    blobs, clock = MemoryBlobs(), Clock()
    failing(blobs, "create", 1)
    with pytest.raises(ExternalError, match="down"):
        await RetryingBlobs(blobs, clock).create("k", b"1")


async def test_an_append_is_repeated() -> None:
    """At least once: receivers know commands by their identity."""
    log, clock = MemoryLog(), Clock()
    patient = RetryingLog(log, clock)
    failing(log, "append", 2)
    await patient.create_topic("t", 1)
    await patient.append("t", 0, [NewRecord(b"x")])
    assert [record.value for record in await patient.read("t", 0, 0)] == [b"x"]
    assert len(clock.pauses) == 2
