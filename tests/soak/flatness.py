"""Whether what was measured all the time stayed as it was: memory and lag."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from statistics import median
from typing import Final

FEWEST: Final = 50
"""Fewer samples say nothing about growth."""
GROWTH: Final = 0.10
SLACK_MB: Final = 24.0
"""What allocators and caches may add in any case."""
STILL_MB: Final = 2.0
LAG_S: Final = 15.0
"""The feed publishes once per checkpoint, every ten seconds: so much of it is behind at the worst moment."""


def growth(samples: Sequence[float]) -> tuple[float, float]:
    """The typical value early, when everything was warm, and at the end: medians of the second and the last fifth."""
    fifths = _fifths(samples)
    return fifths[1], fifths[-1]


def grown_memory(process: str, samples_mb: Sequence[float]) -> str:
    """What is wrong with a process's memory; empty if it is flat.

    One step up is no growth: an allocator keeps what the largest backlog so far took. What leaks grows all the time.
    """
    if len(samples_mb) < FEWEST:
        return ""
    fifths = _fifths(samples_mb)
    early, late = growth(samples_mb)
    steady = all(after > before + STILL_MB for before, after in itertools.pairwise(fifths[1:]))
    if not steady or late <= early + max(early * GROWTH, SLACK_MB):
        return ""
    return f"{process} grows: {early:.0f} MiB early, {late:.0f} MiB at the end"


def grown_lag(samples: Sequence[float], rate: float) -> str:
    """What is wrong with the lag of the source, in records; empty if the job keeps up."""
    if len(samples) < FEWEST:
        return ""
    early, late = growth(samples)
    if late <= max(2 * early, rate * LAG_S):
        return ""
    return f"the lag grows: {early:,.0f} records early, {late:,.0f} at the end, at {rate:,.0f} a second"


def _fifths(samples: Sequence[float]) -> list[float]:
    length = len(samples) // 5
    return [median(samples[part * length : (part + 1) * length]) for part in range(5)]
