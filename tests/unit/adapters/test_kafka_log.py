"""The log on Kafka where a broker's answer is not the last word; that it keeps the contract is tested on real ones."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka import errors

from penstock.adapters.kafka.log import KafkaLog
from penstock.ports import OffsetOutOfRangeError
from penstock.settings import KafkaSettings


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
