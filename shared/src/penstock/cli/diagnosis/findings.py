"""Asks all checks, causes before what follows from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from penstock.cli.cluster import span
from penstock.cli.diagnosis import control, delivery, progress
from penstock.cli.diagnosis.facts import JobFacts, JobFinding
from penstock.client.documents import ENDED

Check = Callable[[JobFacts], Iterator[JobFinding]]

_FIRST: Final[tuple[Check, ...]] = (control.leader, control.brokers, control.unopened, control.store)
_RUNNING: Final[tuple[Check, ...]] = (
    control.slots, control.restarts, control.ending, control.waiting, control.opening, delivery.sinks,
    progress.amidst, progress.bottleneck, progress.input_limited, delivery.event_time, delivery.checkpoints,
)  # fmt: skip


def diagnose(facts: JobFacts) -> list[JobFinding]:
    """What is wrong with a job, causes first; one finding that says so if nothing is.

    What is shown of a job that nobody leads, or whose leader hears nobody, is old: of its rows nothing is said then.
    """
    if facts.detail.summary.state in ENDED:
        return list(control.ended(facts))
    checks = _FIRST if facts.detail.deaf_us or not facts.detail.summary.live else _FIRST + _RUNNING
    found = [finding for check in checks for finding in check(facts)]
    return found if any(not finding.ok for finding in found) else [*found, _well(facts)]


def _well(facts: JobFacts) -> JobFinding:
    """Nothing is wrong, as far as can be seen."""
    job = facts.detail.summary
    parts = [f"{job.state.lower()}, {job.running_tasks} of {job.tasks} subtasks at work"]
    if job.load is None:
        parts.append("no rates yet: ask again in some seconds")
    else:
        parts.append(f"{job.load.rows_in:,.0f} rows/s in, {job.load.rows_out:,.0f} out")
        parts.append(f"the busiest subtask works {job.load.busy:.0%} of its time, backpressure {job.load.blocked:.0%}")
    behind = facts.records_behind()
    parts += [f"{behind:,} records to read"] if behind is not None else []
    ended_us = delivery.newest_complete_us(facts)
    parts += [f"newest checkpoint {job.last_checkpoint}, {span(facts.ago(ended_us))} ago"] if ended_us else []
    return JobFinding("job", ok=True, seen="; ".join(parts), meaning="Nothing is found that is wrong.")
