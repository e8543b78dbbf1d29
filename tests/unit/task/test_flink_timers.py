"""What Flink's own tests of timers expect, by their names: InternalTimerServiceImplTest, KeyedProcessOperatorTest.

What does not apply, and why:

* testKeyGroupStartIndexSetting, testKeyGroupAssignment..., testOnlySetsOnePhysicalProcessingTimeTimer,
  testRegisterHigherPriorityProcessingTimeTimerMovesPhysicalProcessingTimer,
  testRegisteringProcessingTimeTimerInOnProcessingTimeDoesNotLeakPhysicalTimers: they look into Flink's service. How
  timers come to the owners of their key groups is tested by histories with rescales (test_process.py).
* Namespaces: a timer belongs to a key. Those of windows belong to key and window, inside of
  `penstock.functions.windows.process`.
* testForEachEventTimeTimers, testForEachProcessingTimeTimers: process functions do not list their timers, savepoints do.
* testNullOutputTagRefusal: `emit_to` is checked against its annotation as all public calls are (test_arguments.py).
"""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta
from typing import Any

import polars as pl
import pytest

from penstock import KeyedContext, KeyedProcess, ValueState
from penstock.core.batches import EVENT_TIME
from penstock.core.times import from_micros, to_micros
from penstock.testing.harness import OperatorHarness, process_node

pytestmark = pytest.mark.usefixtures("state_backend")


@dataclasses.dataclass
class Command:
    key: str
    act: str
    at: int


@dataclasses.dataclass
class Told:
    key: str
    what: str
    at: int | None


class Obeying(KeyedProcess[Command, Told]):
    """Sets and takes back the timers that rows say, and tells those that fire with what the key said last."""

    last = ValueState(int)

    def on_row(self, row: Command, ctx: KeyedContext[Told]) -> None:
        at = from_micros(row.at)
        match row.act:
            case "event":
                ctx.event_timer(at)
            case "no event":
                ctx.delete_event_timer(at)
            case "processing":
                ctx.processing_timer(at)
            case "no processing":
                ctx.delete_processing_timer(at)
            case "state":
                self.last.set(row.at)
            case "relative":
                assert ctx.watermark is not None
                ctx.event_timer(ctx.watermark + timedelta(microseconds=row.at))
            case "watermark":
                ctx.emit(Told(ctx.key, "watermark", None if ctx.watermark is None else to_micros(ctx.watermark)))
            case "clock":
                ctx.emit(Told(ctx.key, "clock", to_micros(ctx.processing_time)))
            case _:
                raise AssertionError(row.act)

    def on_timer(self, at: datetime, ctx: KeyedContext[Told]) -> None:
        said = self.last.get(default=None)
        ctx.emit(Told(ctx.key, f"{ctx.time_domain}{'' if said is None else f' {said}'}", to_micros(at)))


WATERMARK, CLOCK, RESTORE = "to watermark", "to clock", "restore"
CASES: dict[str, tuple[list[tuple[Any, ...]], list[tuple[str, str, int | None]]]] = {
    "testCurrentEventTime": (
        [("k", "watermark", 0), (WATERMARK, 17), ("k", "watermark", 0), (WATERMARK, 42), ("k", "watermark", 0)],
        [("k", "watermark", None), ("k", "watermark", 17), ("k", "watermark", 42)],
    ),
    "testCurrentProcessingTime": (
        [(CLOCK, 17), ("k", "clock", 0), (CLOCK, 42), ("k", "clock", 0)], [("k", "clock", 17), ("k", "clock", 42)],
    ),
    "testSetAndFireEventTimeTimers": (
        [("k1", "event", 10), ("k2", "event", 10), (WATERMARK, 9), (WATERMARK, 10), (WATERMARK, 20)],
        [("k1", "event", 10), ("k2", "event", 10)],
    ),
    "testSetAndFireProcessingTimeTimers": (
        [("k1", "processing", 10), ("k2", "processing", 10), (CLOCK, 9), (CLOCK, 10), (CLOCK, 20)],
        [("k1", "processing", 10), ("k2", "processing", 10)],
    ),
    "testDeleteEventTimeTimers": (
        [("k1", "event", 10), ("k2", "event", 10), ("k1", "no event", 10), (WATERMARK, 10)], [("k2", "event", 10)],
    ),
    "testDeleteProcessingTimeTimers": (
        [("k1", "processing", 10), ("k2", "processing", 10), ("k2", "no processing", 10), (CLOCK, 10)],
        [("k1", "processing", 10)],
    ),
    "a timer that is set twice fires once": (
        [("k", "event", 10), ("k", "event", 10), ("k", "processing", 10), ("k", "processing", 10), (WATERMARK, 10),
         (CLOCK, 10)],
        [("k", "event", 10), ("k", "processing", 10)],
    ),
    "an event timer and a processing timer of one moment are two": (
        [("k", "event", 10), ("k", "processing", 10), ("k", "no event", 10), (WATERMARK, 10), (CLOCK, 10)],
        [("k", "processing", 10)],
    ),
    "timers fire in order of their time": (
        [("k", "event", 30), ("k", "event", 10), ("j", "event", 20), (WATERMARK, 40)],
        [("k", "event", 10), ("j", "event", 20), ("k", "event", 30)],
    ),
    "testSnapshotAndRestore": (
        [("k1", "event", 10), ("k2", "event", 10), ("k1", "processing", 10), ("k2", "processing", 10), (RESTORE, 1),
         (CLOCK, 10), (WATERMARK, 10)],
        [("k1", "processing", 10), ("k2", "processing", 10), ("k1", "event", 10), ("k2", "event", 10)],
    ),
    "testSnapshotAndRebalancingRestore": (
        [("k1", "event", 10), ("k2", "event", 20), ("k3", "processing", 10), (RESTORE, 3), (WATERMARK, 10),
         (WATERMARK, 20), (CLOCK, 10), (RESTORE, 1), (WATERMARK, 30), (CLOCK, 30)],
        [("k1", "event", 10), ("k2", "event", 20), ("k3", "processing", 10)],
    ),
    "KeyedProcessOperatorTest.testTimestampAndWatermarkQuerying": (
        [(WATERMARK, 17), ("k", "watermark", 0), (WATERMARK, 42), ("k", "watermark", 0)],
        [("k", "watermark", 17), ("k", "watermark", 42)],
    ),
    "KeyedProcessOperatorTest.testEventTimeTimers": (
        [(WATERMARK, 0), ("k", "relative", 5), (WATERMARK, 4), (WATERMARK, 5)], [("k", "event", 5)],
    ),
    "KeyedProcessOperatorTest.testEventTimeTimerWithState": (
        [(WATERMARK, 1), ("k17", "state", 17), ("k17", "relative", 5), (WATERMARK, 2), ("k42", "state", 42),
         ("k42", "relative", 5), (WATERMARK, 6), (WATERMARK, 7)],
        [("k17", "event 17", 6), ("k42", "event 42", 7)],
    ),
    "KeyedProcessOperatorTest.testProcessingTimeTimerWithState": (
        [(CLOCK, 1), ("k17", "state", 17), ("k17", "processing", 6), (CLOCK, 2), ("k42", "state", 42),
         ("k42", "processing", 7), (CLOCK, 6), (CLOCK, 7)],
        [("k17", "processing 17", 6), ("k42", "processing 42", 7)],
    ),
    "KeyedProcessOperatorTest.testSnapshotAndRestore": (
        [("k", "processing", 5), ("k", "event", 6), (RESTORE, 1), (CLOCK, 5), (WATERMARK, 6)],
        [("k", "processing", 5), ("k", "event", 6)],
    ),
}  # fmt: skip
"""Commands of keys, and how far time comes; then the timers that fire and what is told. Unnamed cases are of Flink's
documentation of timers."""


@pytest.mark.parametrize("name", CASES)
def test_flink_expects(name: str) -> None:
    """Timers that are due together may fire in any order of their keys."""
    steps, expected = CASES[name]
    node = process_node(Obeying(), Command, keys=["key"])
    node.inputs[0].event_time = node.event_time = True
    harness = OperatorHarness(node)
    for step in steps:
        match step:
            case ("to watermark", int() as watermark):
                harness.watermark(watermark)
            case ("to clock", int() as now):
                harness.processing_time(now)
            case ("restore", int() as parallelism):
                harness = harness.restored(harness.snapshot(), parallelism)
            case (key, act, at):
                row = {"key": [key], "act": [act], "at": [at], EVENT_TIME: [1_000]}
                harness.frame(pl.DataFrame(row))
            case _:
                raise AssertionError(step)
    found = [(row["key"], row["what"], row["at"]) for row in harness.output()]
    assert found == expected or (sorted(found, key=str) == sorted(expected, key=str) and _same_moments(found, expected))


def _same_moments(found: list[Any], expected: list[Any]) -> bool:
    return [row[2] for row in found] == [row[2] for row in expected]
