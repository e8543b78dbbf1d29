"""The documents of the REST interface about runs on Spark, under /penstock/v1/runs; see `documents`."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from penstock.client.documents import ArtifactDescription
from penstock.protocol.requests import RunOptions
from penstock.runs.run_log import RUN_ENDED, RunState
from penstock.runs.run_views import RunProgress, RunSummary

__all__ = [
    "RUN_ENDED", "Located", "RunBody", "RunDetail", "RunList", "RunLog", "RunOptions", "RunProgress", "RunState",
    "RunSubmission", "RunSummary",
]  # fmt: skip


class RunSubmission(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The part `run` of a submission of a run."""

    name: str
    graph: dict[str, Any]
    artifact: ArtifactDescription
    options: RunOptions = RunOptions()
    run: str = ""
    """Names the run: up to 100 letters, digits, dots, dashes and underscores. What has this id already is executed only
    if it failed or was cancelled. The dispatcher makes one up if it is empty."""
    request: str = ""
    """The id of the request, 32 hex digits: one that is sent twice is carried out once."""


class RunBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of a cancellation there is nothing to say but the request's id."""

    request: str = ""


class RunList(msgspec.Struct, frozen=True):
    """Runs that wait or are at work first, then ended ones; each group newest first."""

    runs: tuple[RunSummary, ...]
    service: str
    """Where the pipeline service is; empty if none serves this cluster."""


class RunDetail(msgspec.Struct, frozen=True):
    """A run."""

    summary: RunSummary
    graph: dict[str, Any]
    options: RunOptions
    frames: str = ""
    """Of an error in the user's code: the user's part of the traceback."""
    counts: dict[str, dict[str, int]] = {}
    """Of a finished run: operator id to counter to value."""
    computed: bool = True
    """False if an earlier attempt had computed the run, and only its commits were carried to the end."""


class RunLog(msgspec.Struct, frozen=True):
    """The records of a run's log, without its graph, and the last lines that an ended attempt printed."""

    run: str
    records: tuple[dict[str, Any], ...]
    output: str


class Located(msgspec.Struct, frozen=True):
    """What is meant by a name: a job, or a run on Spark."""

    kind: Literal["job", "run"]
    id: str
    name: str
    state: str
