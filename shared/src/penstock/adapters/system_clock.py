"""The machine's clocks behind the Clock port: the only place that asks the system for the time."""

from __future__ import annotations

import asyncio
import time


class SystemClock:
    """Wall time from the system, monotonic time from the kernel's monotonic clock, sleep from the event loop."""

    def now_us(self) -> int:
        """Microseconds since the epoch; jumps when the system's clock is set."""
        return time.time_ns() // 1_000

    def monotonic_ms(self) -> int:
        """Milliseconds since an arbitrary start (usually boot)."""
        return time.monotonic_ns() // 1_000_000

    def monotonic_us(self) -> int:
        """Microseconds of the system's monotonic clock."""
        return time.monotonic_ns() // 1_000

    async def sleep_ms(self, duration_ms: float) -> None:
        """Suspend the calling task for at least `duration_ms`."""
        await asyncio.sleep(duration_ms / 1_000)
