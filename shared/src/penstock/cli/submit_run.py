"""`penstock submit --engine spark`: a pipeline file, once over bounded input, by the cluster's pipeline service."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Final

from msgspec.structs import replace
from rich.console import Console

from penstock.api.loading import load_pipeline, parse_parameters
from penstock.api.pipeline import DeclaredPipeline
from penstock.cli.cluster import print_json, timeout_s
from penstock.cli.run_following import RunFollower
from penstock.cli.submit import print_requested, until_interrupted
from penstock.client import ClusterClient
from penstock.client.documents import ArtifactDescription, Requested
from penstock.client.run_documents import RunOptions, RunSubmission
from penstock.connectors import collecting
from penstock.coordination.artifacts import pack
from penstock.errors import ExternalError, PenstockError, UsageError, UserCodeError
from penstock.graph.logical import LogicalPlan, Write
from penstock.settings import ClusterSettings, load_settings
from penstock.spark.committing import checked_run_id
from penstock.spark.engine import spark_graph
from penstock.spark.session import PLANNED_PARALLELISM, parse_conf
from penstock.submission.cluster_checks import advice, check_fit
from penstock.submission.remote import find_restore

WORKERS: Final = "the pipeline service"


def submit_run_command(arguments: argparse.Namespace) -> int:
    """Submit the run, and follow it unless told not to; the exit code."""
    settings = load_settings(arguments.cluster)
    options = _options(arguments)
    parameters = parse_parameters(arguments.param)
    pipeline = load_pipeline(arguments.file, parameters)
    check_fit(pipeline.plan, WORKERS)
    _check_sinks(pipeline.plan)
    console = Console(stderr=True, highlight=False)
    for line in advice(pipeline.plan, Path(arguments.file.partition(":")[0]), WORKERS):
        console.print(f"warning: {line}", markup=False, soft_wrap=True)
    submission, sources = _submission(pipeline, arguments, parameters, options)
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


def _check_sinks(plan: LogicalPlan) -> None:
    gathering = [
        node.operator_id
        for node in plan
        if isinstance(node.operation, Write) and isinstance(node.operation.sink, collecting.Sink)
    ]
    if gathering:
        raise UsageError(
            f"{', '.join(gathering)}: collecting.Sink gathers rows in the memory of a process that ends with the run; "
            "write to files or to a topic"
        )


def _submission(
    pipeline: DeclaredPipeline, arguments: argparse.Namespace, parameters: dict[str, str], options: RunOptions
) -> tuple[RunSubmission, bytes]:
    # What can be refused is refused before anything is sent.
    graph = spark_graph(pipeline.plan, options.parallelism or PLANNED_PARALLELISM, until_now=bool(options.to_savepoint))
    packed = pack(arguments.file, parameters)
    artifact = packed.artifact
    described = ArtifactDescription(artifact.target, artifact.parameters, artifact.requirements)
    return RunSubmission(pipeline.name, graph.to_json(), described, options, arguments.run_id or ""), packed.data


async def _submit(
    settings: ClusterSettings,
    submission: RunSubmission,
    sources: bytes,
    arguments: argparse.Namespace,
    console: Console,
) -> int:
    async with ClusterClient(settings.rest, token=settings.token) as cluster:
        if arguments.from_savepoint:
            restore = await find_restore(cluster, settings, arguments.from_savepoint)
            options = replace(submission.options, from_savepoint=restore.manifest)
            submission = replace(submission, options=options)
        requested = await cluster.submit_run(submission, sources)
        await _accepted(cluster, requested, timeout_s(arguments))
        if arguments.detach:
            print_requested(requested, arguments)
            return 0
        follower = RunFollower(cluster, requested.job, console)
        follower.say(f"{submission.name}: run {requested.job} on Spark")
        return await _follow(follower, arguments)


async def _accepted(cluster: ClusterClient, requested: Requested, deadline_s: float) -> None:
    state = await cluster.run_outcome(requested, deadline_s)
    if state.state == "pending":
        raise ExternalError(
            f"run {requested.job}: no pipeline service has looked at it in {deadline_s:g} s; it is kept for a day and "
            f"begins when one does (penstock status {requested.job})"
        )


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
