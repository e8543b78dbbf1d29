"""`penstock jobs`, `status`, `checkpoints`, `logs`, `metrics`: what runs, and how it is."""

from __future__ import annotations

import argparse
import time
from typing import Any

import msgspec

from penstock.cli.cluster import lasted, moment, print_json, print_table, slots, span, state_text, with_cluster
from penstock.cli.following import progress_of
from penstock.cli.runs import run_logs, run_row, run_status
from penstock.client import ClusterClient
from penstock.client.documents import ENDED, Failures, JobDetail, JobList, JobLog
from penstock.client.run_documents import RUN_ENDED, RunList
from penstock.graph.jobgraph import graph_from_json
from penstock.observability.metrics import prometheus_text, samples


def jobs_command(arguments: argparse.Namespace) -> int:
    """List the jobs and the runs on Spark that go on, with `--all` those that have ended too."""

    async def read(cluster: ClusterClient) -> tuple[JobList, RunList]:
        jobs = await cluster.jobs()
        return jobs, RunList((), "") if jobs.missing else await cluster.runs()  # which stand in the store alone

    listed, runs = with_cluster(arguments, read)
    jobs = [job for job in listed.jobs if arguments.all or job.state not in ENDED]
    shown_runs = [run for run in runs.runs if arguments.all or run.state not in RUN_ENDED]
    if arguments.json:
        print_json([*jobs, *(msgspec.to_builtins(run) | {"job": run.run} for run in shown_runs)])
        return 0
    if listed.missing:
        print(f"not all is known: {listed.missing}, nor are runs on Spark")
    if not listed.leader and listed.jobs:
        print("no coordinator leads the cluster now; this is what the job logs say")
    if not jobs and not shown_runs:
        print("no jobs run" if not arguments.all else "there are no jobs")
        ended = len(listed.jobs) + len(runs.runs)
        if ended and not arguments.all:
            print(f"{ended} ended: penstock jobs --all")
        return 0
    rows = [
        (
            job.job[:8], job.name, "penstock", state_text(job), str(job.parallelism), moment(job.submitted_us),
            lasted(job.submitted_us, job.ended_us),
        )
        for job in jobs
    ] + [run_row(run) for run in shown_runs]  # fmt: skip
    columns = ("job", "name", "engine", "state", "parallelism", "submitted", "lasted")
    print_table(columns, rows, right=("parallelism", "lasted"))
    for job in jobs:
        if job.state == "UNOPENED":
            print(f"{job.job[:8]}: {job.reason}")
    return 0


def status_command(arguments: argparse.Namespace) -> int:
    """All about one job, or one run."""
    found = with_cluster(arguments, lambda cluster: cluster.find(arguments.job))
    if found.kind == "run":
        return run_status(arguments, found.id)
    detail = with_cluster(arguments, lambda cluster: cluster.job(found.id))
    if arguments.json:
        print_json(detail)
        return 0
    for line in status_lines(detail):
        print(line)
    if detail.vertices:
        print()
        _print_vertices(detail)
    return 0


def status_lines(detail: JobDetail) -> list[str]:
    """What there is to say about a job as a whole."""
    job = detail.summary
    lines = [
        f"{job.name} ({job.job})",
        f"state        {state_text(job)}" + (f": {job.reason}" if job.reason else ""),
        f"parallelism  {job.parallelism}",
        f"submitted    {moment(job.submitted_us)}, lasted {lasted(job.submitted_us, job.ended_us)}",
        f"started      {_times(detail.attempts)}"
        + (f", last from checkpoint {detail.restored}" if detail.restored else ""),
        f"checkpoint   {job.last_checkpoint or 'none yet'}",
    ]
    if detail.missing:
        lines.append(f"not all is known: {detail.missing}; this is what the coordinator shows")
    if job.missing_slots:
        lines.append(f"it waits for {slots(job.missing_slots)}: start a task manager, or rescale it")
    if not job.live and job.state not in ENDED:
        lines.append("no coordinator leads the cluster now; this is what the job's log says")
    lines += [f"failure      {failure}" for failure in detail.failures[-3:]]
    return lines


def _times(count: int) -> str:
    return "not yet" if not count else "once" if count == 1 else f"{count} times"


def _print_vertices(detail: JobDetail) -> None:
    graph, progress = graph_from_json(detail.graph), progress_of(detail)
    rows: list[tuple[str, ...]] = []
    for vertex in graph.vertices:
        tasks = [task for shown in detail.vertices if shown.id == vertex.id for task in shown.tasks]
        states: dict[str, int] = {}
        for task in tasks:
            states[task.state] = states.get(task.state, 0) + 1
        said = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        first, last = vertex.operators[0].id, vertex.operators[-1].id
        rows.append(
            (
                vertex.name,
                str(vertex.parallelism),
                said or "-",
                f"{progress.total(first, 'rows_in'):,}",
                f"{progress.total(last, 'rows_out'):,}",
            )
        )
    print_table(
        ("vertex", "parallelism", "subtasks", "rows in", "rows out"), rows, right=("parallelism", "rows in", "rows out")
    )


def checkpoints_command(arguments: argparse.Namespace) -> int:
    """The newest checkpoints of a job."""
    listed = with_cluster(arguments, lambda cluster: cluster.checkpoints(arguments.job))
    if arguments.json:
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
            checkpoint.manifest if checkpoint.savepoint else "",
        )
        for checkpoint in listed.checkpoints
    ]
    print_table(
        ("number", "kind", "state", "triggered", "took", "bytes", "savepoint"), rows, right=("number", "took", "bytes")
    )
    return 0


def logs_command(arguments: argparse.Namespace) -> int:
    """What went wrong in a job or a run, and what the cluster decided about it."""
    found = with_cluster(arguments, lambda cluster: cluster.find(arguments.job))
    if found.kind == "run":
        return run_logs(arguments, found.id)

    async def read(cluster: ClusterClient) -> tuple[JobLog, Failures]:
        return await cluster.log(found.id), await cluster.failures(found.id)

    log, failures = with_cluster(arguments, read)
    if arguments.json:
        print_json({"job": log.job, "records": log.records, "failures": failures.failures, "reason": failures.reason})
        return 0
    for record in log.records:
        print(f"{record['seq']:>4}  {record_line(record)}")
    if failures.failures:
        print("\nwhat made it start again, newest last:")
    for failure in failures.failures:
        print(f"  {failure}")
    return 0


def record_line(record: dict[str, Any]) -> str:
    """A record of a job log in words."""
    restored = record.get("restored_from") or record.get("restore")
    match record["type"]:
        case "Submit":
            start = f", starts from {restored['manifest']}" if restored else ""
            return f"{moment(record['submitted_us'])} submitted: {record['name']}{start}"
        case "Leader":
            return f"leader of epoch {record['epoch']} took over"
        case "Begin":
            start = f"from checkpoint {restored['checkpoint']}" if restored else "from the beginning"
            return f"attempt {record['attempt_number']} began {start}, parallelism {record['parallelism']}"
        case "Complete":
            ending = f" ({record['ending']})" if record.get("ending") else ""
            return f"checkpoint {record['checkpoint']} complete{ending}"
        case "Savepoint":
            return f"savepoint {record['checkpoint']}: {record['manifest']}"
        case "Terminated":
            return f"ended: {record['state'].lower()}" + (f", {record['reason']}" if record.get("reason") else "")
        case other:
            return f"{other}: {msgspec.json.encode(record).decode()}"


def metrics_command(arguments: argparse.Namespace) -> int:
    """The metrics of a job: Prometheus' text, or JSON per operator and subtask."""
    detail = with_cluster(arguments, lambda cluster: cluster.job(arguments.job))
    if arguments.json:
        print_json(
            [
                {"vertex": vertex.id, "subtask": task.index, "operators": task.metrics, "progress": task.progress}
                for vertex in detail.vertices
                for task in vertex.tasks
            ]
        )
        return 0
    now_us = time.time_ns() // 1_000
    print(prometheus_text(samples(graph_from_json(detail.graph), progress_of(detail), now_us)), end="")
    return 0
