"""`penstock submit --engine spark`: a pipeline file, once over bounded input, by the cluster's pipeline service."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from msgspec.structs import replace
from rich.console import Console

from penstock.cli.cluster import print_json, timeout_s
from penstock.cli.run_following import RunFollower
from penstock.cli.submit import SubmitOptions, print_requested
from penstock.client.client import client_of
from penstock.client.run_documents import RunOptions, RunSubmission
from penstock.core.times import duration_us
from penstock.errors import PenstockError, UsageError, UserCodeError
from penstock.loading import load_pipeline, parse_parameters
from penstock.settings import ClusterSettings, load_settings
from penstock.spark.committing import checked_run_id
from penstock.spark.run_submission import WORKERS, prepare_run, starting_from, submit_run
from penstock.spark.session import parse_conf
from penstock.submission.cluster_checks import advice
from penstock.submission.restart_text import parse_restart


@dataclass(frozen=True)
class RunOptionsGiven:
    """What is said of how a pipeline is run."""

    parallelism: int | None
    to_savepoint: str | None
    master: str | None
    conf: list[str]
    native: Literal["auto", "off"]


@dataclass(frozen=True)
class SubmitRun(SubmitOptions, RunOptionsGiven):
    """`penstock submit --engine spark`."""

    run_id: str | None
    every: str | None
    restart: str


def submit_run_command(command: SubmitRun) -> int:
    """Submit the run, and follow it unless told not to; the exit code."""
    settings = load_settings(command.cluster)
    options = _in_steps(command, run_options(command))
    if command.run_id is not None:
        checked_run_id(command.run_id)
    parameters = parse_parameters(command.param)
    pipeline = load_pipeline(command.file, parameters)
    submission, sources = prepare_run(pipeline, command.file, parameters, options, command.run_id or "")
    console = Console(stderr=True, highlight=False)
    for line in advice(pipeline.plan, Path(command.file.partition(":")[0]), WORKERS):
        console.print(f"warning: {line}", markup=False, soft_wrap=True)
    return asyncio.run(_submit(settings, submission, sources, command, console))


def _in_steps(command: SubmitRun, options: RunOptions) -> RunOptions:
    """The options of a job that goes on for ever, if it is one; raises `UsageError`."""
    restart = parse_restart(command.restart)
    if command.every is None:
        if restart != options.restart:
            raise UsageError("--restart: a run that ends is begun anew twice; give --every, or leave --restart out")
        return options
    if options.to_savepoint:
        raise UsageError("--every: each step leaves a savepoint of its own; leave --to-savepoint out")
    return replace(options, every_us=duration_us(command.every, "--every", positive=True), restart=restart)


def run_options(command: RunOptionsGiven) -> RunOptions:
    """How the pipeline is run; raises `UsageError`."""
    to_savepoint = command.to_savepoint or ""
    if to_savepoint and "://" not in to_savepoint and not Path(to_savepoint).is_absolute():
        raise UsageError(
            f"--to-savepoint {to_savepoint}: the pipeline service works in another directory; give an absolute path that "
            "it reaches, or a URL, s3://bucket/folder"
        )
    return RunOptions(
        parallelism=command.parallelism,
        master=command.master or "",
        conf=parse_conf(command.conf),
        to_savepoint=to_savepoint,
        native=command.native == "auto",
    )


async def _submit(
    settings: ClusterSettings,
    submission: RunSubmission,
    sources: bytes,
    command: SubmitRun,
    console: Console,
) -> int:
    async with client_of(settings) as cluster:
        if command.from_savepoint:
            submission = await starting_from(cluster, settings, submission, command.from_savepoint)
        requested = await submit_run(cluster, submission, sources, timeout_s(command.timeout))
        if command.detach:
            print_requested(requested, command)
            return 0
        follower = RunFollower(cluster, requested.job, console)
        follower.say(f"{submission.name}: run {requested.job} on Spark")
        return await _follow(follower, command)


async def _follow(follower: RunFollower, command: SubmitRun) -> int:
    detail = await follower.follow()
    if detail is None:
        return 130
    follower.outcome(detail)
    if command.json:
        print_json(detail.summary)
    summary = detail.summary
    if summary.state == "FAILED":
        raise UserCodeError(summary.reason, detail.frames) if detail.frames else PenstockError(summary.reason)
    return 0 if summary.state == "FINISHED" else 1
