"""Edges of what is chosen by load; what follows from a load over hours is played in `tests/simulation/autoscaling`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from penstock.client.documents import Overview
from penstock.coordination.cluster_view import ScalingView
from penstock_operator.autoscaling import Evaluation, LoadSample, VertexCounts, evaluate
from penstock_operator.looking import spare_slots
from penstock_operator.resources import Autoscaler, AutoscalerStatus

SECOND_US = 1_000_000
BEGAN_US = 1_000 * SECOND_US
NOW_US = BEGAN_US + 1_000 * SECOND_US
SCALER = Autoscaler(
    max_parallelism=8, metrics_window="1m", stabilization_interval="30s", scale_down_interval="10m",
    catch_up_duration="10m", restart_time="10s",
)  # fmt: skip
BEFORE = AutoscalerStatus(instead_of=2, job="j", since_us=BEGAN_US)


def measured(
    rows: float = 1_000, busy: Sequence[float] = (0.5,), behind: float | None = 0.0, parallelism: int = 2, **more: Any
) -> tuple[LoadSample, ...]:
    """A job that reads `rows` a second, and gets `behind` more late a second; `busy`: vertex by vertex, in every slot."""
    return tuple(_samples(rows, busy, behind, parallelism, **more))


def _samples(
    rows: float, busy: Sequence[float], behind: float | None, parallelism: int, late: int = 0, since_us: int = BEGAN_US
) -> Iterable[LoadSample]:
    for second in range(0, 1_001, 5):
        spent = [((round(second * share * SECOND_US), second * SECOND_US),) * parallelism for share in busy]
        vertices = tuple(
            VertexCounts(
                f"v{n}", f"v{n}", parallelism, one, tuple(f"slot {slot}" for slot in range(parallelism)),
                round(rows * second), ((f"v{n - 1}", round(rows * second)),) if n else (),
                None if n or behind is None else late + round(behind * second),
            )
            for n, one in enumerate(spent)
        )  # fmt: skip
        yield LoadSample(BEGAN_US + second * SECOND_US, since_us, parallelism, vertices)


def chosen(
    samples: Sequence[LoadSample], before: AutoscalerStatus = BEFORE, now_us: int = NOW_US, **spec: Any
) -> Evaluation:
    """What follows."""
    return evaluate(msgspec.structs.replace(SCALER, **spec), before, samples, None, now_us)


def test_work_in_a_slot_is_added_up() -> None:
    """Its subtasks share a process: two that work for half of their time leave it no time."""
    assert chosen(measured(busy=(0.48,))).status.state == "Balanced"
    full = chosen(measured(busy=(0.48, 0.48)))
    assert (full.status.state, full.parallelism) == ("ScaleUp", 3)
    assert "the busiest slot has to work 96% of its time at parallelism 2" in full.status.reason


def test_one_process_never_works_more_than_all_the_time() -> None:
    """Subtasks that wait for a server in the middle of their work count that as work, and so overlap."""
    assert chosen(measured(busy=(0.9, 0.9, 0.9))).parallelism == chosen(measured(busy=(1.0,))).parallelism == 3


@pytest.mark.parametrize(
    ("samples", "now_us", "reason"),
    [
        ((), NOW_US, "has not measured"),
        (measured()[-1:], NOW_US, "measurements count from"),
        (measured(), NOW_US + 31 * SECOND_US, "has not measured"),
        (measured(since_us=NOW_US - 60 * SECOND_US), NOW_US, "measurements count from"),
        (measured(since_us=NOW_US + 3_600 * SECOND_US), NOW_US, "measurements count from"),
        ((*measured()[:-3], *measured(since_us=BEGAN_US - 1)[-3:]), NOW_US, "measurements count from"),
        (tuple(reversed(measured()[-3:])), NOW_US, "measurements count from"),
        (measured(rows=0, behind=1.0), NOW_US, "source 'v0' has records to read, and reads none"),
    ],
    ids=["none", "one", "old", "early", "a clock ahead", "subtasks began anew", "a clock set back", "a source is stuck"],
)  # fmt: skip
def test_nothing_is_chosen_where_too_little_is_known(samples: tuple[LoadSample, ...], now_us: int, reason: str) -> None:
    """The status says what is missing."""
    found = chosen(samples, now_us=now_us)
    assert (found.status.state, found.parallelism) == ("Collecting", samples[-1].parallelism if samples else 0)
    assert reason in found.status.reason


@pytest.mark.parametrize(("busy", "state"), [(1.0, "Limited"), (0.6, "Balanced"), (0.0, "Limited")])
def test_where_there_is_one_parallelism_it_stays(busy: float, state: str) -> None:
    """Highest and lowest are the same."""
    found = chosen(measured(busy=(busy,)), min_parallelism=2, max_parallelism=2)
    assert (found.status.state, found.parallelism) == (state, 2)


def test_no_lag_is_too_large() -> None:
    """The limits hold, and the reason says what would be needed."""
    found = chosen(measured(busy=(1.0,), late=10**15))
    assert (found.status.state, found.parallelism) == ("ScaleUp", 8)
    limited = chosen(measured(busy=(1.0,), late=10**15), max_parallelism=2)
    assert limited.status.state == "Limited"
    assert "1,000,000,000,000,000 records behind" in limited.status.reason


@pytest.mark.parametrize("behind", [0.0, None])
def test_an_idle_job_is_scaled_down_once_it_has_been_idle_for_long_enough(behind: float | None) -> None:
    """Also by an operator that begins anew in between: since when, and how far, is in the status."""
    idle = measured(rows=0, busy=(0.0, 0.0), behind=behind)
    delayed = chosen(idle)
    assert (delayed.status.state, delayed.parallelism) == ("ScaleDownDelayed", 2)
    lost = chosen((), delayed.status)
    assert (lost.status.scale_down_since_us, lost.status.scale_down_to) == (NOW_US, 1)
    over = msgspec.structs.replace(lost.status, scale_down_since_us=NOW_US - 600 * SECOND_US)
    assert (chosen(idle, over).status.state, chosen(idle, over).parallelism) == ("ScaleDown", 1)


def test_a_dry_run_recommends_what_would_be_chosen() -> None:
    """Of the parallelisms that were low enough all the time the highest."""
    before = msgspec.structs.replace(BEFORE, scale_down_since_us=BEGAN_US, scale_down_to=3)
    found = chosen(measured(rows=0, busy=(0.0,), parallelism=4), before, dry_run=True)
    assert (found.status.state, found.parallelism, found.status.recommended_parallelism) == ("ScaleDown", 4, 3)


def test_a_source_that_waits_for_another_does_not_keep_that_one_slow() -> None:
    """By watermark alignment nothing is read of one while the other catches up: the job is scaled up, and not down."""

    def beside(samples: Sequence[LoadSample]) -> tuple[LoadSample, ...]:
        waits = VertexCounts("w", "waits", 1, (), ("slot 0",), 0, behind=10**6)
        return tuple(
            replace(one, vertices=(*one.vertices, replace(waits, spent_us=((0, one.at_us),)))) for one in samples
        )

    assert chosen(beside(measured(busy=(1.0,), late=10**6))).status.state == "ScaleUp"
    idle = chosen(beside(measured(busy=(0.1,))))
    assert (idle.status.state, "'waits' has records to read" in idle.status.reason) == ("Collecting", True)


def test_waiting_for_a_slow_sink_is_no_work() -> None:
    """A source that is held up looks idle; what counts is who works, also where the lag grows."""
    held = measured(rows=1_000, busy=(0.1, 0.85), behind=500)
    assert (chosen(held).status.state, chosen(held).parallelism) == ("ScaleUp", 6)


@pytest.mark.parametrize(
    ("scaling", "spare"),
    [
        (None, 1),
        (ScalingView(wanted=2, standing=2, least=1, most=4), 7),
        (ScalingView(wanted=3, standing=2, least=1, most=4), 4),
        (ScalingView(wanted=None, standing=2, least=1, most=2), 1),
        (ScalingView(wanted=2, standing=0, least=1, most=4), 1),
    ],
)
def test_slots_of_task_managers_that_may_still_come_are_there(scaling: ScalingView | None, spare: int) -> None:
    """But not of those that were asked for, because somebody waits for them."""
    overview = Overview(
        leader="c", address="", epoch=1, workers=2, slots=6, free_slots=1, jobs={}, version="1", scaling=scaling
    )
    assert spare_slots(overview) == spare
