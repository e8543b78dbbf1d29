"""How cost grows, in CPU-seconds: `python -m benchmarks.growth [CURVE ...] [--draw]`.

* `subtasks`: the same windowed job with 1 to 64 subtasks a vertex in one process on one core, and without rows.
* `keys`: a tumbling window that holds a thousand to ten million keys (`--most 100000000` for more) at once.
* `keys-in-rocksdb`: a `KeyedProcess` with a number per key in RocksDB.
* `jobs`: 1 to 1,000 jobs under one leader, task managers simulated, ports in memory, time virtual.

Each point is measured in a process of its own (`benchmarks.growth_points`), which is ended when it takes more memory or
CPU time than it may. All runs are kept as JSON in `benchmarks/results`; `--kept FILE ...` makes table and pictures of
such files instead of measuring, `--draw` writes the pictures that are in the documentation.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.curves import Panel, picture
from benchmarks.report import keep
from benchmarks.running import ROOT

PICTURES = ROOT / "docs" / "pictures"
Run = Mapping[str, float]
Point = Mapping[str, Any]
"""Its size, its runs, and in `over` what a run needed more of than it may have."""


@dataclass(frozen=True)
class Curve:
    """What is measured at which sizes. `columns` are the figures of a run, and what they are called in the table."""

    sizes: Sequence[int]
    columns: Mapping[str, str]
    rows: tuple[int, int] = (0, 0)
    """At least so many, and at least so many times the size."""

    def rows_of(self, size: int) -> int:
        """How many rows a run reads."""
        return max(self.rows[0], self.rows[1] * size)


_OF_ROWS = {"cpu_s_per_m": "CPU-s per M rows", "peak_mib": "peak memory, MiB", "checkpoints": "checkpoints"}
CURVES: Mapping[str, Curve] = {
    "subtasks": Curve(
        tuple(2**n for n in range(7)),
        {
            **_OF_ROWS,
            "idle_ms_per_subtask": "idle: CPU-ms per second and subtask",
            "idle_with_checkpoints_ms_per_subtask": "the same, a checkpoint every 10 s",
        },
        rows=(8_000_000, 0),
    ),
    "keys": Curve(tuple(10**n for n in range(3, 9)), _OF_ROWS, rows=(10_000_000, 2)),
    "keys-in-rocksdb": Curve(tuple(10**n for n in range(3, 8)), _OF_ROWS, rows=(1_000_000, 2)),
    "jobs": Curve(
        (1, 10, 100, 1_000),
        {
            "idle_ms_per_job": "idle: CPU-ms per second and job",
            "checkpointed_ms_per_job": "the same, a checkpoint every 10 s",
            "submission_ms": "CPU-ms per submission",
            "listing_ms": "CPU-ms per listing of all jobs",
        },
    ),
}


# -- measuring ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Limits:
    """Of each run."""

    cpu_s: int
    memory_mib: int
    core: int


def measure(name: str, most: int, repeat: int, limits: Limits, folder: str | None) -> list[Point]:
    """The points of a curve, up to the first size that needs too much."""
    points: list[Point] = []
    for size in CURVES[name].sizes:
        if size > most:
            break
        runs: list[Run] = []
        over = ""
        while len(runs) < repeat and not over:
            with tempfile.TemporaryDirectory(prefix="penstock-growth-", dir=folder) as place:
                found = _run(name, size, limits, place)
            over, runs = (found, runs) if isinstance(found, str) else ("", [*runs, found])
        points.append({"size": size, "runs": runs, "over": over})
        print(f"{name} {size:,}: {over or json.dumps(runs)}", flush=True)
        if over:
            break
    return points


def _run(name: str, size: int, limits: Limits, folder: str) -> Run | str:
    """The figures, or which limit was passed."""
    rows = CURVES[name].rows_of(size)
    command = [sys.executable, "-m", "benchmarks.growth_points", name, str(size), str(rows), folder, str(limits.core)]
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**kept, "POLARS_MAX_THREADS": "1"},
            stdout=said,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_s, limits.cpu_s)),
        )
        while process.poll() is None:
            if _memory_mib(process.pid) > limits.memory_mib:
                process.kill()
                process.wait()
                return f"more than {limits.memory_mib / 1024:.0f} GiB"
            time.sleep(0.1)
        if process.returncode < 0:
            return f"more than {limits.cpu_s} CPU-seconds"
        if process.returncode:
            raise SystemExit(f"{name}, {size}: failed")
        said.seek(0)
        return json.loads(said.read().splitlines()[-1])


def _memory_mib(pid: int) -> int:
    try:
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(found[1]) // 1024 if found else 0


# -- telling ------------------------------------------------------------------------------------------------------------


def steepness(points: Sequence[tuple[float, float]]) -> float:
    """The exponent by which the second number grows with the first: the slope of the straight line through logarithms."""
    if len(points) < 2:
        return math.nan
    xs, ys = ([math.log(point[place]) for point in points] for place in (0, 1))
    slope, _ = statistics.linear_regression(xs, ys)
    return slope


def medians(points: Iterable[Point], column: str) -> list[tuple[float, float]]:
    """Size and median of the runs, where there are any."""
    return [
        (point["size"], statistics.median(run[column] for run in point["runs"])) for point in points if point["runs"]
    ]


def table(name: str, points: Sequence[Point]) -> str:
    """Markdown: all runs of each size; below, by which power of the size each figure grows."""
    columns = CURVES[name].columns
    lines = [f"| {name} | " + " | ".join(columns.values()) + " |", "| --- " * (len(columns) + 1) + "|"]
    for point in points:
        cells = ["; ".join(_short(run[column]) for run in point["runs"]) or point["over"] for column in columns]
        lines.append(f"| {point['size']:,} | " + " | ".join(cells) + " |")
    grows = ["" if column == "checkpoints" else _power(medians(points, column)) for column in columns]
    lines.append("| grows as size to the power of | " + " | ".join(grows) + " |")
    return "\n".join(lines)


def _power(points: Sequence[tuple[float, float]]) -> str:
    above = [point for point in points if point[1] > 0]
    return f"{steepness(above):.2f}" if len(above) > 1 else ""


def _short(figure: float) -> str:
    """Whole numbers, or three digits that say something."""
    if figure == round(figure) or figure >= 100:
        return f"{figure:,.0f}"
    return f"{figure:.{max(0, 2 - math.floor(math.log10(abs(figure))))}f}"


def pictures(curves: Mapping[str, Sequence[Point]]) -> dict[str, str]:
    """The pictures of what was measured, by name."""

    def lines(*wanted: tuple[str, str, str]) -> dict[str, list[tuple[float, float]]]:
        return {label: medians(curves[curve], column) for label, curve, column in wanted if curve in curves}

    both = (("tumbling window", "keys"), ("KeyedProcess on rocksdb", "keys-in-rocksdb"))
    idle, checkpointed = "without rows", "without rows, a checkpoint every 10 s"
    panels = {
        "growth-subtasks": (
            Panel("CPU-seconds per million rows", "subtasks of each vertex", lines(
                ("windows of 10,000 keys", "subtasks", "cpu_s_per_m"))),
            Panel("CPU milliseconds per second and subtask", "subtasks of each vertex", lines(
                (idle, "subtasks", "idle_ms_per_subtask"),
                (checkpointed, "subtasks", "idle_with_checkpoints_ms_per_subtask"))),
        ),
        "growth-keys": (
            Panel("CPU-seconds per million rows", "keys", lines(*((label, name, "cpu_s_per_m") for label, name in both))),
            Panel("peak memory, MiB", "keys", lines(*((label, name, "peak_mib") for label, name in both))),
        ),
        "growth-jobs": (
            Panel("CPU milliseconds per second and job", "jobs", lines(
                (idle, "jobs", "idle_ms_per_job"), (checkpointed, "jobs", "checkpointed_ms_per_job"))),
            Panel("CPU milliseconds", "jobs", lines(
                ("per submission", "jobs", "submission_ms"),
                ("per listing of all jobs", "jobs", "listing_ms"))),
        ),
    }  # fmt: skip
    return {name: picture(some) for name, some in panels.items() if all(panel.lines for panel in some)}


def main() -> None:
    """Measure, or read what was measured; print tables, draw."""
    options = _options()
    curves: dict[str, Any] = {}
    for path in options.kept:
        curves.update(json.loads(path.read_text())["results"][0])
    if not options.kept:
        limits = Limits(options.cpu_seconds, options.memory_mib, options.core)
        for name in options.curves or CURVES:
            curves[name] = measure(name, options.most, options.repeat, limits, options.folder)
        print(f"kept in {keep([curves], None, {'repeat': options.repeat, 'core': options.core})}")
    for name, points in curves.items():
        print(f"\n{table(name, points)}")
    if options.draw:
        for name, text in pictures(curves).items():
            (PICTURES / f"{name}.svg").write_text(text, encoding="utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.growth", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("curves", nargs="*", metavar="CURVE", help=f"which: {', '.join(CURVES)}; all by default")
    parser.add_argument("--most", type=int, default=10_000_000, help="the largest size (10000000)")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each point (1)")
    parser.add_argument("--cpu-seconds", type=int, default=600, help="what a run may take (600)")
    parser.add_argument("--memory-mib", type=int, default=20_480, help="what a run may have (20480)")
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)), help="the core everything runs on")
    parser.add_argument("--folder", help="where temporary files go")
    parser.add_argument("--kept", type=Path, nargs="+", default=[], metavar="FILE", help="results to tell of instead")
    parser.add_argument("--draw", action="store_true", help="write docs/pictures/growth-*.svg")
    options = parser.parse_args()
    if unknown := [name for name in options.curves if name not in CURVES]:
        parser.error(f"there is no curve {unknown[0]!r}; there are {', '.join(CURVES)}")
    return options


if __name__ == "__main__":
    main()
