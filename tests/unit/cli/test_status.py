"""What `penstock status` says of a job: rates, backpressure, skew, what is behind, event time, age of checkpoints; and
what `penstock metrics` prints of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx2
import msgspec
import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from penstock import Pipeline, count, tumbling
from penstock.cli import cluster, main
from penstock.cli.job_following import progress_of
from penstock.cli.jobs import status_lines, warning_lines
from penstock.cli.vertices import COLUMNS, Look, vertex_rows
from penstock.client.documents import CheckpointView, JobDetail, JobSummary, TaskView, VertexView
from penstock.connectors import collecting, generate
from penstock.core.times import to_micros
from penstock.graph.jobgraph import JobGraph, build_job_graph
from penstock.protocol.messages import OperatorMetrics, TaskProgress

AT = to_micros(datetime(2026, 1, 1, 12, tzinfo=UTC))


@dataclass
class Row:
    key: int
    at: datetime


def graph() -> JobGraph:
    pipeline = Pipeline("counts")
    source = generate.Source(lambda n: {"key": n, "at": n}, schema=Row, event_time="at", rows=1)
    pipeline.read(source).key_by("key").window(tumbling("1s")).agg(n=count()).write(collecting.Sink())
    return build_job_graph(pipeline.plan, 2)


def detail(rows: tuple[int, int], busy_us: int, blocked_us: int, *, attempts: int = 1, **more: Any) -> JobDetail:
    """A job whose source's two subtasks have read so many rows."""
    built = graph()
    source, *others = built.vertices
    tasks = tuple(
        TaskView(
            index, "running", "w", 0, "", {source.operators[0].id: OperatorMetrics(rows_in=read)},
            TaskProgress(busy_us=busy_us, blocked_us=blocked_us, records_behind=500, watermark=AT + index),
        )
        for index, read in enumerate(rows)
    )  # fmt: skip
    vertices = (
        VertexView(source.id, source.name, 2, tasks),
        *(VertexView(other.id, other.name, other.parallelism, ()) for other in others),
    )
    summary = JobSummary("ab" * 16, "counts", "RUNNING", 2, AT, live=True, last_checkpoint=3)
    fields: dict[str, Any] = {"checkpoints": (), "failures": (), **more}
    return JobDetail(summary, attempts, None, vertices, graph=built.to_json(), **fields)


def shown(before: JobDetail | None, now: JobDetail) -> dict[str, str]:
    """The row of the source, by column, two seconds after the look before."""
    former = Look(progress_of(before), before.attempts, 10.0) if before is not None else None
    return dict(zip(COLUMNS, vertex_rows(graph(), Look(progress_of(now), now.attempts, 12.0), former)[0], strict=True))


def test_a_row_says_how_a_vertex_is() -> None:
    """Rates and shares of time are those between two looks; the watermark is the smallest of the subtasks."""
    row = shown(detail((1_000, 1_000), 900, 100), detail((4_000, 2_000), 1_000, 400))
    assert (row["rows in"], row["rows/s"], row["skew"], row["behind"]) == ("6,000", "2,000", "1.3x", "1,000")
    assert (row["busy"], row["blocked"]) == ("25%", "75%")
    assert row["watermark"].startswith("2026-01-01")
    assert row["subtasks"] == "2 running"


def test_the_silent_split_that_event_time_waits_for_is_named() -> None:
    """Of several, the one that has been silent for longest."""
    now = detail((10, 10), 5, 5)
    source = now.vertices[0]
    tasks = tuple(
        replace(task, progress=replace(task.progress, silent_split=split, silent_us=silent_us))
        for task, (split, silent_us) in zip(source.tasks, (("3", 60_000_000), ("4", 600_000_000)), strict=True)
    )
    row = shown(None, replace(now, vertices=(replace(source, tasks=tasks), *now.vertices[1:])))
    assert row["watermark"] == "2026-01-01T12:00:00Z (waits for split 4, silent for 10m)"


def test_counters_of_another_attempt_make_no_rate() -> None:
    """They began at zero again."""
    row = shown(detail((5_000, 5_000), 900, 100), detail((10, 10), 5, 5, attempts=2))
    assert (row["rows/s"], row["busy"]) == ("", "50%")
    assert shown(None, detail((0, 0), 0, 0))["busy"] == ""


def test_an_optional_field_that_records_spell_otherwise_is_named() -> None:
    """Once, whichever subtasks of the source have found it."""
    found = detail((10, 10), 5, 5)
    assert warning_lines(found) == []
    for task in found.vertices[0].tasks:
        next(iter(task.metrics.values())).misspelt = {"Row.amuont": "amount"}
    [line] = warning_lines(found)
    assert line.startswith("warning: generate source: Row.amuont is in none of the first records")
    assert "did you mean 'amount'" in line


def test_what_subtasks_wait_for_is_said() -> None:
    """Once for all that wait for the same thing; and that the leader hears nobody, with the time of what is shown."""
    waiting = detail((0, 0, 0, 0, 0), 0, 0)
    source, *others = waiting.vertices
    tasks = tuple(msgspec.structs.replace(task, waits_for="append to x: no broker answers") for task in source.tasks)
    waiting = msgspec.structs.replace(waiting, vertices=(msgspec.structs.replace(source, tasks=tasks), *others))
    expected = f"waiting      {source.id}[0], {source.id}[1], {source.id}[2] and 2 more: append to x: no broker answers"
    lines = status_lines(waiting, AT)
    assert expected in lines
    assert not any("heard nothing" in line for line in lines)
    deaf = status_lines(msgspec.structs.replace(waiting, deaf_us=12_000_000), AT)
    assert any("heard nothing from the brokers for 12.0s" in line and "2026-01-01 11:59:48Z" in line for line in deaf)


def test_the_age_of_the_newest_checkpoint_is_said() -> None:
    """And how many have failed since."""
    checkpoints = (
        CheckpointView(3, "complete", AT, 2_000_000, 10, 1), CheckpointView(4, "aborted", AT + 5_000_000, None, 0, 0),
    )  # fmt: skip
    lines = status_lines(detail((0, 0), 0, 0, checkpoints=checkpoints), AT + 44_000_000)
    assert "checkpoint   3, 42.0s ago; 1 since then failed" in lines
    assert "checkpoint   3" in status_lines(detail((0, 0), 0, 0), AT)


def test_metrics_are_printed_for_prometheus_and_as_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The text has the values that Prometheus would store, however it writes them; JSON has integers."""
    answer = msgspec.json.encode(detail((12_345_678, 5), 1_500_000, 0))
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, content=answer))
    monkeypatch.setattr(cluster, "client_of", lambda _: cluster.ClusterClient("http://one", transport))
    assert main.main(["metrics", "ab" * 16]) == 0
    families = {one.name: one.samples for one in text_string_to_metric_families(capsys.readouterr().out)}
    rows = {sample.labels["subtask"]: sample.value for sample in families["penstock_rows_in"]}
    assert rows == {"0": 12_345_678, "1": 5}
    assert {sample.value for sample in families["penstock_busy_seconds"]} == {1.5}
    assert main.main(["metrics", "ab" * 16, "--json"]) == 0
    documents = msgspec.json.decode(capsys.readouterr().out)
    assert [next(iter(task["operators"].values()))["rows_in"] for task in documents] == [12_345_678, 5]
