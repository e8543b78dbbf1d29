"""Watermark alignment: no split is read further ahead of the slowest than `max_drift` and what one read brings."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
from source_feeds import START, Event, Feed, Feeds, Time, driver

from penstock import Pipeline, Process
from penstock.connectors import collecting, files, iterables
from penstock.connectors.base import WatermarkAlignment
from penstock.core.times import MAX_WATERMARK, MIN_WATERMARK
from penstock.errors import PipelineError
from penstock.graph.executiongraph import ExecutionGraph
from penstock.graph.jobgraph import build_job_graph
from penstock.protocol.messages import SubtaskId
from penstock.task.alignment import SourceAlignment, alignment_of
from penstock.task.sources import SourceBatch
from penstock.testing import elapse, run_pipeline

SECOND = 1_000_000


def lead(source: Feeds) -> int:
    """Seconds between the newest rows of the furthest and of the slowest split that has more."""
    newest = {name: feed.seconds[feed.at - 1] if feed.at else -1 for name, feed in source.feeds.items()}
    waiting = [newest[name] for name, feed in source.feeds.items() if feed.at < len(feed.seconds)]
    return max(newest.values()) - min(waiting, default=max(newest.values()))


async def leads(source: Feeds, alignment: SourceAlignment | None) -> list[int]:
    """After every step up to the end of the input."""
    reader, found = await driver(source, alignment), list[int]()
    for _ in range(10_000):
        if (await reader.step()).exhausted:
            await reader.close()
            return found
        found.append(lead(source))
    pytest.fail("the source did not end")


def random_feeds(chance: random.Random, batch: int) -> dict[str, Feed]:
    """Splits of one span of time, of which some have many more rows than others."""
    return {
        str(n): Feed(sorted(chance.choices(range(1_000), k=chance.choice([5, 50, 300]))), batch)
        for n in range(chance.randint(2, 5))
    }


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("batch", [1, 7])
async def test_a_fast_split_is_never_further_ahead_than_the_drift_and_one_read(seed: int, batch: int):
    """Against the rows themselves; everything is read in the end."""
    feeds = random_feeds(random.Random(seed), batch)
    widest = max(
        feed.seconds[min(n + batch, len(feed.seconds)) - 1] - (feed.seconds[n - 1] if n else -1)
        for feed in feeds.values()
        for n in range(0, len(feed.seconds), batch)
    )
    found = await leads(Feeds(feeds), SourceAlignment(60 * SECOND, ()))
    assert max(found) <= 60 + widest
    assert all(feed.at == len(feed.seconds) for feed in feeds.values())
    free = Feeds({name: Feed(feed.seconds, batch) for name, feed in feeds.items()})
    assert max(await leads(free, None)) >= max(found)


async def test_who_has_said_nothing_yet_is_waited_for():
    """A split, and a subtask of the group; the first read of each tells how far it is."""
    source = Feeds({"0": Feed([500, 501, 502]), "1": Feed([])}, bounded=False)
    source.feeds["1"].open = True
    reader = await driver(source, SourceAlignment(10 * SECOND, ()))
    for _ in range(6):
        await reader.step()
    assert source.feeds["0"].at == 1
    source.feeds["1"].seconds.append(495)
    for _ in range(6):
        await reader.step()
    assert source.feeds["0"].at == 3
    await reader.close()


async def test_a_split_that_becomes_idle_is_not_waited_for_and_one_that_is_paused_is_not_idle():
    """However long it is not read."""
    time = Time()
    source = Feeds({"0": Feed([0, 100, 200]), "1": Feed([0])}, idle_after="5s", bounded=False)
    source.feeds["0"].open = source.feeds["1"].open = True
    reader = await driver(source, SourceAlignment(10 * SECOND, ()), time)
    batches: list[SourceBatch] = []
    for time.ms in range(0, 4_000, 500):
        batches.append(await reader.step())
    assert source.feeds["0"].at == 2
    for time.ms in range(4_000, 5_000, 500):
        source.feeds["1"].seconds.append(0)
        batches.append(await reader.step())
    assert source.feeds["0"].at == 2, "the other one is silent no more"
    for time.ms in range(5_000, 12_000, 500):
        batches += [await reader.step(), await reader.step()]
    assert source.feeds["0"].at == 3
    assert reader.watermark == 200 * SECOND - 1 + int(START.timestamp()) * SECOND
    assert sum(batch.became_idle for batch in batches) <= 1
    await reader.close()


async def test_a_snapshot_of_a_paused_split_goes_on_paused():
    """What was read ahead is known from the watermarks in the snapshot."""
    source = Feeds({"0": Feed([0, 100, 200]), "1": Feed([0, 1, 95])}, bounded=False)
    for feed in source.feeds.values():
        feed.open = True
    source.feeds["1"].seconds = [0]
    reader = await driver(source, SourceAlignment(10 * SECOND, ()))
    for _ in range(8):
        await reader.step()
    entries = reader.entries()
    await reader.close()
    reader = await driver(source, SourceAlignment(10 * SECOND, ()), None, entries)
    for _ in range(8):
        await reader.step()
    assert source.feeds["0"].at == 2
    source.feeds["1"].seconds += [1, 95]
    for _ in range(8):
        await reader.step()
    assert source.feeds["0"].at == 3
    await reader.close()


async def test_subtasks_of_a_group_wait_for_each_other():
    """What one says the other goes by: how far it is, that it is idle, that it is at its end."""
    other, stranger = SubtaskId("v1", 0), SubtaskId("v9", 0)
    alignment = SourceAlignment(10 * SECOND, [other])
    source = Feeds({"0": Feed([0, 20, 40, 60, 80, 100])})
    reader = await driver(source, alignment)
    origin = int(START.timestamp()) * SECOND
    read: list[int] = []
    for said in (None, MIN_WATERMARK, origin, origin + 15 * SECOND, origin + 30 * SECOND, MAX_WATERMARK):
        if said is not None:
            alignment.heard(other, said)
        alignment.heard(stranger, origin)
        for _ in range(5):
            await reader.step()
        read.append(source.feeds["0"].at)
    assert read == [1, 1, 2, 3, 4, 6]
    await reader.close()


def test_the_group_is_every_subtask_of_every_source_that_says_so():
    """By the name of the group; those without `max_drift` belong to none."""
    p = Pipeline("groups")
    for n, options in enumerate(
        [
            {"max_drift": "1m"},
            {"max_drift": "5m"},
            {"max_drift": "1m", "drift_group": "other"},
            {},
        ]
    ):
        read = p.read(iterables.Source([], schema=Event, event_time="at", **options)).parallelism(n + 1)
        read.write(collecting.Sink([]))
    graph = ExecutionGraph(build_job_graph(p.plan, 1))
    vertex = {n: each.id for n, each in enumerate(v for v in graph.graph.vertices if v.is_source)}
    first = alignment_of(p.plan, graph, SubtaskId(vertex[0], 0))
    assert first is not None
    assert set(first._others) == {SubtaskId(vertex[1], 0), SubtaskId(vertex[1], 1)}
    third = alignment_of(p.plan, graph, SubtaskId(vertex[2], 1))
    assert third is not None
    assert set(third._others) == {SubtaskId(vertex[2], 0), SubtaskId(vertex[2], 2)}
    assert alignment_of(p.plan, graph, SubtaskId(vertex[3], 0)) is None


class Order(Process[Event, Event]):
    """Hands rows on as they come."""

    def on_row(self, row, ctx):
        ctx.emit(row)


def test_sources_of_a_job_wait_for_each_other():
    """In a whole job, in virtual time: the fast one is ahead by the drift, whatever the slow one takes; then it ends."""
    found: dict[str | None, list[int]] = {}
    for drift in ("30s", None):
        p = Pipeline("aligned")
        fast, slow = (
            p.read(iterables.Source([], schema=Event, event_time="at", max_drift=drift)).parallelism(1).uid(name)
            for name in ("fast", "slow")
        )
        fast.union(slow).process(Order()).parallelism(1).write(collecting.Sink([]))
        given = {
            "fast": [Event(START + timedelta(seconds=s)) for s in range(0, 400, 10)],
            "slow": [item for s in range(5, 200, 20) for item in (Event(START + timedelta(seconds=s)), elapse("3s"))],
        }
        rows = [(row["at"] - START).seconds for row in run_pipeline(p, given)]
        assert sorted(rows) == sorted([*range(0, 400, 10), *range(5, 200, 20)])
        newest, reached, ahead = 0, 0, list[int]()
        for row in rows:
            if row % 10:
                reached = row
            else:
                newest = row
                if reached < 185:
                    ahead.append(newest - reached)
        found[drift] = ahead
    assert max(found["30s"]) <= 40
    assert max(found[None]) > 300


def test_it_is_declared_at_the_source():
    """And shown in plans."""
    source = iterables.Source([], schema=Event, event_time="at", max_drift="1m", drift_group="clicks")
    assert source.event_time is not None
    assert source.event_time.alignment == WatermarkAlignment(60 * SECOND, "clicks")
    for options, message in [
        ({"max_drift": "1m"}, "max_drift= needs event_time="),
        ({"event_time": "at", "max_drift": "0s"}, "max_drift: must be positive"),
        ({"event_time": "at", "drift_group": "x"}, "drift_group= needs max_drift="),
        ({"event_time": "at", "max_drift": 5}, "max_drift= takes"),
    ]:
        with pytest.raises(PipelineError, match=message):
            files.Source("x.jsonl", schema=Event, **options)


async def test_a_silent_split_that_event_time_waits_for_is_told():
    """Once it was asked in vain for ten seconds: not one that is ahead, is idle, or was not asked; until it has a row."""
    feeds = {"fast": Feed([10, 20, 30, 40, 50]), "slow": Feed([1])}
    feeds["fast"].open = feeds["slow"].open = True
    time = Time()
    reader = await driver(Feeds(feeds, idle_after="2m", bounded=False), time=time)
    for _ in range(2):
        await reader.step()
    time.ms = 60_000
    assert reader.silent_split is None  # nobody has asked since
    for time.ms in (60_000, 60_000, 69_999, 69_999):
        await reader.step()
    assert reader.silent_split is None
    for time.ms in (70_000, 70_000):
        await reader.step()
    assert reader.silent_split is not None
    assert (reader.silent_split.split, reader.silent_split.is_empty) == ("slow", False)
    feeds["slow"].seconds.append(2)
    for _ in range(2):
        await reader.step()
    assert reader.silent_split is None
    for time.ms in range(80_000, 201_000, 12_000):
        await reader.step()
        await reader.step()
    assert reader.silent_split is None  # it is idle, nothing waits for it


async def test_a_split_that_never_had_a_row_is_told_also_after_a_restart():
    """With how far the others of its subtask have come, and for how long it has been asked in vain."""
    feeds = {"added": Feed([]), "old": Feed([10])}
    feeds["added"].open = feeds["old"].open = True
    time, entries = Time(), list[bytes]()
    for _ in range(2):
        reader = await driver(Feeds(feeds, bounded=False), time=time, entries=entries)
        for _ in range(30):
            await reader.step()
            time.ms += 500
        silent = reader.silent_split
        assert silent is not None
        assert (silent.split, silent.is_empty) == ("added", True)
        assert silent.furthest == 10 * SECOND - 1 + int(START.timestamp()) * SECOND
        assert 10_000 <= silent.silent_ms < 15_000
        entries = reader.entries()
        await reader.close()
