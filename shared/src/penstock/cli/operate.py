"""`penstock savepoint`, `stop`, `cancel`, `rescale`: each asks, and waits until it is done."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from penstock.cli.cluster import print_json, timeout_s, with_cluster
from penstock.cli.runs import cancel_run
from penstock.client import ClusterClient
from penstock.client.cluster import answered
from penstock.client.documents import ENDED, RequestState
from penstock.errors import ExternalError, PenstockError, UsageError
from penstock.settings import load_settings


def savepoint_command(arguments: argparse.Namespace) -> int:
    """Take a savepoint; with `--to`, copy it into a folder too."""
    to = Path(arguments.to) if arguments.to else None
    if to is not None:
        from penstock.savepoint.folder import check_target

        check_target(to)

    async def take(cluster: ClusterClient) -> RequestState:
        requested = await cluster.take_savepoint(arguments.job)
        return await answered(cluster, requested, "savepoint", timeout_s(arguments))

    state = with_cluster(arguments, take)
    if to is not None and state.savepoint is not None:
        from penstock.client.exporting import export_from

        export_from(load_settings(arguments.cluster), state.savepoint, to)
    _report(arguments, state, "savepoint", str(to) if to is not None else "")
    return 0


def stop_command(arguments: argparse.Namespace) -> int:
    """Take a savepoint and end; with `--all` every job that runs."""
    if bool(arguments.job) == arguments.all:
        raise UsageError("name one job, or say --all")
    if arguments.all:
        return with_cluster(arguments, lambda cluster: _stop_all(cluster, arguments))

    async def stop(cluster: ClusterClient) -> RequestState:
        requested = await cluster.stop(arguments.job, drain=arguments.drain)
        return await answered(cluster, requested, "stop", timeout_s(arguments))

    _report(arguments, with_cluster(arguments, stop), "stopped", "")
    return 0


async def _stop_all(cluster: ClusterClient, arguments: argparse.Namespace) -> int:
    """All are asked at once; one that is refused keeps no other from stopping."""
    listed = await cluster.jobs()
    if listed.missing:
        raise ExternalError(f"nothing was stopped: not all jobs are known: {listed.missing}")
    names = {job.job: f"{job.job[:8]} {job.name}" for job in listed.jobs if job.state not in ENDED}
    if not arguments.json:
        waiting = (
            f"waiting for the savepoints of {len(names)} jobs, up to {arguments.timeout}: {', '.join(names.values())}"
        )
        print(waiting if names else "no jobs run", flush=True)
    answers = await asyncio.gather(*(_stopped(cluster, job, arguments) for job in names))
    if arguments.json:
        print_json([answer for answer in answers if isinstance(answer, RequestState)])
    named = zip(names.values(), answers, strict=True)
    problems = [f"{name}: {answer}" for name, answer in named if isinstance(answer, PenstockError)]
    if problems:
        raise PenstockError(f"not stopped: {'; '.join(problems)}")
    return 0


async def _stopped(cluster: ClusterClient, job: str, arguments: argparse.Namespace) -> RequestState | PenstockError:
    try:
        requested = await cluster.stop(job, drain=arguments.drain)
        state = await answered(cluster, requested, "stop", timeout_s(arguments))
    except PenstockError as error:
        return error
    if not arguments.json:
        _report(arguments, state, "stopped", "")
    return state


def cancel_command(arguments: argparse.Namespace) -> int:
    """Publish what is complete, then end; of a run on Spark nothing becomes visible unless it is decided already."""
    found = with_cluster(arguments, lambda cluster: cluster.find(arguments.job))
    if found.kind == "run":
        return cancel_run(arguments, found.id)

    async def cancel(cluster: ClusterClient) -> RequestState:
        return await answered(cluster, await cluster.cancel(found.id), "cancel", timeout_s(arguments))

    _report(arguments, with_cluster(arguments, cancel), "cancelled", "")
    return 0


def rescale_command(arguments: argparse.Namespace) -> int:
    """Go on at another parallelism."""

    async def rescale(cluster: ClusterClient) -> RequestState:
        requested = await cluster.rescale(arguments.job, arguments.parallelism, wait=arguments.wait)
        return await answered(cluster, requested, "rescale", timeout_s(arguments))

    _report(arguments, with_cluster(arguments, rescale), f"runs at parallelism {arguments.parallelism}", "")
    return 0


def _report(arguments: argparse.Namespace, state: RequestState, done: str, copy: str) -> None:
    if arguments.json:
        print_json(state)
        return
    print(f"{state.job[:8]}: {done}")
    if state.savepoint is not None:
        print(f"savepoint {state.savepoint.checkpoint}: {state.savepoint.manifest}")
        print(f"start from it with: penstock submit FILE --from-savepoint {copy or state.savepoint.manifest}")
