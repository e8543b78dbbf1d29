"""Event time over several inputs, against the expectations of Flink's StatusWatermarkValveTest."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.times import MAX_WATERMARK, MIN_WATERMARK
from penstock.protocol.watermarks import CombinedProgress, InputProgress, combined, least

IDLE, ACTIVE = "idle", "active"
Said = int | str
Step = tuple[int, Said, tuple[Said, ...]]
"""An input, the watermark or status that it sends, and what comes out: at most a watermark, then a status."""


class Valve:
    """Inputs that take watermarks and statuses as Flink's do. In Penstock whatever is sent says that it is active."""

    def __init__(self, inputs: int) -> None:
        self.inputs = [InputProgress() for _ in range(inputs)]
        self.reached = MIN_WATERMARK
        self.idle = False

    def send(self, number: int, said: Said) -> tuple[Said, ...]:
        each = self.inputs[number]
        if said == ACTIVE:
            each.wake(self.reached)
        elif said == IDLE:
            each.rest()
        else:
            each.advance(int(said), self.reached)
        before = (self.reached, self.idle)
        if said != ACTIVE:
            self.reached, self.idle = combined(self.inputs, self.reached)
        elif self.idle:
            self.idle = False
        watermark = (self.reached,) if self.reached > before[0] else ()
        status = () if self.idle == before[1] else (IDLE,) if self.idle else (ACTIVE,)
        return watermark + status


CASES: dict[str, tuple[int, list[Step]]] = {
    "testSingleInputIncreasingWatermarks": (1, [(0, 0, (0,)), (0, 25, (25,))]),
    "testSingleInputDecreasingWatermarksYieldsNoOutput": (1, [(0, 25, (25,)), (0, 18, ()), (0, 42, (42,))]),
    "testSingleInputWatermarkStatusToggling": (
        1, [(0, ACTIVE, ()), (0, IDLE, (IDLE,)), (0, IDLE, ()), (0, ACTIVE, (ACTIVE,))],
    ),
    "testMultipleInputYieldsWatermarkOnlyWhenAllChannelsReceivesWatermarks": (
        3, [(0, 0, ()), (1, 0, ()), (2, 0, (0,))],
    ),
    "testMultipleInputIncreasingWatermarks": (
        3, [(0, 0, ()), (1, 0, ()), (2, 0, (0,)), (0, 12, ()), (2, 8, ()), (2, 10, ()), (1, 15, (10,)), (2, 17, (12,)),
            (0, 20, (15,))],
    ),
    "testMultipleInputDecreasingWatermarksYieldsNoOutput": (
        3, [(0, 25, ()), (1, 10, ()), (2, 17, (10,)), (0, 12, ()), (1, 8, ()), (2, 15, ())],
    ),
    "testMultipleInputWatermarkStatusToggling": (
        2, [(0, ACTIVE, ()), (1, ACTIVE, ()), (1, IDLE, ()), (0, IDLE, (IDLE,)), (0, IDLE, ()), (1, IDLE, ()),
            (1, ACTIVE, (ACTIVE,)), (0, ACTIVE, ())],
    ),
    "testMultipleInputWatermarkAdvancingWithPartiallyIdleChannels": (
        3, [(0, 15, ()), (1, 10, ()), (2, IDLE, (10,)), (1, 18, (15,)), (0, 20, (18,))],
    ),
    "testMultipleInputWatermarkAdvancingAsChannelsIndividuallyBecomeIdle": (
        3, [(0, 25, ()), (1, 10, ()), (2, 17, (10,)), (1, IDLE, (17,)), (2, IDLE, (25,))],
    ),
    "testMultipleInputFlushMaxWatermarkAndWatermarkStatusOnceAllInputsBecomeIdle": (
        3, [(0, 10, ()), (1, 5, ()), (2, 3, (3,)), (0, IDLE, ()), (1, IDLE, ()), (2, IDLE, (10, IDLE))],
    ),
    "testMultipleInputWatermarkRealignmentAfterResumeActive": (
        3, [(0, 10, ()), (1, 7, ()), (2, 3, (3,)), (2, IDLE, (7,)), (2, ACTIVE, ()), (2, 5, ()), (2, 9, ()),
            (1, 12, (9,))],
    ),
    "testNoOutputWhenAllActiveChannelsAreUnaligned": (
        3, [(0, 10, ()), (1, 7, ()), (2, IDLE, (7,)), (2, ACTIVE, ()), (0, IDLE, ()), (1, IDLE, ())],
    ),
    "an input goes on while one that resumed is behind, which may become idle again": (
        2, [(0, 7, ()), (1, 9, (7,)), (0, IDLE, (9,)), (0, ACTIVE, ()), (0, 8, ()), (0, IDLE, ()), (1, 14, (14,))],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_event_time_goes_as_in_flink(case: str):
    """What comes out after everything that is sent; those with Flink's names are Flink's."""
    inputs, steps = CASES[case]
    valve = Valve(inputs)
    assert [(number, said, valve.send(number, said)) for number, said, _ in steps] == steps


@dataclass
class Model:
    """Flink's valve in its own words: one status per input, looked at after every event."""

    inputs: int

    def __post_init__(self) -> None:
        self.marks = [MIN_WATERMARK] * self.inputs
        self.active = [True] * self.inputs
        self.aligned = [True] * self.inputs
        self.last = MIN_WATERMARK

    def send(self, number: int, said: Said) -> int:
        if said == IDLE:
            if self.active[number]:
                self.active[number] = self.aligned[number] = False
                self.last = max(self.last, self.lowest() if any(self.active) else max(self.marks))
            return self.last
        if not self.active[number]:
            self.active[number] = True
            self.aligned[number] = self.marks[number] >= self.last
        if said != ACTIVE and int(said) > self.marks[number]:
            self.marks[number] = int(said)
            self.aligned[number] = self.aligned[number] or int(said) >= self.last
            self.last = max(self.last, self.lowest())
        return self.last

    def lowest(self) -> int:
        found = [mark for mark, aligned in zip(self.marks, self.aligned, strict=True) if aligned]
        return min(found, default=self.last)


@given(st.integers(1, 4), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30) | st.sampled_from([IDLE, ACTIVE]))))
def test_any_history_reaches_what_flink_reaches(inputs: int, history: list[tuple[int, Said]]):
    """The watermark after every event; it never goes back."""
    valve, model, before = Valve(inputs), Model(inputs), MIN_WATERMARK
    for number, said in history:
        valve.send(number % inputs, said)
        assert valve.reached == model.send(number % inputs, said)
        assert valve.reached >= before
        before = valve.reached


@given(
    st.integers(0, 5),
    st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from(["advance", "wake", "rest"]), st.integers(-5, 30)), max_size=80
    ),
)
def test_what_is_kept_up_is_what_all_inputs_say(number: int, steps: list[tuple[int, str, int]]):
    """Against `combined`, which looks at all inputs every time."""
    mine, others = [InputProgress() for _ in range(number)], [InputProgress() for _ in range(number)]
    kept, reached = CombinedProgress(mine), MIN_WATERMARK
    for place, what, watermark in steps:
        if place >= number:
            continue
        if what == "advance":
            kept.advance(mine[place], watermark, reached)
            others[place].advance(watermark, reached)
        elif what == "wake":
            kept.wake(mine[place], reached)
            others[place].wake(reached)
        else:
            kept.rest(mine[place])
            others[place].rest()
        for one, theirs in zip(mine, others, strict=True):
            rest = [each for each in others if each is not theirs]
            assert kept.least_beside(one, MAX_WATERMARK) == least(rest, MAX_WATERMARK)
        found = kept.combined(reached)
        assert found == combined(others, reached)
        reached = found[0]
    assert kept.combined(reached) == combined(others, reached)


def test_a_watermark_of_one_of_many_inputs_costs_little():
    """Looking at all of them for every frame was parallelism squared: now each is looked at when it is the least."""
    looked = 0

    class Counted(InputProgress):
        def __getattribute__(self, name: str):
            nonlocal looked
            looked += name == "watermark"
            return super().__getattribute__(name)

    inputs = [Counted() for _ in range(1_000)]
    kept = CombinedProgress(inputs)
    looked = 0
    for watermark in range(5):
        for each in inputs:
            kept.advance(each, watermark, MIN_WATERMARK)
            kept.combined(MIN_WATERMARK)
    assert looked < 5 * 1_000 * 12
