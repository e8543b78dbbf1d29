"""Which windows Flink's own tests of window assigners expect a row to be in, by their names; milliseconds there are
microseconds here.

From TumblingEventTimeWindowsTest, SlidingEventTimeWindowsTest, EventTimeSessionWindowsTest and
DynamicEventTimeSessionWindowsTest. What does not apply, and why:

* Tumbling..., Sliding...ProcessingTimeWindowsTest, ProcessingTimeSessionWindowsTest: there are no assigners of their own;
  `with_processing_time()` gives rows the time of the clock, and the same windows go by it (test_processing_time.py);
* testWindowAssignmentWithStagger: windows of all keys end together;
* testProperties, testWindowSerializer: the default trigger and the form of windows in snapshots are not of the API;
* testMergeEmptyWindow, testMergeSingleWindow: nothing is merged there, as where a key has one row;
* SlidingEventTimeWindowsTest.testInvalidParameters: a slide that is longer than the window is refused here, where Flink
  leaves rows out without a word.
"""

from __future__ import annotations

from typing import Any

import pytest
from test_flink_windows import applied, found, run, us

from penstock import at_watermark, session, sliding, tumbling
from penstock.errors import PipelineError
from penstock.functions.windows.definitions import SessionWindow

AT_ONCE = 10**9


def bounds_of(window: Any, *times: int) -> list[tuple[int, int]]:
    """The windows that rows of these times are in."""
    steps = [*(("key", 1, time) for time in times), AT_ONCE]
    harness = run(applied(window, at_watermark(), 0), steps, closed=isinstance(window, SessionWindow))
    return sorted((start, end) for _, _, start, end in found(harness, bounds=True))


def tumbled(offset: int = 0) -> Any:
    return tumbling(us(5_000), offset=us(offset))


def slid(offset: int = 0) -> Any:
    return sliding(us(5_000), every=us(1_000), offset=us(offset))


ASSIGNED: dict[str, tuple[Any, dict[int, list[int]]]] = {
    "TumblingEventTimeWindowsTest.testWindowAssignment": (tumbled(), {0: [0], 4_999: [0], 5_000: [5_000]}),
    "TumblingEventTimeWindowsTest.testWindowAssignmentWithGlobalOffset": (
        tumbled(100), {100: [100], 5_099: [100], 5_100: [5_100]},
    ),
    "TumblingEventTimeWindowsTest.testWindowAssignmentWithNegativeGlobalOffset": (
        tumbled(-100), {0: [-100], 4_899: [-100], 4_900: [4_900]},
    ),
    "SlidingEventTimeWindowsTest.testWindowAssignment": (
        slid(),
        {
            0: [-4_000, -3_000, -2_000, -1_000, 0], 4_999: [0, 1_000, 2_000, 3_000, 4_000],
            5_000: [1_000, 2_000, 3_000, 4_000, 5_000],
        },
    ),
    "SlidingEventTimeWindowsTest.testWindowAssignmentWithOffset": (
        slid(100),
        {
            100: [-3_900, -2_900, -1_900, -900, 100], 5_099: [100, 1_100, 2_100, 3_100, 4_100],
            5_100: [1_100, 2_100, 3_100, 4_100, 5_100],
        },
    ),
    "SlidingEventTimeWindowsTest.testWindowAssignmentWithNegativeOffset": (
        slid(-100),
        {
            0: [-4_100, -3_100, -2_100, -1_100, -100], 4_899: [-100, 900, 1_900, 2_900, 3_900],
            4_900: [900, 1_900, 2_900, 3_900, 4_900],
        },
    ),
    "EventTimeSessionWindowsTest.testWindowAssignment": (
        session(us(5_000)), {0: [0], 4_999: [4_999], 5_000: [5_000]},
    ),
}  # fmt: skip
"""The starts of the windows of a row, by its time; all windows are 5,000 long."""


@pytest.mark.parametrize("name", ASSIGNED)
def test_flink_assigns(name: str) -> None:
    window, expected = ASSIGNED[name]
    for time, starts in expected.items():
        assert bounds_of(window, time) == [(start, start + 5_000) for start in starts]


def test_windows_that_touch_are_merged() -> None:
    """EventTimeSessionWindowsTest.testMergeConsecutiveWindows, in any order."""
    for times in ([0, 1, 2, 4, 5], [5, 0, 2, 4, 1]):
        assert bounds_of(session(us(1)), *times) == [(0, 3), (4, 6)]


REFUSED: dict[str, Any] = {
    "TumblingEventTimeWindowsTest.testInvalidParameters: size": lambda: tumbling("-1s"),
    "TumblingEventTimeWindowsTest.testInvalidParameters: offset": lambda: tumbling("10s", offset="20s"),
    "TumblingEventTimeWindowsTest.testInvalidParameters: negative offset": lambda: tumbling("10s", offset="-11s"),
    "SlidingEventTimeWindowsTest.testInvalidParameters: size": lambda: sliding("-2s", every="1s"),
    "SlidingEventTimeWindowsTest.testInvalidParameters: slide": lambda: sliding("2s", every="-1s"),
    "SlidingEventTimeWindowsTest.testInvalidParameters: negative offset": lambda: sliding(
        "20s", every="10s", offset="-11s"
    ),
    "SlidingEventTimeWindowsTest.testInvalidParameters: offset": lambda: sliding("20s", every="10s", offset="11s"),
    "EventTimeSessionWindowsTest.testInvalidParameters: negative": lambda: session("-1s"),
    "EventTimeSessionWindowsTest.testInvalidParameters: zero": lambda: session("0s"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_flink_refuses(name: str) -> None:
    with pytest.raises(PipelineError):
        REFUSED[name]()
