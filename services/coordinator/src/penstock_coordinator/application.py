"""Application mode: the coordinator submits one pipeline file to its own cluster."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import structlog

from penstock.coordination.control_topics import REQUESTS, create_control_topics
from penstock.coordination.job_catalog import JobCatalog
from penstock.coordination.retrying_ports import RetryingBlobs, RetryingLog
from penstock.errors import UsageError
from penstock.loading import parse_parameters
from penstock.ports import Blobs, Clock, Log, NewRecord
from penstock.protocol.messages import encode
from penstock.settings import ClusterSettings
from penstock.submission.application import ApplicationSpec, application_id, prepare_elsewhere, restore_of
from penstock.submission.options import JobOptions

_log = structlog.get_logger("penstock.coordinator")


@dataclass(frozen=True)
class ApplicationOptions:
    """The options about the pipeline that a coordinator runs by itself."""

    application: str | None
    parallelism: int
    param: list[str]
    from_savepoint: str | None


async def submit_application(
    settings: ClusterSettings, target: str, options: ApplicationOptions, log: Log, blobs: Blobs, clock: Clock
) -> None:
    """Submit the file as one job. Every replica, and every restart, submits the same: the job exists once.

    Raises:
        PipelineError: the file declares no pipeline that can run.
        UsageError: the cluster runs another job: an application has a cluster of its own.
    """
    store = RetryingBlobs(blobs, clock)
    spec = ApplicationSpec(
        target=target,
        parameters=parse_parameters(options.param),
        options=JobOptions(
            parallelism=options.parallelism,
            restored_from=await restore_of(store, options.from_savepoint) if options.from_savepoint else None,
        ),
    )
    prepared = await prepare_elsewhere(spec)
    job = application_id(settings.name, prepared)
    others = [other for other in await JobCatalog(store).active() if other != job]
    if others:
        raise UsageError(
            f"--application: this cluster runs job {others[0]} already, of other sources or settings; stop it first "
            f"(penstock stop {others[0][:8]}) and go on from its savepoint with --from-savepoint"
        )
    artifact = prepared.request.artifact
    assert artifact is not None
    await store.put(artifact.key, prepared.sources)
    request = msgspec.structs.replace(prepared.request, request=job, job=job, issued_us=clock.now_us())
    patient = RetryingLog(log, clock)
    await create_control_topics(patient)
    await patient.append(REQUESTS, 0, [NewRecord(encode(request))])
    _log.info("application submitted", job=job, name=prepared.request.name)
