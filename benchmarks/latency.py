"""Draws the latencies in docs/performance.md as bars: `python -m benchmarks.latency`, after the table was changed.

The figures stand in the table alone. A cell holds runs, separated by commas, each `p50 / p90 / p99` in milliseconds; the
median of the p50s is drawn.
"""

from __future__ import annotations

import re
import statistics
from itertools import dropwhile, takewhile

from benchmarks.curves import bars
from benchmarks.running import ROOT

PAGE = ROOT / "docs" / "performance.md"
PICTURE = ROOT / "docs" / "pictures" / "latency.svg"
HEADING = "### Result latency"


def latencies(page: str) -> dict[str, dict[str, float]]:
    """The median p50 of each system, by what is measured."""
    section = page.partition(HEADING)[2].partition("\n#")[0]
    below = dropwhile(lambda line: not line.startswith("|"), section.splitlines())
    table = takewhile(lambda line: line.startswith("|"), below)
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    found: dict[str, dict[str, float]] = {}
    for name, *cells in rows:
        of = {system: _medians(cell) for system, cell in zip(head[1:3], cells, strict=False)}
        found[_plain(name)] = {system: statistics.median(runs) for system, runs in of.items() if runs}
    return found


def _medians(cell: str) -> list[float]:
    return [float(run.partition("/")[0]) for run in cell.split(",") if "/" in run]


def _plain(markdown: str) -> str:
    """Without links."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", markdown)


def picture() -> str:
    """Drawn from the page as it is."""
    return bars(
        "From record to visible result, median", "ms, less is better", latencies(PAGE.read_text(encoding="utf-8"))
    )


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
