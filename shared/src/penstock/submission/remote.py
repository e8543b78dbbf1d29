"""A job that is ready goes to a cluster by its dispatchers: command line, Python and catching up take this way."""

from __future__ import annotations

from pathlib import Path

from penstock.client.client import ClusterClient
from penstock.client.documents import ArtifactDescription, Requested, Submission
from penstock.errors import ExternalError, PenstockError
from penstock.protocol.messages import Restore
from penstock.protocol.requests import SubmitJob
from penstock.settings import ClusterSettings
from penstock.submission.application import Prepared


async def submit(cluster: ClusterClient, prepared: Prepared, deadline_s: float) -> Requested:
    """Submit a job, and wait until a leader has accepted it.

    Raises:
        PenstockError: the leader refuses it; says why.
        ExternalError: no leader looked at it within `deadline_s` seconds; it is kept.
    """
    requested = await cluster.submit(submission_of(prepared.request), prepared.sources)
    state = await cluster.outcome(requested, deadline_s)
    if state.state == "refused":
        raise PenstockError(state.reason)
    if state.state == "pending":
        raise ExternalError(
            f"job {requested.job}: no leader has looked at it in {deadline_s:g} s; it is kept and begins when one does "
            f"(penstock status {requested.job[:8]})"
        )
    return requested


async def find_restore(cluster: ClusterClient, settings: ClusterSettings, name: str) -> Restore:
    """The savepoint of that name: a job (its newest), a request, the key of a manifest; one in a folder or below a URL
    is brought into the cluster's store first.

    Raises:
        PenstockError: there is none.
    """
    if "://" in name or Path(name).is_dir():
        from penstock.client.exporting import import_into  # they load what reads savepoints
        from penstock.savepoint.places import place_of

        return await import_into(settings, place_of(name, "--from-savepoint"))
    return (await cluster.savepoint(name)).restore


def submission_of(request: SubmitJob) -> Submission:
    """The document that asks a dispatcher for this job."""
    artifact = request.artifact
    assert artifact is not None, "a job on a cluster has sources"
    return Submission(
        name=request.name,
        graph=request.graph,
        artifact=ArtifactDescription(artifact.target, artifact.parameters, artifact.requirements),
        scalable=request.scalable,
        settings=request.settings,
        restored_from=request.restored_from,
        allow_non_restored=request.allow_non_restored,
        allow_unpublished=request.allow_unpublished,
        job=request.job,
    )
