"""What is shown of a run on Spark while it is followed, and how its state is put into words."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.text import Text

from penstock.cli.display import run_row_lines
from penstock.cli.following import Follower
from penstock.client.run_documents import RUN_ENDED, RunDetail, RunProgress, RunSummary
from penstock.core.names import shown
from penstock.graph.jobgraph import graph_from_json


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
    return run_row_lines(graph_from_json(detail.graph), detail.counts, seconds)


@dataclass
class RunFollower(Follower[RunDetail]):
    """Shows what changes about a run: what Spark is at in one line on a terminal."""

    kind = "run"
    ended = RUN_ENDED
    _state: str = ""
    _at: str = ""
    _ui: str = ""
    _lost: int = 1

    async def _read(self) -> RunDetail:
        return await self.cluster.run(self.followed)

    @contextmanager
    def _shown(self) -> Generator[Callable[[RunDetail], None]]:
        if not self.console.is_terminal:
            yield lambda _: None
            return
        with self.console.status("") as status:
            yield lambda detail: status.update(Text(self._line(detail), no_wrap=True, overflow="ellipsis"))

    def _line(self, detail: RunDetail) -> str:
        progress = detail.summary.progress
        return progress_text(progress) if progress is not None else self._state

    def _say_changes(self, detail: RunDetail) -> None:
        run = detail.summary
        if run.state in RUN_ENDED:  # what there is to say then, `outcome` says
            return
        if run.attempts > self._lost:
            self.say(f"attempt {run.attempts} began; the one before is lost: {run.reason}")
            self._lost = run.attempts
        state = run_state_text(run)
        if state != self._state:
            self.say(f"{shown(run.name)}: {state}")
            self._state = state
        progress = run.progress
        if progress is None:
            return
        if progress.ui and progress.ui != self._ui:
            self.say(f"Spark UI: {progress.ui}")
            self._ui = progress.ui
        if progress.at != self._at and not self.console.is_terminal:
            self.say(f"{shown(run.name)}: {progress.at}")
        self._at = progress.at

    def outcome(self, detail: RunDetail) -> None:
        """Say how it ended, unless it failed: that is an error, to be said as one."""
        run = detail.summary
        if run.state == "FINISHED":
            if not detail.computed:
                self.say(f"run {run.run} was computed by an earlier attempt; this one only made its results visible")
            self.say(*counted_lines(detail))
        if run.state != "FAILED":
            self.say(
                f"{shown(run.name)}: {run.state.lower()}" + (f", {shown(run.reason, lines=True)}" if run.reason else "")
            )

    def _goes_on(self) -> str:
        return f"look with penstock status {self.followed}, end it with penstock cancel {self.followed}"
