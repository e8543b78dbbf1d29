"""What is shown of a job while it is followed: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.live import Live

from penstock.cli.cluster import deaf_line, slots
from penstock.cli.display import Rate, live_view
from penstock.cli.following import Follower
from penstock.client.documents import ENDED, JobDetail
from penstock.coordination.job_progress import CheckpointProgress, JobProgress
from penstock.coordination.job_summary import summary_lines
from penstock.core.names import shown
from penstock.graph.jobgraph import graph_from_json
from penstock.protocol.messages import SubtaskId, TaskStatus


def progress_of(detail: JobDetail) -> JobProgress:
    """A job's progress as the embedded engine keeps it, so that the same displays and metrics serve both."""
    progress = JobProgress(
        detail.summary.job, detail.summary.state.lower(), detail.attempts, detail.restored, detail.summary.missing_slots
    )
    for vertex in detail.vertices:
        for task in vertex.tasks:
            subtask, state = SubtaskId(vertex.id, task.index), _state(task.state)
            progress.statuses[subtask] = TaskStatus(
                job=detail.summary.job, attempt="", subtask=subtask, state=state, published=task.published,
                error=task.error, metrics=task.metrics, progress=task.progress, waits_for=task.waits_for,
            )  # fmt: skip
    for seen in detail.checkpoints:
        done_us = seen.triggered_us + seen.duration_us if seen.duration_us is not None else None
        progress.checkpoints[seen.checkpoint] = CheckpointProgress(
            seen.checkpoint, seen.triggered_us, seen.state, done_us, seen.size_bytes, seen.sync_us
        )
    progress.failures = list(detail.failures)
    progress.totals.update(checkpoint.state for checkpoint in detail.checkpoints)
    progress.totals["failed"] = len(progress.failures)
    progress.since_us = detail.summary.submitted_us
    return progress


def _state(state: str) -> Any:
    """A state of a subtask; dispatchers of other versions may know others."""
    return state


@dataclass
class JobFollower(Follower[JobDetail]):
    """Shows what changes about a job: a live table on a terminal."""

    kind = "job"
    ended = ENDED
    _state: str = ""
    _missing: int = 0
    _failures: int = 0
    _deaf: bool = False
    _rate: Rate = field(default_factory=Rate)
    _started_s: float = field(default_factory=time.monotonic)

    async def _read(self) -> JobDetail:
        return await self.cluster.job(self.followed)

    @contextmanager
    def _shown(self) -> Generator[Callable[[JobDetail], None]]:
        if not self.console.is_terminal:
            yield lambda _: None
            return
        with Live(console=self.console, auto_refresh=False, transient=False) as live:
            yield lambda detail: self._show(live, detail)

    def _show(self, live: Live, detail: JobDetail) -> None:
        if detail.summary.live:
            graph, progress = graph_from_json(detail.graph), progress_of(detail)
            live.update(live_view(graph, progress, self._rate, time.monotonic()), refresh=True)

    def _say_changes(self, detail: JobDetail) -> None:
        job = detail.summary
        if job.missing_slots and job.missing_slots != self._missing:
            self.say(
                f"waits for {slots(job.missing_slots)}: start a task manager (penstock taskmanager), end another job, or "
                "rescale this one"
            )
        self._missing = job.missing_slots
        if detail.deaf_us and not self._deaf:
            self.say(deaf_line(detail.deaf_us, time.time_ns() // 1_000))
        self._deaf = bool(detail.deaf_us)
        for number, failure in enumerate(detail.failures[self._failures :], self._failures + 1):
            last = job.state == "FAILED" and number == len(detail.failures)
            self.say(f"failed{'' if last else ', and starts again from the newest checkpoint'}: {failure}")
        self._failures = len(detail.failures)
        if job.state != self._state and job.state not in ENDED:
            self.say(f"{shown(job.name)}: {job.state.lower()}")
        self._state = job.state

    def outcome(self, detail: JobDetail) -> None:
        """Say how it ended."""
        job = detail.summary
        if job.live and job.state == "FINISHED":
            seconds = time.monotonic() - self._started_s
            self.say(*summary_lines(graph_from_json(detail.graph), progress_of(detail), seconds))
        self.say(
            f"{shown(job.name)}: {job.state.lower()}" + (f": {shown(job.reason, lines=True)}" if job.reason else "")
        )

    def _goes_on(self) -> str:
        short = self.followed[:8]
        return (
            f"look with penstock status {short}, end it with penstock stop {short} (with a savepoint) or penstock cancel "
            f"{short}"
        )
