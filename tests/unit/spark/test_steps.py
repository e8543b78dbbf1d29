"""Which step is next, whatever is left of the others; and when there is one to do."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest

from penstock.connectors import kafka
from penstock.connectors.base import Source
from penstock.errors import CorruptDataError
from penstock.spark.splits import RunBeginning, RunSplit
from penstock.spark.steps import KEPT, NextStep, Silence, StepsJob, is_due, next_step, obsolete
from penstock.task.sources import SplitEntry

SEED = int(os.environ.get("PENSTOCK_TEST_SEED", random.SystemRandom().randrange(10**6)))
JOB = StepsJob("0123456789abcdef", 1)


def test_a_step_that_is_not_done_is_repeated_from_where_it_began() -> None:
    """A new one begins only behind one that is done."""
    assert next_step(JOB, {}) == NextStep(1, None)
    assert next_step(JOB, {1: False}) == NextStep(1, None)
    assert next_step(JOB, {1: True}) == NextStep(2, 1)
    assert next_step(JOB, {4: True, 5: False}) == NextStep(5, 4)
    assert next_step(JOB, {4: True, 5: True}) == NextStep(6, 5)


def test_another_job_in_the_folder_goes_on_counting_and_starts_with_its_own_savepoint() -> None:
    """What the job before left undone is not its business."""
    other = StepsJob("f" * 32, 6, "kept")
    assert next_step(other, {4: True, 5: False}) == NextStep(6, None)
    assert next_step(other, {4: True, 5: False, 6: True}) == NextStep(7, 6)


def test_a_step_whose_beginning_is_gone_is_not_begun_with_nothing() -> None:
    """Somebody has removed the savepoint between the steps."""
    with pytest.raises(CorruptDataError, match="savepoint of step 4"):
        next_step(JOB, {5: False})
    with pytest.raises(CorruptDataError, match="savepoint of step 4"):
        next_step(JOB, {4: False, 5: False})


def test_run_ids_name_the_job_and_the_step() -> None:
    """So a repeated step is the same run."""
    assert JOB.run_id(7) == "01234567-00000007"


@pytest.mark.parametrize("history", range(50))
def test_histories_of_deaths_do_every_step_once_from_the_one_before(history: int) -> None:
    """A model of the folder: a driver may die behind each change of it. Steps follow each other without a gap, none
    starts from a savepoint that is gone, and no more than the newest stay."""
    rng = random.Random(f"{SEED} {history}")
    print(f"repeat with PENSTOCK_TEST_SEED={SEED}")
    folder: dict[int, bool] = {}
    completed: list[int] = []
    while len(completed) < 12:
        lives = rng.randrange(1, 9)  # changes of the folder until this driver dies
        while lives > 0 and len(completed) < 12:
            step = next_step(JOB, folder)
            assert step.former is None or folder[step.former]
            assert step.former == (completed[-1] if completed else None)
            for change in ("begin", "done", *obsolete({**folder, step.number: True})):
                lives -= 1
                if lives < 0:
                    break
                if change == "begin":
                    folder.setdefault(step.number, False)
                elif change == "done":
                    folder[step.number] = True
                    completed.append(step.number)
                else:
                    del folder[change]
            else:
                assert [number for number, done in folder.items() if done] == completed[-KEPT:]
        for gone in obsolete(folder):  # the next driver clears away first
            del folder[gone]
    assert completed == list(range(1, 13))


@dataclass
class Row:
    at: datetime


def topic(idle_after: str | None = None) -> dict[str, Source[Any]]:
    return {"in": kafka.Source("t", schema=Row, brokers="nowhere:1", event_time="at", idle_after=idle_after)}


def split(offset: int, end: int, *, known: bool = True, idle: bool = False) -> RunBeginning:
    position = {"offset": offset, "end": end, "topic_id": None}
    former = SplitEntry("0", position, False, 0, idle, None) if known else None
    return RunBeginning({"in": (RunSplit("0", position, former=former),)})


def test_a_step_is_due_for_rows_and_for_new_splits() -> None:
    """The position of a new split must be remembered, or the next look would begin behind what comes meanwhile."""
    assert not is_due(split(5, 5), topic())
    assert is_due(split(5, 6), topic())
    assert is_due(split(5, 5, known=False), topic())


def test_a_split_is_idle_when_it_was_silent_for_long_enough_not_for_a_step() -> None:
    """A step lets event time come on without it; then there is nothing to do until rows come."""
    silence, sources = Silence(topic("10s")), topic("10s")

    def look(now_s: int, beginning: RunBeginning) -> tuple[bool, bool]:
        judged = silence.with_awake_splits(beginning, now_s * 1_000_000)
        return judged.splits["in"][0].awake, is_due(judged, sources)

    assert look(0, split(5, 9)) == (True, True)
    assert look(1, split(9, 9)) == (True, False)
    assert look(9, split(9, 9)) == (True, False)
    assert look(10, split(9, 9)) == (False, True)
    assert look(11, split(9, 9, idle=True)) == (False, False)
    assert look(12, split(9, 10, idle=True)) == (True, True)
    assert look(21, split(10, 10)) == (True, False)
    assert look(22, split(10, 10)) == (False, True)


def test_without_idle_after_a_silent_split_is_waited_for() -> None:
    """As in streaming."""
    judged = Silence(topic()).with_awake_splits(split(5, 5), 10**15)
    assert not is_due(judged, topic())
