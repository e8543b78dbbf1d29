"""The publish loop on a cluster that loses answers, and what it keeps of what was scanned."""

from __future__ import annotations

import pytest
from tests.unit.task.publishing_parts import Exchange, FakeCluster, FakePublisher, NoWait, Run

from penstock.adapters.memory import MemoryLog
from penstock.connectors.base import PublishedMark
from penstock.errors import CorruptDataError, PipelineError
from penstock.ports import NewRecord
from penstock.protocol.frames import Channel, Frame, FrameKind
from penstock.protocol.manifests import Interval
from penstock.protocol.publishing import FramesGone, FramesRead, Mark, PublisherPhase, ReadFrames
from penstock.task.publish_loop import ScannedFrames, decode_mark, encode_mark, read_frames
from penstock.task.transaction_loop import PATIENCE_MS, PublishingError

FIRST, SECOND = "a" * 32, "b" * 32


def numbers(cluster: FakeCluster) -> list[int]:
    return [int(record) for record in cluster.records]


@pytest.mark.parametrize("seed", range(40))
async def test_every_row_once_whatever_answer_is_lost(seed: int):
    """Doubts at every step, and an older attempt that goes on: the rows of COMPLETE once and in order, no others."""
    cluster, exchange = FakeCluster(seed, trouble=0.25), Exchange()
    first = Run(FakePublisher(cluster), exchange, 1, seed=seed)
    await first.until(lambda: first.marks)
    exchange.rows(FIRST, range(10))
    exchange.rows(FIRST, range(10, 13))
    covered = Interval(FIRST, 0, exchange.barrier(FIRST), 1)
    exchange.rows(FIRST, range(900, 910))  # no COMPLETE covers them: the attempt fails here, and is not told
    start = len(exchange.frames)
    first.loop.covered([covered])
    second = Run(FakePublisher(cluster), exchange, 2, [covered], restored=1, seed=seed + 1)
    exchange.rows(FIRST, range(910, 920))
    exchange.rows(SECOND, range(13, 20))
    exchange.rows(SECOND, range(20, 30))
    second.loop.covered([covered, Interval(SECOND, start, exchange.barrier(SECOND, 2), 2)])
    await second.until(lambda: second.published == 2)
    await first.until(lambda: first.loop.machine.phase in (PublisherPhase.EXITED, PublisherPhase.WAITING))
    await first.stop()
    await second.stop()
    assert numbers(cluster) == list(range(30))


async def test_a_commit_whose_answer_is_lost_is_found_in_the_mark():
    """It is not repeated."""
    cluster, exchange = FakeCluster(), Exchange()
    run = Run(FakePublisher(cluster), exchange, 1)
    await run.until(lambda: run.marks)
    exchange.rows(FIRST, range(5))
    end = exchange.barrier(FIRST)
    commits = cluster.commits
    answers = iter([False, False, False, False, True])  # the fifth: behind the commit
    cluster.hesitates = lambda: next(answers, False)
    run.loop.covered([Interval(FIRST, 0, end, 1)])
    await run.until(lambda: run.published == 1)
    await run.stop()
    assert (numbers(cluster), cluster.commits - commits) == ([0, 1, 2, 3, 4], 1)


async def test_a_missing_mark_fails_the_subtask():
    """Where something may have been published it is not made again."""
    run = Run(FakePublisher(FakeCluster()), Exchange(), 2, [], restored=1)
    with pytest.raises(PublishingError, match="mark of this sink is missing"):
        await run.until(lambda: False)


async def test_a_mark_beyond_the_restored_end_fails_the_subtask():
    """Rows are visible that this attempt would produce again."""
    cluster = FakeCluster()
    cluster.mark = encode_mark(Mark(9, 2, 1))
    run = Run(FakePublisher(cluster), Exchange(), 2, [Interval(FIRST, 0, 4, 1)], restored=1)
    with pytest.raises(PublishingError, match="beyond 4"):
        await run.until(lambda: False)


async def test_what_no_retry_can_help_fails_at_once():
    """A topic that is not there, a right that is not granted."""
    publisher = FakePublisher(FakeCluster())

    async def refuse() -> None:
        raise PipelineError("there is no topic 'x'")

    publisher.open = refuse
    run = Run(publisher, Exchange(), 1)
    with pytest.raises(PipelineError, match="no topic"):
        await run.until(lambda: False)
    assert publisher.closed


async def test_patience_ends():
    """Doubts for minutes without a single commit fail the subtask: the restart strategy decides."""
    run = Run(FakePublisher(FakeCluster(trouble=1.0)), Exchange(), 1)
    with pytest.raises(PublishingError, match="nothing could be published for 300 s"):
        await run.until(lambda: False)


async def test_patience_is_renewed_by_every_commit():
    """Doubts that each end in a commit never add up, however long the publisher lives."""
    cluster, exchange, clock = FakeCluster(), Exchange(), NoWait()
    run = Run(FakePublisher(cluster), exchange, 1, clock=clock)
    await run.until(lambda: run.marks)
    intervals, start = list[Interval](), 0
    for checkpoint in range(1, 5):
        answers = iter([True])  # InitProducerId fails once
        cluster.hesitates = lambda answers=answers: next(answers, False)
        exchange.rows(FIRST, [checkpoint])
        intervals.append(Interval(FIRST, start, start := exchange.barrier(FIRST, checkpoint), checkpoint))
        await clock.sleep_ms(PATIENCE_MS - 60_000)
        run.loop.covered(intervals)
        await run.until(lambda: run.published == checkpoint)  # noqa: B023 (awaited here)
    await run.stop()
    assert numbers(cluster) == [1, 2, 3, 4]


async def exchange_log(count: int) -> tuple[MemoryLog, list[int]]:
    """A log with so many frames; the offsets before each of them, and behind the last."""
    log = MemoryLog()
    await log.create_topic("x", 1)
    for n in range(count):
        await log.append("x", 0, [NewRecord(_frame(n).encode(b"rows"))])
    records = await log.read("x", 0, 0)
    return log, [record.offset for record in records] + [records[-1].next_offset]


async def test_frames_are_read_up_to_the_end_or_the_limit():
    """Whole frames, at least one."""
    log, at = await exchange_log(5)
    found = await read_frames(log, "x", 0, ReadFrames(at[1], at[4], 1_000))
    assert isinstance(found, FramesRead)
    assert ([frame[2].seq for frame in found.frames], found.end) == ([1, 2, 3], at[4])
    limited = await read_frames(log, "x", 0, ReadFrames(at[1], at[4], 1))
    assert isinstance(limited, FramesRead)
    assert [frame[2].seq for frame in limited.frames] == [1]


async def test_a_log_that_ends_too_early_or_begins_too_late_has_lost_frames():
    """It does not help to ask again, and what is left is not handed out."""
    log, at = await exchange_log(3)
    _, end = await log.offsets("x", 0)
    assert await read_frames(log, "x", 0, ReadFrames(at[1], end + 2, 1_000)) == FramesGone(f"it ends at {end}")
    assert isinstance(await read_frames(log, "x", 0, ReadFrames(end + 1, end + 2, 1_000)), FramesGone)
    await log.trim("x", 0, at[2])
    assert isinstance(await read_frames(log, "x", 0, ReadFrames(at[1], at[3], 1_000)), FramesGone)


def test_a_mark_survives_the_way_through_the_cluster():
    """Position as the offset, the rest as metadata; what somebody else wrote is refused."""
    mark = Mark(7, 3, 2, last_attempt=FIRST, last_seq=4)
    assert decode_mark(encode_mark(mark)) == mark
    for metadata in ("", "{}", "[1]", "hello"):
        with pytest.raises(CorruptDataError, match="unreadable"):
            decode_mark(PublishedMark(7, metadata))


def _frame(seq: int) -> Frame:
    return Frame(FrameKind.DATA, FIRST, Channel(0, 0), seq, rows=1)


def test_scanned_frames_are_read_from_memory_and_dropped_once_published():
    """Whole frames, from the asked offset on, up to the end or the limit."""
    kept = ScannedFrames(1_000)
    for n in range(4):
        kept.scanned(10 + n, 11 + n, _frame(n), b"x" * 10)
    found = kept.read(ReadFrames(11, 13, 1_000))
    assert found is not None
    assert ([frame[2].seq for frame in found.frames], found.end) == ([1, 2], 13)
    limited = kept.read(ReadFrames(10, 14, 15))
    assert limited is not None
    assert limited.end == 12
    assert kept.read(ReadFrames(5, 13, 1_000)) is None
    kept.published(12)
    assert kept.read(ReadFrames(11, 13, 1_000)) is None


def test_what_does_not_fit_is_left_to_the_log_until_all_is_published():
    """A run without holes: nothing is kept behind something that is not."""
    kept = ScannedFrames(25)
    for n in range(4):
        kept.scanned(n, n + 1, _frame(n), b"x" * 10)
    assert kept.read(ReadFrames(2, 4, 100)) is None
    kept.published(2)
    kept.scanned(4, 5, _frame(4), b"x")
    assert kept.read(ReadFrames(3, 5, 100)) is None
    found = kept.read(ReadFrames(4, 5, 100))
    assert found is not None
    assert found.end == 5


async def test_what_keeps_it_from_publishing_is_told_until_it_does():
    """The answer of the sink's system, by which people find out what is wrong there."""
    cluster, exchange, said = FakeCluster(trouble=1.0), Exchange(), list[str]()
    exchange.rows(FIRST, [1, 2])
    run = Run(FakePublisher(cluster), exchange, 1, None, waits=said.append)
    try:
        await run.until(lambda: said)
        assert said[-1] == "publishing: no answer: open"
        cluster.trouble = 0.0
        run.loop.covered([Interval(FIRST, 0, exchange.barrier(FIRST), 1)])
        await run.until(lambda: cluster.records)
        await run.until(lambda: not said[-1])
    finally:
        await run.stop()
