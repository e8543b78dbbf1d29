"""The source of a subtask: splits, positions, watermarks over splits, idleness, bad records."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest
from source_feeds import Feed, Feeds

from penstock import Pipeline, periodic
from penstock.connectors import collecting, files, generate, iterables
from penstock.connectors.base import Fetched, ReadContext, Split
from penstock.core.times import to_micros
from penstock.errors import BadRecordError, ExternalError, PipelineError
from penstock.plan.operations.read import Read
from penstock.plan.signatures import describe_node
from penstock.protocol.messages import OperatorMetrics
from penstock.task.sources import FEW_ROWS, SPLITS_TOLD, SourceBatch, SourceDriver, SplitEntry, owner_of

START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Event:
    n: int
    at: datetime


class Time:
    """A monotonic clock that is set by hand."""

    def __init__(self) -> None:
        self.ms = 0

    def __call__(self) -> int:
        return self.ms


def driver(source, subtask: int = 0, parallelism: int = 1, time: Time | None = None) -> SourceDriver:
    clock = time or Time()

    async def remember(split, position):
        return position

    context = ReadContext(lambda: to_micros(START), clock, parallelism)
    return SourceDriver(source, subtask, parallelism, context, OperatorMetrics(), remember)


async def drain(reader: SourceDriver) -> list[SourceBatch]:
    """All batches up to the end."""
    batches: list[SourceBatch] = []
    for _ in range(1_000):
        batches.append(await reader.step())
        if batches[-1].exhausted:
            return batches
    pytest.fail("the source did not end")


def numbers(batches: list[SourceBatch]) -> list[int]:
    return [n for batch in batches if batch.frame is not None for n in batch.frame["n"].to_list()]


def write(path: Path, *events: tuple[int, int]) -> None:
    lines = [f'{{"n":{n},"at":"{(START + timedelta(seconds=s)).isoformat()}"}}' for n, s in events]
    path.write_text("\n".join(lines) + "\n")


class Splits(iterables.Source):
    """Splits that are found only while somebody answers; each begins where it is opened."""

    bounded = False
    names = ("0",)
    opened: tuple[object, ...] = ()
    failure: Exception | None = None

    answered: threading.Event | None = None

    def discover(self):
        if self.answered is not None:
            assert self.answered.wait(60)
        if self.failure is not None:
            raise self.failure
        return [Split(name) for name in self.names]

    def resolve(self, split, *, late):
        return 1

    def open(self, split, position, context):
        self.opened = (*self.opened, position)
        return super().open(split, None, context)


async def looked(reader: SourceDriver) -> SourceBatch:
    """The step that splits join which have come."""
    await reader.step()
    assert reader._looking is not None
    await asyncio.wait([reader._looking])
    return await reader.step()


async def test_a_split_begins_where_an_earlier_attempt_began_it():
    """What was recorded first wins over what the source would say now: rows between the two would be lost."""

    async def recorded(_split, _position):
        return 0

    source = Splits(lambda: iter(()), schema=Event)
    reader = SourceDriver(source, 0, 1, ReadContext(lambda: to_micros(START), Time(), 1), OperatorMetrics(), recorded)
    await reader.open(())
    assert source.opened == (0,)
    await reader.close()


class Confirming(Feed):
    """A feed that hears of checkpoints."""

    confirmed: tuple[int, ...] = ()

    def confirm(self, position):
        self.confirmed = (*self.confirmed, position)


async def test_readers_hear_of_complete_checkpoints_alone():
    """With the position that the checkpoint has; of those that an other one has overtaken nothing is heard later."""
    feeds = {"a": Confirming([1, 2, 3, 4, 5]), "b": Feed([1, 2, 3, 4, 5])}
    reader = driver(Feeds(feeds))
    await reader.open(())
    for checkpoint in (1, 2, 3):
        await reader.step()
        await reader.step()
        reader.frozen(checkpoint)
    assert feeds["a"].confirmed == ()
    reader.completed(2)
    reader.completed(1)
    reader.completed(9)
    assert feeds["a"].confirmed == (2,)
    await reader.close()


class Ending(Splits):
    """An endless split that is given an end when it is asked for one, as that of a topic."""

    ends_on_request = True

    def resolve(self, split, *, late):
        return {"offset": 0, "end": None}


async def test_a_split_that_is_given_an_end_goes_on_where_its_snapshot_is():
    """Not where it began: what was remembered of that is another thing. Whoever begins again is told the same end."""
    kept: dict[str, Any] = {}

    async def remember(split, position):
        return kept.setdefault(split, position)

    def opened(source):
        return SourceDriver(source, 0, 1, ReadContext(lambda: to_micros(START), Time(), 1), OperatorMetrics(), remember)

    endless, ending = Ending(lambda: iter(()), schema=Event), Ending(lambda: iter(()), schema=Event)
    ending.bounded, ending.until_now = True, lambda _split, position: {**position, "end": 9 + len(kept)}
    first = opened(endless)
    await first.open(())
    assert endless.opened == ({"offset": 0, "end": None},)
    entry = SplitEntry("0", {"offset": 5, "end": None}, finished=False, watermark=0, idle=False, generator=None)
    for _ in range(2):
        again = opened(ending)
        await again.open([msgspec.json.encode(entry)])
        await again.close()
    assert ending.opened == ({"offset": 5, "end": 10}, {"offset": 5, "end": 10})
    await first.close()


async def test_new_splits_can_wait_for_an_answer():
    """A broker that is away for two minutes ends no attempt; a longer absence, and what no retry can help, do."""
    source, time = Splits(lambda: iter(()), schema=Event), Time()
    reader = driver(source, time=time)
    await reader.open(())
    source.failure = ExternalError("nobody answers")
    for time.ms in range(10_000, 120_001, 10_000):
        await looked(reader)
    source.failure, source.names, time.ms = None, ("0", "1"), 130_000
    await looked(reader)
    assert source.opened == (1, 1)
    source.failure, time.ms = ExternalError("nobody answers"), 260_000
    await looked(reader)  # for long nothing was read, and nobody was asked
    time.ms = 380_001
    with pytest.raises(ExternalError, match="nobody answers"):
        await looked(reader)
    await reader.close()


async def test_rows_do_not_wait_for_new_splits():
    """To look for them may take as long as a broker is away; and a look that nobody waits for any more is given up."""
    source, time, answered = FedSplits(lambda: iter(()), schema=Event, event_time="at"), Time(), threading.Event()
    reader = driver(source, time=time)
    await reader.open(())
    source.answered, source.names, time.ms = answered, ("0", "1"), 10_000
    assert await fed(reader, source, "0", 5) == [5]
    assert await fed(reader, source, "0", 6) == [6]
    assert len(source.opened) == 1
    answered.set()
    await looked(reader)
    assert len(source.opened) == 2
    source.answered, time.ms = threading.Event(), 20_000
    await reader.step()
    source.answered.set()
    await reader.close()


async def test_a_snapshot_continues_exactly_there(tmp_path):
    """Entries taken between two batches are where the next reader begins."""
    write(tmp_path / "a.jsonl", *((n, n) for n in range(10)))
    source = files.Source(tmp_path, schema=Event, event_time="at", batch_rows=3)
    first = driver(source)
    await first.open(())
    before = [await first.step(), await first.step()]
    entries = first.entries()
    await first.close()
    second = driver(source)
    await second.open(entries)
    after = await drain(second)
    await second.close()
    assert numbers(before) + numbers(after) == list(range(10))


async def test_the_watermark_is_the_minimum_over_splits(tmp_path):
    """A split that is behind holds the watermark back; one that has ended does not."""
    write(tmp_path / "a.jsonl", (1, 100))
    write(tmp_path / "b.jsonl", (2, 10), (3, 20))
    source = files.Source(tmp_path, schema=Event, event_time="at", batch_rows=1)
    reader = driver(source)
    await reader.open(())
    batches = await drain(reader)
    await reader.close()
    watermarks = [batch.watermark for batch in batches if batch.watermark is not None]
    assert watermarks == sorted(watermarks)
    assert watermarks[0] == to_micros(START + timedelta(seconds=10)) - 1
    assert numbers(batches)[:2] == [1, 2]


async def test_splits_are_owned_by_exactly_one_subtask(tmp_path):
    """Together the subtasks read everything, each split once."""
    for name in range(7):
        write(tmp_path / f"{name}.jsonl", (name, name))
    source = files.Source(tmp_path, schema=Event, event_time="at")
    seen: list[int] = []
    for subtask in range(3):
        reader = driver(source, subtask, 3)
        await reader.open(())
        seen += numbers(await drain(reader))
        await reader.close()
    assert sorted(seen) == list(range(7))
    assert owner_of("5", 3) == 2
    assert owner_of("some/path.jsonl", 4) == owner_of("some/path.jsonl", 4)


async def test_bad_records_follow_the_policy(tmp_path):
    """`fail` names the place, `skip` counts, `dead_letter` hands the record on."""
    path = tmp_path / "a.jsonl"
    write(path, (1, 1))
    path.write_text(path.read_text() + "not json\n")

    def source(policy: str):
        return files.Source(path, schema=Event, event_time="at", bad_rows=policy)

    failing = driver(source("fail"))
    await failing.open(())
    with pytest.raises(BadRecordError, match=r"a\.jsonl, line 2.*bad_rows='skip'"):
        await drain(failing)
    await failing.close()
    skipping = driver(source("skip"))
    await skipping.open(())
    assert numbers(await drain(skipping)) == [1]
    assert skipping._judge.metrics.bad_rows == 1
    await skipping.close()
    setting_aside = driver(source("dead_letter"))
    await setting_aside.open(())
    dead = [batch.dead for batch in await drain(setting_aside) if batch.dead is not None]
    assert pl.concat(dead)["raw"].to_list() == [b"not json"]
    await setting_aside.close()


async def _as_it_is(split, position):
    return position


async def test_a_reader_that_waits_is_woken_for_event_time_and_for_idleness():
    """Whatever else the subtask waits for; a split that is idle, or that nobody reads, wakes nobody for that."""
    waits: list[Any] = []

    class Waiting(Feeds):
        def open(self, split, position, context):
            waits.append(context.other_work)
            return super().open(split, position, context)

    feed = Feed([1])
    feed.open = True
    time = Time()
    source = Waiting({"0": feed}, idle_after="10ms", bounded=False)
    context = ReadContext(lambda: to_micros(START), time, other_work=asyncio.Event().wait)
    reader = SourceDriver(source, 0, 1, context, OperatorMetrics(), _as_it_is)
    await reader.open(())
    async with asyncio.timeout(10):
        await waits[0]()
    assert reader._patience_s() == 0.01
    await reader.step()
    await reader.step()
    time.ms = 9
    assert reader._patience_s() == 0.001
    for state in reader._active():
        state.paused = True
    assert reader._patience_s() == pytest.approx(0.2 - 0.009)


async def test_a_reader_that_waits_is_asked_again_before_its_silence_counts_no_more():
    """For an hour of silence every six minutes, though nothing else wakes the subtask."""
    time = Time()
    feed = Feed([])
    feed.open = True
    source = Feeds({"0": feed}, idle_after="1h", watermarks=periodic(lambda newest: newest, every="1d"), bounded=False)
    reader = driver(source, time=time)
    await reader.open(())
    became_idle = list[int]()
    for _ in range(20):
        if (await reader.step()).became_idle:
            became_idle.append(time.ms)
            break
        time.ms += round(reader._patience_s() * 1_000)
    assert became_idle == [3_600_000]
    await reader.close()


async def test_a_silent_split_becomes_idle():
    """After `idle_after` without rows the split no longer holds anything back."""
    time = Time()

    class Silent:
        async def read(self, max_rows):
            return None

        def position(self):
            return None

        async def close(self):
            pass

    source = iterables.Source([], schema=Event, event_time="at", idle_after="1s", bounded=False)
    reader = driver(source, time=time)
    await reader.open(())
    (state,) = reader._splits.values()
    await state.reader.close()
    state.reader = Silent()
    for time.ms in range(5_000, 6_000, 100):
        assert not (await reader.step()).became_idle
    time.ms = 6_000
    assert (await reader.step()).became_idle
    assert not (await reader.step()).became_idle
    await reader.close()


@pytest.mark.parametrize("held_up", ["opening", "between two asks", "in an ask", "again and again"])
async def test_a_split_that_was_not_asked_or_could_not_answer_is_not_idle(held_up):
    """Its rows, which wait outside meanwhile, are in time when it is asked (FLINK-35886)."""
    source, time = FedSplits(lambda: iter(()), schema=Event, event_time="at", idle_after="5s"), Time()
    source.names = ("0", "1")
    reader = driver(source, time=time)
    await reader.open(())
    if held_up == "opening":
        time.ms += 60_000
    if held_up == "in an ask":
        source.readers["0"].before_answer = lambda: setattr(time, "ms", time.ms + 30_000)
    for asks in range(4):
        assert await fed(reader, source, "1", 20 + asks) == []
        time.ms += {"between two asks": 60_000 * (asks == 1), "again and again": 40_000}.get(held_up, 0)
    source.readers["0"].before_answer = lambda: None
    assert await fed(reader, source, "0", 10) == [10], "the other one is waited for"
    await reader.close()


async def test_a_reader_that_nobody_has_answered_yet_is_not_idle():
    """However often it is asked; and it is when somebody has, and there is nothing."""
    source, time = FedSplits(lambda: iter(()), schema=Event, event_time="at", idle_after="1s"), Time()
    reader = driver(source, time=time)
    await reader.open(())
    source.readers["0"].has_answered = False
    for time.ms in range(0, 20_000, 100):
        assert not (await reader.step()).became_idle
    source.readers["0"].has_answered = True
    batches = list[SourceBatch]()
    for time.ms in range(20_000, 21_001, 100):
        batches.append(await reader.step())
    assert [batch.became_idle for batch in batches] == [*[False] * 10, True]
    await reader.close()


@pytest.mark.parametrize(
    ("splits", "wait_ms", "most_ms"),
    [(1, 50, 5_100), (10, 50, 6_000), (300, 50, 30_000), (300, 1, 6_000), (4, 1_000, 20_000)],
)
async def test_silent_splits_become_idle_in_time_or_after_two_rounds_of_asks(splits, wait_ms, most_ms):
    """However many there are, and though each is waited for in turn. A reader that waits for much longer than it should
    cannot be told from one that is held up: the last one takes four rounds.
    """
    source, time = FedSplits(lambda: iter(()), schema=Event, event_time="at", idle_after="5s"), Time()
    source.names = tuple(map(str, range(splits)))
    reader = driver(source, time=time)
    await reader.open(())
    for made in source.readers.values():
        made.before_answer = lambda: setattr(time, "ms", time.ms + wait_ms)
    while not (await reader.step()).became_idle:
        assert time.ms < 100_000
    assert 5_000 <= time.ms <= most_ms
    await reader.close()


async def test_a_split_beside_one_that_always_has_rows_becomes_idle():
    """Though its asks themselves take no time: the time between them counts."""
    source, time = FedSplits(lambda: iter(()), schema=Event, event_time="at", idle_after="2s"), Time()
    source.names = ("0", "1")
    reader = driver(source, time=time)
    await reader.open(())
    marks = list[list[int]]()
    for second in range(30):
        time.ms = second * 200
        marks.append(await fed(reader, source, "1", second))
        if marks[-1]:
            break
    assert (time.ms, marks[-1]) == (2_000, [9, 10])
    await reader.close()


class Fed:
    """The reader of a split that is given its rows one by one, by the seconds of their event times."""

    before_answer: Callable[[], None] = staticmethod(lambda: None)
    has_answered = True

    def __init__(self) -> None:
        self.waiting: list[int] = []

    async def read(self, max_rows):
        self.before_answer()
        if not self.waiting:
            return None
        second = self.waiting.pop(0)
        return Fetched(pl.DataFrame({"n": [second], "at": [START + timedelta(seconds=second)]}))

    def position(self):
        return 0

    def records_behind(self):
        return len(self.waiting)

    async def close(self):
        pass


class FedSplits(Splits):
    """Splits whose readers are `Fed`."""

    def open(self, split, position, context):
        self.opened = (*self.opened, position)
        self.__dict__.setdefault("readers", {})[split.id] = reader = Fed()
        return reader


async def fed(reader: SourceDriver, source: FedSplits, split: str, second: int) -> list[int]:
    """Feed a row to a split and read on until all have been asked; the watermarks in seconds, rounded up."""
    source.readers[split].waiting.append(second)
    batches = [await reader.step() for _ in range(2 * len(source.readers))]
    origin = to_micros(START)
    return [(batch.watermark + 1 - origin) // 1_000_000 for batch in batches if batch.watermark is not None]


async def test_the_splits_that_are_furthest_behind_are_told_of():
    """Some of them, however many there are; those without anything to read are not."""
    source = FedSplits(lambda: iter(()), schema=Event)
    source.names = tuple(str(number) for number in range(2 * SPLITS_TOLD))
    reader = driver(source)
    await reader.open(())
    assert reader.lag() == (0, {})
    for name in source.names[1:]:
        source.readers[name].waiting += range(int(name))
    assert list(reader.lag()[1].items()) == [(str(n), n) for n in range(19, 9, -1)]
    source.readers["19"].waiting.clear()
    source.readers["3"].waiting += range(100)
    behind, splits = reader.lag()
    assert next(iter(splits.items())) == ("3", 103)
    assert behind == sum(range(19)) + 100
    await reader.close()


async def test_a_subtask_without_splits_is_idle_until_one_is_found():
    """It would hold event time back for ever. A split that is found later is waited for until it says how far it is."""
    source, time = FedSplits(lambda: iter(()), schema=Event, event_time="at"), Time()
    source.names = ("0", "1")
    reader = driver(source, 2, 3, time)
    await reader.open(())
    assert [(await reader.step()).became_idle for _ in range(3)] == [True, False, False]
    source.names, time.ms = ("0", "1", "2"), 10_000
    assert not (await looked(reader)).became_idle
    assert await fed(reader, source, "2", 5) == [5]
    source.names, time.ms = ("0", "1", "2", "5"), 20_000
    await looked(reader)
    assert await fed(reader, source, "2", 9) == []
    assert await fed(reader, source, "5", 7) == [7]
    await reader.close()


async def test_splits_that_are_read_leave_the_subtask_of_an_unbounded_source_idle():
    """More may be found; a bounded source is at its end then, and says that instead."""
    source = iterables.Source([Event(1, START)], event_time="at", bounded=False)
    reader = driver(source)
    await reader.open(())
    batches = [await reader.step() for _ in range(5)]
    assert numbers(batches) == [1]
    assert [batch.became_idle for batch in batches].count(True) == 1
    await reader.close()


async def test_an_idle_split_that_resumes_behind_the_others_does_not_stop_event_time():
    """Until it has caught up; also where a snapshot was taken meanwhile."""
    source, time = FedSplits(lambda: iter(()), schema=Event, event_time="at", idle_after="1s"), Time()
    source.names = ("0", "1")
    reader = driver(source, time=time)
    await reader.open(())
    assert await fed(reader, source, "0", 10) == []
    assert await fed(reader, source, "1", 20) == [10]
    for time.ms in range(0, 1_000, 100):
        assert await fed(reader, source, "1", 20) == []
    time.ms = 1_000
    assert await fed(reader, source, "1", 30) == [20, 30]
    assert await fed(reader, source, "0", 15) == []
    assert await fed(reader, source, "1", 40) == [40]
    entries = reader.entries()
    await reader.close()
    reader = driver(source, time=time)
    await reader.open(entries)
    assert await fed(reader, source, "0", 20) == [40]
    assert await fed(reader, source, "1", 50) == [50]
    assert await fed(reader, source, "0", 55) == []
    assert await fed(reader, source, "1", 60) == [55]
    await reader.close()


@dataclass
class Line:
    n: int


def lines(folder: Path, **options: Any) -> files.Source[Line]:
    """Four files of a hundred rows, ten at a time."""
    for number in range(4):
        rows = range(number * 100, number * 100 + 100)
        (folder / f"{number}.jsonl").write_text("".join(f'{{"n":{n}}}\n' for n in rows))
    return files.Source(folder, schema=Line, batch_rows=10, **options)


async def test_files_without_event_time_are_read_one_after_the_other(tmp_path: Path) -> None:
    """Side by side each would hold a part of it in memory, of Parquet a row group, and there may be thousands."""
    reader = driver(lines(tmp_path))
    await reader.open(())
    assert numbers(await drain(reader)) == list(range(400))
    await reader.close()


async def test_files_with_event_time_are_read_side_by_side(tmp_path: Path) -> None:
    """So that event time comes on in all of them."""
    reader = driver(lines(tmp_path, event_time="n", time_unit="s", max_out_of_orderness="1s"))
    await reader.open(())
    assert [n // 100 for n in numbers(await drain(reader))[:40:10]] == [0, 1, 2, 3]
    await reader.close()


async def test_a_rate_is_that_of_all_files(tmp_path: Path) -> None:
    """One that may not go on yet lets the next one read."""
    time = Time()
    reader = driver(lines(tmp_path, rate=40), time=time)
    await reader.open(())
    found: list[int] = []
    for time.ms in range(0, 1_001, 25):
        for _ in range(8):
            batch = await reader.step()
            found += batch.frame["n"].to_list() if batch.frame is not None else []
    assert {n // 100 for n in found} == {0, 1, 2, 3}
    assert 36 <= len(found) <= 48
    await reader.close()


async def test_a_round_that_brings_few_rows_is_told_of():
    """Of a source without end: once every split was read again. Enough rows, none, or more at hand are not told of."""

    class Endless(Feeds):
        bounded = False

    feeds = {"a": Feed([0] * 9), "b": Feed([0] * 9), "c": Feed([0] * (FEW_ROWS + 9), batch=FEW_ROWS)}
    for feed in feeds.values():
        feed.open = True
    few = [driver(Endless({name: feeds[name] for name in names})) for names in ("ab", "abc")]
    for reader in few:
        await reader.open([])
    assert [(await few[0].step()).few for _ in range(6)] == [False, True, False, True, False, True]
    assert [(await few[1].step()).few for _ in range(6)] == [False, False, False, False, False, True]
    more = driver(Endless({"a": Feed([0] * 9, is_all=False)}))
    await more.open([])
    assert not any([(await more.step()).few for _ in range(9)])
    bounded = driver(Feeds({"a": Feed([0] * 9)}))
    await bounded.open([])
    assert not any([(await bounded.step()).few for _ in range(9)])


def far_ahead(policy: str, **options: Any) -> tuple[iterables.Source, list[int]]:
    """A source with one event 31 days ahead of the wall clock, which stands at `START`; and the seconds of all."""
    seconds = [0, 1, 31 * 86_400, 2, 30 * 86_400]
    rows = [{"n": n, "at": START + timedelta(seconds=second)} for n, second in enumerate(seconds)]
    return iterables.Source(rows, schema=Event, event_time="at", bad_rows=policy, **options), seconds


@pytest.mark.parametrize("options", [{"bounded": False}, {"max_ahead": "30d"}], ids=["by default", "as given"])
async def test_an_event_far_ahead_of_the_wall_clock_is_a_bad_row(options):
    """It moves no watermark, is counted and named with its time; one exactly so far ahead is none."""
    source, _ = far_ahead("dead_letter", **options)
    reader = driver(source)
    await reader.open(())
    batch = await reader.step()
    assert batch.frame is not None
    assert batch.frame["n"].to_list() == [0, 1, 3, 4]
    assert batch.watermark == to_micros(START + timedelta(days=30)) - 1
    assert batch.dead is not None
    (error,) = batch.dead["error"]
    assert error.startswith(
        "event time at: 2026-02-01T00:00:00Z is further ahead of the wall clock, 2026-01-01T00:00:00Z, "
    )
    assert "max_ahead='30d'" in error
    assert b'"n":"2"' in batch.dead["raw"][0]
    assert (reader._judge.metrics.bad_rows, reader._judge.metrics.rows_in) == (1, 5)
    await reader.close()


async def test_an_event_far_ahead_of_the_wall_clock_follows_the_policy():
    """The same as every bad row."""
    reader = driver(far_ahead("fail", bounded=False)[0])
    await reader.open(())
    with pytest.raises(BadRecordError, match=r"2026-02-01T00:00:00Z is further ahead .* None"):
        await reader.step()
    await reader.close()
    reader = driver(far_ahead("skip", bounded=False)[0])
    await reader.open(())
    batch = await reader.step()
    assert (numbers([batch]), batch.dead, reader._judge.metrics.bad_rows) == ([0, 1, 3, 4], None, 1)
    await reader.close()


@pytest.mark.parametrize("options", [{}, {"max_ahead": None, "bounded": False}, {"max_ahead": "31d", "bounded": False}])
async def test_how_far_ahead_events_may_be_is_limited_by_default_only_where_input_never_ends(options):
    """Old data that is read to its end has no wall clock, and a source may say that it has none."""
    source, seconds = far_ahead("fail", **options)
    reader = driver(source)
    await reader.open(())
    assert numbers([await reader.step()]) == list(range(len(seconds)))
    await reader.close()


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"bounded": False}, "30d"),
        ({"bounded": False, "max_ahead": "1h"}, "1h"),
        ({"max_ahead": "1h"}, "1h"),
        ({"bounded": False, "max_ahead": None}, None),
        ({}, None),
    ],
)
def test_plans_show_how_far_ahead_events_may_be(options, shown):
    """Also where the source does not say it."""
    pipeline = Pipeline("p")
    pipeline.read(iterables.Source([], schema=Event, event_time="at", **options)).write(collecting.Sink())
    (node,) = (node for node in pipeline.plan if isinstance(node.operation, Read))
    assert describe_node(node).get("max_ahead") == shown


def test_how_far_ahead_events_may_be_is_checked_where_it_is_said():
    """And generated rows, whose times follow from their numbers, have no such limit."""
    assert generate.Source(lambda n: {"n": n, "at": START}, schema=Event, event_time="at").max_ahead_us is None
    for options, message in [
        ({"max_ahead": "1h"}, "max_ahead= needs event_time="),
        ({"event_time": "at", "max_ahead": "0s"}, "max_ahead: must be positive"),
    ]:
        with pytest.raises(PipelineError, match=message):
            iterables.Source([], schema=Event, **options)
