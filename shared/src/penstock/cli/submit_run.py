"""`penstock submit --engine spark`: a pipeline file, once over bounded input, by the cluster's pipeline service."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from rich.console import Console

from penstock.api.loading import load_pipeline, parse_parameters
from penstock.cli.cluster import print_json, timeout_s
from penstock.cli.run_following import RunFollower
from penstock.cli.submit import print_requested, until_interrupted
from penstock.client import ClusterClient
from penstock.client.run_documents import RunOptions, RunSubmission
from penstock.errors import PenstockError, UsageError, UserCodeError
from penstock.settings import ClusterSettings, load_settings
from penstock.spark.committing import checked_run_id
from penstock.spark.run_submission import WORKERS, prepare_run, starting_from, submit_run
from penstock.spark.session import parse_conf
from penstock.submission.cluster_checks import advice


def submit_run_command(arguments: argparse.Namespace) -> int:
    """Submit the run, and follow it unless told not to; the exit code."""
    settings = load_settings(arguments.cluster)
    options = _options(arguments)
    parameters = parse_parameters(arguments.param)
    pipeline = load_pipeline(arguments.file, parameters)
    submission, sources = prepare_run(pipeline, arguments.file, parameters, options, arguments.run_id or "")
    console = Console(stderr=True, highlight=False)
    for line in advice(pipeline.plan, Path(arguments.file.partition(":")[0]), WORKERS):
        console.print(f"warning: {line}", markup=False, soft_wrap=True)
    return asyncio.run(_submit(settings, submission, sources, arguments, console))


def _options(arguments: argparse.Namespace) -> RunOptions:
    to_savepoint = arguments.to_savepoint or ""
    if to_savepoint and not Path(to_savepoint).is_absolute():
        raise UsageError(
            f"--to-savepoint {to_savepoint}: the pipeline service works in another directory; give an absolute path that "
            "it reaches"
        )
    if arguments.run_id is not None:
        checked_run_id(arguments.run_id)
    return RunOptions(
        parallelism=arguments.parallelism,
        master=arguments.master or "",
        conf=parse_conf(arguments.conf),
        to_savepoint=to_savepoint,
        native=arguments.native == "auto",
    )


async def _submit(
    settings: ClusterSettings,
    submission: RunSubmission,
    sources: bytes,
    arguments: argparse.Namespace,
    console: Console,
) -> int:
    async with ClusterClient(settings.rest, token=settings.token) as cluster:
        if arguments.from_savepoint:
            submission = await starting_from(cluster, settings, submission, arguments.from_savepoint)
        requested = await submit_run(cluster, submission, sources, timeout_s(arguments))
        if arguments.detach:
            print_requested(requested, arguments)
            return 0
        follower = RunFollower(cluster, requested.job, console)
        follower.say(f"{submission.name}: run {requested.job} on Spark")
        return await _follow(follower, arguments)


async def _follow(follower: RunFollower, arguments: argparse.Namespace) -> int:
    detail = await until_interrupted(follower.follow())
    if detail is None:
        follower.say(
            f"detached: run {follower.run} goes on; look with penstock status {follower.run}, end it with penstock "
            f"cancel {follower.run}"
        )
        return 130
    follower.outcome(detail)
    if arguments.json:
        print_json(detail.summary)
    summary = detail.summary
    if summary.state == "FAILED":
        raise UserCodeError(summary.reason, detail.frames) if detail.frames else PenstockError(summary.reason)
    return 0 if summary.state == "FINISHED" else 1
