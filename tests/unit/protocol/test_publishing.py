"""The loop that publishes a sink partition."""

from __future__ import annotations

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
    FramesRead,
    InitProducer,
    Mark,
    MarkAged,
    MarkRead,
    ProducerReady,
    PublisherMachine,
    PublisherPhase,
    ReadFrames,
    ReadMark,
    ReportPublished,
)

OLD, NEW = "a" * 32, "b" * 32


def frame(offset: int, attempt: str, seq: int, kind: FrameKind = FrameKind.DATA):
    return (offset, offset + 1, Frame(kind, attempt, Channel(0, 0), seq, rows=1), f"row {offset}", 10)


@pytest.fixture
def publisher() -> PublisherMachine:
    """One whose attempt stands in the mark."""
    subject = PublisherMachine(2, lambda below: below - 1, restored=4)
    assert subject.start() == [InitProducer()]
    assert subject.handle(ProducerReady()) == [ReadMark()]
    assert subject.handle(MarkRead(Mark(0, 0, 1))) == [CommitTransaction((), Mark(0, 0, 2))]
    assert subject.handle(Committed()) == [ReportPublished(4)]
    assert subject.phase is PublisherPhase.WAITING
    return subject


def read(subject: PublisherMachine, mark: Mark | None) -> list[object]:
    subject.handle(ProducerReady())
    return subject.handle(MarkRead(mark))


def test_frames_of_an_interval_are_published_with_the_mark(publisher: PublisherMachine):
    """Only data of the interval's attempt, and the position in the same transaction."""
    assert publisher.handle(Covered((Interval(NEW, 0, 4, 5),))) == [InitProducer()]
    assert read(publisher, Mark(0, 0, 2)) == [ReadFrames(0, 4, CHUNK_BYTES)]
    frames = [frame(0, OLD, 0), frame(1, NEW, 0), frame(2, NEW, 1), frame(3, NEW, 2, FrameKind.BARRIER)]
    mark = Mark(4, 5, 2, last_attempt=NEW, last_seq=2)
    assert publisher.handle(FramesRead(frames, 4)) == [CommitTransaction(("row 1", "row 2"), mark)]
    assert publisher.handle(Committed()) == [ReportPublished(5)]


def test_what_several_checkpoints_cover_is_published_at_once(publisher: PublisherMachine):
    """A publisher that fell behind catches up, by intervals of one attempt that follow on one another."""
    intervals = (Interval(NEW, 0, 2, 5), Interval(NEW, 2, 4, 6), Interval(NEW, 5, 7, 7), Interval(OLD, 7, 9, 8))
    publisher.handle(Covered(intervals))
    assert read(publisher, Mark(0, 0, 2)) == [ReadFrames(0, 4, CHUNK_BYTES)]
    frames = [frame(0, NEW, 0), frame(1, NEW, 1, FrameKind.BARRIER), frame(2, NEW, 2)]
    mark = Mark(3, 5, 2, last_attempt=NEW, last_seq=2)
    assert publisher.handle(FramesRead(frames, 3)) == [CommitTransaction(("row 0", "row 2"), mark)]
    assert publisher.handle(Committed()) == [ReportPublished(5), InitProducer()]
    assert read(publisher, mark) == [ReadFrames(3, 4, CHUNK_BYTES)]
    mark = Mark(4, 6, 2, last_attempt=NEW, last_seq=3)
    assert publisher.handle(FramesRead([frame(3, NEW, 3)], 4)) == [CommitTransaction(("row 3",), mark)]
    assert publisher.handle(Committed()) == [ReportPublished(6), InitProducer()]
    assert read(publisher, mark) == [ReadFrames(5, 7, CHUNK_BYTES)]


def test_every_chunk_begins_with_a_fresh_producer_and_the_mark_read_back(publisher: PublisherMachine):
    """A commit whose answer was lost is found in the mark and not repeated."""
    publisher.handle(Covered((Interval(NEW, 0, 2, 5),)))
    read(publisher, Mark(0, 0, 2))
    publisher.handle(FramesRead([frame(0, NEW, 0), frame(1, NEW, 1)], 2))
    [back_off] = publisher.handle(Doubtful("no answer"))
    assert isinstance(back_off, BackOff)
    assert publisher.handle(BackedOff()) == [InitProducer()]
    assert publisher.handle(ProducerReady()) == [ReadMark()]
    assert publisher.handle(MarkRead(Mark(2, 5, 2))) == [ReportPublished(5)]


def test_a_repeated_frame_is_published_once(publisher: PublisherMachine):
    """Within a chunk and across chunks."""
    publisher.handle(Covered((Interval(NEW, 0, 5, 5),)))
    read(publisher, Mark(2, 0, 2, last_attempt=NEW, last_seq=1))
    frames = [frame(2, NEW, 1), frame(3, NEW, 2), frame(4, NEW, 2)]
    [commit] = publisher.handle(FramesRead(frames, 5))
    assert commit.refs == ("row 3",)


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
    assert publisher.handle(MarkAged()) == [InitProducer()]
    assert read(publisher, Mark(0, 0, 2)) == [CommitTransaction((), Mark(0, 0, 2))]
    assert publisher.handle(Committed()) == []
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
    read(publisher, Mark(2, 5, 2))
    [commit] = publisher.handle(FramesRead([frame(2, NEW, 2), frame(3, NEW, 3)], 4))
    assert commit.mark.position == 4


def test_a_restored_interval_is_published_by_the_next_attempt():
    """Publishing by anyone equals publishing by the owner."""
    subject = PublisherMachine(3, lambda below: 0, restored=2)
    subject.start((Interval(OLD, 0, 4, 2),))
    read(subject, Mark(0, 0, 2))
    assert subject.handle(Committed()) == [InitProducer()]
    assert read(subject, Mark(0, 0, 3)) == [ReadFrames(0, 4, CHUNK_BYTES)]
