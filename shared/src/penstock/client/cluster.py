"""Clusters and their jobs for programs and notebooks: what `penstock` does with them, without coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container
from pathlib import Path
from typing import Final, TypeVar

from penstock.client.client import ClusterClient, client_of
from penstock.client.documents import (
    ENDED,
    Checkpoint,
    FailedAttempt,
    JobDetail,
    JobSummary,
    Overview,
    Requested,
    RequestState,
    SavepointSummary,
)
from penstock.client.run_documents import RunSummary
from penstock.core.blocking import run_blocking
from penstock.core.times import Duration, duration_us
from penstock.errors import ExternalError, PenstockError
from penstock.protocol.messages import Restore
from penstock.settings import ClusterSettings, load_settings

T = TypeVar("T")
S = TypeVar("S", JobSummary, RunSummary)
POLL_S: Final = 0.5


class Cluster:
    """A cluster, through its dispatchers.

    Every method raises `NoAnswerError` if no dispatcher answers, and `RefusedError` if the cluster says no.

    Args:
        settings: of the cluster, or the file that holds them; `$PENSTOCK_CLUSTER`, else `.penstock/cluster.toml`, if not
            given.

    Example:
        >>> cluster = Cluster("production.toml")
        >>> cluster.job("hot-auctions").savepoint()  # doctest: +SKIP
    """

    def __init__(self, settings: ClusterSettings | str | Path | None = None) -> None:
        self.settings: Final = settings if isinstance(settings, ClusterSettings) else load_settings(settings)

    def overview(self) -> Overview:
        """The cluster in short."""
        return self.ask(lambda client: client.overview())

    def jobs(self) -> tuple[JobSummary, ...]:
        """Running jobs first, then ended ones; each group newest first."""
        return self.ask(lambda client: client.jobs()).jobs

    def job(self, name: str) -> Job:
        """The job of that id, beginning of an id, or name.

        Raises:
            RefusedError: there is none, or several.
        """
        return Job(self, self.ask(lambda client: client.job(name)).summary.job)

    def ask(self, work: Callable[[ClusterClient], Awaitable[T]]) -> T:
        """Do something with the asynchronous client."""

        async def asked() -> T:
            async with client_of(self.settings) as client:
                return await work(client)

        return run_blocking(asked())


class Job:
    """A job on a cluster.

    Example:
        >>> job = Cluster("production.toml").job("hot-auctions")  # doctest: +SKIP
        >>> job.savepoint()  # doctest: +SKIP
    """

    def __init__(self, cluster: Cluster, job: str) -> None:
        self.cluster: Final = cluster
        self.id: Final = job

    def __repr__(self) -> str:
        return f"Job({self.id!r})"

    def status(self) -> JobDetail:
        """How it is: state, subtasks, checkpoints."""
        return self.cluster.ask(lambda client: client.job(self.id))

    def checkpoints(self) -> tuple[Checkpoint, ...]:
        """The newest checkpoints, newest first."""
        return self.cluster.ask(lambda client: client.checkpoints(self.id)).checkpoints

    def failures(self) -> tuple[FailedAttempt, ...]:
        """Why attempts were given up, newest last."""
        return self.cluster.ask(lambda client: client.failures(self.id)).attempts

    def savepoints(self) -> tuple[SavepointSummary, ...]:
        """What the job, or another one in its place, can be started from."""
        return self.cluster.ask(lambda client: client.savepoints(self.id)).savepoints

    def wait(self, timeout: Duration = "1d") -> JobSummary:
        """Wait until the job has ended, and say how.

        Raises:
            ExternalError: it goes on after `timeout`.
        """
        return self.cluster.ask(lambda client: _ended(client, self.id, _seconds(timeout, "wait")))

    def savepoint(self, timeout: Duration = "10m") -> Restore:
        """Take a savepoint and go on; returns once everything it covers is published."""
        return self._left(self._done("savepoint", lambda client: client.take_savepoint(self.id), timeout))

    def stop(self, *, drain: bool = False, timeout: Duration = "10m") -> Restore:
        """Take a savepoint and end; `drain`: let all windows and timers fire before it."""
        return self._left(self._done("stop", lambda client: client.stop(self.id, drain=drain), timeout))

    def cancel(self, timeout: Duration = "10m") -> None:
        """Publish what is complete, then end."""
        self._done("cancel", lambda client: client.cancel(self.id), timeout)

    def rescale(self, parallelism: int, *, wait: bool = False, timeout: Duration = "10m") -> None:
        """Go on at another parallelism; `wait`: where slots are missing, not before they are there."""
        self._done("rescale", lambda client: client.rescale(self.id, parallelism, wait=wait), timeout)

    def _left(self, state: RequestState) -> Restore:
        """The savepoint of an answer; of a job that had ended before, its newest."""
        return state.savepoint or self.cluster.ask(lambda client: client.savepoint(self.id)).restore

    def _done(self, what: str, ask: Callable[[ClusterClient], Awaitable[Requested]], timeout: Duration) -> RequestState:
        deadline_s = _seconds(timeout, what)

        async def done(client: ClusterClient) -> RequestState:
            return await answered(client, await ask(client), what, deadline_s)

        return self.cluster.ask(done)


async def answered(client: ClusterClient, requested: Requested, what: str, deadline_s: float) -> RequestState:
    """Wait until the cluster has done what was asked.

    Raises:
        PenstockError: it refused.
        ExternalError: it did not answer in time; what was asked stands.
    """
    state = await client.outcome(requested, deadline_s)
    if state.state == "refused":
        raise PenstockError(f"{what}: {state.reason}")
    if state.state == "pending":
        raise not_done(what, deadline_s, requested.job[:8])
    return state


def not_done(what: str, deadline_s: float, name: str) -> ExternalError:
    """What was asked of the job or run of that name has not come to its end in time."""
    return ExternalError(
        f"{what}: not done after {deadline_s:g} s, and not given up: the cluster goes on with it; look with penstock "
        f"status {name}"
    )


async def until_ended(look: Callable[[], Awaitable[S]], ended: Container[str], deadline_s: float) -> S:
    """Look at a job or a run until its state is one of `ended`, or `deadline_s` have passed: then as it is."""
    clock = asyncio.get_running_loop().time
    end_s = clock() + deadline_s
    while True:
        summary = await look()
        if summary.state in ended or clock() >= end_s:
            return summary
        await asyncio.sleep(POLL_S)


async def _ended(client: ClusterClient, job: str, deadline_s: float) -> JobSummary:
    async def look() -> JobSummary:
        return (await client.job(job)).summary

    summary = await until_ended(look, ENDED, deadline_s)
    if summary.state not in ENDED:
        raise ExternalError(f"job {job}: still {summary.state.lower()} after {deadline_s:g} s")
    return summary


def _seconds(timeout: Duration, what: str) -> float:
    return duration_us(timeout, f"{what}: timeout", positive=True) / 1_000_000
