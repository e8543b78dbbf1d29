"""`penstock submit`: a pipeline file, on a cluster."""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from penstock.api.loading import load_pipeline, parse_parameters
from penstock.cli.cluster import print_json, timeout_s
from penstock.cli.display import operator_name, print_collected
from penstock.cli.following import Follower
from penstock.client import ClusterClient
from penstock.client.documents import ENDED, Requested
from penstock.graph.jobgraph import SINK_VERBS, graph_from_json
from penstock.graph.logical import LogicalPlan
from penstock.settings import ClusterSettings, load_settings
from penstock.submission.application import ApplicationSpec, Prepared, prepare_loaded, restored
from penstock.submission.cluster_checks import advice
from penstock.submission.collected import fetch_collected
from penstock.submission.options import JobOptions, job_settings
from penstock.submission.remote import find_restore, submit

T = TypeVar("T")

SUCCEEDED = ("FINISHED", "STOPPED")


def submit_command(arguments: argparse.Namespace) -> int:
    """Submit the pipeline, and follow it unless told not to; the exit code."""
    cluster = load_settings(arguments.cluster)
    parameters = parse_parameters(arguments.param)
    pipeline = load_pipeline(arguments.file, parameters)
    prepared = prepare_loaded(pipeline, ApplicationSpec(arguments.file, parameters, _options(arguments)))
    console = Console(stderr=True, highlight=False)
    for line in advice(pipeline.plan, Path(arguments.file.partition(":")[0])):
        console.print(f"warning: {line}", markup=False, soft_wrap=True)
    return asyncio.run(_submit(cluster, prepared, pipeline.plan, arguments, console))


def _options(arguments: argparse.Namespace) -> JobOptions:
    return JobOptions(
        parallelism=arguments.parallelism or 1,
        settings=job_settings(
            checkpoint_interval=arguments.checkpoint_interval,
            tolerable_failed_checkpoints=arguments.tolerable_failed_checkpoints,
            at_least_once=arguments.at_least_once,
            restart=arguments.restart,
            state_backend=arguments.state_backend,
            per_job=arguments.per_job,
        ),
        allow_non_restored=arguments.allow_non_restored,
        allow_unpublished=arguments.allow_unpublished,
    )


async def _submit(
    settings: ClusterSettings, prepared: Prepared, plan: LogicalPlan, arguments: argparse.Namespace, console: Console
) -> int:
    graph = graph_from_json(prepared.request.graph)
    async with ClusterClient(settings.rest, token=settings.token) as cluster:
        if arguments.from_savepoint:
            prepared = restored(prepared, await find_restore(cluster, settings, arguments.from_savepoint))
        requested = await submit(cluster, prepared, timeout_s(arguments))
        if arguments.detach:
            print_requested(requested, arguments)
            return 0
        follower = Follower(cluster, requested.job, console)
        follower.say(f"{graph.name}: job {requested.job}, parallelism {graph.parallelism}")
        follower.say(*(f"{operator_name(o)}: {o.guarantee}" for o in graph.operators() if o.verb in SINK_VERBS))
        return await _follow(follower, requested, plan, arguments)


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
