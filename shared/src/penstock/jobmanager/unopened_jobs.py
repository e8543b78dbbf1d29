"""Jobs that a leader cannot be the master of for now: why, and when it tries again."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from penstock.coordination.cluster_view import JobView
from penstock.jobmanager.view_building import unopened_view
from penstock.observability.user_frames import describe_error
from penstock.protocol.messages import BarrierMarker

FIRST_PAUSE_MS: Final = 1_000
LONGEST_PAUSE_MS: Final = 60_000
STEADY_MS: Final = 600_000
"""A job that was looked after for so long is tried again at once: what happened before has nothing to do with it."""


@dataclass(frozen=True)
class UnopenedJob:
    """One of them."""

    reason: str
    markers: tuple[BarrierMarker, ...]
    """All that `commands` may hold of it: the numbers of its next checkpoints are above theirs."""
    pause_ms: int


class UnopenedJobs:
    """Those of one leader, and how long to wait with each; the pause doubles while nothing goes well for long."""

    def __init__(self) -> None:
        self._jobs: dict[str, UnopenedJob] = {}
        self._pauses_ms: dict[str, int] = {}

    def failed(
        self, job: str, error: BaseException, markers: Collection[BarrierMarker], lived_ms: int = 0
    ) -> UnopenedJob:
        """The job could not be opened, or its master failed after `lived_ms`."""
        former_ms = self._pauses_ms.get(job, 0) if lived_ms < STEADY_MS else 0
        pause_ms = self._pauses_ms[job] = min(LONGEST_PAUSE_MS, 2 * former_ms or FIRST_PAUSE_MS)
        reason = f"the coordinator cannot look after the job: {describe_error(error)}"
        self._jobs[job] = UnopenedJob(reason, tuple(markers), pause_ms)
        return self._jobs[job]

    def opened(self, job: str) -> UnopenedJob | None:
        """The job is looked after again; what was wrong before."""
        return self._jobs.pop(job, None)

    def closed(self, job: str) -> None:
        """The job has ended."""
        self._pauses_ms.pop(job, None)

    def get(self, job: str) -> UnopenedJob | None:
        """What is wrong with the job, if something is."""
        return self._jobs.get(job)

    def clear(self) -> None:
        """Another leader looks after all jobs."""
        self._jobs.clear()
        self._pauses_ms.clear()

    def __len__(self) -> int:
        return len(self._jobs)

    def views(self) -> tuple[JobView, ...]:
        """All of them as clients see them."""
        return tuple(unopened_view(job, found.reason) for job, found in sorted(self._jobs.items()))
