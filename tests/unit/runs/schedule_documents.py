"""Schedules for tests."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from msgspec.structs import replace

from penstock.core.times import to_micros
from penstock.protocol.joblog import Artifact
from penstock.protocol.requests import RunOptions
from penstock.runs.schedule import Definition

ZONE = "Europe/Berlin"
DAY = Definition(
    cron="0 2 * * *", timezone=ZONE, start="2026-11-01", end="", pipeline="orders", graph={},
    artifact=Artifact("artifacts/a.zip", "a", "orders.py", {"day": "{day}"}), options=RunOptions(), retries=2,
    retry_pause_ms=300_000, on_failure="stop",
)  # fmt: skip


def definition(**changes: Any) -> Definition:
    """A daily schedule, with something else about it."""
    parameters, options = changes.pop("parameters", {"day": "{day}"}), changes.pop("options", RunOptions())
    return replace(DAY, **changes, options=options, artifact=replace(DAY.artifact, parameters=parameters))


def at(text: str, zone: str = ZONE) -> int:
    """A local time in microseconds since the epoch."""
    return to_micros(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)))
