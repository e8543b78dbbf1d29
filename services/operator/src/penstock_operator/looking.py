"""What a cluster says about the jobs of a resource, through its dispatchers."""

from __future__ import annotations

from penstock.client.client import ClusterClient
from penstock.client.documents import JobDetail, Requested, SavepointSummary
from penstock.client.errors import RefusedError
from penstock_operator.decision import Answered, JobSeen
from penstock_operator.resources import StartPoint

NOT_FOUND = 404


async def look_at_job(cluster: ClusterClient, job: str) -> JobSeen | None:
    """A job by its id; None if the cluster does not know it."""
    try:
        detail = await cluster.job(job)
    except RefusedError as error:
        if error.status == NOT_FOUND:
            return None
        raise
    seen = _seen(detail)
    if not seen.ended:
        return seen
    left = (await cluster.savepoints(job)).savepoints
    return _seen(detail, max(left, key=lambda one: one.checkpoint, default=None))


def _seen(detail: JobDetail, left: SavepointSummary | None = None) -> JobSeen:
    summary = detail.summary
    completed = [one.ended_us for one in detail.checkpoints if one.duration_us is not None and one.ended_us is not None]
    return JobSeen(
        state=summary.state,
        parallelism=summary.parallelism,
        all_running=0 < summary.tasks == summary.running_tasks,
        last_checkpoint=summary.last_checkpoint,
        checkpointed_us=max(completed, default=None),
        behind=summary.load.records_behind if summary.load is not None else None,
        reason=summary.reason or _trouble(detail),
        left=start_point(left) if left is not None else None,
    )


def _trouble(detail: JobDetail) -> str:
    """What a job waits for, or why it failed last."""
    if missing := detail.summary.missing_slots:
        return f"the job waits for {missing} more slot{'s' if missing > 1 else ''}"
    return detail.failures[-1] if detail.failures else ""


def start_point(savepoint: SavepointSummary) -> StartPoint:
    """How a job is started from it."""
    return StartPoint(
        manifest=savepoint.manifest, checkpoint=savepoint.checkpoint, savepoint=savepoint.kind == "savepoint"
    )


async def answer_to(cluster: ClusterClient, job: str, request: str) -> Answered:
    """What has become of a request; that for a new job has the job's own id."""
    try:
        state = await cluster.request_state(Requested(job, request))
    except RefusedError as error:
        if error.status == NOT_FOUND:
            return Answered()
        raise
    restore = state.savepoint
    point = StartPoint(manifest=restore.manifest, checkpoint=restore.checkpoint) if restore is not None else None
    return Answered(state.state, state.reason, point)


async def find_savepoint(cluster: ClusterClient, name: str) -> tuple[StartPoint | None, str]:
    """The savepoint of that key, request or job; or why there is none."""
    try:
        return start_point(await cluster.savepoint(name)), ""
    except RefusedError as error:
        return None, f"fromSavepoint: {error}"
