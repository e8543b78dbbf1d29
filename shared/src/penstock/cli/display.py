"""What a run shows: a live table on a terminal, and a plain summary at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
from rich.console import Group
from rich.table import Table
from rich.text import Text

from penstock.coordination.job_progress import JobProgress
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


def operator_name(operator: JobOperator) -> str:
    """An operator as its author knows it: by the uid, or by what it is."""
    named = not operator.id.startswith(f"{operator.node}-")
    if operator.verb in SINK_VERBS:
        place = operator.settings.get("folder") or operator.settings.get("topic")
        what = f"{operator.settings.get('sink', '')} sink" + (f" in {place}" if place else "")
    elif operator.verb == "read":
        path = operator.settings.get("path")
        what = f"{operator.settings.get('source', '')} source" + (f" {path}" if path else "")
    else:
        what = f"{operator.verb} ({operator.id})"
    return (
        f"{operator.id} ({what})"
        if named and operator.verb in ("read", *SINK_VERBS)
        else operator.id
        if named
        else what
    )


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


def checkpoint_line(progress: JobProgress) -> str:
    """How many checkpoints there were, and how the last one was."""
    complete = progress.completed_checkpoints
    if not complete:
        return "no checkpoint yet"
    last = complete[-1]
    duration_ms = (last.duration_us or 0) / 1_000
    count = f"{len(complete):,} checkpoint{'s' if len(complete) > 1 else ''}"
    return f"{count}, newest {last.checkpoint}: {last.size_bytes:,} bytes in {duration_ms:,.0f} ms"


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


def summary_lines(graph: JobGraph, progress: JobProgress, seconds: float) -> list[str]:
    """What was done, and where the result lies."""
    since = f" since checkpoint {progress.restored}" if progress.restored else ""
    return [*row_lines(graph, progress.total, seconds, since), checkpoint_line(progress)]


def _fate(operator: JobOperator) -> str:
    """Of bad rows: a source has a side output for them, a sink a place of its own."""
    where = operator.settings.get("dead_letters")
    if where is not None:
        return f"went to {where}"
    return "went to dead_letters()" if operator.settings.get("bad_rows") == "dead_letter" else "were skipped"


def _late_advice(operator: JobOperator) -> str:
    """Joins have no side output for late rows."""
    if operator.verb == "join":
        return "a larger max_out_of_orderness= at the source waits for them"
    return "late_to keeps them, a larger max_out_of_orderness= at the source waits for them"


def row_lines(
    graph: JobGraph,
    total: Callable[[str, OperatorCounter], int],
    seconds: float | None,
    since: str = "",
    *,
    start_s: float = 0,
) -> list[str]:
    """What became of the rows.

    Args:
        graph: the job.
        total: gives a counter of an operator.
        seconds: how long it took; None if that says nothing of the speed.
        since: what the counters begin with.
        start_s: no rate is given of what took no longer than this, which the engine needs to start.
    """
    read = sum(total(operator.id, "rows_in") for operator in graph.operators() if operator.verb == "read")
    took = "" if seconds is None else f" in {seconds:.1f} s"
    rate = "" if seconds is None or seconds < start_s else f" ({read / max(seconds, 0.001):,.0f} rows/s)"
    lines = [f"rows read{since}: {read:,}{took}{rate}"]
    for operator in graph.operators():
        late, bad = total(operator.id, "late_rows"), total(operator.id, "bad_rows")
        name = operator_name(operator)
        if late:
            lines.append(f"{name}: {late:,} rows came too late and were left out; {_late_advice(operator)}")
        if bad:
            lines.append(f"{name}: {bad:,} bad rows {_fate(operator)}")
        if failed := total(operator.id, "failed_calls"):
            lines.append(f"{name}: {failed:,} calls failed, and were made again or answered by on_error")
        if forgotten := total(operator.id, "forgotten_keys"):
            what = "rows" if operator.verb == "join" else "keys"
            lines.append(f"{name}: {forgotten:,} {what} were forgotten, as their time to live was over")
        if lost := total(operator.id, "lost_changes"):
            lines.append(f"{name}: {lost:,} changes would have taken back what was forgotten; a larger ttl= keeps it")
        if operator.verb in SINK_VERBS:
            lines.append(f"{name}: {total(operator.id, 'rows_in'):,} rows")
    return lines


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
