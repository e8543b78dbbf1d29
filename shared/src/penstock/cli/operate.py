"""`penstock savepoint`, `stop`, `cancel`, `rescale`: each asks, and waits until it is done."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.cli.cluster import ClusterOptions, OneJob, print_json, timeout_s, with_cluster
from penstock.cli.runs import cancel_run, cancelled, stop_run
from penstock.client import ClusterClient
from penstock.client.cluster import answered
from penstock.client.documents import ENDED, RequestState
from penstock.client.run_documents import RUN_ENDED, RunSummary
from penstock.core.names import shown
from penstock.errors import ExternalError, PenstockError, UsageError
from penstock.settings import load_settings

if TYPE_CHECKING:
    from penstock.savepoint.folder import SavepointPlace


@dataclass(frozen=True)
class Operation(OneJob):
    """A command that asks something of a job: `penstock cancel`."""

    timeout: str


@dataclass(frozen=True)
class TakeSavepoint(Operation):
    """`penstock savepoint`."""

    to: str | None


@dataclass(frozen=True)
class StopJobs(ClusterOptions):
    """`penstock stop`: one job, or all."""

    job: str | None
    timeout: str
    all: bool
    drain: bool


@dataclass(frozen=True)
class Rescale(Operation):
    """`penstock rescale`."""

    parallelism: int
    wait: bool


def savepoint_command(command: TakeSavepoint) -> int:
    """Take a savepoint; with `--to`, copy it into a folder too."""
    to: SavepointPlace | None = None
    if command.to:
        from penstock.savepoint.folder import check_target  # they load what reads states
        from penstock.savepoint.places import place_of

        to = place_of(command.to, "--to")
        check_target(to)

    async def take(cluster: ClusterClient) -> RequestState:
        requested = await cluster.take_savepoint(command.job)
        return await answered(cluster, requested, "savepoint", timeout_s(command.timeout))

    state = with_cluster(command, take)
    if to is not None and state.savepoint is not None:
        from penstock.client.exporting import export_from

        export_from(load_settings(command.cluster), state.savepoint, to)
    _report(command, state, "savepoint", str(to) if to is not None else "")
    return 0


def stop_command(command: StopJobs) -> int:
    """Take a savepoint and end; with `--all` every job that runs. A job in steps ends behind the step at work."""
    job = command.job
    if bool(job) == command.all:
        raise UsageError("name one job, or say --all")
    if not job:
        return with_cluster(command, lambda cluster: _stop_all(cluster, command))

    found = with_cluster(command, lambda cluster: cluster.find(job))
    if found.kind == "run":
        if command.drain:
            raise UsageError(f"--drain: {found.id} is a run on Spark, which ends no input; leave it out")
        return stop_run(command, found.id, timeout_s(command.timeout))

    async def stop(cluster: ClusterClient) -> RequestState:
        requested = await cluster.stop(found.id, drain=command.drain)
        return await answered(cluster, requested, "stop", timeout_s(command.timeout))

    _report(command, with_cluster(command, stop), "stopped", "")
    return 0


async def _stop_all(cluster: ClusterClient, command: StopJobs) -> int:
    """All are asked at once; one that is refused keeps no other from stopping."""
    listed = await cluster.jobs()
    if listed.missing:
        raise ExternalError(f"nothing was stopped: not all jobs are known: {listed.missing}")
    names = {job.job: f"{job.job[:8]} {shown(job.name)}" for job in listed.jobs if job.state not in ENDED}
    in_steps = await _in_steps(cluster)
    if not command.json:
        every = [*names.values(), *in_steps]
        waiting = f"waiting for the savepoints of {len(every)} jobs, up to {command.timeout}: {', '.join(every)}"
        print(waiting if every else "no jobs run", flush=True)
    answers, ended = await asyncio.gather(
        asyncio.gather(*(_stopped(cluster, job, command) for job in names)),
        asyncio.gather(*(_ended_steps(cluster, run, command) for run in in_steps)),
    )
    if command.json:
        print_json([answer for answer in (*answers, *ended) if not isinstance(answer, PenstockError)])
    found = [*zip(names.values(), answers, strict=True), *zip(in_steps, ended, strict=True)]
    if problems := [f"{name}: {answer}" for name, answer in found if isinstance(answer, PenstockError)]:
        raise PenstockError(f"not stopped: {'; '.join(problems)}")
    return 0


async def _in_steps(cluster: ClusterClient) -> list[str]:
    """The runs that end only when they are told to."""
    working = [run.run for run in (await cluster.runs()).runs if run.state not in RUN_ENDED]
    details = await asyncio.gather(*(cluster.run(run) for run in working))
    return [detail.summary.run for detail in details if detail.options.in_steps]


async def _ended_steps(cluster: ClusterClient, run: str, command: StopJobs) -> RunSummary | PenstockError:
    try:
        summary = await cancelled(cluster, run, timeout_s(command.timeout))
    except PenstockError as error:
        return error
    if not command.json:
        print(f"{run}: {summary.state.lower()}, {summary.reason}")
    return summary


async def _stopped(cluster: ClusterClient, job: str, command: StopJobs) -> RequestState | PenstockError:
    try:
        requested = await cluster.stop(job, drain=command.drain)
        state = await answered(cluster, requested, "stop", timeout_s(command.timeout))
    except PenstockError as error:
        return error
    if not command.json:
        _report(command, state, "stopped", "")
    return state


def cancel_command(command: Operation) -> int:
    """Publish what is complete, then end; of a run on Spark nothing becomes visible unless it is decided already."""
    found = with_cluster(command, lambda cluster: cluster.find(command.job))
    if found.kind == "run":
        return cancel_run(command, found.id, timeout_s(command.timeout))

    async def cancel(cluster: ClusterClient) -> RequestState:
        return await answered(cluster, await cluster.cancel(found.id), "cancel", timeout_s(command.timeout))

    _report(command, with_cluster(command, cancel), "cancelled", "")
    return 0


def rescale_command(command: Rescale) -> int:
    """Go on at another parallelism."""

    async def rescale(cluster: ClusterClient) -> RequestState:
        requested = await cluster.rescale(command.job, command.parallelism, wait=command.wait)
        return await answered(cluster, requested, "rescale", timeout_s(command.timeout))

    _report(command, with_cluster(command, rescale), f"runs at parallelism {command.parallelism}", "")
    return 0


def _report(options: ClusterOptions, state: RequestState, done: str, copy: str) -> None:
    if options.json:
        print_json(state)
        return
    print(f"{state.job[:8]}: {done}")
    if state.savepoint is not None:
        print(f"savepoint {state.savepoint.checkpoint}: {state.savepoint.manifest}")
        print(f"start from it with: penstock submit FILE --from-savepoint {copy or state.savepoint.manifest}")
