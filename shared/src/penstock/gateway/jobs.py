"""The jobs of a gateway: what INSERT INTO has started. They keep running when their operation or session is closed.

`SHOW JOBS` lists them and `STOP JOB 'id'` ends one, as in Flink.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from penstock.errors import UsageError, nearest
from penstock.gateway.runs import Run
from penstock.ports import Clock

KEPT: Final = 100
"""So many jobs that have ended are listed."""


@dataclass
class Job:
    """One of them."""

    id: str
    run: Run
    started_us: int

    @property
    def status(self) -> str:
        """Its state, in Flink's words."""
        ended = self.run.ended
        if not ended.done():
            return "RUNNING"
        if ended.cancelled():
            return "CANCELED"
        return "FAILED" if ended.exception() is not None else "FINISHED"

    def row(self) -> tuple[str, str, str, str]:
        """What SHOW JOBS says of it: id, name, status and start."""
        start = datetime.fromtimestamp(self.started_us // 1_000 / 1_000, UTC)
        return self.id, self.run.name, self.status, f"{start:%Y-%m-%dT%H:%M:%S}.{start.microsecond // 1_000:03}Z"


@dataclass
class Jobs:
    """All of them."""

    clock: Clock
    _jobs: dict[str, Job] = field(default_factory=dict[str, Job])

    def add(self, job: str, run: Run) -> None:
        """A run that has begun."""
        self._jobs[job] = Job(job, run, self.clock.now_us())
        ended = [each.id for each in self._jobs.values() if each.run.ended.done()]
        for old in ended[: max(len(ended) - KEPT, 0)]:
            del self._jobs[old]

    def rows(self) -> list[tuple[str, str, str, str]]:
        """What SHOW JOBS answers, the newest first."""
        return [each.row() for each in reversed(self._jobs.values())]

    def stop(self, job: str) -> None:
        """End one.

        Raises:
            UsageError: there is none with that id.
        """
        if job not in self._jobs:
            raise UsageError(f"there is no job {job!r}; {nearest(job, self._jobs)}")
        self._jobs[job].run.cancel()
