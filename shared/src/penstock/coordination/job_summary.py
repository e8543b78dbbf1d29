"""What became of a job, in a few lines: of its rows, its sinks and its checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from penstock.formats.misspelt import advice
from penstock.graph.jobgraph import SINK_VERBS, JobGraph, JobOperator
from penstock.protocol.messages import OperatorCounter

if TYPE_CHECKING:
    from penstock.coordination.job_progress import JobProgress


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


def checkpoint_line(progress: JobProgress) -> str:
    """How many checkpoints there were, and how the last one was."""
    complete = progress.completed_checkpoints
    if not complete:
        return "no checkpoint yet"
    last = complete[-1]
    duration_ms = (last.duration_us or 0) / 1_000
    count = f"{len(complete):,} checkpoint{'s' if len(complete) > 1 else ''}"
    return f"{count}, newest {last.checkpoint}: {last.size_bytes:,} bytes in {duration_ms:,.0f} ms"


def summary_lines(graph: JobGraph, progress: JobProgress, seconds: float) -> list[str]:
    """What was done, and where the result lies."""
    since = f" since checkpoint {progress.restored}" if progress.restored else ""
    return [
        *row_lines(graph, progress.total, seconds, since),
        checkpoint_line(progress),
        *(f"warning: {line}" for line in misspelt_lines(graph, progress.misspelt)),
    ]


def misspelt_lines(graph: JobGraph, misspelt: Callable[[str], Mapping[str, str]]) -> list[str]:
    """What to say of optional fields that records seem to spell otherwise; `misspelt` gives those of an operator."""
    return [
        f"{operator_name(operator)}: {advice(*each)}"
        for operator in graph.operators()
        for each in sorted(misspelt(operator.id).items())
    ]


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
