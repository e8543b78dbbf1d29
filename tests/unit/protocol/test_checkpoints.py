"""Which checkpoint to trigger, and when one is complete."""

from __future__ import annotations

import itertools

import pytest

from penstock.protocol.checkpoints import RETRY_MS, CheckpointBook, CheckpointSettings, PendingCheckpoint
from penstock.protocol.messages import Acknowledged, Declined, SubtaskId, SubtaskSnapshot

SUBTASKS = (SubtaskId("s", 0), SubtaskId("k", 0))


def new_book(**settings: object) -> CheckpointBook:
    numbers = itertools.count()
    book = CheckpointBook(CheckpointSettings(interval_ms=100, timeout_ms=50, **settings), lambda: f"n{next(numbers)}")
    book.start_attempt(0)
    return book


def ack(pending: PendingCheckpoint, subtask: SubtaskId, **other: str) -> Acknowledged:
    fields = {"attempt": pending.attempt, "nonce": pending.nonce} | other
    return Acknowledged(job="j", checkpoint=pending.checkpoint, subtask=subtask, snapshot=SubtaskSnapshot(), **fields)


def test_the_interval_counts_from_trigger_to_trigger():
    """And one checkpoint at a time, unless more are allowed."""
    book = new_book()
    assert not book.due(99)
    assert book.due(100)
    book.trigger("a", SUBTASKS, "periodic", 100)
    assert not book.due(300)


def test_the_pause_counts_from_the_end():
    """A slow checkpoint leaves the job time to work."""
    book = new_book(min_pause_ms=80)
    pending = book.trigger("a", SUBTASKS, "periodic", 100)
    book.completed(pending.checkpoint, 190)
    assert not book.due(250)
    assert book.due(270)


def test_numbers_are_above_all_that_were_seen():
    """Numbers found in commands or in the job log are never used again."""
    book = new_book()
    book.seen(41)
    assert book.trigger("a", SUBTASKS, "periodic", 0).checkpoint == 42


def test_a_checkpoint_is_full_when_every_subtask_has_acked():
    """Each ack counts once."""
    book = new_book()
    pending = book.trigger("a", SUBTASKS, "periodic", 0)
    assert book.acknowledged(ack(pending, SUBTASKS[0])) is None
    assert book.acknowledged(ack(pending, SUBTASKS[0])) is None
    assert book.acknowledged(ack(pending, SUBTASKS[1])) is pending
    assert pending.full


@pytest.mark.parametrize("other", [{"attempt": "b"}, {"nonce": "other"}])
def test_acks_of_something_else_are_never_merged(other: dict[str, str]):
    """A number alone does not identify a checkpoint."""
    book = new_book()
    pending = book.trigger("a", SUBTASKS, "periodic", 0)
    assert book.acknowledged(ack(pending, SUBTASKS[0], **other)) is None
    assert pending.missing == set(SUBTASKS)


def test_completing_one_aborts_the_lower_ones():
    """Numbers rise along the log."""
    book = new_book(max_concurrent=3)
    first, second, third = (book.trigger("a", SUBTASKS, "periodic", t) for t in (0, 1, 2))
    assert book.completed(second.checkpoint, 10) == [first]
    assert book.pending == [third]


def test_failures_in_a_row_are_counted():
    """A decline and a timeout count, a completion starts over, an abort for another reason does not count."""
    book = new_book(tolerable_failed=1)
    pending = book.trigger("a", SUBTASKS, "periodic", 0)
    declined = Declined(
        job="j", attempt="a", checkpoint=pending.checkpoint, nonce=pending.nonce, subtask=SUBTASKS[0], reason="disk"
    )
    assert book.declined(declined, 1) == [pending]
    assert book.declined(declined, 1) == []
    assert not book.too_many_failures
    late = book.trigger("a", SUBTASKS, "periodic", 2)
    assert book.expired(51) == []
    assert book.expired(52) == [late]
    assert book.too_many_failures
    book.completed(book.trigger("a", SUBTASKS, "periodic", 60).checkpoint, 61)
    assert not book.too_many_failures
    book.trigger("a", SUBTASKS, "periodic", 70)
    assert len(book.abort_all()) == 1
    assert not book.too_many_failures


def test_a_store_that_is_away_costs_checkpoints_and_no_attempt():
    """Another attempt could not write them either; nor does a savepoint that somebody asked for count."""
    book = new_book(tolerable_failed=0)
    pending = book.trigger("a", SUBTASKS, "periodic", 0)
    declined = Declined(
        job="j", attempt="a", checkpoint=pending.checkpoint, nonce=pending.nonce, subtask=SUBTASKS[0],
        reason="503", unavailable=True,
    )  # fmt: skip
    assert book.declined(declined, 1) == [pending]
    assert not book.too_many_failures
    book.trigger("a", SUBTASKS, "savepoint", 2)
    assert len(book.expired(60_000)) == 1
    assert not book.too_many_failures


def test_an_ending_tries_again_after_a_pause():
    """A checkpoint that fails at once must not be triggered in a circle."""
    book = new_book()
    assert book.may_retry(0)
    pending = book.trigger("a", SUBTASKS, "final", 0)
    book.failed(pending, 5)
    assert not book.may_retry(5 + RETRY_MS - 1)
    assert book.may_retry(5 + RETRY_MS)


def test_what_others_restore_from_is_exact():
    """Only periodic checkpoints may be taken at least once."""
    book = new_book(flavour="at_least_once")
    assert book.flavour("periodic") == "at_least_once"
    assert book.flavour("savepoint") == "aligned"


def test_what_is_tried_again_until_it_succeeds_counts():
    """A suspension asks again and again: where no barrier gets through, another attempt must."""
    book = new_book(tolerable_failed=1)
    for now_ms in (0, 1_000):
        book.trigger("a", SUBTASKS, "suspend", now_ms)
        assert book.expired(now_ms + 50)
    assert book.too_many_failures
