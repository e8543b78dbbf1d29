"""`penstock status` and `cancel` of a run on Spark, and its line in `penstock jobs`."""

from __future__ import annotations

from typing import Final

from penstock.cli.cluster import ClusterOptions, listed_row, print_json, submitted_line, with_cluster
from penstock.cli.run_following import counted_lines, progress_text, run_state_text
from penstock.client import ClusterClient
from penstock.client.cluster import not_done, until_ended
from penstock.client.run_documents import RUN_ENDED, RunDetail, RunSummary
from penstock.core.names import shown
from penstock.errors import UsageError

_SHORT: Final = 32
"""Ids up to this length are shown whole: people chose most of them."""


def run_row(run: RunSummary) -> tuple[str, ...]:
    """Its cells in the list of jobs."""
    short = run.run if len(run.run) < _SHORT else run.run[:8]
    return listed_row(run, short, run.engine, run_state_text(run), run.parallelism)


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
        f"{shown(run.name)} ({run.run})",
        "engine       spark",
        f"state        {run_state_text(run)}" + (because if run.state in RUN_ENDED else ""),
        submitted_line(run),
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


def cancel_run(options: ClusterOptions, run: str, deadline_s: float) -> int:
    """End a run, and wait until it has ended; the exit code."""
    summary = with_cluster(options, lambda cluster: cancelled(cluster, run, deadline_s))
    if options.json:
        print_json(summary)
    else:
        print(f"{summary.run}: {summary.state.lower()}" + (f", {summary.reason}" if summary.reason else ""))
    return 0 if summary.state == "CANCELED" else 1


def stop_run(options: ClusterOptions, run: str, deadline_s: float) -> int:
    """End a job in steps behind the step at work, which names its savepoint; the exit code.

    Raises:
        UsageError: it is a run that ends by itself.
    """
    detail = with_cluster(options, lambda cluster: cluster.run(run))
    if not detail.options.in_steps:
        raise UsageError(
            f"{run} is a run that ends by itself, and leaves no savepoint before: penstock cancel {run} ends it"
        )
    return cancel_run(options, run, deadline_s)


async def cancelled(cluster: ClusterClient, run: str, deadline_s: float) -> RunSummary:
    """End a run, and wait until it has ended; raises `ExternalError` if that takes longer."""
    await cluster.cancel_run(run)

    async def look() -> RunSummary:
        return (await cluster.run(run)).summary

    summary = await until_ended(look, RUN_ENDED, deadline_s)
    if summary.state not in RUN_ENDED:
        raise not_done("cancel", deadline_s, run)
    return summary
