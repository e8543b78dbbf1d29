"""Flink's states of jobs, applications and subtasks, for those of Penstock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from penstock.client.documents import ENDED

TASK_STATES: Final[tuple[str, ...]] = (
    "CREATED", "SCHEDULED", "DEPLOYING", "INITIALIZING", "RUNNING", "FINISHED", "CANCELING", "CANCELED", "FAILED",
    "RECONCILING",
)  # fmt: skip
JOB_STATES: Final[tuple[str, ...]] = (
    "INITIALIZING", "CREATED", "RUNNING", "FAILING", "FAILED", "CANCELLING", "CANCELED", "FINISHED", "RESTARTING",
    "SUSPENDED", "RECONCILING",
)  # fmt: skip
APPLICATION_STATES: Final[tuple[str, ...]] = (
    "CREATED", "RUNNING", "FAILING", "FAILED", "CANCELING", "CANCELED", "FINISHED",
)  # fmt: skip
TERMINAL: Final = frozenset({"FINISHED", "CANCELED", "FAILED"})

OF_TASK: Final = {
    "deployed": "DEPLOYING", "initializing": "INITIALIZING", "running": "RUNNING", "ended": "RUNNING",
    "finished": "FINISHED", "canceled": "CANCELED", "failed": "FAILED",
}  # fmt: skip
"""A source that has no more rows still forwards barriers: Flink's would be RUNNING, too."""
OF_ENDED: Final = {"FINISHED": "FINISHED", "STOPPED": "FINISHED", "CANCELED": "CANCELED", "FAILED": "FAILED"}
"""The state of the subtasks of a job that ended so."""
_OF_APPLICATION: Final = {"INITIALIZING": "CREATED", "CREATED": "CREATED"}


def flink_state(state: str) -> str:
    """Flink has no state of its own for a job that was stopped with a savepoint, nor for one that has no master."""
    return {"STOPPED": "FINISHED", "UNOPENED": "INITIALIZING"}.get(state, state)


def application_state(state: str) -> str:
    """That of the application of a job in this state of Penstock's: what is restarted is running."""
    found = flink_state(state)
    return found if state in ENDED else _OF_APPLICATION.get(found, "RUNNING")


def vertex_state(tasks: Mapping[str, int], total: int) -> str:
    """That of a vertex whose subtasks are in these states, as Flink comes to it (getAggregateJobVertexState)."""
    for state in ("FAILED", "CANCELED", "RUNNING"):
        if tasks[state]:
            return state
    if tasks["FINISHED"]:
        return "FINISHED" if tasks["FINISHED"] == total else "RUNNING"
    return next((state for state in ("INITIALIZING", "DEPLOYING") if tasks[state]), "CREATED")


def counted(states: Iterable[str]) -> dict[str, int]:
    """Every state of subtasks to how many are in it."""
    counts: dict[str, int] = dict.fromkeys(TASK_STATES, 0)
    for state in states:
        counts[state] += 1
    return counts
