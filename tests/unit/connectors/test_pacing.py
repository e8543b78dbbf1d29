"""How many rows a paced reader may hand out."""

from __future__ import annotations

import asyncio

import pytest

from penstock.connectors.pacing import Pace


class Time:
    """Goes on while somebody waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.waits = 0
        monkeypatch.setattr(asyncio, "sleep", self.sleep)

    def now_ms(self) -> int:
        return int(self.now_s * 1_000)

    async def sleep(self, seconds: float) -> None:
        self.now_s += max(seconds, 0.001)
        self.waits += 1


async def rows_in(time: Time, pace: Pace, seconds: float) -> list[int]:
    """The sizes of reads in so many seconds."""
    sizes: list[int] = []
    while time.now_s < seconds:
        if allowed := await pace.allowed(65_536):
            pace.take(allowed)
            sizes.append(allowed)
    return sizes


@pytest.mark.parametrize(("rate", "reads"), [(20_000, 101), (100, 101), (5, 6), (1_000_000, 101)])
async def test_rows_come_at_the_rate_in_steps_of_ten_milliseconds(
    monkeypatch: pytest.MonkeyPatch, rate: float, reads: int
) -> None:
    """However fast: a read of a few rows costs as much as one of thousands."""
    time = Time(monkeypatch)
    sizes = await rows_in(time, Pace(rate, time.now_ms), 1.0)
    assert rate * 0.97 - 1 <= sum(sizes) <= rate
    assert len(sizes) <= reads
    assert time.waits <= 2 * reads + 50


async def test_reads_are_no_larger_than_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is behind is handed out at once."""
    time = Time(monkeypatch)
    sizes = await rows_in(time, Pace(1_000, time.now_ms, batch_rows=3), 1.0)
    assert set(sizes) == {3}
    assert sum(sizes) >= 980


async def test_without_a_rate_all_that_is_wanted_is_allowed() -> None:
    """No waiting."""
    assert await Pace(None, lambda: 0).allowed(10) == 10
