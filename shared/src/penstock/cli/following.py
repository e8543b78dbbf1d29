"""Follows a job on a cluster until it ends: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any, Final

from rich.console import Console
from rich.live import Live
from rich.text import Text

from penstock.cli.cluster import deaf_line, slots
from penstock.cli.display import Rate, live_view, summary_lines
from penstock.client import ClusterClient, NoAnswerError
from penstock.client.documents import ENDED, JobDetail
from penstock.coordination.job_progress import CheckpointProgress, JobProgress
from penstock.graph.jobgraph import graph_from_json
from penstock.protocol.messages import SubtaskId, TaskStatus

POLL_S: Final = 0.5


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
class Follower:
    """Shows what changes about a job."""

    cluster: ClusterClient
    job: str
    console: Console
    _state: str = ""
    _missing: int = 0
    _failures: int = 0
    _silent: bool = False
    _deaf: bool = False
    _rate: Rate = field(default_factory=Rate)
    _started_s: float = field(default_factory=time.monotonic)

    async def follow(self) -> JobDetail:
        """Watch the job until it has ended; dispatchers that do not answer are waited for."""
        if not self.console.is_terminal:
            return await self._watch(None)
        with Live(console=self.console, auto_refresh=False, transient=False) as live:
            return await self._watch(live)

    async def _watch(self, live: Live | None) -> JobDetail:
        while True:
            detail = await self._look()
            if detail is not None:
                self._say_changes(detail)
                if live is not None and detail.summary.live:
                    graph, progress = graph_from_json(detail.graph), progress_of(detail)
                    live.update(live_view(graph, progress, self._rate, time.monotonic()), refresh=True)
                if detail.summary.state in ENDED:
                    return detail
            await asyncio.sleep(POLL_S)

    async def _look(self) -> JobDetail | None:
        try:
            detail = await self.cluster.job(self.job)
        except NoAnswerError as error:
            if not self._silent:
                self.say(f"waiting for a dispatcher to answer; the job is not touched by that ({error})")
            self._silent = True
            return None
        self._silent = False
        return detail

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
        for failure in detail.failures[self._failures :]:
            self.say(f"failed, and starts again from the newest checkpoint: {failure}")
        self._failures = len(detail.failures)
        if job.state != self._state and job.state not in ENDED:
            self.say(f"{job.name}: {job.state.lower()}")
        self._state = job.state

    def outcome(self, detail: JobDetail) -> None:
        """Say how it ended."""
        job = detail.summary
        if job.live and job.state == "FINISHED":
            seconds = time.monotonic() - self._started_s
            self.say(*summary_lines(graph_from_json(detail.graph), progress_of(detail), seconds))
        self.say(f"{job.name}: {job.state.lower()}" + (f": {job.reason}" if job.reason else ""))

    def say(self, *lines: str) -> None:
        """Print lines, above the table if there is one."""
        for line in lines:
            self.console.print(Text(line), soft_wrap=True)
