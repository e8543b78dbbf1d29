"""What a run shows: a live table on a terminal, and a plain summary at the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
from rich.console import Group
from rich.table import Table
from rich.text import Text

from penstock.coordination.job_progress import JobProgress
from penstock.coordination.job_summary import checkpoint_line, operator_name, row_lines
from penstock.core.times import MAX_WATERMARK, MIN_WATERMARK, format_time
from penstock.graph.jobgraph import SINK_VERBS, JobGraph, JobOperator, JobVertex
from penstock.plan.logical import LogicalPlan
from penstock.protocol.messages import OperatorCounter
from penstock.runs.run_log import LATE_ROWS_KEPT
from penstock.submission.collected import gathering_sinks


@dataclass
class Rate:
    """Rows per second between two looks."""

    rows: int = 0
    at_s: float = 0.0
    per_second: float = 0.0

    def update(self, rows: int, now_s: float) -> float:
        """The smoothed rate after seeing `rows` in all at `now_s`."""
        elapsed = now_s - self.at_s
        if self.at_s and elapsed > 0:
            current = max(0, rows - self.rows) / elapsed
            self.per_second = current if not self.per_second else 0.7 * self.per_second + 0.3 * current
        self.rows, self.at_s = rows, now_s
        return self.per_second


def rows_read(graph: JobGraph, progress: JobProgress) -> int:
    """Rows that all sources have read since this process took the job up."""
    return sum(progress.total(o.id, "rows_in") for o in graph.operators() if o.verb == "read")


def rows_written(graph: JobGraph, progress: JobProgress) -> int:
    """Rows handed to all sinks since this process took the job up."""
    return sum(progress.total(o.id, "rows_in") for o in graph.operators() if o.verb in SINK_VERBS)


_SPARK_STARTS_S: Final = 60
"""A run on Spark that is over within this time was for the most part Spark's start: planning, workers, compilation."""
_LOSSES: Final[tuple[tuple[str, OperatorCounter], ...]] = (
    ("late", "late_rows"), ("bad", "bad_rows"), ("forgotten", "forgotten_keys"), ("lost", "lost_changes"),
)  # fmt: skip
"""Columns that are shown where there are any."""


def live_view(graph: JobGraph, progress: JobProgress, rate: Rate, now_s: float) -> Group:
    """One row per vertex, and a line on rates and checkpoints."""
    extra: list[tuple[str, OperatorCounter]] = [
        (title, counter)
        for title, counter in _LOSSES
        if any(_sum(vertex.operators, progress, counter) for vertex in graph.vertices)
    ]
    # Widths that do not change with the numbers: a table that jumps cannot be read.
    table = Table(box=None, padding=(0, 2, 0, 0), expand=True)
    table.add_column(graph.name, overflow="ellipsis", no_wrap=True, ratio=1)
    for column, width in (("rows in", 11), ("rows out", 11), *((title, 7) for title, _ in extra), ("busy", 4)):
        table.add_column(column, justify="right", no_wrap=True, min_width=width)
    table.add_column("watermark", no_wrap=True, min_width=20)
    for vertex in graph.vertices:
        watermarks = progress.watermarks(vertex.id)
        table.add_row(
            vertex.name,
            f"{progress.total(vertex.operators[0].id, 'rows_in'):,}",
            f"{_rows_out(progress, vertex):,}",
            *(f"{_sum(vertex.operators, progress, metric):,}" for _, metric in extra),
            f"{_busy(progress, vertex.id):.0%}",
            watermark_text(min(watermarks)) if watermarks else "",
        )
    per_second = rate.update(rows_read(graph, progress), now_s)
    line = f"{progress.phase}; {per_second:,.0f} rows/s; {checkpoint_line(progress)}"
    return Group(table, Text(line, no_wrap=True, overflow="ellipsis"))


def _rows_out(progress: JobProgress, vertex: JobVertex) -> int:
    """Rows that leave a vertex: to its sinks, or to the next vertex."""
    sinks = [operator for operator in vertex.operators if operator.verb in SINK_VERBS]
    if not sinks:
        return progress.total(vertex.operators[-1].id, "rows_out")
    return sum(progress.total(sink.id, "rows_in") for sink in sinks)


def _busy(progress: JobProgress, vertex: str) -> float:
    """The share of its time that a vertex works."""
    statuses = [status for subtask, status in progress.statuses.items() if subtask.vertex == vertex]
    busy_us = sum(status.progress.busy_us for status in statuses)
    total_us = busy_us + sum(status.progress.idle_us + status.progress.blocked_us for status in statuses)
    return busy_us / total_us if total_us else 0.0


def watermark_text(watermark: int) -> str:
    """How far event time has come, to the second."""
    if watermark <= MIN_WATERMARK:
        return "none yet"
    # Whole seconds: what a fraction says changes faster than anybody reads.
    return "end of input" if watermark >= MAX_WATERMARK else format_time(watermark // 1_000_000 * 1_000_000)


def _sum(operators: tuple[JobOperator, ...], progress: JobProgress, metric: OperatorCounter) -> int:
    return sum(progress.total(operator.id, metric) for operator in operators)


def start_lines(graph: JobGraph, directory: str, resumed_from: int | None, processes: int) -> list[str]:
    """The first lines of a run: what runs, where, and what each sink promises."""
    start = f", going on from checkpoint {resumed_from}" if resumed_from else ""
    lines = [f"{graph.name}: parallelism {graph.parallelism}, state in {directory}{start}"]
    if processes > 1:
        lines.append(f"{processes} worker processes, one per slot")
    elif max(vertex.parallelism for vertex in graph.vertices) > 1:
        lines.append("all subtasks share this one process (and one core), because rows are collected here")
    lines += [f"{operator_name(o)}: {o.guarantee}" for o in graph.operators() if o.verb in SINK_VERBS]
    return lines


def changed_lines(graph: JobGraph, former: JobGraph) -> list[str]:
    """What to know when a pipeline goes on with other operators: which were found again by their place alone."""
    if [(o.id, o.verb) for o in graph.operators()] == [(o.id, o.verb) for o in former.operators()]:
        return []
    unnamed = [operator_name(o) for o in graph.operators() if o.state and o.id == f"{o.node}-{o.verb}"]
    if not unnamed:
        return []
    return [
        "the pipeline has other operators than at that checkpoint; these have no .uid() and were matched by their place "
        f"in the file: {', '.join(unnamed)}"
    ]


def run_row_lines(graph: JobGraph, counts: Mapping[str, Mapping[str, int]], seconds: float | None) -> list[str]:
    """The same of a run on Spark, which counts what would have been late."""

    def total(operator: str, counter: OperatorCounter) -> int:
        return counts.get(operator, {}).get(counter, 0)

    lines = row_lines(graph, total, seconds, start_s=_SPARK_STARTS_S)
    for operator in graph.operators():
        kept = counts.get(operator.id, {}).get(LATE_ROWS_KEPT, 0)
        if kept:
            most = "up to " if operator.settings.get("window", "").startswith("session(") else ""
            lines.append(
                f"{operator_name(operator)}: {most}{kept:,} rows would have been late in a stream, and are in its "
                "results; reading its late_to sets them aside"
            )
    return lines


def print_collected(plan: LogicalPlan) -> None:
    """What sinks have gathered in memory: every row as a line of JSON on standard output, sink after sink."""
    encoder = msgspec.json.Encoder(decimal_format="number")
    for _, sink, _ in gathering_sinks(plan):
        for row in sink.rows:
            print(encoder.encode(row).decode())
