"""map_async: order, watermarks, capacity, retries, timeouts, errors, and snapshots in the middle of calls."""

from __future__ import annotations

import asyncio
import random
import re
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Any

import polars as pl
import pytest

from penstock.core.batches import EVENT_TIME, WATERMARK
from penstock.core.times import MAX_WATERMARK
from penstock.errors import IncompatibleStateError, PipelineError, UserCodeError
from penstock.plan.logical import Node
from penstock.plan.operations.calls import CallSettings
from penstock.plan.operations.map_async import MapAsync
from penstock.plan.signatures import check_signature, state_signature
from penstock.task.operators import map_async
from penstock.testing.harness import OperatorHarness, input_node
from penstock.types import schema_of


@dataclass
class Number:
    n: int


@dataclass
class Square:
    n: int
    square: int


def calls(capacity=100, timeout_us=None, retries=0, delay_us=0, retry_on=(Exception,), ordered=True):
    return CallSettings(capacity, timeout_us, retries, delay_us, retry_on, ordered)


def async_node(function, settings=None, on_error=None, event_time=True, taken=Number):
    source = input_node(schema_of(taken), taken, event_time=event_time)
    operation = MapAsync(function, settings or calls(), on_error)
    return Node("n1", operation, (source,), schema_of(Square), Square, event_time)


def numbers(*values, event_time=True, marks=None):
    frame = pl.DataFrame({"n": pl.Series(values, dtype=pl.Int64)})
    if event_time:
        frame = frame.with_columns(pl.col("n").alias(EVENT_TIME))
    return frame if marks is None else frame.with_columns(pl.Series(WATERMARK, marks, pl.Int64))


class Service:
    """Answers a number when the test says so."""

    def __init__(self) -> None:
        self.asked: dict[int, asyncio.Future[int]] = {}
        self.log: list[int] = []

    async def __call__(self, row: Number) -> Square:
        self.log.append(row.n)
        answer = self.asked[row.n] = asyncio.get_running_loop().create_future()
        return Square(row.n, await answer)

    def answer(self, *which: int) -> None:
        for n in which:
            self.asked.pop(n).set_result(n * n)


async def turn(harness: OperatorHarness) -> None:
    """Let calls begin and end, then let the operators look, as a subtask does when it is woken."""
    for _ in range(6):
        await asyncio.sleep(0)
    harness.processing_time(harness.now_us)
    for _ in range(6):
        await asyncio.sleep(0)


def sent(harness: OperatorHarness) -> list[int]:
    return [row["n"] for row in harness.output()]


async def until_settled(harness: OperatorHarness) -> None:
    async with asyncio.timeout(20):
        while any(operator.holds_rows() for operator in harness.operators):
            await turn(harness)
            await asyncio.sleep(0.0005)


async def quick(row: Number) -> Square:
    return Square(row.n, row.n * row.n)


class Trace:
    """An `Output` that keeps rows and watermarks in one order."""

    def __init__(self) -> None:
        self.items: list[tuple[str, int]] = []

    def rows(self, frame: pl.DataFrame) -> None:
        self.items += [("row", n) for n in frame["n"]]

    def side(self, tag: str, frame: pl.DataFrame) -> None:
        raise AssertionError(tag)

    def watermark(self, watermark: int) -> None:
        self.items.append(("mark", watermark))


# -- order --------------------------------------------------------------------------------------------------------------


async def test_results_keep_the_order_of_rows():
    """Whatever is answered first."""
    service = Service()
    harness = OperatorHarness(async_node(service))
    harness.frame(numbers(1, 2, 3, 4))
    await turn(harness)
    service.answer(4, 2)
    await turn(harness)
    assert sent(harness) == []
    service.answer(1)
    await turn(harness)
    assert sent(harness) == [1, 2]
    service.answer(3)
    await turn(harness)
    assert sent(harness) == [1, 2, 3, 4]
    assert pl.concat(harness.collected.frames)[EVENT_TIME].to_list() == [1, 2, 3, 4]
    harness.close()


async def test_unordered_results_come_when_they_are_there_but_never_pass_a_watermark():
    """Flink's unordered wait."""
    service = Service()
    harness = OperatorHarness(async_node(service, calls(ordered=False)))
    trace = harness.collected = Trace()
    harness.frame(numbers(1, 2, 3))
    harness.watermark(3)
    harness.frame(numbers(4, 5))
    harness.watermark(5)
    await turn(harness)
    service.answer(5, 3, 2)
    await turn(harness)
    assert trace.items == [("row", 3), ("row", 2)]
    service.answer(1)
    await turn(harness)
    assert trace.items[2:] == [("row", 1), ("mark", 3), ("row", 5)]
    service.answer(4)
    await turn(harness)
    assert trace.items[5:] == [("row", 4), ("mark", 5)]
    harness.close()


async def test_unordered_results_do_not_pass_a_row_that_carries_a_watermark():
    """Event time comes on inside a batch, too: a row behind it must not come before those in front of it."""
    service = Service()
    harness = OperatorHarness(async_node(service, calls(ordered=False)))
    harness.frame(numbers(1, 9, 2, 3, 10, marks=[None, None, 7, None, 7]))
    await turn(harness)
    service.answer(2, 3, 10, 9)
    await turn(harness)
    assert sent(harness) == [9]
    service.answer(1)
    await turn(harness)
    assert sent(harness) == [9, 1, 2, 3, 10]
    assert pl.concat(harness.collected.frames)[WATERMARK].to_list() == [None, None, 7, None, 7]
    harness.close()


async def test_a_watermark_waits_for_the_rows_before_it():
    """And the newest of several with nothing between them is enough."""
    service = Service()
    harness = OperatorHarness(async_node(service))
    trace = harness.collected = Trace()
    harness.watermark(1)
    assert trace.items == [("mark", 1)]
    harness.frame(numbers(5))
    for mark in (2, 3, 4):
        harness.watermark(mark)
    await turn(harness)
    assert trace.items == [("mark", 1)]
    service.answer(5)
    await turn(harness)
    assert trace.items == [("mark", 1), ("row", 5), ("mark", 4)]
    harness.close()


@pytest.mark.parametrize("ordered", [True, False])
async def test_any_batches_give_the_same_rows(ordered):
    """Rows cut anywhere, answered in any order, watermarks between them: ordered equals `map`, unordered as segments."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)

    async def answer(row: Number) -> Square:
        for _ in range(rng.randrange(4)):
            await asyncio.sleep(0)
        return Square(row.n, row.n * row.n)

    for _ in range(6):
        settings = calls(capacity=rng.choice([1, 3, 50]), ordered=ordered)
        harness = OperatorHarness(async_node(answer, settings))
        trace = harness.collected = Trace()
        expected: list[tuple[str, int]] = []
        n = 0
        for _ in range(rng.randrange(1, 12)):
            size = rng.randrange(0, 40)
            harness.frame(numbers(*range(n, n + size)))
            expected += [("row", k) for k in range(n, n + size)]
            n += size
            if size and rng.random() < 0.5:
                harness.watermark(n - 1)
                expected.append(("mark", n - 1))
            if rng.random() < 0.3:
                await turn(harness)
        harness.watermark(MAX_WATERMARK)
        expected.append(("mark", MAX_WATERMARK))
        await until_settled(harness)
        assert segments(trace.items, ordered) == segments(expected, ordered)
        harness.close()


def segments(items: list[tuple[str, int]], ordered: bool) -> Any:
    """As is if ordered; rows between two watermarks in any order if not. Of watermarks only what rows know of counts."""
    cut: list[tuple[list[int], int]] = [([], -1)]
    for kind, value in items:
        if kind == "row":
            cut[-1][0].append(value)
        elif cut[-1][0]:
            cut.append(([], value))
        else:
            cut[-1] = ([], value)
    return [(rows if ordered else sorted(rows), mark) for rows, mark in cut]


# -- capacity -----------------------------------------------------------------------------------------------------------


async def test_no_more_calls_than_capacity():
    """Also those count whose results wait for others; then the operator is full, unless a barrier stands behind."""
    service = Service()
    harness = OperatorHarness(async_node(service, calls(capacity=2)))
    (operator,) = harness.operators
    assert not operator.is_full(before_barrier=False)
    harness.frame(numbers(1, 2, 3, 4))
    await turn(harness)
    assert service.log == [1, 2]
    assert operator.is_full(before_barrier=False)
    assert not operator.is_full(before_barrier=True)
    service.answer(2)
    await turn(harness)
    assert service.log == [1, 2]
    service.answer(1)
    await turn(harness)
    assert service.log == [1, 2, 3, 4]
    service.answer(3)
    await turn(harness)
    assert not operator.is_full(before_barrier=False)
    service.answer(4)
    await until_settled(harness)
    assert sent(harness) == [1, 2, 3, 4]
    harness.close()


async def test_rows_before_a_barrier_are_bounded(monkeypatch):
    """A call that never ends must not fill the memory, checkpoint after checkpoint."""
    monkeypatch.setattr(map_async, "ROWS_BEFORE_BARRIER", 3)
    harness = OperatorHarness(async_node(Service(), calls(capacity=1)))
    harness.frame(numbers(1, 2, 3))
    assert harness.operators[0].is_full(before_barrier=True)
    harness.close()


async def test_the_subtask_is_woken_only_when_something_can_be_sent():
    """A thousand results behind a slow one wake nobody."""
    woken: list[int] = []
    service = Service()
    harness = OperatorHarness(async_node(service))
    (operator,) = harness.operators
    object.__setattr__(operator._context, "wake", lambda: woken.append(1))
    harness.frame(numbers(*range(50)))
    await turn(harness)
    service.answer(*range(1, 50))
    await turn(harness)
    assert woken == []
    assert operator.next_timer_us() is None
    service.answer(0)
    for _ in range(4):
        await asyncio.sleep(0)
    assert woken == [1]
    assert operator.next_timer_us() is not None
    await turn(harness)
    assert sent(harness) == list(range(50))
    harness.close()


# -- failures -----------------------------------------------------------------------------------------------------------


class Flaky:
    """Fails so often per row."""

    def __init__(self, failures: int, error: type[Exception] = ConnectionError) -> None:
        self.failures = failures
        self.error = error
        self.tried: Counter[int] = Counter()

    async def __call__(self, row: Number) -> Square:
        self.tried[row.n] += 1
        if self.tried[row.n] <= self.failures:
            raise self.error("nobody there")
        return Square(row.n, row.n * row.n)


async def test_calls_are_made_again():
    """As often as was said, counted."""
    flaky = Flaky(2)
    harness = OperatorHarness(async_node(flaky, calls(retries=2, delay_us=100)))
    harness.frame(numbers(1, 2))
    await until_settled(harness)
    assert sent(harness) == [1, 2]
    assert flaky.tried == {1: 3, 2: 3}
    assert harness.metrics[0].failed_calls == 4
    harness.close()


@pytest.mark.parametrize(("retries", "retry_on"), [(1, (Exception,)), (9, (KeyError, TimeoutError))])
async def test_a_call_that_fails_for_good_fails_the_job_and_names_the_row(retries, retry_on):
    """After the last attempt, or at once if it is no error to try again after."""
    harness = OperatorHarness(async_node(Flaky(5), calls(retries=retries, retry_on=retry_on)))
    harness.frame(numbers(7))
    expected = r"map_async \(n1-map_async\): Flaky raised ConnectionError: nobody there; row: Number\(n=7\)"
    with pytest.raises(UserCodeError, match=expected) as caught:
        await until_settled(harness)
    assert isinstance(caught.value.__cause__, ConnectionError)
    assert caught.value.__cause__.__traceback__ is not None
    harness.close()


async def test_a_failure_is_heard_behind_a_call_that_waits():
    """Nobody waits for the rows before it."""
    service = Service()

    async def answer(row: Number) -> Square:
        if row.n == 2:
            raise KeyError("two")
        return await service(row)

    harness = OperatorHarness(async_node(answer))
    harness.frame(numbers(1, 2))
    with pytest.raises(UserCodeError, match="KeyError: 'two'"):
        await until_settled(harness)
    harness.close()


async def test_a_row_whose_time_is_over():
    """All attempts together; the error says how long that was."""

    async def forever(row: Number) -> Square:
        await asyncio.Event().wait()
        raise AssertionError(row)

    harness = OperatorHarness(async_node(forever, calls(timeout_us=20_000, retries=50)))
    harness.frame(numbers(1))
    with pytest.raises(UserCodeError, match=r"raised TimeoutError: nothing has come within 20ms; row: Number"):
        await until_settled(harness)
    assert harness.metrics[0].failed_calls == 1
    harness.close()


async def test_an_answer_for_rows_that_failed():
    """`on_error` gets the row and what happened, also when time is over."""

    async def answer(row: Number) -> Square:
        if row.n == 1:
            raise ConnectionError("gone")
        await asyncio.Event().wait()
        raise AssertionError(row)

    seen: list[tuple[int, str]] = []

    def instead(row: Number, error: Exception) -> Square:
        seen.append((row.n, f"{type(error).__name__}: {error}"))
        return Square(row.n, -1)

    harness = OperatorHarness(async_node(answer, calls(timeout_us=20_000), instead))
    harness.frame(numbers(1, 2))
    await until_settled(harness)
    assert harness.output() == [{"n": 1, "square": -1}, {"n": 2, "square": -1}]
    assert sorted(seen) == [(1, "ConnectionError: gone"), (2, "TimeoutError: nothing has come within 20ms")]
    harness.close()


async def test_on_error_may_raise():
    """What it raises fails the job."""

    def instead(row: Number, error: Exception) -> Square:
        raise LookupError("no default") from error

    harness = OperatorHarness(async_node(Flaky(1), calls(), instead))
    harness.frame(numbers(1))
    with pytest.raises(UserCodeError, match="LookupError: no default"):
        await until_settled(harness)
    harness.close()


def plain(row: Number) -> Square:
    return Square(row.n, 0)


async def nothing(row: Number) -> None:
    """A return is missing."""


async def cancels_itself(row: Number) -> Square:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (plain, r"it returned Square\(n=1, square=0\), which cannot be awaited"),
        (nothing, r"must return a Square, got None; a return is missing; row: Number\(n=1"),
        (cancels_itself, "was cancelled, and not by Penstock; row"),
    ],
)
async def test_wrong_functions(function, said):
    """The message says what is wrong; nothing hangs."""
    harness = OperatorHarness(async_node(function))
    harness.frame(numbers(1))
    with pytest.raises(UserCodeError, match=said):
        await until_settled(harness)
    harness.close()


# -- snapshots ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [True, False])
async def test_a_snapshot_has_exactly_the_rows_that_were_not_sent(ordered):
    """At any point, at any parallelism afterwards; hidden columns are kept."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(6):
        service = Service()
        capacity = rng.choice([2, 7, 3_000])
        parallelism = rng.randrange(1, 4)
        node = async_node(service, calls(capacity=capacity, ordered=ordered))
        harness = OperatorHarness(node, parallelism=parallelism)
        total = rng.choice([0, 1, 30, 2_500])
        rows = numbers(*range(total), marks=[n - 3 if n % 5 == 0 else None for n in range(total)])
        for first in range(0, total, size := rng.choice([1 + total // 7, 1_500])):
            harness.frame(rows.slice(first, size))
            if rng.random() < 0.5:
                harness.watermark(min(first + size, total) - 1)
        await turn(harness)
        for _ in range(rng.randrange(4)):
            service.answer(*rng.sample(sorted(service.asked), len(service.asked) // 2))
            await turn(harness)
        before = sent(harness)
        snapshot = harness.snapshot()
        service.answer(*service.asked)  # what comes afterwards is of no attempt that is restored
        await turn(harness)
        frames = harness.collected.frames
        harness.collected.frames = []
        later = harness.restored(snapshot, rng.randrange(1, 4))
        harness.close()
        service.asked.clear()
        async with asyncio.timeout(20):
            while any(operator.holds_rows() for operator in later.operators):
                await turn(later)
                service.answer(*service.asked)
        assert sorted(before + sent(later)) == list(range(total))
        assert frames or not before
        after = pl.concat(later.collected.frames, how="diagonal") if later.collected.frames else None
        if after is not None:
            assert after[EVENT_TIME].to_list() == after["n"].to_list()
            marked = after.filter(pl.col("n") % 5 == 0)
            assert marked[WATERMARK].to_list() == [n - 3 for n in marked["n"]]
        later.close()


async def test_restored_rows_keep_their_order_before_new_ones():
    """And are asked for without any new row."""
    service = Service()
    node = async_node(service)
    harness = OperatorHarness(node)
    harness.frame(numbers(1, 2, 3))
    await turn(harness)
    service.answer(1)
    await turn(harness)
    later = harness.restored(harness.snapshot())
    harness.close()
    await turn(later)
    assert service.log == [1, 2, 3, 2, 3]
    later.frame(numbers(4))
    await turn(later)
    service.answer(4, 3, 2)
    await until_settled(later)
    assert sent(later) == [1, 2, 3, 4]
    later.close()


def test_state_of_other_rows_is_refused():
    """By name, when a pipeline is resumed."""

    @dataclass
    class Wide:
        n: int
        more: str

    old, new = state_signature(async_node(quick)), state_signature(async_node(quick, taken=Wide))
    check_signature("calls", old, state_signature(async_node(quick, calls(ordered=False))))
    with pytest.raises(IncompatibleStateError, match="operator 'calls': its row changed"):
        check_signature("calls", old, new)


# -- without a loop, beginnings and ends --------------------------------------------------------------------------------


def test_without_a_loop_all_is_waited_for():
    """As on Spark: nothing is left when `process` returns."""
    harness = OperatorHarness(async_node(quick, calls(capacity=5), event_time=False))
    harness.frame(numbers(*range(3_000), event_time=False))
    assert sent(harness) == list(range(3_000))
    assert harness.snapshot().lists == {"pending": []}
    harness.watermark(MAX_WATERMARK)
    assert harness.collected.watermarks == [MAX_WATERMARK]
    harness.close()


def test_without_a_loop_failures_are_raised():
    """And the loop is closed behind it."""
    harness = OperatorHarness(async_node(Flaky(1)))
    with pytest.raises(UserCodeError, match="nobody there"):
        harness.frame(numbers(*range(300)))
    harness.close()


async def test_rows_of_a_snapshot_are_asked_for_without_a_loop():
    """A savepoint with waiting rows goes on in a batch run."""
    harness = OperatorHarness(async_node(Service()))
    harness.frame(numbers(1, 2))
    snapshot = harness.snapshot()
    harness.close()

    def batch() -> list[int]:
        later = OperatorHarness(async_node(quick), restored=snapshot)
        later.watermark(MAX_WATERMARK)
        later.close()
        assert later.operators[0].next_timer_us() is None
        return sent(later)

    assert await asyncio.to_thread(batch) == [1, 2]


LIVES: list[str] = []


class Client:
    """Has something to open."""

    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        self.ready = False

    async def open(self) -> None:
        await asyncio.sleep(0)
        if self.fails == "open":
            raise ConnectionError("no way")
        LIVES.append("open")
        self.ready = True

    async def __call__(self, row: Number) -> Square:
        assert self.ready
        return Square(row.n, 0)

    async def close(self) -> None:
        LIVES.append("close")
        if self.fails == "close":
            raise ConnectionError("too late")


class PlainClient:
    """The same, which opens and closes without waiting."""

    def __init__(self) -> None:
        self.ready = False

    def open(self) -> None:
        LIVES.append("open")
        self.ready = True

    async def __call__(self, row: Number) -> Square:
        assert self.ready
        return Square(row.n, 0)

    def close(self) -> None:
        LIVES.append("close")


@pytest.mark.parametrize("client", [Client(), Client("close"), PlainClient()], ids=["", "close fails", "plain"])
async def test_a_function_with_connections(client):
    """A copy per subtask, opened before its calls, closed after them; what closing raises changes nothing."""
    LIVES.clear()
    harness = OperatorHarness(async_node(client), parallelism=2)
    harness.frame(numbers(1))
    harness.frame(numbers(2))
    await until_settled(harness)
    assert LIVES == ["open", "open"]
    harness.close()
    for operator in harness.operators:
        closing = operator.closing()
        assert closing is not None
        await closing
    assert LIVES == ["open", "open", "close", "close"]
    assert not client.ready


async def test_a_function_that_cannot_be_opened():
    """Is not called, and not closed."""
    LIVES.clear()
    harness = OperatorHarness(async_node(Client("open")))
    harness.frame(numbers(1))
    with pytest.raises(UserCodeError, match=r"Client\.open raised ConnectionError: no way"):
        await until_settled(harness)
    harness.close()
    await turn(harness)
    assert LIVES == []


async def test_a_function_that_cannot_be_copied():
    """Connections belong in open."""
    client = Client()
    client.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(PipelineError, match=re.escape("create connections, locks and the like in open()")):
        OperatorHarness(async_node(client))


async def test_what_is_given_up_is_cancelled():
    """At the end of the subtask nothing goes on."""
    cancelled: list[int] = []

    async def forever(row: Number) -> Square:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(row.n)
        raise AssertionError(row)

    harness = OperatorHarness(async_node(forever))
    harness.frame(numbers(1, 2))
    await turn(harness)
    harness.close()
    closing = harness.operators[0].closing()
    assert closing is not None
    await closing
    assert sorted(cancelled) == [1, 2]
    assert harness.output() == []
