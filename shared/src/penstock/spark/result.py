"""What became of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class SparkResult:
    """What became of a run."""

    run: str
    counts: Mapping[str, Mapping[str, int]]
    """Operator id to counter to value: those of `OperatorMetrics`, and `late_rows_kept`, rows that would have been late
    in a stream and are in the operator's results."""
    computed: bool
    """False if an earlier execution of the same run had computed it, and only its commits were carried to the end."""
    state: Literal["FINISHED", "NOT_RUN"] = "FINISHED"

    def total(self, operator: str, counter: str) -> int:
        """One counter of one operator."""
        return self.counts.get(operator, {}).get(counter, 0)
