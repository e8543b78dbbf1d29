"""`penstock schedule add`: a pipeline file, and when a cluster's pipeline service runs it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from msgspec.structs import replace

from penstock.cli.cluster import ClusterOptions
from penstock.cli.schedules import print_change
from penstock.cli.submit_run import RunOptionsGiven, run_options
from penstock.client.client import client_of
from penstock.client.run_documents import RunSubmission
from penstock.client.schedule_documents import ScheduleDetail, ScheduleSubmission
from penstock.core.times import duration_us, to_micros
from penstock.loading import load_pipeline, parse_parameters
from penstock.runs.periods import filled, moment_of, period_values, zone_of
from penstock.settings import ClusterSettings, load_settings
from penstock.spark.run_submission import prepare_run, starting_from

_DAY: Final = timedelta(days=1)


@dataclass(frozen=True)
class AddSchedule(ClusterOptions, RunOptionsGiven):
    """`penstock schedule add`."""

    name: str
    file: str
    cron: str
    timezone: str
    start: str | None
    end: str | None
    param: list[str]
    from_savepoint: str | None
    retries: int
    retry_pause: str
    on_failure: Literal["stop", "skip"]
    replace: bool


def add_command(command: AddSchedule) -> int:
    """Add the schedule, and say what comes next; the exit code."""
    settings = load_settings(command.cluster)
    options = run_options(command)
    templates = given_templates(command.param)
    pause_ms = duration_us(command.retry_pause, "--retry-pause") // 1_000
    values = example_values(command.start or "", command.timezone, datetime.now(UTC))
    parameters = {name: filled(f"--param {name}", text, values) for name, text in templates.items()}
    pipeline = load_pipeline(command.file, parameters)
    run, sources = prepare_run(pipeline, command.file, parameters, options)
    schedule = ScheduleSubmission(
        name=command.name, cron=command.cron, timezone=command.timezone, start=command.start or "",
        end=command.end or "", retries=command.retries, retry_pause_ms=pause_ms, on_failure=command.on_failure,
        replace=command.replace, pipeline=run.name, graph=run.graph,
        artifact=replace(run.artifact, parameters=templates), options=run.options,
    )  # fmt: skip
    detail = asyncio.run(_add(settings, schedule, run, sources, command.from_savepoint))
    print_change(command, detail, "added")
    return 0


async def _add(
    settings: ClusterSettings, schedule: ScheduleSubmission, run: RunSubmission, sources: bytes, savepoint: str | None
) -> ScheduleDetail:
    async with client_of(settings) as cluster:
        if savepoint:
            run = await starting_from(cluster, settings, run, savepoint)
        return await cluster.add_schedule(replace(schedule, options=run.options), sources)


def given_templates(given: list[str]) -> dict[str, str]:
    """`--param` with placeholders in them; what comes from a variable or a file is meant as it is."""
    templates: dict[str, str] = {}
    for text in given:
        meant_as_it_is = text.partition("=")[2].startswith(("@env:", "@file:"))
        for name, value in parse_parameters([text]).items():
            templates[name] = value.replace("{", "{{").replace("}", "}}") if meant_as_it_is else value
    return templates


def example_values(start: str, timezone: str, now: datetime) -> dict[str, str]:
    """What placeholders stand for while the file is imported here: the day of the start, or yesterday, whose input there
    should be."""
    zone = zone_of(timezone)
    begin_us = moment_of("--start", start, zone)
    if begin_us is None:
        midnight = now.astimezone(zone).replace(hour=0, minute=0, second=0, microsecond=0)
        begin_us = to_micros(midnight - _DAY)
    return period_values(begin_us, begin_us + _DAY // timedelta(microseconds=1), zone)
