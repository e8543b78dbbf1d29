"""A job stops with a savepoint, Spark does what waits for it, and the job goes on from there.

Everything is named after the savepoint, so the same done again after a failure is the same run and the same new job.
What a run has made visible must not be done again, so from the moment it is decided the job can go on from the new
savepoint only; whatever fails, the user is told from which one, and how.
"""

from __future__ import annotations

import hashlib
import shlex
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.adapters.cluster_ports import cluster_store
from penstock.api.pipeline import DeclaredPipeline
from penstock.client import Cluster, ClusterClient
from penstock.client.cluster import answered
from penstock.client.documents import ENDED, Requested
from penstock.coordination.artifacts import check_requirements, unpack
from penstock.coordination.job_store import JobReader
from penstock.core.blocking import run_blocking
from penstock.core.times import Duration, duration_us
from penstock.errors import CorruptDataError, PenstockError, UsageError
from penstock.loading import load_pipeline
from penstock.ports import BlobExistsError
from penstock.protocol.joblog import Artifact, JobSettings
from penstock.protocol.messages import Restore
from penstock.savepoint.folder import SavepointPlace, is_sealed
from penstock.savepoint.places import LocalPlace, place_of
from penstock.savepoint.reading import read_restore
from penstock.savepoint.transfer import import_savepoint
from penstock.settings import ClusterSettings
from penstock.spark.committing import RunManifests
from penstock.spark.engine import RunOptions, spark_graph
from penstock.spark.local_run import LocalRun, RunWatch, choose_cluster, execute
from penstock.spark.session import PLANNED_PARALLELISM, SparkSettings, check_installed
from penstock.spark.splits import RunBeginnings
from penstock.spark.starting import StartingPoint
from penstock.submission.application import Prepared
from penstock.submission.options import JobOptions, job_request
from penstock.submission.remote import submit
from penstock.submission.restart_text import restart_text

_FOLDER: Final = Path(".penstock/catch-up")
_CLAIMS: Final = "catch-up/"
"""Where the store says on which machine a backlog is caught up: what a run has staged is there."""
_ANYWHERE: Final = SparkSettings()


@dataclass(frozen=True)
class CaughtUp:
    """The job that goes on, in the place of the one that was stopped."""

    requested: Requested
    parallelism: int


def catch_up(
    job: str,
    cluster: str | Path | None = None,
    *,
    spark: SparkSettings = _ANYWHERE,
    parallelism: int | None = None,
    timeout: Duration = "5m",
    watch: RunWatch | None = None,
) -> CaughtUp | None:
    """Stop a job, do on Spark what waits for it, and let it go on from there; what `penstock catch-up` does.

    Called again after a failure, with the same job, it carries the same run to its end without doubling a row.

    Args:
        job: its id, the beginning of its id, or its name.
        cluster: the file of the cluster's settings; `$PENSTOCK_CLUSTER`, else `.penstock/cluster.toml`, if not given.
        spark: where Spark is; on this machine by default.
        parallelism: subtasks per operator on Spark; as many as it runs by default.
        timeout: how long the cluster is waited for, each time.
        watch: is told what happens; by default, standard error.

    Returns:
        The job that goes on; None if Ctrl-C came while Spark computed (the watch has been told how to go on).

    Raises:
        PenstockError: it cannot be caught up, or something failed on the way; the watch has been told how to go on.

    Example:
        >>> catch_up("hot-auctions", "production.toml", spark=SparkSettings("spark://spark:7077"))
    """
    watch = watch or RunWatch()
    settings, deadline_s = choose_cluster(cluster), duration_us(timeout, "timeout", positive=True) / 1_000_000
    target = Cluster(settings)
    # Whatever can be wrong is found before the job is stopped.
    check_installed(java=spark.remote is None)
    found = target.ask(lambda client: _look(client, job, settings))
    spark_graph(found.pipeline.plan, parallelism or PLANNED_PARALLELISM, until_now=True)
    savepoint = target.ask(lambda client: _stopped(client, found, deadline_s))
    watch.say(f"{found.id[:8]}: stopped; its state is in savepoint {savepoint.checkpoint}: {savepoint.manifest}")
    backlog = Backlog(found, savepoint, settings, spark.staging)
    try:
        run_blocking(backlog.claim())
        if execute(backlog.run(spark, parallelism, watch), watch, found.pipeline) is None:
            watch.say(backlog.how_to_go_on())
            return None
        return CaughtUp(target.ask(lambda client: backlog.submit(client, deadline_s)), found.parallelism)
    except BaseException:  # told and raised again: the job stands still, whatever it was
        watch.say(backlog.how_to_go_on())
        raise


@dataclass(frozen=True)
class StoppedJob:
    """A job of the cluster, and its code."""

    id: str
    state: str
    parallelism: int
    settings: JobSettings
    artifact: Artifact
    sources: bytes
    place: Path
    """Where its sources are unpacked."""
    pipeline: DeclaredPipeline

    @property
    def target(self) -> str:
        """The pipeline's file, unpacked."""
        return str(self.place / self.artifact.target)

    @property
    def at_least_once(self) -> bool:
        """Whether its barriers are not aligned."""
        return self.settings.checkpoints.flavour == "at_least_once"


async def _look(cluster: ClusterClient, name: str, settings: ClusterSettings) -> StoppedJob:
    """Everything about the job; raises `PenstockError` if it cannot be caught up."""
    detail = await cluster.job(name)
    job, state = detail.summary.job, detail.summary.state
    if state in ENDED and state != "STOPPED":
        raise UsageError(f"job {job} has ended ({state.lower()}): there is nothing to catch up")
    async with cluster_store(settings) as blobs:  # the interface does not show the values of parameters
        submitted = (await JobReader(blobs).history(job)).submit
    if submitted is None or submitted.artifact is None:
        raise CorruptDataError(f"job {job}: its log names no sources")
    artifact = submitted.artifact
    check_requirements(artifact.requirements)
    sources = await cluster.artifact(job)
    place = unpack(artifact, sources, (_FOLDER / "sources").absolute())
    pipeline = load_pipeline(str(place / artifact.target), dict(artifact.parameters))
    return StoppedJob(job, state, detail.summary.parallelism, submitted.settings, artifact, sources, place, pipeline)


async def _stopped(cluster: ClusterClient, job: StoppedJob, deadline_s: float) -> Restore:
    """The savepoint that the job ends with, or has ended with."""
    if job.state not in ENDED:
        state = await answered(cluster, await cluster.stop(job.id), "stop", deadline_s)
        if state.savepoint is not None:
            return state.savepoint
    return (await cluster.savepoint(job.id)).restore


class Backlog:
    """What waits for a job, behind one savepoint."""

    def __init__(
        self, job: StoppedJob, savepoint: Restore, settings: ClusterSettings, staging: str | None = None
    ) -> None:
        """`staging` is as in `SparkSettings`: the run's savepoint goes there, too."""
        self._job = job
        self._savepoint = savepoint
        self._settings = settings
        self.run_id: Final = hashlib.sha256(f"{settings.name}\0{savepoint.sha256}".encode()).hexdigest()[:32]
        self._folder = (_FOLDER / f"{job.id[:8]}-{savepoint.checkpoint}").absolute()
        self._manifests = RunManifests(self._folder / "runs", staging)
        self._is_staged = staging is not None

    @property
    def _target(self) -> SavepointPlace:
        """Where the run leaves its savepoint: where it began to, or where it would if it began now."""
        begun = RunBeginnings(self._manifests.folder).begun(self.run_id)
        if begun is not None:
            return place_of(begun.target)
        if not self._is_staged:
            return LocalPlace(self._folder / "savepoint")
        self._manifests.folder.mkdir(parents=True, exist_ok=True)
        return place_of(f"{self._manifests.staging}/savepoint", "--staging")

    async def claim(self) -> None:
        """Raise `UsageError` if this backlog is caught up in another place."""
        here = f"{socket.gethostname()}:{self._folder}"
        key = f"{_CLAIMS}{self.run_id}"
        async with cluster_store(self._settings) as blobs:
            try:
                await blobs.create(key, here.encode())
            except BlobExistsError:
                there = (await blobs.get(key)).decode()
                if there != here:
                    raise UsageError(
                        f"this backlog is being caught up in {there}, where what Spark computed is; go on there"
                    ) from None

    def run(self, spark: SparkSettings, parallelism: int | None, watch: RunWatch) -> LocalRun:
        """The run that does it."""
        start = StartingPoint(read_restore(self._savepoint, self._settings), self._settings)
        options = RunOptions(start, self._target, warn=watch.warn)
        parameters = dict(self._job.artifact.parameters)
        return LocalRun(self._job.target, parameters, spark, options, parallelism, self.run_id, self._manifests.folder)

    async def submit(self, cluster: ClusterClient, deadline_s: float) -> Requested:
        """Let the job go on from the new savepoint, with the settings that it had."""
        job = self._job
        async with cluster_store(self._settings) as blobs:
            restore = await import_savepoint(blobs, self._target)
        options = JobOptions(parallelism=job.parallelism, settings=job.settings, restored_from=restore)
        new_job = hashlib.sha256(f"job\0{self.run_id}".encode()).hexdigest()[:32]
        prepared = Prepared(job_request(job.pipeline.plan, options, job.artifact, job=new_job), job.sources)
        return await submit(cluster, prepared, deadline_s)

    def how_to_go_on(self) -> str:
        """From which savepoint the job can go on, and how."""
        again = f"penstock catch-up {self._job.id}"
        if self._manifests.find(self.run_id) is None:
            return (
                f"the job stands still, and nothing that Spark did is visible; try again with: {again}; or let the job "
                f"go on as it was: {self._resume(self._savepoint.manifest)}"
            )
        if self._manifests.is_committed(self.run_id) and self._is_kept():
            return (
                f"the job stands still; its backlog is done. Go on with: {again}; or: {self._resume(str(self._target))}. "
                f"Do not resume it from {self._savepoint.manifest}: that would do the backlog again"
            )
        return (
            f"the job stands still; its backlog is computed and partly visible. Carry that to its end, without doubling "
            f"a row, with: {again}"
        )

    def _is_kept(self) -> bool:
        """Whether the savepoint is there, as far as can be seen."""
        try:
            return is_sealed(self._target)
        except PenstockError:
            return False  # the store is away: what is to be told must be told

    def _resume(self, savepoint: str) -> str:
        """The command that lets the job go on from a savepoint."""
        job, settings = self._job, self._job.settings
        command = ["penstock", "submit", job.target, "--from-savepoint", savepoint, "--detach"]
        command += ["--parallelism", str(job.parallelism)]
        command += ["--checkpoint-interval", f"{settings.checkpoints.interval_ms}ms"]
        command += ["--tolerable-failed-checkpoints", str(settings.checkpoints.tolerable_failed)]
        command += ["--restart", restart_text(settings.restart), "--state-backend", settings.state_backend]
        command += ["--incremental-checkpoints"] if settings.checkpoints.incremental else []
        command += ["--per-job"] if settings.per_job else []
        command += ["--at-least-once"] if job.at_least_once else []
        command += [part for name, value in job.artifact.parameters.items() for part in ("--param", f"{name}={value}")]
        return shlex.join(command)
