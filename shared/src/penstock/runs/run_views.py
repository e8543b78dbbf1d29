"""Runs on Spark as clients see them: what the pipeline service puts into the metadata store, and a run in short.

A cache and nothing more, like `views`: what is lost is there again a second later, what happened stands in the logs.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.runs.run_log import AttemptLost, RunHistory, RunState


class RunProgress(msgspec.Struct, frozen=True):
    """What Spark is at. A stage is one of Spark's: what runs between two exchanges."""

    at: str = "starting Spark"
    """The name of the vertex up to which it computes, or what is done besides."""
    stages: int = 0
    stages_done: int = 0
    tasks: int = 0
    """Of the stages that are at work."""
    tasks_done: int = 0
    rows: int = 0
    """Handed on by all stages so far."""
    parallelism: int = 0
    """0: not known yet."""
    ui: str = ""
    """Where the Spark UI is."""
    step: int = 0
    """The newest step that is done, of a job in steps: `at` says what became of it."""


class RunView(msgspec.Struct, frozen=True):
    """A run that has not ended, as its service sees it."""

    run: str
    position: int = 0
    """Its place among the waiting ones, from 1; 0: it does not wait."""
    progress: RunProgress = RunProgress()


class PipelineView(msgspec.Struct, frozen=True):
    """What a pipeline service puts into the metadata store every second: a cache, like `ClusterView`."""

    service: str
    address: str
    seen_us: int
    concurrent: int
    master: str
    overrides: bool
    """Whether runs may name a master and settings of Spark."""
    runs: tuple[RunView, ...] = ()


PIPELINE_VIEW: Final = "pipeline-view"
"""Its key in the metadata store."""


class RunSummary(msgspec.Struct, frozen=True):
    """A run in short. Durations follow from the times, which are microseconds since the epoch."""

    run: str
    name: str
    state: RunState
    submitted_us: int
    began_us: int | None = None
    """When the newest attempt began."""
    ended_us: int | None = None
    reason: str = ""
    """Why it ended, or what became of its last attempt."""
    attempts: int = 0
    parallelism: int = 0
    """0: as many subtasks as Spark runs at a time."""
    cancel_asked: bool = False
    position: int = 0
    """Its place in the queue, from 1; 0: it does not wait."""
    progress: RunProgress | None = None
    """Of a running one, while its service says so."""
    engine: str = "spark"


def summary_of_run(history: RunHistory, view: RunView | None = None) -> RunSummary:
    """A run in short, from its log and, where a service sees it, from that."""
    submitted, ended, attempts = history.submitted, history.ended, history.attempts
    lost = [record.reason for record in history.records if isinstance(record, AttemptLost)]
    live = view.progress if view is not None and history.attempt is not None else None
    return RunSummary(
        run=submitted.run,
        name=submitted.name,
        state=history.state,
        submitted_us=submitted.at_us,
        began_us=attempts[-1].at_us if attempts else None,
        ended_us=ended.at_us if ended is not None else None,
        reason=ended.reason if ended is not None else lost[-1] if lost else "",
        attempts=len(attempts),
        parallelism=submitted.options.parallelism or (live.parallelism if live is not None else 0),
        cancel_asked=history.cancel_asked and ended is None,
        position=view.position if view is not None and history.state == "QUEUED" else 0,
        progress=live,
    )
