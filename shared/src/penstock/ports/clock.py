"""Time as a dependency: nothing outside adapters asks the system for it."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Wall time for what people and processing-time timers see, monotonic time for deadlines and leases."""

    def now_us(self) -> int:
        """Wall time in microseconds since the epoch; may jump."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds from an arbitrary start; never goes back."""
        ...

    def monotonic_us(self) -> int:
        """The same clock in microseconds, for measuring."""
        ...

    async def sleep_ms(self, duration_ms: float) -> None:
        """Suspend the calling task."""
        ...
