"""Schedules as clients see them, and what is written of them in the store."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.runs.run_log import EndState

ScheduleState = Literal["ACTIVE", "PAUSED", "STOPPED", "REMOVED"]
OnFailure = Literal["stop", "skip"]


class EndedPeriod(msgspec.Struct, frozen=True):
    """A period that the schedule is done with."""

    run: str
    begin_us: int
    end_us: int
    state: EndState
    reason: str = ""
