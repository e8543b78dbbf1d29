"""What a run has shown."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class CycleResult:
    """One cycle. Seconds are measured from the fault."""

    cycle: int
    fault: str
    step: str
    recovery_s: float
    """Until a row of every partition of the source was visible that was produced after the fault."""
    first_row_s: float
    """Until there was one of any."""
    attempts_before: int
    attempts_after: int
    note: str = ""

    def line(self, seed: int) -> str:
        """As it is printed."""
        at = f" at {self.step}" if self.step else ""
        attempts = f"{self.attempts_before} -> {self.attempts_after}"
        note = f"  ({self.note})" if self.note else ""
        return (
            f"seed {seed} cycle {self.cycle:3}  {self.fault + at:42} recovery {self.recovery_s:6.2f} s"
            f"  attempts {attempts}{note}"
        )


@dataclass
class Report:
    """All cycles of a run."""

    seed: int
    cycles: list[CycleResult] = field(default_factory=list[CycleResult])
    rows: dict[str, int] = field(default_factory=dict[str, int])
    """Rows compared, by sink."""
    beside: dict[str, int] = field(default_factory=dict[str, int])
    """How often the jobs beside were started whose results were right, by their cases."""
    left: list[str] = field(default_factory=list[str])
    """What ended jobs leave on purpose."""
    problems: list[str] = field(default_factory=list[str])
    """What was seen beside the rows."""
    current: str = "the start"
    failure: str = ""

    def add(self, result: CycleResult) -> None:
        """A cycle is over; prints it."""
        self.cycles.append(result)
        print(result.line(self.seed), flush=True)

    def summary(self) -> str:
        """A few lines."""
        if not self.cycles:
            return "no cycle was completed"
        times = sorted(result.recovery_s for result in self.cycles)
        kinds = Counter(f"{r.fault} at {r.step}" if r.step else r.fault for r in self.cycles)
        worst = {kind: max(r.recovery_s for r in self.cycles if _kind(r) == kind) for kind in kinds}
        return "\n".join(
            [
                f"{len(times)} cycles, seed {self.seed}",
                *(f"  {number:4} x {kind:42} slowest {worst[kind]:6.2f} s" for kind, number in sorted(kinds.items())),
                f"recovery: p50 {quantile(times, 0.5):.2f} s, p99 {quantile(times, 0.99):.2f} s, max {times[-1]:.2f} s",
                f"rows compared: {self.rows}",
                f"jobs beside, and attempts: {self.beside}",
                f"left by ended jobs, on purpose: {len(self.left)} objects",
            ]
        )

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        times = sorted(result.recovery_s for result in self.cycles)
        figures = {"p50_s": quantile(times, 0.5), "p99_s": quantile(times, 0.99), "max_s": times[-1]} if times else {}
        return {**asdict(self), "recovery": figures}


def _kind(result: CycleResult) -> str:
    return f"{result.fault} at {result.step}" if result.step else result.fault


def quantile(ordered: list[float], part: float) -> float:
    """The smallest value that at least this part of the values does not exceed."""
    return ordered[max(0, -(-int(len(ordered) * part * 1_000_000) // 1_000_000) - 1)]
