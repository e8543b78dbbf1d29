"""What is to be done for a `PenstockSavepoint`: a function of what was written down and what is seen, as for jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from penstock_operator.decision import identity
from penstock_operator.resources import SavepointSpec, SavepointStatus
from penstock_operator.terms import UNKNOWN, Action, Answered, Ask, Dispose, JobSeen


@dataclass(frozen=True, slots=True)
class SavepointSeen:
    """What is seen beside the resource itself."""

    problem: str = ""
    """Why the cluster could not be looked at; then nothing else here is known."""
    cluster_missing: bool = False
    """Whether there is no such `PenstockJob`, or no such cluster: nobody is left to ask."""
    current: str = ""
    """Id of the job that the `PenstockJob` has now."""
    job: JobSeen | None = None
    """`status.job`, or else the current one."""
    answer: Answered = UNKNOWN
    gone: bool = False
    """Whether the savepoint was disposed of."""


@dataclass(frozen=True, slots=True)
class SavepointDecision:
    """What is written down, and done once it is written."""

    status: SavepointStatus
    actions: tuple[Action, ...] = ()
    released: bool = False


def decide_savepoint(
    spec: SavepointSpec, status: SavepointStatus, seen: SavepointSeen, *, uid: str, generation: int, deleting: bool
) -> SavepointDecision:
    """What is to be done for a savepoint now; one that was refused is not asked for again."""
    status = msgspec.structs.replace(status, observed_generation=generation)
    if deleting and (seen.cluster_missing or not _to_dispose(spec, status, seen)):
        return SavepointDecision(status, released=status.phase != "InProgress" or seen.cluster_missing)
    if seen.problem:
        return SavepointDecision(_with(status, problem=seen.problem))
    if deleting:
        return SavepointDecision(status, (Dispose(status.manifest),))
    if status.phase == "Pending":
        return _begun(status, seen, uid)
    return _followed(status, seen) if status.phase == "InProgress" else SavepointDecision(status)


def _to_dispose(spec: SavepointSpec, status: SavepointStatus, seen: SavepointSeen) -> bool:
    return spec.dispose_on_delete and bool(status.manifest) and not seen.gone


def _begun(status: SavepointStatus, seen: SavepointSeen, uid: str) -> SavepointDecision:
    """A job that does not run yet is waited for."""
    if seen.job is None or seen.job.state != "RUNNING":
        return SavepointDecision(_with(status, problem="the job does not run"))
    request = identity(uid, 0)
    begun = _with(status, phase="InProgress", job=seen.current, request=request, problem="")
    return SavepointDecision(begun, (Ask("savepoint", seen.current, request),))


def _followed(status: SavepointStatus, seen: SavepointSeen) -> SavepointDecision:
    answer = seen.answer
    if answer.state == "completed" and answer.savepoint is not None:
        taken = answer.savepoint
        return SavepointDecision(
            _with(status, phase="Completed", manifest=taken.manifest, checkpoint=taken.checkpoint, problem="")
        )
    if answer.state == "refused":
        return SavepointDecision(_with(status, phase="Failed", problem=answer.reason))
    if seen.job is None or seen.job.ended:
        return SavepointDecision(_with(status, phase="Failed", problem="the job has ended"))
    again = (Ask("savepoint", status.job, status.request),) if answer.state == "unknown" else ()
    return SavepointDecision(status, again)


def _with(status: SavepointStatus, **changes: Any) -> SavepointStatus:
    return msgspec.structs.replace(status, **changes)
