"""A run goes to the pipeline service of a cluster, by its dispatchers; the twin, for runs, of `penstock.submission`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from msgspec.structs import replace

from penstock.api.pipeline import DeclaredPipeline
from penstock.client.client import ClusterClient
from penstock.client.documents import ArtifactDescription, Requested
from penstock.client.run_documents import RunOptions, RunSubmission
from penstock.coordination.artifacts import pack
from penstock.errors import ExternalError, PenstockError, UsageError
from penstock.plan.logical import LogicalPlan
from penstock.savepoint.places import LocalPlace
from penstock.settings import ClusterSettings
from penstock.spark.engine import RunOptions as EngineOptions
from penstock.spark.engine import check_options, spark_graph
from penstock.spark.session import PLANNED_PARALLELISM
from penstock.submission.cluster_checks import check_fit
from penstock.submission.collected import gathering_sinks
from penstock.submission.remote import find_restore

WORKERS: Final = "the pipeline service"
"""What runs the pipeline there, in words."""


def prepare_run(
    pipeline: DeclaredPipeline, target: str, parameters: dict[str, str], options: RunOptions, run_id: str = ""
) -> tuple[RunSubmission, bytes]:
    """What is submitted, and the zip of the sources; whatever can be refused is refused here, before anything is sent.

    Raises:
        PenstockError: the pipeline cannot run on Spark, or not on a cluster.
    """
    check_fit(pipeline.plan, WORKERS)
    _check_sinks(pipeline.plan)
    graph = spark_graph(
        pipeline.plan,
        options.parallelism or PLANNED_PARALLELISM,
        until_now=options.in_steps or bool(options.to_savepoint),
    )
    if options.in_steps:  # as if it left its savepoint here: what has no position has none anywhere
        check_options(graph, pipeline.plan, EngineOptions(target=LocalPlace(Path())))
    packed = pack(target, parameters)
    artifact = packed.artifact
    described = ArtifactDescription(artifact.target, artifact.parameters, artifact.requirements)
    return RunSubmission(pipeline.name, graph.to_json(), described, options, run_id), packed.data


def _check_sinks(plan: LogicalPlan) -> None:
    gathering = [operator for operator, _, _ in gathering_sinks(plan)]
    if gathering:
        raise UsageError(
            f"{', '.join(gathering)}: collecting.Sink gathers rows in the memory of a process that ends with the run; "
            "write to files or to a topic"
        )


async def starting_from(
    cluster: ClusterClient, settings: ClusterSettings, submission: RunSubmission, savepoint: str
) -> RunSubmission:
    """The same run, started from the savepoint of that name (see `find_restore`)."""
    restore = await find_restore(cluster, settings, savepoint)
    return replace(submission, options=replace(submission.options, from_savepoint=restore.manifest))


async def submit_run(cluster: ClusterClient, submission: RunSubmission, sources: bytes, deadline_s: float) -> Requested:
    """Submit a run, and wait until a pipeline service has accepted it.

    Raises:
        PenstockError: the service does not know all that is asked: it is of another version.
        ExternalError: none looked at it within `deadline_s` seconds; it is kept.
    """
    requested = await cluster.submit_run(submission, sources)
    state = await cluster.run_outcome(requested, deadline_s)
    if state.state == "refused":
        raise PenstockError(f"run {requested.job}: {state.reason}")
    if state.state == "pending":
        raise ExternalError(
            f"run {requested.job}: no pipeline service has looked at it in {deadline_s:g} s; it is kept for a day and "
            f"begins when one does (penstock status {requested.job})"
        )
    return requested
