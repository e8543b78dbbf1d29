"""Rates: how many rows a reader may hand out by now, for demonstrations and tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from penstock.errors import PipelineError

_STEP_S: Final = 0.01
"""Rows of so long are handed out together: row by row, as they become due, they would cost a core at any rate."""
_LONGEST_PAUSE_S: Final = 0.02


class Pace:
    """Allows `rate` rows per second from its making on; what was read before a restart does not count.

    Args:
        rate: rows per second; None: no limit.
        monotonic_ms: the clock.
        batch_rows: the most rows of one read; None: what the caller wants.
    """

    def __init__(self, rate: float | None, monotonic_ms: Callable[[], int], batch_rows: int | None = None) -> None:
        self._rate = rate
        self._batch_rows = batch_rows
        self._now_ms = monotonic_ms
        self._start_ms = monotonic_ms()
        self._taken = 0

    async def allowed(self, max_rows: int) -> int:
        """Rows that may be read now, at most `max_rows`; waits a little (under 20 ms) if there are none, then 0."""
        if self._batch_rows is not None:
            max_rows = min(max_rows, self._batch_rows)
        if self._rate is None:
            return max_rows
        due = int((self._now_ms() - self._start_ms) * self._rate / 1_000) - self._taken
        step = max(1, min(max_rows, int(self._rate * _STEP_S)))
        if due < step:
            await asyncio.sleep(min((step - due) / self._rate, _LONGEST_PAUSE_S))
            return 0
        return min(due, max_rows)

    def are_all(self, rows: int, max_rows: int) -> bool:
        """Whether no more than these were due, of at most `max_rows` that were asked for."""
        return self._rate is not None and rows < min(max_rows, self._batch_rows or max_rows)

    def take(self, rows: int) -> None:
        """Account for rows that were handed out."""
        self._taken += rows


def checked_rate(rate: float | None, what: str) -> float | None:
    """The rate, if it is one; raises `PipelineError`."""
    if rate is not None and not rate > 0:
        raise PipelineError(f"{what}: rate= is a number of rows per second above zero, got {rate!r}")
    return rate
