"""`penstock.testing.run_pipeline`: processing time passes at once, and only where the test says so."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import KeyedContext, KeyedProcess, ListState, Pipeline, ValueState, col, count, periodic, tumbling
from penstock.adapters.memory import MemoryLog
from penstock.connectors import collecting, iterables
from penstock.errors import PenstockError
from penstock.testing import elapse, run_pipeline
from penstock.testing.pipelines import NOW
from penstock.testing.virtual_time import VirtualClock, VirtualLoop, timers_count

HOUR = timedelta(hours=1)


@dataclass
class Click:
    user: str
    at: datetime


@dataclass
class Clicked:
    user: str
    clicks: int
    end: datetime


class HourlyClicks(KeyedProcess[Click, Clicked]):
    """A tumbling window of an hour of processing time, as one writes it with timers."""

    clicks = ValueState(int)
    seen = ListState(datetime)

    def on_row(self, row: Click, ctx: KeyedContext) -> None:
        self.clicks.set(self.clicks.get(default=0) + 1)
        end = ctx.processing_time.replace(minute=0, second=0, microsecond=0) + HOUR
        ctx.processing_timer(end)

    def on_timer(self, at: datetime, ctx: KeyedContext) -> None:
        ctx.emit(Clicked(self.key_of(ctx), self.clicks.get(default=0), at))
        self.clicks.clear()

    @staticmethod
    def key_of(ctx: KeyedContext) -> str:
        key = ctx.key
        return key if isinstance(key, str) else key[0]


class EveryTenMinutes(KeyedProcess[Click, Clicked]):
    """Says every ten minutes what time it is."""

    def on_row(self, row: Click, ctx: KeyedContext) -> None:
        ctx.processing_timer(ctx.processing_time + timedelta(minutes=10))

    def on_timer(self, at: datetime, ctx: KeyedContext) -> None:
        ctx.emit(Clicked("", 0, ctx.processing_time))
        ctx.processing_timer(at + timedelta(minutes=10))


def clicks(process: Callable[[], KeyedProcess[Click, Clicked]], **source: object) -> Pipeline:
    """A pipeline of one process function."""
    p = Pipeline("clicks")
    p.read(iterables.Source([], schema=Click, **source)).key_by("user").process(process()).write(collecting.Sink())  # type: ignore[arg-type]
    return p


def click(user: str = "a", minutes: float = 0) -> Click:
    return Click(user, NOW + timedelta(minutes=minutes))


def test_a_window_of_an_hour_takes_no_time() -> None:
    """Rows on both sides of the hour's end are told apart by the pause between them."""
    started = time.monotonic()
    rows = [click("a"), elapse("59m"), click("a"), elapse("2m"), click("a"), click("b")]
    found = run_pipeline(clicks(HourlyClicks), rows, wait="1h")
    assert sorted((row["end"], row["user"], row["clicks"]) for row in found) == [
        (NOW + HOUR, "a", 2),
        (NOW + 2 * HOUR, "a", 1),
        (NOW + 2 * HOUR, "b", 1),
    ]
    assert time.monotonic() - started < 30  # on a machine that is busy; three hours have passed


@pytest.mark.parametrize("parallelism", [1, 2])
def test_timers_fire_at_their_moment_in_their_order(parallelism: int) -> None:
    """Each sees the clock at its own time, one that another has set included."""
    found = run_pipeline(clicks(EveryTenMinutes), [click()], wait="1h5m", parallelism=parallelism)
    assert [row["end"] - NOW for row in found] == [timedelta(minutes=10 * n) for n in range(1, 7)]


def test_timers_behind_the_end_of_the_input_do_not_fire() -> None:
    """As in production: the input ends when it ends, not when nothing is left to wait for."""
    assert run_pipeline(clicks(EveryTenMinutes), [click()]) == []
    assert len(run_pipeline(clicks(EveryTenMinutes), [click()], wait="10m")) == 1


def test_processing_time_begins_where_the_test_says() -> None:
    """To the microsecond, and it stands still from the first row to the last."""

    class Moments(KeyedProcess[Click, Clicked]):
        def on_row(self, row: Click, ctx: KeyedContext) -> None:
            ctx.emit(Clicked(row.user, 0, ctx.processing_time))

    now = datetime(2030, 5, 5, 12, 30, 15, 123_456, tzinfo=UTC)
    found = run_pipeline(clicks(Moments), [click()] * 50 + [elapse("1ms"), click()], now=now)
    assert {row["end"] for row in found[:50]} == {now}
    assert found[50]["end"] == now + timedelta(milliseconds=1)


def test_pauses_of_any_length_end() -> None:
    """Seconds are floats: a pause whose end is the least bit behind a microsecond was never over."""

    class Moments(KeyedProcess[Click, Clicked]):
        def on_row(self, row: Click, ctx: KeyedContext) -> None:
            ctx.emit(Clicked(row.user, 0, ctx.processing_time))

    chance = random.Random(5)
    pauses = [chance.randrange(1, 20_000_000) for _ in range(200)]
    rows = [item for pause in pauses for item in (click(), elapse(timedelta(microseconds=pause)))]
    found = run_pipeline(clicks(Moments), rows)
    passed = [round((row["end"] - NOW) / timedelta(microseconds=1)) for row in found]
    assert passed == [0, *itertools.accumulate(pauses[:-1])]


def counts(**source: object) -> Pipeline:
    """Counts per minute of event time over two sources; the second one is `source`."""
    p = Pipeline("counts")
    left = p.read(iterables.Source([], schema=Click, event_time="at")).uid("left")
    right = p.read(iterables.Source([], schema=Click, event_time="at", **source)).uid("right")  # type: ignore[arg-type]

    class Stamp(KeyedProcess[Click, Clicked]):
        def on_row(self, row: Click, ctx: KeyedContext) -> None:
            ctx.event_timer(row.at + timedelta(minutes=1))

        def on_timer(self, at: datetime, ctx: KeyedContext) -> None:
            ctx.emit(Clicked("", 0, ctx.processing_time))

    left.union(right).key_by("user").process(Stamp()).write(collecting.Sink())
    return p


def test_a_silent_source_becomes_idle_when_its_time_has_come() -> None:
    """Until then it holds event time back, from then on it does not."""
    rows = {"left": [click(), click("b", 5), elapse("1h")], "right": [elapse("1h")]}
    assert run_pipeline(counts(idle_after="10m"), rows)[0]["end"] == NOW + timedelta(minutes=10)
    assert run_pipeline(counts(), rows)[0]["end"] == NOW + HOUR


def test_watermarks_are_asked_for_while_a_source_is_silent() -> None:
    """A periodic strategy that says more each time is heard each time."""
    asked: list[int] = []

    def slowly(newest: datetime) -> datetime:
        asked.append(1)
        return newest + timedelta(seconds=len(asked))

    p = Pipeline("periodic")
    source = iterables.Source([], schema=Click, event_time="at", watermarks=periodic(slowly, every="1s"))
    p.read(source).key_by("user").window(tumbling("1m")).agg(n=count()).write(collecting.Sink())
    found = run_pipeline(p, [click(), elapse("5m"), click("b", 2)])
    assert len(asked) >= 300
    assert [(row["user"], row["n"]) for row in found] == [("a", 1)]  # by then b is late


def test_rows_come_at_the_rate_of_their_source() -> None:
    """One a minute takes an hour of processing time, and none of ours."""

    class Moments(KeyedProcess[Click, Clicked]):
        def on_row(self, row: Click, ctx: KeyedContext) -> None:
            ctx.emit(Clicked(row.user, 0, ctx.processing_time))

    found = run_pipeline(clicks(Moments, rate=1 / 60), [click()] * 60)
    assert [row["end"] - NOW for row in found] == [timedelta(minutes=n) for n in range(1, 61)]


@pytest.mark.acceptance
@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 90)), max_size=12),
    st.integers(1, 3),
)
def test_windows_agree_with_a_model(gaps: list[tuple[str, int]], parallelism: int) -> None:
    """Whatever pauses stand between the rows: each falls into the hour of its moment."""
    rows: list[object] = []
    model: dict[tuple[str, datetime], int] = {}
    moment = NOW
    for user, pause in gaps:
        rows += [elapse(timedelta(minutes=pause)), click(user)]
        moment += timedelta(minutes=pause)
        end = moment.replace(minute=0) + HOUR
        model[user, end] = model.get((user, end), 0) + 1
    found = run_pipeline(clicks(HourlyClicks), rows, wait="1h", parallelism=parallelism)
    assert {(row["user"], row["end"]): row["clicks"] for row in found} == model


def test_a_run_is_the_same_every_time() -> None:
    """Rows, and the order of windows, with several subtasks too; the keys of one window come in any order."""
    p = Pipeline("same")
    source = p.read(iterables.Source([], schema=Click, event_time="at"))
    source.key_by("user").window(tumbling("1m")).agg(n=count(), last=col("at").max()).write(collecting.Sink())
    rows = [click(str(n % 17), n / 7) for n in range(300)]

    def run() -> tuple[list[datetime], list[tuple[str, datetime, int]]]:
        found = run_pipeline(p, rows, parallelism=3, batch=7)
        return [row["window_start"] for row in found], sorted((r["user"], r["last"], r["n"]) for r in found)

    first = run()
    assert all(run() == first for _ in range(3))


async def test_it_can_be_used_in_a_coroutine() -> None:
    """Of a test that has an event loop of its own."""
    assert len(run_pipeline(clicks(EveryTenMinutes), [click()], wait="10m")) == 1


def test_errors_are_raised_from_the_midst_of_a_pause() -> None:
    """What a timer raises ends the run, not the waiting for the end of the pause."""

    class Boom(EveryTenMinutes):
        def on_timer(self, at: datetime, ctx: KeyedContext) -> None:
            raise ValueError("no time")

    with pytest.raises(PenstockError, match="no time"):
        run_pipeline(clicks(Boom), [click()], wait="100d")


# -- the loop -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """Runs coroutines in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as made:
        yield made


def test_sleepers_wake_in_the_order_of_their_time(runner: asyncio.Runner) -> None:
    """However long they sleep."""
    woken: list[tuple[str, int]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        woken.append((name, VirtualClock(0).monotonic_ms()))

    async def all_of_them() -> None:
        await asyncio.gather(sleeper("year", 31_536_000), sleeper("second", 1), sleeper("tick", 0.001))

    runner.run(all_of_them())
    assert woken == [("tick", 1), ("second", 1_000), ("year", 31_536_000_000)]


@pytest.mark.timeout(20)
def test_a_read_that_waits_ends_where_its_deadline_falls_between_two_microseconds(runner: asyncio.Runner) -> None:
    """15.048 + 1.0 is a little more than the double that is 16.048: the clock stands there, and the read looked again
    and again without end."""

    async def read_until_later() -> float:
        log = MemoryLog()
        await log.create_topic("empty", 1)
        await asyncio.sleep(15.048)
        assert await log.read("empty", 0, 0, timeout_s=1.0) == []
        return asyncio.get_running_loop().time()

    assert runner.run(read_until_later()) == 16.048


def test_polls_do_not_stop_time_while_somebody_holds(runner: asyncio.Runner) -> None:
    """Of a poll every millisecond a few hundred are left of an hour; timers that count are met all the same."""
    polls: list[float] = []
    counted: list[float] = []

    async def poll() -> None:
        while True:
            await asyncio.sleep(0.001)
            polls.append(asyncio.get_running_loop().time())

    async def count_every_ten_minutes() -> None:
        timers_count()
        while True:
            await asyncio.sleep(600)
            counted.append(asyncio.get_running_loop().time())

    async def hour() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        tasks = [asyncio.ensure_future(poll()), asyncio.ensure_future(count_every_ten_minutes())]
        loop.hold("input", 3_600.0)
        async with asyncio.timeout_at(3_600.005):
            await asyncio.wait(tasks)

    with pytest.raises(TimeoutError):
        runner.run(hour())
    assert counted == [600.0 * n for n in range(1, 7)]
    assert len(polls) < 2_000


def test_time_waits_for_threads(runner: asyncio.Runner) -> None:
    """A call that takes a tenth of a second takes no virtual time, and its timeout does not strike."""

    async def call() -> float:
        async with asyncio.timeout(0.01):
            await asyncio.to_thread(time.sleep, 0.1)
        return asyncio.get_running_loop().time()

    assert runner.run(call()) == 0


def test_time_is_real_while_a_socket_is_watched(runner: asyncio.Runner) -> None:
    """An answer that takes 50 ms comes before a timeout of ten seconds."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        await asyncio.sleep(0.05)
        writer.write(b"hello\n")
        await writer.drain()
        writer.close()

    async def ask() -> tuple[bytes, float]:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"hi\n")
            async with asyncio.timeout(10):
                line = await reader.readline()
            writer.close()
            await writer.wait_closed()
        return line, asyncio.get_running_loop().time()

    line, passed_s = runner.run(ask())
    assert line == b"hello\n"
    assert 0.04 < passed_s < 10
