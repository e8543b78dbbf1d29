"""`penstock submit`: a pipeline file, on a cluster."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec
from rich.console import Console
from rich.text import Text

from penstock.cli.cluster import ClusterOptions, print_json, timeout_s
from penstock.cli.display import print_collected
from penstock.cli.job_following import JobFollower
from penstock.client.client import client_of
from penstock.client.documents import Requested
from penstock.coordination.job_summary import operator_name
from penstock.errors import UsageError
from penstock.graph.jobgraph import SINK_VERBS, graph_from_json
from penstock.loading import load_pipeline, parse_parameters
from penstock.plan.logical import LogicalPlan
from penstock.settings import ClusterSettings, load_settings
from penstock.submission.application import ApplicationSpec, Prepared, prepare_loaded, restored
from penstock.submission.cluster_checks import advice
from penstock.submission.collected import fetch_collected
from penstock.submission.file import write_submission
from penstock.submission.options import JobOptions, job_settings
from penstock.submission.remote import find_restore, submit

SUCCEEDED = ("FINISHED", "STOPPED")


@dataclass(frozen=True)
class SubmitOptions(ClusterOptions):
    """What `penstock submit` takes for every engine."""

    file: str
    parallelism: int | None
    param: list[str]
    from_savepoint: str | None
    detach: bool
    timeout: str


@dataclass(frozen=True)
class SubmitStream(SubmitOptions):
    """`penstock submit`, to the task managers."""

    allow_non_restored: bool
    allow_unpublished: bool
    per_job: bool
    at_least_once: bool
    checkpoint_interval: str
    tolerable_failed_checkpoints: int
    restart: str
    state_backend: Literal["fs", "memory", "rocksdb"]
    incremental_checkpoints: bool
    write: str | None
    job_id: str | None


def submit_command(command: SubmitStream) -> int:
    """Submit the pipeline and follow it unless told not to, or write its submission to a file; the exit code."""
    console = Console(stderr=True, highlight=False)
    if command.write is None:
        cluster = load_settings(command.cluster)
        prepared, plan = _prepared(command, console)
        return asyncio.run(_submit(cluster, prepared, plan, command, console))
    if command.from_savepoint:
        raise UsageError(
            "--write: what the job starts from is chosen where the file is submitted; leave --from-savepoint out"
        )
    if command.job_id:
        raise UsageError("--write: every submission of the file is a job of its own; leave --job-id out")
    prepared, _ = _prepared(command, console)
    write_submission(Path(command.write), prepared)
    return 0


def _prepared(command: SubmitStream, console: Console) -> tuple[Prepared, LogicalPlan]:
    """The job and its plan, with warnings about what may not run on a cluster."""
    parameters = parse_parameters(command.param)
    pipeline = load_pipeline(command.file, parameters)
    prepared = prepare_loaded(pipeline, ApplicationSpec(command.file, parameters, _options(command)))
    if command.job_id:
        prepared = replace(prepared, request=msgspec.structs.replace(prepared.request, job=command.job_id))
    for line in advice(pipeline.plan, Path(command.file.partition(":")[0])):
        console.print(f"warning: {line}", markup=False, soft_wrap=True)
    return prepared, pipeline.plan


def _options(command: SubmitStream) -> JobOptions:
    return JobOptions(
        parallelism=command.parallelism or 1,
        settings=job_settings(
            checkpoint_interval=command.checkpoint_interval,
            tolerable_failed_checkpoints=command.tolerable_failed_checkpoints,
            at_least_once=command.at_least_once,
            restart=command.restart,
            state_backend=command.state_backend,
            incremental_checkpoints=command.incremental_checkpoints,
            per_job=command.per_job,
        ),
        allow_non_restored=command.allow_non_restored,
        allow_unpublished=command.allow_unpublished,
    )


async def _submit(
    settings: ClusterSettings, prepared: Prepared, plan: LogicalPlan, command: SubmitStream, console: Console
) -> int:
    graph = graph_from_json(prepared.request.graph)
    async with client_of(settings) as cluster:
        if command.from_savepoint:
            prepared = restored(prepared, await find_restore(cluster, settings, command.from_savepoint))
        requested = await submit(cluster, prepared, timeout_s(command.timeout))
        if command.detach:
            print_requested(requested, command)
            console.print(
                Text(f"{graph.name} on the dashboard: {settings.rest}/#/jobs/{requested.job}"), soft_wrap=True
            )
            return 0
        follower = JobFollower(cluster, requested.job, console)
        follower.say(f"{graph.name}: job {requested.job}, parallelism {graph.parallelism}")
        follower.say(*(f"{operator_name(o)}: {o.guarantee}" for o in graph.operators() if o.verb in SINK_VERBS))
        return await _follow(follower, requested, plan, command)


def print_requested(requested: Requested, command: SubmitOptions) -> None:
    """What a script needs of a detached submission."""
    if command.json:
        print_json(requested)
    else:
        print(requested.job)


async def _follow(follower: JobFollower, requested: Requested, plan: LogicalPlan, command: SubmitStream) -> int:
    detail = await follower.follow()
    if detail is None:
        return 130
    await fetch_collected(follower.cluster, requested.job, plan)
    follower.outcome(detail)
    print_collected(plan)
    if command.json:
        print_json(detail.summary)
    return 0 if detail.summary.state in SUCCEEDED else 1
