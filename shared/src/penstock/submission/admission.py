"""Whether a submitted job can be run, and from which state: looked at before it exists."""

from __future__ import annotations

import msgspec

from penstock.coordination.job_catalog import JobCatalog
from penstock.coordination.job_store import JobReader
from penstock.errors import CorruptDataError, IncompatibleStateError
from penstock.graph.jobgraph import FORMAT_VERSION, JobGraph, graph_from_json, published_by_splits, wrong_names
from penstock.plan.signatures import check_signature
from penstock.ports import Blobs, Clock
from penstock.protocol.manifests import Manifest, covers_rows
from penstock.protocol.messages import Restore
from penstock.protocol.requests import Answer, Request, SubmitJob


async def refusal(request: SubmitJob, blobs: Blobs) -> str:
    """Why the job cannot be run; empty if it can."""
    version = request.graph.get("version")
    if version != FORMAT_VERSION:
        return (
            f"the job graph has format {version}, this cluster reads {FORMAT_VERSION}: "
            "submit with the version of Penstock that the cluster runs"
        )
    try:
        graph = graph_from_json(request.graph)
        if wrong := wrong_names(request.name, graph):
            return wrong
        if request.restored_from is not None:
            manifest = await JobReader(blobs).manifest(request.restored_from)
            check_compatible(graph, manifest, allow_non_restored=request.allow_non_restored)
            if not request.allow_unpublished:
                await _check_published(request.restored_from, manifest, blobs)
            await _check_marks(request, manifest, blobs)
    except msgspec.ValidationError as error:
        return f"the job graph is not readable: {error}"
    except (IncompatibleStateError, CorruptDataError) as error:
        return str(error)
    return ""


async def refuse(request: Request, reason: str, catalog: JobCatalog, clock: Clock) -> None:
    """Leave the answer, unless there is one already: a request that is read again changes nothing."""
    if await catalog.answer_to(request.job, request.request) is None:
        kind = type(request).__name__
        await catalog.answer(Answer(request.request, request.job, kind, "refused", reason, None, clock.now_us()))


async def _check_published(restore: Restore, manifest: Manifest, blobs: Blobs) -> None:
    """Raise `IncompatibleStateError` if rows of the checkpoint stand in an exchange that the new job will not read."""
    if not covers_rows(manifest):
        return
    history = await JobReader(blobs).history(manifest.job)
    if not history.is_published(restore.manifest):
        raise IncompatibleStateError(
            f"checkpoint {manifest.checkpoint} of job {manifest.job[:8]} is no savepoint: rows that it covers may wait "
            "in its job's exchanges, and a job restored from it would never publish them; restore a savepoint, or accept "
            "the loss with --allow-unpublished"
        )


async def _check_marks(request: SubmitJob, manifest: Manifest, blobs: Blobs) -> None:
    """Raise `IncompatibleStateError` if rows behind the checkpoint are visible and the new job would make them again."""
    assert request.restored_from is not None
    beyond = await JobReader(blobs).published_beyond(request.restored_from.manifest, manifest.job)
    if lost := sorted(beyond - published_by_splits(request.graph)):
        raise IncompatibleStateError(
            f"job {manifest.job[:8]} has published rows behind its checkpoint {manifest.checkpoint}: its sink "
            f"{lost[0]!r} waits for no checkpoint and keeps where its source stands. A job with that sink behind a Kafka "
            "source and no state goes on there; for another pipeline take a savepoint of a job that runs"
        )


def check_compatible(graph: JobGraph, manifest: Manifest, *, allow_non_restored: bool = False) -> None:
    """Check that the state of a checkpoint fits the pipeline: operators are found again by their id.

    Raises:
        IncompatibleStateError: an operator has state that the pipeline has no place for, or whose form has changed, or
            key groups would not match. Names them all.
    """
    current = {operator.id: operator.state for operator in graph.operators() if operator.state}
    problems: list[str] = []
    orphans = sorted(manifest.operators.keys() - current.keys())
    if orphans and not allow_non_restored:
        problems.append(
            f"state of {', '.join(map(repr, orphans))} in checkpoint {manifest.checkpoint} has no operator in the "
            "pipeline; put it back (give operators a .uid() so that they are found again when the pipeline changes "
            "around them), or drop that state with --allow-non-restored"
        )
    for operator, stored in manifest.operators.items():
        if operator in current:
            try:
                check_signature(operator, stored, current[operator])
            except IncompatibleStateError as error:
                problems.append(str(error))
    widths = {vertex.max_parallelism for vertex in graph.vertices}
    if widths != {manifest.max_parallelism}:
        problems.append(
            f"max_parallelism changed from {manifest.max_parallelism} to {sorted(widths)}: key groups would not match"
        )
    if problems:
        raise IncompatibleStateError("; ".join(problems))
