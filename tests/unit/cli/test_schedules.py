"""Schedules as the command shows them, what it sends, and what it refuses."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.cli import schedule_add
from penstock.cli.cluster import ClusterOptions
from penstock.cli.main import main
from penstock.cli.schedule_add import example_values, given_templates
from penstock.cli.schedules import NO_SERVICE, print_change, schedule_lines, schedule_row
from penstock.client.run_documents import RunOptions
from penstock.client.schedule_documents import DueRun, EndedPeriod, ScheduleDetail, ScheduleSubmission, ScheduleSummary

FILE = """
from dataclasses import dataclass
from penstock import Pipeline, param
from penstock.connectors import files, generate

@dataclass
class Event:
    value: int

def rows(numbers):
    return None

p = Pipeline("counts")
out = "/data/" + param("day", "") + param("password", "")
p.read(generate.Source(rows, schema=Event, rows=10)).write(files.Sink(out, format="jsonl"))
"""
HOUR_US = 3_600_000_000
NEXT = DueRun("orders-2026-11-02", 24 * HOUR_US, 48 * HOUR_US)
LAST = EndedPeriod("orders-2026-11-01", 0, 24 * HOUR_US, "CANCELED", "asked by a client")
SUMMARY = ScheduleSummary(
    "orders", "counts", "0 2 * * *", "Europe/Berlin", "ACTIVE", "", NEXT, "RUNNING", behind=2, last=LAST
)
DETAIL = ScheduleDetail(
    SUMMARY, (NEXT, DueRun("orders-2026-11-03", 48 * HOUR_US, 72 * HOUR_US)), (LAST,), "2026-11-01", "", 2, 300_000,
    "stop", {"day": "{day}"}, RunOptions(), "here:8084", changed=True,
)  # fmt: skip


def test_a_schedule_in_the_list() -> None:
    """With the run that it is at, and what became of the last one."""
    assert schedule_row(SUMMARY) == (
        "orders", "counts", "0 2 * * *", "Europe/Berlin", "active", "orders-2026-11-02", "1970-01-03 00:00:00Z", "2",
        "orders-2026-11-01 canceled",
    )  # fmt: skip
    over = replace(SUMMARY, next=None, next_state=None, behind=0, last=None)
    assert schedule_row(over)[4:] == ("over", "", "", "", "")


def test_all_about_a_schedule() -> None:
    """Runs to come, runs that are done; why it has stopped; whether anybody lets runs begin."""
    lines = schedule_lines(DETAIL)
    assert "state        active" in lines
    assert "from, to     2026-11-01, for ever" in lines
    assert "retries      2, 5m apart; then the schedule stops" in lines
    assert "param        day={day}" in lines
    assert "behind       2 periods behind" in lines
    assert "  orders-2026-11-02, due 1970-01-03 00:00:00Z, running" in lines
    assert "  orders-2026-11-03, due 1970-01-04 00:00:00Z" in lines
    assert lines[-1] == "  orders-2026-11-01 canceled: asked by a client"
    stopped = replace(DETAIL, summary=replace(SUMMARY, state="STOPPED", reason="run x has failed"), service="")
    assert "state        stopped: run x has failed" in schedule_lines(stopped)
    assert schedule_lines(stopped)[-1] == NO_SERVICE


def test_what_has_become_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    """What comes next, or that nothing was to be changed."""
    options = ClusterOptions(None, False)
    print_change(options, DETAIL, "paused")
    assert capsys.readouterr().out.splitlines() == [
        "orders: paused", "next: orders-2026-11-02, due 1970-01-03 00:00:00Z; 2 periods behind",
    ]  # fmt: skip
    stopped = replace(SUMMARY, state="STOPPED", reason="run x has failed")
    print_change(options, replace(DETAIL, summary=stopped, changed=False, service=""), "added")
    assert capsys.readouterr().out.splitlines()[::2] == [
        "orders: nothing to change, it is stopped", "it has stopped: run x has failed",
    ]  # fmt: skip
    print_change(options, replace(DETAIL, summary=replace(SUMMARY, state="REMOVED")), "removed")
    assert capsys.readouterr().out == "orders: removed\nits run orders-2026-11-02 goes on\n"
    print_change(ClusterOptions(None, True), DETAIL, "added")
    assert '"changed": true' in capsys.readouterr().out


def test_what_placeholders_stand_for_while_the_file_is_imported() -> None:
    """The day of the start, or yesterday by the clock of the zone: its input should be there."""
    late = datetime(2026, 11, 21, 23, 30, tzinfo=UTC)
    assert example_values("2026-11-01", "UTC", late)["day"] == "2026-11-01"
    assert example_values("", "Europe/Berlin", late) == {
        "day": "2026-11-21", "start": "2026-11-21T00:00:00+01:00", "end": "2026-11-22T00:00:00+01:00",
    }  # fmt: skip


def test_what_comes_from_a_variable_or_a_file_is_meant_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A password may have braces."""
    monkeypatch.setenv("PASSWORD", "a{b}")
    (tmp_path / "key").write_text("{\n")
    given = ["password=@env:PASSWORD", f"key=@file:{tmp_path / 'key'}", "day={day}", "password=@env:PASSWORD"]
    assert given_templates(given) == {"password": "a{{b}}", "key": "{{", "day": "{day}"}


def test_what_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Templates, not what they stood for while the file was imported."""
    sent: list[ScheduleSubmission] = []

    async def add(_: Any, schedule: ScheduleSubmission, *rest: Any) -> ScheduleDetail:
        sent.append(schedule)
        return DETAIL

    monkeypatch.setattr(schedule_add, "_add", add)
    file = tmp_path / "counts.py"
    file.write_text(FILE)
    words = [
        "schedule",
        "add",
        "orders",
        str(file),
        "--cron",
        "0 2 * * *",
        "--param",
        "day={day}",
        "--retry-pause",
        "90s",
    ]
    assert main([*words, "--to-savepoint", "/srv/{day}", "--on-failure", "skip", "--parallelism", "3"]) == 0
    [one] = sent
    assert (one.name, one.pipeline, one.cron, one.timezone, one.start) == ("orders", "counts", "0 2 * * *", "UTC", "")
    assert (one.retries, one.retry_pause_ms, one.on_failure, one.replace) == (2, 90_000, "skip", False)
    assert one.artifact.parameters == {"day": "{day}"}
    assert (one.options.to_savepoint, one.options.parallelism) == ("/srv/{day}", 3)
    assert "orders: added" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--param", "day={dya}"], "--param day: {dya} is no placeholder; there are {day}, {start}, {end}"),
        (["--param", "dya=1"], "dya"),
        (["--timezone", "Mars"], "there is no time zone 'Mars'"),
        (["--start", "soon"], "--start soon: write a day"),
        (["--retry-pause", "5"], "--retry-pause: '5' is not a duration"),
        (["--to-savepoint", "kept/{day}"], "give an absolute path"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before a cluster is asked: exit code 2."""
    file = tmp_path / "counts.py"
    file.write_text(FILE)
    assert main(["schedule", "add", "orders", str(file), "--cron", "0 2 * * *", *options]) == 2
    assert message in capsys.readouterr().err
