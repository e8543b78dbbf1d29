"""The source of a subtask: splits, positions, watermarks over splits, idleness, bad records."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from penstock.connectors import files, iterables
from penstock.connectors.base import ReadContext, Split
from penstock.errors import BadRecordError, ExternalError
from penstock.runtime.operator import OperatorMetrics
from penstock.runtime.sources import SourceBatch, SourceDriver, owner_of
from penstock.times import to_micros

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

    context = ReadContext(lambda: 0, clock, parallelism)
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

    def discover(self):
        if self.failure is not None:
            raise self.failure
        return [Split(name) for name in self.names]

    def resolve(self, split, *, late):
        return 1

    def open(self, split, position, context):
        self.opened = (*self.opened, position)
        return super().open(split, None, context)


async def test_a_split_begins_where_an_earlier_attempt_began_it():
    """What was recorded first wins over what the source would say now: rows between the two would be lost."""

    async def recorded(_split, _position):
        return 0

    source = Splits(lambda: iter(()), schema=Event)
    reader = SourceDriver(source, 0, 1, ReadContext(lambda: 0, Time(), 1), OperatorMetrics(), recorded)
    await reader.open(())
    assert source.opened == (0,)
    await reader.close()


async def test_new_splits_can_wait_for_an_answer():
    """A broker that is away for two minutes ends no attempt; a longer absence, and what no retry can help, do."""
    source, time = Splits(lambda: iter(()), schema=Event), Time()
    reader = driver(source, time=time)
    await reader.open(())
    source.failure = ExternalError("nobody answers")
    for time.ms in range(10_000, 120_001, 10_000):
        await reader.step()
    source.failure, source.names, time.ms = None, ("0", "1"), 130_000
    await reader.step()
    assert source.opened == (1, 1)
    source.failure, time.ms = ExternalError("nobody answers"), 250_001
    with pytest.raises(ExternalError, match="nobody answers"):
        await reader.step()
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
    assert not (await reader.step()).became_idle
    time.ms = 1_500
    assert (await reader.step()).became_idle
    assert not (await reader.step()).became_idle
    await reader.close()
