"""How operations call functions and systems that answer later."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.times import format_duration
from penstock.plan.operation import Settings


@dataclass(frozen=True, slots=True)
class CallSettings:
    """How calls that wait for others are made: how many at once, for how long, how often."""

    capacity: int
    """Most calls of a subtask whose results have not been sent on."""
    timeout_us: int | None
    """Of a row, all its attempts together."""
    retries: int
    retry_delay_us: int
    """Before the second attempt; twice as long before each further one."""
    retry_on: tuple[type[Exception], ...]
    ordered: bool
    """Whether results come in the order of the rows; if not, they overtake each other between two watermarks."""

    def describe(self) -> Settings:
        """For plans."""
        described: Settings = {"capacity": self.capacity, "order": "kept" if self.ordered else "by completion"}
        if self.timeout_us is not None:
            described["timeout"] = format_duration(self.timeout_us)
        if self.retries:
            described |= {"retries": self.retries, "retry_delay": format_duration(self.retry_delay_us)}
        return described
