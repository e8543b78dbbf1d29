"""What simulated task managers cost a leader, counted in events: these figures do not depend on the machine."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from benchmarks.leader import Figures, Restart, measure, measure_restart

from penstock.protocol.jobevents import OffsetsCaptured, StatusReported, TasksListed
from penstock.protocol.jobmaster import JobMaster
from penstock.protocol.slots import SlotPool
from penstock.testing.virtual_time import VirtualLoop

SLOTS, JOBS, SECONDS = 60, 6, 20


def test_heartbeats_that_say_nothing_new_cost_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs hear of news, and of everything now and then; slots are dealt out when something about them has changed."""
    events: Counter[type] = Counter()
    handle, give = JobMaster.handle, SlotPool._give

    def counted(master: JobMaster, event: Any, now_ms: int) -> Any:
        events[type(event)] += 1
        return handle(master, event, now_ms)

    def dealt(pool: SlotPool, job: str, missing: int) -> None:
        events[SlotPool] += 1
        give(pool, job, missing)

    monkeypatch.setattr(JobMaster, "handle", counted)
    monkeypatch.setattr(SlotPool, "_give", dealt)
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        found: Figures = runner.run(measure(SLOTS, JOBS, SECONDS, 1_000))
    assert found.completed_per_s == pytest.approx(JOBS, abs=1)
    heartbeats = 2 * SLOTS * SECONDS
    assert events[SlotPool] <= JOBS
    assert events[TasksListed] < heartbeats / 4
    assert events[StatusReported] < found.subtasks * (SECONDS / 4 + 3)


def test_a_job_of_a_thousand_subtasks_is_deployed_again_in_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task manager of ten workers is lost: one failure, one new attempt, and nothing of it one after the other.

    The seconds are virtual, every answer of the log takes 5 ms: a question for each partition in turn would take 2.5 s.
    """
    events: Counter[type] = Counter()
    handle = JobMaster.handle

    def counted(master: JobMaster, event: Any, now_ms: int) -> Any:
        events[type(event)] += 1
        return handle(master, event, now_ms)

    monkeypatch.setattr(JobMaster, "handle", counted)
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        found: Restart = runner.run(measure_restart(1_000))
    assert (found.subtasks, found.attempts) == (1_000, 2)
    assert found.deployed_s < 1
    assert events[OffsetsCaptured] == 2
    assert events[StatusReported] < 10 * found.subtasks
