"""`penstock schedule list`, `show`, `pause`, `resume` and `remove`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from penstock.cli.cluster import ClusterOptions, moment, print_json, print_table, with_cluster
from penstock.client import ClusterClient
from penstock.client.schedule_documents import DueRun, ScheduleDetail, ScheduleSummary
from penstock.core.names import shown
from penstock.core.times import format_duration

COLUMNS: Final = ("schedule", "pipeline", "cron", "timezone", "state", "next", "due", "behind", "last")
NO_SERVICE: Final = "no pipeline service serves this cluster now, so no run begins; start one: penstock pipeline"


@dataclass(frozen=True)
class OneSchedule(ClusterOptions):
    """A command about one schedule."""

    name: str


def list_command(options: ClusterOptions) -> int:
    """All schedules; the exit code."""
    found = with_cluster(options, lambda cluster: cluster.schedules())
    if options.json:
        print_json(found)
        return 0
    print_table(COLUMNS, [schedule_row(one) for one in found.schedules], right=("behind",))
    if found.schedules and not found.service:
        print(NO_SERVICE)
    return 0


def show_command(options: OneSchedule) -> int:
    """All about one schedule; the exit code."""
    detail = with_cluster(options, lambda cluster: cluster.schedule(options.name))
    if options.json:
        print_json(detail)
        return 0
    for line in schedule_lines(detail):
        print(line)
    return 0


def pause_command(options: OneSchedule) -> int:
    """Let nothing more begin; the exit code."""
    return _change(options, lambda cluster: cluster.pause_schedule(options.name), "paused")


def resume_command(options: OneSchedule) -> int:
    """Let it go on; the exit code."""
    return _change(options, lambda cluster: cluster.resume_schedule(options.name), "resumed")


def remove_command(options: OneSchedule) -> int:
    """Remove it; the exit code."""
    return _change(options, lambda cluster: cluster.remove_schedule(options.name), "removed")


def _change(options: OneSchedule, ask: Callable[[ClusterClient], Awaitable[ScheduleDetail]], done: str) -> int:
    print_change(options, with_cluster(options, ask), done)
    return 0


def print_change(options: ClusterOptions, detail: ScheduleDetail, done: str) -> None:
    """What has become of a schedule, and what comes next."""
    if options.json:
        print_json(detail)
        return
    one = detail.summary
    print(f"{one.name}: {done if detail.changed else 'nothing to change, it is ' + state_text(one)}")
    if one.state == "REMOVED":
        at_work = one.next is not None and one.next_state in ("QUEUED", "RUNNING")
        print(f"its run {one.next.run} goes on" if at_work and one.next is not None else "none of its runs is at work")
        return
    if one.next is not None:
        print(f"next: {due_text(one.next)}" + (f"; {behind_text(one.behind)}" if one.behind else ""))
    if one.state == "STOPPED":
        print(f"it has stopped: {one.reason}")
    if not detail.service:
        print(NO_SERVICE)


def schedule_row(one: ScheduleSummary) -> tuple[str, ...]:
    """Its cells in the list."""
    next_run = one.next.run if one.next is not None else ""
    due = moment(one.next.end_us) if one.next is not None else ""
    last = f"{one.last.run} {one.last.state.lower()}" if one.last is not None else ""
    return (
        one.name, shown(one.pipeline), one.cron, one.timezone, state_text(one), next_run, due, str(one.behind or ""),
        last,
    )  # fmt: skip


def state_text(one: ScheduleSummary) -> str:
    """What it is doing, in words."""
    if one.state == "ACTIVE" and one.next is None:
        return "over"
    return one.state.lower()


def behind_text(behind: int) -> str:
    """`1 period behind`, `3 periods behind`."""
    return f"{behind} period{'s' if behind > 1 else ''} behind"


def due_text(due: DueRun) -> str:
    """A run, and when it is due."""
    return f"{due.run}, due {moment(due.end_us)}"


def schedule_lines(detail: ScheduleDetail) -> list[str]:
    """What there is to say about a schedule."""
    one = detail.summary
    then = "the schedule stops" if detail.on_failure == "stop" else "the next period follows"
    lines = [
        f"{one.name} (pipeline {shown(one.pipeline)})",
        f"state        {state_text(one)}" + (f": {one.reason}" if one.reason else ""),
        f"cron         {one.cron} in {one.timezone}",
        f"from, to     {detail.start or 'when it was added'}, {detail.end or 'for ever'}",
        f"retries      {detail.retries}, {format_duration(detail.retry_pause_ms * 1_000)} apart; then {then}",
    ]
    lines += [f"param        {name}={value}" for name, value in detail.parameters.items()]
    if one.behind:
        lines.append(f"behind       {behind_text(one.behind)}")
    if detail.due:
        lines += ["", "to come:"]
        states = [f", {one.next_state.lower()}" if one.next_state else "", *[""] * (len(detail.due) - 1)]
        lines += [f"  {due_text(due)}{state}" for due, state in zip(detail.due, states, strict=True)]
    if detail.ended:
        lines += ["", "done, newest first:"]
        lines += [
            f"  {period.run} {period.state.lower()}" + (f": {period.reason}" if period.reason else "")
            for period in detail.ended
        ]
    return lines if detail.service else [*lines, "", NO_SERVICE]
