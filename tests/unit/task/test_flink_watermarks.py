"""What Flink's tests of watermarks expect, by their names; those of StatusWatermarkValveTest stand in
tests/unit/protocol/test_watermarks.py.

What does not apply, and why:

* StatusWatermarkValveTest.testSingleInputWatermarksIntactDuringIdleness: Flink ignores a watermark of an idle input. Here
  whatever an input sends says that it is active again; who is idle sends nothing.
* WatermarkOutputMultiplexerTest.noCombinedDeferredUpdateWhenWeHaveZeroOutputs, testNotEmittingIdleAfterAllSplitsRemoved:
  no watermark comes of it here either, but a subtask of an unbounded source without splits is idle, because it would hold
  event time back for ever. See test_sources.py.
* lowerImmediateUpdateOnSameOutputDoesNotEmitCombinedUpdate: a split has one strategy, not an output of each kind.
* testRemoveOfLowestDoesNotImmediatelyAdvanceWatermark: here time comes on when the slowest split ends, not only with the
  next watermark of another.
* testRemoveRegisteredReturnValue, testRemoveNotRegisteredReturnValue: there is nothing that returns it.
"""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from source_feeds import Feed, Feeds, Time, driver

from penstock.connectors.watermarks import bounded_out_of_orderness
from penstock.core.times import MIN_WATERMARK
from penstock.errors import PipelineError
from penstock.protocol.watermarks import InputProgress, combined

BOUNDED: dict[str, tuple[int, list[int], int | None]] = {
    "BoundedOutOfOrdernessWatermarksTest.testWatermarkBeforeRecords": (10, [], None),
    "BoundedOutOfOrdernessWatermarksTest.testWatermarkAfterEvent": (10, [1337], 1326),
    "BoundedOutOfOrdernessWatermarksTest.testWatermarkAfterNonMonotonousEvents": (
        10,
        [12345, 12300, 12340, 12280],
        12334,
    ),
    "BoundedOutOfOrdernessWatermarksTest.testRepeatedProbe": (10, [723456], 723445),
    "AscendingTimestampsWatermarksTest.testWatermarkBeforeRecords": (0, [], None),
    "AscendingTimestampsWatermarksTest.testWatermarkAfterEvent": (0, [1337], 1336),
    "AscendingTimestampsWatermarksTest.testWatermarkAfterEventWithLowerTimestamp": (0, [12345, 12340], 12344),
}
"""The bound, event times, and the watermark behind them. None, for which Flink has Long.MIN_VALUE: nothing is said."""


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("case", BOUNDED)
def test_rows_that_come_out_of_order_by_a_bound(case: str, together: bool) -> None:
    """Asked twice; one by one or in one batch."""
    bound, times, expected = BOUNDED[case]
    generator = bounded_out_of_orderness(bound).generator()
    for batch in [times] if together else [[time] for time in times]:
        series = pl.Series(batch, dtype=pl.Int64)
        generator.on_batch(series, pl.DataFrame({"at": series}))
    assert [generator.on_period(), generator.on_period()] == [expected, expected]


@pytest.mark.parametrize("timeout", ["0s", "-1ms"])
def test_an_idle_timeout_must_be_positive(timeout: str) -> None:
    """WatermarksWithIdlenessTest.testZeroTimeout, testNegativeTimeout."""
    with pytest.raises(PipelineError, match="idle_after"):
        Feeds({}, idle_after=timeout)


ROW = "a row"
IDLENESS: dict[str, list[tuple[int | str, bool]]] = {
    "testInitiallyActive": [(0, False)],
    "testIdleWithoutEvents": [(0, False), (11, True)],
    "testRepeatedIdleChecks": [(0, False), (11, True), (0, True), (100, True)],
    "testActiveAfterIdleness": [(0, False), (11, True), (ROW, False), (0, False)],
    "testIdleActiveIdle": [(0, False), (11, True), (ROW, False), (0, False), (11, True)],
}
"""Of WatermarksWithIdlenessTest with a timeout of 10 ms: so many pass, or a row comes; whether the split is idle."""


@pytest.mark.parametrize("case", IDLENESS)
async def test_a_split_without_rows_becomes_idle(case: str) -> None:
    """It is looked at whenever it is read."""
    time, feed = Time(), Feed([])
    feed.open = True
    reader = await driver(Feeds({"0": feed}, idle_after="10ms", bounded=False), time=time)
    (state,) = reader._splits.values()
    for said, idle in IDLENESS[case]:
        if isinstance(said, int):
            time.ms += said
        else:
            feed.seconds.append(len(feed.seconds))
        await reader.step()
        assert state.idle == idle
    await reader.close()


IDLE, PERIOD, GONE = "idle", "period", "gone"
MULTIPLEXED: dict[str, list[tuple[str, int | str, int | None, bool]]] = {
    "singleImmediateWatermark": [("a", 0, 0, False)],
    "singleImmediateIdleness": [("a", IDLE, None, True)],
    "singleImmediateWatermarkAfterIdleness": [("a", IDLE, None, True), ("a", 0, 0, False)],
    "multipleImmediateWatermark": [("a", 2, None, False), ("b", 5, None, False), ("c", IDLE, 2, False)],
    "whenImmediateOutputBecomesIdleWatermarkAdvances": [
        ("a", 2, None, False),
        ("b", 5, 2, False),
        ("a", IDLE, 5, False),
    ],
    "combinedWatermarkDoesNotRegressWhenIdleOutputRegresses": [
        ("a", 2, None, False),
        ("b", 5, 2, False),
        ("a", IDLE, 5, False),
        ("a", 3, 5, False),
    ],
    "deferredOutputDoesNotImmediatelyAdvanceWatermark": [
        ("A", 0, None, False),
        ("B", 1, None, False),
        ("", PERIOD, 0, False),
    ],
    "singleDeferredWatermark": [("A", 0, None, False), ("", PERIOD, 0, False)],
    "singleDeferredIdleness": [("A", IDLE, None, False), ("", PERIOD, None, True)],
    "singleDeferredWatermarkAfterIdleness": [
        ("A", IDLE, None, False),
        ("", PERIOD, None, True),
        ("A", 0, None, True),
        ("", PERIOD, 0, False),
    ],
    "multipleDeferredWatermark": [
        ("A", 2, None, False),
        ("B", 5, None, False),
        ("C", IDLE, None, False),
        ("", PERIOD, 2, False),
    ],
    "immediateUpdatesTakeDeferredUpdatesIntoAccount": [("A", 5, None, False), ("b", 2, 2, False)],
    "immediateUpdateOnSameOutputAsDeferredUpdateDoesNotRegress": [
        ("A", 5, None, False),
        ("", PERIOD, 5, False),
        ("a", 2, 5, False),
        ("", PERIOD, 5, False),
    ],
    "testRemoveUnblocksWatermarks": [
        ("a", 156765, None, False),
        ("a", GONE, None, False),
        ("b", 156775, 156775, False),
    ],
    "testRemoveOfHighestDoesNotRetractWatermark": [("a", 2, 2, False), ("a", GONE, 2, False), ("b", 1, 2, False)],
}
"""Of WatermarkOutputMultiplexerTest. What an output says, and the watermark and idleness of all then. A capital letter is
the same output, deferred: nothing is looked at before the period is over."""

ALL_FROM_THE_BEGINNING = {name: {who.lower() for who, *_ in steps if who} for name, steps in MULTIPLEXED.items()} | {
    "testRemoveOfHighestDoesNotRetractWatermark": {"a"}
}


@pytest.mark.parametrize("case", MULTIPLEXED)
def test_outputs_of_one_source_are_combined(case: str) -> None:
    """As `SourceDriver` does it with its splits; a periodic strategy is deferred."""
    splits = {name: InputProgress() for name in ALL_FROM_THE_BEGINNING[case]}
    reached, idle, found = MIN_WATERMARK, False, list[Any]()
    for who, said, _, _ in MULTIPLEXED[case]:
        each = splits.setdefault(who.lower(), InputProgress()) if who else None
        if said == GONE:
            del splits[who]
        elif said == IDLE and each is not None:
            each.rest()
        elif isinstance(said, int) and each is not None:
            each.advance(said, reached)
        if splits and who == who.lower():
            reached, idle = combined(splits.values(), reached)
        found.append((None if reached == MIN_WATERMARK else reached, idle))
    assert found == [(watermark, idle) for _, _, watermark, idle in MULTIPLEXED[case]]
