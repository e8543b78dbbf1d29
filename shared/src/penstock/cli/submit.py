"""`penstock submit`: a pipeline file, on a cluster."""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace
from rich.console import Console

from penstock.api.loading import load_pipeline, parse_parameters
from penstock.api.pipeline import DeclaredPipeline
from penstock.cli.cluster import print_json, timeout_s
from penstock.cli.collected import fetch_collected, print_collected
from penstock.cli.display import operator_name
from penstock.cli.following import Follower
from penstock.cli.strategies import parse_restart
from penstock.client import ClusterClient
from penstock.client.documents import ENDED, ArtifactDescription, Requested, Submission
from penstock.coordination.artifacts import Packed, pack
from penstock.errors import ExternalError, PenstockError
from penstock.graph.jobgraph import SINK_VERBS, JobGraph, build_job_graph
from penstock.graph.logical import LogicalPlan
from penstock.graph.rescaling import scalable_form
from penstock.protocol.checkpoints import CheckpointSettings
from penstock.protocol.joblog import JobSettings
from penstock.protocol.messages import Restore
from penstock.settings import ClusterSettings, load_settings
from penstock.submission.cluster_checks import advice, check_fit
from penstock.times import duration_us

T = TypeVar("T")

SUCCEEDED = ("FINISHED", "STOPPED")


def submit_command(arguments: argparse.Namespace) -> int:
    """Submit the pipeline, and follow it unless told not to; the exit code."""
    cluster = load_settings(arguments.cluster)
    settings = _settings(arguments)
    parameters = parse_parameters(arguments.param)
    pipeline = load_pipeline(arguments.file, parameters)
    check_fit(pipeline.plan)
    graph = build_job_graph(pipeline.plan, arguments.parallelism or 1, at_least_once=arguments.at_least_once)
    packed = pack(arguments.file, parameters)
    console = Console(stderr=True, highlight=False)
    for line in advice(pipeline.plan, Path(arguments.file.partition(":")[0])):
        console.print(f"warning: {line}", markup=False, soft_wrap=True)
    submission = _submission(pipeline, graph, packed, settings, arguments)
    return asyncio.run(_submit(cluster, submission, graph, pipeline.plan, packed.data, arguments, console))


def _settings(arguments: argparse.Namespace) -> JobSettings:
    interval_us = duration_us(arguments.checkpoint_interval, "--checkpoint-interval", positive=True)
    flavour = "at_least_once" if arguments.at_least_once else "aligned"
    return JobSettings(
        CheckpointSettings(
            interval_ms=max(1, interval_us // 1_000),
            tolerable_failed=arguments.tolerable_failed_checkpoints,
            flavour=flavour,
        ),
        parse_restart(arguments.restart),
        arguments.state_backend,
        per_job=arguments.per_job,
    )


def _submission(
    pipeline: DeclaredPipeline, graph: JobGraph, packed: Packed, settings: JobSettings, arguments: argparse.Namespace
) -> Submission:
    artifact = packed.artifact
    return Submission(
        name=pipeline.name,
        graph=graph.to_json(),
        artifact=ArtifactDescription(artifact.target, artifact.parameters, artifact.requirements),
        scalable=scalable_form(pipeline.plan, at_least_once=arguments.at_least_once).to_json(),
        settings=settings,
        allow_non_restored=arguments.allow_non_restored,
        allow_unpublished=arguments.allow_unpublished,
    )


async def _submit(
    settings: ClusterSettings,
    submission: Submission,
    graph: JobGraph,
    plan: LogicalPlan,
    sources: bytes,
    arguments: argparse.Namespace,
    console: Console,
) -> int:
    async with ClusterClient(settings.rest, token=settings.token) as cluster:
        if arguments.from_savepoint:
            restore = await find_restore(cluster, settings, arguments.from_savepoint)
            submission = replace(submission, restored_from=restore)
        requested = await cluster.submit(submission, sources)
        await _accepted(cluster, requested, timeout_s(arguments))
        if arguments.detach:
            print_requested(requested, arguments)
            return 0
        follower = Follower(cluster, requested.job, console)
        follower.say(f"{graph.name}: job {requested.job}, parallelism {graph.parallelism}")
        follower.say(*(f"{operator_name(o)}: {o.guarantee}" for o in graph.operators() if o.verb in SINK_VERBS))
        return await _follow(follower, requested, plan, arguments)


async def find_restore(cluster: ClusterClient, settings: ClusterSettings, name: str) -> Restore:
    """The savepoint of that name; one in a folder is brought into the cluster's store first."""
    if Path(name).is_dir():
        from penstock.client.exporting import import_into

        return await import_into(settings, Path(name))
    return (await cluster.savepoint(name)).restore


def print_requested(requested: Requested, arguments: argparse.Namespace) -> None:
    """What a script needs of a detached submission."""
    if arguments.json:
        print_json(requested)
    else:
        print(requested.job)


async def until_interrupted(work: Coroutine[Any, Any, T]) -> T | None:
    """What the work comes to; None if a signal to end came first, which cancels it."""
    working = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, working.cancel)
    await asyncio.wait([working])
    return None if working.cancelled() else working.result()


async def _accepted(cluster: ClusterClient, requested: Requested, deadline_s: float) -> None:
    """Wait until the leader has looked at the job; raises `PenstockError` if it refuses."""
    state = await cluster.outcome(requested, deadline_s)
    if state.state == "refused":
        raise PenstockError(state.reason)
    if state.state == "pending":
        raise ExternalError(
            f"job {requested.job}: no leader has looked at it in {deadline_s:g} s; it is kept and begins when one does "
            f"(penstock status {requested.job[:8]})"
        )


async def _follow(follower: Follower, requested: Requested, plan: LogicalPlan, arguments: argparse.Namespace) -> int:
    detail = await until_interrupted(follower.follow())
    if detail is None:
        short = requested.job[:8]
        follower.say(
            f"detached: job {requested.job} goes on; look with penstock status {short}, end it with penstock stop "
            f"{short} (with a savepoint) or penstock cancel {short}"
        )
        return 130
    assert detail.summary.state in ENDED
    await fetch_collected(follower.cluster, requested.job, plan)
    follower.outcome(detail)
    print_collected(plan)
    if arguments.json:
        print_json(detail.summary)
    return 0 if detail.summary.state in SUCCEEDED else 1
