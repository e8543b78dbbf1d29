"""`penstock jobs`, `status`, `checkpoints`, `metrics`: what runs, and how it is."""

from __future__ import annotations

import time
from dataclasses import dataclass

import msgspec

from penstock.cli.cluster import (
    LISTED,
    ClusterOptions,
    OneJob,
    deaf_line,
    listed_row,
    moment,
    print_json,
    print_table,
    slots,
    span,
    state_text,
    submitted_line,
    with_cluster,
)
from penstock.cli.job_following import progress_of
from penstock.cli.runs import run_row, run_status
from penstock.cli.vertices import COLUMNS, RIGHT, Look, vertex_rows
from penstock.client import ClusterClient
from penstock.client.documents import ENDED, JobDetail, JobList
from penstock.client.run_documents import RUN_ENDED, RunList
from penstock.coordination.job_summary import misspelt_lines
from penstock.core.names import shown
from penstock.graph.jobgraph import graph_from_json
from penstock.observability.metrics import Snapshot, samples

FAILED_SHOWN_US = 3_600_000_000
"""For how long a job that failed is listed without `--all`: somebody may be looking for it."""
BETWEEN_LOOKS_S = 1.5
"""Rates are those of this time; the view of a job is renewed twice a second."""


@dataclass(frozen=True)
class ListJobs(ClusterOptions):
    """`penstock jobs`."""

    all: bool


def jobs_command(command: ListJobs) -> int:
    """List the jobs and the runs on Spark that go on, and jobs that failed within the last hour; with `--all`, all."""

    async def read(cluster: ClusterClient) -> tuple[JobList, RunList]:
        jobs = await cluster.jobs()
        return jobs, RunList((), "") if jobs.missing else await cluster.runs()  # which stand in the store alone

    listed, runs = with_cluster(command, read)
    going_on = [job for job in listed.jobs if command.all or job.state not in ENDED]
    shown_runs = [run for run in runs.runs if command.all or run.state not in RUN_ENDED]
    if command.json:
        print_json([*going_on, *(msgspec.to_builtins(run) | {"job": run.run} for run in shown_runs)])
        return 0
    since_us = time.time_ns() // 1_000 - FAILED_SHOWN_US
    failed = [job for job in listed.jobs if job.state == "FAILED" and (job.ended_us or 0) > since_us]
    jobs = [*going_on, *(job for job in failed if not command.all)]
    if listed.missing:
        print(f"not all is known: {listed.missing}, nor are runs on Spark")
    if listed.deaf_us:
        print(deaf_line(listed.deaf_us, time.time_ns() // 1_000))
    if not listed.leader and listed.jobs:
        print("no coordinator leads the cluster now; this is what the job logs say")
    if not going_on and not shown_runs:
        print("no jobs run" if not command.all else "there are no jobs")
        ended = len(listed.jobs) + len(runs.runs)
        if ended and not command.all:
            print(f"{ended} ended: penstock jobs --all")
        if not jobs:
            return 0
    rows = [listed_row(job, job.job[:8], "penstock", state_text(job), job.parallelism) for job in jobs]
    print_table(LISTED, [*rows, *map(run_row, shown_runs)], right=("parallelism", "lasted"))
    for job in jobs:
        if job.reason and (job.state not in ENDED or job in failed):
            print(f"{job.job[:8]}: {shown(job.reason, lines=True)}")
    return 0


def status_command(command: OneJob) -> int:
    """All about one job, or one run."""
    found = with_cluster(command, lambda cluster: cluster.find(command.job))
    if found.kind == "run":
        return run_status(command, found.id)
    detail = with_cluster(command, lambda cluster: cluster.job(found.id))
    if command.json:
        print_json(detail)
        return 0
    before, now = None, _look(detail)
    if detail.summary.state == "RUNNING" and detail.summary.live and not detail.missing:
        time.sleep(BETWEEN_LOOKS_S)
        detail = with_cluster(command, lambda cluster: cluster.job(found.id))
        before, now = now if not detail.deaf_us else None, _look(detail)
    for line in status_lines(detail, time.time_ns() // 1_000):
        print(line)
    if detail.vertices:
        print()
        _print_vertices(detail, before, now)
        for line in warning_lines(detail):
            print(line)
    return 0


def _look(detail: JobDetail) -> Look:
    return Look(progress_of(detail), detail.attempts, time.monotonic())


def status_lines(detail: JobDetail, now_us: int) -> list[str]:
    """What there is to say about a job as a whole."""
    job = detail.summary
    lines = [
        f"{shown(job.name)} ({job.job})",
        f"state        {state_text(job)}" + (f": {shown(job.reason, lines=True)}" if job.reason else ""),
        f"parallelism  {job.parallelism}",
        submitted_line(job),
        f"started      {_times(detail.attempts)}"
        + (f", last from checkpoint {detail.restored}" if detail.restored else ""),
        f"checkpoint   {job.last_checkpoint or 'none yet'}{_checkpoint_age(detail, now_us)}",
    ]
    if detail.missing:
        lines.append(f"not all is known: {detail.missing}; this is what the coordinator shows")
    if detail.deaf_us:
        lines.append(deaf_line(detail.deaf_us, now_us))
    lines += _waiting_lines(detail)
    if job.missing_slots:
        lines.append(f"it waits for {slots(job.missing_slots)}: start a task manager, or rescale it")
    if not job.live and job.state not in ENDED:
        lines.append("no coordinator leads the cluster now; this is what the job's log says")
    lines += [f"failure      {failure}" for failure in detail.failures[-3:]]
    return lines


def warning_lines(detail: JobDetail) -> list[str]:
    """What the sources of a job have noticed in their records."""
    found = misspelt_lines(graph_from_json(detail.graph), progress_of(detail).misspelt)
    return [f"warning: {line}" for line in found]


def _waiting_lines(detail: JobDetail) -> list[str]:
    """What subtasks wait for that does not answer, a line for each such thing."""
    waiting: dict[str, list[str]] = {}
    for vertex in detail.vertices:
        for task in vertex.tasks:
            if task.waits_for:
                waiting.setdefault(task.waits_for, []).append(f"{vertex.id}[{task.index}]")
    return [
        f"waiting      {', '.join(who[:3])}{f' and {len(who) - 3} more' if len(who) > 3 else ''}: {what}"
        for what, who in waiting.items()
    ]


def _checkpoint_age(detail: JobDetail, now_us: int) -> str:
    """How long ago the newest one was complete, where its leader remembers, and that the newest ones were not."""
    complete = [seen for seen in detail.checkpoints if seen.state == "complete" and seen.duration_us is not None]
    newest = max(complete, key=lambda seen: seen.checkpoint, default=None)
    if newest is None or detail.summary.state in ENDED:
        return ""
    age = span(max(0, now_us - newest.triggered_us - (newest.duration_us or 0)))
    failed = sum(seen.state == "aborted" and seen.checkpoint > newest.checkpoint for seen in detail.checkpoints)
    return f", {age} ago" + (f"; {failed} since then failed" if failed else "")


def _times(count: int) -> str:
    return "not yet" if not count else "once" if count == 1 else f"{count} times"


def _print_vertices(detail: JobDetail, before: Look | None, now: Look) -> None:
    print_table(COLUMNS, vertex_rows(graph_from_json(detail.graph), now, before), right=RIGHT)
    if detail.attempts > 1:
        print(f"rows are counted since attempt {detail.attempts} began")


def checkpoints_command(command: OneJob) -> int:
    """The newest checkpoints of a job."""
    listed = with_cluster(command, lambda cluster: cluster.checkpoints(command.job))
    if command.json:
        print_json(listed)
        return 0
    if not listed.checkpoints:
        print("there is no checkpoint yet")
        return 0
    rows = [
        (
            str(checkpoint.checkpoint),
            "savepoint" if checkpoint.savepoint else "checkpoint",
            checkpoint.state,
            moment(checkpoint.triggered_us),
            span(checkpoint.duration_us),
            "" if checkpoint.size_bytes is None else f"{checkpoint.size_bytes:,}",
            checkpoint.manifest if checkpoint.savepoint else checkpoint.reason,
        )
        for checkpoint in listed.checkpoints
    ]
    print_table(
        ("number", "kind", "state", "triggered", "took", "bytes", "savepoint, or why it failed"),
        rows,
        right=("number", "took", "bytes"),
    )
    return 0


def metrics_command(command: OneJob) -> int:
    """The metrics of a job: Prometheus' text, or JSON per operator and subtask."""
    from prometheus_client import generate_latest

    detail = with_cluster(command, lambda cluster: cluster.job(command.job))
    if command.json:
        print_json(
            [
                {"vertex": vertex.id, "subtask": task.index, "operators": task.metrics, "progress": task.progress}
                for vertex in detail.vertices
                for task in vertex.tasks
            ]
        )
        return 0
    found = samples(graph_from_json(detail.graph), progress_of(detail), time.time_ns() // 1_000)
    print(generate_latest(Snapshot(found)).decode(), end="")
    return 0
