"""The system clock tells the time."""

from __future__ import annotations

import time

from penstock.adapters.system_clock import SystemClock


async def test_clock() -> None:
    """Wall time is in microseconds, monotonic time in milliseconds, and sleeping takes at least as long as asked."""
    clock = SystemClock()
    assert abs(clock.now_us() / 1e6 - time.time()) < 1
    before = clock.monotonic_ms()
    await clock.sleep_ms(2)
    assert clock.monotonic_ms() - before >= 1
