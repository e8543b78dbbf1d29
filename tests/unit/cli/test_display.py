"""What a run says of itself."""

from __future__ import annotations

import io
from dataclasses import dataclass
from datetime import datetime

import pytest
from rich.console import Console

from penstock import Pipeline, col, count, session, tumbling
from penstock.cli.display import Rate, changed_lines, live_view, rows_read, rows_written, run_row_lines, start_lines
from penstock.connectors import console, files, kafka
from penstock.coordination.job_progress import CheckpointProgress, JobProgress
from penstock.coordination.job_summary import checkpoint_line, operator_name, row_lines, summary_lines
from penstock.core.times import MAX_WATERMARK, MIN_WATERMARK
from penstock.graph.jobgraph import JobGraph, build_job_graph
from penstock.protocol.messages import OperatorMetrics, SubtaskId, TaskProgress, TaskStatus


@dataclass
class Row:
    key: str
    n: int
    at: datetime


def graph(*, parallelism: int = 1, filtered: bool = False, uid: str = "") -> JobGraph:
    p = Pipeline("shown")
    read = p.read(files.Source("in.jsonl", schema=Row, event_time="at", bad_rows="skip"))
    if filtered:
        read = read.filter(col("n") > 0)
    result = read.key_by("key").window(tumbling("1h")).agg(n=count())
    if uid:
        result.uid(uid)
    written = result.write(files.Sink("out"))
    if uid:
        written.uid("results")
    result.write(console.Sink())
    return build_job_graph(p.plan, parallelism)


def progress(shown: JobGraph, *, late: int = 0, bad: int = 0, watermark: int = 5_500_000) -> JobProgress:
    """Every subtask has read 1,000 rows and written 10."""
    found = JobProgress("job", phase="running")
    for vertex in shown.vertices:
        metrics = {
            operator.id: OperatorMetrics(
                rows_in=10 if operator.verb == "write" else 1_000,
                rows_out=10,
                late_rows=late if operator.verb == "window" else 0,
                bad_rows=bad if operator.verb == "read" else 0,
            )
            for operator in vertex.operators
        }
        for index in range(vertex.parallelism):
            found.statuses[SubtaskId(vertex.id, index)] = TaskStatus(
                "job",
                "a" * 32,
                SubtaskId(vertex.id, index),
                "running",
                metrics=metrics,
                progress=TaskProgress(watermark=watermark, busy_us=300, idle_us=600, blocked_us=100),
            )
    return found


def screen(shown: JobGraph, found: JobProgress, width: int = 100) -> list[str]:
    out = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None, legacy_windows=False)
    out.print(live_view(shown, found, Rate(), 1.0))
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue().splitlines()


def test_a_sink_is_named_by_where_its_rows_go() -> None:
    """And by its uid where it has one; the ids that are made up mean nothing to anybody."""
    assert [operator_name(o) for o in graph().operators()] == [
        "files source in.jsonl",
        "window (n2-window)",
        "files sink in out",
        "console sink",
    ]
    named = [operator_name(o) for o in graph(uid="per-hour").operators()]
    assert named[1:3] == ["per-hour", "results (files sink in out)"]


def test_the_first_lines_say_what_is_promised() -> None:
    """Guarantee of each sink with the reason where it is less, and where a run continues."""
    lines = start_lines(graph(parallelism=2), "state", 7, 2)
    assert lines[0] == "shown: parallelism 2, state in state, going on from checkpoint 7"
    assert lines[1] == "2 worker processes, one per slot"
    assert "share this one process" in start_lines(graph(parallelism=2), "state", None, 1)[1]
    assert lines[2:] == [
        "files sink in out: exactly-once",
        "console sink: at-least-once: the console sink cannot do better",
    ]
    assert len(start_lines(graph(), "state", None, 1)) == 3


def test_operators_without_uid_are_spoken_of_only_when_it_matters() -> None:
    """When the pipeline that goes on has other operators than the one that stopped."""
    assert changed_lines(graph(), graph()) == []
    assert changed_lines(graph(parallelism=3), graph()) == []
    [line] = changed_lines(graph(filtered=True), graph())
    assert "no .uid()" in line
    assert "window (n3-window)" in line
    [line] = changed_lines(graph(filtered=True, uid="per-hour"), graph(uid="per-hour"))
    assert "per-hour" not in line


def test_the_summary_counts_and_says_where_the_result_lies() -> None:
    """Late and bad rows only if there were any; after a resumption it says since when rows are counted."""
    shown = graph()
    lines = summary_lines(shown, progress(shown), 2.0)
    assert lines == [
        "rows read: 1,000 in 2.0 s (500 rows/s)",
        "files sink in out: 10 rows",
        "console sink: 10 rows",
        "no checkpoint yet",
    ]
    found = progress(shown, late=3, bad=4)
    found.restored = 12
    lines = summary_lines(shown, found, 2.0)
    assert lines[0].startswith("rows read since checkpoint 12: 1,000")
    assert "files source in.jsonl: 4 bad rows were skipped" in lines
    late = "window (n2-window): 3 rows came too late and were left out; late_to keeps them, "
    assert f"{late}a larger max_out_of_orderness= at the source waits for them" in lines


def test_what_times_to_live_gave_up_is_told() -> None:
    """Of a join by key alone rows are forgotten; nothing is said where nothing was."""
    p = Pipeline("forgetting")
    read = p.read(files.Source("in.jsonl", schema=Row))
    totals = read.key_by("key").agg(n=count())
    read.join(totals, on="key", how="left").write(files.Sink("out"))
    shown = build_job_graph(p.plan, 1)
    found = progress(shown)
    assert not [line for line in summary_lines(shown, found, 2.0) if "forgotten" in line]
    assert "forgotten" not in screen(shown, found)[0]
    for status in found.statuses.values():
        for operator, metrics in status.metrics.items():
            metrics.forgotten_keys = 5 if operator.endswith(("agg", "join")) else 0
            metrics.lost_changes = 2 if operator.endswith("join") else 0
    agg, join = (next(o.id for o in shown.operators() if o.verb == verb) for verb in ("agg", "join"))
    lines = summary_lines(shown, found, 2.0)
    assert f"agg ({agg}): 5 keys were forgotten, as their time to live was over" in lines
    assert f"join ({join}): 5 rows were forgotten, as their time to live was over" in lines
    assert f"join ({join}): 2 changes would have taken back what was forgotten; a larger ttl= keeps it" in lines
    header = screen(shown, found)[0]
    assert "forgotten" in header
    assert "lost" in header


def test_a_run_on_spark_says_what_would_have_been_late() -> None:
    """Of sessions at most so many: one that is open may take a row whose own window is over."""
    shown = graph()
    counts = {"n2-window": {"rows_in": 9, "late_rows_kept": 3}}
    [line] = [line for line in run_row_lines(shown, counts, None) if "late" in line]
    assert line.startswith("window (n2-window): 3 rows would have been late in a stream, and are in its results")
    p = Pipeline("sessions")
    read = p.read(files.Source("in.jsonl", schema=Row, event_time="at"))
    read.key_by("key").window(session("1h")).agg(n=count()).write(console.Sink())
    [line] = [line for line in run_row_lines(build_job_graph(p.plan, 1), counts, None) if "late" in line]
    assert line.startswith("window (n2-window): up to 3 rows")


def test_checkpoints_are_counted_in_english() -> None:
    """One checkpoint, two checkpoints; the newest one's size and duration."""
    found = JobProgress("job")
    assert checkpoint_line(found) == "no checkpoint yet"
    found.checkpoints[1] = CheckpointProgress(1, 0, "complete", 12_000, 3_456)
    assert checkpoint_line(found) == "1 checkpoint, newest 1: 3,456 bytes in 12 ms"
    found.checkpoints[2] = CheckpointProgress(2, 0, "aborted")
    found.checkpoints[3] = CheckpointProgress(3, 1_000, "complete", 2_000, 10)
    assert checkpoint_line(found) == "2 checkpoints, newest 3: 10 bytes in 1 ms"


def test_the_live_table_has_a_line_per_vertex() -> None:
    """Rows in and out, the share of time at work, the watermark in whole seconds, and a line on rates."""
    shown = graph(parallelism=2)
    lines = screen(shown, progress(shown))
    assert lines[0].split() == ["shown", "rows", "in", "rows", "out", "busy", "watermark"]
    assert lines[1].split() == ["read", "2,000", "20", "30%", "1970-01-01T00:00:05Z"]
    assert lines[2].split()[-4:] == ["2,000", "40", "30%", "1970-01-01T00:00:05Z"]
    assert lines[3].rstrip() == "running; 0 rows/s; no checkpoint yet"
    assert (rows_read(shown, progress(shown)), rows_written(shown, progress(shown))) == (2_000, 40)


@pytest.mark.parametrize(("watermark", "text"), [(MIN_WATERMARK, "none yet"), (MAX_WATERMARK, "end of input")])
def test_watermarks_at_the_ends_of_time_are_words(watermark: int, text: str) -> None:
    """Nobody reads 9223372036854775807."""
    shown = graph()
    assert text in screen(shown, progress(shown, watermark=watermark))[1]


def test_late_and_bad_rows_get_a_column_when_there_are_any() -> None:
    """Most runs have none."""
    shown = graph()
    assert "late" not in screen(shown, progress(shown))[0]
    header = screen(shown, progress(shown, late=3, bad=4))[0]
    assert "late" in header
    assert "bad" in header


@pytest.mark.parametrize("width", [60, 80])
def test_a_narrow_terminal_shortens_names_and_never_numbers(width: int) -> None:
    """One line per vertex whatever the width, or the table would jump."""
    shown = graph()
    lines = screen(shown, progress(shown), width)
    assert len(lines) == 3
    assert "1,000" in lines[1]
    assert "1970-01-01T00:00:05Z" in lines[1]
    assert all(len(line) <= width for line in lines)


def test_a_rate_is_smoothed_and_never_negative() -> None:
    """After a restart counters begin again."""
    rate = Rate()
    assert rate.update(100, 1.0) == 0
    assert rate.update(300, 2.0) == 200
    assert rate.update(300, 3.0) == pytest.approx(140)
    assert rate.update(0, 4.0) == pytest.approx(98)


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_rows_that_a_sink_did_not_take_went_to_its_dead_letters(delivery: str) -> None:
    """Whoever judges them counts them: the encoder, or the writer."""
    p = Pipeline("shown")
    sink = kafka.Sink("rows", brokers="b:1", delivery=delivery, bad_rows="dead_letter", dead_letters="rejected")
    p.read(files.Source("in.jsonl", schema=Row)).write(sink)
    shown = build_job_graph(p.plan, 1)
    (judge,) = (found for found in shown.operators() if found.verb in ("encode", "write"))

    def total(operator: str, metric: str) -> int:
        return 2 if (operator, metric) == (judge.id, "bad_rows") else 0

    assert any(line.endswith(": 2 bad rows went to rejected") for line in row_lines(shown, total, 1.0))
