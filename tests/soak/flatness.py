"""Whether what was measured all the time stayed as it was: memory and lag."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

FEWEST: Final = 50
"""Fewer samples say nothing about growth."""
GROWTH: Final = 0.10
SLACK_MB: Final = 24.0
"""What allocators and caches may add in any case."""


def growth(samples: Sequence[float]) -> tuple[float, float]:
    """The typical value early, when everything was warm, and at the end: medians of the second and the last fifth."""
    fifth = len(samples) // 5
    return median(samples[fifth : 2 * fifth]), median(samples[-fifth:])


def grown_memory(process: str, samples_mb: Sequence[float]) -> str:
    """What is wrong with a process's memory; empty if it is flat."""
    if len(samples_mb) < FEWEST:
        return ""
    early, late = growth(samples_mb)
    if late <= early + max(early * GROWTH, SLACK_MB):
        return ""
    return f"{process} grows: {early:.0f} MiB early, {late:.0f} MiB at the end"


def grown_lag(samples: Sequence[float], rate: float) -> str:
    """What is wrong with the lag of the source, in records; empty if the job keeps up."""
    if len(samples) < FEWEST:
        return ""
    early, late = growth(samples)
    if late <= max(2 * early, rate):
        return ""
    return f"the lag grows: {early:,.0f} records early, {late:,.0f} at the end, at {rate:,.0f} a second"
