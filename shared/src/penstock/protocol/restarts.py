"""Restart strategies: whether and when a failed attempt is followed by another. Flink's four, same names."""

from __future__ import annotations

from collections import deque
from typing import Protocol

import msgspec


class RestartDecider(Protocol):
    """Asked once per failed attempt."""

    def delay_ms(self, now_ms: int) -> int | None:
        """Milliseconds to wait before the next attempt, or None: the job fails."""
        ...


class NoRestart(msgspec.Struct, frozen=True, tag="none"):
    """The first failure fails the job."""


class FixedDelay(msgspec.Struct, frozen=True, tag="fixed_delay"):
    """A number of restarts, each after the same delay."""

    attempts: int = 3
    delay_ms: int = 1_000


class ExponentialDelay(msgspec.Struct, frozen=True, tag="exponential_delay"):
    """Unbounded restarts whose delay doubles, and starts over after a quiet time."""

    initial_ms: int = 100
    max_ms: int = 60_000
    multiplier: float = 2.0
    reset_after_ms: int = 600_000


class FailureRate(msgspec.Struct, frozen=True, tag="failure_rate"):
    """Restarts as long as fewer than `failures` happen within `interval_ms`."""

    failures: int = 3
    interval_ms: int = 300_000
    delay_ms: int = 1_000


RestartStrategy = NoRestart | FixedDelay | ExponentialDelay | FailureRate


class _Fixed:
    def __init__(self, strategy: FixedDelay) -> None:
        self._strategy = strategy
        self._left = strategy.attempts

    def delay_ms(self, now_ms: int) -> int | None:
        self._left -= 1
        return self._strategy.delay_ms if self._left >= 0 else None


class _Exponential:
    def __init__(self, strategy: ExponentialDelay) -> None:
        self._strategy = strategy
        self._next_ms = float(strategy.initial_ms)
        self._last_ms: int | None = None

    def delay_ms(self, now_ms: int) -> int | None:
        if self._last_ms is not None and now_ms - self._last_ms > self._strategy.reset_after_ms:
            self._next_ms = float(self._strategy.initial_ms)
        delay = int(self._next_ms)
        self._next_ms = min(self._next_ms * self._strategy.multiplier, float(self._strategy.max_ms))
        self._last_ms = now_ms + delay
        return delay


class _Rate:
    def __init__(self, strategy: FailureRate) -> None:
        self._strategy = strategy
        self._failures: deque[int] = deque()

    def delay_ms(self, now_ms: int) -> int | None:
        while self._failures and now_ms - self._failures[0] > self._strategy.interval_ms:
            self._failures.popleft()
        self._failures.append(now_ms)
        return self._strategy.delay_ms if len(self._failures) <= self._strategy.failures else None


class _Never:
    def delay_ms(self, now_ms: int) -> int | None:
        return None


def restart_decider(strategy: RestartStrategy) -> RestartDecider:
    """A fresh decider for one job."""
    match strategy:
        case NoRestart():
            return _Never()
        case FixedDelay():
            return _Fixed(strategy)
        case ExponentialDelay():
            return _Exponential(strategy)
        case FailureRate():
            return _Rate(strategy)
