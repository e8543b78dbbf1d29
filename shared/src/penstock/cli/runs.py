"""`penstock status`, `logs` and `cancel` of a run on Spark, and its line in `penstock jobs`."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from penstock.cli.cluster import ClusterOptions, lasted, moment, print_json, with_cluster
from penstock.cli.run_following import counted_lines, progress_text, run_state_text
from penstock.client import ClusterClient
from penstock.client.run_documents import RUN_ENDED, RunDetail, RunSummary
from penstock.errors import ExternalError

_POLL_S: Final = 0.3
_SHORT: Final = 32
"""Ids up to this length are shown whole: people chose most of them."""


def run_row(run: RunSummary) -> tuple[str, ...]:
    """Its cells in the list of jobs."""
    short = run.run if len(run.run) < _SHORT else run.run[:8]
    parallelism = str(run.parallelism) if run.parallelism else ""
    times = moment(run.submitted_us), lasted(run.submitted_us, run.ended_us)
    return short, run.name, run.engine, run_state_text(run), parallelism, *times


def run_status(options: ClusterOptions, run: str) -> int:
    """All about one run."""
    detail = with_cluster(options, lambda cluster: cluster.run(run))
    if options.json:
        print_json(detail)
        return 0
    for line in run_status_lines(detail):
        print(line)
    return 0


def run_status_lines(detail: RunDetail) -> list[str]:
    """What there is to say about a run."""
    run, progress = detail.summary, detail.summary.progress
    because = f": {run.reason}" if run.reason else ""
    lines = [
        f"{run.name} ({run.run})",
        "engine       spark",
        f"state        {run_state_text(run)}" + (because if run.state in RUN_ENDED else ""),
        f"submitted    {moment(run.submitted_us)}, lasted {lasted(run.submitted_us, run.ended_us)}",
        f"attempts     {run.attempts}" + (f", the one before is lost{because}" if run.attempts > 1 else ""),
    ]
    if run.parallelism:
        lines.append(f"parallelism  {run.parallelism}")
    if progress is not None:
        lines.append(f"at           {progress_text(progress)}")
        lines += [f"Spark UI     {progress.ui}"] if progress.ui else []
    if run.state == "FINISHED":
        lines += ["", *counted_lines(detail)]
    if detail.frames:
        lines += ["", "Traceback (your code, most recent call last):", detail.frames.rstrip("\n")]
    return lines


def run_logs(options: ClusterOptions, run: str) -> int:
    """What happened to a run, and what its process printed last."""
    log = with_cluster(options, lambda cluster: cluster.run_log(run))
    if options.json:
        print_json(log)
        return 0
    for record in log.records:
        print(f"{record['seq']:>4}  {moment(record['at_us'])} {run_record_line(record)}")
    if log.output:
        print("\nwhat its process printed last:")
        print(log.output.rstrip("\n"))
    return 0


def run_record_line(record: dict[str, Any]) -> str:
    """A record of a run's log in words."""
    match record["type"]:
        case "Submitted":
            return f"submitted: {record['name']}"
        case "AttemptBegan":
            return f"attempt {record['attempt']} began on {record['host']}"
        case "AttemptLost":
            return f"attempt {record['attempt']} is lost: {record['reason']}"
        case "CancelAsked":
            return "a client asked for its end"
        case "RunEnded":
            return f"ended: {record['state'].lower()}" + (f", {record['reason']}" if record.get("reason") else "")
        case other:
            return f"{other}: {msgspec.json.encode(record).decode()}"


def cancel_run(options: ClusterOptions, run: str, deadline_s: float) -> int:
    """End a run, and wait until it has ended; the exit code."""
    summary = with_cluster(options, lambda cluster: _cancelled(cluster, run, deadline_s))
    if options.json:
        print_json(summary)
    else:
        print(f"{summary.run}: {summary.state.lower()}" + (f", {summary.reason}" if summary.reason else ""))
    return 0 if summary.state == "CANCELED" else 1


async def _cancelled(cluster: ClusterClient, run: str, deadline_s: float) -> RunSummary:
    await cluster.cancel_run(run)
    try:
        async with asyncio.timeout(deadline_s):
            while True:
                summary = (await cluster.run(run)).summary
                if summary.state in RUN_ENDED:
                    return summary
                await asyncio.sleep(_POLL_S)
    except TimeoutError as error:
        raise ExternalError(
            f"cancel: not done after {deadline_s:g} s, and not given up: the cluster goes on with it; look with penstock "
            f"status {run}"
        ) from error
