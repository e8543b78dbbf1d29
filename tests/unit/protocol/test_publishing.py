"""The loop that publishes a sink partition."""

from __future__ import annotations

import re
from typing import Any

import pytest

from penstock.protocol.frames import Channel, Frame, FrameKind
from penstock.protocol.manifests import Interval
from penstock.protocol.publishing import (
    CHUNK_BYTES,
    BackedOff,
    BackOff,
    Committed,
    CommitTransaction,
    Covered,
    Doubtful,
    Exit,
    FailJob,
    Fenced,
    FramesGone,
    FramesRead,
    InitProducer,
    Mark,
    MarkAged,
    MarkRead,
    ProducerEpoch,
    ProducerReady,
    PublisherMachine,
    PublisherPhase,
    ReadFrames,
    ReadMark,
    ReportPublished,
)

OLD, NEW = "a" * 32, "b" * 32


def frame(offset: int, attempt: str, seq: int, barrier: int = 0):
    """A record of the exchange: rows, or the barrier of a checkpoint."""
    kind = FrameKind.BARRIER if barrier else FrameKind.DATA
    return (
        offset,
        offset + 1,
        Frame(kind, attempt, Channel(0, 0), seq, rows=1, checkpoint=barrier),
        f"row {offset}",
        10,
    )


@pytest.fixture
def publisher() -> PublisherMachine:
    """One whose attempt stands in the mark, and whose next producer is on its way."""
    subject = PublisherMachine(2, lambda below: below - 1, restored=4)
    assert subject.start() == [InitProducer()]
    assert subject.handle(ProducerReady()) == [ReadMark()]
    assert subject.handle(MarkRead(Mark(0, 0, 1))) == [CommitTransaction((), Mark(0, 0, 2))]
    assert subject.handle(Committed()) == [ReportPublished(4), InitProducer()]
    return subject


def read(subject: PublisherMachine, mark: Mark | None) -> list[object]:
    subject.handle(ProducerReady())
    return subject.handle(MarkRead(mark))


def test_frames_of_an_interval_are_published_with_the_mark(publisher: PublisherMachine):
    """Only data of the interval's attempt, and the position in the same transaction."""
    assert read(publisher, Mark(0, 0, 2)) == []
    assert publisher.handle(Covered((Interval(NEW, 0, 4, 5),))) == [ReadFrames(0, 4, CHUNK_BYTES)]
    frames = [frame(0, OLD, 0), frame(1, NEW, 0), frame(2, NEW, 1), frame(3, NEW, 2, barrier=5)]
    mark = Mark(4, 5, 2, last_attempt=NEW, last_seq=2)
    assert publisher.handle(FramesRead(frames, 4)) == [CommitTransaction(("row 1", "row 2"), mark)]
    assert publisher.handle(Committed()) == [ReportPublished(5), InitProducer()]


def test_what_several_checkpoints_cover_is_published_at_once(publisher: PublisherMachine):
    """A publisher that fell behind catches up, by intervals of one attempt that follow on one another."""
    intervals = (Interval(NEW, 0, 2, 5), Interval(NEW, 2, 4, 6), Interval(NEW, 5, 7, 7), Interval(OLD, 7, 9, 8))
    publisher.handle(Covered(intervals))
    assert read(publisher, Mark(0, 0, 2)) == [ReadFrames(0, 4, CHUNK_BYTES)]
    frames = [frame(0, NEW, 0), frame(1, NEW, 1, barrier=5), frame(2, NEW, 2)]
    mark = Mark(3, 5, 2, last_attempt=NEW, last_seq=2)
    assert publisher.handle(FramesRead(frames, 3)) == [CommitTransaction(("row 0", "row 2"), mark)]
    assert publisher.handle(Committed()) == [ReportPublished(5), InitProducer()]
    assert read(publisher, mark) == [ReadFrames(3, 4, CHUNK_BYTES)]
    mark = Mark(4, 6, 2, last_attempt=NEW, last_seq=3)
    assert publisher.handle(FramesRead([frame(3, NEW, 3, barrier=6)], 4)) == [CommitTransaction((), mark)]
    assert publisher.handle(Committed()) == [ReportPublished(6), InitProducer()]
    assert read(publisher, mark) == [ReadFrames(5, 7, CHUNK_BYTES)]


def test_every_chunk_begins_with_a_fresh_producer_and_the_mark_read_back(publisher: PublisherMachine):
    """A commit whose answer was lost is found in the mark and not repeated."""
    publisher.handle(Covered((Interval(NEW, 0, 2, 5),)))
    read(publisher, Mark(0, 0, 2))
    publisher.handle(FramesRead([frame(0, NEW, 0), frame(1, NEW, 1, barrier=5)], 2))
    [back_off] = publisher.handle(Doubtful("no answer"))
    assert isinstance(back_off, BackOff)
    assert publisher.handle(BackedOff()) == [InitProducer()]
    assert publisher.handle(ProducerReady()) == [ReadMark()]
    assert publisher.handle(MarkRead(Mark(2, 5, 2))) == [ReportPublished(5)]


def test_who_was_alone_goes_on_from_its_own_mark(publisher: PublisherMachine):
    """The next epoch of the same producer id: nobody was granted one in between, so nobody else has committed."""
    read(publisher, Mark(0, 0, 2))
    publisher.handle(Covered((Interval(NEW, 0, 1, 5),)))
    publisher.handle(FramesRead([frame(0, NEW, 0, barrier=5)], 1))
    publisher.handle(Committed())
    assert publisher.handle(ProducerReady(ProducerEpoch(7, 3))) == [ReadMark()]  # whose epoch committed is not known
    publisher.handle(MarkRead(Mark(1, 5, 2, last_attempt=NEW, last_seq=0)))
    assert publisher.handle(Covered((Interval(NEW, 1, 2, 6),))) == [ReadFrames(1, 2, CHUNK_BYTES)]
    publisher.handle(FramesRead([frame(1, NEW, 1, barrier=6)], 2))
    publisher.handle(Committed())
    assert publisher.handle(ProducerReady(ProducerEpoch(7, 4))) == []
    assert publisher.handle(Covered((Interval(NEW, 2, 3, 7),))) == [ReadFrames(2, 3, CHUNK_BYTES)]


@pytest.mark.parametrize("granted", [ProducerEpoch(7, 5), ProducerEpoch(8, 4), ProducerEpoch(7, 3), None])
def test_who_was_perhaps_not_alone_reads_the_mark(publisher: PublisherMachine, granted: ProducerEpoch | None):
    """Another epoch than the next one, another producer id, or a system that counts nothing."""
    publisher.handle(ProducerReady(ProducerEpoch(7, 3)))
    publisher.handle(MarkRead(Mark(0, 0, 2)))
    publisher.handle(MarkAged())
    publisher.handle(Committed())
    assert publisher.handle(ProducerReady(granted)) == [ReadMark()]


def test_after_a_doubtful_commit_the_mark_is_read_whatever_the_epoch(publisher: PublisherMachine):
    """It may have been committed."""
    publisher.handle(ProducerReady(ProducerEpoch(7, 3)))
    publisher.handle(MarkRead(Mark(0, 0, 2)))
    publisher.handle(MarkAged())
    publisher.handle(Doubtful("no answer to EndTxn"))
    assert publisher.handle(BackedOff()) == [InitProducer()]
    assert publisher.handle(ProducerReady(ProducerEpoch(7, 4))) == [ReadMark()]


def test_doubts_about_frames_cost_no_producer(publisher: PublisherMachine):
    """The log was away, not the sink."""
    read(publisher, Mark(0, 0, 2))
    publisher.handle(Covered((Interval(NEW, 0, 4, 5),)))
    publisher.handle(Doubtful("the log is away"))
    assert publisher.handle(BackedOff()) == [ReadFrames(0, 4, CHUNK_BYTES)]


def test_a_repeated_frame_is_published_once(publisher: PublisherMachine):
    """Within a chunk and across chunks."""
    publisher.handle(Covered((Interval(NEW, 0, 7, 5),)))
    read(publisher, Mark(2, 0, 2, last_attempt=NEW, last_seq=1))
    frames = [frame(2, NEW, 1), frame(3, NEW, 2), frame(4, NEW, 2), frame(5, NEW, 3, barrier=5), frame(6, NEW, 2)]
    [commit] = publisher.handle(FramesRead(frames, 7))
    assert commit.refs == ("row 3",)


LOST = [
    pytest.param([frame(0, NEW, 1)], 1, "behind frame -1 .* follows 1 at 0", id="the first frame"),
    pytest.param(
        [frame(0, NEW, 0), frame(1, NEW, 1), frame(2, NEW, 5)], 3, "behind frame 1 .* 5 at 2", id="in the middle"
    ),
    pytest.param(
        [frame(0, NEW, 0), frame(1, NEW, 1, barrier=4), frame(2, NEW, 3)], 3, "behind frame 1 .* 3 at 2", id="a barrier"
    ),
    pytest.param([frame(n, NEW, n) for n in range(4)], 4, "the barrier of checkpoint 5 before 4", id="the end"),
    pytest.param(
        [frame(0, NEW, 0), frame(1, NEW, 1), frame(2, OLD, 2), frame(3, OLD, 3, barrier=5)],
        4,
        "the barrier of checkpoint 5 before 4",
        id="the end, and another attempt wrote there",
    ),
    pytest.param([frame(3, NEW, 0, barrier=4)], 4, "the barrier of checkpoint 5 before 4", id="another barrier"),
    pytest.param([], 4, "the barrier of checkpoint 5 before 4", id="everything"),
]


@pytest.mark.parametrize(("frames", "end", "what"), LOST)
def test_frames_that_are_missing_fail_the_job(publisher: PublisherMachine, frames: list[Any], end: int, what: str):
    """A damaged log never publishes what is left of it: the frames of an attempt are dense, an interval ends in its
    barrier."""
    publisher.handle(Covered((Interval(NEW, 0, 4, 5), Interval(NEW, 4, 6, 6))))
    read(publisher, Mark(0, 0, 2))
    [command] = publisher.handle(FramesRead(frames, end))
    assert isinstance(command, FailJob)
    assert command.damaged
    assert re.search(f"exchange of this sink: the log has lost .*{what}", command.reason)
    assert "Checkpoints 5 to 6 cover offsets 0 to 6" in command.reason


def test_a_log_that_was_written_on_below_what_is_complete_fails_the_job(publisher: PublisherMachine):
    """It has lost its end, and the next attempt wrote where rows had stood: to read on would lose both."""
    publisher.handle(Covered((Interval(OLD, 0, 9, 4), Interval(NEW, 5, 8, 5))))
    commands = read(publisher, Mark(0, 0, 2))
    assert isinstance(commands[-1], FailJob)
    assert "it ended at 5 when an attempt began, 9 was complete" in commands[-1].reason


def test_a_gap_between_two_chunks_fails_the_job(publisher: PublisherMachine):
    """The mark says where the chunk before ended; what another attempt had published before says nothing."""
    publisher.handle(Covered((Interval(NEW, 0, 9, 5),)))
    read(publisher, Mark(3, 0, 2, last_attempt=NEW, last_seq=2))
    [command] = publisher.handle(FramesRead([frame(3, NEW, 4)], 4))
    assert isinstance(command, FailJob)


def test_an_attempt_begins_with_its_first_frame_whatever_another_one_has_published(publisher: PublisherMachine):
    """And where only a mark that was made by hand knows how far it is, the first frame says from where it goes on."""
    publisher.handle(Covered((Interval(NEW, 4, 9, 5),)))
    read(publisher, Mark(4, 3, 2, last_attempt=OLD, last_seq=7))
    [commit] = publisher.handle(FramesRead([frame(3, OLD, 8), frame(4, NEW, 0)], 5))
    assert commit.mark == Mark(5, 3, 2, last_attempt=NEW, last_seq=0)
    publisher.handle(Doubtful("no answer"))
    publisher.handle(BackedOff())
    read(publisher, Mark(6, 0, 2))
    [commit] = publisher.handle(FramesRead([frame(6, NEW, 2), frame(7, NEW, 3)], 8))
    assert commit.refs == ("row 6", "row 7")


def test_a_log_that_was_truncated_fails_the_job(publisher: PublisherMachine):
    """What it ends before is gone."""
    publisher.handle(Covered((Interval(NEW, 0, 9, 5),)))
    read(publisher, Mark(0, 0, 2))
    [command] = publisher.handle(FramesGone("it ends at 6"))
    assert isinstance(command, FailJob)
    assert "lost frames that were confirmed: it ends at 6." in command.reason


def test_fencing_backs_off_for_longer_and_longer(publisher: PublisherMachine):
    """Two that fence each other in step would never get anywhere."""
    publisher.handle(Covered((Interval(NEW, 0, 2, 5),)))
    delays = []
    for _ in range(3):
        [back_off] = publisher.handle(Fenced())
        delays.append(back_off.delay_ms)
        publisher.handle(BackedOff())
    assert delays == [20, 40, 80]


def test_an_older_attempt_leaves(publisher: PublisherMachine):
    """A higher number in the mark means that a newer attempt publishes."""
    publisher.handle(Covered((Interval(NEW, 0, 2, 5),)))
    [command] = read(publisher, Mark(0, 0, 3))
    assert isinstance(command, Exit)
    assert publisher.handle(Covered(())) == []


def test_a_closed_sink_is_left(publisher: PublisherMachine):
    """A savepoint or stop has closed it."""
    publisher.handle(Covered((Interval(NEW, 0, 2, 5),)))
    assert isinstance(read(publisher, Mark(0, 0, 2, closed=True))[0], Exit)


def test_a_missing_mark_fails_the_job():
    """Neither zero nor the manifest's value is safe."""
    subject = PublisherMachine(1, lambda below: 0)
    subject.start()
    assert isinstance(read(subject, None)[0], FailJob)


def test_a_mark_that_cannot_exist_yet_is_made_before_anything_is_published():
    """Nothing of this generation can be visible: the mark begins where the attempt begins to read."""
    subject = PublisherMachine(2, lambda below: 0, first_position=7)
    subject.start()
    assert read(subject, None) == [CommitTransaction((), Mark(7, 0, 2))]
    assert not subject.announced
    subject.handle(Committed())
    assert subject.announced
    subject.handle(Covered((Interval(NEW, 7, 9, 1),)))
    assert read(subject, Mark(7, 0, 2)) == [ReadFrames(7, 9, CHUNK_BYTES)]


def test_a_mark_that_was_made_must_not_be_missing_later():
    """Somebody deleted it, or it expired: making it again would double what is visible."""
    subject = PublisherMachine(2, lambda below: 0, first_position=7)
    subject.start()
    read(subject, None)
    subject.handle(Committed())
    subject.handle(Covered((Interval(NEW, 7, 9, 1),)))
    assert isinstance(read(subject, None)[0], FailJob)


def test_the_first_mark_of_an_earlier_attempt_is_kept():
    """It began at a position that is not beyond where this attempt begins."""
    subject = PublisherMachine(3, lambda below: 0, first_position=7)
    subject.start()
    assert read(subject, Mark(4, 0, 2)) == [CommitTransaction((), Mark(4, 0, 3))]


def test_an_old_mark_is_committed_again(publisher: PublisherMachine):
    """Group offsets expire when nothing is published for long."""
    assert read(publisher, Mark(0, 0, 2)) == []
    assert publisher.handle(MarkAged()) == [CommitTransaction((), Mark(0, 0, 2))]
    assert publisher.handle(Committed()) == [InitProducer()]
    assert read(publisher, Mark(0, 0, 2)) == []
    assert publisher.phase is PublisherPhase.WAITING


def test_a_mark_beyond_what_is_complete_fails_the_job():
    """Rows are visible that this attempt would produce again."""
    subject = PublisherMachine(3, lambda below: 0)
    subject.start((Interval(OLD, 0, 4, 2),))
    [command] = read(subject, Mark(9, 7, 2))
    assert isinstance(command, FailJob)
    assert "beyond 4" in command.reason


def test_a_manifest_that_was_read_late_is_ignored(publisher: PublisherMachine):
    """The newest one says all that the earlier ones said."""
    publisher.handle(Covered((Interval(NEW, 0, 2, 5), Interval(NEW, 2, 4, 6))))
    publisher.handle(Covered((Interval(NEW, 0, 2, 5),)))
    read(publisher, Mark(2, 5, 2, last_attempt=NEW, last_seq=1))
    [commit] = publisher.handle(FramesRead([frame(2, NEW, 2), frame(3, NEW, 3, barrier=6)], 4))
    assert commit.mark.position == 4


def test_a_restored_interval_is_published_by_the_next_attempt():
    """Publishing by anyone equals publishing by the owner."""
    subject = PublisherMachine(3, lambda below: 0, restored=2)
    subject.start((Interval(OLD, 0, 4, 2),))
    read(subject, Mark(0, 0, 2))
    assert subject.handle(Committed()) == [InitProducer()]
    assert read(subject, Mark(0, 0, 3)) == [ReadFrames(0, 4, CHUNK_BYTES)]
