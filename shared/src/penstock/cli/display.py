"""What a run shows: a live table on a terminal, and a plain summary at the end."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from penstock.graph.jobgraph import JobGraph, JobOperator
from penstock.runtime.progress import JobProgress
from penstock.times import format_time


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
    """Rows that all sources have read in this run."""
    return sum(progress.total(o.id, "rows_in") for o in graph.operators() if o.verb == "read")


def rows_written(graph: JobGraph, progress: JobProgress) -> int:
    """Rows handed to all sinks in this run."""
    return sum(progress.total(o.id, "rows_in") for o in graph.operators() if o.verb == "write")


def live_view(graph: JobGraph, progress: JobProgress, rate: Rate, now_s: float) -> Group:
    """One row per vertex, and a line on checkpoints."""
    table = Table(title=graph.name, title_justify="left", expand=False)
    table.add_column("vertex")
    for column in ("rows in", "rows out", "late", "bad", "busy", "blocked"):
        table.add_column(column, justify="right")
    table.add_column("watermark")
    for vertex in graph.vertices:
        statuses = [s for subtask, s in progress.statuses.items() if subtask.vertex == vertex.id]
        total_us = sum(sum(s.progress.get(part, 0) for part in ("busy_us", "idle_us", "blocked_us")) for s in statuses)
        shares = [
            sum(s.progress.get(part, 0) for s in statuses) / total_us if total_us else 0.0
            for part in ("busy_us", "blocked_us")
        ]
        watermarks = progress.watermarks(vertex.id)
        table.add_row(
            vertex.name,
            f"{progress.total(vertex.operators[0].id, 'rows_in'):,}",
            f"{progress.total(vertex.operators[-1].id, 'rows_out'):,}",
            f"{_sum(vertex.operators, progress, 'late_rows'):,}",
            f"{_sum(vertex.operators, progress, 'bad_rows'):,}",
            f"{shares[0]:.0%}",
            f"{shares[1]:.0%}",
            format_time(min(watermarks)) if watermarks else "",
        )
    per_second = rate.update(rows_read(graph, progress), now_s)
    return Group(table, Text(f"{progress.phase}; {per_second:,.0f} rows/s; {_checkpoint_line(progress)}"))


def _sum(operators: tuple[JobOperator, ...], progress: JobProgress, metric: str) -> int:
    return sum(progress.total(operator.id, metric) for operator in operators)


def _checkpoint_line(progress: JobProgress) -> str:
    complete = progress.completed_checkpoints
    if not complete:
        return "no checkpoint yet"
    last = complete[-1]
    duration_ms = (last.duration_us or 0) / 1_000
    return f"{len(complete)} checkpoints, last {last.checkpoint}: {last.size_bytes:,} bytes in {duration_ms:,.0f} ms"


def print_start(console: Console, graph: JobGraph, directory: str, resumed_from: int | None) -> None:
    """The first lines of a run: what runs, where, and what each sink promises."""
    start = f", resumed from checkpoint {resumed_from}" if resumed_from else ""
    console.print(f"{graph.name}: parallelism {graph.parallelism}, state in {directory}{start}", highlight=False)
    if max(vertex.parallelism for vertex in graph.vertices) > 1:
        console.print("all subtasks share this one process (and one core); they run in turns", highlight=False)
    for operator in graph.operators():
        if operator.verb == "write":
            console.print(f"sink {operator.id}: {operator.guarantee}", highlight=False)


def print_summary(console: Console, graph: JobGraph, progress: JobProgress, seconds: float) -> None:
    """What was done, and where the result lies."""
    read = rows_read(graph, progress)
    lines = [f"rows read {read:,} in {seconds:.1f} s ({read / max(seconds, 0.001):,.0f} rows/s)"]
    for operator in graph.operators():
        late, bad = progress.total(operator.id, "late_rows"), progress.total(operator.id, "bad_rows")
        if late:
            lines.append(f"{operator.id}: {late:,} late rows")
        if bad:
            lines.append(f"{operator.id}: {bad:,} bad rows ({operator.settings.get('bad_rows', '')})")
        if operator.verb == "write":
            place = operator.settings.get("folder")
            where = f" in {place}" if place else ""
            lines.append(f"{operator.id}: {progress.total(operator.id, 'rows_in'):,} rows written{where}")
    lines.append(_checkpoint_line(progress))
    for line in lines:
        console.print(line, highlight=False)
