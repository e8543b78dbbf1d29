"""Statistics as Flink makes them."""

from __future__ import annotations

from collections.abc import Sequence


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` percent of the ordered numbers lie, between two of them in proportion: what
    commons-math calls its legacy estimation, which Flink uses."""
    position = share * (len(ordered) + 1) / 100
    if position < 1:
        return float(ordered[0])
    if position >= len(ordered):
        return float(ordered[-1])
    lower = ordered[int(position) - 1]
    return lower + (position - int(position)) * (ordered[int(position)] - lower)
