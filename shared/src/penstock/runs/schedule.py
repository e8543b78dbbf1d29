"""Schedules: pipelines that run on Spark again and again, and which of their runs is next. No I/O, no clock.

A period is the time between two times of a cron expression that follow each other; its run is due at its end, and has an
id that says which period it is. A schedule remembers the one period that it is at. Everything else stands in the log of
that period's run, whose submissions have ids that follow from the schedule: so whoever decides, however often, after
whatever death, no run is made twice and none is left out. `schedule_store` keeps schedules.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from penstock.core.times import from_micros
from penstock.errors import UsageError
from penstock.protocol.joblog import Artifact
from penstock.protocol.requests import RunOptions, SubmitRun
from penstock.runs.cron import Cron
from penstock.runs.periods import PLACEHOLDERS, depends_on_period, filled, moment_of, period_values, zone_of
from penstock.runs.run_log import AttemptBegan, EndState, RunHistory
from penstock.runs.schedule_views import EndedPeriod, OnFailure, ScheduleState

MAX_RETRIES: Final = 100
MAX_PAUSE_MS: Final = 7 * 86_400_000
REMEMBERED: Final = 30
"""So many ended periods a schedule names."""
COUNTED: Final = 1_000
"""Up to so many periods are counted that a schedule is behind."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
_OWN_FOLDER: Final = "--to-savepoint: every run leaves a savepoint of its own; write for example /srv/savepoints/{day}"


def is_schedule_name(text: str) -> bool:
    """Whether a schedule can be called so: as runs, but shorter, because their ids begin with it."""
    return _NAME.fullmatch(text) is not None


class ScheduleExistsError(UsageError):
    """There is another schedule of this name."""


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """What people say about a schedule. Parameters and `to_savepoint` may hold placeholders."""

    cron: str
    timezone: str
    start: str
    """Where the first period begins, or before; empty: in the period at the time of adding."""
    end: str
    """No period begins there or later; empty: it goes on for ever."""
    pipeline: str
    graph: dict[str, Any]
    artifact: Artifact
    options: RunOptions
    retries: int
    retry_pause_ms: int
    on_failure: OnFailure

    def differences(self, other: Definition) -> list[str]:
        """What is said otherwise there, by the names of options. The graph follows from the rest."""
        now, then = self.artifact.parameters, other.artifact.parameters
        found = [f"--param {name}" for name in sorted(now.keys() | then.keys()) if now.get(name) != then.get(name)]
        if (self.artifact.sha256, self.artifact.target) != (other.artifact.sha256, other.artifact.target):
            found.append("the pipeline's code")
        for mine, its in ((self, other), (self.options, other.options)):
            found += [
                f"--{name.removesuffix('_ms').replace('_', '-')}"
                for name in mine.__struct_fields__
                if name not in ("graph", "artifact", "options", "pipeline")
                and getattr(mine, name) != getattr(its, name)
            ]
        return found


@dataclass(frozen=True)
class Period:
    """The time between two times of a schedule, and the run that is due at its end."""

    run: str
    begin_us: int
    end_us: int


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as it stands in the store; the store sets version and nonce."""

    name: str
    definition: Definition
    state: ScheduleState = "ACTIVE"
    reason: str = ""
    """Why it has stopped."""
    next_us: int
    """Where the period begins that it is at."""
    round: int = 0
    """Counts how often its runs got fresh attempts: after a stop, and where it was begun anew."""
    ended: tuple[EndedPeriod, ...] = ()
    """The newest ones, newest last."""
    due: Period | None = None
    """The period that it is at, where that was due before another timetable was given: its run may have begun."""
    version: int = 0
    nonce: str = ""


# -- periods ------------------------------------------------------------------------------------------------------------


class Timetable:
    """The periods of a schedule."""

    def __init__(self, name: str, definition: Definition) -> None:
        """
        Raises:
            UsageError: the cron expression, the time zone, the start or the end is none.
        """
        self._name = name
        self.cron: Final = Cron(definition.cron, definition.timezone)
        self.start_us: Final = moment_of("--start", definition.start, self.cron.zone)
        self.end_us: Final = moment_of("--end", definition.end, self.cron.zone)

    def first(self, now_us: int) -> int:
        """Where the first period begins.

        Raises:
            UsageError: there is no period.
        """
        start_us, cron = self.start_us, self.cron
        found = cron.at_or_after(start_us) if start_us is not None else cron.at_or_before(now_us)
        if found is None or self.period(found) is None:
            raise UsageError("no period lies between --start and --end; see the times of --cron")
        return found

    def period(self, begin_us: int) -> Period | None:
        """The period that begins then; None if the schedule ends before. Of what is once a day it ends on a later day."""
        if self.end_us is not None and begin_us >= self.end_us:
            return None
        end_us = self.cron.next_after(begin_us)
        # Begun at another time, before --cron was changed, or behind a day that a zone leaves out (Samoa, 2011).
        while (
            end_us is not None and self.cron.once_a_day and self._local(begin_us).date() == self._local(end_us).date()
        ):
            end_us = self.cron.next_after(end_us)
        return Period(self._run(begin_us), begin_us, end_us) if end_us is not None else None

    def due(self, begin_us: int, count: int) -> list[Period]:
        """So many periods from the one that begins then."""
        found: list[Period] = []
        period = self.period(begin_us)
        while period is not None and len(found) < count:
            found.append(period)
            period = self.period(period.end_us)
        return found

    def behind(self, begin_us: int, now_us: int) -> int:
        """How many periods from the one that begins then are over; at most `COUNTED`."""
        count, period = 0, self.period(begin_us)
        while period is not None and period.end_us <= now_us and count < COUNTED:
            count, period = count + 1, self.period(period.end_us)
        return count

    def _run(self, begin_us: int) -> str:
        if self.cron.once_a_day:
            return f"{self._name}-{self._local(begin_us):%Y-%m-%d}"
        return _run_of_minute(self._name, begin_us)

    def _local(self, moment_us: int) -> datetime:
        return from_micros(moment_us).astimezone(self.cron.zone)


def _run_of_minute(name: str, begin_us: int) -> str:
    return f"{name}-{from_micros(begin_us).astimezone(UTC):%Y-%m-%dT%H%MZ}"


# -- placeholders -------------------------------------------------------------------------------------------------------


def filled_in(definition: Definition, values: dict[str, str]) -> Definition:
    """The definition with its placeholders replaced; raises `UsageError`."""
    given = definition.artifact.parameters
    parameters = {name: filled(f"--param {name}", text, values) for name, text in given.items()}
    folder = filled("--to-savepoint", definition.options.to_savepoint, values)
    return replace(
        definition,
        artifact=replace(definition.artifact, parameters=parameters),
        options=replace(definition.options, to_savepoint=folder),
    )


def check_definition(name: str, definition: Definition) -> Timetable:
    """The periods of a schedule.

    Raises:
        UsageError: something about the schedule cannot be.
    """
    if not is_schedule_name(name):
        raise UsageError(
            f"{name!r} names no schedule; up to 80 letters, digits, dots, dashes and underscores, beginning with a "
            "letter or digit"
        )
    timetable = Timetable(name, definition)
    filled_in(definition, dict.fromkeys(PLACEHOLDERS, ""))
    folder = definition.options.to_savepoint
    if folder and not depends_on_period(folder):
        raise UsageError(_OWN_FOLDER)
    if definition.options.in_steps:
        raise UsageError("--every: what goes on for ever has no timetable; submit it instead")
    if not 0 <= definition.retries <= MAX_RETRIES:
        raise UsageError(f"--retries {definition.retries}: from 0 to {MAX_RETRIES}")
    if not 0 <= definition.retry_pause_ms <= MAX_PAUSE_MS:
        raise UsageError("--retry-pause: from 0 to 7 days")
    return timetable


# -- what people ask ----------------------------------------------------------------------------------------------------


def added(before: Schedule | None, name: str, definition: Definition, now_us: int, *, replaces: bool) -> Schedule:
    """The schedule after somebody added it; `before` itself where nothing changes.

    One that is replaced goes on where it is, unless another start is given; what was done is remembered.

    Raises:
        UsageError: it cannot be.
        ScheduleExistsError: there is another one of this name, and `replaces` is false.
    """
    timetable = check_definition(name, definition)
    if before is None or before.state == "REMOVED":
        rounds = before.round + 1 if before is not None else 0
        return Schedule(name=name, definition=definition, next_us=timetable.first(now_us), round=rounds)
    differing = definition.differences(before.definition)
    if not differing:
        return before
    if not replaces:
        raise ScheduleExistsError(
            f"there is a schedule {name!r} with something else: {', '.join(differing)}; --replace puts this in its place"
        )
    known = before.definition
    if definition.start and definition.start != known.start:
        next_us = timetable.first(now_us)
        return replace(before, definition=definition, next_us=next_us, round=before.round + 1, due=None)
    if timetable.cron.next_after(before.next_us) is None:
        raise UsageError("--cron: there is no such time in the next fifty years")
    return replace(before, definition=definition, due=_due_before(before, timetable, now_us))


def _due_before(before: Schedule, timetable: Timetable, now_us: int) -> Period | None:
    """What stays the period that a schedule is at, although its timetable would make another one of it."""
    period = current_period(before)
    ends = timetable.end_us is not None and timetable.end_us <= before.next_us
    if period is None or period.end_us > now_us or ends or period == timetable.period(before.next_us):
        return None
    return period


def paused(before: Schedule) -> Schedule:
    """Nothing more begins; what is at work goes on. One that has stopped stays so."""
    return replace(before, state="PAUSED") if before.state == "ACTIVE" else before


def resumed(before: Schedule) -> Schedule:
    """It goes on; after a stop its run gets fresh attempts."""
    if before.state == "STOPPED":
        return replace(before, state="ACTIVE", reason="", round=before.round + 1)
    return replace(before, state="ACTIVE") if before.state == "PAUSED" else before


def removed(before: Schedule) -> Schedule:
    """It is gone; what is at work goes on. A mark of it stays, so that nobody takes an old version for the newest."""
    return replace(before, state="REMOVED", reason="") if before.state != "REMOVED" else before


# -- what is next -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SubmitPeriod:
    """Ask for the period's run. Asked again under the same request nothing happens."""

    period: Period
    request: str
    retry: int
    """0 for the first time."""


@dataclass(frozen=True)
class EndPeriod:
    """Go on with the next period."""

    period: Period
    state: EndState
    reason: str


@dataclass(frozen=True)
class StopSchedule:
    """Let nothing more begin until somebody has looked."""

    reason: str


ScheduleStep = SubmitPeriod | EndPeriod | StopSchedule


def current_period(schedule: Schedule) -> Period | None:
    """The period that a schedule is at; None if it is over."""
    return next(iter(coming_periods(schedule, 1)), None)


def coming_periods(schedule: Schedule, count: int) -> list[Period]:
    """So many periods from the one that a schedule is at."""
    found = [schedule.due] if schedule.due is not None else []
    begin_us = found[-1].end_us if found else schedule.next_us
    for period in Timetable(schedule.name, schedule.definition).due(begin_us, count - len(found)):
        # Of two zones the same day may begin twice: a run that is done is not the other one's.
        others = {ended.run for ended in schedule.ended if ended.begin_us != period.begin_us}
        others |= {one.run for one in found}
        found.append(
            Period(_run_of_minute(schedule.name, period.begin_us), period.begin_us, period.end_us)
            if period.run in others
            else period
        )
    return found


def periods_behind(schedule: Schedule, now_us: int) -> int:
    """How many periods from the one that a schedule is at are over; at most `COUNTED`."""
    due = schedule.due
    table = Timetable(schedule.name, schedule.definition)
    return min(COUNTED, table.behind(schedule.next_us if due is None else due.end_us, now_us) + (due is not None))


def due_period(schedule: Schedule, now_us: int) -> Period | None:
    """The period whose run is to be looked at; None if nothing is to be done before its end, or at all."""
    if schedule.state in ("STOPPED", "REMOVED"):
        return None
    period = current_period(schedule)
    return period if period is not None and period.end_us <= now_us else None


def next_step(schedule: Schedule, period: Period, history: RunHistory, now_us: int, place: str) -> ScheduleStep | None:
    """What is to be done about a period that is due. None: wait.

    `history` is the log of its run, `place` the work folder in which it would be at work now. What has failed in another
    one may be decided there: only people repeat that, since it could double its rows.
    """
    ended = history.ended
    if history.records and ended is None:
        return None
    if ended is not None and ended.state == "FINISHED":
        return EndPeriod(period, "FINISHED", "")
    definition = schedule.definition
    asked = 0
    while history.knows(request_of(schedule, period, asked)):
        asked += 1
    if asked and ended is not None:
        if ended.state == "CANCELED":
            return EndPeriod(period, "CANCELED", ended.reason)
        if asked > definition.retries or _was_elsewhere(history, place):
            return _given_up(schedule, period, asked, ended.reason)
        if now_us < ended.at_us + definition.retry_pause_ms * 1_000:
            return None
    if schedule.state != "ACTIVE":
        return None
    return SubmitPeriod(period, request_of(schedule, period, asked), asked)


def _was_elsewhere(history: RunHistory, place: str) -> bool:
    return any(isinstance(record, AttemptBegan) and record.place != place for record in history.records)


def _given_up(schedule: Schedule, period: Period, asked: int, reason: str) -> ScheduleStep:
    if schedule.definition.on_failure == "skip":
        return EndPeriod(period, "FAILED", reason)
    times = f"{asked} times" if asked > 1 else "once"
    return StopSchedule(
        f"run {period.run} has failed {times}, and what follows waits for it: mend it, then penstock schedule resume "
        f"{schedule.name}. The last one: {reason}"
    )


def request_of(schedule: Schedule, period: Period, asked: int) -> str:
    """The id of the request for a period's run that is the one after `asked` others."""
    return hashlib.sha256(f"{schedule.name} {period.run} {schedule.round} {asked}".encode()).hexdigest()[:32]


def after_step(schedule: Schedule, step: EndPeriod | StopSchedule) -> Schedule:
    """The schedule once that is done."""
    if isinstance(step, StopSchedule):
        return replace(schedule, state="STOPPED", reason=step.reason)
    period = step.period
    ended = EndedPeriod(period.run, period.begin_us, period.end_us, step.state, step.reason)
    return replace(schedule, next_us=period.end_us, ended=(*schedule.ended, ended)[-REMEMBERED:], due=None)


def submission_of(schedule: Schedule, step: SubmitPeriod, now_us: int) -> SubmitRun:
    """The request for a period's run."""
    values = period_values(step.period.begin_us, step.period.end_us, zone_of(schedule.definition.timezone))
    definition = filled_in(schedule.definition, values)
    return SubmitRun(
        request=step.request, job=step.period.run, issued_us=now_us, name=definition.pipeline, graph=definition.graph,
        artifact=definition.artifact, options=definition.options,
    )  # fmt: skip
