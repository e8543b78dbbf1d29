"""The publishing of a split, event by event."""

from __future__ import annotations

import pytest

from penstock.protocol.publishing import (
    BackedOff,
    BackOff,
    Committed,
    CommitTransaction,
    Doubtful,
    Exit,
    FailJob,
    Fenced,
    InitProducer,
    MarkRead,
    ProducerEpoch,
    ProducerReady,
    PublisherPhase,
    ReadMark,
)
from penstock.protocol.split_publishing import NOBODY, Flush, Offered, SplitMark, SplitPublisherMachine


def machine(number: int = 1, restored: object = 10, **options) -> SplitPublisherMachine:
    return SplitPublisherMachine(number, lambda _: 0, restored, split="split 0", **options)


def announced(mark: SplitMark | None = None, **options) -> SplitPublisherMachine:
    """A machine whose attempt stands in the mark, with a producer at hand."""
    made = machine(**options)
    assert made.start() == [InitProducer()]
    assert made.handle(ProducerReady(ProducerEpoch(1, 0))) == [ReadMark()]
    before = mark or SplitMark(0, 0, 10)
    commit = CommitTransaction((), SplitMark(before.number + 1, 1, before.position))
    assert made.handle(MarkRead(mark)) == [commit]
    assert not made.announced
    assert made.handle(Committed()) == [InitProducer()]
    assert made.announced
    assert made.handle(ProducerReady(ProducerEpoch(1, 1))) == []
    return made


def test_a_split_without_mark_begins_where_the_checkpoint_has_it():
    """The attempt is announced before a row is read."""
    assert announced().position == 10


def test_the_mark_goes_before_the_checkpoint():
    """Rows behind the checkpoint are visible: they are not read again."""
    assert announced(SplitMark(7, 0, 99)).position == 99


def test_rows_go_out_as_soon_as_they_come_and_together_while_a_transaction_lasts():
    """One transaction after the other, each with all that was offered meanwhile."""
    made = announced()
    assert made.handle(Offered(("a",), 11)) == [CommitTransaction(("a",), SplitMark(2, 1, 11))]
    assert made.handle(Offered(("b", "c"), 13)) == []
    assert made.handle(Offered(("d",), 14)) == []
    assert made.handle(Committed()) == [InitProducer()]
    assert (made.offered, made.covered, made.position) == (3, 1, 11)
    commit = CommitTransaction(("b", "c", "d"), SplitMark(3, 1, 14))
    assert made.handle(ProducerReady(ProducerEpoch(1, 2))) == [commit]


def test_a_transaction_is_no_larger_than_a_chunk():
    """At least one run, whatever its size."""
    made = announced(chunk_bytes=10)
    made.handle(Offered(("a",), 11, 6))
    made.handle(Offered(("b",), 12, 6))
    made.handle(Offered(("c",), 13, 60))
    assert made.pending_bytes == 72
    made.handle(Committed())
    assert made.handle(ProducerReady(ProducerEpoch(1, 2))) == [CommitTransaction(("b",), SplitMark(3, 1, 12))]
    made.handle(Committed())
    assert made.handle(ProducerReady(ProducerEpoch(1, 3))) == [CommitTransaction(("c",), SplitMark(4, 1, 13))]


def test_where_no_row_came_of_it_only_a_barrier_moves_the_mark():
    """A filter that lets little pass makes no transaction per read."""
    made = announced()
    assert made.handle(Offered((), 20)) == []
    assert made.handle(Flush()) == [CommitTransaction((), SplitMark(2, 1, 20))]
    made.handle(Committed())
    made.handle(ProducerReady(ProducerEpoch(1, 2)))
    assert made.handle(Flush()) == []
    assert made.handle(Offered((), 21)) == []
    assert made.handle(Offered(("a",), 22)) == [CommitTransaction(("a",), SplitMark(3, 1, 22))]


@pytest.mark.parametrize("committed", [True, False])
def test_in_doubt_the_mark_says_whether_rows_are_visible(committed: bool):
    """They are published again if it stands where it stood, and not if it has moved."""
    made = announced()
    (commit,) = made.handle(Offered(("a",), 11))
    assert made.handle(Doubtful("no answer")) == [BackOff(1)]
    made.handle(Offered(("b",), 12))
    assert made.handle(BackedOff()) == [InitProducer()]
    assert made.handle(ProducerReady(ProducerEpoch(1, 2))) == [ReadMark()]
    assert isinstance(commit, CommitTransaction)
    if committed:
        assert made.handle(MarkRead(commit.mark)) == [CommitTransaction(("b",), SplitMark(3, 1, 12))]
    else:
        assert made.handle(MarkRead(SplitMark(1, 1, 10))) == [CommitTransaction(("a", "b"), SplitMark(2, 1, 12))]


def test_the_mark_is_read_where_somebody_else_was_granted_an_epoch():
    """And not where nobody was: then it is the one that was committed."""
    made = announced()
    made.handle(Offered(("a",), 11))
    made.handle(Committed())
    assert made.handle(ProducerReady(ProducerEpoch(1, 3))) == [ReadMark()]


def test_until_an_attempt_is_announced_an_older_one_may_publish():
    """What it has published meanwhile is not published again."""
    made = machine(2)
    made.start()
    made.handle(ProducerReady(None))
    made.handle(MarkRead(SplitMark(4, 1, 30)))
    assert made.handle(Fenced()) == [BackOff(1)]
    made.handle(BackedOff())
    made.handle(ProducerReady(None))
    assert made.handle(MarkRead(SplitMark(5, 1, 35))) == [CommitTransaction((), SplitMark(6, 2, 35))]


def test_who_reads_a_newer_attempt_leaves():
    """Nothing moves it any more."""
    made = announced()
    made.handle(Offered(("a",), 11))
    made.handle(Fenced())
    made.handle(BackedOff())
    made.handle(ProducerReady(None))
    assert made.handle(MarkRead(SplitMark(9, 2, 50))) == [Exit("attempt number 2 publishes")]
    assert made.phase is PublisherPhase.EXITED
    assert made.handle(Offered(("b",), 12)) == []


def test_a_mark_that_nobody_of_the_attempt_has_made_fails():
    """Somebody else has written there."""
    made = announced()
    made.handle(Offered(("a",), 11))
    made.handle(Doubtful(""))
    made.handle(BackedOff())
    made.handle(ProducerReady(None))
    (failed,) = made.handle(MarkRead(SplitMark(9, 1, 50)))
    assert isinstance(failed, FailJob)
    assert "split 0" in failed.reason


def test_a_missing_mark_of_a_split_that_a_checkpoint_knows_fails():
    """Rows behind the checkpoint may be visible."""
    made = machine(must_have_mark=True)
    made.start()
    made.handle(ProducerReady(None))
    (failed,) = made.handle(MarkRead(None))
    assert isinstance(failed, FailJob)
    assert "start a new job from a savepoint" in failed.reason


def test_many_runs_without_rows_are_one_until_a_barrier():
    """A filter that lets nothing pass keeps no list of what it read, and all of it counts as covered."""
    made = announced()
    for position in range(11, 2_011):
        assert made.handle(Offered((), position)) == []
    assert made.handle(Flush()) == [CommitTransaction((), SplitMark(2, 1, 2_010))]
    assert made.handle(Offered((), 2_011)) == []
    made.handle(Committed())
    assert (made.offered, made.covered) == (2_001, 2_000)
    assert made.handle(ProducerReady(ProducerEpoch(1, 2))) == []
    assert made.handle(Offered(("a",), 2_012, 5)) == [CommitTransaction(("a",), SplitMark(3, 1, 2_012))]
    assert made.pending_bytes == 5
    made.handle(Committed())
    assert (made.offered, made.covered, made.pending_bytes) == (2_002, 2_002, 0)


def test_where_another_job_goes_on_the_former_one_leaves():
    """Its mark is closed: the number of no attempt is as high."""
    made = announced()
    made.handle(Offered(("a",), 11))
    made.handle(Fenced())
    made.handle(BackedOff())
    made.handle(ProducerReady(None))
    assert isinstance(made.handle(MarkRead(SplitMark(2, NOBODY, 10)))[0], Exit)
