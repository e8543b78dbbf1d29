"""How many task managers there should be: up at once, down from the top after a while, never below what is in use."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.protocol.autoscaling import ScalingDecider, ScalingDecision, ScalingLimits, Standing

LIMITS = ScalingLimits(slots=2, least=1, most=5, idle_ms=1_000, start_ms=10_000, settle_ms=3_000)


def task_managers(*used: int, slots: int = 2) -> dict[int, Standing]:
    """Task managers 0, 1, ... with so many slots in use."""
    return {number: Standing(slots, count) for number, count in enumerate(used)}


def test_all_that_waiting_jobs_want_comes_at_once() -> None:
    """Free slots are used first; what is on its way is not asked for twice."""
    decider = ScalingDecider(LIMITS, 0)
    assert decider.decide(0, 1, task_managers(1), 1) == ScalingDecision(1)
    assert decider.decide(1, 1, task_managers(1), 2) == ScalingDecision(2)
    assert decider.decide(2, 1, task_managers(2), 5) == ScalingDecision(4)
    assert decider.decide(3, 4, task_managers(2), 5) == ScalingDecision(4)
    assert decider.decide(4, 4, task_managers(2, 0), 7) == ScalingDecision(5)


def test_more_than_is_allowed_is_said() -> None:
    """The rest of the slots stays missing because of the limit."""
    decider = ScalingDecider(LIMITS, 0)
    assert decider.decide(0, 1, task_managers(2), 11) == ScalingDecision(5, short=3)


def test_what_does_not_come_is_replaced_by_another() -> None:
    """A task manager whose node is lost, or workers that cannot start, are waited for, but not for ever."""
    decider = ScalingDecider(LIMITS, 0)
    standing = {0: Standing(2, 2), 2: Standing(1, 1)}
    assert decider.decide(0, 3, standing, 3) == ScalingDecision(3)
    assert decider.decide(9_999, 3, standing, 3) == ScalingDecision(3)
    assert decider.decide(10_000, 3, standing, 3) == ScalingDecision(5)
    assert decider.decide(10_001, 5, standing, 3) == ScalingDecision(5)
    assert decider.decide(20_001, 5, standing, 3) == ScalingDecision(5, short=3)


def test_idle_ones_go_from_the_top() -> None:
    """Not before their time, not from below a busy one, not below the least number."""
    decider = ScalingDecider(LIMITS, 0)
    assert decider.decide(5_000, 4, task_managers(0, 1, 0, 0), 0) == ScalingDecision(4)
    assert decider.decide(5_999, 4, task_managers(0, 1, 0, 0), 0) == ScalingDecision(4)
    assert decider.decide(6_000, 4, task_managers(0, 1, 0, 0), 0) == ScalingDecision(2)
    assert decider.decide(9_000, 2, task_managers(0, 0), 0) == ScalingDecision(2)
    assert decider.decide(10_000, 2, task_managers(0, 0), 0) == ScalingDecision(1)


def test_use_begins_the_wait_anew() -> None:
    """Idle is who was not used in all that time."""
    decider = ScalingDecider(LIMITS, 0)
    assert decider.decide(5_000, 2, task_managers(1, 0), 0) == ScalingDecision(2)
    assert decider.decide(5_500, 2, task_managers(1, 1), 0) == ScalingDecision(2)
    assert decider.decide(6_000, 2, task_managers(1, 0), 0) == ScalingDecision(2)
    assert decider.decide(6_999, 2, task_managers(1, 0), 0) == ScalingDecision(2)
    assert decider.decide(7_000, 2, task_managers(1, 0), 0) == ScalingDecision(1)


def test_nothing_goes_while_a_job_waits() -> None:
    """Even if what is idle does not suffice for it."""
    decider = ScalingDecider(LIMITS, 0)
    decider.decide(3_000, 5, task_managers(2, 0, 0, 0, 0), 20)
    assert decider.decide(9_000, 5, task_managers(2, 0, 0, 0, 0), 20) == ScalingDecision(5, short=12)


def test_who_is_silent_is_not_idle() -> None:
    """A new leader takes nothing away at first; who was never heard of is given time to come."""
    decider = ScalingDecider(LIMITS, 0)
    decider.decide(0, 3, task_managers(1), 0)
    assert decider.decide(2_999, 3, task_managers(1, 0, 0), 0) == ScalingDecision(3)
    assert decider.decide(9_000, 3, task_managers(1), 0) == ScalingDecision(3)
    assert decider.decide(18_999, 3, task_managers(1), 0) == ScalingDecision(3)
    assert decider.decide(19_000, 3, task_managers(1), 0) == ScalingDecision(1)


def test_one_that_came_late_gets_its_time() -> None:
    """What it was silent before does not count as idle."""
    decider = ScalingDecider(LIMITS, 0)
    decider.decide(0, 2, task_managers(1), 0)
    assert decider.decide(9_999, 2, task_managers(1, 0), 0) == ScalingDecision(2)
    assert decider.decide(10_500, 2, task_managers(1, 0), 0) == ScalingDecision(2)
    assert decider.decide(10_999, 2, task_managers(1, 0), 0) == ScalingDecision(1)


def test_limits_that_were_changed() -> None:
    """More than the most are not ended while they are used; fewer than the least come."""
    decider = ScalingDecider(LIMITS, 0)
    assert decider.decide(0, 0, {}, 0) == ScalingDecision(1)
    busy = task_managers(1, 1, 1, 1, 1, 1, 1)
    assert decider.decide(10_000, 7, busy, 0) == ScalingDecision(7)
    assert decider.decide(10_000, 7, busy, 9) == ScalingDecision(7, short=2)


HISTORIES = st.lists(
    st.tuples(
        st.integers(0, 4_000),
        st.dictionaries(st.integers(0, 7), st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=8),
        st.integers(0, 25),
    ),
    min_size=1, max_size=30,
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(HISTORIES, st.integers(0, 3), st.integers(0, 4), st.integers(1, 3))
def test_whatever_happens(
    history: list[tuple[int, dict[int, tuple[int, int]], int]], least: int, more: int, slots: int
) -> None:
    """Within the limits, never down while jobs wait, never one that is in use or was lately; what is short is true."""
    limits = ScalingLimits(slots, least, max(1, least + more), idle_ms=1_500, start_ms=5_000, settle_ms=2_000)
    decider = ScalingDecider(limits, 0)
    now_ms, wanted = 0, least
    last_used: dict[int, int] = {}
    for passed_ms, found, missing in history:
        now_ms += passed_ms
        standing = {n: Standing(max(has, used), used) for n, (has, used) in found.items() if n < wanted}
        last_used.update({n: now_ms for n, tm in standing.items() if tm.used})
        decided = decider.decide(now_ms, wanted, standing, missing)
        assert limits.least <= decided.task_managers <= limits.most
        if missing:
            assert decided.task_managers >= wanted
            assert decided.short == 0 or decided.task_managers == limits.most
            free = sum(max(0, tm.slots - tm.used) for tm in standing.values())
            fresh = (decided.task_managers - wanted) * slots
            assert decided.short <= max(0, missing - free - fresh)
            if free >= missing:
                assert decided.task_managers == wanted
        for number in range(decided.task_managers, wanted):
            assert now_ms >= limits.settle_ms
            assert now_ms - last_used.get(number, 0) >= limits.idle_ms
            if number not in standing:
                assert now_ms >= limits.start_ms
        last_used = {n: at for n, at in last_used.items() if n < decided.task_managers}
        wanted = decided.task_managers


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 4), st.integers(0, 3), st.integers(1, 6), st.integers(1, 30))
def test_it_comes_to_rest(slots: int, least: int, more: int, missing: int) -> None:
    """What is asked for comes: then the jobs have their slots, or the limit is said; and after them it is as before."""
    limits = ScalingLimits(slots, least, least + more, idle_ms=1_000, start_ms=5_000, settle_ms=0)
    decider = ScalingDecider(limits, 0)
    first = decider.decide(0, least, {n: Standing(slots, 0) for n in range(least)}, missing)
    assert first.task_managers * slots + first.short >= missing
    assert first.task_managers == least or (first.task_managers - 1) * slots < missing
    came = {n: Standing(slots, 0) for n in range(first.task_managers)}
    assert decider.decide(1, first.task_managers, came, missing) == first
    assert decider.decide(2, first.task_managers, came, 0) == ScalingDecision(first.task_managers)
    assert decider.decide(1_002, first.task_managers, came, 0) == ScalingDecision(least)
