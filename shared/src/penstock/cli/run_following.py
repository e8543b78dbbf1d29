"""Follows a run on Spark until it ends: a line that is kept current on a terminal, one line per change elsewhere."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from rich.console import Console
from rich.status import Status
from rich.text import Text

from penstock.cli.display import row_lines
from penstock.client import ClusterClient, NoAnswerError
from penstock.client.run_documents import RUN_ENDED, RunDetail, RunProgress, RunSummary
from penstock.graph.jobgraph import graph_from_json

POLL_S: Final = 0.5


def run_state_text(run: RunSummary) -> str:
    """The state of a run, and what it waits for."""
    waits = f", number {run.position} in line" if run.position else ""
    ends = ", is being cancelled" if run.cancel_asked else ""
    return run.state.lower() + waits + ends


def progress_text(progress: RunProgress) -> str:
    """What Spark is at, in one line."""
    if not progress.stages:
        return progress.at
    return (
        f"{progress.at}: {progress.stages_done} of {progress.stages} stages done, {progress.tasks_done} of "
        f"{progress.tasks} tasks, {progress.rows:,} rows handed on"
    )


def counted_lines(detail: RunDetail) -> list[str]:
    """What became of the rows of a finished run."""
    summary = detail.summary
    seconds = None
    if detail.computed and summary.ended_us is not None and summary.began_us is not None:
        seconds = (summary.ended_us - summary.began_us) / 1e6
    counts = detail.counts
    return row_lines(
        graph_from_json(detail.graph), lambda operator, counter: counts.get(operator, {}).get(counter, 0), seconds
    )


@dataclass
class RunFollower:
    """Shows what changes about a run."""

    cluster: ClusterClient
    run: str
    console: Console
    _state: str = ""
    _at: str = ""
    _ui: str = ""
    _lost: int = 1
    _silent: bool = False

    async def follow(self) -> RunDetail:
        """Watch the run until it has ended; dispatchers that do not answer are waited for."""
        if not self.console.is_terminal:
            return await self._watch(None)
        with self.console.status("") as status:
            return await self._watch(status)

    async def _watch(self, status: Status | None) -> RunDetail:
        while True:
            detail = await self._look()
            if detail is not None:
                summary = detail.summary
                if summary.state in RUN_ENDED:
                    return detail
                self._say_changes(summary)
                if status is not None:
                    shown = progress_text(summary.progress) if summary.progress is not None else self._state
                    status.update(Text(shown, no_wrap=True, overflow="ellipsis"))
            await asyncio.sleep(POLL_S)

    async def _look(self) -> RunDetail | None:
        try:
            detail = await self.cluster.run(self.run)
        except NoAnswerError as error:
            if not self._silent:
                self.say(f"waiting for a dispatcher to answer; the run is not touched by that ({error})")
            self._silent = True
            return None
        self._silent = False
        return detail

    def _say_changes(self, run: RunSummary) -> None:
        if run.attempts > self._lost:
            self.say(f"attempt {run.attempts} began; the one before is lost: {run.reason}")
            self._lost = run.attempts
        state = run_state_text(run)
        if state != self._state:
            self.say(f"{run.name}: {state}")
            self._state = state
        progress = run.progress
        if progress is None:
            return
        if progress.ui and progress.ui != self._ui:
            self.say(f"Spark UI: {progress.ui}")
            self._ui = progress.ui
        if progress.at != self._at and not self.console.is_terminal:
            self.say(f"{run.name}: {progress.at}")
        self._at = progress.at

    def outcome(self, detail: RunDetail) -> None:
        """Say how it ended, unless it failed: that is an error, to be said as one."""
        run = detail.summary
        if run.state == "FINISHED":
            if not detail.computed:
                self.say(f"run {run.run} was computed by an earlier attempt; this one only made its results visible")
            self.say(*counted_lines(detail))
        if run.state != "FAILED":
            self.say(f"{run.name}: {run.state.lower()}" + (f", {run.reason}" if run.reason else ""))

    def say(self, *lines: str) -> None:
        """Print lines, above the status if there is one."""
        for line in lines:
            self.console.print(Text(line), soft_wrap=True)
