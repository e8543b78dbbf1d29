"""What the commands that talk to a cluster share: connecting, waiting for answers, printing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.client import ClusterClient
from penstock.client.client import client_of
from penstock.client.documents import JobSummary
from penstock.client.run_documents import RunSummary
from penstock.core.names import shown
from penstock.core.times import duration_us, format_duration
from penstock.settings import load_settings

T = TypeVar("T")


@dataclass(frozen=True)
class ClusterOptions:
    """Which cluster is meant, and how what is found is printed."""

    cluster: str | None
    json: bool


@dataclass(frozen=True)
class OneJob(ClusterOptions):
    """A command about one job."""

    job: str


def with_cluster(options: ClusterOptions, work: Callable[[ClusterClient], Awaitable[T]]) -> T:
    """Do something with the cluster that the options name."""

    async def run() -> T:
        settings = load_settings(options.cluster)
        async with client_of(settings) as cluster:
            return await work(cluster)

    return asyncio.run(run())


def timeout_s(timeout: str) -> float:
    """`--timeout` in seconds."""
    return duration_us(timeout, "--timeout", positive=True) / 1_000_000


def print_json(value: Any) -> None:
    """A document, indented."""
    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Plain columns; no line is cut where the output is no terminal."""
    console = Console(highlight=False)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="" if not console.is_terminal else "bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", no_wrap=not console.is_terminal)
    for row in rows:
        table.add_row(*map(Text, row))
    if console.is_terminal:
        console.print(table)
    else:
        Console(highlight=False, width=1_000, soft_wrap=True).print(table)


def moment(micros: int | None) -> str:
    """A time of the wall clock, to the second."""
    if not micros:
        return ""
    return datetime.fromtimestamp(micros // 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def span(micros: int | None) -> str:
    """A duration that people read: two units are enough."""
    if micros is None:
        return ""
    if micros < 1_000_000:
        return f"{micros / 1_000:,.0f}ms"
    if micros < 60_000_000:
        return f"{micros / 1_000_000:.1f}s"
    unit = 60_000_000 if micros >= 3_600_000_000 else 1_000_000
    return format_duration(micros // unit * unit)


def lasted(begin_us: int, end_us: int | None) -> str:
    """How long something took, or has taken by now."""
    until_us = end_us if end_us is not None else time.time_ns() // 1_000
    return span(max(0, until_us - begin_us))


LISTED: Final = ("job", "name", "engine", "state", "parallelism", "submitted", "lasted")


def listed_row(
    one: JobSummary | RunSummary, short: str, engine: str, state: str, parallelism: int | None
) -> tuple[str, ...]:
    """The cells of a job or a run under `LISTED`."""
    times = moment(one.submitted_us), lasted(one.submitted_us, one.ended_us)
    return short, shown(one.name), engine, state, str(parallelism or ""), *times


def submitted_line(one: JobSummary | RunSummary) -> str:
    """When it was submitted, and for how long it has gone on."""
    return f"submitted    {moment(one.submitted_us)}, lasted {lasted(one.submitted_us, one.ended_us)}"


def state_text(job: JobSummary) -> str:
    """The state of a job, and what it waits for."""
    waits = f", waits for {slots(job.missing_slots)}" if job.missing_slots else ""
    return job.state.lower() + waits


def slots(count: int) -> str:
    """`1 more slot`, `3 more slots`."""
    return f"{count} more slot{'s' if count > 1 else ''}"


def deaf_line(deaf_us: int, now_us: int) -> str:
    """That the brokers are away, as the leader sees it; `now_us` is the time at which it was asked."""
    return (
        f"the coordinator has heard nothing from the brokers for {span(deaf_us)}: what is shown of subtasks and task "
        f"managers is of {moment(now_us - deaf_us)}; look whether Kafka runs (penstock doctor)"
    )
