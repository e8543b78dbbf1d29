"""What users say of a job besides its pipeline, and the request that comes of both: assembled here and nowhere else."""

from __future__ import annotations

import msgspec

from penstock.core.times import Duration, duration_us
from penstock.errors import UsageError
from penstock.graph.jobgraph import build_job_graph
from penstock.graph.rescaling import scalable_form
from penstock.plan.logical import LogicalPlan
from penstock.protocol.checkpoints import TOLERABLE_FAILED, CheckpointSettings
from penstock.protocol.joblog import Artifact, JobSettings, StateBackend
from penstock.protocol.messages import Restore
from penstock.protocol.requests import SubmitJob
from penstock.state.rocks.store import require_rocksdb
from penstock.submission.restart_text import parse_restart


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a job is to run."""

    parallelism: int = 1
    """Subtasks per operator that says nothing else."""
    settings: JobSettings = JobSettings()
    restored_from: Restore | None = None
    """The savepoint that it starts from."""
    allow_non_restored: bool = False
    """Whether state of operators that the pipeline does not have may be dropped."""
    allow_unpublished: bool = False
    """Whether rows that the checkpoint covers and that its job never published may be lost."""

    @property
    def at_least_once(self) -> bool:
        """Whether barriers are not aligned."""
        return self.settings.checkpoints.flavour == "at_least_once"


def interval_ms(checkpoint_interval: Duration, where: str) -> int:
    """In milliseconds, at least one; `where` leads the error about what is no duration."""
    return max(1, duration_us(checkpoint_interval, where, positive=True) // 1_000)


def check_incremental(incremental: bool, state_backend: StateBackend) -> None:
    """Refuse incremental checkpoints where snapshots are not in objects of their own.

    Raises:
        UsageError: they are asked for with the backend `memory`.
    """
    if incremental and state_backend == "memory":
        raise UsageError(
            "incremental checkpoints need a store for their objects, and the state backend memory keeps snapshots with "
            "the coordinator's metadata: choose fs or rocksdb, or leave them out"
        )


def job_settings(
    *,
    checkpoint_interval: Duration = "10s",
    tolerable_failed_checkpoints: int = TOLERABLE_FAILED,
    at_least_once: bool = False,
    restart: str = "exponential",
    state_backend: StateBackend = "fs",
    incremental_checkpoints: bool = False,
    per_job: bool = False,
) -> JobSettings:
    """The settings of a job from what people write.

    Args:
        checkpoint_interval: from the start of one checkpoint to the next.
        tolerable_failed_checkpoints: so many in a row may fail before the attempt does.
        at_least_once: do not align barriers; all sinks become at-least-once.
        restart: a strategy and its parts, such as `"fixed-delay:3:1s"`.
        state_backend: where keyed state is kept: see `Pipeline.run`.
        incremental_checkpoints: store what has changed since an earlier checkpoint: see `Pipeline.run`.
        per_job: have task managers started for this job alone.

    Raises:
        UsageError: one of them is none, the package behind the backend is not installed, or the backend has no
            incremental checkpoints.
    """
    check_incremental(incremental_checkpoints, state_backend)
    if state_backend == "rocksdb":
        require_rocksdb()
    checkpoints = CheckpointSettings(
        interval_ms=interval_ms(checkpoint_interval, "--checkpoint-interval"),
        tolerable_failed=tolerable_failed_checkpoints,
        flavour="at_least_once" if at_least_once else "aligned",
        incremental=incremental_checkpoints,
    )
    return JobSettings(checkpoints, parse_restart(restart), state_backend, per_job=per_job)


def job_request(
    plan: LogicalPlan, options: JobOptions, artifact: Artifact | None = None, *, job: str = ""
) -> SubmitJob:
    """The request that runs a plan. Without `job` its id is still to be given.

    Raises:
        PipelineError: the plan cannot run at this parallelism.
    """
    weak = options.at_least_once
    return SubmitJob(
        request=job,
        job=job,
        name=plan.name,
        graph=build_job_graph(plan, options.parallelism, at_least_once=weak, by_splits=True).to_json(),
        scalable=scalable_form(plan, at_least_once=weak, by_splits=True).to_json(),
        settings=options.settings,
        artifact=artifact,
        restored_from=options.restored_from,
        allow_non_restored=options.allow_non_restored,
        allow_unpublished=options.allow_unpublished,
    )
