"""The documents of the REST interface about schedules, under /penstock/v1/schedules; see `documents`."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.client.documents import ArtifactDescription
from penstock.protocol.requests import RunOptions
from penstock.runs.run_log import RunState
from penstock.runs.schedule_views import EndedPeriod, OnFailure, ScheduleState

__all__ = [
    "DueRun", "EndedPeriod", "OnFailure", "ScheduleDetail", "ScheduleList", "ScheduleState", "ScheduleSubmission",
    "ScheduleSummary",
]  # fmt: skip


class ScheduleSubmission(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The part `schedule` of a schedule that is added. Parameters and the folder `to_savepoint` may hold placeholders:
    `{day}`, the date on which the period of a run begins; `{start}` and `{end}`, when it does and ends, as RFC 3339."""

    name: str
    """Up to 80 letters, digits, dots, dashes and underscores; the ids of runs begin with it."""
    cron: str
    """Minute, hour, day of the month, month, day of the week. The time between two times is a period; its run is due at
    its end."""
    timezone: str = "UTC"
    start: str = ""
    """No period begins earlier, as a day or a time in that zone; what lies in the past is caught up. Empty: the first
    period is the one at the time of adding."""
    end: str = ""
    """No period begins then or later; empty: there is no end."""
    retries: int = 2
    """How often a run that failed is repeated."""
    retry_pause_ms: int = 300_000
    on_failure: OnFailure = "stop"
    """What follows when a run has failed for good: nothing until somebody resumes the schedule, or the next period."""
    replace: bool = False
    """Whether this is put in the place of another schedule of this name; else that is refused."""
    pipeline: str
    graph: dict[str, Any]
    artifact: ArtifactDescription
    options: RunOptions = RunOptions()


class DueRun(msgspec.Struct, frozen=True):
    """A run that is to come: of which period, due at its end."""

    run: str
    begin_us: int
    end_us: int


class ScheduleSummary(msgspec.Struct, frozen=True):
    """A schedule in short."""

    name: str
    pipeline: str
    cron: str
    timezone: str
    state: ScheduleState
    reason: str
    """Why it has stopped."""
    next: DueRun | None
    """The run that it is at; None behind the last one."""
    next_state: RunState | None
    """What that run is doing; None if nobody has asked for it."""
    behind: int
    """How many periods are over whose runs are not; counted up to a thousand."""
    last: EndedPeriod | None
    """The newest period that it is done with."""


class ScheduleList(msgspec.Struct, frozen=True):
    """All schedules, by name."""

    schedules: tuple[ScheduleSummary, ...]
    service: str
    """Where the pipeline service is, which lets runs begin; empty if none serves this cluster."""


class ScheduleDetail(msgspec.Struct, frozen=True):
    """A schedule. Values of parameters and settings that may be secrets are not shown."""

    summary: ScheduleSummary
    due: tuple[DueRun, ...]
    """The runs that are to come first."""
    ended: tuple[EndedPeriod, ...]
    """The newest periods that it is done with, newest first."""
    start: str
    end: str
    retries: int
    retry_pause_ms: int
    on_failure: OnFailure
    parameters: dict[str, str]
    options: RunOptions
    service: str
    changed: bool = False
    """Whether what was asked has changed anything."""
