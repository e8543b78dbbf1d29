"""Lets the runs of schedules begin: reads schedules and the logs of their runs, does what `penstock.runs.schedule` says.

Nothing is remembered here that does not stand in the store; what is, only saves reading it. A decision is carried out
conditionally: by creating the next version of the schedule, or the next record in the log of the run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, assert_never

import structlog

from penstock.errors import CorruptDataError, UsageError
from penstock.ports import Clock
from penstock.protocol.requests import SubmitRun
from penstock.runs.run_log import RunHistory
from penstock.runs.run_store import RunStore
from penstock.runs.schedule import (
    EndPeriod,
    Period,
    Schedule,
    ScheduleStep,
    StopSchedule,
    SubmitPeriod,
    Timetable,
    after_step,
    due_period,
    next_step,
    submission_of,
)
from penstock.runs.schedule_store import ScheduleStore

REFRESH_MS: Final = 5_000
"""How often the store is asked what people have changed."""
AT_ONCE: Final = 100
"""So many periods whose runs are over already are passed at a time."""

_log = structlog.get_logger("penstock.pipeline")


class Schedules:
    """The schedules of one cluster, as one service drives them."""

    def __init__(
        self,
        store: ScheduleStore,
        runs: RunStore,
        clock: Clock,
        open_runs: Mapping[str, RunHistory],
        submit: Callable[[SubmitRun], Awaitable[None]],
        place: str,
    ) -> None:
        """
        Args:
            open_runs: the runs that have not ended, always as they are now.
            submit: carries out a request.
            place: the id of the service's work folder.
        """
        self._place = place
        self._store = store
        self._runs = runs
        self._clock = clock
        self._open = open_runs
        self._submit = submit
        self._asked_ms: int | None = None
        """When the store was last asked."""
        self._idle: dict[str, RunHistory] = {}
        """By schedule: the log of its run, as it was read while nothing was at work."""
        self._unreadable: dict[str, int] = {}
        """Versions that this program does not read."""
        self.known: dict[str, Schedule] = {}
        self.failures: dict[str, int] = {}
        """By schedule: how many of its runs have failed, each attempt counted, since this service was started."""

    async def step(self) -> None:
        """Do what is to be done now."""
        now_ms = self._clock.monotonic_ms()
        if self._asked_ms is None or now_ms - self._asked_ms >= REFRESH_MS:
            await self._refresh()
            self._asked_ms = now_ms
        for name in sorted(self.known):
            for _ in range(AT_ONCE):
                if not await self._advance(name):
                    break

    async def _refresh(self) -> None:
        versions = await self._store.versions()
        for name, version in versions.items():
            known = self.known.get(name)
            if (known is None or known.version != version) and self._unreadable.get(name) != version:
                await self._read(name, version)

    async def _read(self, name: str, version: int) -> None:
        try:
            found = await self._store.read(name)
            if found is not None:
                Timetable(name, found.definition)
        except (CorruptDataError, UsageError) as error:  # such as a time zone that this machine does not know
            _log.error("a schedule cannot be read, so it has no runs", schedule=name, error=str(error))
            self._unreadable[name] = version
            self.known.pop(name, None)
            return
        if found is not None:
            self._took(found)

    def _took(self, schedule: Schedule) -> None:
        self._idle.pop(schedule.name, None)
        self.known[schedule.name] = schedule
        self.failures.setdefault(schedule.name, 0)
        if schedule.state == "REMOVED":
            del self.failures[schedule.name]

    # -- one schedule ---------------------------------------------------------------------------------------------------

    async def _advance(self, name: str) -> bool:
        """Do the next step; whether another one may follow at once."""
        schedule = self.known.get(name)
        now_us = self._clock.now_us()
        period = due_period(schedule, now_us) if schedule is not None else None
        if schedule is None or period is None:
            return False
        step = await self._step(schedule, period, now_us)
        match step:
            case None:
                return False
            case SubmitPeriod():
                await self._begin(name)
                return False
            case EndPeriod() | StopSchedule():
                return await self._write(schedule, step)
            case _:
                assert_never(step)

    async def _step(self, schedule: Schedule, period: Period, now_us: int) -> ScheduleStep | None:
        try:
            history = await self._history(schedule.name, period)
        except CorruptDataError as error:
            return StopSchedule(f"run {period.run}: its log cannot be read: {error}")
        return next_step(schedule, period, history, now_us, self._place)

    async def _history(self, name: str, period: Period) -> RunHistory:
        going_on = self._open.get(period.run)
        if going_on is not None:
            self._idle.pop(name, None)
            return going_on
        if name in self._idle:
            return self._idle[name]
        history = await self._runs.history(period.run)
        if not history.records or history.ended is not None:
            self._idle[name] = history
        return history

    async def _begin(self, name: str) -> None:
        """Ask for the run, from how everything stands now: somebody may have paused the schedule a moment ago."""
        await self._read(name, self.known[name].version)
        schedule = self.known.get(name)
        now_us = self._clock.now_us()
        period = due_period(schedule, now_us) if schedule is not None else None
        if schedule is None or period is None:
            return
        step = await self._step(schedule, period, now_us)
        if isinstance(step, SubmitPeriod):
            self._idle.pop(name, None)
            self.failures[name] += step.retry > 0
            _log.info("a run of a schedule is due", schedule=name, run=period.run, retry=step.retry)
            await self._submit(submission_of(schedule, step, now_us))

    async def _write(self, schedule: Schedule, step: EndPeriod | StopSchedule) -> bool:
        written = await self._store.write(schedule, after_step(schedule, step))
        if written is None:
            await self._read(schedule.name, schedule.version)
            return False
        failed = isinstance(step, StopSchedule) or step.state == "FAILED"
        self.failures[schedule.name] += failed
        self._took(written)
        if isinstance(step, StopSchedule):
            _log.error("a schedule has stopped", schedule=schedule.name, reason=step.reason)
        else:
            _log.info("a period is done", schedule=schedule.name, run=step.period.run, state=step.state)
        return True
