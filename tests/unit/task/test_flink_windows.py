"""What Flink's own tests of windows expect, with the name of the Flink test beside each case.

From WindowOperatorTest, ContinuousEventTimeTriggerTest, CountTriggerTest, PurgingTriggerTest and MergingWindowSetTest;
a millisecond there is a microsecond here. Results are compared as assertOutputEqualsSorted does, by time and key.

What does not apply, and why (docs/windows.md says it to users):
- testProcessingTime...: windows by the clock are these ones behind `with_processing_time()` (test_processing_time.py);
- testPointSessions, testDynamicEventTimeSessionWindows and other assigners of the user's: windows are those of the API;
- testMergeAndEvictor, EvictingWindowOperatorTest: there are no evictors but that of count windows;
- testReduce... beside testApply...: `agg` and `apply` run the same cases here;
- the results of global windows have no event time here, in Flink the end of time;
- testContinuousWatermarkTrigger expects a second firing with the same rows: here none is for an interval without rows;
- ContinuousProcessingTimeTriggerTest: windows end by the watermark, also under a trigger that fires by the clock;
- testCleanupTimeOverflow: times end with the year 9999, beyond which lateness is cut off (tested in test_row_windows).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from window_cases import SCHEMA, frame_of

from penstock import Pipeline, TimeWindow, col, every, every_rows, global_, purging
from penstock.api.keyed_streams import KeyedStream
from penstock.api.windows import session, sliding, tumbling
from penstock.core.batches import EVENT_TIME
from penstock.core.times import to_micros
from penstock.functions.process_functions import OutputTag
from penstock.functions.windows.definitions import SessionWindow
from penstock.functions.windows.triggers import Trigger, at_watermark
from penstock.plan.logical import Node
from penstock.testing.harness import OperatorHarness, input_node
from penstock.types import row_class

LATE: OutputTag[Any] = OutputTag("late")


@dataclasses.dataclass
class Sum:
    key: str
    total: int
    start: int
    end: int


def summed(key: str, window: TimeWindow, rows: list[Any]) -> Iterator[Sum]:
    yield Sum(key, sum(row.value for row in rows), to_micros(window.start), to_micros(window.end))


def keyed() -> KeyedStream[Any]:
    return KeyedStream(Pipeline("test"), input_node(SCHEMA, row_class(SCHEMA), ["key"], event_time=True))


def us(number: int) -> str:
    return f"{number}us"


def windowed(window: Any, trigger: Trigger, lateness: int) -> Any:
    said = keyed().window(window)
    if window != global_():
        said = said.late_to(LATE)
        said = said.allowed_lateness(us(lateness)) if lateness else said
    return said.trigger(trigger)


def applied(window: Any, trigger: Trigger, lateness: int) -> Node:
    return windowed(window, trigger, lateness).apply(summed)._node


def aggregated(window: Any, trigger: Trigger, lateness: int) -> Node:
    return windowed(window, trigger, lateness).agg(total=col("value").sum())._node


R = "restore"
K1, K2 = "key1", "key2"
TUMBLED = [
    (K2, 1, 3999), (K2, 1, 3000), (K1, 1, 20), (K1, 1, 0), (K1, 1, 999), (K2, 1, 1998), (K2, 1, 1999), (K2, 1, 1000),
]  # fmt: skip
SESSION_START = [(K2, 1, 1000), 1999, (K2, 1, 2000), 4998, (K2, 1, 4500), (K2, 1, 8500), 7400, (K2, 1, 7000), 11501]
SESSION_STEPS = [*SESSION_START, (K2, 1, 11600), 14600, (K2, 1, 10000)]
SESSION_END = [(K2, 1, 14500), 20000, 100000]
FIRST_TWO = [(K2, 5, 1000, 11500), (K2, 1, 11600, 14600)]

CASES: dict[str, tuple[Any, Trigger, int, list[Any], list[Any], list[Any]]] = {
    "testTumblingEventTimeWindows": (
        tumbling(us(3000)), at_watermark(), 0,
        [*TUMBLED, 999, 1999, R, 2999, 3999, 4999, 5999, 6999, 7999],
        [(K1, 3, 0, 3000), (K2, 3, 0, 3000), (K2, 2, 3000, 6000)], [],
    ),
    "testSlidingEventTimeWindows": (
        sliding(us(3000), us(1000)), at_watermark(), 0,
        [*TUMBLED, 999, 1999, 2999, R, 3999, 4999, 5999, 6999, 7999],
        [
            (K1, 3, -2000, 1000), (K1, 3, -1000, 2000), (K2, 3, -1000, 2000), (K1, 3, 0, 3000), (K2, 3, 0, 3000),
            (K2, 5, 1000, 4000), (K2, 2, 2000, 5000), (K2, 2, 3000, 6000),
        ], [],
    ),
    "testSessionWindows": (
        session(us(3000)), at_watermark(), 0,
        [
            (K2, 1, 0), (K2, 2, 1000), (K2, 3, 2500), (K1, 1, 10), (K1, 2, 1000), R, (K1, 3, 2500), (K2, 4, 5501),
            (K2, 5, 6000), (K2, 5, 6000), (K2, 6, 6050), 12000, (K2, 10, 15000), (K2, 20, 15000), 17999,
        ],
        [(K1, 6, 10, 5500), (K2, 6, 0, 5500), (K2, 20, 5501, 9050), (K2, 30, 15000, 18000)], [],
    ),
    "testSessionWindowsWithCountTrigger": (
        session(us(3000)), purging(every_rows(4)), 0,
        [
            (K2, 1, 0), (K2, 2, 1000), (K2, 3, 2500), (K2, 4, 3500), (K1, 1, 10), (K1, 2, 1000), R, (K1, 3, 2500),
            (K1, 1, 6000), (K1, 2, 6500), (K1, 3, 7000), (K1, 10, 4500),
        ],
        [(K2, 10, 0, 6500), (K1, 22, 10, 10000)], [],
    ),
    "testSessionWindowsWithContinuousEventTimeTrigger": (
        session(us(3000)), every(us(2000)), 0,
        [
            (K1, 1, 1500), (K2, 1, 0), (K2, 3, 2500), (K2, 2, 1000), 2500, (K2, 5, 4000), 3000, R, (K1, 2, 4000),
            (K2, 4, 3500), 4000,
        ],
        [(K1, 1, 1500, 4500), (K2, 6, 0, 5500), (K1, 3, 1500, 7000), (K2, 15, 0, 7000)], [],
    ),
    "testContinuousWatermarkTrigger": (
        global_(), every(us(3000)), 0,
        [
            (K1, 1, 0), (K2, 1, 3000), (K2, 1, 3999), (K1, 1, 20), (K1, 1, 999), (K2, 1, 1998), (K2, 1, 1999),
            (K2, 1, 1000), 1000, 2000, 3000, R, 4000, 5000, 6000, 7000, 8000,
        ],
        [(K1, 3), (K2, 5)], [],  # in Flink (K1, 3) again at 6000, though no row came since 3000
    ),
    "testCountTrigger": (
        global_(), purging(every_rows(4)), 0,
        [
            (K2, 1, 3000), (K2, 1, 3999), (K1, 1, 20), (K1, 1, 0), (K1, 1, 999), (K2, 1, 1998), (K2, 1, 1999), R,
            (K2, 1, 1000), (K1, 1, 10999), (K2, 1, 1000), (K2, 1, 1000), (K2, 1, 1000),
        ],
        [(K2, 4), (K1, 4), (K2, 4)], [],
    ),
    "testLateness": (
        tumbling(us(2000)), purging(at_watermark()), 500,
        [(K2, 1, 500), 1500, (K2, 1, 1300), 2300, (K2, 1, 1997), 6000, (K2, 1, 1998), 7000],
        [(K2, 2, 0, 2000), (K2, 1, 0, 2000)], [(K2, 1, 1998)],
    ),
    "testSideOutputDueToLatenessTumbling": (
        tumbling(us(2000)), at_watermark(), 0,
        [(K2, 1, 1000), 1985, (K2, 1, 1980), 1999, (K2, 1, 1998), (K2, 1, 2001), 2999, 3999],
        [(K2, 2, 0, 2000), (K2, 1, 2000, 4000)], [(K2, 1, 1998)],
    ),
    "testSideOutputDueToLatenessSliding": (
        sliding(us(3000), us(1000)), at_watermark(), 0,
        [
            (K2, 1, 1000), 1999, (K2, 1, 2000), 3000, (K1, 1, 3001), (K2, 1, 2400), (K2, 1, 2400), (K1, 1, 3001),
            (K2, 1, 3900), 6000, (K1, 1, 3001), 25000,
        ],
        [
            (K2, 1, -1000, 2000), (K2, 2, 0, 3000), (K2, 5, 1000, 4000), (K1, 2, 1000, 4000), (K2, 4, 2000, 5000),
            (K1, 2, 2000, 5000), (K2, 1, 3000, 6000), (K1, 2, 3000, 6000),
        ],
        [(K1, 1, 3001)],
    ),
    "testSideOutputDueToLatenessSessionZeroLatenessPurgingTrigger": (
        session(us(3000)), purging(at_watermark()), 0,
        [*SESSION_STEPS, (K2, 1, 10100), *SESSION_END],
        [*FIRST_TWO, (K2, 1, 14500, 17500)], [(K2, 1, 10000), (K2, 1, 10100)],
    ),
    "testSideOutputDueToLatenessSessionZeroLateness": (
        session(us(3000)), at_watermark(), 0, [*SESSION_STEPS, *SESSION_END],
        [*FIRST_TWO, (K2, 1, 14500, 17500)], [(K2, 1, 10000)],
    ),
    "testDropDueToLatenessSessionWithLatenessPurgingTrigger": (
        session(us(3000)), purging(at_watermark()), 10, [*SESSION_STEPS, *SESSION_END],
        [*FIRST_TWO, (K2, 1, 10000, 14600), (K2, 1, 10000, 17500)], [],
    ),
    "testNotSideOutputDueToLatenessSessionWithLateness": (
        session(us(3000)), at_watermark(), 10, [*SESSION_STEPS, R, *SESSION_END],
        [*FIRST_TWO, (K2, 2, 10000, 14600), (K2, 3, 10000, 17500)], [],
    ),
    "testNotSideOutputDueToLatenessSessionWithHugeLatenessPurgingTrigger": (
        session(us(3000)), purging(at_watermark()), 10000, [*SESSION_STEPS, *SESSION_END],
        [*FIRST_TWO, (K2, 1, 1000, 14600), (K2, 1, 1000, 17500)], [],
    ),
    "testNotSideOutputDueToLatenessSessionWithHugeLateness": (
        session(us(3000)), at_watermark(), 10000, [*SESSION_STEPS, *SESSION_END],
        [*FIRST_TWO, (K2, 7, 1000, 14600), (K2, 8, 1000, 17500)], [],
    ),
    "testCleanupTimerWithEmptyListStateForTumblingWindows": (
        tumbling(us(2000)), at_watermark(), 1, [(K2, 1, 1000), 1599, 1999, 2000, 5000], [(K2, 1, 0, 2000)], [],
    ),
    "testCleanupTimerWithEmptyListStateForSessionWindows": (
        session(us(3000)), at_watermark(), 10, [(K2, 1, 1000), 4998, 14600], [(K2, 1, 1000, 4000)], [],
    ),
    "ContinuousEventTimeTriggerTest.testWindowSeparationAndFiring": (
        tumbling(us(2)), every("1h"), 0,
        [(K1, 1, 0), (K1, 1, 1), (K1, 1, 0), (K1, 1, 2), (K1, 1, 3), 2, R, 4], [(K1, 3, 0, 2), (K1, 2, 2, 4)], [],
    ),
    "ContinuousEventTimeTriggerTest.testLateElementTriggersImmediately": (
        tumbling(us(2)), every("1h"), 10, [2, (K1, 1, 0), (K1, 1, 1)], [(K1, 1, 0, 2), (K1, 2, 0, 2)], [],
    ),
    "ContinuousEventTimeTriggerTest.testMergingWindows": (
        session(us(2)), every("1h"), 0, [(K1, 1, 0), (K1, 1, 4), (K1, 1, 2), 6], [(K1, 3, 0, 6)], [],
    ),
    "CountTriggerTest.testWindowSeparationAndFiring": (
        tumbling(us(2)), every_rows(3), 0,
        [(K1, 1, 0), (K1, 1, 0), (K1, 1, 2), (K1, 1, 2), (K1, 1, 2), R, (K1, 1, 1), (K1, 1, 0), 10],
        [(K1, 3, 2, 4), (K1, 3, 0, 2)], [],
    ),
    "CountTriggerTest.testMergingWindows": (
        session(us(2)), every_rows(3), 0, [(K1, 1, 0), (K1, 1, 4), (K1, 1, 2), (K1, 1, 2), 10], [(K1, 3, 0, 6)], [],
    ),
    "PurgingTriggerTest.testForwarding": (
        tumbling(us(2)), purging(every_rows(2)), 0, [(K1, 1, 0), (K1, 2, 0), (K1, 4, 1), (K1, 8, 1), (K1, 9, 0), 10],
        [(K1, 3, 0, 2), (K1, 12, 0, 2)], [],
    ),
    "MergingWindowSetTest.testIncrementalMerging": (
        session(us(3)), at_watermark(), 0,
        [(K1, 1, 0), (K1, 2, 4), (K1, 4, 1), (K1, 8, 2), (K1, 16, 10), R, (K1, 32, 7), 20], [(K1, 63, 0, 13)], [],
    ),
    "MergingWindowSetTest.testLateMerging": (
        session(us(3)), at_watermark(), 0,
        [(K1, 1, 0), (K1, 2, 0), (K1, 4, 10), (K1, 8, 5), R, (K1, 16, 5), (K1, 32, 2), (K1, 64, 8), 20],
        [(K1, 127, 0, 13)], [],
    ),
}  # fmt: skip


def run(node: Node, steps: list[Any], *, closed: bool) -> OperatorHarness:
    """With `closed`, windows have their end as last moment, as sessions do here: what Flink calls 9 is 10."""
    harness = OperatorHarness(node)
    for step in steps:
        match step:
            case int():
                harness.watermark(step + closed)
            case "restore":
                harness = harness.restored(harness.snapshot())
            case (key, value, time):
                harness.frame(frame_of([(key, time, value)]))
            case _:
                raise AssertionError(step)
    return harness


def found(harness: OperatorHarness, *, bounds: bool) -> list[Any]:
    rows: list[Any] = []
    ends: Any
    for frame in harness.collected.frames:
        for row in frame.to_dicts():
            if row.get("retracted"):
                continue
            ends = (row.get("start", row.get("window_start")), row.get("end", row.get("window_end")))
            ends = tuple(each if isinstance(each, int | None) else to_micros(each) for each in ends)
            rows.append((row["key"], row["total"], *(ends if bounds else ())))
            if bounds:
                assert row[EVENT_TIME] in (ends[1], ends[1] - 1)
    return rows


@pytest.mark.parametrize("make", [applied, aggregated])
@pytest.mark.parametrize("name", CASES)
def test_flink_expects(name: str, make: Callable[..., Node]) -> None:
    window, trigger, lateness, steps, expected, late = CASES[name]
    harness = run(make(window, trigger, lateness), steps, closed=isinstance(window, SessionWindow))
    assert sorted(found(harness, bounds=window != global_())) == sorted(expected)
    frames = harness.collected.sides.get("late", [])
    assert [(row["key"], row["value"], row[EVENT_TIME]) for frame in frames for row in frame.to_dicts()] == late
